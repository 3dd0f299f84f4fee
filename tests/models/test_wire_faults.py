"""Both adapters against everything that a provider does wrong, over real sockets: each is a Finish, none is an exception."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hames.content.clock import Clock
from hames.content.finish import Chunk, Failure, FailureKind, Finish, FinishReason, ReasoningDelta, TextDelta, ToolCallDelta, Usage
from hames.content.messages import Block, Reasoning, Text, ToolCall, user
from hames.models import Settings
from hames.models.anthropic import AnthropicMessages
from hames.models.openai import OpenAIChat
from hames.models.plugin import client_session
from hames.models.wire import WireModel
from hames.testing.clock import FakeClock
from hames.testing.stub import FAULTS, StubServer, anthropic_events, openai_events

pytestmark = pytest.mark.usefixtures("nothing_left")

KEY = "sk-very-secret-0123456789"
ARGUMENTS = '{"items": []}'
DIALECTS = {"openai": OpenAIChat, "anthropic": AnthropicMessages}
EVENTS = {"openai": openai_events, "anthropic": anthropic_events}
IDLE = 0.3

OpenSession = Callable[[], aiohttp.ClientSession]
Serve = Callable[[Any], AbstractAsyncContextManager[str]]


@dataclass(frozen=True)
class Expected:
    """How a request ends: a column of the table."""

    reason: FinishReason
    blocks: tuple[Block, ...] = ()
    kind: FailureKind | None = None
    word: str = ""
    status: int = 0
    retry_after: float | None = None
    says: str = ""


def error(kind: FailureKind, *blocks: Block, says: str = "", word: str = "", status: int = 0, after: float | None = None) -> Expected:
    return Expected("error", blocks, kind, word, status, after, says)


def calls(*ids: str, arguments: str = ARGUMENTS) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(id, "todo_write", arguments) for id in ids)


DONE = Text("All is done.")
HALF = Text("Half")
NO = Text("I will not do that.")
PROOF = Reasoning("I think so.", "c2ln", "", "anthropic")
SEALED = Reasoning("", "", "b3BhcXVl", "anthropic")

#: fault: what both adapters make of it, or what the first and what the second makes of it.
TABLE: dict[str, Expected | tuple[Expected, Expected]] = {
    "": Expected("stop", (DONE,)),
    "no-finish": error("cut", DONE, says="without a finish"),
    "length-in-arguments": (
        Expected("max-tokens", calls("call_000000", arguments='{"path": "a')),
        Expected("max-tokens", calls("toolu_000000", arguments='{"path": "a')),
    ),
    "refusal": Expected("refusal", (NO,)),
    "rate-limit": error("rate-limit", says="slow down", word="rate_limit_error", status=429, after=3.0),
    "malformed": error("malformed", HALF, says="not what the protocol says"),
    "odd-shape": error("malformed", HALF, says="not what the protocol says"),
    "error-object": error("overloaded", HALF, says="overloaded", word="overloaded_error"),
    "hang": (error("timeout", Text("All "), says="0.3 s"), error("timeout", says="0.3 s")),
    "cut-socket": (error("cut", Text("All "), says="connection broke"), error("cut", says="connection broke")),
    "interleaved": (
        Expected("tool-calls", calls("call_000000", "call_000001")),
        Expected("tool-calls", calls("toolu_000000", "toolu_000001")),
    ),
    "reasoning": (
        Expected("stop", (Reasoning("I think so."), DONE)),
        Expected("stop", (PROOF, SEALED, DONE)),
    ),
    "unknown-finish": error("unknown-finish", DONE, says="'banana'", word="banana"),
    "empty": error("empty", says="without an answer"),
    "overflow": error("context-overflow", says="prompt is too long", word="context_length_exceeded", status=400),
    "auth": error("auth", says="bad key ***", word="authentication_error", status=401),
    "server": error("server", says="the server has a problem", status=500),
    "html": error("not-found", says="is the base URL right?", status=200),
    "nobody": error("transport", says="http://127.0.0.1:"),
}


def test_the_table_has_a_row_for_every_fault_of_the_stub() -> None:
    assert set(TABLE) - {"", "nobody"} == set(FAULTS)


def wire(adapter: str, url: str, session: OpenSession, *, name: str = "m", idle: float = 5.0, clock: Clock | None = None) -> WireModel:
    dialect = DIALECTS[adapter]()
    base = f"{url}/v1" if adapter == "openai" else url
    return WireModel(f"{adapter}:{name}", name, dialect, base + dialect.path, KEY, session, clock=clock or Clock(), idle=idle)


async def ask(model: WireModel, text: str = "Go.") -> tuple[list[Chunk], Finish]:
    """One whole stream: what came before the finish, and the finish."""
    stream = model.stream(model.encoder().encode("Be brief.", (), [(0, user(text))], Settings()))
    chunks = [chunk async for chunk in stream]
    finish = chunks.pop()
    assert isinstance(finish, Finish)
    assert not any(isinstance(chunk, Finish) for chunk in chunks)
    return chunks, finish


def streamed(chunks: list[Chunk]) -> tuple[str, str, dict[int, tuple[str, str, str]]]:
    """Text, reasoning, and calls by index, put together from the pieces alone."""
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))
    reasoning = "".join(chunk.text for chunk in chunks if isinstance(chunk, ReasoningDelta))
    found: dict[int, tuple[str, str, str]] = {}
    for chunk in chunks:
        if isinstance(chunk, ToolCallDelta):
            id, name, arguments = found.get(chunk.index, (chunk.id, chunk.name, ""))
            found[chunk.index] = (id, name, arguments + chunk.arguments)
    return text, reasoning, found


def closed_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("adapter", DIALECTS)
@pytest.mark.parametrize("fault", TABLE)
async def test_a_fault_is_a_finish(fault: str, adapter: str, stub: StubServer) -> None:
    row = TABLE[fault]
    expected = row if isinstance(row, Expected) else row[list(DIALECTS).index(adapter)]
    url = closed_port() if fault == "nobody" else stub.url
    async with client_session() as session:
        model = wire(adapter, url, session, name=f"fault={fault};args={ARGUMENTS}", idle=IDLE)
        chunks, finish = await ask(model)
        failure = finish.failure or Failure("cut", "")
        got = Expected(
            finish.reason,
            finish.blocks,
            failure.kind if finish.failure else None,
            failure.word,
            failure.status,
            failure.retry_after,
            expected.says if expected.says in failure.message else failure.message,
        )
        assert got == expected
        assert KEY not in repr(finish)
        text, reasoning, found = streamed(chunks)
        if fault != "refusal":  # chat completions sends a refusal beside the text, and only its whole is of use
            assert text == "".join(block.text for block in finish.blocks if isinstance(block, Text))
        assert reasoning == "".join(block.text for block in finish.blocks if isinstance(block, Reasoning))
        made = [block for block in finish.blocks if isinstance(block, ToolCall)]
        assert [found[index] for index in sorted(found)] == [(call.id, call.name, call.arguments) for call in made]
        client = session()
    assert client.closed


@pytest.mark.parametrize("adapter", DIALECTS)
async def test_nothing_but_prompt_tools_and_settings_goes_out(adapter: str, stub: StubServer, session: OpenSession) -> None:
    await ask(wire(adapter, stub.url, session))
    (received,) = stub.received
    own = {"openai": {"Authorization": f"Bearer {KEY}"}, "anthropic": {"x-api-key": KEY, "anthropic-version": "2023-06-01"}}[adapter]
    protocol = {"Host", "Accept", "Content-Type", "Content-Length"}
    assert {name: value for name, value in received.headers.items() if name not in protocol} == own
    members = {
        "openai": {"model", "stream", "stream_options", "messages"},
        "anthropic": {"model", "stream", "max_tokens", "system", "messages"},
    }
    assert json.loads(received.body).keys() == members[adapter]


@pytest.mark.parametrize("adapter", DIALECTS)
async def test_usage_counts_cached_tokens_apart(adapter: str, stub: StubServer, session: OpenSession) -> None:
    _, finish = await ask(wire(adapter, stub.url, session))
    assert finish.usage == Usage(input=36, output=10, cache_read=64)


@pytest.mark.parametrize("fault", ["no-finish", "malformed", "error-object", "hang", "cut-socket"])
async def test_usage_that_was_reported_before_a_break_is_kept(fault: str, stub: StubServer, session: OpenSession) -> None:
    _, finish = await ask(wire("anthropic", stub.url, session, name=f"fault={fault}", idle=IDLE))
    assert finish.usage == Usage(input=36, output=1, cache_read=64)


@pytest.mark.parametrize("adapter", DIALECTS)
async def test_cancelling_ends_the_request_and_leaves_what_came(adapter: str, stub: StubServer, session: OpenSession) -> None:
    model = wire(adapter, stub.url, session, name="fault=hang")
    stream = model.stream(model.encoder().encode("", (), [(0, user("Go."))], Settings()))

    async def read() -> None:
        async for _ in stream:
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.2)
    assert len(stub.received) == 1
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert stream.partial() == ((Text("All "),) if adapter == "openai" else ())


@pytest.mark.parametrize("adapter", DIALECTS)
async def test_a_body_of_megabytes_is_sent(adapter: str, stub: StubServer, session: OpenSession) -> None:
    _, finish = await ask(wire(adapter, stub.url, session), "x" * (3 << 20))
    assert finish.reason == "stop"
    assert len(stub.received[0].body) > 3 << 20


# what the stub does not do


@pytest.mark.parametrize("adapter", DIALECTS)
@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        ("7.5", 7.5),
        ("-2", 0.0),
        (format_datetime(datetime.fromtimestamp(1_700_000_030, UTC), usegmt=True), 30.0),
        (format_datetime(datetime.fromtimestamp(1_600_000_000, UTC), usegmt=True), 0.0),
        ("soon", None),
        ("", None),
    ],
)
async def test_retry_after_is_a_number_or_a_date(
    header: str, seconds: float | None, adapter: str, serve: Serve, session: OpenSession
) -> None:
    async def reply(request: web.Request) -> web.Response:
        return web.Response(status=529, headers={"retry-after": header} if header else {})

    async with serve(reply) as url:
        _, finish = await ask(wire(adapter, url, session, clock=FakeClock(1_700_000_000.0)))
    assert finish.failure == Failure("overloaded", "HTTP 529", 529, seconds)


@pytest.mark.parametrize(
    ("status", "body", "kind", "word", "message"),
    [
        (
            400,
            '{"error": {"message": "bad tool", "type": "invalid_request_error"}}',
            "invalid-request",
            "invalid_request_error",
            "bad tool",
        ),
        (
            400,
            '{"error": {"message": "maximum context length is 10", "code": null}}',
            "context-overflow",
            "",
            "maximum context length is 10",
        ),
        (403, '{"message": "no", "code": 7}', "auth", "7", "no"),
        (404, '{"error": "model not found"}', "not-found", "", "model not found"),
        (408, "", "timeout", "", "HTTP 408 Request Timeout"),
        (413, "too\n  big", "context-overflow", "", "too big"),
        (422, "[1]", "invalid-request", "", "[1]"),
        (301, "", "invalid-request", "", "HTTP 301 Moved Permanently"),
        (502, "<html>\nBad\tgateway</html>", "server", "", "<html> Bad gateway</html>"),
        (503, '{"error": {"message": "later"}}', "overloaded", "", "later"),
    ],
)
@pytest.mark.parametrize("adapter", DIALECTS)
async def test_a_status_is_a_kind_of_failure(
    status: int, body: str, kind: FailureKind, word: str, message: str, adapter: str, serve: Serve, session: OpenSession
) -> None:
    async def reply(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    async with serve(reply) as url:
        _, finish = await ask(wire(adapter, url, session))
    assert finish == Finish("error", (), None, Failure(kind, message, status, None, word))


@pytest.mark.parametrize("adapter", DIALECTS)
async def test_a_failure_is_bounded(adapter: str, serve: Serve, session: OpenSession) -> None:
    async def reply(request: web.Request) -> web.Response:
        return web.Response(status=500, text=f"{KEY} is bad; " * 10_000)

    async with serve(reply) as url:
        _, finish = await ask(wire(adapter, url, session))
    assert finish.failure is not None
    assert len(finish.failure.message) == 500
    assert KEY not in finish.failure.message


ODD: dict[str, tuple[str, str]] = {
    "text that is none": (
        '{"choices": [{"delta": {"content": {"a": 1}}}]}',
        '{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 5}}',
    ),
    "reasoning that is no text": (
        '{"choices": [{"delta": {"reasoning_content": 5}}]}',
        '{"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": 5}}',
    ),
    "arguments that are no text": (
        '{"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "b", "arguments": {"a": 1}}}]}}]}',
        '{"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": {"a": 1}}}',
    ),
    "a choice that is none": ('{"choices": {"a": 1}}', '{"type": "content_block_start", "index": 0, "content_block": null}'),
    "an index that is none": (
        '{"choices": [{"delta": {"tool_calls": [{"index": "first"}]}}]}',
        '{"type": "content_block_delta", "index": "first", "delta": {}}',
    ),
    "a delta for nothing": ('{"choices": ["a"]}', '{"type": "content_block_delta", "index": 9, "delta": {"type": "text_delta"}}'),
    "a choice that is a number": ('{"choices": [5]}', '{"type": "message_delta", "delta": null}'),
    "an object nested without end": ("[" * 100_000, '{"type":' * 100_000),
    "no object": ('"text"', "[]"),
}


async def events_of(serve: Serve, adapter: str, session: OpenSession, events: bytes) -> tuple[list[Chunk], Finish]:
    async def reply(request: web.Request) -> web.Response:
        return web.Response(body=events, headers={"Content-Type": "text/event-stream"})

    async with serve(reply) as url:
        return await ask(wire(adapter, url, session))


@pytest.mark.parametrize("adapter", DIALECTS)
@pytest.mark.parametrize("odd", ODD)
async def test_whatever_a_chunk_holds_is_malformed(odd: str, adapter: str, serve: Serve, session: OpenSession) -> None:
    good = EVENTS[adapter]({"text": "Half a"}, 0, "no-finish")
    place = 3 if adapter == "openai" else 4
    if odd.startswith("reasoning"):
        place = 1
    data = ODD[odd][list(DIALECTS).index(adapter)]
    _, finish = await events_of(serve, adapter, session, b"".join([*good[:place], f"data: {data}\n\n".encode(), *good[place:]]))
    assert finish.reason == "error"
    assert finish.failure is not None
    assert finish.failure.kind == "malformed"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "index", "x"]), inner, max_size=2),
    max_leaves=4,
)
SHAPES = ["", "reasoning", "interleaved", "length-in-arguments", "refusal", "unknown-finish"]


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a value, its own first."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def strings(finish: Finish) -> Iterator[Any]:
    """What is said to be a string in an answer."""
    for block in finish.blocks:
        match block:
            case Text(text):
                yield text
            case Reasoning(text, signature, opaque, origin):
                yield from (text, signature, opaque, origin)
            case ToolCall(id, name, arguments):
                yield from (id, name, arguments)
            case _:
                raise AssertionError(block)


@pytest.mark.parametrize("adapter", DIALECTS)
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_whatever_a_provider_sends_ends_in_one_finish(data: st.DataObject, adapter: str, serve: Serve, session: OpenSession) -> None:
    events = EVENTS[adapter]({"args": ARGUMENTS}, 0, data.draw(st.sampled_from(SHAPES)))
    number = data.draw(st.integers(0, len(events) - 1))
    lead, _, raw = events[number].decode().partition("data: ")
    if raw.startswith("{"):
        value = json.loads(raw)
        path = data.draw(st.sampled_from(list(paths(value))))
        events[number] = f"{lead}data: {json.dumps(replaced(value, path, data.draw(JSON_VALUES)))}\n\n".encode()
    chunks, finish = await events_of(serve, adapter, session, b"".join(events))
    assert all(isinstance(chunk.text, str) for chunk in chunks if isinstance(chunk, TextDelta | ReasoningDelta))
    assert all(isinstance(chunk.arguments, str) for chunk in chunks if isinstance(chunk, ToolCallDelta))
    assert all(isinstance(text, str) for text in strings(finish))
