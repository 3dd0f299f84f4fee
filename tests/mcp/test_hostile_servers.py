"""Servers that behave as badly as they can: each costs its own tools, with a message, and harms nothing beside it."""

# ruff: noqa: E501 - programs of servers stand in single lines

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2  # noqa: F401 - imported once, so that no test pays for it
import jsonschema  # noqa: F401
import mcp.client.streamable_http  # noqa: F401
import pytest

from hames.agents.spill import spiller
from hames.mcp import MCP
from hames.mcp.names import public_name
from hames.tools import TOOLS, Invocation, ToolError

SECRET = "hunter2-and-more"

# Everything ends by itself after a while, also where a test fails.
BASE = r"""
import json, os, pathlib, signal, subprocess, sys, threading, time
place = pathlib.Path(sys.argv[1])
out, lock = sys.stdout.buffer, threading.Lock()
threading.Thread(target=lambda: (time.sleep(60), os._exit(9)), daemon=True).start()

def raw(data):
    with lock:
        out.write(data)
        out.flush()

def send(**message):
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

def note(method, **params):
    send(method=f"notifications/{method}", params=params)

def text(words):
    return {"content": [{"type": "text", "text": words}]}

def tool(name, **more):
    return {"name": name, "inputSchema": {"type": "object"}, **more}

def record(name, value):
    with open(place / name, "a") as file:
        file.write(json.dumps(value) + "\n")

def flood(line, seconds=30):
    until = time.monotonic() + seconds
    data = line * max(1, 65536 // len(line))
    while time.monotonic() < until:
        raw(data)

TOOLS = [tool("echo"), tool("bad")]
CAPABILITIES = {"tools": {"listChanged": True}}

def started(): pass
def initialized(): pass
def answered(message): pass
def discover(id): send(id=id, error={"code": -32601, "message": "what?"})
def initialize(id):
    info = {"name": "hostile", "version": "1"}
    send(id=id, result={"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": info})
def listing(id, cursor): send(id=id, result={"tools": TOOLS})
def bad(id, params): send(id=id, result=text("bad"))
def finish(): pass

def handle(message):
    id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if method == "server/discover": discover(id)
    elif method == "initialize": initialize(id)
    elif method == "notifications/initialized": initialized()
    elif method == "tools/list": listing(id, params.get("cursor"))
    elif method == "tools/call" and params["name"] == "echo": send(id=id, result=text(params["arguments"].get("say", "hello")))
    elif method == "tools/call": bad(id, params)
    elif method is None: answered(message)
    elif id is not None: send(id=id, error={"code": -32601, "message": "what?"})

def main():
    for line in sys.stdin.buffer:
        handle(json.loads(line))

# what is bad about it
"""


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sorted(each.partition(":")[0] for each in found if not each.startswith("/"))


def living(sign: str) -> list[int]:
    """Processes with a sign in their environment or command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if sign.encode() in (path / "environ").read_bytes() or sign.encode() in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


async def until(condition, seconds: float = 10.0, what: str = ""):
    """Wait for a condition; its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, what or "it did not come to pass"
        await asyncio.sleep(0.01)
    return value


class Watch:
    """How long the event loop was held up, and how large this process grew, from when it was told to begin."""

    def __init__(self) -> None:
        gc.collect()
        self.before = self.most = resident()
        self.longest = 0.0
        self._task = asyncio.create_task(self._tick(), name="watch")

    async def _tick(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now
            self.most = max(self.most, resident())

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


class Bench:
    """A host with a bad server and a good one.

    :ivar seat: that of the bad one.
    """

    def __init__(self, host, place: Path) -> None:
        self.host = host
        self.place = place
        self.seats = host.get(MCP).seats.view(host.root_scope)
        self.seat = self.seats["bad"]
        self.numbers = iter(range(1_000_000))

    @property
    def reason(self) -> str:
        return self.seat.connection.reason

    @property
    def status(self) -> str:
        return self.seat.connection.status

    @property
    def tools(self) -> set[str]:
        """What agents see of it."""
        names = self.host.get(TOOLS).registry.view(self.host.root_scope)
        return {name.removeprefix("mcp__bad__") for name in names if name.startswith("mcp__bad__")}

    async def call(self, name="echo", seat=None, progress=lambda text: None, **arguments):
        spill = spiller(self.place / "spill", "session", f"call-{next(self.numbers)}")
        call = Invocation("call", self.host.root_scope, self.place, {}, spill, progress=progress)
        return await (seat or self.seat).call(name, arguments, call)

    async def words(self, name="echo", **arguments) -> str:
        return "".join(each.text for each in (await self.call(name, **arguments)).content)

    async def failure(self, name="bad", **arguments) -> ToolError:
        with pytest.raises(ToolError) as caught:
            await asyncio.wait_for(self.call(name, **arguments), 20)
        return caught.value

    async def good(self) -> None:
        """The good server answers, and soon."""
        began = time.monotonic()
        done = await asyncio.wait_for(self.call("echo", self.seats["good"], say="good"), 10)
        assert done.content[0].text == "good" and time.monotonic() - began < 2

    def recorded(self, name: str) -> list:
        path = self.place / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def serving(opened, tmp_path, monkeypatch):
    """Opens a host with a bad server; afterwards nothing was harmed and nothing is left."""
    monkeypatch.setattr("hames.supervise.group.POLITE", 0.4)  # tests of groups see to the true times
    monkeypatch.setattr("hames.mcp.process.LEAVING", 0.5)
    sign = f"hostile-{secrets.token_hex(8)}"

    @asynccontextmanager
    async def serve(code: str = "", *, stall: float = 1.0, growth: int = 150, ending: float = 6.0, **config):
        bad, good = tmp_path / f"{sign}-bad.py", tmp_path / f"{sign}-good.py"
        bad.write_text(f"{BASE}{code}\nstarted()\nmain()\nfinish()\n")
        good.write_text(f"{BASE}main()\n")
        row = {"reconnect": {"attempts": 0}, "connect_timeout": 5, **config}
        if "url" not in row:
            row |= {"command": sys.executable, "args": ["-S", str(bad), str(tmp_path)]}
            row["env"] = {"SIGN": sign, **config.get("env", {})}
        rows = [
            {"id": "good", "use": "hames.mcp.server", "config": {"command": sys.executable, "args": ["-S", str(good), str(tmp_path)]}},
            {"id": "bad", "use": "hames.mcp.server", "config": row},
        ]
        layer = tmp_path / "servers.yaml"
        layer.write_text(json.dumps(rows))
        tasks = asyncio.all_tasks()
        gc.collect()
        open_before = descriptors()
        watch = Watch()
        try:
            async with opened(layer) as host:
                bench = Bench(host, tmp_path)
                await bench.good()
                yield bench
                await bench.good()
                closing = time.monotonic()
            took = time.monotonic() - closing
            left = living(sign)
        finally:
            await watch.end()
            for pid in living(sign):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        assert not left
        assert took < ending
        assert watch.longest < stall, f"the event loop was held up for {watch.longest:.2f} s"
        assert watch.most - watch.before < growth << 20, f"this process grew by {(watch.most - watch.before) >> 20} MB"
        assert asyncio.all_tasks() - tasks <= {asyncio.current_task()}
        gc.collect()
        assert descriptors() == open_before

    return serve


warm: list[bool] = []


@pytest.fixture
async def warmed(opened):
    """What is imported once is imported."""
    if not warm:
        async with opened():
            warm.append(True)


pytestmark = [pytest.mark.usefixtures("warmed"), pytest.mark.slow]


# at the start


async def test_one_that_behaves_is_served(serving):
    async with serving() as bench:
        assert (bench.status, bench.tools) == ("ready", {"echo", "bad"})
        assert await bench.words(say="hello") == "hello"
        assert await bench.words("bad") == "bad"


async def test_one_that_dies_at_once_is_quoted_without_secrets(serving):
    code = "print('no database', os.environ['TOKEN'], 'for you', file=sys.stderr); sys.exit(3)"
    async with serving(code, env={"TOKEN": SECRET}) as bench:
        assert bench.status == "failed" and not bench.tools
        assert "it ended with status 3" in bench.reason and "no database […] for you" in bench.reason
        error = await bench.failure()
        assert error.code == "MCP_UNAVAILABLE" and "no database" in str(error) and SECRET not in str(error)


async def test_a_secret_in_what_is_no_message_is_not_shown(serving):
    code = "for n in range(500): raw(f'debug {os.environ[\"TOKEN\"]} {n}\\n'.encode())\ntime.sleep(30)"
    async with serving(code, env={"TOKEN": SECRET}) as bench:
        assert bench.status == "failed"
        assert "what it writes is no MCP message" in bench.reason and SECRET not in bench.reason and "debug" in bench.reason


async def test_a_secret_in_an_error_is_not_shown(serving):
    code = "def bad(id, params): send(id=id, error={'code': 1, 'message': 'key ' + os.environ['TOKEN'] + ' is wrong'})"
    async with serving(code, env={"TOKEN": SECRET}) as bench:
        assert str(await bench.failure()) == "key […] is wrong"


async def test_one_that_never_answers_is_given_up(serving):
    async with serving("def handle(message): pass\nprint('thinking', file=sys.stderr, flush=True)", connect_timeout=1) as bench:
        assert bench.status == "failed"
        assert bench.reason.startswith("it did not answer within 1 s") and "thinking" in bench.reason


async def test_one_that_never_lists_is_given_up(serving):
    async with serving("def listing(id, cursor): pass", connect_timeout=1) as bench:
        assert bench.status == "failed" and bench.reason.startswith("it did not answer within 1 s")


async def test_one_that_ends_its_output_and_stays_is_given_up(serving):
    async with serving("def started(): os.close(1); time.sleep(30)") as bench:
        assert bench.status == "failed" and "it ended its output" in bench.reason


async def test_one_that_is_killed_says_so(serving):
    async with serving("def initialized(): os.kill(os.getpid(), 9)") as bench:
        assert bench.status == "failed" and "it was killed by signal 9" in bench.reason


async def test_another_first_answer_than_the_protocol_has_is_named(serving):
    async with serving("def initialize(id): send(id=id, result={'protocolVersion': 7})", connect_timeout=2) as bench:
        assert bench.status == "failed" and bench.reason


# floods

FLOODS = {
    "notifications": 'json.dumps({"jsonrpc": "2.0", "method": "notifications/whatever", "params": {}}).encode()',
    "log messages": 'json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 200}}).encode()',
    "progress": 'json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 4, "progress": 1}}).encode()',
    "requests": 'json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping"}).encode()',
    "unknown requests": 'json.dumps({"jsonrpc": "2.0", "id": "a", "method": "roots/list"}).encode()',
    "elicitations": 'json.dumps({"jsonrpc": "2.0", "id": 8, "method": "elicitation/create", "params":'
    ' {"message": "password?", "requestedSchema": {"type": "object", "properties": {}}}}).encode()',
    "answers to nothing": 'json.dumps({"jsonrpc": "2.0", "id": 999999, "result": {}}).encode()',
    "cancellations": 'json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}).encode()',
    "empty lines": 'b""',
}


@pytest.mark.parametrize("line", FLOODS.values(), ids=FLOODS)
async def test_a_flood_holds_nothing_up(serving, caplog, line):
    code = f"def initialized(): threading.Thread(target=flood, args=({line} + b'\\n',), daemon=True).start()"
    async with serving(code, call_timeout=1, connect_timeout=2) as bench:
        begun = time.monotonic()
        # On a busy machine a flood takes longer to become one.
        while (lasted := time.monotonic() - begun) < 1.5 or (line != 'b""' and "slowed down" not in caplog.text and lasted < 10):
            await bench.good()
            await asyncio.sleep(0.05)
    if line != 'b""':
        assert "slowed down" in caplog.text


async def test_a_flood_of_large_requests_from_one_that_does_not_read_is_bounded(serving):
    code = """
def initialized(): pass
def bad(id, params):
    flood(json.dumps({"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"_meta": {"x": "y" * 200000}}}).encode() + b"\\n")
"""
    async with serving(code, call_timeout=2.5) as bench:
        error = await bench.failure()
        assert error.code in ("TIMEOUT", "MCP_LOST")


async def test_garbage_ends_the_connection_and_is_quoted(serving):
    code = "def bad(id, params): flood(b'progress: 7 %\\n')"
    async with serving(code) as bench:
        error = await bench.failure()
        assert error.code == "MCP_LOST" and "is no MCP message" in str(error) and "progress: 7 %" in str(error)


async def test_a_little_garbage_is_passed_over(serving):
    code = 'def listing(id, cursor):\n    raw(b\'hello\\n\\n[]\\n{}\\n42\\nnull\\n"x"\\n{"jsonrpc": "2.0"}\\n\'); send(id=id, result={\'tools\': TOOLS})'
    async with serving(code) as bench:
        assert await bench.words(say="x") == "x"


BROKEN = {
    "bytes that are no text": r"b'\xff\xfe\x80\n{\"jsonrpc\": \"2.0\", \"method\": \"notifications/\xff\"}\n'",
    "no JSON": r"b'{\"jsonrpc\": \"2.0\", \"id\": 3, \"result\"\n{]}\n'",
    "deep JSON": r"b'{\"jsonrpc\": \"2.0\", \"id\": 99, \"result\": ' + b'[' * 200000 + b']' * 200000 + b'}\n'",
    "deep parameters": r"b'{\"jsonrpc\": \"2.0\", \"method\": \"notifications/message\", \"params\": {\"a\":' + b'[' * 150 + b']' * 150 + b'}}\n'",
    "lone surrogates": r"b'{\"jsonrpc\": \"2.0\", \"method\": \"notifications/\\ud800\", \"params\": {\"a\": \"\\udfff\"}}\n'",
    "numbers beyond all bounds": r"b'{\"jsonrpc\": \"2.0\", \"id\": 1' + b'0' * 5000 + b', \"result\": {}}\n'",
    "zero bytes": r"b'\0' * 5000 + b'\n'",
    "a batch": r"b'[{\"jsonrpc\": \"2.0\", \"method\": \"notifications/message\"}]\n'",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
async def test_what_is_no_message_costs_nothing_but_itself(serving, data):
    async with serving(f"def bad(id, params): raw({data}); send(id=id, result=text('after'))") as bench:
        assert await bench.words("bad") == "after"
        assert await bench.words(say="again") == "again"


async def test_half_a_line_costs_its_call_alone(serving):
    code = 'def bad(id, params): raw(b\'{"jsonrpc": "2.0", "id": %d, "result": {\' % id); time.sleep(0.8); raw(b\'}}\\n\')'
    async with serving(code, call_timeout=0.3) as bench:
        error = await bench.failure()
        assert error.code == "TIMEOUT" and str(error) == "bad gave no sign of life for 0.3 s"
        await asyncio.sleep(0.5)
        assert await bench.words(say="again") == "again"


# calls


async def test_a_call_that_is_not_answered_ends_and_a_late_answer_goes_nowhere(serving):
    code = "def bad(id, params): threading.Timer(0.6, lambda: send(id=id, result=text('late'))).start()"
    async with serving(code, call_timeout=0.3) as bench:
        assert (await bench.failure()).code == "TIMEOUT"
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            assert await bench.words(say="mine") == "mine"


async def test_progress_that_is_endless_ends_with_the_longest_call(serving, agents_of):
    code = """
def bad(id, params):
    while True:
        note("progress", progressToken=params["_meta"]["progressToken"], progress=1, message="soon " * 1000)
        time.sleep(0.01)
"""
    async with serving(code, call_timeout=0.5, longest_call=1.5, read=["*"]) as bench:
        began = time.monotonic()
        text = await agents_of(bench, "mcp__bad__bad")
        assert 1 < time.monotonic() - began < 8
        assert "did not end within 1.5 s" in text


@pytest.mark.parametrize(
    "value", ["float('nan')", "1e308 * 10", "10 ** 400", "-1", "'many'", "None", "True", "[]"], ids=lambda value: value.replace(" ", "")
)
async def test_strange_progress_costs_nothing(serving, value):
    code = f"""
sys.set_int_max_str_digits(0)
def bad(id, params):
    token = params["_meta"]["progressToken"]
    note("progress", progressToken=token, progress={value}, total=0, message=5)
    note("progress", progressToken=token, progress=1, total={value}, message=None)
    send(id=id, result=text("done"))
"""
    async with serving(code) as bench:
        assert await bench.words("bad") == "done"


async def test_an_answer_of_a_hundred_megabytes_fails_its_call_alone(serving):
    code = """
def bad(id, params):
    with lock:
        out.write(b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "' % id)
        for _ in range(1600):
            out.write(b"x" * 65536)
        out.write(b'"}]}}\\n')
        out.flush()
"""
    async with serving(code, growth=80) as bench:
        error = await bench.failure()
        assert error.code == "MCP_ERROR" and "max_message_bytes is 16777216" in str(error)
        assert await bench.words(say="again") == "again"
        assert bench.seat.connection.starts == 1


async def test_a_long_request_of_the_server_fails_no_call(serving):
    code = """
def bad(id, params):
    send(id=id, method="sampling/createMessage", params={"messages": [], "maxTokens": 1, "systemPrompt": "x" * 5000})
    send(id=id, result=text("mine"))
"""
    async with serving(code, max_message_bytes=4000) as bench:
        assert await bench.words("bad") == "mine"


async def test_many_pages_of_large_tools_do_not_add_up(serving):
    code = """
PAGE = [dict(description="d" * 4_000_000) for _ in range(2)]
def listing(id, cursor):
    n = int(cursor or 0)
    tools = [tool(f"t{n}-{m}", **each) for m, each in enumerate(PAGE)]
    send(id=id, result={"tools": tools, **({"nextCursor": str(n + 1)} if n < 60 else {})})
"""
    async with serving(code, growth=200, connect_timeout=15) as bench:
        assert bench.status in ("ready", "failed")


async def test_a_hundred_megabytes_of_errors_are_passed_over(serving):
    code = """
def bad(id, params):
    for _ in range(1600):
        os.write(2, b"x" * 65536)
    send(id=id, result=text("done"))
"""
    async with serving(code, growth=40) as bench:
        assert await bench.words("bad") == "done"


async def test_one_that_does_not_read_what_it_is_sent_costs_its_call_alone(serving):
    code = """
def bad(id, params):
    time.sleep(3)
"""
    async with serving(code, call_timeout=0.4) as bench:
        calls = [bench.failure("bad", data="x" * 1_000_000) for _ in range(3)]
        began = time.monotonic()
        assert {each.code for each in await asyncio.gather(*calls)} == {"TIMEOUT"}
        assert time.monotonic() - began < 2


async def test_an_answer_to_another_call_goes_to_no_third(serving):
    code = """
waiting = []
def bad(id, params):
    send(id=id + 1000, result=text("nobody's"))
    send(id=str(id) + "x", result=text("nobody's"))
    send(id=id, result=text(params["arguments"]["say"]))
    send(id=id, result=text("twice"))
    send(id=id - 1, result=text("of before"))
    send(id=id, error={"code": 1, "message": "and an error"})
"""
    async with serving(code) as bench:
        for number in range(20):
            assert await bench.words("bad", say=str(number)) == str(number)
            assert await bench.words(say="own") == "own"


async def test_one_that_answers_the_wrong_call_leaves_the_connection_sound(serving):
    code = """
held = []
def bad(id, params):
    held.append(id)
    if len(held) == 2:
        send(id=held[1], result=text("one"))
        send(id=held[1], result=text("two"))
"""
    async with serving(code, call_timeout=0.5) as bench:
        done = await asyncio.gather(bench.words("bad"), bench.words("bad"), return_exceptions=True)
        assert sorted(map(str, done)) == ["bad gave no sign of life for 0.5 s", "one"]
        assert await bench.words(say="own") == "own"


async def test_one_that_ends_instead_of_answering_says_that_it_is_not_known(serving):
    code = "def bad(id, params): print('oh no', file=sys.stderr); sys.exit(4)"
    async with serving(code, reconnect={"attempts": 3, "initial": 0.05}) as bench:
        error = await bench.failure()
        assert (
            error.code == "MCP_LOST" and "status 4; it said: oh no" in str(error) and "whether it did anything is not known" in str(error)
        )
        assert await bench.words(say="back") == "back"
        assert bench.seat.connection.starts == 2


async def test_one_that_ends_between_list_and_call_is_started_again(serving):
    code = """
def listing(id, cursor):
    send(id=id, result={"tools": TOOLS})
    if not (place / "died").exists():
        (place / "died").touch()
        sys.exit(5)
"""
    async with serving(code, reconnect={"attempts": 3, "initial": 0.05}) as bench:
        await until(lambda: bench.seat.connection.starts == 2 and bench.status == "ready")
        assert await bench.words(say="back") == "back"


async def test_one_that_dies_again_and_again_is_given_up_and_its_tools_go(serving):
    code = "def listing(id, cursor):\n    send(id=id, result={'tools': TOOLS})\n    time.sleep(0.05); sys.exit(5)"
    async with serving(code, reconnect={"attempts": 2, "initial": 0.05, "longest": 30}) as bench:
        await until(lambda: bench.status == "failed", 15)
        assert bench.seat.connection.starts == 3 and not bench.tools and "status 5" in bench.reason
        assert "not available" in bench.seat.about()


RESULTS = {
    "an error": ("{'isError': True, **text('no such city')}", "no such city", True),
    "a picture that is none": (
        "{'content': [{'type': 'image', 'mimeType': 'image/png', 'data': 'bm90IGEgcGljdHVyZQ=='}]}",
        "a picture that is not shown",
        False,
    ),
    "a picture that is no base64": (
        "{'content': [{'type': 'image', 'mimeType': 'image/png', 'data': '%%%'}]}",
        "a picture that is not shown",
        False,
    ),
    "sound that is no base64": ("{'content': [{'type': 'audio', 'mimeType': 'audio/wav', 'data': '%'}]}", "not to be read", False),
    "no content": ("{'content': []}", "[no content]", False),
    "structured content alone": ("{'content': [], 'structuredContent': {'a': 1}}", '{"a":1}', False),
    "600 blocks": ("{'content': text('x')['content'] * 600}", "[100 more blocks were left out]", False),
    "a picture in a resource that is none": (
        "{'content': [{'type': 'resource', 'resource': {'uri': 'a:b', 'mimeType': 'image/png', 'blob': 'AAAA'}}]}",
        "a picture that is not shown",
        False,
    ),
}


@pytest.mark.parametrize(("result", "shown", "failed"), RESULTS.values(), ids=RESULTS)
async def test_a_result_that_is_strange_is_told(serving, result, shown, failed):
    async with serving(f"def bad(id, params): send(id=id, result={result})") as bench:
        done = await bench.call("bad")
        assert shown in "".join(each.text for each in done.content).replace(" ", "" if shown.startswith("{") else " ")
        assert done.is_error is failed


NO_RESULTS = {
    "nothing": "{}",
    "a text": "{'content': 'text'}",
    "an unknown block": "{'content': [{'type': 'hologram'}]}",
    "a number as text": "{'content': [{'type': 'text', 'text': 5}]}",
    "an error that is none": "{'content': [], 'isError': 'perhaps'}",
}


@pytest.mark.parametrize("result", NO_RESULTS.values(), ids=NO_RESULTS)
async def test_a_result_that_is_none_is_an_error_or_empty_and_the_connection_stays(serving, result):
    async with serving(f"def bad(id, params): send(id=id, result={result})") as bench:
        try:
            await bench.words("bad")
        except ToolError as error:
            assert error.code == "MCP_ERROR"
        assert await bench.words(say="again") == "again"
        assert bench.seat.connection.starts == 1


@pytest.mark.parametrize("arguments", [{"x": 1}, {}], ids=["result", "error"])
async def test_an_answer_that_cannot_be_read_fails_its_call_at_once(serving, arguments):
    code = """
def bad(id, params):
    send(id=id, result=text("a\\ud800b")) if params["arguments"] else send(id=id, error={"code": 1, "message": "a\\ud800b"})
"""
    async with serving(code, call_timeout=3) as bench:
        began = time.monotonic()
        try:
            text = await bench.words("bad", **arguments)
        except ToolError as error:
            text = str(error)
        text.encode()
        assert await bench.words(say="again") == "again"
        assert time.monotonic() - began < 2


async def test_structured_content_is_not_held_against_a_schema_whose_pattern_takes_for_ever(serving):
    code = """
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}, "required": ["b"]}
TOOLS = [tool("echo"), tool("bad", outputSchema=SCHEMA)]
def bad(id, params): send(id=id, result={**text("shown"), "structuredContent": {"a": "a" * 40 + "!"}})
"""
    async with serving(code) as bench:
        assert await bench.words("bad") == "shown"


# lists

ODD = {
    "no object": ("tool('odd', inputSchema={'type': 'string'})", "instead of 'object'"),
    "a type that is none": ("tool('odd', inputSchema={'type': 'object', 'properties': {'a': {'type': 'spam'}}})", "is not valid"),
    "no valid schema": ("tool('odd', inputSchema={'type': 'object', 'properties': 5})", "is not valid"),
    "a schema that is nested 60 deep": ("tool('odd', inputSchema=nested(60))", "nested deeper than 40"),
    "a schema of 1 MB": ("tool('odd', inputSchema={'type': 'object', 'description': 'x' * 1000000})", "more than 65536 bytes"),
}
NESTED = """
def nested(depth):
    schema = {"type": "object"}
    for _ in range(depth // 2):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema
"""


@pytest.mark.parametrize(("odd", "reason"), ODD.values(), ids=ODD)
async def test_a_tool_that_no_model_can_be_given_is_left_out_with_the_reason(serving, odd, reason):
    async with serving(f"{NESTED}\nTOOLS.append({odd})") as bench:
        assert bench.tools == {"echo", "bad"}, bench.reason
        ((name, said),) = bench.seat.left_out
        assert name == "odd" and reason in said and len(said) < 500


async def test_a_schema_that_is_nested_10_000_deep_is_refused(serving):
    code = """
def listing(id, cursor):
    deep = '{"properties": {"a": ' * 5000 + "{}" + "}}" * 5000
    raw(('{"jsonrpc": "2.0", "id": %d, "result": {"tools": [{"name": "odd", "inputSchema": %s}]}}\\n' % (id, deep)).encode())
"""
    async with serving(code, connect_timeout=2) as bench:
        assert bench.status == "failed" or [name for name, _ in bench.seat.left_out] == ["odd"]
        assert not bench.tools and (bench.reason or bench.seat.left_out)


async def test_many_schemas_that_are_long_to_check_hold_nothing_up(serving):
    code = """
SCHEMA = {"type": "object", "properties": {f"p{n}": {"type": "string", "minLength": 1} for n in range(1200)}}
TOOLS += [tool(f"t{n}", inputSchema=SCHEMA) for n in range(20)]
"""
    async with serving(code) as bench:
        assert bench.status in ("ready", "failed")


async def test_two_thousand_tools_hold_nothing_up(serving):
    code = "TOOLS = [tool(f't{n}', inputSchema={'type': 'object', 'properties': {'a': {'type': 'string'}}}) for n in range(2000)]"
    async with serving(code) as bench:
        assert bench.status == "ready" and len(bench.tools) == 2000


REFUSED = {
    "two tools with one name": ("TOOLS.append(tool('echo'))", "two tools with the name 'echo'"),
    "5,000 tools": ("TOOLS = [tool(f't{n}') for n in range(5000)]", "more than 2000 tools"),
    "pages without an end": (
        "def listing(id, cursor): n = int(cursor or 0); send(id=id, result={'tools': [tool(f't{n}')], 'nextCursor': str(n + 1)})",
        "more than 100 pages",
    ),
    "the same page again and again": (
        "def listing(id, cursor): send(id=id, result={'tools': [], 'nextCursor': 'more'})",
        "more than 100 pages",
    ),
    "an error": ("def listing(id, cursor): send(id=id, error={'code': 1, 'message': 'out of order'})", "out of order"),
    "no list": ("def listing(id, cursor): send(id=id, result={'tools': 'all'})", "tools"),
    "a list of 100 MB": (
        'def listing(id, cursor): raw(b\'{"jsonrpc": "2.0", "id": %d, "result": "\' % id + b\'x\' * 100_000_000 + b\'"}\\n\')',
        "max_message_bytes",
    ),
}


@pytest.mark.parametrize(("code", "reason"), REFUSED.values(), ids=REFUSED)
async def test_a_list_that_is_none_is_refused_whole(serving, code, reason):
    async with serving(code) as bench:
        assert bench.status == "failed" and reason in bench.reason and not bench.tools
        assert len(bench.reason) < 1_000


async def test_a_tool_without_a_schema_is_left_out_and_the_others_stay(serving):
    async with serving("TOOLS.append({'name': 'bare'})") as bench:
        assert bench.status == "ready" and "bare" not in str(list(bench.tools)) and bench.tools


async def test_strange_names_become_sound_ones_that_can_be_called(serving):
    names = [
        "line\nbreak",
        "zero\0byte",
        "🦙",
        "x" * 500,
        "../../etc",
        "",
        " ",
        "mcp__good__echo",
        "ä",
        "echo;rm -rf",
        "\x1b[31m",
    ]
    code = f"TOOLS = [tool(name) for name in json.loads({json.dumps(json.dumps(names))})]\ndef bad(id, params): send(id=id, result=text(json.dumps(params['name'])))"
    async with serving(code) as bench:
        assert bench.status == "ready", bench.reason
        assert bench.tools == {public_name("bad", name).removeprefix("mcp__bad__") for name in names}
        for name, tool in bench.seat.tools.items():
            assert len(name) <= 64 and all(each.isascii() and (each.isalnum() or each in "_-") for each in name)
            tool.description.encode()
        for name in names:
            assert json.loads(await bench.words(name)) == name


async def test_names_that_only_differ_in_what_is_normalised_stay_apart(serving):
    names = ["a.b", "a b", "a/b", "a_b", "a\nb"]
    code = f"TOOLS = [tool(name) for name in {names!r}]\ndef bad(id, params): send(id=id, result=text(params['name']))"
    async with serving(code) as bench:
        assert len(bench.tools) == len(names)
        assert [await bench.words(name) for name in names] == names


async def test_a_name_that_is_made_to_collide_takes_no_tools_and_is_told(serving, caplog):
    made = public_name("bad", "a.b").removeprefix("mcp__bad__")
    async with serving(f"TOOLS = [tool('echo'), tool('a.b'), tool({made!r})]") as bench:
        assert not bench.tools
        assert "would both be mcp__bad__" in bench.seat.problem and "would both be" in caplog.text


async def test_a_list_that_changes_all_the_time_is_looked_at_seldom(serving, caplog, monkeypatch):
    monkeypatch.setattr("hames.mcp.connection.HURRIED", 0.4)
    code = """
def initialized():
    def change():
        n = 0
        while True:
            n += 1
            TOOLS[2:] = [tool(f"at-{n}"), tool(f"too-{n}")]
            note("tools/list_changed")
            time.sleep(0.01)
    threading.Thread(target=change, daemon=True).start()

def listing(id, cursor):
    record("looks", id)
    send(id=id, result={"tools": TOOLS[:]})
"""
    async with serving(code) as bench:
        seen = set()
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            tools = bench.tools
            seen.add(frozenset(tools))
            assert len(tools) in (3, 4) and {"echo", "bad"} <= tools
            assert await bench.words(say="x") == "x"
        assert 3 <= len(seen) <= 12
        assert 3 <= len(bench.recorded("looks")) <= 12
    assert "changes its list all the time; it is looked at every 0.4 s" in caplog.text
    assert caplog.text.count("changes its list all the time") <= 2


CHANGES = {
    "an error": ("send(id=id, error={'code': 1, 'message': 'out of order'})", "out of order"),
    "two tools with one name": ("send(id=id, result={'tools': [tool('echo'), tool('echo')]})", "two tools with the name"),
    "no answer": ("pass", "Timeout"),
}


@pytest.mark.parametrize(("answer", "reason"), CHANGES.values(), ids=CHANGES)
async def test_a_change_that_cannot_be_fetched_keeps_the_old_list(serving, caplog, answer, reason):
    code = f"""
looks = 0
def listing(id, cursor):
    global looks
    looks += 1
    if looks == 2:
        {answer}
    else:
        send(id=id, result={{"tools": TOOLS if looks == 1 else [tool("echo"), tool("bad"), tool("new")]}})

def bad(id, params):
    note("tools/list_changed")
    send(id=id, result=text("changed"))
"""
    async with serving(code, connect_timeout=1) as bench:
        await bench.call("bad")
        await until(lambda: "the old one is kept" in caplog.text)
        assert reason in caplog.text and bench.tools == {"echo", "bad"} and bench.status == "ready"
        assert await bench.words(say="x") == "x"
        await bench.call("bad")
        await until(lambda: bench.tools == {"echo", "bad", "new"})


# questions


async def test_questions_outside_of_a_call_are_declined(serving):
    code = """
def initialized():
    for n in range(300):
        params = {"message": "your password?", "requestedSchema": {"type": "object", "properties": {"p": {"type": "string"}}}}
        send(id=f"q{n}", method="elicitation/create", params=params)

def answered(message): record("answers", message)
"""
    async with serving(code) as bench:
        await until(lambda: len(bench.recorded("answers")) == 300)
        assert {json.dumps(each.get("result")) for each in bench.recorded("answers")} == {'{"action": "decline"}'}


async def test_questions_within_a_call_that_nobody_answers_are_cancelled(serving):
    code = """
mine = None
FORMS = [{}, {"p": {"type": "string"}}, {f"f{n}": {"type": "string"} for n in range(50)}, {"a": {"enum": []}}]
def bad(id, params):
    global mine
    mine = id
    for n in range(100):
        schema = {"type": "object", "properties": FORMS[n % 4]}
        send(id=f"q{n}", method="elicitation/create", params={"message": "\\u001b[2J" + "p" * 5000, "requestedSchema": schema})

def answered(message):
    record("answers", message)
    if len((place / "answers").read_text().splitlines()) == 100:
        send(id=mine, result=text("enough"))
"""
    async with serving(code, call_timeout=5) as bench:
        assert await asyncio.wait_for(bench.words("bad"), 15) == "enough"
        assert all(each.get("result", {}).get("action") in ("cancel", "decline") or "error" in each for each in bench.recorded("answers"))


async def test_what_was_not_offered_is_refused(serving):
    code = """
def initialized():
    for n, method in enumerate(("sampling/createMessage", "roots/list", "tools/call", "initialize", "x/y")):
        send(id=f"r{n}", method=method, params={"messages": [], "maxTokens": 1})

def answered(message): record("answers", message)
"""
    async with serving(code) as bench:
        await until(lambda: len(bench.recorded("answers")) == 5)
        assert all("error" in each for each in bench.recorded("answers"))


# the end


async def test_one_that_hears_nothing_of_its_end_is_ended(serving):
    code = """
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
def finish():
    while True: time.sleep(0.05)
"""
    async with serving(code) as bench:
        assert await bench.words(say="x") == "x"


async def test_one_that_writes_for_ever_when_it_should_end_is_ended(serving):
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ndef finish(): flood(b'x' * 65536)"
    async with serving(code) as bench:
        assert await bench.words(say="x") == "x"


async def test_one_that_uses_its_last_moment_has_it(serving, tmp_path):
    async with serving("def finish(): time.sleep(0.3); raw(b'x' * 300000); record('last', 'words')") as bench:
        await bench.words(say="x")
    assert (tmp_path / "last").exists()


FAMILY = """
def child(name):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE): signal.signal(number, signal.SIG_IGN)
    record("family", [name, os.getpid()])
    end = time.monotonic() + 40
    while time.monotonic() < end: time.sleep(0.05)
    os._exit(0)

def started():
    if os.fork() == 0: child("child")
    if os.fork() == 0:
        os.setsid()
        child("session")
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: child("daemon")
        os._exit(0)
    subprocess.Popen(["sleep", "40"], start_new_session=True)
"""


@pytest.mark.parametrize("more", ["", "def initialized(): time.sleep(0.3); os._exit(6)"], ids=["while it lives", "when it has died"])
async def test_what_it_started_ends_with_it_whatever_it_ignores(serving, more):
    async with serving(f"{FAMILY}\n{more}") as bench:
        await until(lambda: len(bench.recorded("family")) == 3)
        if more:
            assert bench.status == "failed" and "status 6" in bench.reason
            await until(lambda: not any(Path("/proc", str(pid)).exists() for _, pid in bench.recorded("family")))


async def test_ending_while_a_call_is_under_way_tells_it(serving):
    async with serving("def bad(id, params): time.sleep(30)") as bench:
        calls = [asyncio.create_task(bench.failure()) for _ in range(5)]
        await asyncio.sleep(0.1)
        closing = bench.seat.connection
        await closing.close()
        assert {each.code for each in await asyncio.gather(*calls)} <= {"MCP_LOST", "MCP_UNAVAILABLE"}


# by HTTP

WEB = r"""
import json, pathlib, socket, sys, threading, time, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
place = pathlib.Path(sys.argv[1])
threading.Thread(target=lambda: (time.sleep(60), os._exit(9)), daemon=True).start()

def text(words):
    return {"content": [{"type": "text", "text": words}]}

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass

    def answer(self, body=b"", status=200, kind="application/json", **headers):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def result(self, id, result, **headers):
        self.answer(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode(), **headers)

    def stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(place / "seen", "a") as file:
            file.write(json.dumps([self.server.server_port, message.get("method"), dict(self.headers)]) + "\n")
        try:
            post(self, message)
        except OSError:
            self.close_connection = True

    def do_GET(self): self.answer(status=405)
    def do_DELETE(self): delete(self)

def delete(self): self.answer()

def post(self, message):
    id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if method == "server/discover":
        self.answer(json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "what?"}}).encode())
    elif method == "initialize":
        info = {"name": "web", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        self.result(id, result, Mcp_Session_Id="abc")
    elif method == "tools/list":
        self.result(id, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "bad")]})
    elif method == "tools/call" and params["name"] == "echo":
        self.result(id, text(params["arguments"].get("say", "hello")))
    elif method == "tools/call": bad(self, id, params)
    else: self.answer(status=202)

def bad(self, id, params): self.result(id, text("bad"))

# what is bad about it
"""
WEB_END = """
ThreadingHTTPServer.daemon_threads = True
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
other = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=other.serve_forever, daemon=True).start()
(place / "port.new").write_text(f"{server.server_port} {other.server_port}")
(place / "port.new").rename(place / "port")
server.serve_forever()
"""


@pytest.fixture
async def web(serving, tmp_path):
    """Opens a host with a bad server at an address."""

    @asynccontextmanager
    async def serve(code: str = "", **config):
        script = tmp_path / "web.py"
        script.write_text(f"{WEB}{code}\n{WEB_END}")
        with subprocess.Popen([sys.executable, "-S", str(script), str(tmp_path)]) as program:
            try:
                await until((tmp_path / "port").exists)
                port = (tmp_path / "port").read_text().split()[0]
                async with serving(code, url=f"http://127.0.0.1:{port}/mcp", **config) as bench:
                    yield bench
            finally:
                program.kill()

    return serve


async def test_one_at_an_address_that_behaves_is_served(web):
    async with web() as bench:
        assert (bench.status, bench.tools) == ("ready", {"echo", "bad"})
        assert await bench.words(say="hello") == "hello"


async def test_an_address_where_nobody_listens_is_told(serving):
    async with serving("#", url="http://127.0.0.1:9/mcp") as bench:
        assert bench.status == "failed" and "it cannot be reached" in bench.reason


STATUSES = {
    "500": ("self.answer(b'oh no', 500, 'text/plain')", "status 500"),
    "503": ("self.answer(b'<html>', 503, 'text/html')", "status 503"),
    "401": ("self.answer(b'who?', 401, WWW_Authenticate='Bearer')", "status 401: it wants a login"),
    "403": ("self.answer(self.headers['Authorization'].encode(), 403)", "status 403: it wants a login"),
    "another type": ("self.answer(b'<html>hello</html>', 200, 'text/html')", ""),
    "no JSON": ("self.answer(b'{]', 200)", ""),
    "another JSON": ("self.answer(b'[1, 2]', 200)", ""),
    "nothing": ("self.answer(b'', 200)", ""),
    "half an answer": (
        "self.wfile.write(b'HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: 500\\r\\n\\r\\n{'); self.wfile.flush(); self.connection.shutdown(2)",
        "",
    ),
    "no HTTP": ("self.wfile.write(b'SSH-2.0-OpenSSH\\r\\n'); self.wfile.flush(); self.connection.shutdown(2)", ""),
    "no answer": ("time.sleep(20)", "it did not answer within 2 s"),
    "100 MB": ("self.answer(b'[' + b'1,' * 50_000_000 + b'1]')", "max_message_bytes"),
}


@pytest.mark.parametrize(("answer", "reason"), STATUSES.values(), ids=STATUSES)
async def test_an_address_that_answers_what_is_no_mcp_is_told(web, answer, reason):
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with web(f"def post(self, message): {answer}", headers=headers, connect_timeout=2) as bench:
        assert bench.status == "failed" and not bench.tools
        assert bench.reason and reason in bench.reason and SECRET not in bench.reason and len(bench.reason) < 1_000


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_the_headers_go_nowhere(web, status):
    code = f"def post(self, message): self.answer(status={status}, Location=f'http://127.0.0.1:{{other.server_port}}/mcp')"
    async with web(code, headers={"Authorization": f"Bearer {SECRET}"}) as bench:
        port, other = map(int, (bench.place / "port").read_text().split())
        assert bench.status == "failed"
        assert f"it redirects to http://127.0.0.1:{other}/mcp; name that address" in bench.reason
        assert {each[0] for each in bench.recorded("seen")} == {port}


EVENTS = {
    "comments": "self.chunk(b': still there\\n\\n'); time.sleep(0.01)",
    "log messages": 'self.chunk(b\'data: {"jsonrpc": "2.0", "method": "notifications/message",'
    ' "params": {"level": "info", "data": "x"}}\\n\\n\' * 50)',
    "events that are none": "self.chunk(b'data: {]\\n\\n' * 50)",
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
async def test_a_stream_without_an_end_ends_with_the_time_of_the_call(web, event):
    code = f"def bad(self, id, params):\n    self.stream()\n    while True: {event}"
    async with web(code, call_timeout=1) as bench:
        error = await bench.failure()
        assert error.code in ("TIMEOUT", "MCP_ERROR", "MCP_LOST")
        assert await bench.words(say="again") == "again"


LONG = {
    "JSON": 'self.answer(b\'{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "\' % id + b\'x\' * 100_000_000 + b\'"}]}}\')',
    "event": "self.stream(); self.chunk(b'data: '); [self.chunk(b'x' * 65536) for _ in range(1600)]; self.chunk(b'\\n\\n'); self.chunk(b'')",
    "event of many lines": "self.stream(); [self.chunk(b'data: ' + b'x' * 65536 + b'\\n') for _ in range(1600)]; self.chunk(b'\\n'); self.chunk(b'')",
}


@pytest.mark.parametrize("answer", LONG.values(), ids=LONG)
async def test_an_answer_of_a_hundred_megabytes_by_http_fails_its_call_alone(web, answer):
    async with web(f"def bad(self, id, params): {answer}", call_timeout=8) as bench:
        began = time.monotonic()
        error = await bench.failure()
        assert "max_message_bytes" in str(error) and time.monotonic() - began < 5
        assert await bench.words(say="again") == "again"


CUT = {
    "JSON": "self.wfile.write(b'HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: 500\\r\\n\\r\\n{'); self.wfile.flush(); self.connection.shutdown(2)",
    "a stream": "self.stream(); self.chunk(b'data: {'); self.wfile.flush(); self.connection.shutdown(2)",
    "a stream at its begin": "self.stream(); self.wfile.flush(); self.connection.shutdown(2)",
    "a stream that has ended": "self.stream(); self.chunk(b'')",
    "everything": "self.connection.shutdown(2)",
}


@pytest.mark.parametrize("answer", CUT.values(), ids=CUT)
async def test_an_answer_that_breaks_off_fails_its_call_soon(web, answer):
    async with web(f"def bad(self, id, params): {answer}", call_timeout=10, reconnect={"attempts": 3, "initial": 0.05}) as bench:
        began = time.monotonic()
        error = await bench.failure()
        assert error.code in ("MCP_LOST", "MCP_ERROR") and time.monotonic() - began < 5
        assert await bench.words(say="again") == "again"


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
async def test_a_status_for_one_call_fails_that_one_alone(web, status):
    async with web(
        f"def bad(self, id, params): self.answer(b'no', {status}, 'text/plain')", reconnect={"attempts": 3, "initial": 0.05}
    ) as bench:
        error = await bench.failure()
        assert error.code in ("MCP_LOST", "MCP_ERROR")
        assert await bench.words(say="again") == "again"


async def test_one_that_never_says_goodbye_is_left(web):
    async with web("def delete(self): time.sleep(30)", ending=8) as bench:
        assert await bench.words(say="x") == "x"


@pytest.fixture
def agents_of(script, calling, tmp_path):
    """Lets an agent of a bench call a tool without arguments; what it was told."""

    async def run(bench, name) -> str:
        from hames.agents import AGENTS, AgentSpec

        agents = bench.host.get(AGENTS)
        agent = await agents.create(AgentSpec(str(tmp_path), script(calling((name, {})), {"text": "done"})))
        await agent.run("go")
        return "".join(block.text for _, message in agent.session.messages if message.source == "tool" for block in message.blocks)

    return run


def test_the_log_of_this_room_is_heard():
    assert logging.getLogger("hames.mcp").getEffectiveLevel() <= logging.WARNING
