"""What runs on this machine, as ``/proc`` has it, and what of it came of one process.

A process belongs to a group by its session, by its parents, or by a mark in its environment: one that leaves its session and outlives its
parents still has the mark, unless it takes care to hide. What the system can hold better (a cgroup, a namespace) is held there too.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "HAMES_GROUP"  # the marks of all groups that a process is in, the outermost first, joined by colons
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Seen:
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


def processes() -> dict[int, Seen]:
    """Every living process; none on systems without ``/proc``."""
    found: dict[int, Seen] = {}
    with suppress(OSError):
        for entry in PROC.iterdir():
            if entry.name.isdigit() and (seen := look(int(entry.name))) is not None:
                found[int(entry.name)] = seen
    return found


def marked(environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """An environment with a new mark in it, and the mark."""
    mark = secrets.token_hex(8)
    return {**environment, MARK: ":".join(filter(None, (os.environ.get(MARK), mark)))}, mark


def has_mark(pid: int, mark: str) -> bool:
    with suppress(OSError):
        for variable in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == MARK.encode():
                return mark.encode() in value.split(b":")
    return False


def members(leader: int, mark: str = "", since: int = 0) -> dict[int, int]:
    """What belongs to the group of a process: its session, all that is below it, and all that has its mark; each with how far below the
    leader it is, as far as one can still tell.

    :param since: when the leader was started: nothing older is looked at for the mark.
    """
    known = processes()
    if not known:
        with suppress(OSError):
            os.killpg(leader, 0)
            return {leader: 0}
        return {}
    depths = {leader: 0} if leader in known else {}
    depths |= {pid: 99 for pid, seen in known.items() if seen.session == leader and pid not in depths}
    if mark:
        own = os.getpid()
        for pid, seen in known.items():
            if pid not in depths and seen.started >= since and pid != own and has_mark(pid, mark):
                depths[pid] = 99
    grown = True
    while grown:
        below = {pid: depths[seen.parent] + 1 for pid, seen in known.items() if seen.parent in depths and pid not in depths}
        depths |= below
        grown = bool(below)
    if leader in depths:  # the true depths of those whose parents are all there
        row = {leader}
        depth = 0
        while row:
            depth += 1
            row = {pid for pid, seen in known.items() if seen.parent in row}
            depths |= dict.fromkeys(row, depth)
    return depths
