"""What is said to an agent while it works: it is taken in order, once, and never lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hames.agents import AGENTS, AgentSpec, Answered, Chunked, Inbox, ToolStarted, TurnBegan, TurnEnded
from hames.budget import Limits
from hames.content.errors import KernelError
from hames.content.finish import Finish, TextDelta, Usage
from hames.content.jsontext import parse_object
from hames.content.messages import Text, ToolCall, encode_message, user
from hames.kernel import plugin
from hames.models import MODELS, Encoder
from hames.models.openai import OpenAIChat
from hames.sessions import SESSIONS, Event
from hames.sessions.history import waiting
from hames.store import STORE
from hames.tools import TOOLS, Output, tool

SOON = 5  # seconds


class Puppet:
    """A provider whose answers a test gives: an asynchronous generator of chunks from a request."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []  # for each request the texts of its user

    def model(self, name, profile, ref):
        def stream(request):
            messages = parse_object(request.body())["messages"]
            self.asked.append([message["content"] for message in messages if message["role"] == "user"])
            return Stream(self.answer(len(self.asked) - 1, messages))

        return SimpleNamespace(
            ref=ref,
            window=128_000,
            stream=stream,
            cost=lambda usage: 0.0,
            encoder=lambda pictures: Encoder(OpenAIChat(), ref, pictures=pictures),
        )


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


def done(text="done"):
    return Finish("stop", (Text(text),), Usage(10, 1))


async def answers(number, messages):
    yield TextDelta("done")
    yield done()


@pytest.fixture
def puppet(host):
    def make(answer=answers):
        made = Puppet(answer)
        host.get(MODELS).register(host.ctx, "puppet", made)
        return made

    return make


class Gate:
    """An answer that waits in the middle until it is let through."""

    def __init__(self):
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def __call__(self, number, messages):
        yield TextDelta("half")
        self.reached.set()
        await self.open.wait()
        yield done()


async def begun(agent, gate, message="first"):
    agent.send(message)
    await asyncio.wait_for(gate.reached.wait(), SOON)


async def at_rest(agent):
    """Wait until an agent is idle. One that would never be is let go, so that it does not hold up the end of the test."""
    try:
        await asyncio.wait_for(agent.idle(), SOON)
    except TimeoutError:
        if agent._driver is not None and agent._driver.done():
            agent._driver = None
        raise AssertionError("the agent never becomes idle") from None


def said(agent):
    return [message.text for _, message in agent.session.messages if message.source == "user"]


def events(host, agent, type):
    return [event.data for event in host.get(SESSIONS).read(agent.id) if event.type == type]


def left(host, agent):
    return [(item.target, item.message.text) for item in waiting(host.get(SESSIONS).read(agent.id))]


# order


async def test_a_turn_takes_one_message_for_a_turn_and_all_for_the_next_request(host, agents, puppet, tmp_path):
    gate = Gate()
    model = puppet(gate)
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    await begun(agent, gate, "a")
    agent.send("b")
    agent.inject("s1")
    agent.send("c")
    agent.steer("s2")
    gate.open.set()
    await at_rest(agent)
    assert model.asked == [["a"], ["a", "s1", "s2"], ["a", "s1", "s2", "b"], ["a", "s1", "s2", "b", "c"]]
    assert len(events(host, agent, "turn")) == 3
    assert left(host, agent) == []


async def test_at_the_beginning_of_a_turn_what_was_injected_comes_first(agents, puppet, tmp_path):
    model = puppet()
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    agent.inject("s1")
    agent.inject("s2")
    assert (agent.status, model.asked) == ("idle", [])
    agent.send("a")
    agent.send("b")
    await at_rest(agent)
    assert model.asked == [["s1", "s2", "a"], ["s1", "s2", "a", "b"]]


async def test_between_requests_of_a_turn_only_what_was_steered_is_taken(host, agents, puppet, tmp_path):
    async def answer(number, messages):
        if number < 2:
            yield Finish("tool-calls", (ToolCall(f"c{number}", "glob", json.dumps({"pattern": f"{number}*"})),), Usage(1, 1))
        else:
            yield done()

    model = puppet(answer)
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    notes = iter(["one", "two"])

    def meddle(notice):
        word = next(notes)
        agent.send(f"turn {word}")
        agent.steer(f"now {word}")

    host.ctx.on(ToolStarted, meddle)
    agent.send("a")
    await at_rest(agent)
    assert model.asked == [
        ["a"],
        ["a", "now one"],
        ["a", "now one", "now two"],
        ["a", "now one", "now two", "turn one"],
        ["a", "now one", "now two", "turn one", "turn two"],
    ]


async def test_a_steer_wakes_an_idle_agent_and_an_injection_does_not(agents, puppet, tmp_path):
    puppet()
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    agent.inject("quiet")
    assert agent.status == "idle"
    agent.steer("loud")
    await at_rest(agent)
    assert said(agent) == ["quiet", "loud"]


async def test_what_is_steered_while_the_last_answer_streams_is_answered_in_the_same_turn(host, agents, puppet, tmp_path):
    model = puppet()
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    once = iter([True])
    host.ctx.on(Chunked, lambda notice: agent.steer("wait") if isinstance(notice.chunk, Finish) and next(once, False) else None)
    end = await agent.run("go")
    assert model.asked == [["go"], ["go", "wait"]]
    assert (end.steps, len(events(host, agent, "turn"))) == (2, 1)


async def test_what_is_steered_when_the_turn_has_answered_is_still_answered(host, agents, puppet, tmp_path):
    model = puppet()
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    once = iter([True])
    host.ctx.on(TurnEnded, lambda notice: agent.steer("wait") if next(once, False) else None)
    agent.send("go")
    await at_rest(agent)
    assert model.asked == [["go"], ["go", "wait"]]


def is_answered_or_waits(host, agent, text):
    """Whether a message waits, or has an answer of the model behind it."""
    places = [index for index, (_, message) in enumerate(agent.session.messages) if message.text == text]
    if not places:
        return ("step", text) in left(host, agent)
    return any(message.role == "assistant" for _, message in agent.session.messages[places[0] :])


async def test_what_is_steered_into_a_call_that_concludes_the_turn_is_not_swallowed(host, agents, puppet, mounted, tmp_path):
    @tool("read")
    def finish() -> Output:
        """Finish."""
        return Output((), concludes=True)

    @plugin(needs=(TOOLS,))
    def more(ctx, config):
        ctx.use(TOOLS).register(ctx, finish)

    async def answer(number, messages):
        yield done() if number else Finish("tool-calls", (Text("So be it."), ToolCall("c1", "finish", "{}")), Usage(1, 1))

    mounted(more)
    puppet(answer)
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    host.ctx.on(ToolStarted, lambda notice: agent.steer("no, wait"))
    agent.send("go")
    await at_rest(agent)
    assert is_answered_or_waits(host, agent, "no, wait")


async def test_what_is_steered_into_the_last_call_of_a_budget_is_not_swallowed(host, agents, puppet, tmp_path):
    async def answer(number, messages):
        yield done() if number else Finish("tool-calls", (ToolCall("c1", "glob", '{"pattern": "*"}'),), Usage(1, 1))

    puppet(answer)
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m", limits=Limits(steps=1)))
    host.ctx.on(ToolStarted, lambda notice: agent.steer("no, wait"))
    agent.send("go")
    await at_rest(agent)
    assert is_answered_or_waits(host, agent, "no, wait")


# cancelling


@pytest.mark.parametrize("keep", [False, True])
async def test_cancelling_drops_what_waits_or_keeps_it(keep, host, agents, puppet, tmp_path):
    gate = Gate()
    puppet(gate)
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    ended = []
    host.ctx.on(TurnEnded, lambda notice: ended.append((notice.end.reason, notice.end.detail)))
    await begun(agent, gate)
    agent.send("second")
    agent.inject("aside")
    gate.open.set()
    agent.cancel("parent", keep_inbox=keep)
    await at_rest(agent)
    await agent.session.barrier()
    assert ended == [("aborted", "parent"), *([("completed", "")] if keep else [])]
    assert said(agent) == ["first", *(["aside", "second"] if keep else [])]
    assert len(events(host, agent, "dropped")) == (0 if keep else 1)
    assert left(host, agent) == []
    assert (agent.cause, agent.status) == ("", "idle")


async def test_the_first_cause_wins(agents, puppet, tmp_path):
    gate = Gate()
    puppet(gate)
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    await begun(agent, gate)
    agent.cancel("first", keep_inbox=True)
    agent.send("stays")
    agent.cancel("second")
    gate.open.set()
    await at_rest(agent)
    assert said(agent) == ["first", "stays"]


async def test_what_is_sent_after_a_cancel_has_a_turn_of_its_own(host, agents, puppet, tmp_path):
    gate = Gate()
    puppet(gate)
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    ended = []
    host.ctx.on(TurnEnded, lambda notice: ended.append(notice.end.reason))
    await begun(agent, gate)
    agent.send("dropped")
    agent.cancel("user")
    agent.send("instead")
    gate.open.set()
    await at_rest(agent)
    assert ended == ["aborted", "completed"]
    assert said(agent) == ["first", "instead"]


async def test_a_cancel_right_after_a_message_ends_what_has_not_begun(agents, puppet, tmp_path):
    puppet()
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    agent.send("never mind")
    agent.cancel("user")
    await at_rest(agent)
    assert agent.status == "idle"
    assert (await agent.run("go")).reason == "completed"


async def test_a_message_after_a_cancel_of_what_has_not_begun_is_answered(agents, puppet, tmp_path):
    puppet()
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    agent.send("never mind")
    agent.cancel("user")
    agent.send("but this")
    await at_rest(agent)
    assert said(agent)[-1] == "but this"
    assert agent.last.reason == "completed"


async def test_closing_right_after_a_message_ends_and_keeps_it(host, agents, puppet, tmp_path):
    puppet()
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    agent.send("later")
    try:
        async with asyncio.timeout(SOON):
            await agents.dispose(agent)
    except TimeoutError:
        agent._driver = None
        raise AssertionError("the agent never closes") from None
    assert ("turn", "later") in left(host, agent) or "later" in said(agent)


async def test_a_message_after_a_cancel_at_the_last_moment_is_answered(host, agents, puppet, tmp_path):
    """The answer is there and the end of the turn is being written when somebody cancels and says something else."""
    puppet()
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    ended = []
    once = iter([True])

    def late(notice):
        if next(once, False):
            agent.cancel("user")
            agent.send("instead")

    host.ctx.on(Answered, late)
    host.ctx.on(TurnEnded, lambda notice: ended.append(notice.end.detail))
    agent.send("go")
    await at_rest(agent)
    assert said(agent) == ["go", "instead"]
    assert ended[0] in ("user", "")  # cancelled by the user, or done before: not that the event loop has ended
    assert len(events(host, agent, "end")) == len(events(host, agent, "turn")) == 2


async def test_what_is_kept_by_a_cancel_at_the_last_moment_is_taken(host, agents, puppet, tmp_path):
    puppet()
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    once = iter([True])
    host.ctx.on(Answered, lambda notice: agent.cancel("user", keep_inbox=True) if next(once, False) else None)
    agent.send("go")
    agent.send("on")
    await at_rest(agent)
    assert said(agent) == ["go", "on"]


@pytest.mark.parametrize("when", [TurnBegan, Answered, TurnEnded])
async def test_after_any_cancel_the_next_turn_can_be_cancelled(when, host, agents, puppet, tmp_path):
    gate = Gate()
    gate.open.set()
    puppet(gate)
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    once = iter([True])
    host.ctx.on(when, lambda notice: agent.cancel("early") if next(once, False) else None)
    agent.send("go")
    await at_rest(agent)
    assert agent.cause == ""
    gate.reached.clear()
    gate.open.clear()
    await begun(agent, gate, "again")
    agent.cancel("user")
    try:
        await asyncio.wait_for(agent.idle(), 1)
    finally:
        gate.open.set()
    assert (agent.last.reason, agent.last.detail) == ("aborted", "user")


async def test_a_cancel_of_an_idle_agent_arms_nothing_and_drops_nothing(host, agents, puppet, tmp_path):
    puppet()
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    agent.inject("aside")
    agent.cancel("user")
    assert agent.cause == ""
    assert (await agent.run("go")).reason == "completed"
    assert said(agent) == ["aside", "go"]
    assert events(host, agent, "dropped") == []


# closing


async def test_a_closed_agent_takes_nothing_and_leaves_what_waited_in_its_session(host, agents, puppet, tmp_path):
    gate = Gate()
    puppet(gate)
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    await begun(agent, gate)
    agent.send("b")
    agent.steer("s")
    closing = asyncio.create_task(agents.dispose(agent))
    await asyncio.sleep(0)
    for speak in (agent.send, agent.steer, agent.inject):
        with pytest.raises(KernelError) as refused:
            speak("late")
        assert refused.value.code == "AGENT_CLOSED"
    await asyncio.wait_for(closing, SOON)
    with pytest.raises(KernelError):
        await agent.run("late")
    assert (agent.status, agent.last.detail) == ("closed", "disposed")
    assert left(host, agent) == [("turn", "b"), ("step", "s")]
    gate.open.set()
    again = await agents.create(AgentSpec("", resume=agent.id))
    assert ([item.message.text for item in again.inbox.next_turn], [item.message.text for item in again.inbox.next_step]) == (["b"], ["s"])
    again.send("c")
    await at_rest(again)
    assert said(again) == ["first", "s", "b", "c"]
    assert left(host, again) == []


async def test_what_waits_when_the_whole_host_closes_is_there_again(opened, tmp_path):
    async with opened() as host:
        gate = Gate()
        host.get(MODELS).register(host.ctx, "puppet", Puppet(gate))
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), "puppet:m"))
        await begun(agent, gate)
        agent.send("b")
        agent.inject("s")
    async with opened() as host:
        host.get(MODELS).register(host.ctx, "puppet", Puppet(answers))
        assert left(host, agent) == [("turn", "b"), ("step", "s")]
        again = await host.get(AGENTS).create(AgentSpec("", resume=agent.id))
        again.wake()
        await at_rest(again)
        assert said(again) == ["first", "s", "b"]


CHILD = """
import asyncio, sys
from pathlib import Path
from hames.agents import AGENTS, AgentSpec, ToolStarted
from hames.compose import running
from hames.profiles import profile
from hames.sessions import SESSIONS
from hames.store import STATE

async def main(state, work, model):
    async with running([profile("standard")], {STATE: Path(state)}) as host:
        agent = await host.get(AGENTS).create(AgentSpec(work, model))
        started = asyncio.Event()
        host.ctx.on(ToolStarted, lambda notice: started.set())
        agent.send("first")
        await started.wait()
        agent.send("b")
        agent.steer("s")
        agent.send("c")
        agent.inject("t")
        while sum(event.type == "queued" for event in host.get(SESSIONS).read(agent.id)) < 4:
            await asyncio.sleep(0.005)
        print(agent.id, flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_what_waited_when_the_process_was_killed_is_there_again(opened, script, calling, tmp_path):
    model = script(calling(("bash", {"command": "exec sleep 30.625"})))
    (tmp_path / "work").mkdir()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(tmp_path / "state"), str(tmp_path / "work"), model, stdout=asyncio.subprocess.PIPE
    )
    try:
        name = (await asyncio.wait_for(child.stdout.readline(), 20)).decode().strip()
    finally:
        child.send_signal(signal.SIGKILL)
        await child.communicate()
    async with opened() as host:
        model = Puppet(answers)
        host.get(MODELS).register(host.ctx, "puppet", model)
        agent = await host.get(AGENTS).create(AgentSpec("", "puppet:m", resume=name))
        assert left(host, agent) == [("turn", "b"), ("step", "s"), ("turn", "c"), ("step", "t")]
        agent.send("d")
        await at_rest(agent)
        assert said(agent) == ["first", "s", "t", "b", "c", "d"]
        assert model.asked[0] == ["first", "s", "t", "b"]
        assert left(host, agent) == []


# a log that cannot be written


async def test_with_a_log_that_cannot_be_written_each_message_fails_once_and_nothing_spins(host, agents, puppet, tmp_path):
    gate = Gate()
    model = puppet(gate)
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m"))
    ended = []

    def hear(notice):
        ended.append(notice.end.reason)
        if len(ended) > 20:
            agent.inbox.next_turn.clear()
            agent.inbox.next_step.clear()

    host.ctx.on(TurnEnded, hear)
    await begun(agent, gate)
    for word in "abc":
        agent.send(word)
    await agent.session.barrier()
    await host.get(STORE).sessions.write("UPDATE sessions SET epoch = epoch + 1 WHERE sid = ?", (agent.session.sid,))
    agent.inject("s")
    gate.open.set()
    await at_rest(agent)
    assert set(ended) == {"error"}
    assert len(ended) <= 5
    assert len(model.asked) == 1
    assert len(agent.inbox) == 0
    with contextlib.suppress(Exception):
        agent.send("more")
        await at_rest(agent)
    assert len(ended) <= 6
    assert agent.status == "idle"


# the lists themselves


class Log:
    """What an inbox needs of a session."""

    def __init__(self, events=()):
        self.events = list(events)
        self.pending = waiting(self.events)
        self.said = []

    @property
    def next_seq(self):
        return len(self.events)

    def append(self, type, data):
        self.events.append(Event(len(self.events), 0.0, type, data))

    def queue(self, target, message):
        self.append("queued", {"target": target, **encode_message(message)})
        return message

    def add(self, message, **more):
        self.append("message", {**encode_message(message), **more})
        self.said.append(message.text)


class InboxMachine(RuleBasedStateMachine):
    """The inbox beside two plain lists."""

    def __init__(self):
        super().__init__()
        self.log = Log()
        self.inbox = Inbox(self.log)
        self.turn, self.step = [], []
        self.said, self.set_aside, self.unlogged = [], [], set()
        self.count = 0

    def name(self):
        self.count += 1
        return f"m{self.count}"

    @rule()
    def send(self):
        name = self.name()
        self.inbox.put("turn", user(name))
        self.turn.append(name)

    @rule()
    def steer(self):
        name = self.name()
        self.inbox.put("step", user(name))
        self.step.append(name)

    @precondition(lambda self: not self.turn and not self.step)
    @rule()
    def send_at_once(self):
        name = self.name()
        self.inbox.put("turn", user(name), at_once=True)
        self.turn.append(name)
        self.unlogged.add(name)

    @rule()
    def take_turn(self):
        self.inbox.take_turn()
        self.said += [*self.step, *self.turn[:1]]
        self.step, self.turn = [], self.turn[1:]

    @rule()
    def take_step(self):
        assert self.inbox.take_step() is bool(self.step)
        self.said += self.step
        self.step = []

    @rule()
    def clear(self):
        assert [message.text for message in self.inbox.clear()] == [*self.step, *self.turn]
        self.step, self.turn = [], []

    @rule()
    def keep(self):
        self.inbox.keep()
        self.unlogged.clear()

    @rule()
    def postpone(self):
        self.inbox.postpone()
        self.unlogged.clear()
        self.set_aside += [*self.step, *self.turn[:1]]
        self.step, self.turn = [], self.turn[1:]

    @rule()
    def open_again(self):
        self.inbox.keep()
        self.unlogged.clear()
        self.log = Log(self.log.events)
        self.said = []
        self.inbox = Inbox(self.log)
        self.turn = [item.message.text for item in self.log.pending if item.target == "turn"]
        self.step = [item.message.text for item in self.log.pending if item.target == "step"]
        self.set_aside = []

    @invariant()
    def the_lists_are_those(self):
        assert [item.message.text for item in self.inbox.next_turn] == self.turn
        assert [item.message.text for item in self.inbox.next_step] == self.step
        assert len(self.inbox) == len(self.turn) + len(self.step)
        assert self.log.said == self.said

    @invariant()
    def the_log_knows_what_waits(self):
        known = [item.message.text for item in waiting(self.log.events)]
        expected = {*self.turn, *self.step, *self.set_aside} - self.unlogged
        assert set(known) == expected
        assert len(known) == len(expected)
        kept = [name for name in known if name in self.turn]
        assert kept == [name for name in self.turn if name not in self.unlogged]


TestInboxMachine = InboxMachine.TestCase
TestInboxMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None, database=None, derandomize=True)
