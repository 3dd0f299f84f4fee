"""MCP servers of workspaces: what processes there are, which tools are seen where, and what a reload does to them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hames.compose import BASE, running
from hames.content.errors import ConfigError
from hames.mcp import MCP
from hames.profiles import profile
from hames.store import STATE
from hames.tools import TOOLS
from hames.trust import TRUST
from hames.workspaces import WORKSPACES, WorkspaceReloaded

SECRET = "hunter2-and-more"

SERVER = """
import json, os, sys, threading, time
threading.Thread(target=lambda: (time.sleep(90), os._exit(9)), daemon=True).start()
mark, place, names = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
with open(os.path.join(place, "starts"), "a") as file:
    known = [int(json.loads(line)["pid"]) for line in open(os.path.join(place, "starts"))]
    others = [pid for pid in known if os.path.exists(f"/proc/{pid}")]
    file.write(json.dumps({"pid": os.getpid(), "names": names, "others": others, "said": os.environ.get("SAID", ""),
                           "cwd": os.getcwd()}) + "\\n")
if os.path.exists(os.path.join(place, "slow-" + names[0])):
    while os.path.exists(os.path.join(place, "slow-" + names[0])):
        time.sleep(0.01)
if os.path.exists(os.path.join(place, "broken")):
    sys.exit("no luck: " + os.environ.get("TOKEN", ""))
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    id, method = message["id"], message.get("method")
    result = None
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "f", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    if result is None:
        answer = {"error": {"code": -32601, "message": "what?"}}
    else:
        answer = {"result": result}
    print(json.dumps({"jsonrpc": "2.0", "id": id, **answer}), flush=True)
"""


def inotify_watches() -> int:
    count = 0
    for path in Path("/proc/self/fdinfo").iterdir():
        try:
            count += path.read_text().count("inotify wd:")
        except OSError:
            continue
    return count


async def until(condition, what="", seconds=10.0):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, what or "it did not come to pass"
        await asyncio.sleep(0.01)
    return value


class World:
    """A host with servers, some workspaces, and what is seen of them from the system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.program = root / "server.py"
        self.program.write_text(SERVER)
        self.place = root / "place"
        self.place.mkdir()
        self.notices: list[WorkspaceReloaded] = []
        self.host = None

    def config(self, names, **more):
        return {"command": sys.executable, "args": ["-S", str(self.program), str(self.root), str(self.place), names], **more}

    def row(self, id, names, **more):
        return {"id": id, "use": "hames.mcp.server", "config": self.config(names, **more)}

    def layer(self, *rows):
        path = self.root / "global.yaml"
        path.write_text(json.dumps(list(rows)))
        return path

    def directory(self, name, *rows):
        path = self.root / name
        path.mkdir(exist_ok=True)
        if rows:
            self.write(path, *rows)
        return path

    def write(self, directory, *rows):
        file = directory / ".hames" / "compose.yaml"
        file.parent.mkdir(exist_ok=True)
        other = file.with_name(".compose.new")
        other.write_text(rows[0] if rows and isinstance(rows[0], str) else json.dumps(list(rows)))
        other.replace(file)

    def project(self, directory, servers):
        text = servers if isinstance(servers, str) else json.dumps({"mcpServers": servers})
        other = directory / ".mcp.new"
        other.write_text(text)
        other.replace(directory / ".mcp.json")

    @asynccontextmanager
    async def open(self, *rows, trusting=True, environment=None, patch=""):
        layers = [profile("standard"), self.layer(*rows)]
        if trusting:
            (self.root / "trusting.yaml").write_text("- {id: trust, set: {config: {default: always}}}\n")
            layers.append(self.root / "trusting.yaml")
        if patch:
            (self.root / "patch.yaml").write_text(patch)
            layers.append(self.root / "patch.yaml")
        tasks, watches = asyncio.all_tasks(), inotify_watches()
        async with running(layers, {STATE: self.root / "state"}, environment=environment) as host:
            self.host = host
            host.ctx.on(WorkspaceReloaded, self.notices.append)
            yield host
        self.host = None
        assert self.alive() == []
        assert inotify_watches() == watches
        assert asyncio.all_tasks() - tasks == set()

    def alive(self):
        """Processes of servers, those that start just now too."""
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

    def starts(self, names=None):
        file = self.place / "starts"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [each for each in lines if names is None or each["names"] == names.split(",")]

    @property
    def service(self):
        return self.host.get(WORKSPACES)

    def tools(self, lease=None):
        scope = self.host.root_scope if lease is None else lease.scope
        registry = self.host.get(TOOLS).registry
        return [name for name in registry.view(scope) if name.startswith("mcp__")]

    def trust(self, directory, granted=True):
        trust = self.host.get(TRUST)
        trust.decide(trust.status(directory, self.host.get(BASE).composition), granted)

    async def reloaded(self, count=1):
        """The next notices, waited for."""
        await until(lambda: len(self.notices) >= count, "nobody told of a reload")
        found, self.notices[:count] = self.notices[:count], []
        return found[-1]

    def info(self, directory):
        return self.service.get(directory)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path.resolve())


# how many there are


async def test_two_that_override_a_server_and_one_that_inherits_it_have_three_processes(world):
    one = world.directory("one", {"id": "a", "set": {"config": {"args": world.config("first")["args"]}}})
    two = world.directory("two", {"id": "a", "set": {"config": {"args": world.config("second")["args"]}}})
    three = world.directory("three")
    async with world.open(world.row("a", "wide")):
        leases = [await world.service.acquire(each) for each in (one, two, three) for _ in range(5)]
        assert len(world.alive()) == 3
        assert len(world.starts()) == 3
        assert [world.tools(lease) for lease in leases] == [["mcp__a__first"]] * 5 + [["mcp__a__second"]] * 5 + [["mcp__a__wide"]] * 5
        assert world.tools() == ["mcp__a__wide"]
        for lease in leases:
            await lease.release()
        assert len(world.alive()) == 1
        assert len(world.host.get(MCP).connections) == 1


async def test_two_workspaces_that_name_the_same_program_share_its_process(world):
    pair = [world.directory(name, world.row("mine", "shared")) for name in ("one", "two")]
    async with world.open():
        first, second = await asyncio.gather(*(world.service.acquire(each) for each in pair))
        assert len(world.alive()) == 1
        assert world.tools(first) == world.tools(second) == ["mcp__mine__shared"]
        await first.release()
        assert len(world.alive()) == 1
        await second.release()
        assert world.alive() == []


async def test_twenty_leases_taken_at_once_start_one_process(world):
    directory = world.directory("one", world.row("mine", "x"))
    async with world.open():
        leases = await asyncio.gather(*(world.service.acquire(directory) for _ in range(20)))
        assert len(world.alive()) == len(world.starts()) == 1
        await asyncio.gather(*(lease.release() for lease in leases))
        assert world.alive() == []


async def test_closing_the_host_ends_servers_of_workspaces_that_are_still_leased(world):
    directories = [world.directory(name, world.row("mine", name)) for name in ("one", "two")]
    async with world.open():
        for each in directories:
            await world.service.acquire(each)
        assert len(world.alive()) == 2


# what is seen


async def test_a_server_of_the_same_name_hides_the_other_whole_and_only_there(world):
    directory = world.directory("one", {"id": "a", "replace": {"use": "hames.mcp.server", "config": world.config("left")}})
    other = world.directory("other")
    async with world.open(world.row("a", "left,right,third"), world.row("b", "x")):
        here, there = await world.service.acquire(directory), await world.service.acquire(other)
        assert sorted(world.tools(here)) == ["mcp__a__left", "mcp__b__x"]
        assert sorted(world.tools(there)) == sorted(world.tools()) == ["mcp__a__left", "mcp__a__right", "mcp__a__third", "mcp__b__x"]
        assert len(world.starts("x")) == 1
        await here.release()
        await there.release()


async def test_a_row_of_another_id_with_the_servers_name_hides_it_whole_too(world):
    directory = world.directory("one", world.row("mine", "left", server="a"))
    async with world.open(world.row("a", "left,right")):
        lease = await world.service.acquire(directory)
        assert world.tools(lease) == ["mcp__a__left"]
        assert sorted(world.tools()) == ["mcp__a__left", "mcp__a__right"]
        assert set(world.host.get(MCP).seats.view(lease.scope)) == {"a"}
        await lease.release()


async def test_a_server_whose_name_only_begins_like_another_hides_nothing_of_it(world):
    directory = world.directory("one", world.row("a", "x"))
    async with world.open(world.row("ab", "y"), world.row("a_b", "z")):
        lease = await world.service.acquire(directory)
        assert sorted(world.tools(lease)) == ["mcp__a__x", "mcp__a_b__z", "mcp__ab__y"]
        await lease.release()


@pytest.mark.parametrize("how", [{"id": "a", "set": {"disabled": True}}, {"id": "a", "remove": True}], ids=["disabled", "removed"])
async def test_a_server_that_a_workspace_switches_off_is_hidden_there_and_goes_on(world, how):
    directory = world.directory("one", how)
    async with world.open(world.row("a", "left"), world.row("b", "x")):
        lease = await world.service.acquire(directory)
        assert world.tools(lease) == ["mcp__b__x"]
        assert sorted(world.tools()) == ["mcp__a__left", "mcp__b__x"]
        assert set(world.host.get(MCP).seats.view(lease.scope)) == {"b"}
        assert len(world.alive()) == 2
        await lease.release()
        assert len(world.starts()) == 2


async def test_a_server_that_is_switched_on_again_is_seen_without_a_new_process(world):
    directory = world.directory("one", {"id": "a", "set": {"disabled": True}})
    async with world.open(world.row("a", "left")):
        lease = await world.service.acquire(directory)
        world.write(directory, "[]")
        notice = await world.reloaded()
        assert (notice.reason, world.tools(lease)) == ("", ["mcp__a__left"])
        assert len(world.starts()) == 1
        await lease.release()


# edits


async def test_an_edit_of_another_row_keeps_the_process(world):
    kept = world.row("mine", "x")
    directory = world.directory("one", kept, world.row("other", "y"))
    async with world.open():
        lease = await world.service.acquire(directory)
        (before,) = world.starts("x")
        world.write(directory, kept, world.row("other", "z"))
        notice = await world.reloaded()
        assert (notice.started, notice.stopped) == (("other",), ("other",))
        assert sorted(world.tools(lease)) == ["mcp__mine__x", "mcp__other__z"]
        assert [each["pid"] for each in world.starts("x")] == [before["pid"]]
        assert before["pid"] in world.alive()
        assert len(world.alive()) == 2
        world.write(directory, world.row("other", "z"), kept)
        await world.reloaded()
        assert [each["pid"] for each in world.starts("x")] == [before["pid"]]
        await lease.release()


async def test_an_edit_of_the_servers_row_replaces_process_and_tools_as_one(world):
    directory = world.directory("one", world.row("mine", "a,b,c"))
    async with world.open():
        lease = await world.service.acquire(directory)
        seen = []

        def look():
            now = tuple(sorted(world.tools(lease)))
            if not seen or seen[-1] != now:
                seen.append(now)

        look()
        (world.place / "slow-c").touch()
        world.write(directory, world.row("mine", "c,d"))
        await until(lambda: (look(), world.starts("c,d"))[1])
        look()
        assert world.info(directory).reload.status == "reloading"
        (world.place / "slow-c").unlink()
        await until(lambda: (look(), world.notices)[1])
        look()
        old, new = tuple(f"mcp__mine__{name}" for name in "abc"), tuple(f"mcp__mine__{name}" for name in "cd")
        assert seen == [old, (), new]
        (start,) = world.starts("c,d")
        assert start["others"] == []  # the old one had gone
        assert len(world.alive()) == 1
        await lease.release()


@pytest.mark.parametrize("keep", [False, True], ids=["empty", "keep"])
async def test_nothing_of_the_wider_server_shows_while_a_server_is_replaced(world, keep):
    directory = world.directory("one", world.row("mine", "safe", server="a"))
    patch = "- {id: workspaces, set: {config: {on_failure: keep}}}\n" if keep else ""
    async with world.open(world.row("a", "safe,danger"), patch=patch):
        lease = await world.service.acquire(directory)
        (world.place / "slow-other").touch()
        world.write(directory, world.row("mine", "other", server="a"))
        await until(lambda: world.starts("other"))
        assert world.tools(lease) == []
        (world.place / "broken").touch()
        (world.place / "slow-other").unlink()
        await world.reloaded()
        assert "mcp__a__danger" not in world.tools(lease)
        await lease.release()


async def test_a_server_that_begins_to_override_hides_the_wider_one_before_it_is_ready(world):
    directory = world.directory("one", "[]")
    async with world.open(world.row("a", "danger")):
        lease = await world.service.acquire(directory)
        assert world.tools(lease) == ["mcp__a__danger"]
        (world.place / "slow-safe").touch()
        world.write(directory, {"id": "a", "set": {"config": {"args": world.config("safe")["args"]}}})
        await until(lambda: world.starts("safe"))
        assert world.tools(lease) == []
        (world.place / "slow-safe").unlink()
        await world.reloaded()
        assert world.tools(lease) == ["mcp__a__safe"]
        world.write(directory, "[]")
        await world.reloaded()
        assert world.tools(lease) == ["mcp__a__danger"]
        assert len(world.alive()) == 1
        await lease.release()


@pytest.mark.parametrize("mistake", ["- {id: a, use: no.such.plugin}", "- [", "- {id: nobody, set: {config: {}}}", "3"], ids=str)
async def test_a_file_with_a_mistake_lets_no_wider_tool_through_until_it_is_mended(world, mistake):
    override = {"id": "a", "set": {"config": {"args": world.config("safe")["args"]}}}
    off = {"id": "b", "set": {"disabled": True}}
    directory = world.directory("one", override, off)
    async with world.open(world.row("a", "safe,danger"), world.row("b", "wide")):
        lease = await world.service.acquire(directory)
        assert world.tools(lease) == ["mcp__a__safe"]
        world.write(directory, mistake)
        notice = await world.reloaded()
        assert notice.reason == "invalid"
        assert world.tools(lease) == []
        assert len(world.alive()) == 2
        world.write(directory, mistake + " ")  # and again
        await world.reloaded()
        assert world.tools(lease) == []
        world.write(directory, override, off)
        assert (await world.reloaded()).reason == ""
        assert world.tools(lease) == ["mcp__a__safe"]
        await lease.release()


# required


async def test_a_required_server_that_cannot_start_fails_the_first_lease_and_leaves_nothing(world):
    directory = world.directory("one", world.row("mine", "x", required=True), world.row("fine", "y"))
    async with world.open():
        watches = inotify_watches()
        (world.place / "broken").touch()
        with pytest.raises(ConfigError) as caught:
            await world.service.acquire(directory)
        assert "mine" in caught.value.message
        assert world.alive() == []
        assert inotify_watches() == watches
        (world.place / "broken").unlink()
        lease = await world.service.acquire(directory)
        assert sorted(world.tools(lease)) == ["mcp__fine__y", "mcp__mine__x"]
        await lease.release()


async def test_a_required_server_that_cannot_start_fails_the_reload_and_not_those_who_work(world, script):
    from hames.agents import AGENTS, AgentSpec

    directory = world.directory("one", world.row("mine", "x"))
    async with world.open():
        agents = world.host.get(AGENTS)
        agent = await agents.create(AgentSpec(str(directory), script({"text": "one"}, {"text": "two"})))
        assert (await agent.run("go")).reason == "completed"
        (world.place / "broken").touch()
        world.write(directory, world.row("mine", "y", required=True))
        notice = await world.reloaded()
        assert notice.reason == "start"
        assert "mine" in notice.message
        assert world.alive() == []
        info = world.info(directory)
        assert (info.reason, info.reload.status, info.composition) == ("start", "failed", False)
        assert (await agent.run("on")).text == "two"
        (world.place / "broken").unlink()
        world.write(directory, world.row("mine", "z", required=True))
        assert (await world.reloaded()).reason == ""
        assert "mcp__mine__z" in world.host.get(TOOLS).registry.view(agent.scope)
        assert len(world.alive()) == 1
        await agents.dispose(agent)
        assert world.alive() == []


async def test_with_keep_the_server_that_was_there_is_there_again_after_a_failed_reload(world):
    directory = world.directory("one", world.row("mine", "x"), world.row("kept", "k"))
    bad = world.row("mine", "y", required=True) | {"config": {"command": "no-such-program-at-all", "required": True}}
    async with world.open(patch="- {id: workspaces, set: {config: {on_failure: keep}}}\n"):
        lease = await world.service.acquire(directory)
        world.write(directory, bad, world.row("kept", "k"))
        assert (await world.reloaded()).reason == "start"
        assert sorted(world.tools(lease)) == ["mcp__kept__k", "mcp__mine__x"]
        assert len(world.starts("k")) == 1
        assert len(world.alive()) == 2
        await lease.release()


async def test_a_server_that_is_not_required_does_not_fail_the_reload(world):
    directory = world.directory("one", "[]")
    async with world.open():
        lease = await world.service.acquire(directory)
        (world.place / "broken").touch()
        world.write(directory, world.row("mine", "x", reconnect={"attempts": 0}))
        assert (await world.reloaded()).reason == ""
        assert world.tools(lease) == []
        assert world.info(directory).reload.status == "idle"
        assert world.alive() == []
        await lease.release()


# .mcp.json


async def test_servers_of_the_project_file_are_added_changed_and_removed_while_one_works(world):
    directory = world.directory("one")
    async with world.open(environment={**os.environ, "WORDS": "from-outside"}):
        lease = await world.service.acquire(directory)
        assert world.tools(lease) == []
        given = world.config("x", env={"SAID": "${WORDS} ${MISSING:-default}"})
        world.project(directory, {"mine": given})
        notice = await world.reloaded()
        assert (notice.reason, len(notice.started)) == ("", 1)
        assert world.tools(lease) == ["mcp__mine__x"]
        (start,) = world.starts("x")
        assert (start["said"], start["cwd"]) == ("from-outside default", str(directory))
        world.project(directory, {"mine": given, "more": world.config("y")})
        await world.reloaded()
        assert sorted(world.tools(lease)) == ["mcp__mine__x", "mcp__more__y"]
        assert [each["pid"] for each in world.starts("x")] == [start["pid"]]
        world.project(directory, {"mine": world.config("z"), "more": world.config("y")})
        await world.reloaded()
        assert sorted(world.tools(lease)) == ["mcp__mine__z", "mcp__more__y"]
        world.project(directory, {"more": world.config("y")})
        await world.reloaded()
        assert world.tools(lease) == ["mcp__more__y"]
        (directory / ".mcp.json").unlink()
        await world.reloaded()
        assert (world.tools(lease), world.alive()) == ([], [])
        assert len(world.starts("y")) == 1
        assert world.notices == []
        await lease.release()


async def test_a_server_of_the_project_file_hides_one_of_the_host_whole(world):
    directory = world.directory("one")
    world.project(directory, {"a": world.config("safe")})
    async with world.open(world.row("a", "safe,danger")):
        lease = await world.service.acquire(directory)
        assert world.tools(lease) == ["mcp__a__safe"]
        world.project(directory, "{")
        assert (await world.reloaded()).reason == "invalid"
        assert world.tools(lease) == []
        world.project(directory, {})
        assert (await world.reloaded()).reason == ""
        assert sorted(world.tools(lease)) == ["mcp__a__danger", "mcp__a__safe"]
        assert len(world.alive()) == 1
        await lease.release()


@pytest.mark.parametrize(
    "mistake",
    [
        "{",
        "[1]",
        '{"mcpServers": {"a": {"command": ""}}}',
        '{"mcpServers": {"a": {"command": "x", "url": "http://x"}}}',
        '{"mcpServers": {"a": {"type": "sse", "url": "http://x"}}}',
        '{"mcpServers": {"a": {"command": "x", "env": {"T": "${SURELY_NOT_THERE}"}}}}',
        '{"mcpServers": {"???": {"command": "x"}}}',
        '{"mcpServers": {"a b": {"command": "x"}, "a_b": {"command": "x"}}}',
        '{"mcpServers": {"a": 3}}',
    ],
    ids=str,
)
async def test_a_project_file_with_a_mistake_is_invalid_and_started_by_nobody(world, mistake):
    directory = world.directory("one")
    world.project(directory, {"mine": world.config("x")})
    async with world.open():
        lease = await world.service.acquire(directory)
        world.project(directory, mistake)
        notice = await world.reloaded()
        assert (notice.reason, bool(notice.message)) == ("invalid", True)
        assert world.tools(lease) == []
        assert world.alive() == []
        world.project(directory, {"mine": world.config("x")})
        assert (await world.reloaded()).reason == ""
        assert world.tools(lease) == ["mcp__mine__x"]
        await lease.release()


async def test_a_trusted_project_file_with_a_mistake_is_refused_at_the_first_lease(world):
    directory = world.directory("one")
    world.project(directory, '{"mcpServers": {"a": {"command": "x", "url": "http://x"}}}')
    async with world.open():
        with pytest.raises(ConfigError) as caught:
            await world.service.acquire(directory)
        assert ".mcp.json" in caught.value.message
        assert world.info(directory) is None


async def test_nothing_is_started_or_watched_for_an_untrusted_directory(world):
    directory = world.directory("one", world.row("mine", "x"))
    world.project(directory, {"other": world.config("y")})
    async with world.open(world.row("a", "wide"), trusting=False):
        watches = inotify_watches()
        lease = await world.service.acquire(directory)
        assert world.tools(lease) == ["mcp__a__wide"]
        assert len(world.alive()) == 1
        assert inotify_watches() == watches
        info = world.info(directory)
        assert (info.trusted, info.composition, info.reload) == (False, False, None)
        world.project(directory, {"other": world.config("z")})
        await world.service.reload(directory)
        assert (world.tools(lease), len(world.alive())) == (["mcp__a__wide"], 1)
        world.trust(directory)
        await world.service.reload(directory)
        assert sorted(world.tools(lease)) == ["mcp__a__wide", "mcp__mine__x", "mcp__other__z"]
        assert world.info(directory).reload.watching
        await lease.release()
        assert len(world.alive()) == 1


async def test_a_changed_command_waits_for_a_grant_and_is_taken_up_after_it(world):
    directory = world.directory("one")
    world.project(directory, {"mine": world.config("x")})
    async with world.open(trusting=False):
        world.trust(directory)
        lease = await world.service.acquire(directory)
        world.project(directory, {"mine": world.config("y")})
        notice = await world.reloaded()
        assert notice.reason == "trust"
        assert world.tools(lease) == ["mcp__mine__x"]
        assert world.starts("y") == []
        world.trust(directory)
        assert (await world.reloaded()).reason == ""
        assert world.tools(lease) == ["mcp__mine__y"]
        assert len(world.alive()) == 1
        await lease.release()


async def test_trust_that_is_taken_back_ends_the_servers_with_the_next_reading(world):
    directory = world.directory("one")
    world.project(directory, {"mine": world.config("x")})
    async with world.open(trusting=False):
        world.trust(directory)
        lease = await world.service.acquire(directory)
        assert len(world.alive()) == 1
        world.host.get(TRUST).revoke(directory)
        info = await world.service.reload(directory)
        assert (world.tools(lease), world.alive(), info.composition) == ([], [], False)
        world.project(directory, {"mine": world.config("y")})
        await world.service.reload(directory)
        assert world.starts("y") == []
        await lease.release()


async def test_a_reload_of_all_starts_each_server_of_the_workspace_once_more_and_none_of_the_host(world):
    directory = world.directory("one", world.row("mine", "x"))
    world.project(directory, {"more": world.config("y")})
    async with world.open(world.row("a", "wide")):
        lease = await world.service.acquire(directory)
        await world.service.reload(directory)
        assert [len(world.starts(name)) for name in ("wide", "x", "y")] == [1, 1, 1]
        await world.service.reload(directory, all=True)
        assert [len(world.starts(name)) for name in ("wide", "x", "y")] == [1, 2, 2]
        assert len(world.alive()) == 3
        assert sorted(world.tools(lease)) == ["mcp__a__wide", "mcp__mine__x", "mcp__more__y"]
        await lease.release()


async def test_a_release_during_a_reload_leaves_no_process(world):
    directory = world.directory("one", world.row("mine", "x"))
    async with world.open():
        lease = await world.service.acquire(directory)
        (world.place / "slow-y").touch()
        world.write(directory, world.row("mine", "y"))
        await until(lambda: world.starts("y"))
        release = asyncio.create_task(lease.release())
        await asyncio.sleep(0)
        (world.place / "slow-y").unlink()
        await release
        assert world.alive() == []
        assert world.info(directory) is None


# secrets


@pytest.mark.parametrize(
    "mistake",
    [
        "no luck",
        "{env: {TOKEN: [hunter2-and-more]}}",
        "{env: {TOKEN: hunter2-and-more}, headers: {Authorization: hunter2-and-more}}",
        "{env: hunter2-and-more}",
        "{env: {TOKEN: 'hunter2-and-more}}",
        "{env: {TOKEN: hunter2-and-more, TOKEN: hunter2-and-more}}",
        "{env: {TOKEN: hunter2-and-more}, connect_timeout: hunter2-and-more}",
        "{env: {TOKEN: hunter2-and-more}, hunter: 1}",
        "hunter2-and-more",
        "[hunter2-and-more]",
    ],
    ids=[
        "cannot start", "wrong type", "both kinds", "text", "not closed", "twice", "wrong number", "unknown", "no mapping", "list",
    ],
)  # fmt: skip
async def test_no_secret_of_a_server_is_said_anywhere(world, mistake, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    directory = world.directory("one", world.row("mine", "x", env={"TOKEN": SECRET}))
    async with world.open(patch="- {id: workspaces, set: {config: {debounce_ms: 10}}}\n"):
        lease = await world.service.acquire(directory)
        if mistake == "no luck":
            (world.place / "broken").touch()
            world.write(directory, world.row("mine", "y", env={"TOKEN": SECRET}, required=True))
        else:
            world.write(directory, f"- {{id: mine, use: hames.mcp.server, config: {mistake}}}\n")
        notice = await world.reloaded()
        assert notice.reason in ("invalid", "start")
        said = [repr(notice), repr(world.info(directory)), repr(lease), caplog.text, *capsys.readouterr()]
        said += [path.read_text() for path in (world.root / "state" / "workspaces").rglob("*.json")]
        assert not any(SECRET in each for each in said), notice.message
        await lease.release()
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "server",
    [
        {"command": "no-such-program", "env": {"TOKEN": SECRET}},
        {"command": "x", "env": {"TOKEN": [SECRET]}},
        {"url": "nowhere", "headers": {"Authorization": f"Bearer {SECRET}"}},
        {"url": "http://x", "headers": f"Bearer {SECRET}"},
        {"command": "x", "headers": {"Authorization": f"Bearer {SECRET}"}},
        {"command": "x", "env": {"TOKEN": "${NOT_SET}", "OTHER": SECRET}},
        {"type": "sse", "url": "http://x", "headers": {"Authorization": SECRET}},
    ],
    ids=str,
)
async def test_no_secret_of_the_project_file_is_said_anywhere(world, server, caplog):
    caplog.set_level(logging.DEBUG)
    directory = world.directory("one")
    async with world.open(environment={**os.environ, "GIVEN": SECRET}):
        lease = await world.service.acquire(directory)
        world.project(directory, {"mine": server, "given": {"command": "no-such-program", "env": {"A": "${GIVEN}"}}})
        notice = await world.reloaded()
        said = [repr(notice), repr(world.info(directory)), caplog.text]
        said += [path.read_text() for path in (world.root / "state" / "workspaces").rglob("*.json")]
        assert not any(SECRET in each for each in said), notice.message
        await lease.release()
    assert SECRET not in caplog.text
