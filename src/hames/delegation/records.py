"""What is known of a task: its records, and how they are written down and read.

``schema_version`` 1. A record that does not match its checksum is marked as damaged and told as such; it hides no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hames.content.errors import DamagedError, NotFoundError
from hames.content.jsontext import parse_object
from hames.delegation.outcome import Outcome, decode_outcome
from hames.delegation.spec import TaskSpec, decode_spec
from hames.delegation.tables import ATTEMPTS, OUTCOMES, RECEIPTS, STATES, TASKS, encoded
from hames.store import Blobs

State = Literal["intended", "queued", "launching", "running", "waiting", "stopping", "settled"]
Waiting = Literal["", "child", "user", "slot", "worktree"]
Admission = Literal["unknown", "not-admitted", "admitted"]
Liveness = Literal["undetermined", "running", "ended"]
Publication = Literal["unknown", "pending", "committed", "rejected"]

SCHEMA_VERSION = 1
INLINE = 64 * 1024
"""Bytes of an outcome that stand in the database; a longer one is a blob."""


DELIVERED, REFUSED, PURGED, NOT_TAKEN, MESSAGE = "delivered", "refused", "purged", "not-taken", "message"
"""Kinds of receipts: whoever asked for a task has its outcome; something was not begun after it; its conversation was removed; it never
had what it was given; it was given a further message."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One launch.

    :param runner: name and version of who launched it.
    :param digest: of the executable, or of the composition that it ran in.
    :param native: its conversation as the runner names it.
    :param ended: seconds since the epoch; 0 while it runs.
    :param exit: how it ended, in a word.
    """

    n: int
    runner: str
    digest: str
    native: str
    began: float
    ended: float
    exit: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """Evidence about a task that came after its outcome."""

    kind: str
    time: float
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """All that is known of a task.

    :param thread: the conversation that it is a part of.
    :param parent: the task that it was started from; empty for none.
    :param root: the task at the top of its tree; its own name there.
    :param session: the session that asked for it; empty for none.
    :param call: the call of a tool that asked for it.
    :param depth: how deep it stands below a conversation of a user, from 1.
    :param digest: of what was asked for, before it was resolved.
    :param cause: why it was asked to end; empty where nobody has.
    :param settled: when its outcome was recorded, in seconds since the epoch; 0 before.
    :param damaged: which of its records do not match their checksum.
    """

    id: str
    thread: str
    parent: str
    root: str
    session: str
    call: str
    depth: int
    created: float
    digest: str
    spec: TaskSpec
    state: State
    waiting: Waiting
    admission: Admission
    liveness: Liveness
    publication: Publication
    cause: str
    owner: str
    epoch: int
    updated: float
    settled: float = 0.0
    outcome: Outcome | None = None
    attempts: tuple[Attempt, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    damaged: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The record for ``--json``."""
        own = {name: getattr(self, name) for name in OWN}
        attempts = [{name: getattr(each, name) for name in Attempt.__slots__} for each in self.attempts]
        optional = {
            "waiting": self.waiting,
            "cause": self.cause,
            "settled": self.settled,
            "outcome": self.outcome.as_json() if self.outcome is not None else None,
            "attempts": attempts,
            "receipts": [{"kind": each.kind, "time": each.time, **each.data} for each in self.receipts],
            "damaged": list(self.damaged),
        }
        return {"schema_version": SCHEMA_VERSION, **own, "spec": self.spec.as_json(), **{k: v for k, v in optional.items() if v}}


OWN = (
    *("id", "thread", "parent", "root", "session", "call", "depth", "created"),
    *("state", "admission", "liveness", "publication", "updated"),
)


def encoded_outcome(outcome: Outcome, blobs: Blobs) -> bytes:
    """The durable form of an outcome; a long one becomes a blob, on disk when this returns.

    :raises ValueError: if it holds what is no JSON.
    """
    data = encoded(outcome.as_json())
    return data if len(data) <= INLINE else encoded({"blob": blobs.put(data)})


def decoded_outcome(data: bytes, blobs: Blobs) -> Outcome:
    """The inverse of :func:`encoded_outcome`.

    :raises DamagedError: if the blob is not there or not what it was.
    :raises ValueError: if it is none.
    """
    members = parse_object(data)
    if "blob" not in members:
        return decode_outcome(members)
    try:
        return decode_outcome(parse_object(blobs.get(members["blob"])))
    except NotFoundError as error:
        raise DamagedError(error.message, remedy="run 'hames doctor'") from None


JOINED = f"""SELECT {TASKS.selected("t")}, {STATES.selected("s")}, {OUTCOMES.selected("o")}
    FROM tasks t LEFT JOIN states s ON s.task = t.id LEFT JOIN outcomes o ON o.task = t.id"""


def decoded_record(row: Sequence[Any], blobs: Blobs) -> TaskRecord:
    """A record of a row of :data:`JOINED`, without attempts and receipts."""
    first, second = TASKS.width, TASKS.width + STATES.width
    damaged: list[str] = []
    task, sound = TASKS.read(row[:first])
    spec = TaskSpec("")
    try:
        spec = decode_spec(parse_object(task[-1])) if sound else spec
    except (ValueError, TypeError):
        sound = False
    if not sound:
        damaged.append("task")
    state, sound = STATES.read(row[first:second])
    if not sound:
        damaged.append("state")
        state[1:7] = ["intended", "", "unknown", "undetermined", "unknown", ""]
    ended, settled = _ended(row[second:], blobs, damaged, committed=state[5] == "committed")
    members: tuple[Any, ...] = (*task[:9], spec, *state[1:], settled, ended, (), (), tuple(damaged))
    return TaskRecord(*members)


def _ended(row: Sequence[Any], blobs: Blobs, damaged: list[str], *, committed: bool) -> tuple[Outcome | None, float]:
    """The outcome of a task and when it came; what of it is not as it was is noted."""
    if row[-1] is None and not committed:
        return None, 0.0
    values, sound = OUTCOMES.read(row)
    try:
        if sound:
            return decoded_outcome(values[2], blobs), values[1]
    except (DamagedError, ValueError, TypeError):
        pass
    damaged.append("outcome")
    return None, values[1]


def decoded_attempts(rows: Sequence[Sequence[Any]], damaged: list[str]) -> tuple[Attempt, ...]:
    found: list[Attempt] = []
    for row in rows:
        (_, n, runner, digest, _, _, native, began, ended, exit), sound = ATTEMPTS.read(row)
        found.append(Attempt(n, runner, digest, native, began, ended, exit))
        if not sound:
            damaged.append(f"attempt {n}")
    return tuple(found)


def decoded_receipts(rows: Sequence[Sequence[Any]], damaged: list[str]) -> tuple[Receipt, ...]:
    found: list[Receipt] = []
    for row in rows:
        (_, n, kind, time, data), sound = RECEIPTS.read(row)
        try:
            if sound:
                found.append(Receipt(kind, time, parse_object(data)))
                continue
        except ValueError:
            pass
        damaged.append(f"receipt {n}")
    return tuple(found)
