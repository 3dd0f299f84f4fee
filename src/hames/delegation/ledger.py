"""The ledger: what was intended, who drives it, how it ended. In ``control.db``, written before what it speaks of."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from typing import Any

import apsw

from hames.content.clock import Clock
from hames.content.errors import FencedError
from hames.content.messages import clean
from hames.delegation.failures import Refused
from hames.delegation.outcome import Outcome
from hames.delegation.records import (
    JOINED,
    Admission,
    Attempt,
    Liveness,
    State,
    TaskRecord,
    Waiting,
    decoded_attempts,
    decoded_receipts,
    decoded_record,
    encoded_outcome,
)
from hames.delegation.spec import TaskSpec
from hames.delegation.tables import ATTEMPTS, OUTCOMES, RECEIPTS, STATES, STOPS, TASKS, THREADS, encoded
from hames.store import Store, Ticket, checksum

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
MINE = "states WHERE task = ?1 AND owner = {owner} AND epoch = {epoch}"


class Ledger:
    """The tasks of one state directory.

    :param store: an open one; ``control.db`` is opened when it is first needed.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self._last = (0, 0)

    def new_id(self) -> str:
        """A name for a task: the time in milliseconds, what tells this process from others, and a count within the millisecond."""
        now, (last, count) = int(self.clock.now() * 1000), self._last
        self._last = (now, 0) if now > last else (last, count + 1) if count < 1023 else (last + 1, 0)
        return "t" + digits(self._last[0], 9) + digits(checksum(self.store.owner.id), 4) + digits(self._last[1], 2)

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self.store.control.closed

    # writing

    def intend(
        self,
        id: str,
        spec: TaskSpec,
        *,
        parent: str,
        root: str,
        session: str,
        call: str,
        depth: int,
        digest: str = "",
        thread: str = "",
    ) -> Ticket:
        """Write down what is about to be done. Nothing of it may happen before the ticket holds.

        :param spec: as it is done.
        :param digest: of what was asked for, where that is not the same.
        :raises Refused: with the ticket, ``TASK_CONFLICT`` if there is a task of this name.
        :raises ValueError: if the task holds what is no JSON.
        """
        now, thread = self.clock.now(), thread or id
        thread_row = THREADS.values(thread, spec.runner, now)
        task = TASKS.values(id, thread, parent, root or id, session, call, depth, now, digest or spec.digest, encoded(spec.as_json()))
        state = STATES.values(id, "intended", "", "not-admitted", "undetermined", "pending", "", self.store.owner.id, 1, now)

        def body(connection: apsw.Connection) -> None:
            if list(connection.execute("SELECT 1 FROM tasks WHERE id = ?", task[:1])):
                raise Refused("TASK_CONFLICT", f"there is a task {id} already", remedy="give this one another name")
            connection.execute(THREADS.inserted("INSERT OR IGNORE"), thread_row)
            connection.execute(TASKS.inserted(), task)
            connection.execute(STATES.inserted(), state)

        return self.store.control.run(body)

    def update(
        self,
        id: str,
        epoch: int,
        state: State,
        *,
        waiting: Waiting = "",
        admission: Admission = "admitted",
        liveness: Liveness = "running",
        cause: str = "",
    ) -> Ticket:
        """Say how it is with a task now. What has an outcome stays as it is.

        :raises FencedError: with the ticket, if somebody else has taken it over, or it has an outcome.
        """
        values = STATES.values(id, state, waiting, admission, liveness, "pending", cause, self.store.owner.id, epoch, self.clock.now())
        return self.store.control.write(f"{UPDATE} AND publication = 'pending'", values, must_change=True)

    def attempt(self, id: str, epoch: int, attempt: Attempt) -> Ticket:
        """Write down a launch, or what has become known of it.

        :raises FencedError: with the ticket, if somebody else has taken the task over.
        """
        owner = self.store.owner.id
        head = (id, attempt.n, attempt.runner, attempt.digest, owner, epoch)
        values = ATTEMPTS.values(*head, attempt.native, attempt.began, attempt.ended, attempt.exit)
        fence = f"WHERE EXISTS (SELECT 1 FROM {MINE.format(owner='?5', epoch='?6')})"
        return self.store.control.write(ATTEMPTS.inserted("INSERT OR REPLACE", fence), values, must_change=True)

    def settle(self, id: str, epoch: int, outcome: Outcome, *, liveness: Liveness = "ended", cause: str = "") -> Ticket:
        """Write down how it ended, once and for all. Deliver it to nobody before the ticket holds.

        :raises FencedError: with the ticket, if somebody else has taken it over, or it has an outcome.
        :raises ValueError: if the outcome holds what is no JSON.
        """
        now, owner = self.clock.now(), self.store.owner.id
        row = OUTCOMES.values(id, now, encoded_outcome(outcome, self.store.blobs))
        state = STATES.values(id, "settled", "", "admitted", liveness, "committed", cause, owner, epoch, now)
        fence = f"WHERE EXISTS (SELECT 1 FROM {MINE.format(owner='?5', epoch='?6')})"

        def body(connection: apsw.Connection) -> None:
            connection.execute(OUTCOMES.inserted("INSERT OR IGNORE", fence), (*row, owner, epoch))
            if connection.changes() == 0:
                said = f"task {id} has an outcome, or another process has taken it over"
                raise FencedError(said, remedy="look at it with 'hames task show'")
            connection.execute(UPDATE, state)

        return self.store.control.run(body)

    def receive(self, id: str, kind: str, data: dict[str, Any]) -> Ticket:
        """Attach evidence to a task. It changes nothing of its outcome.

        :raises ValueError: if the evidence is no JSON.
        """
        now, raw, id = self.clock.now(), encoded(data), clean(id)

        def body(connection: apsw.Connection) -> None:
            ((n,),) = connection.execute("SELECT COALESCE(MAX(n), 0) + 1 FROM receipts WHERE task = ?", (id,))
            connection.execute(RECEIPTS.inserted(), RECEIPTS.values(id, n, kind, now, raw))

        return self.store.control.run(body)

    # stopping, from any process

    def ask_to_stop(self, id: str, cause: str) -> Ticket:
        """Ask whoever drives a task to end it; the first cause is kept."""
        return self.store.control.write(STOPS.inserted("INSERT OR IGNORE"), STOPS.values(id, cause, self.clock.now()))

    def stops(self) -> list[tuple[str, str]]:
        """What is to end and nobody has heard of yet: tasks and causes."""
        rows = self.store.control.query(
            f"SELECT {STOPS.selected('p')} FROM stops p JOIN states s ON s.task = p.task WHERE p.acknowledged = 0"
            " AND s.publication = 'pending' AND s.owner = ?",
            (self.store.owner.id,),
        )
        return [(values[0], values[1] if sound else "user") for values, sound in map(STOPS.read, rows)]

    def acknowledge(self, ids: Iterable[str]) -> None:
        for id in ids:
            self.store.control.write("UPDATE stops SET acknowledged = ? WHERE task = ?", (self.clock.now(), clean(id)))

    def stop_of(self, id: str) -> tuple[str, float, float] | None:
        """Why a task was asked to end, when, and when that was heard (0 for not yet)."""
        rows = self.store.control.query(f"SELECT acknowledged, {STOPS.selected('p')} FROM stops p WHERE task = ?", (clean(id),))
        for heard, *row in rows:
            (_, cause, requested), sound = STOPS.read(row)
            return cause if sound else "damaged", requested, float(heard) if isinstance(heard, int | float) else 0.0
        return None

    # taking over what a dead process has left

    def orphans(self, live: Set[str] | None = None) -> list[TaskRecord]:
        """Tasks without an outcome that nobody drives: their process does not live any more, or is this one and does not know them.

        :param live: those that this process drives; None for all that are its own.
        """
        rows = self.store.control.query(f"{JOINED} WHERE s.publication = 'pending'")
        found = [decoded_record(row, self.store.blobs) for row in rows]
        mine = self.store.owner.id
        left = [
            each
            for each in found
            if ((live is not None and each.id not in live) if each.owner == mine else not self.store.owner.alive(each.owner))
        ]
        return [self._whole(record) for record in left]

    def take_over(self, record: TaskRecord) -> Ticket:
        """Drive a task of a dead process from now on; the new epoch is one more.

        :raises FencedError: with the ticket, if somebody was faster.
        """
        published = "pending" if "state" in record.damaged else record.publication
        state = (record.state, record.waiting, record.admission, record.liveness, published, record.cause)
        values = STATES.values(record.id, *state, self.store.owner.id, record.epoch + 1, self.clock.now())
        fence = "WHERE task = ?1 AND owner = ?12 AND epoch = ?13"
        return self.store.control.write(f"{SET} {fence}", (*values, record.owner, record.epoch), must_change=True)

    # reading

    def get(self, id: str) -> TaskRecord | None:
        """What is known of a task; None where there is none of that name."""
        rows = self.store.control.query(f"{JOINED} WHERE t.id = ?", (clean(id),))
        return self._whole(decoded_record(rows[0], self.store.blobs)) if rows else None

    def _whole(self, record: TaskRecord) -> TaskRecord:
        damaged = list(record.damaged)
        query = self.store.control.query
        attempts = query(f"SELECT {ATTEMPTS.selected('a')} FROM attempts a WHERE task = ? ORDER BY n", (record.id,))
        receipts = query(f"SELECT {RECEIPTS.selected('r')} FROM receipts r WHERE task = ? ORDER BY n", (record.id,))
        found = decoded_attempts(attempts, damaged), decoded_receipts(receipts, damaged)
        return replace(record, attempts=found[0], receipts=found[1], damaged=tuple(damaged))

    def list(self, *, limit: int = 50, before: str = "", live: bool = False, roots: bool = False) -> list[TaskRecord]:
        """Tasks, the newest first.

        :param before: only those that are older than this one.
        :param live: only those without an outcome.
        :param roots: only those that no other task started.
        """
        where = ["(?1 = '' OR t.id < ?1)", *(["s.publication = 'pending'"] if live else []), *(["t.parent = ''"] if roots else [])]
        rows = self.store.control.query(f"{JOINED} WHERE {' AND '.join(where)} ORDER BY t.id DESC LIMIT ?2", (clean(before), limit))
        return [decoded_record(row, self.store.blobs) for row in rows]

    def natives(self) -> set[str]:
        """The conversations in which tasks were worked on, as their runners name them."""
        rows = self.store.control.query("SELECT DISTINCT CAST(native AS BLOB) FROM attempts WHERE native != ''")
        return {bytes(name).decode("utf-8", "replace") for (name,) in rows}

    def below(self, session: str) -> list[TaskRecord]:
        """The tasks that a session has asked for, the oldest first."""
        rows = self.store.control.query(f"{JOINED} WHERE t.session = ? ORDER BY t.id", (clean(session),))
        return [decoded_record(row, self.store.blobs) for row in rows]

    def thread(self, id: str) -> list[TaskRecord]:
        """The tasks of a conversation, the oldest first; none where there is none of that name."""
        rows = self.store.control.query(f"{JOINED} WHERE t.thread = ? ORDER BY t.id", (clean(id),))
        return [self._whole(decoded_record(row, self.store.blobs)) for row in rows]

    def continuable(self) -> list[str]:
        """The conversations that were started to be kept, the oldest first."""
        sql = "SELECT CAST(id AS BLOB) FROM tasks WHERE id = thread AND instr(spec, '\"continuable\"') ORDER BY id"
        rows = self.store.control.query(sql)
        found = [self.get(bytes(name).decode("utf-8", "replace")) for (name,) in rows]
        return [record.id for record in found if record is not None and record.spec.mode == "continuable"]

    def children(self, id: str) -> list[TaskRecord]:
        """The tasks that were started from a task, the oldest first."""
        rows = self.store.control.query(f"{JOINED} WHERE t.parent = ? ORDER BY t.id", (clean(id),))
        return [self._whole(decoded_record(row, self.store.blobs)) for row in rows]


SET = "UPDATE states SET " + ", ".join(f"{name} = ?{n + 1}" for n, (name, _) in enumerate((*STATES.columns, ("crc", "int"))) if n)
UPDATE = f"{SET} WHERE task = ?1 AND owner = ?8 AND epoch = ?9"


def digits(number: int, count: int) -> str:
    """The last so many digits of a number, in the alphabet of names, which sorts as numbers do."""
    return "".join(ALPHABET[(number >> 5 * place) & 31] for place in reversed(range(count)))
