"""The service that takes tasks on and owns them until they have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from hames.agents import Agent
from hames.budget import Place
from hames.content.clock import Clock
from hames.content.errors import HamesError, StorageError
from hames.content.paths import SHIPPED
from hames.delegation.admission import admit
from hames.delegation.attending import Attending
from hames.delegation.drive import Drive, said
from hames.delegation.events import TaskBegan, TaskEnded, TaskSaid
from hames.delegation.failures import Refused
from hames.delegation.ledger import Ledger
from hames.delegation.notices import tell_end
from hames.delegation.outcome import Outcome, UsageItem, bounded, failed
from hames.delegation.owing import Owing
from hames.delegation.plugin import Overlay
from hames.delegation.recovery import recover
from hames.delegation.role import Role
from hames.delegation.roles import found
from hames.delegation.runner import Origin
from hames.delegation.runners import Runners
from hames.delegation.spec import TaskSpec
from hames.delegation.task import Task
from hames.kernel import Context, Registry
from hames.sessions import Sessions
from hames.store import Store
from hames.toolkit.project import trusted
from hames.trust import TRUST

PEERS: WeakKeyDictionary[Store, WeakSet[Tasks]] = WeakKeyDictionary()
"""The services of this process over one store: none of them takes what another one drives for something that a dead process has left."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What tasks may be.

    :param runner: who executes them where they name nobody.
    :param max_depth: how deep they may stand below a user's conversation.
    :param max_tasks: how many one conversation of a user may start, with all below it.
    :param grace: seconds that a runner has to end and to give back what it holds.
    """

    runner: str = "spawn"
    max_depth: int = 1
    max_tasks: int = 1000
    grace: float = 10.0


class Onward(NamedTuple):
    """The conversation that a task goes on with.

    :param thread: its name.
    :param resume: as its runner names it.
    :param pinned: what it was started with.
    """

    thread: str
    resume: str
    pinned: str


class Tasks:
    """The tasks of a process, and those that its state directory knows.

    :ivar live: those that this process drives.
    """

    def __init__(
        self,
        ctx: Context,
        ledger: Ledger,
        sessions: Sessions,
        runners: Runners,
        overlays: Registry[Overlay],
        clock: Clock,
        config: Settings,
    ) -> None:
        self._ctx = ctx
        self.ledger = ledger
        self.sessions = sessions
        self.runners = runners
        self.overlays = overlays
        self.clock = clock
        self.config = config
        self.live: dict[str, Task] = {}
        self._count = count(1)
        self._started: dict[str, int] = {}
        self._watched: set[str] = set()
        self._others: set[asyncio.Task[Any]] = set()
        self._attending = Attending(ledger, self.live, self.contain)
        self._recovered: asyncio.Task[None] | None = None
        self._closing = False
        self.owing = Owing(self.contain)
        PEERS.setdefault(ledger.store, WeakSet()).add(self)

    # taking on

    def origin(self, agent: Agent, call: str = "") -> Origin:
        """An agent as whoever starts tasks, as it is now."""
        known = agent.session.state.get("delegation")
        own: dict[str, Any] = known if isinstance(known, dict) else {}  # pyright: ignore[reportUnknownVariableType]
        return Origin(
            agent.scope,
            str(agent.cwd),
            agent,
            agent.scope.parent,
            agent.id,
            call,
            own.get("task", ""),
            own.get("root", ""),
            own.get("depth", 0),
            agent.model_ref,
            replace(agent.settings, schema=None),
            agent.ceiling,
            agent.grant,
            agent.place,
            agent.meter or agent.whole,
        )

    def roles(self, origin: Origin) -> dict[str, list[Role]]:
        """The roles that count where somebody starts tasks, by name; the first of a name is the one that counts."""
        trust = self._ctx.host.get(TRUST, origin.scope)
        cwd = Path(origin.cwd)
        roles = found(cwd, project=trusted(trust, cwd), shipped=(SHIPPED / "roles",))
        for overlay in self.overlays.view(origin.scope).values():
            roles = overlay(roles, cwd)
        return roles

    async def start(self, spec: TaskSpec, origin: Origin, *, id: str = "", onward: Onward | None = None) -> Task:
        """Take a task on. Its intent is on disk when this returns.

        :param id: a name for it; the task of that name, if there is one that asks for the same.
        :param onward: the conversation that it goes on with; None for a new one.
        :raises Refused: if it may not begin: nothing has happened then.
        :raises StorageError: if its intent cannot be recorded.
        """
        if id and (known := await self._known(id, spec, origin)) is not None:
            return known
        task = self._admit(spec, origin, id or self.ledger.new_id(), onward)
        if spec.mode == "continuable" and origin.agent is not None:
            telling = asyncio.create_task(tell_end(self, task, origin.agent), name=f"the end of task {task.id}")
            self.owing.add(origin.session, telling)
        task.driver = asyncio.create_task(self._drive(task), name=f"task {task.id}")
        task.driver.add_done_callback(lambda _: self._driven(task))
        self._attending.begin()
        try:
            await asyncio.shield(task.intended)
        except asyncio.CancelledError:
            task.cancel("parent")
            with suppress(asyncio.CancelledError, HamesError):
                await task.driver
            raise
        except StorageError as error:
            if spec.mode != "continuable":
                raise
            said = f"a conversation is kept only where that can be written: {error.message}"
            raise Refused("PERSISTENCE_UNAVAILABLE", said, remedy="see 'hames doctor'; a task that is not kept needs no more") from None
        return task

    def _driven(self, task: Task) -> None:
        """Whatever became of its driver: nobody waits for it in vain."""
        self.live.pop(task.id, None)
        if not task.intended.done():
            task.intended.set_exception(HamesError(f"task {task.id} was given up before it began", code="INTERNAL"))
            task.intended.exception()
        if not task.settled:
            task.settle(failed("INTERNAL", "its driver was ended"))

    async def run(self, spec: TaskSpec, origin: Origin, *, id: str = "") -> Outcome:
        """Take a task on and wait for its end. Whoever cancels this cancels the task, and waits until nothing of it is left."""
        task = await self.start(spec, origin, id=id)
        return await self.wait(task)

    async def wait(self, task: Task) -> Outcome:
        """The outcome of a task; when cancelled, end it, and all below it, before this returns."""
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                outcome = await task.outcome()
                break
            except asyncio.CancelledError as error:
                cancelled = error
                task.cancel("parent")
        if cancelled is not None:
            raise cancelled
        return outcome

    def _admit(self, spec: TaskSpec, origin: Origin, id: str, onward: Onward | None) -> Task:
        lane = origin.place.lane or origin.session or id
        if self._closing or (origin.agent is not None and origin.agent.finishing):
            raise Refused("PARENT_GONE", "whoever starts it is about to end")
        if self._started.get(lane, 0) >= self.config.max_tasks:
            raise Refused(
                "TREE_FULL",
                f"{self.config.max_tasks} tasks have been started from this conversation",
                remedy="max_tasks of the row delegation changes that",
            )
        blobs = self.ledger.store.blobs
        config, known = self.config, lambda: self.roles(origin)
        resumed = onward is not None
        got = admit(spec, origin, self.runners, blobs, known, runner=config.runner, max_depth=config.max_depth, resumed=resumed)
        place = Place(lane, spec.priority, (*origin.place.rank, next(self._count)))
        task = Task(
            id,
            got.spec,
            origin,
            got.runner,
            depth=got.depth,
            permission=got.permission,
            grant=got.grant,
            meter=got.meter,
            place=place,
            levels=got.levels,
            digest=spec.digest,
            role=got.role,
            **(onward._asdict() if onward is not None else {}),
        )
        if lane != id:
            self._started[lane] = self._started.get(lane, 0) + 1
        self.live[id] = task
        task.changed = self._changed
        task.contain = self.contain
        if origin.agent is not None and origin.agent.id not in self._watched:
            self._watched.add(origin.agent.id)
            agent = origin.agent
            agent.defer(lambda: self._agent_gone(agent))
        return task

    async def _known(self, id: str, spec: TaskSpec, origin: Origin) -> Task | None:
        """The task of a name, if it asks for the same."""
        live = self.live.get(id)
        if live is not None:
            if live.digest != spec.digest:
                raise Refused("TASK_CONFLICT", f"there is a task {id}, and it is another one", remedy="give this one another name")
            await asyncio.shield(live.intended)
            return live
        record = self.ledger.get(id)
        if record is None:
            return None
        if record.digest != spec.digest:
            raise Refused("TASK_CONFLICT", f"there is a task {id}, and it is another one", remedy="give this one another name")
        if record.outcome is None:
            await self.recover()
            record = self.ledger.get(id)
        if record is None or record.outcome is None:
            raise Refused("TASK_CONFLICT", f"another process works on task {id}", remedy=f"wait for it: hames task show {id}")
        return Task.of(record, origin)

    # driving

    async def _drive(self, task: Task) -> None:
        origin = task.origin
        began = False
        try:
            await self._intend(task)
            task.intended.set_result(None)
            began = True
            self._ctx.emit(TaskBegan(task.id, task.spec.title, task.spec.runner, origin.task, task.depth), at=origin.scope)
            outcome = await self._whole(task)
        except (HamesError, ValueError) as error:
            if not task.intended.done():
                self.live.pop(task.id, None)
                task.meter.close()
                if task.place.lane in self._started:
                    self._started[task.place.lane] -= 1
                task.intended.set_exception(error)
                task.intended.exception()
                return
            self._ctx.host.contain(f"task {task.id}", error)
            outcome = failed("STORAGE_FAILED" if isinstance(error, StorageError) else "INTERNAL", said(error))
        except Exception as error:
            self._ctx.host.contain(f"task {task.id}", error)
            outcome = failed("INTERNAL", said(error))
        finally:
            if began:
                await self.end_below(task)
        await self._publish(task, self._counted(task, outcome))

    async def _intend(self, task: Task) -> None:
        origin = task.origin
        await self.ledger.intend(
            task.id,
            task.spec,
            digest=task.digest,
            parent=origin.task,
            root=origin.root,
            session=origin.session,
            call=origin.call,
            depth=task.depth,
            thread=task.thread,
        )

    async def _whole(self, task: Task) -> Outcome:
        """The outcome, even where the event loop is ending."""
        running = asyncio.ensure_future(Drive(self, task).run())
        while not running.done():
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                task.cancel("shutdown", "the process ends")
            except Exception:
                break
        if running.cancelled():
            return failed("HOST_ENDED", "the process ended")
        return running.result()

    def _counted(self, task: Task, outcome: Outcome) -> Outcome:
        """The outcome with what the tasks below it have spent, and with what was obtained."""
        cost = None if outcome.cost is None or task.below_cost is None else outcome.cost + task.below_cost
        merged: dict[str, UsageItem] = {}
        for item in task.below:
            known = merged.get(item.model)
            merged[item.model] = item if known is None else replace(known, usage=known.usage + item.usage)
        return replace(outcome, usage=(*outcome.usage, *merged.values()), cost=cost, assurance=task.levels)

    async def _publish(self, task: Task, outcome: Outcome) -> None:
        """Record the outcome, then tell it."""
        task.meter.close()
        self._attending.settled(task)
        try:
            liveness = "undetermined" if outcome.code == "NOT_CLOSED" or task.left_behind else "ended"
            await self.ledger.settle(task.id, task.epoch, outcome, liveness=liveness, cause=task.cause)
        except Exception as error:
            self._ctx.host.contain(f"the outcome of task {task.id}", error)
            lost = failed("STORAGE_FAILED", said(error))
            diagnostic = bounded(f"{lost.diagnostic}\n{outcome.diagnostic}")
            outcome = replace(outcome, status="error", fault=lost.fault, code=lost.code, diagnostic=diagnostic)
        above = self.live.get(task.origin.task)
        if above is not None:
            above.below += [replace(item, scope="below") for item in outcome.usage]
            above.below_cost = None if above.below_cost is None or outcome.cost is None else above.below_cost + outcome.cost
        if task.place.lane == task.id:
            self._started.pop(task.id, None)
        self.live.pop(task.id, None)
        task.settle(outcome)
        ended = TaskEnded(task.id, task.spec.title, outcome.status, outcome.code, task.origin.task, task.depth)
        self._ctx.emit(ended, at=task.origin.scope)

    async def end_below(self, task: Task) -> None:
        await self._end_all([each for each in self.live.values() if each.origin.task == task.id], "parent")

    async def _agent_gone(self, agent: Agent) -> None:
        """Whoever started them ends: nothing of theirs is left when it has."""
        self._watched.discard(agent.id)
        self._started.pop(agent.id, None)
        await self._end_all([each for each in self.live.values() if each.origin.agent is agent], "disposed")

    async def _end_all(self, tasks: list[Task], cause: str) -> None:
        for task in tasks:
            task.cancel(cause)
        drivers = [task.driver for task in tasks if task.driver is not None]
        if drivers:
            await asyncio.wait(drivers)

    def cancel_below(self, task: Task) -> None:
        """Ask all that a task has started to end."""
        for each in tuple(self.live.values()):
            if each.origin.task == task.id:
                each.cancel("parent")

    def said(self, task: Task, text: str) -> None:
        task.touch()
        self._ctx.emit(TaskSaid(task.id, text), at=task.origin.scope)

    def contain(self, what: str, error: BaseException) -> None:
        self._ctx.host.contain(what, error)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Something that is left to be done, and is awaited at the end."""
        made = asyncio.ensure_future(coroutine)
        self._others.add(made)
        made.add_done_callback(self._others.discard)

    # what others want, and what they are told

    def _changed(self, task: Task) -> None:
        if task.state == "stopping":
            self.cancel_below(task)
        self._attending.changed(task)

    async def recover(self) -> None:
        """Settle the tasks of processes that have died, as interrupted; once at a time."""
        if self._recovered is None or self._recovered.done():
            driven = {id for each in PEERS[self.ledger.store] for id in each.live}
            looking = recover(self.ledger, self.sessions, self.contain, driven)
            self._recovered = asyncio.create_task(looking, name="tasks of the dead")
        await asyncio.shield(self._recovered)

    async def close(self) -> None:
        """End every task and wait for it."""
        self._closing = True
        await self._end_all(list(self.live.values()), "shutdown")
        await self._attending.close()
        await self.owing.settled(self.config.grace)
        if self._others:
            _, late = await asyncio.wait(self._others, timeout=self.config.grace)
            for each in late:
                each.cancel()
        if self._recovered is not None:
            await asyncio.wait((self._recovered,))
