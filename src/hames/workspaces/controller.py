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
from typing import Literal, Protocol

from hames.workspaces.watch import Watcher

Status = Literal["starting", "idle", "scheduled", "reloading", "failed", "stopped"]


class Timer(Protocol):
    def cancel(self) -> None: ...


class ReloadController:
    """Watches, waits until it is quiet, and has one pass made at a time.

    :param reload: makes a pass; what it raises makes the status ``failed``.
    :param debounce: seconds without a change before a pass.
    :param later: calls something after some seconds; the event loop's own by default.
    :param report: told what went wrong; what it raises itself goes nowhere.
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
    ) -> None:
        self._watcher = watcher
        self._reload = reload
        self._debounce = debounce
        self._later = later or asyncio.get_running_loop().call_later
        self._report = report
        self._timer: Timer | None = None
        self._running: asyncio.Task[None] | None = None
        self._dirty = False
        self._stopped: asyncio.Future[None] | None = None
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
            self._watcher.close()
            self.status = "stopped"
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
            except Exception as error:  # recorded: reported, and the status says so
                failed = True
                try:
                    self._report(error)
                except Exception:  # recorded: whoever is told of a failure makes none
                    pass
            if self.status == "stopped":
                return
            if not self._dirty:
                self.status = "failed" if failed else "idle"
                self._running = None
                return

    async def settled(self) -> Status:
        """Wait until no pass is under way."""
        while (running := self._running) is not None and not running.done():
            await asyncio.wait((running,))
        return self.status

    async def stop(self) -> None:
        """Watch no more, wait for the pass that is being made, and make no other. Every call waits for the same end."""
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_future()
            self.status = "stopped"
            self._dirty = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            try:
                self._watcher.close()
            except Exception as error:  # recorded: the end goes on
                self._report(error)
            if self._running is not None:
                await asyncio.wait((self._running,))
            self.watching = False
            self._stopped.set_result(None)
        await asyncio.shield(self._stopped)
