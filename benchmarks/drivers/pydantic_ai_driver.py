"""pydantic-ai as its documentation begins: an agent with a tool, and a run whose events are streamed.

The model is one object for all agents, so that they share one HTTP client. Its limit of 50 requests for a run is lifted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from measure import PROMPT, Make, Outcome, main, model_name
from pydantic_ai import Agent, AgentRunResult, AgentRunResultEvent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Run:
    """One agent and its run, whose result holds the history."""

    def __init__(self, model: OpenAIChatModel) -> None:
        self._result: AgentRunResult[str] | None = None
        self._agent: Agent[None, str] = Agent(model)

        @self._agent.tool_plain
        async def todo_write(items: list[dict[str, str]]) -> str:
            """Write down what is to be done."""
            return "\n".join(item["content"] for item in items) or "the list is empty"

    async def run(self) -> None:
        async with self._agent.run_stream_events(PROMPT, usage_limits=UsageLimits(request_limit=None)) as events:
            async for event in events:
                if isinstance(event, AgentRunResultEvent):
                    self._result = event.result

    def outcome(self) -> Outcome:
        assert self._result is not None
        usage: Any = self._result.usage
        return Outcome(self._result.output, usage.requests, usage.tool_calls)


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Make]:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="benchmark")
    models: dict[int, OpenAIChatModel] = {}

    async def make(answers: int) -> Run:
        if answers not in models:
            models[answers] = OpenAIChatModel(model_name(answers), provider=provider)
        return Run(models[answers])

    yield make


if __name__ == "__main__":
    main(opened)
