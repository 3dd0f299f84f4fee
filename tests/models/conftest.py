"""Servers and agents for the tests of models, and the proof that a test left nothing behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from hames.agents import AGENTS, Agent, AgentSpec
from hames.kernel import Host
from hames.models.plugin import client_session

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


def descriptors() -> set[str]:
    """What this process has open, by the name that the system gives it."""
    names: set[str] = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            names.add(f"{entry.name} {entry.readlink()}")
        except FileNotFoundError:
            pass  # the descriptor of the listing itself
    return names


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    before = descriptors()
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}
    for _ in range(200):  # a transport closes its socket in the next rounds of the loop
        if descriptors() <= before:
            break
        await asyncio.sleep(0.005)
    assert descriptors() - before == set()


@pytest.fixture
async def session() -> AsyncIterator[Callable[[], aiohttp.ClientSession]]:
    """The client session of the product; closed at the end, connections and all."""
    async with client_session() as open_session:
        yield open_session
        client = open_session()
    assert client.closed
    assert client.connector is None or client.connector.closed


@asynccontextmanager
async def serving(reply: Reply) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/{path:.*}", reply)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
def serve() -> Callable[[Reply], AbstractAsyncContextManager[str]]:
    """A server on loopback with one handler, for answers that the stub server does not know."""
    return serving


@pytest.fixture
def open_agent(
    tmp_path: Path, opened: Callable[..., AbstractAsyncContextManager[Host]]
) -> Callable[..., AbstractAsyncContextManager[Agent]]:
    """Opens an agent in a host of its own; the keyword arguments are those of its spec."""

    @asynccontextmanager
    async def open(model: str, provided: dict[Any, Any] | None = None, **spec: Any) -> AsyncIterator[Agent]:
        (tmp_path / "work").mkdir(exist_ok=True)
        async with opened(provided=provided) as host:
            agents = host.get(AGENTS)
            assert agents is not None
            yield await agents.create(AgentSpec(cwd=str(tmp_path / "work"), model=model, **spec))

    return open
