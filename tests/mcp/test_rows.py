"""Rows of servers: what they say, what agents see of it, and what is left when they end."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from hames.agents import AgentSpec
from hames.compose import Interpolation, Layer, compose, plan, running
from hames.compose.mounting import mount
from hames.content.errors import ConfigError, HamesError
from hames.kernel import State, plugin
from hames.mcp import MCP
from hames.mcp.config import ServerConfig
from hames.mcp.events import ServerChanged
from hames.policy import POLICY
from hames.policy.plugin import MODE
from hames.profiles import profile
from hames.store import STATE
from hames.tools import TOOLS, Approval, tool

SERVER = """
import json, os, subprocess, sys, threading, time
from pathlib import Path

place = Path(sys.argv[1])
with (place / "starts").open("a") as file:
    seen = {name: os.environ[name] for name in os.environ if name.startswith(("SEEN_", "OPENAI_"))}
    file.write(json.dumps({"pid": os.getpid(), "cwd": os.getcwd(), "env": seen, "args": sys.argv[2:], "at": time.monotonic(),
                           "others": [pid for pid in json.loads((place / "alive").read_text() if (place / "alive").exists() else "[]")
                                      if os.path.exists(f"/proc/{pid}")]}) + "\\n")
(place / f"alive.{os.getpid()}").write_text(json.dumps([os.getpid()]))
(place / f"alive.{os.getpid()}").replace(place / "alive")
if (place / "broken").exists():
    sys.exit((place / "broken").read_text())
if (place / "hangs").exists():
    if (place / "hangs").read_text() == "with a child":
        subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done", str(place)])
    time.sleep(600)
lock = threading.Lock()


def send(**message):
    with lock:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def watch():
    while True:
        time.sleep(0.01)
        if (place / "changed").exists():
            (place / "changed").unlink()
            send(method="notifications/tools/list_changed")
        if (place / "die").exists():
            (place / "die").unlink()
            os._exit(7)


threading.Thread(target=watch, daemon=True).start()
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    id, method = message["id"], message.get("method")
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}}
        if (place / "resources").exists():
            capabilities["resources"] = {}
        send(id=id, result={"protocolVersion": "2025-06-18", "capabilities": capabilities,
                            "serverInfo": {"name": "fixture", "version": "1"}, "instructions": f"use {place.name}"})
    elif method == "tools/list":
        with (place / "lists").open("a") as file:
            file.write("x")
        names = json.loads((place / "tools.json").read_text())
        send(id=id, result={"tools": [{"inputSchema": {"type": "object"}, **({"name": each, "description": each}
                                       if isinstance(each, str) else each)} for each in names]})
    elif method == "tools/call":
        text = json.dumps(message["params"].get("arguments"))
        send(id=id, result={"content": [{"type": "text", "text": f"{place.name} {text}"}]})
    elif method == "ping":
        send(id=id, result={})
    else:
        send(id=id, error={"code": -32601, "message": "no such method"})
if (place / "lingers").exists():
    time.sleep(float((place / "lingers").read_text()))
"""


class Place:
    """A server program of its own, and the directory by which it is told what to do."""

    def __init__(self, root: Path, name: str, tools: list) -> None:
        self.path = root / name
        self.path.mkdir()
        self.program = self.path / "server.py"
        self.program.write_text(SERVER)
        self.offer(tools)

    def offer(self, tools: list) -> None:
        (self.path / ".tools").write_text(json.dumps(tools))
        (self.path / ".tools").replace(self.path / "tools.json")

    def put(self, name: str, text: str = "") -> None:
        (self.path / name).write_text(text)

    def remove(self, name: str) -> None:
        (self.path / name).unlink()

    def config(self, *args: str, **more) -> dict:
        return {"command": sys.executable, "args": ["-S", str(self.program), str(self.path), *args], "protocol": "legacy", **more}

    @property
    def starts(self) -> list[dict]:
        path = self.path / "starts"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def alive(self) -> list[int]:
        """Every living process that has this place in its arguments."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if str(self.path).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
async def place(tmp_path):
    made: list[Place] = []

    def make(name: str, *tools) -> Place:
        made.append(Place(tmp_path, name, list(tools)))
        return made[-1]

    yield make
    left = [(each.path.name, pid) for each in made for pid in each.alive]
    for _, pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    assert not [task for task in asyncio.all_tasks() if "mcp" in task.get_name()]


@pytest.fixture
def layer(tmp_path):
    count = 0

    def write(**rows: dict) -> Path:
        nonlocal count
        count += 1
        path = tmp_path / f"layer-{count}.yaml"
        path.write_text(
            json.dumps([{"id": id.replace("_", "-"), "use": "hames.mcp.server", "config": config} for id, config in rows.items()])
        )
        return path

    return write


async def until(condition, what="it comes about", seconds=15.0):
    async with asyncio.timeout(seconds):
        while not (found := condition()):
            await asyncio.sleep(0.005)
    return found


def tools(host, scope=None):
    return [name for name in host.get(TOOLS).registry.view(scope or host.root_scope) if name.startswith("mcp")]


def seat(host, name, scope=None):
    return host.get(MCP).seats.view(scope or host.root_scope)[name]


async def below(host, file, scope):
    """Mount the rows of a file in a scope."""
    return await mount(host, plan(compose([Layer(file)]), Interpolation(os.environ)), scope)


# what a row may say


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "exactly one of command and url"),
        ({"command": "a", "url": "http://x"}, "exactly one of command and url"),
        ({"url": "http://x", "args": ["a"]}, "args, env and cwd are for servers with a command"),
        ({"url": "http://x", "env": {"A": "b"}}, "args, env and cwd are for servers with a command"),
        ({"url": "http://x", "cwd": "/"}, "args, env and cwd are for servers with a command"),
        ({"command": "a", "headers": {"A": "b"}}, "headers and oauth are for servers with a url"),
        ({"command": "a", "oauth": True}, "headers and oauth are for servers with a url"),
        ({"url": "ftp://x"}, "begins with http"),
        ({"command": "a", "capabilities": []}, "capabilities is empty"),
        ({"command": "a", "capabilities": ["fly"]}, "capabilities"),
        ({"command": "a", "server": "a__b"}, "1 to 32 letters"),
        ({"command": "a", "reconnect": {"initial": 9, "longest": 1}}, "reconnect.initial is longer"),
        ({"command": "a", "reconnect": {"attempts": -1}}, "attempts"),
        ({"command": "a", "connect_timeout": 0}, "connect_timeout"),
        ({"command": "a", "connect_timeout": 121}, "connect_timeout"),
        ({"command": "a", "comand": "b"}, "comand"),
        ({"command": "a", "args": "b"}, "args"),
        ({"command": "a", "protocol": "new"}, "protocol"),
        ({"command": "a", "max_message_bytes": 0}, "max_message_bytes"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_mistake_in_a_row_is_one_clear_message(layer, config, said):
    path = layer(broken=config)
    with pytest.raises(ConfigError) as caught:
        plan(compose([Layer(path)]), Interpolation({}))
    message = caught.value.message
    assert said in message and path.name in message and len(message.splitlines()) == 1, message


@pytest.mark.parametrize("key", ["call_timeout", "connect_timeout", "longest_call"])
def test_a_time_that_is_no_number_is_a_mistake(key):
    with pytest.raises(ValueError, match=key):
        ServerConfig.model_validate({"command": "a", key: float("nan")})


async def test_a_row_whose_id_cannot_be_a_name_says_how_to_give_another(opened, tmp_path, place):
    one = place("one", "look")
    path = tmp_path / "layer.yaml"
    path.write_text(json.dumps([{"id": "a__b", "use": "hames.mcp.server", "config": one.config()}]))
    with pytest.raises(ConfigError) as caught:
        async with opened(path):
            pass
    assert "'a__b'" in caught.value.message and "config.server" in caught.value.remedy and not one.starts


# starting


@pytest.mark.parametrize("how", ["ends", "hangs", "hangs with a child", "missing", "directory"])
async def test_a_required_server_that_cannot_start_fails_the_composition_and_leaves_nothing(opened, layer, place, how):
    one, other = place("one", "look"), place("other", "look")
    more = {"connect_timeout": 0.4} if how.startswith("hangs") else {}
    if how == "ends":
        one.put("broken", "no luck today")
    if how.startswith("hangs"):
        one.put("hangs", how.removeprefix("hangs "))
    config = one.config(required=True, **more)
    if how == "missing":
        config |= {"command": "no-such-program-anywhere"}
    if how == "directory":
        config |= {"cwd": str(one.path / "nowhere")}
    before = descriptors()
    with pytest.raises(ConfigError) as caught:
        async with opened(layer(one=config, other=other.config())):
            pass
    said = {"ends": "no luck today", "missing": "no-such-program-anywhere", "directory": "nowhere"}.get(how, "within 0.4 s")
    assert said in caught.value.message and "one is required" in caught.value.message and "hames mcp check one" in caught.value.remedy
    assert not one.alive and not other.alive
    await until(lambda: descriptors() <= before)


async def test_servers_that_do_not_answer_are_said_not_to(opened, layer, place):
    one = place("one", "look")
    one.put("hangs")
    config = {"connect_timeout": 0.6, "reconnect": {"attempts": 0}}
    async with opened(layer(**{f"s{n}": one.config(str(n), **config) for n in range(10)})) as host:
        reasons = [seat(host, f"s{n}").connection.reason for n in range(10)]
        assert reasons == ["it did not answer within 0.6 s"] * 10


async def test_a_server_that_is_not_required_is_there_later_when_it_comes(opened, layer, place):
    one = place("one", "look")
    one.put("broken", "not yet")
    fast = {"initial": 0.05, "longest": 0.1, "attempts": 200}
    async with opened(layer(one=one.config(reconnect=fast))) as host:
        heard = []
        host.ctx.on(ServerChanged, heard.append)
        assert tools(host) == [] and seat(host, "one").connection.status in ("waiting", "connecting")
        assert "not yet" in seat(host, "one").connection.reason
        one.remove("broken")
        await until(lambda: tools(host) == ["mcp__one__look"])
        assert (heard[-1].server, heard[-1].status, heard[-1].tools) == ("one", "ready", 1)


async def test_the_first_attempt_is_waited_for(opened, layer, place):
    one = place("one", "look", "put")
    async with opened(layer(one=one.config())) as host:
        assert tools(host) == ["mcp__one__look", "mcp__one__put"]


# names that collide


async def test_two_rows_with_one_server_are_an_error_that_names_both(opened, layer, place):
    one = place("one", "look")
    with pytest.raises(HamesError) as caught:
        async with opened(layer(first=one.config(server="same"), second=one.config(server="same"))):
            pass
    assert "first" in caught.value.message and "second" in caught.value.message and "same" in caught.value.message


async def test_two_tools_of_a_server_that_would_have_one_name_are_taken_neither(opened, layer, place):
    one = place("fixture", "admin.reset", "admin_reset_2d9bb2dfe9aa")
    async with opened(layer(fixture=one.config())) as host:
        assert tools(host) == []
        problem = seat(host, "fixture").problem
        assert (
            "'admin.reset'" in problem and "'admin_reset_2d9bb2dfe9aa'" in problem and "mcp__fixture__admin_reset_2d9bb2dfe9aa" in problem
        )
    async with opened(layer(fixture=one.config(without=["admin.reset"]))) as host:
        assert tools(host) == ["mcp__fixture__admin_reset_2d9bb2dfe9aa"]
    with pytest.raises(ConfigError, match="would both be"):
        async with opened(layer(fixture=one.config(required=True))):
            pass


async def test_a_name_that_another_row_has_is_an_error_that_names_both(opened, layer, place):
    one = place("one", "look", "put")

    @tool("read", name="mcp__one__put")
    async def rival(x: str) -> str:
        """Rival."""
        return x

    @plugin(needs=(TOOLS,), name="rival")
    def row(ctx, config):
        ctx.use(TOOLS).register(ctx, rival)

    one.put("broken", "wait")
    async with opened(layer(one=one.config(reconnect={"initial": 0.05, "longest": 0.1, "attempts": 500}))) as host:
        mounted = host.mount(row)
        await mounted.ready()
        one.remove("broken")
        problem = await until(lambda: seat(host, "one").problem)
        assert "rival" in problem and "one" in problem and "mcp__one__put" in problem
        assert tools(host) == ["mcp__one__put"] and host.get(TOOLS).registry.view(host.root_scope)["mcp__one__put"] is rival
        await mounted.stop()
        one.put("changed")
        one.offer(["look", "put", "more"])
        await until(lambda: len(tools(host)) == 3)
        assert seat(host, "one").problem == ""


# which tools


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ({}, ["Read", "read_all", "write", "admin.reset"]),
        ({"tools": ["read*"]}, ["read_all"]),
        ({"tools": ["read*", "write"]}, ["read_all", "write"]),
        ({"without": ["*"]}, []),
        ({"without": ["admin.*", "wr?te"]}, ["Read", "read_all"]),
        ({"tools": []}, []),
        ({"tools": ["mcp__one__write"]}, []),
        ({"tools": ["nothing"]}, []),
    ],
    ids=str,
)
async def test_patterns_choose_by_the_names_that_the_server_gives(opened, layer, place, more, left):
    one = place("one", "Read", "read_all", "write", "admin.reset")
    async with opened(layer(one=one.config(**more))) as host:
        from hames.mcp.names import public_name

        assert tools(host) == [public_name("one", raw) for raw in left]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"type": "object", "properties": {"a": {"type": "nonsense"}}},
        {"type": "object", "required": 5},
        {"type": ["object", "null"]},
        {"properties": 5},
    ],
    ids=json.dumps,
)
async def test_a_tool_that_no_model_can_be_given_is_left_out_and_the_others_stay(opened, layer, place, schema):
    one = place("one", "look", {"name": "bad", "inputSchema": schema}, "put")
    async with opened(layer(one=one.config(reconnect={"attempts": 0}))) as host:
        found = seat(host, "one")
        assert tools(host) == ["mcp__one__look", "mcp__one__put"], found.connection.reason
        ((name, reason),) = found.left_out
        assert name == "bad" and reason and len(reason.splitlines()) == 1


# what calls may do


@pytest.fixture
def moded(tmp_path):
    def open(mode, *layers):
        return running([profile("standard"), *layers], {STATE: tmp_path / f"state-{mode}", MODE: mode})

    return open


@pytest.mark.parametrize(
    ("mode", "verdicts"),
    [
        ("read-only", "deny allow ask deny"),
        ("workspace-write", "ask allow ask allow"),
        ("full", "allow allow allow allow"),
    ],
)
async def test_modes_judge_tools_by_what_the_row_says_of_them(moded, layer, place, tmp_path, mode, verdicts):
    one = place("one", "put", "look_up")
    config = one.config(read=["look*"])
    networked = one.config(capabilities=["network"])
    writing = one.config(capabilities=["write"])
    async with moded(mode, layer(one=config, two=networked, three=writing)) as host:
        assert len(one.starts) == 1
        from hames.policy import ToolRequest

        known = host.get(TOOLS).registry.view(host.root_scope)
        found = []
        for name in ("mcp__one__put", "mcp__one__look_up", "mcp__two__put", "mcp__three__put"):
            request = ToolRequest(name, known[name].capabilities, {}, str(tmp_path), whole=True)
            found.append(host.get(POLICY).decide(request).verdict)
        assert found == verdicts.split()


async def test_what_a_server_says_of_its_tools_frees_nothing(opened, layer, place):
    one = place("one", {"name": "wipe", "annotations": {"readOnlyHint": True, "destructiveHint": False}})
    async with opened(layer(one=one.config())) as host:
        assert host.get(TOOLS).registry.view(host.root_scope)["mcp__one__wipe"].capabilities == {"read", "write", "network"}


async def test_what_is_always_allowed_is_the_tool_whatever_its_arguments_and_no_other(opened, layer, place, script, calling, tmp_path):
    from hames.agents import AGENTS

    one = place("one", "put", "wipe")
    asked = []
    async with opened(layer(one=one.config())) as host:

        async def answer(question):
            asked.append((question.request.name, dict(question.request.arguments)))
            return "always" if len(asked) == 1 else "denied"

        host.ctx.on(Approval, answer)
        calls = [("mcp__one__put", {"a": 1}), ("mcp__one__put", {"b": [2]}), ("mcp__one__wipe", {"a": 1}), ("mcp__one__put", {})]
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), script(*(calling(call) for call in calls), {"text": "x"})))
        await agent.run("go")
        results = [block.text for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]
    assert asked == [("mcp__one__put", {"a": 1}), ("mcp__one__wipe", {"a": 1})]
    assert [text.startswith("one ") for text in results] == [True, True, False, True], results
    async with opened(layer(one=one.config())) as host:  # and later, too

        async def never(question):
            raise AssertionError(question)

        host.ctx.on(Approval, never)
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), script(calling(("mcp__one__put", {"z": 9})), {"text": "x"})))
        await agent.run("go")
        (result,) = [block.text for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]
        assert result == 'one {"z": 9}'


# losing and finding again


async def test_attempts_come_later_and_later_until_the_server_is_given_up(opened, layer, place):
    one = place("one", "look")
    policy = {"initial": 0.1, "longest": 0.2, "attempts": 3}
    async with opened(layer(one=one.config(reconnect={**policy, "longest": 10.0}))) as host:
        connection = seat(host, "one").connection
        kept = tools(host)
        one.put("broken", "gone for good")
        one.put("die")
        await until(lambda: connection.status == "waiting")
        assert tools(host) == kept == ["mcp__one__look"]  # while it may still come back
        await until(lambda: connection.status == "failed")
        assert connection.starts == 4 and len(one.starts) == 4
        assert tools(host) == [] and "gone for good" in connection.reason
        assert "not available" in seat(host, "one").about()
        times = [start["at"] for start in one.starts]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times[1:])]
        assert gaps[0] >= 0.2 and gaps[1] >= 0.4
        assert not one.alive
        one.remove("broken")
        connection.reconnect()
        await until(lambda: connection.status == "ready")
        assert tools(host) == ["mcp__one__look"] and connection.reason == ""


async def test_a_server_that_is_tried_again_in_vain_has_no_tools_meanwhile(opened, layer, place):
    one = place("one", "look")
    async with opened(layer(one=one.config(reconnect={"initial": 0.05, "longest": 5, "attempts": 0}))) as host:
        connection = seat(host, "one").connection
        one.put("broken", "gone")
        one.put("die")
        await until(lambda: connection.status == "failed")
        seen = []
        unwatch = connection.watch(lambda: seen.append((connection.status, tuple(tools(host)))))
        connection.reconnect()
        await until(lambda: len(seen) >= 2 and connection.status == "failed")
        unwatch()
        assert seen == [("connecting", ()), ("failed", ())]


async def test_a_server_that_takes_long_to_fail_is_given_up_too(opened, layer, place):
    one = place("one", "look")
    one.put("hangs")
    policy = {"initial": 0.05, "longest": 0.1, "attempts": 1}
    async with opened(layer(one=one.config(connect_timeout=0.4, reconnect=policy))) as host:
        connection = seat(host, "one").connection
        await until(lambda: connection.status == "failed" or connection.starts > 4, seconds=30)
        assert (connection.status, connection.starts) == ("failed", 2)


async def test_a_connection_that_lasted_has_all_its_attempts_again(opened, layer, place):
    one = place("one", "look")
    async with opened(layer(one=one.config(reconnect={"initial": 0.05, "longest": 0.3, "attempts": 1}))) as host:
        connection = seat(host, "one").connection
        loop = asyncio.get_running_loop()
        for round in (2, 3, 4):
            began = loop.time()
            await until(lambda began=began: loop.time() - began > 0.35)
            one.put("die")
            await until(lambda round=round: connection.starts == round and connection.status == "ready")


# changes of the list


async def test_tools_of_a_changed_list_are_swapped_as_one_and_what_did_not_change_is_the_same_object(opened, layer, place):
    first = [f"a{n}" for n in range(40)] + ["same"]
    second = [f"b{n}" for n in range(40)] + ["same"]
    one = place("one", *first)
    generations = [{f"mcp__one__{name}" for name in names} for names in (first, second)]
    async with opened(layer(one=one.config())) as host:
        before = host.get(TOOLS).registry.view(host.root_scope)["mcp__one__same"]
        seen = []
        done = False

        async def ticker():
            while not done:
                now = set(tools(host))
                if not seen or seen[-1] != now:
                    seen.append(now)
                await asyncio.sleep(0)

        watching = asyncio.create_task(ticker())
        heard = []
        host.ctx.on(ServerChanged, lambda event: heard.append((event.tools, set(tools(host)))))
        one.offer(second)
        one.put("changed")
        await until(lambda: bool(seen) and seen[-1] == generations[1])
        done = True
        await watching
        assert seen == generations
        assert all(there in generations and len(there) == count for count, there in heard)
        assert host.get(TOOLS).registry.view(host.root_scope)["mcp__one__same"] is before


async def test_whoever_watches_the_registry_never_sees_an_unchanged_tool_go(opened, layer, place):
    one = place("one", "same", "other")
    async with opened(layer(one=one.config())) as host:
        missing = []

        def look(event):
            if "mcp__one__same" not in tools(host):
                missing.append(event)

        host.ctx.on(ServerChanged, look)
        one.offer(["same", "new"])
        one.put("changed")
        await until(lambda: "mcp__one__new" in tools(host))
        assert tools(host) == ["mcp__one__same", "mcp__one__new"] and not missing


@pytest.mark.parametrize("plain", [{"name": "same"}, {"name": "same", "description": ""}, {"name": "same", "title": "Same"}], ids=str)
async def test_a_tool_without_a_description_stays_the_same_object_too(opened, layer, place, plain):
    one = place("one", plain)
    async with opened(layer(one=one.config())) as host:
        before = host.get(TOOLS).registry.view(host.root_scope)["mcp__one__same"]
        one.offer([plain, "more"])
        one.put("changed")
        await until(lambda: "mcp__one__more" in tools(host))
        assert host.get(TOOLS).registry.view(host.root_scope)["mcp__one__same"] is before


@pytest.mark.parametrize("key", ["description", "inputSchema", "annotations"])
async def test_a_tool_that_is_described_anew_is_another_one(opened, layer, place, key):
    old = {"name": "t", "description": "old", "annotations": {"readOnlyHint": True}}
    new = {"description": "new", "inputSchema": {"type": "object", "properties": {"x": {}}}, "annotations": {"readOnlyHint": False}}
    one = place("one", old)
    async with opened(layer(one=one.config())) as host:
        before = host.get(TOOLS).registry.view(host.root_scope)["mcp__one__t"]
        assert before.parallel
        one.offer([{**old, key: new[key]}, "more"])
        one.put("changed")
        await until(lambda: "mcp__one__more" in tools(host))
        after = host.get(TOOLS).registry.view(host.root_scope)["mcp__one__t"]
        assert after is not before and after.parallel is (key != "annotations")


async def test_an_equal_list_changes_nothing_and_an_empty_one_takes_all_tools_away(opened, layer, place):
    one = place("one", "look")
    async with opened(layer(one=one.config())) as host:
        heard = []
        host.ctx.on(ServerChanged, heard.append)
        before = (one.path / "lists").stat().st_size
        one.put("changed")
        await until(lambda: (one.path / "lists").stat().st_size > before)
        one.offer([])
        one.put("changed")
        await until(lambda: tools(host) == [])
        assert [event.tools for event in heard] == [0]


async def test_a_list_that_cannot_be_used_leaves_the_one_before(opened, layer, place, caplog):
    one = place("one", "look")
    async with opened(layer(one=one.config())) as host:
        one.offer(["twice", "twice"])
        one.put("changed")
        await until(lambda: "twice" in caplog.text)
        assert tools(host) == ["mcp__one__look"] and seat(host, "one").connection.status == "ready"


# scopes


async def test_a_server_further_down_hides_all_of_the_one_of_the_same_name_above_and_only_there(opened, layer, place):
    upper, lower, other = place("upper", "look", "put"), place("lower", "look"), place("other", "x")
    upper.put("resources")
    async with opened(layer(same=upper.config(), other=other.config())) as host:
        down, beside = host.scope(key="down"), host.scope(key="beside")
        above = tools(host)
        mounts = await below(host, layer(lower=lower.config(server="same")), down)
        everything = ["mcp__other__x", "mcp__same__look", "mcp__same__put", "mcp_read", "mcp_resources"]
        assert sorted(tools(host)) == everything == sorted(tools(host, beside)) and tools(host) == above
        assert "mcp__same__put" not in tools(host, down)
        assert {"mcp__other__x", "mcp__same__look"} <= set(tools(host, down))
        assert seat(host, "same", down).connection is not seat(host, "same").connection
        assert (
            host.get(TOOLS).registry.view(down)["mcp__same__look"] is not host.get(TOOLS).registry.view(host.root_scope)["mcp__same__look"]
        )
        lower.put("broken", "gone")
        await mounts["lower"].stop()
        assert sorted(tools(host, down)) == everything and seat(host, "same", down) is seat(host, "same")
        assert not lower.alive and upper.alive


async def test_a_server_further_down_that_is_not_there_hides_the_one_above_all_the_same(opened, layer, place):
    upper, lower = place("upper", "look"), place("lower", "look")
    lower.put("broken", "gone")
    async with opened(layer(same=upper.config())) as host:
        down = host.scope(key="down")
        await below(host, layer(lower=lower.config(server="same", reconnect={"attempts": 0})), down)
        assert tools(host, down) == [] and tools(host) == ["mcp__same__look"]
        assert seat(host, "same", down).connection.status == "failed"


async def test_a_scope_that_is_closed_takes_its_servers_along(opened, layer, place):
    one = place("one", "look")
    one.put("resources")
    async with opened() as host:
        down = host.scope(key="down")
        await below(host, layer(one=one.config()), down)
        assert tools(host) == [] and sorted(tools(host, down)) == ["mcp__one__look", "mcp_read", "mcp_resources"]
        await host.close_scope(down)
        assert not one.alive and host.get(MCP).connections == []


async def test_the_tools_that_read_resources_are_there_as_long_as_a_server_wants_them(opened, layer, place):
    one, two = place("one", "look"), place("two", "look")
    one.put("resources")
    two.put("resources")
    async with opened() as host:
        first = await below(host, layer(one=one.config()), None)
        second = await below(host, layer(two=two.config()), None)
        await first["one"].stop()
        assert sorted(tools(host)) == ["mcp__two__look", "mcp_read", "mcp_resources"]
        await second["two"].stop()
        assert tools(host) == []


# programs


async def test_a_program_sees_no_secrets_but_those_that_are_its_own(opened, layer, place, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "canary-secret")
    monkeypatch.setenv("SEEN_TOKEN", "canary-secret")
    monkeypatch.setenv("SEEN_PLAIN", "plain")
    one = place("one", "look")
    config = one.config(env={"SEEN_GITHUB_TOKEN": "own", "SEEN_MORE": "${env:SEEN_PLAIN}!"}, cwd=str(one.path))
    async with opened(layer(one=config)):
        (start,) = one.starts
        assert start["env"] == {"SEEN_PLAIN": "plain", "SEEN_GITHUB_TOKEN": "own", "SEEN_MORE": "plain!"}
        assert start["cwd"] == str(one.path)
        environ = Path(f"/proc/{start['pid']}/environ").read_bytes()
        assert b"canary-secret" not in environ


async def test_what_programs_see_can_be_set_for_all(opened, layer, place, monkeypatch, tmp_path):
    monkeypatch.setenv("SEEN_TOKEN", "kept")
    monkeypatch.setenv("SEEN_PLAIN", "withheld")
    one = place("one", "look")
    path = tmp_path / "all.yaml"
    path.write_text(json.dumps([{"id": "mcp", "set": {"config": {"withhold": ["SEEN_PLAIN"], "keep": ["seen_token"]}}}]))
    async with opened(path, layer(one=one.config())):
        assert one.starts[0]["env"] == {"SEEN_TOKEN": "kept"}


async def test_equal_launches_share_a_process(opened, layer, place):
    one = place("one", "look", "put")
    async with opened(layer(a=one.config(), b=one.config(tools=["look"]), c=one.config(capabilities=["read"], call_timeout=5))) as host:
        assert len(one.starts) == 1 and len(host.get(MCP).connections) == 1
        assert tools(host) == ["mcp__a__look", "mcp__a__put", "mcp__b__look", "mcp__c__look", "mcp__c__put"]


@pytest.mark.parametrize("what", ["env", "cwd", "args"])
async def test_launches_that_differ_do_not(opened, layer, place, what):
    one = place("one", "look")
    other = one.config("more") if what == "args" else one.config(**{what: {"SEEN_A": "b"} if what == "env" else str(one.path)})
    async with opened(layer(a=one.config(), b=other)) as host:
        assert len(one.starts) == 2 and len(host.get(MCP).connections) == 2
        assert len({start["pid"] for start in one.starts}) == 2


async def test_the_last_lease_closes_it(opened, layer, place):
    one = place("one", "look")
    async with opened() as host:
        first = await below(host, layer(a=one.config()), None)
        second = await below(host, layer(b=one.config()), None)
        (start,) = one.starts
        await first["a"].stop()
        assert tools(host) == ["mcp__b__look"] and Path(f"/proc/{start['pid']}").exists()
        await second["b"].stop()
        assert not one.alive and host.get(MCP).connections == [] and len(one.starts) == 1


async def test_a_row_that_comes_while_its_program_ends_waits_for_the_end(opened, layer, place):
    one = place("one", "look")
    one.put("lingers", "0.5")
    async with opened() as host:
        first = await below(host, layer(a=one.config()), None)
        pool = host.get(MCP)
        stopping = asyncio.create_task(first["a"].stop())
        await until(lambda: not pool.connections)
        assert one.alive
        launch = ServerConfig.model_validate(one.config()).launch
        leased = await asyncio.gather(*(pool.acquire(launch, f"b{n}") for n in range(3)))
        assert len({id(connection) for connection, _ in leased}) == 1
        await leased[0][0].settled()
        await stopping
        assert len(one.starts) == 2 and one.starts[1]["others"] == []
        await asyncio.gather(*(pool.release(launch, lease) for _, lease in leased))
        assert not one.alive


@pytest.mark.slow
async def test_at_whatever_moment_a_row_goes_it_leaves_no_process(opened, layer, place):
    one = place("one", "look")
    async with opened() as host:
        pool = host.get(MCP)
        launch = ServerConfig.model_validate(one.config()).launch
        warm, lease = await pool.acquire(launch, "warm")
        await warm.settled()
        await pool.release(launch, lease)
        before = descriptors()
        for turns in (*range(14), *range(16, 120, 12)):
            connection, lease = await pool.acquire(launch, "one")
            started = len(one.starts)
            for _ in range(turns):
                await asyncio.sleep(0)
            await pool.release(launch, lease)
            assert connection.status == "closed"
            assert not one.alive, f"closed after {turns} turns of the loop ({started} starts before)"
        await until(lambda: descriptors() <= before)


async def test_a_composition_that_fails_elsewhere_leaves_no_server(opened, layer, place, tmp_path):
    one = place("one", "look")
    path = tmp_path / "bad.yaml"
    path.write_text(json.dumps([{"id": "bad", "use": "hames.mcp.server", "config": {"command": "no-such-program-here", "required": True}}]))
    with pytest.raises(HamesError, match="no-such-program-here"):
        async with opened(layer(one=one.config()), path):
            pass
    assert not one.alive


async def test_a_row_is_active_although_its_server_is_given_up(opened, layer, place):
    one = place("one", "look")
    one.put("broken", "no")
    async with opened() as host:
        mounts = await below(host, layer(one=one.config(reconnect={"attempts": 0})), None)
        assert mounts["one"].state is State.ACTIVE and seat(host, "one").connection.status == "failed"
