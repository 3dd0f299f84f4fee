"""Encodes a growing conversation: each request costs only what is new in it.

A wire group is closed when the next message opens another one; closed groups keep their bytes. The digest of a body is taken
over a copied state of the prefix, so it too costs only what is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from hames.content.messages import Message, Reasoning, ToolResult
from hames.content.request import EncodedRequest, Fragment, ToolSpec, splice
from hames.models.port import Dialect, Logged, Settings

SEPARATOR = b","


class Encoder:
    """The encoder of one conversation.

    :param reasoning: which earlier reasoning is sent again: ``never``, ``turn`` (since the last message of a user) or ``always``.
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
        "_last_count",
        "_model",
        "_open",
        "_reasoned",
        "_reasoning",
        "_window",
        "encoded",
    )

    def __init__(self, dialect: Dialect, model: str, *, reasoning: str = "always") -> None:
        self._dialect = dialect
        self._model = model
        self._reasoning = reasoning
        self._head_key: tuple[str, Sequence[ToolSpec], Settings] | None = None
        self._head = b""
        self.encoded = 0
        self._reset()

    def _reset(self) -> None:
        self._groups: list[Fragment] = []
        self._closed = 0  # messages in closed groups
        self._last: Message | None = None  # the last of them
        self._last_count = 0  # groups of the request before
        self._open: tuple[int, Fragment] | None = None  # messages in the open group, and its bytes
        self._window = 0  # the first message whose reasoning is sent
        self._reasoned = False  # whether closed groups carry reasoning of the window
        self._hash = sha256(self._head)

    def encode(self, system: str, tools: Sequence[ToolSpec], messages: Sequence[Logged], settings: Settings) -> EncodedRequest:
        """The request that asks for the next answer of a conversation."""
        reason = self._prepare(system, tools, messages, settings)
        kept = self._take_closed(messages)
        fragment = self._take_open(messages)
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
        self._last_count = len(groups)
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
            self._head = self._dialect.head(self._model, system, tools, settings)
            self._reset()
        elif self._closed and (len(messages) < self._closed or messages[self._closed - 1][1] is not self._last):
            reason = "history"
            self._reset()
        else:
            reason = ""
        if self._reasoning == "turn":
            window = self._start_of_turn(messages)
            if window != self._window:
                if self._reasoned:
                    reason = reason or "reasoning"
                    self._reset()
                self._window = window
        return reason

    @staticmethod
    def _start_of_turn(messages: Sequence[Logged]) -> int:
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index][1]
            if message.role == "user" and not any(isinstance(block, ToolResult) for block in message.blocks):
                return index
        return 0

    def _take_closed(self, messages: Sequence[Logged]) -> int:
        """Close every group that another one follows; return how many leading groups are as they were."""
        kept = len(self._groups)
        joins = self._dialect.joins
        start = self._closed
        for index in range(start + 1, len(messages)):
            if joins(messages[index - 1][1], messages[index][1]):
                continue
            count = index - start
            if self._open is not None and self._open[0] == count and start == self._closed and kept == len(self._groups):
                fragment: Fragment | None = self._open[1]
                kept += 1
            else:
                fragment = self._encode(messages, start, index)
            self._open = None
            if fragment is not None:
                if self._groups:
                    self._hash.update(SEPARATOR)
                self._hash.update(fragment.data)
                self._groups.append(fragment)
            start = index
            self._closed = index
            self._last = messages[index - 1][1]
        return min(kept, self._last_count)

    def _take_open(self, messages: Sequence[Logged]) -> Fragment | None:
        count = len(messages) - self._closed
        if count == 0:
            return None
        if self._open is not None and self._open[0] == count:
            return self._open[1]
        fragment = self._encode(messages, self._closed, len(messages))
        self._open = None if fragment is None else (count, fragment)
        return fragment

    def _encode(self, messages: Sequence[Logged], start: int, end: int) -> Fragment | None:
        group = [message for _, message in messages[start:end]]
        reasoning = self._reasoning == "always" or (self._reasoning == "turn" and start >= self._window)
        if reasoning and any(isinstance(block, Reasoning) for message in group for block in message.blocks):
            self._reasoned = True
        self.encoded += 1
        return self._dialect.group(group, reasoning=reasoning)
