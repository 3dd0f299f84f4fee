"""Plan mode: while it is on nothing can be written, whatever the agent tries."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.compose import running
from hames.profiles import profile
from hames.sessions import SESSIONS
from hames.store import STATE
from hames.toolkit.plan import ACCEPT, in_plan_mode, set_plan_mode
from hames.tools import TOOLS, Approval
from hames.tools.questions import Question


def results(agent):
    return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]


def tree(path):
    return {str(each.relative_to(path)): each.read_bytes() if each.is_file() else None for each in path.rglob("*")}


@pytest.fixture
def work(tmp_path):
    path = tmp_path / "work"
    path.mkdir()
    (path / "a.txt").write_text("one\n")
    return path


@pytest.fixture
def opening(tmp_path):
    """A host with a means of confinement and a mode."""

    @asynccontextmanager
    async def open(means="auto", mode="workspace-write"):
        patch = tmp_path / "patch.yaml"
        patch.write_text(f"- {{id: sandbox, set: {{config: {{means: {means}}}}}}}\n- {{id: policy, set: {{config: {{mode: {mode}}}}}}}\n")
        async with running([profile("standard"), patch], {STATE: tmp_path / "state"}) as host:
            yield host

    return open


def says(*answers):
    left = list(answers)

    async def answer(question):
        return left.pop(0) if left else None

    return answer


@pytest.mark.parametrize("mode", ["workspace-write", "full"])
@pytest.mark.parametrize("means", ["bubblewrap", "landlock", "none"])
async def test_nothing_is_written_by_any_tool_although_everybody_says_yes(opening, script, calling, work, tmp_path, means, mode):
    before = tree(work)
    outside = tmp_path / "outside"
    calls = [
        ("read", {"path": "a.txt"}),
        ("write", {"path": "a.txt", "content": "two\n"}),
        ("write", {"path": "b.txt", "content": "x"}),
        ("write", {"path": str(outside), "content": "x"}),
        ("edit", {"path": "a.txt", "old": "one", "new": "two"}),
        ("bash", {"command": "echo x > c.txt"}),
        ("bash", {"command": "rm a.txt"}),
        ("bash", {"command": f"touch {outside}"}),
        ("bash", {"command": "mkdir -p .git && touch .git/x; ln -s a.txt l"}),
        ("bash", {"command": "touch d.txt", "network": True}),
        ("bash", {"command": "touch e.txt", "unconfined": "it must be"}),
        ("bash", {"command": "touch f.txt", "background": True}),
        ("bash", {"command": "touch g.txt", "background": True, "unconfined": "it must be"}),
        ("job_output", {"job": "job-1", "wait": 10}),
        ("bash", {"command": "setsid touch h.txt & sleep 0.1; cat a.txt"}),
    ]
    asked = []

    async def yes(question):
        asked.append(question)
        return "always"

    async with opening(means, mode) as host:
        agent = await host.get(AGENTS).create(AgentSpec(str(work), script(*map(calling, calls), {"text": "done"})))
        host.ctx.at(agent.scope).on(Approval, yes)
        set_plan_mode(agent, True)
        end = await agent.run("go")
        assert end.reason == "completed", end
        assert tree(work) == before and not outside.exists()
        by_call = list(zip(calls, results(agent), strict=True))
        assert not by_call[0][1].is_error
        for call, result in by_call[1:-2]:
            elsewhere = str(outside) in call[1].get("command", "")  # the temporary directory of commands is another one
            assert result.is_error or call[1].get("background") or elsewhere, (call, result)
        assert all(result.code == "DENIED" for call, result in by_call if call[0] in ("write", "edit") or call[1].get("unconfined"))
        assert not [question for question in asked if question.request.unconfined or question.request.outside]
    assert tree(work) == before


async def test_temporary_files_of_commands_are_still_possible(opening, script, calling, work):
    async with opening() as host:
        command = 'echo note > "$TMPDIR/n" && cat "$TMPDIR/n" a.txt'
        agent = await host.get(AGENTS).create(AgentSpec(str(work), script(calling(("bash", {"command": command})), {"text": "done"})))
        set_plan_mode(agent, True)
        await agent.run("go")
        assert results(agent)[0].text == "note\none\n"


async def test_no_tool_that_writes_is_let_through(host, agents, script, calling, work):
    """Every registered tool whose calls may write, with whatever sound arguments."""
    service = host.get(TOOLS)
    writing = [name for name, tool in service.registry.view(host.root_scope).items() if "write" in tool.capabilities]
    assert set(writing) >= {"write", "edit", "bash"}
    known = {"write": {"path": "n", "content": ""}, "edit": {"path": "a.txt", "old": "one", "new": ""}, "bash": {"command": "touch n"}}
    assert set(writing) <= set(known), "say here how the new tool is called"
    agent = await agents.create(AgentSpec(str(work), script(*(calling((name, known[name])) for name in writing), {"text": "done"})))
    set_plan_mode(agent, True)
    await agent.run("go")
    assert all(result.is_error for result in results(agent)) and tree(work) == {"a.txt": b"one\n"}


async def test_the_agent_is_told_and_the_plan_that_is_accepted_ends_it(host, agents, script, calling, work):
    model = script(
        calling(("exit_plan_mode", {"plan": "I write b.txt"})), calling(("write", {"path": "b.txt", "content": "x"})), {"text": "done"}
    )
    agent = await agents.create(AgentSpec(str(work), model))
    seen = []

    async def accept(question):
        seen.append(question)
        assert in_plan_mode(agent) and not (work / "b.txt").exists()
        return (ACCEPT,)

    host.ctx.at(agent.scope).on(Question, accept)
    set_plan_mode(agent, True)
    await agent.run("go")
    assert "Plan mode is on" in agent.session.messages[1][1].text
    assert seen[0].questions[0].question == "I write b.txt\n\nDo it?" and ACCEPT in seen[0].questions[0].options
    assert [result.is_error for result in results(agent)] == [False, False]
    assert (work / "b.txt").read_text() == "x" and not in_plan_mode(agent) and agent.ceiling == "full"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (("No",), "the user did not accept the plan: No"),
        (("use c.txt",), "the user did not accept the plan: use c.txt"),
        (("yes, do it",), "the user did not accept the plan: yes, do it"),
        (("",), "the user did not accept the plan: "),
        ((), None),
        (None, "Error: nobody is here to accept the plan; say it as your answer, and end there"),
    ],
    ids=["no", "words", "nearly", "empty", "none", "nobody"],
)
async def test_anything_but_acceptance_leaves_it_on(host, agents, script, calling, work, answer, said):
    model = script(calling(("exit_plan_mode", {"plan": "p"})), calling(("write", {"path": "b.txt", "content": "x"})), {"text": "done"})
    agent = await agents.create(AgentSpec(str(work), model))
    host.ctx.at(agent.scope).on(Question, says(answer))
    set_plan_mode(agent, True)
    end = await agent.run("go")
    first, second = results(agent)
    assert end.reason == "completed" and in_plan_mode(agent) and agent.ceiling == "read-only"
    assert second.code == "DENIED" and not (work / "b.txt").exists()
    if said is not None:
        assert first.text == said


async def test_where_nobody_is_there_it_stays_on(agents, script, calling, work):
    agent = await agents.create(AgentSpec(str(work), script(calling(("exit_plan_mode", {"plan": "p"})), {"text": "done"})))
    set_plan_mode(agent, True)
    await agent.run("go")
    assert results(agent)[0].code == "NOBODY" and in_plan_mode(agent)


async def test_a_cancelled_question_leaves_it_on(host, agents, script, calling, work):
    agent = await agents.create(AgentSpec(str(work), script(calling(("exit_plan_mode", {"plan": "p"})), {"text": "done"})))
    waiting = asyncio.Event()

    async def think(question):
        waiting.set()
        await asyncio.Event().wait()

    host.ctx.at(agent.scope).on(Question, think)
    set_plan_mode(agent, True)
    agent.send("go")
    await asyncio.wait_for(waiting.wait(), 5)
    agent.cancel()
    await asyncio.wait_for(agent.idle(), 5)
    assert in_plan_mode(agent) and agent.ceiling == "read-only"


async def test_where_it_is_off_there_is_nothing_to_exit(host, agents, script, calling, work):
    agent = await agents.create(AgentSpec(str(work), script(calling(("exit_plan_mode", {"plan": "p"})), {"text": "done"})))
    host.ctx.at(agent.scope).on(Question, says((ACCEPT,)))
    await agent.run("go")
    assert results(agent)[0].text == "plan mode is not on; go on with your work"


async def test_it_survives_a_resume_and_a_fork(host, agents, script, calling, work):
    model = script({"text": "1"}, calling(("write", {"path": "b.txt", "content": "x"})), {"text": "2"})
    agent = await agents.create(AgentSpec(str(work), model))
    set_plan_mode(agent, True)
    await agent.run("go")
    await agents.dispose(agent)
    forked = await host.get(SESSIONS).fork(agent.id)
    await forked.release()
    for name in (agent.id, forked.id):
        again = await agents.create(AgentSpec(str(work), model, resume=name))
        assert in_plan_mode(again)
        await again.run("go on")
        assert results(again)[0].code == "DENIED" and not (work / "b.txt").exists()
        set_plan_mode(again, False)
        assert again.ceiling == "full"
        await agents.dispose(again)


async def test_turning_it_on_while_a_turn_runs_holds_for_the_next_call(host, agents, script, calling, work):
    question = {"questions": [{"question": "q?"}]}
    model = script(calling(("ask_user_question", question)), calling(("write", {"path": "b.txt", "content": "x"})), {"text": "done"})
    agent = await agents.create(AgentSpec(str(work), model))

    async def think(question):
        set_plan_mode(agent, True)
        return ("wait",)

    host.ctx.at(agent.scope).on(Question, think)
    await agent.run("go")
    assert results(agent)[1].code == "DENIED" and not (work / "b.txt").exists()


@pytest.mark.parametrize(
    "late", [("write", {"path": "b.txt", "content": "x"}), ("bash", {"command": "touch b.txt"})], ids=lambda call: call[0]
)
async def test_turning_it_on_holds_also_for_the_calls_of_the_same_answer_that_have_not_begun(host, agents, script, calling, work, late):
    model = script(calling(("ask_user_question", {"questions": [{"question": "q?"}]}), late), {"text": "done"})
    agent = await agents.create(AgentSpec(str(work), model))

    async def think(question):
        set_plan_mode(agent, True)
        return ("wait",)

    host.ctx.at(agent.scope).on(Question, think)
    await agent.run("go")
    assert in_plan_mode(agent) and not (work / "b.txt").exists()


async def test_an_agent_that_is_held_to_less_anyway_does_not_gain_by_leaving_it(host, agents, script, calling, work):
    model = script(calling(("exit_plan_mode", {"plan": "p"})), calling(("write", {"path": "b.txt", "content": "x"})), {"text": "done"})
    agent = await agents.create(AgentSpec(str(work), model, ceiling="read-only"))
    host.ctx.at(agent.scope).on(Question, says((ACCEPT,)))
    set_plan_mode(agent, True)
    await agent.run("go")
    assert not in_plan_mode(agent) and agent.ceiling == "read-only"
    assert results(agent)[1].code == "DENIED" and not (work / "b.txt").exists()
