"""When a workspace is read again: files and callbacks only. What a pass does is somebody else's.

::

    starting ── activate ──► idle ◄─────────────┐
                              │ change          │ went well
                              ▼                 │
                          scheduled ─ quiet ─► reloading ─ failed ─► failed
                              ▲                                        │ change
                              └────────────────────────────────────────┘
    any of them ── stop ──► stopped

A change during a pass gives exactly one further pass; several give one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from hames.workspaces.info import Status
from hames.workspaces.watch import Watcher


class Timer(Protocol):
    def cancel(self) -> None: ...


class ReloadController:
    """Watches, waits until it is quiet, and has one pass made at a time.

    :param reload: makes a pass; what it raises makes the status ``failed``.
    :param debounce: seconds without a change before a pass.
    :param later: calls something after some seconds; the event loop's own by default.
    :param report: told what went wrong; what it raises itself goes nowhere.
    :param ended: told when passes have ended and the status says how.
    :ivar successful: passes that went well.
    """

    def __init__(
        self,
        watcher: Watcher,
        reload: Callable[[], Awaitable[None]],
        *,
        debounce: float,
        later: Callable[[float, Callable[[], None]], Timer] | None = None,
        report: Callable[[Exception], None] = lambda error: None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._watcher = watcher
        self._reload = reload
        self._debounce = debounce
        self._later = later or asyncio.get_running_loop().call_later
        self._report = report
        self._ended = ended
        self._timer: Timer | None = None
        self._running: asyncio.Task[None] | None = None
        self._dirty = False
        self._stopping: asyncio.Task[None] | None = None
        self.status: Status = "starting"
        self.watching = False
        self.successful = 0

    def start(self) -> None:
        """Begin to watch. What changes before :meth:`activate` gives one pass then.

        :raises OSError: if it cannot be watched; nothing is left then.
        """
        try:
            self._watcher.start(self._changed)
        except BaseException:
            self.status = "stopped"
            with suppress(Exception):
                self._watcher.close()
            raise
        self.watching = True

    def activate(self) -> None:
        """The first reading is done: make passes from now on."""
        if self.status == "starting":
            self.status = "idle"
            if self._dirty:
                self._dirty = False
                self._schedule()

    def _changed(self) -> None:
        if self.status in ("starting", "reloading"):
            self._dirty = True
        elif self.status != "stopped":
            self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.status = "scheduled"
        self._timer = self._later(self._debounce, self._begin)

    def request(self) -> None:
        """Make a pass now, or one after that which is being made."""
        if self.status == "reloading":
            self._dirty = True
        elif self.status not in ("starting", "stopped"):
            self._begin()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.status = "reloading"
        self._running = asyncio.get_running_loop().create_task(self._passes(), name="workspace reload")

    async def _passes(self) -> None:
        while True:
            self._dirty = False
            failed = False
            try:
                await self._reload()
                self.successful += 1
            except asyncio.CancelledError as error:
                failed = True
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    self.status = "failed"
                    raise
                self._tell(RuntimeError(f"a pass was cancelled from inside: {error}"))
            except Exception as error:  # recorded: reported, and the status says so
                failed = True
                self._tell(error)
            if self.status == "stopped":
                return
            if not self._dirty:
                self.status = "failed" if failed else "idle"
                self._running = None
                self._ended()
                return

    def _tell(self, error: Exception) -> None:
        with suppress(Exception):  # whoever is told of a failure makes none
            self._report(error)

    async def settled(self) -> Status:
        """Wait until no pass is under way."""
        while (running := self._running) is not None and not running.done():
            await asyncio.wait((running,))
        return self.status

    async def stop(self) -> None:
        """Watch no more, wait for the pass that is being made, and make no other. Every call waits for the same end."""
        if self._stopping is None:
            self.status = "stopped"
            self._dirty = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            try:
                self._watcher.close()
            except Exception as error:  # recorded: the end goes on
                self._tell(error)
            self._stopping = asyncio.get_running_loop().create_task(self._wait_for_end(), name="workspace reload stops")
        await asyncio.shield(self._stopping)

    async def _wait_for_end(self) -> None:
        if self._running is not None:
            await asyncio.wait((self._running,))
        self.watching = False
