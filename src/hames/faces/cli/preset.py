"""``hames preset``: which compositions an agent can have, what each gives it here, and which one it has."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

import click

from hames.compose import Layer
from hames.content.errors import NotFoundError, UsageError
from hames.content.paths import SHIPPED
from hames.content.visible import visible
from hames.faces.cli.common import chosen_layers, decisions, existing_directory, json_option, layer_options, state_directory, state_option
from hames.faces.cli.preset_check import examined, lines
from hames.toolkit.project import trusted
from hames.trust.executes import PRESETS
from hames.workspaces.choice import EVERYWHERE, NONE, choose, chosen, forget, is_name, listed, places, preset_file
from hames.workspaces.service import canonical

cwd_option = click.option("--cwd", metavar="DIR", default=".", help="The directory that it is for (default: this one).")

DELTA = """# {what}
# What stands here changes the preset that it takes in; what it does not name follows that one.
- {{include: {base}}}
# - id: orchestrator
#   set:
#     config:
#       main_agent_extra: ["mcp:codegraph/*", implement_cont]
#       roles:
#         implement: {{model: "anthropic:claude-sonnet-4-5"}}
#         implement_cont: {{background_mode: continuable}}
#       roles_remove: [design]
#       failure: {{retries: 1, strikes: 2}}
"""


@click.group("preset")
def command() -> None:
    """List, show, check, choose and make presets: compositions that an agent can have."""


def here(cwd: str, state_dir: str | None) -> tuple[Path, list[Path]]:
    """A directory, and where its presets are."""
    directory = canonical(existing_directory(cwd, "--cwd"))
    counts = trusted(decisions(state_directory(state_dir)), directory)
    return directory, places(directory, os.environ, trusted=counts)


def origin(path: Path, directory: Path) -> str:
    """Whose a preset is."""
    if path.parent == SHIPPED / "presets":
        return "shipped"
    return "workspace" if path.is_relative_to(directory / ".hames") else "user"


def description(path: Path) -> str:
    """What a preset says of itself: the first line, where it is a comment."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            first = file.readline(400)
    except OSError:
        return ""
    return first.lstrip("#").strip() if first.startswith("#") else ""


def file_of(name: str, directory: Path, found: Sequence[Path]) -> Path:
    """The file of a preset.

    :raises NotFoundError: if there is none of that name, or it counts for nothing yet.
    """
    try:
        return preset_file(name, found)
    except NotFoundError as error:
        if is_name(name) and directory / PRESETS not in found and (directory / PRESETS / f"{name}.yaml").is_file():
            said = f"preset {name} of this directory counts for nothing until it is trusted"
            raise NotFoundError(said, remedy="see 'hames trust show'", code=error.code) from None
        raise


@command.command("list")
@cwd_option
@json_option
@state_option
def list_presets(cwd: str, as_json: bool, state_dir: str | None) -> None:
    """List the presets that there are for a directory; a star marks the one that agents there get."""
    directory, found = here(cwd, state_dir)
    now = chosen(directory, os.environ)
    items = [
        {
            "name": name,
            "origin": origin(paths[0], directory),
            "path": str(paths[0]),
            "description": description(paths[0]),
            "chosen": name == now,
        }
        for name, paths in listed(found).items()
    ]
    if as_json:
        click.echo(json.dumps({"presets": items, "chosen": now}, ensure_ascii=False))
        return
    for item in items:
        mark = "*" if item["chosen"] else " "
        click.echo(f"{mark} {item['name']:<24} {item['origin']:<10} {visible(str(item['description']))[:120]}")
    if (directory / PRESETS).is_dir() and directory / PRESETS not in found:
        click.echo("hames: presets of this directory count for nothing until it is trusted; see 'hames trust show'", err=True)


@command.command("show")
@click.argument("name", metavar="PRESET")
@cwd_option
@json_option
@state_option
def show(name: str, cwd: str, as_json: bool, state_dir: str | None) -> None:
    """Show the file of PRESET. 'hames preset check' shows what it comes to."""
    directory, found = here(cwd, state_dir)
    path = file_of(name, directory, found)
    text = path.read_text("utf-8", "replace")
    if as_json:
        members = {"name": name, "origin": origin(path, directory), "path": str(path), "description": description(path), "text": text}
        click.echo(json.dumps(members, ensure_ascii=False))
        return
    click.echo(f"{visible(str(path))} ({origin(path, directory)})\n")
    click.echo(visible(text, keep="\n\t"), nl=False)


def report(directory: Path, name: str, layers: Sequence[Layer], as_json: bool, state_dir: str | None) -> int:
    """Print what a preset comes to; 2 where something of it cannot be used."""
    found = asyncio.run(examined(state_directory(state_dir), directory, layers, name))
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        for line in lines(found):
            click.echo(visible(line))
    return 0 if all(role["usable"] for role in found["roles"]) else 2


@command.command("check")
@click.argument("name", metavar="PRESET")
@cwd_option
@layer_options
@json_option
@state_option
def check(name: str, cwd: str, profile_name: str, patches: tuple[str, ...], as_json: bool, state_dir: str | None) -> int:
    """Mount PRESET and say what an agent and each role get, and why not more: MCP servers are started, and have 15 seconds.

    Exit status 2 says that a role cannot be used.
    """
    directory, found = here(cwd, state_dir)
    if name != NONE:
        file_of(name, directory, found)
    return report(directory, name, chosen_layers(profile_name, patches), as_json, state_dir)


@command.command("use")
@click.argument("name", metavar="PRESET")
@cwd_option
@click.option("--everywhere", is_flag=True, help="In every directory for which none is chosen.")
@click.option("--dry-run", is_flag=True, help="Only say what agents would get, as 'check' does.")
@layer_options
@json_option
@state_option
def use(
    name: str,
    cwd: str,
    everywhere: bool,
    dry_run: bool,
    profile_name: str,
    patches: tuple[str, ...],
    as_json: bool,
    state_dir: str | None,
) -> int:
    """Let new agents of a directory have PRESET; 'none' for no preset. Sessions that there are keep what they have."""
    directory, found = here(cwd, state_dir)
    path = None if name == NONE else file_of(name, directory, found)
    if everywhere and path is not None and origin(path, directory) == "workspace":
        raise UsageError(f"preset {name} is one of this repository, and is nowhere else", remedy="leave --everywhere out")
    if dry_run:
        return report(directory, name, chosen_layers(profile_name, patches), as_json, state_dir)
    kept = choose(None if everywhere else directory, name, os.environ)
    if as_json:
        click.echo(
            json.dumps({"preset": name, "directory": "" if everywhere else str(directory), "path": str(path or ""), "kept": str(kept)})
        )
    else:
        click.echo(
            f"new agents {'everywhere' if everywhere else f'in {directory}'} have {'no preset' if path is None else f'preset {name}'}"
        )
    return 0


@command.command("new")
@click.argument("name", metavar="PRESET")
@cwd_option
@click.option("--from", "base", metavar="PRESET", default="orchestrator", help="The preset that it changes (default: orchestrator).")
@click.option("--user", "for_user", is_flag=True, help="For you, everywhere, instead of for this repository.")
@state_option
def new(name: str, cwd: str, base: str, for_user: bool, state_dir: str | None) -> None:
    """Make a file for PRESET that changes another one: it holds the differences, and never a copy."""
    if not is_name(name):
        raise UsageError(f"{visible(name[:80])!r} is no name of a preset", remedy="use letters, digits, '_', '.' and '-'")
    directory, found = here(cwd, state_dir)
    place = places(directory, os.environ, trusted=False)[0] if for_user else directory / PRESETS
    taken = place / f"{name}.yaml"
    below = [each for each in found if each / f"{base}.yaml" != taken]
    path = file_of(base, directory, below)
    if for_user and origin(path, directory) == "workspace":
        raise UsageError(
            f"{path} is somebody else's, and yours cannot follow it", remedy="leave --user out, or name another one with --from"
        )
    named = f"shipped:presets/{base}.yaml" if path.parent == SHIPPED / "presets" else os.path.relpath(path, place)
    if not for_user and origin(path, directory) == "user":
        raise UsageError(
            f"{path} is yours, and a repository cannot take it in", remedy="say --user, or --from a preset that comes with Hames"
        )
    place.mkdir(parents=True, exist_ok=True)
    try:
        with taken.open("x", encoding="utf-8") as file:
            file.write(DELTA.format(what=f"{name}: like {base}, with these differences.", base=named if ":" in named else f"./{named}"))
    except FileExistsError:
        raise UsageError(f"{taken} is there already", remedy="edit it, or take another name") from None
    click.echo(str(taken))
    if not for_user and place not in found:
        click.echo("hames: it counts once this directory is trusted; see 'hames trust grant'", err=True)


@command.command("remove")
@click.argument("name", metavar="PRESET")
@cwd_option
@state_option
def remove(name: str, cwd: str, state_dir: str | None) -> None:
    """Remove the file of PRESET; what comes with Hames stays. Sessions that stand in it go on with --preset none, or another one."""
    directory, found = here(cwd, state_dir)
    places_of_own = [place for place in dict.fromkeys((*found, directory / PRESETS)) if place != SHIPPED / "presets"]
    paths = [path for place in places_of_own if is_name(name) and (path := place / f"{name}.yaml").is_file()]
    if not paths:
        preset_file(name, found)
        raise UsageError(f"preset {name} comes with Hames", remedy="'hames preset use none' lets new agents have none")
    paths[0].unlink()
    click.echo(f"removed {paths[0]}")
    if name not in listed(found):
        for place in forget(name, os.environ):
            where = "everywhere" if place == EVERYWHERE else f"in {visible(place)}"
            click.echo(f"it was chosen {where}; new agents there have no preset now", err=True)


@command.command("import")
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", metavar="PRESET", default="orchestrator", help="What it becomes (default: orchestrator).")
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
@json_option
def import_preset(file: Path, name: str, dry_run: bool, as_json: bool) -> None:
    """Take over FILE, the configuration of dsh-paoding: a preset of yours with its differences, and a file for each role of its own.

    Nothing that is there is written over.
    """
    from hames.faces.cli.paoding import imported, write

    if not is_name(name):
        raise UsageError(f"{visible(name[:80])!r} is no name of a preset", remedy="use letters, digits, '_', '.' and '-'")
    found = imported(file.read_text("utf-8", "replace"), str(file), name)
    written = [] if dry_run else write(found)
    if as_json:
        files = {str(path): text for path, text in found.files.items()}
        click.echo(json.dumps({"files": files, "notes": found.notes, "written": [str(path) for path in written]}, ensure_ascii=False))
        return
    for path, text in found.files.items():
        click.echo(f"{'would write' if dry_run else 'wrote'} {visible(str(path))}")
        if dry_run:
            click.echo(visible(text, keep="\n\t"))
    for note in found.notes:
        click.echo(f"hames: {visible(note)}", err=True)
    if not dry_run:
        click.echo(f"see 'hames preset check {name}', then 'hames preset use {name}'", err=True)
