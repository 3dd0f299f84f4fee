"""The port through which every call of a tool is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from hames.kernel import Key

Capability = Literal["read", "write", "execute", "network", "delegate"]


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call that wants to run.

    :param capabilities: the classes of what it may do.
    :param arguments: as validated.
    :param cwd: the absolute directory that the agent works in.
    """

    name: str
    capabilities: frozenset[Capability]
    arguments: Mapping[str, Any]
    cwd: str


@dataclass(frozen=True, slots=True)
class Decision:
    """``allow`` lets the call run, ``ask`` asks a person first, ``deny`` refuses it; the reason is shown to the model."""

    verdict: Literal["allow", "ask", "deny"]
    reason: str = ""


class Policy(Protocol):
    """Judges calls."""

    def decide(self, request: ToolRequest) -> Decision: ...


POLICY: Key[Policy] = Key("policy")
