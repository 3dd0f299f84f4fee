"""A request costs what is new in it, and is the same bytes as if the whole conversation had been encoded anew."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hames.content.clock import Clock
from hames.content.messages import Block, Message, Reasoning, Text, ToolCall, ToolResult, user
from hames.content.request import EncodedRequest, ToolSpec, splice
from hames.models import Dialect, Encoder, Settings
from hames.models.anthropic import AnthropicMessages
from hames.models.openai import OpenAIChat
from hames.models.port import Logged
from hames.sessions import Session
from hames.sessions.plugin import Sessions
from hames.store import Store

DIALECTS: dict[str, type[OpenAIChat] | type[AnthropicMessages]] = {"openai": OpenAIChat, "anthropic": AnthropicMessages}
REASONING = ["never", "turn", "always"]
SYSTEM = "Be brief."
TOOLS = (ToolSpec("look", "Look at something.", {"type": "object", "properties": {"at": {"type": "string"}}}),)
STEADY = settings(derandomize=True, deadline=None, max_examples=300)

adapters = pytest.mark.parametrize("adapter", DIALECTS)


def model(*blocks: Block) -> Message:
    return Message("assistant", blocks, "model")


def result(id: str, text: str, *, is_error: bool = False) -> Message:
    return Message("user", (ToolResult(id, (Text(text),), is_error),), "tool")


def logged(*messages: Message) -> list[Logged]:
    return list(enumerate(messages))


def encoder(adapter: str, reasoning: str = "always") -> Encoder:
    return Encoder(DIALECTS[adapter](), "m", reasoning=reasoning)


def encode(encoder: Encoder, messages: Sequence[Logged], *, system: str = SYSTEM, settings: Settings | None = None) -> EncodedRequest:
    return encoder.encode(system, TOOLS, messages, settings or Settings())


def data(request: EncodedRequest) -> list[bytes]:
    return [group.data for group in request.groups]


def sound(request: EncodedRequest, before: EncodedRequest | None) -> None:
    """What holds for every request."""
    body = request.body()
    assert request.sha256 == sha256(body).hexdigest()
    assert body.startswith(request.head)
    assert body.endswith(request.tail)
    assert request.kept <= len(request.groups)
    if before is None:
        assert request.kept == 0
        assert request.reason == "initial"
    else:
        assert data(request)[: request.kept] == data(before)[: request.kept]
    if request.marked >= 0:
        assert request.marked == len(request.groups) - 1
        assert not any(request.marker in group for group in data(request))
        assert splice(request.groups[request.marked], request.marker) in body
    else:
        assert request.marker == b""


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[Session]:
    store = Store(tmp_path / "state")
    yield Sessions(store, Clock()).create(str(tmp_path))
    await store.close()


def answer(session: Session, place: int, *, steer: bool = False) -> None:
    """What one request adds to a conversation: an answer with two calls, their results, and what a user says meanwhile."""
    thought = Reasoning("Hm.", "sig", "", "anthropic")
    session.add(model(thought, *(ToolCall(f"call_{place:06d}_{n}", "look", '{"at": 1}') for n in (1, 2))))
    for n in (1, 2):
        session.add(result(f"call_{place:06d}_{n}", f"seen {n}"))
    if steer:
        session.add(user("And look there too."))


# what a request costs


@adapters
@pytest.mark.parametrize(("reasoning", "steer"), [("never", False), ("never", True), ("turn", False), ("always", False), ("always", True)])
async def test_a_request_encodes_only_what_is_new(adapter: str, reasoning: str, steer: bool, session: Session) -> None:
    growing = encoder(adapter, reasoning)
    costs: list[int] = []
    before: EncodedRequest | None = None
    session.add(user("Go."))
    for place in range(200):
        encoded = growing.encoded
        request = encode(growing, session.messages)
        costs.append(growing.encoded - encoded)
        sound(request, before)
        before = request
        answer(session, place, steer=steer)
    # Anthropic's protocol has a group for each run of messages of one role, chat completions for each message or run of results
    assert set(costs[1:]) == {2 if adapter == "anthropic" else 3 if steer else 2}
    assert costs[19] == costs[199]


@adapters
async def test_a_request_keeps_all_groups_of_the_one_before(adapter: str, session: Session) -> None:
    growing = encoder(adapter)
    session.add(user("Go."))
    before = encode(growing, session.messages)
    for place in range(199):
        answer(session, place, steer=place % 7 == 3)
        request = encode(growing, session.messages)
        assert request.reason == ""
        assert request.kept == len(before.groups)
        before = request


@adapters
async def test_a_message_that_joins_the_open_group_opens_that_one_alone(adapter: str, session: Session) -> None:
    growing = encoder(adapter)
    for message in (user("Go."), model(ToolCall("a", "look", "{}")), result("a", "seen")):
        session.add(message)
    before = encode(growing, session.messages)
    session.add(user("Hurry."))
    request = encode(growing, session.messages)
    assert request.reason == ""
    assert request.kept == {"openai": 3, "anthropic": 2}[adapter]
    assert len(before.groups) == 3
    assert len(request.groups) == {"openai": 4, "anthropic": 3}[adapter]


@adapters
def test_the_same_request_again_costs_nothing(adapter: str) -> None:
    growing = encoder(adapter)
    messages = logged(user("Go."), model(Text("Yes.")), user("On."))
    before = encode(growing, messages)
    encoded = growing.encoded
    request = encode(growing, messages)
    assert growing.encoded == encoded
    assert request.body() == before.body()
    sound(request, before)


# when it starts anew


@adapters
@pytest.mark.parametrize("change", ["system", "tools", "settings"])
def test_another_head_is_a_new_base(adapter: str, change: str) -> None:
    growing = encoder(adapter)
    messages = logged(user("Go."), model(Text("Yes.")), user("On."))
    encode(growing, messages)
    system = "Be long." if change == "system" else SYSTEM
    tools = () if change == "tools" else TOOLS
    settings = Settings(max_tokens=7) if change == "settings" else Settings()
    request = growing.encode(system, tools, messages, settings)
    assert (request.reason, request.kept) == ("head", 0)
    assert request.body() == encoder(adapter).encode(system, tools, messages, settings).body()
    again = growing.encode(system, tools, [*messages, (3, model(Text("So."))), (4, user("On."))], settings)
    assert (again.reason, again.kept) == ("", 3)


@adapters
def test_equal_heads_need_not_be_the_same_objects(adapter: str) -> None:
    growing = encoder(adapter)
    messages = logged(user("Go."), model(Text("Yes.")), user("On."))
    encode(growing, messages)
    request = growing.encode(SYSTEM + "", tuple(map(replace, TOOLS)), messages, Settings())
    assert request.reason == ""


HISTORIES = {
    "summarised": lambda old: logged(user("In short: it went well."), *(message for _, message in old[-2:])),
    "summarised to one": lambda old: logged(user("In short: it went well.")),
    "emptied and begun anew": lambda old: logged(
        user("Something else."), model(Text("Yes.")), user("On and on."), model(), user("Far on.")
    ),
    "cut short": lambda old: old[:-2],
    "cut to what was closed": lambda old: old[:-1],
    "pruned in the middle": lambda old: [*old[:2], (old[2][0], result("a", "[pruned]")), *old[3:]],
    "pruned at the start": lambda old: [(0, user("Went.")), *old[1:]],
    "with another end": lambda old: [*old[:-1], (old[-1][0], user("Back."))],
}


@adapters
@pytest.mark.parametrize("how", HISTORIES)
def test_a_replaced_history_is_a_new_base(how: str, adapter: str) -> None:
    growing = encoder(adapter)
    messages = logged(
        user("Go."),
        model(Reasoning("Hm.", "sig", "", "anthropic"), ToolCall("a", "look", "{}")),
        result("a", "seen"),
        model(Reasoning("So.", "sig", "", "anthropic"), Text("Done.")),
        user("On."),
    )
    before = encode(growing, messages)
    changed = HISTORIES[how](messages)
    request = encode(growing, changed)
    assert request.body() == encode(encoder(adapter), changed).body()
    assert request.sha256 == sha256(request.body()).hexdigest()
    assert data(request)[: request.kept] == data(before)[: request.kept]
    if how not in ("cut to what was closed", "with another end"):  # these keep all that was closed
        assert (request.reason, request.kept) == ("history", 0)


@adapters
def test_the_only_message_may_be_replaced(adapter: str) -> None:
    growing = encoder(adapter)
    encode(growing, logged(user("Go.")))
    request = encode(growing, logged(user("Stay.")))
    assert request.body() == encode(encoder(adapter), logged(user("Stay."))).body()


@adapters
def test_a_new_turn_drops_the_reasoning_of_the_one_before(adapter: str) -> None:
    growing = encoder(adapter, "turn")
    thought = Reasoning("Hm.", "sig", "", "anthropic")
    messages = logged(user("Go."), model(thought, ToolCall("a", "look", "{}")), result("a", "seen"))
    encode(growing, messages[:1])
    within = encode(growing, messages)
    assert (within.reason, within.kept) == ("", 1)
    assert b"Hm." in within.body()
    messages = logged(*(message for _, message in messages), model(thought, Text("Done.")), user("On."))
    request = encode(growing, messages)
    assert request.reason == "reasoning"
    assert data(request)[: request.kept] == data(within)[: request.kept]
    assert b"Hm." not in request.body()


@adapters
def test_a_new_turn_without_reasoning_before_it_just_goes_on(adapter: str) -> None:
    growing = encoder(adapter, "turn")
    messages = logged(user("Go."), model(ToolCall("a", "look", "{}")), result("a", "seen"))
    encode(growing, messages)
    request = encode(growing, logged(*(message for _, message in messages), model(Text("Done.")), user("On.")))
    assert (request.reason, request.kept) == ("", 3)


@adapters
@pytest.mark.parametrize(("reasoning", "there"), [("never", False), ("always", True)])
def test_reasoning_is_never_or_always_sent_again(adapter: str, reasoning: str, there: bool) -> None:
    messages = logged(user("Go."), model(Reasoning("Hm.", "sig", "", "anthropic"), Text("Done.")), user("On."))
    assert (b"Hm." in encode(encoder(adapter, reasoning), messages).body()) is there


# the marker


def test_the_marker_moves_and_stands_in_no_group() -> None:
    growing = encoder("anthropic")
    messages = logged(user("Go."), model(Text("Yes.")), user("On."), model(Text("Yes.")), user("And on."))
    marker = AnthropicMessages.marker
    for count in (1, 3, 5):
        request = encode(growing, messages[:count])
        assert not any(marker in group for group in data(request))
        assert (request.marked, request.marker) == (count - 1, marker)
        assert request.body()[len(request.head) :].count(marker) == 1
        assert request.body().endswith(marker + b"}]}" + request.tail)


def test_chat_completions_has_no_marker() -> None:
    request = encode(encoder("openai"), logged(user("Go.")))
    assert (request.marked, request.marker) == (-1, b"")


def test_a_group_that_ends_in_reasoning_takes_no_marker() -> None:
    request = encode(encoder("anthropic"), logged(user("Go."), model(Text("a"), Reasoning("Hm.", "sig", "", "anthropic"))))
    assert (request.marked, request.marker) == (-1, b"")


# against a naive encoder

TEXTS = st.sampled_from(["", " ", "a", "ü", '"\\', "line\nline", "\U0001f600"])
IDS = st.sampled_from(["c1", "c|2", "", "x" * 200])
ARGUMENTS = st.sampled_from(["{}", '{"n": 1.0e5, "n": 2}', "", "[1]", '{"half', ' {"a": 1} '])
TEXT = st.builds(Text, TEXTS)
THOUGHT = st.builds(
    Reasoning, TEXTS, st.sampled_from(["sig", ""]), st.sampled_from(["", "opaque"]), st.sampled_from(["anthropic", "", "other"])
)
CALL = st.builds(ToolCall, IDS, st.just("look"), ARGUMENTS)
RESULT = st.builds(lambda id, text, error: ToolResult(id, (Text(text),), error), IDS, TEXTS, st.booleans())
USER = st.builds(lambda blocks: Message("user", tuple(blocks)), st.lists(TEXT, max_size=2))
TOOL = st.builds(lambda block: Message("user", (block,), "tool"), RESULT)
MODEL = st.builds(lambda blocks: Message("assistant", tuple(blocks), "model"), st.lists(TEXT | THOUGHT | CALL, max_size=3))
HEADS = st.tuples(st.sampled_from(["", SYSTEM]), st.sampled_from([(), TOOLS]), st.sampled_from([Settings(), Settings(max_tokens=9)]))


def same_as_naive(
    growing: Encoder, naive: Encoder, head: tuple[str, tuple[ToolSpec, ...], Settings], messages: list[Logged]
) -> EncodedRequest:
    system, tools, settings = head
    request = growing.encode(system, tools, messages, settings)
    fresh = naive.encode(system, tools, messages, settings)
    assert request.body() == fresh.body()
    assert data(request) == data(fresh)
    assert (request.marked, request.marker, request.sha256) == (fresh.marked, fresh.marker, fresh.sha256)
    return request


@adapters
@STEADY
@given(
    reasoning=st.sampled_from(REASONING),
    rounds=st.lists(st.tuples(st.lists(USER | TOOL | MODEL, max_size=4), HEADS), min_size=1, max_size=6),
    same_head=st.booleans(),
)
def test_a_growing_conversation_is_encoded_as_if_anew(
    adapter: str, reasoning: str, rounds: list[tuple[list[Message], tuple[str, tuple[ToolSpec, ...], Settings]]], same_head: bool
) -> None:
    growing = encoder(adapter, reasoning)
    messages: list[Logged] = []
    before: EncodedRequest | None = None
    for added, head in rounds:
        messages += [(len(messages) + n, message) for n, message in enumerate(added)]
        request = same_as_naive(growing, encoder(adapter, reasoning), rounds[0][1] if same_head else head, messages)
        sound(request, before)
        if before is not None and request.head != before.head:
            assert (request.reason, request.kept) == ("head", 0)
        before = request


@st.composite
def histories(draw: st.DrawFn) -> list[list[Message]]:
    """A conversation as several requests see it: appended to, cut, summarised and pruned."""
    messages: list[Message] = []
    seen: list[list[Message]] = []
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(messages)))
        match draw(st.sampled_from(["append", "append", "append", "cut", "summarise", "prune"])):
            case "cut":
                messages = messages[:place]
            case "summarise":
                messages = [user("In short."), *messages[place:]]
            case "prune" if place < len(messages):
                messages = [*messages[:place], draw(USER | TOOL | MODEL), *messages[place + 1 :]]
            case _:
                messages = [*messages, *draw(st.lists(USER | TOOL | MODEL, max_size=4))]
        seen.append(messages)
    return seen


@adapters
@STEADY
@given(reasoning=st.sampled_from(REASONING), seen=histories())
def test_a_conversation_that_is_rewritten_is_encoded_as_if_anew(adapter: str, reasoning: str, seen: list[list[Message]]) -> None:
    growing = encoder(adapter, reasoning)
    before: EncodedRequest | None = None
    for messages in seen:
        request = same_as_naive(growing, encoder(adapter, reasoning), (SYSTEM, TOOLS, Settings()), logged(*messages))
        sound(request, before)
        before = request


def test_dialects_say_what_the_port_asks() -> None:
    dialects: list[Dialect] = [OpenAIChat(), AnthropicMessages()]
    assert [dialect.name for dialect in dialects] == ["openai-chat/1", "anthropic-messages/1"]
