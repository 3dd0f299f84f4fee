"""What a confined call may reach, and how firmly it is held to that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Access = Literal["read-only", "workspace-write", "full"]

Place = Literal["read", "write", "hidden"]

Level = Literal["enforced", "partial", "none"]


@dataclass(frozen=True, slots=True)
class Confinement:
    """What one call may reach.

    :param access: ``read-only`` writes nothing but its scratch directory, ``workspace-write`` also writes the workspace, ``full`` is
        not confined.
    :param workspace: the absolute directory that the agent works in.
    :param scratch: a directory for temporary files that is writable in every mode; None for none.
    :param network: whether it may speak to others.
    :param also: more paths that it may write, allowed by somebody for this call.
    """

    access: Access = "full"
    workspace: Path = Path("/")
    scratch: Path | None = None
    network: bool = True
    also: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Enforcement:
    """How processes are confined on this machine.

    :param means: ``bubblewrap``, ``landlock``, ``seatbelt``, or ``none``.
    :param level: ``enforced`` holds all that a confinement says, ``partial`` what is written and not all else, ``none`` nothing.
    :param gaps: what is not held, in words.
    """

    means: str = "none"
    level: Level = "none"
    gaps: tuple[str, ...] = ()


@dataclass(slots=True)
class Command:
    """A command line that runs something confined.

    :ivar watchers: how many processes at the beginning only watch over the others, each the parent of the next.
    :ivar pass_fds: descriptors that it needs.
    :ivar trespasses: filled in when it has ended: what it did to protected names that could not be held.
    """

    argv: list[str]
    watchers: int = 0
    pass_fds: tuple[int, ...] = ()
    trespasses: list[str] = field(default_factory=list[str])


class Refused(Exception):
    """A path that may not be read or written; the message says why and what to do instead."""


@dataclass(frozen=True, slots=True)
class View:
    """The file system as one confinement has it: the deepest place above a path decides.

    :param places: canonical paths; the root is always among them.
    :param roots: where file tools may write: the workspace and what was added to it, not the Git directory.
    :param empty: files that are not there and are held empty while a command runs.
    :param absent: names that are not there and are put aside where a command makes them.
    :param why: for paths that are protected or hidden, the reason in words.
    """

    places: Mapping[Path, Place]
    network: bool = False
    roots: tuple[Path, ...] = ()
    empty: tuple[Path, ...] = ()
    absent: tuple[Path, ...] = ()
    why: Mapping[Path, str] = field(default_factory=dict[Path, str])

    def deciding(self, path: Path) -> Path:
        """The place that decides about a canonical path."""
        for each in (path, *path.parents):
            if each in self.places:
                return each
        return Path("/")

    def place(self, path: Path) -> Place:
        return self.places.get(self.deciding(path), "read")

    @property
    def ordered(self) -> list[tuple[Path, Place]]:
        """All places, each after those above it."""
        return sorted(self.places.items(), key=lambda item: (len(item[0].parts), item[0]))
