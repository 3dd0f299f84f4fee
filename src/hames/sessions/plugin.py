"""The service that makes, finds and opens sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apsw

from hames.content.clock import Clock
from hames.content.errors import BusyError, DamagedError, FencedError, NotFoundError
from hames.content.jsontext import as_object, parse_object
from hames.content.messages import Message, Text, ToolCall, ToolResult, decode_message
from hames.content.request import EncodedRequest
from hames.kernel import Context, Key, plugin
from hames.sessions.event import Event
from hames.sessions.log import (
    FORMAT,
    Session,
    claim,
    loaded_path,
    read_events,
    session_checksum,
    session_id,
    session_number,
    stored_path,
)
from hames.sessions.requests import BLOB, RequestRecord, rebuild
from hames.store import STORE, Store, checksum
from hames.store.checks import living

COUNTED = ("input", "output", "cache_read", "cache_write")


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A line of a list of sessions.

    :param created: seconds since the epoch.
    :param state: ``running`` while a living process holds it, ``idle``, or ``interrupted`` where its process died.
    :param title: the head of the first message.
    """

    id: str
    cwd: str
    created: float
    events: int
    state: str
    title: str


class Sessions:
    """All sessions of one state directory."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock

    def create(self, cwd: str, *, parent: str = "") -> Session:
        """A new session, held by this process; durable with its first barrier."""
        # The owner's id keeps apart what two processes make in one millisecond.
        chance = checksum(f"{self.store.owner.id}|{self.store.last_session}") & 0xFFFFF
        sid = self.store.last_session = max(int(self.clock.now() * 1000) << 20 | chance, self.store.last_session + 1)
        created = self.store.sessions.write(
            "INSERT INTO sessions (sid, cwd, parent, owner, epoch, crc) VALUES (?, ?, ?, ?, 1, ?)",
            (sid, stored_path(cwd), parent, self.store.owner.id, session_checksum(sid, stored_path(cwd), parent)),
        )
        session = Session(self.store, sid, cwd, 1, self.clock, created)
        session.append("start", {"format": FORMAT})
        return session

    async def open(self, name: str) -> Session:
        """Open a stored session for writing and close what a crash left open.

        :raises NotFoundError: if there is none of this name.
        :raises BusyError: if a living process holds it.
        :raises DamagedError: if its history is not whole.
        """
        sid, cwd = self._find(name)
        try:
            epoch = await self.store.sessions.run(lambda connection: claim(connection, self.store, sid))
        except FencedError as error:
            raise BusyError(error.message, remedy="end that process, or wait for it", code="SESSION_BUSY") from None
        session = Session(self.store, sid, cwd, epoch, self.clock)
        try:
            session.load()
        except BaseException:
            await session.release()
            raise
        return session

    async def fork(self, name: str, turn: int | None = None) -> Session:
        """A new session that begins with what another one has, up to the end of a turn. The other one is only read.

        :param turn: how many turns are kept; None for all that have ended.
        :raises NotFoundError: if there is no such session or turn.
        :raises DamagedError: if what is to be kept is not whole.
        """
        sid, cwd = self._find(name)
        events = read_events(self.store, sid)
        ends = [event.seq for event in events if event.type == "end"]
        if turn is None:
            turn = len(ends)
        if turn > len(ends) or turn < 0:
            raise NotFoundError(f"session {name} has {len(ends)} turns that have ended", remedy="name one of them", code="TURN_UNKNOWN")
        kept = events[: ends[turn - 1] + 1] if turn else events[:1]
        check_whole(name, kept)
        session = self.create(cwd, parent=name)
        for event in kept[1:]:
            if event.type not in ("queued", "dropped"):
                session.append(event.type, event.data, time=event.time)
            else:
                session.append(
                    "forked", {"type": event.type}, time=event.time
                )  # the numbers of events stay as they are; nothing waits in the new one
        await session.barrier()
        session.take_over(read_events(self.store, session.sid))
        return session

    async def take_in(self, events: Sequence[Event], cwd: str) -> str:
        """Make a session of events that were exported, and return its name.

        :param events: whole, from the first on.
        """
        session = self.create(cwd)
        for event in events[1:]:
            session.append(event.type, event.data, time=event.time)
        await session.barrier()
        await session.release()
        return session.id

    def search(self, text: str, limit: int = 50) -> list[tuple[str, int, str]]:
        """Where a text stands in the messages of all sessions, the newest first: session, event, and the words around it."""
        expression = re.compile(re.escape(text), re.IGNORECASE)
        found: list[tuple[str, int, str]] = []
        for (sid,) in self.store.sessions.query("SELECT sid FROM sessions ORDER BY sid DESC"):
            for event in read_events(self.store, sid):
                if event.damaged or event.type != "message":
                    continue
                said = shown_text(decode_message(event.data))
                match = expression.search(said)
                if match is None and text.casefold() not in said.casefold():
                    continue
                start, end = match.span() if match is not None else (0, 60)
                found.append((session_id(sid), event.seq, " ".join(said[max(0, start - 60) : end + 60].split())))
                if len(found) == limit:
                    return found
        return found

    async def purge(self, name: str) -> None:
        """Remove a session for good: its events, its requests, and the pictures and long fragments that no other session has. Those stay
        while another session is open.

        :raises NotFoundError: if there is none of this name.
        :raises BusyError: if a living process holds it.
        """
        sid, _ = self._find(name)
        try:
            await self.store.sessions.run(lambda connection: claim(connection, self.store, sid))
        except FencedError as error:
            raise BusyError(error.message, remedy="end that process, or wait for it", code="SESSION_BUSY") from None
        blobs = blobs_of(self.store, sid)
        await self.store.sessions.run(lambda connection: remove(connection, sid))
        blobs -= {blob for (other,) in self.store.sessions.query("SELECT sid FROM sessions") for blob in blobs_of(self.store, other)}
        held = self.store.sessions.query("SELECT 1 FROM sessions WHERE owner = ? LIMIT 1", (self.store.owner.id,))
        if not held and set(living(self.store.root)) <= {self.store.owner.id}:  # others may be about to name what they have just kept
            for blob in blobs:
                self.store.blobs.path(blob).unlink(missing_ok=True)

    def weight(self, name: str) -> tuple[int, int, int]:
        """How many turns a session has, how many tokens its last request and the answer had, and the bytes that it takes.

        :raises NotFoundError: if there is none of this name.
        """
        sid, _ = self._find(name)
        query = self.store.sessions.query
        ((turns, size),) = query("SELECT COUNT(CASE WHEN type = 'turn' THEN 1 END), SUM(LENGTH(data)) FROM events WHERE sid = ?", (sid,))
        ((kept,),) = query("SELECT SUM(LENGTH(data)) FROM fragments WHERE sid = ?", (sid,))
        said = "SELECT CAST(data AS BLOB) FROM events WHERE sid = ? AND type = 'message' AND instr(data, '\"usage\"')"
        tokens = 0
        for (data,) in query(f"{said} ORDER BY seq DESC LIMIT 1", (sid,)):
            try:
                usage = as_object(parse_object(bytes(data)).get("usage"))
            except ValueError:
                continue
            tokens = sum(value for value in (usage.get(key, 0) for key in COUNTED) if isinstance(value, int))
        return turns, tokens, (size or 0) + (kept or 0)

    def remembered(self, name: str, what: str) -> Any:
        """What a plugin remembers of a session; None where there is nothing, or it is damaged.

        :raises NotFoundError: if there is none of this name.
        """
        sid, _ = self._find(name)
        rows = self.store.sessions.query("SELECT CAST(data AS BLOB) FROM events WHERE sid = ? AND type = 'state' ORDER BY seq DESC", (sid,))
        for (data,) in rows:
            try:
                kept = parse_object(bytes(data))
            except ValueError:
                continue
            if kept.get("name") == what:
                return kept.get("value")
        return None

    def cwd(self, name: str) -> str:
        """The directory that a session's agent works in.

        :raises NotFoundError: if there is none of this name.
        """
        return self._find(name)[1]

    def read(self, name: str) -> list[Event]:
        """The events of a session, for looking only; damaged ones are marked.

        :raises NotFoundError: if there is none of this name.
        """
        return read_events(self.store, self._find(name)[0])

    def rebuild(self, name: str) -> Iterator[tuple[RequestRecord, EncodedRequest]]:
        """Every request of a session as it was sent.

        :raises NotFoundError: if there is none of this name.
        :raises DamagedError: at the first one that is not whole.
        """
        return rebuild(self.store, self._find(name)[0])

    def list(self) -> list[SessionSummary]:
        """All sessions, the newest first."""
        rows = self.store.sessions.query(
            "SELECT sid, CAST(cwd AS BLOB), owner, (SELECT COUNT(*) FROM events e WHERE e.sid = s.sid) FROM sessions s ORDER BY sid DESC"
        )
        return [self._summary(sid, cwd, owner, events) for sid, cwd, owner, events in rows]

    def _summary(self, sid: int, cwd: bytes, owner: str, events: int) -> SessionSummary:
        state = "idle" if not owner else "running" if self.store.owner.alive(owner) else "interrupted"
        return SessionSummary(session_id(sid), loaded_path(cwd), (sid >> 20) / 1000, events, state, self._title(sid))

    def _title(self, sid: int) -> str:
        # The first message stands near the start: no need to read a long session for its title.
        for event in read_events(self.store, sid, limit=4):
            if event.type == "message" and not event.damaged:
                return " ".join(decode_message(event.data).text.split())[:72]
        return ""

    def _find(self, name: str) -> tuple[int, str]:
        sid = session_number(name)
        rows = self.store.sessions.query("SELECT CAST(cwd AS BLOB) FROM sessions WHERE sid = ?", (sid,)) if sid is not None else []
        if sid is None or not rows:
            raise NotFoundError(
                f"there is no session {name!r}", remedy="'hames sessions list' shows those that exist", code="SESSION_UNKNOWN"
            )
        return sid, loaded_path(rows[0][0])


def check_whole(name: str, events: Sequence[Event]) -> None:
    """
    :raises DamagedError: if one of these events is damaged.
    """
    bad = [event.seq for event in events if event.damaged]
    if bad:
        raise DamagedError(f"session {name}: event {', '.join(map(str, bad))} is damaged", remedy="repair it with 'hames doctor --salvage'")


def shown_text(message: Message) -> str:
    """All text of a message, with that of its calls and results."""
    parts: list[str] = []
    for block in message.blocks:
        match block:
            case Text(text):
                parts.append(text)
            case ToolResult():
                parts.append(block.text)
            case ToolCall(_, name, arguments):
                parts.append(f"{name} {arguments}")
            case _:
                pass
    return "\n".join(parts)


def blobs_of(store: Store, sid: int) -> set[str]:
    """The digests of all blobs that a session names."""
    rows = store.sessions.query("SELECT data FROM fragments WHERE sid = ? AND codec = ?", (sid, BLOB))
    found = {bytes(data).hex() for (data,) in rows}
    for (data,) in store.sessions.query("SELECT data FROM events WHERE sid = ? AND instr(data, 'blob')", (sid,)):
        found.update(re.findall(r'"blob":"([0-9a-f]{64})"', bytes(data).decode("utf-8", "replace")))
    return found


def remove(connection: apsw.Connection, sid: int) -> None:
    for table in ("events", "requests", "fragments", "sessions"):
        connection.execute(f"DELETE FROM {table} WHERE sid = ?", (sid,))


SESSIONS: Key[Sessions] = Key("sessions")


@plugin(needs=(STORE,), wants=(Clock,), name="sessions")
def sessions(ctx: Context, config: None) -> None:
    """Provide the sessions of the store."""
    ctx.provide(SESSIONS, Sessions(ctx.use(STORE), ctx.find(Clock) or Clock()))
