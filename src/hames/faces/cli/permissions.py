"""``hames permissions``: what a call would be allowed to do and why, and what has been allowed always."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hames.compose import Layer
from hames.content.errors import NotFoundError, UsageError
from hames.content.jsontext import parse_object
from hames.content.messages import ToolCall, ToolResult
from hames.content.visible import visible
from hames.faces.cli.common import (
    chosen_layers,
    existing_directory,
    json_option,
    layer_options,
    mode_option,
    opened,
    state_directory,
    state_option,
)
from hames.policy import POLICY, Decision, ToolRequest
from hames.policy.grants import Grants
from hames.sandbox import SANDBOX, Confinement, Refused
from hames.tools import TOOLS, Invocation
from hames.tools.pipeline import Prepared, prepare

VERDICTS = {"allow": "allowed", "ask": "asked about", "deny": "denied"}


@click.group("permissions")
def command() -> None:
    """Explain what tools may do; list and revoke what was allowed always."""


def parsed(words: Sequence[str]) -> str:
    """Arguments as a JSON text: one JSON object, or NAME=VALUE each, where VALUE is JSON or else a text.

    :raises UsageError: if they are neither.
    """
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return json.dumps(parse_object(words[0]))
        except ValueError as error:
            remedy = 'write them as \'{"name": "value"}\', or as NAME=VALUE'
            raise UsageError(f"the arguments are no JSON object: {error}", remedy=remedy) from None
    values: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{word!r} is no argument", remedy="write NAME=VALUE, or one JSON object")
        try:
            values[name] = json.loads(value)
        except (ValueError, RecursionError):
            values[name] = value
    return json.dumps(values)


async def judge(
    state: Path, chosen: Sequence[Layer], mode: str, tool: str, arguments: str, cwd: Path
) -> tuple[ToolRequest, Decision, dict[str, Any]]:
    async with opened(state, cwd, chosen, mode=mode) as host:
        tools, policy, sandbox = host.get(TOOLS), host.get(POLICY), host.get(SANDBOX)
        found = tools.registry.get(host.root_scope, tool) if tools is not None else None
        if tools is None or found is None:
            known = ", ".join(tools.registry.view(host.root_scope)) if tools is not None else "none"
            raise NotFoundError(f"there is no tool {tool!r}", remedy=f"tools are {known}", code="TOOL_UNKNOWN")
        confinement = Confinement("workspace-write", cwd, state / "scratch" / "explain", False)
        invocation = Invocation(
            "", host.root_scope, cwd, {}, lambda data, suffix: cwd, scratch=confinement.scratch, confinement=confinement
        )
        if sandbox is not None:
            invocation.sandbox = sandbox
        prepared = prepare(found, ToolCall("", tool, arguments), invocation)
        if isinstance(prepared, ToolResult):
            raise UsageError(prepared.text.removeprefix("Error: "), remedy="see 'hames permissions explain --help'")
        decision = policy.decide(prepared.request) if policy is not None else Decision("allow", because=("no row judges tools",))
        return prepared.request, protected(prepared, decision, invocation), enforced(invocation)


def protected(prepared: Prepared, decision: Decision, invocation: Invocation) -> Decision:
    """The decision after a look at what is protected."""
    also = tuple(Path(path) for path in prepared.request.outside)
    confinement = Confinement(decision.access, invocation.cwd, invocation.scratch, decision.network, also)
    try:
        for path in prepared.writes if decision.verdict != "deny" else ():
            invocation.sandbox.check_write(path, confinement)
    except Refused as error:
        return Decision("deny", str(error), decision.access, False, ("what is protected is written in mode full alone",))
    return decision


def enforced(invocation: Invocation) -> dict[str, Any]:
    enforcement = invocation.sandbox.enforcement
    return {"means": enforcement.means, "level": enforcement.level, "gaps": list(enforcement.gaps)}


@command.command("explain")
@click.argument("tool")
@click.argument("arguments", nargs=-1)
@click.option("--cwd", metavar="DIR", default=".", help="The directory that the agent would work in (default: this one).")
@mode_option
@layer_options
@json_option
@state_option
def explain(
    tool: str,
    arguments: tuple[str, ...],
    cwd: str,
    mode: str,
    profile_name: str,
    patches: tuple[str, ...],
    as_json: bool,
    state_dir: str | None,
) -> None:
    """Say whether a call of TOOL would be allowed, asked about or denied, and why. Nothing is run.

    ARGUMENTS are one JSON object, or NAME=VALUE each: hames permissions explain bash command='git push'
    """
    directory = existing_directory(cwd, "--cwd")
    chosen = chosen_layers(profile_name, patches)
    request, decision, enforcement = asyncio.run(judge(state_directory(state_dir), chosen, mode, tool, parsed(arguments), directory))
    if as_json:
        item = {
            "tool": tool,
            "verdict": decision.verdict,
            "reason": decision.reason,
            "because": list(decision.because),
            "capabilities": sorted(request.capabilities),
            "access": decision.access,
            "network": decision.network,
            "enforcement": enforcement,
        }
        click.echo(json.dumps(item, ensure_ascii=False))
        return
    click.echo(f"{tool} is {VERDICTS[decision.verdict]}")
    for reason in (*decision.because, *(() if decision.reason in ("", *decision.because) else (decision.reason,))):
        click.echo(f"  {reason}")
    click.echo(f"  it may {', '.join(sorted(request.capabilities))}")
    if decision.verdict != "deny":
        click.echo(f"  it would run with access {decision.access}, the network {'open' if decision.network else 'closed'}")
    click.echo(f"  commands are confined by {enforcement['means']} ({enforcement['level']})")
    for gap in enforcement["gaps"]:
        click.echo(f"    not held: {gap}")


@command.command("list")
@json_option
@state_option
def list_grants(as_json: bool, state_dir: str | None) -> None:
    """List what has been allowed always."""
    found = Grants(state_directory(state_dir) / "grants").all()
    if as_json:
        items = [{"id": grant.id, "workspace": grant.workspace, "tool": grant.tool, "when": grant.when} for grant in found]
        click.echo(json.dumps({"grants": items}, ensure_ascii=False))
        return
    for grant in found:
        click.echo(visible(f"{grant.id}  {grant.workspace}  {grant.tool} {json.dumps(grant.when, ensure_ascii=False)}"))
    if not found:
        click.echo("nothing has been allowed always", err=True)


@command.command("revoke")
@click.argument("ids", nargs=-1, required=True)
@state_option
def revoke(ids: tuple[str, ...], state_dir: str | None) -> None:
    """Take back grants by their IDS."""
    grants = Grants(state_directory(state_dir) / "grants")
    missing = [id for id in ids if not grants.remove(id)]
    if missing:
        raise NotFoundError(f"there is no grant {', '.join(missing)}", remedy="'hames permissions list' shows them", code="GRANT_UNKNOWN")
    print(f"revoked {', '.join(ids)}", file=sys.stderr)
