"""What a model is to the rest of the house, and what an adapter has to know of its protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hames.content.finish import Chunk, Usage
from hames.content.messages import Block, Message
from hames.content.request import EncodedRequest, Fragment, ToolSpec

WINDOW = 128_000
"""Tokens of the window of a model that nobody has said another one of."""

Pictures = Callable[[str], bytes]
"""Gives the bytes of a picture by the digest that names it."""

Logged = tuple[int, Message]
"""A message with the number of its event."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to answer. None leaves it to the provider.

    :param max_tokens: at most so many tokens in the answer.
    :param effort: how much to reason, a word of the provider's.
    :param schema: a JSON Schema that the answer has to follow, where the provider can enforce one.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    effort: str | None = None
    schema: dict[str, Any] | None = None


class ModelStream(Protocol):
    """One request under way. Iterating gives chunks, the last of which is a Finish, and never raises for what the provider does."""

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    def partial(self) -> tuple[Block, ...]:
        """What has arrived so far, without tool calls."""
        ...


class RequestEncoder(Protocol):
    """Turns one growing conversation into requests."""

    def encode(self, system: str, tools: Sequence[ToolSpec], messages: Sequence[Logged], settings: Settings) -> EncodedRequest: ...


class Model(Protocol):
    """A model of a provider.

    :ivar ref: its name as the user wrote it.
    """

    @property
    def ref(self) -> str: ...

    @property
    def window(self) -> int:
        """Tokens that a request and its answer have room for."""
        ...

    def encoder(self, pictures: Pictures) -> RequestEncoder:
        """A new encoder, for one conversation."""
        ...

    def stream(self, request: EncodedRequest) -> ModelStream:
        """Send a request. One call is one attempt; cancelling the iteration ends it."""
        ...

    def cost(self, usage: Usage) -> float | None:
        """What these tokens cost, in US dollars; None where nobody knows."""
        ...


class Provider(Protocol):
    """Serves models."""

    def model(self, name: str, profile: str, ref: str) -> Model:
        """The model ``name``, with the provider's named settings ``profile``.

        :raises ModelReferenceError: if it cannot be used as named.
        """
        ...


class Parser(Protocol):
    """Assembles one answer from the data of server-sent events.

    :ivar usage: what has been reported so far.
    """

    @property
    def usage(self) -> Usage | None: ...

    def feed(self, event: str, data: str) -> Sequence[Chunk]:
        """The chunks of one event; after a Finish nothing more is fed.

        :raises ValueError: if the data is not what the protocol says.
        """
        ...

    def end(self) -> Chunk | None:
        """The Finish that the end of the stream implies; None where the stream was cut."""
        ...

    def partial(self) -> tuple[Block, ...]: ...


class Form(Protocol):
    """How a conversation is written down as a request.

    :ivar name: name and version, recorded with each request.
    :ivar marker: what marks the end of a cacheable prefix; empty where the protocol has none.
    """

    @property
    def name(self) -> str: ...

    @property
    def marker(self) -> bytes: ...

    @property
    def tail(self) -> bytes: ...

    def head(self, model: str, system: str, tools: Sequence[ToolSpec], settings: Settings) -> bytes: ...

    def joins(self, previous: Message, message: Message) -> bool:
        """Whether a message goes into the same wire group as the one before it."""
        ...

    def group(self, messages: Sequence[Message], *, reasoning: bool, pictures: Pictures) -> Fragment | None:
        """The bytes of one wire group; None where nothing of it is sent."""
        ...


class Dialect(Form, Protocol):
    """A protocol of model requests: how one is written, sent and answered."""

    @property
    def path(self) -> str: ...

    def headers(self, key: str) -> dict[str, str]: ...

    def parser(self) -> Parser: ...
