"""A model server over real sockets that speaks both protocols and misbehaves on demand.

What it does stands in the name of the model, as ``key=value`` pairs with ``;`` between them:

``steps=N;tool=NAME;args=JSON``
    N answers that call the tool once each (``calls=K`` times in parallel), then a text. The place in the conversation is the
    number of tool results in the request, so any number of agents may use one server. A ``#`` in the arguments stands for the
    number of the call, in six digits.
``fault=KIND;times=T``
    Misbehave as :data:`FAULTS` lists, for the first T requests of this model name, or for all of them where T is not given.
``text=WORDS``
    What the last answer says.
``window=TOKENS``
    Four bytes are a token: the usage says how many came, and more than the window is refused as too long.
``count=requests``
    The place is the number of answers that this model name has given: for conversations that are shortened on their way.

Whoever asks for notes instead of a conversation (see :mod:`hames.agents.compaction`) gets notes.

Run it alone with ``python -m hames.testing.stub``; it prints its URL.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from hames.content.jsontext import dumps, parse_object

FAULTS = {
    "no-finish": "the stream ends in good order, without a finish",
    "length-in-arguments": "the limit of tokens is reached inside the arguments of a call",
    "refusal": "the model refuses",
    "rate-limit": "429 with retry-after: 3",
    "malformed": "a chunk that is no JSON",
    "odd-shape": "a chunk that is JSON of another shape",
    "error-object": "an error object in the middle of the stream",
    "hang": "nothing comes any more",
    "cut-socket": "the connection breaks in the middle",
    "interleaved": "two parallel calls whose pieces alternate",
    "reasoning": "reasoning with a signature before the answer",
    "unknown-finish": "a finish word that no adapter knows",
    "empty": "a finish without an answer",
    "overflow": "400: the prompt is too long",
    "auth": "401, with the key in its message",
    "server": "500",
    "html": "200 with a page",
}


NOTES = "Write down, as notes to yourself"  # a part of what asks for notes


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came on the socket."""

    path: str
    headers: dict[str, str]
    body: bytes


class StubServer:
    """The server.

    :param keep: how many requests are kept in :attr:`received`; 0 for none.
    """

    def __init__(self, *, keep: int = 10_000) -> None:
        self.received: deque[Received] = deque(maxlen=keep)
        self.url = ""
        self._seen: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        self._runner: web.AppRunner | None = None
        self._stopping = asyncio.Event()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen, and return the URL."""
        app = web.Application(client_max_size=256 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._openai)
        app.router.add_post("/v1/messages", self._anthropic)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=1024)
        await site.start()
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"
        return self.url

    async def stop(self) -> None:
        self._stopping.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def __aenter__(self) -> StubServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _take(self, request: web.Request) -> tuple[dict[str, Any], dict[str, str], str]:
        raw = await request.read()
        if self.received.maxlen:
            self.received.append(Received(request.path, dict(request.headers), raw))
        body = parse_object(raw)
        name = str(body["model"])
        options = {key: value for key, _, value in (part.partition("=") for part in name.split(";"))}
        self._seen[name] += 1
        times = options.get("times")
        fault = options.get("fault", "") if times is None or self._seen[name] <= int(times) else ""
        return body, options, fault

    async def _openai(self, request: web.Request) -> web.StreamResponse:
        body, options, fault = await self._take(request)
        done = sum(message["role"] == "tool" for message in body["messages"])
        options, done, fault = self._placed(body, options, done, fault)
        return await self._answer(request, openai_events(options, done, fault), fault)

    async def _anthropic(self, request: web.Request) -> web.StreamResponse:
        body, options, fault = await self._take(request)
        done = sum(
            block["type"] == "tool_result" for message in body["messages"] if message["role"] == "user" for block in message["content"]
        )
        options, done, fault = self._placed(body, options, done, fault)
        return await self._answer(request, anthropic_events(options, done, fault), fault)

    def _placed(self, body: dict[str, Any], options: dict[str, str], done: int, fault: str) -> tuple[dict[str, str], int, str]:
        """What the answer is to be: of a size, at a place, or notes."""
        size = len(dumps(body["messages"])) // 4
        if "window" in options:
            options = {**options, "size": str(size)}
            fault = "overflow" if size > int(options["window"]) else fault
        if NOTES in str(body["messages"][-1]):
            return {**options, "steps": "0", "text": "Notes: " + "this was done. " * 20}, done, fault
        if options.get("count") == "requests":
            name = str(body["model"])
            done = self._answered[name]
            self._answered[name] += int(options.get("calls", "1")) if fault != "overflow" else 0
        return options, done, fault

    async def _answer(self, request: web.Request, events: list[bytes], fault: str) -> web.StreamResponse:
        refused = refusal(request, fault)
        if refused is not None:
            return refused
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if fault == "cut-socket":
            response.content_length = 1 << 20  # promised, so that the break can be seen
        await response.prepare(request)
        if fault in ("hang", "cut-socket"):
            await response.write(b"".join(events[:2]))
            if fault == "hang":
                await self._stopping.wait()
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write(b"".join(events))
        await response.write_eof()
        return response


def refusal(request: web.Request, fault: str) -> web.Response | None:
    """The answers that are no stream."""
    match fault:
        case "rate-limit":
            error = {"error": {"type": "rate_limit_error", "message": "slow down"}}
            return web.json_response(error, status=429, headers={"retry-after": "3"})
        case "overflow":
            error = {"error": {"code": "context_length_exceeded", "message": "prompt is too long"}}
            return web.json_response(error, status=400)
        case "auth":
            key = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
            return web.json_response({"error": {"type": "authentication_error", "message": f"bad key {key}"}}, status=401)
        case "server":
            return web.Response(status=500, text="the server has a problem")
        case "html":
            return web.Response(text="<html>hello</html>", content_type="text/html")
        case _:
            return None


def planned(options: dict[str, str], done: int) -> int:
    """How many calls the next answer holds."""
    steps, calls = int(options.get("steps", "0")), int(options.get("calls", "1"))
    return calls if done < steps * calls else 0


def event(data: Any, name: str = "") -> bytes:
    lead = f"event: {name}\n" if name else ""
    return f"{lead}data: {data if isinstance(data, str) else dumps(data)}\n\n".encode()


def openai_events(options: dict[str, str], done: int, fault: str) -> list[bytes]:
    """The events of one answer in the chat-completions protocol."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return event({"id": "chatcmpl-0", "object": "chat.completion.chunk", "choices": [choice]})

    def call(index: int, arguments: str, *, first: bool = True) -> dict[str, Any]:
        head: dict[str, str] = {"id": f"call_{done + index:06d}", "type": "function"} if first else {}
        name: dict[str, str] = {"name": options.get("tool", "todo_write")} if first else {}
        return {"index": index, **head, "function": {**name, "arguments": arguments}}

    def filled(index: int) -> str:
        return arguments.replace("#", f"{done + index:06d}")

    count = planned(options, done)
    arguments = options.get("args", "{}")
    events = [chunk({"role": "assistant", "content": ""})]
    finish: str | None = "stop"
    if fault == "reasoning":
        events += [chunk({"reasoning_content": "I think"}), chunk({"reasoning_content": " so."})]
    if fault == "interleaved":
        half = len(arguments) // 2
        events += [chunk({"tool_calls": [call(i, arguments[:half])]}) for i in (0, 1)]
        events += [chunk({"tool_calls": [call(i, arguments[half:], first=False)]}) for i in (0, 1)]
        finish = "tool_calls"
    elif fault == "length-in-arguments":
        events.append(chunk({"tool_calls": [call(0, '{"path": "a')]}))
        finish = "length"
    elif fault == "refusal":
        events.append(chunk({"refusal": "I will not do that."}))
    elif fault == "malformed":
        events += [chunk({"content": "Half"}), event('{"choices": [')]
    elif fault == "odd-shape":
        events += [chunk({"content": "Half"}), event({"choices": [{"delta": "text"}]})]
    elif fault == "error-object":
        events += [chunk({"content": "Half"}), event({"error": {"message": "overloaded", "type": "overloaded_error"}})]
    elif count:
        events.append(chunk({"tool_calls": [call(index, filled(index)) for index in range(count)]}))
        finish = "tool_calls"
    elif fault != "empty":
        text = options.get("text", "All is done.")
        events += [chunk({"content": word + " "}) for word in text.split(" ")[:-1]]
        events.append(chunk({"content": text.split(" ")[-1]}))
    if fault in ("malformed", "odd-shape", "error-object", "no-finish"):
        return events
    events.append(chunk({}, "banana" if fault == "unknown-finish" else finish))
    size = int(options.get("size", "100"))
    usage = {"prompt_tokens": size, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": min(size, 64)}}
    events.append(event({"choices": [], "usage": usage}))
    events.append(event("[DONE]"))
    return events


def anthropic_events(options: dict[str, str], done: int, fault: str) -> list[bytes]:
    """The events of one answer in the messages protocol."""

    def typed(kind: str, **members: Any) -> bytes:
        return event({"type": kind, **members}, kind)

    def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
        return [
            typed("content_block_start", index=index, content_block=start),
            *(typed("content_block_delta", index=index, delta=delta) for delta in deltas),
            typed("content_block_stop", index=index),
        ]

    def call(index: int, *pieces: str, place: int = 0) -> list[bytes]:
        start: dict[str, Any] = {
            "type": "tool_use",
            "id": f"toolu_{done + place:06d}",
            "name": options.get("tool", "todo_write"),
            "input": {},
        }
        return block(index, start, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))

    def text(index: int, *pieces: str) -> list[bytes]:
        return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))

    count = planned(options, done)
    arguments = options.get("args", "{}")
    fresh = max(0, int(options.get("size", "100")) - 64)
    usage = {"input_tokens": fresh, "output_tokens": 1, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 0}
    events = [typed("message_start", message={"id": "msg_0", "role": "assistant", "content": [], "usage": usage}), typed("ping")]
    finish = "end_turn"
    if fault == "reasoning":
        thought = [{"type": "thinking_delta", "thinking": "I think"}, {"type": "thinking_delta", "thinking": " so."}]
        events += block(0, {"type": "thinking", "thinking": ""}, *thought, {"type": "signature_delta", "signature": "c2ln"})
        events += block(1, {"type": "redacted_thinking", "data": "b3BhcXVl"})
        events += text(2, "All is done.")
    elif fault == "interleaved":
        half = len(arguments) // 2
        calls = [call(i, arguments[:half], arguments[half:], place=i) for i in (0, 1)]
        events += [piece for pair in zip(*calls, strict=True) for piece in pair]
        finish = "tool_use"
    elif fault == "length-in-arguments":
        events += call(0, '{"path": "a')
        finish = "max_tokens"
    elif fault == "refusal":
        events += text(0, "I will not do that.")
        finish = "refusal"
    elif fault == "malformed":
        events += [*text(0, "Half")[:2], event('{"type": "content_block_del', "content_block_delta")]
    elif fault == "odd-shape":
        events += [*text(0, "Half")[:2], typed("content_block_delta", index=0, delta="text")]
    elif fault == "error-object":
        events += [*text(0, "Half")[:2], typed("error", error={"type": "overloaded_error", "message": "overloaded"})]
    elif count:
        for index in range(count):
            events += call(index, arguments.replace("#", f"{done + index:06d}"), place=index)
        finish = "tool_use"
    elif fault != "empty":
        words = options.get("text", "All is done.").split(" ")
        events += text(0, *(word + " " for word in words[:-1]), words[-1])
    if fault in ("malformed", "odd-shape", "error-object", "no-finish"):
        return events
    finish = "banana" if fault == "unknown-finish" else finish
    events.append(typed("message_delta", delta={"stop_reason": finish}, usage={"output_tokens": 10}))
    events.append(typed("message_stop"))
    return events


async def _serve(port: int, keep: int) -> None:
    server = StubServer(keep=keep)
    print(await server.start(port=port), flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop()


def main() -> None:
    """Serve until interrupted."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m hames.testing.stub", description="A model server for tests and benchmarks, on loopback."
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--keep", type=int, default=0, help="requests to keep")
    options = parser.parse_args()
    try:
        asyncio.run(_serve(options.port, options.keep))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
