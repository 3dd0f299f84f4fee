"""One-shot children: what they begin with, what comes back, how each way of ending is told, and what they may not do."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.agents.events import Chunked
from hames.budget import Limits
from hames.content.finish import Usage
from hames.delegation import DELEGATION
from hames.delegation.failures import FAILURES, Refused
from hames.delegation.runner import Origin
from hames.delegation.spec import TaskSpec
from hames.kernel import Mask, plugin
from hames.store import STORE
from hames.testing.contract import children_of_this
from hames.toolkit.plan import set_plan_mode
from hames.tools import TOOLS, Approval, Question, tool


async def until(condition, patience=10.0):
    async with asyncio.timeout(patience):
        while not condition():
            await asyncio.sleep(0.002)


def delegating(**arguments):
    return ("delegate", {"description": "a bit", "prompt": "do your bit", **arguments})


def results(agent):
    return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]


@tool("read")
async def look(at: str) -> str:
    """Look."""
    return f"seen {at}"


@tool("write")
async def mark(at: str) -> str:
    """Mark."""
    return f"marked {at}"


@tool("network")
async def knock(at: str) -> str:
    """Knock."""
    return f"opened {at}"


@tool("read", timeout=None)
async def dawdle(at: str) -> str:
    """Do nothing for long."""
    await asyncio.sleep(60)
    return at


@plugin(needs=(TOOLS,))
def more_tools(ctx, config):
    for each in (look, mark, knock, dawdle):
        ctx.use(TOOLS).register(ctx, each)


class Bench:
    """A host with what is asked of it."""

    def __init__(self, host, tmp_path):
        self.host = host
        self.cwd = str(tmp_path)
        self.agents = host.get(AGENTS)
        self.service = host.get(DELEGATION)
        self.tasks = self.service.tasks
        self.ledger = self.tasks.ledger
        self.origin = Origin(host.root_scope, self.cwd)
        host.mount(more_tools)

    async def lead(self, model, **more):
        return await self.agents.create(AgentSpec(self.cwd, model, **more))

    async def run(self, model, origin=None, **more):
        return await self.tasks.run(TaskSpec(**{"prompt": "do your bit", "model": model, **more}), origin or self.origin)

    def read(self, session):
        return self.agents._sessions.read(session)

    def outcomes(self, lead):
        return [self.ledger.get(record.id).outcome for record in self.ledger.below(lead.id)]

    async def refused(self, spec, origin):
        """The code with which a task is refused; nothing has come of it."""
        sessions = self.sessions()
        agents = set(self.agents.live)
        with pytest.raises(Refused) as raised:
            await self.tasks.start(spec, origin)
        assert raised.value.remedy
        assert self.sessions() == sessions and set(self.agents.live) == agents
        assert self.tasks.live == {} and self.ledger.list() == []
        return raised.value.code

    def sessions(self):
        return self.host.get(STORE).sessions.query("SELECT sid FROM sessions ORDER BY sid")


@pytest.fixture
async def bench(opened, tmp_path):
    patch = tmp_path / "patch.json"
    rows = [{"id": "loop", "set": {"config": {"retries": 0}}}, {"id": "delegation", "set": {"config": {"max_depth": 2, "grace": 3.0}}}]
    patch.write_text(json.dumps(rows))
    before, children = asyncio.all_tasks(), children_of_this()
    async with opened(patch) as host:
        made = Bench(host, tmp_path)
        yield made
        assert made.tasks.live == {}
    await until(lambda: not [each for each in asyncio.all_tasks() - before if each is not asyncio.current_task() and not each.done()])
    await until(lambda: children_of_this() <= children)


# what comes back


async def test_the_last_message_with_words_is_the_result(bench, script, calling):
    model = script(calling(("look", {"at": "a"}), text="I look."), {"text": "It is so.", "usage": {"input": 7, "output": 3}})
    outcome = await bench.run(model)
    assert outcome.ok and outcome.text == "It is so." and (outcome.fault, outcome.code, outcome.partial) == ("none", "", False)
    assert outcome.steps == 2 and outcome.attempts == 1 and outcome.native
    assert bench.ledger.list()[0].outcome == outcome
    assert bench.agents.live == {}


@pytest.mark.parametrize("last", [{"text": ""}, {"text": "  \n "}, {"reasoning": "I think"}])
async def test_an_empty_message_at_the_end_does_not_hide_the_words_before(bench, script, calling, last):
    outcome = await bench.run(script(calling(("look", {"at": "a"}), text="I look."), last))
    assert outcome.text == "I look."


@pytest.mark.parametrize("answers", [[{"text": ""}], [{"text": " \n"}], [{"reasoning": "I think"}], "call first"])
async def test_a_child_that_says_nothing_has_not_completed(bench, script, calling, answers):
    model = script(calling(("look", {"at": "a"})), {"text": ""}) if answers == "call first" else script(*answers)
    outcome = await bench.run(model, retries=2)
    assert (outcome.status, outcome.fault, outcome.code) == ("error", "child", "NO_FINAL_MESSAGE")
    assert outcome.attempts == 1 and outcome.diagnostic and not outcome.text.strip()


@pytest.mark.parametrize("fault", ["no-finish", "error-object", "malformed"])
async def test_what_was_streamed_is_kept_where_the_stream_breaks(bench, wired, fault):
    text = ";text=Half of it and more" if fault == "no-finish" else ""
    outcome = await bench.run(f"openai:fault={fault}{text}")
    assert (outcome.status, outcome.fault, outcome.code) == ("error", "infrastructure", "MODEL_FAILED")
    assert outcome.text.startswith("Half") and outcome.partial and outcome.diagnostic


async def test_what_was_streamed_is_kept_where_it_is_cancelled(bench, wired):
    heard = []
    bench.host.ctx.on(Chunked, heard.append)
    task = await bench.tasks.start(TaskSpec("go", model="openai:fault=hang;text=Half of it"), bench.origin)
    await until(lambda: heard)
    task.cancel("user")
    outcome = await task.outcome()
    assert (outcome.status, outcome.fault, outcome.code) == ("aborted", "none", "CANCELLED")
    assert outcome.text.strip() == "Half" and outcome.partial


# how each way of ending is told

ENDS = [
    ({"text": "well"}, "completed", "none", ""),
    ({"text": "half", "finish": "max-tokens"}, "max-tokens", "child", "MAX_TOKENS"),
    ({"text": "I will not.", "finish": "refusal"}, "refusal", "child", "REFUSAL"),
    *(
        ({"failure": kind}, "error", "infrastructure", "MODEL_FAILED")
        for kind in ("cut", "malformed", "empty", "rate-limit", "overloaded", "server", "timeout", "transport", "auth", "not-found")
    ),
    *(({"failure": kind}, "error", "child", "MODEL_REJECTED") for kind in ("invalid-request", "context-overflow")),
]


@pytest.mark.parametrize("runner", ["spawn", "fork"])
@pytest.mark.parametrize(("answer", "status", "fault", "code"), ENDS, ids=lambda each: str(each)[:40])
async def test_each_way_in_which_a_turn_ends_has_its_name(bench, script, runner, answer, status, fault, code):
    lead = await bench.lead(script({"text": "Hello."}))
    await lead.run("hello")
    before = [{"text": "Hello."}] if runner == "fork" else []
    outcome = await bench.run(script(*before, answer), bench.tasks.origin(lead), runner=runner)
    assert (outcome.status, outcome.fault, outcome.code) == (status, fault, code)
    assert outcome.text == answer.get("text", "") and outcome.partial == (status != "completed" and bool(outcome.text))
    if code:
        assert FAILURES[code].fault == fault and (outcome.diagnostic or status == "refusal")
    assert set(bench.agents.live) == {lead.id}


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("refusal", "refusal", "REFUSAL"),
        ("length-in-arguments", "max-tokens", "MAX_TOKENS"),
        ("auth", "error", "MODEL_FAILED"),
        ("server", "error", "MODEL_FAILED"),
        ("html", "error", "MODEL_FAILED"),
        ("empty", "error", "MODEL_FAILED"),
        ("cut-socket", "error", "MODEL_FAILED"),
        ("overflow", "error", "MODEL_REJECTED"),
    ],
)
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_what_a_provider_does_has_its_name_and_no_secret(bench, wired, provider, fault, status, code):
    outcome = await bench.run(f"{provider}:fault={fault}")
    assert (outcome.status, outcome.code) == (status, code)
    assert "test-key" not in json.dumps(outcome.as_json())


async def test_a_budget_and_a_repetition_have_their_names(bench, script, calling):
    calls = [calling(("look", {"at": f"{n}"}), text=f"part {n}") for n in range(5)]
    outcome = await bench.run(script(*calls), budget=Limits(steps=2))
    assert (outcome.status, outcome.fault, outcome.code, outcome.text, outcome.steps) == ("budget", "none", "BUDGET", "part 1", 2)
    outcome = await bench.run(script(*[calling(("look", {"at": "same"}), text="again")] * 12))
    assert (outcome.status, outcome.fault, outcome.code) == ("budget", "child", "REPEATED")


async def test_only_infrastructure_faults_are_tried_again_and_inside_one_task(bench, wired, monkeypatch):
    monkeypatch.setattr("hames.delegation.drive.FIRST_PAUSE", 0.01)
    outcome = await bench.run("openai:fault=server;times=2;text=well", retries=3)
    assert outcome.ok and outcome.text == "well" and outcome.attempts == 3 and len(wired.received) == 3
    (record,) = bench.ledger.list()
    record = bench.ledger.get(record.id)
    assert [each.n for each in record.attempts] == [1, 2, 3] and [each.exit for each in record.attempts][:2] == ["MODEL_FAILED"] * 2
    assert len({each.native for each in record.attempts}) == 3  # each one begins afresh
    wired.received.clear()
    outcome = await bench.run("openai:fault=refusal", retries=3)
    assert (outcome.code, outcome.attempts, len(wired.received)) == ("REFUSAL", 1, 1)


async def test_what_attempts_have_spent_that_failed_is_counted(bench, script, monkeypatch):
    monkeypatch.setattr("hames.delegation.drive.FIRST_PAUSE", 0.01)
    first = {"text": "I look.", "calls": [{"name": "look", "arguments": {"at": "a"}}], "usage": {"input": 10}}
    outcome = await bench.run(script(first, {"failure": "server"}), retries=1)
    assert (outcome.code, outcome.attempts) == ("MODEL_FAILED", 2)
    assert sum(item.usage.total for item in outcome.usage) == 20


# what it costs


async def test_what_is_spent_below_is_told_apart_and_counted_once(bench, script, calling):
    leaf = script({"text": "leaf", "usage": {"input": 5, "output": 1}})
    two = {**calling(delegating(model=leaf), delegating(model=leaf, prompt="again")), "usage": {"input": 10}}
    middle = script(two, {"text": "middle", "usage": {"input": 20}})
    lead = await bench.lead(
        script({**calling(delegating(model=middle)), "usage": {"input": 100}}, {"text": "top", "usage": {"input": 200}})
    )
    end = await lead.run("go")
    (outcome,) = bench.outcomes(lead)
    own = {item.model: item.usage.total for item in outcome.usage if item.scope == "own"}
    below = {item.model: item.usage.total for item in outcome.usage if item.scope == "below"}
    assert own == {middle: 30} and below == {leaf: 12} and outcome.cost == 0.0
    assert end.usage.total == 300 and end.below.total == 42
    assert all(
        item.usage.total == 6 for record in bench.ledger.children(bench.ledger.below(lead.id)[0].id) for item in record.outcome.usage
    )


async def test_cost_is_the_own_and_that_of_all_below(opened, tmp_path, stub, script, calling):
    rates = {"input": 1000.0, "output": 2000.0, "cache_read": 100.0}
    answer = (36 * 1000 + 10 * 2000 + 64 * 100) / 1_000_000
    arguments = json.dumps({"description": "a bit", "prompt": "go", "model": "paid:text=leaf"}, separators=(",", ":"))
    middle = f"steps=1;tool=delegate;args={arguments}"
    config = {"dialect": "openai-chat", "base_url": f"{stub.url}/v1", "key_env": "", "prices": {middle: rates, "text=leaf": rates}}
    patch = tmp_path / "prices.json"
    rows = [{"id": "models", "set": {"config": {"providers": {"paid": config}}}}, {"id": "delegation", "set": {"config": {"max_depth": 2}}}]
    patch.write_text(json.dumps(rows))
    async with opened(patch) as host:
        bench = Bench(host, tmp_path)
        outcome = await bench.run(f"paid:{middle}", budget=Limits(cost=1.0))
        assert outcome.ok, outcome.diagnostic
        assert outcome.cost == pytest.approx(3 * answer)
        assert [(item.scope, item.usage) for item in outcome.usage] == [("own", Usage(72, 20, 128)), ("below", Usage(36, 10, 64))]


async def test_another_model_that_stands_in_is_told_by_its_own_name(opened, tmp_path, script):
    second = script({"text": "well", "usage": {"input": 9}})
    patch = tmp_path / "fallback.json"
    patch.write_text(json.dumps([{"id": "loop", "set": {"config": {"retries": 0, "fallback": [second]}}}]))
    async with opened(patch) as host:
        outcome = await Bench(host, tmp_path).run(script({"failure": "server"}))
        assert outcome.ok and [(item.model, item.usage.total) for item in outcome.usage] == [(second, 9)]


# what it begins with


async def test_a_fork_begins_with_the_turns_that_have_ended(bench, wired, script):
    lead = await bench.lead("openai:text=first answer")
    await lead.run("FIRST QUESTION")
    lead.model_ref = f"openai:steps=1;tool=look;args={json.dumps({'at': 'a'})}"
    wired.received.clear()
    seen = []

    async def starts(at: str) -> str:
        """Look."""
        outcome = await bench.run("openai:text=forked", bench.tasks.origin(lead), runner="fork", prompt="FORKED")
        seen.append(outcome)
        return "seen"

    lead_scope = bench.host.ctx.at(lead.scope)
    bench.host.get(TOOLS).register(lead_scope, tool("read", timeout=None)(renamed(starts, "look")))
    await lead.run("OPEN QUESTION")
    (outcome,) = seen
    assert outcome.ok and outcome.text == "forked"
    (request,) = [each for each in wired.received if json.loads(each.body)["model"] == "text=forked"]
    messages = [str(message.get("content")) for message in json.loads(request.body)["messages"]]
    assert any("FIRST QUESTION" in each for each in messages) and any("first answer" in each for each in messages)
    assert not any("OPEN QUESTION" in each for each in messages)
    assert "FORKED" in messages


def renamed(function, name):
    function.__name__ = name
    return function


async def test_a_fork_of_a_conversation_without_an_ended_turn_begins_with_nothing(bench, wired):
    lead = await bench.lead("openai:text=x")
    outcome = await bench.run("openai:text=forked", bench.tasks.origin(lead), runner="fork", prompt="FORKED")
    assert outcome.ok and outcome.text == "forked"
    messages = json.loads(wired.received[0].body)["messages"]
    assert [message["role"] for message in messages if message["role"] == "assistant"] == []


async def test_a_fork_from_the_first_turn_of_a_conversation_begins_with_nothing(opened, tmp_path, wired, script, calling):
    patch = tmp_path / "fork.json"
    patch.write_text(json.dumps([{"id": "delegate", "set": {"config": {"runner": "fork"}}}]))
    async with opened(patch) as host:
        bench = Bench(host, tmp_path)
        lead = await bench.lead(script(calling(delegating(model="openai:text=forked", prompt="FORKED")), {"text": "x"}))
        await lead.run("OPEN QUESTION")
        (outcome,) = bench.outcomes(lead)
        assert outcome.ok and outcome.text == "forked" and bench.ledger.list()[0].spec.runner == "fork"
        assert b"FORKED" in wired.received[0].body and b"OPEN QUESTION" not in wired.received[0].body


async def test_a_fork_never_gives_words_of_its_prefix_as_its_own(bench, script):
    lead = await bench.lead(script({"text": "Words of the lead."}))
    await lead.run("hello")
    model = script({"text": "Words of the lead."}, {"text": ""})
    outcome = await bench.run(model, bench.tasks.origin(lead), runner="fork")
    assert (outcome.code, outcome.text) == ("NO_FINAL_MESSAGE", "")
    model = script({"text": "Words of the lead."}, {"failure": "server"})
    outcome = await bench.run(model, bench.tasks.origin(lead), runner="fork")
    assert (outcome.code, outcome.text, outcome.partial) == ("MODEL_FAILED", "", False)


async def test_a_fork_without_a_conversation_is_refused(bench):
    assert await bench.refused(TaskSpec("go", runner="fork"), bench.origin) == "SPEC_INVALID"


async def test_a_spawned_child_sees_nothing_of_the_conversation(bench, wired):
    lead = await bench.lead("openai:text=SECRET ANSWER")
    await lead.run("SECRET QUESTION")
    wired.received.clear()
    assert (await bench.run("openai:text=well", bench.tasks.origin(lead))).ok
    assert len(wired.received) == 1 and b"SECRET" not in wired.received[0].body


async def test_model_effort_and_settings_are_handed_on(bench, wired):
    lead = await bench.lead("openai:text=well")
    lead.settings = replace(lead.settings, effort="low", temperature=0.25)
    await bench.run("", bench.tasks.origin(lead))
    await bench.run("openai:text=other", bench.tasks.origin(lead), effort="high")
    first, second = (json.loads(each.body) for each in wired.received)
    assert (first["model"], first["reasoning_effort"], first["temperature"]) == ("text=well", "low", 0.25)
    assert (second["model"], second["reasoning_effort"], second["temperature"]) == ("text=other", "high", 0.25)


async def test_what_the_parent_changes_after_the_start_changes_nothing_for_the_child(bench, wired):
    lead = await bench.lead("openai:text=well")
    lead.settings = replace(lead.settings, effort="low")
    starting = asyncio.ensure_future(bench.tasks.run(TaskSpec("go"), bench.tasks.origin(lead)))
    await asyncio.sleep(0)
    lead.settings = replace(lead.settings, effort="high")
    lead.model_ref = "openai:text=other"
    assert (await starting).ok
    body = json.loads(wired.received[0].body)
    assert body["model"] == "text=well"
    assert body["reasoning_effort"] == "low"


async def test_files_that_are_given_along_can_be_read(bench, wired):
    digest = bench.host.get(STORE).blobs.put(b"the bytes")
    assert (await bench.run("openai:text=well", inputs={"notes.txt": digest})).ok
    said = json.loads(wired.received[0].body)["messages"]
    path = str(bench.host.get(STORE).blobs.path(digest))
    assert any("notes.txt" in str(each["content"]) and path in str(each["content"]) for each in said)
    assert Path(path).read_bytes() == b"the bytes"


async def test_files_that_are_not_there_are_refused(bench):
    spec = TaskSpec("go", model="openai:text=x", inputs={"notes.txt": "0" * 64})
    assert await bench.refused(spec, bench.origin) == "INPUT_UNKNOWN"


# what the parent keeps


async def test_the_parent_holds_the_task_and_its_end_and_nothing_of_the_work(bench, wired, script, calling):
    child = script(calling(("look", {"at": "CHILD-CALL"}), text="CHILD-THOUGHT"), {"text": "the RESULT"})
    arguments = json.dumps({"description": "a bit", "prompt": "the PROMPT", "model": child}, separators=(",", ":"))
    lead = await bench.lead(f"openai:steps=1;tool=delegate;args={arguments}")
    assert (await lead.run("go")).reason == "completed"
    events = bench.read(lead.id)
    (began,) = [event.data for event in events if event.type == "delegated"]
    (ended,) = [event.data for event in events if event.type == "settled"]
    (record,) = bench.ledger.below(lead.id)
    assert began["task"] == ended["task"] == record.id and began["spec"]["prompt"] == "the PROMPT" and began["spec"]["model"] == child
    assert (ended["status"], ended["session"]) == ("completed", bench.outcomes(lead)[0].native)
    log = json.dumps([event.data for event in events])
    requests = b"".join(each.body for each in wired.received)
    assert "the RESULT" in log and b"the RESULT" in requests and len(wired.received) == 2
    for secret in ("CHILD-CALL", "CHILD-THOUGHT"):
        assert secret not in log and secret.encode() not in requests
    own = json.dumps([event.data for event in bench.read(ended["session"])])
    assert "CHILD-CALL" in own and "CHILD-THOUGHT" in own


async def test_a_long_result_comes_by_its_head_and_a_file_holds_the_whole(bench, wired, script):
    whole = "x" * 5_000_000 + "END"
    child = script({"text": whole})
    arguments = json.dumps({"description": "a bit", "prompt": "go", "model": child}, separators=(",", ":"))
    lead = await bench.lead(f"openai:steps=1;tool=delegate;args={arguments}")
    assert (await lead.run("go")).reason == "completed"
    (ended,) = [event.data for event in bench.read(lead.id) if event.type == "settled"]
    assert Path(ended["path"]).read_text() == whole and ended["characters"] == len(whole)
    (result,) = results(lead)
    assert len(result.text) < 20_000 and ended["path"] in result.text and result.text.startswith("x" * 10_000)
    assert len(wired.received[1].body) < 200_000
    (outcome,) = bench.outcomes(lead)
    assert outcome.text == whole


async def test_a_failure_tells_what_there_is(bench, script, calling):
    child = script({"text": "I will not do that.", "finish": "refusal"})
    lead = await bench.lead(script(calling(delegating(model=child)), {"text": "well"}))
    await lead.run("go")
    (result,) = results(lead)
    assert result.is_error and result.code == "REFUSAL" and "refusal" in result.text and "I will not do that." in result.text
    assert bench.outcomes(lead)[0].native in result.text


# trees


async def test_grandchildren_end_with_the_child(bench, script, calling):
    leaf = script(calling(("dawdle", {"at": "x"})), {"text": "leaf"})
    middle = script(calling(delegating(model=leaf), delegating(model=leaf, prompt="again")), {"text": "middle"})
    task = await bench.tasks.start(TaskSpec("go", model=middle), bench.origin)
    await until(lambda: len([each for each in bench.tasks.live.values() if each.depth == 2 and each.state == "running"]) == 2)
    await until(lambda: task.state == "waiting" and task.waiting == "child")
    task.cancel("user")
    assert (await task.outcome()).code == "CANCELLED"
    assert bench.tasks.live == {} and bench.agents.live == {}
    below = bench.ledger.children(task.id)
    assert [(record.depth, record.root, record.outcome.code) for record in below] == [(2, task.id, "PARENT_ENDED")] * 2


async def test_nobody_starts_anything_at_the_last_depth(bench, wired, script, calling):
    leaf = "openai:text=leaf"
    middle = script(calling(delegating(model=leaf)), {"text": "middle"})
    assert (await bench.run(middle)).ok
    names = [each["function"]["name"] for each in json.loads(wired.received[0].body)["tools"]]
    assert "delegate" not in names and "look" in names
    deep = script(calling(delegating(model="openai:text=deeper")), {"text": "leaf"})
    wired.received.clear()
    assert (await bench.run(script(calling(delegating(model=deep)), {"text": "middle"}))).ok
    assert not wired.received


async def test_the_depth_holds_when_a_user_resumes_the_session_of_a_child(bench, script, calling):
    leaf = script(calling(delegating(model="openai:text=deeper")), {"text": "I could not."}, calling(delegating()), {"text": "again not"})
    middle = script(calling(delegating(model=leaf)), {"text": "middle"})
    await bench.run(middle)
    deepest = next(record for record in bench.ledger.list() if record.depth == 2)
    count = len(bench.ledger.list())
    agent = await bench.agents.create(AgentSpec("", resume=bench.ledger.get(deepest.id).outcome.native))
    assert "delegate" not in bench.host.get(TOOLS).registry.view(agent.scope)
    assert bench.tasks.origin(agent).depth == 2
    await agent.run("once more")
    with pytest.raises(Refused) as raised:
        await bench.tasks.start(TaskSpec("go", model=leaf), bench.tasks.origin(agent))
    assert raised.value.code == "DEPTH_EXCEEDED" and len(bench.ledger.list()) == count
    await bench.agents.dispose(agent)


async def test_the_mode_and_the_tools_hold_when_a_user_resumes_the_session_of_a_child(bench, script):
    outcome = await bench.run(script({"text": "well"}), tools=("look", "delegate"), permission="read-only")
    agent = await bench.agents.create(AgentSpec("", resume=outcome.native))
    assert set(bench.host.get(TOOLS).registry.view(agent.scope)) == {"look", "delegate"} and agent.ceiling == "read-only"
    spec = TaskSpec("go", model=script({"text": "x"}), permission="workspace-write")
    for each in (spec, TaskSpec("go", tools=("mark",))):
        with pytest.raises(Refused) as raised:
            await bench.tasks.start(each, bench.tasks.origin(agent))
        assert raised.value.code == "GRANT_EXCEEDED"
    await bench.agents.dispose(agent)


# what a child may


@pytest.mark.parametrize("tools", [("look", "nothing_like_that"), ("nothing_*",), ("none", "look"), ()])
async def test_an_unknown_tool_is_refused_and_nothing_is_left(bench, script, tools):
    lead = await bench.lead(script({"text": "x"}))
    assert await bench.refused(TaskSpec("go", tools=tools), bench.tasks.origin(lead)) == "TOOL_UNKNOWN"


async def test_an_unknown_tool_in_a_call_is_told_to_the_model(bench, script, calling):
    lead = await bench.lead(script(calling(delegating(tools=["look", "nothing_like_that"])), {"text": "well"}))
    await lead.run("go")
    (result,) = results(lead)
    assert result.is_error and result.code == "TOOL_UNKNOWN" and "nothing_like_that" in result.text
    assert len(bench.sessions()) == 1 and bench.ledger.list() == [] and set(bench.agents.live) == {lead.id}


async def test_tools_outside_of_what_the_parent_was_given_are_refused(bench, script):
    lead = await bench.lead(script({"text": "x"}), grant=(Mask(frozenset({"look", "delegate"})),))
    for tools in (("mark",), ("l*", "mark")):
        assert await bench.refused(TaskSpec("go", tools=tools), bench.tasks.origin(lead)) == "GRANT_EXCEEDED"


@pytest.mark.parametrize(
    ("tools", "seen"),
    [
        (("lo*",), {"look"}),
        (("*",), {"look", "write", "delegate", "list_agents"}),
        (("m*", "w*", "look"), {"look", "write"}),
        (("none",), set()),
    ],
)
async def test_patterns_meet_what_the_parent_was_given(bench, wired, script, tools, seen):
    lead = await bench.lead(script({"text": "x"}), grant=(Mask(frozenset({"l*", "w*", "delegate"}), frozenset({"web_*"})),))
    assert (await bench.run("openai:text=well", bench.tasks.origin(lead), tools=tools)).ok
    body = json.loads(wired.received[0].body)
    assert {each["function"]["name"] for each in body.get("tools", ())} == seen


async def test_a_denial_binds_grandchildren(bench, wired, script, calling):
    lead = await bench.lead(script({"text": "x"}), grant=(Mask(deny=frozenset({"mark", "web_*"})),))
    middle = script(calling(delegating(model="openai:text=well")), calling(delegating(tools=["mark"])), {"text": "middle"})
    assert (await bench.run(middle, bench.tasks.origin(lead))).ok
    (request,) = wired.received
    names = {each["function"]["name"] for each in json.loads(request.body)["tools"]}
    assert "look" in names and not {name for name in names if name == "mark" or name.startswith("web_")}
    assert len([record for record in bench.ledger.list() if record.depth == 2]) == 1


async def test_a_tool_that_a_child_is_not_given_cannot_be_called(bench, script, calling):
    model = script(calling(("mark", {"at": "a"})), {"text": "well"})
    outcome = await bench.run(model, tools=("look",))
    assert outcome.ok
    (result,) = [event for event in bench.read(outcome.native) if event.type == "message" and event.data.get("source") == "tool"]
    assert "marked a" not in json.dumps(result.data)


async def test_what_may_be_handed_down_is_taken_before_anything_is_awaited(bench, script, calling):
    model = script(calling(("mark", {"at": "a"})), {"text": "well"})
    lead = await bench.lead(script({"text": "x"}))
    lead.narrow("test", "read-only")
    starting = asyncio.ensure_future(bench.tasks.start(TaskSpec("go", model=model), bench.tasks.origin(lead)))
    lead.narrow("test", None)
    task = await starting
    assert task.permission == "read-only"
    outcome = await task.outcome()
    said = json.dumps([event.data for event in bench.read(outcome.native)])
    assert "marked a" not in said and "read-only" in said


async def test_a_mode_that_is_wider_than_that_of_the_parent_is_refused(bench, script):
    lead = await bench.lead(script({"text": "x"}), ceiling="workspace-write")
    assert await bench.refused(TaskSpec("go", permission="full"), bench.tasks.origin(lead)) == "GRANT_EXCEEDED"


async def test_a_child_of_plan_mode_only_reads(bench, script, calling):
    child = script(calling(("mark", {"at": "a"}), ("look", {"at": "b"})), {"text": "well"})
    lead = await bench.lead(script(calling(delegating(model=child)), calling(delegating(model=child, permission="full")), {"text": "x"}))
    set_plan_mode(lead, True)
    await lead.run("go")
    first, second = results(lead)
    assert not first.is_error and second.code == "GRANT_EXCEEDED"
    said = json.dumps([event.data for event in bench.read(bench.outcomes(lead)[0].native)])
    assert "marked a" not in said and "seen b" in said


# what a child asks


class Face:
    """A person at a face."""

    def __init__(self, bench, scope, reply="once"):
        self.asked = []
        self.open = self.most = 0
        self.reply = reply
        at = bench.host.ctx.at(scope)
        at.on(Approval, self.approval)
        at.on(Question, self.question)

    async def approval(self, question):
        self.open += 1
        self.most = max(self.most, self.open)
        self.asked.append(question.reason)
        try:
            await asyncio.sleep(0.02)
            return self.reply
        finally:
            self.open -= 1

    async def question(self, question):
        self.asked.append(question.questions[0].question)
        return ("blue",)


ASKING = ("ask_user_question", {"questions": [{"question": "Which colour?"}]})


@pytest.mark.parametrize("where", ["lead", "root"])
async def test_what_a_child_asks_reaches_the_face_of_its_parent_under_its_title(bench, script, calling, where):
    child = script(calling(("knock", {"at": "door"})), calling(ASKING), {"text": "came in"})
    lead = await bench.lead(script(calling(delegating(model=child, description="the scout")), {"text": "x"}), ceiling="workspace-write")
    face = Face(bench, lead.scope if where == "lead" else bench.host.root_scope)
    await lead.run("go")
    (outcome,) = bench.outcomes(lead)
    said = json.dumps([event.data for event in bench.read(outcome.native)])
    assert "opened door" in said and "blue" in said
    assert len(face.asked) == 2 and face.asked[0].startswith("[the scout]") and face.asked[1] == "[the scout] Which colour?"


async def test_what_a_grandchild_asks_reaches_the_face_too(bench, script, calling):
    leaf = script(calling(("knock", {"at": "door"})), {"text": "came in"})
    middle = script(calling(delegating(model=leaf, description="the inner")), {"text": "middle"})
    lead = await bench.lead(script(calling(delegating(model=middle, description="the outer")), {"text": "x"}), ceiling="workspace-write")
    face = Face(bench, lead.scope)
    await lead.run("go")
    (asked,) = face.asked
    assert "[the outer]" in asked and "[the inner]" in asked


async def test_where_nobody_answers_a_child_is_told_so(bench, script, calling):
    child = script(calling(("knock", {"at": "door"})), calling(ASKING), {"text": "stayed out"})
    lead = await bench.lead(script(calling(delegating(model=child)), {"text": "x"}), ceiling="workspace-write")
    await lead.run("go")
    (outcome,) = bench.outcomes(lead)
    assert outcome.ok and outcome.text == "stayed out"
    said = json.dumps([event.data for event in bench.read(outcome.native)])
    assert "opened door" not in said and "nobody is there to allow it" in said and "nobody is here to answer" in said


async def test_a_face_that_has_no_answer_is_asked_once(bench, script, calling):
    child = script(calling(("knock", {"at": "door"})), {"text": "stayed out"})
    lead = await bench.lead(script(calling(delegating(model=child)), {"text": "x"}), ceiling="workspace-write")
    face = Face(bench, bench.host.root_scope, reply=None)
    await lead.run("go")
    assert len(face.asked) == 1 and bench.outcomes(lead)[0].text == "stayed out"


async def test_questions_of_children_wait_for_each_other_and_none_is_lost(bench, script, calling):
    children = [script(calling(("knock", {"at": f"door {n}"})), {"text": f"came in {n}"}) for n in range(4)]
    calls = [delegating(model=child, description=f"scout {n}") for n, child in enumerate(children)]
    lead = await bench.lead(script(calling(*calls), {"text": "x"}), ceiling="workspace-write")
    face = Face(bench, lead.scope)
    await lead.run("go")
    assert sorted(each[:9] for each in face.asked) == [f"[scout {n}]"[:9] for n in range(4)] and face.most == 1
    assert sorted(outcome.text for outcome in bench.outcomes(lead)) == [f"came in {n}" for n in range(4)]
    assert bench.host.get(TOOLS).approvals.waiting == []


async def test_a_child_that_is_cancelled_while_it_asks_holds_nobody_up(bench, script, calling):
    lead = await bench.lead(script({"text": "x"}), ceiling="workspace-write")
    asked = []

    async def never(question):
        asked.append(question.reason)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return "once"

    bench.host.ctx.at(lead.scope).on(Approval, never)
    origin = bench.tasks.origin(lead)
    models = [script(calling(("knock", {"at": "door"})), {"text": "came in"}) for _ in range(2)]
    first = await bench.tasks.start(TaskSpec("one", model=models[0]), origin)
    await until(lambda: len(asked) == 1)
    second = await bench.tasks.start(TaskSpec("two", model=models[1]), origin)
    await until(lambda: len(bench.host.get(TOOLS).approvals.waiting) == 2)
    first.cancel("user")
    assert (await first.outcome()).code == "CANCELLED"
    assert (await second.outcome()).text == "came in" and len(asked) == 2
