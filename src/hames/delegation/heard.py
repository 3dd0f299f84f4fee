"""Whether a person has spoken after something was told: read from the whole log, so that a compaction makes no difference."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hames.content.messages import ToolCall, ToolResult, decode_message
from hames.delegation.notices import ENDED
from hames.delegation.records import TaskRecord
from hames.sessions import Event

ASKING = "ask_user_question"
TASK = re.compile(r"\btask (t[0-9a-z]+)\b")


class Heard:
    """What a session was told, and when a person spoke there.

    A message counts from when it was given, and an answer from when its question was asked: what was said before the end of a task was
    told says nothing about it.

    :param events: of the session of whoever gives the work.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self._told: dict[str, int] = {}  # tasks, and where their ends stand
        self._begun: dict[str, int] = {}
        self._spoke = -1
        questions: dict[str, int] = {}
        for event in events:
            if event.damaged:
                continue
            data = event.data
            if event.type == "settled":
                self._told.setdefault(str(data.get("task")), event.seq)
            elif event.type == "delegated":
                self._begun[str(data.get("task"))] = event.seq
            elif event.type == "message":
                message = decode_message(data)
                if message.source == "user":
                    self._spoke = max(self._spoke, int(data.get("queued", event.seq)))
                elif message.source == "harness":
                    first = message.text.partition("\n")[0]
                    if ENDED in first and (found := TASK.search(first.lower())):
                        self._told.setdefault(found.group(1), event.seq)
                for block in message.blocks:
                    if isinstance(block, ToolCall) and block.name == ASKING:
                        questions[block.id] = event.seq
                    if isinstance(block, ToolResult) and block.call_id in questions and not block.is_error:
                        self._spoke = max(self._spoke, questions[block.call_id])

    def __call__(self, record: TaskRecord) -> bool:
        """Whether a person has spoken since an agent was told how a task ended; of one whose end was never told, since it was given."""
        if record.outcome is None:
            return False
        at = self._told.get(record.id, self._begun.get(record.id))
        return at is not None and self._spoke > at
