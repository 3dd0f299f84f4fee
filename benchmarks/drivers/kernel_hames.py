"""Hames: ``plain`` functions as plugins, or ``async`` generators, which are all mounted, and all stopped, at once."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from typing import Any

from kernel_measure import Clock, Order, Tally, main

# The environment of the kernels does not have Hames, whose kernel needs nothing but the standard library. What it needs
# is not imported before it.
sys.path.insert(0, __file__.rpartition("/benchmarks/")[0] + "/src")
with Clock() as imported:
    from hames.kernel import Context, Host, Mount, Notice, Plugin, plugin

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Told(Notice):
    number: int


class Plain:
    """Each is mounted, and stopped and waited for, by itself."""

    def __init__(self, tally: Tally, count: int) -> None:
        self._host = Host()
        self._plugins = [self._made(tally, number) for number in range(count)]
        self._mounts: list[Mount] = []

    def _made(self, tally: Tally, number: int) -> Plugin:
        def hear(told: Told) -> None:
            tally.hear(told.number)

        @plugin(name=f"plugin{number}")
        def body(ctx: Context, config: Any) -> None:
            ctx.on(Told, hear)
            ctx.defer(tally.clean)

        return body

    async def mount(self) -> None:
        self._mounts = [self._host.mount(each) for each in self._plugins]

    async def dispose(self, order: Order) -> None:
        for mount in order(self._mounts):
            await mount.stop()

    def emit(self, times: int) -> None:
        ctx = self._host.ctx
        for number in range(times):
            ctx.emit(Told(number))

    def known(self) -> int:
        scope = self._host.root_scope
        return len(self._host.root.children) + len(scope.mounts) + scope.listener_count


class Async(Plain):
    """All are mounted, then waited for; all are asked to stop, then waited for."""

    def _made(self, tally: Tally, number: int) -> Plugin:
        def hear(told: Told) -> None:
            tally.hear(told.number)

        @plugin(name=f"plugin{number}")
        async def body(ctx: Context, config: Any) -> AsyncGenerator[None]:
            ctx.on(Told, hear)
            yield
            tally.clean()

        return body

    async def mount(self) -> None:
        await super().mount()
        await self._host.settle()

    async def dispose(self, order: Order) -> None:
        for mount in order(self._mounts):
            mount.request_stop()
        await self._host.settle()


if __name__ == "__main__":
    main(imported, {"plain": Plain, "async": Async}[sys.argv[1]], Told)
