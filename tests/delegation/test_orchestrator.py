"""An agent that leads: what it sees, whom it has, and what it may give to them after something has failed."""

from __future__ import annotations

import json

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.compose import running
from hames.delegation import DELEGATION
from hames.delegation.orchestrator import LEAD
from hames.profiles import profile
from hames.store import STATE
from hames.tools import TOOLS
from hames.trust import TRUST


class Room:
    """A workspace whose agents stand in the preset ``orchestrator``, or in one of the workspace's own."""

    def __init__(self, host, work):
        self.host, self.work = host, work
        self.agents, self.service = host.get(AGENTS), host.get(DELEGATION)
        self.tasks = self.service.tasks

    async def lead(self, model="openai:text=x", preset="orchestrator", **more):
        return await self.agents.create(AgentSpec(str(self.work), model, preset=preset, **more))

    def preset(self, config, name="orchestrator"):
        place = self.work / ".hames" / "presets"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.yaml").write_text(
            json.dumps([{"include": "shipped:presets/orchestrator.yaml"}, {"id": "orchestrator", "set": {"config": config}}])
        )
        self.trust()

    def trust(self):
        trust = self.host.get(TRUST)
        trust.decide(trust.status(self.work), True)

    def role(self, name, text):
        place = self.work / ".hames" / "roles"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.md").write_text(text)

    def seen(self, agent):
        return set(self.host.get(TOOLS).registry.view(agent.scope))

    def results(self, lead):
        return [block for _, message in lead.session.messages if message.source == "tool" for block in message.blocks]

    def records(self, lead):
        return [self.tasks.ledger.get(record.id) for record in self.tasks.ledger.below(lead.id)]


@pytest.fixture
async def room(tmp_path, monkeypatch, wired):
    monkeypatch.setenv("HAMES_HOME", str(tmp_path / "home"))
    work = tmp_path / "work"
    work.mkdir()
    patch = tmp_path / "patch.json"
    patch.write_text(json.dumps([{"id": "loop", "set": {"config": {"retries": 0}}}]))
    async with running([profile("standard"), patch], {STATE: tmp_path / "state"}) as host:
        yield Room(host, work)


async def test_a_lead_sees_its_21_tools_and_nothing_else(room, wired):
    lead = await room.lead()
    assert room.seen(lead) == set(LEAD) and len(LEAD) == 21
    await lead.run("hello")
    body = json.loads(wired.received[0].body)
    assert {tool["function"]["name"] for tool in body["tools"]} == set(LEAD)
    system = body["messages"][0]["content"]
    assert str(room.work) in system and "- Writing and changing code here, and checking it: delegate to implement." in system
    await room.agents.dispose(lead)


async def test_a_role_has_its_own_tools_and_ends_with_a_report(room, wired, script, calling):
    report = calling(("structured_output", {"outcome": "done", "result": "it is built"}))
    room.preset({"roles": {"implement": {"model": script(report)}}})
    lead = await room.lead(script(calling(("implement", {"description": "build", "prompt": "build it"})), {"text": "built"}))
    end = await lead.run("build it")
    assert end.text == "built"
    (result,) = room.results(lead)
    assert result.text == "it is built" and not result.is_error
    (record,) = room.records(lead)
    assert record.spec.title == "implement · build" and record.outcome.ok
    assert set(record.spec.tools) >= {"read", "write", "edit", "bash"} and "web_fetch" not in record.spec.tools
    await room.agents.dispose(lead)


async def test_a_failure_says_what_may_come_next_and_holds_to_it(room, script, calling):
    failed = calling(("structured_output", {"outcome": "failed", "result": "half", "error": "E1", "next": "look at the lock"}))
    room.preset({"roles": {"implement": {"model": script(failed)}}})
    goal = {"description": "build", "prompt": "Build the parser in src/parser.py"}
    lead = await room.lead(script(calling(("implement", goal)), calling(("implement", goal)), {"text": "x"}))
    await lead.run("build it")
    first, second = room.results(lead)
    (record,) = room.records(lead)
    assert first.is_error and "E1" in first.text and f"after: '{record.id}'" in first.text
    assert second.code == "ATTEMPT_UNNAMED" and record.id in second.text
    assert [receipt.kind for receipt in record.receipts] == ["delivered", "refused"]
    await room.agents.dispose(lead)
