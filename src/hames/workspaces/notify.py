"""Changes in directories, as the system tells them: one descriptor for all workspaces, no thread.

inotify(7) by system call, since a library's watcher needs a thread and an instance for each workspace (128 of a user are the usual limit),
and takes no further directory. Where there is none, the slow look at the files themselves (``watch.Watch``) is all there is.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import struct
import sys
from collections.abc import Callable

log = logging.getLogger("hames.workspaces")

MASK = (
    0x00000002  # IN_MODIFY
    | 0x00000004  # IN_ATTRIB
    | 0x00000008  # IN_CLOSE_WRITE
    | 0x00000040  # IN_MOVED_FROM
    | 0x00000080  # IN_MOVED_TO
    | 0x00000100  # IN_CREATE
    | 0x00000200  # IN_DELETE
    | 0x00000400  # IN_DELETE_SELF
    | 0x00000800  # IN_MOVE_SELF
    | 0x01000000  # IN_ONLYDIR
)
IGNORED, OVERFLOW, MOVED = 0x8000, 0x4000, 0x0800
CLOEXEC, NONBLOCK = 0o2000000, 0o4000
HEADER = struct.Struct("iIII")

Heard = Callable[[str], None]
"""Told the name of what changed in a directory; an empty one where the directory itself went, or where something may have been missed."""


class Notifier:
    """Watches directories for whoever asks. Made in a running event loop.

    :raises OSError: if the system has no more of these.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = self._libc.inotify_init1(CLOEXEC | NONBLOCK)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._heard: dict[int, dict[object, Heard]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._read)

    @staticmethod
    def works() -> bool:
        return sys.platform == "linux"

    def add(self, directory: str, heard: Heard) -> Callable[[], None]:
        """Watch a directory until the returned function is called.

        :raises OSError: if it is none, cannot be read, or the system watches too many already.
        """
        number: int = self._libc.inotify_add_watch(self._descriptor, os.fsencode(directory), MASK)
        if number < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), directory)
        key = object()
        self._heard.setdefault(number, {})[key] = heard

        def remove() -> None:
            listeners = self._heard.get(number)
            if listeners is None or listeners.pop(key, None) is None or listeners:
                return
            del self._heard[number]
            if self._descriptor >= 0:
                self._libc.inotify_rm_watch(self._descriptor, number)

        return remove

    @property
    def count(self) -> int:
        """How many directories are watched."""
        return len(self._heard)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, 1 << 16)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return
            raise
        place = 0
        while place < len(data):
            number, mask, _, length = HEADER.unpack_from(data, place)
            place += HEADER.size
            name = os.fsdecode(data[place : place + length].split(b"\0", 1)[0])
            place += length
            if mask & OVERFLOW:
                for listeners in tuple(self._heard.values()):
                    for heard in tuple(listeners.values()):
                        heard("")
                continue
            listeners = self._heard.get(number, {})
            if mask & IGNORED:
                self._heard.pop(number, None)
            for heard in tuple(listeners.values()):
                try:
                    heard("" if mask & (IGNORED | MOVED) else name)
                except Exception:  # recorded: one who is told keeps no other from it
                    log.exception("a change of %r was not heard", name)

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
