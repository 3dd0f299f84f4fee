"""Sends an encoded request over HTTP and reads its answer; what goes wrong is a Finish, never an exception.

Written on aiohttp instead of the providers' own clients, which walk the whole history at every call (0.2 ms a message, measured
by ``benchmarks/``). No header, id or field beyond prompt, tools and settings rides along.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from email.utils import parsedate_to_datetime
from io import BytesIO

import aiohttp

from hames.content.clock import Clock
from hames.content.finish import Chunk, Failure, FailureKind, Finish, Usage
from hames.content.jsontext import as_object, parse_object
from hames.content.messages import Block
from hames.content.request import EncodedRequest
from hames.models.encoder import Encoder, none
from hames.models.port import WINDOW, Dialect, Pictures
from hames.models.sse import EventSplitter

PIECES_FROM = 1024 * 1024  # bytes of a body
MESSAGE_LIMIT = 500  # characters of a provider's error that are kept
STATUSES: dict[int, FailureKind] = {
    401: "auth",
    403: "auth",
    404: "not-found",
    408: "timeout",
    413: "context-overflow",
    429: "rate-limit",
    503: "overloaded",
    529: "overloaded",
}
OVERFLOW = ("context_length_exceeded", "context length", "prompt is too long", "maximum context", "too many tokens")


class WireModel:
    """A model behind an HTTP endpoint.

    :param session: gives the shared client session of the running loop.
    :param idle: seconds without a byte after which the request has failed with ``timeout``.
    :param reasoning: which earlier reasoning is sent again, see :class:`Encoder`.
    :param proxy: the URL of a proxy, or None.
    :param cost: the price of tokens.
    :param window: tokens that a request and its answer have room for.
    """

    def __init__(
        self,
        ref: str,
        name: str,
        dialect: Dialect,
        url: str,
        key: str,
        session: Callable[[], aiohttp.ClientSession],
        *,
        clock: Clock,
        idle: float = 300.0,
        reasoning: str = "always",
        proxy: str | None = None,
        cost: Callable[[Usage], float | None] = lambda usage: None,
        window: int = WINDOW,
    ) -> None:
        self.ref = ref
        self.url = url
        self.idle = idle
        self.proxy = proxy
        self.session = session
        self.clock = clock
        self._cost = cost
        self.window = window
        self._name = name
        self._dialect = dialect
        self._key = key
        self._reasoning = reasoning
        self.headers = {**dialect.headers(key), "Content-Type": "application/json", "Accept": "text/event-stream"}

    def cost(self, usage: Usage) -> float | None:
        return self._cost(usage)

    def encoder(self, pictures: Pictures = none) -> Encoder:
        return Encoder(self._dialect, self._name, reasoning=self._reasoning, pictures=pictures)

    def stream(self, request: EncodedRequest) -> WireStream:
        return WireStream(self, self._dialect, request)

    def scrub(self, text: str) -> str:
        """Bounded text without the key."""
        return (text.replace(self._key, "***") if self._key else text)[:MESSAGE_LIMIT]


class WireStream:
    """One request under way."""

    def __init__(self, model: WireModel, dialect: Dialect, request: EncodedRequest) -> None:
        self._model = model
        self._request = request
        self._parser = dialect.parser()

    def partial(self) -> tuple[Block, ...]:
        return self._parser.partial()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        model = self._model
        try:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(30.0, model.idle), sock_read=model.idle)
            async with model.session().post(
                model.url, data=self._body(), headers=model.headers, timeout=timeout, allow_redirects=False, proxy=model.proxy
            ) as response:
                if response.status != 200:
                    yield self._failed(await self._refused(response))
                    return
                if response.content_type != "text/event-stream":
                    what = f"{model.url} answered with {response.content_type} instead of a stream; is the base URL right?"
                    yield self._failed(Failure("not-found", model.scrub(what), response.status))
                    return
                splitter = EventSplitter()
                async for data in response.content.iter_any():
                    for event, text in splitter.feed(data):
                        for chunk in self._parser.feed(event, text):
                            yield self._scrubbed(chunk)
                            if isinstance(chunk, Finish):
                                return
            yield self._end("the stream ended without a finish")
        except TimeoutError:
            yield self._failed(Failure("timeout", f"no byte for {model.idle:g} s"))
        except aiohttp.ClientPayloadError:
            yield self._end("the connection broke in the middle of the answer")
        except (aiohttp.ClientError, OSError) as error:
            yield self._failed(Failure("transport", model.scrub(f"{model.url}: {error or type(error).__name__}")))
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            # What a provider sends is data: whatever shape it has, it is an outcome.
            yield self._failed(Failure("malformed", model.scrub(f"a chunk that is not what the protocol says: {error}")))

    def _body(self) -> bytes | BytesIO:
        """The body; a large one is sent in pieces, so that it does not hold up the loop."""
        body = self._request.body()
        return body if len(body) <= PIECES_FROM else BytesIO(body)

    def _end(self, why: str) -> Chunk:
        """The Finish that the end of the stream implies, or that it was cut."""
        finish = self._parser.end()
        return self._scrubbed(finish) if finish is not None else self._failed(Failure("cut", why))

    def _failed(self, failure: Failure) -> Finish:
        return Finish("error", self._parser.partial(), self._parser.usage, failure)

    def _scrubbed(self, chunk: Chunk) -> Chunk:
        if isinstance(chunk, Finish) and chunk.failure is not None:
            failure = chunk.failure
            scrub = self._model.scrub
            said = replace(failure, message=scrub(failure.message), word=scrub(failure.word))
            return replace(chunk, failure=said)
        return chunk

    async def _refused(self, response: aiohttp.ClientResponse) -> Failure:
        raw = (await response.content.read(64 * 1024)).decode("utf-8", "replace")
        message, word = error_text(raw)
        lowered = f"{word} {message}".lower()
        status = response.status
        kind: FailureKind = STATUSES.get(status) or ("server" if status >= 500 else "invalid-request")
        if kind == "invalid-request" and any(sign in lowered for sign in OVERFLOW):
            kind = "context-overflow"
        scrub = self._model.scrub
        said = scrub(message or f"HTTP {status} {response.reason or ''}".strip())
        return Failure(kind, said, status, self._retry_after(response), scrub(word))

    def _retry_after(self, response: aiohttp.ClientResponse) -> float | None:
        """Seconds to wait, from a number or a date (RFC 9110, section 10.2.3)."""
        value = response.headers.get("retry-after", "")
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - self._model.clock.now())
        except (ValueError, TypeError):
            return None


def error_text(raw: str) -> tuple[str, str]:
    """The message and the word of an error body, whatever its shape."""
    try:
        body = parse_object(raw)
    except ValueError:
        return " ".join(raw.split()), ""
    error = body.get("error", body)
    members = as_object(error)
    return str(members.get("message") or error), str(members.get("code") or members.get("type") or "")
