"""The row that decides which directories are trusted."""

from __future__ import annotations

from typing import Literal

from hames.compose import BASE
from hames.compose.config import RowConfig
from hames.content.clock import Clock
from hames.kernel import Context, plugin
from hames.store import STATE
from hames.trust.decisions import TRUST, Trust


class TrustConfig(RowConfig):
    """Trust in directories."""

    default: Literal["ask", "always", "never"] = "ask"
    """What holds where nobody has decided: ``ask`` asks a person if there is one and does not trust it otherwise, ``always`` trusts every
    directory, ``never`` trusts none, whatever was decided."""


@plugin(config=TrustConfig, needs=(STATE,), wants=(Clock, BASE), name="trust")
def trust(ctx: Context, config: TrustConfig) -> None:
    """Decide which directories may make Hames execute something."""
    base = ctx.find(BASE)
    below = base.composition if base is not None else None
    ctx.provide(TRUST, Trust(ctx.use(STATE) / "trust", config.default, ctx.find(Clock), below))
