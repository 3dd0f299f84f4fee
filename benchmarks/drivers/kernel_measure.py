"""The measuring of every kernel's driver, and its one line of JSON: ``DRIVER [VARIANT]``.

All drivers mount the same: PLUGINS plugins that were made before, each with one listener of one and the same event and one clean-up.
They are disposed of in reverse; then it is done again, and they are disposed of in the order that they came in. Times are CPU time of
the process; before each the garbage is collected, and the collector is on. ``asyncio`` is imported before a kernel is, because every
host has it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import platform
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

PLUGINS = 1000
WARM_UP = 20
EMITS = {1: 200_000, 10: 50_000}
MAKES = 200_000


class Tally:
    """What the plugins did."""

    def __init__(self) -> None:
        self.heard = 0
        self.cleaned = 0

    def hear(self, number: int) -> None:
        self.heard += 1

    def clean(self) -> None:
        self.cleaned += 1


Order = Callable[[list[Any]], Iterable[Any]]


class Kernel(Protocol):
    """A kernel with so many plugins, which are made, not mounted."""

    def __init__(self, tally: Tally, count: int) -> None: ...

    async def mount(self) -> None:
        """Mount all plugins."""
        ...

    async def dispose(self, order: Order) -> None:
        """Dispose of all plugins, in an order of the list of them."""
        ...

    def emit(self, times: int) -> None:
        """Dispatch so many events with a number in them."""
        ...

    def known(self) -> int:
        """How many plugins and listeners the kernel itself still knows."""
        ...


Make = Callable[[Tally, int], Kernel]


class Clock:
    """CPU time of what runs inside."""

    def __enter__(self) -> Clock:
        gc.collect()
        self._start = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.process_time() - self._start


def check(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise SystemExit(f"{what}: {found} instead of {expected}")


async def mounting(make: Make, count: int, order: Order) -> dict[str, Any]:
    tally = Tally()
    kernel = make(tally, count)
    with Clock() as mount:
        await kernel.mount()
    kernel.emit(1)
    check("listeners that heard", tally.heard, count)
    check("clean-ups too early", tally.cleaned, 0)
    with Clock() as dispose:
        await kernel.dispose(order)
    kernel.emit(1)
    left = tally.heard - count + abs(count - tally.cleaned)
    return {"mount": mount.seconds / count, "dispose": dispose.seconds / count, "left": left, "known": kernel.known()}


async def dispatching(make: Make, listeners: int, times: int) -> float:
    tally = Tally()
    kernel = make(tally, listeners)
    await kernel.mount()
    kernel.emit(100)
    with Clock() as clock:
        kernel.emit(times)
    check("dispatched", tally.heard, listeners * (times + 100))
    await kernel.dispose(reversed)
    return clock.seconds / times


async def measure(make: Make) -> dict[str, Any]:
    await mounting(make, WARM_UP, reversed)
    found = await mounting(make, PLUGINS, reversed)
    found["dispose forwards"] = (await mounting(make, PLUGINS, iter))["dispose"]
    for listeners, times in EMITS.items():
        found[f"emit {listeners}"] = await dispatching(make, listeners, times)
    return found


def main(imported: Clock, make: Make, event: Callable[[int], object] | None = None) -> None:
    """Measure a kernel.

    :param imported: what its import needed.
    :param event: makes an event, where dispatching has to; also measured by itself.
    """
    found = asyncio.run(measure(make))
    if event is not None:
        with Clock() as clock:
            for number in range(MAKES):
                event(number)
        found["event"] = clock.seconds / MAKES
    print(json.dumps({"python": platform.python_version(), "import": imported.seconds, **found}))
