"""What each protocol makes of a conversation, to the byte, and of an answer."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hames.content.finish import Finish, Usage
from hames.content.messages import (
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    clean,
    decode_message,
    encode_message,
    user,
)
from hames.content.request import EncodedRequest, ToolSpec
from hames.models import Dialect, Encoder, Settings
from hames.models.anthropic import AnthropicMessages, legal_id, raw_object
from hames.models.openai import OpenAIChat
from hames.models.port import Parser
from hames.sessions.log import encoded

GOLDEN = Path(__file__).parent / "golden"
DIALECTS: dict[str, type[OpenAIChat] | type[AnthropicMessages]] = {"openai": OpenAIChat, "anthropic": AnthropicMessages}

adapters = pytest.mark.parametrize("adapter", DIALECTS)

SYSTEM = 'You are "brief".\nÜber alles: √ and \U0001f600.'
TOOLS = (
    ToolSpec("look", "Look at a place.", {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}),
    ToolSpec("todo_write", "Write a list.", {"type": "object", "properties": {"items": {"type": "array"}}, "additionalProperties": False}),
)
SETTINGS = Settings(max_tokens=1000, effort="low")
ODD_ID = "call|1 of 2/ü"
LONG_ID = "call_" + "x" * 200


def model(*blocks: Any) -> Message:
    return Message("assistant", blocks, "model")


CONVERSATION = (
    user('Say "hello" twice,\n\tthen stop. \u2028 ü \U0001f600'),
    model(
        Reasoning("I look first.", "c2lnbmVk", "", "anthropic"),
        Reasoning("", "", "b3BhcXVl", "anthropic"),
        Reasoning("Foreign thought.", "Zm9yZWlnbg==", "", "elsewhere"),
        Text("I look."),
        ToolCall(ODD_ID, "look", '{"n": 1.0e5, "n": 2}'),
        ToolCall(LONG_ID, "look", ' {"n": 123456789012345678901234567890.5000,\n "s": "\\u00fc\\/"}\n'),
    ),
    Message("user", (ToolResult(ODD_ID, (Text(clean("caf\udce9 \ud83d\ude00 \ud800.")),)),), "tool"),
    Message("user", (ToolResult(LONG_ID, (Text("no such "), Image("image/png", "0" * 64), Text("place")), True, "FAILED"),), "tool"),
    user("Hurry, please."),
    model(),
    user("Are you there?"),
    model(Text("Yes."), ToolCall("call_3", "todo_write", "not JSON {")),
    Message("user", (ToolResult("call_3", (Text(""),), True, "INVALID_ARGS"),), "tool"),
    model(Unknown({"type": "hologram"}), Text("   ")),
    user("Go on."),
    model(Reasoning("I go on.", "Z29vbg==", "", "anthropic"), ToolCall("call_4", "todo_write", '{"items": []}')),
    Message("user", (ToolResult("call_4", (Text("the list is empty"),)),), "tool"),
)


def strict(text: bytes | str) -> Any:
    """JSON as RFC 8259 has it, without NaN and Infinity."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def encode(dialect: Dialect, *messages: Message, reasoning: str = "always", settings: Settings | None = None) -> EncodedRequest:
    return Encoder(dialect, "m", reasoning=reasoning, pictures=lambda blob: b"PNG").encode(
        SYSTEM, TOOLS, list(enumerate(messages)), settings or Settings()
    )


def body(dialect: Dialect, *messages: Message, **more: Any) -> dict[str, Any]:
    return strict(encode(dialect, *messages, **more).body())


# what is sent


@pytest.mark.parametrize(("name", "reasoning"), [("openai", "never"), ("openai", "turn"), ("openai", "always"), ("anthropic", "always")])
def test_a_request_is_these_bytes(name: str, reasoning: str) -> None:
    file = GOLDEN / f"{name}-{reasoning}.json"
    request = encode(DIALECTS[name](), *CONVERSATION, reasoning=reasoning, settings=SETTINGS)
    if os.environ.get("HAMES_UPDATE_GOLDEN") == "1":
        file.write_bytes(request.body())
    assert request.body() == file.read_bytes()
    assert strict(request.body())["model"] == "m"


@adapters
def test_a_conversation_from_the_log_is_the_same_bytes(adapter: str) -> None:
    again = [decode_message(json.loads(encoded(encode_message(message))[0])) for message in CONVERSATION]
    assert encode(DIALECTS[adapter](), *again).body() == encode(DIALECTS[adapter](), *CONVERSATION).body()


@adapters
def test_settings_that_are_none_are_not_sent(adapter: str) -> None:
    common = {"model", "stream", "tools", "messages"}
    own = {"openai": {"stream_options"}, "anthropic": {"max_tokens", "system"}}
    assert body(DIALECTS[adapter](), user("Go.")).keys() == common | own[adapter]
    assert body(DIALECTS[adapter](), user("Go."), settings=Settings(temperature=0.0))["temperature"] == 0.0


@adapters
def test_the_schema_of_an_answer_and_another_name_of_the_limit(adapter: str) -> None:
    settings = Settings(max_tokens=7, schema={"type": "object"})
    dialect = OpenAIChat(max_tokens_field="max_tokens") if adapter == "openai" else AnthropicMessages()
    sent = body(dialect, user("Go."), settings=settings)
    assert sent["max_tokens"] == 7
    if adapter == "openai":
        assert sent["response_format"]["json_schema"] == {"name": "answer", "schema": {"type": "object"}, "strict": True}


@pytest.mark.parametrize(
    "arguments", ['{"n": 1.0e5, "n": 2}', '{"big": 12345678901234567890123456789.10}', '{\n\t"a" : "\\ud83d\\ude00\\/" }', "{}"]
)
def test_arguments_go_back_as_the_model_wrote_them(arguments: str) -> None:
    message = model(ToolCall("a", "look", arguments))
    assert arguments.encode() in encode(AnthropicMessages(), user("Go."), message).body()
    sent = body(OpenAIChat(), user("Go."), message)
    assert sent["messages"][-1]["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("arguments", ["", "null", "[1]", '{"a"', '{"a": "\n"}', '{"a": NaN}', '{"a": -Infinity}', "{} {}"])
def test_arguments_that_are_no_json_object_are_an_empty_one_where_json_is_needed(arguments: str) -> None:
    assert raw_object(arguments) == "{}"


def test_arguments_nested_without_end_are_an_empty_object() -> None:
    assert raw_object('{"a":' * 20_000) == "{}"


def test_a_call_and_its_result_get_the_same_legal_id() -> None:
    _, call, result = body(AnthropicMessages(), user("Go."), model(ToolCall(ODD_ID, "look", "{}")), results(ODD_ID))["messages"]
    id = call["content"][0]["id"]
    assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", id)
    assert result["content"][0]["tool_use_id"] == id


def results(*ids: str) -> Message:
    return Message("user", tuple(ToolResult(id, (Text("seen"),)) for id in ids), "tool")


def test_ids_stay_apart_and_legal_ones_stay_as_they_are() -> None:
    ids = ["a", "a|", "a|b", "ü", "", LONG_ID, LONG_ID + "y", "a\n"]
    assert legal_id("toolu_01-A") == "toolu_01-A"
    assert len({legal_id(id) for id in ids}) == len(ids)
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,128}", legal_id(id)) for id in ids)


@adapters
def test_results_in_one_message_or_in_several_are_the_same_request(adapter: str) -> None:
    calls = model(ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}"))
    one = encode(DIALECTS[adapter](), user("Go."), calls, results("a", "b"))
    assert one.body() == encode(DIALECTS[adapter](), user("Go."), calls, results("a"), results("b")).body()


def test_what_a_user_says_after_results_shares_their_message() -> None:
    calls = model(ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}"))
    sent = body(AnthropicMessages(), user("Go."), calls, results("a"), results("b"), user("Hurry."))
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "user"]
    assert [part["type"] for part in sent["messages"][-1]["content"]] == ["tool_result", "tool_result", "text"]


def test_reasoning_that_is_not_signed_yet_is_not_sent_as_signed() -> None:
    # Cut in the middle, a thinking block has no signature, and the provider refuses it without one.
    cut = model(Reasoning("I was about to", "", "", "anthropic"), Text("Half"))
    sent = body(AnthropicMessages(), user("Go."), cut, user("On."))
    assert sent["messages"][1]["content"] == [{"type": "text", "text": "Half"}]


def test_reasoning_of_another_family_is_not_sent() -> None:
    sent = body(
        AnthropicMessages(), user("Go."), model(Reasoning("Hm.", "sig", "", "elsewhere"), Reasoning("Hm."), Text("Yes.")), user("On.")
    )
    assert sent["messages"][1]["content"] == [{"type": "text", "text": "Yes."}]


@adapters
def test_lone_surrogates_do_not_survive_the_log(adapter: str) -> None:
    message = model(Text("a\ud800"), ToolCall("id\udfff", "look", '{"a": "\udce9"}'))
    logged = decode_message(json.loads(encoded(encode_message(message))[0]))
    text = encode(DIALECTS[adapter](), user("Go."), logged, results("id\ufffd")).body().decode()
    assert "a\ufffd" in text


# what comes back


def finish(parser: Parser, *events: Any) -> Finish:
    for event in events:
        for chunk in parser.feed("", event if isinstance(event, str) else json.dumps(event)):
            if isinstance(chunk, Finish):
                return chunk
    end = parser.end()
    assert isinstance(end, Finish)
    return end


def choice(word: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": word}]}


def call(index: int | None = None, id: str | None = None, name: str | None = None, arguments: str | None = None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**({"index": index} if index is not None else {}), **({"id": id} if id else {}), "function": function}


@pytest.mark.parametrize(
    ("word", "reason"),
    [("stop", "stop"), ("length", "max-tokens"), ("content_filter", "refusal"), ("tool_calls", "stop"), ("function_call", "stop")],
)
def test_openai_finish_words(word: str, reason: str) -> None:
    assert finish(OpenAIChat().parser(), choice(content="a"), choice(word), "[DONE]").reason == reason


@pytest.mark.parametrize("word", ["stop", "tool_calls", "function_call"])
def test_openai_calls_are_calls_whatever_the_word(word: str) -> None:
    got = finish(OpenAIChat().parser(), choice(tool_calls=[call(0, "a", "look", "{}")]), choice(word), "[DONE]")
    assert (got.reason, got.blocks) == ("tool-calls", (ToolCall("a", "look", "{}"),))


def test_openai_calls_without_arguments_have_an_empty_object() -> None:
    got = finish(OpenAIChat().parser(), choice(tool_calls=[call(0, "a", "look")]), choice("tool_calls"))
    assert got.blocks == (ToolCall("a", "look", "{}"),)


def test_openai_calls_without_index_or_id_stay_apart() -> None:
    got = finish(OpenAIChat().parser(), choice(tool_calls=[call(name="look"), call(name="look")]), choice("tool_calls"))
    first, second = got.blocks
    assert isinstance(first, ToolCall)
    assert isinstance(second, ToolCall)
    assert first.id != second.id


def test_openai_reasoning_under_both_names_and_usage_of_several_servers() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_cache_hit_tokens": 4,
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    got = finish(
        OpenAIChat().parser(), choice(reasoning="I "), choice(reasoning_content="think"), choice("stop", content="a"), {"usage": usage}
    )
    assert got == Finish("stop", (Reasoning("I think"), Text("a")), Usage(6, 5, 4, 0, 3))


def test_openai_nulls_stand_for_nothing() -> None:
    nulls = {
        "choices": [{"delta": {"content": None, "tool_calls": None, "refusal": None, "reasoning_content": None}}],
        "usage": None,
        "error": None,
    }
    assert finish(OpenAIChat().parser(), nulls, {"choices": None}, choice("stop", content="a")) == Finish("stop", (Text("a"),))


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def stopped(word: str) -> list[dict[str, Any]]:
    return [{"type": "message_delta", "delta": {"stop_reason": word}, "usage": {"output_tokens": 5}}, {"type": "message_stop"}]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "stop"),
        ("max_tokens", "max-tokens"),
        ("model_context_window_exceeded", "max-tokens"),
        ("refusal", "refusal"),
    ],
)
def test_anthropic_finish_words(word: str, reason: str) -> None:
    assert finish(AnthropicMessages().parser(), *block(0, {"type": "text", "text": "a"}), *stopped(word)).reason == reason


def test_anthropic_pause_is_a_word_of_its_own() -> None:
    got = finish(AnthropicMessages().parser(), *block(0, {"type": "text", "text": "a"}), *stopped("pause_turn"))
    assert got.failure is not None
    assert (got.failure.kind, got.failure.word) == ("unknown-finish", "pause_turn")


def test_anthropic_later_events_blocks_and_deltas_are_passed_over() -> None:
    got = finish(
        AnthropicMessages().parser(),
        {"type": "aurora", "x": 1},
        *block(0, {"type": "hologram"}, {"type": "hologram_delta"}),
        *block(1, {"type": "text", "text": ""}, {"type": "citations_delta", "citation": {}}, {"type": "text_delta", "text": "a"}),
        *stopped("end_turn"),
    )
    assert got == Finish("stop", (Text("a"),), Usage(output=5))


def test_anthropic_calls_without_arguments_have_an_empty_object() -> None:
    start = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    assert finish(AnthropicMessages().parser(), *block(0, start), *stopped("tool_use")).blocks == (ToolCall("toolu_1", "look", "{}"),)


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("overloaded_error", "overloaded"),
        ("rate_limit_error", "rate-limit"),
        ("authentication_error", "auth"),
        ("permission_error", "auth"),
        ("not_found_error", "not-found"),
        ("invalid_request_error", "invalid-request"),
        ("timeout_error", "timeout"),
        ("api_error", "server"),
        ("aurora_error", "server"),
    ],
)
def test_anthropic_errors_in_the_stream(word: str, kind: str) -> None:
    got = finish(AnthropicMessages().parser(), {"type": "error", "error": {"type": word, "message": "m"}})
    assert got.failure is not None
    assert (got.failure.kind, got.failure.word, got.failure.message) == (kind, word, "m")


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    [
        ({"message": "m", "type": "overloaded_error"}, "overloaded", "overloaded_error"),
        ({"message": "m", "code": "rate_limit_exceeded"}, "rate-limit", "rate_limit_exceeded"),
        ({"message": "m", "code": "context_length_exceeded"}, "context-overflow", "context_length_exceeded"),
        ({"message": "m", "type": "invalid_request_error"}, "invalid-request", "invalid_request_error"),
        ({"message": "m", "code": 502}, "server", "502"),
        ("m", "server", ""),
    ],
)
def test_openai_errors_in_the_stream(error: Any, kind: str, word: str) -> None:
    got = finish(OpenAIChat().parser(), {"error": error})
    assert got.failure is not None
    assert (got.failure.kind, got.failure.word, got.failure.message) == (kind, word, "m")
