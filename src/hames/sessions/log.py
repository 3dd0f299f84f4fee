"""One session: its events, the messages derived from them, and the rules of writing to it.

Events and what their data holds:

========== ====================================================================================================
``start``  ``version`` of the format, ``hames`` version
``turn``   a turn begins
``message`` ``role source blocks``; an answer of a model also ``model finish usage failure dropped``
``call``   ``id name``: the body of a tool is about to run
``retry``  ``kind wait``: a request failed and is made again
``end``    ``reason``: the turn has ended; ``interrupted`` is written when a session is opened after a crash
========== ====================================================================================================

Other types belong to plugins; they are carried and never touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import apsw

from hames.content.clock import Clock
from hames.content.errors import DamagedError, FencedError, StorageError
from hames.content.jsontext import dumps, parse_object
from hames.content.messages import Message, Text, ToolCall, ToolResult, decode_message, encode_message
from hames.content.request import EncodedRequest
from hames.sessions.requests import RequestLog
from hames.store import Store, Ticket, checksum

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
FORMAT = 1
INSERT_EVENT = """INSERT INTO events (sid, seq, time, type, data, crc)
    SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE EXISTS (SELECT 1 FROM sessions WHERE sid = ?1 AND epoch = ?7)"""


def session_id(sid: int) -> str:
    """The name of a session: 13 letters and digits that sort by the time of creation."""
    return "".join(ALPHABET[(sid >> shift) & 31] for shift in range(60, -1, -5))


def session_number(name: str) -> int | None:
    """The inverse of :func:`session_id`, or None for what is no session's name."""
    number = 0
    for letter in name:
        place = ALPHABET.find(letter)
        if place < 0:
            return None
        number = number << 5 | place
    return number if len(name) == 13 and number < 1 << 63 else None


@dataclass(frozen=True, slots=True)
class Event:
    """One record of a session.

    :param seq: its place, from 0 without gaps.
    :param time: seconds since the epoch.
    :param damaged: its bytes do not match their checksum; ``data`` is empty then.
    """

    seq: int
    time: float
    type: str
    data: dict[str, Any]
    damaged: bool = False


def event_checksum(sid: int, seq: int, time: float, type: str, data: bytes) -> int:
    return checksum(f"{sid}|{seq}|{time!r}|{type}|", data)


def read_events(store: Store, sid: int, limit: int = -1) -> list[Event]:
    """All events of a session; damaged ones are marked, never left out.

    :raises DamagedError: if the file itself cannot be read.
    """
    events: list[Event] = []
    rows = store.sessions.query("SELECT seq, time, type, data, crc FROM events WHERE sid = ? ORDER BY seq LIMIT ?", (sid, limit))
    for seq, time, type, data, crc in rows:
        raw = data if isinstance(data, bytes) else str(data).encode("utf-8", "replace")
        sound = isinstance(type, str) and event_checksum(sid, seq, time, type, raw) == crc
        while len(events) < seq:  # a hole: the row is gone
            events.append(Event(len(events), 0.0, "missing", {}, damaged=True))
        events.append(Event(seq, time, type, parse_object(raw) if sound else {}, damaged=not sound))
    return events


class Session:
    """A session that this process may write to.

    :ivar messages: what the model is shown, as (seq of the event, message), oldest first.
    :ivar last_model: the reference of the model that answered last, of a session that was loaded.
    """

    __slots__ = ("_clock", "_failed", "_seq", "_store", "_unconfirmed", "cwd", "epoch", "last_model", "messages", "requests", "sid")

    def __init__(self, store: Store, sid: int, cwd: str, epoch: int, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._failed: BaseException | None = None
        self._seq = 0
        self._unconfirmed: list[Ticket] = []
        self.sid = sid
        self.cwd = cwd
        self.epoch = epoch
        self.messages: list[tuple[int, Message]] = []
        self.last_model = ""
        self.requests = RequestLog(store, sid, epoch)

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    @property
    def id(self) -> str:
        return session_id(self.sid)

    def append(self, type: str, data: dict[str, Any]) -> None:
        """Add an event; durable when the next barrier has been passed.

        :raises StorageError: once a write of this session has failed: what cannot be recorded must not happen.
        """
        self._check()
        raw = dumps(data).encode()
        seq, time = self._seq, self._clock.now()
        self._seq += 1
        crc = event_checksum(self.sid, seq, time, type, raw)
        ticket = self._store.sessions.write(INSERT_EVENT, (self.sid, seq, time, type, raw, crc, self.epoch), must_change=True)
        self._unconfirmed.append(ticket)

    def add(self, message: Message, **more: Any) -> None:
        """Append a message, with what else is known of it."""
        seq = self._seq
        self.append("message", {**encode_message(message), **more})
        self.messages.append((seq, message))

    def record(self, request: EncodedRequest) -> None:
        """Append a request that is about to be sent."""
        self._check()
        self._unconfirmed.append(self.requests.record(request, self._seq))

    async def barrier(self) -> None:
        """Wait until all that was appended is on disk. What follows may rely on it.

        :raises StorageError: if something is not; the session takes nothing more then.
        """
        try:
            for ticket in self._unconfirmed:
                await ticket
            self._unconfirmed.clear()
        except StorageError as error:
            self._failed = error
            raise

    def _check(self) -> None:
        if self._failed is not None:
            raise StorageError(
                f"session {self.id} cannot be written: {self._failed}", remedy="resume it when the store can be written again"
            )

    # opening

    def load(self) -> list[Event]:
        """Take over what is stored, and close what a crash left open.

        :raises DamagedError: if a message is damaged: what the model saw is not known then.
        """
        events = read_events(self._store, self.sid)
        bad = [event.seq for event in events if event.damaged]
        if bad:
            raise DamagedError(
                f"session {self.id}: event {', '.join(map(str, bad))} is damaged",
                remedy=f"read it with 'hames sessions show {self.id}', or repair it with 'hames doctor --salvage'",
            )
        self._seq = len(events)
        self.messages = [(event.seq, decode_message(event.data)) for event in events if event.type == "message"]
        self.last_model = next((event.data["model"] for event in reversed(events) if "model" in event.data), "")
        self.requests.load()
        self._close_interrupted(events)
        return events

    def _close_interrupted(self, events: list[Event]) -> None:
        """Answer calls that have no answer, once, and end a turn that has no end."""
        waiting: dict[str, ToolCall] = {}
        begun: set[str] = set()
        open_turn = False
        for event in events:
            if event.type == "message":
                for block in decode_message(event.data).blocks:
                    if isinstance(block, ToolCall):
                        waiting[block.id] = block
                        begun.discard(block.id)
                    elif isinstance(block, ToolResult):
                        waiting.pop(block.call_id, None)
            elif event.type == "call":
                begun.add(event.data["id"])
            elif event.type == "turn":
                open_turn = True
            elif event.type == "end":
                open_turn = False
        for call in waiting.values():
            self.add(Message("user", (interrupted(call, call.id in begun),), "tool"))
        if open_turn:
            self.append("end", {"reason": "interrupted"})

    def release(self) -> Ticket:
        """Give the session back, so that another process may open it."""
        return self._store.sessions.write("UPDATE sessions SET owner = '' WHERE sid = ? AND epoch = ?", (self.sid, self.epoch))


def interrupted(call: ToolCall, begun: bool) -> ToolResult:
    """The answer to a call that was under way when its process died."""
    if begun:
        text = "outcome unknown: the process died while this call ran; look at what it changed before you repeat it"
        return ToolResult(call.id, (Text(text),), True, "OUTCOME_UNKNOWN")
    return ToolResult(call.id, (Text("not started: the process died before this call ran"),), True, "NOT_STARTED")


def claim(connection: apsw.Connection, store: Store, sid: int) -> int:
    """Take a session for this owner, inside a transaction, and return the new epoch.

    :raises FencedError: if a living process holds it.
    """
    ((owner, epoch),) = connection.execute("SELECT owner, epoch FROM sessions WHERE sid = ?", (sid,))
    if owner and owner != store.owner.id and store.owner.alive(owner):
        raise FencedError(f"session {session_id(sid)} is in use by process {int(owner.split('-')[0], 16)}")
    if owner == store.owner.id:
        raise FencedError(f"session {session_id(sid)} is in use in this process")
    connection.execute("UPDATE sessions SET owner = ?, epoch = ? WHERE sid = ?", (store.owner.id, epoch + 1, sid))
    return epoch + 1
