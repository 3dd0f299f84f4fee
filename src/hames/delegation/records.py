"""What is known of a task: its records, and how they are written down and read.

``schema_version`` 1. A record that does not match its checksum is marked as damaged and told as such; it hides no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hames.content.errors import DamagedError, NotFoundError
from hames.content.jsontext import dumps, parse_object
from hames.content.messages import clean
from hames.delegation.outcome import Outcome, decode_outcome
from hames.delegation.spec import TaskSpec, decode_spec
from hames.store import Blobs, checksum

State = Literal["intended", "queued", "launching", "running", "waiting", "stopping", "settled"]
Waiting = Literal["", "child", "user", "slot", "worktree"]
Admission = Literal["unknown", "not-admitted", "admitted"]
Liveness = Literal["undetermined", "running", "ended"]
Publication = Literal["unknown", "pending", "committed", "rejected"]

SCHEMA_VERSION = 1
INLINE = 64 * 1024
"""Bytes of an outcome that stand in the database; a longer one is a blob."""


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


def sum_of(*values: object) -> int:
    """The checksum of the fields of a record."""
    return checksum("|".join(value.hex() if isinstance(value, bytes) else repr(value) for value in values))


def encoded_outcome(outcome: Outcome, blobs: Blobs) -> bytes:
    """The durable form of an outcome; a long one becomes a blob, on disk when this returns."""
    data = clean(dumps(outcome.as_json())).encode()
    return data if len(data) <= INLINE else dumps({"blob": blobs.put(data)}).encode()


def decoded_outcome(data: bytes, blobs: Blobs) -> Outcome:
    """The inverse of :func:`encoded_outcome`.

    :raises DamagedError: if the blob is not there or not what it was.
    """
    members = parse_object(data)
    if "blob" not in members:
        return decode_outcome(members)
    try:
        return decode_outcome(parse_object(blobs.get(members["blob"])))
    except NotFoundError as error:
        raise DamagedError(error.message, remedy="run 'hames doctor'") from None


JOINED = """SELECT t.id, t.thread, t.parent, t.root, t.session, t.call, t.depth, t.created, t.digest, t.spec, t.crc,
    s.state, s.waiting, s.admission, s.liveness, s.publication, s.cause, s.owner, s.epoch, s.updated, s.crc,
    o.settled, o.data, o.crc
    FROM tasks t LEFT JOIN states s ON s.task = t.id LEFT JOIN outcomes o ON o.task = t.id"""


def decoded_record(row: Sequence[Any], blobs: Blobs, attempts: tuple[Attempt, ...] = (), receipts: tuple[Receipt, ...] = ()) -> TaskRecord:
    """A record of a row of :data:`JOINED`."""
    task, state, outcome = row[:11], row[11:21], row[21:24]
    damaged: list[str] = []
    spec = TaskSpec("")
    if sum_of(*task[:-1]) == task[-1]:
        spec = decode_spec(parse_object(task[9]))
    else:
        damaged.append("task")
    if state[0] is None or sum_of(task[0], *state[:-1]) != state[-1]:
        damaged.append("state")
        state = ("intended", "", "unknown", "undetermined", "unknown", "", "", 0, 0.0, 0)
    ended: Outcome | None = None
    if outcome[1] is not None:
        try:
            if sum_of(task[0], *outcome[:-1]) != outcome[-1]:
                raise DamagedError("an outcome does not match its checksum")
            ended = decoded_outcome(outcome[1], blobs)
        except DamagedError:
            damaged.append("outcome")
    members: tuple[Any, ...] = (*task[:8], spec, *state[:9], outcome[0] or 0.0, ended, attempts, receipts, tuple(damaged))
    return TaskRecord(*members)
