"""How tasks end when something goes wrong: cancellation, odd runners, a host that shuts down, a store that cannot be written.

Whatever happens, a task that began has one outcome, it is told once that it began and once that it ended, and nothing of it is left.
"""

from __future__ import annotations

import asyncio
import gc
import json
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from hames.agents import AGENTS, AgentSpec
from hames.budget import Limits
from hames.content.errors import StorageError
from hames.delegation import DELEGATION
from hames.delegation.events import TaskBegan, TaskEnded
from hames.delegation.failures import Refused
from hames.delegation.outcome import Outcome
from hames.delegation.runner import Origin
from hames.delegation.spec import TaskSpec
from hames.kernel import plugin
from hames.testing.contract import children_of_this, open_files
from hames.tools import TOOLS, Approval, tool

GRACE = 0.15
ALL = dict.fromkeys(("schema", "tools", "permission", "model", "effort", "inputs", "steps", "tokens", "cost", "idle"), "enforced")


async def until(condition, patience=10.0):
    async with asyncio.timeout(patience):
        while not condition():
            await asyncio.sleep(0.002)


def left_of(before):
    """Tasks of the event loop that have come and not ended, but the one that asks."""
    return [each.get_name() for each in asyncio.all_tasks() - before if each is not asyncio.current_task() and not each.done()]


def processes(*words):
    """Which of these command lines belong to living processes."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                line = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            found += [word for word in words if line.strip() == word]
    return found


class Work:
    """Work that honours both ways of being cancelled. Others below leave something out."""

    native = "the native one"

    def __init__(self, launch, runner):
        self.launch = launch
        self.runner = runner
        self.ends = asyncio.get_running_loop().create_future()
        self.disposed = 0
        self.heard = []
        self.withdraw = launch.signal.listen(self.by_signal)

    def by_signal(self, cause):
        self.heard.append(("signal", cause))
        self.end()

    def cancel(self, cause):
        self.heard.append(("cancel", cause))
        self.end()

    def end(self, outcome=None):
        if not self.ends.done():
            self.ends.set_result(outcome or Outcome("aborted", "none", "CANCELLED", text="half"))

    async def result(self):
        return await asyncio.shield(self.ends)

    async def dispose(self):
        self.disposed += 1
        self.withdraw()


class Runner:
    """A runner of a test. ``works`` is what it has started."""

    version, digest, keeps_idle, hands_on = "1", "", False, False

    def __init__(self, kind=Work, name="odd"):
        self.name = name
        self.kind = kind
        self.capabilities = ALL
        self.works = []
        self.starts = 0

    def check(self, spec, origin):
        return spec

    async def start(self, launch):
        self.starts += 1
        made = self.kind(launch, self)
        self.works.append(made)
        return made


class OnlySignal(Work):
    def cancel(self, cause):
        self.heard.append(("cancel", cause))


class OnlyCancel(Work):
    def by_signal(self, cause):
        self.heard.append(("signal", cause))


class Deaf(OnlySignal):
    """Heeds neither, nor that nobody waits for it, until a test lets it go."""

    def by_signal(self, cause):
        self.heard.append(("signal", cause))

    async def result(self):
        while not self.ends.done():
            try:
                await asyncio.shield(self.ends)
            except asyncio.CancelledError:
                self.heard.append(("task", "cancelled"))
        return self.ends.result()


class RaisingCancel(Work):
    def cancel(self, cause):
        raise RuntimeError("cancel is broken")


class RaisingListener(Work):
    def by_signal(self, cause):
        raise RuntimeError("the listener is broken")


class RaisingDispose(Work):
    async def dispose(self):
        await super().dispose()
        raise RuntimeError("dispose is broken")


class HangingDispose(Work):
    async def dispose(self):
        await super().dispose()
        await asyncio.sleep(3600)


class Told:
    """What listeners have heard, in order."""

    def __init__(self, host):
        self.all = []
        host.ctx.on(TaskBegan, lambda notice: self.all.append(("began", notice.task, "")))
        host.ctx.on(TaskEnded, lambda notice: self.all.append(("ended", notice.task, notice.code)))

    def check(self, *tasks):
        """Each of these, and no other, began once and then ended once."""
        for id in tasks:
            assert [kind for kind, task, _ in self.all if task == id] == ["began", "ended"], (id, self.all)
        assert {task for _, task, _ in self.all} == set(tasks)


@pytest.fixture
async def bench(opened, tmp_path):
    """A host whose runners have little time to end, with what is asserted of every ending."""
    patch = tmp_path / "grace.json"
    patch.write_text(json.dumps([{"id": "delegation", "set": {"config": {"grace": GRACE}}}]))
    before, children, files = asyncio.all_tasks(), children_of_this(), open_files()
    async with opened(patch) as host:
        yield Bench(host, tmp_path)
    gc.collect()
    await until(lambda: left_of(before) == [])
    await until(lambda: children_of_this() <= children)
    await until(lambda: open_files() <= files)


def patient(tasks):
    """Give what really runs the time that it takes on a busy machine."""
    tasks.config = replace(tasks.config, grace=10.0)


class Bench:
    def __init__(self, host, tmp_path):
        self.host = host
        self.tmp_path = tmp_path
        self.service = host.get(DELEGATION)
        self.tasks = self.service.tasks
        self.ledger = self.tasks.ledger
        self.told = Told(host)
        self.origin = Origin(host.root_scope, str(tmp_path))

    def offer(self, runner):
        self.service.runners.register(self.host.ctx, runner)
        return runner

    async def start(self, runner, origin=None, **more):
        return await self.tasks.start(TaskSpec("do it", runner=runner.name, **more), origin or self.origin)

    async def running(self, runner, **more):
        """A task of a runner that is at work."""
        count = len(runner.works)
        task = await self.start(runner, **more)
        await until(lambda: len(runner.works) > count and task.state == "running")
        return task, runner.works[-1]

    async def settled(self, task, patience=10.0):
        async with asyncio.timeout(patience):
            outcome = await task.outcome()
            await task.driver
        return outcome

    def kept(self, task):
        """The record of a task; its outcome is the one that was told."""
        record = self.ledger.get(task.id)
        assert record.damaged == () and record.publication == "committed" and record.state == "settled"
        return record


# cancelling one of several


async def test_cancelling_one_child_touches_no_sibling(bench):
    runner = bench.offer(Runner())
    (first, one), (second, two) = [await bench.running(runner) for _ in range(2)]
    first.cancel("user")
    outcome = await bench.settled(first)
    assert (outcome.status, outcome.fault, outcome.code, outcome.text, outcome.partial) == ("aborted", "none", "CANCELLED", "half", True)
    assert one.disposed == 1 and two.disposed == 0 and two.heard == []
    assert second.state == "running" and second.cause == ""
    two.end(Outcome("completed", text="whole"))
    assert (await bench.settled(second)).ok
    bench.told.check(first.id, second.id)
    assert bench.kept(first).cause == "user" and bench.kept(second).cause == ""
    assert bench.tasks.live == {}


@pytest.mark.parametrize("kind", [OnlySignal, OnlyCancel])
async def test_a_runner_may_honour_either_way_of_cancelling(bench, kind):
    runner = bench.offer(Runner(kind))
    task, work = await bench.running(runner)
    task.cancel("user")
    task.cancel("parent")  # the first cause is kept
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.code) == ("aborted", "CANCELLED")
    assert work.heard == [("signal", "user"), ("cancel", "user")] and work.disposed == 1
    assert list(bench.host.problems) == []
    bench.told.check(task.id)


async def test_a_runner_that_heeds_nothing_is_left_behind_after_its_grace(bench):
    runner = bench.offer(Runner(Deaf))
    task, work = await bench.running(runner)
    began = asyncio.get_running_loop().time()
    task.cancel("user")
    outcome = await bench.settled(task)
    took = asyncio.get_running_loop().time() - began
    assert (outcome.status, outcome.fault, outcome.code) == ("error", "infrastructure", "NOT_CLOSED")
    assert GRACE <= took < GRACE * 2 + 1.5
    assert work.heard == [("signal", "user"), ("cancel", "user"), ("task", "cancelled")] and work.disposed == 1
    record = bench.kept(task)
    assert record.liveness == "undetermined" and record.outcome.code == "NOT_CLOSED"
    assert any(task.id in what for what, _ in bench.host.problems)
    bench.told.check(task.id)
    work.end()


async def test_a_child_that_completes_in_spite_of_its_cancellation_keeps_its_result(bench):
    runner = bench.offer(Runner(Deaf))
    task, work = await bench.running(runner)
    task.cancel("user")
    work.end(Outcome("completed", text="done all the same"))
    outcome = await bench.settled(task)
    assert outcome.ok and outcome.text == "done all the same"
    bench.told.check(task.id)


@pytest.mark.parametrize("kind", [RaisingCancel, RaisingListener])
async def test_a_runner_whose_cancellation_raises_ends_all_the_same(bench, kind):
    runner, sound = bench.offer(Runner(kind)), bench.offer(Runner(name="sound"))
    task, work = await bench.running(runner)
    other, _ = await bench.running(sound)
    try:
        task.cancel("user")
        outcome = await bench.settled(task, 3)
        assert outcome.status in ("aborted", "error") and work.disposed == 1
        other.cancel("user")
        await bench.settled(other)
        bench.told.check(task.id, other.id)
    finally:  # so that a failure does not hold up the end of the host
        work.end()
        other.cancel("user")
        await bench.settled(task)


async def test_a_deadline_ends_a_runner_whose_cancellation_raises(bench):
    runner = bench.offer(Runner(RaisingCancel))
    task = await bench.start(runner, budget=Limits(seconds=0.05))
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.code) == ("budget", "DEADLINE")
    assert runner.works[0].disposed == 1


# runners that begin badly


class Starting(Runner):
    """A runner whose start goes on until a test lets it go.

    :param heeds: whether it heeds that it is cancelled.
    """

    def __init__(self, heeds=True):
        super().__init__()
        self.heeds = heeds
        self.go = asyncio.Event()
        self.cancelled = 0

    async def start(self, launch):
        self.starts += 1
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                if self.heeds:
                    raise
        made = Work(launch, self)
        self.works.append(made)
        return made


async def test_a_start_that_hangs_ends_with_the_cancellation(bench):
    runner = bench.offer(Starting())
    task = await bench.start(runner)
    await until(lambda: runner.starts)
    task.cancel("user")
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.code) == ("aborted", "CANCELLED") and runner.cancelled == 1 and runner.works == []
    assert bench.kept(task).attempts[0].exit == "CANCELLED"
    bench.told.check(task.id)


async def test_a_start_that_hangs_ends_with_the_time_of_the_task(bench):
    runner = bench.offer(Starting())
    task = await bench.start(runner, budget=Limits(seconds=0.05))
    try:
        outcome = await bench.settled(task, 2)
        assert (outcome.status, outcome.code) == ("budget", "DEADLINE")
    finally:
        task.cancel("user")
        await bench.settled(task)


async def test_a_start_that_is_late_is_given_back(bench):
    runner = bench.offer(Starting(heeds=False))
    task = await bench.start(runner)
    await until(lambda: runner.starts)
    task.cancel("user")
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.fault, outcome.code) == ("error", "infrastructure", "NOT_CLOSED")
    assert bench.kept(task).liveness == "undetermined"
    assert runner.works == []
    runner.go.set()
    await until(lambda: runner.works and runner.works[0].disposed)
    assert runner.works[0].disposed == 1
    bench.told.check(task.id)


async def test_a_start_that_ends_within_its_grace_is_cancelled_and_given_back(bench):
    runner = bench.offer(Starting(heeds=False))
    task = await bench.start(runner)
    await until(lambda: runner.starts)
    task.cancel("user")
    runner.go.set()
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.code) == ("aborted", "CANCELLED")
    assert runner.works[0].disposed == 1
    bench.told.check(task.id)


class Failing(Runner):
    """Fails at a place, so many times.

    :param place: ``start``, ``result`` or ``at once`` (where result is called, before it is awaited).
    """

    def __init__(self, place, times=99):
        super().__init__()
        self.place = place
        self.times = times

    async def start(self, launch):
        runner, failing = self, self.starts < self.times

        class Made(Work):
            async def result(self):
                if failing:
                    raise ValueError("it broke")
                return Outcome("completed", text="well")

        class AtOnce(Work):
            def result(self):
                raise ValueError("it broke")

        self.starts += 1
        if failing and self.place == "start":
            raise OSError("no such program")
        made = (AtOnce if failing and self.place == "at once" else Made)(launch, runner)
        self.works.append(made)
        return made


@pytest.mark.parametrize(
    ("place", "code", "said"), [("start", "LAUNCH_FAILED", "OSError: no such program"), ("result", "RUNNER_FAILED", "ValueError: it broke")]
)
async def test_a_runner_that_raises_is_infrastructure_and_is_not_tried_again_by_itself(bench, place, code, said):
    runner = bench.offer(Failing(place))
    task = await bench.start(runner)
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.fault, outcome.code, outcome.attempts) == ("error", "infrastructure", code, 1)
    assert said in outcome.diagnostic and runner.starts == 1
    assert all(work.disposed == 1 for work in runner.works)
    assert [what for what, _ in bench.host.problems] == [f"task {task.id}"]
    bench.told.check(task.id)


async def test_work_whose_result_raises_at_once_is_given_back(bench):
    runner = bench.offer(Failing("at once"))
    task = await bench.start(runner)
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.fault) == ("error", "infrastructure")
    assert runner.works[0].disposed == 1
    bench.told.check(task.id)


async def test_a_result_that_is_no_outcome_is_an_error(bench):
    class Nothing(Work):
        async def result(self):
            return None

    runner = bench.offer(Runner(Nothing))
    task = await bench.start(runner)
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.fault) == ("error", "infrastructure") and runner.works[0].disposed == 1
    bench.told.check(task.id)


@pytest.mark.parametrize("place", ["start", "result"])
async def test_an_infrastructure_fault_is_tried_again_inside_the_same_task(bench, place, monkeypatch):
    monkeypatch.setattr("hames.delegation.drive.FIRST_PAUSE", 0.01)
    runner = bench.offer(Failing(place, times=2))
    task = await bench.start(runner, retries=2)
    outcome = await bench.settled(task)
    assert outcome.ok and outcome.attempts == 3 and runner.starts == 3
    record = bench.kept(task)
    assert [each.n for each in record.attempts] == [1, 2, 3] and record.outcome.attempts == 3
    assert all(work.disposed == 1 for work in runner.works) and task.signal.listeners == 0
    bench.told.check(task.id)


@pytest.mark.parametrize("code", ["NO_FINAL_MESSAGE", "REFUSAL", "MODEL_REJECTED", "MAX_TOKENS", "NOT_CLOSED", "INTERNAL"])
async def test_no_other_fault_is_tried_again(bench, code):
    from hames.delegation.outcome import failed

    class Ends(Work):
        async def result(self):
            return failed(code)

    runner = bench.offer(Runner(Ends))
    task = await bench.start(runner, retries=3)
    outcome = await bench.settled(task)
    assert (outcome.code, outcome.attempts, runner.starts) == (code, 1, 1)


async def test_a_task_that_is_cancelled_between_its_attempts_is_not_launched_again(bench):
    runner = bench.offer(Failing("start"))
    task = await bench.start(runner, retries=5)
    await until(lambda: runner.starts == 1 and bench.host.problems)
    task.cancel("user")
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.code, runner.starts) == ("aborted", "CANCELLED", 1)
    bench.told.check(task.id)
    assert outcome.attempts == len(bench.kept(task).attempts) == 1


async def test_all_attempts_together_have_the_time_of_the_task(bench, monkeypatch):
    monkeypatch.setattr("hames.delegation.drive.FIRST_PAUSE", 0.3)

    class Slow(Work):
        async def result(self):
            await asyncio.wait((self.ends,), timeout=0.3)
            if self.ends.done():
                return self.ends.result()
            raise ValueError("it broke")

    runner = bench.offer(Runner(Slow))
    task = await bench.start(runner, retries=1, budget=Limits(seconds=0.5))
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.code, runner.starts) == ("budget", "DEADLINE", 1)


@pytest.mark.parametrize(("kind", "said"), [(RaisingDispose, "dispose is broken"), (HangingDispose, "was not given back")])
async def test_a_dispose_that_fails_takes_nothing_from_the_outcome(bench, kind, said):
    runner = bench.offer(Runner(kind))
    task, work = await bench.running(runner)
    work.end(Outcome("completed", text="well"))
    outcome = await bench.settled(task)
    assert outcome.ok and outcome.text == "well" and said in outcome.diagnostic and work.disposed == 1
    assert bench.kept(task).outcome == outcome
    bench.told.check(task.id)


# runners that come and go


async def test_a_runner_that_goes_takes_no_new_tasks_and_its_work_goes_on(bench):
    runner = Runner()
    effect = bench.service.runners.register(bench.host.ctx, runner)
    task, work = await bench.running(runner)
    effect.withdraw()
    with pytest.raises(Refused) as raised:
        await bench.start(runner)
    assert raised.value.code == "RUNNER_UNKNOWN" and "spawn" in raised.value.remedy
    assert runner.starts == 1 and len(bench.tasks.live) == 1
    work.end(Outcome("completed", text="well"))
    assert (await bench.settled(task)).ok and work.disposed == 1
    bench.told.check(task.id)


async def test_a_runner_that_goes_between_two_attempts_makes_them_all(bench, monkeypatch):
    monkeypatch.setattr("hames.delegation.drive.FIRST_PAUSE", 0.05)
    runner = Failing("start", times=1)
    effect = bench.service.runners.register(bench.host.ctx, runner)
    task = await bench.start(runner, retries=1)
    effect.withdraw()
    outcome = await bench.settled(task)
    assert outcome.ok and outcome.attempts == 2


async def test_a_watcher_that_refuses_a_runner_keeps_it_out(bench):
    def refuses(name, make):
        if name == "odd":
            raise ValueError("not here")

    gone = []
    bench.service.runners.registry.watch(bench.host.ctx, refuses, gone.append)
    with pytest.raises(ValueError, match="not here"):
        bench.offer(Runner())
    with pytest.raises(Refused) as raised:
        await bench.start(Runner())
    assert raised.value.code == "RUNNER_UNKNOWN"
    other = bench.offer(Runner(name="other"))
    task, work = await bench.running(other)
    work.end(Outcome("completed", text="well"))
    assert (await bench.settled(task)).ok
    bench.told.check(task.id)


async def test_two_runners_of_one_name_are_refused(bench):
    from hames.content.errors import DuplicateError

    bench.offer(Runner())
    with pytest.raises(DuplicateError):
        bench.offer(Runner())


# whoever started it


@pytest.fixture
async def lead(bench, script):
    agent = await bench.host.get(AGENTS).create(AgentSpec(str(bench.tmp_path), script({"text": "Hello."})))
    yield agent
    await bench.host.get(AGENTS).dispose(agent)


async def test_a_parent_that_is_closed_ends_its_tasks_first(bench, lead):
    runner = bench.offer(Runner())
    origin = bench.tasks.origin(lead)
    (one, first), (two, second) = [await bench.running(runner, origin=origin) for _ in range(2)]
    stranger, third = await bench.running(runner)
    await bench.host.get(AGENTS).dispose(lead)
    assert one.settled and two.settled and first.disposed == second.disposed == 1
    for task in (one, two):
        assert (await task.outcome()).code == "PARENT_ENDED"
    assert not stranger.settled and third.heard == []
    with pytest.raises(Refused) as raised:
        await bench.start(runner, origin)
    assert raised.value.code == "PARENT_GONE"
    third.end(Outcome("completed", text="well"))
    await bench.settled(stranger)
    bench.told.check(one.id, two.id, stranger.id)


async def test_a_parent_that_is_closed_while_a_child_settles_waits_for_it(bench, lead):
    class Slowly(Work):
        async def dispose(self):
            self.disposed += 1
            await self.runner.go.wait()
            self.withdraw()

    runner = bench.offer(Runner(Slowly))
    runner.go = asyncio.Event()
    task, work = await bench.running(runner, origin=bench.tasks.origin(lead))
    work.end(Outcome("completed", text="well"))
    await until(lambda: work.disposed)
    closing = asyncio.ensure_future(bench.host.get(AGENTS).dispose(lead))
    await asyncio.sleep(0)
    assert not closing.done()
    runner.go.set()
    await closing
    assert (await task.outcome()).ok and bench.kept(task).outcome.text == "well"
    bench.told.check(task.id)


async def test_whoever_waits_and_is_cancelled_waits_until_nothing_is_left(bench):
    runner = bench.offer(Runner())
    running = asyncio.ensure_future(bench.tasks.run(TaskSpec("do it", runner="odd"), bench.origin))
    await until(lambda: runner.works and next(iter(bench.tasks.live.values())).state == "running")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert runner.works[0].disposed == 1 and bench.tasks.live == {}
    (record,) = bench.ledger.list()
    assert record.outcome.code == "PARENT_ENDED"
    bench.told.check(record.id)


async def test_whoever_is_cancelled_while_a_task_is_taken_on_leaves_nothing(bench):
    runner = bench.offer(Runner())
    running = asyncio.ensure_future(bench.tasks.run(TaskSpec("do it", runner="odd"), bench.origin))
    await asyncio.sleep(0)
    assert len(bench.tasks.live) == 1  # its intent is on its way to the disk
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not bench.tasks.live)
    assert runner.starts == 0 or runner.works[0].disposed == 1
    (record,) = bench.ledger.list()
    assert record.outcome.status == "aborted"
    bench.told.check(record.id)


def delegating(*more, **arguments):
    return ("delegate", {"description": "a bit", "prompt": "do your bit", **arguments})


async def test_cancelling_a_turn_ends_its_children_and_their_processes(bench, script, calling):
    patient(bench.tasks)
    children = [script(calling(("bash", {"command": f"exec sleep 61.{n}"})), {"text": "done"}) for n in (1, 2)]
    answer = calling(*(delegating(model=child) for child in children))
    agents = bench.host.get(AGENTS)
    lead = await agents.create(AgentSpec(str(bench.tmp_path), script(answer, {"text": "done"})))
    before = set(agents.live)
    lead.send("go")
    words = ("sleep 61.1", "sleep 61.2")
    await until(lambda: set(processes(*words)) == set(words))
    records = bench.ledger.below(lead.id)
    lead.cancel("user")
    await lead.idle()
    assert processes(*words) == []
    assert set(agents.live) == before and bench.tasks.live == {}
    assert lead.last.reason == "aborted"
    outcomes = [bench.ledger.get(record.id).outcome for record in records]
    assert [outcome.code for outcome in outcomes] == ["PARENT_ENDED"] * 2
    bench.told.check(*(record.id for record in records))
    await agents.dispose(lead)


async def test_cancelling_one_child_of_two_leaves_the_process_of_the_other(bench, script, calling):
    patient(bench.tasks)
    children = [script(calling(("bash", {"command": f"exec sleep 62.{n}"})), {"text": "done"}) for n in (1, 2)]
    agents = bench.host.get(AGENTS)
    lead = await agents.create(
        AgentSpec(str(bench.tmp_path), script(calling(*(delegating(model=each) for each in children)), {"text": "x"}))
    )
    lead.send("go")
    words = ("sleep 62.1", "sleep 62.2")
    await until(lambda: set(processes(*words)) == set(words))
    first = next(task for task in bench.tasks.live.values() if task.spec.model == children[0])
    first.cancel("user")
    await bench.settled(first)
    assert processes(*words) == ["sleep 62.2"] and lead.status == "running" and len(bench.tasks.live) == 1
    lead.cancel("user")
    await lead.idle()
    assert processes(*words) == []
    await agents.dispose(lead)


# in the background


async def background(bench, script, calling, child, *rest):
    agents = bench.host.get(AGENTS)
    model = script(calling(delegating(model=child, run_in_background=True)), *rest)
    return await agents.create(AgentSpec(str(bench.tmp_path), model))


def results(agent):
    return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]


async def test_a_task_in_the_background_is_a_job_that_can_be_listed_and_killed(bench, script, calling):
    patient(bench.tasks)
    child = script(calling(("bash", {"command": "exec sleep 63.1"})), {"text": "done"})
    rest = [
        calling(("job_list", {})),
        calling(("job_output", {"job": "job-1"})),
        calling(("job_kill", {"job": "job-1"})),
        {"text": "killed"},
    ]
    lead = await background(bench, script, calling, child, *rest)
    end = await lead.run("go")
    assert end.reason == "completed"
    began, listed, shown, killed = results(lead)
    (record,) = bench.ledger.below(lead.id)
    assert record.id in began.text and not began.is_error
    assert "job-1 (running)" in listed.text and record.id in listed.text
    assert "job-1 (running)" in shown.text and record.id in shown.text
    assert "killed" in killed.text
    assert bench.tasks.live == {} and processes("sleep 63.1") == []
    assert bench.ledger.get(record.id).outcome.status == "aborted"
    bench.told.check(record.id)
    await bench.host.get(AGENTS).dispose(lead)


async def test_the_end_of_a_task_in_the_background_is_told_and_noted_as_delivered(bench, script, calling):
    child = script({"text": "the answer is 42"})
    lead = await background(bench, script, calling, child, {"text": "I wait."}, {"text": "thanks"}, {"text": "?"})
    await lead.run("go")

    def notices():
        messages = [message for _, message in lead.session.messages if message.source == "harness"]
        return [message.text for message in messages if "has ended" in message.text]

    await until(lambda: notices() and lead.status == "idle")
    (notice,) = notices()
    assert "job-1 has ended (completed)" in notice and "the answer is 42" in notice
    (record,) = bench.ledger.below(lead.id)
    await until(lambda: bench.ledger.get(record.id).receipts)
    assert [each.kind for each in bench.ledger.get(record.id).receipts] == ["delivered"]
    await bench.host.get(AGENTS).dispose(lead)
    again = await bench.host.get(AGENTS).create(AgentSpec("", resume=lead.id))
    assert len(again.inbox) == 0  # it is told once
    await bench.host.get(AGENTS).dispose(again)


async def test_a_parent_that_is_closed_ends_what_runs_in_the_background_and_is_told_when_it_comes_back(bench, script, calling):
    patient(bench.tasks)
    child = script(calling(("bash", {"command": "exec sleep 64.1"}), text="I look."), {"text": "done"})
    lead = await background(bench, script, calling, child, {"text": "I wait."})
    await lead.run("go")
    await until(lambda: processes("sleep 64.1"))
    await bench.host.get(AGENTS).dispose(lead)
    assert processes("sleep 64.1") == [] and bench.tasks.live == {}
    (record,) = bench.ledger.below(lead.id)
    outcome = bench.ledger.get(record.id).outcome
    assert (outcome.status, outcome.code, outcome.text) == ("aborted", "PARENT_ENDED", "I look.")
    bench.told.check(record.id)
    again = await bench.host.get(AGENTS).create(AgentSpec("", resume=lead.id))
    assert len(again.inbox) == 1
    await bench.host.get(AGENTS).dispose(again)


# time


async def test_a_deadline_ends_a_task_with_what_it_has(bench):
    runner = bench.offer(Runner())
    task = await bench.start(runner, budget=Limits(seconds=0.05))
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.fault, outcome.code, outcome.text, outcome.partial) == ("budget", "none", "DEADLINE", "half", True)
    assert runner.works[0].heard[0] == ("signal", "deadline") and bench.kept(task).cause == "deadline"
    bench.told.check(task.id)


async def test_a_task_in_which_nothing_happens_is_idle(bench):
    runner = bench.offer(Runner())
    task = await bench.start(runner, budget=Limits(idle=0.05))
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.code) == ("budget", "IDLE") and runner.works[0].disposed == 1
    bench.told.check(task.id)


async def test_a_task_in_which_something_happens_is_not_idle(bench):
    class Busy(Work):
        async def result(self):
            for n in range(12):
                await asyncio.sleep(0.02)
                (self.launch.touch if n % 2 else lambda: self.launch.say("still at it"))()
            return Outcome("completed", text="well")

    runner = bench.offer(Runner(Busy))
    task = await bench.start(runner, budget=Limits(idle=0.15))
    assert (await bench.settled(task)).ok


@pytest.mark.parametrize("what", ["user", "child", "slot", "worktree"])
async def test_waiting_is_not_idleness(bench, what):
    class Waits(Work):
        async def result(self):
            self.launch.waits(what)
            await asyncio.sleep(0.25)
            self.launch.waits("")
            return Outcome("completed", text="well")

    runner = bench.offer(Runner(Waits))
    task = await bench.start(runner, budget=Limits(idle=0.1))
    await until(lambda: task.state == "waiting" and task.waiting == what)
    assert (await bench.settled(task)).ok


async def test_a_task_that_waits_and_then_does_nothing_is_idle(bench):
    class Waits(Work):
        async def result(self):
            self.launch.waits("user")
            await asyncio.sleep(0.12)
            self.launch.waits("")
            return await super().result()

    runner = bench.offer(Runner(Waits))
    task = await bench.start(runner, budget=Limits(idle=0.1))
    outcome = await bench.settled(task, 3)
    assert outcome.code == "IDLE"


@tool("network")
async def knock(at: str) -> str:
    """Knock."""
    return at


@tool("read", timeout=None)
async def dawdle(at: str) -> str:
    """Do nothing for long."""
    await asyncio.sleep(60)
    return at


@plugin(needs=(TOOLS,))
def more_tools(ctx, config):
    for each in (knock, dawdle):
        ctx.use(TOOLS).register(ctx, each)


async def test_a_child_that_waits_for_a_person_is_not_idle(bench, lead, script, calling):
    bench.host.mount(more_tools)
    patient = script(calling(("knock", {"at": "door"})), {"text": "came in"})
    asked = []

    async def answer(question):
        asked.append(next(iter(bench.tasks.live.values())).waiting)
        await asyncio.sleep(0.4)
        return "once"

    bench.host.ctx.at(lead.scope).on(Approval, answer)
    lead.narrow("test", "workspace-write")
    spec = TaskSpec("knock", model=patient, budget=Limits(idle=0.2))
    outcome = await bench.tasks.run(spec, bench.tasks.origin(lead))
    assert outcome.ok, outcome.diagnostic
    assert outcome.text == "came in" and asked == ["user"]


async def test_a_child_that_waits_for_its_own_child_is_not_idle(opened, tmp_path, script, calling):
    patch = tmp_path / "deep.json"
    patch.write_text(json.dumps([{"id": "delegation", "set": {"config": {"max_depth": 2}}}]))
    async with opened(patch) as host:
        tasks = host.get(DELEGATION).tasks
        slow = script(*(calling(("bash", {"command": f"sleep 0.15; echo {n}"})) for n in range(3)), {"text": "slow"})
        middle = script(calling(delegating(model=slow)), {"text": "well"})
        spec = TaskSpec("go", model=middle, budget=Limits(idle=0.3))
        outcome = await tasks.run(spec, Origin(host.root_scope, str(tmp_path)))
        assert outcome.ok and outcome.text == "well", outcome.diagnostic


async def test_a_child_that_waits_for_a_slot_is_not_idle(opened, tmp_path, script, calling, wired):
    patch = tmp_path / "narrow.json"
    patch.write_text(json.dumps([{"id": "scheduler", "set": {"config": {"concurrency": 1}}}]))
    async with opened(patch) as host:
        tasks = host.get(DELEGATION).tasks
        origin = Origin(host.root_scope, str(tmp_path))
        holding = await tasks.start(TaskSpec("hold", model="openai:fault=hang"), origin)
        await until(lambda: wired.received)
        waiting = await tasks.start(TaskSpec("wait", model="openai:text=well", budget=Limits(idle=0.2)), origin)
        await until(lambda: waiting.waiting == "slot")
        await asyncio.wait((asyncio.ensure_future(waiting.outcome()),), timeout=0.5)
        assert waiting.state == "waiting" and len(wired.received) == 1
        holding.cancel("user")
        outcome = await waiting.outcome()
        assert outcome.ok and outcome.text == "well"
        assert (await holding.outcome()).code == "CANCELLED"


async def test_a_child_in_which_nothing_happens_is_idle_and_keeps_its_words(bench, script, calling):
    bench.host.mount(more_tools)
    model = script(calling(("dawdle", {"at": "it"}), text="I look at it."), {"text": "done"})
    outcome = await bench.tasks.run(TaskSpec("go", model=model, budget=Limits(idle=0.1)), bench.origin)
    assert (outcome.status, outcome.fault, outcome.code, outcome.text, outcome.partial) == ("budget", "none", "IDLE", "I look at it.", True)
    assert bench.host.get(AGENTS).live == {}


# the end of the host


@pytest.mark.parametrize("kind", [Work, OnlyCancel, Deaf, RaisingDispose, RaisingCancel])
async def test_a_host_that_ends_ends_its_tasks_and_says_so(opened, tmp_path, kind):
    patch = tmp_path / "grace.json"
    patch.write_text(json.dumps([{"id": "delegation", "set": {"config": {"grace": GRACE}}}]))
    before = asyncio.all_tasks()
    runner = Runner(kind)
    sound = Runner(name="sound")
    async with opened(patch) as host:
        bench = Bench(host, tmp_path)
        for each in (runner, sound):
            bench.offer(each)
        task, work = await bench.running(runner)
        other, beside = await bench.running(sound)
        told = bench.told
    work.end()
    outcome = await asyncio.wait_for(task.outcome(), 5)
    expected = ("error", "NOT_CLOSED") if kind is Deaf else ("interrupted", "HOST_ENDED")
    assert (outcome.status, outcome.code) == expected and work.disposed == 1
    assert (await asyncio.wait_for(other.outcome(), 5)).code == "HOST_ENDED" and beside.disposed == 1
    assert all(work.heard[0] == ("signal", "shutdown") for work in (work, beside))
    told.check(task.id, other.id)
    await until(lambda: left_of(before) == [])
    async with opened() as host:
        record = host.get(DELEGATION).tasks.ledger.get(task.id)
        assert (record.outcome.status, record.outcome.code) == expected and record.cause == "shutdown"


async def test_a_host_that_ends_ends_a_child_and_its_process(opened, tmp_path, script, calling):
    model = script(calling(("bash", {"command": "exec sleep 65.1"}), text="I wait."), {"text": "done"})
    before, children, files = asyncio.all_tasks(), children_of_this(), open_files()
    async with opened() as host:
        bench = Bench(host, tmp_path)
        task = await bench.tasks.start(TaskSpec("go", model=model), bench.origin)
        await until(lambda: processes("sleep 65.1"))
    outcome = await task.outcome()
    assert (outcome.status, outcome.fault, outcome.code, outcome.text) == ("interrupted", "infrastructure", "HOST_ENDED", "I wait.")
    assert outcome.native in outcome.proceed
    assert processes("sleep 65.1") == [] and children_of_this() <= children
    bench.told.check(task.id)
    gc.collect()
    await until(lambda: left_of(before) == [])
    await until(lambda: open_files() <= files)


# one name, one task


async def test_a_start_under_the_name_of_a_living_task_attaches_to_it(bench):
    runner = bench.offer(Runner())
    spec = TaskSpec("do it", runner="odd")
    one, two = await asyncio.gather(*(bench.tasks.start(spec, bench.origin, id="t-mine") for _ in range(2)))
    assert one is two
    await until(lambda: runner.works)
    with pytest.raises(Refused) as raised:
        await bench.tasks.start(TaskSpec("do something else", runner="odd"), bench.origin, id="t-mine")
    assert raised.value.code == "TASK_CONFLICT"
    runner.works[0].end(Outcome("completed", text="well"))
    first, second = await asyncio.gather(bench.tasks.wait(one), bench.tasks.wait(two))
    assert first == second and first.ok and runner.starts == 1
    bench.told.check("t-mine")


async def test_a_start_under_the_name_of_a_settled_task_gives_its_outcome(bench):
    runner = bench.offer(Runner())
    spec = TaskSpec("do it", runner="odd")
    task = await bench.tasks.start(spec, bench.origin, id="t-mine")
    await until(lambda: runner.works)
    runner.works[0].end(Outcome("completed", text="well"))
    outcome = await bench.settled(task)
    again = await bench.tasks.run(spec, bench.origin, id="t-mine")
    assert again == outcome and runner.starts == 1
    with pytest.raises(Refused) as raised:
        await bench.tasks.start(TaskSpec("do something else", runner="odd"), bench.origin, id="t-mine")
    assert raised.value.code == "TASK_CONFLICT" and runner.starts == 1
    bench.told.check("t-mine")


async def test_a_settled_task_can_be_asked_for_when_its_runner_has_gone(bench):
    runner = Runner()
    effect = bench.service.runners.register(bench.host.ctx, runner)
    spec = TaskSpec("do it", runner="odd")
    task = await bench.tasks.start(spec, bench.origin, id="t-mine")
    await until(lambda: runner.works)
    runner.works[0].end(Outcome("completed", text="well"))
    outcome = await bench.settled(task)
    effect.withdraw()
    assert await bench.tasks.run(spec, bench.origin, id="t-mine") == outcome


@pytest.mark.parametrize("more", [{"tools": ("none",)}, {"permission": "read-only"}, {"model": "another"}, {"runner": "sound"}])
async def test_a_task_of_one_name_that_asks_for_something_else_is_a_conflict(bench, more):
    runner, sound = bench.offer(Runner()), bench.offer(Runner(name="sound"))
    task = await bench.tasks.start(TaskSpec("do it", runner="odd"), bench.origin, id="t-mine")
    try:
        with pytest.raises(Refused) as raised:
            await bench.tasks.start(TaskSpec(**{"prompt": "do it", "runner": "odd", **more}), bench.origin, id="t-mine")
        assert raised.value.code == "TASK_CONFLICT"
    finally:
        task.cancel("user")
        await bench.settled(task)
    assert sound.starts == 0 and runner.starts <= 1


# a store that cannot be written


class Full:
    """The disk of ``control.db`` is full: what writes to one table fails in the writer of the database itself."""

    def __init__(self, database, monkeypatch):
        self.database = database
        self.monkeypatch = monkeypatch
        self.real = database._commit
        self.left = 0

    def writes(self, left=0):
        """Let so many batches through, and no more."""
        self.left = left
        self.monkeypatch.setattr(self.database, "_commit", self.commit)

    def commit(self, batch):
        if self.left:
            self.left -= 1
            return self.real(batch)
        from hames.store.database import full

        raise full(self.database.path)

    def heal(self):
        self.monkeypatch.setattr(self.database, "_commit", self.real)


@pytest.fixture
async def full(bench, monkeypatch):
    return Full(bench.ledger.store.control, monkeypatch)


async def test_where_the_intent_cannot_be_recorded_nothing_starts(bench, full):
    runner = bench.offer(Runner())
    full.writes()
    with pytest.raises(StorageError):
        await bench.tasks.run(TaskSpec("do it", runner="odd"), bench.origin)
    assert runner.starts == 0 and bench.tasks.live == {} and bench.told.all == []
    full.heal()
    assert bench.ledger.list() == []
    task, work = await bench.running(runner)
    work.end(Outcome("completed", text="well"))
    assert (await bench.settled(task)).ok
    bench.told.check(task.id)


async def test_where_the_intent_cannot_be_recorded_nobody_waits_for_ever(bench, full):
    runner = bench.offer(Runner())
    full.writes()
    spec = TaskSpec("do it", runner="odd")
    both = [asyncio.ensure_future(bench.tasks.run(spec, bench.origin, id="t-mine")) for _ in range(2)]
    await asyncio.sleep(0)
    task = bench.tasks.live["t-mine"]
    done, waiting = await asyncio.wait(both, timeout=1)
    full.heal()
    if waiting:  # so that a failure does not hold up what comes after
        task.settle(Outcome("aborted"))
        await asyncio.wait(waiting)
    assert waiting == set()
    assert all(isinstance(each.exception(), StorageError) for each in done) and runner.starts == 0


async def test_what_is_set_aside_for_a_task_that_cannot_be_recorded_is_given_back(bench, full):
    from dataclasses import replace

    from hames.budget import Meter

    bench.offer(Runner())
    meter = Meter(Limits(tokens=100))
    full.writes()
    with pytest.raises(StorageError):
        await bench.tasks.run(TaskSpec("do it", runner="odd", budget=Limits(tokens=80)), replace(bench.origin, meter=meter))
    full.heal()
    assert meter.left("tokens") == 100


async def test_where_the_launch_cannot_be_recorded_nothing_is_launched(bench, full):
    runner = bench.offer(Runner())
    full.writes(left=1)
    task = await bench.tasks.start(TaskSpec("do it", runner="odd"), bench.origin)
    outcome = await bench.settled(task)
    full.heal()
    assert (outcome.status, outcome.fault, outcome.code) == ("error", "infrastructure", "STORAGE_FAILED")
    assert runner.starts == 0 and bench.tasks.live == {}
    bench.told.check(task.id)


async def test_an_outcome_that_cannot_be_recorded_is_told_as_such(bench, full):
    runner = bench.offer(Runner())
    task, work = await bench.running(runner)
    full.writes()
    work.end(Outcome("completed", text="well"))
    outcome = await bench.settled(task)
    full.heal()
    assert (outcome.status, outcome.fault, outcome.code) == ("error", "infrastructure", "STORAGE_FAILED")
    assert outcome.text == "well" and work.disposed == 1 and bench.tasks.live == {}
    assert bench.ledger.get(task.id).outcome is None
    bench.told.check(task.id)


async def test_an_outcome_that_another_process_forbids_is_told_as_such(bench):
    runner = bench.offer(Runner())
    task, work = await bench.running(runner)
    store = bench.ledger.store
    await store.control.write("UPDATE states SET owner = 'somebody', epoch = 2 WHERE task = ?", (task.id,))
    work.end(Outcome("completed", text="well"))
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.code) == ("error", "STORAGE_FAILED") and work.disposed == 1
    bench.told.check(task.id)


async def test_a_control_database_that_is_none_starts_nothing(opened, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "control.db").write_bytes(b"this is no database" * 100)
    runner = Runner()
    async with opened() as host:
        service = host.get(DELEGATION)
        service.runners.register(host.ctx, runner)
        with pytest.raises(StorageError):
            await service.tasks.run(TaskSpec("do it", runner="odd"), Origin(host.root_scope, str(tmp_path)))
        assert runner.starts == 0 and service.tasks.live == {}


# listeners


async def test_listeners_that_throw_change_nothing(bench):
    runner = bench.offer(Runner())

    def broken(notice):
        raise RuntimeError("a listener is broken")

    for event in (TaskBegan, TaskEnded):
        bench.host.ctx.on(event, broken, order=-1)
    task, work = await bench.running(runner)
    work.end(Outcome("completed", text="well"))
    assert (await bench.settled(task)).ok
    assert len([error for _, error in bench.host.problems if str(error) == "a listener is broken"]) == 2
    bench.told.check(task.id)


async def test_whoever_hears_of_the_end_finds_the_outcome_on_disk(bench):
    runner = bench.offer(Runner())
    seen = []

    def ended(notice):
        connection = apsw.Connection(str(bench.ledger.store.root / "control.db"), flags=apsw.SQLITE_OPEN_READONLY)
        seen.extend(connection.execute("SELECT task FROM outcomes"))
        connection.close()

    bench.host.ctx.on(TaskEnded, ended)
    task, work = await bench.running(runner)
    work.end(Outcome("completed", text="well"))
    await bench.settled(task)
    assert seen == [(task.id,)]


async def test_a_request_of_another_process_to_stop_is_heard(bench):
    runner = bench.offer(Runner())
    task, _ = await bench.running(runner)
    await bench.ledger.ask_to_stop(task.id, "user")
    outcome = await bench.settled(task)
    assert (outcome.status, outcome.code) == ("aborted", "CANCELLED") and "hames task cancel" in outcome.diagnostic
    await until(lambda: bench.ledger.stop_of(task.id)[2] > 0)
    bench.told.check(task.id)


async def test_requests_to_stop_are_heard_beside_a_runner_whose_cancellation_raises(bench):
    broken, sound = bench.offer(Runner(RaisingCancel)), bench.offer(Runner(name="sound"))
    task, work = await bench.running(broken)
    other, _ = await bench.running(sound)
    try:
        await bench.ledger.ask_to_stop(task.id, "user")
        await until(lambda: task.cause)
        await bench.ledger.ask_to_stop(other.id, "user")
        assert (await bench.settled(other, 2)).code == "CANCELLED"
    finally:
        work.end()
        other.cancel("user")
        await bench.settled(other)
        await bench.settled(task)


async def test_a_task_of_this_process_that_nobody_drives_any_more_is_settled(bench):
    """For example one whose outcome could not be written when it came."""
    await bench.ledger.intend("t0", TaskSpec("go", runner="sample"), parent="", root="", session="", call="", depth=1)
    await bench.tasks.recover()
    record = bench.ledger.get("t0")
    assert (record.outcome.status, record.outcome.code, record.epoch) == ("interrupted", "HOST_DIED", 2)
