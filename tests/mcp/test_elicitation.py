"""Forms and addresses that a server puts before the person whose agent calls it."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.policy.plugin import MODE
from hames.tools.questions import Question

SERVER = """
import json, sys


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


calls = {}
for line in sys.stdin:
    message = json.loads(line)
    id, method = message.get("id"), message.get("method")
    if method == "initialize":
        send(id=id, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "f", "version": "1"}})
    elif method == "tools/list":
        schema = {"type": "object", "properties": {"params": {"type": "object"}}}
        send(id=id, result={"tools": [{"name": "ask", "inputSchema": schema}]})
    elif method == "tools/call":
        calls[f"e{id}"] = id
        send(id=f"e{id}", method="elicitation/create", params=message["params"]["arguments"]["params"])
    elif method is None and id in calls:
        send(id=calls.pop(id), result={"content": [{"type": "text", "text": json.dumps(message.get("result", message.get("error")))}]})
    elif id is not None:
        send(id=id, error={"code": -32601, "message": "no such method"})
"""


class Person:
    """Gives these answers, one to a question; or one answer to all."""

    def __init__(self, answers, always):
        self.answers = list(answers)
        self.always = always
        self.asked = []

    async def answer(self, question):
        self.asked += question.questions
        return (self.answers.pop(0) if self.always is None else self.always,)


@pytest.fixture
async def put(opened, tmp_path, script, calling):
    """What a server hears when it puts this to somebody with these answers, and what they were asked."""
    program = tmp_path / "asks.py"
    program.write_text(SERVER)
    path = tmp_path / "layer.yaml"
    config = {"command": sys.executable, "args": ["-S", str(program)], "protocol": "legacy", "call_timeout": 5}
    path.write_text(json.dumps([{"id": "shop", "use": "hames.mcp.server", "config": config}]))
    async with opened(path, provided={MODE: "full"}) as host:

        async def ask(params, *answers, nobody=False, always=None):
            person = Person(answers, always)
            effect = None if nobody else host.ctx.on(Question, person.answer)
            model = script(calling(("mcp__shop__ask", {"params": params})), {"text": "done"})
            agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), model))
            assert (await agent.run("go")).reason == "completed"
            (result,) = [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]
            if effect is not None:
                effect.withdraw()
            assert not person.answers, f"not asked for: {person.answers}"
            assert not result.is_error, result.text
            return json.loads(result.text), person.asked

        yield ask
    left = processes(program)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def processes(program: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(program).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def form(required=(), **properties):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"mode": "form", "message": "Your order, please", "requestedSchema": schema}


STRING, BOOLEAN, INTEGER, NUMBER = ({"type": kind} for kind in ("string", "boolean", "integer", "number"))
COLOURS = {"type": "string", "enum": ["red", "green"]}
TITLED = {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]}
SEVERAL = {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}}
SEVERAL_TITLED = {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}}


@pytest.mark.parametrize(
    ("field", "answer", "value"),
    [
        (STRING, "Ann", "Ann"),
        (STRING, "  Ann  ", "Ann"),
        (STRING, "5", "5"),
        (STRING, "é 名", "é 名"),
        (COLOURS, "green", "green"),
        (TITLED, "g", "g"),
        (BOOLEAN, "yes", True),
        (BOOLEAN, "NO", False),
        (INTEGER, "-7", -7),
        (NUMBER, "1.5", 1.5),
        (NUMBER, "3", 3),
        (SEVERAL, "a, c", ["a", "c"]),
        (SEVERAL, "b", ["b"]),
        (SEVERAL_TITLED, "a,b", ["a", "b"]),
    ],
    ids=str,
)
async def test_an_answer_becomes_a_value_of_its_kind(put, field, answer, value):
    heard, asked = await put(form(["x"], x=field), answer)
    assert heard == {"action": "accept", "content": {"x": value}}
    assert len(asked) == 1 and "shop" in asked[0].question and "Your order, please" in asked[0].question and "x" in asked[0].question


async def test_a_form_is_asked_field_by_field_and_says_whose_it_is(put):
    name = {**STRING, "title": "Full name", "description": "as on the card"}
    heard, asked = await put(form(["name"], name=name, size=COLOURS, gift=BOOLEAN, many=SEVERAL), "Ann", "red", "yes", "a")
    assert heard["content"] == {"name": "Ann", "size": "red", "gift": True, "many": ["a"]}
    assert "The MCP server shop: Your order, please" in asked[0].question
    assert "Full name (as on the card)" in asked[0].question
    assert [each.options for each in asked] == [(), ("red", "green", "decline"), ("yes", "no", "decline"), ("a", "b", "c", "decline")]
    assert [each.several for each in asked] == [False, False, False, True]


async def test_what_is_left_empty_is_left_out_or_has_its_default(put):
    defaults = {"b": {**INTEGER, "default": 3}, "c": {**BOOLEAN, "default": False}, "d": {**COLOURS, "default": "red"}}
    fields = {"a": STRING, **defaults, "e": NUMBER}
    heard, asked = await put(form(["b"], **fields), "", "", " ", "", "")
    assert heard["content"] == {"b": 3, "c": False, "d": "red"}
    assert "[3]" in asked[1].question and "[- for none]" in asked[0].question


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        (STRING, ""),
        ({**STRING, "minLength": 3}, "ab"),
        ({**STRING, "maxLength": 3}, "abcd"),
        (COLOURS, "blue"),
        (TITLED, "Red?"),
        (BOOLEAN, "perhaps"),
        (INTEGER, "1.5"),
        (INTEGER, "many"),
        (INTEGER, "1" * 5000),
        ({**INTEGER, "minimum": 1, "maximum": 9}, "0"),
        ({**INTEGER, "minimum": 1, "maximum": 9}, "10"),
        ({**NUMBER, "minimum": 0.5}, "0.4"),
        (NUMBER, "x"),
        (NUMBER, "nan"),
        (NUMBER, "inf"),
        (NUMBER, "1e999"),
        (SEVERAL, "a, d"),
        ({**SEVERAL, "minItems": 2}, "a"),
        ({**SEVERAL, "maxItems": 1}, "a, b"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_an_answer_that_does_not_fit_is_asked_for_once_more_and_then_nothing_is_sent(put, field, bad):
    heard, asked = await put(form(["x"], x=field), bad, bad)
    assert heard == {"action": "cancel"} and len(asked) == 2 and "does not fit" in asked[1].question


async def test_the_second_answer_may_fit(put):
    heard, _ = await put(form(["x", "y"], x=INTEGER, y=STRING), "many", "2", "fine")
    assert heard == {"action": "accept", "content": {"x": 2, "y": "fine"}}


@pytest.mark.parametrize("field", [STRING, COLOURS, BOOLEAN, INTEGER, SEVERAL], ids=str)
async def test_every_field_can_be_declined_and_nothing_of_the_form_is_sent(put, field):
    heard, _ = await put(form(["a", "x"], a=STRING, x=field), "private", "decline")
    assert heard == {"action": "decline"}


@pytest.mark.parametrize(
    "params", [form(["x"], x=STRING), form(), {"mode": "url", "message": "m", "url": "https://x", "elicitationId": "1"}]
)
async def test_where_nobody_is_there_it_is_cancelled(put, params):
    heard, _ = await put(params, nobody=True)
    assert heard["action"] == "cancel" and not heard.get("content")


@pytest.mark.parametrize(("answer", "action"), [("accept", "accept"), ("decline", "decline"), ("whatever", "decline")])
async def test_a_form_without_fields_is_a_question_of_yes_or_no(put, answer, action):
    heard, (asked,) = await put(form(), answer)
    assert heard["action"] == action and not heard.get("content") and asked.options == ("accept", "decline")


async def test_a_form_with_too_many_fields_is_declined_without_a_question(put):
    heard, asked = await put(form(**{f"f{n}": STRING for n in range(21)}))
    assert heard == {"action": "decline"} and asked == []
    heard, asked = await put(form(**{f"f{n}": STRING for n in range(20)}), *["x"] * 20)
    assert heard["action"] == "accept" and len(asked) == 20


async def test_texts_of_a_server_are_not_shown_without_end(put):
    params = form(["x"], x={**STRING, "title": "t" + "y" * 50_000, "description": "d" * 50_000})
    heard, (asked,) = await put({**params, "message": "m" + "x" * 50_000}, "fine")
    assert heard["action"] == "accept" and len(asked.question) < 10_000
    assert "shop" in asked.question and "ty" in asked.question  # what is asked for is seen all the same


# addresses


@pytest.mark.parametrize(("answer", "action"), [("done", "accept"), ("decline", "decline"), ("what is this?", "decline")])
async def test_an_address_is_shown_and_never_opened(put, monkeypatch, answer, action):
    import webbrowser

    monkeypatch.setattr(webbrowser, "open", lambda *args: pytest.fail("a browser was opened"))
    params = {"mode": "url", "message": "pay", "url": "https://pay.example/1", "elicitationId": "1"}
    heard, (asked,) = await put(params, answer)
    assert heard["action"] == action and not heard.get("content")
    assert "https://pay.example/1" in asked.question and "shop" in asked.question
    assert asked.options == ("done", "decline")


# what no server should send


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"x": "string"}},
        {"type": "object", "properties": {"x": None}},
        {"type": "object", "properties": {"x": {"type": ["string", "null"]}}},
        {"type": "object", "properties": {"x": {"type": "string", "enum": 5}}},
        {"type": "object", "properties": {"x": {"type": "string", "enum": "red"}}},
        {"type": "object", "properties": {"x": {"type": "string", "enum": [1, None, {}]}}},
        {"type": "object", "properties": {"x": {"type": "string", "oneOf": 5}}},
        {"type": "object", "properties": {"x": {"type": "string", "oneOf": ["a"]}}},
        {"type": "object", "properties": {"x": {"type": "integer", "minimum": "one"}}},
        {"type": "object", "properties": {"x": {"type": "string", "minLength": "one"}}},
        {"type": "object", "properties": {"x": {"type": "string", "default": {"a": 1}}}},
        {"type": "object", "properties": {"x": {"type": "array", "items": {"items": {"items": {"enum": ["a"]}}}}}},
        {"type": "object", "properties": {"x": {"type": "string"}}, "required": 5},
        {"type": "object", "properties": {"x": {"type": "string"}}, "required": None},
        {},
    ],
    ids=lambda schema: json.dumps(schema.get("properties", schema))[:60] + str(schema.get("required", "")),
)
@pytest.mark.parametrize("answer", ["a", "5", ""])
async def test_a_form_that_is_none_is_answered_all_the_same(put, schema, answer):
    heard, _ = await put({"mode": "form", "message": "m", "requestedSchema": schema}, always=answer)
    refused = heard.get("code") == -32602  # it is told that its form is none
    assert refused or heard.get("action") in ("accept", "decline", "cancel"), heard
