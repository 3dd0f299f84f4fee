"""The floor: a loop written by hand on aiohttp, which streams, and sends all of its history at each request."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from measure import PROMPT, TOOL, Make, Outcome, main, model_name

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "Write down what is to be done.",
            "parameters": {
                "type": "object",
                "properties": {"items": {"type": "array", "items": {"type": "string"}}},
                "required": ["items"],
            },
        },
    }
]


def todo_write(items: list[dict[str, str]]) -> str:
    return "\n".join(item["content"] for item in items) or "the list is empty"


class Loop:
    """One conversation."""

    def __init__(self, session: aiohttp.ClientSession, url: str, answers: int) -> None:
        self._session = session
        self._url = f"{url}/v1/chat/completions"
        self._model = model_name(answers)
        self._messages: list[dict[str, Any]] = []
        self._calls = 0

    async def run(self) -> None:
        self._messages.append({"role": "user", "content": PROMPT})
        while True:
            message = await self._ask()
            self._messages.append(message)
            if "tool_calls" not in message:
                return
            for call in message["tool_calls"]:
                text = todo_write(**json.loads(call["function"]["arguments"]))
                self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})

    async def _ask(self) -> dict[str, Any]:
        body = {
            "model": self._model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "tools": TOOLS,
            "messages": self._messages,
        }
        headers = {"Authorization": "Bearer benchmark", "Content-Type": "application/json"}
        text: list[str] = []
        calls: dict[int, dict[str, Any]] = {}
        finish = None
        async with self._session.post(self._url, data=json.dumps(body).encode(), headers=headers) as response:
            response.raise_for_status()
            async for line in response.content:
                data = line[5:].strip()
                if not line.startswith(b"data:") or data == b"[DONE]":
                    continue
                for choice in json.loads(data)["choices"]:
                    finish = choice["finish_reason"] or finish
                    delta = choice["delta"]
                    text.append(delta.get("content") or "")
                    for piece in delta.get("tool_calls", ()):
                        call = calls.setdefault(piece["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
                        if "id" in piece:
                            call["id"] = piece["id"]
                        call["function"]["name"] += piece["function"].get("name", "")
                        call["function"]["arguments"] += piece["function"].get("arguments", "")
        if finish not in ("stop", "tool_calls"):
            raise RuntimeError(f"the answer finished with {finish}")
        self._calls += 1
        message: dict[str, Any] = {"role": "assistant", "content": "".join(text) or None}
        if calls:
            message["tool_calls"] = list(calls.values())
        return message

    def outcome(self) -> Outcome:
        tools = sum(message["role"] == "tool" for message in self._messages)
        return Outcome(self._messages[-1].get("content") or "", self._calls, tools)


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Make]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def make(answers: int) -> Loop:
            return Loop(session, url, answers)

        yield make


if __name__ == "__main__":
    main(opened)
