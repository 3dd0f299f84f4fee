"""The row that confines tools."""

from __future__ import annotations

from typing import Literal

from hames.compose import LOADED
from hames.compose.config import RowConfig
from hames.kernel import Context, plugin
from hames.sandbox.hold import tidy
from hames.sandbox.protect import NAMES, Rules, canonical, secrets
from hames.sandbox.service import SANDBOX, Sandbox
from hames.store import STATE


class SandboxConfig(RowConfig):
    """How tools are confined."""

    means: Literal["auto", "bubblewrap", "landlock", "seatbelt", "none"] = "auto"
    """``auto`` takes the best that works on this machine; ``none`` confines no command."""
    writable: list[str] = []
    """More directories that ``workspace-write`` may write, for example ``~/.cache``."""
    hide: list[str] = []
    """More files and directories that tools must not read."""
    reveal: list[str] = []
    """Of those that are hidden as secrets the ones that tools may read."""
    unix_sockets: bool = False
    """Whether commands may make Unix sockets. Those of other programs can be reached through them then, wherever they are."""
    unprotect: list[str] = []
    """Of the protected names at the top of a workspace the ones that tools may write, for example ``.git``."""


@plugin(config=SandboxConfig, wants=(STATE, LOADED), name="sandbox")
def sandbox(ctx: Context, config: SandboxConfig) -> None:
    """Confine what tools read, write and speak to."""
    state = ctx.find(STATE)
    root = state.resolve() if state is not None else None
    loaded = ctx.find(LOADED)
    hidden = secrets(config.hide, config.reveal)
    names = tuple(name for name in NAMES if name not in config.unprotect)
    writable = tuple(canonical(config.writable))
    readable = () if root is None else (root / "spill",)

    def rules() -> Rules:
        private = () if root is None else (root,)
        return Rules((*hidden, *private), writable, tuple(loaded.all) if loaded is not None else (), names, readable)

    own = (root or canonical(["~"])[0]) / "sandbox"
    tidy(own)
    ctx.provide(SANDBOX, Sandbox(config.means, own, rules, unix_sockets=config.unix_sockets))
