"""The row that judges tools."""

from __future__ import annotations

from hames.compose.config import RowConfig
from hames.kernel import Context, Key, plugin
from hames.policy.grants import Grants
from hames.policy.permissions import Permissions
from hames.policy.port import POLICY, Mode
from hames.policy.rules import Rule
from hames.store import STATE

#: The mode that whoever starts Hames has named; it counts instead of the configured one.
MODE: Key[Mode] = Key("permission mode")


class PolicyConfig(RowConfig):
    """What calls of tools may do."""

    mode: Mode = "workspace-write"
    """``read-only`` reads; ``workspace-write`` also writes the workspace, runs commands in the sandbox, and asks for the network and
    for what lies outside; ``full`` allows all, without a sandbox."""
    rules: list[Rule] = []
    """Rules over tools and arguments. One that denies beats one that asks, and that one beats one that allows."""


@plugin(config=PolicyConfig, wants=(STATE, MODE), name="policy")
def policy(ctx: Context, config: PolicyConfig) -> None:
    """Judge every call of a tool by a permission mode, rules and grants."""
    state = ctx.find(STATE)
    mode = ctx.find(MODE) or config.mode
    ctx.provide(POLICY, Permissions(lambda: mode, config.rules, Grants(state / "grants" if state is not None else None)))
