"""``hames compose``: what the files say together, where each value comes from, and whether it is sound."""

from __future__ import annotations

import json
import os
import sys

import click

from hames.compose import Interpolation, compose, plan
from hames.compose.explain import as_data, explained, shown
from hames.content.errors import ConfigError
from hames.faces.cli.common import chosen_layers, json_option, layer_options


@click.group("compose")
def command() -> None:
    """Show, explain and check the composition."""


@command.command("show")
@layer_options
@json_option
def show(profile_name: str, patches: tuple[str, ...], as_json: bool) -> None:
    """Print the rows after all layers, each value with its origin. Imports nothing and fills nothing in."""
    composition = compose(chosen_layers(profile_name, patches))
    composition.check()
    click.echo(json.dumps({"rows": as_data(composition)}, ensure_ascii=False) if as_json else shown(composition))


@command.command("explain")
@click.argument("name")
@layer_options
@json_option
def explain(name: str, profile_name: str, patches: tuple[str, ...], as_json: bool) -> None:
    """Say what a row is (ROW, or GROUP/ROW) or one of its values (ROW:config.key), and what it was in the layers below."""
    composition = compose(chosen_layers(profile_name, patches))
    composition.check()
    answer = explained(composition, name)
    if as_json:
        path = name.partition(":")[0]
        (row,) = (each for each in as_data(composition) if each["path"] == path)
        click.echo(json.dumps({"row": row, "text": answer}, ensure_ascii=False))
    else:
        click.echo(answer)


@command.command("check")
@layer_options
@json_option
def check(profile_name: str, patches: tuple[str, ...], as_json: bool) -> None:
    """Import every plugin and validate every value; mount nothing. Names all mistakes at once."""
    composition = compose(chosen_layers(profile_name, patches))
    try:
        rows = [each for top in plan(composition, Interpolation(os.environ)) for each in top.walk()]
    except ConfigError as error:
        if as_json:
            click.echo(json.dumps({"status": "invalid", "problems": error.message.splitlines()}, ensure_ascii=False))
        else:
            click.echo(error.message, err=True)
            count = len(error.message.splitlines())
            click.echo(f"{count} mistake{'s' if count != 1 else ''}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps({"status": "ok", "rows": [each.path for each in rows]}))
    else:
        click.echo(f"ok: {len(rows)} rows")
