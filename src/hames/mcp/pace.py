"""What a server may send: how much, and what of it is handed on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

BURST, RATE = 5_000, 1_000  # messages at once, and a second
OWED = 32  # requests of the server that are not answered
HUGE = 1e300


class Pace:
    """Slows a server down that sends too much: what it writes waits in its pipe then, and not in our memory.

    :param told: called where it is slowed down.
    """

    def __init__(self, told: Callable[[], None]) -> None:
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._allowance = float(BURST)
        self._last = self._loop.time()
        self._owed = 0
        self._paid = asyncio.Event()

    async def wait_turn(self) -> None:
        """Wait until one more message may come."""
        while self._allowance < 1:
            now = self._loop.time()
            self._allowance, self._last = min(BURST, self._allowance + (now - self._last) * RATE), now
            if self._allowance < 1:
                self._told()
                await asyncio.sleep(1 / 20)
        self._allowance -= 1

    async def admit(self, message: Any) -> None:
        """Wait until a request of the server may be worked on."""
        from mcp_types import JSONRPCRequest

        if isinstance(message.message, JSONRPCRequest):
            while self._owed >= OWED:
                self._told()
                self._paid.clear()
                await self._paid.wait()
            self._owed += 1

    def answered(self, message: Any) -> None:
        """A message goes to the server."""
        from mcp_types import JSONRPCError, JSONRPCResponse

        if isinstance(message.message, JSONRPCResponse | JSONRPCError):
            self._owed -= 1
            self._paid.set()


def mended(line: bytes) -> bytes:
    """A line with half characters in it, as some programs write names of files, without them; empty where it is no JSON at all."""
    try:
        return json.dumps(json.loads(line.decode("utf-8", "replace")), ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return b""


def sane(message: Any) -> bool:
    """Whether the client library can take a message: a progress beyond all numbers ends it."""
    parameters = getattr(message, "params", None)
    if getattr(message, "method", "") != "notifications/progress" or not isinstance(parameters, dict):
        return True
    numbers: list[Any] = [parameters.get(key) for key in ("progress", "total")]  # pyright: ignore[reportUnknownMemberType]
    return all(not isinstance(each, int | float) or -HUGE < each < HUGE for each in numbers)
