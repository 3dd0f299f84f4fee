"""The scheduler: never more at once than may be, nobody forgotten, everybody in turn."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hames.budget import SCHEDULER, Place
from hames.budget.scheduler import Scheduler, SchedulerConfig
from hames.content.errors import ConfigError

P = "p"


class Request:
    """One request, as a task: it waits for a slot, and holds it until it is told how it went."""

    def __init__(self, stage: Stage, place: Place, provider: str = P) -> None:
        self.stage = stage
        self.place = place
        self.provider = provider
        self.state = "waiting"
        self.well: bool | None = None
        self.fails = False
        self.stale = False
        self.over = asyncio.Event()
        self.after: list[Request] = []  # who is cancelled at the very moment when this one gives its slot back
        self.task = asyncio.ensure_future(self.run())

    async def run(self) -> None:
        try:
            async with self.stage.scheduler.slot(self.provider, self.place) as went:
                self.state = "running"
                self.stage.began(self)
                await self.over.wait()
                if self.well is False and not self.stale:  # all that run now say nothing new when they are refused too
                    for each in self.stage.those("running"):
                        each.stale = True
                if self.well is not None:
                    went(self.well)
                if self.fails:
                    raise OSError("the provider has a problem")
            for each in self.after:
                each.task.cancel()
        except OSError:
            pass
        finally:
            self.state = "ended"

    def end(self, well: bool | None = None, *, fails: bool = False) -> None:
        self.well, self.fails = well, fails
        self.over.set()


class Stage:
    """A scheduler with requests, and what has happened."""

    def __init__(self, most: int = 1, **providers: int) -> None:
        self.scheduler = Scheduler(most, providers)
        self.requests: list[Request] = []
        self.order: list[Request] = []
        self.most = 0
        self.wrong: list[str] = []

    def began(self, request: Request) -> None:
        self.order.append(request)
        state = self.scheduler.of(request.provider)
        inside = sum(each.state == "running" and each.provider == request.provider for each in self.requests)
        self.most = max(self.most, inside)
        if inside > state.now:
            self.wrong.append(f"{inside} run, and {state.now} may")

    def ask(self, lane: str = "", priority: int = 0, rank: tuple[int, ...] = (), provider: str = P) -> Request:
        made = Request(self, Place(lane, priority, rank), provider)
        self.requests.append(made)
        return made

    def those(self, state: str) -> list[Request]:
        return [each for each in self.requests if each.state == state]

    async def settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    async def drain(self) -> None:
        """Let all end, one after the other."""
        for _ in range(len(self.requests) + 1):
            await self.settle()
            running = self.those("running")
            if not running:
                break
            running[0].end()
        await self.settle()

    async def close(self) -> None:
        for each in self.requests:
            each.task.cancel()
        await asyncio.gather(*(each.task for each in self.requests), return_exceptions=True)


@pytest.fixture
async def stage():
    """Makes a stage; at the end nothing waits, nothing runs and nothing is left."""
    made: list[Stage] = []

    def make(most: int = 1, **providers: int) -> Stage:
        made.append(Stage(most, **providers))
        return made[-1]

    yield make
    for each in made:
        await each.close()
        assert each.wrong == []
        assert all((state.running, state.waiting) == (0, 0) for state in each.scheduler.state())
    left = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") in ("Request.run", "held")]
    assert left == []


# with a real event loop, whatever happens


class Machine(RuleBasedStateMachine):
    """Requests of four lanes come, are served, end well or are refused, and are cancelled at every moment."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stage: Stage | None = None
        self.served: dict[str, dict[str, int]] = {}
        self.seen = 0

    @initialize(most=st.integers(1, 5))
    def begin(self, most: int) -> None:
        self.do(lambda: setattr(self, "stage", Stage(most)))

    def do(self, act: Any) -> None:
        async def body() -> None:
            act()
            if self.stage is not None:
                await self.stage.settle()

        self.loop.run_until_complete(body())
        self.look()

    def look(self) -> None:
        """Whoever was served was the first of its lane, and no lane was served twice while another one waited."""
        stage = self.stage
        assert stage is not None
        for request in stage.order[self.seen :]:
            lane = request.place.lane
            for other in self.served:
                if other != lane and any(each.place.lane == other for each in stage.those("waiting")):
                    self.served[other][lane] = self.served[other].get(lane, 0) + 1
                    assert self.served[other][lane] <= 1, f"{lane} was served again while {other} waited"
            self.served[lane] = {}
        self.seen = len(stage.order)
        for lane in ("a", "b", "c", "d"):
            if not any(each.place.lane == lane for each in stage.those("waiting")):
                self.served.pop(lane, None)
            else:
                self.served.setdefault(lane, {})

    @rule(lane=st.sampled_from("abcd"), priority=st.integers(-1, 1), rank=st.lists(st.integers(0, 2), max_size=3))
    def ask(self, lane: str, priority: int, rank: list[int]) -> None:
        stage = self.stage
        assert stage is not None
        self.do(lambda: stage.ask(lane, priority, tuple(rank)))

    @precondition(lambda self: self.stage is not None and self.stage.those("running"))
    @rule(data=st.data(), how=st.sampled_from([True, True, None, False, "fails"]), cancel=st.integers(0, 3))
    def end(self, data: st.DataObject, how: Any, cancel: int) -> None:
        """One ends; of those who wait some are cancelled in the moment when they are served."""
        stage = self.stage
        assert stage is not None
        request = data.draw(st.sampled_from(stage.those("running")))
        waiting = sorted(stage.those("waiting"), key=lambda each: (-each.place.priority, each.place.rank))
        request.after = waiting[:cancel] if how != "fails" else []
        before, was_stale = stage.scheduler.of(P).now, request.stale
        self.do(lambda: request.end(None if how == "fails" else how, fails=how == "fails"))
        now = stage.scheduler.of(P).now
        if how is False and not was_stale:
            assert max(1, before // 2) <= now <= max(1, (before + 1) // 2)
        elif how is True:
            assert before <= now <= min(before + 1, stage.scheduler.of(P).most)
        else:
            assert now == before

    @precondition(lambda self: self.stage is not None and (self.stage.those("running") or self.stage.those("waiting")))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        stage = self.stage
        assert stage is not None
        request = data.draw(st.sampled_from([*stage.those("running"), *stage.those("waiting")]))
        self.do(lambda: request.task.cancel())

    @invariant()
    def what_it_says_is_so_and_nobody_waits_beside_a_free_slot(self) -> None:
        if self.stage is None:
            return
        state = self.stage.scheduler.of(P)
        assert self.stage.wrong == []
        assert state.running == len(self.stage.those("running"))
        assert state.waiting == len(self.stage.those("waiting"))
        assert 1 <= state.now <= state.most
        assert not state.waiting or state.running >= state.now

    def teardown(self) -> None:
        if self.stage is not None:
            stage = self.stage

            async def finish() -> None:
                await stage.drain()
                assert not stage.those("waiting") and not stage.those("running")
                await stage.close()

            self.loop.run_until_complete(finish())
            state = stage.scheduler.of(P)
            assert (state.running, state.waiting) == (0, 0)
        self.loop.close()


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, database=None)


class TestWhateverHappens(Machine.TestCase):
    """The scheduler keeps its promises."""


# how many at once


async def test_no_more_run_than_may_and_each_provider_has_its_own(stage):
    it = stage(3, other=1)
    for _ in range(10):
        it.ask()
        it.ask(provider="other")
    await it.settle()
    state = {each.provider: (each.now, each.most, each.running, each.waiting) for each in it.scheduler.state()}
    assert state == {P: (3, 3, 3, 7), "other": (1, 1, 1, 9)}
    await it.drain()
    assert len(it.order) == 20 and it.most == 3


async def test_a_free_slot_is_taken_without_waiting(stage):
    it = stage(1)
    waited = []

    @contextmanager
    def waits():
        waited.append("began")
        yield
        waited.append("ended")

    async with it.scheduler.slot(P, Place(), waits):
        assert waited == []
        second = asyncio.ensure_future(held(it, waits))
        await it.settle()
        assert waited == ["began"]
    await second
    assert waited == ["began", "ended"]


async def held(it: Stage, waits) -> None:
    async with it.scheduler.slot(P, Place(), waits):
        pass


async def test_whoever_cannot_even_wait_takes_no_slot(stage):
    """What is told while somebody waits may fail: the slot that would have come goes to another one."""
    it = stage(1)
    holder = it.ask()
    await it.settle()

    @contextmanager
    def broken():
        raise OSError("nobody can be told")
        yield

    with pytest.raises(OSError):
        await held(it, broken)
    assert it.scheduler.of(P).waiting == 0
    holder.end()
    await it.settle()
    assert it.scheduler.of(P).running == 0


async def test_whoever_fails_right_after_waiting_gives_the_slot_back(stage):
    it = stage(1)
    holder = it.ask()
    await it.settle()

    @contextmanager
    def broken():
        yield
        raise OSError("nobody can be told")

    failing = asyncio.ensure_future(held(it, broken))
    await it.settle()
    holder.end()
    with pytest.raises(OSError):
        await failing
    assert it.scheduler.of(P).running == 0


async def test_a_slot_comes_back_whatever_happens_inside(stage):
    it = stage(1)
    for failing in (True, False):
        first, second = it.ask(), it.ask()
        await it.settle()
        first.end(fails=failing)
        await it.settle()
        assert (first.state, second.state) == ("ended", "running")
        second.task.cancel()
        await it.settle()
        assert it.scheduler.of(P).running == 0


# nobody forgotten


async def test_whoever_is_cancelled_in_the_queue_is_passed_over(stage):
    it = stage(1)
    holder, *queue = (it.ask("a") for _ in range(4))
    await it.settle()
    for each in queue[:2]:
        each.task.cancel()
    await it.settle()
    assert it.scheduler.of(P).waiting == 1
    holder.end()
    await it.settle()
    assert queue[2].state == "running"


async def test_when_all_who_wait_are_cancelled_the_next_one_is_served_at_once(stage):
    it = stage(1)
    holder, *queue = (it.ask(lane) for lane in "abca")
    await it.settle()
    for each in queue:
        each.task.cancel()
    await it.settle()
    holder.end()
    await it.settle()
    late = it.ask("d")
    await it.settle()
    assert late.state == "running"


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_a_slot_that_is_given_in_the_moment_of_cancellation_goes_on_to_the_next(stage, count):
    it = stage(1)
    holder, *queue = (it.ask("a") for _ in range(count + 2))
    await it.settle()
    holder.after = queue[:count]
    holder.end()
    await it.settle()
    await it.settle()
    assert [each.state for each in queue] == ["ended"] * count + ["running"]
    assert it.scheduler.of(P).running == 1


async def test_a_cancelled_holder_hands_on(stage):
    it = stage(2)
    requests = [it.ask("a") for _ in range(4)]
    await it.settle()
    for each in requests[:2]:
        each.task.cancel()
    await it.settle()
    assert [each.state for each in requests] == ["ended", "ended", "running", "running"]


# whose turn it is


async def test_lanes_are_served_in_turn_however_many_wait_in_one(stage):
    it = stage(1)
    it.ask("first")
    await it.settle()
    for _ in range(5):
        it.ask("a")
    for lane in "bcb":
        it.ask(lane)
    await it.drain()
    assert [each.place.lane for each in it.order[1:]] == ["a", "b", "c", "a", "b", "a", "a", "a"]


async def test_a_lane_that_comes_back_stands_behind_those_that_wait(stage):
    it = stage(1)
    holder = it.ask("x")
    await it.settle()
    first, _ = it.ask("a"), it.ask("b")
    holder.end()
    await it.settle()
    it.ask("a")
    first.end()
    await it.settle()
    assert [each.place.lane for each in it.order] == ["x", "a", "b"]
    await it.drain()


async def test_within_a_lane_priority_comes_first_then_what_began_first_with_all_below_it(stage):
    it = stage(1)
    it.ask("x")
    await it.settle()
    places = [(0, (2,)), (0, (1, 4)), (0, (1,)), (1, (9,)), (0, ()), (-1, (0,)), (0, (1, 4, 7)), (0, (1, 5)), (1, (8, 8))]
    for priority, rank in places:
        it.ask("a", priority, rank)
    await it.drain()
    served = [(each.place.priority, each.place.rank) for each in it.order[1:]]
    above = [(1, (8, 8)), (1, (9,))]
    assert served == [*above, (0, ()), (0, (1,)), (0, (1, 4)), (0, (1, 4, 7)), (0, (1, 5)), (0, (2,)), (-1, (0,))]


async def test_those_of_one_place_are_served_as_they_came(stage):
    it = stage(1)
    requests = [it.ask("a", 0, (1,)) for _ in range(6)]
    await it.drain()
    assert it.order == requests


async def test_a_priority_counts_in_its_own_lane_only(stage):
    it = stage(1)
    it.ask("x")
    await it.settle()
    for _ in range(3):
        it.ask("loud", 100)
    it.ask("quiet", -100)
    await it.drain()
    assert [each.place.lane for each in it.order[1:]] == ["loud", "quiet", "loud", "loud"]


async def test_a_parent_that_waits_outside_of_a_slot_lets_three_levels_run_with_one(stage):
    it = stage(1)
    done = []

    async def work(rank: tuple[int, ...]) -> None:
        async with it.scheduler.slot(P, Place("a", 0, rank)):
            await asyncio.sleep(0)
        if len(rank) < 3:
            await asyncio.gather(*(work((*rank, n)) for n in range(3)))
        async with it.scheduler.slot(P, Place("a", 0, rank)):
            done.append(rank)

    async with asyncio.timeout(5):
        await work(())
    assert len(done) == 1 + 3 + 9 + 27 and done[-1] == ()


# what a provider can take


async def round_of(it: Stage, well: bool | None) -> int:
    """As many requests as may run at once, all of which go the same way."""
    requests = [it.ask("a") for _ in range(it.scheduler.of(P).now)]
    await it.settle()
    assert all(each.state == "running" for each in requests)
    for each in requests:
        each.end(well)
    await it.settle()
    return it.scheduler.of(P).now


async def test_a_round_of_refusals_halves_once_and_never_below_one(stage):
    it = stage(16)
    assert [await round_of(it, False) for _ in range(6)] == [8, 4, 2, 1, 1, 1]


async def test_refusals_of_one_round_that_come_late_say_nothing_new(stage):
    it = stage(8)
    old = [it.ask("a") for _ in range(8)]
    await it.settle()
    old[0].end(False)
    await it.settle()
    assert it.scheduler.of(P).now == 4
    for each in old[1:5]:
        each.end(None)
    await it.settle()
    new = it.ask("a")
    await it.settle()
    assert new.state == "running"
    for each in old[5:]:
        each.end(False)
    await it.settle()
    assert it.scheduler.of(P).now == 4
    new.end(False)
    await it.settle()
    assert it.scheduler.of(P).now == 2


async def test_nobody_new_runs_until_as_few_run_as_may(stage):
    it = stage(8)
    old = [it.ask("a") for _ in range(8)]
    late = it.ask("a")
    await it.settle()
    for n, each in enumerate(old):
        each.end(False if n == 0 else None)
        await it.settle()
        assert late.state == ("waiting" if 8 - n - 1 >= 4 else "running")


async def test_it_grows_back_by_no_more_than_one_a_round_and_never_beyond_what_is_configured(stage):
    it = stage(8)
    for _ in range(3):
        await round_of(it, False)
    seen = [it.scheduler.of(P).now]
    while seen[-1] < 8 and len(seen) < 40:
        seen.append(await round_of(it, True))
    assert seen[-1] == 8
    assert all(0 <= later - before <= 1 for before, later in pairwise(seen))
    assert await round_of(it, True) == 8


async def test_what_grows_back_wakes_whoever_waits(stage):
    it = stage(2)
    await round_of(it, False)
    first, second, third = (it.ask("a") for _ in range(3))
    await it.settle()
    assert [each.state for each in (first, second, third)] == ["running", "waiting", "waiting"]
    first.end(True)
    await it.settle()
    assert [each.state for each in (second, third)] == ["running", "running"]


async def test_what_says_nothing_about_the_provider_changes_nothing(stage):
    it = stage(4)
    await round_of(it, False)
    for _ in range(9):
        assert await round_of(it, None) == 2


async def test_one_provider_that_refuses_slows_down_no_other(stage):
    it = stage(4)
    await round_of(it, False)
    assert (it.scheduler.of(P).now, it.scheduler.of("other").now) == (2, 4)


# where the number comes from


def test_it_says_why_so_many():
    assert Scheduler().of("x")[1:3] == (16, 16) and Scheduler().of("x").why == "the default"
    scheduler = Scheduler(3, {"x": 2}, "configured in the row scheduler")
    assert (scheduler.of("x").now, scheduler.of("x").why) == (2, "configured for x in the row scheduler")
    assert (scheduler.of("y").now, scheduler.of("y").why) == (3, "configured in the row scheduler")


async def test_it_says_that_a_provider_was_asked_too_often_and_what_was_before(stage):
    it = stage(4, x=2)
    it.ask(provider="x").end(False)
    await it.settle()
    assert it.scheduler.of("x").why == "x said that it is asked too often; 2 is configured for x in the row scheduler"
    while it.scheduler.of("x").now < 2:
        it.ask(provider="x").end(True)
        await it.settle()
    assert it.scheduler.of("x").why == "configured for x in the row scheduler"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "the default of the row scheduler"),
        ({"concurrency": 16}, "configured in the row scheduler"),
        ({"providers": {"p": 16}}, "configured for p in the row scheduler"),
    ],
)
async def test_the_row_says_why(opened, tmp_path, config, why):
    patch = tmp_path / "patch.json"
    patch.write_text(json.dumps([{"id": "scheduler", "set": {"config": config}}]))
    async with opened(patch) as host:
        state = host.get(SCHEDULER).of(P)
        assert (state.now, state.most, state.why) == (16, 16, why)


@pytest.mark.parametrize("config", [{"concurrency": 0}, {"concurrency": -1}, {"concurrncy": 3}, {"concurrency": "many"}])
async def test_a_number_that_lets_nothing_run_is_refused(opened, tmp_path, config):
    await refuses(opened, tmp_path, config)


@pytest.mark.parametrize("number", [0, -1])
async def test_a_number_of_one_provider_that_lets_nothing_run_is_refused(opened, tmp_path, number):
    with pytest.raises(ValueError):
        SchedulerConfig(providers={P: number})
    await refuses(opened, tmp_path, {"providers": {P: number}})


async def refuses(opened, tmp_path, config) -> None:
    patch = tmp_path / "patch.json"
    patch.write_text(json.dumps([{"id": "scheduler", "set": {"config": config}}]))
    with pytest.raises(ConfigError):
        async with opened(patch):
            pass
