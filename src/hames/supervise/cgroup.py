"""A control group (cgroup v2) for a process and all that comes of it, where this process may make one.

It is a net below the others: what is in it cannot leave it, and is ended by one write.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
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
    """One control group; made by :meth:`made`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @staticmethod
    def made() -> Cgroup | None:
        """A new control group with nothing in it; None where that cannot be had."""
        parent = own()
        if parent is None:
            return None
        directory = parent / f"hames-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            directory.mkdir()
        except OSError:
            return None
        return Cgroup(directory)

    @contextmanager
    def entrance(self) -> Generator[Callable[[], None]]:
        """What a new process calls between fork and exec to be in it: moved later, it could have started something that is not.

        It does one write to what is open, and takes no lock. Where it may not enter, it goes on outside.
        """
        try:
            door = os.open(self._directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            yield lambda: None
            return

        def enter() -> None:
            with suppress(OSError):
                os.write(door, b"0")

        try:
            yield enter
        finally:
            os.close(door)

    def kill(self) -> None:
        """End all that is in it."""
        try:
            (self._directory / "cgroup.kill").write_text("1")
        except OSError:  # a kernel before 5.14
            for pid in self._pids():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def drop(self) -> None:
        """Remove it, where nothing is in it."""
        with suppress(OSError):
            self._directory.rmdir()

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
