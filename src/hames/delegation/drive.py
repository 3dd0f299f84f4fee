"""Driving one task from its intent to its outcome.

Intent on disk → launch on disk → start → result → dispose → outcome on disk → told. Both ways in which a runner may hear that it is to
end are used, so it may honour either. Whatever a runner does, there is one outcome.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hames.content.errors import HamesError
from hames.content.schema import violations
from hames.delegation.failures import FAILURES
from hames.delegation.outcome import Outcome, Status, bounded, failed, with_attempts
from hames.delegation.records import Attempt
from hames.delegation.runner import Launch, Work
from hames.delegation.task import Task

if TYPE_CHECKING:
    from hames.delegation.service import Tasks


CAUSES: dict[str, tuple[Status, str]] = {
    "deadline": ("budget", "DEADLINE"),
    "idle": ("budget", "IDLE"),
    "parent": ("aborted", "PARENT_ENDED"),
    "disposed": ("aborted", "PARENT_ENDED"),
    "shutdown": ("interrupted", "HOST_ENDED"),
}
"""How a task ends that was stopped for a cause; for any other one it is ``aborted`` and ``CANCELLED``."""
FIRST_PAUSE = 0.5  # seconds before another attempt, doubling


class Drive:
    """One task under way."""

    def __init__(self, tasks: Tasks, task: Task) -> None:
        self._tasks = tasks
        self._task = task
        self._ledger = tasks.ledger
        self._grace = tasks.config.grace

    async def run(self) -> Outcome:
        """All attempts.

        :raises StorageError: if the intent, or a launch, cannot be recorded: it does not happen then.
        """
        task, n = self._task, 0
        while True:
            n += 1
            outcome = checked(await self._attempt(n), task)
            again = outcome.code in FAILURES and FAILURES[outcome.code].retry == "by itself"
            if not again or n > task.spec.retries or task.cause:
                return with_attempts(outcome, n)
            await asyncio.wait((task.stopped,), timeout=FIRST_PAUSE * 2 ** (n - 1))

    async def _attempt(self, n: int) -> Outcome:
        task, runner = self._task, self._task.runner
        if task.cause:
            return self._stopped(Outcome("aborted"))
        began = self._tasks.clock.now()
        attempt = Attempt(n, f"{runner.name}/{runner.version}", runner.digest, "", began, 0.0, "")
        self._ledger.attempt(task.id, task.epoch, attempt)
        await self._ledger.update(task.id, task.epoch, "launching", liveness="undetermined")
        task.state = "launching"
        task.touch()
        outcome = Outcome("unknown", "infrastructure", "OUTCOME_UNKNOWN")
        native = ""
        try:
            work = await self._start(n)
            if isinstance(work, Outcome):
                outcome = work
            else:
                native = work.native
                self._ledger.attempt(task.id, task.epoch, replace(attempt, native=native))
                outcome = await self._work(work)
        finally:
            ended = replace(attempt, native=native, ended=self._tasks.clock.now(), exit=outcome.code or outcome.status)
            self._ledger.attempt(task.id, task.epoch, ended)
        return outcome

    async def _start(self, n: int) -> Work | Outcome:
        """Begin an attempt; an outcome where that did not come to be."""
        task = self._task
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
            lambda text: self._tasks.said(task, text),
        )
        starting = asyncio.ensure_future(task.runner.start(launch))
        try:
            await asyncio.wait((starting, task.stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not starting.done():
                await self._end(starting)
        if not starting.done():
            starting.add_done_callback(self._late)
            return failed("NOT_CLOSED", f"{task.runner.name} was still starting {self._grace:g} s after it was to end")
        if starting.cancelled():
            return self._stopped(Outcome("aborted"))
        error = starting.exception()
        if error is None:
            return starting.result()
        if task.cause:
            return self._stopped(Outcome("aborted", diagnostic=said(error)))
        self._tasks.contain(f"task {task.id}", error)
        return failed("LAUNCH_FAILED", f"{task.runner.name}: {said(error)}")

    async def _work(self, work: Work) -> Outcome:
        task = self._task
        task.work = work
        if task.cause:
            work.cancel(task.cause)
        else:
            task.put("running")
        result = asyncio.ensure_future(work.result())
        try:
            outcome = await self._result(result)
        finally:
            task.work = None
            if not result.done():
                await self._end(result)
            left = await self._dispose(work)
        return replace(outcome, diagnostic=bounded(f"{outcome.diagnostic}\n{left}".strip())) if left else outcome

    async def _result(self, result: asyncio.Future[Outcome]) -> Outcome:
        """Wait for the result, end it when its time is over, and go on without it where it does not heed that."""
        task = self._task
        loop = asyncio.get_running_loop()
        budget = task.spec.budget
        end = None if budget.seconds is None else loop.time() + budget.seconds
        while not result.done():
            idle = None
            if budget.idle is not None and not task.runner.keeps_idle and task.state != "waiting":
                idle = task.touched + budget.idle
            due = min((at for at in (end, idle) if at is not None), default=None)
            await asyncio.wait((result, task.stopped), timeout=None if due is None else due - loop.time(), return_when="FIRST_COMPLETED")
            if result.done():
                break
            if not task.cause and end is not None and loop.time() >= end:
                task.cancel("deadline", f"its {budget.seconds:g} s are over")
            elif not task.cause and idle is not None and loop.time() >= max(idle, task.touched + (budget.idle or 0)):
                task.cancel("idle", f"nothing happened for {budget.idle:g} s")
            if task.cause:
                await asyncio.wait((result,), timeout=self._grace)
                break
        if not result.done():
            self._tasks.contain(f"task {task.id}", TimeoutError(f"{task.runner.name} does not heed its cancellation"))
            return failed("NOT_CLOSED", f"{task.runner.name} did not end within {self._grace:g} s ({task.cause}); it is left behind")
        if result.cancelled():
            return self._stopped(Outcome("aborted"))
        error = result.exception()
        if error is not None:
            if task.cause:
                return self._stopped(Outcome("aborted", diagnostic=said(error)))
            self._tasks.contain(f"task {task.id}", error)
            return failed("RUNNER_FAILED", f"{task.runner.name}: {said(error)}")
        outcome = result.result()
        return outcome if outcome.ok or not task.cause else self._stopped(outcome)

    def _stopped(self, outcome: Outcome) -> Outcome:
        """What there is of a task that was stopped, under the name of what stopped it."""
        task = self._task
        status, code = CAUSES.get(task.cause, ("aborted", "CANCELLED"))
        detail = task.detail or f"it was ended ({task.cause or 'cancelled'})"
        diagnostic = bounded(f"{detail}\n{outcome.diagnostic}".strip())
        return replace(outcome, status=status, fault=FAILURES[code].fault, code=code, diagnostic=diagnostic, partial=bool(outcome.text))

    async def _dispose(self, work: Work) -> str:
        """Give everything back; what could not be, in words."""
        disposing = asyncio.ensure_future(work.dispose())
        done, _ = await asyncio.wait((disposing,), timeout=self._grace)
        if not done:
            disposing.cancel()
            await asyncio.wait((disposing,), timeout=1.0)
            return f"what it holds was not given back within {self._grace:g} s; it is left behind"
        error = None if disposing.cancelled() else disposing.exception()
        if error is not None:
            self._tasks.contain(f"disposing of task {self._task.id}", error)
            return f"giving back what it held failed: {said(error)}"
        return ""

    async def _end(self, running: asyncio.Future[Any]) -> None:
        """Cancel it and wait for it, but not for ever."""
        running.cancel()
        await asyncio.wait((running,), timeout=self._grace)

    def _late(self, starting: asyncio.Future[Work]) -> None:
        """A start that came to its end when nobody waited any more."""
        if starting.cancelled() or starting.exception() is not None:
            return
        self._tasks.spawn(self._dispose(starting.result()))


def checked(outcome: Outcome, task: Task) -> Outcome:
    """The outcome without what it claims and does not show."""
    schema = task.spec.schema
    if not outcome.ok:
        return outcome
    if schema is not None:
        wrong = violations(outcome.value, schema) if outcome.schema_valid else ["it gave no value"]
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
