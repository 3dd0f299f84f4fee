"""Hames: children are tasks of one parent, with records, budgets and sessions of their own; the ``standard`` profile."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from children import main

from hames.agents import AGENTS, Agent, AgentSpec
from hames.compose import running
from hames.delegation import DELEGATION
from hames.delegation.service import Tasks
from hames.delegation.spec import TaskSpec
from hames.profiles import profile
from hames.store import STATE


class Lead:
    """The parent."""

    def __init__(self, agent: Agent, tasks: Tasks) -> None:
        self._agent = agent
        self._tasks = tasks

    async def child(self, number: int, model: str) -> str:
        outcome = await self._tasks.run(TaskSpec(f"Do number {number}.", model=f"openai:{model}"), self._tasks.origin(self._agent))
        return outcome.text or outcome.diagnostic


@asynccontextmanager
async def opened(url: str, at_once: int) -> AsyncGenerator[Lead]:
    assert os.environ["OPENAI_BASE_URL"] == f"{url}/v1"
    layer = Path("layer.yaml")
    layer.write_text(f"- {{id: scheduler, set: {{config: {{concurrency: {at_once}}}}}}}\n", encoding="utf-8")
    async with running([profile("standard"), layer], {STATE: Path(os.environ["HAMES_STATE"])}) as host:
        agents, delegation = host.get(AGENTS), host.get(DELEGATION)
        assert agents is not None and delegation is not None
        yield Lead(await agents.create(AgentSpec(str(Path.cwd()), "openai:steps=0")), delegation.tasks)


if __name__ == "__main__":
    main(opened)
