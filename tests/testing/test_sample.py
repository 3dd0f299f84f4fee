"""The runner that needs no model: the same task always goes the same way, and as it was configured."""

from __future__ import annotations

import asyncio
import json

import pytest
from pydantic import ValidationError

from hames.agents import AGENTS, AgentSpec
from hames.budget import Limits, Meter
from hames.content.errors import ConfigError, DuplicateError
from hames.content.schema import violations
from hames.delegation import DELEGATION
from hames.delegation.failures import FAILURES, TABLE, Refused
from hames.delegation.runner import Origin
from hames.delegation.spec import TaskSpec
from hames.testing.contract import children_of_this, launch
from hames.testing.sample import SampleConfig, SampleRunner, sample

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 3}, "kind": {"enum": ["a", "b"]}, "more": {"type": "array", "minItems": 2}},
    "required": ["n", "kind", "more"],
}


async def done(host, config, prompt="do it", **more):
    """The outcome of one task, right from the runner."""
    made = launch(host, TaskSpec(prompt, **more))
    work = await SampleRunner(config).start(made)
    try:
        return await work.result()
    finally:
        await work.dispose()
        assert made.signal.listeners == 0


async def drawn(host, config, prompts):
    return [await done(host, config, prompt) for prompt in prompts]


def rows(tmp_path, *entries):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(list(entries)))
    return path


# always the same


async def test_the_same_task_always_goes_the_same_way(host):
    config = SampleConfig(seed=7, failures={"MODEL_FAILED": 0.5})
    prompts = [f"task {n}" for n in range(50)]
    first = await drawn(host, config, prompts)
    assert await drawn(host, config, reversed(prompts)) == first[::-1]
    assert {outcome.status for outcome in first} == {"completed", "error"}


async def test_another_seed_lets_other_tasks_fail(host):
    prompts = [f"task {n}" for n in range(50)]
    seen = {
        tuple(outcome.code for outcome in await drawn(host, SampleConfig(seed=number, failures={"REFUSAL": 0.5}), prompts))
        for number in range(4)
    }
    assert len(seen) == 4


async def test_the_answer_depends_on_the_prompt_and_not_on_the_seed(host):
    answers = [(await done(host, SampleConfig(seed=number), prompt)).text for number in (0, 1) for prompt in ("a", "b", "\ud800")]
    assert answers[:3] == answers[3:] and len(set(answers)) == 3


async def test_another_attempt_may_go_another_way(opened, tmp_path):
    """A task that failed by chance is tried again where it may be, and each attempt is drawn anew."""
    path = rows(tmp_path, {"id": "sample", "use": "hames.testing.sample", "config": {"failures": {"MODEL_FAILED": 0.5}}})
    async with opened(path) as host:
        tasks = host.get(DELEGATION).tasks
        origin = Origin(host.root_scope, str(tmp_path))
        outcomes = [await tasks.run(TaskSpec(f"task {n}", runner="sample", retries=1), origin) for n in range(6)]
    assert {1, 2} == {outcome.attempts for outcome in outcomes}
    assert any(outcome.ok and outcome.attempts == 2 for outcome in outcomes)


# drawn as configured


async def test_failures_come_as_often_as_they_are_configured(host):
    config = SampleConfig(failures={"MODEL_FAILED": 0.25, "REFUSAL": 0.1, "SCHEMA_MISSED": 0.05})
    outcomes = await drawn(host, config, [f"task {n}" for n in range(400)])
    count = {code: sum(outcome.code == code for outcome in outcomes) for code in ("MODEL_FAILED", "REFUSAL", "SCHEMA_MISSED", "")}
    assert 70 <= count["MODEL_FAILED"] <= 130
    assert 20 <= count["REFUSAL"] <= 62
    assert 6 <= count["SCHEMA_MISSED"] <= 36
    assert sum(count.values()) == 400
    for outcome in outcomes:
        assert (outcome.code == "") == outcome.ok
        assert not outcome.code or outcome.fault == FAILURES[outcome.code].fault


@pytest.mark.parametrize(("part", "failed"), [(0.0, 0), (1.0, 60)])
async def test_none_and_all_are_exact(host, part, failed):
    outcomes = await drawn(host, SampleConfig(failures={"INTERNAL": part}), [f"task {n}" for n in range(60)])
    assert sum(not outcome.ok for outcome in outcomes) == failed


@pytest.mark.parametrize("code", [failure.code for failure in TABLE if failure.axis != "admission"])
async def test_each_failure_looks_as_it_would_by_itself(host, code):
    """Its status is one that this code has: what is written for one that was drawn is right for one that came."""
    statuses = {
        "MAX_TOKENS": "max-tokens",
        "REFUSAL": "refusal",
        "SCHEMA_MISSED": "invalid",
        **dict.fromkeys(("BUDGET", "REPEATED", "DEADLINE", "IDLE"), "budget"),
        **dict.fromkeys(("CANCELLED", "PARENT_ENDED"), "aborted"),
        **dict.fromkeys(("HOST_ENDED", "HOST_DIED"), "interrupted"),
        "OUTCOME_UNKNOWN": "unknown",
    }
    outcome = await done(host, SampleConfig(failures={code: 1.0}))
    assert (outcome.code, outcome.fault) == (code, FAILURES[code].fault)
    assert outcome.status == statuses.get(code, "error")


async def test_how_long_it_takes_is_drawn_between_the_two_numbers(host, monkeypatch):
    asked = []

    async def wait(these, *, timeout=None, **more):
        asked.append(timeout)
        return set(), set()

    monkeypatch.setattr("hames.testing.sample.asyncio.wait", wait)
    config = SampleConfig(delay=(2.0, 5.0))
    await drawn(host, config, [f"task {n}" for n in range(100)])
    first, asked[:] = list(asked), []
    await drawn(host, config, [f"task {n}" for n in range(100)])
    assert asked == first and len(first) == 100
    assert all(2.0 <= each <= 5.0 for each in first)
    assert min(first) < 2.5 and max(first) > 4.5 and 3.2 < sum(first) / 100 < 3.8


async def test_a_task_with_a_delay_is_over_no_sooner(host):
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await done(host, SampleConfig(delay=(0.1, 0.1)))).ok
    assert 0.09 <= loop.time() - began < 1.0


async def test_what_it_spends_is_counted_and_said(host):
    meter = Meter(Limits(tokens=1000))
    made = launch(host, TaskSpec("a", budget=Limits(tokens=100)), Origin(host.root_scope, "/", meter=meter))
    work = await SampleRunner(SampleConfig(tokens=70)).start(made)
    outcome = await work.result()
    await work.dispose()
    assert (outcome.usage[0].usage.total, made.meter.usage.total, meter.usage.total, meter.steps) == (70, 70, 70, 1)


async def test_what_is_spent_stops_it(opened, tmp_path):
    path = rows(tmp_path, {"id": "sample", "use": "hames.testing.sample", "config": {"tokens": 70}})
    whole = Meter(Limits(tokens=100))
    async with opened(path) as host:
        tasks = host.get(DELEGATION).tasks
        origin = Origin(host.root_scope, str(tmp_path), meter=whole)
        outcomes = [await tasks.run(TaskSpec(f"task {n}", runner="sample"), origin) for n in range(3)]
    assert [(outcome.status, outcome.code) for outcome in outcomes] == [("completed", ""), ("completed", ""), ("budget", "BUDGET")]
    assert whole.usage.total == 140


# without end


@pytest.mark.parametrize("prompt", ["wait for ever", "for every one of them", "do not wait"])
async def test_a_task_with_one_of_the_words_runs_until_it_is_cancelled(opened, tmp_path, prompt):
    path = rows(tmp_path, {"id": "sample", "use": "hames.testing.sample", "config": {"endless": ["for ever", "hold"]}})
    before = children_of_this()
    async with opened(path) as host:
        tasks = host.get(DELEGATION).tasks
        task = await tasks.start(TaskSpec(prompt, runner="sample"), Origin(host.root_scope, str(tmp_path)))
        if "for ever" not in prompt:
            assert (await task.outcome()).ok
            return
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await task.outcome()
        task.cancel("user")
        async with asyncio.timeout(2):
            outcome = await task.outcome()
        assert (outcome.status, outcome.code) == ("aborted", "CANCELLED")
        assert tasks.live == {}
    assert children_of_this() == before
    assert [each for each in asyncio.all_tasks() if each.get_name().startswith("task ")] == []


async def test_an_endless_one_ends_with_its_time(opened, tmp_path):
    path = rows(tmp_path, {"id": "sample", "use": "hames.testing.sample", "config": {"endless": ["wait"]}})
    async with opened(path) as host:
        tasks, origin = host.get(DELEGATION).tasks, Origin(host.root_scope, str(tmp_path))
        late = await tasks.run(TaskSpec("wait", runner="sample", budget=Limits(seconds=0.1)), origin)
        idle = await tasks.run(TaskSpec("wait more", runner="sample", budget=Limits(idle=0.1)), origin)
    assert [(each.status, each.code) for each in (late, idle)] == [("budget", "DEADLINE"), ("budget", "IDLE")]


# values


async def test_a_value_follows_its_schema(host):
    outcome = await done(host, SampleConfig(), schema=SCHEMA)
    assert outcome.ok and outcome.schema_valid and violations(outcome.value, SCHEMA) == []
    assert outcome.value == {"n": 3, "kind": "a", "more": ["x", "x"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "exclusiveMinimum": 3},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        {"type": "integer", "maximum": -4},
        {"type": "string", "minLength": 7},
        {"type": "string", "maxLength": 0},
        {"type": ["null", "string"]},
        {"anyOf": [{"type": "integer", "minimum": 2}, {"type": "string"}]},
        {"const": {"a": [1]}},
        {"type": "array", "items": {"$ref": "#/$defs/one"}, "minItems": 3, "$defs": {"one": {"type": "boolean"}}},
        {"type": "number", "minimum": 5.5},
        {"type": "integer", "minimum": 5.5},
        {"type": "array", "items": {"type": "number"}, "maxItems": 0},
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    ],
)
async def test_the_smallest_value_of_many_schemas_follows_them(schema):
    assert violations(sample(schema), schema) == []


async def test_a_schema_that_it_cannot_follow_is_no_success(opened, tmp_path):
    path = rows(tmp_path, {"id": "sample", "use": "hames.testing.sample"})
    schema = {"type": "string", "pattern": "^[0-9]{4}-[a-f]{7}$"}
    async with opened(path) as host:
        outcome = await host.get(DELEGATION).tasks.run(
            TaskSpec("do it", runner="sample", schema=schema), Origin(host.root_scope, str(tmp_path))
        )
    assert not outcome.ok and outcome.code in FAILURES and outcome.diagnostic


# its row


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"failures": {"NO_SUCH": 0.1}}, ["NO_SUCH"]),
        ({"failures": {"SPEC_INVALID": 0.1}}, ["SPEC_INVALID"]),
        ({"failures": {"REFUSAL": 0.6, "INTERNAL": 0.6}}, ["no more than 1"]),
        ({"failures": {"REFUSAL": -0.1}}, ["between 0 and 1"]),
        ({"failures": {"REFUSAL": float("nan")}}, ["between 0 and 1"]),
        ({"delay": [2, 1]}, ["smaller one first"]),
        ({"delay": [-1, 1]}, ["smaller one first"]),
        ({"delay": [0, float("inf")]}, ["delay"]),
        ({"tokens": -1}, ["tokens"]),
        ({"sed": 1}, ["sed"]),
        ({"delay": [1]}, ["delay"]),
        ({"failures": {"NO_SUCH": 0.1, "REFUSAL": 1.5}, "delay": [2, 1]}, ["NO_SUCH", "no more than 1", "smaller one first"]),
        ({"tokens": -1, "seed": "x", "endless": "word"}, ["tokens", "seed", "endless"]),
    ],
)
def test_a_wrong_configuration_is_refused_with_all_that_is_wrong(config, said):
    with pytest.raises(ValidationError) as raised:
        SampleConfig(**config)
    for each in said:
        assert each in str(raised.value)


async def test_a_wrong_row_is_refused_when_it_is_loaded(opened, tmp_path):
    path = rows(tmp_path, {"id": "sample", "use": "hames.testing.sample", "config": {"failures": {"REFUSAL": 2}}})
    with pytest.raises(ConfigError):
        async with opened(path):
            pass


async def test_it_stands_in_for_another_runner_once_that_has_gone(opened, tmp_path, script, calling):
    """Agents that delegate as always get its answers: nothing else has to be changed for a dry run."""
    path = rows(
        tmp_path,
        {"id": "spawn", "remove": True},
        {"id": "sample", "use": "hames.testing.sample", "config": {"name": "spawn", "tokens": 5}},
    )
    async with opened(path) as host:
        model = script(calling(("delegate", {"description": "a", "prompt": "do it"})), {"text": "done"})
        lead = await host.get(AGENTS).create(AgentSpec(str(tmp_path), model))
        end = await lead.run("go")
        assert (end.reason, end.below.total, end.steps_below) == ("completed", 5, 1)
        (record,) = host.get(DELEGATION).tasks.ledger.list()
        assert (record.spec.runner, record.outcome.status) == ("spawn", "completed")
        assert record.outcome.text.startswith("sample ")
        assert record.outcome.text in str(lead.session.messages)
        assert len(host.get(AGENTS).live) == 1


async def test_two_of_one_name_are_refused(opened, tmp_path):
    path = rows(tmp_path, {"id": "sample", "use": "hames.testing.sample", "config": {"name": "spawn"}})
    with pytest.raises(DuplicateError) as raised:
        async with opened(path):
            pass
    assert "spawn" in str(raised.value) and "sample" in str(raised.value)


async def test_it_is_not_there_unless_a_row_offers_it(host):
    with pytest.raises(Refused) as raised:
        host.get(DELEGATION).runners.choose(host.root_scope, "sample")
    assert raised.value.code == "RUNNER_UNKNOWN"
