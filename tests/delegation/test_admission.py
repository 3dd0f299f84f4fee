"""Whether a task may begin: what is refused leaves nothing behind, and what begins gets no more than there is."""

from __future__ import annotations

import ast
import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import hames
from hames.agents import AGENTS, AgentSpec
from hames.agents.events import ToolStarted
from hames.budget import Limits, Meter
from hames.content.finish import Usage
from hames.delegation import DELEGATION
from hames.delegation.failures import FAILURES, TABLE, Refused
from hames.delegation.runner import Origin
from hames.delegation.spec import TaskSpec
from hames.faces.cli.task import Room
from hames.kernel import Mask
from hames.models import MODELS
from hames.sessions import SESSIONS
from hames.store import STORE
from hames.testing.contract import children_of_this, open_files
from hames.testing.sample import SampleConfig, SampleRunner

SOURCE = Path(hames.__file__).parent
ADMISSION = {failure.code for failure in TABLE if failure.axis == "admission"}


@pytest.fixture
def room(opened, tmp_path):
    """Opens a host with configured rows; at the end nothing of it runs."""

    @asynccontextmanager
    async def open(*, delegate=None, **delegation):
        path = tmp_path / "rows.json"
        config = {"id": "delegate", "set": {"config": delegate or {}}}
        path.write_text(json.dumps([{"id": "delegation", "set": {"config": delegation}}, config]))
        children, files = children_of_this(), open_files()
        async with opened(path) as host:
            yield host
            assert host.get(DELEGATION).tasks.live == {}
        assert children_of_this() == children and open_files() <= files
        assert [each.get_name() for each in asyncio.all_tasks() if each.get_name().startswith(("task ", "agent ", "job-"))] == []

    return open


def sampled(host, **more):
    """Offers the runner that needs no model."""
    runner = SampleRunner(SampleConfig(**more))
    host.get(DELEGATION).runners.register(host.ctx, runner)
    return runner


async def lead_of(host, cwd, model, **more):
    return await host.get(AGENTS).create(AgentSpec(str(cwd), model, **more))


def state(host, *meters):
    """All that a task that begins would change."""
    tasks = host.get(DELEGATION).tasks
    spent = [(meter.steps, meter.usage, meter.cost, [meter.left(kind) for kind in ("steps", "tokens", "cost")]) for meter in meters]
    return (
        sorted(summary.id for summary in host.get(SESSIONS).list()),
        [record.id for record in tasks.ledger.list()],
        sorted(tasks.live),
        sorted(host.get(AGENTS).live),
        spent,
    )


async def refused(host, spec, origin, *meters, **more):
    """The code and words of a refusal, after which nothing has happened."""
    before = state(host, *meters)
    with pytest.raises(Refused) as raised:
        await host.get(DELEGATION).tasks.start(spec, origin, **more)
    assert state(host, *meters) == before
    error = raised.value
    assert (error.failure.axis == "admission" and error.remedy) or error.code == "PARENT_GONE"
    return error.code, f"{error.message} {error.remedy}"


def origin_of(host, cwd, **more):
    return Origin(host.root_scope, str(cwd), **more)


def delegated(script, calling, *calls, then="done"):
    """The reference of a script that makes these calls of the tool at once."""
    return script(calling(*(("delegate", {"description": "a", "prompt": "do it", **each}) for each in calls)), {"text": then})


def results(agent):
    return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]


# every code


GOOD = TaskSpec("do it", runner="sample")
CASES = {
    "an empty prompt": (replace(GOOD, prompt=" \n"), "SPEC_INVALID"),
    "a prompt without end": (replace(GOOD, prompt="x" * (4 * 1024 * 1024 + 1)), "SPEC_INVALID"),
    "fewer retries than none": (replace(GOOD, retries=-1), "SPEC_INVALID"),
    "no seconds": (replace(GOOD, budget=Limits(seconds=0)), "SPEC_INVALID"),
    "less than no idleness": (replace(GOOD, budget=Limits(idle=-1)), "SPEC_INVALID"),
    "seconds that are no number": (replace(GOOD, budget=Limits(seconds=float("nan"))), "SPEC_INVALID"),
    "idleness that is no number": (replace(GOOD, budget=Limits(idle=float("nan"))), "SPEC_INVALID"),
    "no answers": (replace(GOOD, budget=Limits(steps=0)), "SPEC_INVALID"),
    "less than no answers": (replace(GOOD, budget=Limits(steps=-5)), "SPEC_INVALID"),
    "less than no tokens": (replace(GOOD, budget=Limits(tokens=-5)), "SPEC_INVALID"),
    "less than no cost": (replace(GOOD, budget=Limits(cost=-0.5)), "SPEC_INVALID"),
    "a cost that is no number": (replace(GOOD, budget=Limits(cost=float("nan"))), "SPEC_INVALID"),
    "another runner": (replace(GOOD, runner="nobody"), "RUNNER_UNKNOWN"),
    "isolation": (replace(GOOD, isolation="worktree"), "OPTION_UNSUPPORTED"),
    "a kind of isolation that nobody knows": (replace(GOOD, isolation="moon"), "OPTION_UNSUPPORTED"),
    "a continuable child": (replace(GOOD, mode="continuable"), "OPTION_UNSUPPORTED"),
    "a role": (replace(GOOD, role="scout"), "ROLE_UNKNOWN"),
    "a schema that is not enforced": (replace(GOOD, schema={"type": "object", "patternProperties": {}}), "SCHEMA_INVALID"),
    "a schema that nothing follows": (replace(GOOD, schema={"type": "integer", "minimum": 3, "maximum": 2}), "SCHEMA_INVALID"),
    "a model": (TaskSpec("do it", model="nobody:nothing"), "MODEL_UNKNOWN"),
    "a model without a name": (TaskSpec("do it", model="nonsense"), "MODEL_UNKNOWN"),
    "a tool": (replace(GOOD, tools=("no_such_tool",)), "TOOL_UNKNOWN"),
    "no tools at all, by mistake": (replace(GOOD, tools=()), "TOOL_UNKNOWN"),
    "a pattern that nothing matches": (replace(GOOD, tools=("zzz_*",)), "TOOL_UNKNOWN"),
    "a directory": (replace(GOOD, directory="/no/such/place"), "DIRECTORY_UNKNOWN"),
    "a directory with a zero": (replace(GOOD, directory="/a\0b"), "DIRECTORY_UNKNOWN"),
    "a directory with a name without end": (replace(GOOD, directory="/" + "x" * 100_000), "DIRECTORY_UNKNOWN"),
    "a file": (replace(GOOD, inputs={"a.txt": "0" * 64}), "INPUT_UNKNOWN"),
    "a file whose name is a way out": (replace(GOOD, inputs={"a.txt": "../../../../../etc"}), "INPUT_UNKNOWN"),
    "a file without a name": (replace(GOOD, inputs={"a.txt": ""}), "INPUT_UNKNOWN"),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_may_not_begin_is_refused_and_nothing_has_happened(room, tmp_path, case):
    spec, code = CASES[case]
    async with room() as host:
        sampled(host)
        whole = Meter(Limits(10, 1000, 2.0))
        aside = whole.part(Limits(6, 600, 1.5))
        found, said = await refused(host, spec, origin_of(host, tmp_path, meter=whole), whole, aside)
        assert found == code and len(said) < 2000


@pytest.mark.parametrize("budget", [Limits(steps=5), Limits(tokens=401), Limits(cost=0.75), Limits(steps=1, cost=0.75)])
async def test_more_than_is_left_is_refused_and_nothing_has_happened(room, tmp_path, budget):
    async with room() as host:
        sampled(host)
        whole = Meter(Limits(10, 1000, 2.0))
        aside = whole.part(Limits(6, 600, 1.5))
        code, said = await refused(host, replace(GOOD, budget=budget), origin_of(host, tmp_path, meter=whole), whole, aside)
        assert code == "BUDGET_EXCEEDED" and "are left" in said


async def test_a_price_that_nobody_knows_is_refused_where_cost_is_limited(room, wired, tmp_path):
    async with room() as host:
        spec = TaskSpec("do it", model="openai:text=hello", budget=Limits(cost=1.0))
        assert host.get(MODELS).resolve(spec.model, host.root_scope).cost(Usage()) is None
        assert (await refused(host, spec, origin_of(host, tmp_path)))[0] == "PRICE_UNKNOWN"


async def test_a_price_that_nobody_knows_is_refused_where_cost_is_limited_above(room, wired, tmp_path):
    """One answer of such a child would end all that share the budget: nobody could say what is left."""
    async with room() as host:
        whole = Meter(Limits(cost=1.0))
        spec = TaskSpec("do it", model="openai:text=hello")
        assert (await refused(host, spec, origin_of(host, tmp_path, meter=whole), whole))[0] == "PRICE_UNKNOWN"


async def test_there_is_nothing_to_fork_where_nobody_spoke(room, tmp_path, script):
    async with room() as host:
        spec = TaskSpec("do it", runner="fork", model=script({"text": "hello"}))
        assert (await refused(host, spec, origin_of(host, tmp_path)))[0] == "SPEC_INVALID"


@pytest.mark.parametrize("deepest", [0, 1, 3])
async def test_no_task_stands_deeper_than_is_allowed(room, tmp_path, deepest):
    async with room(max_depth=deepest) as host:
        sampled(host)
        tasks = host.get(DELEGATION).tasks
        code, said = await refused(host, GOOD, origin_of(host, tmp_path, depth=deepest))
        assert code == "DEPTH_EXCEEDED" and "max_depth" in said
        if deepest:
            assert (await tasks.run(GOOD, origin_of(host, tmp_path, depth=deepest - 1))).ok


async def test_no_conversation_starts_more_tasks_than_are_allowed(room, tmp_path, script):
    """What was refused does not count, what has ended does, and another conversation has its own."""
    async with room(max_tasks=3, max_depth=2) as host:
        sampled(host)
        tasks = host.get(DELEGATION).tasks
        lead, other = [await lead_of(host, tmp_path, script({"text": "hello"})) for _ in range(2)]
        origin = tasks.origin(lead)
        assert (await refused(host, replace(GOOD, prompt=""), origin))[0] == "SPEC_INVALID"
        for _ in range(2):
            assert (await tasks.run(GOOD, origin)).ok
        below = replace(origin, agent=None, session="another", depth=1)
        assert (await tasks.run(GOOD, below)).ok
        for each in (origin, below):
            code, said = await refused(host, GOOD, each)
            assert code == "TREE_FULL" and "max_tasks" in said
        assert (await tasks.run(GOOD, tasks.origin(other))).ok


async def test_tasks_that_no_conversation_has_started_are_no_conversation(room, tmp_path):
    """Each is a tree of its own."""
    async with room(max_tasks=1) as host:
        sampled(host)
        tasks = host.get(DELEGATION).tasks
        assert [(await tasks.run(GOOD, origin_of(host, tmp_path))).ok for _ in range(3)] == [True] * 3


async def test_whoever_has_ended_starts_nothing(room, tmp_path, script):
    async with room() as host:
        sampled(host)
        lead = await lead_of(host, tmp_path, script({"text": "hello"}))
        origin = host.get(DELEGATION).tasks.origin(lead)
        await host.get(AGENTS).dispose(lead)
        assert (await refused(host, GOOD, origin))[0] == "PARENT_GONE"


async def test_a_name_stands_for_one_task(room, tmp_path):
    async with room() as host:
        sampled(host, endless=["for ever"])
        tasks, origin = host.get(DELEGATION).tasks, origin_of(host, tmp_path)
        endless = replace(GOOD, prompt="wait for ever")
        first = await tasks.start(endless, origin, id="mine")
        assert await tasks.start(endless, origin, id="mine") is first
        for spec in (GOOD, replace(endless, schema={"type": "integer"})):
            assert (await refused(host, spec, origin, id="mine"))[0] == "TASK_CONFLICT"
        first.cancel()
        outcome = await first.outcome()
        again = await tasks.start(endless, origin, id="mine")
        assert await again.outcome() == outcome
        assert (await refused(host, GOOD, origin, id="mine"))[0] == "TASK_CONFLICT"
        assert len(tasks.ledger.list()) == 1


@pytest.mark.parametrize("other", [{"tools": ("read",)}, {"model": "other:model"}, {"permission": "read-only"}, {"retries": 3}])
async def test_the_same_words_with_other_rights_are_another_task(room, tmp_path, other):
    async with room() as host:
        sampled(host, endless=["for ever"])
        tasks, origin = host.get(DELEGATION).tasks, origin_of(host, tmp_path)
        spec = replace(GOOD, prompt="wait for ever")
        first = await tasks.start(spec, origin, id="mine")
        try:
            assert (await refused(host, replace(spec, **other), origin, id="mine"))[0] == "TASK_CONFLICT"
        finally:
            first.cancel()
            await first.outcome()


async def test_a_task_that_nobody_knows_is_refused_by_whoever_looks_for_it(room, tmp_path):
    async with room() as host:
        before = state(host)
        for name in ("", "t", "t0000000000000", "\0", "t' OR '1'='1"):
            with pytest.raises(Refused) as raised:
                Room(host.get(STORE)).find(name)
            assert raised.value.code == "TASK_UNKNOWN" and raised.value.remedy
        assert state(host) == before


# what a runner can do


@pytest.mark.parametrize(
    ("option", "spec"),
    [
        ("tools", replace(GOOD, tools=("read",))),
        ("permission", replace(GOOD, permission="read-only")),
        ("isolation", replace(GOOD, isolation="worktree")),
        ("schema", replace(GOOD, schema={"type": "integer"})),
        ("model", replace(GOOD, model="any:model")),
        ("effort", replace(GOOD, effort="high")),
        ("steps", replace(GOOD, budget=Limits(steps=3))),
        ("tokens", replace(GOOD, budget=Limits(tokens=3))),
        ("cost", replace(GOOD, budget=Limits(cost=3.0))),
    ],
)
async def test_an_option_is_enforced_or_asked_for_or_refused(room, tmp_path, option, spec):
    """Only to tools, permission and isolation a runner has to hold; the outcome says what was obtained."""
    async with room() as host:
        runner, tasks, origin = sampled(host), host.get(DELEGATION).tasks, origin_of(host, tmp_path)
        runner.capabilities = {}
        code, said = await refused(host, spec, origin)
        assert code == "OPTION_UNSUPPORTED" and f"{option} is not supported" in said
        runner.capabilities = {option: "requested"}
        if option in ("tools", "permission", "isolation"):
            code, said = await refused(host, spec, origin)
            assert code == "OPTION_UNSUPPORTED" and f"{option} is asked for and not enforced" in said and "assurance: requested" in said
            spec = replace(spec, assurance="requested")
        assert (await tasks.run(spec, origin)).assurance == {option: "requested"}
        runner.capabilities = {option: "enforced"}
        outcome = await tasks.run(spec, origin)
        assert outcome.assurance == {option: "enforced"}
        assert tasks.ledger.list(limit=1)[0].outcome.assurance == {option: "enforced"}


async def test_all_that_is_not_given_is_named_at_once(room, tmp_path):
    async with room() as host:
        sampled(host).capabilities = {"tools": "requested"}
        spec = replace(GOOD, tools=("read",), permission="read-only", schema={"type": "integer"}, budget=Limits(steps=1))
        _, said = await refused(host, spec, origin_of(host, tmp_path))
        assert all(f"{each} is not supported" in said for each in ("permission", "schema", "steps")) and "tools is asked for" in said


# never wider


@pytest.mark.parametrize(
    ("has", "asks", "may"),
    [
        ("read-only", "workspace-write", False),
        ("workspace-write", "full", False),
        ("workspace-write", "read-only", True),
        ("full", "full", True),
        ("read-only", "", True),
    ],
)
async def test_a_permission_is_never_wider(room, tmp_path, has, asks, may):
    async with room() as host:
        sampled(host)
        spec, origin = replace(GOOD, permission=asks), origin_of(host, tmp_path, permission=has)
        if may:
            task = await host.get(DELEGATION).tasks.start(spec, origin)
            assert task.permission == task.spec.permission == (asks or has)
            await task.outcome()
        else:
            assert (await refused(host, spec, origin))[0] == "GRANT_EXCEEDED"


async def test_tools_are_never_more_than_may_be_handed_down(room, tmp_path):
    async with room() as host:
        sampled(host)
        tasks = host.get(DELEGATION).tasks
        origin = origin_of(host, tmp_path, grant=(Mask(frozenset({"read", "glob"})), Mask(deny=frozenset({"glob"}))))
        code, said = await refused(host, replace(GOOD, tools=("read", "bash", "glob")), origin)
        assert code == "GRANT_EXCEEDED" and "bash" in said and "glob" in said
        for tools in (("read",), ("*",), None, ("none",)):
            task = await tasks.start(replace(GOOD, tools=tools), origin)
            await task.outcome()
            seen = {name for name in ("read", "bash", "glob", "write") if all(mask.permits(name) for mask in task.grant)}
            assert seen == (set() if tools == ("none",) else {"read"})


@pytest.mark.parametrize("way", ["up", "absolute", "link", "link below", "dots below a link"])
async def test_a_child_of_an_agent_works_nowhere_else(room, tmp_path, script, way):
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "in").mkdir(parents=True)
    (outside / "deep").mkdir(parents=True)
    (home / "link").symlink_to(outside)
    places = {"up": "..", "absolute": str(outside), "link": "link", "link below": "in/../link/deep", "dots below a link": "link/.."}
    async with room() as host:
        sampled(host)
        tasks = host.get(DELEGATION).tasks
        lead = await lead_of(host, home, script({"text": "hello"}))
        assert (await refused(host, replace(GOOD, directory=places[way]), tasks.origin(lead)))[0] == "GRANT_EXCEEDED"
        task = await tasks.start(replace(GOOD, directory="in"), tasks.origin(lead))
        assert task.spec.directory == str((home / "in").resolve())
        await task.outcome()


async def test_a_link_to_another_place_inside_is_resolved_before_it_can_change(room, tmp_path, script):
    home = tmp_path / "home"
    (home / "in").mkdir(parents=True)
    (home / "link").symlink_to(home / "in")
    async with room() as host:
        sampled(host)
        tasks = host.get(DELEGATION).tasks
        task = await tasks.start(replace(GOOD, directory="link"), tasks.origin(await lead_of(host, home, script({"text": "a"}))))
        assert task.spec.directory == str((home / "in").resolve())
        await task.outcome()


# the tool


async def told(host, tmp_path, model, **more):
    """What the tool says to a lead, and whether a task has begun."""
    lead = await lead_of(host, tmp_path, model, **more)
    end = await lead.run("go")
    assert end.reason == "completed", end
    return results(lead), host.get(DELEGATION).tasks.ledger.list()


async def test_all_that_is_wrong_with_the_arguments_is_said_at_once(room, tmp_path, script, calling):
    async with room() as host:
        wrong = {
            "prompt": 5,
            "tools": [],
            "permission": "root",
            "isolation": "moon",
            "budget": {"steps": 0, "tokens": -1, "cost": 0, "seconds": "x", "idle": -2, "more": 1},
            "output_schema": [],
            "unknown": True,
            "run_in_background": "yes",
        }
        (result,), records = await told(host, tmp_path, delegated(script, calling, wrong))
        assert (result.is_error, result.code, records) == (True, "INVALID_ARGS", [])
        for each in ("prompt", "tools", "permission", "isolation", "steps", "tokens", "cost", "seconds", "idle", "more", "output_schema"):
            assert each in result.text
        assert "unknown" in result.text and "run_in_background" in result.text


@pytest.mark.parametrize("raw", ['{"description": "a"', "[]", '{"description": "a", "prompt": "b", "budget": {"cost": NaN}}', '"x"'])
async def test_arguments_that_are_no_json_are_refused(room, tmp_path, script, raw):
    async with room() as host:
        model = script({"calls": [{"name": "delegate", "raw_arguments": raw}]}, {"text": "done"})
        (result,), records = await told(host, tmp_path, model)
        assert result.is_error and records == []


@pytest.mark.parametrize("budget", [{"cost": 1e999}, {"steps": 1e400}, {"seconds": 1e999}])
async def test_a_budget_without_measure_is_no_number(room, tmp_path, script, budget):
    async with room() as host:
        raw = json.dumps({"description": "a", "prompt": "b", "budget": budget}).replace("Infinity", "1e999")
        model = script({"calls": [{"name": "delegate", "raw_arguments": raw}]}, {"text": "done"})
        (result,), records = await told(host, tmp_path, model)
        assert (result.code, records) == ("INVALID_ARGS", [])


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"prompt": " "}, "SPEC_INVALID"),
        ({"role": "x"}, "ROLE_UNKNOWN"),
        ({"model": "nobody:nothing"}, "MODEL_UNKNOWN"),
        ({"output_schema": {"type": "object", "minProperties": 1}}, "SCHEMA_INVALID"),
        ({"tools": ["no_such_tool"]}, "TOOL_UNKNOWN"),
        ({"permission": "full"}, "GRANT_EXCEEDED"),
        ({"isolation": "worktree"}, "INVALID_ARGS"),
        ({"budget": {"steps": 50}}, "BUDGET_EXCEEDED"),
    ],
)
async def test_what_is_refused_is_told_with_its_code(room, tmp_path, script, calling, given, code):
    async with room() as host:
        model = delegated(script, calling, given)
        (result,), records = await told(host, tmp_path, model, ceiling="workspace-write", limits=Limits(steps=9))
        assert (result.is_error, result.code, records) == (True, code, [])
        assert [summary.id for summary in host.get(SESSIONS).list()] == list(host.get(AGENTS).live)


ALLOWED = [
    ({"models": ["openai:*"]}, {"model": "scripted:x"}, "MODEL_NOT_ALLOWED"),
    ({"models": []}, {"model": "scripted:x"}, "MODEL_NOT_ALLOWED"),
    ({"efforts": ["low"]}, {"effort": "high"}, "GRANT_EXCEEDED"),
    ({"isolation": ["shared"]}, {"isolation": "worktree"}, "INVALID_ARGS"),
    ({"background": False}, {"run_in_background": True}, "INVALID_ARGS"),
]


@pytest.mark.parametrize(("config", "given", "code"), ALLOWED)
async def test_what_a_deployment_does_not_allow_is_refused(room, tmp_path, script, calling, config, given, code):
    async with room(delegate=config) as host:
        (result,), records = await told(host, tmp_path, delegated(script, calling, given))
        assert (result.code, records) == (code, [])


async def test_a_deployment_that_allows_no_shared_work_has_none_where_nothing_is_said_either(room, tmp_path, script, calling):
    """A call that names no isolation must not get the one that is not allowed."""
    child = script({"text": "I worked in your directory"})
    async with room(delegate={"isolation": ["worktree"]}) as host:
        (result,), records = await told(host, tmp_path, delegated(script, calling, {"model": child}))
        assert result.is_error and records == []


async def test_what_a_deployment_allows_may_be_chosen(room, tmp_path, script, calling):
    child = script({"text": "hello"})
    async with room(delegate={"models": ["scripted:*"], "efforts": ["low"], "name": "hand_over"}) as host:
        call = {"description": "a", "prompt": "b", "model": child, "effort": "low"}
        (result,), (record,) = await told(host, tmp_path, script(calling(("hand_over", call)), {"text": "done"}))
        assert (result.text, record.spec.effort, record.outcome.assurance["effort"]) == ("hello", "low", "requested")


async def test_of_what_a_call_does_not_say_the_deployment_says_how_much(room, tmp_path, script, calling):
    child = script({"text": "hello"})
    async with room(delegate={"budget": {"steps": 3, "idle": 50, "seconds": 70}}) as host:
        calls = [{"model": child}, {"model": child, "budget": {"steps": 2, "tokens": 900}}]
        _, records = await told(host, tmp_path, delegated(script, calling, *calls))
        assert {each.spec.budget for each in records} == {Limits(3, None, None, 70, 50), Limits(2, 900, None, 70, 50)}


async def test_the_tool_is_not_there_for_a_child_that_may_start_nothing(room, tmp_path, script, calling):
    child = delegated(script, calling, {}, then="could not")
    async with room() as host:
        (result,), records = await told(host, tmp_path, delegated(script, calling, {"model": child}))
        assert result.text == "could not" and len(records) == 1


# budgets on a real run


def looking(script, calling, count, then="found"):
    """The reference of a script that looks so many times, and then says something: 10 tokens each time."""
    answers = [{**calling(("glob", {"pattern": f"{n}*"})), "usage": {"input": 10}} for n in range(count)]
    return script(*answers, {"text": then, "usage": {"input": 10}})


async def test_what_a_child_spends_is_of_its_parents_budget(room, tmp_path, script, calling):
    async with room() as host:
        lead = await lead_of(
            host, tmp_path, delegated(script, calling, {"model": looking(script, calling, 3)}), limits=Limits(steps=6, tokens=1000)
        )
        end = await lead.run("go")
        assert (end.reason, end.steps, end.steps_below, end.below.total) == ("completed", 2, 4, 40)
        (record,) = host.get(DELEGATION).tasks.ledger.list()
        assert (record.outcome.steps, record.outcome.usage[0].usage.total) == (4, 40)


async def test_a_child_that_spends_all_ends_its_parent_too(room, tmp_path, script, calling):
    async with room() as host:
        lead = await lead_of(host, tmp_path, delegated(script, calling, {"model": looking(script, calling, 9)}), limits=Limits(steps=5))
        end = await lead.run("go")
        assert (end.reason, end.code, end.steps, end.steps_below) == ("budget", "BUDGET", 1, 4)
        (record,) = host.get(DELEGATION).tasks.ledger.list()
        assert (record.outcome.status, record.outcome.code, record.outcome.steps) == ("budget", "BUDGET", 4)


@pytest.mark.parametrize(("budget", "steps"), [({"steps": 2}, 2), ({"tokens": 25}, 3)])
async def test_a_child_is_held_to_its_own_budget_and_its_parent_goes_on(room, tmp_path, script, calling, budget, steps):
    async with room() as host:
        model = delegated(script, calling, {"model": looking(script, calling, 9), "budget": budget})
        lead = await lead_of(host, tmp_path, model, limits=Limits(steps=20, tokens=1000))
        end = await lead.run("go")
        assert (end.reason, end.text, end.steps_below) == ("completed", "done", steps)
        assert results(lead)[0].code == "BUDGET"


async def test_cost_is_held_to_along_the_tree(room, tmp_path, script, calling, monkeypatch):
    from hames.testing.scripted import ScriptedModel

    monkeypatch.setattr(ScriptedModel, "cost", lambda self, usage: usage.input / 1000)
    async with room() as host:
        call = {"description": "a", "prompt": "look", "model": looking(script, calling, 9), "budget": {"cost": 0.025}}
        paid = {"usage": {"input": 10}}
        model = script({**calling(("delegate", call)), **paid}, {"text": "done", **paid})
        lead = await lead_of(host, tmp_path, model, limits=Limits(cost=1.0))
        assert (await lead.run("go")).reason == "completed"
        (record,) = host.get(DELEGATION).tasks.ledger.list()
        assert (record.outcome.code, record.outcome.steps) == ("BUDGET", 3)
        assert record.outcome.cost == pytest.approx(0.03)


async def test_children_beside_each_other_share_one_whole(room, tmp_path, script, calling):
    """Four ask for five of twelve answers each: two of them get it, and all together never spend more than the whole."""
    async with room() as host:
        calls = [{"prompt": f"look {n}", "model": looking(script, calling, 9), "budget": {"steps": 5}} for n in range(4)]
        lead = await lead_of(host, tmp_path, delegated(script, calling, *calls), limits=Limits(steps=12))
        end = await lead.run("go")
        assert sorted(result.code for result in results(lead)) == ["BUDGET"] * 2 + ["BUDGET_EXCEEDED"] * 2
        assert (end.reason, end.steps + end.steps_below) == ("completed", 12)


async def test_what_a_child_did_not_spend_comes_back(room, tmp_path, script, calling):
    child = looking(script, calling, 0)
    call = calling(("delegate", {"description": "a", "prompt": "look", "model": child, "budget": {"steps": 5}}))
    async with room() as host:
        lead = await lead_of(host, tmp_path, script(call, call, {"text": "done"}), limits=Limits(steps=8))
        end = await lead.run("go")
        assert (end.reason, end.steps, end.steps_below) == ("completed", 3, 2)
        assert [result.is_error for result in results(lead)] == [False, False]


async def test_a_child_that_outlives_the_turn_is_still_held_to_its_budget(room, tmp_path, script, calling):
    """It spends what was set aside in the turn that started it, and nothing of a later one."""
    async with room() as host:
        go = tmp_path / "go"
        wait = calling(("bash", {"command": f"for i in $(seq 500); do test -e {go} && break; sleep 0.01; done"}))
        child = script(wait, *(calling(("glob", {"pattern": f"{n}*"})) for n in range(9)))
        call = {"description": "a", "prompt": "wait", "model": child, "budget": {"steps": 4}, "run_in_background": True}
        lead = await lead_of(
            host, tmp_path, script(calling(("delegate", call)), *({"text": f"{n}"} for n in range(5))), limits=Limits(steps=7)
        )
        running = asyncio.Event()
        host.ctx.on(ToolStarted, lambda notice: running.set() if notice.call.name == "bash" else None)
        end = await lead.run("go")
        assert (end.reason, end.text) == ("completed", "0")
        async with asyncio.timeout(5):
            await running.wait()
        (task,) = host.get(DELEGATION).tasks.live.values()
        later = await lead.run("something else")
        assert (later.reason, later.steps, later.steps_below, later.below.total) == ("completed", 1, 0, 0)
        go.touch()
        outcome = await task.outcome()
        assert (outcome.status, outcome.code, outcome.steps) == ("budget", "BUDGET", 4)
        await lead.idle()
        async with asyncio.timeout(5):
            while not any("BUDGET" in message.text for _, message in lead.session.messages if message.source == "harness"):
                await asyncio.sleep(0.005)
        await lead.idle()


# the table of failures


def codes_in_source():
    """Every code that the source gives a refusal, a failed outcome, or one that was changed, with where it stands."""
    found: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        inside = "delegation" in path.parts or path.name in ("sample.py", "task.py")
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            given = []
            if name in ("failed", "Refused") and node.args and inside:
                given.append(node.args[0])
            if name == "Outcome" and len(node.args) > 2:
                given.append(node.args[2])
            if name in ("Outcome", "replace") and inside:
                given += [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            for each in given:
                for part in ast.walk(each):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value:
                        found.setdefault(part.value, []).append(f"{path.name}:{node.lineno}")
    return {code: places for code, places in found.items() if code.isupper()}


def test_every_code_of_the_source_is_in_the_table():
    found = codes_in_source()
    assert len(found) > 15
    assert {code: places for code, places in found.items() if code not in FAILURES} == {}


def test_every_code_of_the_table_is_somewhere_in_the_source():
    words = {
        node.value
        for path in SOURCE.rglob("*.py")
        if path.name != "failures.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert [code for code in FAILURES if code not in words] == []


def test_every_code_of_admission_is_tried():
    places = sorted(Path(__file__).parent.glob("test_*.py"))
    words = {node.value for path in places for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    assert ADMISSION - words == set()


def test_no_code_stands_twice_and_each_says_what_it_means():
    assert len(FAILURES) == len(TABLE)
    assert all(failure.meaning.endswith(".") and failure.code.isupper() for failure in TABLE)
    assert all((failure.exit in (2, 4)) == (failure.axis == "admission") for failure in TABLE)
    assert all(failure.fault == "infrastructure" for failure in TABLE if failure.retry == "by itself")


def test_the_catalogue_has_all_of_them():
    text = (SOURCE.parent.parent / "docs" / "catalog" / "failures.md").read_text()
    rows = [tuple(cell.strip(" `") for cell in line.strip("|").split("|")) for line in text.splitlines() if line.startswith("| `")]
    assert rows == [(*map(str, failure[:7]),) for failure in TABLE]


def test_a_refusal_of_a_code_that_nobody_knows_cannot_be_made():
    with pytest.raises(KeyError):
        Refused("NO_SUCH_CODE", "a")
