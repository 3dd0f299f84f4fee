"""``hames workspace``: what a directory mounts for those who work in it, and reading it again while they do."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hames.compose import Interpolation, Layer, compose, plan
from hames.compose.mounting import Planned
from hames.compose.tree import placed
from hames.content.errors import HamesError, NotFoundError
from hames.content.visible import visible
from hames.faces.cli.common import chosen_layers, existing_directory, json_option, layer_options, state_directory, state_option
from hames.mcp.project import project_servers
from hames.trust import Trust
from hames.trust.executes import COMPOSITION, MCP
from hames.workspaces.live import Live

PATIENCE = 60.0  # seconds that a reload may take


@click.group("workspace")
def command() -> None:
    """Show what directories mount for those who work in them; read them again while they do."""


def looked_at(directory: Path, layers: Sequence[Layer], state: Path) -> dict[str, Any]:
    """What a directory would mount: it is read as data until it is trusted."""
    base = compose(layers)
    base.check()
    files = [str(name) for name in (COMPOSITION, MCP) if (directory / name).is_file()]
    found: dict[str, Any] = {"directory": str(directory), "files": files, "trust": "unknown", "changed": [], "removed": [], "problems": []}
    try:
        found["trust"] = Trust(state / "trust").status(directory, base).standing
        if found["trust"] == "granted" and str(COMPOSITION) in files:
            below = placed(plan(compose(layers), Interpolation(os.environ)))
            both = compose([*layers, Layer(directory / COMPOSITION, str(COMPOSITION))])
            here = placed(plan(both, Interpolation(os.environ, directory)))
            found["changed"] = [path for path, row in here.items() if path not in below or below[path].identity != row.identity]
            found["removed"] = [path for path in below if path not in here]
            firm = [path for path in (*found["changed"], *found["removed"]) if path in below and foundation(below[path].planned)]
            found["problems"] += [f"row {path}: the workspace stands on this, and cannot change it" for path in firm]
        if found["trust"] == "granted" and str(MCP) in files:
            found["changed"] += [f"{MCP}:{name}" for name in project_servers(directory, os.environ)]
    except HamesError as error:
        found["problems"] += error.message.splitlines()
    return found


FOUNDATIONS = ("hames.store", "hames.sessions", "hames.agents.plugin", "hames.trust", "hames.workspaces")


def foundation(planned: Planned) -> bool:
    """Whether workspaces stand on a row."""
    return planned.plugin.body.__module__.startswith(FOUNDATIONS)


@command.command("status")
@click.argument("directory", default=".")
@layer_options
@json_option
@state_option
def status(directory: str, as_json: bool, state_dir: str | None, profile_name: str, patches: tuple[str, ...]) -> None:
    """Say what DIRECTORY mounts, whether it is trusted, and how it is in every process that works there."""
    state = state_directory(state_dir)
    path = existing_directory(directory).resolve()
    found = looked_at(path, chosen_layers(profile_name, patches), state)
    found["live"] = [each for each in Live(state / "workspaces").all() if each.get("directory") == str(path)]
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        click.echo(f"{visible(str(path))}: {', '.join(found['files']) or 'nothing of its own'}; trust: {found['trust']}")
        for path_of_row in found["changed"]:
            click.echo(f"  + {path_of_row}")
        for path_of_row in found["removed"]:
            click.echo(f"  - {path_of_row}")
        for problem in found["problems"]:
            click.echo(f"  ! {problem}")
        for each in found["live"]:
            click.echo(f"  {shown(each)}")
        if not found["live"]:
            click.echo("  nobody works in it now")
    sys.exit(2 if found["problems"] else 0)


def shown(live: dict[str, Any]) -> str:
    """A live workspace in a line."""
    reload = live.get("reload")
    watching = f"{reload['status']}, {reload['successful_reloads']} reloads" if reload else "not watched"
    failed = f"; {live['reason']}: {live['message']}" if live.get("reason") else ""
    return f"process {str(live.get('process', '')).partition('-')[0]}: {live.get('leases')} leases, {watching}{failed}"


@command.command("reload")
@click.argument("directory", default=".")
@click.option("--all", "everything", is_flag=True, help="Start every row anew, also those that have not changed.")
@json_option
@state_option
def reload(directory: str, everything: bool, as_json: bool, state_dir: str | None) -> None:
    """Have every process that works in DIRECTORY read it again, and wait for that."""
    path = str(existing_directory(directory).resolve())
    live = Live(state_directory(state_dir) / "workspaces")
    if not any(each.get("directory") == path for each in live.all()):
        raise NotFoundError(f"nobody works in {visible(path)} now", remedy="it is read when somebody does", code="WORKSPACE_UNKNOWN")
    token = live.request(path, all=everything)
    end = time.monotonic() + PATIENCE
    try:
        while True:
            found = [each for each in live.all() if each.get("directory") == path]
            if all(each.get("answered") == token for each in found):
                break
            if time.monotonic() > end:
                raise HamesError(f"a process did not answer within {PATIENCE:g} s", remedy="see 'hames workspace status'", code="TIMEOUT")
            time.sleep(0.05)
    finally:
        live.withdraw(path)
    if as_json:
        click.echo(json.dumps({"directory": path, "live": found}, ensure_ascii=False))
    for each in found if not as_json else ():
        click.echo(shown(each))
    sys.exit(1 if any(each.get("reason") for each in found) else 0)
