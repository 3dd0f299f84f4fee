"""What waits for an agent: messages for its next turn, and messages for its next step. They are durable, and survive the process."""

from __future__ import annotations

from contextlib import suppress

from hames.content.errors import StorageError
from hames.content.messages import Message
from hames.sessions import Session
from hames.sessions.history import Target, Waiting

UNLOGGED = -1


class Inbox:
    """Two ordered lists. A turn takes all for the next step and one for the next turn; between steps only the former are taken.

    :ivar taken: how many have been taken so far.
    :ivar heard: how many of them were a user's.

    A message is taken by logging it in the conversation under the number that it was queued with; taking it back is logged too.
    """

    __slots__ = ("_parked", "_session", "heard", "next_step", "next_turn", "taken")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._parked: list[Waiting] = []  # facts that come with the next message, whenever that is
        self.taken = 0
        self.heard = 0
        self.next_turn: list[Waiting] = [item for item in session.pending if item.target == "turn"]
        self.next_step: list[Waiting] = [item for item in session.pending if item.target == "step"]

    def __len__(self) -> int:
        return len(self.next_turn) + len(self.next_step)

    def put(self, target: Target, message: Message, *, at_once: bool = False) -> None:
        """Let a message wait.

        :param at_once: it is about to be taken: it is logged then, and not before.
        :raises StorageError: if it cannot be logged; it does not wait then.
        """
        item = Waiting(UNLOGGED, target, message) if at_once else self._logged(target, message)
        (self.next_turn if target == "turn" else self.next_step).append(item)
        self.next_step[:0], self._parked = self._parked, []

    def _logged(self, target: Target, message: Message) -> Waiting:
        return Waiting(self._session.next_seq, target, self._session.queue(target, message))

    def _take(self, items: list[Waiting]) -> None:
        item = items[0]
        if item.seq == UNLOGGED:
            self._session.add(item.message)
        else:
            self._session.add(item.message, queued=item.seq)
        del items[0]
        self.taken += 1
        self.heard += item.message.source == "user"

    def forget(self, text: str) -> None:
        """Take back the newest message for a turn with this text: it could not be kept."""
        for index in range(len(self.next_turn) - 1, -1, -1):
            item = self.next_turn[index]
            if item.message.text == text:
                del self.next_turn[index]
                if item.seq != UNLOGGED:
                    with suppress(StorageError):  # where nothing can be written it is not there either
                        self._session.append("dropped", {"items": [item.seq]})
                return

    def keep(self) -> None:
        """Log what is not yet: it is not taken at once after all.

        :raises StorageError: if it cannot be logged.
        """
        for items in (self.next_step, self.next_turn):
            items[:] = [self._logged(item.target, item.message) if item.seq == UNLOGGED else item for item in items]

    def take_turn(self) -> None:
        """Log everything for the next step, then the oldest for the next turn."""
        self.take_step()
        if self.next_turn:
            self._take(self.next_turn)

    def take_step(self) -> bool:
        """Log everything for the next step; whether there was something."""
        found = bool(self.next_step)
        while self.next_step:
            self._take(self.next_step)
        return found

    def postpone(self) -> None:
        """Leave what the next turn would take to whoever opens the session again: it could not be taken now.

        :raises StorageError: if it cannot be logged; it is gone then.
        """
        try:
            self.keep()
        finally:
            self._parked += [item for item in self.next_step if item.message.source == "harness"]
            self.next_step.clear()
            del self.next_turn[:1]

    def clear(self) -> list[Message]:
        """Take everything back, save facts that the harness states for a next step: results of work stay, and wait for the next message.

        :raises StorageError: if that cannot be logged; nothing waits any more all the same.
        """
        facts = [item for item in self.next_step if item.message.source == "harness"]
        dropped = [*(item for item in self.next_step if item not in facts), *self.next_turn]
        self.next_step, self.next_turn = [], []
        self._parked += [self._logged(item.target, item.message) if item.seq == UNLOGGED else item for item in facts]
        if logged := [item.seq for item in dropped if item.seq != UNLOGGED]:
            self._session.append("dropped", {"items": logged})
        return [item.message for item in dropped]
