"""Keeping a conversation within its model's window: first long old results are shortened, then a summary takes the place of the past.

Nothing is lost: the log holds what was left out, and the tool ``recall`` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hames.agents.context import estimate
from hames.content.messages import Image, Message, Text, ToolResult
from hames.sessions import Session
from hames.sessions.history import SHORTENED

INSTRUCTION = """The conversation is about to be shortened: your answer to this message takes the place of everything above it. Call no
tool. Write down, as notes to yourself: what the user wants, word for word where it matters; what was decided and why; what has been
done, with paths and names; what is known of the code; what failed and must not be tried again; what is left to do, in order. Be
complete and short."""

LEAD = "The conversation so far was long and is replaced by these notes of yours. The tool recall shows the original where you need it.\n\n"


@dataclass(frozen=True, slots=True)
class Fitting:
    """How a conversation is kept within its window.

    :param threshold: the part of the window from which on something is done.
    :param retain: the part of the window that stays as it is at the end of the conversation.
    :param prune_over: characters from which on an old result is shortened.
    :param head: characters of it that stay, at its beginning.
    :param tail: characters of it that stay, at its end.
    """

    threshold: float = 0.8
    retain: float = 0.16
    prune_over: int = 8192
    head: int = 4096
    tail: int = 1024


Rewrite = Literal["pressure", "overflow", "user"]


def cut(session: Session, retain: int) -> int:
    """Where the past ends: the number of the first message that stays, as a place in the list.

    The retained end is at most ``retain`` tokens, and no call is parted from its result. At least the past of one message is cut, and
    at least one message stays where that can be.
    """
    messages = session.messages
    total, place = 0, len(messages)
    for index in range(len(messages) - 1, 0, -1):
        message = messages[index][1]
        total += estimate(message)
        if total > retain and place < len(messages):
            break
        if not any(isinstance(block, ToolResult) for block in message.blocks):
            place = index
        if total > retain:
            break
    return place


def prunable(session: Session, fitting: Fitting, end: int) -> list[int]:
    """The events of messages before a place whose results are long."""
    found: list[int] = []
    limit = max(fitting.prune_over, fitting.head + fitting.tail + 2 * len(SHORTENED))
    for seq, message in session.messages[:end]:
        if any(isinstance(block, ToolResult) and any(is_long(part, limit) for part in block.content) for block in message.blocks):
            found.append(seq)
    return found


def is_long(part: Text | Image, limit: int) -> bool:
    """Whether a part of a result gains from being shortened; one that has been does not again."""
    return not isinstance(part, Text) or (len(part.text) >= limit and SHORTENED not in part.text)


def summary(text: str) -> Message:
    return Message("user", (Text(LEAD + text.strip()),), "harness")
