"""The service that confines: it says what is enforced, judges paths, opens files and wraps commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace as replaced
from pathlib import Path
from typing import Protocol

from hames.content.jsontext import dumps
from hames.kernel import Key
from hames.sandbox import files
from hames.sandbox.hold import held
from hames.sandbox.port import Command, Confinement, Enforcement, Refused, View
from hames.sandbox.protect import Rules, view


class Means(Protocol):
    """A way to confine processes."""

    enforcement: Enforcement
    #: whether it mounts: over protected names that are not there too, with a temporary directory and two processes of its own
    mounts: bool

    def works(self) -> bool: ...

    def wrapped(self, argv: Sequence[str], view: View, cwd: Path, scratch: Path | None) -> AbstractContextManager[Command]: ...


class Landlock:
    """Runs commands through the program in :mod:`hames.sandbox.landlock`."""

    mounts = False

    def __init__(self) -> None:
        from hames.sandbox import landlock

        self._module = landlock
        gaps = ["modes and times of files outside the workspace can be changed in workspace-write"]
        if landlock.version() < 6:
            gaps.append("processes outside can be sent signals, and spoken to through abstract sockets")
        self.enforcement = Enforcement("landlock", "partial", tuple(gaps))

    def works(self) -> bool:
        return self._module.version() >= 3  # versions before do not see truncate(2)

    @contextmanager
    def wrapped(self, argv: Sequence[str], view: View, cwd: Path, scratch: Path | None) -> Generator[Command]:
        from hames.sandbox import seccomp

        places = [(str(path), place) for path, place in view.ordered]
        modes = any(place == "write" for path, place in view.places.items() if path != scratch)
        code = seccomp.program(seccomp.landlock(network=view.network, modes=modes))
        settings = dumps({"places": places, "filter": code.hex()})
        yield Command([sys.executable, "-I", "-S", str(Path(str(self._module.__file__))), settings, *argv], 1)


class Unconfined:
    """No means at all."""

    enforcement = Enforcement("none", "none", ("commands can do whatever the user can",))
    mounts = False

    def works(self) -> bool:
        return True

    @contextmanager
    def wrapped(self, argv: Sequence[str], view: View, cwd: Path, scratch: Path | None) -> Generator[Command]:
        yield Command(list(argv))


def candidates(named: str, unix_sockets: bool = False) -> Iterator[Means]:
    """The means to try, the best first."""
    if named in ("auto", "bubblewrap") and sys.platform.startswith("linux"):
        from hames.sandbox.bubblewrap import Bubblewrap, find

        if program := find():
            yield Bubblewrap(program, unix_sockets=unix_sockets)
    if named in ("auto", "landlock") and sys.platform.startswith("linux"):
        yield Landlock()
    if named in ("auto", "seatbelt") and sys.platform == "darwin":
        from hames.sandbox.seatbelt import Seatbelt

        yield Seatbelt()


TEMPORARY = Path("/tmp")


class Sandbox:
    """Confines what tools do.

    :param means: ``auto`` for the best that works here, or the name of one; ``none`` for none.
    :param root: a directory for its own records.
    :param rules: gives what holds for every call, when it is asked.
    :param unix_sockets: whether commands may make Unix sockets.
    """

    def __init__(self, means: str, root: Path, rules: Callable[[], Rules], *, unix_sockets: bool = False) -> None:
        self._named = means
        self._unix_sockets = unix_sockets
        self._root = root
        self._rules = rules
        self._means: Means | None = None

    @property
    def means(self) -> Means:
        """What is used here: tried once, when first needed."""
        if self._means is None:
            self._means = next((each for each in candidates(self._named, self._unix_sockets) if each.works()), Unconfined())
        return self._means

    @property
    def enforcement(self) -> Enforcement:
        return self.means.enforcement

    def view(self, confinement: Confinement) -> View:
        return view(confinement, self._rules())

    def outside(self, path: Path, confinement: Confinement) -> bool:
        """Whether a canonical path lies outside of what may be written, without being protected."""
        seen = self.view(confinement)
        return not any(path.is_relative_to(root) for root in seen.roots) and seen.deciding(path) not in seen.why

    def check_write(self, path: Path, confinement: Confinement) -> None:
        """
        :raises Refused: if the canonical path may not be written.
        """
        files.check_write(path, self.view(confinement), self._rules().names)

    def check_read(self, path: Path, confinement: Confinement) -> None:
        """
        :raises Refused: if the canonical path may not be read.
        """
        files.check_read(path, self.view(confinement))

    def open(self, path: Path, confinement: Confinement) -> int:
        """A descriptor for reading, see :func:`hames.sandbox.files.open_read`."""
        return files.open_read(path, self.view(confinement))

    def replace(self, path: Path, data: bytes, confinement: Confinement) -> None:
        """Write a file, see :func:`hames.sandbox.files.replace`."""
        files.replace(path, data, self.view(confinement), self._rules().names)

    def located(self, path: Path, confinement: Confinement, *, write: bool) -> Path:
        """Where a path is that commands know: their temporary directory is another one than ours.

        :param write: whether it is to be written; what is read and is not there is looked for in ours.
        """
        scratch = confinement.scratch
        path = Path(os.path.normpath(path))
        if scratch is None or confinement.access == "full" or not path.is_relative_to(TEMPORARY) or not self.means.mounts:
            return path
        try:
            real = path.resolve()
        except (OSError, RuntimeError):
            return path
        if not real.is_relative_to(TEMPORARY) or self.view(confinement).deciding(real) != Path("/"):
            return path
        inside = scratch / path.relative_to(TEMPORARY)
        return inside if write or os.path.lexists(inside) else path

    @contextmanager
    def command(self, argv: Sequence[str], confinement: Confinement, cwd: Path) -> Generator[Command]:
        """The command line that runs ``argv`` confined, good for as long as this lasts.

        :raises Refused: if nothing can be written and nothing here enforces that.
        """
        if confinement.access == "full":
            yield Command(list(argv))
            return
        means = self.means
        if confinement.access == "read-only" and means.enforcement.level == "none":
            raise Refused("commands are not run in mode read-only where nothing confines them; install bubblewrap (see 'hames doctor')")
        scratch = confinement.scratch
        if scratch is not None:
            scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
            scratch = scratch.resolve()
            confinement = replaced(confinement, scratch=scratch)
        seen = self.view(confinement)
        with (
            held(seen, self._root, mounts=means.mounts) as trespasses,
            means.wrapped(argv, seen, Path(os.path.realpath(cwd)), scratch) as command,
        ):
            yield command
        command.trespasses += trespasses


SANDBOX: Key[Sandbox] = Key("sandbox")
