"""What is held while a confined command runs, where a mount needs something to be mounted over or cannot hold it.

A protected name that is not there is held by an empty directory, which Git does not see and which is removed when the last command
in the workspace has ended. Which ones are ours is on disk before they are made, so a crash leaves nothing that the next command does
not remove. A protected link, or a name that must not come to be in a Git directory, is looked at afterwards: what took its place is
put aside, and said.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from hames.sandbox.port import View


def absent(view: View) -> list[Path]:
    """Protected names in writable directories that are not there."""
    return [
        path for path, place in view.places.items() if place == "read" and not os.path.lexists(path) and view.place(path.parent) == "write"
    ]


def links(view: View) -> dict[Path, Path]:
    """Protected names that are links, and where to."""
    return {path: path.readlink() for path, place in view.places.items() if place == "read" and path.is_symlink()}


@contextmanager
def held(view: View, redirects: list[Path], root: Path, *, placeholders: bool) -> Generator[list[str]]:
    """Hold protected names for the time of a command. The list says afterwards what the command did to those that no mount holds.

    :param redirects: names that are not there and must not come to be.
    :param root: a directory for the locks and records of this.
    :param placeholders: whether names that are not there need something to be mounted over.
    """
    trespasses: list[str] = []
    before = links(view)
    with placed(absent(view) if placeholders else [], root):
        try:
            yield trespasses
        finally:
            for path in redirects:
                if os.path.lexists(path):
                    trespasses.append(put_aside(path, root))
            for path, target in before.items():
                if not path.is_symlink() or path.readlink() != target:
                    if os.path.lexists(path):
                        trespasses.append(put_aside(path, root))
                    with suppress(OSError):
                        path.symlink_to(target)


def put_aside(path: Path, root: Path) -> str:
    place = root / "put-aside" / f"{secrets.token_hex(4)}-{path.name}"
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        path.rename(place)
    except OSError:  # on another file system: beside it, under a name that means nothing
        place = path.with_name(f"{path.name}.hames-{secrets.token_hex(4)}")
        path.rename(place)
    return f"{path} is protected; what the command put there is now {place}"


@contextmanager
def placed(paths: list[Path], root: Path) -> Generator[None]:
    """Empty directories at these paths, made if need be, until the last command that needs them has ended."""
    if not paths and not root.is_dir():
        yield
        return
    keys = {path: root / sha256(os.fsencode(path)).hexdigest()[:32] for path in paths}
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        for path, record in keys.items():
            record.write_bytes(os.fsencode(path))
            with suppress(OSError):
                path.mkdir()
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sweep(root)
        os.close(lock)


def sweep(root: Path) -> None:
    """Remove every recorded placeholder that is still empty. Only while no command runs."""
    for record in root.iterdir():
        if len(record.name) == 32:
            with suppress(OSError):
                Path(os.fsdecode(record.read_bytes())).rmdir()
            record.unlink(missing_ok=True)
