"""What ``hames doctor`` asks of a state directory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hames.content.errors import BusyError, NotFoundError, StorageError
from hames.store.blobs import sync_directory
from hames.store.database import guard, open_connection
from hames.store.owners import is_alive
from hames.store.salvage import unsound


def damage(path: Path, session_name: Callable[[int], str] = str) -> list[str]:
    """What is wrong with a database file, in words; nothing where it is sound.

    :param session_name: how people call a session of this number.

    :raises StorageError: if it cannot be opened for another reason than damage.
    """
    try:
        connection = open_connection(path)
    except StorageError as error:
        return [error.message]
    try:
        with guard(path, connection):
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
        if not found and path.name == "sessions.db":
            counts = Counter(unsound(path))
            found = [f"session {session_name(sid)}: {n} of its {table} do not match their checksum" for (table, sid), n in counts.items()]
        return found
    except StorageError as error:
        return [error.message]
    finally:
        connection.close()


def living(state: Path) -> list[str]:
    """The owners that are alive."""
    directory = state / "owners"
    return [path.name for path in sorted(directory.glob("[!.]*")) if is_alive(directory, path.name)] if directory.is_dir() else []


def salvage_state(state: Path) -> tuple[Path, dict[str, dict[str, int]]]:
    """Put a salvaged ``sessions.db`` in the place of the damaged one, which is kept.

    :returns: where the damaged one is now, and what was kept of each table.
    :raises BusyError: if a process still works with it.
    :raises StorageError: if nothing can be read of it.
    """
    alive = living(state)
    if alive:
        raise BusyError(
            f"{len(alive)} process still works with {state}", remedy="end it first: its process id is in the name of its owner file"
        )
    source, target = state / "sessions.db", state / "sessions.db.salvaged"
    if not source.exists():
        raise NotFoundError(f"there is no {source}", remedy="name the state directory with --state-dir", code="STATE_UNKNOWN")
    leftovers = (target, *(target.with_name(target.name + end) for end in ("-wal", "-shm")))
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "hames.store.salvage", str(source), str(target)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
        why = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the child process failed"
        raise StorageError(f"nothing could be salvaged of {source}: {why}", remedy="keep the file; start with another state directory")
    number = 1
    while (kept := state / f"sessions.db.damaged-{number}").exists():
        number += 1
    source.rename(kept)
    for end in ("-wal", "-shm"):
        part = source.with_name(source.name + end)
        if part.exists():
            part.rename(kept.with_name(kept.name + end))
    target.rename(source)
    sync_directory(state)
    return kept, json.loads(done.stdout)
