"""Small records in files of their own: whole or not there at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hames.content.errors import StorageError
from hames.content.jsontext import as_object, parse_object


def write_record(path: Path, record: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write a record, readable by its owner alone.

    :param durable: whether it outlasts a crash of the machine when this returns.

    :raises StorageError: if it cannot be written; what was there is as it was.
    """
    data = json.dumps(dict(record)).encode() + b"\n"  # escapes what is no Unicode: names of files may hold that
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
        if not durable:
            return
        directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise StorageError(f"{path} cannot be written: {os.strerror(error.errno or 0)}", remedy="see 'hames doctor'") from error


def read_record(path: Path) -> dict[str, Any] | None:
    """A record, or None where there is none or it is none."""
    try:
        return as_object(parse_object(path.read_text()))
    except (OSError, ValueError):
        return None
