"""How much of a model's window a conversation fills."""

from __future__ import annotations

from hames.content.finish import Usage
from hames.content.messages import Image, Message, Reasoning, Text, ToolCall, ToolResult
from hames.sessions import Session

PER_TOKEN = 4  # characters
PER_BLOCK = 4  # tokens
PER_IMAGE = 1500  # tokens


def estimate(message: Message) -> int:
    """Tokens of a message, roughly."""
    total = PER_BLOCK
    for block in message.blocks:
        match block:
            case Text(text):
                total += len(text) // PER_TOKEN
            case Reasoning(text, signature, opaque):
                total += (len(text) + len(signature) + len(opaque)) // PER_TOKEN
            case ToolCall(_, name, arguments):
                total += (len(name) + len(arguments)) // PER_TOKEN
            case ToolResult(_, content):
                total += sum(PER_IMAGE if isinstance(part, Image) else len(part.text) // PER_TOKEN for part in content)
            case Image():
                total += PER_IMAGE
            case _:
                pass
        total += PER_BLOCK
    return total


class ContextMeter:
    """Counts the tokens of the next request: what the provider reported last, and an estimate of what has been added since.

    :ivar not_below: tokens below which notes are not asked for again, since they failed.
    """

    __slots__ = ("_anchor", "_count", "_seen", "not_below")

    def __init__(self) -> None:
        self.not_below = 0
        self._anchor = 0  # tokens up to and with message number _count
        self._count = 0
        self._seen: object = None  # the list that the count is of: a rewritten history is another one

    def answered(self, session: Session, usage: Usage | None) -> None:
        """A request has been answered, and its answer is logged. A report that is less than the estimate is not believed."""
        if usage is not None and usage.input + usage.cache_read + usage.cache_write:
            self._anchor = max(usage.total, self.tokens(session, 0))

    def tokens(self, session: Session, overhead: int) -> int:
        """Tokens of the next request.

        :param overhead: characters of system prompt and tools, for where nothing has been reported yet.
        """
        messages = session.messages
        if self._seen is not messages:
            self._anchor, self._count, self._seen = overhead // PER_TOKEN, 0, messages
        self._anchor += sum(estimate(message) for _, message in messages[self._count :])
        self._count = len(messages)
        return self._anchor
