"""What processes say of their live workspaces to each other: a small file each, and requests in files of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from hames.content.errors import StorageError
from hames.content.jsontext import as_object
from hames.content.records import read_record, write_record
from hames.workspaces.info import WorkspaceInfo


class Live:
    """The files below the state directory.

    :param root: the directory for them.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        from hames.supervise.processes import look

        seen = look(os.getpid())
        self._own = f"{os.getpid()}-{seen.started if seen is not None else 0}"
        self._answered: dict[str, str] = {}
        self._taken: dict[str, str] = {}

    @property
    def requests(self) -> Path:
        return self._root / "requests"

    def _file(self, directory: str) -> Path:
        return self._root / f"{name(directory)}.{self._own}.json"

    def tell(self, info: WorkspaceInfo) -> None:
        """Say how a workspace of this process is. That others cannot see it harms nothing here."""
        with suppress(StorageError):
            record = {**asdict(info), "process": self._own, "answered": self._answered.get(info.directory, "")}
            write_record(self._file(info.directory), record, durable=False)

    def forget(self, directory: str) -> None:
        with suppress(OSError):
            self._file(directory).unlink(missing_ok=True)

    def requested(self, directory: str) -> Mapping[str, Any] | None:
        """A request about a workspace that has not been answered yet; it is given out once."""
        record = read_record(self.requests / f"{name(directory)}.json")
        if record is None or record.get("directory") != directory or not isinstance(record.get("id"), str):
            return None
        if self._taken.get(directory) == record["id"]:
            return None
        self._taken[directory] = record["id"]
        return record

    def answer(self, directory: str) -> None:
        """What was asked for has been done; the next :meth:`tell` says so."""
        self._answered[directory] = self._taken.get(directory, "")

    def prepare(self) -> bool:
        """Make the directory of requests; whether it is there."""
        try:
            self.requests.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            return False
        return True

    def withdraw(self, directory: str) -> None:
        """Take a request back."""
        with suppress(OSError):
            (self.requests / f"{name(directory)}.json").unlink(missing_ok=True)

    def seen(self, directory: str) -> None:
        """What was asked for before this process worked there is not for it."""
        self.requested(directory)

    def request(self, directory: str, *, all: bool) -> str:
        """Ask every process that works in a directory to read it again; the name of the request.

        :raises StorageError: if it cannot be written.
        """
        import secrets

        token = secrets.token_hex(8)
        write_record(self.requests / f"{name(directory)}.json", {"directory": directory, "id": token, "all": all})
        return token

    def all(self) -> list[dict[str, Any]]:
        """What living processes say. Files of dead ones are removed."""
        from hames.supervise.processes import look

        found: list[dict[str, Any]] = []
        for path in sorted(self._root.glob("*.json")):
            record = read_record(path)
            pid, _, started = str((record or {}).get("process", "")).partition("-")
            seen = look(int(pid)) if pid.isdigit() else None
            if record is not None and seen is not None and str(seen.started) == started:
                found.append(as_object(record))
            else:
                path.unlink(missing_ok=True)
        return found


def name(directory: str) -> str:
    return sha256(os.fsencode(directory)).hexdigest()[:16]
