"""Files by the SHA-256 of their bytes, durable before anything names them."""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from hames.content.errors import DamagedError, NotFoundError, StorageError
from hames.store.database import NO_SPACE, full


class Blobs:
    """A directory of immutable files.

    :param root: created when the first blob is written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        return self.root / digest[:2] / digest

    def put(self, data: bytes) -> str:
        """Store bytes and return their digest; on disk, with its directory entry, when this returns.

        :raises StorageFullError: if there is no space.
        """
        digest = sha256(data).hexdigest()
        target = self.path(digest)
        if target.exists():
            return digest
        temporary = target.with_name(f".{digest}.{os.getpid()}")
        try:
            make_directory(target.parent)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            if error.errno in NO_SPACE:
                raise full(target) from error
            said = os.strerror(error.errno or 0)
            raise StorageError(
                f"{target} cannot be written: {said}", remedy="check that the directory exists and can be written"
            ) from error
        sync_directory(target.parent)
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes.

        :raises NotFoundError: if there is no such blob.
        :raises DamagedError: if the bytes are not what the digest says.
        """
        try:
            data = self.path(digest).read_bytes()
        except FileNotFoundError:
            raise NotFoundError(f"there is no blob {digest}", code="BLOB_UNKNOWN") from None
        except OSError as error:
            raise DamagedError(f"blob {digest} cannot be read: {os.strerror(error.errno or 0)}", remedy="run 'hames doctor'") from None
        if sha256(data).hexdigest() != digest:
            raise DamagedError(f"blob {digest} is damaged", remedy="run 'hames doctor'")
        return data


def make_directory(path: Path) -> None:
    """Make a directory and those above it that are missing, each durable."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
