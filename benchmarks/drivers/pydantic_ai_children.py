"""pydantic-ai: a child is an agent with a tool and a run whose events are streamed; a semaphore limits how many there are at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from children import main
from pydantic_ai import Agent, AgentRunResultEvent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Parent:
    """Starts children."""

    def __init__(self, provider: OpenAIProvider, at_once: int) -> None:
        self._provider = provider
        self._free = asyncio.Semaphore(at_once)
        self._models: dict[str, OpenAIChatModel] = {}

    async def child(self, number: int, model: str) -> str:
        async with self._free:
            if model not in self._models:
                self._models[model] = OpenAIChatModel(model, provider=self._provider)
            agent: Agent[None, str] = Agent(self._models[model])

            @agent.tool_plain
            async def todo_write(items: list[dict[str, str]]) -> str:
                """Write down what is to be done."""
                return "\n".join(item["content"] for item in items) or "the list is empty"

            said = ""
            async with agent.run_stream_events(f"Do number {number}.") as events:
                async for event in events:
                    if isinstance(event, AgentRunResultEvent):
                        said = event.result.output
            return said


@asynccontextmanager
async def opened(url: str, at_once: int) -> AsyncGenerator[Parent]:
    yield Parent(OpenAIProvider(base_url=f"{url}/v1", api_key="benchmark"), at_once)


if __name__ == "__main__":
    main(opened)
