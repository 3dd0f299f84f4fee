"""The examples of delegation do what they say."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from hames.agents import AGENTS, AgentSpec
from hames.delegation import DELEGATION
from hames.delegation.spec import TaskSpec
from hames.testing.contract import broken_promises, launch

EXAMPLES = Path(__file__).parents[2] / "examples" / "delegate"


def lead(path: Path, tool: str, prompt: str) -> str:
    call = {"name": tool, "arguments": {"description": "ask", "prompt": prompt}}
    path.write_text(json.dumps([{"text": "I ask.", "calls": [call]}, {"text": "Done."}]))
    return f"scripted:{path}"


async def answered(host, tmp_path: Path, tool: str, prompt: str) -> str:
    agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), lead(tmp_path / "lead.yaml", tool, prompt)))
    end = await agent.run("go")
    assert (end.reason, end.text) == ("completed", "Done.")
    return next(block.text for _, message in agent.session.messages for block in message.blocks if hasattr(block, "call_id"))


async def test_a_runner_of_ones_own_answers_and_keeps_the_contract(opened, tmp_path):
    async with opened(EXAMPLES / "own.yaml") as host:
        assert await answered(host, tmp_path, "ask_echo", "hello") == "You said: hello"
        runner = host.get(DELEGATION).runners.choose(host.root_scope, "echo")
        made = {kind: partial(launch, host, TaskSpec(prompt)) for kind, prompt in (("quick", "hello"), ("endless", "wait"))}
        assert await broken_promises(runner, made) == []


async def test_a_dry_run_needs_no_model_for_the_children(opened, tmp_path):
    async with opened(EXAMPLES / "dry.yaml") as host:
        said = await answered(host, tmp_path, "delegate", "find the bug")
        assert said.startswith("sample ") or "MODEL_FAILED" in said


async def test_the_rows_of_the_example_fit_the_profile(opened):
    async with opened(EXAMPLES / "rows.yaml") as host:
        assert host.get(DELEGATION).config.max_depth == 2
