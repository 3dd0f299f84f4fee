"""A task under way in this process: what it was given, and how it is spoken to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from hames.budget import Meter, Place
from hames.delegation.outcome import Level, Outcome, UsageItem
from hames.delegation.records import State, TaskRecord, Waiting
from hames.delegation.role import Role
from hames.delegation.runner import Origin, Runner, Signal, Work
from hames.delegation.spec import TaskSpec
from hames.kernel import Mask
from hames.policy import Mode as Permission


class Task:
    """A task under way.

    :ivar spec: resolved.
    :ivar runner: None for one that has ended before.
    :ivar depth: how deep it stands, from 1.
    :ivar digest: that of what was asked for, before it was resolved.
    :ivar levels: what the runner gives of each option that was asked for.
    :ivar below: what the tasks that it started have spent.
    :ivar thread: the conversation that it is a part of.
    :ivar resume: the conversation that it goes on with, as its runner named it; empty for a new one.
    :ivar pinned: what its conversation was started with; empty for a new one.
    :ivar was_accepted: whether what it was given is kept in its conversation.
    :ivar error: what its runner raised last.
    :ivar accepted: done once what it was given is kept, or it has ended.
    :ivar left_behind: whether something of it may still run.
    :ivar touched: when something happened last, by the clock of the event loop.
    """

    def __init__(
        self,
        id: str,
        spec: TaskSpec,
        origin: Origin,
        runner: Runner | None,
        *,
        depth: int,
        permission: Permission,
        grant: tuple[Mask, ...],
        meter: Meter,
        place: Place,
        levels: Mapping[str, Level],
        digest: str,
        role: Role | None = None,
        thread: str = "",
        resume: str = "",
        pinned: str = "",
    ) -> None:
        self.id = id
        self.spec = spec
        self.origin = origin
        self.runner = runner
        self.depth = depth
        self.permission: Permission = permission
        self.grant = grant
        self.meter = meter
        self.place = place
        self.levels = levels
        self.digest = digest
        self.role = role
        self.thread = thread or id
        self.resume = resume
        self.pinned = pinned
        self.was_accepted = False
        self.error: BaseException | None = None
        self.epoch = 1
        self.state: State = "intended"
        self.waiting: Waiting = ""
        self.signal = Signal()
        self.detail = ""
        self.work: Work | None = None
        self.below: list[UsageItem] = []
        self.below_cost: float | None = 0.0
        self.touched = 0.0
        self.left_behind = False
        self.changed: Callable[[Task], None] = lambda task: None
        self.contain: Callable[[str, BaseException], None] = lambda what, error: None
        self.driver: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self.intended: asyncio.Future[None] = loop.create_future()
        self.accepted: asyncio.Future[None] = loop.create_future()
        self.stopped: asyncio.Future[str] = loop.create_future()
        self._outcome: asyncio.Future[Outcome] = loop.create_future()
        self._waits: list[Waiting] = []

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.state}>"

    @property
    def cause(self) -> str:
        """Why it is to end; empty while nobody wants it."""
        return self.signal.cause

    @property
    def settled(self) -> bool:
        return self._outcome.done()

    async def outcome(self) -> Outcome:
        """How it ended, when it has; durable then. Cancelling this does not cancel the task."""
        return await asyncio.shield(self._outcome)

    def cancel(self, cause: str = "user", detail: str = "") -> None:
        """Ask it, and all that it has started, to end. Returns at once; the first cause is kept."""
        if self.settled or self.cause:
            return
        self.detail = detail
        failed = self.signal.fire(cause)
        self.stopped.set_result(cause)
        failed += self.tell_work()
        for error in failed:
            self.contain(f"cancelling task {self.id}", error)
        if self.state not in ("intended", "settled"):
            self.put("stopping")

    def tell_work(self) -> list[Exception]:
        """Tell the work that it is to end; what went wrong with that."""
        try:
            if self.work is not None and self.cause:
                self.work.cancel(self.cause)
        except Exception as error:
            return [error]
        return []

    def put(self, state: State, waiting: Waiting = "") -> None:
        """It has come into another state."""
        if (state, waiting) != (self.state, self.waiting) and not (self.state == "stopping" and state in ("running", "waiting")):
            self.state, self.waiting = state, waiting
            self.changed(self)

    def touch(self) -> None:
        self.touched = asyncio.get_running_loop().time()

    def waits(self, what: Waiting) -> None:
        """It waits for something that is not its own work, or with ``""`` does not any more."""
        self.touch()
        if self.state in ("running", "waiting"):
            self.put("waiting" if what else "running", what)

    def settle(self, outcome: Outcome) -> None:
        """It has ended, and that is on disk."""
        self.state, self.waiting = "settled", ""
        if not self._outcome.done():
            self._outcome.set_result(outcome)
        for each in (self.intended, self.accepted):
            if not each.done():
                each.set_result(None)

    def accept(self) -> None:
        """What it was given is kept."""
        self.was_accepted = True
        if not self.accepted.done():
            self.accepted.set_result(None)

    @staticmethod
    def of(record: TaskRecord, origin: Origin) -> Task:
        """A task that has ended before, with its outcome."""
        task = Task(
            record.id,
            record.spec,
            origin,
            None,
            depth=record.depth,
            permission=origin.permission,
            grant=origin.grant,
            meter=Meter(record.spec.budget),
            place=origin.place,
            levels={},
            digest=record.digest,
            thread=record.thread,
        )
        assert record.outcome is not None
        task.settle(record.outcome)
        return task
