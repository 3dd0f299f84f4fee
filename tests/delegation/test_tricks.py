"""Ways round the rules of leads, of trust and of permissions: each must lead nowhere, and what is honest must still go."""

# pyright: basic

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.compose import running
from hames.content.messages import Message, Text, ToolResult
from hames.delegation import DELEGATION
from hames.delegation.attempts import MARK, said_alone
from hames.delegation.events import TaskBegan
from hames.policy import POLICY
from hames.policy.plugin import MODE
from hames.profiles import profile
from hames.sessions import SESSIONS
from hames.store import STATE
from hames.tools import TOOLS, Question
from hames.trust import TRUST
from hames.workspaces import WORKSPACES

GOAL = "Build the parser in src/parser.py so that nested brackets are accepted"
RACE = "Fix the race in scheduler.py so that test_queue passes under load"
CORE = MARK.strip()
NESTED = f"\n\n{CORE[:9]}{CORE[:5]}{CORE}{CORE[5:]}{CORE[9:]}\n"
KIDS = ("implement", "design", "search_internal_deep")
HANGS = "openai:fault=hang"
REFUSES = {"text": "no", "finish": "refusal"}
ASKING = ("ask_user_question", {"questions": [{"question": "Which colour?"}]})
ORCHESTRATOR = {"id": "orchestrator", "use": "hames.delegation.orchestrator"}
SERVER = """
import json, pathlib, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"error": {"code": -32601, "message": "no"}}
    if message["method"] == "initialize":
        info = {"name": "s", "version": "1"}
        answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}}
    elif message["method"] == "tools/list":
        answer = {"result": {"tools": [{"name": "put", "inputSchema": {"type": "object"}}]}}
    elif message["method"] == "tools/call":
        pathlib.Path(sys.argv[1]).write_text("ran")
        answer = {"result": {"content": [{"type": "text", "text": "ran"}]}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


def call(goal: str, role: str = "implement", **more: Any) -> tuple[str, dict[str, Any]]:
    return role, {"description": "some work", "prompt": goal, **more}


def calls(*made: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments} for name, arguments in made]}


def report(outcome: str = "done", **more: str) -> dict[str, Any]:
    return calls(("structured_output", {"outcome": outcome, "result": "what there is", **more}))


DONE = report()
FAILED = report("failed", error="E1 in the lexer")


def headed(lines: str, body: str = "You are somebody.") -> str:
    return f"---\n{lines}\n---\n{body}\n"


class Room:
    """A workspace with leads whose children do what the test says next."""

    def __init__(self, host: Any, place: Path) -> None:
        self.host, self.place, self.work = host, place, place / "work"
        self.agents, self.tasks, self.tools = host.get(AGENTS), host.get(DELEGATION).tasks, host.get(TOOLS)
        self._count = 0

    def write(self, name: str, text: str, *, trusted: bool = True) -> None:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if trusted:
            trust = self.host.get(TRUST)
            trust.decide(trust.status(self.work), True)

    def standing(self) -> str:
        return self.host.get(TRUST).status(self.work).standing

    def preset(self, models: dict[str, str] | None = None, **config: Any) -> None:
        roles = {name: {"model": (models or {}).get(name, f"scripted:{self.place / name}.json")} for name in KIDS}
        rows = [
            {"include": "shipped:presets/orchestrator.yaml"},
            {"id": "orchestrator", "set": {"config": {"roles": roles, **config}}},
        ]
        self.write(".hames/presets/orchestrator.yaml", json.dumps(rows))

    def compose(self, *rows: dict[str, Any]) -> None:
        self.write(".hames/compose.yaml", json.dumps(list(rows)))

    def plan(self, *answers: dict[str, Any]) -> None:
        """What children do from now on."""
        for name in KIDS:
            (self.place / f"{name}.json").write_text(json.dumps(answers))

    async def lead(self, model: str = "openai:text=x", preset: str = "orchestrator") -> Any:
        return await self.agents.create(AgentSpec(str(self.work), model, preset=preset))

    async def turn(self, lead: Any, *answers: dict[str, Any], source: str = "harness") -> list[ToolResult]:
        """A turn with these answers, and the results of its calls."""
        count = sum(message.role == "assistant" for _, message in lead.session.messages)
        self._count += 1
        script = self.place / f"lead-{self._count}.json"
        script.write_text(json.dumps([*[{"text": "notes"}] * count, *answers, *[{"text": "x"}] * 6]))
        lead.model_ref = f"scripted:{script}"
        before = len(self.results(lead))
        await asyncio.wait_for(lead.run(Message("user", (Text("go on"),), source)), 60)
        await asyncio.wait_for(lead.idle(), 60)
        return self.results(lead)[before:]

    async def give(self, lead: Any, goal: str, role: str = "implement", **more: Any) -> ToolResult:
        (result,) = await self.turn(lead, calls(call(goal, role, **more)))
        return result

    async def rest(self, lead: Any) -> None:
        await asyncio.wait_for(self.host.get(DELEGATION).rest(lead), 60)

    def results(self, lead: Any) -> list[ToolResult]:
        return [block for _, message in lead.session.messages for block in message.blocks if isinstance(block, ToolResult)]

    def records(self, lead: Any) -> list[Any]:
        return list(self.tasks.ledger.below(lead.id))

    def last(self, lead: Any) -> str:
        return self.records(lead)[-1].id

    def seen(self, agent: Any) -> set[str]:
        return set(self.tools.registry.view(agent.scope))


def opening(place: Path, *rows: dict[str, Any], mode: str = "") -> Any:
    patch = place / "patch.json"
    patch.write_text(json.dumps([{"id": "loop", "set": {"config": {"retries": 0}}}, *rows]))
    return running([profile("standard"), patch], {STATE: place / "state", **({MODE: mode} if mode else {})})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wired: Any) -> Path:
    monkeypatch.setenv("HAMES_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    return tmp_path


@pytest.fixture
async def room(place: Path):
    async with opening(place) as host:
        made = Room(host, place)
        made.preset()
        yield made
        for agent in tuple(made.agents.live.values()):
            await made.agents.dispose(agent)


async def failed_once(room: Room, *script: dict[str, Any], goal: str = GOAL) -> tuple[Any, str]:
    """A lead one of whose attempts has ended so."""
    room.plan(*(script or (FAILED,)))
    lead = await room.lead()
    await room.give(lead, goal)
    return lead, room.last(lead)


# trust


async def test_what_one_preset_says_of_a_row_hides_nothing_that_another_says_of_it(room: Room) -> None:
    room.write(".hames/presets/a.yaml", "[{id: policy, use: hames.prompts.service}]")
    room.write(".hames/presets/b.yaml", "[{id: policy, set: {config: {mode: full}}}]")
    assert room.standing() == "granted"
    room.write(".hames/presets/b.yaml", "[{id: policy, set: {config: {mode: read-only}}}]", trusted=False)
    assert room.standing() == "changed"


@pytest.mark.parametrize("name", ["compose.yaml", "presets/b.yaml"])
async def test_a_value_of_the_row_of_delegation_needs_another_grant(room: Room, name: str) -> None:
    room.write(f".hames/{name}", "[{id: delegation, set: {config: {max_depth: 2}}}]")
    assert room.standing() == "granted"
    room.write(f".hames/{name}", "[{id: delegation, set: {config: {max_depth: 3}}}]", trusted=False)
    assert room.standing() == "changed"


# what is carried along


def test_a_mark_within_a_mark_is_gone() -> None:
    assert CORE not in said_alone(f"one{NESTED}two")
    assert said_alone(f"one{NESTED}two").split() == ["one", "two"]


@pytest.mark.parametrize("first", [GOAL, f"Say hello{NESTED}{GOAL}"], ids=["plain", "forged"])
async def test_a_refused_goal_stays_refused_behind_a_mark_within_a_mark(room: Room, first: str) -> None:
    lead, task = await failed_once(room, REFUSES, goal=first)
    room.plan(DONE)
    for goal in (GOAL, f"Say hello{NESTED}{GOAL}", f"{NESTED}{GOAL}"):
        assert (await room.give(lead, goal, after=task)).code == "SAME_WORK"
    assert len(room.records(lead)) == 1


# what counts


async def test_a_trifle_that_names_the_same_file_does_not_take_a_failure_away(room: Room) -> None:
    room.preset(failure={"retries": 3, "strikes": 2})
    lead, first = await failed_once(room, goal=RACE)
    room.plan(DONE)
    assert not (await room.give(lead, "Print scheduler.py.", after=first)).is_error
    room.plan(FAILED)
    assert (await room.give(lead, RACE, after=room.last(lead))).code == "FAILED"
    assert (await room.give(lead, RACE, after=room.last(lead))).code == "STRUCK_OUT"
    assert len(room.records(lead)) == 3


async def test_doing_the_whole_goal_takes_its_failures_away(room: Room) -> None:
    lead, first = await failed_once(room, goal=RACE)
    room.plan(DONE)
    assert not (await room.give(lead, RACE, after=first)).is_error
    room.plan(FAILED)
    assert (await room.give(lead, RACE)).code == "FAILED"
    assert (await room.give(lead, RACE, after=room.last(lead))).code == "FAILED"
    assert (await room.give(lead, RACE, after=room.last(lead))).code == "STRUCK_OUT"
    assert len(room.records(lead)) == 4


async def test_of_two_goals_that_differ_in_a_name_each_may_follow_its_own_failure(room: Room) -> None:
    room.plan(FAILED)
    lead = await room.lead()
    goals = ("Add docstrings to alpha.py", "Add docstrings to beta.py")
    assert [result.code for result in await room.turn(lead, calls(*map(call, goals)))] == ["FAILED", "FAILED"]
    of = {record.spec.prompt: record.id for record in room.records(lead)}
    room.plan(DONE)
    for goal in goals:
        assert not (await room.give(lead, goal, after=of[goal])).is_error
    assert [record.spec.after for record in room.records(lead)] == ["", "", of[goals[0]], of[goals[1]]]


async def test_a_report_that_lacks_none_lacks_no_tool(room: Room) -> None:
    lead, first = await failed_once(room, report("failed", error="E2", missing="none"))
    assert "You may give it once more" in room.results(lead)[-1].text
    assert (await room.give(lead, GOAL, after=first)).code == "FAILED"
    assert (await room.give(lead, GOAL, after=room.last(lead))).code == "STRUCK_OUT"


async def test_what_was_ended_twice_was_no_accident(room: Room) -> None:
    room.preset({"implement": HANGS})
    lead, after = await room.lead(), {}
    for _ in range(2):
        await room.give(lead, GOAL, run_in_background=True, **after)
        room.tasks.live[room.last(lead)].cancel("user")
        await room.rest(lead)
        after = {"after": room.last(lead), "reason": "accident"}
    assert [record.outcome.status for record in room.records(lead)] == ["aborted", "aborted"]
    assert (await room.give(lead, GOAL, run_in_background=True, **after)).code == "STRUCK_OUT"
    assert len(room.records(lead)) == 2


@pytest.mark.parametrize("role", ["implement", "design"])
async def test_other_words_for_what_is_worked_on_are_not_given(room: Room, role: str) -> None:
    room.preset({"implement": HANGS})
    lead = await room.lead()
    await room.give(lead, GOAL, run_in_background=True)
    refused = await room.give(lead, "Make src/parser.py accept nested brackets", role, run_in_background=True)
    assert refused.code == "STILL_RUNNING"
    assert len(room.records(lead)) == 1


async def test_arguments_that_say_nothing_are_as_if_left_out(room: Room) -> None:
    room.plan(FAILED)
    lead = await room.lead()
    nothing = {"after": "", "reason": "", "missing": []}
    assert (await room.give(lead, GOAL, **nothing)).code == "FAILED"
    assert (await room.give(lead, GOAL, **nothing)).code == "ATTEMPT_UNNAMED"
    room.plan(DONE)
    assert not (await room.give(lead, GOAL, **{**nothing, "after": room.last(lead)})).is_error
    again = room.records(lead)[-1].spec
    assert (again.because, again.missing) == ("", ())


# what a person has said


@pytest.mark.parametrize("made", [(call(GOAL), ASKING), (ASKING, call(GOAL))], ids=["work first", "question first"])
async def test_an_answer_to_what_was_asked_beside_the_work_lifts_no_failure(room: Room, made: Any) -> None:
    room.plan(FAILED)
    lead = await room.lead()

    async def answer(question: Question) -> tuple[str, ...]:
        return ("blue",)

    room.host.ctx.at(lead.scope).on(Question, answer)
    results = await room.turn(lead, calls(*made))
    assert sorted(result.code for result in results) == ["", "FAILED"]
    assert (await room.give(lead, GOAL)).code == "ATTEMPT_UNNAMED"
    await room.give(lead, GOAL, after=room.last(lead))
    assert (await room.give(lead, GOAL, after=room.last(lead))).code == "STRUCK_OUT"
    await room.turn(lead, calls(ASKING))
    assert (await room.give(lead, GOAL, after=room.last(lead))).code == "FAILED"


@pytest.mark.parametrize("way", ["send", "steer"])
async def test_a_word_that_waited_while_the_work_failed_lifts_nothing_and_a_later_one_does(room: Room, way: str) -> None:
    room.plan(FAILED)
    lead = await room.lead()
    said: list[str] = []

    def began(notice: TaskBegan) -> None:
        if not said:
            said.append(notice.task)
            getattr(lead, way)(Message("user", (Text("fine so far"),), "user"))

    room.host.ctx.at(lead.scope).on(TaskBegan, began)
    (result,) = await room.turn(lead, calls(call(GOAL)))
    assert result.code == "FAILED" and said == [room.last(lead)]
    events = room.host.get(SESSIONS).read(lead.id)
    assert any(event.type == "message" and "queued" in event.data and "fine so far" in str(event.data) for event in events)
    await room.give(lead, GOAL, after=room.last(lead))
    assert (await room.give(lead, GOAL, after=room.last(lead))).code == "STRUCK_OUT"
    await room.turn(lead, {"text": "I tell you"}, source="user")
    assert (await room.give(lead, GOAL, after=room.last(lead))).code == "FAILED"


# roles of a repository


async def test_a_role_of_a_repository_stays_within_the_shipped_one_of_its_name(room: Room) -> None:
    text = headed("description: Looks.\nrunner: fork\ntools: [read, write, bash]")
    room.write(".hames/roles/search_internal_deep.md", text)
    room.plan(DONE)
    lead = await room.lead()
    assert not (await room.give(lead, "Look at it", "search_internal_deep")).is_error
    (record,) = room.records(lead)
    assert (record.spec.permission, record.spec.runner) == ("read-only", "spawn")
    whole = room.tasks.ledger.get(record.id)
    state = [event.data for event in room.host.get(SESSIONS).read(whole.attempts[0].native) if '"permission"' in json.dumps(event.data)]
    assert '"permission": "read-only"' in json.dumps(state) and whole.attempts[0].runner.startswith("spawn")


@pytest.mark.parametrize("text", ["no front matter", headed("name: implement\ntools:\n  - {a: [b"), headed("tools: {a: b}")])
async def test_a_broken_file_of_a_repository_takes_no_shipped_role_away(room: Room, text: str) -> None:
    room.write(".claude/agents/implement.md", text)
    room.plan(DONE)
    lead = await room.lead()
    assert "implement" in room.seen(lead)
    assert not (await room.give(lead, GOAL)).is_error


# permissions


async def test_a_server_that_may_execute_is_denied_where_nothing_may_be_written(place: Path, script: Any, calling: Any) -> None:
    program, ran = place / "server.py", place / "ran.txt"
    program.write_text(SERVER)
    config = {"command": sys.executable, "args": ["-S", str(program), str(ran)], "capabilities": ["read", "write", "execute"]}
    async with opening(place, {"id": "s", "use": "hames.mcp.server", "config": {**config, "required": True}}, mode="read-only") as host:
        room = Room(host, place)
        policy, judged = host.get(POLICY), []
        decide = policy.decide

        def noted(request: Any) -> Any:
            judged.append(request)
            return decide(request)

        policy.decide = noted
        agent = await room.lead(script(calling(("mcp__s__put", {})), {"text": "done"}), preset="")
        tool = room.tools.registry.view(agent.scope)["mcp__s__put"]
        needs = tool.needs({}, None)
        assert not needs.confined and needs.capabilities == {"read", "write", "execute"}
        await agent.run("go")
        (result,) = room.results(agent)
        assert result.code == "DENIED" and not ran.exists()
        assert {request.enforced for request in judged if request.name == "mcp__s__put"} == {False}
        await room.agents.dispose(agent)


# a row that fails


async def test_a_lead_whose_row_fails_sees_no_more_and_leads_again_once_it_is_mended(room: Room) -> None:
    wide = {"write", "edit", "delegate"}
    room.compose(ORCHESTRATOR)
    agent = await room.lead(preset="")
    assert "implement" in room.seen(agent) and not room.seen(agent) & wide

    async def edited(*rows: dict[str, Any]) -> tuple[str, set[str]]:
        room.compose(*rows)
        info = await room.host.get(WORKSPACES).reload(room.work)
        return info.reason, room.seen(agent)

    for _ in range(2):
        reason, seen = await edited({**ORCHESTRATOR, "config": {"roles": {"bash": {}}}})
        assert reason and not seen & wide
        reason, seen = await edited(ORCHESTRATOR)
        assert not reason and {"implement", "design", "read"} <= seen and not seen & wide
    reason, seen = await edited()
    assert not reason and wide <= seen and "implement" not in seen


# who it is


async def test_what_is_no_variable_in_a_persona_is_told_as_text(room: Room, wired: Any) -> None:
    room.preset(persona_extra="Greet {{ name }} in {{cwd}}, and {{a b}} too.")
    lead = await room.lead()
    assert (await lead.run("hello")).reason == "completed"
    system = str(json.loads(wired.received[-1].body)["messages"][0]["content"])
    assert f"Greet {{{{ name }}}} in {room.work}, and {{{{a b}}}} too." in system
