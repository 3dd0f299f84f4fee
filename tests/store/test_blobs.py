"""Files by their digest."""

import errno
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from hames.content.errors import DamagedError, NotFoundError, StorageFullError
from hames.store import Blobs


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 4096], ids=["empty", "byte", "megabyte"])
def test_what_is_put_is_got(blobs: Blobs, data: bytes) -> None:
    digest = blobs.put(data)
    assert digest == sha256(data).hexdigest()
    assert blobs.get(digest) == data
    assert blobs.path(digest).read_bytes() == data


def test_nothing_is_made_before_the_first_blob(blobs: Blobs) -> None:
    with pytest.raises(NotFoundError):
        blobs.get("0" * 64)
    assert not blobs.root.exists()


def test_the_same_bytes_are_one_file(blobs: Blobs) -> None:
    first = blobs.put(b"the same")
    inode = blobs.path(first).stat().st_ino
    assert blobs.put(b"the same") == first
    assert blobs.path(first).stat().st_ino == inode
    assert files(blobs.root) == [f"{first[:2]}/{first}"]


def test_an_unknown_blob_is_not_found(blobs: Blobs) -> None:
    blobs.put(b"another")
    with pytest.raises(NotFoundError) as caught:
        blobs.get(sha256(b"never put").hexdigest())
    assert caught.value.code == "BLOB_UNKNOWN"


@pytest.mark.parametrize("damaged", [b"", b"some byteZ", b"some bytes and more"])
def test_a_damaged_blob_is_reported_not_returned(blobs: Blobs, damaged: bytes) -> None:
    digest = blobs.put(b"some bytes")
    blobs.path(digest).write_bytes(damaged)
    with pytest.raises(DamagedError) as caught:
        blobs.get(digest)
    assert caught.value.code == "STORAGE_DAMAGED"
    assert digest in caught.value.message
    assert caught.value.remedy


def test_bytes_and_every_new_directory_are_synced_before_put_returns(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    blobs.root.parent.mkdir(exist_ok=True)
    digest = blobs.put(b"some bytes")
    target = blobs.path(digest)
    assert any(path.startswith(f"{target.parent}/") for path in synced)
    # A name is durable when the directory that holds it is synced: that of the file, of its directory, and of the root.
    assert set(synced) >= {str(target.parent), str(blobs.root), str(blobs.root.parent)}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
def test_no_space_is_a_full_store_and_leaves_nothing(blobs: Blobs, children: Any, number: int) -> None:
    # The limit of a file's size stands for all three where the kernel is asked; see NO_SPACE for the numbers.
    program = """
        import errno, os, resource, sys
        from pathlib import Path
        from hames.content.errors import StorageFullError
        from hames.store import Blobs
        from hames.store import blobs as module

        number, blobs = int(sys.argv[1]), Blobs(Path(sys.argv[2]))
        if number == errno.EFBIG:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        else:
            def fail(descriptor):
                raise OSError(number, os.strerror(number))
            os.fsync, sync = fail, os.fsync
        try:
            blobs.put(bytes(100_000))
        except StorageFullError as error:
            print(error.code, bool(error.remedy))
        if number == errno.EFBIG:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else:
            os.fsync = sync
        print(len(list(p for p in blobs.root.rglob("*") if p.is_file())))
        print(len(blobs.get(blobs.put(bytes(100_000)))))
    """
    assert children.run(program, number, blobs.root).splitlines() == ["STORAGE_FULL True", "0", "100000"]


def test_no_space_for_the_directory_is_a_full_store_too(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, *arguments: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(StorageFullError):
        blobs.put(b"some bytes")
