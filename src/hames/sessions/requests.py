"""Requests as records: what was sent is rebuilt from bytes, without the code that encoded it.

A record says how many groups it keeps of the request before, which fragments it appends, and which head, tail and marker it has.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

import apsw

from hames.content.errors import DamagedError, FencedError, NotFoundError, StorageError
from hames.content.request import EncodedRequest, Fragment
from hames.store import Store, Ticket, checksum

RAW, ZLIB, BLOB = 0, 1, 2
COMPRESS_FROM = 512  # bytes; below it zlib gains nothing
BLOB_FROM = 64 * 1024  # bytes
COLUMNS = "n, seq, kept, first, count, head, tail, separator, marker, marked, adapter, reason, sha256"

PLACE = """SELECT (SELECT COALESCE(MAX(seq) + 1, 0) FROM events WHERE sid = ?),
    (SELECT COALESCE(MAX(n) + 1, 0) FROM requests WHERE sid = ?)"""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One stored request.

    :param n: its place among the requests of its session, from 0.
    :param seq: the event that followed it.
    :param reason: why it does not extend the one before; empty where it does.
    :param sha256: of the body, 32 bytes.
    """

    n: int
    seq: int
    kept: int
    first: int
    count: int
    head: int
    tail: int
    separator: bytes
    marker: bytes
    marked: int
    adapter: str
    reason: str
    sha256: bytes

    def checksum(self, sid: int) -> int:
        numbers = (sid, self.n, self.seq, self.kept, self.first, self.count, self.head, self.tail, self.marked)
        return checksum("|".join(map(str, numbers)), self.adapter, self.reason, self.separator, self.marker, self.sha256)


class RequestLog:
    """Writes the requests of one session, only what is new of each."""

    __slots__ = ("_epoch", "_fragments", "_head", "_n", "_recorded", "_sid", "_store", "_tail")

    def __init__(self, store: Store, sid: int, epoch: int) -> None:
        self._store = store
        self._sid = sid
        self._epoch = epoch
        self._n = 0
        self._recorded = False
        self._fragments = 0
        self._head: tuple[int, bytes] | None = None
        self._tail: tuple[int, bytes] | None = None

    def load(self) -> None:
        """Continue after what is stored. The first request after this keeps nothing of those before."""
        query = self._store.sessions.query
        ((self._n,),) = query("SELECT COALESCE(MAX(n) + 1, 0) FROM requests WHERE sid = ?", (self._sid,))
        ((self._fragments,),) = query("SELECT COALESCE(MAX(n) + 1, 0) FROM fragments WHERE sid = ?", (self._sid,))

    def record(self, request: EncodedRequest, seq: int) -> Ticket:
        """Queue the record of a request with the fragments that are new in it."""
        new: list[tuple[int, Fragment]] = []
        self._head = self._edge(self._head, request.head, new)
        self._tail = self._edge(self._tail, request.tail, new)
        reason = request.reason
        if reason == "initial" and self._n:  # another encoder has begun: that of another model, or of another process
            reason = "model" if self._recorded else "resume"
        self._recorded = True
        first = self._fragments
        groups = request.groups[request.kept :]
        new.extend(enumerate(groups, first))
        self._fragments += len(groups)
        record = RequestRecord(
            self._n,
            seq,
            request.kept,
            first,
            len(groups),
            self._head[0],
            self._tail[0],
            request.separator,
            request.marker,
            request.marked,
            request.adapter,
            reason,
            bytes.fromhex(request.sha256),
        )
        self._n += 1
        store, sid, epoch = self._store, self._sid, self._epoch
        return store.sessions.run(lambda connection: _insert(connection, store, sid, epoch, record, new))

    def _edge(self, last: tuple[int, bytes] | None, data: bytes, new: list[tuple[int, Fragment]]) -> tuple[int, bytes]:
        if last is not None and last[1] == data:
            return last
        number = self._fragments
        self._fragments += 1
        new.append((number, Fragment(data)))
        return (number, data)


def _insert(
    connection: apsw.Connection, store: Store, sid: int, epoch: int, record: RequestRecord, new: list[tuple[int, Fragment]]
) -> None:
    if not list(connection.execute("SELECT 1 FROM sessions WHERE sid = ? AND epoch = ? AND owner = ?", (sid, epoch, store.owner.id))):
        raise FencedError("another process has taken over this session", remedy="stop this one; its work goes on there")
    ((seq, n),) = connection.execute(PLACE, (sid, sid))
    if (seq, n) != (record.seq, record.n):
        raise StorageError("a record before this request is missing", remedy="resume the session")
    for number, fragment in new:
        codec, stored = pack(store, fragment.data)
        crc = checksum(f"{sid}|{number}|{codec}|{fragment.marker_at}|", stored)
        connection.execute(
            "INSERT INTO fragments (sid, n, codec, marker_at, data, crc) VALUES (?, ?, ?, ?, ?, ?)",
            (sid, number, codec, fragment.marker_at, stored, crc),
        )
    connection.execute(
        f"INSERT INTO requests (sid, {COLUMNS}, crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            sid,
            record.n,
            record.seq,
            record.kept,
            record.first,
            record.count,
            record.head,
            record.tail,
            record.separator,
            record.marker,
            record.marked,
            record.adapter,
            record.reason,
            record.sha256,
            record.checksum(sid),
        ),
    )


def pack(store: Store, data: bytes) -> tuple[int, bytes]:
    """How a fragment is stored: as it is, compressed, or as a blob that is durable before its row."""
    if len(data) > BLOB_FROM:
        return BLOB, bytes.fromhex(store.blobs.put(data))
    if len(data) >= COMPRESS_FROM:
        packed = zlib.compress(data, 1)
        if len(packed) < len(data):
            return ZLIB, packed
    return RAW, data


def unpack(store: Store, codec: int, data: bytes) -> bytes:
    if codec == BLOB:
        return store.blobs.get(data.hex())
    return zlib.decompress(data) if codec == ZLIB else data


def rebuild(store: Store, sid: int) -> Iterator[tuple[RequestRecord, EncodedRequest]]:
    """All requests of a session, in order, from the database alone.

    :raises DamagedError: at the first one whose bytes are not what was sent.
    """
    fragments: dict[int, Fragment] = {}
    for n, codec, marker_at, data, crc in store.sessions.query(
        "SELECT n, codec, marker_at, data, crc FROM fragments WHERE sid = ?", (sid,)
    ):
        if isinstance(data, bytes) and checksum(f"{sid}|{n}|{codec}|{marker_at}|", data) == crc:
            with suppress(DamagedError, NotFoundError, zlib.error):  # one that is missing is told where it is needed
                fragments[n] = Fragment(unpack(store, codec, data), marker_at)
    groups: list[Fragment] = []
    for *values, crc in store.sessions.query(f"SELECT {COLUMNS}, crc FROM requests WHERE sid = ? ORDER BY n", (sid,)):
        record = RequestRecord(*values)
        try:
            if record.checksum(sid) != crc:
                raise KeyError(record.n)
            groups = groups[: record.kept] + [fragments[n] for n in range(record.first, record.first + record.count)]
            head, tail = fragments[record.head].data, fragments[record.tail].data
        except KeyError:
            raise damaged(record.n) from None
        request = EncodedRequest(
            record.adapter,
            head,
            groups,
            tail,
            record.sha256.hex(),
            record.separator,
            record.marker,
            record.marked,
            record.kept,
            record.reason,
        )
        if sha256(request.body()).digest() != record.sha256:
            raise damaged(record.n)
        yield record, request


def damaged(n: int) -> DamagedError:
    return DamagedError(f"request {n} cannot be rebuilt: a record of it is damaged", remedy="run 'hames doctor --salvage'")
