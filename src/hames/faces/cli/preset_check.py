"""What a preset comes to in a directory: mounted for real, looked at, and ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hames.compose import Layer
from hames.content.errors import ConfigError
from hames.content.jsontext import dumps
from hames.delegation.orchestrator import LEAD
from hames.delegation.plugin import LEADING
from hames.faces.cli.common import opened
from hames.faces.cli.roles import TOKEN, result, settled
from hames.faces.cli.roles import lines as role_lines
from hames.kernel import Host, Scope
from hames.tools import TOOLS, Tool, Tools
from hames.workspaces import WORKSPACES
from hames.workspaces.choice import NONE


async def examined(state: Path, directory: Path, layers: Sequence[Layer], name: str) -> dict[str, Any]:
    """What agents and roles get in a directory.

    :param name: of the preset; ``none`` for no preset.
    :raises HamesError: if it cannot be mounted.
    """
    async with opened(state, directory, layers) as host:
        workspaces, tools = host.get(WORKSPACES), host.get(TOOLS)
        if workspaces is None or tools is None:
            raise ConfigError("this composition has no workspaces, or runs no tools", remedy="use the profile standard")
        lease = await workspaces.acquire(str(directory))
        generation = None
        try:
            generation = await lease.join(name) if name != NONE else None
            scope = generation.scope if generation is not None else lease.scope
            await settled(host, scope)
            return {"preset": name, **looked(host, scope, directory, tools)}
        finally:
            await lease.leave(generation)
            await lease.release()


def looked(host: Host, scope: Scope, directory: Path, tools: Tools) -> dict[str, Any]:
    """The tools of an agent and of each role in a scope."""
    view = tools.registry.view(scope)
    leading = host.get(LEADING, scope)
    if leading is None:
        return {"lead": None, "agent": sized(view.values()), "catalogue": sized(view.values()), "roles": []}
    lead = leading()
    roles = lead.known(scope, directory)
    names = lead.names(roles)
    own = {name: lead.tool(roles[name][0]) for name in names if not roles[name][0].problem}
    seen = {name: tool for name, tool in view.items() if lead.mask.permits(name)}
    there = {**view, **own}
    base = LEAD if lead.config.tools is None else tuple(lead.config.tools)
    removed = [*lead.config.main_agent_remove, *lead.config.roles_remove]
    surface = {
        "base": [{"tool": name, **state(name, there, removed)} for name in base],
        "extra": [{"tool": word, **state(word, there, removed)} for word in lead.extra],
        "removed": removed,
        "tools": [*own, *seen],
    }
    return {
        "lead": surface,
        "agent": sized([*seen.values(), *own.values()]),
        "catalogue": sized(there.values()),
        "roles": [
            *(result(roles[name][0], tools, scope, host) for name in names),
            *(nobody(name) for name in lead.config.roles if name not in roles and name not in removed),
        ],
    }


def nobody(name: str) -> dict[str, Any]:
    """A role of which the settings speak and that there is not."""
    why = "it has no file, and the settings say no tools of which one could be made"
    return {"name": name, "usable": False, "problem": why, "path": f"orchestrator.roles.{name}"}


def state(word: str, there: Mapping[str, Tool], removed: Sequence[str]) -> dict[str, Any]:
    """Whether the lead has what a word names."""
    from hames.delegation.role import intents
    from hames.kernel.registry import matches

    if word in removed:
        return {"kept": False, "why": "it is removed"}
    found = [name for name in there if any(matches(name, (each.pattern,)) for each in intents([word]))]
    return {"kept": True} if found else {"kept": False, "why": "it is not there"}


def sized(tools: Iterable[Tool]) -> dict[str, int]:
    """How many tools, and about how many tokens they cost in each request."""
    kept = list(tools)
    size = sum(len(tool.name) + len(tool.description) + len(dumps(tool.parameters)) for tool in kept)
    return {"tools": len(kept), "tokens": size // TOKEN}


def lines(found: dict[str, Any]) -> list[str]:
    """What a preset comes to, for a person."""
    agent, whole, lead = found["agent"], found["catalogue"], found["lead"]
    out = [
        f"an agent: {agent['tools']} tools, about {agent['tokens']} tokens a request; the whole catalogue: {whole['tools']} tools,"
        f" about {whole['tokens']} tokens"
    ]
    if lead is not None:
        out.append(f"  base     {', '.join(each['tool'] for each in lead['base'] if each['kept'])}")
        out += [f"  + extra  {each['tool']}" for each in lead["extra"] if each["kept"]]
        out += [f"  - removed  {name}" for name in lead["removed"]]
        out += [f"  without  {each['tool']}: {each['why']}" for each in (*lead["base"], *lead["extra"]) if not each["kept"]]
    for role in found["roles"]:
        out += role_lines(role)
    return out
