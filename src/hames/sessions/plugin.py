"""The service that makes, finds and opens sessions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hames.content.clock import Clock
from hames.content.errors import BusyError, FencedError, NotFoundError
from hames.content.messages import decode_message
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
from hames.sessions.requests import RequestRecord, rebuild
from hames.store import STORE, Store, checksum


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
        self._last = 0

    def create(self, cwd: str, *, parent: str = "") -> Session:
        """A new session, held by this process; durable with its first barrier."""
        # The owner's id keeps apart what two processes make in one millisecond.
        chance = checksum(f"{self.store.owner.id}|{self._last}") & 0xFFFFF
        sid = self._last = max(int(self.clock.now() * 1000) << 20 | chance, self._last + 1)
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


SESSIONS: Key[Sessions] = Key("sessions")


@plugin(needs=(STORE,), wants=(Clock,), name="sessions")
def sessions(ctx: Context, config: None) -> None:
    """Provide the sessions of the store."""
    ctx.provide(SESSIONS, Sessions(ctx.use(STORE), ctx.find(Clock) or Clock()))
