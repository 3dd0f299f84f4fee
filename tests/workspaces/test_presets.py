"""Presets: which file counts, who shares a generation, and that each is gone with its last agent."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.compose import BASE, running
from hames.content.errors import ConfigError, HamesError, NotFoundError
from hames.profiles import profile
from hames.sessions import SESSIONS
from hames.store import STATE
from hames.tools import TOOLS
from hames.trust import TRUST
from hames.workspaces import WORKSPACES

SERVER = """
import json, os, sys, threading, time
threading.Thread(target=lambda: (time.sleep(90), os._exit(9)), daemon=True).start()
names = sys.argv[2].split(",")
while len(sys.argv) > 3 and os.path.exists(sys.argv[3]):
    time.sleep(0.01)
if names == ["broken"]:
    sys.exit("no luck")
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, answer = message["method"], {"error": {"code": -32601, "message": "what?"}}
    if method == "initialize":
        answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "f", "version": "1"}}}
    elif method == "tools/list":
        answer = {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""

LOCAL = """
from hames.kernel import plugin
from hames.tools import TOOLS, tool


@tool("read")
async def {name}() -> str:
    '''Say where it comes from.'''
    return "{text}"


@plugin(needs=(TOOLS,))
def {name}_row(ctx, config):
    ctx.use(TOOLS).register(ctx, {name})
"""


async def until(condition, what="", seconds=10.0):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, what or "it did not come to pass"
        await asyncio.sleep(0.01)
    return value


class World:
    def __init__(self, root: Path, script) -> None:
        self.root = root
        self.home = root / "home"
        self.directory = root / "work"
        self.directory.mkdir()
        self.program = root / "server.py"
        self.program.write_text(SERVER)
        self.script = script
        self.host = None

    def row(self, id, names, **more):
        return {
            "id": id,
            "use": "hames.mcp.server",
            "config": {"command": sys.executable, "args": ["-S", str(self.program), str(self.root), names], **more},
        }

    def own(self, name, *rows, directory=None):
        return self._write((directory or self.directory) / ".hames" / "presets" / f"{name}.yaml", rows)

    def users(self, name, *rows):
        return self._write(self.home / "presets" / f"{name}.yaml", rows)

    def compose(self, *rows):
        return self._write(self.directory / ".hames" / "compose.yaml", rows)

    def _write(self, path, rows):
        path.parent.mkdir(parents=True, exist_ok=True)
        other = path.with_suffix(".new")
        other.write_text(rows[0] if rows and isinstance(rows[0], str) else json.dumps(list(rows)))
        other.replace(path)
        return path

    @asynccontextmanager
    async def open(self, *rows, trusting=True):
        layers = [profile("standard"), self._write(self.root / "global.yaml", rows)]
        if trusting:
            layers.append(self._write(self.root / "trusting.yaml", ["- {id: trust, set: {config: {default: always}}}"]))
        tasks = asyncio.all_tasks()
        async with running(layers, {STATE: self.root / "state"}, environment={**os.environ, "HAMES_HOME": str(self.home)}) as host:
            self.host = host
            before = self.counted()
            yield host
            assert self.counted() == before
        self.host = None
        assert self.alive() == []
        assert asyncio.all_tasks() - tasks == set()

    def counted(self):
        host = self.host
        return len(list(host.root_scope.below())), host.get(TOOLS).registry.size, host.root_scope.listener_count

    def scopes(self):
        """The scopes of presets that are there."""
        return [scope for scope in self.host.root_scope.below() if str(scope.key).startswith("preset ")]

    def alive(self):
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                said = (path / "cmdline").read_bytes().split(b"\0")
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(self.root).encode() in said and state != "Z":
                found.append(int(path.name))
        return sorted(found)

    async def agent(self, preset="", directory=None):
        spec = AgentSpec(str(directory or self.directory), self.script({"text": "hello"}), preset=preset)
        return await self.host.get(AGENTS).create(spec)

    async def dispose(self, *agents):
        for each in agents:
            await self.host.get(AGENTS).dispose(each)

    def tools(self, agent):
        return [name for name in self.host.get(TOOLS).registry.view(agent.scope) if name.startswith(("mcp__", "own_"))]

    def trust(self, directory=None):
        trust = self.host.get(TRUST)
        trust.decide(trust.status(directory or self.directory, self.host.get(BASE).composition), True)


@pytest.fixture
def world(tmp_path, script):
    return World(tmp_path.resolve(), script)


# which file


@pytest.mark.parametrize("place", ["own", "users"])
async def test_a_preset_is_a_file_of_the_directory_or_of_the_user(world, place):
    getattr(world, place)("careful", world.row("mine", "x"))
    async with world.open():
        agent, plain = await world.agent("careful"), await world.agent()
        assert world.tools(agent) == ["mcp__mine__x"]
        assert world.tools(plain) == []
        assert (await agent.run("go")).reason == "completed"
        await world.dispose(plain, agent)
        assert world.alive() == []


async def test_the_file_of_a_trusted_directory_counts_before_that_of_the_user(world):
    world.own("careful", world.row("mine", "near"))
    world.users("careful", world.row("mine", "far"))
    async with world.open(trusting=False):
        first = await world.agent("careful")
        assert world.tools(first) == ["mcp__mine__far"]
        world.trust()
        await world.dispose(first)
        second = await world.agent("careful")
        assert world.tools(second) == ["mcp__mine__near"]
        await world.dispose(second)


async def test_a_preset_of_an_untrusted_directory_is_none(world):
    world.own("careful", world.row("mine", "x"))
    async with world.open(trusting=False):
        with pytest.raises(NotFoundError) as caught:
            await world.agent("careful")
        assert caught.value.code == "PRESET_UNKNOWN"
        assert world.alive() == []


@pytest.mark.parametrize(
    "name",
    ["nobody", "../careful", "careful.yaml", "a/b", "..", ".", "a\0b", "x" * 300, "a b", "/etc/passwd", "é"],
    ids=lambda name: ascii(name)[:20],
)
async def test_an_unknown_preset_is_refused_and_leaves_nothing(world, name):
    world.own("careful", "[]")
    world._write(world.directory / ".hames" / "careful.yaml", ["[]"])
    async with world.open():
        with pytest.raises(NotFoundError) as caught:
            await world.agent(name)
        assert caught.value.code == "PRESET_UNKNOWN"
        assert "careful" in caught.value.remedy
        assert world.host.get(WORKSPACES).all == []
        assert world.host.get(SESSIONS).list() == []


async def test_an_edit_of_what_a_preset_executes_needs_another_grant(world):
    world.own("careful", world.row("mine", "x"))
    async with world.open(trusting=False):
        world.trust()
        first = await world.agent("careful")
        world.own("careful", world.row("mine", "y"))
        with pytest.raises(HamesError):
            await world.agent("careful")
        assert world.tools(first) == ["mcp__mine__x"]
        world.trust()
        second = await world.agent("careful")
        assert (world.tools(first), world.tools(second)) == (["mcp__mine__x"], ["mcp__mine__y"])
        await world.dispose(first, second)


async def test_code_of_a_preset_is_code_that_trust_covers(world):
    world.own("local", {"id": "own", "use": "./own.py"})
    code = world.directory / ".hames" / "presets" / "own.py"
    code.write_text(LOCAL.format(name="own_word", text="first"))
    async with world.open(trusting=False):
        status = world.host.get(TRUST).status(world.directory)
        assert any("own.py" in line for line in status.executes)
        world.trust()
        agent = await world.agent("local")
        assert world.tools(agent) == ["own_word"]
        code.write_text(LOCAL.format(name="own_word", text="other"))
        assert world.host.get(TRUST).status(world.directory).standing == "changed"
        with pytest.raises(HamesError):
            await world.agent("local")
        world.trust()
        other = await world.agent("local")
        assert len(world.scopes()) == 2  # other code is another generation
        await world.dispose(agent, other)


# generations


async def test_agents_of_the_same_content_share_one_generation(world):
    world.own("careful", world.row("mine", "x"))
    async with world.open():
        agents = await asyncio.gather(*(world.agent("careful") for _ in range(10)))
        assert len(world.scopes()) == 1
        assert len(world.alive()) == 1
        assert {agent.scope.parent for agent in agents} == set(world.scopes())
        world.own("careful", "# a remark\n" + json.dumps([world.row("mine", "x")]))
        late = await world.agent("careful")
        assert late.scope.parent is agents[0].scope.parent
        await world.dispose(*agents)
        assert world.tools(late) == ["mcp__mine__x"]
        await world.dispose(late)
        assert world.alive() == []


async def test_an_edit_makes_a_generation_for_new_agents_and_the_old_one_goes_with_its_last(world):
    world.own("careful", world.row("mine", "x"))
    async with world.open():
        old = [await world.agent("careful") for _ in range(2)]
        (before,) = world.alive()
        world.own("careful", world.row("mine", "y"))
        new = await world.agent("careful")
        assert [world.tools(each) for each in (*old, new)] == [["mcp__mine__x"]] * 2 + [["mcp__mine__y"]]
        assert (len(world.scopes()), len(world.alive())) == (2, 2)
        await world.dispose(old[0])
        assert (len(world.scopes()), before in world.alive()) == (2, True)
        await world.dispose(old[1])
        assert (len(world.scopes()), len(world.alive()), before in world.alive()) == (1, 1, False)
        await world.dispose(new)
        assert (world.scopes(), world.alive()) == ([], [])


async def test_an_edit_and_back_gives_a_generation_again(world):
    world.own("careful", world.row("mine", "x"))
    async with world.open():
        keeper = await world.agent()
        for count in range(12):
            world.own("careful", world.row("mine", "x" if count % 2 else "y"))
            agent = await world.agent("careful")
            assert world.tools(agent) == ["mcp__mine__x" if count % 2 else "mcp__mine__y"]
            await world.dispose(agent)
            assert len(world.scopes()) <= 1
            assert len(world.alive()) <= 1
        await world.dispose(keeper)
        assert world.scopes() == []


async def test_superseded_generations_leave_no_scopes_behind(world):
    async with world.open():
        keeper = await world.agent()
        counts = []
        for count in range(8):
            world.own("careful", {"id": "todo", "set": {"disabled": True}}, world.row("mine", f"x{count}"))
            await world.dispose(await world.agent("careful"))
            counts.append(world.counted())
        assert counts[0] == counts[-1]
        await world.dispose(keeper)


async def test_presets_of_two_directories_are_two(world):
    other = world.root / "other"
    other.mkdir()
    world.users("careful", world.row("mine", "x"))
    async with world.open():
        one, two = await world.agent("careful"), await world.agent("careful", other)
        assert len(world.scopes()) == 2
        assert len(world.alive()) == 1  # their connection is one
        await world.dispose(one)
        assert world.tools(two) == ["mcp__mine__x"]
        await world.dispose(two)


# what it changes


async def test_a_preset_is_nearer_than_the_workspace_and_the_workspace_than_the_host(world):
    world.compose({"id": "b", "set": {"config": world.row("b", "b-work")["config"]}}, world.row("w", "w-work"))
    world.own("careful", {"id": "a", "set": {"config": world.row("a", "a-preset")["config"]}}, {"id": "w", "remove": True})
    async with world.open(world.row("a", "a-host"), world.row("b", "b-host")):
        plain, agent = await world.agent(), await world.agent("careful")
        assert sorted(world.tools(plain)) == ["mcp__a__a-host", "mcp__b__b-work", "mcp__w__w-work"]
        assert sorted(world.tools(agent)) == ["mcp__a__a-preset", "mcp__b__b-work"]
        assert len(world.alive()) == 5
        await world.dispose(plain, agent)


async def test_a_preset_that_narrows_tools_narrows_them_for_its_agents_alone(world):
    world.own("reader", {"id": "bash", "remove": True}, {"id": "web", "set": {"disabled": True}})
    async with world.open():
        plain, agent = await world.agent(), await world.agent("reader")
        view = world.host.get(TOOLS).registry.view
        assert "bash" in view(plain.scope)
        assert not {"bash", "web_fetch"} & set(view(agent.scope))
        assert {"read", "write"} <= set(view(agent.scope))
        await world.dispose(plain, agent)


async def test_agents_of_a_preset_see_the_servers_of_the_project_file(world):
    row = world.row("x", "x")["config"]
    (world.directory / ".mcp.json").write_text(json.dumps({"mcpServers": {"shared": {"command": row["command"], "args": row["args"]}}}))
    world.own("careful", world.row("mine", "m"))
    async with world.open():
        plain, agent = await world.agent(), await world.agent("careful")
        assert world.tools(plain) == ["mcp__shared__x"]
        assert sorted(world.tools(agent)) == ["mcp__mine__m", "mcp__shared__x"]
        await world.dispose(plain, agent)


@pytest.mark.parametrize("all", [False, True], ids=["an edit", "all anew"])
async def test_a_policy_of_a_preset_counts_over_a_reload_of_the_workspace(world, calling, all):
    world.compose("- {id: policy, set: {config: {rules: [{deny: bash}]}}}")
    world.own("careful", "- {id: policy, set: {config: {mode: read-only}}}")
    async with world.open():
        model = world.script(calling(("write", {"path": "made.txt", "content": "x"})), {"text": "done"})
        agent = await world.host.get(AGENTS).create(AgentSpec(str(world.directory), model, preset="careful"))
        if not all:
            world.compose("- {id: policy, set: {config: {rules: [{deny: read}]}}}")
        await world.host.get(WORKSPACES).reload(world.directory, all=all)
        await agent.run("go")
        assert not (world.directory / "made.txt").exists()
        await world.dispose(agent)


@pytest.mark.parametrize("all", [False, True], ids=["an edit", "all anew"])
async def test_what_a_preset_hides_of_its_workspace_stays_hidden_over_a_reload(world, all):
    world.compose(world.row("w", "danger"))
    world.own("careful", {"id": "w", "remove": True})
    async with world.open():
        agent = await world.agent("careful")
        assert world.tools(agent) == []
        if not all:
            world.compose(world.row("w", "danger,more"))
        info = await world.host.get(WORKSPACES).reload(world.directory, all=all)
        assert info.reason == ""
        assert world.tools(agent) == []
        await world.dispose(agent)


@pytest.mark.parametrize("all", [False, True], ids=["an edit", "all anew"])
async def test_what_a_preset_replaces_of_its_workspace_stays_replaced_over_a_reload(world, all):
    world.compose(world.row("w", "danger"))
    world.own("careful", {"id": "w", "set": {"config": world.row("w", "safe")["config"]}})
    async with world.open():
        agent = await world.agent("careful")
        assert world.tools(agent) == ["mcp__w__safe"]
        if not all:
            world.compose(world.row("w", "danger,more"))
        await world.host.get(WORKSPACES).reload(world.directory, all=all)
        assert world.tools(agent) == ["mcp__w__safe"]
        await world.dispose(agent)
        assert world.alive() == []


async def test_an_agent_of_a_preset_sees_an_edit_of_its_workspace(world):
    world.compose(world.row("w", "x"))
    world.own("careful", world.row("mine", "m"))
    async with world.open():
        agent = await world.agent("careful")
        world.compose(world.row("w", "y"))
        await until(lambda: sorted(world.tools(agent)) == ["mcp__mine__m", "mcp__w__y"], f"it sees {world.tools(agent)}")
        late = await world.agent("careful")
        assert sorted(world.tools(late)) == ["mcp__mine__m", "mcp__w__y"]
        await world.dispose(agent, late)


async def test_a_new_agent_of_a_preset_joins_while_the_workspace_has_failed_and_sees_nothing_wider(world):
    world.compose({"id": "a", "set": {"config": world.row("a", "safe")["config"]}})
    world.own("careful", world.row("mine", "m"))
    async with world.open(world.row("a", "danger")):
        first = await world.agent("careful")
        world.compose("- {id: a, use: no.such.plugin}")
        info = await world.host.get(WORKSPACES).reload(world.directory)
        assert info.reason == "invalid"
        assert world.tools(first) == ["mcp__mine__m"]
        try:
            second = await world.agent("careful")
        except HamesError:
            pass
        else:
            assert not any("danger" in name for name in world.tools(second))
            await world.dispose(second)
        await world.dispose(first)


async def test_a_new_agent_of_a_preset_joins_while_rows_of_the_workspace_have_not_started(world):
    world.compose({"id": "a", "set": {"config": world.row("a", "safe")["config"]}})
    world.own("careful", world.row("mine", "m"))
    async with world.open(world.row("a", "danger")):
        first = await world.agent("careful")
        bad = {"id": "a", "set": {"config": world.row("a", "broken", required=True)["config"]}}
        world.compose(bad, world.row("w", "x"))
        assert (await world.host.get(WORKSPACES).reload(world.directory)).reason == "start"
        assert world.tools(first) == ["mcp__mine__m"]
        try:
            second = await world.agent("careful")
        except HamesError:
            pass  # clear, and nothing wider is seen
        else:
            assert not any("danger" in name for name in world.tools(second))
            await world.dispose(second)
        await world.dispose(first)


@pytest.mark.parametrize("which", ["disabled", "set"])
async def test_a_new_agent_of_a_preset_that_changes_a_row_joins_while_that_row_has_not_started(world, which):
    world.compose(world.row("w", "x"))
    change = {"disabled": True} if which == "disabled" else {"config": world.row("w", "mine")["config"]}
    world.own("careful", {"id": "w", "set": change})
    async with world.open():
        first = await world.agent()
        world.compose(world.row("w", "broken", required=True))
        assert (await world.host.get(WORKSPACES).reload(world.directory)).reason == "start"
        try:
            second = await world.agent("careful")
        except HamesError:
            pass
        else:
            await world.dispose(second)
        await world.dispose(first)


async def test_a_new_agent_of_a_preset_joins_while_the_workspace_is_being_read_again(world):
    world.compose(world.row("w", "one"))
    world.own("careful", {"id": "w", "set": {"disabled": True}}, world.row("mine", "m"))
    async with world.open():
        first = await world.agent()
        gate = world.root / "gate"
        gate.touch()
        slow = world.row("w", "two")
        slow["config"]["args"].append(str(gate))
        world.compose(slow, world.row("z", "z"))
        reload = asyncio.create_task(world.host.get(WORKSPACES).reload(world.directory))
        await until(lambda: any(str(gate).encode() in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in world.alive()))
        joining = asyncio.create_task(world.agent("careful"))
        await asyncio.wait((joining,), timeout=0.2)
        gate.unlink()
        info = await reload
        second = await joining
        assert info.reason == ""
        assert sorted(world.tools(first)) == ["mcp__w__two", "mcp__z__z"]
        assert sorted(world.tools(second)) == ["mcp__mine__m", "mcp__z__z"]
        await world.dispose(second, first)


# broken ones


@pytest.mark.parametrize(
    "content",
    [
        "- [",
        "3",
        "- {id: x, use: no.such.plugin}",
        "- {id: x, use: ./missing.py}",
        "- {include: none.yaml}",
        "- {id: nobody, remove: true}",
        "- {id: store, remove: true}",
        "- {id: sessions, set: {disabled: true}}",
        "- {id: workspaces, set: {config: {watch: false}}}",
        "- {id: trust, set: {config: {default: always}}}",
        "- {id: agents, remove: true}",
        "- {id: todo, set: {config: {no: such}}}",
        "required",
        "binary",
    ],
)
async def test_a_broken_preset_fails_the_agent_and_leaves_nothing(world, content):
    rows = [world.row("ok", "y"), world.row("mine", "broken", required=True)] if content == "required" else [content]
    path = world.users("bad", *rows)
    if content == "binary":
        path.write_bytes(b"- {id: \xff\xfe}")
    async with world.open(trusting=False):
        with pytest.raises(ConfigError) as caught:
            await world.agent("bad")
        assert caught.value.message
        assert world.alive() == []
        assert world.scopes() == []
        assert world.host.get(WORKSPACES).all == []
        assert world.host.get(SESSIONS).list() == []
        world.users("bad", world.row("mine", "x"))
        agent = await world.agent("bad")
        assert world.tools(agent) == ["mcp__mine__x"]
        await world.dispose(agent)


async def test_a_preset_that_has_become_broken_leaves_those_who_have_it_alone(world):
    world.own("careful", world.row("mine", "x"))
    async with world.open():
        agent = await world.agent("careful")
        world.own("careful", world.row("mine", "broken", required=True))
        with pytest.raises(ConfigError):
            await world.agent("careful")
        assert world.tools(agent) == ["mcp__mine__x"]
        assert (len(world.scopes()), len(world.alive())) == (1, 1)
        world.own("careful", world.row("mine", "x"))
        other = await world.agent("careful")
        assert other.scope.parent is agent.scope.parent
        await world.dispose(agent, other)


async def test_an_agent_that_cannot_be_made_leaves_its_preset_again(world):
    world.own("careful", world.row("mine", "x"))
    async with world.open():
        keeper = await world.agent()
        with pytest.raises(HamesError):
            await world.host.get(AGENTS).create(AgentSpec(str(world.directory), "scripted:/no/such/script.json", preset="careful"))
        world.own("careful", world.row("mine", "y"))
        agent = await world.agent("careful")
        assert (len(world.scopes()), len(world.alive())) == (1, 1)
        await world.dispose(agent, keeper)


async def test_a_cancelled_creation_leaves_nothing_of_the_preset(world):
    world.own("careful", world.row("mine", "x"))
    async with world.open():
        keeper = await world.agent()
        making = asyncio.create_task(world.agent("careful"))
        await until(world.alive)
        making.cancel()
        await asyncio.wait((making,))
        if not making.cancelled():
            await world.dispose(making.result())
        await world.dispose(keeper)
        assert (world.scopes(), world.alive()) == ([], [])


async def test_closing_the_host_ends_generations_that_agents_stand_in(world):
    world.own("careful", world.row("mine", "x"))
    tasks = asyncio.all_tasks()
    layers = [profile("standard"), world._write(world.root / "t.yaml", ["- {id: trust, set: {config: {default: always}}}"])]
    async with running(layers, {STATE: world.root / "state"}) as host:
        world.host = host
        await world.agent("careful")
        world.own("careful", world.row("mine", "y"))
        await world.agent("careful")
        assert len(world.alive()) == 2
    assert world.alive() == []
    assert asyncio.all_tasks() - tasks == set()
