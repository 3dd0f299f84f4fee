"""What waits for an agent: messages for its next turn, and messages for its next step."""

from __future__ import annotations

from hames.content.messages import Message


class Inbox:
    """Two ordered lists. A turn takes all for the next step and one for the next turn; between steps only the former are taken."""

    __slots__ = ("next_step", "next_turn")

    def __init__(self) -> None:
        self.next_turn: list[Message] = []
        self.next_step: list[Message] = []

    def __len__(self) -> int:
        return len(self.next_turn) + len(self.next_step)

    def claim_turn(self) -> list[Message]:
        """Everything for the next step, then the oldest for the next turn."""
        claimed = self.claim_step()
        if self.next_turn:
            claimed.append(self.next_turn.pop(0))
        return claimed

    def claim_step(self) -> list[Message]:
        claimed, self.next_step = self.next_step, []
        return claimed

    def clear(self) -> list[Message]:
        """Take everything back."""
        dropped = [*self.next_step, *self.next_turn]
        self.next_step, self.next_turn = [], []
        return dropped
