"""The ledger: what was intended, who drives it, how it ended. In ``control.db``, written before what it speaks of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import apsw

from hames.content.clock import Clock
from hames.content.errors import FencedError
from hames.content.jsontext import dumps, parse_object
from hames.content.messages import clean
from hames.delegation.failures import Refused
from hames.delegation.outcome import Outcome
from hames.delegation.records import (
    JOINED,
    Admission,
    Attempt,
    Liveness,
    Publication,
    Receipt,
    State,
    TaskRecord,
    Waiting,
    decoded_record,
    encoded_outcome,
    sum_of,
)
from hames.delegation.spec import TaskSpec
from hames.store import Store, Ticket

FENCE = "EXISTS (SELECT 1 FROM states WHERE task = ?1 AND owner = ?2 AND epoch = ?3)"


class Ledger:
    """The tasks of one state directory.

    :param store: an open one; ``control.db`` is opened when it is first needed.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self._last = 0

    def new_id(self) -> str:
        """A name for a task: sorts by the time of creation, and no other process makes the same."""
        chance = sum_of(self.store.owner.id, self._last) & 0xFFFFF
        number = self._last = max(int(self.clock.now() * 1000) << 20 | chance, self._last + 1)
        return "t" + "".join("0123456789abcdefghjkmnpqrstvwxyz"[(number >> shift) & 31] for shift in range(60, -1, -5))

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self.store.control.closed

    # writing

    def intend(self, id: str, spec: TaskSpec, *, parent: str, root: str, session: str, call: str, depth: int, thread: str = "") -> Ticket:
        """Write down what is about to be done. Nothing of it may happen before the ticket holds.

        :raises Refused: with the ticket, ``TASK_CONFLICT`` if there is a task of this name.
        """
        now, owner = self.clock.now(), self.store.owner.id
        thread = thread or id
        data = clean(dumps(spec.as_json())).encode()
        task = (id, thread, parent, root or id, session, call, depth, now, spec.digest, data)
        state = (id, "intended", "", "not-admitted", "undetermined", "pending", "", owner, 1, now)

        def body(connection: apsw.Connection) -> None:
            if list(connection.execute("SELECT 1 FROM tasks WHERE id = ?", (id,))):
                raise Refused("TASK_CONFLICT", f"there is a task {id} already", remedy="give this one another name")
            connection.execute(
                "INSERT OR IGNORE INTO threads (id, runner, created, crc) VALUES (?, ?, ?, ?)",
                (thread, spec.runner, now, sum_of(thread, spec.runner, now)),
            )
            connection.execute(f"INSERT INTO tasks VALUES ({marks(10)}, 1, ?)", (*task, sum_of(*task)))
            connection.execute(f"INSERT INTO states VALUES ({marks(10)}, 1, ?)", (*state, sum_of(*state)))

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
        publication: Publication = "pending",
        cause: str = "",
    ) -> Ticket:
        """Say how it is with a task now.

        :raises FencedError: with the ticket, if somebody else has taken it over.
        """
        owner = self.store.owner.id
        values = (id, state, waiting, admission, liveness, publication, cause, owner, epoch, self.clock.now())
        return self.store.control.write(
            """UPDATE states SET state = ?2, waiting = ?3, admission = ?4, liveness = ?5, publication = ?6, cause = ?7, updated = ?10,
            crc = ?11 WHERE task = ?1 AND owner = ?8 AND epoch = ?9""",
            (*values, sum_of(*values)),
            must_change=True,
        )

    def attempt(self, id: str, epoch: int, attempt: Attempt) -> Ticket:
        """Write down a launch, or what has become known of it.

        :raises FencedError: with the ticket, if somebody else has taken the task over.
        """
        owner = self.store.owner.id
        values = (
            *(id, attempt.n, attempt.runner, attempt.digest, owner, epoch),
            *(attempt.native, attempt.began, attempt.ended, attempt.exit),
        )
        return self.store.control.write(
            f"""INSERT OR REPLACE INTO attempts SELECT ?1, ?4, ?5, ?6, ?2, ?3, ?7, ?8, ?9, ?10, 1, ?11 WHERE {FENCE}""",
            (
                *(id, owner, epoch, attempt.n, attempt.runner, attempt.digest),
                *(attempt.native, attempt.began, attempt.ended, attempt.exit, sum_of(*values)),
            ),
            must_change=True,
        )

    def settle(self, id: str, epoch: int, outcome: Outcome, *, liveness: Liveness = "ended", cause: str = "") -> Ticket:
        """Write down how it ended, once and for all. Deliver it to nobody before the ticket holds.

        :raises FencedError: with the ticket, if somebody else has taken it over, or it has an outcome.
        """
        now, owner = self.clock.now(), self.store.owner.id
        data = encoded_outcome(outcome, self.store.blobs)
        state = (id, "settled", "", "admitted", liveness, "committed", cause, owner, epoch, now)

        def body(connection: apsw.Connection) -> None:
            connection.execute(
                f"INSERT OR IGNORE INTO outcomes SELECT ?1, ?4, ?5, 1, ?6 WHERE {FENCE}",
                (id, owner, epoch, now, data, sum_of(id, now, data)),
            )
            if connection.changes() == 0:
                said = f"task {id} has an outcome, or another process has taken it over"
                raise FencedError(said, remedy="look at it with 'hames task show'")
            connection.execute(
                """UPDATE states SET state = ?2, waiting = ?3, admission = ?4, liveness = ?5, publication = ?6, cause = ?7, updated = ?10,
                crc = ?11 WHERE task = ?1 AND owner = ?8 AND epoch = ?9""",
                (*state, sum_of(*state)),
            )

        return self.store.control.run(body)

    def receive(self, id: str, kind: str, data: dict[str, Any]) -> Ticket:
        """Attach evidence to a task. It changes nothing of its outcome."""
        now, raw = self.clock.now(), clean(dumps(data)).encode()

        def body(connection: apsw.Connection) -> None:
            ((n,),) = connection.execute("SELECT COALESCE(MAX(n), 0) + 1 FROM receipts WHERE task = ?", (id,))
            connection.execute(f"INSERT INTO receipts VALUES ({marks(5)}, 1, ?)", (id, n, kind, now, raw, sum_of(id, n, kind, now, raw)))

        return self.store.control.run(body)

    # stopping, from any process

    def ask_to_stop(self, id: str, cause: str) -> Ticket:
        """Ask whoever drives a task to end it; the first cause is kept."""
        now = self.clock.now()
        return self.store.control.write(
            "INSERT OR IGNORE INTO stops (task, cause, requested, crc) VALUES (?, ?, ?, ?)", (id, cause, now, sum_of(id, cause, now))
        )

    def stops(self) -> list[tuple[str, str]]:
        """What is to end and nobody has heard of yet: tasks and causes."""
        return self.store.control.query(
            "SELECT p.task, p.cause FROM stops p JOIN states s ON s.task = p.task WHERE p.acknowledged = 0 AND s.owner = ?",
            (self.store.owner.id,),
        )  # pyright: ignore[reportReturnType]

    def acknowledge(self, ids: Iterable[str]) -> None:
        for id in ids:
            self.store.control.write("UPDATE stops SET acknowledged = ? WHERE task = ?", (self.clock.now(), id))

    def stop_of(self, id: str) -> tuple[str, float, float] | None:
        """Why a task was asked to end, when, and when that was heard (0 for not yet)."""
        rows = self.store.control.query("SELECT cause, requested, acknowledged FROM stops WHERE task = ?", (id,))
        return rows[0] if rows else None  # pyright: ignore[reportReturnType]

    # taking over what a dead process has left

    def orphans(self) -> list[TaskRecord]:
        """Tasks without an outcome whose process does not live any more."""
        rows = self.store.control.query(JOINED + " WHERE s.publication = 'pending' AND s.owner != ?", (self.store.owner.id,))
        found = [decoded_record(row, self.store.blobs) for row in rows]
        return [self._whole(record) for record in found if not self.store.owner.alive(record.owner)]

    def take_over(self, record: TaskRecord) -> Ticket:
        """Drive a task of a dead process from now on; the new epoch is one more.

        :raises FencedError: with the ticket, if somebody was faster.
        """
        values = (
            *(record.id, record.state, record.waiting, record.admission, record.liveness, record.publication, record.cause),
            *(self.store.owner.id, record.epoch + 1, self.clock.now()),
        )
        return self.store.control.write(
            "UPDATE states SET owner = ?2, epoch = ?3, updated = ?4, crc = ?5 WHERE task = ?1 AND owner = ?6 AND epoch = ?7",
            (record.id, *values[7:], sum_of(*values), record.owner, record.epoch),
            must_change=True,
        )

    # reading

    def get(self, id: str) -> TaskRecord | None:
        """What is known of a task; None where there is none of that name."""
        rows = self.store.control.query(JOINED + " WHERE t.id = ?", (id,))
        return self._whole(decoded_record(rows[0], self.store.blobs)) if rows else None

    def _whole(self, record: TaskRecord) -> TaskRecord:
        attempts: list[Attempt] = []
        damaged = list(record.damaged)
        rows = self.store.control.query(
            "SELECT n, runner, digest, owner, epoch, native, began, ended, exit, crc FROM attempts WHERE task = ? ORDER BY n", (record.id,)
        )
        for row in rows:
            attempts.append(Attempt(row[0], row[1], row[2], row[5], row[6], row[7], row[8]))
            if sum_of(record.id, *row[:-1]) != row[-1]:
                damaged.append(f"attempt {row[0]}")
        receipts: list[Receipt] = []
        for n, kind, time, data, crc in self.store.control.query(
            "SELECT n, kind, time, data, crc FROM receipts WHERE task = ? ORDER BY n", (record.id,)
        ):
            if sum_of(record.id, n, kind, time, data) == crc:
                receipts.append(Receipt(kind, time, parse_object(data)))
            else:
                damaged.append(f"receipt {n}")
        return replace(record, attempts=tuple(attempts), receipts=tuple(receipts), damaged=tuple(damaged))

    def list(self, *, limit: int = 50, before: str = "", live: bool = False) -> list[TaskRecord]:
        """Tasks, the newest first.

        :param before: only those that are older than this one.
        :param live: only those without an outcome.
        """
        where = "WHERE (?1 = '' OR t.id < ?1)" + (" AND s.publication = 'pending'" if live else "")
        rows = self.store.control.query(f"{JOINED} {where} ORDER BY t.id DESC LIMIT ?2", (before, limit))
        return [decoded_record(row, self.store.blobs) for row in rows]

    def below(self, session: str) -> list[TaskRecord]:
        """The tasks that a session has asked for, the oldest first."""
        rows = self.store.control.query(JOINED + " WHERE t.session = ? ORDER BY t.id", (session,))
        return [decoded_record(row, self.store.blobs) for row in rows]

    def children(self, id: str) -> list[TaskRecord]:
        """The tasks that were started from a task, the oldest first."""
        rows = self.store.control.query(JOINED + " WHERE t.parent = ? ORDER BY t.id", (id,))
        return [self._whole(decoded_record(row, self.store.blobs)) for row in rows]


def marks(count: int) -> str:
    return ", ".join("?" * count)
