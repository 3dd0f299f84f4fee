"""Driving one task from its intent to its outcome.

Intent on disk → launch on disk → start → result → dispose → outcome on disk → told. Both ways in which a runner may hear that it is to
end are used, so it may honour either. Whatever a runner does, there is one outcome.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hames.content.errors import HamesError
from hames.content.jsontext import as_json
from hames.content.schema import violations
from hames.delegation.failures import FAILURES
from hames.delegation.outcome import Outcome, bounded, failed
from hames.delegation.records import Attempt
from hames.delegation.runner import Launch, Work
from hames.delegation.task import Task

if TYPE_CHECKING:
    from hames.delegation.service import Tasks


CAUSES = {"deadline": "DEADLINE", "idle": "IDLE", "parent": "PARENT_ENDED", "disposed": "PARENT_ENDED", "shutdown": "HOST_ENDED"}
"""The code of a task that was stopped for a cause; for any other one it is ``CANCELLED``."""
FIRST_PAUSE = 0.5  # seconds before another attempt, doubling


class Drive:
    """One task under way."""

    def __init__(self, tasks: Tasks, task: Task) -> None:
        assert task.runner is not None
        self._tasks = tasks
        self._task = task
        self._runner = task.runner
        self._ledger = tasks.ledger
        self._grace = tasks.config.grace
        self._launched = 0
        self._resume = task.resume
        self._end: float | None = None  # when its time is over, by the clock of the event loop

    async def run(self) -> Outcome:
        """All attempts.

        :raises StorageError: if the intent, or a launch, cannot be recorded: it does not happen then.
        """
        task, loop = self._task, asyncio.get_running_loop()
        if task.spec.budget.seconds is not None:
            self._end = loop.time() + task.spec.budget.seconds
        found: list[Outcome] = []
        while True:
            outcome = checked(await self._attempt(len(found) + 1), task)
            found.append(outcome)
            again = outcome.code in FAILURES and FAILURES[outcome.code].retry == "by itself"
            kept = task.spec.mode == "continuable" and task.was_accepted  # whoever started it goes on with its conversation
            if not again or len(found) > task.spec.retries or task.cause or task.left_behind or kept:
                break
            pause = loop.time() + FIRST_PAUSE * 2 ** (len(found) - 1)
            await asyncio.wait((task.stopped,), timeout=min(pause, self._end or pause) - loop.time())
            self._look_at_the_time()
            if task.cause:
                found[-1] = self._stopped(outcome)
                break
        return summed(found, self._launched)

    def _look_at_the_time(self) -> None:
        """Cancel it where its time is over."""
        task = self._task
        if self._end is not None and asyncio.get_running_loop().time() >= self._end:
            task.cancel("deadline", f"its {task.spec.budget.seconds:g} s are over")

    async def _attempt(self, n: int) -> Outcome:
        task, runner = self._task, self._runner
        if task.cause:
            return self._stopped(Outcome("aborted", cost=0.0))
        pinned = " ".join(filter(None, (runner.digest, f"role:{task.role.digest}" if task.role is not None else "")))
        attempt = Attempt(n, f"{runner.name}/{runner.version}", task.pinned or pinned, "", self._tasks.clock.now(), 0.0, "")
        self._ledger.attempt(task.id, task.epoch, attempt)
        await self._ledger.update(task.id, task.epoch, "launching", liveness="undetermined")
        self._launched += 1
        task.state = "launching"
        task.touch()
        outcome = Outcome("unknown", "infrastructure", "OUTCOME_UNKNOWN")
        try:
            work = await self._start(n)
            if isinstance(work, Outcome):
                outcome = work
            else:
                outcome, native = await self._work(work, attempt)
                attempt = replace(attempt, native=native)
        finally:
            ended = replace(attempt, ended=self._tasks.clock.now(), exit=outcome.code or outcome.status)
            self._ledger.attempt(task.id, task.epoch, ended)
        return outcome

    async def _start(self, n: int) -> Work | Outcome:
        """Begin an attempt; an outcome where that did not come to be."""
        task, loop = self._task, asyncio.get_running_loop()
        launch = Launch(
            task.id,
            n,
            task.spec,
            task.origin,
            task.depth,
            task.permission,
            task.grant,
            task.meter,
            task.place,
            task.signal,
            task.touch,
            task.waits,
            self._said,
            task.role,
            self._resume,
            task.accept,
            self._tasks.owing.of,
        )
        starting = asyncio.ensure_future(self._runner.start(launch))
        try:
            left = None if self._end is None else self._end - loop.time()
            await asyncio.wait((starting, task.stopped), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            self._look_at_the_time()
        finally:
            if not starting.done():
                await self._end_it(starting)
        if not starting.done():
            starting.add_done_callback(self._late)
            return failed("NOT_CLOSED", f"{self._runner.name} was still starting {self._grace:g} s after it was to end")
        if starting.cancelled():
            return self._stopped(Outcome("aborted", cost=0.0))
        error = starting.exception()
        if error is None:
            return starting.result()
        if task.cause:
            return self._stopped(Outcome("aborted", diagnostic=said(error), cost=0.0))
        task.error = error
        self._tasks.contain(f"task {task.id}", error)
        return failed("LAUNCH_FAILED", f"{self._runner.name}: {said(error)}", cost=0.0)

    def _said(self, text: str) -> None:
        self._tasks.said(self._task, text)

    async def _work(self, work: Work, attempt: Attempt) -> tuple[Outcome, str]:
        """The outcome of work that has begun, and the name of its conversation; whatever comes, it is given back."""
        task = self._task
        result: asyncio.Future[Outcome] | None = None
        native = ""
        try:
            native = work.native
            named = self._ledger.attempt(task.id, task.epoch, replace(attempt, native=native))
            self._ledger.store.control.kick()  # whoever comes after a crash finds its conversation by this name
            if task.spec.mode == "continuable":
                await named  # nothing is taken that could not be found again
            task.work = work
            for error in task.tell_work():
                self._tasks.contain(f"cancelling task {task.id}", error)
            if not task.cause:
                task.put("running")
            result = asyncio.ensure_future(work.result())
            outcome = await self._result(result)
        except Exception as error:
            self._tasks.contain(f"task {task.id}", error)
            outcome = failed("RUNNER_FAILED", f"{self._runner.name}: {said(error)}")
        finally:
            task.work = None
            if result is not None and not result.done():
                await self._end_it(result)
            left = await self._dispose(work)
        return replace(outcome, diagnostic=bounded(f"{outcome.diagnostic}\n{left}".strip())) if left else outcome, native

    async def _result(self, result: asyncio.Future[Outcome]) -> Outcome:
        """Wait for the result, end it when its time is over, and go on without it where it does not heed that."""
        task, loop = self._task, asyncio.get_running_loop()
        limit = task.spec.budget.idle
        while not result.done():
            watched = limit is not None and not self._runner.keeps_idle and task.state != "waiting"
            idle = task.touched + limit if watched and limit is not None else None
            due = min((at for at in (self._end, idle) if at is not None), default=None)
            await asyncio.wait((result, task.stopped), timeout=None if due is None else due - loop.time(), return_when="FIRST_COMPLETED")
            if result.done():
                break
            self._look_at_the_time()
            if not task.cause and idle is not None and limit is not None and loop.time() >= max(idle, task.touched + limit):
                task.cancel("idle", f"nothing happened for {limit:g} s")
            if task.cause:
                await self._tasks.end_below(task)  # it may have to wait for them before it can end
                await asyncio.wait((result,), timeout=self._grace)
                break
        if not result.done():
            self._tasks.contain(f"task {task.id}", TimeoutError(f"{self._runner.name} does not heed its cancellation"))
            return failed("NOT_CLOSED", f"{self._runner.name} did not end within {self._grace:g} s ({task.cause}); it is left behind")
        if result.cancelled():
            return self._stopped(Outcome("aborted"))
        error = result.exception()
        if error is not None:
            if task.cause:
                return self._stopped(Outcome("aborted", diagnostic=said(error)))
            task.error = error
            self._tasks.contain(f"task {task.id}", error)
            return failed("RUNNER_FAILED", f"{self._runner.name}: {said(error)}")
        outcome = result.result()
        return outcome if outcome.ok or not task.cause else self._stopped(outcome)

    def _stopped(self, outcome: Outcome) -> Outcome:
        """What there is of a task that was stopped, under the name of what stopped it."""
        task = self._task
        failure = FAILURES[CAUSES.get(task.cause, "CANCELLED")]
        detail = task.detail or f"it was ended ({task.cause or 'cancelled'})"
        diagnostic = bounded(f"{detail}\n{outcome.diagnostic}".strip())
        ended = replace(outcome, status=failure.status, fault=failure.fault, code=failure.code)
        return replace(ended, diagnostic=diagnostic, partial=bool(outcome.text))

    async def _dispose(self, work: Work) -> str:
        """Give everything back; what could not be, in words."""
        disposing = asyncio.ensure_future(work.dispose())
        done, _ = await asyncio.wait((disposing,), timeout=self._grace)
        if not done:  # cancelling it would leave half of it undone for ever
            self._task.left_behind = True
            self._tasks.spawn(self._late_dispose(disposing))
            return f"what it holds was not given back within {self._grace:g} s; it is left behind"
        error = None if disposing.cancelled() else disposing.exception()
        if error is not None:
            self._task.left_behind = True
            self._tasks.contain(f"disposing of task {self._task.id}", error)
            return f"giving back what it held failed: {said(error)}"
        return ""

    async def _late_dispose(self, disposing: asyncio.Future[None]) -> None:
        try:
            await asyncio.wait((disposing,))
        except asyncio.CancelledError:  # the host does not wait any longer
            disposing.cancel()
            raise
        if not disposing.cancelled() and (error := disposing.exception()) is not None:
            self._tasks.contain(f"disposing of task {self._task.id}", error)

    async def _end_it(self, running: asyncio.Future[Any]) -> None:
        """Cancel it and wait for it, but not for ever."""
        running.cancel()
        await asyncio.wait((running,), timeout=self._grace)

    def _late(self, starting: asyncio.Future[Work]) -> None:
        """A start that came to its end when nobody waited any more."""
        if starting.cancelled() or starting.exception() is not None:
            return
        self._tasks.spawn(self._dispose(starting.result()))


def summed(found: list[Outcome], launched: int) -> Outcome:
    """The last of these outcomes, with what all of them have spent."""
    last = found[-1]
    costs = [outcome.cost for outcome in found]
    cost = None if None in costs else sum(each for each in costs if each is not None)
    usage = tuple(item for outcome in found for item in outcome.usage)
    return replace(last, usage=usage, cost=cost, steps=sum(outcome.steps for outcome in found), attempts=launched)


def checked(outcome: Outcome, task: Task) -> Outcome:
    """The outcome without what it claims and does not show."""
    schema = task.spec.schema
    if not outcome.ok:
        return outcome
    if schema is not None:
        wrong = violations(outcome.value, schema) if outcome.schema_valid else ["it gave no value"]
        try:
            outcome = replace(outcome, value=as_json(outcome.value))
        except ValueError as error:
            wrong.append(f"$: {error}")
        if wrong:
            missed = failed("SCHEMA_MISSED", "; ".join(wrong))
            said, raw = missed.diagnostic, outcome.raw or outcome.text
            invalid = replace(outcome, status="invalid", fault=missed.fault, code=missed.code, diagnostic=said)
            return replace(invalid, value=None, schema_valid=False, raw=raw)
    elif not outcome.text.strip():
        return replace(outcome, status="error", fault="child", code="NO_FINAL_MESSAGE", diagnostic="it ended without a final message")
    return outcome


def said(error: BaseException) -> str:
    """An error in a line, for people."""
    return f"{error.code}: {error}" if isinstance(error, HamesError) else f"{type(error).__name__}: {error}"
