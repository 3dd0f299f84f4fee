"""When a workspace is read again: states, bursts, failures and the end, with a watcher and a timer in hand."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hames.workspaces.controller import ReloadController


class FakeWatcher:
    """Tells what a test wants, also when it has been closed: a late notice."""

    def __init__(self, *, starting: Exception | None = None, closing: Exception | None = None, early: int = 0) -> None:
        self.starting, self.closing, self.early = starting, closing, early
        self.changed = lambda: None
        self.starts = self.closes = 0

    def start(self, changed) -> None:
        self.starts += 1
        self.changed = changed
        for _ in range(self.early):
            changed()
        if self.starting is not None:
            raise self.starting

    def close(self) -> None:
        self.closes += 1
        if self.closing is not None:
            raise self.closing


class FakeTimer:
    def __init__(self, seconds, call) -> None:
        self.seconds, self.call, self.over = seconds, call, False

    def cancel(self) -> None:
        self.over = True


class Timers:
    """The time, which stands still until a timer is fired."""

    def __init__(self) -> None:
        self.made: list[FakeTimer] = []

    def __call__(self, seconds, call) -> FakeTimer:
        self.made.append(FakeTimer(seconds, call))
        return self.made[-1]

    @property
    def live(self) -> list[FakeTimer]:
        return [timer for timer in self.made if not timer.over]

    def fire(self) -> None:
        (timer,) = self.live
        timer.over = True
        timer.call()


class Passes:
    """Passes that end when a test says so."""

    def __init__(self) -> None:
        self.made = self.now = self.most = 0
        self._end: asyncio.Future[None] | None = None

    async def __call__(self) -> None:
        self.made += 1
        self.now += 1
        self.most = max(self.most, self.now)
        self._end = asyncio.get_running_loop().create_future()
        try:
            await self._end
        finally:
            self.now -= 1

    async def end(self, error: BaseException | None = None) -> None:
        assert self._end is not None and self.now == 1
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)
        await turns()


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


class World:
    """A controller with all that it deals with in hand."""

    def __init__(self, *, activate: bool = True, debounce: float = 0.15, report=None, **watcher) -> None:
        self.watcher, self.timers, self.passes = FakeWatcher(**watcher), Timers(), Passes()
        self.reported: list[Exception] = []
        self.controller = ReloadController(
            self.watcher, self.passes, debounce=debounce, later=self.timers, report=report or self.reported.append
        )
        if activate:
            self.controller.start()
            self.controller.activate()

    @property
    def status(self) -> str:
        return self.controller.status

    async def begin(self) -> None:
        """A pass that is under way."""
        self.watcher.changed()
        self.timers.fire()
        await turns()
        assert (self.status, self.passes.now) == ("reloading", 1)


@pytest.fixture(autouse=True)
async def _nothing_left():
    before = asyncio.all_tasks()
    yield
    await turns()
    gc.collect()
    assert asyncio.all_tasks() - before <= {asyncio.current_task()}


def _soon(awaitable, seconds: float = 5.0):
    return asyncio.wait_for(awaitable, seconds)


# states


async def test_a_new_one_is_starting_and_watches_nothing():
    world = World(activate=False)
    assert (world.status, world.controller.watching, world.watcher.starts) == ("starting", False, 0)


async def test_one_that_is_started_watches_and_is_still_starting():
    world = World(activate=False)
    world.controller.start()
    assert (world.status, world.controller.watching, world.watcher.starts, world.timers.made) == ("starting", True, 1, [])


async def test_activation_makes_it_idle_without_a_pass():
    world = World()
    await turns()
    assert (world.status, world.passes.made, world.timers.made) == ("idle", 0, [])


async def test_a_second_activation_changes_nothing_in_any_state():
    world = World()
    world.watcher.changed()
    world.controller.activate()
    assert world.status == "scheduled"
    world.timers.fire()
    world.controller.activate()
    assert world.status == "reloading"
    await turns()
    await world.passes.end(ValueError())
    world.controller.activate()
    assert world.status == "failed"
    await world.controller.stop()
    world.controller.activate()
    assert world.status == "stopped"


async def test_a_change_is_scheduled_then_read_then_it_is_idle_again():
    world = World(debounce=0.25)
    world.watcher.changed()
    assert (world.status, [timer.seconds for timer in world.timers.live]) == ("scheduled", [0.25])
    await turns()
    assert world.passes.made == 0
    world.timers.fire()
    assert world.status == "reloading"
    await turns()
    assert world.passes.now == 1 and world.controller.successful == 0
    await world.passes.end()
    assert (world.status, world.controller.successful, world.timers.live, world.reported) == ("idle", 1, [], [])


@pytest.mark.parametrize("early", [1, 7])
async def test_changes_before_activation_give_one_pass_after_it(early):
    world = World(activate=False, early=early)
    world.controller.start()
    world.watcher.changed()
    assert (world.status, world.timers.made) == ("starting", [])
    world.controller.activate()
    assert (world.status, len(world.timers.live)) == ("scheduled", 1)
    world.timers.fire()
    await turns()
    await world.passes.end()
    assert (world.status, world.passes.made, world.timers.live) == ("idle", 1, [])


async def test_five_changes_in_a_row_give_one_pass_and_each_puts_it_off():
    world = World()
    for count in range(1, 6):
        world.watcher.changed()
        assert (len(world.timers.made), len(world.timers.live)) == (count, 1)
        assert world.timers.live[0] is world.timers.made[-1]
    world.timers.fire()
    await turns()
    await world.passes.end()
    assert (world.passes.made, world.status) == (1, "idle")


async def test_a_burst_gives_one_pass_with_the_timer_of_the_loop():
    watcher, passes = FakeWatcher(), 0

    async def reload() -> None:
        nonlocal passes
        passes += 1

    controller = ReloadController(watcher, reload, debounce=0.02)
    controller.start()
    controller.activate()
    for _ in range(5):
        watcher.changed()
    async with asyncio.timeout(5):
        while controller.successful == 0:
            await asyncio.sleep(0.005)
    assert (passes, controller.status) == (1, "idle")
    await controller.stop()


async def test_without_a_debounce_a_change_is_read_at_once_and_a_burst_still_gives_one_pass():
    watcher, passes = FakeWatcher(), 0

    async def reload() -> None:
        nonlocal passes
        passes += 1

    controller = ReloadController(watcher, reload, debounce=0)
    controller.start()
    controller.activate()
    for _ in range(5):
        watcher.changed()
    assert (controller.status, passes) == ("scheduled", 0)
    async with asyncio.timeout(5):
        while controller.status != "idle":
            await asyncio.sleep(0)
    assert passes == 1
    await controller.stop()


# changes during a pass


@pytest.mark.parametrize("changes", [1, 5])
async def test_changes_during_a_pass_give_exactly_one_following_pass(changes):
    world = World()
    await world.begin()
    for _ in range(changes):
        world.watcher.changed()
        await turns()
    assert (world.passes.made, world.status, world.timers.live) == (1, "reloading", [])
    await world.passes.end()
    assert (world.passes.made, world.passes.now, world.status) == (2, 1, "reloading")
    await world.passes.end()
    assert (world.passes.made, world.status, world.controller.successful, world.timers.live) == (2, "idle", 2, [])
    assert world.passes.most == 1


async def test_a_change_between_the_timer_and_the_first_step_of_the_pass_is_not_lost_or_doubled_without_end():
    world = World()
    world.watcher.changed()
    world.timers.fire()
    world.watcher.changed()
    await turns()
    passes = 1
    while world.status == "reloading" and passes < 5:
        await world.passes.end()
        passes += 1
    assert world.status == "idle" and world.passes.made in (1, 2) and world.passes.most == 1


async def test_a_change_in_the_following_pass_gives_another_one():
    world = World()
    await world.begin()
    for made in (2, 3, 4):
        world.watcher.changed()
        await world.passes.end()
        assert world.passes.made == made
    await world.passes.end()
    assert (world.status, world.passes.made, world.passes.most) == ("idle", 4, 1)


async def test_a_change_during_a_pass_that_fails_is_read_too():
    world = World()
    await world.begin()
    world.watcher.changed()
    await world.passes.end(ValueError("first"))
    assert world.status == "reloading" and len(world.reported) == 1
    await world.passes.end()
    assert (world.status, world.controller.successful) == ("idle", 1)


async def test_a_change_that_the_report_of_a_failure_brings_about_gives_one_more_pass():
    world = World(report=lambda error: world.watcher.changed())
    await world.begin()
    await world.passes.end(ValueError())
    assert (world.status, world.passes.made) == ("reloading", 2)
    await world.passes.end()
    assert (world.status, world.passes.made) == ("idle", 2)


# failures


async def test_a_pass_that_fails_is_reported_and_a_later_change_tries_again():
    world = World()
    await world.begin()
    error = ValueError("wrong")
    await world.passes.end(error)
    assert (world.status, world.reported, world.controller.successful) == ("failed", [error], 0)
    await turns()
    assert world.passes.made == 1
    world.watcher.changed()
    assert world.status == "scheduled"
    world.timers.fire()
    await turns()
    await world.passes.end()
    assert (world.status, world.reported, world.controller.successful) == ("idle", [error], 1)


async def test_failures_do_not_wear_it_out():
    world = World()
    for count in range(1, 6):
        await world.begin()
        await world.passes.end(RuntimeError(str(count)))
        assert (world.status, len(world.reported)) == ("failed", count)


async def test_a_report_that_raises_harms_nothing():
    def report(error: Exception) -> None:
        raise RuntimeError("the one who is told")

    world = World(report=report)
    await world.begin()
    await world.passes.end(ValueError())
    assert world.status == "failed"
    await world.begin()
    await world.passes.end()
    assert (world.status, world.controller.successful) == ("idle", 1)
    await _soon(world.controller.stop())


async def test_a_pass_that_something_inside_it_cancels_does_not_block_those_after_it():
    world = World()
    await world.begin()
    await world.passes.end(asyncio.CancelledError())
    assert world.status != "reloading"
    world.watcher.changed()
    world.timers.fire()
    await turns()
    assert world.passes.now == 1
    await world.passes.end()
    assert world.status == "idle"


# asked for


@pytest.mark.parametrize("state", ["idle", "scheduled", "failed"])
async def test_a_pass_that_is_asked_for_is_made_now(state):
    world = World()
    if state == "failed":
        await world.begin()
        await world.passes.end(ValueError())
    elif state == "scheduled":
        world.watcher.changed()
    made = world.passes.made
    world.controller.request()
    assert (world.status, world.timers.live) == ("reloading", [])
    await turns()
    await world.passes.end()
    assert (world.status, world.passes.made, world.timers.live) == ("idle", made + 1, [])


async def test_a_pass_that_is_asked_for_during_one_follows_it_once():
    world = World()
    await world.begin()
    world.controller.request()
    world.controller.request()
    world.watcher.changed()
    await world.passes.end()
    assert world.passes.made == 2
    await world.passes.end()
    assert (world.status, world.passes.made, world.passes.most) == ("idle", 2, 1)


async def test_nothing_is_asked_for_of_one_that_starts_or_has_stopped():
    world = World(activate=False)
    world.controller.start()
    world.controller.request()
    await turns()
    assert (world.status, world.passes.made) == ("starting", 0)
    await world.controller.stop()
    world.controller.request()
    await turns()
    assert (world.status, world.passes.made) == ("stopped", 0)


async def test_who_waits_for_it_to_settle_waits_for_the_following_pass_too():
    world = World()
    assert await _soon(world.controller.settled()) == "idle"
    await world.begin()
    world.watcher.changed()
    waiting = asyncio.create_task(world.controller.settled())
    await world.passes.end()
    assert not waiting.done()
    await world.passes.end(ValueError())
    assert await _soon(waiting) == "failed"


# the end


async def test_one_that_was_never_started_can_be_stopped():
    world = World(activate=False)
    await _soon(world.controller.stop())
    assert (world.status, world.controller.watching) == ("stopped", False)


async def test_stopping_before_it_is_ready_makes_no_pass_of_what_changed():
    world = World(activate=False, early=2)
    world.controller.start()
    await _soon(world.controller.stop())
    world.controller.activate()
    world.watcher.changed()
    await turns()
    assert (world.status, world.controller.watching, world.passes.made, world.timers.made, world.watcher.closes) == (
        "stopped",
        False,
        0,
        [],
        1,
    )


async def test_stopping_before_the_debounce_is_over_cancels_it():
    world = World()
    world.watcher.changed()
    await _soon(world.controller.stop())
    await turns()
    assert (world.status, world.timers.live, world.passes.made) == ("stopped", [], 0)


async def test_a_late_notice_after_the_end_does_nothing():
    world = World()
    await world.controller.stop()
    world.watcher.changed()
    await turns()
    assert (world.status, world.timers.made, world.passes.made) == ("stopped", [], 0)


async def test_stopping_during_a_pass_waits_for_it_and_makes_no_other():
    world = World()
    await world.begin()
    world.watcher.changed()
    stopping = asyncio.create_task(world.controller.stop())
    await turns()
    assert not stopping.done() and world.status == "stopped" and world.watcher.closes == 1
    world.watcher.changed()
    await world.passes.end()
    await _soon(stopping)
    await turns()
    assert (world.status, world.passes.made, world.passes.now, world.timers.live) == ("stopped", 1, 0, [])


async def test_stopping_during_a_pass_that_fails_ends_well():
    world = World()
    await world.begin()
    stopping = asyncio.create_task(world.controller.stop())
    await turns()
    await world.passes.end(ValueError())
    await _soon(stopping)
    assert (world.status, len(world.reported)) == ("stopped", 1)


async def test_stopping_twice_closes_the_watcher_once():
    world = World()
    await world.controller.stop()
    await _soon(world.controller.stop())
    assert (world.status, world.watcher.closes) == ("stopped", 1)


async def test_all_who_stop_at_once_wait_for_the_same_end():
    world = World()
    await world.begin()
    stops = [asyncio.create_task(world.controller.stop()) for _ in range(4)]
    await turns()
    assert not any(task.done() for task in stops)
    await world.passes.end()
    await _soon(asyncio.gather(*stops))
    assert (world.watcher.closes, world.controller.watching) == (1, False)


async def test_one_of_many_who_stop_may_be_cancelled_and_the_others_still_see_the_end():
    world = World()
    await world.begin()
    first, second = (asyncio.create_task(world.controller.stop()) for _ in range(2))
    await turns()
    second.cancel()
    await turns()
    assert second.cancelled() and not first.done()
    await world.passes.end()
    await _soon(first)
    await _soon(world.controller.stop())


async def test_the_first_who_stops_may_be_cancelled_and_the_others_still_see_the_end():
    world = World()
    await world.begin()
    first, second = (asyncio.create_task(world.controller.stop()) for _ in range(2))
    await turns()
    first.cancel()
    await turns()
    assert world.passes.now == 1  # the pass is nobody's to cancel
    await world.passes.end()
    try:
        await _soon(second, 1)
        await _soon(world.controller.stop(), 1)
    finally:
        second.cancel()
        await asyncio.wait((first, second))
    assert not world.controller.watching


async def test_a_watcher_that_cannot_be_closed_is_reported_and_the_end_goes_on():
    error = OSError("stuck")
    world = World(closing=error)
    await world.begin()
    stopping = asyncio.create_task(world.controller.stop())
    await turns()
    assert not stopping.done()
    await world.passes.end()
    await _soon(stopping)
    assert (world.status, world.reported, world.controller.watching) == ("stopped", [error], False)


async def test_neither_the_watcher_nor_the_report_keeps_it_from_ending():
    def report(error: Exception) -> None:
        raise RuntimeError("the one who is told")

    world = World(report=report, closing=OSError("stuck"))
    await world.begin()
    stopping = asyncio.create_task(world.controller.stop())
    await turns()
    await world.passes.end()
    with suppress(RuntimeError):
        await _soon(stopping, 1)
    assert (world.status, world.controller.watching) == ("stopped", False)
    await _soon(world.controller.stop(), 1)


async def test_a_watcher_that_cannot_be_started_is_closed_and_nothing_is_left():
    error = OSError(28, "no more watches")
    world = World(activate=False, starting=error, early=1)
    with pytest.raises(OSError) as caught:
        world.controller.start()
    assert caught.value is error
    assert (world.status, world.controller.watching, world.watcher.closes, world.timers.made) == ("stopped", False, 1, [])
    world.controller.activate()
    world.watcher.changed()
    await _soon(world.controller.stop())
    await turns()
    assert (world.status, world.passes.made) == ("stopped", 0)


async def test_a_watcher_that_can_neither_be_started_nor_closed_gives_the_first_reason():
    error = OSError(28, "no more watches")
    world = World(activate=False, starting=error, closing=RuntimeError("nor closed"))
    with pytest.raises(OSError) as caught:
        world.controller.start()
    assert caught.value is error
    assert (world.status, world.controller.watching) == ("stopped", False)


# a model


class Model(RuleBasedStateMachine):
    """Anything in any order: the controller does what its picture says."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.run(self.make())
        self.state, self.dirty, self.timer = "starting", False, False
        self.running, self.passes, self.well = False, 0, 0
        self.stops: list[asyncio.Task[None]] = []

    def run(self, coroutine):
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 10))

    async def make(self) -> None:
        self.world = World(activate=False)
        self.world.controller.start()

    async def do(self, call) -> None:
        call()
        await turns()

    def begins(self) -> None:
        self.state, self.timer, self.running, self.dirty = "reloading", False, True, False
        self.passes += 1

    @rule()
    def activate(self) -> None:
        self.run(self.do(self.world.controller.activate))
        if self.state == "starting":
            self.state = "idle"
            if self.dirty:
                self.dirty, self.timer, self.state = False, True, "scheduled"

    @rule()
    def change(self) -> None:
        self.run(self.do(self.world.watcher.changed))
        if self.state in ("starting", "reloading"):
            self.dirty = True
        elif self.state != "stopped":
            self.state, self.timer = "scheduled", True

    @precondition(lambda self: self.timer)
    @rule()
    def quiet(self) -> None:
        self.run(self.do(self.world.timers.fire))
        self.begins()

    @rule()
    def ask(self) -> None:
        self.run(self.do(self.world.controller.request))
        if self.state == "reloading":
            self.dirty = True
        elif self.state not in ("starting", "stopped"):
            self.begins()

    def ended(self, well: bool) -> None:
        self.well += well
        self.running = False
        if self.state == "stopped":
            return
        if self.dirty:
            self.begins()
        else:
            self.state = "idle" if well else "failed"

    @precondition(lambda self: self.running)
    @rule()
    def goes_well(self) -> None:
        self.run(self.world.passes.end())
        self.ended(True)

    @precondition(lambda self: self.running)
    @rule()
    def fails(self) -> None:
        self.run(self.world.passes.end(ValueError()))
        self.ended(False)

    @precondition(lambda self: len(self.stops) < 3 and self.passes > 1)
    @rule()
    def stop(self) -> None:
        async def stop() -> None:
            self.stops.append(asyncio.create_task(self.world.controller.stop()))
            await turns()

        self.run(stop())
        self.state, self.dirty, self.timer = "stopped", False, False

    @invariant()
    def as_pictured(self) -> None:
        world = self.world
        assert world.status == self.state
        assert (world.passes.made, world.passes.now, world.controller.successful) == (self.passes, int(self.running), self.well)
        assert world.passes.most <= 1
        assert len(world.timers.live) == int(self.timer)
        assert len(world.reported) == self.passes - self.well - int(self.running)
        assert all(task.done() is not self.running for task in self.stops)
        assert world.watcher.closes == int(self.state == "stopped")
        assert world.controller.watching is (self.state != "stopped" or self.running)

    def teardown(self) -> None:
        async def finish() -> None:
            if self.world.passes.now:
                stopping = asyncio.create_task(self.world.controller.stop())
                await turns()
                await self.world.passes.end()
                await stopping
            await self.world.controller.stop()
            await asyncio.gather(*self.stops)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        self.loop.run_until_complete(finish())
        self.loop.close()


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, database=None, derandomize=True)
