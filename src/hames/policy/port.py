"""The port through which every call of a tool is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hames.kernel import Key

Capability = Literal["read", "write", "execute", "network", "delegate"]

Mode = Literal["read-only", "workspace-write", "full"]

WIDTH: dict[Mode, int] = {"read-only": 0, "workspace-write": 1, "full": 2}


def narrowest(*modes: Mode) -> Mode:
    """The one of these modes that allows least."""
    return min(modes, key=lambda mode: WIDTH[mode])


Answer = Literal["once", "session", "always", "denied", "nobody"]
"""``nobody``: it was looked for somebody to answer, and there is nobody; no other listener is asked then."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call that wants to run.

    :param id: that of the call; empty where it is only asked about.
    :param capabilities: the classes of what it may do, given its arguments.
    :param arguments: as validated.
    :param cwd: the absolute directory that the agent works in.
    :param session: whose call it is.
    :param outside: paths that it would write outside of the workspace.
    :param unconfined: why it asks to run outside of the sandbox; empty where it does not.
    :param whole: an answer for longer than once covers the tool, whatever its arguments.
    :param ceiling: the widest mode that this agent may have, whatever the composition says.
    :param enforced: whether the system itself holds what it runs to the mode.
    """

    name: str
    capabilities: frozenset[Capability]
    arguments: Mapping[str, Any]
    cwd: str
    id: str = ""
    session: str = ""
    outside: tuple[str, ...] = ()
    unconfined: str = ""
    ceiling: Mode = "full"
    enforced: bool = True
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """``allow`` lets the call run, ``ask`` asks a person first, ``deny`` refuses it; the reason is shown to the model.

    :param access: what it may write when it runs.
    :param network: whether it may speak to others when it runs.
    :param because: each thing that led to the verdict, for a person.
    :param grant: what an answer for longer than once would cover: a pattern for each argument.
    """

    verdict: Literal["allow", "ask", "deny"]
    reason: str = ""
    access: Mode = "full"
    network: bool = True
    because: tuple[str, ...] = ()
    grant: Mapping[str, str] = field(default_factory=dict[str, str])


class Policy(Protocol):
    """Judges calls."""

    def decide(self, request: ToolRequest) -> Decision: ...

    def remember(self, request: ToolRequest, answer: Answer) -> None:
        """Keep what a person answered, for the session or always.

        :raises StorageError: if it cannot be kept.
        """


POLICY: Key[Policy] = Key("policy")
