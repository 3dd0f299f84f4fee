"""Ends a turn that takes too long, or in which nothing happens any more."""

from __future__ import annotations

import asyncio

from hames.budget import Limits


class Watch:
    """An asynchronous context that cancels what runs inside when its time is over.

    :ivar expired: which limit was reached, in words; empty while none was.
    :ivar code: the same as a word: ``DEADLINE`` or ``IDLE``.
    """

    __slots__ = ("_end", "_held", "_limits", "_timeout", "code", "expired")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._timeout: asyncio.Timeout | None = None
        self._end: float | None = None
        self._held = 0
        self.expired = ""
        self.code = ""

    async def __aenter__(self) -> Watch:
        limits = self._limits
        if limits.seconds is None and limits.idle is None:
            return self
        now = asyncio.get_running_loop().time()
        self._end = None if limits.seconds is None else now + limits.seconds
        self._timeout = asyncio.timeout_at(self._deadline(now))
        await self._timeout.__aenter__()
        return self

    def _deadline(self, now: float) -> float | None:
        idle = None if self._limits.idle is None or self._held else now + self._limits.idle
        return min((each for each in (self._end, idle) if each is not None), default=None)

    def touch(self) -> None:
        """Something has happened."""
        if self._timeout is not None and self._limits.idle is not None and not self._timeout.expired():
            self._timeout.reschedule(self._deadline(asyncio.get_running_loop().time()))

    def hold(self, begins: bool) -> None:
        """Do not take it for idleness while something else is waited for; each beginning has its end."""
        self._held += 1 if begins else -1
        self.touch()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if self._timeout is None:
            return False
        try:
            await self._timeout.__aexit__(type(error) if error is not None else None, error, None)
        except TimeoutError:
            now = asyncio.get_running_loop().time()
            total = self._end is not None and now >= self._end
            limits = self._limits
            self.code = "DEADLINE" if total else "IDLE"
            self.expired = f"the limit of {limits.seconds:g} s is reached" if total else f"nothing happened for {limits.idle:g} s"
            return True
        return False
