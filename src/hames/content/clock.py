"""Time and chance as things that are passed in."""

from __future__ import annotations

import asyncio
import random
import time


class Clock:
    """The system's clock and randomness; a test passes another one (``hames.testing.FakeClock``)."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def random(self) -> float:
        """A number in [0, 1)."""
        return random.random()
