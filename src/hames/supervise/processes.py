"""What runs on this machine, as ``/proc`` has it, and what of it came of one process.

A process belongs to a group by its session, by its parents, or by a mark in its environment: one that leaves its session and outlives its
parents still has the mark, unless it takes care to hide. What the system can hold better (a cgroup, a namespace) is held there too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from time import monotonic
from typing import NamedTuple

MARK = "HAMES_GROUP"  # the marks of all groups that a process is in, the outermost first, joined by colons
PROC = Path("/proc")


class Seen(NamedTuple):
    """A living process.

    :param started: when it did, in ticks since the machine was started.
    """

    parent: int
    session: int
    started: int


def look(pid: int) -> Seen | None:
    """A process as it is; None where it is dead, or not there."""
    with suppress(OSError, ValueError, IndexError):
        fields = (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
        if fields[0] not in "ZX":
            return Seen(int(fields[1]), int(fields[3]), int(fields[19]))
    return None


class Snapshot:
    """Every living process at one moment; none on systems without ``/proc``.

    :ivar taken: when looking began, on the clock of :func:`time.monotonic`.
    """

    def __init__(self) -> None:
        self.taken = monotonic()
        self.processes: dict[int, Seen] = {}
        self._marks: dict[int, frozenset[str]] = {}
        with suppress(OSError):
            for entry in PROC.iterdir():
                if entry.name.isdigit() and (seen := look(int(entry.name))) is not None:
                    self.processes[int(entry.name)] = seen

    def marks(self, pid: int) -> frozenset[str]:
        """The marks of the groups that a process is in."""
        found = self._marks.get(pid)
        if found is None:
            found = self._marks[pid] = marks(pid)
        return found


_last: list[Snapshot] = []


def snapshot(after: float = 0.0) -> Snapshot:
    """A look at all processes that began after a moment: the last one, where it did. Groups that end together share it."""
    if not (after and _last and _last[0].taken > after):
        _last[:] = [Snapshot()]
    return _last[0]


def marked(environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """An environment with a new mark in it, and the mark."""
    mark = os.urandom(8).hex()
    return {**environment, MARK: ":".join(filter(None, (os.environ.get(MARK), mark)))}, mark


def marks(pid: int) -> frozenset[str]:
    """The marks of the groups that a process is in, as its environment was when it was started."""
    with suppress(OSError):
        for variable in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == MARK.encode():
                return frozenset(value.decode("ascii", "replace").split(":"))
    return frozenset()


def members(now: Snapshot, leader: int, since: int, mark: str, known: Mapping[int, int]) -> dict[int, int]:
    """What belongs to the group of a process: its session, all that is below it, all that has its mark, and what belonged to it before;
    each with how far below the leader it is, as far as one can still tell.

    :param since: when the leader was started: nothing older belongs to it.
    :param known: processes that belonged to it once, with when they were started.
    """
    alive = now.processes
    if not alive:
        with suppress(OSError):
            os.killpg(leader, 0)
            return {leader: 0}
        return {}
    first = alive.get(leader)
    reused = first is not None and first.started != since
    depths = {leader: 0} if first is not None and not reused else {}
    own = os.getpid()
    for pid, seen in alive.items():
        if pid in depths or pid == own or seen.started < since:
            continue
        if (seen.session == leader and not reused) or known.get(pid) == seen.started or mark in now.marks(pid):
            depths[pid] = 99
    grown = True
    while grown:
        below = {pid: depths[seen.parent] + 1 for pid, seen in alive.items() if seen.parent in depths and pid not in depths}
        depths |= below
        grown = bool(below)
    row, depth = {leader} & depths.keys(), 0
    while row:  # the true depths of those whose parents are all there
        depth += 1
        row = {pid for pid, seen in alive.items() if seen.parent in row}
        depths |= dict.fromkeys(row, depth)
    return depths


def chase(mark: str, seconds: float) -> None:
    """Kill what has a mark among the newest processes, again and again for a moment, without letting anything else run: one that is
    replaced by another all the time is gone before all have been looked at."""
    end = monotonic() + seconds
    while monotonic() < end:
        try:
            newest = int((PROC / "loadavg").read_text().split()[-1])
        except (OSError, ValueError, IndexError):
            return
        for pid in range(newest, max(newest - 4, 1), -1):
            if mark in marks(pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, SIGKILL)
