"""Agents that work while the composition of their directory is edited, and what is left when they have gone."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.compose import BASE, running
from hames.content.finish import Finish, TextDelta
from hames.content.jsontext import parse_object
from hames.content.messages import Text, ToolCall, ToolResult
from hames.kernel import plugin
from hames.models import MODELS, Encoder
from hames.models.openai import OpenAIChat
from hames.prompts import PROMPTS
from hames.store import STATE
from hames.tools import TOOLS
from hames.trust import TRUST
from hames.workspaces import WORKSPACES, WorkspaceReloaded

SOON = 10  # seconds

ROWS = '''
import asyncio

from pydantic import BaseModel

from hames.kernel import plugin
from hames.prompts import PROMPTS
from hames.tools import TOOLS, tool


class Config(BaseModel):
    name: str = "hammer"
    text: str = "one"
    fail: bool = False


@plugin(config=Config, needs=(TOOLS, PROMPTS), name="rows")
def rows(ctx, config):
    if config.fail:
        raise RuntimeError("it was told to fail")

    @tool("read", name=config.name)
    async def body() -> str:
        """Say something."""
        return f"{config.name} says {config.text}"

    ctx.use(TOOLS).register(ctx, body)
    ctx.use(PROMPTS).section(ctx, "rows", f"The repository says {config.text}.", order=50)
'''

SMALL = """
- {id: store, use: hames.store}
- {id: sessions, use: hames.sessions}
- {id: models, use: hames.models}
- {id: prompts, use: hames.prompts.service}
- {id: trust, use: hames.trust, config: {default: always}}
- {id: tools, use: hames.tools}
- {id: todo, use: hames.toolkit.todo}
- {id: loop, use: hames.agents.loop}
- {id: agents, use: hames.agents}
- {id: workspaces, use: hames.workspaces, config: {watch: WATCH, debounce_ms: 5}}
"""


def row(**config: object) -> str:
    return f"- {json.dumps({'id': 'mine', 'use': './rows.py', 'config': config})}\n"


def say(directory: Path, text: str) -> None:
    (directory / ".hames" / "compose.yaml").write_text(text)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "repository"
    (place / ".hames").mkdir(parents=True)
    (place / ".hames" / "rows.py").write_text(ROWS)
    say(place, row())
    return place


@pytest.fixture
async def trusting(opened, tmp_path):
    """A host with the standard profile that trusts every directory, and a list of what was told of reloads."""
    patch = tmp_path / "trusting.yaml"
    patch.write_text("- {id: trust, set: {config: {default: always}}}\n- {id: workspaces, set: {config: {debounce_ms: 20}}}\n")
    async with opened(patch) as host:
        yield host


class Reloads:
    """What a host tells of the reloads of its workspaces."""

    def __init__(self, host) -> None:
        self.notices: list[WorkspaceReloaded] = []
        self._some = asyncio.Event()
        host.ctx.on(WorkspaceReloaded, self._take)

    def _take(self, notice: WorkspaceReloaded) -> None:
        self.notices.append(notice)
        self._some.set()

    async def next(self, act) -> WorkspaceReloaded:
        """Do something, and wait for the reload that comes of it."""
        count = len(self.notices)
        act()
        async with asyncio.timeout(SOON):
            while len(self.notices) == count:
                self._some.clear()
                await self._some.wait()
        return self.notices[count]


class Slow:
    """A model whose answers wait until a test lets them go; what it was asked is kept."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.answers: list[tuple] = []
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    def model(self, name, profile, ref):
        return SimpleNamespace(
            ref=ref,
            window=128_000,
            stream=lambda request: Answer(self, parse_object(request.body())),
            cost=lambda usage: 0.0,
            encoder=lambda pictures: Encoder(OpenAIChat(), ref, pictures=pictures),
        )


class Answer:
    def __init__(self, slow: Slow, body: dict) -> None:
        self._slow, self._body = slow, body

    def partial(self):
        return ()

    async def __aiter__(self):
        slow = self._slow
        slow.bodies.append(self._body)
        slow.asked.set()
        await slow.go.wait()
        blocks = slow.answers.pop(0) if slow.answers else (Text("Done."),)
        for block in blocks:
            if isinstance(block, Text):
                yield TextDelta(block.text)
        calls = any(isinstance(block, ToolCall) for block in blocks)
        yield Finish("tool-calls" if calls else "stop", tuple(blocks), None)


def slow_model(host) -> Slow:
    slow = Slow()

    @plugin(needs=(MODELS,), name="slow")
    def body(ctx, config):
        ctx.use(MODELS).register(ctx, "slow", slow)

    host.mount(body)
    return slow


def names(body: dict) -> list[str]:
    return [each["function"]["name"] for each in body.get("tools", ())]


def system(body: dict) -> str:
    return body["messages"][0]["content"]


def results(agent) -> list[ToolResult]:
    return [block for _, message in agent.session.messages for block in message.blocks if isinstance(block, ToolResult)]


async def test_the_next_request_on_the_wire_has_the_new_prompt_and_tool_in_the_same_session_and_scope(wired, trusting, directory):
    reloads = Reloads(trusting)
    agents = trusting.get(AGENTS)
    agent = await agents.create(AgentSpec(str(directory), model="openai:text=Done."))
    scope, session, workspace = agent.scope, agent.session, agent.scope.parent
    assert (await agent.run("Begin.")).reason == "completed"
    notice = await reloads.next(lambda: say(directory, row(name="chisel", text="two")))
    assert notice.reason == ""
    assert (await agent.run("Go on.")).reason == "completed"
    first, second = (parse_object(each.body) for each in wired.received)
    assert "hammer" in names(first) and "chisel" not in names(first)
    assert "chisel" in names(second) and "hammer" not in names(second)
    assert "The repository says one." in system(first)
    assert "The repository says two." in system(second) and "says one" not in system(second)
    assert [name for name in names(first) if name != "hammer"] == [name for name in names(second) if name != "chisel"]
    assert (agent.scope, agent.session, agent.scope.parent) == (scope, session, workspace)
    assert second["messages"][1 : len(first["messages"])] == first["messages"][1:]
    await agents.dispose(agent)
    assert trusting.get(WORKSPACES).get(directory) is None


async def test_a_request_in_flight_keeps_its_tools_and_a_call_of_one_that_has_gone_is_told_so(trusting, directory):
    reloads, slow = Reloads(trusting), slow_model(trusting)
    agents = trusting.get(AGENTS)
    agent = await agents.create(AgentSpec(str(directory), model="slow:x"))
    slow.answers = [(ToolCall("c0", "hammer", "{}"),), (ToolCall("c1", "chisel", "{}"),), (Text("Done."),)]
    slow.go.clear()
    turn = asyncio.create_task(agent.run("Begin."))
    await asyncio.wait_for(slow.asked.wait(), SOON)
    assert (await reloads.next(lambda: say(directory, row(name="chisel", text="two")))).reason == ""
    assert "hammer" in names(slow.bodies[0]) and len(slow.bodies) == 1
    assert not turn.done()
    slow.go.set()
    assert (await asyncio.wait_for(turn, SOON)).reason == "completed"
    gone, there = results(agent)
    assert (gone.code, gone.is_error) == ("UNKNOWN_TOOL", True)
    assert (there.code, there.text) == ("", "chisel says two")
    assert "chisel" in names(slow.bodies[1]) and "hammer" not in names(slow.bodies[1])
    assert "The repository says two." in system(slow.bodies[1])
    await agents.dispose(agent)


async def test_a_tool_that_is_called_by_an_old_request_runs_as_what_it_is_now(trusting, directory):
    reloads, slow = Reloads(trusting), slow_model(trusting)
    agent = await trusting.get(AGENTS).create(AgentSpec(str(directory), model="slow:x"))
    slow.answers = [(ToolCall("c0", "hammer", "{}"),)]
    slow.go.clear()
    turn = asyncio.create_task(agent.run("Begin."))
    await asyncio.wait_for(slow.asked.wait(), SOON)
    await reloads.next(lambda: say(directory, row(text="two")))
    slow.go.set()
    await asyncio.wait_for(turn, SOON)
    assert [result.text for result in results(agent)] == ["hammer says two"]
    await trusting.get(AGENTS).dispose(agent)


@pytest.mark.parametrize(
    "bad", ["- {id: mine", row(fail=True), row() + "- {id: other, use: './none.py'}\n", row(nothing=1)[:-2] + ", us: 1}\n"]
)
async def test_a_failed_reload_does_not_end_an_agent_and_a_mended_file_gives_it_its_tools_again(trusting, directory, bad):
    reloads, slow = Reloads(trusting), slow_model(trusting)
    agents = trusting.get(AGENTS)
    agent = await agents.create(AgentSpec(str(directory), model="slow:x"))
    scope, session = agent.scope, agent.session
    slow.answers = [(ToolCall("c0", "hammer", "{}"),), (Text("Done."),), (ToolCall("c1", "hammer", "{}"),), (Text("Done."),)]
    slow.go.clear()
    turn = asyncio.create_task(agent.run("Begin."))
    await asyncio.wait_for(slow.asked.wait(), SOON)
    failed = await reloads.next(lambda: say(directory, bad))
    assert failed.reason in ("invalid", "start", "trust")
    slow.go.set()
    assert (await asyncio.wait_for(turn, SOON)).reason == "completed"
    assert [result.code for result in results(agent)] == ["UNKNOWN_TOOL"]
    assert "hammer" not in names(slow.bodies[-1]) and "todo_write" in names(slow.bodies[-1])
    assert (await reloads.next(lambda: say(directory, row(text="three")))).reason == ""
    assert (await agent.run("Again.")).reason == "completed"
    assert results(agent)[-1].text == "hammer says three"
    assert (agent.scope, agent.session) == (scope, session) and not scope.closed
    await agents.dispose(agent)


async def test_a_prompt_of_the_workspace_alone_reaches_its_agents_and_no_others(trusting, directory, tmp_path):
    """The prompt service itself is another one for the workspace: rows that use it follow."""
    reloads, slow = Reloads(trusting), slow_model(trusting)
    agents = trusting.get(AGENTS)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    agent = await agents.create(AgentSpec(str(directory), model="slow:x"))
    other = await agents.create(AgentSpec(str(elsewhere), model="slow:x"))
    await agent.run("Begin.")
    persona = "- {id: prompts, set: {config: {persona: 'A persona of {{cwd}}.'}}}\n"
    assert (await reloads.next(lambda: say(directory, row() + persona))).reason == ""
    await agent.run("Go on.")
    await other.run("Begin.")
    await reloads.next(lambda: say(directory, row()))
    await agent.run("Go on.")
    first, changed, foreign, last = slow.bodies
    assert f"A persona of {directory}." in system(changed) and "The repository says one." in system(changed)
    assert "A persona" not in system(foreign) + system(first)
    assert names(first) == names(changed) == names(last)
    assert system(last) == system(first)
    await agents.dispose(agent)
    await agents.dispose(other)


async def test_a_file_that_no_longer_is_trusted_leaves_the_agent_what_it_had_until_it_is_granted(opened, directory, tmp_path):
    async with opened() as host:
        trust, below = host.get(TRUST), host.get(BASE).composition
        trust.decide(trust.status(directory, below), True)
        reloads, slow = Reloads(host), slow_model(host)
        agents = host.get(AGENTS)
        agent = await agents.create(AgentSpec(str(directory), model="slow:x"))
        await agent.run("Begin.")
        code = directory / ".hames" / "rows.py"
        refused = await reloads.next(lambda: code.write_text(ROWS.replace("says {config.text}", "shouts {config.text}")))
        assert refused.reason == "trust"
        await agent.run("Go on.")
        assert slow.bodies[0]["tools"] == slow.bodies[1]["tools"] and system(slow.bodies[0]) == system(slow.bodies[1])
        slow.answers = [(ToolCall("c0", "hammer", "{}"),)]
        taken = await reloads.next(lambda: trust.decide(trust.status(directory, below), True))
        assert taken.reason == ""
        await agent.run("Go on.")
        assert [result.text for result in results(agent)] == ["hammer shouts one"]
        await agents.dispose(agent)


# what is left


def watches() -> int:
    """The directories that this process watches, as the system counts them."""
    count = 0
    for place in Path("/proc/self/fdinfo").iterdir():
        try:
            count += sum(line.startswith("inotify") for line in place.read_text().splitlines())
        except OSError:
            continue
    return count


def descriptors() -> list[str]:
    found = []
    for place in Path("/proc/self/fd").iterdir():
        try:
            found.append(place.readlink().name.partition(":")[0])
        except OSError:
            continue
    return sorted(found)


def children() -> set[str]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= set((task / "children").read_text().split())
    return found


def memory() -> int:
    """Bytes that stand in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def held(host) -> dict[str, object]:
    gc.collect()
    tools, prompts = host.get(TOOLS), host.get(PROMPTS)
    return {
        "descriptors": descriptors(),
        "watches": watches(),
        "threads": threading.active_count(),
        "tasks": sorted(task.get_name() for task in asyncio.all_tasks() if not task.get_name().startswith("Task-")),
        "all tasks": len(asyncio.all_tasks()),
        "children": children(),
        "scopes": len(list(host.root_scope.below())),
        "veils": len(host.root_scope.veils),
        "listeners": host.root_scope.listener_count,
        "mounts": host.root.describe().count("\n"),
        "entries": [each.size for each in (tools.registry, tools.guards, prompts.sections, prompts.facts, prompts.variables)],
        "registries": len(host.registries),
        "moving": len(host.moving),
        "interested": sum(map(len, host.interested.values())),
        "watchers": len([each for each in host.watchers if not each.done()]),
    }


def different(cycle: int) -> str:
    """One of a few compositions that change much."""
    return (
        row(text="two"),
        row(name="todo_write") + "- {id: todo, remove: true}\n",
        "- {id: g, group: [{id: mine, use: './rows.py', config: {text: three}}]}\n",
        row() + "- {id: prompts, set: {config: {persona: Another one.}}}\n",
        row(fail=True),
        "- {id: mine",
        "[]\n",
    )[cycle % 7]


async def cycle(host, directory: Path, number: int, reloads: Reloads | None) -> None:
    workspaces = host.get(WORKSPACES)
    say(directory, row())
    lease = await workspaces.acquire(directory)
    assert "hammer" in host.get(TOOLS, lease.scope).registry.view(lease.scope)
    if reloads is None:
        say(directory, different(number))
        info = await workspaces.reload(directory)
    else:
        await reloads.next(lambda: say(directory, different(number)))
        info = workspaces.get(directory)
    assert bool(info.reason) == (number % 7 in (4, 5))
    await lease.release()
    assert workspaces.get(directory) is None


@pytest.mark.slow
@pytest.mark.parametrize(("watch", "cycles"), [(False, 500), (True, 30)])
async def test_many_cycles_of_acquire_edit_and_release_leave_nothing(tmp_path, directory, watch, cycles):
    profile = tmp_path / "small.yaml"
    profile.write_text(SMALL.replace("WATCH", str(watch).lower()))
    async with running(profile, {STATE: tmp_path / "state"}) as host:
        reloads = Reloads(host) if watch else None
        for number in range(14):
            await cycle(host, directory, number, reloads)
        before, size = held(host), memory()
        for number in range(cycles):
            await cycle(host, directory, number, reloads)
        assert held(host) == before
        assert memory() - size < 16 * 1024 * 1024
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert watches() == 0


async def test_agents_that_come_and_go_with_edits_leave_no_scope_and_no_watch(trusting, directory):
    reloads, slow = Reloads(trusting), slow_model(trusting)
    agents = trusting.get(AGENTS)
    before = None
    for number in range(6):
        say(directory, row())
        made = [await agents.create(AgentSpec(str(directory), model="slow:x")) for _ in range(2)]
        assert made[0].scope.parent is made[1].scope.parent
        await asyncio.gather(*(agent.run("Begin.") for agent in made))
        await reloads.next(lambda: say(directory, row(text="two")))
        await asyncio.gather(*(agent.run("Go on.") for agent in made))
        assert all("The repository says two." in system(body) for body in slow.bodies[-2:])
        assert watches() >= 2
        for agent in made:
            await agents.dispose(agent)
        assert watches() == 0
        if number == 1:
            before = held(trusting)
    now = held(trusting)
    for name in ("scopes", "entries", "listeners", "mounts", "tasks", "children", "registries", "interested"):
        assert now[name] == before[name], name
