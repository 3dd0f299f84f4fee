"""What conversations take on disk, and removing them: from any process, while nobody works on them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from hames.content.errors import BusyError, NotFoundError
from hames.delegation.failures import Refused
from hames.delegation.ledger import Ledger
from hames.delegation.records import PURGED, TaskRecord
from hames.sessions import Sessions
from hames.sessions.log import session_number


class Kept:
    """The conversations that are kept in a state directory."""

    def __init__(self, ledger: Ledger, sessions: Sessions) -> None:
        self._ledger = ledger
        self._sessions = sessions

    def thread(self, name: str) -> Sequence[TaskRecord]:
        """The tasks of a conversation, the oldest first.

        :param name: that of the conversation, or of one of its tasks.
        :raises Refused: ``TASK_UNKNOWN``.
        """
        found = self._ledger.thread(name)
        if not found and (record := self._ledger.get(name)) is not None:
            found = self._ledger.thread(record.thread)
        if not found:
            raise Refused("TASK_UNKNOWN", f"there is no conversation {name[:64]!r}", remedy="list_agents shows those that there are")
        return found

    def older(self, time: float) -> list[str]:
        """The kept conversations that came to rest before a time, in seconds since the epoch."""
        found: list[str] = []
        for thread in self._ledger.continuable():
            records = self._ledger.thread(thread)
            rests = records and all(record.outcome is not None for record in records)
            if rests and not purged(records) and kept_in(records)[0] and max(record.settled for record in records) <= time:
                found.append(thread)
        return found

    def _removable(self, name: str) -> tuple[Sequence[TaskRecord], str]:
        records = self.thread(name)
        alive = self._ledger.store.owner.alive
        if any(record.outcome is None and alive(record.owner) for record in records):
            remedy = f"end it with 'hames task cancel {records[-1].id}'"
            raise Refused("CONVERSATION_BUSY", f"{records[0].thread} runs", remedy=remedy)
        session, _ = kept_in(records)
        if session_number(session) is None or purged(records):  # nothing but a session of ours is ever removed
            raise Refused("CONVERSATION_GONE", f"{records[0].thread} keeps no conversation", remedy="see 'hames task list'")
        return records, session

    def size(self, name: str) -> int:
        """Bytes that would be removed.

        :raises Refused: as :meth:`remove` does.
        """
        return self.bytes_of(self._removable(name)[1])

    async def remove(self, name: str) -> int:
        """Remove a conversation for good; what is known of its tasks stays. How many bytes that were.

        :raises Refused: ``CONVERSATION_BUSY`` while it runs, ``CONVERSATION_GONE`` where there is none.
        """
        records, session = self._removable(name)
        size = self.bytes_of(session)
        try:
            await self._sessions.purge(session)
        except BusyError as error:
            raise Refused("CONVERSATION_BUSY", error.message, remedy=error.remedy) from None
        except NotFoundError:  # somebody has removed the session alone
            pass
        for place in ("spill", "scratch"):
            shutil.rmtree(self._ledger.store.root / place / session, ignore_errors=True)
        await self._ledger.receive(records[-1].id, PURGED, {"session": session, "bytes": size})
        return size

    def bytes_of(self, session: str) -> int:
        """Bytes that a session takes on disk, with its files."""
        try:
            size = self._sessions.weight(session)[2]
        except NotFoundError:
            size = 0
        spill = self._ledger.store.root / "spill" / session
        return size + sum(path.stat().st_size for path in spill.rglob("*") if path.is_file())


def kept_in(records: Sequence[TaskRecord]) -> tuple[str, str]:
    """The session that a thread is kept in, and what it was started with."""
    for record in reversed(records):
        for attempt in reversed(record.attempts):
            if attempt.native:
                return attempt.native, attempt.digest
    return "", ""


def purged(records: Sequence[TaskRecord]) -> bool:
    """Whether a conversation has been removed."""
    return any(receipt.kind == PURGED for record in records for receipt in record.receipts)
