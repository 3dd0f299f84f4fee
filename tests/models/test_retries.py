"""The loop asks again where that may help, as long as that may help, and logs each answer once."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, cast, get_args

import pytest
from aiohttp import web

from hames.agents import Agent, Retrying, TurnEnded
from hames.agents.ask import FIRST_WAIT, JITTER, LONGEST_WAIT
from hames.agents.loop import LoopConfig
from hames.content.clock import Clock
from hames.content.finish import RETRYABLE, FailureKind
from hames.sessions import SESSIONS, Event
from hames.store import STORE
from hames.testing.clock import FakeClock
from hames.testing.stub import StubServer

pytestmark = pytest.mark.usefixtures("nothing_left")

RETRIES = LoopConfig().retries
PROVIDERS = ["openai", "anthropic"]
OpenAgent = Callable[..., AbstractAsyncContextManager[Agent]]
Serve = Callable[[Any], AbstractAsyncContextManager[str]]
FAULTS: dict[str, FailureKind] = {
    "no-finish": "cut",
    "cut-socket": "cut",
    "malformed": "malformed",
    "odd-shape": "malformed",
    "empty": "empty",
    "error-object": "overloaded",
    "server": "server",
}

providers = pytest.mark.parametrize("provider", PROVIDERS)


class Calm(FakeClock):
    """Time of a test, with chance in the middle."""

    def random(self) -> float:
        return 0.5


def events(agent: Agent) -> list[Event]:
    sessions = agent.ctx.host.get(SESSIONS)
    assert sessions is not None
    return sessions.read(agent.id)


def of_type(agent: Agent, type: str) -> list[dict[str, Any]]:
    return [event.data for event in events(agent) if event.type == type]


def answers(agent: Agent) -> list[dict[str, Any]]:
    return [data for data in of_type(agent, "message") if data["role"] == "assistant"]


@providers
async def test_the_wait_that_a_provider_asks_for_is_kept_to_the_second(provider: str, wired: StubServer, open_agent: OpenAgent) -> None:
    clock = FakeClock()
    async with open_agent(f"{provider}:fault=rate-limit;times=1", {Clock: clock}) as agent:
        end = await agent.run("Go.")
        assert (end.reason, end.text, end.steps) == ("completed", "All is done.", 1)
        assert clock.slept == [3.0]
        (retry,) = of_type(agent, "retry")
        assert retry["wait"] == 3.0
        assert retry["failure"] == {
            "kind": "rate-limit",
            "message": "slow down",
            "status": 429,
            "retry_after": 3.0,
            "word": "rate_limit_error",
        }
        assert len(answers(agent)) == 1
        assert [event.type for event in events(agent)] == ["start", "turn", "message", "retry", "message", "end"]
    assert len(wired.received) == 2
    assert wired.received[0].body == wired.received[1].body


@providers
@pytest.mark.parametrize("fault", FAULTS)
async def test_waits_double_until_the_fifth_and_last_retry(fault: str, provider: str, wired: StubServer, open_agent: OpenAgent) -> None:
    clock = FakeClock()
    async with open_agent(f"{provider}:fault={fault}", {Clock: clock}) as agent:
        end = await agent.run("Go.")
        assert end.reason == "error"
        assert end.failure is not None
        assert end.failure.kind == FAULTS[fault]
        assert len(of_type(agent, "retry")) == RETRIES == 5
        assert [data["wait"] for data in of_type(agent, "retry")] == clock.slept
        assert {data["failure"]["kind"] for data in of_type(agent, "retry")} == {FAULTS[fault]}
        assert len(answers(agent)) + len(of_type(agent, "failed")) == 1
        assert of_type(agent, "end") == [{"reason": "error"}]
    assert len(wired.received) == 6
    assert len({received.body for received in wired.received}) == 1
    for place, wait in enumerate(clock.slept):
        middle = min(LONGEST_WAIT, FIRST_WAIT * 2**place)
        assert middle * (1 - JITTER) <= wait <= middle * (1 + JITTER)
    assert len(set(clock.slept)) == 5


async def test_without_jitter_the_waits_are_these(wired: StubServer, open_agent: OpenAgent) -> None:
    clock = Calm()
    async with open_agent("openai:fault=server", {Clock: clock}) as agent:
        await agent.run("Go.")
    assert clock.slept == [0.5, 1.0, 2.0, 4.0, 8.0]


@providers
@pytest.mark.parametrize("times", [1, 5])
async def test_an_answer_after_retries_is_logged_once(times: int, provider: str, wired: StubServer, open_agent: OpenAgent) -> None:
    clock = FakeClock()
    async with open_agent(f"{provider}:fault=no-finish;times={times}", {Clock: clock}) as agent:
        end = await agent.run("Go.")
        assert (end.reason, end.steps) == ("completed", 1)
        (answer,) = answers(agent)
        assert answer["finish"] == "stop"
        assert [block["text"] for block in answer["blocks"]] == ["All is done."]
        assert len(of_type(agent, "retry")) == len(clock.slept) == times
        assert of_type(agent, "failed") == []
    assert len(wired.received) == times + 1


@providers
async def test_retries_are_counted_anew_for_each_request(provider: str, wired: StubServer, open_agent: OpenAgent) -> None:
    clock = FakeClock()
    ref = f'{provider}:steps=1;tool=todo_write;args={{"items":[]}};fault=server;times=4'
    async with open_agent(ref, {Clock: clock}) as agent:
        assert (await agent.run("Go.")).reason == "completed"
        assert len(clock.slept) == 4
        agent.model_ref = f"{ref[:-1]}5"
        assert (await agent.run("Again.")).reason == "completed"
        assert len(clock.slept) == 9


@providers
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("auth", "error"),
        ("overflow", "error"),
        ("html", "error"),
        ("unknown-finish", "error"),
        ("refusal", "refusal"),
        ("length-in-arguments", "max-tokens"),
    ],
)
async def test_what_another_try_does_not_mend_is_not_tried(
    fault: str, reason: str, provider: str, wired: StubServer, open_agent: OpenAgent
) -> None:
    clock = FakeClock()
    async with open_agent(f"{provider}:fault={fault}", {Clock: clock}) as agent:
        end = await agent.run("Go.")
        assert end.reason == reason
        assert of_type(agent, "retry") == []
        assert of_type(agent, "call") == []
        assert "test-key" not in repr(events(agent))
    assert clock.slept == []
    assert len(wired.received) == 1


@providers
async def test_calls_that_will_not_run_are_kept_beside_the_message(provider: str, wired: StubServer, open_agent: OpenAgent) -> None:
    async with open_agent(f"{provider}:fault=length-in-arguments", {Clock: FakeClock()}) as agent:
        end = await agent.run("Go.")
        assert end.reason == "max-tokens"
        (failed,) = of_type(agent, "failed")
        assert failed["dropped"] == [{"name": "todo_write", "arguments": '{"path": "a'}]
        agent.model_ref = f"{provider}:m"
        assert (await agent.run("Go on.")).reason == "completed"


@pytest.mark.parametrize("kind", sorted(get_args(FailureKind)))
async def test_each_kind_is_retried_or_not(
    kind: str, script: Callable[..., str], open_agent: OpenAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    async with open_agent(script({"failure": kind}), {Clock: clock}) as agent:
        end = await agent.run("Go.")
        assert end.failure is not None
        assert end.failure.kind == kind
    never = {"unknown-finish", "auth", "not-found", "context-overflow", "invalid-request"}
    assert len(clock.slept) == (0 if kind in never else 5)
    assert (cast(FailureKind, kind) in RETRYABLE) is (kind not in never)


@providers
@pytest.mark.parametrize(("asked", "slept"), [("120", [120.0] * 5), ("121", []), ("0", [0.0] * 5), ("never", None)])
async def test_how_long_a_provider_may_ask_to_wait(
    asked: str, slept: list[float] | None, provider: str, serve: Serve, open_agent: OpenAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reply(request: web.Request) -> web.Response:
        return web.Response(status=429, headers={"retry-after": asked})

    clock = Calm()
    async with serve(reply) as url:
        monkeypatch.setenv(f"{provider.upper()}_BASE_URL", url)
        monkeypatch.setenv(f"{provider.upper()}_API_KEY", "test-key")
        async with open_agent(f"{provider}:m", {Clock: clock}) as agent:
            end = await agent.run("Go.")
            assert end.failure is not None
            assert end.failure.kind == "rate-limit"
    assert clock.slept == ([0.5, 1.0, 2.0, 4.0, 8.0] if slept is None else slept)


async def test_retries_are_told_to_whoever_listens(wired: StubServer, open_agent: OpenAgent) -> None:
    heard: list[tuple[str, float]] = []
    async with open_agent("openai:fault=rate-limit;times=2", {Clock: FakeClock()}) as agent:
        agent.ctx.on(Retrying, lambda event: heard.append((event.failure.kind, event.wait)))
        await agent.run("Go.")
    assert heard == [("rate-limit", 3.0), ("rate-limit", 3.0)]


async def test_a_wait_can_be_cancelled(wired: StubServer, open_agent: OpenAgent) -> None:
    async with open_agent("openai:fault=rate-limit") as agent:
        agent.ctx.on(Retrying, lambda event: agent.cancel("user"))
        end = await agent.run("Go.")
        assert (end.reason, end.detail) == ("aborted", "user")
        assert of_type(agent, "end") == [{"reason": "aborted"}]
    assert len(wired.received) == 1


def endings(agent: Agent) -> list[str]:
    """How the turns of an agent end, from now on. A driver that would spin is brought to its end."""
    ended: list[str] = []

    def hear(event: TurnEnded) -> None:
        ended.append(event.end.reason)
        if len(ended) > 10:
            agent.inbox.clear()

    agent.ctx.on(TurnEnded, hear)
    return ended


async def test_an_agent_whose_log_is_lost_fails_each_turn_once(wired: StubServer, open_agent: OpenAgent) -> None:
    async with open_agent("openai:m") as agent:
        ended = endings(agent)
        await agent.session.barrier()
        store = agent.ctx.host.get(STORE)
        assert store is not None
        await store.sessions.write("UPDATE sessions SET epoch = epoch + 1 WHERE sid = ?", (agent.session.sid,))
        await agent.run("Go.")
        assert ended == ["error"]
        await agent.run("On.")
        assert ended == ["error", "error"]
    assert len(wired.received) == 0


async def test_an_agent_without_a_loop_fails_each_turn_once(wired: StubServer, open_agent: OpenAgent) -> None:
    async with open_agent("openai:m") as agent:
        ended = endings(agent)
        await agent.ctx.host.root.children["loop"].stop()
        end = await agent.run("Go.")
        assert ended == ["error"]
        assert "MISSING_SERVICE" in end.detail
    assert len(wired.received) == 0
