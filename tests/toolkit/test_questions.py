"""Asking the user."""

from __future__ import annotations

import asyncio

import pytest

from hames.agents import AgentSpec
from hames.budget import Limits
from hames.sessions import SESSIONS
from hames.tools import TOOLS, Approval
from hames.tools.questions import Question

ONE = {"questions": [{"question": "Red or blue?", "options": ["red", "blue"]}]}


def results(agent):
    return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]


@pytest.fixture
def asking(host, agents, script, calling, tmp_path):
    """An agent that asks, and a listener of its questions."""

    async def make(*arguments, listener=None, limits=None, more=()):
        answers = [calling(("ask_user_question", each)) for each in arguments]
        model = script(*answers, *more, {"text": "done"})
        agent = await agents.create(AgentSpec(str(tmp_path), model, limits=limits or Limits()))
        if listener is not None:
            host.ctx.at(agent.scope).on(Question, listener)
        return agent

    return make


async def test_the_answer_is_the_result_and_stands_in_the_log(host, asking):
    seen = []

    async def answer(question):
        seen.append(question)
        return ("blue",)

    agent = await asking(ONE, listener=answer)
    await agent.run("go")
    assert results(agent)[0].text == "Red or blue?\n→ blue" and not results(agent)[0].is_error
    (question,) = seen
    assert question.session == agent.id and question.questions[0].options == ("red", "blue") and not question.questions[0].several
    log = [(event.type, event.data) for event in host.get(SESSIONS).read(agent.id) if event.type in ("asked", "decided")]
    assert [kind for kind, _ in log] == ["asked", "decided"]
    assert log[0][1]["reason"] == "Red or blue?" and log[1][1]["answer"] == ["blue"]


async def test_several_questions_come_together_and_are_answered_in_order(asking):
    four = {"questions": [{"question": f"q{n}?", "several": n == 2} for n in range(4)]}

    async def answer(question):
        assert [each.several for each in question.questions] == [False, False, True, False]
        return tuple(f"a{n}" for n in range(4))

    agent = await asking(four, listener=answer)
    await agent.run("go")
    assert results(agent)[0].text == "q0?\n→ a0\nq1?\n→ a1\nq2?\n→ a2\nq3?\n→ a3"


async def test_an_answer_in_other_words_is_an_answer(asking):
    async def answer(question):
        return ("neither; take\ngreen \udcff",)

    agent = await asking(ONE, listener=answer)
    end = await agent.run("go")
    assert end.reason == "completed" and "→ neither; take\ngreen \ufffd" in results(agent)[0].text


async def test_where_nobody_is_there_the_agent_decides_itself(asking):
    agent = await asking(ONE)
    end = await agent.run("go")
    assert end.reason == "completed" and results(agent)[0].code == "NOBODY"
    assert results(agent)[0].text == "Error: nobody is here to answer; decide yourself, and say in your answer what you assumed"


async def test_somebody_who_does_not_answer_is_nobody(asking):
    async def silent(question):
        return None

    agent = await asking(ONE, listener=silent)
    await agent.run("go")
    assert results(agent)[0].code == "NOBODY"


async def test_a_face_that_fails_is_nobody_and_stops_nothing(asking):
    async def broken(question):
        raise RuntimeError("the terminal is gone")

    agent = await asking(ONE, listener=broken)
    end = await agent.run("go")
    assert end.reason == "completed" and results(agent)[0].is_error


@pytest.mark.parametrize(
    "arguments",
    [
        {"questions": []},
        {"questions": [{"question": ""}]},
        {"questions": [{"question": "q"}] * 5},
        {"questions": [{"question": "q", "x": 1}]},
        {"questions": "q"},
        {},
    ],
    ids=["none", "empty", "five", "unknown", "a text", "nothing"],
)
async def test_unsound_questions_reach_nobody(asking, arguments):
    async def answer(question):
        raise AssertionError("asked")

    agent = await asking(arguments, listener=answer)
    await agent.run("go")
    assert results(agent)[0].code == "INVALID_ARGS"


async def test_too_few_answers_do_not_pass_for_all(asking):
    async def answer(question):
        return ("only one",)

    agent = await asking({"questions": [{"question": "first?"}, {"question": "second?"}]}, listener=answer)
    await agent.run("go")
    text = results(agent)[0].text
    assert results(agent)[0].is_error or "second?" in text


async def test_a_turn_that_is_cancelled_while_it_waits_ends_at_once_and_the_next_question_can_be_asked(host, asking):
    waiting = asyncio.Event()
    asked = []

    async def answer(question):
        asked.append(question)
        if len(asked) == 1:
            waiting.set()
            await asyncio.Event().wait()
        return ("blue",)

    agent = await asking(ONE, {**ONE, "questions": [{"question": "Again?"}]}, listener=answer)
    agent.send("go")
    await asyncio.wait_for(waiting.wait(), 5)
    agent.cancel()
    await asyncio.wait_for(agent.idle(), 5)
    assert agent.last.reason == "aborted" and results(agent)[0].code == "ABORTED"
    decided = [event.data["answer"] for event in host.get(SESSIONS).read(agent.id) if event.type == "decided"]
    assert decided == ["nobody answered"]
    await asyncio.wait_for(agent.run("again"), 5)
    assert results(agent)[1].text == "Again?\n→ blue"


async def test_an_agent_that_is_closed_while_it_waits_leaves_nothing(agents, asking):
    waiting = asyncio.Event()

    async def answer(question):
        waiting.set()
        await asyncio.Event().wait()

    agent = await asking(ONE, listener=answer)
    agent.send("go")
    await asyncio.wait_for(waiting.wait(), 5)
    await asyncio.wait_for(agents.dispose(agent), 5)
    assert agent.status == "closed"
    assert not [task for task in asyncio.all_tasks() if agent.id in task.get_name()]


async def test_questions_of_two_agents_come_one_after_the_other(host, asking):
    now = most = 0
    release = asyncio.Event()

    async def answer(question):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await release.wait()
        now -= 1
        return ("blue",)

    one, two = await asking(ONE, listener=answer), await asking(ONE, listener=answer)
    one.send("go")
    two.send("go")
    for _ in range(50):
        await asyncio.sleep(0)
    release.set()
    await asyncio.wait_for(asyncio.gather(one.idle(), two.idle()), 5)
    assert most == 1 and [results(each)[0].text for each in (one, two)] == ["Red or blue?\n→ blue"] * 2


async def test_the_one_who_waits_behind_a_question_can_be_cancelled(asking):
    release, first = asyncio.Event(), asyncio.Event()

    async def answer(question):
        first.set()
        await release.wait()
        return ("blue",)

    one = await asking(ONE, listener=answer)
    two = await asking(ONE, listener=answer)
    one.send("go")
    await asyncio.wait_for(first.wait(), 5)
    two.send("go")
    while not any(message.calls for _, message in two.session.messages):
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    two.cancel()
    await asyncio.wait_for(two.idle(), 5)
    release.set()
    await asyncio.wait_for(one.idle(), 5)
    assert results(one)[0].text == "Red or blue?\n→ blue" and results(two)[0].is_error


async def test_waiting_for_a_person_is_no_idleness(asking):
    async def answer(question):
        await asyncio.sleep(0.6)
        return ("blue",)

    agent = await asking(ONE, listener=answer, limits=Limits(idle=0.3))
    end = await agent.run("go")
    assert end.reason == "completed", end


async def test_a_question_is_no_permission(host, agents, asking, tmp_path):
    """Whoever answers questions has not been asked whether something may run."""

    async def answer(question):
        assert not isinstance(question, Approval)
        return ("yes",)

    more = ({"calls": [{"name": "bash", "arguments": {"command": "true", "unconfined": "because"}}]},)
    agent = await asking(ONE, listener=answer, more=more)
    await agent.run("go")
    assert results(agent)[1].code == "DENIED" and "nobody is there to allow it" in results(agent)[1].text
    assert host.get(TOOLS).approvals.waiting == []
