"""Hames as a user of its Python API has it: the ``standard`` profile, permissions and durable log on.

The environment names the state directory (``HAMES_STATE``), the server (``OPENAI_BASE_URL``) and a key.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from measure import PROMPT, Make, Outcome, main, model_name

from hames.agents import AGENTS, Agent, AgentSpec
from hames.compose import running
from hames.content.messages import ToolResult
from hames.profiles import profile
from hames.store import STATE


class Task:
    """One conversation."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def run(self) -> None:
        end = await self._agent.run(PROMPT)
        if end.reason != "completed":
            raise RuntimeError(f"the turn ended: {end.reason}: {end.detail}")

    def outcome(self) -> Outcome:
        end = self._agent.last
        assert end is not None
        blocks = [block for _, message in self._agent.session.messages for block in message.blocks]
        tools = sum(isinstance(block, ToolResult) and not block.is_error for block in blocks)
        return Outcome(end.text, end.steps, tools)


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Make]:
    assert os.environ["OPENAI_BASE_URL"] == f"{url}/v1"
    async with running(profile("standard"), {STATE: Path(os.environ["HAMES_STATE"])}) as host:
        agents = host.get(AGENTS)
        assert agents is not None

        async def make(answers: int) -> Task:
            return Task(await agents.create(AgentSpec(str(Path.cwd()), f"openai:{model_name(answers)}")))

        yield make


if __name__ == "__main__":
    main(opened)
