"""One session: its events, the messages derived from them, and the rules of writing to it.

Events and what their data holds:

========== ====================================================================================================
``start``  ``format``: the version of this table
``turn``   a turn begins
``queued`` ``target role source blocks``: a message that waits for a ``turn`` or a ``step``
``dropped`` ``items``: waiting messages that were taken back, by the numbers of their events
``message`` ``role source blocks``; an answer of a model also ``model finish usage failure dropped``, one that waited ``queued``,
           facts that the harness states ``contexts``: a digest of each
``told``   ``contexts``: facts that have changed although nothing was said
``pruned`` ``items head tail``: of these messages long results are shown by their ends from here on
``compacted`` ``until role source blocks reason``: this message stands for all before the event ``until``
``state``  ``name value``: something that a plugin remembers of the session; the last one of a name counts
``asked``  ``id name reason``: a person was asked whether a call may run; ``decided`` has the ``answer``
``call``   ``id name``: the body of a tool is about to run
``retry``  ``failure wait``: a request failed and is made again
``failed`` ``model finish usage failure``: a request ended without an answer
``end``    ``reason``: the turn has ended; ``interrupted`` is written when a session is opened after a crash
========== ====================================================================================================

Other types belong to plugins; they are carried and never touched.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import apsw

from hames.content.clock import Clock
from hames.content.errors import DamagedError, FencedError, NotFoundError, StorageError
from hames.content.jsontext import dumps, parse_object
from hames.content.messages import Image, Message, Text, ToolCall, ToolResult, clean, decode_message, encode_message
from hames.content.request import EncodedRequest
from hames.sessions.event import Event
from hames.sessions.history import Target, Waiting, chosen_model, compacted, pruned, shown, waiting
from hames.sessions.requests import RequestLog
from hames.store import Store, Ticket, checksum

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
FORMAT = 1
INSERT_EVENT = """INSERT INTO events (sid, seq, time, type, data, crc)
    SELECT ?1, ?2, ?3, ?4, ?5, ?6
    WHERE EXISTS (SELECT 1 FROM sessions WHERE sid = ?1 AND epoch = ?7 AND owner = ?8)
    AND (?2 = 0 OR EXISTS (SELECT 1 FROM events WHERE sid = ?1 AND seq = ?2 - 1))"""


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


def stored_path(path: str) -> str | bytes:
    """A path as a column holds it: text, or bytes where its name is no valid Unicode."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path)
    return path


def loaded_path(value: str | bytes) -> str:
    return os.fsdecode(value)


def session_checksum(sid: int, cwd: str | bytes, parent: str) -> int:
    return checksum(f"{sid}|", cwd, f"|{parent}")


def encoded(data: dict[str, Any]) -> tuple[bytes, bool]:
    """Data as bytes, and whether its text had to be made valid Unicode for it."""
    text = dumps(data)
    try:
        return text.encode(), False
    except UnicodeEncodeError:
        return clean(text).encode(), True


def event_checksum(sid: int, seq: int, time: float, type: str, data: bytes) -> int:
    return checksum(f"{sid}|{seq}|{time!r}|{type}|", data)


def read_events(store: Store, sid: int, limit: int = -1) -> list[Event]:
    """All events of a session; damaged ones are marked, never left out.

    :raises DamagedError: if the file itself cannot be read.
    """
    events: list[Event] = []
    # Damaged text may be no Unicode: it is read as bytes.
    sql = "SELECT seq, time, CAST(type AS BLOB), CAST(data AS BLOB), crc FROM events WHERE sid = ? ORDER BY seq LIMIT ?"
    for seq, time, raw_type, raw, crc in store.sessions.query(sql, (sid, limit)):
        type = (raw_type or b"").decode("utf-8", "replace")
        sound = isinstance(time, float) and event_checksum(sid, seq, time, type, raw or b"") == crc
        while sound and len(events) < seq:  # a hole: the row is gone
            events.append(Event(len(events), 0.0, "missing", {}, damaged=True))
        events.append(Event(seq, time, type, parse_object(raw)) if sound else Event(seq, 0.0, type, {}, damaged=True))
    return events


class Session:
    """A session that this process may write to.

    :ivar messages: what the model is shown, as (seq of the event, message), oldest first.
    :ivar call_ids: the ids of all calls in it.
    :ivar pending: messages that waited when it was loaded.
    :ivar is_compacted: whether the conversation begins with a summary.
    :ivar state: what plugins remember of the session, by name.
    :ivar told: of each fact that the harness has stated and that stands in ``messages`` the digest.
    :ivar last_model: the reference of the model that answered last, of a session that was loaded.
    """

    __slots__ = (
        *("_clock", "_failed", "_rewritten", "_seq", "_store", "_unconfirmed"),
        *("call_ids", "cwd", "epoch", "id", "is_compacted", "last_model", "messages", "pending", "requests", "sid", "state", "told"),
    )

    def __init__(self, store: Store, sid: int, cwd: str, epoch: int, clock: Clock, created: Ticket | None = None) -> None:
        self._store = store
        self._clock = clock
        self._failed: StorageError | None = None
        self._seq = 0
        self._unconfirmed: list[Ticket] = [] if created is None else [created]
        self.sid = sid
        self.id = session_id(sid)
        self.cwd = cwd
        self.epoch = epoch
        self.messages: list[tuple[int, Message]] = []
        self.call_ids: set[str] = set()
        self.last_model = ""
        self.pending: list[Waiting] = []
        self.told: dict[str, str] = {}
        self.state: dict[str, Any] = {}
        self.is_compacted = False
        self._rewritten = ""
        self.requests = RequestLog(store, sid, epoch)

    def __repr__(self) -> str:
        return f"<Session {self.id}>"

    @property
    def next_seq(self) -> int:
        """The place of the next event."""
        return self._seq

    def append(self, type: str, data: dict[str, Any], *, time: float | None = None) -> None:
        """Add an event; durable when the next barrier has been passed.

        :param time: when it happened, of one that is taken over; None for now.
        :raises StorageError: once a write of this session has failed: what cannot be recorded must not happen.
        """
        self._append(type, encoded(data)[0], time)

    def _append(self, type: str, raw: bytes, when: float | None = None) -> None:
        self._check()
        seq, time = self._seq, self._clock.now() if when is None else when
        crc = event_checksum(self.sid, seq, time, type, raw)
        values = (self.sid, seq, time, type, raw, crc, self.epoch, self._store.owner.id)
        self._unconfirmed.append(self._store.sessions.write(INSERT_EVENT, values, must_change=True))
        self._seq += 1

    def add(self, message: Message, **more: Any) -> None:
        """Append a message, with what else is known of it. What is remembered is what the log holds."""
        raw, changed = encoded({**encode_message(message), **more})
        seq = self._seq
        self._append("message", raw)
        self.told.update(more.get("contexts", {}))
        kept = decode_message(parse_object(raw)) if changed else message
        self.messages.append((seq, kept))
        self.call_ids.update(call.id for call in kept.calls)

    def remember(self, name: str, value: Any) -> None:
        """Keep something of a plugin's own: it is here again when the session is resumed."""
        self.append("state", {"name": name, "value": value})
        self.state[name] = value

    def queue(self, target: Target, message: Message) -> Message:
        """Log a message that waits, and return it as the log holds it."""
        raw, changed = encoded({"target": target, **encode_message(message)})
        self._append("queued", raw)
        return decode_message(parse_object(raw)) if changed else message

    def prune(self, seqs: Sequence[int], head: int, tail: int) -> None:
        """From now on show only head and tail of long results in these messages; the log keeps them whole.

        :param head: characters.
        :param tail: characters.
        """
        self.append("pruned", {"items": list(seqs), "head": head, "tail": tail})
        chosen = frozenset(seqs)
        self.messages = [(seq, pruned(message, head, tail) if seq in chosen else message) for seq, message in self.messages]
        self._rewritten = "pruned"

    def tell(self, digests: dict[str, str]) -> None:
        """Note that facts have changed about which nothing is said."""
        if any(name in self.told for name in digests):
            self.append("told", {"contexts": digests})
        self.told.update(digests)

    def compact(self, until: int, summary: Message, **more: Any) -> None:
        """From now on let a message stand for all before event ``until``; the log keeps them."""
        seq = self._seq
        raw, changed = encoded({"until": until, **encode_message(summary), **more})
        self._append("compacted", raw)
        kept = decode_message(parse_object(raw)) if changed else summary
        self.messages = compacted(self.messages, until, seq, kept)
        self.told = {}
        self.is_compacted = True
        self._rewritten = "compacted"

    def picture(self, blob: str) -> bytes:
        """The bytes of a picture.

        :raises NotFoundError: if they are not there.
        :raises DamagedError: if they are not what they were.
        """
        return self._store.blobs.get(blob)

    def keep_picture(self, media_type: str, data: bytes) -> Image:
        """Keep the bytes of a picture, durably, so that messages may show it."""
        return Image(media_type, self._store.blobs.put(data))

    def record(self, request: EncodedRequest) -> None:
        """Append a request that is about to be sent."""
        self._check()
        if request.reason == "history" and self._rewritten:
            request = replace(request, reason=self._rewritten)
        self._rewritten = ""
        self._unconfirmed.append(self.requests.record(request, self._seq))

    async def barrier(self) -> None:
        """Wait until all that was appended is on disk. What follows may rely on it.

        :raises StorageError: if something is not; the session takes nothing more then.
        """
        try:
            for ticket in tuple(self._unconfirmed):
                await ticket
            self._unconfirmed = [ticket for ticket in self._unconfirmed if not ticket.done]
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
        self.take_over(events)
        self.requests.load()
        self._close_interrupted(events)
        return events

    def take_over(self, events: list[Event]) -> None:
        """Derive everything that is kept in memory from the whole log."""
        self._seq = len(events)
        self.messages, self.told = shown(events)
        self.pending = waiting(events)
        self.state = {event.data["name"]: event.data["value"] for event in events if event.type == "state"}
        self.is_compacted = any(event.type == "compacted" for event in events)
        if any(event.type == "lost" for event in events):
            self.messages = answered_only(self.messages)
        self.call_ids = {
            block["id"] for event in events if event.type == "message" for block in event.data["blocks"] if block.get("type") == "tool-call"
        }
        self.last_model = chosen_model(events)

    def _close_interrupted(self, events: list[Event]) -> None:
        """Answer calls that have no answer, once, and end a turn that has no end."""
        waiting: list[ToolCall] = []
        begun: set[str] = set()
        open_turn = False
        for event in events:
            if event.type == "message":
                for block in decode_message(event.data).blocks:
                    if isinstance(block, ToolCall):
                        waiting.append(block)
                        begun.discard(block.id)
                    elif isinstance(block, ToolResult):
                        answered = next((call for call in waiting if call.id == block.call_id), None)
                        if answered is not None:
                            waiting.remove(answered)
            elif event.type == "call":
                begun.add(event.data["id"])
            elif event.type == "turn":
                open_turn = True
            elif event.type == "end":
                open_turn = False
        for call in waiting:
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


def answered_only(messages: list[tuple[int, Message]]) -> list[tuple[int, Message]]:
    """Messages without results whose call is lost: no provider takes an answer to nothing."""
    calls: set[str] = set()
    kept: list[tuple[int, Message]] = []
    for seq, message in messages:
        blocks = tuple(block for block in message.blocks if not isinstance(block, ToolResult) or block.call_id in calls)
        calls.update(call.id for call in message.calls)
        if blocks:
            kept.append((seq, message if len(blocks) == len(message.blocks) else Message(message.role, blocks, message.source)))
    return kept


def claim(connection: apsw.Connection, store: Store, sid: int) -> int:
    """Take a session for this owner, inside a transaction, and return the new epoch.

    :raises FencedError: if a living process holds it.
    :raises NotFoundError: if it has been removed.
    """
    rows = list(connection.execute("SELECT owner, epoch FROM sessions WHERE sid = ?", (sid,)))
    if not rows:
        raise NotFoundError(f"session {session_id(sid)} has been removed", remedy="'hames sessions list' shows those that exist")
    owner, epoch = rows[0]
    if owner and owner != store.owner.id and store.owner.alive(owner):
        raise FencedError(f"session {session_id(sid)} is in use by process {int(owner.split('-')[0], 16)}")
    if owner == store.owner.id:
        raise FencedError(f"session {session_id(sid)} is in use in this process")
    connection.execute("UPDATE sessions SET owner = ?, epoch = ? WHERE sid = ?", (store.owner.id, epoch + 1, sid))
    return epoch + 1
