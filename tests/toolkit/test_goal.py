"""Goals: what drives an agent on by itself, and what stops it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.agents.compaction import summary
from hames.budget import Limits
from hames.content.errors import NotFoundError
from hames.sessions import SESSIONS
from hames.toolkit.goal import goal_of
from hames.tools.questions import Question


def results(agent):
    return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]


def events(host, agent):
    try:
        return host.get(SESSIONS).read(agent.id)
    except NotFoundError:  # nothing of it is on disk yet
        return []


def turns(host, agent):
    return [event.data["reason"] for event in events(host, agent) if event.type == "end"]


async def begun(host, agent):
    """The command of an agent runs."""
    while not any(event.type == "call" and event.data["name"] == "bash" for event in events(host, agent)):
        await asyncio.sleep(0.01)


def create(calling, rounds=3, objective="tests pass"):
    return calling(("create_goal", {"objective": objective, "max_rounds": rounds}))


def update(calling, action, revision, **more):
    return calling(("update_goal", {"action": action, "revision": revision, **more}))


@pytest.fixture
def driven(agents, script, tmp_path):
    async def make(*answers, resume="", limits=None):
        return await agents.create(AgentSpec(str(tmp_path), script(*answers), resume=resume, limits=limits or Limits()))

    return make


async def done(agent, message="go"):
    agent.send(message)
    await asyncio.wait_for(agent.idle(), 10)


async def test_it_drives_until_its_rounds_are_used_up_and_no_further(host, driven, calling):
    agent = await driven(create(calling, 3), *({"text": f"{n}"} for n in range(20)))
    await done(agent)
    goal = goal_of(agent)
    assert (goal["phase"], goal["rounds"], goal["note"]) == ("blocked", 3, "its rounds are used up")
    assert turns(host, agent) == ["completed"] * 4  # the user's, and three of the goal
    driving = [message.text for _, message in agent.session.messages if message.text.startswith("Go on with the goal")]
    assert [text.splitlines()[0] for text in driving] == [
        f"Go on with the goal (revision {n + 1}, active, round {n} of 3): tests pass" for n in (1, 2, 3)
    ]
    await done(agent, "and now")
    assert len(turns(host, agent)) == 5


async def test_the_composition_bounds_the_rounds_whatever_the_agent_asks_for(opened, script, calling, tmp_path):
    patch = tmp_path / "patch.yaml"
    patch.write_text("- {id: goal, set: {config: {max_rounds: 2}}}\n")
    async with opened(patch) as host:
        model = script(create(calling, 1_000_000), *({"text": f"{n}"} for n in range(20)))
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), model))
        await done(agent)
        assert goal_of(agent)["max_rounds"] == 2 and len(turns(host, agent)) == 3


async def test_resuming_a_goal_whose_rounds_are_used_up_gives_no_more(host, driven, calling):
    agent = await driven(
        create(calling, 1), {"text": "1"}, {"text": "2"}, update(calling, "resume", 3), *({"text": f"{n}"} for n in range(9))
    )
    await done(agent)
    assert goal_of(agent)["phase"] == "blocked" and goal_of(agent)["revision"] == 3
    await done(agent, "resume it")
    assert goal_of(agent)["phase"] == "blocked" and len(turns(host, agent)) == 3


async def test_it_ends_when_it_is_complete_or_blocked(host, driven, calling):
    for action, phase in (("complete", "complete"), ("blocked", "blocked")):
        agent = await driven(create(calling), {"text": "1"}, update(calling, action, 2, note="seen"), *({"text": "x"} for _ in range(9)))
        await done(agent)
        goal = goal_of(agent)
        assert (goal["phase"], goal["note"], goal["rounds"]) == (phase, "seen", 1)
        assert turns(host, agent) == ["completed"] * 2


async def test_a_goal_that_is_paused_waits_until_it_is_resumed(host, driven, calling):
    agent = await driven(
        create(calling, 2), update(calling, "pause", 1), {"text": "1"}, update(calling, "resume", 2), *({"text": "x"} for _ in range(9))
    )
    await done(agent)
    assert goal_of(agent)["phase"] == "paused" and len(turns(host, agent)) == 1
    await done(agent, "resume")
    assert goal_of(agent)["rounds"] == 2 and len(turns(host, agent)) == 4


async def test_changes_name_the_revision_that_they_mean(driven, calling):
    agent = await driven(
        create(calling),
        update(calling, "edit", 7, objective="other"),
        update(calling, "edit", 1),
        update(calling, "edit", 1, objective="other"),
        update(calling, "complete", 1),
        calling(("get_goal", {})),
        update(calling, "complete", 2, note="checked"),
        calling(("get_goal", {})),
        {"text": "done"},
    )
    await done(agent)
    made, stale, empty, edited, again, shown, complete, last = results(agent)
    assert made.text == "goal (revision 1, active, round 0 of 3): tests pass"
    assert (stale.code, empty.code, again.code) == ("STALE", "INVALID_ARGS", "STALE")
    assert "revision 1, active" in stale.text
    assert edited.text == shown.text == "goal (revision 2, active, round 0 of 3): other"
    assert complete.text == "goal (revision 3, complete, round 0 of 3): other" and last.text == f"{complete.text}\nchecked"


async def test_of_two_changes_of_one_revision_only_the_first_counts(driven, calling):
    both = calling(*(("update_goal", {"action": action, "revision": 1}) for action in ("pause", "complete")))
    agent = await driven(create(calling), both, {"text": "done"})
    await done(agent)
    assert [result.code for result in results(agent)] == ["", "", "STALE"] and goal_of(agent)["phase"] == "paused"


async def test_there_is_one_goal_at_a_time_and_revisions_go_on(driven, calling):
    agent = await driven(
        calling(("get_goal", {})),
        update(calling, "complete", 1),
        create(calling, objective="a"),
        create(calling, objective="b"),
        update(calling, "complete", 1),
        create(calling, objective="c"),
        update(calling, "complete", 3),
        {"text": "done"},
    )
    await done(agent)
    texts = [result.text for result in results(agent)]
    assert texts[0] == "there is no goal" and [result.code for result in results(agent)][1:4] == ["NO_GOAL", "", "GOAL_EXISTS"]
    assert texts[5] == "goal (revision 3, active, round 0 of 3): c"


async def test_cancelling_pauses_it(host, driven, calling):
    agent = await driven(
        create(calling), {"text": "1"}, calling(("bash", {"command": "echo started; sleep 60"})), {"text": "2"}, {"text": "3"}
    )
    agent.send("go")
    await begun(host, agent)
    agent.cancel()
    await asyncio.wait_for(agent.idle(), 10)
    assert goal_of(agent)["phase"] == "paused" and goal_of(agent)["note"] == "a turn ended as aborted"
    assert turns(host, agent) == ["completed", "aborted"]
    await done(agent, "hello")
    assert turns(host, agent) == ["completed", "aborted", "completed"]


async def test_cancelling_pauses_it_also_where_messages_wait(host, driven, calling):
    agent = await driven(create(calling), calling(("bash", {"command": "sleep 60"})), *({"text": f"{n}"} for n in range(9)))
    agent.send("go")
    await begun(host, agent)
    agent.send("stop that and look at this")
    agent.cancel(keep_inbox=True)
    await asyncio.wait_for(agent.idle(), 10)
    assert turns(host, agent) == ["aborted", "completed"]
    assert goal_of(agent)["phase"] == "paused"


@pytest.mark.parametrize("answer", [{"failure": "auth"}, {"text": "x", "finish": "max-tokens"}, {"text": "no", "finish": "refusal"}])
async def test_a_turn_that_does_not_complete_pauses_it(host, driven, calling, answer):
    agent = await driven(create(calling), {"text": "1"}, answer, *({"text": "x"} for _ in range(9)))
    await done(agent)
    assert goal_of(agent)["phase"] == "paused" and len(turns(host, agent)) == 2


async def test_what_the_user_says_comes_first(host, agents, driven, calling):
    ask = calling(("ask_user_question", {"questions": [{"question": "q?"}]}))
    agent = await driven(create(calling, 2), ask, *({"text": f"{n}"} for n in range(9)))

    async def say(question):
        agent.send("first of mine")
        agent.send("second of mine")
        return ("a",)

    host.ctx.at(agent.scope).on(Question, say)
    await done(agent)
    said = [message.text.split(" (")[0] for _, message in agent.session.messages if message.role == "user" and message.source != "tool"]
    assert said == ["go", "first of mine", "second of mine", "Go on with the goal", "Go on with the goal"]


async def test_after_a_resume_it_drives_only_when_it_is_resumed_too(host, agents, script, calling, tmp_path):
    model = script(
        create(calling, 2),
        calling(("bash", {"command": "sleep 60"})),
        {"text": "1"},
        calling(("get_goal", {})),
        {"text": "2"},
        update(calling, "resume", 1),
        *({"text": f"{n}"} for n in range(9)),
    )
    agent = await agents.create(AgentSpec(str(tmp_path), model))
    agent.send("go")
    await begun(host, agent)
    state = dict(goal_of(agent))
    await agents.dispose(agent)
    again = await agents.create(AgentSpec(str(tmp_path), model, resume=agent.id))
    known = goal_of(again)
    assert known["objective"] == state["objective"] and known["phase"] in ("active", "paused")
    await asyncio.wait_for(again.idle(), 5)
    before = len(turns(host, again))
    await done(again, "hello")
    assert len(turns(host, again)) == before + 1


async def test_a_fork_has_the_goal_and_is_not_driven_by_it(host, agents, driven, script, calling, tmp_path):
    # the turn in which the goal was set is the last one that is kept
    agent = await driven(create(calling, 2), {"text": "1"}, {"text": "2"}, {"text": "3"}, {"text": "4"})
    await done(agent)
    forked = await host.get(SESSIONS).fork(agent.id, 1)
    await forked.release()
    copy = await agents.create(AgentSpec(str(tmp_path), script(*({"text": "x"} for _ in range(9))), resume=forked.id))
    assert goal_of(copy)["phase"] == "active" and goal_of(copy)["objective"] == "tests pass"
    await asyncio.wait_for(copy.idle(), 5)
    before = len(turns(host, copy))
    await done(copy, "hello")
    assert len(turns(host, copy)) == before + 1


async def test_it_is_told_again_after_a_compaction_and_not_before(driven, calling):
    agent = await driven(create(calling), update(calling, "pause", 1), {"text": "1"}, {"text": "2"})
    await done(agent)
    assert not [message for _, message in agent.session.messages if message.text.startswith("The goal (")]
    agent.session.compact(agent.session.next_seq, summary("notes"))
    agent.session.add(agent.session.messages[0][1])
    for _ in range(2):
        agent.session.add(type(agent.session.messages[0][1])("assistant", agent.session.messages[0][1].blocks, "model"))
    await done(agent, "hello")
    assert [message.text for _, message in agent.session.messages if message.text.startswith("The goal (")] == [
        "The goal (revision 2, paused, round 0 of 3): tests pass"
    ]


async def test_an_agent_that_is_closed_between_rounds_ends(host, agents, driven, calling):
    agent = await driven(create(calling, 200), *({"text": f"{n}"} for n in range(300)))
    agent.send("go")
    while len(turns(host, agent)) < 3:
        await asyncio.sleep(0.005)
    await asyncio.wait_for(agents.dispose(agent), 10)
    assert agent.status == "closed" and goal_of(agent)["rounds"] < 200
    assert not [task for task in asyncio.all_tasks() if agent.id in task.get_name()]


class Meeting:
    """A clock that lets the event loop log something while a thread is about to."""

    def __init__(self, clock, loop, act) -> None:
        self._clock, self._loop, self._act = clock, loop, act

    def now(self):
        if threading.current_thread() is not threading.main_thread() and self._act is not None:
            act, self._act = self._act, None
            acted = threading.Event()
            self._loop.call_soon_threadsafe(lambda: (act(), acted.set()))
            acted.wait(5)
        return self._clock.now()


async def test_a_goal_is_set_while_a_message_comes_in(host, driven, calling):
    """The log is written by one thread: whoever else writes it would take a place that is taken."""
    agent = await driven(create(calling, 1), *({"text": f"{n}"} for n in range(9)))
    agent.session._clock = Meeting(agent.session._clock, asyncio.get_running_loop(), lambda: agent.send("and this"))
    await done(agent)
    assert set(turns(host, agent)) == {"completed"}
    assert goal_of(agent)["phase"] == "blocked"
