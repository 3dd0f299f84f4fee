"""``hames trust``: what a directory would execute, and whether it may."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

import click

from hames.content.errors import NotFoundError, UsageError
from hames.content.paths import expanded
from hames.content.visible import visible
from hames.faces.cli.common import decisions, existing_directory, json_option, state_directory, state_option
from hames.trust import Status, Trust
from hames.trust.decisions import canonical

STANDINGS = {
    "granted": "trusted",
    "changed": "was trusted, and would execute something else now",
    "refused": "not trusted: you have refused it",
    "undecided": "not trusted: nobody has decided about it",
}


def looked_at(directory: str, state_dir: str | None) -> tuple[Trust, Status]:
    """A directory as it stands.

    :raises NotFoundError: if there is none.
    """
    path = existing_directory(directory)
    trust = decisions(state_directory(state_dir))
    return trust, trust.status(path)


def changes(status: Status) -> list[str]:
    """What it would execute now, as a difference to what was granted."""
    return [line for line in difflib.ndiff(status.before, status.executes) if not line.startswith("?")]


def shown(status: Status) -> str:
    lines = [f"{visible(str(status.directory))}: {STANDINGS[status.standing]}"]
    if status.standing == "changed":
        lines += [f"  {line}" for line in changes(status)]
    else:
        lines += [f"  {line}" for line in status.executes]
    if not status.executes and status.standing != "changed":
        lines.append("  it would execute nothing; trusting it lets its instructions and skills be read")
    return "\n".join(lines)


@click.group("trust")
def command() -> None:
    """Show, grant and revoke trust in directories."""


@command.command("show")
@click.argument("directory", default=".")
@json_option
@state_option
def show(directory: str, as_json: bool, state_dir: str | None) -> None:
    """Say what DIRECTORY would execute, what has changed since it was trusted, and whether it is. It is read as data."""
    _, status = looked_at(directory, state_dir)
    if as_json:
        item = {"directory": str(status.directory), "standing": status.standing, "executes": status.executes, "before": status.before}
        click.echo(json.dumps(item, ensure_ascii=False))
    else:
        click.echo(shown(status))


@command.command("grant")
@click.argument("directory", default=".")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@state_option
def grant(directory: str, yes: bool, as_json: bool, state_dir: str | None) -> None:
    """Trust DIRECTORY with what it would execute now. A later change of that needs another grant."""
    trust, status = looked_at(directory, state_dir)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody is here to ask", remedy="look at 'hames trust show', then grant it with --yes")
        click.echo(shown(status), err=True)
        if not click.confirm("Trust it?", err=True):
            raise UsageError("it is not trusted", remedy="nothing was changed")
    trust.decide(status, True)
    click.echo(json.dumps({"directory": str(status.directory), "standing": "granted"}) if as_json else f"{status.directory}: trusted")


@command.command("revoke")
@click.argument("directory", default=".")
@json_option
@state_option
def revoke(directory: str, as_json: bool, state_dir: str | None) -> None:
    """Take back trust in DIRECTORY, whether it is still there or not."""
    path = canonical(expanded(directory))
    found = Trust(state_directory(state_dir) / "trust").revoke(path)
    if not found:
        raise NotFoundError(f"nothing was decided about {visible(str(path))}", remedy="'hames trust list' shows what was")
    click.echo(json.dumps({"directory": str(path), "standing": "undecided"}) if as_json else f"{visible(str(path))}: not trusted")


@command.command("list")
@json_option
@state_option
def list_decisions(as_json: bool, state_dir: str | None) -> None:
    """List the directories that somebody has decided about."""
    found = Trust(state_directory(state_dir) / "trust").all()
    if as_json:
        items = [{"directory": str(path), "granted": granted, "exists": Path(path).is_dir()} for path, granted in found]
        click.echo(json.dumps({"decisions": items}, ensure_ascii=False))
        return
    for path, granted in found:
        click.echo(f"{'trusted' if granted else 'refused':<8} {visible(str(path))}{'' if path.is_dir() else '  (is not there)'}")
    if not found:
        click.echo("nothing has been decided", err=True)
