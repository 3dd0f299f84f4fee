"""A request holds a slot while its answer streams, and at no other time."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.agents.events import Chunked, Retrying, SlotAwaited, ToolStarted
from hames.budget import SCHEDULER, Limits, Place
from hames.content.clock import Clock
from hames.delegation import DELEGATION
from hames.kernel import plugin
from hames.testing.clock import FakeClock
from hames.testing.contract import children_of_this
from hames.testing.stub import StubServer
from hames.tools import TOOLS, Approval, Question, tool


@tool("network")
async def fetch(url: str) -> str:
    """Fetch."""
    return url


@plugin(needs=(TOOLS,))
def network(ctx, config):
    ctx.use(TOOLS).register(ctx, fetch)


class Busy(StubServer):
    """The stub, which counts how many requests are at it at once, and takes a moment for each."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = self.most = 0
        self.full = 3
        self.crowded = asyncio.Event()

    async def _answer(self, request, events, fault):
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.inside >= self.full:
            self.crowded.set()
        try:
            if self.most < self.full:  # a slow server: requests that may come together do
                try:
                    async with asyncio.timeout(0.3):
                        await self.crowded.wait()
                except TimeoutError:
                    pass
            await asyncio.sleep(0.003)
            return await super()._answer(request, events, fault)
        finally:
            self.inside -= 1


@pytest.fixture
async def busy(monkeypatch):
    async with Busy() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
            monkeypatch.setenv(name, "test-key")
        yield server


@pytest.fixture
def slots(opened, tmp_path):
    """Opens a host whose scheduler, delegation and loop are configured; at the end nobody has a slot, and nothing is left."""

    @asynccontextmanager
    async def open(*, clock=None, delegation=None, retries=None, **scheduler):
        entries = [
            {"id": "scheduler", "set": {"config": scheduler}},
            {"id": "delegation", "set": {"config": delegation or {}}},
            {"id": "loop", "set": {"config": {} if retries is None else {"retries": retries}}},
        ]
        path = tmp_path / "rows.json"
        path.write_text(json.dumps(entries))
        children = children_of_this()
        async with opened(path, provided={Clock: clock} if clock is not None else None) as host:
            yield host
            for state in host.get(SCHEDULER).state():
                assert (state.running, state.waiting) == (0, 0), state
        assert children_of_this() == children
        left = [each.get_name() for each in asyncio.all_tasks() if each.get_name().startswith(("agent ", "task ", "job-"))]
        assert left == []

    return open


async def until(true) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.002)


# at once


async def test_twenty_agents_never_have_more_than_three_requests_at_the_server(busy, slots, tmp_path):
    async with slots(concurrency=3) as host:
        agents = host.get(AGENTS)
        model = 'openai:steps=2;tool=glob;args={"pattern":"#"}'
        made = [await agents.create(AgentSpec(str(tmp_path), model)) for _ in range(20)]
        ends = await asyncio.gather(*(agent.run("go") for agent in made))
        assert {end.reason for end in ends} == {"completed"} and len(busy.received) == 60
        assert busy.most == 3


async def test_each_provider_has_slots_of_its_own(busy, slots, tmp_path):
    busy.full = 3
    async with slots(concurrency=1, providers={"anthropic": 2}) as host:
        agents = host.get(AGENTS)
        made = [await agents.create(AgentSpec(str(tmp_path), f"{name}:text=hello")) for name in ("openai", "anthropic") * 5]
        await asyncio.gather(*(agent.run("go") for agent in made))
        assert {each.provider: each.most for each in host.get(SCHEDULER).state()} == {"openai": 1, "anthropic": 2}
        assert (busy.most, len(busy.received)) == (3, 10)


async def test_no_slot_is_held_while_tools_run(slots, script, calling, tmp_path):
    async with slots(concurrency=1) as host:
        agents, scheduler = host.get(AGENTS), host.get(SCHEDULER)
        slow = await agents.create(AgentSpec(str(tmp_path), script(calling(("bash", {"command": "sleep 30.125"})), {"text": "done"})))
        running = asyncio.Event()
        host.ctx.on(ToolStarted, lambda notice: running.set())
        slow.send("go")
        await running.wait()
        assert scheduler.of("scripted").running == 0
        quick = await agents.create(AgentSpec(str(tmp_path), script({"text": "hello"})))
        assert (await quick.run("go")).text == "hello"
        slow.cancel()
        await slow.idle()


async def test_no_slot_is_held_between_attempts(wired, slots, tmp_path):
    held = []
    async with slots(concurrency=1, clock=FakeClock()) as host:
        host.ctx.on(Retrying, lambda notice: held.append(host.get(SCHEDULER).of("openai").running))
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), "openai:fault=server;times=2"))
        assert (await agent.run("go")).reason == "completed"
    assert held == [0, 0]


async def test_the_slot_is_held_while_the_answer_streams(slots, script, tmp_path):
    held = []
    async with slots(concurrency=2) as host:
        host.ctx.on(Chunked, lambda notice: held.append(host.get(SCHEDULER).of("scripted").running))
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), script({"text": "a few words"})))
        await agent.run("go")
    assert held and set(held) == {1}


# given back


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("openai:fault=server", "error"),
        ("openai:fault=auth", "error"),
        ("openai:fault=overflow", "error"),
        ("openai:fault=malformed", "error"),
        ("openai:fault=cut-socket", "error"),
        ("openai:fault=rate-limit", "error"),
        ("openai:fault=refusal", "refusal"),
        ("anthropic:fault=empty", "error"),
        ("anthropic:fault=length-in-arguments", "max-tokens"),
    ],
)
async def test_a_slot_comes_back_however_a_request_ends(wired, slots, tmp_path, model, reason):
    async with slots(concurrency=1, retries=0) as host:
        agents = host.get(AGENTS)
        agent = await agents.create(AgentSpec(str(tmp_path), model))
        assert (await agent.run("go")).reason == reason
        assert host.get(SCHEDULER).of(model.partition(":")[0]).running == 0
        other = await agents.create(AgentSpec(str(tmp_path), f"{model.partition(':')[0]}:text=hello"))
        assert (await other.run("go")).text == "hello"


async def test_only_refusals_of_the_provider_lower_the_number(wired, slots, tmp_path):
    async with slots(concurrency=8, retries=0) as host:
        agents, scheduler = host.get(AGENTS), host.get(SCHEDULER)
        for fault in ("server", "auth", "overflow", "malformed", "cut-socket", "empty", "no-finish"):
            await (await agents.create(AgentSpec(str(tmp_path), f"openai:fault={fault}"))).run("go")
        assert scheduler.of("openai").now == 8
        await (await agents.create(AgentSpec(str(tmp_path), "openai:fault=rate-limit"))).run("go")
        assert scheduler.of("openai").now == 4


async def test_a_slot_comes_back_when_its_holder_is_cancelled(wired, slots, tmp_path):
    async with slots(concurrency=1) as host:
        agents, scheduler = host.get(AGENTS), host.get(SCHEDULER)
        hung = await agents.create(AgentSpec(str(tmp_path), "openai:fault=hang"))
        hung.send("go")
        await until(lambda: len(wired.received) == 1)
        waiting = await agents.create(AgentSpec(str(tmp_path), "openai:text=hello"))
        waiting.send("go")
        await until(lambda: scheduler.of("openai").waiting == 1)
        hung.cancel()
        await waiting.idle()
        assert waiting.last.text == "hello"
        await hung.idle()
        assert hung.last.reason == "aborted"


@pytest.mark.parametrize("how", ["cancel", "dispose", "deadline"])
async def test_whoever_ends_while_it_waits_leaves_the_queue(wired, slots, tmp_path, how):
    async with slots(concurrency=1) as host:
        agents, scheduler = host.get(AGENTS), host.get(SCHEDULER)
        limits = Limits(seconds=0.2) if how == "deadline" else Limits()
        waiting = await agents.create(AgentSpec(str(tmp_path), "openai:text=hello", limits=limits))
        async with scheduler.slot("openai", Place("other")):
            waiting.send("go")
            await until(lambda: scheduler.of("openai").waiting == 1)
            assert waiting.waits == ["slot"]
            if how == "cancel":
                waiting.cancel()
            if how == "dispose":
                await agents.dispose(waiting)
            await waiting.idle()
            state = scheduler.of("openai")
            assert (state.running, state.waiting, waiting.waits) == (1, 0, [])
        assert waiting.last.reason == ("budget" if how == "deadline" else "aborted")
        assert len(wired.received) == 0


async def test_many_that_are_cancelled_at_any_moment_leave_no_slot_taken(busy, slots, tmp_path):
    busy.full = 2
    async with slots(concurrency=2) as host:
        agents = host.get(AGENTS)
        made = [await agents.create(AgentSpec(str(tmp_path), "openai:text=hello")) for _ in range(16)]
        for number, agent in enumerate(made):
            agent.send("go")
            for _ in range(number):
                await asyncio.sleep(0)
            made[number // 2].cancel()
        await asyncio.gather(*(agent.idle() for agent in made))
        state = host.get(SCHEDULER).of("openai")
        assert (state.running, state.waiting) == (0, 0)
        assert [(await agent.run("again")).text for agent in made] == ["hello"] * 16


# what it is told


@pytest.mark.parametrize(
    ("config", "now", "why"),
    [
        ({}, 16, "the default of the row scheduler"),
        ({"concurrency": 2}, 2, "configured in the row scheduler"),
        ({"providers": {"scripted": 1}}, 1, "configured for scripted in the row scheduler"),
    ],
)
async def test_whoever_waits_is_told_how_many_run_and_why(slots, script, tmp_path, config, now, why):
    heard = []
    async with slots(**config) as host:
        scheduler = host.get(SCHEDULER)
        host.ctx.on(SlotAwaited, heard.append)
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), script({"text": "hello"})))
        release = asyncio.Event()

        async def hold():
            async with scheduler.slot("scripted", Place("other")):
                await release.wait()

        holders = [asyncio.create_task(hold()) for _ in range(now)]
        await until(lambda: scheduler.of("scripted").running == now)
        agent.send("go")
        await until(lambda: heard)
        release.set()
        await asyncio.gather(*holders)
        await agent.idle()
        (told,) = heard
        assert (told.agent, told.provider, told.now, told.why) == (agent.id, "scripted", now, why)
        assert agent.last.text == "hello"


async def test_nobody_is_told_of_a_slot_that_is_free(slots, script, tmp_path):
    heard = []
    async with slots(concurrency=1) as host:
        host.ctx.on(SlotAwaited, heard.append)
        await (await host.get(AGENTS).create(AgentSpec(str(tmp_path), script({"text": "hello"})))).run("go")
    assert heard == []


async def test_a_listener_that_fails_takes_nobody_a_slot(slots, script, tmp_path):
    async with slots(concurrency=1) as host:

        def broken(notice):
            raise OSError("nobody can be told")

        host.ctx.on(SlotAwaited, broken)
        agents, scheduler = host.get(AGENTS), host.get(SCHEDULER)
        agent = await agents.create(AgentSpec(str(tmp_path), script({"text": "hello"})))
        async with scheduler.slot("scripted", Place("other")):
            agent.send("go")
            await until(lambda: scheduler.of("scripted").waiting == 1)
        await agent.idle()
        assert agent.last.text == "hello"


# what a provider can take


async def test_a_provider_that_is_asked_too_often_is_asked_less_and_then_as_often_as_before(wired, slots, tmp_path):
    clock, heard = FakeClock(), []
    async with slots(concurrency=8, clock=clock) as host:
        agents, scheduler = host.get(AGENTS), host.get(SCHEDULER)
        host.ctx.on(Retrying, lambda notice: heard.append((notice.failure.kind, notice.wait, scheduler.of("openai").now)))
        agent = await agents.create(AgentSpec(str(tmp_path), "openai:fault=rate-limit;times=2"))
        assert (await agent.run("go")).reason == "completed"
        assert heard == [("rate-limit", 3.0, 4), ("rate-limit", 3.0, 2)] and clock.slept == [3.0, 3.0]
        assert scheduler.of("openai").why == "openai said that it is asked too often; 8 is configured in the row scheduler"
        agent = await agents.create(AgentSpec(str(tmp_path), 'openai:steps=60;tool=glob;args={"pattern":"#"}'))
        assert (await agent.run("go")).reason == "completed"
        state = scheduler.of("openai")
        assert (state.now, state.why) == (8, "configured in the row scheduler")


async def test_many_refusals_at_once_halve_once(busy, slots, tmp_path):
    """Eight requests that were under way together and are all refused are one piece of news."""
    busy.full = 8
    seen = []
    async with slots(concurrency=8, retries=0) as host:
        agents, scheduler = host.get(AGENTS), host.get(SCHEDULER)
        made = [await agents.create(AgentSpec(str(tmp_path), "openai:fault=rate-limit")) for _ in range(8)]
        await asyncio.gather(*(agent.run("go") for agent in made))
        seen.append(scheduler.of("openai").now)
        assert busy.most == 8
        for _ in range(4):
            await made[0].run("again")
            seen.append(scheduler.of("openai").now)
    assert seen == [4, 2, 1, 1, 1]


# parents and children


def nested(tmp_path, depth, calling):
    """The reference of a script that delegates, to one that delegates, and so on, twice at each level but the last."""
    path = tmp_path / f"level-{depth}.json"
    if depth == 0:
        path.write_text(json.dumps([{"text": "at the bottom"}]))
    else:
        below = nested(tmp_path, depth - 1, calling)
        calls = [("delegate", {"description": f"{depth}.{n}", "prompt": f"go down {n}", "model": below}) for n in range(2)]
        path.write_text(json.dumps([calling(*calls), {"text": f"level {depth} is done"}]))
    return f"scripted:{path}"


async def test_with_one_slot_three_levels_of_children_all_come_to_their_end(slots, calling, tmp_path):
    async with slots(concurrency=1, delegation={"max_depth": 3}) as host:
        lead = await host.get(AGENTS).create(AgentSpec(str(tmp_path), nested(tmp_path, 3, calling)))
        async with asyncio.timeout(20):
            end = await lead.run("go")
        assert (end.reason, end.text) == ("completed", "level 3 is done")
        records = host.get(DELEGATION).tasks.ledger.list()
        assert len(records) == 2 + 4 + 8 and {each.outcome.status for each in records} == {"completed"}


async def test_a_parent_that_waits_for_its_child_has_no_slot(slots, script, calling, tmp_path):
    async with slots(concurrency=1) as host:
        agents, scheduler = host.get(AGENTS), host.get(SCHEDULER)
        child = script(calling(("bash", {"command": "sleep 30.25"})))
        lead = await agents.create(
            AgentSpec(str(tmp_path), script(calling(("delegate", {"description": "a", "prompt": "wait", "model": child}))))
        )
        running = asyncio.Event()
        host.ctx.on(ToolStarted, lambda notice: running.set() if notice.call.name == "bash" else None)
        lead.send("go")
        async with asyncio.timeout(5):
            await running.wait()
        assert (lead.waits, scheduler.of("scripted").running) == (["child"], 0)
        lead.cancel()
        await lead.idle()
        assert host.get(DELEGATION).tasks.live == {} and lead.waits == []


async def test_children_stand_in_the_lane_of_the_conversation_that_they_come_from(slots, script, calling, tmp_path):
    places = []
    async with slots(delegation={"max_depth": 2}) as host:
        host.ctx.on(Chunked, lambda notice: places.append(host.get(AGENTS).live[notice.agent].place))
        lead = await host.get(AGENTS).create(AgentSpec(str(tmp_path), nested(tmp_path, 2, calling)))
        await lead.run("go")
    assert {place.lane for place in places} == {lead.id}
    assert {len(place.rank) for place in places} == {0, 1, 2}
    assert all(any(place.rank[:-1] == other.rank for other in places) for place in places if place.rank)


# what is no idleness

IDLE = 0.25


async def test_waiting_for_a_slot_is_no_idleness(slots, script, tmp_path):
    async with slots(concurrency=1) as host:
        scheduler, loop = host.get(SCHEDULER), asyncio.get_running_loop()
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), script({"text": "hello"}), limits=Limits(idle=IDLE)))
        began = loop.time()
        async with scheduler.slot("scripted", Place("other")):
            agent.send("go")
            await until(lambda: loop.time() > began + 2 * IDLE)
            assert agent.status == "running"
        await agent.idle()
        assert (agent.last.reason, agent.last.text) == ("completed", "hello")


async def test_waiting_for_a_child_is_no_idleness(slots, script, calling, tmp_path):
    async with slots() as host:
        child = script(calling(("bash", {"command": f"sleep {2 * IDLE}"})), {"text": "slept"})
        call = calling(("delegate", {"description": "a", "prompt": "sleep", "model": child, "budget": {"idle": 60}}))
        spec = AgentSpec(str(tmp_path), script(call, {"text": "done"}), limits=Limits(idle=IDLE))
        end = await (await host.get(AGENTS).create(spec)).run("go")
        assert (end.reason, end.text) == ("completed", "done")


async def test_waiting_for_a_slot_is_no_idleness_of_a_child(slots, script, calling, tmp_path):
    async with slots(concurrency=1) as host:
        agents, scheduler, loop = host.get(AGENTS), host.get(SCHEDULER), asyncio.get_running_loop()
        call = calling(("delegate", {"description": "a", "prompt": "go", "model": script({"text": "here"}), "budget": {"idle": IDLE}}))
        lead = await agents.create(AgentSpec(str(tmp_path), script(call, {"text": "done"})))
        tasks = host.get(DELEGATION).tasks
        release = asyncio.Event()

        async def hold():
            async with scheduler.slot("scripted", Place("other")):
                await release.wait()

        holding: list[asyncio.Task] = []
        host.ctx.on(ToolStarted, lambda notice: holding.append(asyncio.create_task(hold())))
        lead.send("go")
        await until(lambda: any(task.state == "waiting" and task.waiting == "slot" for task in tasks.live.values()))
        since = loop.time()
        await until(lambda: loop.time() > since + 2 * IDLE)
        release.set()
        await asyncio.gather(*holding)
        await lead.idle()
        (record,) = tasks.ledger.list()
        assert (lead.last.text, record.outcome.status, record.outcome.text) == ("done", "completed", "here")


@pytest.mark.parametrize("whose", ["own", "child"])
async def test_waiting_for_a_person_is_no_idleness(slots, script, calling, tmp_path, whose):
    """Whether somebody asks for itself, or a child of its does."""
    async with slots() as host:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()

        async def answer(question):
            asked.set()
            since = loop.time()
            await until(lambda: loop.time() > since + 2 * IDLE)
            return ("blue",)

        host.ctx.on(Question, answer)
        ask = calling(("ask_user_question", {"questions": [{"question": "Which?", "options": ["blue"]}]}))
        limits, model = Limits(idle=IDLE), script(ask, {"text": "blue it is"})
        if whose == "child":
            model = script(
                calling(("delegate", {"description": "a", "prompt": "ask", "model": model, "budget": {"idle": IDLE}})),
                {"text": "blue it is"},
            )
        end = await (await host.get(AGENTS).create(AgentSpec(str(tmp_path), model, limits=limits))).run("go")
        assert asked.is_set()
        assert (end.reason, end.detail, end.text) == ("completed", "", "blue it is")
        if whose == "child":
            (record,) = host.get(DELEGATION).tasks.ledger.list()
            assert (record.outcome.status, record.outcome.text) == ("completed", "blue it is")


async def test_waiting_for_leave_to_run_something_is_no_idleness(slots, script, calling, tmp_path):
    async with slots() as host:
        loop, asked = asyncio.get_running_loop(), []

        async def answer(question):
            asked.append(question.request.name)
            since = loop.time()
            await until(lambda: loop.time() > since + 2 * IDLE)
            return "once"

        host.ctx.on(Approval, answer)
        host.mount(network)
        model = script(calling(("fetch", {"url": "https://a/"})), {"text": "done"})
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), model, limits=Limits(idle=IDLE)))
        end = await agent.run("go")
        assert (end.reason, end.detail, asked) == ("completed", "", ["fetch"])


async def test_a_model_that_says_nothing_is_idle_though_it_has_waited_for_its_slot(wired, slots, tmp_path):
    """What was waited for is no excuse afterwards."""
    async with slots(concurrency=1) as host:
        scheduler = host.get(SCHEDULER)
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), "openai:fault=hang", limits=Limits(idle=IDLE)))
        async with scheduler.slot("openai", Place("other")):
            agent.send("go")
            await until(lambda: scheduler.of("openai").waiting == 1)
        async with asyncio.timeout(5):
            await agent.idle()
        assert (agent.last.reason, agent.last.code) == ("budget", "IDLE")
        assert scheduler.of("openai").running == 0
