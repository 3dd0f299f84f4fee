"""openai-agents: a child is an agent with a tool and a streamed run; tracing is off. A semaphore limits how many there are at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from children import main
from openai import AsyncOpenAI

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled


@function_tool(strict_mode=False)
async def todo_write(items: list[dict[str, str]]) -> str:
    """Write down what is to be done."""
    return "\n".join(item["content"] for item in items) or "the list is empty"


class Parent:
    """Starts children."""

    def __init__(self, client: AsyncOpenAI, at_once: int) -> None:
        self._client = client
        self._free = asyncio.Semaphore(at_once)

    async def child(self, number: int, model: str) -> str:
        async with self._free:
            agent = Agent(name="child", model=OpenAIChatCompletionsModel(model, self._client), tools=[todo_write])
            run = Runner.run_streamed(agent, f"Do number {number}.")
            async for _ in run.stream_events():
                pass
            return str(run.final_output)


@asynccontextmanager
async def opened(url: str, at_once: int) -> AsyncGenerator[Parent]:
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="benchmark") as client:
        yield Parent(client, at_once)


if __name__ == "__main__":
    main(opened)
