"""How tasks look to people and programs that watch them from another process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hames.delegation import report
from hames.delegation.ledger import Ledger
from hames.delegation.records import PURGED, REFUSED, TaskRecord


@dataclass(frozen=True, slots=True)
class Seen:
    """A task as it is seen now.

    :param status: that of its outcome; else its state, and ``interrupted`` where the process that drove it does not live any more.
    """

    record: TaskRecord
    status: str
    liveness: str
    publication: str

    @property
    def live(self) -> bool:
        return self.record.outcome is None and self.status not in ("interrupted", "unknown")

    def as_json(self) -> dict[str, Any]:
        """The record, with what is seen of it."""
        own = {"status": self.status, "liveness": self.liveness, "publication": self.publication}
        return {**self.record.as_json(), **own}


def seen(record: TaskRecord, alive: Callable[[str], bool]) -> Seen:
    """A record beside what can be seen of its process. Looking changes nothing."""
    if record.outcome is not None:
        return Seen(record, record.outcome.status, record.liveness, record.publication)
    if "outcome" in record.damaged:
        return Seen(record, "unknown", record.liveness, "unknown")
    if "state" in record.damaged:
        return Seen(record, "unknown", "undetermined", "unknown")
    if not alive(record.owner):  # nothing of it runs on without its process
        return Seen(record, "interrupted", "ended", "unknown")
    waiting = f" ({record.waiting})" if record.waiting else ""
    return Seen(record, f"{record.state}{waiting}", record.liveness, record.publication)


def branches(ledger: Ledger, record: TaskRecord) -> Iterator[tuple[int, TaskRecord]]:
    """A task and all below it, each with how deep it stands, a parent before its children."""
    known: set[str] = set()
    left = [(0, record)]
    while left:
        depth, each = left.pop()
        if each.id not in known:  # damage can make a task its own parent
            known.add(each.id)
            yield depth, each
            left += [(depth + 1, child) for child in reversed(ledger.children(each.id))]


def reasons(record: TaskRecord) -> list[str]:
    """Why a task is there and what became of it that its status does not say, a line each.

    :param record: with its receipts.
    """
    spec, outcome = record.spec, record.outcome
    found: list[str] = []
    if spec.after:
        lacked = f": it lacked {'; '.join(spec.missing)}" if spec.missing else ""
        found.append(f"after {spec.after}{f' ({spec.because})' if spec.because else ''}{lacked}")
    elif record.thread != record.id:
        found.append(f"goes on with {record.thread}")
    if outcome is not None and report.failed(spec, outcome):
        lacks = report.lacks(spec, outcome)
        found.append(f"it says that it failed{f', and lacks {lacks}' if lacks else ''}")
    for receipt in record.receipts:
        if receipt.kind == REFUSED:
            found.append(f"not begun after it: {receipt.data.get('why', '')} ({receipt.data.get('code', '')})")
        elif receipt.kind == PURGED:
            found.append("its conversation was removed")
    return found
