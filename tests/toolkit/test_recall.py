"""The tool recall: what a conversation no longer shows can be looked at."""

from __future__ import annotations

import asyncio
import time

import pytest

from hames.agents import AgentSpec
from hames.agents.compaction import summary
from hames.sessions import SESSIONS


@pytest.fixture
def agent_with(agents, script, calling, tmp_path):
    """An agent whose last answers call recall with these arguments, after some other turns."""

    async def make(*arguments, said=(), cwd=tmp_path):
        answers = [calling(("recall", each)) for each in arguments]
        model = script(*({"text": f"answer {index}"} for index in range(len(said))), *answers, {"text": "done"})
        agent = await agents.create(AgentSpec(str(cwd), model))
        for text in said:
            await agent.run(text)
        return agent

    return make


def results(agent):
    return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]


async def test_a_search_gives_the_message_and_the_words_around_it(agent_with):
    agent = await agent_with({"pattern": "zebra"}, said=("a" * 300 + " the zebra " + "b" * 300,))
    await agent.run("go")
    first = results(agent)[0].text.split("\n\n")[0]
    assert first == f"message 2 (user): …{'a' * 195} the zebra {'b' * 199}…"


async def test_what_a_search_gives_can_be_shown_whole_in_parts(agent_with):
    long = "x" * 30_000 + "end"
    agent = await agent_with({"message": 2}, {"message": 2, "offset": 20_000}, {"message": 2, "offset": 30_003}, said=(long,))
    await agent.run("go")
    one, two, past = results(agent)
    assert one.text == "x" * 20_000 + "\n[10003 more characters; go on with offset 20000]"
    assert two.text == "x" * 10_000 + "end"
    assert not past.is_error


async def test_what_a_summary_has_replaced_and_what_was_shortened_is_found(agents, script, calling, tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(["filler " * 20] * 100 + ["the needle"] + ["filler " * 20] * 100))
    answers = [calling(("read", {"path": "a.txt"})), {"text": "read"}, calling(("recall", {"pattern": "the needle"})), {"text": "done"}]
    agent = await agents.create(AgentSpec(str(tmp_path), script(*answers, *answers)))
    await agent.run("go")
    seqs = [seq for seq, message in agent.session.messages if message.source == "tool"]
    agent.session.prune(seqs, 100, 100)
    assert "the needle" not in str(agent.session.messages)
    await agent.run("where was it")
    assert "message " in results(agent)[-1].text and "(tool)" in results(agent)[-1].text and "the needle" in results(agent)[-1].text


async def test_after_a_compaction_the_log_still_answers(agents, script, calling, tmp_path):
    model = script({"text": "one"}, calling(("recall", {"pattern": "secret word"})), {"text": "done"})
    agent = await agents.create(AgentSpec(str(tmp_path), model))
    await agent.run("the secret word is abracadabra")
    last = [entry for entry in agent.session.messages if entry[1].role == "assistant"][-1]
    agent.session.compact(last[0], summary("notes"))
    await agent.run("which one")
    assert "abracadabra" not in agent.session.messages[0][1].text
    assert "the secret word is abracadabra" in results(agent)[0].text


async def test_calls_and_results_are_found_too(agents, script, calling, tmp_path):
    (tmp_path / "quagga.txt").write_text("okapi")
    answers = [
        calling(("read", {"path": "quagga.txt"})),
        calling(("recall", {"pattern": "quagga"})),
        calling(("recall", {"pattern": "OKAPI"})),
    ]
    agent = await agents.create(AgentSpec(str(tmp_path), script(*answers, {"text": "done"})))
    await agent.run("go")
    _, call, result = results(agent)
    assert "[calls read" in call.text and "(tool): [result]" in result.text


async def test_a_search_does_not_find_itself(agent_with):
    agent = await agent_with({"pattern": "unicorn"}, said=("a horse",))
    await agent.run("go")
    assert results(agent)[0].text == "nothing matches"


async def test_more_than_the_limit_is_said(agent_with):
    agent = await agent_with({"pattern": "horse", "limit": 2}, said=("horse 1", "horse 2", "horse 3"))
    await agent.run("go")
    assert results(agent)[0].text.split("\n\n") == ["message 2 (user): horse 1", "message 6 (user): horse 2", "[there may be more]"]


async def test_another_session_is_not_seen(agents, script, calling, tmp_path):
    other = await agents.create(AgentSpec(str(tmp_path), script({"text": "ok"})))
    await other.run("the okapi is here")
    agent = await agents.create(AgentSpec(str(tmp_path), script(calling(("recall", {"pattern": "okapi is"})), {"text": "done"})))
    await agent.run("go")
    assert "is here" not in results(agent)[0].text


async def test_a_fork_and_a_resumed_session_remember(host, agents, script, calling, tmp_path):
    model = script({"text": "one"}, calling(("recall", {"pattern": "horse is"})), {"text": "done"})
    agent = await agents.create(AgentSpec(str(tmp_path), model))
    await agent.run("the horse is brown")
    await agents.dispose(agent)
    forked = await host.get(SESSIONS).fork(agent.id)
    await forked.release()
    for name in (agent.id, forked.id):
        again = await agents.create(AgentSpec(str(tmp_path), model, resume=name))
        await again.run("which")
        assert "the horse is brown" in results(again)[0].text
        await agents.dispose(again)


async def test_wrong_arguments_are_said(agent_with):
    agent = await agent_with({}, {"message": 999}, {"message": 0}, {"pattern": "x", "limit": 0}, {"message": -2})
    await agent.run("go")
    assert [result.code for result in results(agent)] == [
        "INVALID_PATTERN",
        "NOT_FOUND",
        "NOT_FOUND",
        "INVALID_ARGS",
        "INVALID_ARGS",
    ]


async def test_a_match_without_an_end_is_bounded(agent_with):
    agent = await agent_with({"pattern": "xxxx"}, said=("x" * 40_000, "y" * 40_000))
    await agent.run("go")
    assert len(results(agent)[0].text) < 60_000


async def test_an_expression_that_takes_long_does_not_hold_up_everybody(agent_with):
    agent = await agent_with({"pattern": "^(a+)+$"}, said=("a" * 24 + "b",))
    longest, ended = 0.0, False

    async def watch():
        nonlocal longest
        while not ended:
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            longest = max(longest, time.perf_counter() - began)

    watching = asyncio.create_task(watch())
    await agent.run("go")
    ended = True
    await watching
    assert longest < 0.3
