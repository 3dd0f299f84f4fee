"""A control group (cgroup v2) for a process and all that comes of it, where this process may make one.

It is a net below the others: what is in it cannot leave it, and is ended by one write.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from contextlib import suppress
from functools import cache
from pathlib import Path


@cache
def own() -> Path | None:
    """The directory of this process's own control group, if it may make others below it."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        name = next(line[3:] for line in lines if line.startswith("0::"))
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            root, place = before.split()[3:5]
            if after.startswith("cgroup2 "):
                inside = name if root == "/" else name.removeprefix(root)
                directory = Path(place) / inside.lstrip("/")
                if (directory / "cgroup.kill").exists() or directory == Path(place):
                    return directory if os.access(directory, os.W_OK) else None
    except (OSError, StopIteration, ValueError):
        pass
    return None


class Cgroup:
    """One control group; made by :meth:`holding`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @staticmethod
    def holding(pid: int) -> Cgroup | None:
        """A new control group with a process in it; None where that cannot be had."""
        parent = own()
        if parent is None:
            return None
        directory = parent / f"hames-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            directory.mkdir()
        except OSError:
            return None
        try:
            (directory / "cgroup.procs").write_text(str(pid))
        except OSError:  # it has ended, or may not be moved
            with suppress(OSError):
                directory.rmdir()
            return None
        return Cgroup(directory)

    def kill(self) -> None:
        """End all that is in it."""
        try:
            (self._directory / "cgroup.kill").write_text("1")
        except OSError:  # a kernel before 5.14
            for pid in self._pids():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _pids(self) -> list[int]:
        try:
            return [int(word) for word in (self._directory / "cgroup.procs").read_text().split()]
        except (OSError, ValueError):
            return []

    async def remove(self) -> None:
        """End what is left in it, and remove it."""
        for _ in range(200):
            try:
                self._directory.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                self.kill()
                await asyncio.sleep(0.005)
