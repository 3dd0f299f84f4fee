"""The floor of an asynchronous plugin: an asyncio task and an async generator for each, and a table of listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from kernel_measure import Clock, Order, Tally, main

with Clock() as imported:
    pass  # nothing more than asyncio


@dataclass(slots=True, eq=False)
class Running:
    """A task that takes a generator to its yield, waits, and takes it to its end."""

    active: asyncio.Future[None]
    go: asyncio.Future[None]
    task: asyncio.Task[None] = field(init=False)

    async def drive(self, generator: AsyncGenerator[None]) -> None:
        await anext(generator)
        self.active.set_result(None)
        await self.go
        await anext(generator, None)


class Bare:
    def __init__(self, tally: Tally, count: int) -> None:
        self._tally = tally
        self._count = count
        self._listeners: dict[Callable[[int], None], None] = {}
        self._running: list[Running] = []

    async def _body(self) -> AsyncGenerator[None]:
        def hear(number: int) -> None:
            self._tally.hear(number)

        self._listeners[hear] = None
        yield
        del self._listeners[hear]
        self._tally.clean()

    async def mount(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self._count):
            running = Running(loop.create_future(), loop.create_future())
            running.task = asyncio.create_task(running.drive(self._body()))
            self._running.append(running)
        for running in self._running:
            await running.active

    async def dispose(self, order: Order) -> None:
        for running in order(self._running):
            running.go.set_result(None)
        for running in self._running:
            await running.task

    def emit(self, times: int) -> None:
        for number in range(times):
            for listener in self._listeners:
                listener(number)

    def known(self) -> int:
        return len(self._listeners)


if __name__ == "__main__":
    main(imported, Bare)
