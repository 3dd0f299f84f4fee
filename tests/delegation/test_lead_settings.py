"""What is said of the roles of a lead, where it is said, which word counts, and how roles and rounds work then."""

# pyright: basic

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.budget import Limits
from hames.compose import running
from hames.content.errors import HamesError
from hames.content.jsontext import parse_object
from hames.content.paths import SHIPPED
from hames.delegation import DELEGATION
from hames.delegation.failures import Refused
from hames.delegation.lead import labelled
from hames.delegation.ralph import RalphConfig
from hames.delegation.role import read_role
from hames.delegation.roles import resolved
from hames.delegation.rounds import mistakes, words
from hames.delegation.spec import TaskSpec
from hames.kernel import plugin
from hames.models import MODELS
from hames.profiles import profile
from hames.sandbox import SANDBOX
from hames.sessions import SESSIONS
from hames.store import STATE
from hames.testing.scripted import ScriptedAnswer, ScriptedModel, ScriptedStream
from hames.tools import TOOLS, tool
from hames.trust import TRUST

REMOVABLE = ["search_external", "design", "implement"]
ROLES = [*REMOVABLE, "search_internal_deep"]
TAVILY = [f"mcp__tavily__tavily_{name}" for name in ("search", "crawl", "extract", "map", "research")]
RUNNING = ["job_output", "job_list", "job_kill"]
TOOLS_OF = {
    "search_external": {"web_search", "web_fetch", *TAVILY, "glob", "grep", "read", "ask_user_question"},
    "design": {
        *("read", "read_image", "glob", "grep", "bash", "skill", "web_search", "ask_user_question", "todo_write"),
        *RUNNING,
    },
    "implement": {
        *("read", "read_image", "write", "edit", "glob", "grep", "bash", "skill", "web_search", "ask_user_question", "todo_write"),
        *RUNNING,
        *("get_goal", "create_goal", "update_goal"),
    },
    "search_internal_deep": {"glob", "grep", "read", "read_image", "bash", "ask_user_question", "todo_write", *RUNNING},
}
PROTOCOL = (
    "If a tool fails or you are not allowed something, do not try the same again. Report what you have done so far, the exact error, "
    "the tool or permission that you lack, and what you suggest to do next."
)


class Mind(ScriptedModel):
    """A model that a function of the test speaks for."""

    def __init__(self, name, minds):
        super().__init__(f"mind:{name}", [])
        self.name, self.minds = name, minds

    def stream(self, request) -> Any:
        body = parse_object(request.body())
        self.minds.requests.append((self.name, body))
        place = sum(message["role"] == "assistant" for message in body["messages"])
        speaker = self.minds.speakers[self.name]
        answer: Any = speaker(body) if callable(speaker) else speaker[min(place, len(speaker) - 1)]
        gate = answer.get("gate") or self.minds.gates.get(self.name)
        members = {name: value for name, value in answer.items() if name != "gate"}
        return Held(ScriptedStream(place, ScriptedAnswer.model_validate(members)), gate)


class Held:
    """An answer that waits until it may come."""

    def __init__(self, stream, gate):
        self.stream, self.gate = stream, gate

    def partial(self):
        return self.stream.partial()

    async def __aiter__(self):
        if self.gate is not None:
            await self.gate.wait()
        async for chunk in self.stream:
            yield chunk


class Minds:
    """The models of a test by their names, and what they were sent."""

    def __init__(self):
        self.speakers, self.gates, self.requests = {}, {}, []

    def model(self, name, profile, ref):
        return Mind(name, self)

    def of(self, name):
        return [body for each, body in self.requests if each == name]


class Room:
    """A workspace with leads whose roles are what a test says of them."""

    host: Any
    agents: Any
    service: Any
    tasks: Any
    tools: Any

    def __init__(self, root):
        self.root, self.work, self.minds = root, root / "work", Minds()
        self.work.mkdir()

    @asynccontextmanager
    async def open(self, *rows):
        patch = self.root / "patch.json"
        patch.write_text(json.dumps([{"id": "loop", "set": {"config": {"retries": 0}}}, *rows]))
        async with running([profile("standard"), patch], {STATE: self.root / "state"}) as host:
            self.host, self.agents, self.service = host, host.get(AGENTS), host.get(DELEGATION)
            self.tasks, self.tools = self.service.tasks, host.get(TOOLS)
            minds = self.minds

            @plugin(needs=(MODELS,))
            def thinking(ctx, config):
                ctx.use(MODELS).register(ctx, "mind", minds)

            host.mount(thinking)
            yield self

    def mind(self, name, *answers, gate=False):
        """A model that says these things in turn, or what a function makes of each request."""
        self.minds.speakers[name] = answers[0] if len(answers) == 1 and callable(answers[0]) else answers
        if gate:
            self.minds.gates[name] = asyncio.Event()
        return f"mind:{name}"

    async def lead(self, model="openai:text=x", preset="orchestrator", **more):
        return await self.agents.create(AgentSpec(str(self.work), model, preset=preset, **more))

    async def dispose(self, *agents):
        for each in agents:
            await self.agents.dispose(each)

    def preset(self, config):
        rows = [{"include": "shipped:presets/orchestrator.yaml"}, {"id": "orchestrator", "set": {"config": config}}]
        self.write(".hames/presets/orchestrator.yaml", json.dumps(rows))

    def role(self, name, lines, body="You are somebody."):
        self.write(f".hames/roles/{name}.md", f"---\n{lines}\n---\n{body}\n")

    def write(self, name, text):
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        trust: Any = self.host.get(TRUST)
        trust.decide(trust.status(self.work), True)

    def results(self, agent):
        return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]

    def notices(self, agent):
        return [message.text for _, message in agent.session.messages if message.source == "harness" and "has ended" in message.text]

    def records(self, lead):
        return [self.tasks.ledger.get(record.id) for record in self.tasks.ledger.below(lead.id)]

    async def given(self, lead, role, **more):
        """A task for a role, as it was admitted, once it has ended."""
        task = await self.tasks.start(TaskSpec(**{"prompt": "work", "role": role, **more}), self.tasks.origin(lead))
        await task.outcome()
        return task

    def add_tools(self, *names):
        def made(name):
            @tool("read", name=name)
            async def run() -> str:
                """Run."""
                return name

            return run

        @plugin(needs=(TOOLS,))
        def more(ctx, config):
            for name in names:
                ctx.use(TOOLS).register(ctx, made(name))

        self.host.mount(more)

    def said(self, session, role):
        """The results that a session holds."""
        events: Any = self.host.get(SESSIONS).read(session)
        messages = [event.data for event in events if event.type == "message" and event.data["source"] == role]
        return [block for message in messages for block in message["blocks"]]


@pytest.fixture
def place(tmp_path, monkeypatch, wired):
    monkeypatch.setenv("HAMES_HOME", str(tmp_path / "home"))
    return Room(tmp_path)


@pytest.fixture
async def room(place):
    async with place.open():
        yield place


@pytest.fixture
def asking(calling):
    """An answer that gives work to a role."""
    return lambda role, **more: calling((role, {"description": "a bit", "prompt": "do your bit", **more}))


@pytest.fixture
def reporting(calling):
    """An answer that ends with a report."""
    return lambda result="well", **more: calling(("structured_output", {"outcome": "done", "result": result, **more}))


def system(body):
    return str(body["messages"][0]["content"])


def names(body):
    return {each["function"]["name"] for each in body.get("tools", ())}


def parameters(body, name):
    return {each["function"]["name"]: each["function"] for each in body["tools"]}[name]


def shipped(name):
    return read_role((SHIPPED / "roles" / f"{name}.md").read_text(), SHIPPED / "roles" / f"{name}.md", "shipped")


# which word counts

FILE = "model: openai:text=file\neffort: low\npermission: workspace-write\ntools: [read, grep, glob]\nbudget: {steps: 9, tokens: 900}"
SAID = {
    "model": "openai:text=said",
    "effort": "medium",
    "persona": "You are said.",
    "tools": ["read", "grep"],
    "permission": "read-only",
    "budget": {"steps": 5, "tokens": 500},
}
CALL = {"model": "openai:text=call", "effort": "high", "tools": ("read",), "budget": Limits(steps=3, tokens=300)}


async def outcome_of(room, *, call=False, said=False, file=False):
    if file:
        room.role("implement", FILE, "You are of the file.")
    room.preset({"roles": {"implement": SAID if said else {}}, "budget": {"steps": 77, "tokens": 7700, "idle": 70}})
    lead = await room.lead("openai:text=lead", settings=room_settings("minimal"))
    task = await room.given(lead, "implement", **(CALL if call else {}))
    record = room.tasks.ledger.get(task.id)
    state = room.host.get(SESSIONS).remembered(record.attempts[0].native, "delegation")
    await room.dispose(lead)
    return task, state


def room_settings(effort):
    from hames.models import Settings

    return Settings(effort=effort)


@pytest.mark.parametrize(
    ("where", "model", "effort", "persona"),
    [
        ({"call": True, "said": True, "file": True}, "openai:text=call", "high", "You are said."),
        ({"said": True, "file": True}, "openai:text=said", "medium", "You are said."),
        ({"file": True}, "openai:text=file", "low", "You are of the file."),
        ({}, "openai:text=lead", "minimal", "You are the implementation agent."),
        ({"said": True}, "openai:text=said", "medium", "You are said."),
    ],
    ids=["call", "settings", "file", "nobody", "settings without a file"],
)
async def test_model_effort_and_persona_are_those_of_whoever_speaks_nearest(room, wired, where, model, effort, persona):
    task, state = await outcome_of(room, **where)
    body = json.loads(wired.received[-1].body)
    assert (task.spec.model, body["model"], body["reasoning_effort"]) == (model, model.removeprefix("openai:"), effort)
    assert state["persona"].startswith(persona) and persona in system(body)


@pytest.mark.parametrize(
    ("where", "tools", "permission"),
    [
        ({"call": True, "said": True, "file": True}, {"read"}, "read-only"),
        ({"said": True, "file": True}, {"read", "grep"}, "read-only"),
        ({"file": True}, {"read", "grep", "glob"}, "workspace-write"),
        ({"call": True, "file": True}, {"read"}, "workspace-write"),
    ],
    ids=["call", "settings", "file", "call over the file"],
)
async def test_tools_are_those_of_whoever_speaks_nearest(room, wired, where, tools, permission):
    task, _ = await outcome_of(room, **where)
    assert names(json.loads(wired.received[-1].body)) == tools and task.permission == permission


@pytest.mark.parametrize(
    ("file", "said", "expected"),
    [
        ("read-only", "workspace-write", "read-only"),
        ("workspace-write", "read-only", "read-only"),
        ("full", "workspace-write", "workspace-write"),
        ("", "read-only", "read-only"),
        ("read-only", "", "read-only"),
    ],
)
async def test_a_permission_in_the_settings_only_narrows(room, file, said, expected):
    room.role("implement", f"tools: [read]\npermission: {file}" if file else "tools: [read]")
    room.preset({"roles": {"implement": {"permission": said}}})
    lead = await room.lead()
    assert (await room.given(lead, "implement")).permission == expected
    await room.dispose(lead)


async def test_the_budget_of_the_settings_counts_before_that_of_the_file(room):
    task, _ = await outcome_of(room, said=True, file=True)
    assert (task.spec.budget.steps, task.spec.budget.tokens) == (5, 500)
    task, _ = await outcome_of(room, call=True, said=True, file=True)
    assert (task.spec.budget.steps, task.spec.budget.tokens) == (3, 300)


async def test_the_budget_of_the_preset_is_for_roles_that_say_nothing_of_theirs(room, asking, reporting):
    child = room.mind("child", reporting())
    room.role("design", f"model: {child}\ntools: [read]\nbudget: {{steps: 99, tokens: 99000, idle: 900}}")
    room.role("implement", f"model: {child}\ntools: [read]")
    room.preset({"budget": {"steps": 7, "tokens": 7000, "idle": 70}})
    lead = await room.lead(room.mind("lead", asking("implement"), asking("design", prompt="draw"), {"text": "done"}))
    await lead.run("go")
    quiet, loud = (record.spec.budget for record in room.records(lead))
    assert (quiet.steps, quiet.tokens, quiet.idle) == (7, 7000, 70)
    assert (loud.steps, loud.tokens, loud.idle) == (99, 99000, 900)
    await room.dispose(lead)


async def test_what_the_settings_leave_out_of_a_budget_is_said_by_the_file(room):
    room.role("implement", "tools: [read]\nbudget: {tokens: 900, idle: 50}")
    room.preset({"roles": {"implement": {"budget": {"steps": 5}}}})
    lead = await room.lead()
    budget = (await room.given(lead, "implement")).spec.budget
    assert (budget.steps, budget.tokens, budget.idle) == (5, 900, 50)
    await room.dispose(lead)


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        ({"provider": "openai", "model": "text=x"}, "openai:text=x"),
        ({"model": "openai:text=x"}, "openai:text=x"),
        ({"provider": "openai"}, "openai:text=lead"),
        ({"provider": "", "model": ""}, "openai:text=lead"),
    ],
    ids=["both", "in one", "a provider alone", "nothing"],
)
async def test_a_model_is_named_with_its_provider_or_beside_it(room, settings, model):
    room.preset({"roles": {"implement": settings}})
    lead = await room.lead("openai:text=lead")
    assert (await room.given(lead, "implement")).spec.model == model
    notes = room.tasks.roles(room.tasks.origin(lead))["implement"][0].notes
    assert any("provider" in note for note in notes) == (settings == {"provider": "openai"})
    await room.dispose(lead)


async def test_a_provider_alone_leaves_the_model_of_the_file(room):
    room.role("implement", "tools: [read]\nmodel: openai:text=file")
    room.preset({"roles": {"implement": {"provider": "anthropic"}}})
    lead = await room.lead("openai:text=lead")
    assert (await room.given(lead, "implement")).spec.model == "openai:text=file"
    await room.dispose(lead)


async def test_a_model_that_nobody_has_is_refused_before_anything_starts(room, asking):
    room.preset({"roles": {"implement": {"model": "nobody:x"}}})
    lead = await room.lead(room.mind("lead", asking("implement"), {"text": "done"}))
    await lead.run("go")
    (result,) = room.results(lead)
    assert result.code == "MODEL_UNKNOWN" and room.records(lead) == []
    await room.dispose(lead)


async def test_a_pinned_role_keeps_its_model_when_the_lead_switches_and_another_follows(room):
    room.preset({"roles": {"implement": {"model": "openai:text=pinned"}}})
    lead = await room.lead("openai:text=one")
    models = [(await room.given(lead, name)).spec.model for name in ("implement", "design")]
    lead.model_ref = "openai:text=two"
    models += [(await room.given(lead, name)).spec.model for name in ("implement", "design")]
    assert models == ["openai:text=pinned", "openai:text=one", "openai:text=pinned", "openai:text=two"]
    await room.dispose(lead)


async def test_a_persona_is_a_whole_one_and_a_blank_one_is_none(room):
    room.preset({"roles": {"implement": {"persona": "You are {{odd}}.", "persona_extra": "Speak French."}, "design": {"persona": ""}}})
    lead = await room.lead()
    found = room.tasks.roles(room.tasks.origin(lead))
    assert found["implement"][0].persona == "You are {{odd}}.\n\nSpeak French."
    assert found["design"][0].persona == shipped("design").persona
    assert (await room.given(lead, "implement")).settled
    await room.dispose(lead)


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "x" * 61},
        {"name": "two\nlines"},
        {"model": "x" * 121},
        {"provider": "open:ai"},
        {"provider": "x\ny"},
        {"start_mode": "warm"},
        {"background_mode": "forever"},
        {"permission": "all"},
        {"name": 7},
        {"tools": "read"},
        {"budget": {"steps": 0}},
        {"runner": "fork"},
    ],
    ids=lambda each: f"{next(iter(each))} {str(next(iter(each.values())))[:8]!r}",
)
async def test_what_cannot_be_said_of_a_role_is_refused_and_named(room, settings):
    room.preset({"roles": {"implement": settings}})
    with pytest.raises(HamesError) as raised:
        await room.lead()
    assert "implement" in str(raised.value) and next(iter(settings)) in str(raised.value)


# labels


def test_a_label_says_who_once():
    once = labelled("implement", " build it ")
    assert once == "implement · build it" and labelled("implement", once) == once
    assert labelled("Builder", "implement · x") == "Builder · implement · x"


async def test_people_see_the_name_that_the_settings_give(room, wired, asking, reporting):
    room.preset({"roles": {"implement": {"name": "Builder", "model": room.mind("child", reporting())}}})
    answers = [asking("implement", description=each, prompt=each) for each in ("the wall", "Builder · the roof")]
    lead = await room.lead(room.mind("lead", *answers, {"text": "done"}))
    await lead.run("go")
    assert [record.spec.title for record in room.records(lead)] == ["Builder · the wall", "Builder · the roof"]
    assert "the agent Builder" in parameters(room.minds.of("lead")[0], "implement")["description"]
    await room.dispose(lead)


@pytest.mark.parametrize("blank", ["", "   ", "\n"])
async def test_a_blank_description_leaves_a_title_that_says_something(room, asking, reporting, blank):
    room.preset({"roles": {"implement": {"model": room.mind("child", reporting())}}})
    lead = await room.lead(room.mind("lead", asking("implement", description=blank), {"text": "done"}))
    await lead.run("go")
    (record,) = room.records(lead)
    assert record.spec.title.strip() == record.spec.title and not record.spec.title.endswith("·") and record.spec.title
    await room.dispose(lead)


@pytest.mark.parametrize("given", [{"description": 7}, {"description": None}, {"prompt": ["x"]}, {"more": 1}])
async def test_arguments_of_another_shape_are_refused_and_nothing_starts(room, asking, given):
    lead = await room.lead(room.mind("lead", asking("implement", **given), {"text": "done"}))
    await lead.run("go")
    assert room.results(lead)[0].code == "INVALID_ARGS" and room.records(lead) == []
    await room.dispose(lead)


# how a role runs


async def test_a_one_shot_role_may_run_in_the_background_and_a_kept_one_always_does(room):
    room.preset({"roles": {"implement": {"background_mode": "continuable"}}})
    lead = await room.lead(room.mind("lead", {"text": "hello"}))
    await lead.run("hello")
    (body,) = room.minds.of("lead")
    for name in ROLES:
        shown = parameters(body, name)
        assert ("run_in_background" in shown["parameters"]["properties"]) == (name != "implement")
        assert ("send_message" in shown["description"]) == (name == "implement")
        assert shown["parameters"]["required"] == ["description", "prompt"]
    await room.dispose(lead)


async def test_a_kept_role_runs_beside_its_lead_which_hears_once_and_goes_on_with_it(room, asking, calling, reporting):
    child = room.mind("child", reporting("first"), reporting("second"), gate=True)
    room.preset({"roles": {"implement": {"background_mode": "continuable", "model": child}}})

    def says(body):
        place = sum(message["role"] == "assistant" for message in body["messages"])
        if place == 0:
            return asking("implement")
        if "go on with it" in str(body["messages"][-1]["content"]):
            thread = re.findall(r"\bt[0-9][0-9a-z]+", str([m for m in body["messages"] if m["role"] == "tool"]))[0]
            return calling(("send_message", {"agent_id": thread, "message": "and the rest"}))
        return {"text": f"said {place}"}

    lead = await room.lead(room.mind("lead", says))
    end = await lead.run("go")
    assert end.text == "said 1" and "runs while you go on" in room.results(lead)[0].text and room.notices(lead) == []
    room.minds.gates["child"].set()
    await room.service.rest(lead)
    assert len(room.notices(lead)) == 1 and "first" in room.notices(lead)[0]
    await lead.run("go on with it")
    assert not room.results(lead)[-1].is_error, room.results(lead)[-1].text
    await room.service.rest(lead)
    assert len(room.notices(lead)) == 2 and "second" in room.notices(lead)[1]
    first, second = room.records(lead)
    assert first.thread == second.thread and first.attempts[0].native == second.attempts[0].native
    assert (first.spec.mode, first.spec.title) == ("continuable", "implement · a bit") and second.outcome.ok
    await room.dispose(lead)


async def test_a_role_that_forks_sees_the_conversation_of_its_lead_and_runs_on_its_model(room, asking, calling):
    room.preset({"roles": {"design": {"start_mode": "fork", "model": "openai:text=other", "background_mode": "one-shot"}}})
    both = calling(("design", {"description": "x", "prompt": "draw it"}), ("structured_output", {"outcome": "done", "result": "drawn"}))
    lead = await room.lead(room.mind("lead", {"text": "I remember the owl."}, both, {"text": "done"}))
    await lead.run("remember the owl")
    end = await lead.run("draw")
    assert end.text == "done" and room.results(lead)[0].text == "drawn"
    (record,) = room.records(lead)
    assert (record.spec.runner, record.spec.model) == ("fork", "mind:lead")
    child = next(body for body in room.minds.of("lead") if "draw it" in str(body["messages"][-1]["content"]))
    texts = [str(message.get("content")) for message in child["messages"]]
    assert any("remember the owl" in text for text in texts) and any("I remember the owl." in text for text in texts)
    assert "You are the design agent." in system(child) and not names(child) & {*ROLES, "write", "edit"}
    notes = room.tasks.roles(room.tasks.origin(lead))["design"][0].notes
    assert any("conversation that is handed on keeps its model" in note for note in notes)
    await room.dispose(lead)


async def test_a_role_that_forks_can_be_kept(room, asking, calling):
    room.preset({"roles": {"design": {"start_mode": "fork", "background_mode": "continuable"}}})
    both = calling(("design", {"description": "x", "prompt": "draw it"}), ("structured_output", {"outcome": "done", "result": "drawn"}))
    lead = await room.lead(room.mind("lead", {"text": "Hello."}, both, {"text": "done"}))
    await lead.run("hello")
    await lead.run("draw")
    await room.service.rest(lead)
    (record,) = room.records(lead)
    assert (record.spec.runner, record.spec.mode, record.outcome.ok) == ("fork", "continuable", True)
    assert len(room.notices(lead)) == 1
    await room.dispose(lead)


async def test_settings_that_say_fresh_count_before_a_file_that_forks(room):
    room.role("implement", "tools: [read]\nrunner: fork")
    room.preset({"roles": {"implement": {"start_mode": "fresh"}}})
    lead = await room.lead()
    await lead.run("hello")
    assert (await room.given(lead, "implement")).spec.runner == "spawn"
    await room.dispose(lead)


@pytest.mark.parametrize("role", ROLES)
async def test_work_in_the_background_is_shown_and_told_once(room, asking, calling, reporting, role):
    child = room.mind("child", reporting("found it"), gate=True)
    room.preset({"roles": {role: {"model": child}}})

    def says(body):
        place = sum(message["role"] == "assistant" for message in body["messages"])
        if place == 0:
            return asking(role, run_in_background=True)
        if place == 1:
            room.minds.gates["child"].set()
            return calling(("job_output", {"job": "job-1", "wait": 60}))
        return {"text": "done"}

    lead = await room.lead(room.mind("lead", says))
    await lead.run("go")
    await room.service.rest(lead)
    started, shown = room.results(lead)[:2]
    (record,) = room.records(lead)
    assert "job-1 runs in the background" in started.text and record.id in started.text
    assert "found it" in shown.text and f"{role} · a bit" in shown.text and not shown.is_error
    assert record.outcome.ok and record.spec.mode == "background"
    told = [message.text for _, message in lead.session.messages if message.source == "harness" and "job-1 has ended" in message.text]
    assert len(told) == 1
    await room.dispose(lead)


async def test_work_in_the_background_can_be_ended(room, asking, calling, reporting):
    room.preset({"roles": {"implement": {"model": room.mind("child", reporting(), gate=True)}}})
    answers = [asking("implement", run_in_background=True), calling(("job_kill", {"job": "job-1"})), {"text": "done"}]
    lead = await room.lead(room.mind("lead", *answers))
    await lead.run("go")
    assert not room.results(lead)[1].is_error and "killed" in room.results(lead)[1].text
    (record,) = room.records(lead)
    assert record.outcome.status == "aborted" and list(room.agents.live) == [lead.id]
    await room.dispose(lead)


async def test_several_roles_work_beside_each_other(room, calling, reporting):
    models = {name: {"model": room.mind(name, reporting(name), gate=True)} for name in ("design", "implement")}
    room.preset({"roles": models})
    both = calling(*((name, {"description": name, "prompt": name}) for name in models))
    lead = await room.lead(room.mind("lead", both, {"text": "done"}))
    running = asyncio.create_task(lead.run("go"))
    async with asyncio.timeout(20):
        while not (room.minds.of("design") and room.minds.of("implement")):
            await asyncio.sleep(0.005)
    for gate in room.minds.gates.values():
        gate.set()
    assert (await running).text == "done"
    assert [each.text for each in room.results(lead)] == ["design", "implement"]
    await room.dispose(lead)


async def test_a_child_that_ends_without_a_report_is_no_success(room, asking):
    room.preset({"roles": {"implement": {"model": room.mind("child", {"text": "I am done."})}}})
    lead = await room.lead(room.mind("lead", asking("implement"), {"text": "done"}))
    await lead.run("go")
    (result,) = room.results(lead)
    assert result.is_error and result.code == "SCHEMA_MISSED" and "I am done." in result.text
    await room.dispose(lead)


async def test_a_report_of_a_failure_holds_its_four_points(room, asking, calling):
    points = {"outcome": "failed", "result": "half of it", "error": "E77", "missing": "a compiler", "next": "install one"}
    room.preset({"roles": {"implement": {"model": room.mind("child", calling(("structured_output", points)))}}})
    lead = await room.lead(room.mind("lead", asking("implement"), {"text": "done"}))
    await lead.run("go")
    (result,) = room.results(lead)
    assert result.is_error and all(points[name] in result.text for name in ("result", "error", "missing", "next"))
    await room.dispose(lead)


# roles of one's own


@pytest.mark.parametrize(
    "name",
    [
        *("bash", "read", "todo_write", "send_message", "exit_plan_mode", "job_kill", "delegate", "ralph", "workflow"),
        *("subagent", "subagent_fork", "mcp__docs__search", "Upper", "two words", "", "a" * 65, "über", "mcp__x"),
        *("write", "edit", "skill", "web_fetch", "recall"),
    ],
    ids=lambda name: ascii(name)[:20],
)
async def test_a_role_cannot_be_called_as_something_else_is(room, name):
    room.preset({"roles": {name: {"tools": ["read"]}}})
    with pytest.raises(HamesError) as raised:
        await room.lead()
    assert raised.value.remedy


@pytest.mark.parametrize("name", ["true", "null", "~", "123", "no"])
async def test_a_name_that_yaml_would_take_for_something_else_is_a_text_or_refused(room, name):
    text = (
        f"- include: shipped:presets/orchestrator.yaml\n- id: orchestrator\n  set: {{config: {{roles: {{{name}: {{tools: [read]}}}}}}}}\n"
    )
    room.write(".hames/presets/orchestrator.yaml", text)
    try:
        lead = await room.lead()
    except HamesError as error:
        assert error.message
    else:
        assert name in room.tools.registry.view(lead.scope)
        await room.dispose(lead)


async def test_a_role_that_only_the_settings_know_works(room, asking, reporting):
    child = room.mind("child", reporting("it is fine"))
    room.preset({"roles": {"reviewer": {"tools": ["read", "grep"], "model": child, "name": "Critic"}}})
    lead = await room.lead(room.mind("lead", asking("reviewer"), {"text": "done"}))
    await lead.run("go")
    assert room.results(lead)[0].text == "it is fine"
    (body,) = room.minds.of("child")
    first = "You are the reviewer agent. You do the tasks that are given to you."
    assert first in system(body) and names(body) == {"read", "grep", "structured_output"}
    assert f"- {first.rstrip('.')}: delegate to reviewer." in system(room.minds.of("lead")[0])
    assert room.records(lead)[0].spec.title == "Critic · a bit"
    await room.dispose(lead)


async def test_the_first_line_of_a_persona_says_what_a_role_is_for_without_its_last_mark(room):
    roles = {"one": {"tools": ["read"], "persona": "You are 译者。\nTranslate."}, "two": {"tools": ["read"], "persona": "You sing!\nMore."}}
    room.preset({"roles": roles})
    lead = await room.lead(room.mind("lead", {"text": "x"}))
    await lead.run("hello")
    said = system(room.minds.of("lead")[0])
    assert "- You are 译者: delegate to one." in said and "- You sing: delegate to two." in said
    await room.dispose(lead)


async def test_a_role_of_which_too_little_is_said_is_not_invented(room):
    room.preset({"roles": {"reviewer": {"model": "openai:text=x"}}})
    lead = await room.lead(room.mind("lead", {"text": "x"}))
    await lead.run("hello")
    assert "reviewer" not in str(room.minds.of("lead")[0])
    room.role("reviewer", "description: Reads.\ntools: [read]")
    await lead.run("hello")
    assert "- Reads: delegate to reviewer." in system(room.minds.of("lead")[-1])
    assert (await room.given(lead, "reviewer")).spec.model == "openai:text=x"
    await room.dispose(lead)


@pytest.mark.parametrize("tools", [[], ["@nothing"]])
async def test_a_role_whose_tools_mean_nothing_is_refused_with_what_to_mend(room, asking, tools):
    room.preset({"roles": {"implement": {"tools": tools}}})
    try:
        lead = await room.lead(room.mind("lead", asking("implement"), {"text": "done"}))
    except HamesError as error:
        assert error.remedy
        return
    await lead.run("go")
    (result,) = room.results(lead)
    assert result.code == "ROLE_INVALID" and room.records(lead) == []
    assert str(SHIPPED) not in result.text  # what is to be mended are the settings
    await room.dispose(lead)


async def test_a_role_of_a_file_has_what_the_settings_say_of_it(room, asking, reporting):
    room.role("reviewer", "description: Reads.\ntools: [read, grep]\npermission: read-only", "You are of the file.")
    room.preset({"roles": {"reviewer": {"model": room.mind("child", reporting()), "tools": ["glob"]}}})
    lead = await room.lead(room.mind("lead", asking("reviewer"), {"text": "done"}))
    await lead.run("go")
    (body,) = room.minds.of("child")
    assert names(body) == {"glob", "structured_output"} and "You are of the file." in system(body)
    assert room.records(lead)[0].spec.permission == "read-only"
    await room.dispose(lead)


async def test_a_second_implementer_that_is_kept_has_17_tools(room, asking, reporting):
    tools = [each.word for each in shipped("implement").tools or ()]
    room.add_tools("web_search")
    child = room.mind("child", reporting("part one"), gate=True)
    settings = {"name": "Keeper", "tools": tools, "background_mode": "continuable", "model": child}
    room.preset({"roles": {"implement_cont": settings}})
    lead = await room.lead(room.mind("lead", asking("implement_cont"), {"text": "meanwhile"}, {"text": "heard"}))
    await lead.run("go")
    room.minds.gates["child"].set()
    await room.service.rest(lead)
    (body,) = room.minds.of("child")
    assert names(body) == TOOLS_OF["implement"] | {"structured_output"} and len(tools) == 17
    assert {"implement", "implement_cont"} <= names(room.minds.of("lead")[0])
    assert len(room.notices(lead)) == 1 and "part one" in room.notices(lead)[0]
    await room.dispose(lead)


# the roles that a lead comes with


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("search_external", "You are the external-research agent."),
        ("design", "You are the design agent."),
        ("implement", "You are the implementation agent."),
        ("search_internal_deep", "You are the internal deep-search agent."),
    ],
)
def test_each_shipped_role_says_who_it_is_first_and_how_to_report_last(name, first):
    role = shipped(name)
    assert role.problem == "" and role.notes == () and role.name == name and role.description
    assert role.persona.startswith(first) and " ".join(role.persona.split()).endswith(PROTOCOL)
    assert role.permission == ("read-only" if name in ("design", "search_internal_deep") else "")


def test_the_protocol_of_reports_is_the_same_in_all_four():
    assert len({shipped(name).persona.rpartition("\n\n")[2] for name in ROLES}) == 1


async def test_what_was_installed_holds_every_role_preset_and_prompt():
    import tomllib
    from fnmatch import fnmatchcase

    project = SHIPPED.parents[2] / "pyproject.toml"
    if not project.exists():
        pytest.skip("this is no checkout")
    kept = tomllib.loads(project.read_text())["tool"]["setuptools"]["package-data"]["hames"]
    files = [path.relative_to(SHIPPED.parent).as_posix() for path in SHIPPED.rglob("*") if path.suffix in (".md", ".yaml")]
    assert files and not [
        name for name in files if not any(fnmatchcase(name, each) and name.count("/") == each.count("/") for each in kept)
    ]


@pytest.mark.parametrize("name", ROLES)
async def test_each_shipped_role_gets_the_tools_that_are_listed_for_it(room, name):
    room.add_tools("web_search", *TAVILY, "memory_search", "mcp__other__tool")
    lead = await room.lead()
    role = room.tasks.roles(room.tasks.origin(lead))[name][0]
    found = resolved(role.tools, room.tools, lead.scope.parent)
    assert set(found.kept or ()) == TOOLS_OF[name] and found.missing == () and found.dropped == ()
    assert len(found.kept or ()) == {"search_external": 11, "design": 12, "implement": 17, "search_internal_deep": 10}[name]
    await room.given(lead, name, model=room.mind("child", {"text": "well"}))
    assert names(room.minds.of("child")[0]) == TOOLS_OF[name]
    await room.dispose(lead)


@pytest.mark.parametrize("name", ROLES)
async def test_what_a_shipped_role_may_lack_is_left_out(place, name):
    gone = ("search", "bash", "pictures", "skills", "todo", "questions", "goal", "jobs", "web", "delegate", "control")
    async with place.open(*({"id": id, "remove": True} for id in gone if id != "search" or name != "search_internal_deep")) as room:
        lead = await room.lead()
        assert (await room.given(lead, name, model=room.mind("child", {"text": "well"}))).settled
        left = {"read"} | ({"write", "edit"} if name == "implement" else {"glob", "grep"} if name == "search_internal_deep" else set())
        assert names(room.minds.of("child")[0]) == left
        await room.dispose(lead)


async def test_a_tool_that_a_role_needs_and_is_not_there_is_said_before_anything_starts(room, asking):
    room.preset({"roles": {"implement": {"tools": ["read", "lathe", "glue?"]}}})
    lead = await room.lead(room.mind("lead", asking("implement"), {"text": "done"}))
    await lead.run("go")
    (result,) = room.results(lead)
    assert result.code == "ROLE_TOOLS_MISSING" and "lathe" in result.text and "glue" not in result.text
    assert (
        room.records(lead) == []
        and list(room.agents.live) == [lead.id]
        and [each.id for each in room.host.get(SESSIONS).list()] == [lead.id]
    )
    await room.dispose(lead)


def files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()}


@pytest.mark.parametrize("name", ["search_external", "design", "search_internal_deep"])
async def test_a_role_that_only_reads_writes_nothing_whatever_it_tries(room, calling, name):
    sandbox: Any = room.host.get(SANDBOX)
    if sandbox.enforcement.level == "none":
        pytest.skip("nothing confines commands here")
    outside = room.root / "outside"
    outside.mkdir()
    (room.work / "there.txt").write_text("known words\n")
    (room.work / ".git").mkdir()
    writing = f"open('py.txt', 'w').write('x'); open({str(outside / 'py.txt')!r}, 'w').write('x')"
    commands = [
        "echo x > made.txt",
        "echo x >> there.txt",
        f'{sys.executable} -c "{writing}"',
        "cp there.txt copy.txt; mv there.txt moved.txt; rm there.txt; mkdir sub; ln -s /etc link; touch t; tee tee.txt < there.txt",
        "sed -i s/known/lost/ there.txt; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; mkdir .hames; echo x > .hames/compose.yaml",
        f"echo x > {outside}/made.txt",
    ]
    tries = [
        ("read", {"path": "there.txt"}),
        ("write", {"path": "made.txt", "content": "x"}),
        ("write", {"path": str(outside / "made.txt"), "content": "x"}),
        ("edit", {"path": "there.txt", "old": "known", "new": "lost"}),
        *(("bash", {"command": command}) for command in commands),
        ("bash", {"command": "cat there.txt"}),
    ]
    child = room.mind("child", *(calling(each) for each in tries), {"text": "I could not."})
    lead = await room.lead()
    before = {path: files(path) for path in (room.work, outside)}
    task = await room.given(lead, name, model=child)
    outcome = await task.outcome()
    assert outcome.ok and {path: files(path) for path in (room.work, outside)} == before
    assert not any((room.work / each).exists() for each in ("sub", ".hames", "link"))
    results = room.said(outcome.native, "tool")
    assert len(results) == len(tries) and "is_error" not in results[0]
    assert [each.get("code") for each in results[1:4]] == ["UNKNOWN_TOOL"] * 3
    if name == "search_external":
        assert {each.get("code") for each in results[4:]} == {"UNKNOWN_TOOL"}
    else:
        assert "known words" in json.dumps(results[-1])
    await room.dispose(lead)


async def test_the_implementer_can_write(room, calling):
    tries = [("write", {"path": "made.txt", "content": "x"}), ("bash", {"command": "echo y > also.txt"})]
    lead = await room.lead()
    await room.given(lead, "implement", model=room.mind("child", *(calling(each) for each in tries), {"text": "done"}))
    assert (room.work / "made.txt").read_text() == "x"
    await room.dispose(lead)


async def test_no_role_has_more_than_its_lead_may_hand_down(room):
    lead = await room.lead()
    lead.narrow("test", "read-only")
    assert (await room.given(lead, "implement")).permission == "read-only"
    room.preset({"roles": {"implement": {"permission": "full"}}})
    other = await room.lead()
    other.narrow("test", "workspace-write")
    with pytest.raises(Refused) as raised:
        await room.given(other, "implement")
    assert raised.value.code == "GRANT_EXCEEDED"
    await room.dispose(lead, other)


# rounds


def reports(*given):
    """What rounds report, in turn."""
    empty = {"status": "continue", "summary": "", "evidence": [], "next_steps": [], "blocker": ""}
    return [{**empty, **each} for each in given]


ON = {"status": "continue", "next_steps": ["more"]}
OFF = {"status": "complete", "evidence": ["all tests pass"]}


class Rounds:
    """An agent that has the tool, and rounds that answer in turn."""

    def __init__(self, room, calling):
        self.room, self.calling, self.answers = room, calling, []

    def says(self, body):
        """A lead calls the tool; a round, told by its prompt, gives its report."""
        prompts = [str(message["content"]) for message in body["messages"] if message["role"] == "user"]
        found = re.search(r"This is round (\d+) of (\d+)", "".join(prompts))
        if found is not None:
            answer = self.answers[int(found.group(1)) - 1]
            return self.calling(("structured_output", answer)) if "status" in answer else answer
        done = any(message["role"] == "tool" for message in body["messages"])
        return {"text": "done"} if done else self.calling(("ralph", self.arguments))

    async def run(self, answers, **arguments):
        self.answers, self.arguments = answers, {"objective": "Make {it} green", **arguments}
        agent = await self.room.lead(self.room.mind("rounds", self.says), preset="")
        await agent.run("go")
        self.records = self.room.records(agent)
        (result,) = self.room.results(agent)
        await self.room.dispose(agent)
        return result

    @property
    def prompts(self):
        bodies = [str(body["messages"][1]["content"]) for body in self.room.minds.of("rounds")]
        return [text for text in bodies if "This is round" in text]


@pytest.fixture
async def rounds(place, calling):
    async with place.open({"id": "ralph", "use": "hames.delegation.ralph"}) as room:
        yield Rounds(room, calling)


async def test_each_round_sees_the_objective_its_number_and_the_report_before_it_and_nothing_else(rounds):
    given = reports({**ON, "summary": "ALPHA"}, {**ON, "summary": "BETA"}, {**OFF, "summary": "GAMMA"})
    result = await rounds.run(given, max_rounds=5)
    assert not result.is_error and result.text.startswith("complete after round 3.") and "GAMMA" in result.text
    assert "ALPHA" not in result.text and "BETA" not in result.text and "all tests pass" in result.text
    first, second, third = rounds.prompts
    for n, text in enumerate((first, second, third), 1):
        assert "Make {it} green" in text and f"round {n} of 5" in text
    assert "ALPHA" not in first and "ALPHA" in second and "Next: more" in second
    assert "BETA" in third and "ALPHA" not in third
    assert [record.spec.title for record in rounds.records] == [f"round {n}/5 · Make {{it}} green" for n in (1, 2, 3)]
    assert len({record.attempts[0].native for record in rounds.records}) == 3


async def test_rounds_that_are_over_and_one_that_is_blocked_say_so(rounds):
    result = await rounds.run(reports({**ON, "summary": "one"}, {**ON, "summary": "two"}), max_rounds=2)
    assert not result.is_error and result.text.startswith("the 2 rounds are over after round 2.") and "two" in result.text
    blocked = {"status": "blocked", "summary": "stuck", "blocker": "no network"}
    result = await rounds.run(reports(blocked))
    assert (result.is_error, result.code) == (True, "BLOCKED") and "no network" in result.text and "stuck" in result.text


CONTRADICTIONS = [
    ({"status": "continue"}, "next steps"),
    ({"status": "complete"}, "evidence"),
    ({**OFF, "next_steps": ["more"]}, "no next steps"),
    ({"status": "blocked", "blocker": "  "}, "in the way"),
    ({**OFF, "blocker": "x"}, "no blocker"),
    ({**ON, "blocker": "x"}, "no blocker"),
]


@pytest.mark.parametrize(("report", "said"), CONTRADICTIONS)
async def test_a_report_that_contradicts_itself_is_refused_with_the_last_good_one(rounds, report, said):
    result = await rounds.run(reports({**ON, "summary": "ALPHA"}, {**report, "summary": "BETA"}))
    assert (result.is_error, result.code) == (True, "SCHEMA_MISSED")
    assert "round 2" in result.text and said in result.text and "ALPHA" in result.text and len(rounds.records) == 2


def test_reports_that_agree_with_themselves_are_taken():
    for report in reports(ON, OFF, {"status": "blocked", "blocker": "x"}, {"status": "blocked", "blocker": "x", "next_steps": ["y"]}):
        assert mistakes(report) == []


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"text": "half", "finish": "refusal"}, "REFUSAL"),
        ({"text": "half", "finish": "max-tokens"}, "MAX_TOKENS"),
        ({"text": "no report"}, "SCHEMA_MISSED"),
        ({"failure": "server"}, "MODEL_FAILED"),
    ],
)
async def test_a_round_that_fails_is_named_and_the_last_report_is_handed_back(rounds, answer, code):
    result = await rounds.run([*reports({**ON, "summary": "ALPHA"}), answer])
    assert (result.is_error, result.code) == (True, code)
    assert "round 2 did not complete" in result.text and "ALPHA" in result.text and len(rounds.records) == 2


async def test_a_round_that_may_not_begin_is_named_too(place, calling):
    rows = [{"id": "ralph", "use": "hames.delegation.ralph"}, {"id": "delegation", "set": {"config": {"max_tasks": 1}}}]
    async with place.open(*rows) as room:
        rounds = Rounds(room, calling)
        result = await rounds.run(reports({**ON, "summary": "ALPHA"}, OFF))
        assert result.code == "TREE_FULL" and "round 2" in result.text and "ALPHA" in result.text


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": "ralph", "use": "hames.delegation.ralph", "config": {"runner": "fork"}}],
        [{"id": "ralph", "use": "hames.delegation.ralph"}, {"id": "delegation", "set": {"config": {"runner": "fork"}}}],
    ],
    ids=["named", "that of the host"],
)
async def test_rounds_never_begin_with_a_conversation(place, calling, rows):
    async with place.open(*rows) as room:
        rounds = Rounds(room, calling)
        result = await rounds.run(reports(OFF))
        assert result.code == "OPTION_UNSUPPORTED" and "fork" in result.text and rounds.records == []


@pytest.mark.parametrize(
    "given", [{"objective": " "}, {"objective": 3}, {"max_rounds": 0}, {"max_rounds": 65}, {"max_rounds": "2"}, {"max_rounds": True}]
)
async def test_rounds_without_an_objective_or_with_a_wrong_number_do_not_begin(rounds, given):
    result = await rounds.run(reports(OFF), **given)
    assert result.code == "INVALID_ARGS" and rounds.records == []


async def test_what_is_handed_on_and_back_is_bounded(place, calling):
    config = {"max_handoff_chars": 60, "max_result_chars": 40, "budget": {"tokens": 5000}}
    async with place.open({"id": "ralph", "use": "hames.delegation.ralph", "config": config}) as room:
        rounds = Rounds(room, calling)
        result = await rounds.run(reports({**ON, "summary": "A" * 500}, {**OFF, "summary": "B" * 500}))
        assert rounds.prompts[1].count("A" * 10) and "A" * 59 not in rounds.prompts[1]
        assert "B" * 39 not in result.text and "B" * 30 in result.text
        assert {record.spec.budget.tokens for record in rounds.records} == {5000}


@pytest.mark.parametrize("limit", [1, 2, 3, 30])
def test_a_report_is_never_longer_than_it_may_be(limit):
    (report,) = reports({**OFF, "summary": "A" * 100})
    assert len(words(report, limit)) <= limit


def test_a_call_may_have_as_many_rounds_as_the_row_says():
    assert RalphConfig().max_rounds == 64


async def test_rounds_are_hidden_from_a_lead_that_does_not_ask_for_them(room):
    lead = await room.lead()
    assert "ralph" not in room.tools.registry.view(lead.scope)
    room.preset({"main_agent_extra": ["ralph"]})
    other = await room.lead()
    assert "ralph" in room.tools.registry.view(other.scope)
    await room.dispose(lead, other)


async def test_a_round_has_no_rounds_and_gives_no_work_away(rounds):
    await rounds.run(reports(OFF))
    (body,) = [body for body in rounds.room.minds.of("rounds") if "This is round" in str(body["messages"][1]["content"])]
    assert not names(body) & {"ralph", "delegate", "send_message"} and "write" in names(body)


async def test_who_ends_a_call_ends_its_round(rounds):
    room = rounds.room
    rounds.answers, rounds.arguments = [{"text": "never said", "gate": asyncio.Event()}], {"objective": "x"}
    lead = await room.lead(room.mind("rounds", rounds.says), preset="")
    running = asyncio.create_task(lead.run("go"))
    async with asyncio.timeout(20):
        while not rounds.prompts:
            await asyncio.sleep(0.005)
    lead.cancel("user")
    assert (await running).reason == "aborted"
    assert room.tasks.live == {} and list(room.agents.live) == [lead.id]
    (record,) = room.records(lead)
    assert record.outcome.status == "aborted"
    await room.dispose(lead)
