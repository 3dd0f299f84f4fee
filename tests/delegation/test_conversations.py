"""Children that are kept: their messages, their rest, the one notice, and what is left after a restart."""

from __future__ import annotations

import asyncio
import json

import pytest

from hames.agents import AGENTS, AgentSpec, ToolEnded
from hames.delegation import DELEGATION
from hames.delegation.failures import Refused
from hames.delegation.inprocess import InProcess
from hames.sessions import SESSIONS


class Bench:
    """A host, with leads whose children are kept."""

    def __init__(self, host, cwd):
        self.host, self.cwd = host, str(cwd)
        self.agents = host.get(AGENTS)
        self.service = host.get(DELEGATION)
        self.ledger = self.service.tasks.ledger
        self.conversations = self.service.conversations

    async def lead(self, model, **more):
        return await self.agents.create(AgentSpec(self.cwd, model, **more))

    async def lived(self, lead, prompt="go"):
        """A turn of a lead, and all that follows from it."""
        end = await lead.run(prompt)
        await self.service.rest(lead)
        return end

    async def send(self, lead, thread, text):
        return await self.conversations.send(thread, text, self.service.tasks.origin(lead))

    def thread(self, lead):
        return self.ledger.below(lead.id)[0].thread

    def notices(self, lead):
        return [message.text for _, message in lead.session.messages if message.source == "harness" and "has ended" in message.text]

    def said(self, session):
        """What a session was told by whoever it works for, in order."""
        events = self.host.get(SESSIONS).read(session)
        messages = [event.data for event in events if event.type == "message" and event.data["role"] == "user"]
        return ["".join(block.get("text", "") for block in message["blocks"]) for message in messages if message["source"] == "user"]


@pytest.fixture
async def bench(opened, tmp_path):
    patch = tmp_path / "patch.json"
    rows = [{"id": "loop", "set": {"config": {"retries": 0}}}, {"id": "delegation", "set": {"config": {"max_depth": 3, "grace": 3.0}}}]
    patch.write_text(json.dumps(rows))
    async with opened(patch) as host:
        yield Bench(host, tmp_path)


def keeping(calling, model="openai:text=well", **more):
    return calling(("delegate", {"description": "a bit", "prompt": "do your bit", "keep": True, "model": model, **more}))


async def test_a_kept_child_runs_beside_its_parent_which_is_told_once(bench, wired, script, calling):
    lead = await bench.lead(script(keeping(calling), {"text": "meanwhile"}, {"text": "heard"}))
    await bench.lived(lead)
    assert len(bench.notices(lead)) == 1 and "well" in bench.notices(lead)[0]
    assert lead.last.text == "heard"
    (record,) = bench.ledger.below(lead.id)
    record = bench.ledger.get(record.id)
    assert record.outcome.ok and [receipt.kind for receipt in record.receipts] == ["delivered"]
    await bench.agents.dispose(lead)


async def test_a_message_goes_on_with_the_conversation(bench, wired, script, calling):
    lead = await bench.lead(script(keeping(calling), {"text": "meanwhile"}, {"text": "heard"}, {"text": "heard again"}))
    await bench.lived(lead)
    thread = bench.thread(lead)
    sent = await bench.send(lead, thread, "and now the rest")
    assert not sent.waits and sent.thread == thread
    await bench.service.rest(lead)
    first, second = (bench.ledger.get(record.id) for record in bench.ledger.thread(thread))
    assert first.attempts[0].native == second.attempts[0].native
    assert bench.said(second.attempts[0].native) == ["do your bit", "and now the rest"]
    assert len(bench.notices(lead)) == 2
    body = json.loads(wired.received[-1].body)
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    await bench.agents.dispose(lead)


async def test_only_its_parent_may_speak_to_it(bench, wired, script, calling):
    lead = await bench.lead(script(keeping(calling), {"text": "meanwhile"}, {"text": "heard"}))
    await bench.lived(lead)
    other = await bench.lead("openai:text=x")
    with pytest.raises(Refused) as raised:
        await bench.send(other, bench.thread(lead), "psst")
    assert raised.value.code == "UNAUTHORIZED"
    for each in (lead, other):
        await bench.agents.dispose(each)


async def test_messages_to_a_child_that_works_wait_in_order(bench, wired, script, calling):
    lead = await bench.lead(script(keeping(calling, "openai:fault=hang"), {"text": "meanwhile"}, *[{"text": "heard"}] * 3))
    await lead.run("go")
    thread = bench.thread(lead)
    sent = [await bench.send(lead, thread, text) for text in ("one", "two")]
    assert all(each.waits for each in sent)
    (entry,) = bench.conversations.list(lead.id)
    assert entry.status == "running" and entry.waiting == 2
    bench.conversations.interrupt(thread, lead)
    await bench.service.rest(lead)
    (entry,) = bench.conversations.list(lead.id)
    assert (entry.status, entry.last, entry.waiting) == ("kept", "aborted", 2)
    assert "2 messages that wait" in bench.notices(lead)[0]
    await bench.agents.dispose(lead)


async def test_a_parent_rests_only_when_its_children_have(bench, wired, script, calling):
    inner = script(keeping(calling, "openai:text=deep"), {"text": "mine is on its way"}, {"text": "all done"})
    lead = await bench.lead(script(keeping(calling, inner), {"text": "meanwhile"}, {"text": "heard"}))
    await bench.lived(lead)
    assert len(bench.notices(lead)) == 1 and "all done" in bench.notices(lead)[0]
    entries = bench.conversations.list(lead.id, "descendants")
    assert [(entry.depth, entry.status) for entry in entries] == [(1, "kept"), (2, "kept")]
    assert all(entry.turns and entry.disk for entry in entries)
    await bench.agents.dispose(lead)


async def test_a_conversation_that_was_removed_takes_nothing(bench, wired, script, calling):
    lead = await bench.lead(script(keeping(calling), {"text": "meanwhile"}, {"text": "heard"}))
    await bench.lived(lead)
    thread = bench.thread(lead)
    assert await bench.conversations.purge(thread) > 0
    with pytest.raises(Refused) as raised:
        await bench.send(lead, thread, "are you there?")
    assert raised.value.code == "CONVERSATION_GONE"
    assert [entry.status for entry in bench.conversations.list(lead.id)] == ["gone"]
    await bench.agents.dispose(lead)


async def test_the_tools_say_what_they_do(bench, wired, script, calling):
    lead = await bench.lead(script(keeping(calling), calling(("list_agents", {})), {"text": "done"}, {"text": "heard"}, {"text": "x"}))
    await bench.lived(lead)
    results = [block for _, message in lead.session.messages if message.source == "tool" for block in message.blocks]
    assert not any(block.is_error for block in results)
    assert bench.thread(lead) in results[1].text and "turns" in results[1].text
    await bench.agents.dispose(lead)


async def test_a_message_that_comes_while_a_result_is_given_is_the_next_turn_of_the_same_rest(bench, wired, script, calling):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    child = script(calling(("structured_output", {"n": 1})), calling(("structured_output", {"n": 2})))
    lead = await bench.lead(script(keeping(calling, child, output_schema=schema), {"text": "meanwhile"}, *[{"text": "heard"}] * 3))
    tasks, given = bench.service.tasks, []

    def ended(notice):
        if notice.call.name == "structured_output" and not given:
            given.append(bench.agents.live[notice.agent])
            given[0].send("and once more")

    bench.host.ctx.on(ToolEnded, ended)
    await bench.lived(lead)
    (record,) = tasks.ledger.thread(bench.thread(lead))
    assert record.outcome.value == {"n": 2} and len(bench.notices(lead)) == 1
    assert bench.said(record.outcome.native) == ["do your bit", "and once more"]
    await bench.agents.dispose(lead)


async def test_a_call_that_is_cancelled_before_the_work_is_taken_takes_it_back(bench, wired, script, calling, monkeypatch):
    gate, begun, start = asyncio.Event(), asyncio.Event(), InProcess.start

    async def slow(self, launch):
        begun.set()
        await gate.wait()
        return await start(self, launch)

    monkeypatch.setattr(InProcess, "start", slow)
    lead = await bench.lead(script(keeping(calling), {"text": "never"}))
    lead.send("go")
    await begun.wait()
    lead.cancel("user")
    gate.set()
    await lead.idle()
    (record,) = bench.ledger.below(lead.id)
    outcome = bench.ledger.get(record.id).outcome
    assert outcome is not None and outcome.status == "aborted"
    assert bench.service.tasks.live == {} and bench.notices(lead) == [] and wired.received == type(wired.received)()
    await bench.agents.dispose(lead)
