"""The three permission modes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from hames.kernel import Context, plugin
from hames.policy.port import POLICY, Capability, Decision, ToolRequest

Mode = Literal["read-only", "workspace-write", "full"]

#: What each mode allows without a question; network access is asked for in ``workspace-write``.
MODES: dict[Mode, frozenset[Capability]] = {
    "read-only": frozenset({"read", "delegate"}),
    "workspace-write": frozenset({"read", "write", "execute", "delegate"}),
    "full": frozenset({"read", "write", "execute", "network", "delegate"}),
}


class Modes:
    """Judges a call by its capability classes and the mode."""

    def __init__(self, mode: Mode) -> None:
        self.mode: Mode = mode

    def decide(self, request: ToolRequest) -> Decision:
        beyond = request.capabilities - MODES[self.mode]
        if not beyond:
            return Decision("allow")
        what = f"{request.name} may {' and '.join(sorted(beyond))}, which mode {self.mode} does not allow"
        if self.mode == "workspace-write":
            return Decision("ask", what)
        return Decision("deny", what)


class ModesConfig(BaseModel):
    """The permission mode."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Mode = "workspace-write"
    """``read-only`` reads; ``workspace-write`` also writes and runs commands and asks for the network; ``full`` allows all."""


@plugin(config=ModesConfig, name="modes")
def modes(ctx: Context, config: ModesConfig) -> None:
    """Judge tools by a permission mode."""
    ctx.provide(POLICY, Modes(config.mode))
