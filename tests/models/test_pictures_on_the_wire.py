"""Pictures on the wire: in messages of the user and in results, byte for byte, and what happens where one is not there any more."""

import base64
import json
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from hames.agents import Agent
from hames.content.messages import Image, Message, Text, ToolCall, ToolResult
from hames.models.anthropic import AnthropicMessages
from hames.models.encoder import Encoder
from hames.models.openai import OpenAIChat
from hames.models.port import Settings
from hames.sessions import SESSIONS, Session
from hames.testing.stub import StubServer

pytestmark = pytest.mark.usefixtures("nothing_left")

PROVIDERS = ["openai", "anthropic"]
OpenAgent = Callable[..., AbstractAsyncContextManager[Agent]]
providers = pytest.mark.parametrize("provider", PROVIDERS)

HEAD = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000020000000208020000")


def png(size: int, first: int = 0) -> bytes:
    """Bytes that begin as a picture, of all values."""
    return HEAD + bytes((first + n) % 256 for n in range(size - len(HEAD)))


def on_the_wire(body: bytes, provider: str) -> list[tuple[str, bytes]]:
    """The pictures of a request with their types, in order."""
    found: list[tuple[str, bytes]] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if value.get("type") == "image_url":
                head, _, data = value["image_url"]["url"].partition(";base64,")
                found.append((head.removeprefix("data:"), base64.b64decode(data, validate=True)))
            elif value.get("type") == "image":
                assert value["source"]["type"] == "base64"
                found.append((value["source"]["media_type"], base64.b64decode(value["source"]["data"], validate=True)))
            else:
                for member in value.values():
                    look(member)
        elif isinstance(value, list):
            for member in value:
                look(member)

    look(json.loads(body)["messages"])
    return found


def rebuilt(agent: Agent) -> list[bytes]:
    sessions = agent.ctx.host.get(SESSIONS)
    assert sessions is not None
    return [request.body() for _, request in sessions.rebuild(agent.id)]


@providers
async def test_pictures_of_the_user_arrive_byte_for_byte(provider: str, wired: StubServer, open_agent: OpenAgent) -> None:
    async with open_agent(f"{provider}:text=seen") as agent:
        pictures = [("image/png", png(999)), ("image/gif", b"GIF89a" + bytes(range(256))), ("image/jpeg", b"\xff\xd8" + b"\0" * 5)]
        images = [agent.session.keep_picture(kind, data) for kind, data in pictures]
        end = await agent.run(Message("user", (Text("look at"), images[0], Text("and"), *images[1:], images[0])))
        assert end.reason == "completed"
        await agent.run(Message("user", (images[2],)))
        assert on_the_wire(wired.received[0].body, provider) == [*pictures, pictures[0]]
        assert on_the_wire(wired.received[1].body, provider) == [*pictures, pictures[0], pictures[2]]
        assert rebuilt(agent) == [received.body for received in wired.received]


def test_a_user_message_has_its_parts_in_the_form_that_each_protocol_wants() -> None:
    message = (0, Message("user", (Text("look"), Image("image/png", "x"))))
    data = base64.b64encode(b"bytes").decode()
    bodies = [
        json.loads(Encoder(dialect, "m", pictures=lambda blob: b"bytes").encode("", (), [message], Settings()).body())["messages"]
        for dialect in (OpenAIChat(), AnthropicMessages())
    ]
    assert bodies[0] == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}],
        }
    ]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = bodies[1][0]["content"]
    assert content[0] == {"type": "text", "text": "look"}
    assert content[1]["type"] == "image" and content[1]["source"] == source


@pytest.mark.parametrize("order", ["text first", "picture first"])
@providers
def test_text_and_pictures_keep_their_order(order: str, provider: str) -> None:
    parts = (Text("one"), Image("image/png", "x"), Text("two"))
    parts = parts if order == "text first" else parts[::-1]
    dialect = OpenAIChat() if provider == "openai" else AnthropicMessages()
    encoder = Encoder(dialect, "m", pictures=lambda blob: b"bytes")
    (message,) = json.loads(encoder.encode("", (), [(0, Message("user", parts))], Settings()).body())["messages"]
    kinds = ["text" if part["type"] == "text" else "picture" for part in message["content"]]
    assert kinds == ["text", "picture", "text"]


@providers
async def test_pictures_of_results_arrive_byte_for_byte_behind_all_results(provider: str, wired: StubServer, open_agent: OpenAgent) -> None:
    async with open_agent(f'{provider}:steps=2;calls=2;tool=read_image;args={{"path":"#.png"}}') as agent:
        pictures = [png(500 + n, n) for n in range(4)]
        for number, data in enumerate(pictures):
            (agent.cwd / f"{number:06d}.png").write_bytes(data)
        end = await agent.run("go")
        assert (end.reason, end.steps) == ("completed", 3)
        sent = [received.body for received in wired.received]
        for number, body in enumerate(sent):
            assert on_the_wire(body, provider) == [("image/png", data) for data in pictures[: 2 * number]]
        assert rebuilt(agent) == sent
        if provider == "openai":
            # Between calls and the last of their results nothing else may stand.
            roles = [message["role"] for message in json.loads(sent[-1])["messages"] if message["role"] != "system"]
            text = " ".join(roles)
            assert "assistant tool tool" in text
            assert "tool user tool" not in text


def results(*pictures: Image) -> list[tuple[int, Message]]:
    calls = tuple(ToolCall(f"c{n}", "look", "{}") for n in range(len(pictures)))
    messages = [Message("user", (Text("go"),)), Message("assistant", calls, "model")]
    messages += [Message("user", (ToolResult(f"c{n}", (Text(f"r{n}"), each)),), "tool") for n, each in enumerate(pictures)]
    return list(enumerate(messages))


def test_results_of_parallel_calls_follow_their_calls_without_anything_between() -> None:
    encoder = Encoder(OpenAIChat(), "m", pictures=lambda blob: blob.encode())
    messages = json.loads(encoder.encode("", (), results(Image("image/png", "a"), Image("image/png", "b")), Settings()).body())["messages"]
    assert [message["role"] for message in messages[:4]] == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize("harm", ["missing", "damaged", "a directory", "empty"])
@providers
async def test_a_picture_that_is_not_there_any_more_is_one_clear_error_of_the_turn(
    harm: str, provider: str, wired: StubServer, open_agent: OpenAgent
) -> None:
    async with open_agent(f"{provider}:text=seen") as agent:
        await agent.run("before")
        image = agent.session.keep_picture("image/png", png(600))
        path = agent.session._store.blobs.path(image.blob)
        path.unlink()
        if harm == "damaged":
            path.write_bytes(png(600, 1))
        elif harm == "empty":
            path.write_bytes(b"")
        elif harm == "a directory":
            path.mkdir()
        ended = await agent.run(Message("user", (Text("look"), image)))
        assert ended.reason == "error"
        assert ended.code in ("BLOB_UNKNOWN", "STORAGE_DAMAGED")
        assert image.blob in ended.detail
        assert len(wired.received) == 1
        assert agent.status == "idle"
        again = await agent.run("and now?")
        assert (again.reason, again.code) == ("error", ended.code)
        if harm == "a directory":
            path.rmdir()
        path.unlink(missing_ok=True)
        assert agent.session.keep_picture("image/png", png(600)) == image
        assert (await agent.run("and now?")).reason == "completed"
        assert on_the_wire(wired.received[-1].body, provider) == [("image/png", png(600))]
        assert rebuilt(agent) == [received.body for received in wired.received]


@providers
async def test_a_picture_of_a_result_that_is_not_there_any_more_is_an_error_too(
    provider: str, wired: StubServer, open_agent: OpenAgent
) -> None:
    async with open_agent(f"{provider}:text=seen") as agent:
        image = agent.session.keep_picture("image/png", png(600))
        for _, message in results(image):
            agent.session.add(message)
        agent.session._store.blobs.path(image.blob).unlink()
        end = await agent.run("go")
        assert (end.reason, end.code) == ("error", "BLOB_UNKNOWN")
        assert wired.received == type(wired.received)()


@providers
async def test_a_picture_is_read_and_encoded_once_however_many_requests_show_it(
    provider: str, wired: StubServer, open_agent: OpenAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    picture = Session.picture

    def counting(session: Session, blob: str) -> bytes:
        read.append(blob)
        return picture(session, blob)

    monkeypatch.setattr(Session, "picture", counting)
    async with open_agent(f'{provider}:steps=30;tool=todo_write;args={{"items":[{{"content":"#"}}]}}') as agent:
        first, second = (agent.session.keep_picture("image/png", png(300_000, n)) for n in range(2))
        await agent.run(Message("user", (Text("look"), first)))
        assert read == [first.blob]
        await agent.run(Message("user", (second,)))
        assert read == [first.blob, second.blob]
        assert len(wired.received) == 32
        store = agent.session._store
        ((fragments,),) = store.sessions.query("SELECT SUM(LENGTH(data)) FROM fragments WHERE sid = ?", (agent.session.sid,))
        assert fragments < 200_000
        assert rebuilt(agent) == [received.body for received in wired.received]


@providers
def test_what_a_request_costs_does_not_depend_on_the_pictures_before_it(provider: str) -> None:
    dialect = OpenAIChat() if provider == "openai" else AnthropicMessages()
    data = png(5_000_000)

    def spent(pictures: int) -> float:
        """Processor time of fifty requests behind so many pictures."""
        encoder = Encoder(dialect, "m", pictures=lambda blob: data)
        images = tuple(Image("image/png", f"{n}") for n in range(pictures))
        messages = [(0, Message("user", (Text("look"), *images))), (1, Message("assistant", (Text("yes"),), "model"))]
        messages.append((2, Message("user", (Text("and"),))))
        encoder.encode("", (), messages, Settings())
        begin = time.process_time()
        for number in range(50):
            messages.append((2 * number + 3, Message("assistant", (Text("yes"),), "model")))
            messages.append((2 * number + 4, Message("user", (Text("and"),))))
            encoder.encode("", (), messages, Settings())
        return time.process_time() - begin

    with_pictures = min(spent(4) for _ in range(3))
    assert with_pictures < 4 * max(spent(0), 0.005)


@providers
async def test_a_picture_of_the_largest_size_is_sent_at_every_request(provider: str, wired: StubServer, open_agent: OpenAgent) -> None:
    async with open_agent(f'{provider}:steps=3;tool=todo_write;args={{"items":[{{"content":"#"}}]}}') as agent:
        data = png(5 * 1024 * 1024)
        image = agent.session.keep_picture("image/png", data)
        end = await agent.run(Message("user", (image,)))
        assert (end.reason, end.steps) == ("completed", 4)
        assert all(on_the_wire(received.body, provider) == [("image/png", data)] for received in wired.received)
        assert rebuilt(agent) == [received.body for received in wired.received]
