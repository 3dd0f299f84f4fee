"""Which presets there are for a directory, and which of them the user has chosen there."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hames.compose.layers import home
from hames.compose.rows import ID
from hames.content.errors import NotFoundError, StorageError
from hames.content.paths import SHIPPED
from hames.content.records import read_record, write_record
from hames.trust.executes import PRESETS

LONGEST = 64  # characters of a name
PRESET = "preset"
"""Under this name a session keeps it."""
NONE = "none"
"""Said instead of a name: no preset."""
CHOSEN = "default-presets.json"
EVERYWHERE = "*"


def places(directory: Path, environment: Mapping[str, str], *, trusted: bool) -> list[Path]:
    """The directories that have presets, the one that counts most first: the workspace's own, the user's, those that Hames comes with."""
    return [*([directory / PRESETS] if trusted else []), home(environment) / "presets", SHIPPED / "presets"]


def preset_file(name: str, places: Sequence[Path]) -> Path:
    """The file of a preset.

    :raises NotFoundError: if there is none of that name.
    """
    if ID.fullmatch(name) and len(name) <= LONGEST:
        for place in places:
            if (path := place / f"{name}.yaml").is_file():
                return path
    known = sorted(listed(places))
    remedy = f"there are {', '.join(known) or 'none'}; {NONE!r} stands for no preset"
    raise NotFoundError(f"there is no preset {name[:80]!r}", remedy=remedy, code="PRESET_UNKNOWN")


def is_name(name: str) -> bool:
    """Whether a preset may have this name."""
    return bool(ID.fullmatch(name)) and len(name) <= LONGEST and name != NONE


def listed(places: Sequence[Path]) -> dict[str, list[Path]]:
    """The files of each preset, the one that counts first."""
    every: dict[str, list[Path]] = {}
    for place in places:
        for path in sorted(place.glob("*.yaml")):
            if is_name(path.stem) and path.is_file():
                every.setdefault(path.stem, []).append(path)
    return dict(sorted(every.items()))


def chosen(directory: Path, environment: Mapping[str, str]) -> str:
    """The preset that the user has chosen for a directory; empty for none."""
    record = read_record(home(environment) / CHOSEN) or {}
    name = record.get(str(directory), record.get(EVERYWHERE, ""))
    return name if isinstance(name, str) and name != NONE else ""


def choose(directory: Path | None, name: str, environment: Mapping[str, str]) -> Path:
    """Choose a preset for a directory, or for all that have none of their own; the file that says so.

    :param directory: canonical; None for all.
    :param name: ``none`` for no preset; empty to take the choice back.
    :raises StorageError: if it cannot be written.
    """
    key = EVERYWHERE if directory is None else str(directory)
    with alone(environment) as (path, record):
        record.pop(key, None)
        write_record(path, {**record, **({key: name} if name else {})})
    return path


def forget(name: str, environment: Mapping[str, str]) -> list[str]:
    """Take back the choice of a preset wherever there is none of that name any more; for which directories that was.

    :raises StorageError: if it cannot be written.
    """
    with alone(environment) as (path, record):
        gone = [key for key, value in record.items() if value == name and not is_there(key, name)]
        if gone:
            write_record(path, {key: value for key, value in record.items() if key not in gone})
    return gone


def is_there(directory: str, name: str) -> bool:
    """Whether a directory has a preset of its own of a name."""
    return directory != EVERYWHERE and (Path(directory) / PRESETS / f"{name}.yaml").is_file()


@contextmanager
def alone(environment: Mapping[str, str]) -> Generator[tuple[Path, dict[str, Any]]]:
    """The file of choices and what it says; nobody else changes it meanwhile.

    :raises StorageError: if there is no room for it.
    """
    path = home(environment) / CHOSEN
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {os.strerror(error.errno or 0)}", remedy="see 'hames doctor'") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield path, dict(read_record(path) or {})
    finally:
        os.close(descriptor)
