"""From the events of a session to what its model is shown and what still waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hames.content.messages import Message, Text, ToolResult, decode_message
from hames.sessions.event import Event

Target = Literal["turn", "step"]
SHORTENED = "characters are not shown any more; recall shows them"

Shown = list[tuple[int, Message]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that waits.

    :param seq: of the event that queued it.
    """

    seq: int
    target: Target
    message: Message


def shown(events: Sequence[Event]) -> tuple[Shown, dict[str, str]]:
    """The messages that a model is shown, and which facts stand in them."""
    messages: Shown = []
    told: dict[str, str] = {}
    for event in events:
        if event.type == "message":
            messages.append((event.seq, decode_message(event.data)))
            told.update(event.data.get("contexts", {}))
        elif event.type == "told":
            told.update(event.data["contexts"])
        elif event.type == "pruned":
            chosen = frozenset(event.data["items"])
            head, tail = event.data["head"], event.data["tail"]
            messages = [(seq, pruned(message, head, tail) if seq in chosen else message) for seq, message in messages]
        elif event.type == "compacted":
            messages = compacted(messages, event.data["until"], event.seq, decode_message(event.data))
            told = {}
    return messages, told


def chosen_model(events: Sequence[Event]) -> str:
    """The model that was chosen last: another one that a turn went on with was not chosen."""
    chosen, elsewhere = "", False
    for event in events:
        model = event.data.get("model")
        if event.type == "turn":
            elsewhere = False
        elif event.type == "fallback" and not elsewhere:
            chosen, elsewhere = str(event.data.get("from", chosen)), True
        elif event.type in ("message", "failed") and isinstance(model, str) and not elsewhere:
            chosen = model
    return chosen


def waiting(events: Sequence[Event]) -> list[Waiting]:
    """The messages that were queued and neither taken nor dropped, in order."""
    found: dict[int, Waiting] = {}
    for event in events:
        if event.type == "queued":
            found[event.seq] = Waiting(event.seq, event.data["target"], decode_message(event.data))
        elif event.type == "message" and "queued" in event.data:
            found.pop(event.data["queued"], None)
        elif event.type == "dropped":
            for item in event.data["items"]:
                found.pop(item, None)
    return list(found.values())


def compacted(messages: Shown, until: int, seq: int, summary: Message) -> Shown:
    """Messages with a summary in the place of all before event ``until``.

    A summary before it has a higher number than what it stands for: messages are cut where the first kept one is.
    """
    place = next((index for index, (number, _) in enumerate(messages) if number == until), len(messages))
    return [(seq, summary), *messages[place:]]


def pruned(message: Message, head: int, tail: int) -> Message:
    """A message whose long results are shown by their ends. The same arguments always give the same message."""
    blocks = tuple(shortened(block, head, tail) if isinstance(block, ToolResult) else block for block in message.blocks)
    return replace(message, blocks=blocks)


def shortened(result: ToolResult, head: int, tail: int) -> ToolResult:
    content: list[Any] = []
    for part in result.content:
        if isinstance(part, Text) and len(part.text) > head + tail:
            left_out = len(part.text) - head - tail
            end = part.text[-tail:] if tail else ""
            content.append(Text(f"{part.text[:head]}\n[… {left_out} {SHORTENED} …]\n{end}"))
        elif isinstance(part, Text):
            content.append(part)
        else:
            content.append(Text("[a picture that is not shown any more]"))
    return replace(result, content=tuple(content))
