"""What a cancelled turn and a close leave: nothing half done, and no result of work lost."""

from __future__ import annotations

import asyncio
import json

from hames.agents import AGENTS, AgentSpec
from hames.content.messages import Message, Text


async def made(host, tmp_path, *answers):
    (tmp_path / "script.json").write_text(json.dumps(answers or [{"text": "Hello."}] * 9))
    return await host.get(AGENTS).create(AgentSpec(str(tmp_path), f"scripted:{tmp_path}/script.json"))


def fact(text: str) -> Message:
    return Message("user", (Text(text),), "harness")


async def test_a_result_that_waits_survives_a_cancelled_turn_and_what_the_user_said_does_not(host, tmp_path):
    agent = await made(host, tmp_path)
    agent.inject(fact("job-1 has ended: 42"))
    agent.inject("never mind")
    assert [each.text for each in agent.inbox.clear()] == ["never mind"]
    assert len(agent.inbox) == 0  # nothing wakes it by itself
    await agent.run("what came of it?")
    texts = [message.text for _, message in agent.session.messages]
    assert "job-1 has ended: 42" in texts and "never mind" not in texts and texts.count("job-1 has ended: 42") == 1


async def test_such_a_result_waits_on_in_the_session_of_an_agent_that_is_closed(host, tmp_path):
    agent = await made(host, tmp_path)
    await agent.run("hello")
    agent.inject(fact("job-1 has ended: 42"))
    agent.inbox.clear()
    await host.get(AGENTS).dispose(agent)
    again = await host.get(AGENTS).create(AgentSpec(str(tmp_path), resume=agent.id))
    assert [item.message.text for item in again.inbox.next_step] == ["job-1 has ended: 42"]


async def test_a_close_that_nobody_waits_for_any_more_is_done_all_the_same(host, tmp_path):
    agents, agent = host.get(AGENTS), await made(host, tmp_path)
    gate, undone = asyncio.Event(), []

    async def slow():
        await gate.wait()
        undone.append("slow")

    async def first():
        undone.append("first")

    agent.defer(first)
    agent.defer(slow)
    closing = asyncio.ensure_future(agents.dispose(agent))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait((closing,))
    assert closing.cancelled() and agent.id in agents.live and undone == []
    gate.set()
    await agents.dispose(agent)
    assert undone == ["slow", "first"] and agent.id not in agents.live and agent.status == "closed" and agent.scope.closed
