"""What is held while a confined command runs, where a mount needs something to be mounted over or cannot hold it.

A protected name that is not there is held by an empty directory, or file where Git reads one. They are removed when the last command in
any workspace has ended. Which ones are ours is on disk before a command runs, so a crash leaves nothing that the next command does not
remove. A protected link, or a name that must not come to be, is looked at afterwards: what took its place is put aside, and said.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from hames.content.jsontext import as_object, parse_object
from hames.sandbox.port import View


def missing(view: View) -> list[Path]:
    """Protected names in writable directories that are not there."""
    names = (path for path, place in view.places.items() if place == "read" and not os.path.lexists(path))
    return [path for path in names if view.place(path.parent) == "write"]


def links(view: View) -> dict[Path, Path]:
    """Protected names that are links, and where to."""
    return {path: path.readlink() for path, place in view.places.items() if place == "read" and path.is_symlink()}


@contextmanager
def held(view: View, root: Path, *, mounts: bool) -> Generator[list[str]]:
    """Hold protected names for the time of a command. The list says afterwards what the command did to those that no mount holds.

    :param root: a directory for the locks and records of this.
    :param mounts: whether names that are not there need something to be mounted over.
    """
    trespasses: list[str] = []
    with locked(root):
        before = links(view)
        names = missing(view)
        watched = [*view.absent, *(path for path in names if mounts and not path.parent.is_dir())]
        if mounts:
            for path in names:
                if path.parent.is_dir():
                    place(path, root, "file" if path in view.empty else "directory")
        for path in watched:
            record(path, root, {"kind": "absent"})
        try:
            yield trespasses
        finally:
            for path in watched:
                if os.path.lexists(path):
                    trespasses.append(put_aside(path, root))
            for path, target in before.items():
                if not path.is_symlink() or path.readlink() != target:
                    if os.path.lexists(path):
                        trespasses.append(put_aside(path, root))
                    with suppress(OSError):
                        path.symlink_to(target)


def put_aside(path: Path, root: Path) -> str:
    """Move away what must not be where it is."""
    aside = root / "put-aside" / f"{secrets.token_hex(4)}-{path.name}"
    aside.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = stat.S_IMODE(path.parent.stat().st_mode)
    try:
        with suppress(OSError):
            path.parent.chmod(mode | stat.S_IRWXU)
        try:
            path.rename(aside)
        except OSError:  # on another file system: beside it, under a name that means nothing
            aside = path.with_name(f"{path.name}.hames-{secrets.token_hex(4)}")
            path.rename(aside)
    finally:
        with suppress(OSError):
            path.parent.chmod(mode)
    return f"{path} is protected; what the command put there is now {aside}"


@contextmanager
def locked(root: Path) -> Generator[None]:
    """What a command holds is not swept while it runs. Leftovers of a crash are swept before and after, when nothing else runs."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        sweep_alone(lock, root)
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield
    finally:
        sweep_alone(lock, root)
        os.close(lock)


def tidy(root: Path) -> None:
    """Sweep what a crash has left, if nothing runs."""
    if root.is_dir():
        with suppress(OSError), locked(root):
            pass


def sweep_alone(lock: int, root: Path) -> None:
    fcntl.flock(lock, fcntl.LOCK_UN)
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sweep(root)


def record(path: Path, root: Path, what: dict[str, object]) -> Path:
    file = root / f"{sha256(os.fsencode(path)).hexdigest()[:32]}.json"
    file.write_text(json.dumps({"path": str(path), **what}))
    return file


def place(path: Path, root: Path, kind: str) -> None:
    """Make a placeholder, known by its inode and its time; what is there already is left alone."""
    file = record(path, root, {"kind": kind, "is": None})
    with suppress(OSError):
        if kind == "directory":
            path.mkdir()
        else:
            path.touch(exist_ok=False)
        record(path, root, {"kind": kind, "is": identity(path)})
        return
    if not os.path.lexists(path):
        file.unlink(missing_ok=True)


def identity(path: Path) -> list[int]:
    """What tells a placeholder from what a user has made in its place: numbers of inodes are used again, times are not."""
    status = path.lstat()
    return [status.st_dev, status.st_ino, status.st_mtime_ns]


def sweep(root: Path) -> None:
    """Remove every placeholder that is still empty, and put aside what a command that was killed has left. Only while no command runs."""
    for file in records(root):
        try:
            item = as_object(parse_object(file.read_text()))
        except (OSError, ValueError):
            item = {}
        path = Path(str(item.get("path", "")))
        with suppress(OSError):
            if item.get("kind") == "absent":
                if os.path.lexists(path):
                    put_aside(path, root)
            elif identity(path) == item.get("is"):
                if item.get("kind") == "directory":
                    path.rmdir()
                elif path.lstat().st_size == 0:
                    path.unlink()
        file.unlink(missing_ok=True)


def records(root: Path) -> Iterable[Path]:
    return sorted(root.glob("*.json"))
