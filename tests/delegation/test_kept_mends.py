"""What was mended in children that are kept: refusals leave nothing, what was given holds, and nothing is told twice."""

# pyright: basic
from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.content.clock import Clock
from hames.content.errors import StorageError
from hames.content.finish import Failure, Finish, TextDelta, Usage
from hames.content.messages import Text, ToolCall
from hames.delegation import DELEGATION
from hames.delegation.failures import Refused
from hames.delegation.kept import Kept
from hames.delegation.plugin import Delegation
from hames.delegation.spec import TaskSpec
from hames.delegation.strikes import Strikes
from hames.models import MODELS, Encoder
from hames.models.openai import OpenAIChat
from hames.sessions import SESSIONS, Session
from hames.sessions.history import waiting
from hames.tools import TOOLS

BROKEN = Finish("error", (), None, Failure("server", "it broke"))


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


class Stage:
    """A provider whose models a test holds and lets go: ``stage:NAME``."""

    def __init__(self):
        self.asked = defaultdict(int)
        self.plays = defaultdict(deque)
        self.gates = defaultdict(asyncio.Event)

    def model(self, name, profile, ref):
        def stream(request):
            request.body()
            self.asked[name] += 1
            return Stream(self.answer(name, self.asked[name]))

        return SimpleNamespace(
            ref=ref,
            window=128_000,
            stream=stream,
            cost=lambda usage: 0.0,
            encoder=lambda pictures: Encoder(OpenAIChat(), ref, pictures=pictures),
        )

    async def answer(self, name, number):
        if name in self.gates:
            yield TextDelta("Half")
            await self.gates[name].wait()
        play = self.plays[name].popleft() if self.plays[name] else Finish("stop", (Text(f"{name} {number}"),), Usage(10, 1))
        yield play

    def call(self, name, tool, **given):
        number = self.asked[name] + len(self.plays[name])
        self.plays[name].append(Finish("tool-calls", (ToolCall(f"{name}-{number}", tool, json.dumps(given)),), Usage(10, 1)))


class Stream:
    def __init__(self, chunks):
        self._chunks = chunks

    def partial(self):
        return ()

    def __aiter__(self):
        return self._chunks


class Bench:
    def __init__(self, host, cwd):
        self.host, self.cwd = host, str(cwd)
        self.agents, self.service, self.sessions = host.get(AGENTS), host.get(DELEGATION), host.get(SESSIONS)
        self.tasks, self.conversations = self.service.tasks, self.service.conversations
        self.ledger = self.tasks.ledger
        self.stage = Stage()
        host.get(MODELS).register(host.ctx, "stage", self.stage)

    async def lead(self, **more):
        return await self.agents.create(AgentSpec(self.cwd, "stage:lead", **more))

    async def resume(self, session):
        return await self.agents.create(AgentSpec(self.cwd, resume=session))

    async def keep(self, lead, name="kid", **more):
        task = await self.tasks.start(TaskSpec("begin", model=f"stage:{name}", mode="continuable", **more), self.tasks.origin(lead))
        await asyncio.shield(task.accepted)
        return task.thread

    async def keep_held(self, lead, name="kid", **more):
        self.stage.gates[name].clear()
        asked = self.stage.asked[name]
        thread = await self.keep(lead, name, **more)
        await until(lambda: self.stage.asked[name] > asked)
        return thread

    async def keep_rested(self, lead, **more):
        thread = await self.keep(lead, **more)
        await self.rest(lead)
        return thread

    async def rest(self, lead):
        async with asyncio.timeout(10):
            await self.service.rest(lead)

    async def send(self, lead, thread, text):
        async with asyncio.timeout(10):
            return await self.conversations.send(thread, text, self.tasks.origin(lead))

    async def refused(self, lead, thread, text="more"):
        with pytest.raises(Refused) as raised:
            await self.send(lead, thread, text)
        return raised.value.code

    async def called(self, lead, tool, **given):
        """The result of one call of a tool by a lead."""
        self.stage.call("lead", tool, **given)
        async with asyncio.timeout(10):
            await lead.run("go on")
        return [block for _, message in lead.session.messages if message.source == "tool" for block in message.blocks][-1]

    def records(self, thread):
        return self.ledger.thread(thread)

    def session(self, thread):
        return self.records(thread)[0].attempts[-1].native

    def statuses(self, thread):
        return [record.outcome.status if record.outcome is not None else "" for record in self.records(thread)]

    def notices(self, lead):
        return [message.text for _, message in lead.session.messages if message.source == "harness" and "has ended" in message.text]

    def said(self, session):
        events = [event.data for event in self.sessions.read(session) if event.type == "message"]
        return ["".join(block.get("text", "") for block in data["blocks"]) for data in events if data.get("source") == "user"]

    def seen(self, agent):
        return set(self.host.get(TOOLS).registry.view(agent.scope))


@pytest.fixture
async def bench(opened, tmp_path, monkeypatch):
    monkeypatch.setenv("HAMES_HOME", str(tmp_path / "home"))
    patch = tmp_path / "patch.json"
    rows = [{"id": "loop", "set": {"config": {"retries": 0}}}, {"id": "delegation", "set": {"config": {"max_depth": 3, "grace": 3.0}}}]
    patch.write_text(json.dumps(rows))
    async with opened(patch) as host:
        made = Bench(host, tmp_path)
        yield made
        for gate in made.stage.gates.values():
            gate.set()
        for agent in tuple(made.agents.live.values()):
            await made.agents.dispose(agent)


async def test_a_message_refused_because_somebody_holds_the_conversation_is_no_failed_attempt(bench):
    lead = await bench.lead(preset="orchestrator")
    thread = await bench.keep_rested(lead)
    other = await bench.resume(bench.session(thread))
    refused = await bench.called(lead, "send_message", agent_id=thread, message="more")
    assert refused.is_error and refused.code == "CONVERSATION_BUSY"
    await bench.agents.dispose(other)
    taken = await bench.called(lead, "send_message", agent_id=thread, message="more")
    await bench.rest(lead)
    assert not taken.is_error, taken.text
    assert bench.said(bench.session(thread)) == ["begin", "more"]


async def test_the_first_call_of_a_fresh_agent_may_list_its_agents(opened, tmp_path):
    async with opened() as host:
        stage = Stage()
        host.get(MODELS).register(host.ctx, "stage", stage)
        lead = await host.get(AGENTS).create(AgentSpec(str(tmp_path), "stage:lead"))
        assert not (tmp_path / "state" / "control.db").exists()
        stage.call("lead", "list_agents")
        await lead.run("who is there?")
        (result,) = [block for _, message in lead.session.messages if message.source == "tool" for block in message.blocks]
        assert not result.is_error and result.text == "there are none"
        await host.get(AGENTS).dispose(lead)


async def test_an_interruption_of_one_that_waits_for_its_child_says_that_nothing_of_its_own_runs(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    kid = bench.agents.live[bench.session(thread)]
    leaf = await bench.keep_held(kid, "leaf")
    bench.stage.gates["kid"].set()
    await kid.idle()
    result = await bench.called(lead, "interrupt_agent", agent_id=thread)
    assert not result.is_error and "nothing of its own runs" in result.text
    assert bench.statuses(leaf) == [""]
    bench.stage.gates["leaf"].set()
    await bench.rest(lead)


async def test_a_child_resumed_by_itself_stands_in_the_preset_of_its_lead(bench):
    lead = await bench.lead(preset="orchestrator")
    thread = await bench.keep_rested(lead)
    await bench.agents.dispose(lead)
    kid = await bench.resume(bench.session(thread))
    assert kid.session.state["preset"] == lead.session.state["preset"]
    assert json.dumps(kid.session.state["preset"]).find("orchestrator") >= 0


async def test_a_resumed_child_stays_sealed_when_the_row_of_delegation_is_begun_anew(bench):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead, tools=("read", "grep"))
    await bench.agents.dispose(lead)
    kid = await bench.resume(bench.session(thread))
    assert bench.seen(kid) == {"read", "grep"}
    async with asyncio.timeout(10):
        await bench.service.ctx.owner.replace()
    assert bench.host.get(DELEGATION) is not bench.service
    assert bench.seen(kid) == {"read", "grep"}


async def test_a_child_is_narrow_for_one_message_only_while_its_lead_is(bench):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead)
    lead.narrow("test", "read-only")
    await bench.send(lead, thread, "look")
    await bench.rest(lead)
    lead.narrow("test", None)
    await bench.send(lead, thread, "write")
    await bench.rest(lead)
    wide, narrow, again = (record.spec.permission for record in bench.records(thread))
    assert narrow == "read-only" and again == wide != narrow


async def test_a_running_child_that_may_more_than_its_lead_takes_no_message(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    lead.narrow("test", "read-only")
    assert await bench.refused(lead, thread) == "GRANT_EXCEEDED"
    lead.narrow("test", None)
    assert (await bench.send(lead, thread, "more")).waits
    bench.stage.gates["kid"].set()
    await bench.rest(lead)
    assert bench.said(bench.session(thread)) == ["begin", "more"]


@pytest.mark.parametrize("above", [True, False])
async def test_nothing_but_a_session_is_ever_removed(bench, tmp_path, monkeypatch, above):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead)
    (tmp_path / "state" / "spill").mkdir(parents=True, exist_ok=True)
    victim = tmp_path / "state" / "x" if above else tmp_path / "x"
    victim.mkdir()
    (victim / "file").write_text("mine")
    native = "../x" if above else str(victim)
    records = [replace(each, attempts=[replace(one, native=native) for one in each.attempts]) for each in bench.records(thread)]
    monkeypatch.setattr(bench.ledger, "thread", lambda name: records)
    with pytest.raises(Refused) as raised:
        await Kept(bench.ledger, bench.sessions).remove(thread)
    assert raised.value.code == "CONVERSATION_GONE"
    assert (victim / "file").read_text() == "mine"


async def test_a_message_that_could_not_be_kept_does_not_wait(bench, monkeypatch):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    kid, barrier = bench.agents.live[bench.session(thread)], Session.barrier

    async def fails(self, *given):
        if self is kid.session:
            raise StorageError("the disk is gone")
        await barrier(self, *given)

    with monkeypatch.context() as broken:
        broken.setattr(Session, "barrier", fails)
        for _ in range(2):
            assert await bench.refused(lead, thread, "lost?") == "PERSISTENCE_UNAVAILABLE"
            assert len(kid.inbox) == 0
    assert waiting(bench.sessions.read(kid.id)) == []
    await bench.send(lead, thread, "lost?")
    bench.stage.gates["kid"].set()
    await bench.rest(lead)
    assert bench.said(kid.id) == ["begin", "lost?"] and waiting(bench.sessions.read(kid.id)) == []


async def test_a_message_that_is_too_long_is_refused_for_a_running_child_too(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    code = ""
    try:
        await bench.send(lead, thread, "x" * (4 * 1024 * 1024 + 1))
    except Refused as error:
        code = error.code
    bench.stage.gates["kid"].set()
    await bench.rest(lead)
    assert code == "SPEC_INVALID"


async def test_a_second_service_over_the_same_store_leaves_running_tasks_alone(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    other = Delegation(bench.service.ctx, bench.service.config, Clock())
    await other.tasks.recover()
    assert bench.statuses(thread) == [""]
    await other.close()
    bench.stage.gates["kid"].set()
    await bench.rest(lead)
    assert bench.statuses(thread) == ["completed"] and len(bench.notices(lead)) == 1


async def test_advice_that_fails_takes_neither_the_notice_nor_the_result(bench, monkeypatch):
    asked = []

    def fails(self, agent, task):
        asked.append(task)
        raise ValueError("no advice")

    monkeypatch.setattr(Strikes, "advice", fails)
    lead = await bench.lead(preset="orchestrator")
    bench.stage.plays["kid"].append(BROKEN)
    thread = await bench.keep_rested(lead)
    assert len(bench.notices(lead)) == 1 and "it broke" in bench.notices(lead)[0]
    bench.stage.call("lead", "implement", description="build", prompt="build it")
    bench.stage.plays["lead"].append(BROKEN)  # its child has the same model
    await lead.run("build it")
    results = [block for _, message in lead.session.messages if message.source == "tool" for block in message.blocks]
    assert results[-1].is_error and "it broke" in results[-1].text
    assert len(asked) == 2 and asked[0] == thread


async def test_the_notice_of_a_background_task_whose_receipt_was_lost_is_not_told_again(bench, monkeypatch):
    lead = await bench.lead()
    lost = []

    async def receive(task, kind, data):
        lost.append(kind)
        raise StorageError("the process died")

    with monkeypatch.context() as dying:
        dying.setattr(bench.ledger, "receive", receive)
        given = {"description": "a bit", "prompt": "begin", "model": "stage:kid", "run_in_background": True}
        bench.stage.call("lead", "delegate", **given)
        await lead.run("go")
        await bench.rest(lead)
        await until(lambda: bench.notices(lead))
        await bench.agents.dispose(lead)
    (record,) = bench.ledger.below(lead.id)
    lead = await bench.resume(lead.id)
    await lead.run("hello")
    told = [text for text in bench.notices(lead) if record.id in text]
    assert "delivered" in lost and len(told) == 1 and f"(task {record.id})" in told[0]
    assert [receipt.kind for receipt in bench.ledger.get(record.id).receipts] == ["delivered"]
