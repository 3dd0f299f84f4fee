"""One application of a plugin: its state, what it holds, and how it ends.

A stop has four phases: everything registered is withdrawn (``seal``); dependents, children and spawned tasks end; the
generator is resumed; deferred undos run in reverse. Only the mount's own asyncio task touches an asynchronous generator. Which
mounts stop together and in which order is the host's plan (``kernel.plan``).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Any

from hames.content.errors import ExitedError, KernelError, LimitError
from hames.kernel.keys import key_name
from hames.kernel.plugin import Kind, Plugin

if TYPE_CHECKING:
    from hames.kernel.host import Host
    from hames.kernel.scope import Provision, Scope

Undo = Callable[[], Awaitable[None] | None]
EXITS = (KeyboardInterrupt, SystemExit)  # these end the program, after the mount has been unwound

#: The mount whose code is running, for waits that would wait for themselves.
current_mount: ContextVar[Mount | None] = ContextVar("hames_current_mount", default=None)


class State(Enum):
    WAITING = "waiting"
    STARTING = "starting"
    ACTIVE = "active"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Effect:
    """One registration and how it is taken back, at most once."""

    __slots__ = ("label", "mount", "scope", "undo")

    def __init__(self, label: str, undo: Callable[[], None], mount: Mount) -> None:
        self.label = label
        self.undo: Callable[[], None] | None = undo
        self.mount = mount
        self.scope: Scope | None = None

    def withdraw(self) -> None:
        """Take the registration back now."""
        undo, self.undo = self.undo, None
        if undo is None:
            return
        self.mount.effects.pop(self, None)
        if self.scope is not None:
            self.scope.borrowed.pop(self, None)
        try:
            undo()
        except (Exception, asyncio.CancelledError) as error:
            self.mount.record(f"withdrawing {self.label}", error)


class Mount:
    """One application of a plugin in a scope.

    :ivar stands_as: the path that those below it are ordered by, where that is not its own.
    :ivar state: see :class:`State`.
    :ivar error: why it failed, or what went wrong last.
    """

    __slots__ = (
        "_generator",
        "_go",
        "_phase_over",
        "_sequence",
        "_task",
        "_throw",
        "_timer",
        "abandoned",
        "after",
        "blocked_by",
        "blocks",
        "children",
        "config",
        "effects",
        "error",
        "failed_pins",
        "failing",
        "failures",
        "followers",
        "host",
        "id",
        "kills",
        "on_stack",
        "parent",
        "pins",
        "plugin",
        "proceeding",
        "provisions",
        "rank",
        "realms",
        "removed",
        "replacement",
        "scope",
        "sealed",
        "stands_as",
        "starts",
        "state",
        "tasks",
        "undos",
    )

    def __init__(
        self, host: Host, parent: Mount | None, scope: Scope, plugin: Plugin, config: Any, id: str, realms: dict[Any, object]
    ) -> None:
        self.host = host
        self.parent = parent
        self.scope = scope
        self.plugin = plugin
        self.config = config
        self.id = id
        self.realms = realms
        self.rank = 0
        self.stands_as: tuple[int, ...] | None = None
        self.state = State.WAITING
        self.error: BaseException | None = None
        self.failures: list[tuple[str, BaseException]] = []
        self.children: dict[str, Mount] = {}
        self.effects: dict[Effect, None] = {}
        self.undos: list[tuple[str, Undo]] = []
        self.kills: list[Callable[[], None]] = []
        self.tasks: dict[asyncio.Task[Any], str] = {}
        self.pins: dict[Any, Provision] = {}
        self.failed_pins: dict[Any, Provision] | None = None
        self.provisions: list[Provision] = []
        self.starts = 0
        self.sealed = True  # until it starts
        self.removed = False
        self.failing = False
        self.proceeding = False
        self.on_stack = False
        self.abandoned = False
        self.replacement: tuple[Plugin, Any] | None = None
        self.blocked_by: set[Mount] = set()
        self.blocks: list[Mount] = []
        self.after: dict[Mount, None] = {}
        self.followers: dict[Mount, None] = {}
        self._sequence = 0
        self._generator: Any = None
        self._task: asyncio.Task[None] | None = None
        self._go: asyncio.Future[None] | None = None
        self._throw: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._phase_over = False

    def __repr__(self) -> str:
        return f"<Mount {self.label} {self.state.value}>"

    @property
    def label(self) -> str:
        """The ids from the top down, as in ``research/web``."""
        return self.id if self.parent is None or self.parent.parent is None else f"{self.parent.label}/{self.id}"

    @property
    def path(self) -> tuple[int, ...]:
        """The ranks from the top down: what views are ordered by."""
        if self.stands_as is not None:
            return self.stands_as
        return (self.rank,) if self.parent is None else (*self.parent.path, self.rank)

    @property
    def missing(self) -> list[str]:
        """The names of needed services that nobody provides."""
        return [key_name(key) for key in self.plugin.needs if self.host.lookup(self, key) is None]

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def describe(self, indent: str = "") -> str:
        """The tree of what this mount holds, a line each."""
        lines = [f"{indent}{self.id} [{self.state.value}]"]
        lines += [f"{indent}  · {effect.label}" for effect in self.effects]
        lines += [f"{indent}  ↩ {label}" for label, _ in self.undos]
        lines += [f"{indent}  ⟳ {label}" for label in self.tasks.values()]
        lines += [child.describe(indent + "  ") for child in self.children.values()]
        return "\n".join(lines)

    # what others may ask for

    async def ready(self) -> None:
        """Wait until this mount is active.

        :raises Exception: the error of its start, if it failed.
        :raises KernelError: if it was stopped instead, or cancelled.
        :raises WouldWaitForItself: if its start waits for the caller.
        """
        with self.host.waiting_for(self, start=True):
            while self.state is not State.ACTIVE:
                if self.state is State.FAILED:
                    raise self._failure()
                if self.state is State.STOPPED:
                    raise KernelError(f"{self.label} was stopped", owner=self.label)
                await self.host.changed()

    def _failure(self) -> Exception:
        """Its error as one that may be raised to others: its cancellation is not theirs."""
        if isinstance(self.error, Exception):
            return self.error
        failure = KernelError(f"{self.label} failed: {type(self.error).__name__}", owner=self.label)
        failure.__cause__ = self.error
        return failure

    def request_stop(self) -> None:
        """Seal this mount and all that depends on it now; the rest of the stop follows. Never waits."""
        self.host.stop((self,))

    async def stop(self) -> None:
        """Stop this mount and wait until it, its children and its dependents have ended.

        :raises WouldWaitForItself: if the caller is part of what would have to end first; nothing is stopped then.
        """
        with self.host.waiting_for(self):
            self.host.stop((self,))
            while self.state is not State.STOPPED:
                await self.host.changed()

    async def replace(self, plugin: Plugin | None = None, config: Any = None) -> None:
        """Stop this mount, start it again as ``plugin`` with ``config``, and with it, once each, whatever used its services.

        :param plugin: None keeps plugin and configuration.
        :raises Exception: the error of the new start; the mount is failed then.
        :raises WouldWaitForItself: if the caller is part of what would have to end first.
        :raises KernelError: if it was stopped before.
        """
        if self.removed:
            raise KernelError(f"{self.label} was stopped", remedy="mount the plugin anew", owner=self.label)
        with self.host.waiting_for(self):
            batch = self.host.restart((self,), (plugin, config) if plugin is not None else None)
            for mount in batch:
                while not mount.settled:
                    await self.host.changed()
        if self.state is State.FAILED:
            raise self._failure()

    @property
    def settled(self) -> bool:
        """Whether nothing will happen here unless something else does."""
        if self.state is State.WAITING:
            return not self.after and not self.host.can_start(self)
        return self.state in (State.ACTIVE, State.STOPPED, State.FAILED)

    def record(self, what: str, error: BaseException) -> None:
        """Keep a failure that stops nothing."""
        self.failures.append((what, error))
        self.host.contain(f"{self.label}: {what}", error)

    # starting

    def start(self) -> None:
        """Run the body. Synchronous bodies are active or failed when this returns."""
        self.state = State.STARTING
        self.sealed = False
        self.error = None
        self.starts += 1
        ctx = self.host.context(self)
        plugin = self.plugin
        self.on_stack = True  # its own body may ask for its stop
        fatal: BaseException | None = None
        try:
            if plugin.kind is Kind.ASYNC:
                self._go = asyncio.get_running_loop().create_future()
                self._task = asyncio.create_task(self._drive(plugin.body(ctx, self.config)), name=f"mount {self.label}")
                self.on_stack = False
                return
            if plugin.kind is Kind.FUNCTION:
                plugin.body(ctx, self.config)
            else:
                self._generator = plugin.body(ctx, self.config)
                next(self._generator)
        except BaseException as error:
            self._generator = self._go = None
            self.on_stack = False
            fatal = error if isinstance(error, EXITS) else None
            if isinstance(error, StopIteration):
                error = ExitedError(f"{self.label} ended before its yield", owner=self.label)
            self.host.fail(self, error)
        else:
            self.on_stack = False
            self.host.activated(self)
        if fatal is not None:
            raise fatal

    def spawn(self, coroutine: Coroutine[Any, Any, Any], label: str) -> None:
        async def run() -> None:
            current_mount.set(self)
            await coroutine

        task = asyncio.create_task(run(), name=f"{self.label}: {label}")
        self.tasks[task] = label

        def done(task: asyncio.Task[Any]) -> None:
            coroutine.close()  # it may never have had a turn
            self._task_done(task)

        task.add_done_callback(done)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        label = self.tasks.pop(task, "task")
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        if self.sealed or self.parent is None:  # the program's own tasks are no reason to stop every mount
            self.record(label, error)
        else:
            self.host.fail(self, error)

    # ending

    def seal(self) -> None:
        """Phase 1: take back everything registered, last first. Holders keep what they hold."""
        self.sealed = True
        for effect in reversed(tuple(self.effects)):
            effect.withdraw()

    def fail(self, error: BaseException) -> None:
        """Remember why this mount is failing; a generator that stands at its yield has it thrown in."""
        if self.error is None:
            self.error = error
        if self._throw is None:
            self._throw = error

    def proceed(self) -> None:
        """Phases 2 to 4, once dependents and children have ended."""
        if self._go is not None:
            if not self._go.done():
                self._go.set_result(None)
        elif self.tasks:
            self._task = asyncio.create_task(self._finish(), name=f"stop {self.label}")
        else:
            self._resume()
            self._run_undos()

    def _resume(self) -> None:
        """Phase 3 of a plain generator."""
        generator, self._generator = self._generator, None
        if generator is None:
            return
        try:
            if self._throw is not None:
                generator.throw(self._throw)
            else:
                next(generator)
        except StopIteration:
            return
        except (Exception, asyncio.CancelledError) as error:
            if error is not self._throw:
                self.record("stopping", error)
            return
        self.record("stopping", KernelError(f"{self.label} has a second yield", owner=self.label))
        generator.close()

    def _run_undos(self) -> None:
        """Phase 4, as far as it goes without waiting."""
        while self.undos:
            label, undo = self.undos.pop()
            try:
                result = undo()
            except (Exception, asyncio.CancelledError) as error:
                self.record(label, error)
                continue
            if inspect.isawaitable(result):
                self._task = asyncio.create_task(self._finish((label, result)), name=f"stop {self.label}")
                return
        self._end()

    async def _finish(self, pending: tuple[str, Awaitable[None]] | None = None) -> None:
        """The rest of a stop that has to wait: for spawned tasks, or for an undo."""
        current_mount.set(self)
        self._limit(self.plugin.stop_limit, "stop")
        try:
            if pending is None:
                await self.cancel_tasks()
                self._resume()
            await self._await_undos(pending)
        finally:
            self._over()
        self._end()

    async def cancel_tasks(self) -> None:
        while self.tasks:
            for task in self.tasks:
                task.cancel()
            try:
                await asyncio.wait(tuple(self.tasks))
            except asyncio.CancelledError:
                self._check_limit()

    async def _await_undos(self, pending: tuple[str, Awaitable[None]] | None = None) -> None:
        while pending is not None or self.undos:
            label = "undo"
            try:
                if pending is None:
                    label, undo = self.undos.pop()
                    result = undo()
                    if inspect.isawaitable(result):
                        await result
                else:
                    (label, result), pending = pending, None
                    await result
            except asyncio.CancelledError as error:
                self._check_limit()
                self.record(label, error)
            except Exception as error:
                self.record(label, error)

    async def _drive(self, generator: Any) -> None:
        """The life of an asynchronous mount, in the one task that touches its generator."""
        current_mount.set(self)
        ended = True
        self._limit(self.plugin.start_limit, "start")
        try:
            await generator.__anext__()
            ended = False
        except StopAsyncIteration:
            self._start_failed(ExitedError(f"{self.label} ended before its yield", owner=self.label))
        except BaseException as error:
            self._start_failed(error)
        else:
            self._over()
            if not self.abandoned:
                self.host.activated(self)
        if not self.abandoned:
            await self._wait_for_go(ended)
        self._limit(self.plugin.stop_limit, "stop")
        try:
            await self.cancel_tasks()
            if not ended:
                await self._leave(generator)
            await self._await_undos()
        finally:
            self._over()
        fatal = self._throw if isinstance(self._throw, EXITS) else None
        self._end()
        if fatal is not None:
            raise fatal

    def _start_failed(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and self._phase_over:
            error = LimitError(
                f"{self.label} did not start within {self.plugin.start_limit:g} s",
                remedy="raise start_limit of the plugin, or look at what its start waits for",
                owner=self.label,
            )
        self._over()
        if not self.abandoned:
            self.host.fail(self, error)

    async def _wait_for_go(self, ended: bool) -> None:
        assert self._go is not None
        while True:
            try:
                await asyncio.shield(self._go)
                return
            except asyncio.CancelledError as error:
                # A task group in the body, a scope across the yield, or the end of the loop: the generator shall hear of it.
                if self._go.cancelled():
                    raise
                self.host.fail(self, error)

    async def _leave(self, generator: Any) -> None:
        """Phase 3 of an asynchronous generator: resume it, or throw in what reached it; never ``aclose``."""
        thrown = self._throw
        for _ in range(3):
            try:
                if thrown is not None:
                    await generator.athrow(thrown)
                else:
                    await generator.__anext__()
            except StopAsyncIteration:
                if isinstance(thrown, asyncio.CancelledError) and not self._phase_over:
                    self.error = ExitedError(f"{self.label} ended without being asked", owner=self.label)
                return
            except BaseException as error:
                if isinstance(error, EXITS):
                    self._throw = error
                if self._phase_over and isinstance(error, asyncio.CancelledError):
                    error = self._stop_error()
                if thrown is not None and (self.error is thrown or self.error is None):
                    self.error = error
                elif error is not thrown:
                    self.record("stopping", error)
                return
            # It yielded again: tell it so, and let its own clean-up run.
            thrown = KernelError(f"{self.label} has a second yield", owner=self.label)
            self.record("stopping", thrown)

    def _stop_error(self) -> LimitError:
        return LimitError(
            f"{self.label} did not stop within {self.plugin.stop_limit:g} s",
            remedy="raise stop_limit of the plugin, or look at what its clean-up waits for",
            owner=self.label,
        )

    # limits

    def _limit(self, seconds: float, phase: str) -> None:
        if self.abandoned:
            return
        self._phase_over = False
        self._timer = asyncio.get_running_loop().call_later(seconds, self._overdue, phase)

    def _over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_limit(self) -> None:
        """A cancellation that is not our own limit is none of the mount's clean-up's business: go on."""
        if self._phase_over:
            self.record("stopping", self._stop_error())

    def _overdue(self, phase: str) -> None:
        self._phase_over = True
        if self._task is not None:
            self._task.cancel()
        self._timer = asyncio.get_running_loop().call_later(self.host.grace, self._abandon, phase)

    def _abandon(self, phase: str) -> None:
        """It does not even heed cancellation: leave it behind, sealed and reported."""
        self._timer = None
        self.abandoned = True
        for kill in reversed(self.kills):
            try:
                kill()
            except Exception as error:
                self.record("last resort", error)
        limit = self.plugin.start_limit if phase == "start" else self.plugin.stop_limit
        error = LimitError(f"{self.label} did not {phase} within {limit:g} s and did not heed cancellation; abandoned", owner=self.label)
        self.error = error
        self.host.abandon(self, error)

    def _end(self) -> None:
        if self.abandoned:
            return
        self._forget()
        self.host.ended(self)

    def _forget(self) -> None:
        self._generator = self._task = self._go = self._throw = None
        self._phase_over = False
        self.kills.clear()
