"""Where one model fails for good, the turn goes on with another one."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from hames.agents import AGENTS, AgentSpec, ModelChanged, Retrying
from hames.content.clock import Clock
from hames.content.errors import ModelReferenceError
from hames.content.finish import Failure, Finish, Usage
from hames.content.jsontext import parse_object
from hames.content.messages import Message, Text, ToolCall
from hames.models import MODELS, Encoder
from hames.models.openai import OpenAIChat
from hames.sessions import SESSIONS
from hames.testing.clock import FakeClock

RETRIES = 2


class Cast:
    """A provider of models that answer as their line says: an answer for each request, the last one again and again."""

    def __init__(self):
        self.lines = {}
        self.asked = []  # names of models, in order
        self.bodies = []
        self.windows = {}

    def model(self, name, profile, ref):
        if name not in self.lines:
            raise ModelReferenceError(f"{name} cannot be used")

        def stream(request):
            self.asked.append(name)
            self.bodies.append(request.body())
            parse_object(request.body())
            line = self.lines[name]
            return Stream(line.pop(0) if len(line) > 1 else line[0])

        return SimpleNamespace(
            ref=ref,
            window=self.windows.get(name, 128_000),
            stream=stream,
            cost=lambda usage: 0.0,
            encoder=lambda pictures: Encoder(OpenAIChat(), ref, pictures=pictures),
        )


class Stream:
    def __init__(self, finish):
        self._finish = finish

    def partial(self):
        return ()

    async def __aiter__(self):
        yield self._finish


def fails(kind, *blocks):
    return Finish("error", blocks, None, Failure(kind, f"a failure: {kind}"))


def says(text):
    return Finish("stop", (Text(text),), Usage(10, 1))


def calls(number):
    return Finish("tool-calls", (ToolCall(f"c{number}", "glob", f'{{"pattern": "{number}*"}}'),), Usage(10, 1))


@pytest.fixture
def stage(opened, tmp_path):
    """Opens a host with models that fall back to ``b`` and ``c``."""

    @asynccontextmanager
    async def open(*fallback, **lines):
        patch = tmp_path / "patch.yaml"
        refs = ", ".join(f'"cast:{name}"' for name in fallback)
        patch.write_text(f"- {{id: loop, set: {{config: {{retries: {RETRIES}, fallback: [{refs}]}}}}}}\n")
        async with opened(patch, provided={Clock: FakeClock()}) as host:
            cast = Cast()
            cast.lines = {name: list(line) for name, line in lines.items()}
            host.get(MODELS).register(host.ctx, "cast", cast)
            yield host, host.get(AGENTS), cast

    return open


def events(host, agent, type):
    return [event.data for event in host.get(SESSIONS).read(agent.id) if event.type == type]


@pytest.mark.parametrize("kind", ["cut", "malformed", "empty", "rate-limit", "overloaded", "server", "timeout", "transport"])
async def test_what_may_pass_is_tried_again_before_another_model_is_asked(kind, stage, tmp_path):
    async with stage("b", a=[fails(kind)], b=[says("from b")]) as (host, agents, cast):
        heard = []
        host.ctx.on(Retrying, lambda notice: heard.append("retry"))
        host.ctx.on(ModelChanged, lambda notice: heard.append((notice.before, notice.now, notice.failure.kind)))
        agent = await agents.create(AgentSpec(str(tmp_path), "cast:a"))
        end = await agent.run("go")
        assert (end.reason, end.text, end.steps) == ("completed", "from b", 1)
        assert cast.asked == ["a"] * (RETRIES + 1) + ["b"]
        assert heard == ["retry"] * RETRIES + [("cast:a", "cast:b", kind)]
        (event,) = events(host, agent, "fallback")
        assert event == {"from": "cast:a", "to": "cast:b", "failure": {"kind": kind, "message": f"a failure: {kind}"}}
        (answer,) = [data for data in events(host, agent, "message") if data["role"] == "assistant"]
        assert answer["model"] == "cast:b"
        assert events(host, agent, "failed") == []


@pytest.mark.parametrize("kind", ["auth", "not-found"])
async def test_what_only_this_model_lacks_is_asked_of_another_at_once(kind, stage, tmp_path):
    async with stage("b", a=[fails(kind)], b=[says("from b")]) as (host, agents, cast):
        agent = await agents.create(AgentSpec(str(tmp_path), "cast:a"))
        assert (await agent.run("go")).text == "from b"
        assert cast.asked == ["a", "b"]
        assert len(events(host, agent, "fallback")) == 1


@pytest.mark.parametrize(
    "finish",
    [
        fails("invalid-request"),
        fails("unknown-finish"),
        fails("context-overflow"),
        Finish("refusal", (Text("No."),), Usage(1, 1)),
        Finish("refusal", (), Usage(1, 1), Failure("server", "a refusal with a failure")),
        Finish("max-tokens", (Text("cut"),), Usage(1, 1)),
    ],
)
async def test_what_another_model_should_not_answer_is_never_asked_of_it(finish, stage, tmp_path):
    async with stage("b", a=[finish], b=[says("from b")]) as (host, agents, cast):
        agent = await agents.create(AgentSpec(str(tmp_path), "cast:a"))
        end = await agent.run("go")
        assert end.reason == finish.reason
        assert set(cast.asked) == {"a"}
        assert events(host, agent, "fallback") == []


async def test_the_rest_of_the_turn_stays_with_the_other_model_and_the_next_turn_does_not(stage, tmp_path):
    a = [calls(0), fails("auth"), says("a again")]
    async with stage("b", a=a, b=[calls(1), calls(2), says("from b")]) as (host, agents, cast):
        agent = await agents.create(AgentSpec(str(tmp_path), "cast:a"))
        end = await agent.run("go")
        assert (end.text, cast.asked) == ("from b", ["a", "a", "b", "b", "b"])
        assert agent.model_ref == "cast:a"
        assert (await agent.run("on")).text == "a again"
        assert cast.asked[-1] == "a"
        rebuilt = [(record.reason, request.body()) for record, request in host.get(SESSIONS).rebuild(agent.id)]
        assert [body for _, body in rebuilt] == cast.bodies
        assert [reason for reason, _ in rebuilt] == ["initial", "", "model", "", "", "model"]


async def test_a_model_that_fails_at_the_next_turn_falls_back_again(stage, tmp_path):
    async with stage("b", a=[fails("auth")], b=[says("from b")]) as (_host, agents, cast):
        agent = await agents.create(AgentSpec(str(tmp_path), "cast:a"))
        for _ in range(3):
            assert (await agent.run("go")).text == "from b"
        assert cast.asked == ["a", "b"] * 3


async def test_a_session_that_is_resumed_goes_back_to_its_own_model(stage, tmp_path):
    async with stage("b", a=[says("from a"), fails("auth"), says("a again")], b=[says("from b")]) as (_host, agents, _cast):
        agent = await agents.create(AgentSpec(str(tmp_path), "cast:a"))
        await agent.run("one")
        await agent.run("two")
        await agents.dispose(agent)
        again = await agents.create(AgentSpec("", resume=agent.id))
        assert again.chosen_model == "cast:a"
        assert (await again.run("three")).text == "a again"


@pytest.mark.parametrize("ref", ["cast:nobody", "nothing:at-all", "no reference", "openai:without-a-key", "scripted:/nowhere/at/all"])
async def test_a_fallback_that_cannot_be_used_is_skipped(ref, stage, tmp_path, monkeypatch, opened):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    patch = tmp_path / "second.yaml"
    patch.write_text(f'- {{id: loop, set: {{config: {{retries: 0, fallback: ["{ref}", "cast:b"]}}}}}}\n')
    async with opened(patch, provided={Clock: FakeClock()}) as host:
        cast = Cast()
        cast.lines = {"a": [fails("server")], "b": [says("from b")]}
        host.get(MODELS).register(host.ctx, "cast", cast)
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), "cast:a"))
        end = await agent.run("go")
        assert (end.text, cast.asked) == ("from b", ["a", "b"])
        (event,) = events(host, agent, "fallback")
        assert (event["from"], event["to"]) == ("cast:a", "cast:b")
        assert len(host.problems) == 1


async def test_where_no_fallback_can_be_used_the_failure_is_that_of_the_model(stage, tmp_path):
    async with stage("nobody", "none", a=[fails("auth")]) as (host, agents, _cast):
        agent = await agents.create(AgentSpec(str(tmp_path), "cast:a"))
        end = await agent.run("go")
        assert (end.reason, end.failure.kind) == ("error", "auth")
        assert events(host, agent, "fallback") == []
        assert [data["model"] for data in events(host, agent, "failed")] == ["cast:a"]
        assert agent.model_ref == "cast:a"


async def test_where_all_fail_the_last_failure_ends_the_turn(stage, tmp_path):
    async with stage("b", "c", a=[fails("server")], b=[fails("auth")], c=[fails("overloaded")]) as (host, agents, cast):
        agent = await agents.create(AgentSpec(str(tmp_path), "cast:a"))
        end = await agent.run("go")
        assert (end.reason, end.failure.kind) == ("error", "overloaded")
        assert cast.asked == ["a"] * 3 + ["b"] + ["c"] * 3
        assert [(data["from"], data["to"]) for data in events(host, agent, "fallback")] == [("cast:a", "cast:b"), ("cast:b", "cast:c")]
        assert [data["model"] for data in events(host, agent, "failed")] == ["cast:c"]
        assert agent.model_ref == "cast:a"


async def test_a_model_is_not_its_own_fallback(stage, tmp_path):
    async with stage("a", "b", a=[fails("auth")], b=[says("from b")]) as (_host, agents, cast):
        agent = await agents.create(AgentSpec(str(tmp_path), "cast:a"))
        assert (await agent.run("go")).text == "from b"
        assert cast.asked == ["a", "b"]


async def test_two_models_that_fail_in_turns_do_not_spin(stage, tmp_path):
    lines = {"a": [calls(0), fails("auth")], "b": [calls(1), fails("auth")], "c": [calls(2), fails("auth")]}
    async with stage("b", "c", **lines) as (_host, agents, cast):
        agent = await agents.create(AgentSpec(str(tmp_path), "cast:a"))
        end = await agent.run("go")
        assert (end.reason, end.failure.kind) == ("error", "auth")
        assert len(cast.asked) < 12


async def test_a_fallback_with_a_smaller_window_gets_a_conversation_that_fits(stage, tmp_path):
    """The conversation fits the first model and not the second: it is shortened before the turn fails."""
    notes = Finish("stop", (Text("notes"),), Usage(1, 1))
    lines = {"a": [fails("auth")], "b": [fails("context-overflow"), notes, says("from b")]}
    async with stage("b", **lines) as (host, agents, cast):
        cast.windows = {"b": 10_000}
        agent = await agents.create(AgentSpec(str(tmp_path), "cast:a"))
        for number in range(10):
            agent.session.add(said(number))
        end = await agent.run("go")
        assert (end.reason, end.text) == ("completed", "from b")
        assert len(events(host, agent, "compacted")) == 1


def said(number):
    return Message("assistant" if number % 2 else "user", (Text(f"{number} " + "x" * 8000),), "model" if number % 2 else "user")


async def test_a_cancelled_turn_leaves_the_first_model_in_its_place(stage, tmp_path):
    async with stage("b", a=[fails("auth"), says("a again")], b=[calls(n) for n in range(20)]) as (host, agents, _cast):
        agent = await agents.create(AgentSpec(str(tmp_path), "cast:a"))
        host.ctx.on(ModelChanged, lambda notice: agent.cancel("user"))
        end = await agent.run("go")
        assert (end.reason, agent.model_ref) == ("aborted", "cast:a")
        assert (await agent.run("on")).text == "a again"


async def test_what_failed_attempts_have_used_counts(stage, tmp_path):
    """A stream that breaks has been paid for as far as it came, and says so."""
    broken = Finish("error", (), Usage(1000, 5), Failure("cut", "the stream ended without a finish"))
    async with stage("b", a=[broken], b=[says("from b")]) as (_host, agents, cast):
        agent = await agents.create(AgentSpec(str(tmp_path), "cast:a"))
        end = await agent.run("go")
        assert (end.text, cast.asked) == ("from b", ["a", "a", "a", "b"])
        assert end.usage == Usage(3000, 15) + Usage(10, 1)
