"""Who is alive: a host holds a lock for its life, and is dead when that lock can be taken."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path


class Owner:
    """This process as an owner of records.

    :ivar id: what records carry; never used again by another process.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.id = f"{os.getpid():x}-{secrets.token_hex(8)}"
        self._path = directory / self.id
        # It gets its name when it is locked, so that nobody ever sees it unlocked and takes it for dead.
        unnamed = directory / f".{self.id}"
        self._descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        unnamed.rename(self._path)

    def alive(self, owner: str) -> bool:
        """Whether the process behind an owner id still lives."""
        return owner == self.id or is_alive(self._directory, owner)

    def release(self) -> None:
        with suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._descriptor)


def is_alive(directory: Path, owner: str) -> bool:
    """Whether an owner's lock is held. Looks with a shared lock, so that two who look do not take each other for it."""
    if not owner or "/" in owner:
        return False
    try:
        descriptor = os.open(directory / owner, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def sweep(directory: Path) -> int:
    """Remove the lock files of dead owners, and say how many."""
    names = [path for path in directory.glob("*") if not path.name.startswith(".")] if directory.is_dir() else []
    dead = [path for path in names if not is_alive(directory, path.name)]
    for path in dead:
        path.unlink(missing_ok=True)
    return len(dead)
