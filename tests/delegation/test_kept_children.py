"""Children that are kept, under strain: one notice for each rest, messages that are neither lost nor doubled, and what survives a host."""

# pyright: basic
from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict, deque
from contextlib import asynccontextmanager
from types import SimpleNamespace

import apsw
import pytest

from hames.agents import AGENTS, AgentSpec
from hames.budget import Limits
from hames.content.errors import KernelError
from hames.content.finish import Failure, Finish, TextDelta, Usage
from hames.content.jsontext import parse_object
from hames.content.messages import Text, ToolCall
from hames.delegation import DELEGATION
from hames.delegation.delegate import Delegating
from hames.delegation.failures import Refused
from hames.delegation.runner import Origin
from hames.delegation.spec import TaskSpec
from hames.delegation.tool import DelegateConfig
from hames.kernel import Mask
from hames.models import MODELS, Encoder
from hames.models.openai import OpenAIChat
from hames.sessions import SESSIONS, Session
from hames.sessions.history import waiting
from hames.store import STORE
from hames.store.database import full
from hames.tools import Invocation, ToolError

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def until(condition, patience=10.0):
    async with asyncio.timeout(patience):
        while not condition():
            await asyncio.sleep(0.001)


class Stream:
    def __init__(self, chunks):
        self._chunks = chunks
        self._said = ""

    def partial(self):
        return (Text(self._said),) if self._said else ()

    async def __aiter__(self):
        async for chunk in self._chunks:
            if isinstance(chunk, TextDelta):
                self._said += chunk.text
            yield chunk


class Stage:
    """A provider whose models a test holds and lets go: ``stage:NAME``.

    :ivar asked: of each model the bodies of its requests.
    :ivar plays: of each model the answers that come next; after them it says its name and a number.
    """

    def __init__(self):
        self.asked = defaultdict(list)
        self.plays = defaultdict(deque)
        self.gates = defaultdict(asyncio.Event)
        self._calls = 0

    def model(self, name, profile, ref):
        def stream(request):
            self.asked[name].append(parse_object(request.body()))
            return Stream(self._answer(name, len(self.asked[name])))

        return SimpleNamespace(
            ref=ref,
            window=128_000,
            stream=stream,
            cost=lambda usage: 0.0,
            encoder=lambda pictures: Encoder(OpenAIChat(), ref, pictures=pictures),
        )

    async def _answer(self, name, number):
        if name in self.gates:
            yield TextDelta("Half")
            await self.gates[name].wait()
        play = self.plays[name].popleft() if self.plays[name] else f"{name} {number}"
        yield play if isinstance(play, Finish) else Finish("stop", (Text(play),), Usage(10, 1))

    def hold(self, name):
        self.gates[name].clear()

    def free(self, name):
        self.gates[name].set()

    def call(self, *calls):
        """An answer that calls tools."""
        self._calls += len(calls)
        blocks = tuple(ToolCall(f"c{self._calls - n}", name, json.dumps(given)) for n, (name, given) in enumerate(calls))
        return Finish("tool-calls", blocks, Usage(10, 1))


class Bench:
    """A host, with leads whose children are kept."""

    def __init__(self, host, cwd):
        self.host, self.cwd = host, str(cwd)
        self.agents = host.get(AGENTS)
        self.service = host.get(DELEGATION)
        self.sessions = host.get(SESSIONS)
        self.tasks = self.service.tasks
        self.ledger = self.tasks.ledger
        self.conversations = self.service.conversations
        self.stage = Stage()
        self.person = Origin(host.root_scope, self.cwd)
        host.get(MODELS).register(host.ctx, "stage", self.stage)

    async def lead(self, name="lead", **more):
        return await self.agents.create(AgentSpec(**{"cwd": self.cwd, "model": f"stage:{name}", **more}))

    async def again(self, lead, **more):
        """Close a lead, and take its session up again."""
        await self.agents.dispose(lead)
        return await self.agents.create(AgentSpec(self.cwd, resume=lead.id, **more))

    async def keep(self, lead, name="kid", **more):
        """Start a child that is kept; the name of its conversation."""
        spec = TaskSpec(**{"prompt": "begin", "model": f"stage:{name}", "mode": "continuable", **more})
        task = await self.tasks.start(spec, self.tasks.origin(lead))
        await asyncio.shield(task.accepted)
        return task.thread

    async def keep_held(self, lead, name="kid", **more):
        """The same, with a model that does not answer before it is let go."""
        self.stage.hold(name)
        asked = len(self.stage.asked[name])
        thread = await self.keep(lead, name, **more)
        await until(lambda: len(self.stage.asked[name]) > asked)
        return thread

    async def keep_rested(self, lead, name="kid", **more):
        thread = await self.keep(lead, name, **more)
        await self.rest(lead)
        return thread

    async def rest(self, lead):
        async with asyncio.timeout(10):
            await self.service.rest(lead)

    async def send(self, lead, thread, text, **more):
        async with asyncio.timeout(10):
            return await self.conversations.send(thread, text, self.tasks.origin(lead), **more)

    async def refused(self, lead, thread, text="more"):
        with pytest.raises(Refused) as raised:
            await self.send(lead, thread, text)
        return raised.value.code

    def interrupt(self, thread, by):
        return self.conversations.interrupt(thread, by)

    def records(self, thread):
        return self.ledger.thread(thread)

    def session(self, thread):
        return self.records(thread)[-1].attempts[-1].native or self.records(thread)[0].attempts[-1].native

    def agent(self, thread):
        return self.agents.live[self.session(thread)]

    def notices(self, lead):
        return [message.text for _, message in lead.session.messages if message.source == "harness" and "has ended" in message.text]

    def statuses(self, thread):
        return [record.outcome.status if record.outcome is not None else "" for record in self.records(thread)]

    def receipts(self, thread):
        return [[receipt.kind for receipt in record.receipts] for record in self.records(thread)]

    def said(self, session, source="user"):
        """What stands in the conversation of a session, in order."""
        events = [event.data for event in self.sessions.read(session) if event.type == "message"]
        messages = [data for data in events if data["role"] == "user" and data["source"] == source]
        return ["".join(block.get("text", "") for block in data["blocks"]) for data in messages]

    def waiting(self, session):
        """What waits in it."""
        return [item.message.text for item in waiting(self.sessions.read(session))]

    def listed(self, lead, scope="children"):
        return self.conversations.list(lead.id, scope)

    async def close(self, *agents):
        for agent in agents:
            await self.agents.dispose(agent)
        assert self.agents.live == {} and self.tasks.live == {}
        assert self.tasks.owing._owed == {} and self.conversations._turns._wanted == {}


@pytest.fixture
async def hosted(opened, tmp_path):
    """Opens benches over one state directory, one after another; nothing of them is left."""
    patch = tmp_path / "patch.json"
    rows = [{"id": "loop", "set": {"config": {"retries": 0}}}, {"id": "delegation", "set": {"config": {"max_depth": 3, "grace": 3.0}}}]
    before = asyncio.all_tasks()

    @asynccontextmanager
    async def open(*more, cwd=tmp_path):
        patch.write_text(json.dumps([*rows, *more]))
        async with opened(patch) as host:
            made = Bench(host, cwd)
            yield made
            leads = list(made.agents.live.values())
            for name in list(made.stage.gates):
                made.stage.free(name)
            for lead in leads:
                await made.agents.dispose(lead)
            await made.close()

    yield open
    await until(lambda: not [each for each in asyncio.all_tasks() - before if each is not asyncio.current_task() and not each.done()])


@pytest.fixture
async def bench(hosted):
    async with hosted() as made:
        yield made


def alter(root, database, statement, *values):
    connection = apsw.Connection(str(root / "state" / database))
    connection.execute(statement, values)
    assert connection.changes()
    connection.close()


# one notice for each rest


async def test_a_parent_at_rest_has_one_turn_for_the_notice(bench):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead)
    assert len(bench.notices(lead)) == 1 and "kid 1" in bench.notices(lead)[0] and thread in bench.notices(lead)[0]
    assert len(bench.stage.asked["lead"]) == 1 and lead.status == "idle"
    assert bench.receipts(thread) == [["delivered"]]


async def test_notices_to_a_busy_parent_come_together_with_one_request(bench):
    lead = await bench.lead()
    bench.stage.hold("lead")
    lead.send("work")
    await until(lambda: bench.stage.asked["lead"])
    threads = [await bench.keep(lead, f"kid{n}") for n in range(4)]
    await until(lambda: all(bench.receipts(thread) == [["delivered"]] for thread in threads))
    bench.stage.free("lead")
    await bench.rest(lead)
    await lead.idle()
    assert len(bench.notices(lead)) == 4 and len(bench.stage.asked["lead"]) == 2
    assert len([event for event in bench.sessions.read(lead.id) if event.type == "turn"]) == 1


async def test_children_that_come_to_rest_at_once_are_each_told_once(bench):
    lead = await bench.lead()
    threads = [await bench.keep_held(lead, f"kid{n}") for n in range(5)]
    for n in range(5):
        bench.stage.free(f"kid{n}")
    await bench.rest(lead)
    assert sorted(bench.notices(lead)) == sorted({*bench.notices(lead)}) and len(bench.notices(lead)) == 5
    assert all(bench.receipts(thread) == [["delivered"]] for thread in threads)


async def test_a_child_that_reported_with_a_message_of_its_own_is_told_of_all_the_same(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    await bench.send(lead, thread, "and this")
    bench.stage.free("kid")
    await bench.rest(lead)
    assert len(bench.notices(lead)) == 1 and "kid 2" in bench.notices(lead)[0]


async def test_each_time_that_it_rests_is_told_once(bench):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead)
    for n in range(4):
        await bench.send(lead, thread, f"more {n}")
        await bench.rest(lead)
    assert len(bench.notices(lead)) == 5 and bench.receipts(thread) == [["delivered"]] * 5
    assert [f"kid {n}" in notice for n, notice in enumerate(bench.notices(lead), 1)] == [True] * 5


async def test_a_parent_that_is_closed_is_told_when_it_is_resumed_and_once(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    await bench.agents.dispose(lead)
    assert bench.tasks.live == {} and bench.agents.live == {}
    assert bench.statuses(thread) == ["aborted"] and bench.receipts(thread) == [[]]
    assert len(bench.stage.asked["lead"]) == 0
    for _ in range(2):
        lead = await bench.agents.create(AgentSpec(bench.cwd, resume=lead.id, model="stage:lead"))
        assert lead.status == "idle"  # it is told with the next message, and not woken for it
        await lead.run("hello")
        assert len(bench.notices(lead)) == 1 and bench.receipts(thread) == [["delivered"]]
        await bench.agents.dispose(lead)


async def test_a_child_that_rests_while_its_parent_is_being_closed_is_told_once(bench):
    for turns in range(0, 60, 3):
        lead = await bench.lead()
        thread = await bench.keep_held(lead, f"kid{turns}")
        bench.stage.free(f"kid{turns}")
        for _ in range(turns):
            await asyncio.sleep(0)
        await bench.agents.dispose(lead)
        lead = await bench.agents.create(AgentSpec(bench.cwd, resume=lead.id, model="stage:lead"))
        await lead.run("hello")
        assert len(bench.notices(lead)) == 1, turns
        assert bench.receipts(thread) == [["delivered"]]
        await bench.agents.dispose(lead)


async def test_a_notice_that_waits_in_a_closed_parent_is_not_told_again(bench):
    lead = await bench.lead()
    bench.stage.hold("lead")
    lead.send("work")
    await until(lambda: bench.stage.asked["lead"])
    thread = await bench.keep(lead)
    await until(lambda: bench.receipts(thread) == [["delivered"]])
    lead = await bench.again(lead)
    bench.stage.free("lead")
    await lead.run("hello")
    assert len(bench.notices(lead)) == 1


async def test_where_the_receipt_cannot_be_written_the_notice_is_not_told_again(bench, monkeypatch):
    lead = await bench.lead()
    control = bench.ledger.store.control
    received = bench.ledger.receive

    def fails(*given):
        monkeypatch.setattr(bench.ledger, "receive", received)
        raise full(control.path)

    monkeypatch.setattr(bench.ledger, "receive", fails)
    thread = await bench.keep_rested(lead)
    assert len(bench.notices(lead)) == 1 and bench.receipts(thread) == [[]]
    lead = await bench.again(lead)
    await lead.run("hello")
    assert len(bench.notices(lead)) == 1 and bench.receipts(thread) == [["delivered"]]


async def test_a_teardown_that_fails_is_told_in_the_one_notice(bench, monkeypatch):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    kid, dispose = bench.agent(thread), bench.agents.dispose

    async def breaks(agent):
        if agent is kid:
            raise OSError("the teardown broke")
        await dispose(agent)

    monkeypatch.setattr(bench.agents, "dispose", breaks)
    bench.stage.free("kid")
    await bench.rest(lead)
    (notice,) = bench.notices(lead)
    assert "the teardown broke" in notice and bench.receipts(thread) == [["delivered"]]
    assert bench.records(thread)[0].liveness == "undetermined"
    assert await bench.refused(lead, thread) == "CONVERSATION_BUSY"  # it was never given back
    monkeypatch.undo()
    await bench.agents.dispose(kid)
    await bench.send(lead, thread, "and now?")
    await bench.rest(lead)
    assert bench.said(bench.session(thread)) == ["begin", "and now?"]


ENDS = {
    "error": (Finish("error", (), None, Failure("server", "it broke")), {}, "error"),
    "max-tokens": (Finish("max-tokens", (Text("Half"),), Usage(1, 1)), {}, "max-tokens"),
    "refusal": (Finish("refusal", (Text("No."),), Usage(1, 1)), {}, "refusal"),
    "nothing said": (Finish("stop", (Text(""),), Usage(1, 1)), {}, "error"),
    "budget": (None, {"budget": Limits(steps=1)}, "budget"),
    "schema": (None, {"schema": SCHEMA}, "invalid"),
}


@pytest.mark.parametrize("end", list(ENDS))
async def test_a_child_that_failed_is_told_once_and_goes_on(bench, end):
    answer, more, status = ENDS[end]
    lead = await bench.lead()
    if end == "budget":
        bench.stage.plays["kid"].append(bench.stage.call(("list_agents", {})))
    elif answer is not None:
        bench.stage.plays["kid"].append(answer)
    thread = await bench.keep_rested(lead, **more)
    assert bench.statuses(thread) == [status] and len(bench.notices(lead)) == 1 and status in bench.notices(lead)[0]
    assert f"send_message to {thread}" in bench.notices(lead)[0]
    value = bench.stage.call(("structured_output", {"n": 3}))
    bench.stage.plays["kid"].append(value if end == "schema" else "Well.")
    await bench.send(lead, thread, "once more")
    await bench.rest(lead)
    assert bench.statuses(thread) == [status, "completed"] and len(bench.notices(lead)) == 2
    assert bench.said(bench.session(thread)) == ["begin", "once more"]
    assert ('{"n":3}' if end == "schema" else "Well.") in bench.notices(lead)[1]


# children of children


async def test_a_kept_parent_is_not_at_rest_while_its_children_work(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead, "middle")
    middle = bench.agent(thread)
    below = [await bench.keep_held(middle, f"leaf{n}") for n in range(2)]
    bench.stage.free("middle")
    await middle.idle()
    assert bench.listed(lead)[0].status == "waiting" and bench.notices(lead) == []
    bench.stage.free("leaf0")
    await until(lambda: len(bench.notices(middle)) == 1)
    await middle.idle()
    assert bench.listed(lead)[0].status == "waiting" and bench.notices(lead) == []
    bench.stage.free("leaf1")
    await bench.rest(lead)
    assert len(bench.notices(lead)) == 1 and "middle 3" in bench.notices(lead)[0]
    assert [bench.statuses(each) for each in (thread, *below)] == [["completed"]] * 3
    assert bench.said(bench.session(thread), "harness")[-1].startswith("The task")


@pytest.mark.parametrize("end", ["error", "refusal", "max-tokens"])
async def test_a_kept_parent_whose_turn_failed_waits_for_its_children_too(bench, end):
    lead = await bench.lead()
    thread = await bench.keep_held(lead, "middle")
    middle = bench.agent(thread)
    below = await bench.keep_held(middle, "leaf")
    bench.stage.plays["middle"].append(ENDS[end][0])
    bench.stage.free("middle")
    await middle.idle()
    assert bench.notices(lead) == [] and bench.listed(lead)[0].status == "waiting"
    bench.stage.free("leaf")
    await bench.rest(lead)
    assert bench.statuses(below) == ["completed"] and bench.statuses(thread) == ["completed"]
    assert len(bench.notices(lead)) == 1


async def test_a_kept_parent_that_gives_its_value_waits_for_its_children_too(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead, "middle", schema=SCHEMA)
    middle = bench.agent(thread)
    below = await bench.keep_held(middle, "leaf")
    bench.stage.plays["middle"].append(bench.stage.call(("structured_output", {"n": 1})))
    bench.stage.free("middle")
    await middle.idle()
    for _ in range(200):
        await asyncio.sleep(0)
    assert not bench.tasks.live[below].cause  # it is not ended with its parent
    bench.stage.free("leaf")
    await bench.rest(lead)
    assert bench.statuses(thread) == ["completed"] and bench.statuses(below) == ["completed"]


async def test_a_lead_that_is_closed_ends_all_below_it_and_each_is_told_where_it_belongs(bench):
    lead = await bench.lead()
    top = await bench.keep_held(lead, "top")
    first = bench.agent(top)
    middle = await bench.keep_held(first, "middle")
    second = bench.agent(middle)
    leaf = await bench.keep_held(second, "leaf")
    await bench.agents.dispose(lead)
    assert bench.tasks.live == {} and bench.agents.live == {}
    assert [bench.statuses(each) for each in (top, middle, leaf)] == [["aborted"]] * 3
    for name in ("top", "middle", "leaf"):
        bench.stage.free(name)
    lead = await bench.agents.create(AgentSpec(bench.cwd, resume=lead.id, model="stage:lead"))
    await lead.run("hello")
    assert len(bench.notices(lead)) == 1 and top in bench.notices(lead)[0]
    await bench.send(lead, top, "go on")
    await bench.rest(lead)
    told = [text for text in bench.said(bench.session(top), "harness") if "has ended" in text]
    assert len(told) == 1 and middle in told[0]
    assert not [text for text in bench.said(bench.session(middle), "harness") if "has ended" in text]


# interrupting


async def test_an_interruption_keeps_what_waits_and_the_next_message_comes_after_it(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    for text in "abc":
        assert (await bench.send(lead, thread, text)).waits
    bench.interrupt(thread, lead)
    await bench.rest(lead)
    assert bench.statuses(thread) == ["aborted"] and bench.waiting(bench.session(thread)) == ["a", "b", "c"]
    assert len(bench.notices(lead)) == 1 and "3 messages" in bench.notices(lead)[0]
    bench.stage.free("kid")
    assert not (await bench.send(lead, thread, "d")).waits
    await bench.rest(lead)
    assert bench.said(bench.session(thread)) == ["begin", "a", "b", "c", "d"] and bench.waiting(bench.session(thread)) == []
    assert len(bench.stage.asked["kid"]) == 5 and len(bench.notices(lead)) == 2  # one turn for each of them


async def test_after_an_interruption_in_the_same_life_what_waits_comes_before_the_next_message(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    kid = bench.agent(thread)
    leaf = await bench.keep_held(kid, "leaf")
    for text in "ab":
        await bench.send(lead, thread, text)
    bench.interrupt(thread, lead)
    await kid.idle()
    bench.stage.free("kid")
    assert bench.listed(lead)[0].status == "waiting" and bench.listed(lead)[0].waiting == 2
    assert bench.statuses(leaf) == [""]  # what it has started goes on
    sent = await bench.send(lead, thread, "c")
    assert sent.waits and sent.task == thread
    await kid.idle()
    assert bench.said(kid.id) == ["begin", "a", "b", "c"]
    bench.stage.free("leaf")
    await bench.rest(lead)
    assert bench.statuses(thread) == ["completed"] and bench.statuses(leaf) == ["completed"]
    assert len(bench.notices(lead)) == 1


async def test_what_waits_in_an_interrupted_child_is_not_begun_by_a_notice_of_its_own_child(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    kid = bench.agent(thread)
    await bench.keep_held(kid, "leaf")
    await bench.send(lead, thread, "a")
    bench.interrupt(thread, lead)
    await kid.idle()
    bench.stage.free("kid")
    bench.stage.free("leaf")
    await bench.rest(lead)
    assert bench.said(kid.id) == ["begin"] and "a" in bench.waiting(kid.id)
    await bench.send(lead, thread, "b")
    await bench.rest(lead)
    assert bench.said(kid.id) == ["begin", "a", "b"]
    assert len([text for text in bench.said(kid.id, "harness") if "has ended" in text]) == 1


async def test_an_interruption_of_one_at_rest_does_nothing(bench):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead)
    before = len(bench.sessions.read(bench.session(thread)))
    assert thread in bench.interrupt(thread, lead)
    assert bench.statuses(thread) == ["completed"] and len(bench.sessions.read(bench.session(thread))) == before
    await bench.send(lead, thread, "more")
    await bench.rest(lead)
    assert bench.statuses(thread) == ["completed"] * 2


async def test_an_interruption_of_one_that_waits_for_its_children_ends_nothing(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    kid = bench.agent(thread)
    leaf = await bench.keep_held(kid, "leaf")
    bench.stage.free("kid")
    await kid.idle()
    bench.interrupt(thread, lead)
    bench.stage.free("leaf")
    await bench.rest(lead)
    assert bench.statuses(thread) == ["completed"] and bench.statuses(leaf) == ["completed"]


async def test_interrupting_twice_is_interrupting_once(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    await bench.send(lead, thread, "a")
    for _ in range(3):
        bench.interrupt(thread, lead)
    await bench.rest(lead)
    bench.interrupt(thread, lead)
    assert bench.statuses(thread) == ["aborted"] and bench.waiting(bench.session(thread)) == ["a"]


async def test_who_may_interrupt_and_who_may_speak(bench):
    lead, stranger = await bench.lead(), await bench.lead("stranger")
    top, sibling = await bench.keep_held(lead, "top"), await bench.keep_held(lead, "sibling")
    first = bench.agent(top)
    middle = await bench.keep_held(first, "middle")
    second = bench.agent(middle)
    leaf = await bench.keep_held(second, "leaf")

    def code(thread, by):
        with pytest.raises(Refused) as raised:
            bench.interrupt(thread, by)
        return raised.value.code

    for thread, by in ((top, first), (top, bench.agent(sibling)), (top, stranger), (top, second), (leaf, bench.agent(leaf))):
        assert code(thread, by) == "UNAUTHORIZED"
        assert await bench.refused(by, thread) == "UNAUTHORIZED"
    for by in (lead, first):  # those above may end it, and do not speak to it
        assert await bench.refused(by, leaf) == "UNAUTHORIZED"
    with pytest.raises(Refused) as raised:
        bench.interrupt("t-nothing", lead)
    assert raised.value.code == "TASK_UNKNOWN"
    assert bench.said(bench.session(leaf)) == ["begin"] and bench.waiting(bench.session(leaf)) == []
    bench.interrupt(leaf, lead)  # three levels up
    await until(lambda: bench.statuses(leaf) == ["aborted"])
    assert bench.statuses(middle) == [""] and bench.statuses(top) == [""]
    bench.interrupt(middle, lead)
    bench.interrupt(top, None)  # a person
    for name in ("top", "middle", "leaf", "sibling"):
        bench.stage.free(name)
    await bench.rest(lead)


async def test_an_interruption_that_comes_while_a_turn_is_being_ended_says_what_waits(bench, monkeypatch):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    kid = bench.agent(thread)
    await bench.send(lead, thread, "a")
    append = Session.append

    def ending(self, type, data, **more):
        append(self, type, data, **more)
        if self is kid.session and type == "end":
            asyncio.get_running_loop().call_soon(bench.interrupt, thread, lead)

    monkeypatch.setattr(Session, "append", ending)
    bench.stage.free("kid")
    await bench.rest(lead)
    monkeypatch.undo()
    assert bench.waiting(kid.id) == ["a"]
    assert "1 messages" in bench.notices(lead)[0]


# messages


async def test_many_messages_at_once_to_a_child_at_work_keep_their_order(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    texts = [f"m{n}" for n in range(60)]
    sent = await asyncio.gather(*(bench.send(lead, thread, text) for text in texts))
    assert {each.waits for each in sent} == {True} and {each.task for each in sent} == {thread}
    assert bench.waiting(bench.session(thread)) == texts
    bench.stage.free("kid")
    await bench.rest(lead)
    assert bench.said(bench.session(thread)) == ["begin", *texts] and len(bench.notices(lead)) == 1


async def test_messages_to_a_child_that_is_just_starting_keep_their_order(bench):
    lead = await bench.lead()
    for turns in range(12):
        spec = TaskSpec("begin", model="stage:kid", mode="continuable")
        task = await bench.tasks.start(spec, bench.tasks.origin(lead))
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.gather(*(bench.send(lead, task.thread, text) for text in "abcd"))
        await bench.rest(lead)
        assert bench.said(bench.session(task.thread)) == ["begin", *"abcd"], turns
        assert bench.waiting(bench.session(task.thread)) == []


async def test_messages_to_a_child_that_is_just_coming_to_rest_are_each_heard_once(bench):
    lead = await bench.lead()
    for turns in range(40):
        thread = await bench.keep_held(lead, f"kid{turns}")
        bench.stage.free(f"kid{turns}")
        for _ in range(turns):
            await asyncio.sleep(0)
        sent = await asyncio.gather(*(bench.send(lead, thread, text) for text in "abc"))
        await bench.rest(lead)
        assert bench.said(bench.session(thread)) == ["begin", *"abc"], turns
        assert bench.waiting(bench.session(thread)) == []
        records = bench.records(thread)
        assert {each.task for each in sent} <= {record.id for record in records}
        assert len([notice for notice in bench.notices(lead) if any(record.id in notice for record in records)]) == len(records)


async def test_messages_during_a_cold_resume_keep_their_order(bench):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead)
    said = ["begin"]
    for round in range(8):
        texts = [f"{round}{text}" for text in "abcd"]
        await asyncio.gather(*(bench.send(lead, thread, text) for text in texts))
        await bench.rest(lead)
        said += texts
        assert bench.said(bench.session(thread)) == said


async def test_one_who_sends_again_at_once_comes_after_those_who_wait(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)

    async def twice():
        await bench.send(lead, thread, "a1")
        await bench.send(lead, thread, "a2")

    both = [asyncio.ensure_future(twice()), asyncio.ensure_future(bench.send(lead, thread, "b"))]
    await asyncio.gather(*both)
    assert bench.waiting(bench.session(thread)) == ["a1", "b", "a2"]
    bench.stage.free("kid")
    await bench.rest(lead)


async def test_one_who_sends_again_while_others_wait_for_a_rest_is_not_refused(bench, monkeypatch):
    """All who wait stand in one line, whoever came to the door in between."""
    lead = await bench.lead()
    for offset in range(30):
        thread = await bench.keep_held(lead, f"kid{offset}")
        bench.stage.free(f"kid{offset}")
        order = random.Random(offset)

        async def several(name, thread=thread, order=order):
            for n in range(3):
                for _ in range(order.randrange(25)):
                    await asyncio.sleep(0)
                await bench.send(lead, thread, f"{name}{n}")

        found = await asyncio.gather(*(several(name) for name in "wxyz"), return_exceptions=True)
        await bench.rest(lead)
        assert found == [None] * 4, offset
        said = bench.said(bench.session(thread))
        assert sorted(said) == sorted(["begin", *(f"{name}{n}" for name in "wxyz" for n in range(3))]), offset
        assert bench.waiting(bench.session(thread)) == []
        for name in "wxyz":
            assert [text for text in said if text[0] == name] == [f"{name}{n}" for n in range(3)]


async def test_an_empty_message_and_a_task_that_was_not_kept_are_refused(bench):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead)
    assert await bench.refused(lead, thread, " \n") == "SPEC_INVALID"
    outcome = await bench.tasks.run(TaskSpec("once", model="stage:kid"), bench.tasks.origin(lead))
    once = next(record for record in bench.ledger.below(lead.id) if record.spec.prompt == "once")
    assert outcome.ok and await bench.refused(lead, once.id) == "NOT_CONTINUABLE"
    assert await bench.refused(lead, "t-nothing") == "TASK_UNKNOWN"
    assert bench.said(bench.session(thread)) == ["begin"] and bench.tasks.live == {}


async def test_a_conversation_may_be_named_by_any_of_its_tasks(bench):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead)
    second = await bench.send(lead, thread, "two")
    await bench.rest(lead)
    third = await bench.send(lead, second.task, "three")
    await bench.rest(lead)
    assert third.thread == thread and bench.said(bench.session(thread)) == ["begin", "two", "three"]


async def test_a_parent_that_is_ending_sends_nothing(bench):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead)
    origin = bench.tasks.origin(lead)
    await bench.agents.dispose(lead)
    with pytest.raises(Refused) as raised:
        await bench.conversations.send(thread, "hello?", origin)
    assert raised.value.code == "PARENT_GONE" and bench.said(bench.session(thread)) == ["begin"]


async def test_a_call_that_is_cancelled_before_the_work_is_taken_leaves_nothing_half_made(bench, monkeypatch):
    """The call of ``delegate`` ends before the child has its work: the child is not there, or may be spoken to."""
    lead = await bench.lead()
    create, go, held = bench.agents.create, asyncio.Event(), asyncio.Event()

    async def slow(spec):
        if spec.origin:
            held.set()
            await go.wait()
        return await create(spec)

    monkeypatch.setattr(bench.agents, "create", slow)
    given = {"description": "a bit", "prompt": "begin", "keep": True, "model": "stage:kid"}
    bench.stage.plays["lead"].append(bench.stage.call(("delegate", given)))
    lead.send("go")
    await held.wait()
    lead.cancel("user")
    await lead.idle()
    go.set()
    (record,) = bench.ledger.below(lead.id)
    task = bench.tasks.live.get(record.id)
    if task is None or task.cause:
        await bench.rest(lead)
        assert await bench.refused(lead, record.id) == "CONVERSATION_GONE"
        return
    sent = await asyncio.gather(bench.send(lead, record.thread, "more"), return_exceptions=True)
    await bench.rest(lead)
    assert not isinstance(sent[0], BaseException), repr(sent[0])
    assert bench.said(bench.session(record.thread)) == ["begin", "more"]


async def drive(bench, lead, history):
    """A random history of one conversation; what was taken, in the order in which it was said."""
    order, name = random.Random(history), f"kid{history}"
    bench.stage.hold(name)
    thread = await bench.keep(lead, name)
    taken, sending, number = ["begin"], [], 0
    for _ in range(40):
        what = order.choice(["send", "send", "send", "burst", "interrupt", "free", "hold", "pause", "pause", "join"])
        match what:
            case "send" | "burst":
                for _ in range(1 if what == "send" else order.randrange(2, 5)):
                    text, number = f"m{number}", number + 1
                    sending.append(asyncio.ensure_future(bench.send(lead, thread, text)))
                    taken.append(text)
            case "interrupt":
                bench.interrupt(thread, lead)
            case "free":
                bench.stage.free(name)
            case "hold":
                bench.stage.hold(name)
            case "join":
                bench.stage.free(name)
                await asyncio.gather(*sending)
            case _:
                for _ in range(order.randrange(40)):
                    await asyncio.sleep(0)
    bench.stage.free(name)
    found = await asyncio.gather(*sending, return_exceptions=True)
    assert not [error for error in found if isinstance(error, BaseException)], (history, found)
    await bench.rest(lead)
    if bench.waiting(bench.session(thread)):  # it was interrupted last
        await bench.send(lead, thread, "last")
        taken.append("last")
        await bench.rest(lead)
    return thread, taken


@pytest.mark.parametrize("history", range(24))
async def test_whatever_happens_each_message_is_heard_once_and_in_order(bench, history):
    lead = await bench.lead()
    thread, taken = await drive(bench, lead, history)
    session = bench.session(thread)
    assert bench.said(session) == taken and bench.waiting(session) == []
    assert {record.attempts[-1].native for record in bench.records(thread)} == {session}
    assert bench.receipts(thread) == [["delivered"]] * len(bench.records(thread))
    assert len(bench.notices(lead)) == len(bench.records(thread))


@pytest.mark.slow
async def test_histories_of_many_children_of_one_parent_do_not_mix(bench):
    lead = await bench.lead()
    histories = await asyncio.gather(*(drive(bench, lead, history) for history in range(100, 112)))
    await bench.rest(lead)
    for thread, taken in histories:
        assert bench.said(bench.session(thread)) == taken
    assert len(bench.notices(lead)) == sum(len(bench.records(thread)) for thread, _ in histories)


async def test_a_person_may_speak_to_it_and_its_parent_goes_on_afterwards(bench):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead)
    bench.stage.plays["kid"].append(ENDS["refusal"][0])
    await bench.conversations.send(thread, "from a person", bench.person)
    await until(lambda: bench.tasks.live == {})
    assert bench.statuses(thread) == ["completed", "refusal"] and len(bench.notices(lead)) == 1
    (entry,) = bench.listed(lead)
    assert (entry.status, entry.turns, entry.last) == ("kept", 2, "refusal")
    await bench.send(lead, thread, "from its parent")
    await bench.rest(lead)
    assert bench.said(bench.session(thread)) == ["begin", "from a person", "from its parent"] and len(bench.notices(lead)) == 2


# taken up again by another host


async def test_another_host_goes_on_with_what_there_was(hosted, tmp_path, monkeypatch):
    monkeypatch.setenv("HAMES_HOME", str(tmp_path / "home"))
    role = tmp_path / "home" / "roles" / "reviewer.md"
    role.parent.mkdir(parents=True)
    text = "---\ndescription: Reads a change.\ntools: [read, grep, write]\npermission: workspace-write\n---\n"
    role.write_text(text + "You review for the first owner.")
    async with hosted() as bench:
        lead = await bench.lead()
        thread = await bench.keep_rested(lead, role="reviewer")
        before = bench.stage.asked["kid"][-1]
        kept = bench.records(thread)[0].attempts[0].digest
        await bench.agents.dispose(lead)
    for changed in (True, False):
        if changed:
            role.write_text(text.replace("read, grep, write", "bash") + "You are another one now.")
        else:
            role.unlink()
        async with hosted() as bench:
            lead = await bench.agents.create(AgentSpec(bench.cwd, resume=lead.id, model="stage:other"))
            await bench.send(lead, thread, f"changed {changed}")
            await bench.rest(lead)
            (after,) = bench.stage.asked["kid"]  # and not the model that its parent has now
            await bench.agents.dispose(lead)
            assert after["messages"][0] == before["messages"][0] and "the first owner" in str(after["messages"][0])
            names = [[tool["function"]["name"] for tool in body["tools"]] for body in (before, after)]
            assert names[0] == names[1] and sorted(names[0]) == ["grep", "read", "write"]
            last = bench.records(thread)[-1]
            assert (last.depth, last.spec.permission, last.spec.role) == (1, "workspace-write", "reviewer")
            assert last.attempts[0].digest == kept
    async with hosted() as bench:
        assert bench.said(bench.session(thread)) == ["begin", "changed True", "changed False"]
        assert len({record.attempts[0].native for record in bench.records(thread)}) == 1


async def test_messages_that_wait_are_heard_first_in_another_host(hosted):
    async with hosted() as bench:
        lead = await bench.lead()
        thread = await bench.keep_held(lead)
        for text in "abc":
            await bench.send(lead, thread, text)
        bench.interrupt(thread, lead)
        await bench.rest(lead)
        await bench.agents.dispose(lead)
    async with hosted() as bench:
        lead = await bench.agents.create(AgentSpec(bench.cwd, resume=lead.id))
        assert [(entry.status, entry.waiting) for entry in bench.listed(lead)] == [("kept", 3)]
        await bench.send(lead, thread, "d")
        await bench.rest(lead)
        assert bench.said(bench.session(thread)) == ["begin", "a", "b", "c", "d"]
        assert len(bench.stage.asked["kid"]) == 4


async def test_what_its_parent_may_hand_down_now_narrows_it(hosted, tmp_path):
    async with hosted() as bench:
        lead = await bench.lead()
        thread = await bench.keep_rested(lead)
        wide = {tool["function"]["name"] for tool in bench.stage.asked["kid"][-1]["tools"]}
        lead = await bench.again(lead)
        lead.narrow("test", "read-only")
        lead.grant = (*lead.grant, Mask(frozenset({"read", "write", "list_agents"})))
        await bench.send(lead, thread, "more")
        await bench.rest(lead)
        narrow = {tool["function"]["name"] for tool in bench.stage.asked["kid"][-1]["tools"]}
        assert narrow <= {"read", "write", "list_agents"} < wide and "read" in narrow
        assert bench.records(thread)[-1].spec.permission == "read-only"
    async with hosted() as bench:  # and a parent that has more again gives it no more than it was begun with
        lead = await bench.agents.create(AgentSpec(bench.cwd, resume=lead.id))
        await bench.send(lead, thread, "and more")
        await bench.rest(lead)
        assert {tool["function"]["name"] for tool in bench.stage.asked["kid"][-1]["tools"]} <= wide


async def test_a_child_begun_narrow_does_not_become_wider_with_its_parent(bench):
    lead = await bench.lead(ceiling="read-only", grant=(Mask(frozenset({"read", "grep", "delegate"})),))
    thread = await bench.keep_rested(lead)
    before = [tool["function"]["name"] for tool in bench.stage.asked["kid"][-1]["tools"]]
    lead = await bench.again(lead)
    assert lead.ceiling == "full"
    kid = []
    create = bench.agents.create

    async def made(spec):
        kid.append(await create(spec))
        return kid[-1]

    bench.agents.create = made
    await bench.send(lead, thread, "more")
    await bench.rest(lead)
    del bench.agents.create
    assert [tool["function"]["name"] for tool in bench.stage.asked["kid"][-1]["tools"]] == before
    assert kid[0].ceiling == "read-only"


async def test_where_the_runner_has_gone_it_is_refused_and_nothing_is_lost(hosted):
    async with hosted() as bench:
        lead = await bench.lead()
        thread = await bench.keep_held(lead)
        await bench.send(lead, thread, "a")
        bench.interrupt(thread, lead)
        await bench.rest(lead)
        await bench.agents.dispose(lead)
    async with hosted({"id": "spawn", "remove": True}) as bench:
        lead = await bench.agents.create(AgentSpec(bench.cwd, resume=lead.id))
        assert await bench.refused(lead, thread, "b") == "RUNNER_UNKNOWN"
        assert len(bench.records(thread)) == 1 and bench.waiting(bench.session(thread)) == ["a"]
        assert [entry.status for entry in bench.listed(lead)] == ["kept"]
        assert bench.tasks.live == {}
        await bench.agents.dispose(lead)
    async with hosted() as bench:
        lead = await bench.agents.create(AgentSpec(bench.cwd, resume=lead.id))
        await bench.send(lead, thread, "c")
        await bench.rest(lead)
        assert bench.said(bench.session(thread)) == ["begin", "a", "c"]


async def test_a_conversation_that_somebody_else_holds_is_busy_and_keeps_what_waits(bench):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead)
    other = await bench.agents.create(AgentSpec(bench.cwd, resume=bench.session(thread)))
    assert await bench.refused(lead, thread) == "CONVERSATION_BUSY"
    await bench.rest(lead)
    assert len(bench.notices(lead)) == 1  # the call has said that it was not taken
    await bench.agents.dispose(other)
    await bench.send(lead, thread, "now")
    await bench.rest(lead)
    assert bench.said(bench.session(thread)) == ["begin", "now"]


async def test_a_message_that_was_refused_to_its_sender_is_not_told_again_at_a_resume(bench):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead)
    other = await bench.agents.create(AgentSpec(bench.cwd, resume=bench.session(thread)))
    bench.stage.plays["lead"].append(bench.stage.call(("send_message", {"agent_id": thread, "message": "more"})))
    await lead.run("send it")
    results = [block for _, message in lead.session.messages if message.source == "tool" for block in message.blocks]
    assert results[-1].code == "CONVERSATION_BUSY"
    await bench.agents.dispose(other)
    lead = await bench.again(lead)
    await lead.run("hello")
    assert len(bench.notices(lead)) == 1


# forks, values, budgets


async def test_a_fork_is_kept_too(bench):
    lead = await bench.lead()
    await lead.run("the story so far")
    thread = await bench.keep_rested(lead, runner="fork")
    await lead.run("what the child does not hear")
    await bench.send(lead, thread, "more")
    await bench.rest(lead)
    assert bench.said(bench.session(thread)) == ["the story so far", "begin", "more"]
    assert bench.statuses(thread) == ["completed"] * 2 and len(bench.notices(lead)) == 2


@pytest.mark.parametrize("runner", ["spawn", "fork"])
async def test_a_directory_that_is_named_by_a_link_is_the_same_directory_later(hosted, tmp_path, runner):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    async with hosted(cwd=tmp_path / "link") as bench:
        lead = await bench.lead()
        await lead.run("hello")
        thread = await bench.keep_rested(lead, runner=runner)
        await bench.send(lead, thread, "more")
        await bench.rest(lead)
        assert bench.statuses(thread) == ["completed"] * 2


async def test_each_task_of_a_conversation_gives_a_value_of_its_own(bench):
    lead = await bench.lead()
    for n in range(3):
        bench.stage.plays["kid"].append(bench.stage.call(("structured_output", {"n": n})))
    thread = await bench.keep_rested(lead, schema=SCHEMA)
    for text in ("again", "and again"):
        await bench.send(lead, thread, text)
        await bench.rest(lead)
    assert [record.outcome.value for record in bench.records(thread)] == [{"n": n} for n in range(3)]
    bench.stage.plays["kid"] += ["I give nothing.", "Still nothing."]
    await bench.send(lead, thread, "once more")
    await bench.rest(lead)
    last = bench.records(thread)[-1].outcome
    assert (last.status, last.value, last.schema_valid) == ("invalid", None, False)  # and not the value of the time before


async def test_a_message_that_waits_when_the_value_is_given_is_done_or_said_to_wait(bench):
    lead = await bench.lead()
    bench.stage.plays["kid"] += [bench.stage.call(("structured_output", {"n": n})) for n in range(2)]
    thread = await bench.keep_held(lead, schema=SCHEMA)
    sent = await bench.send(lead, thread, "and then this")
    assert sent.waits
    bench.stage.free("kid")
    await bench.rest(lead)
    session = bench.session(thread)
    if bench.waiting(session):
        assert "1 messages" in bench.notices(lead)[-1]
    else:
        assert bench.said(session) == ["begin", "and then this"] and bench.records(thread)[-1].outcome.value == {"n": 1}


async def test_each_task_of_a_conversation_has_a_budget_of_its_own(bench):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead, budget=Limits(steps=2))
    for n in range(4):
        await bench.send(lead, thread, f"m{n}")
        await bench.rest(lead)
    assert bench.statuses(thread) == ["completed"] * 5 and [record.outcome.steps for record in bench.records(thread)] == [1] * 5


async def test_messages_that_a_spent_budget_leaves_are_in_the_conversation_once(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead, budget=Limits(steps=2))
    for text in "abc":
        await bench.send(lead, thread, text)
    bench.stage.free("kid")
    await bench.rest(lead)
    assert bench.statuses(thread) == ["budget"] and len(bench.stage.asked["kid"]) == 2
    await bench.send(lead, thread, "d")
    await bench.rest(lead)
    assert bench.said(bench.session(thread)) == ["begin", *"abcd"] and len(bench.notices(lead)) == 2


async def test_the_time_of_a_kept_task_is_over_and_what_waits_stays(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead, budget=Limits(seconds=0.1))
    await bench.send(lead, thread, "a")
    await bench.rest(lead)
    assert bench.statuses(thread) == ["budget"] and bench.waiting(bench.session(thread)) == ["a"]
    assert "1 messages" in bench.notices(lead)[0]
    bench.stage.free("kid")
    await bench.send(lead, thread, "b")
    await bench.rest(lead)
    assert bench.said(bench.session(thread)) == ["begin", "a", "b"]


# lists, and damage


async def test_a_list_shows_each_before_what_it_has_started(bench):
    lead = await bench.lead()
    threads = [await bench.keep_held(lead, f"kid{n}") for n in range(2)]
    below = [await bench.keep_held(bench.agent(thread), f"leaf{n}") for n, thread in enumerate(threads)]
    entries = bench.listed(lead, "descendants")
    assert [entry.id for entry in entries] == [threads[0], below[0], threads[1], below[1]]
    assert [(entry.depth, entry.parent) for entry in entries] == [(1, ""), (2, threads[0]), (1, ""), (2, threads[1])]
    assert [entry.id for entry in bench.listed(lead)] == threads
    for n in range(2):
        bench.stage.free(f"kid{n}")
        bench.stage.free(f"leaf{n}")
    await bench.rest(lead)
    assert [entry.status for entry in bench.listed(lead, "descendants")] == ["kept"] * 4


async def damaged(bench, tmp_path, database, statement, which):
    lead = await bench.lead()
    threads = [await bench.keep_rested(lead, f"kid{n}") for n in range(3)]
    sid = bench.ledger.store.sessions.query("SELECT sid FROM sessions ORDER BY sid")[2][0]
    alter(tmp_path, database, statement, threads[1] if which == "thread" else sid)
    entries = {entry.id: entry for entry in bench.listed(lead)}
    assert [entries[each].status for each in (threads[0], threads[2])] == ["kept", "kept"]
    assert threads[1] in entries, "the damaged one is not shown"
    assert entries[threads[1]].status == "damaged" and entries[threads[1]].problem
    assert "damaged" in entries[threads[1]].line
    return lead, threads


@pytest.mark.parametrize("table", ["tasks", "states", "outcomes", "attempts", "receipts"])
async def test_a_child_with_a_damaged_record_is_shown_as_such_and_hides_no_other(bench, tmp_path, table):
    key = "id" if table == "tasks" else "task"
    lead, threads = await damaged(bench, tmp_path, "control.db", f"UPDATE {table} SET crc = crc + 1 WHERE {key} = ?", "thread")
    for each in (threads[0], threads[2]):
        await bench.send(lead, each, "more")
    await bench.rest(lead)
    assert len(bench.notices(lead)) == 5


@pytest.mark.parametrize("type", ["message", "queued", "state"])
async def test_a_child_with_a_damaged_conversation_is_shown_as_such_and_hides_no_other(bench, tmp_path, type):
    statement = f"UPDATE events SET data = X'7b7d' WHERE sid = ? AND type = '{type}'"
    lead, threads = await damaged(bench, tmp_path, "sessions.db", statement, "session")
    with pytest.raises(Refused):
        await bench.send(lead, threads[1], "more")
    await bench.send(lead, threads[2], "more")
    await bench.rest(lead)
    assert bench.said(bench.session(threads[2])) == ["begin", "more"]


async def test_a_child_whose_session_has_gone_is_shown_as_gone(bench, tmp_path):
    lead = await bench.lead()
    threads = [await bench.keep_rested(lead, f"kid{n}") for n in range(2)]
    await bench.sessions.purge(bench.session(threads[0]))
    assert [entry.status for entry in bench.listed(lead)] == ["gone", "kept"]
    assert await bench.refused(lead, threads[0]) == "CONVERSATION_GONE"


# purging


async def test_what_is_purged_is_gone_and_its_records_stay(bench, tmp_path):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    with pytest.raises(Refused) as raised:
        await bench.conversations.purge(thread)
    assert raised.value.code == "CONVERSATION_BUSY"
    session = bench.session(thread)
    spill = tmp_path / "state" / "spill" / session
    spill.mkdir(parents=True)
    (spill / "long.txt").write_text("x" * 5000)
    bench.stage.free("kid")
    await bench.rest(lead)
    query = bench.ledger.store.sessions.query
    before = {table: query(f"SELECT COUNT(*) FROM {table}")[0][0] for table in ("events", "requests", "fragments", "sessions")}
    assert await bench.conversations.purge(thread) > 5000
    assert not spill.exists()
    after = {table: query(f"SELECT COUNT(*) FROM {table}")[0][0] for table in before}
    assert after["sessions"] == before["sessions"] - 1 and all(after[table] < before[table] for table in before)
    (record,) = bench.records(thread)
    assert record.outcome.ok and record.outcome.text == "kid 1" and [each.kind for each in record.receipts] == ["delivered", "purged"]
    assert [entry.status for entry in bench.listed(lead)] == ["gone"]
    with pytest.raises(Refused) as raised:
        await bench.conversations.purge(thread)
    assert raised.value.code == "CONVERSATION_GONE"
    assert await bench.refused(lead, thread) == "CONVERSATION_GONE"
    lead = await bench.again(lead)
    await lead.run("hello")
    assert len(bench.notices(lead)) == 1


async def test_a_purge_and_a_message_at_once_leave_one_of_them_refused(bench):
    lead = await bench.lead()
    for turns in range(12):
        thread = await bench.keep_rested(lead, f"kid{turns}")
        purging = asyncio.ensure_future(bench.conversations.purge(thread))
        for _ in range(turns):
            await asyncio.sleep(0)
        sent, purged = await asyncio.gather(bench.send(lead, thread, "more"), purging, return_exceptions=True)
        await bench.rest(lead)
        assert isinstance(sent, Refused) != isinstance(purged, Refused), (turns, sent, purged)
        if isinstance(sent, Refused):
            assert sent.code in ("CONVERSATION_GONE", "CONVERSATION_BUSY")
        else:
            assert bench.said(bench.session(thread)) == ["begin", "more"]


# a store that cannot be written


class Full:
    """A database whose disk is full, for as long as a test says."""

    def __init__(self, database, monkeypatch):
        self.database, self.monkeypatch, self.real = database, monkeypatch, database._commit

    def __enter__(self):
        def commit(batch):
            raise full(self.database.path)

        self.monkeypatch.setattr(self.database, "_commit", commit)

    def __exit__(self, *_):
        self.monkeypatch.setattr(self.database, "_commit", self.real)


@pytest.mark.parametrize("database", ["control", "sessions"])
async def test_a_message_that_cannot_be_kept_is_refused_and_begins_nothing(bench, monkeypatch, database):
    lead = await bench.lead()
    thread = await bench.keep_rested(lead)
    with Full(getattr(bench.host.get(STORE), database), monkeypatch):
        code = await bench.refused(lead, thread)
        await bench.rest(lead)
    assert code == "PERSISTENCE_UNAVAILABLE"
    assert bench.said(bench.session(thread)) == ["begin"] and bench.waiting(bench.session(thread)) == []
    assert len(bench.notices(lead)) == 1 and len(bench.stage.asked["kid"]) == 1
    await bench.send(lead, thread, "now")
    await bench.rest(lead)
    assert bench.said(bench.session(thread)) == ["begin", "now"]


async def test_a_message_to_a_child_at_work_that_cannot_be_kept_is_refused(bench, monkeypatch):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    kid = bench.agent(thread)
    with Full(bench.host.get(STORE).sessions, monkeypatch):
        assert await bench.refused(lead, thread, "lost?") == "PERSISTENCE_UNAVAILABLE"
    bench.stage.free("kid")
    await bench.rest(lead)
    assert bench.said(kid.id) == ["begin"] and bench.waiting(kid.id) == []
    assert len(bench.notices(lead)) == 1 and len(bench.stage.asked["kid"]) == 1
    await bench.send(lead, thread, "now")
    await bench.rest(lead)
    assert bench.said(kid.id) == ["begin", "now"]


@pytest.mark.parametrize("database", ["control", "sessions"])
async def test_where_nothing_can_be_kept_no_child_is_begun(bench, monkeypatch, tmp_path, database):
    lead = await bench.lead()
    given = {"description": "a bit", "prompt": "begin", "keep": True, "model": "stage:kid"}
    delegating = Delegating(bench.service.ctx, bench.tasks, DelegateConfig())
    call = Invocation("c0", lead.scope, lead.cwd, lead.memory, lambda data, kind: tmp_path / kind, session=lead.id)
    code = ""
    with Full(getattr(bench.host.get(STORE), database), monkeypatch):
        try:
            code = (await delegating.run(call, given)).code
        except ToolError as error:
            code = error.code
        await bench.rest(lead)
    assert code == "PERSISTENCE_UNAVAILABLE"
    assert bench.stage.asked["kid"] == [] and bench.tasks.live == {} and bench.notices(lead) == []


# what is not left


async def test_a_message_to_an_agent_that_is_closed_is_no_message(bench):
    lead = await bench.lead()
    thread = await bench.keep_held(lead)
    kid = bench.agent(thread)
    bench.stage.free("kid")
    await bench.rest(lead)
    with pytest.raises(KernelError):
        kid.send("psst")
    assert bench.agents.live == {lead.id: lead} and bench.tasks.live == {} and bench.tasks.owing.of(lead.id) == set()


async def test_a_host_that_ends_while_children_work_leaves_them_to_be_gone_on_with(hosted):
    async with hosted() as bench:
        lead = await bench.lead()
        thread = await bench.keep_held(lead)
        kid = bench.agent(thread)
        leaf = await bench.keep_held(kid, "leaf")
        await bench.send(lead, thread, "a")
        await bench.tasks.close()
        assert bench.tasks.live == {} and bench.statuses(thread) == ["interrupted"]
        await bench.agents.dispose(lead)
    async with hosted() as bench:
        lead = await bench.agents.create(AgentSpec(bench.cwd, resume=lead.id, model="stage:lead"))
        await bench.send(lead, thread, "b")
        await bench.rest(lead)
        await lead.run("hello")
        assert bench.said(bench.session(thread)) == ["begin", "a", "b"]
        told = [text for text in bench.said(bench.session(thread), "harness") if "has ended" in text]
        assert len(told) == 1 and leaf in told[0]
        assert len([record for record in bench.records(thread) for notice in bench.notices(lead) if record.id in notice.split("(")[0]]) == 2
