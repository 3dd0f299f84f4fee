"""What MCP costs: ``python benchmarks/mcp.py [--rounds N] [--only calls|crowd|real] [--servers N] [--json]``.

``calls``
    A call of a tool of a small server, over stdio and over streamable HTTP: through the bare client of the package ``mcp``, through a
    connection of Hames, and through the pipeline of an agent's calls with permissions. The three take turns in one process.
``crowd``
    Many programs started at once, each until its tools are known, held, and ended: by rows of Hames, and by as many bare clients. The
    programs are a few lines without a package, so that what is measured is who starts them.
``real``
    The same, once and only where it is asked for, with servers of the package ``mcp``, whose own start costs most.

Each measurement is made in a fresh process with an empty home.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import rig

import agents

# This file has the name of the package that it measures, and its directory stands first on the path.
sys.path[:] = [each for each in sys.path if Path(each).resolve() != rig.HERE]

SERVERS = 50
BLOCKS, CALLS = 4, 50  # of each way in a round
PATIENCE = 100.0  # seconds that a crowd has to be ready
WAYS = ("bare", "connection", "pipeline")
OPENERS = ("bare", "hames")
ARGUMENTS = {"a": 2, "b": 40}
ANSWER = "42"

SMALL = f"""
import os, sys, threading
from mcp.server.mcpserver import MCPServer

server = MCPServer("small")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

if hasattr(os, "sched_setaffinity") and {rig.SERVER_CORE} < (os.cpu_count() or 1) and "alone" in sys.argv:
    os.sched_setaffinity(0, {{{rig.SERVER_CORE}}})
if "http" in sys.argv:  # it ends with its input, as the others do
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server.run("streamable-http", port=int(sys.argv[-1]))
else:
    server.run("stdio")
"""

PLAIN = """
import json, sys

ADD = {"name": "add", "description": "Add two numbers.", "inputSchema": {"type": "object", "properties": {
    "a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}

def answer(method, params):
    if method == "initialize":
        about = {"name": "plain", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    return {"tools": [ADD]} if method == "tools/list" else {} if method == "ping" else None

for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        result = answer(message["method"], message.get("params") or {})
        said = {"result": result} if result is not None else {"error": {"code": -32601, "message": "Method not found"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
"""

Samples = dict[str, dict[str, list[float]]]
Call = Callable[[], Awaitable[str]]


# in a process of its own: calls


@contextmanager
def http_server(script: Path) -> Generator[str]:
    """The small server at an address of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(script), "alone", "http", str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the server did not start") from None
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@asynccontextmanager
async def host(rows: Sequence[dict[str, Any]]) -> AsyncGenerator[Any]:
    """The standard profile with more rows."""
    from hames.compose import running
    from hames.profiles import profile
    from hames.store import STATE

    layer = Path("rows.yaml")
    layer.write_text(json.dumps(list(rows)), encoding="utf-8")
    async with running([profile("standard"), layer], {STATE: Path("state").resolve()}) as made:
        yield made


def ways(bare: Any, made: Any, name: str) -> dict[str, Call]:
    """The ways to call the tool of one server.

    :param name: the row of the server in the host.
    """
    from hames.content.messages import ToolCall
    from hames.mcp import MCP
    from hames.policy import POLICY
    from hames.tools import TOOLS, Invocation

    seat = made.get(MCP).seats.view(made.root_scope)[name]
    tools = made.get(TOOLS)
    if made.get(POLICY) is None or f"mcp__{name}__add" not in seat.tools:
        raise SystemExit(f"the host is not as it should be: {seat.connection.status} {seat.connection.reason}")
    text = json.dumps(ARGUMENTS)
    count = 0

    def spill(data: bytes, suffix: str) -> Path:
        raise OSError

    def surroundings(call: ToolCall) -> Invocation:
        return Invocation(call.id, made.root_scope, Path.cwd(), {}, spill, session="benchmark")

    async def begin(calls: Sequence[ToolCall]) -> None:
        pass

    async def by_client() -> str:
        return (await bare.call_tool("add", ARGUMENTS)).content[0].text

    async def by_connection() -> str:
        return (await seat.connection.request(lambda client: client.call_tool("add", ARGUMENTS))).content[0].text

    async def by_pipeline() -> str:
        nonlocal count
        count += 1
        call = ToolCall(f"call-{count}", f"mcp__{name}__add", text)
        [result], _ = await tools.run([call], made.root_scope, surroundings, begin)
        return result.text

    return dict(zip(WAYS, (by_client, by_connection, by_pipeline), strict=True))


async def calls(turn: int) -> dict[str, Any]:
    """CPU and wall milliseconds of a call, by transport and way.

    :param turn: which way comes first.
    """
    from mcp import Client, StdioServerParameters

    script = Path("small.py").resolve()
    script.write_text(SMALL, encoding="utf-8")
    command = {"command": sys.executable, "args": [str(script), "alone"]}
    spent: dict[str, dict[str, dict[str, float]]] = {}
    with http_server(script) as url:
        rows = [
            {"id": "stdio", "use": "hames.mcp.server", "config": {**command, "capabilities": ["read"]}},
            {"id": "http", "use": "hames.mcp.server", "config": {"url": url, "capabilities": ["read"]}},
        ]
        async with host(rows) as made, Client(StdioServerParameters(**command)) as by_stdio, Client(url) as by_http:
            for transport, bare in (("stdio", by_stdio), ("http", by_http)):
                found = ways(bare, made, transport)
                order = [*WAYS[turn % len(WAYS) :], *WAYS[: turn % len(WAYS)]]
                totals = spent[transport] = {way: {"cpu": 0.0, "wall": 0.0} for way in WAYS}
                for way in order:
                    await timed(found[way], 10)
                for _ in range(BLOCKS):
                    for way in order:
                        cpu, wall = await timed(found[way], CALLS)
                        totals[way]["cpu"] += cpu * 1e3 / (BLOCKS * CALLS)
                        totals[way]["wall"] += wall * 1e3 / (BLOCKS * CALLS)
    return spent


async def timed(call: Call, count: int) -> tuple[float, float]:
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(count):
        if (said := await call()) != ANSWER:
            raise SystemExit(f"the tool said {said[:300]!r}")
    return time.process_time() - cpu, time.perf_counter() - wall


# in a process of its own: a crowd


class BareCrowd:
    """Bare clients, each in a task of its own."""

    def __init__(self, script: Path) -> None:
        self._script = script
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, numbers: Sequence[int]) -> None:
        """Until all of these have said what tools they have."""
        ready = [asyncio.Event() for _ in numbers]
        self._stop.clear()
        self._tasks = [asyncio.create_task(self._hold(number, each)) for number, each in zip(numbers, ready, strict=True)]
        waiting = asyncio.gather(*(each.wait() for each in ready))
        await asyncio.wait((waiting, *self._tasks), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise SystemExit("a client ended before its time")

    async def _hold(self, number: int, ready: asyncio.Event) -> None:
        from mcp import Client, StdioServerParameters

        async with Client(StdioServerParameters(command=sys.executable, args=[str(self._script), str(number)])) as client:
            if [tool.name for tool in (await client.list_tools()).tools] != ["add"]:
                raise SystemExit("a server has not the tools that it should have")
            ready.set()
            await self._stop.wait()

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)


class HamesCrowd:
    """Rows of servers in a host that runs."""

    def __init__(self, script: Path, made: Any) -> None:
        self._script = script
        self._host = made
        self._mounts: list[Any] = []

    async def start(self, numbers: Sequence[int]) -> None:
        """Until all of these have said what tools they have."""
        from hames.mcp import MCP
        from hames.mcp.config import ServerConfig
        from hames.mcp.server import server

        with self._host.hold():
            for number in numbers:
                argv = [str(self._script), str(number)]
                config = ServerConfig(command=sys.executable, args=argv, capabilities=["read"], connect_timeout=PATIENCE)
                self._mounts.append(self._host.mount(server, config, id=f"server{number}"))
        await self._host.settle()
        seats = self._host.get(MCP).seats.view(self._host.root_scope)
        problems = [seats[f"server{each}"].connection.reason for each in numbers if len(seats[f"server{each}"].tools) != 1]
        if problems:
            raise SystemExit(f"{len(problems)} servers are not there, one because {problems[0]}")

    async def stop(self) -> None:
        self._host.stop(self._mounts)
        self._mounts = []
        await self._host.settle()


def processes(script: Path) -> int:
    """How many processes of the crowd there are, ended ones that nobody waited for too."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                found += parent == os.getpid() or os.fsencode(script) in (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
    return found


def held(script: Path) -> dict[str, float]:
    """What this process holds."""
    gc.collect()
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024
    descriptors = sum(each.is_symlink() for each in Path("/proc/self/fd").iterdir())
    return {
        "memory": memory,
        "descriptors": descriptors,
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "processes": processes(script),
        "tasks": len(asyncio.all_tasks()),
    }


async def measured(crowd: BareCrowd | HamesCrowd, script: Path, count: int) -> dict[str, float]:
    await crowd.start([0])  # what is imported with the first one is not counted
    await crowd.stop()
    before = held(script)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu, wall = time.process_time(), time.perf_counter()
    async with asyncio.timeout(PATIENCE):
        await crowd.start(range(1, count + 1))
    ready = {"ready cpu": time.process_time() - cpu, "ready wall": time.perf_counter() - wall}
    full = held(script)
    if full["processes"] - before["processes"] < count:
        raise SystemExit(f"{full['processes']} processes instead of {count}")
    cpu, wall = time.process_time(), time.perf_counter()
    async with asyncio.timeout(PATIENCE):
        await crowd.stop()
    stopped = {"stop cpu": time.process_time() - cpu, "stop wall": time.perf_counter() - wall}
    after = held(script)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        **ready,
        **stopped,
        "servers cpu": ended.ru_utime + ended.ru_stime - children.ru_utime - children.ru_stime,
        **{name: (full[name] - before[name]) / count for name in ("memory", "descriptors", "threads", "tasks")},
        "processes left": after["processes"],
        "descriptors left": after["descriptors"] - before["descriptors"],
        "tasks left": after["tasks"] - before["tasks"],
    }


async def crowd(opener: str, kind: str, count: int) -> dict[str, float]:
    """What it takes to hold so many servers."""
    script = Path("crowd.py").resolve()
    script.write_text(SMALL if kind == "real" else PLAIN, encoding="utf-8")
    if hasattr(os, "sched_setaffinity"):  # the servers and who starts them have the whole machine
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    if opener == "bare":
        return await measured(BareCrowd(script), script, count)
    async with host([]) as made:
        return await measured(HamesCrowd(script, made), script, count)


# in the process that is started


def drive(*arguments: object) -> Any:
    """Measure in a fresh process."""
    return json.loads(rig.spawn([str(rig.BIN / "python"), str(Path(__file__).resolve()), "--drive", *map(str, arguments)], "").output)


CROWD_ROWS = {
    "ready wall": "all ready, wall s",
    "ready cpu": "all ready, CPU s",
    "memory": "memory, KiB a server",
    "descriptors": "descriptors a server",
    "threads": "threads a server",
    "tasks": "tasks a server",
    "stop wall": "all ended, wall s",
    "stop cpu": "all ended, CPU s",
    "servers cpu": "CPU s of the servers",
    "processes left": "processes left",
    "descriptors left": "descriptors left",
    "tasks left": "tasks left",
}


class Bench:
    """The measurements of a run.

    :ivar samples: by part, what each way needed for each row.
    """

    def __init__(self, servers: int) -> None:
        self.servers = servers
        self.samples: dict[str, Samples] = {}

    def add(self, part: str, row: str, way: str, value: float) -> None:
        self.samples.setdefault(part, {}).setdefault(row, {}).setdefault(way, []).append(value)

    def calls(self, number: int) -> None:
        for transport, found in drive("calls", number).items():
            for way in WAYS:
                for unit in ("cpu", "wall"):
                    self.add("calls", f"{transport}, {'CPU' if unit == 'cpu' else unit} ms a call", way, found[way][unit])

    def crowd(self, number: int, kind: str = "crowd") -> None:
        for opener in OPENERS if number % 2 == 0 else OPENERS[::-1]:
            for name, value in drive("crowd", opener, kind, self.servers).items():
                self.add(kind, CROWD_ROWS[name], opener, value)


def conditions() -> dict[str, str]:
    """The machine and what was measured on it."""
    machine = agents.conditions()
    return {name: machine[name] for name in ("time", "processor", "python", "hames")} | {"mcp": metadata.version("mcp")}


def report(bench: Bench) -> str:
    lines = [f"{name}: {value}" for name, value in conditions().items()]
    about = {
        "calls": "One call after another; CPU is that of the process that calls. Ratios are to the bare client, which also checks each "
        "result\nby the server's schema. The pipeline is without the log of an agent.",
        "crowd": f"{bench.servers} programs at once. Memory is the growth of the process that holds them, CPU is its own.",
        "real": f"{bench.servers} servers of the package mcp at once.",
    }
    for part, samples in bench.samples.items():
        lines += ["", f"Medians: {about[part]}", "", *agents.table(samples, WAYS if part == "calls" else OPENERS, median)]
        lines += ["", "Least and greatest (samples):"]
        for row, found in samples.items():
            if "CPU" in row or "wall" in row:
                lines.append(f"- {row}: " + ", ".join(f"{way} {min(v):.2f}–{max(v):.2f} ({len(v)})" for way, v in found.items()))
    return "\n".join(lines)


def left(bench: Bench) -> list[str]:
    """What was left behind."""
    return [
        f"{part}, {way}: {row}: {max(values):g}"
        for part, samples in bench.samples.items()
        for row, found in samples.items()
        for way, values in found.items()
        if row == "processes left" and max(values) > 0
    ]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what MCP costs.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("calls", "crowd", "real"), default="")
    parser.add_argument("--servers", type=int, default=SERVERS)
    parser.add_argument("--json", action="store_true", help="print all samples as one JSON object")
    found = parser.parse_args()
    if found.rounds < 1 or found.servers < 1:
        parser.error("at least one round and one server")
    return found


def main() -> None:
    chosen = options()
    bench = Bench(chosen.servers)
    rounds = 1 if chosen.only == "real" else chosen.rounds
    for number in range(rounds):
        print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        if chosen.only in ("", "calls"):
            bench.calls(number)
        if chosen.only in ("", "crowd"):
            bench.crowd(number)
        if chosen.only == "real":
            bench.crowd(number, "real")
    if chosen.json:
        print(json.dumps({"conditions": conditions(), "samples": bench.samples}, ensure_ascii=False))
    else:
        print(report(bench))
    if found := left(bench):
        raise rig.Failed("\n".join(("something was left behind:", *found)))


if __name__ == "__main__":
    rig.end_in_order()
    if sys.argv[1:2] == ["--drive"]:
        what, *rest = sys.argv[2:]
        print(json.dumps(asyncio.run(calls(int(rest[0])) if what == "calls" else crowd(rest[0], rest[1], int(rest[2])))))
        sys.exit()
    try:
        main()
    except rig.Failed as error:
        sys.exit(f"{Path(__file__).name}: {error}")
