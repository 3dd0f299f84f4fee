"""Fixtures that many rooms use."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from hames.agents import AGENTS, Agents
from hames.compose import running
from hames.kernel import Host, Plugin
from hames.profiles import profile
from hames.store import STATE
from hames.testing.stub import StubServer

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts tests in the background lets them ignore it, and the commands that they start and interrupt would too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

Opener = Callable[..., AbstractAsyncContextManager[Host]]


@pytest.fixture
async def stub() -> AsyncGenerator[StubServer]:
    """A model server on loopback."""
    async with StubServer() as server:
        yield server


@pytest.fixture
def wired(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> StubServer:
    """The stub as the place of both providers."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{stub.url}/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", stub.url)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "test-key")
    return stub


@pytest.fixture
def opened(tmp_path: Path) -> Opener:
    """Opens a host with the standard profile, a state directory of its own, and further layers."""

    def open(*layers: Path, provided: dict[Any, Any] | None = None) -> AbstractAsyncContextManager[Host]:
        return running([profile("standard"), *layers], {STATE: tmp_path / "state", **(provided or {})})

    return open


@pytest.fixture
async def host(opened: Opener) -> AsyncGenerator[Host]:
    """A host with the standard profile; nothing of it is left afterwards."""
    async with opened() as host:
        yield host
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in others if "mount" in task.get_name() or "agent" in task.get_name()]


@pytest.fixture
def agents(host: Host) -> Agents:
    service = host.get(AGENTS)
    assert service is not None
    return service


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """Writes a script and gives the reference of its model."""
    count = 0

    def write(*answers: dict[str, Any]) -> str:
        nonlocal count
        count += 1
        path = tmp_path / f"script-{count}.json"
        path.write_text(json.dumps(list(answers)))
        return f"scripted:{path}"

    return write


@pytest.fixture
def calling() -> Callable[..., dict[str, Any]]:
    """An answer of a script that calls tools: ``calling(("read", {"path": "a"}), …)``."""

    def answer(*calls: tuple[str, dict[str, Any]], text: str = "") -> dict[str, Any]:
        return {"text": text, "calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}

    return answer


@pytest.fixture
def mounted(host: Host) -> Callable[[Plugin], Any]:
    """Mounts a plugin of a test in the host."""
    return lambda plugin: host.mount(plugin)
