"""A conversation that is kept within its window: what is shortened, what stays, and what everybody is told of it."""

from __future__ import annotations

import asyncio
import json
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hames.agents import AGENTS, AgentSpec, Answered, Chunked, Compacted
from hames.agents import context as context_module
from hames.agents.compaction import INSTRUCTION, LEAD, Fitting, cut, prunable
from hames.agents.context import ContextMeter, estimate
from hames.agents.fit import later_half
from hames.budget import Limits
from hames.content.finish import Failure, Finish, TextDelta, Usage
from hames.content.jsontext import parse_object
from hames.content.messages import Message, Text, ToolCall, ToolResult, encode_message, user
from hames.kernel import plugin
from hames.models import MODELS, Encoder
from hames.models.openai import OpenAIChat
from hames.prompts import PROMPTS
from hames.sessions import SESSIONS
from hames.sessions.history import pruned
from hames.tools import TOOLS, tool

WINDOW = 40_000  # tokens
NOTES = "These are the notes of what was done so far."


class Puppet:
    """A model whose answers a test gives.

    :ivar asked: the messages of each request; those that ask for notes are in ``noted`` too.
    :ivar room: tokens that it takes; more is refused as too long.
    """

    def __init__(self):
        self.window = WINDOW
        self.room = 10**9
        self.asked, self.noted = [], []
        self.answers = {}  # by number of the request among those for answers
        self.notes = [Finish("stop", (Text(NOTES),), Usage(100, 20))]
        self.usage = Usage(10, 1)
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self.open.set()

    def model(self, name, profile, ref):
        def stream(request):
            body = parse_object(request.body())
            messages = [message for message in body["messages"] if message["role"] != "system"]
            self.asked.append(messages)
            return Stream(self._chunks(messages))

        return SimpleNamespace(
            ref=ref,
            window=self.window,
            stream=stream,
            cost=lambda usage: 0.0,
            encoder=lambda pictures: Encoder(OpenAIChat(), ref, pictures=pictures),
        )

    async def _chunks(self, messages):
        for_notes = messages[-1]["content"] == INSTRUCTION
        if for_notes:
            self.noted.append(messages)
        if sum(len(json.dumps(message)) for message in messages) // 4 > self.room:
            yield Finish("error", (), None, Failure("context-overflow", "too long"))
            return
        if for_notes:
            finish = self.notes[min(len(self.noted), len(self.notes)) - 1]
            for block in finish.blocks:
                if isinstance(block, Text):
                    yield TextDelta(block.text)
            self.reached.set()
            await self.open.wait()
            yield finish
            return
        number = len(self.asked) - len(self.noted) - 1
        yield self.answers.get(number, Finish("stop", (Text("done"),), self.usage))


class Stream:
    def __init__(self, chunks):
        self._chunks = chunks
        self._said = ""

    def partial(self):
        return (Text(self._said),) if self._said else ()

    async def __aiter__(self):
        async for chunk in self._chunks:
            if isinstance(chunk, TextDelta):
                self._said += chunk.text
            yield chunk


def with_puppet(host):
    made = Puppet()
    host.get(MODELS).register(host.ctx, "puppet", made)
    return made


@pytest.fixture
def puppet(host):
    return with_puppet(host)


@pytest.fixture
async def agent(agents, puppet, tmp_path):
    return await agents.create(AgentSpec(str(tmp_path), "puppet:m"))


def says(text):
    return Message("assistant", (Text(text),), "model")


def calls(*ids, text=""):
    return Message("assistant", (*((Text(text),) if text else ()), *(ToolCall(id, "look", f'{{"n": "{id}"}}') for id in ids)), "model")


def results(*ids, size=10, word="r"):
    return [Message("user", (ToolResult(id, (Text(f"{id} " + word * size),)),), "tool") for id in ids]


def talk(agent, count, size=8000):
    """Let a conversation have been."""
    for number in range(count):
        agent.session.add(user(f"question {number} " + "q" * (size // 2)))
        agent.session.add(says(f"answer {number} " + "a" * (size // 2)))


def work(agent, count, size):
    """Let calls with long results have been."""
    agent.session.add(user("the task"))
    for number in range(count):
        agent.session.add(calls(f"c{number}"))
        for message in results(f"c{number}", size=size):
            agent.session.add(message)
    agent.session.add(says("worked"))


def read(host, agent, *types):
    return [event for event in host.get(SESSIONS).read(agent.id) if event.type in types]


def reasons(host, agent):
    return [record.reason for record, _ in host.get(SESSIONS).rebuild(agent.id)]


def shown(agent):
    return [message.text for _, message in agent.session.messages]


# pressure


async def test_where_shorter_results_are_enough_no_notes_are_made(host, agent, puppet):
    work(agent, 14, 10_000)
    whole = [encode_message(message) for _, message in agent.session.messages]
    end = await agent.run("go")
    assert end.reason == "completed"
    assert puppet.noted == []
    (event,) = read(host, agent, "pruned")
    assert read(host, agent, "compacted") == []
    assert reasons(host, agent) == ["initial"]
    await agent.run("on")
    assert reasons(host, agent) == ["initial", ""]
    shortened = [message for message in puppet.asked[0] if message["role"] == "tool" and "not shown any more" in message["content"]]
    assert 0 < len(shortened) == len(event.data["items"]) < 14
    assert puppet.asked[0][-2 - 1]["role"] == "tool" and "not shown" not in puppet.asked[0][-3]["content"]  # the newest is whole
    logged = [{key: event.data[key] for key in ("role", "source", "blocks")} for event in read(host, agent, "message")]
    assert logged[: len(whole)] == whole


async def test_results_are_shortened_before_notes_are_made(host, agent, puppet):
    work(agent, 14, 10_000)
    talk(agent, 20)
    await agent.run("go")
    kinds = [event.type for event in read(host, agent, "pruned", "compacted")]
    assert kinds == ["pruned", "compacted"]
    assert any("not shown any more" in str(message["content"]) for message in puppet.noted[0])
    assert reasons(host, agent) == ["initial", "compacted"]


async def test_notes_take_the_place_of_the_past_and_the_end_stays(host, agent, puppet):
    heard = []
    host.ctx.on(Compacted, lambda notice: heard.append(notice))
    talk(agent, 20)
    before = list(agent.session.messages)
    end = await agent.run("go on")
    assert (end.reason, end.text) == ("completed", "done")
    (event,) = read(host, agent, "compacted")
    first, *rest = [message for _, message in agent.session.messages]
    assert first.text == LEAD + NOTES
    kept = [message for _, message in before][-(len(rest) - 2) :]
    assert rest == [*kept, user("go on"), says("done")]
    assert sum(estimate(message) for message in [*kept, user("go on")]) <= 0.16 * WINDOW
    assert estimate(before[-len(kept) - 1][1]) + sum(map(estimate, [*kept, user("go on")])) > 0.16 * WINDOW  # no more would have gone in
    assert [(notice.reason, notice.before > notice.after) for notice in heard] == [("pressure", True)]
    assert event.data["reason"] == "pressure"
    # The log keeps what was said, word for word.
    logged = [event.seq for event in read(host, agent, "message")]
    assert [seq for seq, _ in before] == logged[: len(before)]
    # What was asked: everything, then the notes with the end.
    assert len(puppet.noted) == 1 and len(puppet.asked) == 2
    assert puppet.asked[1][0]["content"] == LEAD + NOTES
    assert reasons(host, agent) == ["initial", "compacted"]


async def test_below_the_threshold_nothing_is_done(host, agent, puppet):
    talk(agent, 5)
    await agent.run("go")
    assert read(host, agent, "pruned", "compacted", "not-compacted") == []
    assert puppet.noted == []


async def test_a_conversation_is_shortened_again_and_again(host, agent, puppet):
    for number in range(4):
        talk(agent, 20)
        puppet.notes = [Finish("stop", (Text(f"notes {number}"),))]
        await agent.run(f"go {number}")
        assert [text for text in shown(agent) if text.startswith(LEAD)] == [f"{LEAD}notes {number}"]
    assert len(read(host, agent, "compacted")) == 4


async def test_notes_can_be_asked_for(host, agent, puppet):
    talk(agent, 6)
    agent.compact_next = True
    await agent.run("go")
    (event,) = read(host, agent, "compacted")
    assert event.data["reason"] == "user"
    assert not agent.compact_next
    assert reasons(host, agent) == ["initial", "compacted"]
    await agent.run("on")
    assert len(read(host, agent, "compacted")) == 1


async def test_asking_for_notes_of_nothing_does_nothing(host, agent, puppet):
    agent.compact_next = True
    assert (await agent.run("go")).reason == "completed"
    assert puppet.noted == []
    assert not agent.compact_next


# notes that are of no use


FAILED = Failure("server", "broken")
USELESS = {
    "longer than the past": Finish("stop", (Text("n" * 400_000),)),
    "empty": Finish("stop", (Text("  \n "),)),
    "calls": Finish("tool-calls", (ToolCall("x", "glob", "{}"),)),
    "failed": Finish("error", (), None, FAILED),
    "failed in the middle": Finish("error", (Text("The user wants"),), None, Failure("cut", "the stream ended")),
    "refused": Finish("refusal", (Text("I will not do that."),)),
    "cut off by its limit": Finish("max-tokens", (Text("The user wants"),)),
}


@pytest.mark.parametrize("why", USELESS)
async def test_without_good_notes_the_conversation_stays_as_it_is(why, host, agent, puppet):
    talk(agent, 20)
    before = list(agent.session.messages)
    puppet.notes = [USELESS[why]]
    end = await agent.run("go")
    assert end.reason == "completed"
    assert read(host, agent, "compacted") == []
    assert agent.session.messages[: len(before)] == before
    assert [message.text for _, message in agent.session.messages[len(before) :]] == ["go", "done"]
    assert len(read(host, agent, "not-compacted")) == 1


async def test_notes_that_fail_are_not_paid_for_at_every_request(host, agent, puppet):
    """Above the threshold but within the window the turn goes on; asking for the same useless notes each time doubles what it costs."""
    talk(agent, 18)
    puppet.notes = [USELESS["empty"]]
    puppet.answers = {n: Finish("tool-calls", (ToolCall(f"g{n}", "glob", json.dumps({"pattern": f"{n}*"})),)) for n in range(10)}
    end = await agent.run("go")
    assert end.reason == "completed"
    assert len(puppet.noted) <= 3


async def test_a_request_for_notes_that_is_cancelled_leaves_no_trace_in_the_conversation(host, agent, puppet):
    talk(agent, 20)
    before = list(agent.session.messages)
    puppet.open.clear()
    agent.send("go")
    await asyncio.wait_for(puppet.reached.wait(), 5)
    agent.cancel("user")
    await agent.idle()
    puppet.open.set()
    assert agent.session.messages[: len(before)] == before
    assert [(message.source, message.text) for _, message in agent.session.messages[len(before) :]] == [("user", "go")]


async def test_whoever_shows_what_the_agent_says_does_not_hear_the_notes(host, agent, puppet):
    heard = []
    host.ctx.on(Chunked, lambda notice: heard.append(notice.chunk))
    talk(agent, 20)
    puppet.answers = {0: Finish("stop", (Text("done"),))}
    await agent.run("go")
    assert len(puppet.noted) == 1
    assert NOTES not in "".join(chunk.text for chunk in heard if isinstance(chunk, TextDelta))


# overflow


async def test_after_a_request_that_was_too_long_there_is_one_more(host, agent, puppet):
    talk(agent, 10)
    puppet.room = 12_000  # less than the harness believes
    end = await agent.run("go")
    assert (end.reason, end.text) == ("completed", "done")
    (event,) = read(host, agent, "compacted")
    assert event.data["reason"] == "overflow"
    assert reasons(host, agent)[-1] == "compacted"
    assert len(read(host, agent, "failed")) == 1


async def test_a_request_for_notes_that_is_itself_too_long_is_made_of_the_later_half(host, agent, puppet):
    talk(agent, 14)
    puppet.room = 9_000
    end = await agent.run("go")
    assert end.reason == "completed"
    lengths = [len(messages) for messages in puppet.noted]
    assert len(lengths) >= 2 and lengths == sorted(lengths, reverse=True)
    assert puppet.noted[-1][0]["content"] == "[what came before is left out]"
    assert puppet.noted[-1][-2] != puppet.noted[-1][0]  # something of it is left
    assert len(read(host, agent, "compacted")) == 1


async def test_what_overflows_again_ends_the_turn_with_context_overflow(host, agent, puppet):
    talk(agent, 10)
    puppet.room = 0
    end = await agent.run("go")
    assert (end.reason, end.failure.kind) == ("error", "context-overflow")
    assert len(puppet.noted) <= 4
    assert read(host, agent, "compacted") == []
    answers = len(puppet.asked) - len(puppet.noted)
    assert answers <= 2
    puppet.room = 10**9
    assert (await agent.run("again")).reason == "completed"


async def test_a_request_that_is_too_long_twice_is_mended_once(host, agent, puppet):
    talk(agent, 10)
    overflow = Finish("error", (), None, Failure("context-overflow", "too long"))
    puppet.answers = {0: overflow, 1: overflow}
    end = await agent.run("go")
    assert (end.reason, end.failure.kind) == ("error", "context-overflow")
    assert len(read(host, agent, "compacted")) == 1
    assert len(puppet.noted) == 1


async def test_each_request_of_a_turn_may_be_mended_once(host, agent, puppet):
    talk(agent, 10)
    overflow = Finish("error", (), None, Failure("context-overflow", "too long"))
    puppet.answers = {0: overflow, 1: Finish("tool-calls", (Text("t" * 30_000), ToolCall("g", "glob", '{"pattern": "*"}'))), 2: overflow}
    puppet.notes = [Finish("stop", (Text("long notes " * 200),)), Finish("stop", (Text("short"),))]
    end = await agent.run("go")
    assert end.reason == "completed"
    assert [event.data["reason"] for event in read(host, agent, "compacted")] == ["overflow", "overflow"]


async def test_one_message_that_is_too_long_ends_the_turn_without_notes(host, agent, puppet):
    puppet.room = 1000
    end = await agent.run("x" * 100_000)
    assert (end.reason, end.failure.kind) == ("error", "context-overflow")
    assert puppet.noted == []


async def test_after_an_overflow_results_are_shortened_even_at_the_end(host, agent, puppet):
    agent.session.add(user("the task"))
    agent.session.add(calls("a"))
    for message in results("a", size=60_000):
        agent.session.add(message)
    puppet.room = 8_000
    end = await agent.run("go")
    assert end.reason == "completed", end
    assert len(read(host, agent, "pruned")) == 1


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_the_later_half_always_holds_something_of_the_conversation(count):
    ids = [f"c{n}" for n in range(count)]
    messages = list(enumerate([user("the task"), calls(*ids), *results(*ids)]))
    while len(messages) >= 2:
        shorter = later_half(messages)
        if len(shorter) >= len(messages):
            break
        answered = {block.call_id for _, message in shorter for block in message.blocks if isinstance(block, ToolResult)}
        called = {call.id for _, message in shorter for call in message.calls}
        assert answered <= called
        assert len(shorter) >= 2, "nothing but the remark that something is left out"
        messages = shorter


# where the past ends


@st.composite
def histories(draw):
    """A legal conversation, of messages of all lengths."""
    sizes = st.sampled_from([0, 5, 40, 400, 4000])
    messages = [user("q" * draw(sizes))]
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["user", "says", "calls", "harness"]))
        if kind == "calls":
            ids = [f"c{number}_{n}" for n in range(draw(st.integers(1, 4)))]
            messages.append(calls(*ids, text="t" * draw(sizes)))
            for id in ids:
                messages += results(id, size=draw(sizes))
        elif kind == "says":
            messages.append(says("a" * draw(sizes)))
        else:
            messages.append(Message("user", (Text("h" * draw(sizes)),), kind))
    return messages


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(histories(), st.integers(0, 2000))
def test_no_call_is_parted_from_its_result_wherever_the_past_ends(messages, retain):
    place = cut(SimpleNamespace(messages=list(enumerate(messages))), retain)
    past, kept = messages[:place], messages[place:]
    called = {call.id for message in past for call in message.calls}
    answered = {block.call_id for message in kept for block in message.blocks if isinstance(block, ToolResult)}
    assert not called & answered
    assert 1 <= place <= len(messages)
    total = sum(map(estimate, kept))
    fitting = [
        index
        for index in range(1, len(messages))
        if not any(isinstance(block, ToolResult) for block in messages[index].blocks) and sum(map(estimate, messages[index:])) <= retain
    ]
    if fitting:
        assert place == fitting[0]  # as much as may stay stays
    elif kept:
        assert total > retain
        legal = [i for i in range(1, len(messages)) if not any(isinstance(block, ToolResult) for block in messages[i].blocks)]
        assert place == legal[-1]  # the least that can stay


@pytest.mark.parametrize("size", [5000, 5115, 5150, 5200, 10_000])
@pytest.mark.parametrize("over", [1, 5121, 5180, 8192])
def test_what_has_been_shortened_is_not_shortened_again(over, size):
    fitting = Fitting(prune_over=over)
    whole = [user("q"), calls("c"), *results("c", size=size)]
    session = SimpleNamespace(messages=list(enumerate(whole)))
    found = prunable(session, fitting, 3)
    session.messages = [(n, pruned(message, fitting.head, fitting.tail) if n in found else message) for n, message in session.messages]
    assert prunable(session, fitting, 3) == []
    assert not found or estimate(session.messages[2][1]) < estimate(whole[2])


# what a model is shown is what a later process shows it


ELSEWHERE = """
import asyncio, json, sys
from pathlib import Path
from hames.content.clock import Clock
from hames.content.messages import encode_message
from hames.sessions.plugin import Sessions
from hames.store import Store

async def main(state, name):
    store = Store(Path(state))
    try:
        session = await Sessions(store, Clock()).open(name)
        shown = [[seq, encode_message(message)] for seq, message in session.messages]
        print(json.dumps({"messages": shown, "told": session.told, "compacted": session.is_compacted}))
        await session.release()
    finally:
        await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_another_process_shows_the_model_the_same(opened, tmp_path):
    async with opened() as host:
        puppet = with_puppet(host)
        host.get(PROMPTS).fact(host.ctx, "weather", lambda facts: "It rains.")
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), "puppet:m"))
        work(agent, 14, 10_000)
        await agent.run("one")
        for number in range(2):
            talk(agent, 20)
            work(agent, 8, 9_000)
            puppet.notes = [Finish("stop", (Text(f"notes {number} with \udce9 and \ud83d\ude00"),))]
            await agent.run(f"two {number}")
        live = {
            "messages": [[seq, encode_message(message)] for seq, message in agent.session.messages],
            "told": agent.session.told,
            "compacted": agent.session.is_compacted,
        }
        assert len(read(host, agent, "compacted")) == 2 and read(host, agent, "pruned")
        messages = agent.session.messages
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ELSEWHERE, str(tmp_path / "state"), agent.id, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert child.returncode == 0
    assert json.loads(out) == live
    async with opened() as host:
        puppet = with_puppet(host)
        host.get(PROMPTS).fact(host.ctx, "weather", lambda facts: "It rains.")
        resumed = await host.get(AGENTS).create(AgentSpec("", resume=agent.id))
        assert resumed.session.messages == messages
        await resumed.run("three")
        assert sum("It rains." in str(message["content"]) for message in puppet.asked[-1]) == 1


# facts


def facts_told(agent):
    return [message.text for _, message in agent.session.messages if message.source == "harness" and not message.text.startswith(LEAD)]


async def test_a_fact_is_told_once_and_again_when_it_has_changed(host, agent, puppet):
    now = {"loud": "It rains.", "quiet": "The list."}
    host.get(PROMPTS).fact(host.ctx, "loud", lambda facts: now["loud"])
    host.get(PROMPTS).fact(host.ctx, "quiet", lambda facts: now["quiet"], quiet=True)
    await agent.run("a")
    await agent.run("b")
    assert facts_told(agent) == ["It rains."]
    now["loud"], now["quiet"] = "It snows.", "Another list."
    await agent.run("c")
    await agent.run("d")
    assert facts_told(agent) == ["It rains.", "It snows."]
    now["loud"] = ""
    await agent.run("e")
    now["loud"] = "It snows."
    await agent.run("f")
    assert facts_told(agent) == ["It rains.", "It snows.", "It snows."]


async def test_after_a_compaction_all_facts_are_told_again(host, agent, puppet):
    host.get(PROMPTS).fact(host.ctx, "loud", lambda facts: "It rains.", order=1)
    host.get(PROMPTS).fact(host.ctx, "quiet", lambda facts: "The list.", order=2, quiet=True)
    await agent.run("a")
    talk(agent, 20)
    await agent.run("b")
    assert facts_told(agent) == ["It rains.\n\nThe list."]
    assert [message["content"] for message in puppet.asked[-1] if message["role"] == "user"][-1] == "It rains.\n\nThe list."
    await agent.run("c")
    assert facts_told(agent) == ["It rains.\n\nThe list."]


async def test_a_quiet_fact_that_changes_after_a_compaction_is_told_by_the_conversation_alone(host, agent, puppet):
    now = ["The list."]
    host.get(PROMPTS).fact(host.ctx, "quiet", lambda facts: now[0], quiet=True)
    talk(agent, 20)
    await agent.run("a")
    assert facts_told(agent) == ["The list."]
    for number in range(3):
        now[0] = f"List {number}."
        await agent.run(f"b{number}")
    assert facts_told(agent) == ["The list."]


async def test_after_a_resume_no_fact_is_told_again(opened, tmp_path):
    name = ""
    for round in range(3):
        async with opened() as host:
            with_puppet(host)
            host.get(PROMPTS).fact(host.ctx, "loud", lambda facts: "It rains.")
            host.get(PROMPTS).fact(host.ctx, "quiet", lambda facts: "The list.", quiet=True)
            agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), "puppet:m", resume=name))
            name = agent.id
            await agent.run(f"round {round}")
            assert facts_told(agent) == ["It rains."]
            if round == 1:
                talk(agent, 20)
                await agent.run("long")
                assert facts_told(agent) == ["It rains.\n\nThe list."]
                break
    async with opened() as host:
        with_puppet(host)
        host.get(PROMPTS).fact(host.ctx, "loud", lambda facts: "It rains.")
        host.get(PROMPTS).fact(host.ctx, "quiet", lambda facts: "The list.", quiet=True)
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), "puppet:m", resume=name))
        await agent.run("last")
        assert facts_told(agent) == ["It rains.\n\nThe list."]


async def test_a_fact_that_went_and_came_back_is_told_again_in_a_resumed_session_too(opened, tmp_path):
    now = ["The mode is on."]

    async def turn(name, text):
        now[0] = text
        async with opened() as host:
            with_puppet(host)
            host.get(PROMPTS).fact(host.ctx, "mode", lambda facts: now[0])
            agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), "puppet:m", resume=name))
            await agent.run("go")
            return agent.id, facts_told(agent)

    name, _ = await turn("", "The mode is on.")
    await turn(name, "")
    _, told = await turn(name, "The mode is on.")
    assert told == ["The mode is on.", "The mode is on."]


# counting


async def test_the_tokens_of_notes_count_against_the_budget(agents, agent, puppet, tmp_path):
    talk(agent, 20)
    end = await agent.run("go")
    assert end.usage == Usage(100, 20) + Usage(10, 1)
    assert end.steps == 1


async def test_a_budget_that_the_notes_use_up_ends_the_turn(agents, puppet, tmp_path):
    agent = await agents.create(AgentSpec(str(tmp_path), "puppet:m", limits=Limits(tokens=100)))
    talk(agent, 20)
    puppet.answers = {n: Finish("tool-calls", (ToolCall(f"g{n}", "glob", json.dumps({"pattern": f"{n}*"})),)) for n in range(5)}
    end = await agent.run("go")
    assert end.reason == "budget"
    assert end.steps <= 1


async def test_the_meter_takes_reports_above_its_estimate_and_none_below(host, agent, puppet):
    counted = []
    host.ctx.on(Answered, lambda notice: counted.append((agent.context.tokens(agent.session, 0), sum(map(estimate, messages(agent))))))
    for usage in (Usage(1, 1), Usage(5000, 100), Usage(10, 0, 20_000, 20), None, Usage(3, 3)):
        puppet.usage = usage
        await agent.run("x" * 400)
    assert all(tokens >= roughly for tokens, roughly in counted)
    tokens = [tokens for tokens, _ in counted]
    assert tokens == sorted(tokens)
    assert tokens[0] >= counted[0][1]
    assert tokens[1] == 5100 and tokens[2] == 20_030
    assert 20_030 < tokens[3] < 20_300
    assert tokens[4] > tokens[3]


def messages(agent):
    return [message for _, message in agent.session.messages]


async def test_a_report_that_the_window_is_nearly_full_shortens_what_the_estimate_would_not(host, agent, puppet):
    talk(agent, 5)
    puppet.usage = Usage(WINDOW, 10)
    await agent.run("a")
    assert puppet.noted == []
    await agent.run("b")
    assert len(puppet.noted) == 1


def test_a_count_costs_only_what_is_new(monkeypatch):
    looked = []

    def counting(message):
        looked.append(message)
        return estimate(message)

    monkeypatch.setattr(context_module, "estimate", counting)
    session = SimpleNamespace(messages=[])
    meter = ContextMeter()
    total = 0
    for number in range(500):
        session.messages.append((number, user("x" * number)))
        total += estimate(user("x" * number))
        assert meter.tokens(session, 400) == total + 100
        meter.answered(session, Usage(1, 1))
        assert meter.tokens(session, 400) == total + 100
    assert len(looked) == 500
    session.messages = session.messages[-3:]
    rest = sum(estimate(message) for _, message in session.messages)
    assert meter.tokens(session, 0) == rest
    assert len(looked) == 503


async def test_the_cost_of_a_request_does_not_grow_with_the_conversation(host, agent, puppet, mounted, monkeypatch):
    looked = []
    monkeypatch.setattr(context_module, "estimate", lambda message: looked.append(message) or estimate(message))

    @tool("read")
    def look(n: int) -> str:
        """Look."""
        return f"saw {n}"

    @plugin(needs=(TOOLS,))
    def more(ctx, config):
        ctx.use(TOOLS).register(ctx, look)

    mounted(more)
    puppet.answers = {n: Finish("tool-calls", (ToolCall(f"g{n}", "look", f'{{"n": {n}}}'),)) for n in range(120)}
    end = await agent.run("go")
    assert (end.reason, end.steps) == ("completed", 121)
    assert len(looked) == len(agent.session.messages)
