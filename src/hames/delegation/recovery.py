"""What becomes of the tasks of a process that has died: nothing of theirs runs any more, and what there is of them is kept."""

from __future__ import annotations

from collections.abc import Callable, Set

from hames.content.errors import HamesError
from hames.delegation.ledger import Ledger
from hames.delegation.outcome import Outcome, failed
from hames.delegation.records import TaskRecord
from hames.sessions import Sessions


async def recover(ledger: Ledger, sessions: Sessions, contain: Callable[[str, BaseException], None], live: Set[str] | None = None) -> None:
    """Settle the tasks whose process does not live, as interrupted. Of several processes that try, one does it.

    :param live: those that this process drives; None for all that are its own.
    """
    for record in ledger.orphans(live):
        try:
            outcome = interrupted(record, sessions)
            await ledger.take_over(record)
            await ledger.settle(record.id, record.epoch + 1, outcome)
        except Exception as error:  # somebody was faster, or it cannot be written
            contain(f"task {record.id}", error)


def interrupted(record: TaskRecord, sessions: Sessions) -> Outcome:
    """How a task ended whose process died."""
    native = record.attempts[-1].native if record.attempts else ""
    text = proceed = ""
    if native:
        try:
            text, proceed = last_words(sessions, native), f"hames run --resume {native} PROMPT"
        except HamesError:  # its session has not come to be, or is damaged
            pass
    return failed(
        "HOST_DIED",
        "the process that ran it died" if record.attempts else "the process died before it began",
        text=text,
        partial=bool(text),
        attempts=len(record.attempts),
        native=native,
        proceed=proceed,
    )


def last_words(sessions: Sessions, name: str) -> str:
    """The last thing that the model of a session said; what a fork was handed on is not its own.

    :raises NotFoundError: if there is no such session.
    """
    for event in reversed(sessions.read(name)):
        if event.type == "state" and event.data.get("name") == "delegation":
            break
        if event.type == "message" and not event.damaged and event.data.get("role") == "assistant":
            text = "".join(block.get("text", "") for block in event.data["blocks"] if block.get("type") == "text")
            if text:
                return text
    return ""
