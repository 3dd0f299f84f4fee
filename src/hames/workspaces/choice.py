"""Which presets there are for a directory, and which of them the user has chosen there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hames.compose.layers import home
from hames.compose.rows import ID
from hames.content.errors import NotFoundError
from hames.content.paths import SHIPPED
from hames.content.records import read_record, write_record
from hames.trust.executes import PRESETS

LONGEST = 64  # characters of a name
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
    known = sorted({path.stem for place in places for path in place.glob("*.yaml")})
    remedy = f"there are {', '.join(known) or 'none'}; {NONE!r} stands for no preset"
    raise NotFoundError(f"there is no preset {name[:80]!r}", remedy=remedy, code="PRESET_UNKNOWN")


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
    path = home(environment) / CHOSEN
    record = dict(read_record(path) or {})
    key = EVERYWHERE if directory is None else str(directory)
    record.pop(key, None)
    write_record(path, {**record, **({key: name} if name else {})})
    return path
