"""A runner of your own: tasks are answered by a function. ``hames run "…" --patch examples/delegate/own.yaml``"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from hames.delegation import DELEGATION
from hames.delegation.outcome import Level, Outcome, failed
from hames.delegation.runner import Launch, Origin
from hames.delegation.spec import TaskSpec
from hames.kernel import Context, plugin


class Echo:
    """Says what it was asked, after a moment."""

    name, version, digest = "echo", "1", ""
    keeps_idle = hands_on = False
    capabilities: Mapping[str, Level] = {"idle": "enforced"}

    def check(self, spec: TaskSpec, origin: Origin) -> TaskSpec:
        return spec

    async def start(self, launch: Launch) -> EchoWork:
        return EchoWork(launch)


class EchoWork:
    """One answer on its way. Both ways of hearing that it is to end lead to :meth:`cancel`."""

    native = ""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._stopped = asyncio.Event()
        self._withdraw = launch.signal.listen(self.cancel)

    def cancel(self, cause: str) -> None:
        self._stopped.set()

    async def result(self) -> Outcome:
        waits = 3600.0 if "wait" in self._launch.spec.prompt else 0.1
        try:
            await asyncio.wait_for(self._stopped.wait(), waits)
        except TimeoutError:
            return Outcome("completed", text=f"You said: {self._launch.spec.prompt}")
        return failed("CANCELLED")

    async def dispose(self) -> None:
        self._withdraw()
        self._stopped.set()


@plugin(needs=(DELEGATION,))
def echo(ctx: Context, config: None) -> None:
    """Offer the runner ``echo``."""
    ctx.use(DELEGATION).runners.register(ctx, Echo())
