"""What a lead and its roles promise in words, and what its tools do when a model calls them."""

# pyright: basic

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.compose import running
from hames.content.errors import HamesError
from hames.content.paths import SHIPPED
from hames.delegation import DELEGATION
from hames.delegation.dress import KEPT
from hames.delegation.role import read_role
from hames.profiles import profile
from hames.sessions import SESSIONS
from hames.store import STATE
from hames.trust import TRUST

EXAMPLE = Path(__file__).parents[2] / "examples" / "roles" / "implement_cont.md"
SEVENTEEN = {
    *("read", "write", "edit", "glob", "grep", "bash", "skill", "memory_search", "web_search", "ask_user_question", "todo_write"),
    *("job_output", "job_list", "job_kill", "get_goal", "create_goal", "update_goal"),
}


def persona(name: str) -> str:
    path = SHIPPED / "roles" / f"{name}.md"
    return " ".join(read_role(path.read_text(), path, "shipped").persona.split())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("search_external", ("Change nothing", "sources", "still open")),
        ("design", ("specification", "do not write the final code")),
        ("implement", ("Read what surrounds the place first", "check it", "how you checked it")),
        ("search_internal_deep", ("what you searched", "with line numbers", "the definitions", "Never repeat long listings")),
    ],
)
def test_each_role_says_what_it_hands_in_and_what_it_leaves_alone(name, words):
    assert all(word in persona(name) for word in words)


def test_the_lead_takes_apart_gives_away_and_puts_together():
    text = " ".join((SHIPPED / "prompts" / "lead.md").read_text().split())
    for word in ("Break what the user wants into pieces", "put together what they report", "Plan with todo_write", "the user alone"):
        assert word in text
    assert "{{model}}" in text and "{{cwd}}" in text and "{{delegates}}" in text


def test_the_role_of_the_example_has_its_seventeen_tools_and_speaks_of_rounds():
    role = read_role(EXAMPLE.read_text(), EXAMPLE, "user")
    assert {intent.pattern for intent in role.tools} == SEVENTEEN
    said = " ".join(role.persona.split())
    assert "over several turns" in said and "in messages" in said and "in messages, one after another" in KEPT.replace("\n", " ")


class Room:
    def __init__(self, host, work):
        self.host, self.work, self.service = host, work, host.get(DELEGATION)

    async def lead(self, model, **settings):
        place = self.work / ".hames" / "presets"
        place.mkdir(parents=True, exist_ok=True)
        rows = [{"include": "shipped:presets/orchestrator.yaml"}, {"id": "orchestrator", "set": {"config": settings}}]
        (place / "mine.yaml").write_text(json.dumps(rows))
        trust = self.host.get(TRUST)
        trust.decide(trust.status(self.work), True)
        return await self.host.get(AGENTS).create(AgentSpec(str(self.work), model, preset="mine"))

    def results(self, lead):
        return [block for _, message in lead.session.messages if message.source == "tool" for block in message.blocks]

    def notices(self, lead):
        return [message.text for _, message in lead.session.messages if message.source == "harness" and "has ended" in message.text]

    def records(self, lead):
        ledger = self.service.tasks.ledger
        return [ledger.get(record.id) for record in ledger.below(lead.id)]


@pytest.fixture
async def room(tmp_path, monkeypatch, wired):
    monkeypatch.setenv("HAMES_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    patch = tmp_path / "patch.json"
    patch.write_text(json.dumps([{"id": "loop", "set": {"config": {"retries": 0}}}]))
    async with running([profile("standard"), patch], {STATE: tmp_path / "state"}) as host:
        yield Room(host, tmp_path / "work")


async def test_a_model_gives_a_child_at_work_a_message_and_interrupts_it(room, script, calling):
    given = {"description": "long", "prompt": "take your time"}
    lead = await room.lead(script(calling(("implement", given)), {"text": "it runs"}), roles={"implement": kept("openai:fault=hang")})
    await lead.run("begin")
    (record,) = room.records(lead)
    wanted = {"send_message": {"agent_id": record.thread, "message": "and the docs"}, "interrupt_agent": {"agent_id": record.thread}}
    for name, arguments in wanted.items():
        lead.model_ref = script(*[{"text": "-"}] * answers(lead), calling((name, arguments)), *[{"text": "done"}] * 4)
        await lead.run(name)
    await room.service.rest(lead)
    _, sent, stopped = room.results(lead)
    assert not sent.is_error and "waits for its turn" in sent.text
    assert not stopped.is_error and "is interrupted" in stopped.text
    (notice,) = room.notices(lead)
    assert "aborted" in notice and "1 messages that wait in it" in notice
    await room.host.get(AGENTS).dispose(lead)


def kept(model):
    return {"model": model, "background_mode": "continuable"}


def answers(agent):
    return sum(message.role == "assistant" for _, message in agent.session.messages)


async def test_a_background_child_that_fails_is_a_failed_job_with_what_there_is_of_it(room, script, calling):
    failing = script(
        {"text": "I have the half", "calls": [{"name": "glob", "arguments": {"pattern": "*"}}]}, {"text": "I will not", "finish": "refusal"}
    )
    given = {"description": "b", "prompt": "do it", "run_in_background": True}
    lead = await room.lead(
        script(calling(("implement", given)), {"text": "meanwhile"}, {"text": "heard"}), roles={"implement": {"model": failing}}
    )
    await lead.run("begin")
    await room.service.rest(lead)
    (notice,) = room.notices(lead)
    assert "job-1 has ended (failed)" in notice and "refusal (REFUSAL)" in notice and "I will not" in notice
    await room.host.get(AGENTS).dispose(lead)


async def test_a_role_without_settings_is_a_child_of_spawn_with_nothing_of_it_in_the_leads_log(room, script, calling):
    secret = "seen only by the child"
    child = script(
        {"text": secret, "calls": [{"name": "glob", "arguments": {"pattern": "*"}}]},
        calling(("structured_output", {"outcome": "done", "result": "ok"})),
    )
    lead = await room.lead(
        script(calling(("search_internal_deep", {"description": "look", "prompt": "look"})), {"text": "so"}, *[{"text": "x"}] * 2),
        roles={"search_internal_deep": kept(child)},
    )
    await lead.run("begin")
    await room.service.rest(lead)
    (record,) = room.records(lead)
    assert record.spec.runner == "spawn" and record.spec.permission == "read-only"
    log = [json.dumps(event.data) for event in room.host.get(SESSIONS).read(lead.id)]
    assert not any(secret in line for line in log)
    await room.host.get(AGENTS).dispose(lead)


async def test_what_a_child_suggests_is_carried_to_the_next_attempt(room, script, calling):
    report = {"outcome": "failed", "result": "half", "error": "E1", "next": "look at the lock first"}
    again = {"description": "b", "prompt": "Build the parser"}
    lead = await room.lead(
        script(calling(("implement", again)), {"text": "-"}), roles={"implement": {"model": script(calling(("structured_output", report)))}}
    )
    await lead.run("begin")
    (record,) = room.records(lead)
    lead.model_ref = script(*[{"text": "-"}] * answers(lead), calling(("implement", {**again, "after": record.id})), {"text": "-"})
    await lead.run("again")
    assert "It suggests: look at the lock first" in room.records(lead)[1].spec.prompt
    await room.host.get(AGENTS).dispose(lead)


async def test_a_setting_that_there_is_not_is_named(room):
    with pytest.raises(HamesError, match="unknown_thing"):
        await room.lead("openai:text=x", unknown_thing=1)
    await asyncio.sleep(0)
