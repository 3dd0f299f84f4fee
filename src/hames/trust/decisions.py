"""Decisions about directories: what somebody has granted, kept in a file each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from hames.compose import Composition
from hames.content.clock import Clock
from hames.content.errors import ConfigError
from hames.content.records import read_record, write_record
from hames.content.visible import visible
from hames.kernel import Key
from hames.trust.executes import digest, executes

Standing = Literal["granted", "changed", "refused", "undecided"]


@dataclass(frozen=True, slots=True)
class Status:
    """How a directory stands.

    :param standing: ``changed`` was granted, and executes something else now; ``refused`` shall not be asked about.
    :param directory: canonical.
    :param executes: what it would execute now, a line each.
    :param before: what was granted.
    """

    standing: Standing
    directory: Path
    executes: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


class Trust:
    """Which directories may make Hames execute something.

    :param root: where decisions are kept.
    :param default: what holds for a directory that nobody has decided about: ``ask`` and ``never`` do not trust it, ``always`` does.
    :param below: the composition that directories change, where none is named.
    """

    def __init__(
        self,
        root: Path,
        default: Literal["ask", "always", "never"] = "ask",
        clock: Clock | None = None,
        below: Composition | None = None,
    ) -> None:
        self._root = root
        self.default = default
        self._clock = clock or Clock()
        self._below = below

    def _file(self, directory: Path) -> Path:
        return self._root / f"{sha256(os.fsencode(directory)).hexdigest()[:32]}.json"

    def status(self, directory: Path, below: Composition | None = None) -> Status:
        """How a directory stands now.

        :raises ConfigError: if what it would execute cannot be told; it is not trusted then.
        """
        directory = canonical(directory)
        lines = executes(directory, below or self._below)
        if self.default == "always":
            return Status("granted", directory, tuple(lines), tuple(lines))
        record = read_record(self._file(directory))
        if record is None or record.get("path") != str(directory) or self.default == "never":
            return Status("undecided", directory, tuple(lines))
        if record.get("granted") is not True:
            return Status("refused", directory, tuple(lines))
        kept = record.get("executes")
        before = tuple(str(line) for line in kept) if isinstance(kept, list) else ()  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        standing = "granted" if record.get("digest") == digest(lines) == digest(list(before)) else "changed"
        return Status(standing, directory, tuple(lines), before)

    def inclined(self, directory: Path) -> bool:
        """Whether somebody trusts a directory, whatever it would execute now; for saying what is wrong with it, never for executing."""
        directory = canonical(directory)
        if self.default != "ask":
            return self.default == "always"
        record = read_record(self._file(directory))
        return record is not None and record.get("path") == str(directory) and record.get("granted") is True

    def decide(self, status: Status, granted: bool) -> None:
        """Keep a decision about what was looked at, and nothing that came after.

        :raises StorageError: if it cannot be kept.
        """
        lines = list(status.executes) if granted else []
        record = {"path": str(status.directory), "granted": granted, "digest": digest(lines), "executes": lines, "time": self._clock.now()}
        write_record(self._file(status.directory), record)

    def revoke(self, directory: Path) -> bool:
        """Forget what was decided about a directory, there or not; whether there was something."""
        path = self._file(canonical(directory))
        found = path.exists()
        path.unlink(missing_ok=True)
        return found

    def all(self) -> list[tuple[Path, bool]]:
        """Every directory that somebody has decided about, and whether it was granted."""
        if not self._root.is_dir():
            return []
        records = (read_record(path) for path in sorted(self._root.glob("*.json")))
        return sorted((Path(str(record["path"])), record.get("granted") is True) for record in records if record and "path" in record)


def canonical(directory: Path) -> Path:
    """
    :raises ConfigError: if its links lead in a circle, or its name is none.
    """
    try:
        return directory.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{visible(str(directory))} is no directory: {error}", remedy="name an existing one") from None


TRUST: Key[Trust] = Key("trust")
