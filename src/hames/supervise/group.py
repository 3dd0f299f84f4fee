"""A process in a session of its own, and all that comes of it: ended together."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from time import monotonic

from hames.supervise.cgroup import Cgroup
from hames.supervise.processes import chase, look, marked, members, snapshot

POLITE = 2.0  # seconds between SIGTERM and SIGKILL
LOOKS, PAUSE = 200, 0.005  # how often and how many seconds apart it is looked whether the killed have gone
ENOUGH, WARY = 2, 20  # looks that find nothing; and those where new processes came meanwhile
CHASE = 0.05  # seconds


class Group:
    """A program that was started, with everything that it starts. Whoever makes one ends it.

    Made in a running event loop; the start itself does not wait, so nothing can come between it and its owner.

    :param argv: the program and its arguments.
    :param environment: all that it sees of one; a mark is added, by which what it leaves behind is found.
    :param watchers: how many processes at the beginning only watch over the others, see :class:`hames.sandbox.port.Command`.
    :param cgroup: hold it in a control group too, where this process may make one.
    :raises OSError: if it cannot be started.
    :raises ValueError: if an argument is none, for example one with a zero byte.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        watchers: int = 0,
        cgroup: bool = False,
    ) -> None:
        environment, self._mark = marked(environment)
        self._watchers = watchers
        self._cgroup = Cgroup.made() if cgroup else None
        with nullcontext() if self._cgroup is None else self._cgroup.entrance() as enter:
            try:
                self._popen = subprocess.Popen(
                    argv,
                    cwd=cwd,
                    env=environment,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=pass_fds,
                    start_new_session=True,
                    preexec_fn=enter,
                )
            except BaseException:
                if self._cgroup is not None:
                    self._cgroup.drop()
                raise
        seen = look(self.pid)
        self._since = seen.started if seen is not None else 0
        self._known: dict[int, int] = {}  # who belonged to it once: one that hides is still known by when it was started
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._watch()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit status of the first process, negative for a signal; None while it lives."""
        return self._popen.returncode

    def _watch(self) -> None:
        if sys.platform != "linux":
            self._loop.run_in_executor(None, self._popen.wait).add_done_callback(lambda _: self._reap())
            return
        descriptor = os.pidfd_open(self.pid)

        def ended() -> None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
            self._reap()

        self._loop.add_reader(descriptor, ended)

    def _reap(self) -> None:
        status = self._popen.wait()
        if not self._ended.done():
            self._ended.set_result(status)

    async def wait(self) -> int:
        """The exit status of the first process, when it has ended; what it left behind may still run."""
        return await asyncio.shield(self._ended)

    async def ends_within(self, seconds: float) -> bool:
        """Whether the first process ends in this time."""
        done, _ = await asyncio.wait((self._ended,), timeout=seconds)
        return bool(done)

    def members(self, after: float = 0.0) -> dict[int, int]:
        """What lives of the group, each with how far below the first process it is.

        :param after: a look at all processes that began after this moment will do.
        """
        now = snapshot(after)
        found = members(now, self.pid, self._since, self._mark, self._known)
        self._known |= {pid: now.processes[pid].started for pid in found if pid in now.processes}
        return found

    def signal(self, number: signal.Signals, below: int = 0) -> None:
        """Send a signal to all that is at least so far below the first process."""
        for pid, depth in self.members().items():
            if depth >= below:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)

    def kill(self) -> None:
        """End everything at once, without waiting for it."""
        if self._cgroup is not None:
            self._cgroup.kill()
        self.signal(signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            if self.returncode is None:
                os.killpg(self.pid, signal.SIGKILL)

    async def end(self) -> None:
        """End everything of the group, politely at first, also what it left in the background. Cancelling this skips the politeness, and
        does not keep it from ending them."""
        cancelled = False
        try:
            await self._ask_to_end()
        except asyncio.CancelledError:
            cancelled = True
            self.kill()  # at once: perhaps nothing that waits has another turn
        except BaseException:  # Ctrl-C in the middle of it: perhaps nothing follows
            self.kill()
            raise
        while True:
            killing = asyncio.ensure_future(self._kill_all())
            while not killing.done():
                try:
                    await asyncio.shield(killing)
                except asyncio.CancelledError:
                    cancelled = True
            if not killing.cancelled():
                break
            self.kill()  # whoever ends the loop cancels every task; there may be a last turn
        killing.result()
        if cancelled:
            raise asyncio.CancelledError

    async def _ask_to_end(self) -> None:
        """SIGTERM to all but those that watch, and time to heed it; what was born in that moment can have lost it, so it comes again."""
        moment, end, pause = 0.0, monotonic() + POLITE, PAUSE
        again = monotonic() + POLITE / 2
        told: set[int] = set()
        while (now := monotonic()) < end:
            seen = self.members(moment)
            left = {pid for pid, depth in seen.items() if depth >= self._watchers}
            if not left:
                return
            due = left - told if now < again else {pid for pid, depth in seen.items() if depth > self._watchers}
            for pid in sorted(due, key=lambda pid: seen[pid]):  # parents first: one that waits for a child would end before it hears
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM)
            told |= left
            again = end if now >= again else again
            moment = monotonic()
            await self._pause(pause)
            pause = min(0.2, pause * 2)

    async def _pause(self, seconds: float) -> None:
        """Wait, or less where the first process ends meanwhile."""
        if self.returncode is None:
            await self.ends_within(seconds)
        else:
            await asyncio.sleep(seconds)

    async def _kill_all(self) -> None:
        try:
            await self._kill_until_gone()
        except BaseException:
            self.kill()
            raise

    async def _kill_until_gone(self) -> None:
        if self._watchers and self.returncode is None:
            self.signal(signal.SIGKILL, self._watchers)  # those that watch collect what is left, and end by themselves
            await self.ends_within(POLITE)
        if self.returncode is None:
            self.kill()
        await self.wait()
        moment, empty, enough = monotonic(), 0, ENOUGH
        known = set(self._known)
        for _ in range(LOOKS):  # a killed process is gone a little later; one look can miss what is just being born
            await asyncio.sleep(PAUSE if empty else 0)
            if found := self.members(moment):
                self.kill()
                empty = 0
                if found.keys() - known:  # it makes ever new processes, which are gone before a look at all of them ends
                    enough = WARY
                    known |= found.keys()
                    chase(self._mark, CHASE)
                await asyncio.sleep(PAUSE)
            elif (empty := empty + 1) >= enough:
                break
            moment = monotonic()
        if self._cgroup is not None:
            await self._cgroup.remove()
