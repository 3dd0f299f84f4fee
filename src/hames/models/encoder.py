"""Encodes a growing conversation: each request costs only what is new in it.

A wire group is closed when the next message opens another one; closed groups keep their bytes. The digest of a body is taken
over a copied state of the prefix, so it too costs only what is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

from hames.content.errors import NotFoundError
from hames.content.messages import Reasoning, ToolResult
from hames.content.request import EncodedRequest, Fragment, ToolSpec, splice
from hames.models.port import Form, Logged, Pictures, Settings

SEPARATOR = b","


def none(blob: str) -> bytes:
    raise NotFoundError(f"there is no picture {blob}", code="BLOB_UNKNOWN")


HEADS = 64  # beginnings of requests that are kept


@lru_cache(HEADS)
def same(head: bytes) -> bytes:
    """The one object that stands for equal bytes: many agents have the same tools, and need not keep them each."""
    return head


def shared_head(dialect: Form, model: str, system: str, tools: Sequence[ToolSpec], settings: Settings) -> bytes:
    return same(dialect.head(model, system, tools, settings))


class Encoder:
    """The encoder of one conversation.

    :param reasoning: which earlier reasoning is sent again: ``never``, ``turn`` (since the last message of a user) or ``always``.
    :param pictures: gives the bytes of pictures.
    :ivar encoded: how many groups have been encoded so far, for tests of what a request costs.
    """

    __slots__ = (
        "_closed",
        "_dialect",
        "_groups",
        "_hash",
        "_head",
        "_head_key",
        "_last",
        "_model",
        "_open",
        "_pictures",
        "_reasoned",
        "_reasoning",
        "_seen",
        "_starts",
        "_window",
        "encoded",
    )

    def __init__(self, dialect: Form, model: str, *, reasoning: str = "always", pictures: Pictures = none) -> None:
        self._pictures = pictures
        self._dialect = dialect
        self._model = model
        self._reasoning = reasoning
        self._head_key: tuple[str, Sequence[ToolSpec], Settings] | None = None
        self._head = b""
        self.encoded = 0
        self._reset()

    def _reset(self) -> None:
        self._groups: list[Fragment] = []
        self._starts: list[int] = []  # the first message of each
        self._closed = 0  # messages in closed groups
        self._seen: list[Logged] = []  # the messages of the request before
        self._last: list[Fragment] = []  # its groups
        self._open: tuple[int, Fragment | None] | None = None  # messages in the open group, and its bytes
        self._window = 0  # the first message whose reasoning is sent
        self._reasoned = False  # whether closed groups carry reasoning of the window
        self._hash = sha256(self._head)

    def encode(self, system: str, tools: Sequence[ToolSpec], messages: Sequence[Logged], settings: Settings) -> EncodedRequest:
        """The request that asks for the next answer of a conversation."""
        reason = self._prepare(system, tools, messages, settings)
        kept = len(self._groups)
        self._take_closed(messages)
        fragment = self._take_open(messages, len(messages))
        groups = list(self._groups)
        digest = self._hash.copy()
        marker, marked = self._dialect.marker, -1
        if fragment is not None:
            groups.append(fragment)
            if marker and fragment.marker_at >= 0:
                marked = len(groups) - 1
            digest.update(SEPARATOR if len(groups) > 1 else b"")
            digest.update(splice(fragment, marker) if marked >= 0 else fragment.data)
        digest.update(self._dialect.tail)
        kept = min(kept, len(self._last))
        while kept < min(len(groups), len(self._last)) and groups[kept] is self._last[kept]:
            kept += 1  # the open group, if it is as it was
        self._seen = list(messages)
        self._last = groups
        return EncodedRequest(
            self._dialect.name,
            self._head,
            groups,
            self._dialect.tail,
            digest.hexdigest(),
            SEPARATOR,
            marker if marked >= 0 else b"",
            marked,
            kept,
            reason,
        )

    def _prepare(self, system: str, tools: Sequence[ToolSpec], messages: Sequence[Logged], settings: Settings) -> str:
        """Start anew where the request cannot extend the one before, and say why."""
        key = (system, tools, settings)
        if self._head_key != key:
            reason = "initial" if self._head_key is None else "head"
            self._head_key = key
            self._head = shared_head(self._dialect, self._model, system, tools, settings)
            self._reset()
        elif self._seen != list(messages[: len(self._seen)]):  # compares by identity first, so this is cheap
            reason = "history"
            self._reset()
        else:
            reason = ""
        if self._reasoning == "turn":
            window = self._start_of_turn(messages)
            if window != self._window:
                if self._reasoned:
                    reason = reason or "reasoning"
                    self._cut(self._window)
                self._window = window
        return reason

    def _cut(self, start: int) -> None:
        """Take back the closed groups from message number ``start`` on: they are sent in another way now."""
        kept = sum(place < start for place in self._starts)
        groups, starts, last = self._groups[:kept], self._starts[:kept], self._last
        closed = self._starts[kept] if kept < len(self._starts) else min(self._closed, start)
        self._reset()
        self._groups, self._starts, self._closed, self._last = groups, starts, closed, last
        for index, group in enumerate(groups):
            self._hash.update(SEPARATOR if index else b"")
            self._hash.update(group.data)

    @staticmethod
    def _start_of_turn(messages: Sequence[Logged]) -> int:
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index][1]
            if message.role == "user" and not any(isinstance(block, ToolResult) for block in message.blocks):
                return index
        return 0

    def _take_closed(self, messages: Sequence[Logged]) -> None:
        """Close every group that another one follows."""
        joins = self._dialect.joins
        for index in range(self._closed + 1, len(messages)):
            if joins(messages[index - 1][1], messages[index][1]):
                continue
            fragment = self._take_open(messages, index)
            start, self._closed, self._open = self._closed, index, None
            if fragment is not None:
                self._starts.append(start)
                if self._groups:
                    self._hash.update(SEPARATOR)
                self._hash.update(fragment.data)
                self._groups.append(fragment)

    def _take_open(self, messages: Sequence[Logged], end: int) -> Fragment | None:
        count = end - self._closed
        if count == 0:
            return None
        if self._open is None or self._open[0] != count:
            self._open = (count, self._encode(messages, end))
        return self._open[1]

    def _encode(self, messages: Sequence[Logged], end: int) -> Fragment | None:
        start = self._closed
        group = [message for _, message in messages[start:end]]
        reasoning = self._reasoning == "always" or (self._reasoning == "turn" and start >= self._window)
        if reasoning and any(isinstance(block, Reasoning) for message in group for block in message.blocks):
            self._reasoned = True
        self.encoded += 1
        return self._dialect.group(group, reasoning=reasoning, pictures=self._pictures)
