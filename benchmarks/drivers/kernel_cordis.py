"""cordis-python: functions as plugins, ``async`` as its documentation begins, or ``sync``, its way without an event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from kernel_measure import Clock, Order, Tally, main

with Clock() as imported:
    from cordis_py import Context, Fiber


class Async:
    """Each is mounted, and disposed of, and waited for, by itself."""

    def __init__(self, tally: Tally, count: int) -> None:
        self._root = Context()
        self._plugins = [self._made(tally, number) for number in range(count)]
        self._fibers: list[Fiber] = []

    def _made(self, tally: Tally, number: int) -> Callable[[Context, Any], None]:
        def hear(number: int) -> None:
            tally.hear(number)

        def body(ctx: Context, config: Any) -> None:
            ctx.on("told", hear)
            ctx.effect(lambda: tally.clean)

        body.__name__ = f"plugin{number}"
        return body

    async def mount(self) -> None:
        for each in self._plugins:
            self._fibers.append(await self._root.plugin(each))

    async def dispose(self, order: Order) -> None:
        for fiber in order(self._fibers):
            await fiber.dispose()

    def emit(self, times: int) -> None:
        root = self._root
        for number in range(times):
            root.emit("told", number)

    def known(self) -> int:
        return self._root.registry.size + len(self._root._listeners.get("told", ()))


class Sync(Async):
    """It asks whether a loop runs in the thread, so both happen in a thread that has none."""

    def _mount(self) -> None:
        for each in self._plugins:
            self._fibers.append(self._root.plugin(each))

    def _dispose(self, order: Order) -> None:
        for fiber in order(self._fibers):
            fiber.dispose_sync()

    async def mount(self) -> None:
        await asyncio.to_thread(self._mount)

    async def dispose(self, order: Order) -> None:
        await asyncio.to_thread(self._dispose, order)


if __name__ == "__main__":
    main(imported, {"async": Async, "sync": Sync}[sys.argv[1]])
