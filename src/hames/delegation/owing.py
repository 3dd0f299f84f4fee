"""What sessions are going to be told: whoever rests and is owed something is not done yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hames.agents import Agent


class Owing:
    """What is owed to sessions.

    :param contain: hears what went wrong with telling.
    """

    def __init__(self, contain: Callable[[str, BaseException], None]) -> None:
        self._contain = contain
        self._owed: dict[str, set[asyncio.Task[Any]]] = {}

    def add(self, session: str, telling: asyncio.Task[Any]) -> None:
        """A session is going to be told something: it has been when this is done."""
        owed = self._owed.setdefault(session, set())
        owed.add(telling)

        def told(done: asyncio.Task[Any]) -> None:
            owed.discard(done)
            if not owed and self._owed.get(session) is owed:
                del self._owed[session]
            if not done.cancelled() and (error := done.exception()) is not None:
                self._contain(f"telling session {session}", error)

        telling.add_done_callback(told)

    def of(self, session: str) -> set[asyncio.Task[Any]]:
        """What a session is going to be told."""
        return set(self._owed.get(session, ()))

    async def settled(self, patience: float) -> None:
        """Wait for all of it, but not for ever.

        :param patience: seconds.
        """
        left = [each for owed in self._owed.values() for each in owed]
        if left:
            _, late = await asyncio.wait(left, timeout=patience)
            for each in late:
                each.cancel()
            if late:
                await asyncio.wait(late)


async def rested(agent: Agent, owed: Callable[[], set[asyncio.Task[Any]]], stop: asyncio.Future[None] | None = None) -> bool:
    """Wait until an agent rests and has heard the end of all that it has started; whether there was anything to wait for.

    :param owed: what it is going to be told.
    :param stop: do not wait any longer once this is done.
    """
    waited = False
    stops = () if stop is None else (stop,)
    while True:
        await agent.idle()
        if agent.finishing or any(each.done() for each in stops):
            return waited
        if left := owed():
            waited = True
            await asyncio.wait((*left, *stops), return_when=asyncio.FIRST_COMPLETED)
            continue
        if waited and agent.inbox.next_step:  # it was told of something without being woken
            agent.wake()
        if agent.status != "running":
            return waited
