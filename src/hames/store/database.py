"""One SQLite file with one writer thread and group commit.

``write`` is synchronous: it queues a statement and returns a ticket; awaiting the ticket is a barrier that holds when the
statement is on disk. What is queued while a commit is under way goes into the next one, so a hundred agents share one ``fsync``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import queue
import threading
import zlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from hames.content.errors import BusyError, DamagedError, FencedError, StorageError, StorageFullError

T = TypeVar("T")

#: Versions before this one can corrupt a WAL when two connections write and checkpoint at once.
OLDEST_SQLITE = (3, 51, 3)
CHECKPOINT_PAGES = 1000
NO_SPACE = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
LINGER = 0.05  # seconds that a write without a barrier may wait for company

Statement = tuple[str, Sequence[Any], bool]
Operation = Statement | Callable[[apsw.Connection], Any]


def checksum(*parts: bytes | str) -> int:
    """The CRC-32 that a record carries over its fields."""
    value = 0
    for part in parts:
        value = zlib.crc32(part.encode() if isinstance(part, str) else part, value)
    return value


class Ticket:
    """The promise that a write will be on disk. Awaiting it returns what the write returned, or raises a StorageError."""

    __slots__ = ("_database", "_future", "done", "error", "value")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._future: asyncio.Future[None] | None = None
        self.done = False
        self.error: BaseException | None = None
        self.value: Any = None

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done:
            if self._future is None:
                self._future = asyncio.get_running_loop().create_future()
            self._database.kick()
            yield from asyncio.shield(self._future).__await__()
        if self.error is not None:
            raise self.error
        return self.value

    def resolve(self) -> None:
        self.done = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Database:
    """One database file.

    Opened inside a running event loop, which every ticket belongs to.

    :param path: created with its schema if it does not exist.
    :param schema: idempotent statements; they only ever add.
    :raises StorageError: if it cannot be opened.
    :raises DamagedError: if it is not a database any more.
    """

    def __init__(self, path: Path, schema: Sequence[str]) -> None:
        self.path = path
        self.failed: BaseException | None = None
        self._pending: list[tuple[Operation, Ticket]] = []
        self._busy = False
        self._closed = False
        self._lingering: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[list[tuple[Operation, Ticket]] | None] = queue.SimpleQueue()
        try:
            self._checkpoint_lock = os.open(f"{path}.checkpoint", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise full(path) from error
            raise StorageError(f"{path}: {error.strerror}", remedy="check that the directory exists and can be written") from error
        self._wal_pages = 0
        opened: list[apsw.Connection] = []
        try:
            for _ in range(2):
                opened.append(open_connection(path))
            self._reader, self._writer = opened
            with guard(path, self._writer):
                for statement in schema:
                    self._writer.execute(statement)
            self._writer.set_wal_hook(self._wal_grew)
            self._reader.pragma("query_only", True)
        except BaseException:
            for connection in opened:
                connection.close()
            os.close(self._checkpoint_lock)
            raise
        self._thread = threading.Thread(target=self._write_loop, name=f"writer of {path.name}", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._closed

    # writing

    def write(self, sql: str, parameters: Sequence[Any] = (), *, must_change: bool = False) -> Ticket:
        """Queue one statement.

        :param must_change: fail with FencedError where it changes no row.
        :raises StorageError: if the database is closed.
        """
        return self._enqueue((sql, parameters, must_change))

    def run(self, body: Callable[[apsw.Connection], Any]) -> Ticket:
        """Queue a function that runs in the writer thread inside the transaction; the ticket returns its value.

        It may run twice: where another write of the same transaction fails, all are rolled back and each is tried alone.
        """
        return self._enqueue(body)

    def _enqueue(self, operation: Operation) -> Ticket:
        if self._closed:
            raise StorageError(f"{self.path.name} is closed")
        ticket = Ticket(self)
        self._pending.append((operation, ticket))
        if self._lingering is None and not self._busy:
            self._lingering = self._loop.call_later(LINGER, self.kick)
        return ticket

    def kick(self) -> None:
        """Hand what is queued to the writer, unless it is at work: then it follows."""
        if self._busy or not self._pending:
            return
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        batch, self._pending = self._pending, []
        self._busy = True
        self._queue.put(batch)

    def _committed(self, batch: list[tuple[Operation, Ticket]]) -> None:
        self._busy = False
        for _, ticket in batch:
            ticket.resolve()
        if self._pending:
            self.kick()
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def flush(self) -> None:
        """Wait until all that is queued is on disk or has failed."""
        while self._busy or self._pending:
            self.kick()
            if self._idle is None or self._idle.done():
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)

    # the writer thread

    def _write_loop(self) -> None:
        while (batch := self._queue.get()) is not None:
            try:
                self._commit(batch)
            except Exception:
                # One of them is at fault: let each stand alone, so that it takes no other with it.
                for item in batch:
                    try:
                        self._commit([item])
                    except Exception as error:  # whoever awaits the ticket gets it
                        item[1].error = error
            with contextlib.suppress(RuntimeError):  # the loop has gone: nobody waits any more
                self._loop.call_soon_threadsafe(self._committed, batch)
            self._checkpoint()
        self._writer.close()

    def _commit(self, batch: list[tuple[Operation, Ticket]]) -> None:
        connection = self._writer
        with guard(self.path, connection):
            connection.execute("BEGIN IMMEDIATE")
            try:
                for operation, ticket in batch:
                    if not callable(operation):
                        sql, parameters, must_change = operation
                        connection.execute(sql, parameters)
                        if must_change and connection.changes() == 0:
                            raise FencedError("another process has taken over this record", remedy="stop this one; its work goes on there")
                    else:
                        ticket.value = operation(connection)
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(apsw.Error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                raise

    def _wal_grew(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return 0

    def _checkpoint(self) -> None:
        if self._wal_pages < CHECKPOINT_PAGES:
            return
        try:
            fcntl.flock(self._checkpoint_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        try:
            with contextlib.suppress(apsw.Error):  # the next commit tries again; what is in the WAL is safe there
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self._wal_pages = 0
        finally:
            fcntl.flock(self._checkpoint_lock, fcntl.LOCK_UN)

    # reading

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a short read, as of the last commit.

        :raises DamagedError: if the file's pages are damaged.
        """
        with guard(self.path, self._reader):
            return list(self._reader.execute(sql, parameters))

    async def close(self) -> None:
        """Commit what is queued and close the file."""
        if self._closed:
            return
        self._closed = True
        try:
            await self.flush()
        finally:
            self._queue.put(None)
            await self._loop.run_in_executor(None, self._thread.join)
            self._reader.close()
            os.close(self._checkpoint_lock)


def open_connection(path: Path) -> apsw.Connection:
    """Open with the settings that every connection of Hames has."""
    version = tuple(map(int, apsw.sqlite_lib_version().split(".")))
    if version < OLDEST_SQLITE:
        raise StorageError(f"SQLite {apsw.sqlite_lib_version()} can corrupt a shared log", remedy="install apsw 3.54.1 or newer")
    connection: apsw.Connection | None = None
    with guard(path, None):
        connection = apsw.Connection(str(path))
    assert connection is not None
    try:
        with guard(path, connection):
            connection.set_busy_timeout(10_000)
            connection.pragma("journal_mode", "wal")
            connection.pragma("synchronous", "full")
            connection.pragma("wal_autocheckpoint", 0)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def guard(path: Path, connection: apsw.Connection | None) -> Generator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except apsw.Error as error:
        # The number is that of the last failed call of the system, so it speaks of this error only if this is one of the system.
        system = isinstance(error, (apsw.IOError, apsw.CantOpenError))
        if isinstance(error, apsw.FullError) or (system and connection is not None and connection.system_errno in NO_SPACE):
            raise full(path) from error
        if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
            raise DamagedError(
                f"{path} is damaged: {error}", remedy="run 'hames doctor --salvage'; it writes a new file and keeps this one"
            ) from error
        if isinstance(error, apsw.BusyError):
            raise BusyError(
                f"{path.name} was locked for 10 s by another process", remedy="look for a stuck process with 'hames doctor'"
            ) from error
        raise StorageError(f"{path}: {error}", remedy="check that the directory exists and can be written") from error
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path} is damaged: a text in it is no UTF-8", remedy="run 'hames doctor --salvage'") from error


def full(path: Path) -> StorageFullError:
    """The one error for a full disk, a quota and a file size limit."""
    return StorageFullError(f"no space to write {path}", remedy="free some space, then resume; nothing that was confirmed is lost")
