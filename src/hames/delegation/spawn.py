"""The row of the runner ``spawn``: children that begin with nothing but their task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from hames.agents import AGENTS
from hames.compose.config import RowConfig
from hames.delegation.plugin import DELEGATION
from hames.kernel import Context, plugin
from hames.store import STORE

if TYPE_CHECKING:
    from hames.delegation.runner import Runner


class ChildrenConfig(RowConfig):
    """How children of this process work."""

    nudges: int = Field(default=1, ge=0)
    """How often a child that ends without the result that a schema asks for is reminded of it."""


def offer(ctx: Context, config: ChildrenConfig, *, fork: bool) -> None:
    """Offer the runner that starts agents of this process. What it registers for a child belongs to the row of delegation: a child goes
    on when the runner's own row has gone."""
    service, agents, blobs = ctx.use(DELEGATION), ctx.use(AGENTS), ctx.use(STORE).blobs

    def make() -> Runner:
        from hames.delegation.inprocess import InProcess

        return InProcess(service.ctx, agents, blobs, fork=fork, nudges=config.nudges)

    service.runners.offer(ctx, "fork" if fork else "spawn", make)


@plugin(config=ChildrenConfig, needs=(DELEGATION, AGENTS, STORE), name="spawn")
def spawn(ctx: Context, config: ChildrenConfig) -> None:
    """Offer the runner ``spawn``: a child is an agent of this process that begins with its task alone."""
    offer(ctx, config, fork=False)
