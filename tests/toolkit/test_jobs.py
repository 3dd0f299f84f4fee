"""Jobs: commands in the background, what the agent is told of them, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import uuid
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.agents.compaction import summary
from hames.compose import running
from hames.content.messages import Text
from hames.profiles import profile
from hames.sessions import SESSIONS
from hames.store import STATE
from hames.toolkit.jobs import JOBS
from hames.toolkit.plan import set_plan_mode
from hames.tools import Output, ToolError


def processes(mark: str) -> list[int]:
    """Living processes that have a mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state not in "ZX" and mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.fixture
def mark(monkeypatch):
    """A word in the environment of every command."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("MARK", mark)
    yield mark
    for pid in processes(mark):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def work(tmp_path):
    path = tmp_path / "work"
    (path / "sub").mkdir(parents=True)  # not every means lets a command make names at the top
    return path


@pytest.fixture
def house(tmp_path, work, script, mark):
    """A host, and agents in it; afterwards no process, task, descriptor or scratch directory is left."""

    @asynccontextmanager
    async def open(means="auto", **config):
        patch = tmp_path / "patch.yaml"
        settings = ", ".join(f"{name}: {value}" for name, value in config.items())
        patch.write_text(f"- {{id: sandbox, set: {{config: {{means: {means}}}}}}}\n- {{id: jobs, set: {{config: {{{settings}}}}}}}\n")
        before = set(os.listdir("/proc/self/fd"))
        async with running([profile("standard"), patch], {STATE: tmp_path / "state"}) as host:

            async def agent(*answers, resume=""):
                return await host.get(AGENTS).create(AgentSpec(str(work), script(*answers), resume=resume))

            yield host, agent
        assert not processes(mark)
        assert set(os.listdir("/proc/self/fd")) == before
        assert not list((tmp_path / "state" / "scratch").glob("*"))
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("job-")]

    return open


def results(agent):
    return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]


def harness(agent):
    return [message.text for _, message in agent.session.messages if message.source == "harness"]


def background(command, **more):
    return ("bash", {"command": command, "background": True, **more})


async def until(condition, limit=10.0):
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.01)


async def settled(agent):
    """All jobs of an agent have ended, and what they brought about is over."""
    for job in agent.memory.get("jobs", {}).values():
        await asyncio.wait_for(job.task, 15)
    await asyncio.wait_for(agent.idle(), 10)


async def test_a_job_is_started_listed_shown_and_its_end_is_told(house, calling):
    async with house() as (_, make):
        agent = await make(
            calling(background("echo begun; while [ ! -e go ]; do sleep 0.02; done; echo ended")),
            calling(("job_list", {})),
            calling(("bash", {"command": "touch go"})),
            calling(("job_output", {"job": "job-1", "wait": 10})),
            calling(("job_list", {"x": 1})),
            {"text": "done"},
            {"text": "seen"},
        )
        await agent.run("go")
        await settled(agent)
        started, listed, _, output, wrong = results(agent)
        assert started.text == "job-1 runs in the background; see it with job_output"
        assert listed.text.startswith("job-1 (running): echo begun")
        assert output.text.startswith("job-1 (completed): ") and output.text.endswith("\nbegun\nended\n")
        assert wrong.code == "INVALID_ARGS"
        assert [text for text in harness(agent) if text.startswith("job-1 has ended (completed): echo begun")]


async def test_output_can_be_seen_while_it_runs_and_a_wait_that_is_too_short_ends(house, calling, mark):
    async with house() as (_, make):
        agent = await make(
            calling(background("echo begun; touch up; sleep 60")),
            calling(("bash", {"command": "while [ ! -e up ]; do sleep 0.02; done; sleep 0.2"})),
            calling(("job_output", {"job": "job-1", "wait": 0.05})),
            calling(("job_kill", {"job": "job-1"})),
            calling(("job_kill", {"job": "job-1"})),
            calling(("job_output", {"job": "job-1"})),
            {"text": "done"},
        )
        await asyncio.wait_for(agent.run("go"), 20)
        _, _, seen, killed, again, output = results(agent)
        assert seen.text.startswith("job-1 (running)") and seen.text.endswith("\nbegun\n")
        assert killed.text.startswith("job-1 (killed)") and killed.text.endswith("begun\n\n[ended]")
        assert again.text == killed.text == output.text
        assert not processes(mark) and not harness(agent)


async def test_a_job_that_fails_or_whose_time_is_up_says_so(house, calling):
    async with house(max_seconds=0.3) as (_, make):
        agent = await make(
            calling(background("echo no; exit 3")),
            calling(("job_output", {"job": "job-1", "wait": 10})),
            calling(background("sleep 60", timeout=1000)),
            calling(("job_output", {"job": "job-2", "wait": 10})),
            calling(("job_output", {"job": "job-7"})),
            {"text": "done"},
        )
        await agent.run("go")
        await settled(agent)
        _, failed, _, late, unknown = results(agent)
        assert failed.text.startswith("job-1 (failed)") and "no\n\n[exit status 3]" in failed.text
        assert late.text.startswith("job-2 (failed)") and "[stopped after 0.3 s, with all its processes]" in late.text
        assert (unknown.code, unknown.text) == ("NOT_FOUND", "Error: there is no 'job-7'; there are job-1, job-2")


async def test_too_many_at_a_time_are_refused_and_room_is_made_by_an_end(house, calling):
    async with house(max_running=2) as (_, make):
        agent = await make(
            *(calling(background(f"sleep 6{n}")) for n in range(3)),
            calling(("job_kill", {"job": "job-1"})),
            calling(background("sleep 64")),
            {"text": "done"},
        )
        await agent.run("go")
        codes = [result.code for result in results(agent)]
        assert codes == ["", "", "TOO_MANY_JOBS", "", ""]
        assert results(agent)[2].text == "Error: 2 jobs run already: job-1, job-2; wait for one or end one"
        assert [job.status for job in agent.memory["jobs"].values()] == ["killed", "running", "running"]


# being woken


def ending(text):
    async def body():
        return Output((Text(text),))

    return body


async def test_ends_of_jobs_wake_an_idle_agent_only_so_often_until_its_user_speaks(house):
    async with house(max_wakes=2) as (host, make):
        agent = await make(*({"text": f"{n}"} for n in range(20)))
        jobs = host.get(JOBS)

        async def end(number):
            jobs.start(agent, f"command {number}", lambda: "", ending("x"))
            await settled(agent)

        def turns():
            return len([event for event in host.get(SESSIONS).read(agent.id) if event.type == "end"])

        await agent.run("go")
        for number in range(5):
            await end(number)
        assert turns() == 3 and len(agent.inbox) == 3
        await agent.run("what is new?")
        assert turns() == 4 and len(agent.inbox) == 0
        assert len([text for text in harness(agent) if "has ended" in text]) == 5
        for number in range(5, 9):
            await end(number)
        assert turns() == 6


async def test_a_compaction_is_no_word_of_the_user(house):
    async with house(max_wakes=1) as (host, make):
        agent = await make(*({"text": f"{n}"} for n in range(20)))
        jobs = host.get(JOBS)

        def turns():
            return len([event for event in host.get(SESSIONS).read(agent.id) if event.type == "end"])

        await agent.run("go")
        for number in range(2):
            jobs.start(agent, f"command {number}", lambda: "", ending("x"))
            await settled(agent)
        assert turns() == 2
        agent.session.compact(agent.session.next_seq, summary("notes"))
        jobs.start(agent, "command 3", lambda: "", ending("x"))
        await settled(agent)
        assert turns() == 2


async def test_without_wakes_an_end_waits_for_the_user(house):
    async with house(max_wakes=0) as (host, make):
        agent = await make({"text": "1"}, {"text": "2"})
        await agent.run("go")
        host.get(JOBS).start(agent, "c", lambda: "", ending("x"))
        await settled(agent)
        assert agent.status == "idle" and len(agent.inbox) == 1
        await agent.run("hello")
        assert "job-1 has ended" in "".join(harness(agent))


async def test_what_runs_is_told_again_after_a_compaction(house, calling):
    async with house() as (_, make):
        agent = await make(calling(background("sleep 61")), {"text": "1"}, {"text": "2"}, {"text": "3"}, {"text": "4"})
        await agent.run("go")
        assert not [text for text in harness(agent) if "in the background" in text]
        messages = agent.session.messages
        agent.session.compact(messages[-1][0], summary("notes"))
        await agent.run("hello")
        assert [text for text in harness(agent) if text == "Commands that run in the background:\njob-1: sleep 61"]


# ends


async def test_a_job_that_is_ended_before_it_began_has_ended(house):
    async with house() as (host, make):
        agent = await make({"text": "1"})
        jobs = host.get(JOBS)
        job = jobs.start(agent, "c", lambda: "", ending("x"))
        await jobs.kill(job)
        assert job.status == "killed" and job.done.is_set()
        assert [each.id for each in jobs.of(agent).values() if each.status == "running"] == []


@pytest.mark.parametrize("means", ["bubblewrap", "landlock"])
async def test_closing_the_agent_ends_all_jobs_with_all_that_they_started(house, calling, mark, means):
    async with house(means) as (host, make):
        agent = await make(
            calling(background("sleep 61 & setsid sleep 62 & (sleep 63; true) & touch sub/up1; wait")),
            calling(background("trap '' TERM; touch sub/up2; while true; do sleep 64; done")),
            calling(background("while true; do sleep 0.01; done & touch sub/up3; exec sleep 65")),
            calling(("bash", {"command": "while [ ! -e sub/up1 -o ! -e sub/up2 -o ! -e sub/up3 ]; do sleep 0.02; done"})),
            {"text": "done"},
        )
        end = await agent.run("go")
        assert end.reason == "completed" and len(processes(mark)) > 5
        await asyncio.wait_for(host.get(AGENTS).dispose(agent), 15)
        if means == "bubblewrap":
            assert not processes(mark)
        else:  # without a namespace of its own a command can leave its group
            await until(lambda: len(processes(mark)) <= 1)
            for pid in processes(mark):
                os.kill(pid, signal.SIGKILL)
            await until(lambda: not processes(mark))
        assert {job.status for job in agent.memory["jobs"].values()} == {"killed"}


async def test_a_job_that_ignores_being_asked_is_ended_all_the_same(house, calling, mark):
    async with house() as (_, make):
        agent = await make(
            calling(background("trap 'echo asked' TERM; touch up; while true; do sleep 0.05; done")),
            calling(("bash", {"command": "while [ ! -e up ]; do sleep 0.02; done"})),
            calling(("job_kill", {"job": "job-1"})),
            {"text": "done"},
        )
        await asyncio.wait_for(agent.run("go"), 15)
        assert "asked" in results(agent)[2].text and results(agent)[2].text.endswith("[ended]")
        assert not processes(mark)


async def test_cancelling_a_turn_leaves_its_jobs_and_cancelling_a_kill_ends_them(house, calling, mark):
    async with house() as (host, make):
        agent = await make(
            calling(background("trap '' TERM; touch up; while true; do sleep 0.05; done")),
            calling(("bash", {"command": "while [ ! -e up ]; do sleep 0.02; done; touch ready; sleep 60"})),
            calling(("job_kill", {"job": "job-1"})),
            {"text": "done"},
        )
        agent.send("go")
        await until(lambda: (agent.cwd / "ready").exists())
        agent.cancel()
        await asyncio.wait_for(agent.idle(), 10)
        assert processes(mark) and agent.memory["jobs"]["job-1"].status == "running"
        agent.send("end it")
        await until(lambda: any(e.type == "call" and e.data["name"] == "job_kill" for e in host.get(SESSIONS).read(agent.id)))
        agent.cancel()
        await asyncio.wait_for(agent.idle(), 10)
        await asyncio.wait_for(agent.memory["jobs"]["job-1"].done.wait(), 30)
        assert not processes(mark)


async def test_a_session_that_is_resumed_has_no_jobs(house, calling):
    async with house() as (host, make):
        agent = await make(calling(background("sleep 61")), {"text": "1"})
        await agent.run("go")
        await host.get(AGENTS).dispose(agent)
        again = await make({"text": "x"}, {"text": "x"}, calling(("job_list", {})), {"text": "2"}, resume=agent.id)
        await again.run("go on")
        assert results(again)[-1].text == "there are none"


# much output, and confinement


async def test_a_flood_of_output_takes_no_memory(house, calling, tmp_path):
    async with house() as (_, make):
        agent = await make(
            calling(background("yes 'all work and no play' | head -c 60000000; echo THE END")),
            calling(("job_output", {"job": "job-1", "wait": 60})),
            {"text": "done"},
            {"text": "done"},
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await asyncio.wait_for(agent.run("go"), 60)
        await settled(agent)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000  # KiB
        shown = results(agent)[1].text
        assert shown.startswith("job-1 (completed)") and shown.endswith("THE END\n") and len(shown) < 25_000
        assert len(agent.memory["jobs"]["job-1"].result) < 50_000
        (spilled,) = (tmp_path / "state" / "spill" / agent.id).iterdir()
        assert spilled.stat().st_size == 60_000_000 + 8


@pytest.mark.parametrize("means", ["bubblewrap", "landlock"])
async def test_a_job_is_confined_like_the_call_that_started_it(house, calling, work, tmp_path, means):
    outside = tmp_path / "outside"
    probe = f"touch sub/in.txt; touch {outside}; touch .mcp.json; (exec 3<>/dev/tcp/127.0.0.1/9) 2>&1; echo end"
    async with house(means) as (_, make):
        agent = await make(
            calling(background(probe)),
            calling(("job_output", {"job": "job-1", "wait": 20})),
            {"text": "1"},
            {"text": "2"},
            calling(background("touch sub/planned.txt; cat /dev/null > sub/in.txt2")),
            calling(("job_output", {"job": "job-2", "wait": 20})),
            *({"text": "x"} for _ in range(4)),
        )
        await agent.run("go")
        await settled(agent)
        assert (work / "sub" / "in.txt").exists() and not outside.exists() and not (work / ".mcp.json").is_file()
        set_plan_mode(agent, True)
        await agent.run("plan")
        await settled(agent)
        assert not (work / "sub" / "planned.txt").exists() and not (work / "sub" / "in.txt2").exists()
    assert sorted(path.name for path in work.rglob("*")) == ["in.txt", "sub"]


async def test_outside_of_a_conversation_there_are_no_jobs(house):
    async with house() as (host, make):
        agent = await make({"text": "1"})
        jobs = host.get(JOBS)
        for number in range(10):
            jobs.start(agent, f"{number}", lambda: "", lambda: asyncio.sleep(60))
        with pytest.raises(ToolError, match="10 jobs run already"):
            jobs.start(agent, "one more", lambda: "", ending("x"))
        await host.get(AGENTS).dispose(agent)
