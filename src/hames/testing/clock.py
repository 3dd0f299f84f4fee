"""Time that a test owns."""

from __future__ import annotations

import asyncio
import random

from hames.content.clock import Clock


class FakeClock(Clock):
    """A clock that moves when somebody sleeps, at once, and numbers that come from a starting value.

    :ivar slept: the seconds of every sleep, in order.
    """

    def __init__(self, start: float = 1_700_000_000.0, chance: int = 0) -> None:
        self._now = start
        self._random = random.Random(chance)
        self.slept: list[float] = []

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._now += seconds
        await asyncio.sleep(0)

    def random(self) -> float:
        return self._random.random()
