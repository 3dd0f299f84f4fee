"""Every request stands in the database as it was sent, and can be had from there without the code that made it."""

import asyncio
import base64
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hames.agents import AGENTS, Agent, AgentSpec
from hames.content.clock import Clock
from hames.content.request import EncodedRequest
from hames.kernel import Host
from hames.sessions import SESSIONS, Session
from hames.sessions.requests import RequestRecord
from hames.store import STORE, Store
from hames.testing.clock import FakeClock
from hames.testing.stub import Received, StubServer

pytestmark = pytest.mark.usefixtures("nothing_left")

PROVIDERS = ["openai", "anthropic"]
OpenAgent = Callable[..., AbstractAsyncContextManager[Agent]]
Opened = Callable[..., AbstractAsyncContextManager[Host]]

providers = pytest.mark.parametrize("provider", PROVIDERS)

#: Rebuilds all requests of a session in a process in which no adapter can be imported.
ELSEWHERE = """
import asyncio, base64, json, sys
from pathlib import Path

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] == ["hames", "models"] or name.split(".")[0] == "aiohttp":
            raise ImportError(f"{name} is not to be had here")

sys.meta_path.insert(0, Refuse())

from hames.content.clock import Clock
from hames.sessions.plugin import Sessions
from hames.store import Store

async def main(state, session, sent):
    bodies = [base64.b64decode(line) for line in Path(sent).read_text().split()]
    store = Store(Path(state))
    try:
        rebuilt = [request.body() for _, request in Sessions(store, Clock()).rebuild(session)]
    finally:
        await store.close()
    different = [n for n, (one, other) in enumerate(zip(rebuilt, bodies)) if one != other]
    print(json.dumps({"sent": len(bodies), "rebuilt": len(rebuilt), "different": different}))

try:
    import hames.models
except ImportError:
    asyncio.run(main(*sys.argv[1:]))
assert not any(name.startswith("hames.models") for name in sys.modules)
"""


async def rebuilt_elsewhere(state: Path, session: str, received: Sequence[Received]) -> dict[str, Any]:
    sent = state.with_name("sent.txt")
    sent.write_text("\n".join(base64.b64encode(request.body).decode() for request in received))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ELSEWHERE, str(state), session, str(sent), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, problems = await process.communicate()
    assert process.returncode == 0, problems.decode()
    return json.loads(out)


def store_of(host: Host) -> Store:
    store = host.get(STORE)
    assert store is not None
    return store


def rebuilt(agent: Agent) -> list[tuple[RequestRecord, EncodedRequest]]:
    sessions = agent.ctx.host.get(SESSIONS)
    assert sessions is not None
    return list(sessions.rebuild(agent.id))


def stored(store: Store, sid: int, table: str, place: str, first: int, end: int) -> int:
    """The bytes of all text and blob values of some rows."""
    columns = [row[1] for row in store.sessions.query(f"PRAGMA table_info({table})")]
    total = 0
    for column in columns:
        ((found,),) = store.sessions.query(
            f"SELECT COALESCE(SUM(LENGTH(CAST({column} AS BLOB))), 0) FROM {table} "
            f"WHERE sid = ? AND {place} >= ? AND {place} < ? AND TYPEOF({column}) IN ('text', 'blob')",
            (sid, first, end),
        )
        total += found
    return total


def costs(store: Store, session: Session, records: list[RequestRecord]) -> list[tuple[int, int, int, int]]:
    """What each request but the last added: events and their bytes, fragments, and the bytes of request and fragments."""
    found: list[tuple[int, int, int, int]] = []
    for record, after in pairwise(records):
        events = stored(store, session.sid, "events", "seq", record.seq, after.seq)
        request = stored(store, session.sid, "requests", "n", record.n, record.n + 1)
        # The first request also stores its head and tail, right before the groups.
        first = min(record.first, record.head, record.tail) if record.n == 0 else record.first
        end = record.first + record.count
        fragments = stored(store, session.sid, "fragments", "n", first, end)
        found.append((after.seq - record.seq, events, end - first, request + fragments))
    return found


@providers
async def test_two_hundred_requests_are_rebuilt_without_the_adapters(
    provider: str, wired: StubServer, open_agent: OpenAgent, tmp_path: Path
) -> None:
    async with open_agent(f'{provider}:steps=200;tool=todo_write;args={{"items":[{{"content":"#"}}]}}') as agent:
        end = await agent.run("Go.")
        assert (end.reason, end.steps) == ("completed", 201)
        records = [record for record, _ in rebuilt(agent)]
        spent = costs(store_of(agent.ctx.host), agent.session, records)
    assert len(wired.received) == len(records) == 201
    assert await rebuilt_elsewhere(tmp_path / "state", agent.id, wired.received) == {"sent": 201, "rebuilt": 201, "different": []}
    # What the twentieth request costs, the two-hundredth costs: events, fragments, bytes.
    assert spent[19] == spent[199]
    assert len(set(spent[1:])) == 1
    assert spent[19][2] == 2
    assert [record.reason for record in records] == ["initial", *[""] * 200]
    assert [record.kept for record in records] == [0, *range(1, 401, 2)]


@providers
async def test_parallel_calls_and_long_results_are_rebuilt(provider: str, wired: StubServer, open_agent: OpenAgent, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "long.txt").write_text("".join(f"{n} {n * n} ü\n" for n in range(1500)))
    arguments = '{"path": "long.txt"}'
    async with open_agent(f"{provider}:steps=4;calls=3;tool=read;args={arguments}") as agent:
        agent.send("x" * 100_000)
        agent.steer("And mind the end.")
        end = await agent.run("Go.")
        assert end.reason == "completed"
        store = store_of(agent.ctx.host)
        codecs = {codec for (codec,) in store.sessions.query("SELECT codec FROM fragments WHERE sid = ?", (agent.session.sid,))}
    assert codecs == {0, 1, 2}  # as they are, compressed, and as a blob
    sent = len(wired.received)
    assert await rebuilt_elsewhere(tmp_path / "state", agent.id, wired.received) == {"sent": sent, "rebuilt": sent, "different": []}


async def test_a_session_through_faults_another_model_and_another_process_is_rebuilt(
    wired: StubServer, opened: Opened, tmp_path: Path
) -> None:
    clock = FakeClock()

    async def turn(model: str, resume: str, *messages: str) -> str:
        async with opened(provided={Clock: clock}) as host:
            agents = host.get(AGENTS)
            assert agents is not None
            agent = await agents.create(AgentSpec(cwd=str(tmp_path), model=model, resume=resume))
            for message in messages:
                await agent.run(message)
            return agent.id

    calls = 'steps=3;calls=2;tool=todo_write;args={"items":[{"content":"#"}]}'
    id = await turn(f"openai:{calls}", "", "Go.", "And on.")
    await turn("anthropic:fault=reasoning", id, "Think.", "Again.")
    await turn("openai:fault=malformed;times=2", id, "Try.")
    await turn("anthropic:fault=server", id, "Fail.")
    await turn("anthropic:fault=no-finish;times=3", id, "Try again.", "And be done.")
    async with opened() as host:
        sessions = host.get(SESSIONS)
        assert sessions is not None
        records = [record for record, _ in sessions.rebuild(id)]
    assert [record.n for record in records if record.kept == 0] == [record.n for record in records if record.reason]
    assert {record.adapter for record in records} == {"openai-chat/1", "anthropic-messages/1"}
    sent = len(wired.received)
    assert await rebuilt_elsewhere(tmp_path / "state", id, wired.received) == {"sent": sent, "rebuilt": sent, "different": []}


@providers
async def test_another_model_within_a_session_is_a_new_base(provider: str, wired: StubServer, open_agent: OpenAgent) -> None:
    other = "anthropic" if provider == "openai" else "openai"
    async with open_agent(f"{provider}:m") as agent:
        await agent.run("Go.")
        agent.model_ref = f"{other}:m"
        await agent.run("On.")
        agent.model_ref = f"{provider}:m"
        await agent.run("On.")
        found = rebuilt(agent)
    assert [request.body() for _, request in found] == [received.body for received in wired.received]
    assert all(record.kept == 0 and record.reason for record, _ in found)


@providers
async def test_a_request_that_is_made_again_stores_no_fragment_again(provider: str, wired: StubServer, open_agent: OpenAgent) -> None:
    async with open_agent(f"{provider}:fault=server;times=3", {Clock: FakeClock()}) as agent:
        await agent.run("x" * 10_000)
        records = [record for record, _ in rebuilt(agent)]
    assert len(records) == len(wired.received) == 4
    assert [record.count for record in records] == [1, 0, 0, 0]


@providers
async def test_what_a_session_holds_in_memory_is_what_it_holds_on_disk(
    provider: str, wired: StubServer, opened: Opened, tmp_path: Path
) -> None:
    async def first() -> tuple[str, list[Any]]:
        async with opened() as host:
            agents = host.get(AGENTS)
            assert agents is not None
            agent = await agents.create(AgentSpec(cwd=str(tmp_path), model=f"{provider}:m"))
            end = await agent.run("A file named caf\udce9, and half a pair \ud83d.")
            assert end.reason == "completed", end.detail
            return agent.id, agent.session.messages

    id, messages = await first()
    async with opened() as host:
        agents = host.get(AGENTS)
        assert agents is not None
        agent = await agents.create(AgentSpec(cwd=str(tmp_path), resume=id))
        assert agent.session.messages == messages


async def test_sessions_made_at_one_instant_by_two_hosts_stay_apart(wired: StubServer, opened: Opened, tmp_path: Path) -> None:
    ids: list[str] = []
    for _ in range(2):
        async with opened(provided={Clock: FakeClock()}) as host:
            agents, sessions = host.get(AGENTS), host.get(SESSIONS)
            assert agents is not None
            assert sessions is not None
            agent = await agents.create(AgentSpec(cwd=str(tmp_path), model="openai:m"))
            end = await agent.run("Go.")
            assert end.reason == "completed", end.detail
            ids.append(agent.id)
            assert len(sessions.list()) == len(ids)
    assert len(set(ids)) == 2
