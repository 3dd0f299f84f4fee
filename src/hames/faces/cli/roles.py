"""``hames roles``: who children can be, what tools each gets here, and a file to begin with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hames.budget import Limits
from hames.compose import Layer
from hames.content.errors import ConfigError, HamesError, UsageError
from hames.content.jsontext import dumps
from hames.content.paths import SHIPPED
from hames.content.visible import visible
from hames.delegation import DELEGATION
from hames.delegation.role import NAME, Role
from hames.delegation.roles import chosen, found, resolved
from hames.faces.cli.common import (
    chosen_layers,
    decisions,
    existing_directory,
    json_option,
    layer_options,
    opened,
    state_directory,
    state_option,
)
from hames.kernel import Host, Scope
from hames.kernel.registry import matches
from hames.mcp import MCP
from hames.models import MODELS
from hames.toolkit.project import directories, trusted, user_directory
from hames.tools import TOOLS, Tools
from hames.workspaces import WORKSPACES

PATIENCE = 15.0  # seconds that servers have to say what tools they bring
TOKEN = 4  # characters of a description of tools that are a token, roughly
cwd_option = click.option("--cwd", metavar="DIR", default=".", help="The directory whose roles count (default: this one).")

TEMPLATE = """---
name: {name}
description: One line that says when to give work to it.
tools: ["@read"]
# model: anthropic:claude-haiku-4-5
permission: read-only
---
You are the {name} agent. Say here what you do, what you hand in, and what you leave alone.
"""


@click.group("roles")
def command() -> None:
    """List, show, check and make roles: who a child is, with which tools."""


def here(cwd: str, state_dir: str | None) -> tuple[Path, dict[str, list[Role]], bool]:
    """A directory, the roles that count there, and whether those of the repository are among them."""
    directory = existing_directory(cwd, "--cwd")
    project = trusted(decisions(state_directory(state_dir)), directory)
    return directory, found(directory, project=project, shipped=(SHIPPED / "roles",)), project


def said(role: Role) -> dict[str, Any]:
    """A role as an object."""
    tools = None if role.tools is None else [each.word for each in role.tools]
    members: dict[str, Any] = {
        "name": role.name,
        "origin": role.origin,
        "path": str(role.path),
        "description": role.description,
        "tools": tools,
        "model": role.model,
        "effort": role.effort,
        "permission": role.permission,
        "runner": role.runner,
        "digest": role.digest,
        "assurance": role.assurance,
        "budget": {name: getattr(role.budget, name) for name in Limits.__slots__ if getattr(role.budget, name) is not None},
        "notes": list(role.notes),
        "problem": role.problem,
    }
    return {key: value for key, value in members.items() if value not in ("", [], {}) or key == "tools"}


def listed(every: Sequence[Role]) -> dict[str, Any]:
    """The role that counts of a name, with the others."""
    return {**said(every[0]), **({"others": [said(each) for each in every[1:]]} if len(every) > 1 else {})}


@command.command("list")
@cwd_option
@json_option
@state_option
def list_roles(cwd: str, as_json: bool, state_dir: str | None) -> None:
    """List the roles that count for a directory."""
    directory, roles, project = here(cwd, state_dir)
    if as_json:
        click.echo(json.dumps({"roles": [listed(each) for each in roles.values()], "trusted": project}, ensure_ascii=False))
        return
    for name, every in roles.items():
        role = every[0]
        what = f"CANNOT BE USED: {role.problem}" if role.problem else role.description
        others = f"  (before {', '.join(each.origin for each in every[1:])})" if len(every) > 1 else ""
        click.echo(f"{visible(name):<24} {role.origin:<10} {visible(what)[:120]}{others}")
    if all(every[0].origin == "shipped" for every in roles.values()):
        click.echo("there are no roles but those that Hames comes with; 'hames roles new NAME' makes one", err=True)
    if not project and any((each / name).is_dir() for each in directories(directory) for name in (".hames/roles", ".claude/agents")):
        click.echo("hames: roles of this directory count for nothing until it is trusted; see 'hames trust show'", err=True)


@command.command("show")
@click.argument("name", metavar="ROLE")
@cwd_option
@json_option
@state_option
def show(name: str, cwd: str, as_json: bool, state_dir: str | None) -> None:
    """Show ROLE as its file has it."""
    _, roles, _ = here(cwd, state_dir)
    role = roles[name][0] if name in roles else chosen(roles, name)
    if as_json:
        click.echo(json.dumps({**said(role), "persona": role.persona}, ensure_ascii=False))
        return
    for key, value in said(role).items():
        shown = (
            value if isinstance(value, str) else "all that may be handed down" if value is None else json.dumps(value, ensure_ascii=False)
        )
        click.echo(visible(f"{key:<18}{shown}"))
    click.echo("\n" + visible(role.persona, keep="\n\t"))


@command.command("check")
@click.argument("names", metavar="[ROLE]...", nargs=-1)
@cwd_option
@layer_options
@json_option
@state_option
def check(names: tuple[str, ...], cwd: str, profile_name: str, patches: tuple[str, ...], as_json: bool, state_dir: str | None) -> int:
    """Say which tools each ROLE would get now, and why not others: MCP servers are started, and have 15 seconds. Without ROLE all but
    those that Hames comes with.

    Exit status 2 says that one of them cannot be used.
    """
    directory, roles, _ = here(cwd, state_dir)
    wanted = {name: chosen(roles, name) for name in names} if names else own(roles)
    results = asyncio.run(checked(state_directory(state_dir), directory, chosen_layers(profile_name, patches), wanted))
    if as_json:
        click.echo(json.dumps({"roles": results}, ensure_ascii=False))
    else:
        for each in results:
            for text in lines(each):
                click.echo(visible(text))
        if not results:
            click.echo("there are no roles", err=True)
    return 0 if all(each["usable"] for each in results) else 2


def own(roles: dict[str, list[Role]]) -> dict[str, Role]:
    """The roles that somebody here has written."""
    return {name: every[0] for name, every in roles.items() if every[0].origin != "shipped"}


async def checked(state: Path, directory: Path, layers: Sequence[Layer], wanted: dict[str, Role]) -> list[dict[str, Any]]:
    """What each role would get in a directory."""
    async with opened(state, directory, layers) as host:
        workspaces, tools = host.get(WORKSPACES), host.get(TOOLS)
        if tools is None:
            raise ConfigError("no row of this composition runs tools", remedy="add a row with use: hames.tools")
        lease = await workspaces.acquire(str(directory)) if workspaces is not None else None
        try:
            scope = lease.scope if lease is not None else host.root_scope
            await settled(host, scope)
            return [result(role, tools, scope, host) for role in wanted.values()]
        finally:
            if lease is not None:
                await lease.release()


async def settled(host: Host, scope: Scope) -> None:
    """Wait until every server has said what it brings, or has had its time."""
    pool = host.get(MCP, scope)
    seats = list(pool.seats.view(scope).values()) if pool is not None else []
    if seats:
        _, late = await asyncio.wait([asyncio.ensure_future(seat.connection.settled()) for seat in seats], timeout=PATIENCE)
        for each in late:
            each.cancel()
        if late:
            await asyncio.wait(late)


def result(role: Role, tools: Tools, scope: Scope, host: Host) -> dict[str, Any]:
    """What a role would get now."""
    if role.problem:
        return {"name": role.name, "usable": False, "problem": role.problem, "path": str(role.path)}
    gets = resolved(role.tools, tools, scope)
    view = tools.registry.view(scope)
    delegation, models = host.get(DELEGATION, scope), host.get(MODELS, scope)
    last = delegation is None or delegation.config.max_depth <= 1
    names = [name for name in view if gets.kept is None or matches(name, gets.kept)]
    withheld = [name for name in names if last and "delegate" in view[name].capabilities]
    names = [name for name in names if name not in withheld]
    missing = list(gets.missing)
    if role.runner and (delegation is None or delegation.runners.registry.get(scope, role.runner) is None):
        missing.append(f"the runner {role.runner}")
    if role.model and models is not None:
        try:
            models.resolve(role.model, scope)
        except HamesError as error:
            missing.append(f"the model {role.model}: {error.message}")
    size = sum(len(view[name].name) + len(view[name].description) + len(dumps(view[name].parameters)) for name in names)
    return {
        "name": role.name,
        "usable": not missing and (bool(names) or gets.kept == ("none",)),
        "tools": names,
        "tokens": size // TOKEN,
        "dropped": [
            *({"tool": word, "why": why} for word, why in gets.dropped),
            *({"tool": name, "why": "children start no tasks at this depth"} for name in withheld),
        ],
        "missing": missing,
        "notes": list(role.notes),
    }


def lines(found: dict[str, Any]) -> list[str]:
    """A checked role for a person."""
    if "problem" in found:
        return [f"{found['name']}: cannot be used: {found['problem']} ({found['path']})"]
    head = f"{found['name']}: {len(found['tools'])} tools, about {found['tokens']} tokens a request" + (
        "" if found["usable"] else ": CANNOT BE USED"
    )
    more = [f"  has      {', '.join(found['tools']) or 'no tools'}"]
    more += [f"  without  {each['tool']}: {each['why']}" for each in found["dropped"]]
    more += [f"  MISSING  {each}" for each in found["missing"]]
    return [head, *more, *(f"  note     {each}" for each in found["notes"])]


@command.command("new")
@click.argument("name", metavar="ROLE")
@cwd_option
@click.option("--user", "for_user", is_flag=True, help="For you, everywhere, instead of for this repository.")
def new(name: str, cwd: str, for_user: bool) -> None:
    """Make a file for ROLE to begin with."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{visible(name[:80])!r} is no name of a role", remedy="use small letters, digits, - and _")
    place = user_directory() / "roles" if for_user else existing_directory(cwd, "--cwd") / ".hames" / "roles"
    path = place / f"{name}.md"
    place.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE.format(name=name))
    except FileExistsError:
        raise UsageError(f"{path} is there already", remedy="edit it, or take another name") from None
    click.echo(str(path))
