"""Who a child is and what it may do: kept in its session, so that it is the same whenever its conversation goes on."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any

from hames.agents import Agent
from hames.content.jsontext import as_object
from hames.delegation.runner import Launch
from hames.kernel import Context, Mask
from hames.prompts import PROMPTS
from hames.prompts.service import VARIABLE

STATE = "delegation"
"""Under this name a session keeps it."""
CONTEXT = """You work on a task that somebody gave you, and nobody speaks with you while you do. Your last message is your result: it is
all that is seen of your work, so let it stand for itself. Say what you did, what you found, and what is left."""
WORK = "You work on a task that somebody gave you, and nobody speaks with you while you do."
"""Said instead where the result is a value, of which its own instruction speaks."""
KEPT = """You work for somebody who gives you tasks in messages, one after another, and sees nothing of your work but its result each time.
Let that stand for itself: say what you did, what you found, and what is left."""


def kept(launch: Launch) -> dict[str, Any]:
    """What the session of a child keeps of its task."""
    role = launch.role
    persona = {"persona": role.persona, "verbatim": role.origin == "claude"} if role is not None and role.persona else {}
    return {
        "task": launch.task,
        "root": launch.origin.root or launch.task,
        "depth": launch.depth,
        "permission": launch.permission,
        "grant": encoded_grant(launch.grant),
        "mode": launch.spec.mode,
        **({"schema": True} if launch.spec.schema is not None else {}),
        **({"role": role.name, "role_digest": role.digest} if role is not None else {}),
        **persona,
    }


def dressed(ctx: Context, agent: Agent, own: Mapping[str, Any]) -> None:
    """Say to a child's model who it is, as its session keeps it."""
    prompts, at = ctx.host.get(PROMPTS, agent.scope), ctx.at(agent.scope)
    if prompts is None:
        return
    plain = WORK if own.get("schema") else CONTEXT
    prompts.section(at, STATE, KEPT if own.get("mode") == "continuable" else plain, order=90)
    if persona := str(own.get("persona", "")):
        # What is no variable of ours is text; files of others know nothing of ours.
        known = {} if own.get("verbatim") else prompts.variables.view(agent.scope)
        prompts.variable(at, "open_braces", lambda facts: "{{")
        prompts.section(at, "persona", with_braces(persona, known), order=0)


def of(agent: Agent) -> dict[str, Any]:
    """What the session of an agent keeps of its task; empty for that of a user."""
    return as_object(agent.session.state.get(STATE))


def with_braces(text: str, known: Container[str]) -> str:
    """A text whose braces stand for themselves, save around these names."""

    def kept(match: re.Match[str]) -> str:
        return match.group(0) if match.group(1).strip() in known else "{{open_braces}}" + match.group(0)[2:]

    parts = VARIABLE.split(text)  # what is between variables may hold braces of its own
    return VARIABLE.sub(kept, text) if len(parts) > 1 else text.replace("{{", "{{open_braces}}")


def encoded_grant(grant: tuple[Mask, ...]) -> list[dict[str, list[str]]]:
    """Masks as a session keeps them."""
    allowed = [{"allow": sorted(mask.allow)} if mask.allow is not None else {} for mask in grant]
    return [{**allow, "deny": sorted(mask.deny)} for allow, mask in zip(allowed, grant, strict=True)]


def decoded_grant(kept: list[dict[str, list[str]]]) -> tuple[Mask, ...]:
    """The inverse of :func:`encoded_grant`."""
    return tuple(Mask(frozenset(each["allow"]) if "allow" in each else None, frozenset(each.get("deny", ()))) for each in kept)
