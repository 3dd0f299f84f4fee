"""Results that follow a schema: what goes to the model, what counts as the result, and that nothing follows after it.

Each is a child of a real host. What a model was sent is read from the socket of the server that it came on.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hames.agents import AGENTS, AgentSpec, ToolEnded, TurnEnded
from hames.budget import Limits
from hames.content.messages import Text
from hames.delegation import DELEGATION
from hames.delegation.failures import Refused
from hames.delegation.spec import TaskSpec
from hames.delegation.structured import INSTRUCTION, NAME, NUDGE, TRIES
from hames.kernel import plugin
from hames.prompts.service import PROMPTS, Assemble, Assembly, Section
from hames.sessions import SESSIONS
from hames.tools import TOOLS, Output, ToolError
from hames.tools.pipeline import RunTool

SCHEMA = {
    "type": "object",
    "title": "a count",
    "properties": {"n": {"type": "integer", "minimum": 0, "description": "how many"}, "next": {"$ref": "#/$defs/more"}},
    "required": ["n"],
    "additionalProperties": False,
    "$defs": {"more": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]*$"}, "maxItems": 3}},
}
SECOND = {"type": "object", "properties": {"n": {"enum": ["000001"]}}, "required": ["n"]}
"""What the server gives as ``#`` follows this at the second call."""
DIALECTS = ["openai", "anthropic"]
SOON = 20


class Work:
    """A lead of one host, and what it gives away."""

    def __init__(self, host, lead, runner, scripts):
        self.host = host
        self.lead = lead
        self.runner = runner
        self.tasks = host.get(DELEGATION).tasks
        self._scripts = scripts
        self._count = 0

    def script(self, *answers) -> str:
        """A model; a fork counts the answer that it begins with."""
        self._count += 1
        path = self._scripts / f"child-{self._count}.json"
        path.write_text(json.dumps([*([{"text": "Hello."}] if self.runner == "fork" else []), *answers]))
        return f"scripted:{path}"

    def spec(self, model, schema=SCHEMA, **more) -> TaskSpec:
        return TaskSpec("count it", runner=self.runner, model=model, schema=schema, **more)

    async def start(self, model, schema=SCHEMA, **more):
        return await self.tasks.start(self.spec(model, schema, **more), self.tasks.origin(self.lead))

    async def run(self, model, schema=SCHEMA, **more):
        """The outcome, which is the one on disk."""
        task = await self.start(model, schema, **more)
        outcome = await asyncio.wait_for(self.tasks.wait(task), SOON)
        assert self.tasks.ledger.get(task.id).outcome == outcome
        return outcome

    async def scripted(self, *answers, schema=SCHEMA, **more):
        return await self.run(self.script(*answers), schema, **more)

    def events(self, outcome):
        return list(self.host.get(SESSIONS).read(outcome.native))

    def requests(self, outcome) -> int:
        """How many answers its model gave."""
        mine = self.events(outcome)
        last = max((at for at, event in enumerate(mine) if event.type == "message" and "count it" in str(event.data)), default=0)
        return sum(event.type == "message" and event.data["source"] == "model" for event in mine[last:])

    def results(self, outcome) -> list[tuple[str, str]]:
        """Code and text of each result of a call."""
        found = []
        for event in self.events(outcome):
            if event.type == "message" and event.data["source"] == "tool":
                for block in event.data["blocks"]:
                    found.append((block.get("code", ""), block["content"][0]["text"]))
        return found

    def said(self, outcome) -> list[str]:
        return [str(event.data) for event in self.events(outcome) if event.type == "message" and event.data["source"] == "harness"]


def gives(*values, text="", **more):
    """An answer that calls for each value once."""
    return {"text": text, "calls": [{"name": NAME, "arguments": value} for value in values], **more}


def raw(*texts):
    return {"calls": [{"name": NAME, "raw_arguments": text} for text in texts]}


def calls(*pairs):
    return {"calls": [{"name": name, "arguments": arguments} for name, arguments in pairs]}


def listening(*listeners):
    """A plugin with these listeners: the class of the event, the listener, and its order."""

    @plugin(name="listening")
    def mounted(ctx, config):
        for event, listener, *order in listeners:
            ctx.on(event, listener, order=order[0] if order else 0)

    return mounted


@asynccontextmanager
async def gone(mount):
    """Takes a plugin of a test out of the host afterwards."""
    try:
        yield mount
    finally:
        await mount.stop()


async def until(true) -> None:
    """Waits for something, but not for ever."""
    async with asyncio.timeout(SOON):
        while not true():
            await asyncio.sleep(0.005)


@pytest.fixture(params=["spawn", "fork"])
def runner(request) -> str:
    return request.param


async def lead_of(host, tmp_path) -> object:
    home = tmp_path / "lead"
    home.mkdir(exist_ok=True)
    (home / "lead.json").write_text(json.dumps([{"text": "Hello."}]))
    lead = await host.get(AGENTS).create(AgentSpec(str(home), f"scripted:{home}/lead.json"))
    await lead.run("hello")
    return lead


@pytest.fixture
async def work(host, runner, tmp_path):
    """A lead with one turn behind it. When it has gone, nothing of any child is left."""
    lead = await lead_of(host, tmp_path)
    yield Work(host, lead, runner, tmp_path)
    agents = host.get(AGENTS)
    assert list(agents.live) == [lead.id]
    await agents.dispose(lead)
    assert host.get(DELEGATION).tasks.live == {}
    left = [task for task in asyncio.all_tasks() if task.get_name().startswith(("task ", "agent "))]
    assert left == []


def bodies(stub):
    return [json.loads(each.body) for each in stub.received]


def tools_of(body):
    """The parameters of each tool of a request, in either protocol."""
    found = {}
    for each in body.get("tools", ()):
        function = each.get("function", each)
        found[function["name"]] = function.get("parameters", function.get("input_schema"))
    return found


def system_of(body) -> str:
    """The system prompt of a request, in either protocol."""
    if "system" in body:
        system = body["system"]
        return system if isinstance(system, str) else "".join(block["text"] for block in system)
    return "".join(message["content"] for message in body["messages"] if message["role"] == "system")


# what the model is sent


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_object_schema_goes_to_the_model_verbatim(wired, work, dialect):
    outcome = await work.run(f'{dialect}:steps=1;tool={NAME};args={{"n":5}}')
    assert (outcome.status, outcome.value, outcome.schema_valid, outcome.tries) == ("completed", {"n": 5}, True, 1)
    (body,) = bodies(wired)
    assert tools_of(body)[NAME] == SCHEMA
    assert system_of(body).endswith(INSTRUCTION)
    assert system_of(body).count(INSTRUCTION) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "found"),
        ({"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"type": "object", "nullable": True}, None),
        ({"anyOf": [{"type": "object"}, {"type": "integer"}]}, 0),
        ({"description": "anything"}, {"value": {"a": [None]}}),
        ({"$ref": "#/$defs/more", "$defs": SCHEMA["$defs"]}, ["a", "b"]),
    ],
)
async def test_another_schema_goes_to_the_model_under_a_name(host, wired, tmp_path, dialect, schema, value):
    lead = await lead_of(host, tmp_path)
    work = Work(host, lead, "spawn", tmp_path)
    outcome = await work.run(f"{dialect}:steps=1;tool={NAME};args={json.dumps({'value': value})}", schema)
    assert (outcome.status, outcome.value, outcome.schema_valid) == ("completed", value, True)
    (body,) = bodies(wired)
    inner = {key: rule for key, rule in schema.items() if key != "$defs"}
    wrapped = {"type": "object", "properties": {"value": inner}, "required": ["value"], "additionalProperties": False}
    assert tools_of(body)[NAME] == ({**wrapped, "$defs": schema["$defs"]} if "$defs" in schema else wrapped)
    await host.get(AGENTS).dispose(lead)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_plain_agents_and_children_without_a_schema_hear_nothing_of_it(wired, work, agents, tmp_path, dialect):
    agent = await agents.create(AgentSpec(str(tmp_path), f"{dialect}:text=Plain."))
    asked = await work.start(f"{dialect}:fault=hang;times=1")
    await until(lambda: len(wired.received) == 1)
    await agent.run("hello")
    plain = await work.run(f"{dialect}:text=Done.", None)
    assert (plain.status, plain.schema_valid, plain.text) == ("completed", None, "Done.")
    asked.cancel()
    await work.tasks.wait(asked)
    first, *others = bodies(wired)
    assert NAME in tools_of(first)
    assert len(others) == 2
    for body in others:
        assert NAME not in json.dumps(body)
    await agents.dispose(agent)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_two_children_at_once_have_each_its_own_schema(wired, work, dialect):
    schemas = {name: {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]} for name in ("left", "right")}
    made = {name: f'{dialect}:steps=1;tool={NAME};args={{"{name}":"it"}}' for name in schemas}
    outcomes = await asyncio.gather(*(work.run(made[name], schemas[name]) for name in schemas))
    assert [outcome.value for outcome in outcomes] == [{"left": "it"}, {"right": "it"}]
    sent = {body["model"]: tools_of(body)[NAME] for body in bodies(wired)}
    assert list(sent.values()) in ([schemas["left"], schemas["right"]], [schemas["right"], schemas["left"]])
    for name, ref in made.items():
        assert sent[ref.partition(":")[2]] == schemas[name]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_instruction_stands_alone_where_a_listener_leaves_nothing(wired, work, mounted, dialect):
    async def emptied(call, proceed):
        found = await proceed(call)
        return Assembly(found.facts, [], {})

    async with gone(mounted(listening((Assemble, emptied, -5)))):
        await work.run(f'{dialect}:steps=1;tool={NAME};args={{"n":5}}')
    (body,) = bodies(wired)
    assert system_of(body) == INSTRUCTION


async def test_the_instruction_stands_after_all_that_listeners_append(wired, work, mounted):
    def appending(order, text):
        async def append(call, proceed):
            found = await proceed(call)
            found.sections.append(Section(text, order, text))
            return found

        return append

    first, last = appending(5, "FIRST"), appending(10**9, "LAST")
    async with gone(mounted(listening((Assemble, first, 10), (Assemble, last, -(10**8))))):
        await work.run(f'openai:steps=2;tool={NAME};args={{"n":"#"}}', SECOND)
    assert len(wired.received) == 2
    for body in bodies(wired):
        system = system_of(body)
        assert system.index("FIRST") < system.index("LAST")
        assert system.endswith(f"LAST\n\n{INSTRUCTION}")
        assert system.count(INSTRUCTION) == 1


async def test_the_instruction_is_appended_to_a_request_and_to_nothing_that_lasts(wired, work, mounted, agents, tmp_path):
    """A listener that gives the same sections each time finds in them what it has put there."""
    shared = [Section("mine", 0, "MINE")]

    async def same(call, proceed):
        await proceed(call)
        return Assembly(call.facts, shared, {})

    async with gone(mounted(listening((Assemble, same)))):
        outcome = await work.run(f'openai:steps=2;tool={NAME};args={{"n":"#"}}', SECOND)
        agent = await agents.create(AgentSpec(str(tmp_path), "openai:text=Plain."))
        await agent.run("hello")
        await agents.dispose(agent)
    assert (outcome.status, len(wired.received)) == ("completed", 3)
    assert [system_of(body) for body in bodies(wired)] == [f"MINE\n\n{INSTRUCTION}"] * 2 + ["MINE"]
    assert shared == [Section("mine", 0, "MINE")]
    assert not any(INSTRUCTION in str(event.data) for event in work.events(outcome) if event.type == "message")
    assert NAME not in work.host.get(PROMPTS).sections.view(work.lead.scope)


async def test_a_schema_with_text_that_is_no_unicode_reaches_the_model_or_is_refused(wired, work):
    try:
        outcome = await work.run(f'openai:steps=1;tool={NAME};args={{"n":5}}', {**SCHEMA, "description": "half \ud800"})
    except Refused as error:
        assert error.code == "SCHEMA_INVALID"
        return
    assert (outcome.status, outcome.value) == ("completed", {"n": 5})


# what counts as the result


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_value_that_misses_the_schema_is_told_and_a_better_one_counts(wired, work, dialect):
    outcome = await work.run(f'{dialect}:steps=9;tool={NAME};args={{"n":"#"}}', SECOND)
    assert (outcome.status, outcome.value, outcome.tries, outcome.steps) == ("completed", {"n": "000001"}, 2, 2)
    assert (outcome.code, outcome.raw, outcome.diagnostic) == ("", "", "")
    first, second = bodies(wired)
    assert "must be one of" not in json.dumps(first["messages"])
    assert "$.n: must be one of ['000001']" in json.dumps(second["messages"])


async def test_every_violation_is_told_with_the_code_of_bad_arguments(work):
    wrong = {"n": -1, "next": ["a", "B", 5, "d"], "more": 1}
    outcome = await work.scripted(gives(wrong), gives({"n": 1}))
    assert (outcome.status, outcome.value, outcome.tries) == ("completed", {"n": 1}, 2)
    code, text = work.results(outcome)[0]
    assert code == "INVALID_ARGS"
    for line in (
        "$.n: must be at least 0",
        "$.next: has 4 items, may have at most 3",
        "$.next[1]: does not match '^[a-z]*$'",
        "$.next[2]: expected string, got integer",
        "$: 'more' is not allowed",
    ):
        assert line in text


async def test_the_same_mistake_twice_ends_the_child(work):
    outcome = await work.scripted(gives({"n": -1}, text="I try."), gives({"n": -2}), gives({"n": 1}))
    assert (outcome.status, outcome.fault, outcome.code) == ("invalid", "child", "SCHEMA_MISSED")
    assert (outcome.value, outcome.schema_valid, outcome.tries, outcome.steps) == (None, False, 2, 2)
    assert (outcome.raw, outcome.text) == ('{"n":-2}', "I try.")
    assert "the same mistakes twice" in outcome.diagnostic
    assert "$.n: must be at least 0" in outcome.diagnostic
    assert work.requests(outcome) == 2
    assert NUDGE not in str(work.said(outcome))


async def test_after_so_many_values_no_further_one_is_asked_for(work):
    wrong = [{"n": n % 2 - 2, **({"more": 1} if n % 2 else {})} for n in range(TRIES + 3)]
    outcome = await work.scripted(*map(gives, wrong))
    assert (outcome.status, outcome.code, outcome.tries, outcome.schema_valid) == ("invalid", "SCHEMA_MISSED", TRIES, False)
    assert json.loads(outcome.raw) == wrong[TRIES - 1]
    assert work.requests(outcome) == TRIES


async def test_no_value_counts_beyond_the_cap_in_the_answer_that_reached_it(work):
    wrong = [{"n": n % 2 - 2, **({"more": 1} if n % 2 else {})} for n in range(TRIES)]
    outcome = await work.scripted(gives(*wrong, {"n": 1}), gives({"n": 2}))
    assert (outcome.status, outcome.value, outcome.tries) == ("invalid", None, TRIES)
    assert work.requests(outcome) == 1


async def test_arguments_that_are_no_json_are_tries_too(work):
    """However differently they are broken: a model that cannot do it is not asked for ever."""
    outcome = await work.scripted(*(raw(f'{{"n": {n}') for n in range(3 * TRIES)))
    assert (outcome.status, outcome.code, outcome.schema_valid) == ("invalid", "SCHEMA_MISSED", False)
    assert work.requests(outcome) <= TRIES + 1


async def test_a_value_that_is_to_stand_under_a_name_has_to_stand_there(work):
    schema = {"type": ["string", "null"]}
    outcome = await work.scripted(gives({}), gives({"value": "it"}), schema=schema)
    assert (outcome.status, outcome.value, outcome.tries) == ("completed", "it", 2)
    outcome = await work.scripted(gives({"other": "it"}), gives({"value": None}), schema=schema)
    assert (outcome.status, outcome.value, outcome.tries) == ("completed", None, 2)


async def test_what_stands_beside_the_value_is_told(work):
    outcome = await work.scripted(gives({"value": "it", "more": 1}), gives({"value": "it"}), schema={"type": "string"})
    assert (outcome.value, outcome.tries) == ("it", 2)


@pytest.mark.parametrize("name", ["self", "arguments", "call", "value", "proceed", "event", "cls", "__class__", "a b", ""])
async def test_a_property_may_have_any_name(host, tmp_path, name):
    lead = await lead_of(host, tmp_path)
    work = Work(host, lead, "spawn", tmp_path)
    schema = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name], "additionalProperties": False}
    outcome = await work.scripted(gives({name: 5}), schema=schema)
    assert (outcome.status, outcome.value) == ("completed", {name: 5})
    await host.get(AGENTS).dispose(lead)


# where none is given


async def test_a_child_that_gives_nothing_is_reminded_once_and_its_words_are_kept(work):
    outcome = await work.scripted({"text": "It is five."}, {"text": "Five, I said."}, gives({"n": 5}))
    assert (outcome.status, outcome.fault, outcome.code) == ("invalid", "child", "SCHEMA_MISSED")
    assert (outcome.value, outcome.schema_valid, outcome.tries) == (None, False, 0)
    assert outcome.text == outcome.raw == "Five, I said."
    assert str(work.said(outcome)).count(NUDGE) == 1
    assert work.requests(outcome) == 2


async def test_a_child_that_is_reminded_may_give_its_result(work):
    outcome = await work.scripted({"text": "It is five."}, gives({"n": 5}), {"text": "never"})
    assert (outcome.status, outcome.value, outcome.tries, outcome.text) == ("completed", {"n": 5}, 1, "It is five.")
    assert (outcome.steps, work.requests(outcome)) == (2, 2)


async def test_the_value_that_was_refused_is_kept_where_no_better_one_follows(work):
    outcome = await work.scripted(gives({"n": -7}), {"text": "I cannot."}, {"text": "Really."})
    assert (outcome.status, outcome.raw, outcome.tries, outcome.text) == ("invalid", '{"n":-7}', 1, "Really.")
    assert "$.n: must be at least 0" in outcome.diagnostic


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_reminder_is_a_message_of_the_user_on_the_wire(wired, work, dialect):
    outcome = await work.run(f"{dialect}:text=Done.")
    assert outcome.status == "invalid"
    first, second = bodies(wired)
    assert NUDGE not in json.dumps(first)
    assert second["messages"][-1]["role"] == "user"
    assert NUDGE in json.dumps(second["messages"][-1])
    for body in (first, second):
        assert tools_of(body)[NAME] == SCHEMA


@pytest.mark.parametrize("nudges", [0, 2])
async def test_how_often_a_child_is_reminded_is_configured(opened, tmp_path, runner, nudges):
    layer = tmp_path / "nudges.json"
    layer.write_text(json.dumps([{"id": runner, "set": {"config": {"nudges": nudges}}}]))
    async with opened(layer) as host:
        lead = await lead_of(host, tmp_path)
        work = Work(host, lead, runner, tmp_path)
        outcome = await work.scripted(*({"text": f"Answer {n}."} for n in range(5)))
        assert (outcome.status, outcome.text) == ("invalid", f"Answer {nudges}.")
        assert work.requests(outcome) == nudges + 1
        assert ("reminded" in outcome.diagnostic) == (nudges > 0)
        await host.get(AGENTS).dispose(lead)


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        ({"text": "Half", "finish": "max-tokens"}, "max-tokens", "MAX_TOKENS"),
        ({"text": "No.", "finish": "refusal"}, "refusal", "REFUSAL"),
        ({"failure": "invalid-request"}, "error", "MODEL_REJECTED"),
        ({"failure": "auth"}, "error", "MODEL_FAILED"),
    ],
)
async def test_a_child_that_ended_otherwise_keeps_its_own_status_and_is_not_reminded(work, answer, status, code):
    outcome = await work.scripted(answer, gives({"n": 5}))
    assert (outcome.status, outcome.code, outcome.schema_valid, outcome.value) == (status, code, False, None)
    assert outcome.raw == outcome.text
    assert NUDGE not in str(work.said(outcome))


# that nothing follows


async def test_a_result_that_is_taken_ends_the_child_without_another_request(work):
    outcome = await work.scripted(gives({"n": 5}, text="Here it is."), {"text": "never"})
    assert (outcome.status, outcome.value, outcome.text, outcome.steps) == ("completed", {"n": 5}, "Here it is.", 1)
    assert work.requests(outcome) == 1
    assert work.results(outcome) == [("", "the result is taken")]


async def test_calls_after_the_result_are_denied_and_those_before_it_are_not(work):
    wrote = {"path": "before.txt", "content": "x"}
    answer = calls(
        ("write", wrote), (NAME, {"n": 5}), ("write", {**wrote, "path": "after.txt"}), (NAME, {"n": 6}), ("glob", {"pattern": "*"})
    )
    outcome = await work.scripted(answer, {"text": "never"})
    assert (outcome.status, outcome.value, outcome.tries) == ("completed", {"n": 5}, 1)
    codes = [code for code, _ in work.results(outcome)]
    assert codes == ["", "", "DENIED", "DENIED", "DENIED"]
    directory = Path(work.lead.cwd)
    assert (directory / "before.txt").read_text() == "x"
    assert not (directory / "after.txt").exists()
    assert work.requests(outcome) == 1


async def test_a_refused_value_denies_nothing_of_the_same_answer(work):
    answer = calls((NAME, {"n": -1}), ("write", {"path": "beside.txt", "content": "x"}), (NAME, {"n": 5}))
    outcome = await work.scripted(answer, {"text": "never"})
    assert (outcome.value, outcome.tries) == ({"n": 5}, 2)
    assert (Path(work.lead.cwd) / "beside.txt").exists()


def making(change):
    """A listener that changes what the tool of the result gives back."""

    async def changed(call, proceed):
        output = await proceed(call)
        return change(output) if call.tool.name == NAME else output

    return changed


def raising(output):
    raise ToolError("not so", "BLOCKED")


@pytest.mark.parametrize(
    "change",
    [
        lambda output: replace(output, is_error=True, code="BLOCKED", content=(Text("not so"),)),
        lambda output: Output((Text("not so"),), True, "BLOCKED"),
        raising,
    ],
)
async def test_a_result_that_a_listener_turns_into_an_error_does_not_count(work, mounted, change):
    async with gone(mounted(listening((RunTool, making(change))))):
        outcome = await work.scripted(gives({"n": 5}), {"text": "So be it."}, {"text": "Really."})
    assert (outcome.status, outcome.code, outcome.value, outcome.schema_valid) == ("invalid", "SCHEMA_MISSED", None, False)
    assert (outcome.raw, outcome.tries) == ('{"n":5}', 1)
    assert "not so" in outcome.diagnostic


async def test_a_child_whose_result_did_not_count_goes_on_and_may_give_it_again(work, mounted):
    first = []

    def once(output):
        first.append(output)
        return replace(output, is_error=True, code="BLOCKED") if len(first) == 1 else output

    async with gone(mounted(listening((RunTool, making(once))))):
        outcome = await work.scripted(gives({"n": 5}), gives({"n": 5}), {"text": "never"})
    assert (outcome.status, outcome.value, outcome.tries) == ("completed", {"n": 5}, 2)
    assert work.requests(outcome) == 2


async def test_a_listener_that_words_the_result_anew_does_not_make_the_child_go_on(work, mounted):
    async with gone(mounted(listening((RunTool, making(lambda output: Output((Text("thank you"),))))))):
        outcome = await work.scripted(gives({"n": 5}), {"text": "never"})
    assert (outcome.status, outcome.value, outcome.steps) == ("completed", {"n": 5}, 1)
    assert work.results(outcome) == [("", "thank you")]
    assert work.requests(outcome) == 1


@pytest.mark.parametrize("way", ["steer", "send", "inject"])
@pytest.mark.parametrize("event", [ToolEnded, TurnEnded])
async def test_no_listener_makes_a_child_go_on_that_has_given_its_result(work, mounted, agents, event, way):
    told = []

    def push(notice):
        agent = agents.live[notice.agent]
        if agent is not work.lead and len(told) < 6:
            told.append(notice)
            getattr(agent, way)("go on")

    async with gone(mounted(listening((event, push, -50), (event, push, 50)))):
        outcome = await work.scripted(gives({"n": 5}), {"text": "never"}, {"text": "never"})
    assert len(told) == 2
    assert (outcome.status, outcome.value, outcome.steps) == ("completed", {"n": 5}, 1)
    assert work.requests(outcome) == 1
    assert "never" not in outcome.text


async def test_a_child_that_gave_up_is_not_made_to_go_on_either(work, mounted, agents):
    told = []

    def push(notice):
        agent = agents.live[notice.agent]
        if agent is not work.lead and len(told) < 3:
            told.append(notice)
            agent.steer("go on")

    async with gone(mounted(listening((TurnEnded, push)))):
        outcome = await work.scripted(gives({"n": -1}), gives({"n": -1}), gives({"n": 5}))
    assert (outcome.status, outcome.tries, work.requests(outcome), len(told)) == ("invalid", 2, 2, 1)


# who has it


async def test_a_plain_agent_that_calls_it_is_told_that_there_is_no_such_tool(host, agents, script, tmp_path):
    agent = await agents.create(AgentSpec(str(tmp_path), script(gives({"n": 5}), {"text": "Ah."})))
    end = await agent.run("go")
    (result,) = [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]
    assert (result.is_error, result.code, end.text) == (True, "UNKNOWN_TOOL", "Ah.")
    await agents.dispose(agent)


async def test_the_lead_has_it_neither_while_a_child_does_nor_afterwards(wired, work):
    task = await work.start("openai:fault=hang;times=1")
    await until(lambda: len(wired.received) == 1)
    tools = work.host.get(TOOLS)
    assert NAME not in tools.registry.view(work.lead.scope)
    assert NAME not in tools.guards.view(work.lead.scope)
    assert NAME not in tools.registry.view(work.host.root_scope)
    task.cancel()
    await work.tasks.wait(task)
    assert NAME not in tools.registry.view(work.lead.scope)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("tools", [("none",), ("glob",)])
async def test_a_child_without_tools_has_it_all_the_same(wired, work, dialect, tools):
    outcome = await work.run(f'{dialect}:steps=1;tool={NAME};args={{"n":5}}', tools=tools, permission="read-only")
    assert (outcome.status, outcome.value) == ("completed", {"n": 5})
    (body,) = bodies(wired)
    assert set(tools_of(body)) == {NAME} | (set(tools) - {"none"})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"format": "date"}, "b": {"allOf": []}}},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"$ref": "#/$defs/t", "$defs": {"t": {"$ref": "#/$defs/t"}}},
        {"type": "object", "properties": {}, "required": [["a"]]},
        {"enum": [float("nan")]},
    ],
)
async def test_a_schema_that_is_not_enforced_is_refused_before_anything_is_made(wired, work, schema):
    sessions = work.host.get(SESSIONS)
    before = [each.id for each in sessions.list()]
    with pytest.raises(Refused) as caught:
        await work.start("openai:text=Done.", schema)
    assert caught.value.code == "SCHEMA_INVALID"
    assert [each.id for each in sessions.list()] == before
    assert (list(wired.received), work.tasks.ledger.list(), work.tasks.live) == ([], [], {})


async def test_all_that_is_wrong_with_a_schema_is_said(work):
    with pytest.raises(Refused) as caught:
        await work.start("openai:x", {"type": "object", "properties": {"a": {"format": "date"}, "b": {"allOf": []}}, "required": ["c"]})
    for said in ("$.a: keyword 'format'", "$.b: keyword 'allOf'", "'c' is required"):
        assert said in str(caught.value)


# cancelled, or out of budget


class Held:
    """Holds the tool of the result where it has been taken and its call has not ended."""

    def __init__(self):
        self.reached = asyncio.Event()

    async def __call__(self, call, proceed):
        output = await proceed(call)
        if call.tool.name == NAME:
            self.reached.set()
            await asyncio.Event().wait()
        return output


async def test_a_child_that_is_cancelled_while_it_gives_its_result_has_given_none(work, mounted):
    held = Held()
    async with gone(mounted(listening((RunTool, held)))):
        task = await work.start(work.script(gives({"n": 5}, text="Here."), {"text": "never"}))
        await asyncio.wait_for(held.reached.wait(), SOON)
        task.cancel("user")
        outcome = await asyncio.wait_for(work.tasks.wait(task), SOON)
    assert (outcome.status, outcome.code, outcome.value, outcome.schema_valid) == ("aborted", "CANCELLED", None, False)
    assert (outcome.raw, outcome.tries, outcome.text) == ('{"n":5}', 1, "Here.")
    assert [code for code, _ in work.results(outcome)] == ["ABORTED"]
    assert work.requests(outcome) == 1


@pytest.mark.parametrize("way", ["steer", "send"])
async def test_a_child_that_is_cancelled_while_it_gives_its_result_is_not_made_to_go_on(work, mounted, agents, way):
    held = Held()
    pushed = []

    def push(notice):
        agent = agents.live[notice.agent]
        if agent is not work.lead and len(pushed) < 3:
            pushed.append(notice.end.reason)
            getattr(agent, way)("go on")

    async with gone(mounted(listening((RunTool, held), (TurnEnded, push)))):
        task = await work.start(work.script(gives({"n": 5}), {"text": "never"}, {"text": "never"}, {"text": "never"}))
        await asyncio.wait_for(held.reached.wait(), SOON)
        task.cancel("user")
        outcome = await asyncio.wait_for(work.tasks.wait(task), SOON)
    assert (pushed, outcome.status) == (["aborted"], "aborted")
    assert work.requests(outcome) == 1


async def test_a_child_that_is_cancelled_before_it_has_given_anything_says_so(wired, work):
    task = await work.start("openai:fault=hang;times=1")
    await until(lambda: len(wired.received) == 1)
    task.cancel("user")
    outcome = await asyncio.wait_for(work.tasks.wait(task), SOON)
    assert (outcome.status, outcome.code, outcome.schema_valid, outcome.tries) == ("aborted", "CANCELLED", False, 0)
    assert len(wired.received) == 1


async def test_a_result_that_spends_the_last_of_the_budget_counts(work):
    outcome = await work.scripted(gives({"n": 5}), {"text": "never"}, budget=Limits(steps=1))
    assert (outcome.status, outcome.value, outcome.schema_valid, outcome.steps) == ("completed", {"n": 5}, True, 1)


async def test_a_budget_that_ends_before_the_result_is_told_as_such(work):
    wrong = {"n": -1}
    outcome = await work.scripted(gives(wrong, text="I try."), gives({"n": 5}), budget=Limits(steps=1))
    assert (outcome.status, outcome.code, outcome.fault) == ("budget", "BUDGET", "none")
    assert (outcome.value, outcome.schema_valid, outcome.raw, outcome.tries) == (None, False, '{"n":-1}', 1)
    assert (outcome.text, outcome.partial, work.requests(outcome)) == ("I try.", True, 1)
    assert NUDGE not in str(work.said(outcome))


async def test_a_budget_that_ends_before_the_reminder_can_be_answered_is_told_as_such(work):
    outcome = await work.scripted({"text": "It is five."}, gives({"n": 5}), budget=Limits(steps=1))
    assert (outcome.status, outcome.code, outcome.schema_valid) == ("budget", "BUDGET", False)
    assert (outcome.raw, work.requests(outcome)) == ("It is five.", 1)


async def test_a_time_that_is_over_while_the_result_is_given_is_told_as_such(work, mounted):
    async with gone(mounted(listening((RunTool, Held())))):
        outcome = await work.scripted(gives({"n": 5}), budget=Limits(seconds=0.4))
    assert (outcome.status, outcome.code, outcome.value, outcome.raw) == ("budget", "DEADLINE", None, '{"n":5}')


# values that are hard to keep

OPEN = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def test_a_number_beyond_all_numbers_is_no_result(work):
    """Python reads 1e999 and writes Infinity, which nothing that reads JSON takes."""
    outcome = await work.scripted(raw('{"n": 1, "more": [1e999]}'), raw('{"n": 2}'), schema=OPEN)
    assert (outcome.status, outcome.value, outcome.tries) == ("completed", {"n": 2}, 2)


@pytest.mark.parametrize("depth", [90, 500, 940, 960, 980])
async def test_a_value_of_many_levels_has_an_outcome(host, tmp_path, depth):
    lead = await lead_of(host, tmp_path)
    work = Work(host, lead, "spawn", tmp_path)
    outcome = await work.scripted(
        raw('{"n": 1, "more": ' + "[" * depth + "]" * depth + "}"), gives({"n": 2}), {"text": "Well."}, {"text": "Well."}, schema=OPEN
    )
    assert outcome.status == "completed"
    assert outcome.value["n"] in (1, 2)
    await host.get(AGENTS).dispose(lead)


async def test_text_that_is_no_unicode_is_kept_as_it_is_told(work):
    """The outcome on disk is the one that was told."""
    schema = {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]}
    outcome = await work.scripted(raw('{"s": "half \\ud800"}'), raw('{"s": "whole"}'), schema=schema)
    assert outcome.status == "completed"
    assert outcome.value["s"] in ("half \ufffd", "whole")


async def test_a_large_value_is_whole(work):
    schema = {"type": "array", "items": {"type": "string"}}
    value = [f"{n:08d}" * 16 for n in range(5000)]
    outcome = await work.scripted(gives({"value": value}), schema=schema)
    assert (outcome.status, outcome.value) == ("completed", value)


async def test_a_large_value_that_is_refused_is_kept_whole_and_told_in_short(work):
    schema = {"type": "array", "items": {"type": "string", "maxLength": 1}}
    value = ["xx" * 50] * 5000
    outcome = await work.scripted(gives({"value": value}), gives({"value": value}), schema=schema)
    assert (outcome.status, json.loads(outcome.raw)) == ("invalid", value)
    assert len(outcome.diagnostic.encode()) <= 4096
    assert len(work.results(outcome)[0][1]) < 10_000
