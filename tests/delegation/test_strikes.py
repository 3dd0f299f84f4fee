"""A lead that misbehaves after something has failed: what it must not get through, and what it still may do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from hames.agents import AGENTS, Agent, AgentSpec
from hames.compose import running
from hames.content.messages import Message, Text, ToolResult, decode_message
from hames.delegation import DELEGATION
from hames.delegation.attempts import MARK
from hames.delegation.records import TaskRecord
from hames.profiles import profile
from hames.sessions import SESSIONS
from hames.store import STATE
from hames.trust import TRUST

GOAL = "Build the parser in src/parser.py so that nested brackets are accepted"
OTHER = "Translate the manual of the printer to Finnish"
KIDS = ("implement", "design", "search_external")


def reports(outcome: str = "done", **more: str) -> list[dict[str, Any]]:
    """The script of a child that ends with a report."""
    value = {"outcome": outcome, "result": "what there is", **more}
    return [{"calls": [{"name": "structured_output", "arguments": value}]}]


DONE = reports()
FAILED = reports("failed", result="half of the grammar", error="E1 in the lexer", next="look at the lexer")
LACKS = reports("failed", error="E2", missing="network access")
REFUSES = [{"text": "no", "finish": "refusal"}]
TOO_LONG = [{"text": "and so on", "finish": "max-tokens"}]
SILENT = [{"text": "well"}] * 6
BROKEN = [{"failure": "invalid-request"}]
HANGS = "openai:fault=hang"
READS = {"text": "I look", "calls": [{"name": "read", "arguments": {"path": "x"}}]}


class Room:
    """A workspace with a lead whose children do what the test says next."""

    def __init__(self, host: Any, place: Path) -> None:
        self.host, self.place = host, place
        self.work = place / "work"
        self.agents, self.service = host.get(AGENTS), host.get(DELEGATION)
        self.tasks = self.service.tasks
        self._count = 0

    def compose(self, *, models: dict[str, str] | None = None, roles: dict[str, Any] | None = None, **config: Any) -> None:
        """Write the preset of the lead; the model of a role reads the script that :meth:`plan` writes."""
        made: dict[str, Any] = {name: {"model": (models or {}).get(name, f"scripted:{self.place / name}.json")} for name in KIDS}
        for name, more in (roles or {}).items():
            made[name] = {**made.get(name, {}), **more}
        place = self.work / ".hames" / "presets"
        place.mkdir(parents=True, exist_ok=True)
        rows = [
            {"include": "shipped:presets/orchestrator.yaml"},
            {"id": "orchestrator", "set": {"config": {"roles": made, **config}}},
        ]
        (place / "orchestrator.yaml").write_text(json.dumps(rows))
        trust = self.host.get(TRUST)
        trust.decide(trust.status(self.work), True)

    def plan(self, *answers: dict[str, Any], role: str = "") -> None:
        """What the children of a role, or of every role, do from now on."""
        for name in [role] if role else KIDS:
            (self.place / f"{name}.json").write_text(json.dumps(answers))

    async def lead(self, resume: str = "", cwd: Path | None = None) -> Agent:
        return await self.agents.create(AgentSpec(str(cwd or self.work), "openai:text=x", resume, preset="orchestrator"))

    async def turn(self, lead: Agent, *answers: dict[str, Any], source: str = "harness", first: int | None = None) -> list[ToolResult]:
        """A turn of the lead with these answers, and the results of its calls. It is no word of the user unless ``source`` says so."""
        count = sum(message.role == "assistant" for _, message in lead.session.messages) if first is None else first
        self._count += 1
        script = self.place / f"lead-{self._count}.json"
        script.write_text(json.dumps([*[{"text": "notes"}] * count, *answers, *[{"text": "x"}] * 4]))
        lead.model_ref = f"scripted:{script}"
        before = len(self.results(lead))
        await asyncio.wait_for(lead.run(Message("user", (Text("go on"),), source)), 60)
        return self.results(lead)[before:]

    async def give(self, lead: Agent, goal: str, role: str = "implement", **more: Any) -> ToolResult:
        (result,) = await self.turn(lead, calls(call(goal, role, **more)))
        return result

    async def message(self, lead: Agent, thread: str, text: str) -> ToolResult:
        (result,) = await self.turn(lead, calls(("send_message", {"agent_id": thread, "message": text})))
        await self.rest(lead)
        return result

    async def rest(self, lead: Agent) -> None:
        await asyncio.wait_for(self.service.rest(lead), 60)

    async def compacted(self, lead: Agent, *answers: dict[str, Any]) -> list[ToolResult]:
        """A turn before which all that the lead knows is replaced by notes."""
        lead.session.add(Message("user", (Text("fact " * 30_000),), "harness"))
        lead.session.add(Message("assistant", (Text("I see"),), "model"))
        lead.session.add(Message("user", (Text("fact " * 30_000),), "harness"))
        count = sum(message.role == "assistant" for _, message in lead.session.messages)
        self._count += 1
        script = self.place / f"lead-{self._count}.json"
        script.write_text(json.dumps([*answers, *[{"text": "x"}] * (count - len(answers)), {"text": "notes"}]))
        lead.model_ref = f"scripted:{script}"
        lead.compact_next = True
        before = len(self.results(lead))
        await asyncio.wait_for(lead.run(Message("user", (Text("go on"),), "harness")), 60)
        assert any(event.type == "compacted" for event in self.host.get(SESSIONS).read(lead.id))
        assert not any(GOAL in message.text for _, message in lead.session.messages)
        return self.results(lead)[before:]

    def results(self, lead: Agent) -> list[ToolResult]:
        """All results of tools that were ever logged; a compaction hides none."""
        if not lead.session.messages:
            return []
        events = [event for event in self.host.get(SESSIONS).read(lead.id) if event.type == "message"]
        messages = [decode_message(event.data) for event in events]
        return [block for message in messages for block in message.blocks if isinstance(block, ToolResult)]

    def records(self, lead: Agent) -> list[TaskRecord]:
        return list(self.tasks.ledger.below(lead.id))

    def last(self, lead: Agent) -> str:
        return self.records(lead)[-1].id

    def statuses(self, lead: Agent) -> list[str]:
        return [record.outcome.status if record.outcome else "none" for record in self.records(lead)]

    def refusals(self, task: str) -> list[str]:
        """The codes that are noted at an attempt."""
        record = self.tasks.ledger.get(task)
        assert record is not None
        return [receipt.data["code"] for receipt in record.receipts if receipt.kind == "refused"]


def call(goal: str, role: str = "implement", **more: Any) -> tuple[str, dict[str, Any]]:
    return role, {"description": "some work", "prompt": goal, **more}


def calls(*made: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments} for name, arguments in made]}


def opening(place: Path, **delegation: Any) -> Any:
    """A host over the state directory of a place."""
    patch = place / "patch.json"
    rows = [{"id": "loop", "set": {"config": {"retries": 0}}}, {"id": "delegation", "set": {"config": {"grace": 3.0, **delegation}}}]
    patch.write_text(json.dumps(rows))
    return running([profile("standard"), patch], {STATE: place / "state"})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wired: Any) -> Path:
    monkeypatch.setenv("HAMES_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    return tmp_path


@pytest.fixture
async def room(place: Path) -> AsyncGenerator[Room]:
    async with opening(place) as host:
        made = Room(host, place)
        made.compose()
        yield made
        for agent in tuple(made.agents.live.values()):
            await made.agents.dispose(agent)


async def failed_once(room: Room, *script: dict[str, Any], goal: str = GOAL, role: str = "implement") -> tuple[Agent, str]:
    """A lead one of whose attempts has ended so."""
    room.plan(*(script or FAILED))
    lead = await room.lead()
    await room.give(lead, goal, role)
    (record,) = room.records(lead)
    return lead, record.id


# after an error


@pytest.mark.parametrize("script", [FAILED, BROKEN], ids=["it says so", "its model fails"])
async def test_after_an_error_there_is_one_fresh_attempt_which_names_the_first(room: Room, script: list[dict[str, Any]]) -> None:
    lead, first = await failed_once(room, *script)
    assert f"You may give it once more, as a fresh task, with after: {first!r}" in room.results(lead)[-1].text
    refused = await room.give(lead, GOAL)
    assert refused.code == "ATTEMPT_UNNAMED" and first in refused.text
    again = await room.give(lead, GOAL, after=first)
    assert again.is_error and "tell the user what failed" in again.text
    records = room.records(lead)
    assert [record.spec.after for record in records] == ["", first]
    assert records[0].thread != records[1].thread
    third = await room.give(lead, GOAL, after=records[1].id)
    assert third.code == "STRUCK_OUT" and "tell the user" in third.text
    assert (await room.give(lead, GOAL, after=first)).code == "STRUCK_OUT"
    assert len(room.records(lead)) == 2
    assert room.refusals(first) == ["ATTEMPT_UNNAMED"] and room.refusals(records[1].id) == ["STRUCK_OUT", "STRUCK_OUT"]


async def test_a_fresh_attempt_that_succeeds_closes_the_matter(room: Room) -> None:
    lead, first = await failed_once(room)
    room.plan(*DONE)
    assert not (await room.give(lead, GOAL, after=first)).is_error
    assert not (await room.give(lead, OTHER)).is_error
    assert len(room.records(lead)) == 3


async def test_where_something_is_lacking_the_same_role_gets_it_no_more(room: Room) -> None:
    lead, first = await failed_once(room, *LACKS)
    assert "It lacks network access" in room.results(lead)[-1].text
    refused = await room.give(lead, GOAL, after=first)
    assert refused.code == "TOOL_LACKING" and "network access" in refused.text
    assert (await room.give(lead, "Something else, and shorter", after=first)).code == "TOOL_LACKING"
    assert len(room.records(lead)) == 1
    room.plan(*DONE)
    assert not (await room.give(lead, GOAL, "search_external", after=first)).is_error


async def test_what_may_be_tried_again_is_what_the_composition_says(room: Room) -> None:
    room.compose(failure={"retries": 0, "strikes": 3})
    lead, first = await failed_once(room)
    refused = await room.give(lead, GOAL, after=first)
    assert refused.code == "SAME_WORK" and "Change the goal" in refused.text
    await room.give(lead, "Sketch a grammar on paper", after=first)
    assert len(room.records(lead)) == 2


# after what did not come to its end


@pytest.mark.parametrize(
    ("script", "status", "budget"),
    [(TOO_LONG, "max-tokens", None), (SILENT, "invalid", None), ([READS] * 4, "budget", {"steps": 1})],
    ids=["max-tokens", "invalid", "budget"],
)
async def test_after_too_much_only_a_smaller_goal_may_come(
    room: Room, script: list[dict[str, Any]], status: str, budget: dict[str, int] | None
) -> None:
    room.compose(roles={"implement": {"budget": budget}} if budget else None)
    lead, first = await failed_once(room, *script)
    assert room.statuses(lead) == [status]
    assert "Give a smaller part of it" in room.results(lead)[-1].text
    assert (await room.give(lead, GOAL, after=first)).code == "SAME_WORK"
    assert (await room.give(lead, f"{GOAL}, and curly ones too, with tests", after=first)).code == "SAME_WORK"
    assert (await room.give(lead, GOAL, "design", after=first)).code == "SAME_WORK"
    assert len(room.records(lead)) == 1
    await room.give(lead, "Build only the lexer in src/parser.py", after=first)
    assert len(room.records(lead)) == 2


async def test_a_goal_is_no_smaller_for_having_less_white_space(room: Room) -> None:
    lead, first = await failed_once(room, *TOO_LONG, goal=GOAL + "\n" * 40 + "." * 40)
    refused = await room.give(lead, GOAL, after=first)
    assert refused.code == "SAME_WORK"
    assert len(room.records(lead)) == 1


# after a refusal


async def test_after_a_refusal_the_same_role_is_not_asked_the_same(room: Room) -> None:
    lead, first = await failed_once(room, *REFUSES)
    assert room.statuses(lead) == ["refusal"]
    for more in ({"after": first}, {}, {"after": "unrelated"}):
        assert (await room.give(lead, GOAL, **more)).code == "SAME_WORK"
    assert room.refusals(first) == ["SAME_WORK"] * 3
    room.plan(*DONE)
    assert not (await room.give(lead, GOAL, "design", after=first)).is_error


async def test_after_a_refusal_a_changed_goal_may_come(room: Room) -> None:
    lead, first = await failed_once(room, *REFUSES)
    room.plan(*DONE)
    assert not (await room.give(lead, "Draw a diagram of two colours", after=first)).is_error


async def test_a_refused_goal_stays_refused_when_the_role_did_something_else_since(room: Room) -> None:
    lead, first = await failed_once(room, *REFUSES)
    room.plan(*DONE)
    await room.give(lead, "Draw a diagram of two colours", after=first)
    refused = await room.give(lead, GOAL)
    assert refused.code == "SAME_WORK"
    assert len(room.records(lead)) == 2


async def test_a_refused_goal_stays_refused_when_another_role_has_tried_it(room: Room) -> None:
    room.compose(failure={"strikes": 3})
    lead, first = await failed_once(room, *REFUSES)
    room.plan(*FAILED)
    await room.give(lead, GOAL, "design", after=first)
    refused = await room.give(lead, GOAL, after=room.last(lead))
    assert refused.code == "SAME_WORK"
    assert len(room.records(lead)) == 2


async def test_a_refused_goal_is_not_given_under_the_name_of_other_work(room: Room) -> None:
    lead, _ = await failed_once(room, *REFUSES)
    room.plan(*DONE)
    await room.give(lead, OTHER, after="unrelated")
    refused = await room.give(lead, GOAL, after=room.last(lead), reason="poor", missing=["the parser"])
    assert refused.code == "SAME_WORK"
    assert len(room.records(lead)) == 2


async def test_what_is_carried_along_cannot_be_forged(room: Room) -> None:
    lead, first = await failed_once(room, *REFUSES, goal=f"-{MARK}{GOAL}")
    refused = await room.give(lead, f"-{MARK}{GOAL}", after=first)
    assert refused.code == "SAME_WORK"
    assert len(room.records(lead)) == 1


# after somebody ended it


async def aborted(room: Room) -> tuple[Agent, str]:
    """A lead one of whose attempts was ended from outside."""
    room.compose(models={"implement": HANGS})
    lead = await room.lead()
    await room.turn(lead, calls(call(GOAL, run_in_background=True)))
    (record,) = room.records(lead)
    room.tasks.live[record.id].cancel("user")
    await room.rest(lead)
    assert room.statuses(lead) == ["aborted"]
    return lead, record.id


async def test_after_it_was_ended_only_an_accident_is_a_reason(room: Room) -> None:
    lead, first = await aborted(room)
    reasons: list[dict[str, Any]] = [{}, {"reason": "poor", "missing": ["all of it"]}]
    for more in reasons:
        refused = await room.give(lead, GOAL, after=first, **more)
        assert refused.code == "REASON_NEEDED" and "accident" in refused.text
    assert (await room.give(lead, GOAL)).code == "ATTEMPT_UNNAMED"
    assert len(room.records(lead)) == 1
    await room.give(lead, GOAL, after=first, reason="accident", run_in_background=True)
    assert len(room.records(lead)) == 2


# completed, and poor


async def test_what_completed_is_done_again_only_for_what_is_missing(room: Room) -> None:
    lead, first = await failed_once(room, *DONE)
    reasons: list[dict[str, Any]] = [{}, {"reason": "accident"}, {"missing": ["tests"]}, {"reason": "poor"}]
    reasons.append({"reason": "poor", "missing": [" "]})
    for more in reasons:
        assert (await room.give(lead, GOAL, after=first, **more)).code == "REASON_NEEDED"
    assert (await room.give(lead, GOAL, reason="poor", missing=["tests"])).code == "ATTEMPT_UNNAMED"
    assert len(room.records(lead)) == 1
    assert not (await room.give(lead, GOAL, after=first, reason="poor", missing=["tests of it"])).is_error
    again = room.records(lead)[-1]
    assert again.spec.because == "poor" and again.spec.missing == ("tests of it",)
    assert "What is missing: tests of it" in again.spec.prompt
    third = await room.give(lead, GOAL, after=again.id, reason="poor", missing=["more tests"])
    assert third.code == "STRUCK_OUT"
    assert len(room.records(lead)) == 2


async def test_a_poor_result_counts_as_a_failure_of_the_one_before(room: Room) -> None:
    lead, first = await failed_once(room, *DONE)
    room.plan(*FAILED)
    again = await room.give(lead, GOAL, after=first, reason="poor", missing=["tests of it"])
    assert "tell the user what failed" in again.text
    assert (await room.give(lead, GOAL, after=room.last(lead))).code == "STRUCK_OUT"


async def test_a_reason_that_there_is_not_is_none(room: Room) -> None:
    lead, first = await failed_once(room)
    assert (await room.give(lead, GOAL, after=first, reason="because")).code in ("INVALID_ARGS", "REASON_NEEDED")
    assert len(room.records(lead)) == 1


async def test_an_attempt_that_there_is_not_cannot_be_named(room: Room) -> None:
    lead, first = await failed_once(room)
    for name in ("t1nothing", first.upper(), f" {first}", "Unrelated", "../x"):
        refused = await room.give(lead, GOAL, after=name)
        assert refused.code == "ATTEMPT_UNKNOWN" and first in refused.text
    other, theirs = await failed_once(room)
    assert (await room.give(other, GOAL, after=first)).code == "ATTEMPT_UNKNOWN"
    assert first != theirs and len(room.records(other)) == 1


# other roles


async def test_another_role_may_take_it_over_and_the_count_goes_on(room: Room) -> None:
    lead, first = await failed_once(room)
    second = await room.give(lead, GOAL, "design", after=first)
    assert second.is_error and "tell the user" in second.text
    for role in KIDS:
        assert (await room.give(lead, GOAL, role, after=room.last(lead))).code == "STRUCK_OUT"
    assert len(room.records(lead)) == 2


async def test_the_same_words_in_another_role_name_the_attempt_too(room: Room) -> None:
    lead, _ = await failed_once(room)
    assert (await room.give(lead, GOAL, "design")).code == "ATTEMPT_UNNAMED"
    assert len(room.records(lead)) == 1


async def test_the_same_words_in_another_role_are_not_unrelated(room: Room) -> None:
    lead, _ = await failed_once(room)
    refused = await room.give(lead, GOAL, "design", after="unrelated")
    assert refused.code == "SAME_WORK"
    assert len(room.records(lead)) == 1


async def test_work_that_a_second_role_failed_at_stands_open_for_the_first_too(room: Room) -> None:
    lead, first = await failed_once(room)
    await room.give(lead, GOAL, "design", after=first)
    refused = await room.give(lead, "Let nested parentheses through")
    assert refused.code == "ATTEMPT_UNNAMED"
    assert len(room.records(lead)) == 2


async def test_a_goal_is_not_laundered_by_naming_other_work(room: Room) -> None:
    lead, first = await failed_once(room)
    await room.give(lead, GOAL, after=first)
    room.plan(*DONE)
    await room.give(lead, OTHER, after="unrelated")
    refused = await room.give(lead, GOAL, after=room.last(lead), reason="poor", missing=["the parser"])
    assert refused.is_error and refused.code in ("STRUCK_OUT", "SAME_WORK", "ATTEMPT_UNNAMED")
    assert len(room.records(lead)) == 3


async def test_a_trifle_that_succeeds_does_not_make_the_count_of_a_goal_begin_anew(room: Room) -> None:
    lead, first = await failed_once(room)
    codes: list[str] = []
    for _ in range(2):
        room.plan(*DONE)
        await room.give(lead, "Say hello", after=room.last(lead))
        room.plan(*FAILED)
        codes.append((await room.give(lead, GOAL)).code)
    failures = [record for record in room.records(lead) if record.spec.prompt.startswith(GOAL)]
    assert codes[-1] in ("STRUCK_OUT", "SAME_WORK", "ATTEMPT_UNNAMED")
    assert first == failures[0].id and len(failures) <= 2


# what the next one is told


async def test_every_further_attempt_is_told_of_all_before_it(room: Room) -> None:
    room.compose(failure={"strikes": 4, "retries": 4})
    lead, first = await failed_once(room)
    room.plan(*reports("failed", result="the other half", error="E7 in the tree", missing="the tool draw"))
    await room.give(lead, GOAL, "design", after=first)
    room.plan(*DONE)
    await room.give(lead, GOAL, after=room.last(lead))
    await room.give(lead, GOAL, after=room.last(lead), reason="poor", missing=["tests for depth 9"])
    one, two, three, four = (record.spec.prompt for record in room.records(lead))
    assert MARK not in one
    assert "half of the grammar" in two and "E1 in the lexer" in two
    for found in ("half of the grammar", "E1 in the lexer", "the other half", "E7 in the tree", "It lacks: the tool draw"):
        assert found in three and found in four
    assert "What is missing: tests for depth 9" in four and "what there is" in four
    assert four.partition(MARK)[0] == GOAL and four.count(MARK) == 1
    body = room.host.get(SESSIONS).read(room.tasks.ledger.get(room.last(lead)).attempts[0].native)  # type: ignore[union-attr]
    assert any("tests for depth 9" in str(event.data) for event in body if event.type == "message")


# other work


async def test_other_work_may_be_given_while_something_stands_failed(room: Room) -> None:
    lead, first = await failed_once(room)
    room.plan(*DONE)
    assert (await room.give(lead, OTHER)).code == "ATTEMPT_UNNAMED"
    assert not (await room.give(lead, OTHER, after="unrelated")).is_error
    assert (await room.give(lead, GOAL, after="unrelated")).code == "SAME_WORK"
    assert (await room.give(lead, GOAL.upper(), after="unrelated")).code == "SAME_WORK"
    assert not (await room.give(lead, OTHER + " at once", "design")).is_error
    assert room.refusals(first).count("SAME_WORK") == 2


async def test_a_role_that_fails_at_everything_gets_no_more(room: Room) -> None:
    lead, _ = await failed_once(room)
    words = ("Paint a fence", "Cook seven eggs", "Tune old pianos", "Sail round Iceland", "Count grey sheep")
    codes = [(await room.give(lead, goal, after="unrelated")).code for goal in words]
    assert codes == ["FAILED", "FAILED", "FAILED", "STRUCK_OUT", "STRUCK_OUT"]
    assert len(room.records(lead)) == 4


# while it runs


async def test_while_an_attempt_runs_there_is_no_other(room: Room) -> None:
    room.compose(models={"implement": HANGS})
    lead = await room.lead()
    await room.turn(lead, calls(call(GOAL, run_in_background=True)))
    first = room.last(lead)
    for role in ("implement", "design"):
        reasons: list[dict[str, Any]] = [{}, {"reason": "accident"}, {"reason": "poor", "missing": ["speed"]}]
        for more in reasons:
            assert (await room.give(lead, GOAL, role, after=first, **more)).code == "STILL_RUNNING"
    assert len(room.records(lead)) == 1


async def test_the_same_words_are_not_given_again_while_they_are_worked_on(room: Room) -> None:
    room.compose(models={"implement": HANGS})
    lead = await room.lead()
    await room.turn(lead, calls(call(GOAL, run_in_background=True)))
    results = await room.turn(lead, calls(call(GOAL, run_in_background=True)))
    assert results[0].is_error
    assert len(room.records(lead)) == 1


# several calls at once


async def test_of_several_calls_that_name_one_attempt_one_begins(room: Room) -> None:
    lead, first = await failed_once(room)
    results = await room.turn(lead, calls(*[call(GOAL, after=first)] * 5))
    assert len(room.records(lead)) == 2
    assert sorted(result.code for result in results) == ["FAILED", *["STILL_RUNNING"] * 4]


async def test_of_several_roles_that_take_over_one_attempt_one_begins(room: Room) -> None:
    lead, first = await failed_once(room)
    await room.turn(lead, calls(*(call(GOAL, role, after=first) for role in KIDS)))
    assert len(room.records(lead)) == 2


async def test_of_several_calls_in_the_background_that_name_one_attempt_one_begins(room: Room) -> None:
    lead, first = await failed_once(room)
    await room.turn(lead, calls(*[call(GOAL, after=first, run_in_background=True)] * 3))
    await room.rest(lead)
    assert len(room.records(lead)) == 2


async def test_the_same_words_several_times_in_one_answer_are_one_piece_of_work(room: Room) -> None:
    room.plan(*FAILED)
    lead = await room.lead()
    await room.turn(lead, calls(*[call(GOAL)] * 4))
    assert len(room.records(lead)) == 1


async def test_different_work_of_one_role_runs_beside_each_other_and_each_is_judged(room: Room) -> None:
    room.plan(*FAILED, role="implement")
    room.plan(*DONE, role="design")
    lead = await room.lead()
    results = await room.turn(lead, calls(call(GOAL), call(OTHER), call("Choose three colours", "design")))
    assert [result.code for result in results] == ["FAILED", "FAILED", ""]
    by_goal = {record.spec.prompt: record.id for record in room.records(lead)}
    results = await room.turn(
        lead, calls(call("Paint a fence"), call(GOAL, after=by_goal[GOAL]), call(OTHER, after="unrelated"), call("Choose fonts", "design"))
    )
    assert [result.code for result in results] == ["ATTEMPT_UNNAMED", "FAILED", "SAME_WORK", ""]


async def test_what_failed_in_the_background_stands_open_as_well(room: Room) -> None:
    room.plan(*FAILED)
    lead = await room.lead()
    await room.turn(lead, calls(call(GOAL, run_in_background=True)))
    await room.rest(lead)
    first = room.last(lead)
    assert any("You may give it once more" in message.text for _, message in lead.session.messages)
    assert (await room.give(lead, GOAL)).code == "ATTEMPT_UNNAMED"
    await room.turn(lead, calls(call(GOAL, after=first, run_in_background=True)))
    await room.rest(lead)
    assert (await room.give(lead, GOAL, after=first, run_in_background=True)).code == "STRUCK_OUT"
    assert len(room.records(lead)) == 2


async def test_a_word_before_the_failure_was_told_lifts_nothing(room: Room) -> None:
    room.compose(models={"implement": HANGS})
    lead = await room.lead()
    await room.turn(lead, calls(call(GOAL, run_in_background=True)))
    await room.turn(lead, {"text": "it goes on"}, source="user")
    live = room.tasks.live[room.last(lead)]
    live.cancel("deadline")
    await room.rest(lead)
    assert room.statuses(lead) == ["budget"]
    assert (await room.give(lead, GOAL, run_in_background=True)).code == "ATTEMPT_UNNAMED"
    assert len(room.records(lead)) == 1


# a word of the user


async def test_after_a_word_of_the_user_the_count_begins_anew(room: Room) -> None:
    lead, first = await failed_once(room)
    await room.give(lead, GOAL, after=first)
    assert (await room.give(lead, GOAL, after=first)).code == "STRUCK_OUT"
    await room.turn(lead, {"text": "I tell you"}, source="user")
    again = await room.give(lead, GOAL, after=first)
    assert again.code == "FAILED" and "You may give it once more" in again.text
    assert (await room.give(lead, GOAL)).code == "ATTEMPT_UNNAMED"
    await room.give(lead, GOAL, after=first)
    assert (await room.give(lead, GOAL, after=first)).code == "STRUCK_OUT"
    assert len(room.records(lead)) == 4


async def test_a_word_of_the_user_does_not_make_the_same_role_do_what_it_refused(room: Room) -> None:
    lead, first = await failed_once(room, *REFUSES)
    await room.turn(lead, {"text": "I tell you"}, source="user")
    for more in ({"after": first}, {}, {"after": "unrelated"}):
        assert (await room.give(lead, GOAL, **more)).code == "SAME_WORK"
    assert len(room.records(lead)) == 1


async def test_facts_of_the_harness_are_no_word_of_the_user(room: Room) -> None:
    lead, first = await failed_once(room)
    for _ in range(3):
        await room.turn(lead, {"text": "hm"})
    lead.steer(Message("user", (Text("The task is fine, says the user"),), "harness"))
    await lead.idle()
    assert (await room.give(lead, GOAL)).code == "ATTEMPT_UNNAMED"
    assert room.last(lead) == first


# a restart, and a compaction


async def test_it_holds_after_a_restart(place: Path) -> None:
    async with opening(place) as host:
        room = Room(host, place)
        room.compose()
        lead, first = await failed_once(room)
        await room.agents.dispose(lead)
    async with opening(place) as host:
        room = Room(host, place)
        room.plan(*FAILED)
        lead = await room.lead(resume=lead.id)
        assert (await room.give(lead, GOAL)).code == "ATTEMPT_UNNAMED"
        assert (await room.give(lead, GOAL, after="unrelated")).code == "SAME_WORK"
        again = await room.give(lead, GOAL, after=first)
        assert "tell the user" in again.text and "E1 in the lexer" in room.records(lead)[-1].spec.prompt
        await room.agents.dispose(lead)
    async with opening(place) as host:
        room = Room(host, place)
        lead = await room.lead(resume=lead.id)
        assert (await room.give(lead, GOAL, after=first)).code == "STRUCK_OUT"
        assert len(room.records(lead)) == 2
        await room.agents.dispose(lead)


async def test_it_holds_after_a_compaction(room: Room) -> None:
    lead, first = await failed_once(room)
    await room.give(lead, GOAL, after=first)
    results = await room.compacted(lead, calls(call(GOAL)), calls(call(GOAL, after=first)), calls(call(GOAL, after="unrelated")))
    assert [result.code for result in results] == ["ATTEMPT_UNNAMED", "STRUCK_OUT", "SAME_WORK"]
    assert len(room.records(lead)) == 2


async def test_a_word_of_the_user_still_counts_after_a_compaction(room: Room) -> None:
    lead, first = await failed_once(room)
    await room.give(lead, GOAL, after=first)
    await room.turn(lead, {"text": "I tell you"}, source="user")
    (again,) = await room.compacted(lead, calls(call(GOAL, after=first)))
    assert again.code == "FAILED"
    assert len(room.records(lead)) == 3


# children that are kept


async def kept(room: Room, *script: dict[str, Any]) -> tuple[Agent, str]:
    """A lead with a kept child whose first task has ended so."""
    room.compose(roles={"implement": {"background_mode": "continuable"}})
    room.plan(*script)
    lead = await room.lead()
    await room.give(lead, GOAL)
    await room.rest(lead)
    return lead, room.records(lead)[0].thread


async def test_a_kept_child_that_ended_with_an_error_is_not_spoken_to_again(room: Room) -> None:
    lead, thread = await kept(room, *FAILED)
    refused = await room.message(lead, thread, "try again")
    assert refused.code == "FRESH_NEEDED" and "fresh task" in refused.text
    assert len(room.records(lead)) == 1 and room.refusals(thread) == ["FRESH_NEEDED"]


async def test_a_kept_child_that_has_failed_twice_is_struck_out(room: Room) -> None:
    lead, thread = await kept(room, TOO_LONG[0], *TOO_LONG)
    assert not (await room.message(lead, thread, "only the lexer")).is_error
    refused = await room.message(lead, thread, "only the first line of it")
    assert refused.code == "STRUCK_OUT" and "tell the user" in refused.text
    assert (await room.give(lead, GOAL, after=thread)).code == "STRUCK_OUT"
    assert [record.spec.after for record in room.records(lead)] == ["", thread]


async def test_a_kept_child_is_not_asked_again_what_it_has_refused(room: Room) -> None:
    lead, thread = await kept(room, REFUSES[0], *DONE)
    assert (await room.message(lead, thread, GOAL)).code == "SAME_WORK"
    assert len(room.records(lead)) == 1
    assert not (await room.message(lead, thread, "Draw a diagram of two colours")).is_error
    refused = await room.message(lead, thread, GOAL)
    assert refused.code == "SAME_WORK"
    assert len(room.records(lead)) == 2


@pytest.mark.parametrize(
    ("script", "code", "text"), [(FAILED, "FRESH_NEEDED", "try again"), (REFUSES, "SAME_WORK", GOAL)], ids=["error", "refusal"]
)
async def test_what_another_attempt_came_to_opens_no_conversation_that_failed(
    room: Room, script: list[dict[str, Any]], code: str, text: str
) -> None:
    lead, thread = await kept(room, *script)
    room.plan(*DONE)
    assert not (await room.give(lead, GOAL, "design", after=thread)).is_error
    refused = await room.message(lead, thread, text)
    assert refused.code == code
    assert len(room.records(lead)) == 2


async def test_what_failed_in_a_conversation_stands_open_in_a_directory_with_another_name(room: Room) -> None:
    room.compose(roles={"implement": {"background_mode": "continuable"}})
    alias = room.place / "alias"
    alias.symlink_to(room.work)
    room.plan(*DONE, *TOO_LONG)
    lead = await room.lead(cwd=alias)
    await room.give(lead, OTHER)
    await room.rest(lead)
    thread = room.records(lead)[0].thread
    await room.message(lead, thread, GOAL)
    assert room.statuses(lead) == ["completed", "max-tokens"]
    refused = await room.give(lead, GOAL)
    assert refused.code == "ATTEMPT_UNNAMED"
    assert len(room.records(lead)) == 2


async def test_a_lead_that_may_delegate_is_held_to_the_same(room: Room) -> None:
    room.compose(main_agent_extra=["delegate"])
    lead, _ = await failed_once(room)
    made = {"description": "some work", "prompt": GOAL, "role": "implement"}
    (result,) = await room.turn(lead, calls(("delegate", made)))
    assert result.code == "GRANT_EXCEEDED"
    assert len(room.records(lead)) == 1


# paraphrases

CRASH = "Fix the crash in src/hames/reader.py when parse_header meets an empty line"
NAMING = (
    "In `src/hames/reader.py` an empty line brings the program down; make it survive that",
    "Please repair parse_header, it raises on blank input",
    "Have a look at src/hames/reader.py and stop it from blowing up on blank rows",
    "The function parse_header dies if nothing stands on a row. Cure it.",
    "Somebody reported trouble with blank rows. The culprit is src/hames/reader.py.",
    "Robustness work: parse_header() should return nothing instead of raising on void input",
    "Change reader.py so blank rows are skipped",
    "Harden `parse_header` against strings of length zero, then prove it with a regression check",
    "Open src/hames/reader.py, find where it indexes position zero without checking, and guard this access properly",
    "An IndexError escapes from parse_header; catch the situation that leads there",
)
SILENTLY = (
    "Blank rows bring our header reading down. Make that robust.",
    "Fix the crash with the empty line",
    "Handle zero-length input gracefully while headers are being read",
    "Users see a traceback for files that contain nothing on some row; get rid of it",
    "Guard the header reader against missing content",
    "Make empty lines harmless when headers are parsed",
    "The program must not die any longer once it comes across a void row",
    "Wherever metadata at the top of a document is taken apart, tolerate gaps",
    "Skip rows without characters instead of failing",
    "Stop the exception which occurs as soon as a row has no text",
)
PARAPHRASES = (*NAMING, *SILENTLY)


async def struck(room: Room, wired: Any) -> tuple[Agent, str, int]:
    """A lead whose child failed at the stub, and how many requests came there."""
    room.compose(models={"implement": "openai:fault=auth"})
    lead = await room.lead()
    await room.give(lead, CRASH)
    assert len(set(PARAPHRASES)) == 20 and room.statuses(lead) == ["error"]
    return lead, room.last(lead), len(wired.received)


async def test_twenty_paraphrases_that_name_nothing_launch_nothing(room: Room, wired: Any) -> None:
    lead, first, asked = await struck(room, wired)
    results = await room.turn(lead, *(calls(call(goal)) for goal in PARAPHRASES))
    assert [result.code for result in results] == ["ATTEMPT_UNNAMED"] * 20
    assert len(wired.received) == asked and len(room.records(lead)) == 1
    assert room.refusals(first) == ["ATTEMPT_UNNAMED"] * 20


async def test_twenty_paraphrases_at_once_that_name_nothing_launch_nothing(room: Room, wired: Any) -> None:
    lead, _, asked = await struck(room, wired)
    results = await room.turn(lead, calls(*(call(goal) for goal in PARAPHRASES)))
    assert [result.code for result in results] == ["ATTEMPT_UNNAMED"] * 20
    assert len(wired.received) == asked and len(room.records(lead)) == 1


@pytest.mark.parametrize("goal", NAMING)
async def test_a_paraphrase_that_names_the_same_thing_is_not_unrelated(room: Room, wired: Any, goal: str) -> None:
    lead, _, asked = await struck(room, wired)
    refused = await room.give(lead, goal, after="unrelated")
    assert refused.code == "SAME_WORK"
    assert len(wired.received) == asked and len(room.records(lead)) == 1


async def test_paraphrases_that_call_themselves_unrelated_run_into_the_end(room: Room, wired: Any, record_property: Any) -> None:
    lead, _, asked = await struck(room, wired)
    codes = [(await room.give(lead, goal, after="unrelated")).code for goal in PARAPHRASES]
    record_property("SAME_WORK", codes.count("SAME_WORK"))
    assert set(codes) <= {"SAME_WORK", "STRUCK_OUT", "MODEL_FAILED"}
    assert codes.count("MODEL_FAILED") <= 3
    assert len(wired.received) - asked == codes.count("MODEL_FAILED") == len(room.records(lead)) - 1


@pytest.mark.parametrize("goal", PARAPHRASES[::3])
async def test_a_paraphrase_that_names_the_attempt_is_allowed_once(room: Room, wired: Any, goal: str) -> None:
    lead, first, asked = await struck(room, wired)
    again = await room.give(lead, goal, after=first)
    assert again.code == "MODEL_FAILED" and "tell the user" in again.text and len(wired.received) == asked + 1
    results = await room.turn(lead, *(calls(call(each, after=first)) for each in PARAPHRASES))
    assert [result.code for result in results] == ["STRUCK_OUT"] * 20
    assert len(wired.received) == asked + 1 and len(room.records(lead)) == 2
