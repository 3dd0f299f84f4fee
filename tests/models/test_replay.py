"""A conversation that was recorded plays back, and only that one."""

import itertools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from hames.agents import Agent
from hames.content.clock import Clock
from hames.testing.clock import FakeClock
from hames.testing.replay import Recorder, Replayer
from hames.testing.stub import StubServer

pytestmark = pytest.mark.usefixtures("nothing_left")

PROVIDERS = ["openai", "anthropic"]
CALLS = 'steps=5;calls=2;tool=todo_write;args={"items": [{"content": "#"}]}'
OpenAgent = Callable[..., AbstractAsyncContextManager[Agent]]
Point = Callable[[str], None]

providers = pytest.mark.parametrize("provider", PROVIDERS)


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> Point:
    """Makes a server the place of both providers."""

    def to(url: str) -> None:
        for name in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{name}_API_KEY", "sk-never-in-a-file")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)

    return to


#: Each conversation has an hour of its own: two hosts that share time, chance and a state directory would name their sessions alike.
HOURS = itertools.count(1_700_000_000, 3600)


async def converse(open_agent: OpenAgent, ref: str, *messages: str) -> list[Any]:
    """The outcomes of some turns, and all that was logged as a message."""
    async with open_agent(ref, {Clock: FakeClock(next(HOURS))}) as agent:
        ends = [await agent.run(message) for message in messages]
        return [*ends, *(message for _, message in agent.session.messages)]


@providers
async def test_a_recorded_conversation_plays_back(
    provider: str, stub: StubServer, point: Point, open_agent: OpenAgent, tmp_path: Path
) -> None:
    file = tmp_path / "recording.jsonl"
    async with Recorder(stub.url, file) as recorder:
        point(recorder.url)
        recorded = await converse(open_agent, f"{provider}:{CALLS}", "Go. ü", "And on.")
    assert len(file.read_text().splitlines()) == len(stub.received) == 7
    assert "sk-never-in-a-file" not in file.read_text()
    async with Replayer(file) as replayer:
        point(replayer.url)
        replayed = await converse(open_agent, f"{provider}:{CALLS}", "Go. ü", "And on.")
        assert replayer.mismatches == []
        assert replayer.left == 0
    assert replayed == recorded
    assert len(stub.received) == 7


@providers
@pytest.mark.parametrize(
    "fault", ["refusal", "reasoning", "interleaved", "unknown-finish", "malformed", "no-finish", "auth", "overflow", "html"]
)
async def test_faults_play_back_too(
    fault: str, provider: str, stub: StubServer, point: Point, open_agent: OpenAgent, tmp_path: Path
) -> None:
    file = tmp_path / "recording.jsonl"
    ref = f'{provider}:fault={fault};times=1;args={{"items": []}}'
    async with Recorder(stub.url, file) as recorder:
        point(recorder.url)
        recorded = await converse(open_agent, ref, "Go.")
    async with Replayer(file) as replayer:
        point(replayer.url)
        replayed = await converse(open_agent, ref, "Go.")
        assert (replayer.mismatches, replayer.left) == ([], 0)
    strip = (recorder.url, replayer.url)
    assert repr(replayed).replace(strip[1], strip[0]) == repr(recorded)


@providers
async def test_a_changed_prompt_is_refused_with_the_place(
    provider: str, stub: StubServer, point: Point, open_agent: OpenAgent, tmp_path: Path
) -> None:
    file = tmp_path / "recording.jsonl"
    async with Recorder(stub.url, file) as recorder:
        point(recorder.url)
        await converse(open_agent, f"{provider}:{CALLS}", "Look at the first file.")
    place = stub.received[0].body.index(b"first file")
    async with Replayer(file) as replayer:
        point(replayer.url)
        (end, *_) = await converse(open_agent, f"{provider}:{CALLS}", "Look at the other file.")
        (mismatch,) = replayer.mismatches
        assert replayer.left == 6
    assert mismatch.startswith(f"request 1 differs at byte {place}: b'other file.")
    assert "instead of b'first file." in mismatch
    assert end.reason == "error"
    assert end.failure.kind == "invalid-request"
    assert end.failure.message == mismatch


@providers
async def test_a_prompt_that_only_begins_alike_is_refused_where_it_ends(
    provider: str, stub: StubServer, point: Point, open_agent: OpenAgent, tmp_path: Path
) -> None:
    file = tmp_path / "recording.jsonl"
    async with Recorder(stub.url, file) as recorder:
        point(recorder.url)
        await converse(open_agent, f"{provider}:m", "Go.")
    place = stub.received[0].body.index(b'Go."') + 3
    async with Replayer(file) as replayer:
        point(replayer.url)
        await converse(open_agent, f"{provider}:m", "Go. On.")
        (mismatch,) = replayer.mismatches
    assert f"differs at byte {place}: b' On." in mismatch


@providers
async def test_more_than_was_recorded_is_refused(
    provider: str, stub: StubServer, point: Point, open_agent: OpenAgent, tmp_path: Path
) -> None:
    file = tmp_path / "recording.jsonl"
    async with Recorder(stub.url, file) as recorder:
        point(recorder.url)
        await converse(open_agent, f"{provider}:m", "Go.")
    async with Replayer(file) as replayer:
        point(replayer.url)
        _, end, *_ = await converse(open_agent, f"{provider}:m", "Go.", "And on.")
        assert replayer.mismatches == ["request 2 is not in the recording"]
    assert end.reason == "error"


async def test_another_protocol_is_refused(stub: StubServer, point: Point, open_agent: OpenAgent, tmp_path: Path) -> None:
    file = tmp_path / "recording.jsonl"
    async with Recorder(stub.url, file) as recorder:
        point(recorder.url)
        await converse(open_agent, "openai:m", "Go.")
    async with Replayer(file) as replayer:
        point(replayer.url)
        await converse(open_agent, "anthropic:m", "Go.")
        assert replayer.mismatches == ["request 1 goes to /v1/messages instead of /v1/chat/completions"]
        assert replayer.left == 1


@providers
async def test_a_broken_answer_is_recorded_as_far_as_it_came(
    provider: str, stub: StubServer, point: Point, open_agent: OpenAgent, tmp_path: Path
) -> None:
    file = tmp_path / "recording.jsonl"
    async with Recorder(stub.url, file) as recorder:
        point(recorder.url)
        recorded = await converse(open_agent, f"{provider}:fault=cut-socket;times=1", "Go.")
    assert len(file.read_text().splitlines()) == len(stub.received) == 2
    async with Replayer(file) as replayer:
        point(replayer.url)
        assert await converse(open_agent, f"{provider}:fault=cut-socket;times=1", "Go.") == recorded
        assert (replayer.mismatches, replayer.left) == ([], 0)
