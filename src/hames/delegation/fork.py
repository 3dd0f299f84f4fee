"""The row of the runner ``fork``: children that begin with the conversation of whoever starts them."""

from __future__ import annotations

from hames.agents import AGENTS
from hames.delegation.plugin import DELEGATION
from hames.delegation.spawn import ChildrenConfig, offer
from hames.kernel import Context, plugin
from hames.store import STORE


@plugin(config=ChildrenConfig, needs=(DELEGATION, AGENTS, STORE), name="fork")
def fork(ctx: Context, config: ChildrenConfig) -> None:
    """Offer the runner ``fork``: a child begins with all turns that have ended of the conversation that it comes from."""
    offer(ctx, config, fork=True)
