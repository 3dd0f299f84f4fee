"""Opening and replacing files for a confined call, so that nobody can swap a directory or a link between the check and the use.

A path is made canonical, judged, and then walked from the root, component by component, without following a link: what was judged
is what is opened. Works the same on every system.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from hames.sandbox.port import Refused, View
from hames.sandbox.protect import NAMES

DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PROCESS_FILES = (Path("/proc"), Path("/sys"))


def check_read(path: Path, view: View) -> None:
    """
    :param path: canonical.
    :raises Refused: if it is hidden, or tells of processes: those of Hames know its keys.
    """
    if view.places.get(Path("/")) == "write":
        return
    place = view.deciding(path)
    if view.places[place] == "hidden":
        raise Refused(f"{path} is not shown to tools: {view.why.get(place, 'it is hidden')}; ask the user for what you need of it")
    if any(path.is_relative_to(each) for each in PROCESS_FILES):
        raise Refused(f"{path} is not shown to tools: it tells of processes; use a command")


def check_write(path: Path, view: View, names: tuple[str, ...] = NAMES) -> None:
    """
    :param path: canonical.
    :raises Refused: if it is outside of what may be written, or protected.
    """
    if view.places.get(Path("/")) == "write":
        return
    place = view.deciding(path)
    root = max((each for each in view.roots if path.is_relative_to(each)), key=lambda each: len(each.parts), default=None)
    if root is not None:
        bad = next((part for part in path.relative_to(root).parts if part.casefold() in names), "")
        if bad:
            raise Refused(f"{path} is protected: programs take orders from {bad}; say to the user what should change there")
        if view.places[place] == "write":
            return
    if place in view.why:
        raise Refused(f"{path} is protected: {view.why[place]}; say to the user what should change there")
    raise Refused(f"{path} cannot be written: it lies outside of the workspace")


@contextmanager
def parent_directory(path: Path, *, make: bool = False) -> Generator[int]:
    """A descriptor of the directory that a canonical path is in, reached without following a link.

    :raises OSError: if a component is not there, or is a link by now.
    """
    here = os.open(path.anchor or "/", DIRECTORY)
    try:
        for part in path.parent.parts[1:]:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=here)
            below = os.open(part, DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def open_read(path: Path, view: View) -> int:
    """A descriptor of a canonical path for reading.

    :raises Refused: if it may not be read.
    :raises OSError: if it cannot be.
    """
    check_read(path, view)
    with parent_directory(path) as parent:
        return os.open(path.name or ".", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)


def replace(path: Path, data: bytes, view: View, names: tuple[str, ...] = NAMES) -> None:
    """Write a file whole or not at all, with the mode that it had.

    :raises Refused: if it may not be written.
    :raises OSError: if it cannot be; it is as it was then.
    """
    check_write(path, view, names)
    with parent_directory(path, make=True) as parent:
        mode = None
        with suppress(FileNotFoundError):
            status = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.ELOOP, "it is no regular file any more")
            mode = stat.S_IMODE(status.st_mode)
        temporary = f".{path.name[:80]}.{secrets.token_hex(4)}"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.rename(temporary, path.name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise
