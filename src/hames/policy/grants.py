"""What people have allowed for longer than once: for a session in memory, always in a file each."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from hames.content.errors import StorageError
from hames.content.jsontext import as_object
from hames.content.records import read_record, write_record
from hames.policy.port import ToolRequest
from hames.policy.rules import fits


@dataclass(frozen=True, slots=True)
class Grant:
    """Something that is allowed always.

    :param workspace: the canonical directory that it holds in.
    :param when: a pattern for each argument, all of them.
    """

    id: str
    workspace: str
    tool: str
    when: Mapping[str, str]

    def matches(self, request: ToolRequest) -> bool:
        return self.tool == request.name and fits(self.when, request)


class Grants:
    """The lasting grants of a state directory, one file each."""

    def __init__(self, root: Path | None) -> None:
        self._root = root

    def directory(self, workspace: str) -> Path | None:
        if self._root is None:
            return None
        return self._root / sha256(os.fsencode(os.path.realpath(workspace))).hexdigest()[:32]

    def of(self, workspace: str) -> list[Grant]:
        """What is allowed in a workspace. A file that cannot be read, or is about another one, allows nothing."""
        directory = self.directory(workspace)
        real = os.path.realpath(workspace)
        return [] if directory is None else [grant for grant in read_all(directory) if grant.workspace == real]

    def all(self) -> list[Grant]:
        if self._root is None or not self._root.is_dir():
            return []
        return [grant for directory in sorted(self._root.iterdir()) for grant in read_all(directory)]

    def add(self, workspace: str, tool: str, when: Mapping[str, str]) -> Grant:
        """Keep a grant.

        :raises StorageError: if it cannot be kept.
        """
        directory = self.directory(workspace)
        if directory is None:
            raise StorageError("there is no state directory to keep a grant in", remedy="name one with --state-dir")
        grant = Grant(secrets.token_hex(4), os.path.realpath(workspace), tool, dict(when))
        write_record(directory / f"{grant.id}.json", {"workspace": grant.workspace, "tool": tool, "when": dict(when)})
        return grant

    def remove(self, id: str) -> bool:
        """Take a grant back; whether there was one."""
        if self._root is None or not id.isalnum():
            return False
        found = list(self._root.glob(f"*/{id}.json"))
        for path in found:
            path.unlink(missing_ok=True)
        return bool(found)


def read_all(directory: Path) -> list[Grant]:
    paths = sorted(path for path in directory.glob("*.json") if path.stem.isalnum())
    return [grant for path in paths if (grant := read(path)) is not None]


def read(path: Path) -> Grant | None:
    record = read_record(path)
    if record is None:
        return None
    workspace, tool, when = record.get("workspace"), record.get("tool"), as_object(record.get("when"))
    if not isinstance(workspace, str) or not isinstance(tool, str) or not all(isinstance(each, str) for each in when.values()):
        return None
    return Grant(path.stem, workspace, tool, when)
