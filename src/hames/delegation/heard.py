"""Whether a person has spoken after something was told: read from the whole log, so that a compaction makes no difference."""

from __future__ import annotations

from collections.abc import Sequence

from hames.content.messages import ToolResult, decode_message
from hames.delegation.records import TaskRecord
from hames.sessions import Event

ASKING = "ask_user_question"
ENDED = "has ended"
"""Stands in every notice of the end of a task."""


class Heard:
    """What a session was told, and when a person spoke there.

    :param events: of the session of whoever gives the work.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self._answered: dict[str, int] = {}  # calls, and where their results stand
        self._notices: list[tuple[int, str]] = []
        self._spoke = -1
        questions: set[str] = set()
        for event in events:
            if event.damaged:
                continue
            if event.type == "call" and event.data.get("name") == ASKING:
                questions.add(str(event.data.get("id")))
            if event.type != "message":
                continue
            message = decode_message(event.data)
            if message.source == "user":
                self._spoke = event.seq
            elif message.source == "harness":
                self._notices.append((event.seq, message.text))
            for block in message.blocks:
                if isinstance(block, ToolResult):
                    self._answered[block.call_id] = event.seq
                    if block.call_id in questions and not block.is_error:
                        self._spoke = event.seq

    def __call__(self, record: TaskRecord) -> bool:
        """Whether a person has spoken since an agent was told how a task ended."""
        if record.outcome is None:
            return False
        at = next((seq for seq, text in self._notices if record.id in text and ENDED in text), None)
        if at is None and record.spec.mode == "foreground":
            at = self._answered.get(record.call)
        return at is not None and self._spoke > at
