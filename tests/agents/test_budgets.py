"""Limits of a turn, and what an agent hears of them."""

from __future__ import annotations

import pytest

from hames.agents import AgentSpec
from hames.budget import Limits, Repeats


def said(agent):
    return [message.text for _, message in agent.session.messages if message.source == "harness"]


def codes(agent):
    return [block.code for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]


async def test_near_a_limit_the_agent_is_told_once_to_come_to_an_end(agents, wired, tmp_path):
    model = 'openai:steps=9;tool=glob;args={"pattern":"#"}'
    agent = await agents.create(AgentSpec(str(tmp_path), model, limits=Limits(steps=5)))
    end = await agent.run("go")
    assert (end.reason, end.steps) == ("budget", 5)
    assert [text.partition(". ")[0] for text in said(agent)] == ["Your budget allows 1 more answers"]
    assert end.remedy


async def test_a_turn_past_its_time_ends_with_what_there_is_and_without_what_ran(agents, script, calling, tmp_path):
    model = script(calling(("bash", {"command": "sleep 64.5"}), text="I wait."))
    agent = await agents.create(AgentSpec(str(tmp_path), model, limits=Limits(seconds=0.3)))
    end = await agent.run("go")
    assert (end.reason, end.text, end.detail) == ("budget", "I wait.", "the limit of 0.3 s is reached")
    assert codes(agent) == ["ABORTED"]
    assert (await agent.run("again")).reason in ("error", "budget")  # it can be spoken to again


async def test_a_turn_in_which_nothing_happens_ends(agents, wired, tmp_path):
    agent = await agents.create(AgentSpec(str(tmp_path), "openai:fault=hang", limits=Limits(idle=0.3)))
    end = await agent.run("go")
    assert (end.reason, end.detail) == ("budget", "nothing happened for 0.3 s")


async def test_a_turn_in_which_something_happens_does_not_end_for_idleness(agents, script, calling, tmp_path):
    answers = [calling(("bash", {"command": f"sleep 0.15; echo {n}"})) for n in range(4)]
    agent = await agents.create(AgentSpec(str(tmp_path), script(*answers, {"text": "done"}), limits=Limits(idle=0.5)))
    assert (await agent.run("go")).reason == "completed"


async def test_the_same_again_is_reminded_then_blocked_then_stopped(agents, script, calling, tmp_path):
    same = calling(("bash", {"command": "echo x >> ran; echo same"}))
    agent = await agents.create(AgentSpec(str(tmp_path), script(*[same] * 20)))
    end = await agent.run("go")
    assert (end.reason, end.code, end.steps) == ("budget", "REPEATED", 8)
    assert codes(agent) == ["", "", "", "", "REPEATED", "REPEATED", "REPEATED", "REPEATED"]
    assert (tmp_path / "ran").read_text() == "x\n" * 4
    assert len(said(agent)) == 1 and "3 times" in said(agent)[0]


@pytest.mark.parametrize("other", [("read", "{}", "same"), ("bash", '{"a": 1}', "same"), ("bash", "{}", "new")])
def test_another_call_or_another_result_begins_anew(other):
    repeats = Repeats()
    assert [repeats.count("bash", "{}", "same") for _ in range(3)] == [1, 2, 3]
    assert repeats.count(*other) == 1
    assert not repeats.blocks("bash", "{}")
