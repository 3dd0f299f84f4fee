"""Watching the files of one workspace: directories by notice, the files themselves by a slow look, which finds what no notice told."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from hames.workspaces.notify import Notifier


class Watcher(Protocol):
    """What a controller watches through."""

    def start(self, changed: Callable[[], None]) -> None:
        """Begin; what changes from here on is told.

        :raises OSError: if it cannot be watched.
        """
        ...

    def close(self) -> None: ...


Signature = tuple[int, int, int, int] | None


def signature(path: str) -> Signature:
    """What a file looks like from outside; None where there is no regular one."""
    try:
        status = os.stat(path)  # noqa: PTH116 - often, and for many
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):  # the sandbox holds names that are not there with something else
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns)


class Watch:
    """The files of a workspace.

    :param anchor: the canonical directory of the workspace, which is always there.
    :param files: what to watch at first; its other files are told with :meth:`watch`.
    """

    def __init__(self, notifier: Notifier | None, anchor: Path, files: Iterable[Path]) -> None:
        self._notifier = notifier
        self._anchor = str(anchor)
        self._files = {str(path) for path in files}
        self._seen: dict[str, Signature] = {}
        self._removes: dict[str, Callable[[], None]] = {}
        self._names: dict[str, set[str]] = {}
        self._changed: Callable[[], None] | None = None

    def start(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._arm(strict=True)
        self._seen = {path: signature(path) for path in self._files}

    def watch(self, files: Iterable[Path]) -> None:
        """Watch these files from now on, and no others."""
        found = {str(path) for path in files}
        if found != self._files:
            self._files = found
            self._seen = {path: self._seen[path] if path in self._seen else signature(path) for path in found}
            self._arm()

    def _arm(self, *, strict: bool = False) -> None:
        """Watch every directory that has one of the files, and those above it in the workspace: they may be made or replaced."""
        if self._changed is None:  # it is closed
            return
        names: dict[str, set[str]] = {self._anchor: set()}
        for path in self._files:
            directory, name = os.path.split(path)
            while True:
                names.setdefault(directory, set()).add(name)
                if not directory.startswith(self._anchor.rstrip(os.sep) + os.sep) or directory == self._anchor:
                    break
                directory, name = os.path.split(directory)
        self._names = names
        if self._notifier is None:
            return
        for directory in tuple(self._removes):
            if directory not in names:
                self._removes.pop(directory)()
        for directory in names:
            if directory not in self._removes:
                try:
                    self._removes[directory] = self._notifier.add(directory, lambda name, d=directory: self._heard(d, name))
                except OSError:  # not there yet: what is above it tells when it is made, or the slow look does
                    if strict and directory == self._anchor:
                        raise

    def _heard(self, directory: str, name: str) -> None:
        if self._changed is None:
            return
        if name and name not in self._names.get(directory, ()):
            return
        place = f"{directory}{os.sep}{name}" if name else directory
        if place in self._names:  # a directory on the way has come, gone or been replaced
            for watched in tuple(self._removes):
                if watched == place or watched.startswith(place + os.sep):
                    self._removes.pop(watched)()
            self._arm()
        self.look(told=place in self._files and signature(place) is not None)

    def look(self, *, told: bool = False) -> None:
        """Look at the files themselves.

        :param told: whether there was a notice: a file that was written with what it had is a change then, too.
        """
        if self._changed is None:
            return
        found = {path: signature(path) for path in self._files}
        if found == self._seen and not told:
            return
        self._seen = found
        if not told:  # a notice is missing: something here is watched no more
            while self._removes:
                self._removes.popitem()[1]()
            self._arm()
        if self._changed is not None:
            self._changed()

    def close(self) -> None:
        self._changed = None
        for remove in self._removes.values():
            with suppress(OSError):
                remove()
        self._removes = {}
