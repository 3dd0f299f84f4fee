"""A turn from its first message to its end."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from hames.agents import AgentSpec, ToolStarted, TurnEnded
from hames.budget import Limits
from hames.kernel import plugin
from hames.sessions import SESSIONS
from hames.tools import TOOLS, Output, tool


def transcript(host, agent_id):
    """The types of a session's events, with what tells them apart."""
    lines = []
    for event in host.get(SESSIONS).read(agent_id):
        data = event.data
        match event.type:
            case "message":
                kinds = " ".join(block["type"] + (f":{block['code']}" if block.get("code") else "") for block in data["blocks"])
                lines.append(f"{data['source']}: {kinds}" + (f" ({data['finish']})" if "finish" in data else ""))
            case "call":
                lines.append(f"call {data['name']}")
            case "end":
                lines.append(f"end {data['reason']}")
            case other:
                lines.append(other)
    return lines


async def test_a_turn_runs_tools_until_the_model_has_nothing_more_to_call(host, agents, script, calling, tmp_path):
    (tmp_path / "a.txt").write_text("one")
    model = script(calling(("read", {"path": "a.txt"}), text="I look."), {"text": "It says one.", "usage": {"input": 7, "output": 3}})
    agent = await agents.create(AgentSpec(str(tmp_path), model))
    end = await agent.run("What does it say?")
    assert (end.reason, end.text, end.steps, end.usage.total) == ("completed", "It says one.", 2, 10)
    assert transcript(host, agent.id) == [
        "start",
        "turn",
        "user: text",
        "model: text tool-call (tool-calls)",
        "call read",
        "tool: tool-result",
        "model: text (stop)",
        "end completed",
    ]


async def test_reading_calls_overlap_and_a_writing_one_waits_for_them(host, agents, script, calling, mounted, tmp_path):
    together = asyncio.Barrier(2)
    order = []

    @tool("read", parallel=True)
    async def look(name: str) -> str:
        """Look."""
        await asyncio.wait_for(together.wait(), 5)
        order.append(f"looked {name}")
        return name

    @tool("write")
    async def change(name: str) -> str:
        """Change."""
        order.append(f"changed {name}")
        return name

    @plugin(needs=(TOOLS,))
    def more(ctx, config):
        for each in (look, change):
            ctx.use(TOOLS).register(ctx, each)

    mounted(more)
    calls = [("look", {"name": "a"}), ("look", {"name": "b"}), ("change", {"name": "c"}), ("look", {"name": "d"}), ("look", {"name": "e"})]
    agent = await agents.create(AgentSpec(str(tmp_path), script(calling(*calls), {"text": "done"})))
    await agent.run("go")
    assert sorted(order[:2]) == ["looked a", "looked b"] and order[2] == "changed c" and sorted(order[3:]) == ["looked d", "looked e"]
    results = [block.text for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]
    assert results == ["a", "b", "c", "d", "e"]


def running(mark):
    """Whether a process has this in its command line."""
    return any(mark in read(path) for path in Path("/proc").glob("[0-9]*/cmdline"))


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_cancelling_waits_until_what_runs_has_ended_and_leaves_a_session_to_resume(host, agents, script, calling, tmp_path):
    agent = await agents.create(AgentSpec(str(tmp_path), script(calling(("bash", {"command": "touch begun; exec sleep 60.0625"})))))
    host.ctx.on(ToolStarted, lambda notice: started.set())
    started = asyncio.Event()
    agent.send("go")
    await asyncio.wait_for(started.wait(), 5)
    while not (tmp_path / "begun").exists():
        await asyncio.sleep(0.01)
    agent.cancel("user")
    agent.cancel("parent")
    await agent.idle()
    assert (agent.last.reason, agent.last.detail) == ("aborted", "user")
    assert not running(b"60.0625")
    assert transcript(host, agent.id)[-2:] == ["tool: tool-result:ABORTED", "end aborted"]
    await agents.dispose(agent)
    resumed = await agents.create(AgentSpec("", script({"text": "unused"}, {"text": "on it goes"}), resume=agent.id))
    assert (await resumed.run("go on")).text == "on it goes"


async def test_cancelling_an_idle_agent_does_nothing(agents, script, tmp_path):
    agent = await agents.create(AgentSpec(str(tmp_path), script({"text": "hello"})))
    agent.cancel()
    assert (await agent.run("hi")).reason == "completed"


async def test_a_stream_that_is_cancelled_leaves_what_was_said(host, agents, wired, tmp_path):
    agent = await agents.create(AgentSpec(str(tmp_path), "openai:fault=hang;text=two words"))
    agent.send("go")
    while not any("hang" in str(received.body) for received in wired.received):
        await asyncio.sleep(0.01)
    agent.cancel("user")
    await agent.idle()
    assert agent.last.reason == "aborted"
    assert transcript(host, agent.id)[-1] == "end aborted"


async def test_the_limit_of_answers_ends_the_turn_with_what_there_is(agents, wired, tmp_path):
    model = 'openai:steps=9;tool=todo_write;args={"items":[{"content":"#"}]}'
    agent = await agents.create(AgentSpec(str(tmp_path), model, limits=Limits(steps=3)))
    end = await agent.run("go")
    assert (end.reason, end.detail, end.steps) == ("budget", "the limit of 3 steps is reached", 3)


async def test_the_limit_of_tokens_ends_the_turn(agents, wired, tmp_path):
    model = 'openai:steps=9;tool=todo_write;args={"items":[{"content":"#"}]}'
    agent = await agents.create(AgentSpec(str(tmp_path), model, limits=Limits(tokens=200)))
    end = await agent.run("go")
    assert end.reason == "budget" and end.usage.total == 220


async def test_whatever_a_tool_does_is_a_result(host, agents, script, calling, mounted, tmp_path, caplog):
    caplog.set_level(logging.CRITICAL, "hames.tools")  # half a character in the log cannot be sent from process to process

    @tool("read")
    def raises() -> str:
        """Raise."""
        raise RuntimeError("broken \ud800 inside")

    @tool("read", timeout=0.05)
    async def hangs() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return ""

    @tool("read")
    def floods() -> str:
        """Flood."""
        return "x" * 100_000_000

    @tool("read")
    def odd() -> str:
        """Return something else."""
        return 5  # type: ignore[return-value]

    @plugin(needs=(TOOLS,))
    def more(ctx, config):
        for each in (raises, hangs, floods, odd):
            ctx.use(TOOLS).register(ctx, each)

    mounted(more)
    names = ["raises", "hangs", "floods", "odd"]
    agent = await agents.create(AgentSpec(str(tmp_path), script(calling(*((name, {}) for name in names)), {"text": "done"})))
    assert (await agent.run("go")).reason == "completed"
    results = [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]
    assert [result.code for result in results] == ["RAISED", "TIMEOUT", "", "RAISED"]
    assert "broken \ufffd inside" in results[0].text
    assert len(results[2].text) < 50_000
    spilled = Path(results[2].text.split("the whole text is in ")[1].split(" ")[0])
    assert spilled.stat().st_size == 100_000_000


async def test_a_result_can_conclude_the_turn(agents, script, calling, mounted, tmp_path):
    @tool("read")
    def finish() -> Output:
        """Finish."""
        return Output((), concludes=True)

    @plugin(needs=(TOOLS,))
    def more(ctx, config):
        ctx.use(TOOLS).register(ctx, finish)

    mounted(more)
    agent = await agents.create(AgentSpec(str(tmp_path), script(calling(("finish", {}), text="So be it."), {"text": "never asked"})))
    end = await agent.run("go")
    assert (end.reason, end.text, end.steps) == ("completed", "So be it.", 1)


async def test_what_is_steered_reaches_the_next_request_and_what_is_sent_has_a_turn_of_its_own(host, agents, script, calling, tmp_path):
    agent = await agents.create(AgentSpec(str(tmp_path), script(calling(("glob", {"pattern": "*"})), {"text": "one"}, {"text": "two"})))

    def meddle(notice):
        agent.steer("and this")
        agent.send("then that")

    host.ctx.on(ToolStarted, meddle)
    ends = []
    host.ctx.on(TurnEnded, lambda notice: ends.append(notice.end.text))
    await agent.run("first")
    assert ends == ["one", "two"]
    said = [message.text for _, message in agent.session.messages if message.source == "user"]
    assert said == ["first", "and this", "then that"]


async def test_what_is_injected_waits_for_the_next_turn(agents, script, tmp_path):
    agent = await agents.create(AgentSpec(str(tmp_path), script({"text": "hello"})))
    agent.inject("by the way")
    assert agent.status == "idle"
    await agent.run("hi")
    assert [message.text for _, message in agent.session.messages] == ["by the way", "hi", "hello"]


async def test_a_listener_that_fails_harms_nobody(host, agents, script, tmp_path):
    def broken(notice):
        raise RuntimeError("observer")

    host.ctx.on(TurnEnded, broken)
    agent = await agents.create(AgentSpec(str(tmp_path), script({"text": "hello"})))
    assert (await agent.run("hi")).text == "hello"
    assert [str(error) for _, error in host.problems] == ["observer"]


async def test_calls_of_an_answer_that_did_not_finish_are_never_run(host, agents, script, tmp_path):
    answer = {"text": "cut", "calls": [{"name": "write", "raw_arguments": '{"path": "x'}], "finish": "max-tokens"}
    agent = await agents.create(AgentSpec(str(tmp_path), script(answer, {"text": "fine"})))
    assert (await agent.run("go")).reason == "max-tokens"
    assert not list(tmp_path.glob("x*"))
    event = next(event for event in host.get(SESSIONS).read(agent.id) if event.data.get("finish") == "max-tokens")
    assert event.data["dropped"] == [{"name": "write", "arguments": '{"path": "x'}]
    assert (await agent.run("again")).text == "fine"


async def test_nothing_is_asked_of_a_model_when_the_log_cannot_be_written(host, agents, wired, tmp_path):
    from hames.content.errors import StorageFullError
    from hames.store import STORE

    agent = await agents.create(AgentSpec(str(tmp_path), "openai:text=hello"))
    store = host.get(STORE)

    def full(connection):
        raise StorageFullError("no space")

    broken = store.sessions.run
    store.sessions.run = lambda body: broken(full)
    end = await agent.run("go")
    store.sessions.run = broken
    assert end.reason == "error" and "STORAGE_FULL" in end.detail
    assert not wired.received


async def test_two_hundred_agents_share_one_process(host, agents, wired, tmp_path):
    model = 'openai:steps=4;tool=todo_write;args={"items":[{"content":"#"}]}'
    made = [await agents.create(AgentSpec(str(tmp_path), model)) for _ in range(200)]
    ends = await asyncio.gather(*(agent.run("go") for agent in made))
    assert {(end.reason, end.steps) for end in ends} == {("completed", 5)}
    descriptors = len(os.listdir("/proc/self/fd"))
    for agent in made:
        await agents.dispose(agent)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert not host.root_scope.children
