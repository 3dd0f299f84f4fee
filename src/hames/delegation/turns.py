"""One at a time for each name, in the order in which they come; a name that nobody wants any more takes no room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Turns:
    """Locks by name."""

    def __init__(self) -> None:
        self._wanted: dict[str, tuple[asyncio.Lock, int]] = {}  # with how many there are who want it

    @asynccontextmanager
    async def of(self, name: str) -> AsyncGenerator[None]:
        """Nobody else has this name meanwhile."""
        lock, users = self._wanted.get(name, (asyncio.Lock(), 0))
        self._wanted[name] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._wanted.pop(name)
            if users > 1:
                self._wanted[name] = lock, users - 1
