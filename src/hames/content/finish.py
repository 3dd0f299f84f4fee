"""How a model request ends: what it streams, what it costs, and why it stopped."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from hames.content.messages import Block

FinishReason = Literal["stop", "tool-calls", "max-tokens", "refusal", "aborted", "error"]

FailureKind = Literal[
    "cut",  # the stream ended without saying that it is finished
    "unknown-finish",  # it finished with a word that the adapter does not know
    "malformed",  # a chunk that is not what the protocol says
    "empty",  # it finished and said nothing at all
    "rate-limit",
    "overloaded",
    "server",
    "timeout",  # no byte within the idle limit
    "transport",  # no connection, or one that broke
    "auth",
    "not-found",  # no such model or path
    "context-overflow",
    "invalid-request",
]

RETRYABLE: frozenset[str] = frozenset({"cut", "malformed", "empty", "rate-limit", "overloaded", "server", "timeout", "transport"})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed.

    :param message: bounded text for a person, without a secret.
    :param status: the HTTP status, 0 where there was none.
    :param retry_after: seconds that the provider asks to wait, or None.
    :param word: the provider's own word, kept verbatim.
    """

    kind: FailureKind
    message: str
    status: int = 0
    retry_after: float | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more requests. ``input`` counts what was not read from or written to a cache."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.reasoning + other.reasoning,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.input - other.input,
            self.output - other.output,
            self.cache_read - other.cache_read,
            self.cache_write - other.cache_write,
            self.reasoning - other.reasoning,
        )

    @property
    def total(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write

    def as_json(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name)}


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of the raw arguments of the call with this position in the answer; id and name come with the first piece."""

    index: int
    arguments: str
    id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """The last chunk of every stream.

    :param blocks: the answer, whole; on ``error`` and ``aborted`` what had arrived. Its tool calls are executed only when the
        reason is ``tool-calls``.
    :param usage: what the provider reported, None where it reported nothing.
    """

    reason: FinishReason
    blocks: tuple[Block, ...] = ()
    usage: Usage | None = None
    failure: Failure | None = None


Chunk = TextDelta | ReasoningDelta | ToolCallDelta | Finish


def encode_failure(failure: Failure) -> dict[str, Any]:
    """The durable form of a failure; members at their default are left out."""
    members = {
        "kind": failure.kind,
        "message": failure.message,
        "status": failure.status,
        "retry_after": failure.retry_after,
        "word": failure.word,
    }
    return {key: value for key, value in members.items() if value not in (0, None, "")}
