"""Looking after the tasks that run: what other processes want of them, and what they are told of their states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from hames.delegation.ledger import Ledger
from hames.delegation.task import Task

PAUSE = 0.25  # seconds between looks


class Attending:
    """Looks after tasks while there are any.

    :param live: those that this process drives.
    """

    def __init__(self, ledger: Ledger, live: Mapping[str, Task], contain: Callable[[str, BaseException], None]) -> None:
        self._ledger = ledger
        self._live = live
        self._contain = contain
        self._changed: dict[str, Task] = {}
        self._looking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look, from now on until none is left."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="tasks are attended")

    def changed(self, task: Task) -> None:
        """The state of a task is another one; others are told soon."""
        self._changed[task.id] = task

    def settled(self, task: Task) -> None:
        """A task is about to get its outcome: its state says nothing more."""
        self._changed.pop(task.id, None)

    async def _look(self) -> None:
        while self._live:
            await asyncio.sleep(PAUSE)
            try:
                wanted = self._ledger.stops()
                for id, cause in wanted:
                    if id in self._live:
                        self._live[id].cancel(cause or "user", "somebody asked for it with 'hames task cancel'")
                self._ledger.acknowledge(id for id, _ in wanted if id in self._live)
                self._write()
            except Exception as error:  # recorded: the next look tries again
                self._contain("looking after tasks", error)

    def _write(self) -> None:
        changed, self._changed = self._changed, {}
        for task in changed.values():
            if not task.settled and task.state != "intended":
                self._ledger.update(task.id, task.epoch, task.state, waiting=task.waiting, cause=task.cause)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))
