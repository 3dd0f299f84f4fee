"""The host: the root of mounts and scopes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from hames.content.errors import DuplicateError, SealedError, WouldWaitForItself
from hames.kernel.context import Context
from hames.kernel.keys import AnyKey, key_name
from hames.kernel.mount import Effect, Mount, State, current_mount
from hames.kernel.plan import LIVE, Planner, closure
from hames.kernel.plugin import Kind, Plugin
from hames.kernel.scope import Provision, Scope, veiled

T = TypeVar("T")
log = logging.getLogger("hames.kernel")
# Whoever uses Hames says where its log goes; without a word it goes nowhere.
logging.getLogger("hames").addHandler(logging.NullHandler())


class Registry(Protocol):
    """What has views that depend on order and on what scopes hide."""

    def freeze(self, ctx: Context) -> list[Effect]: ...

    def forget_views(self) -> None: ...


def _nothing(ctx: Context, config: Any) -> None:
    """The body of the root mount."""


class Host(Planner):
    """The root of a tree of mounts and of a chain of scopes.

    :param grace: seconds between cancelling a mount that is past its limit and abandoning it.
    :ivar ctx: the context of the program that owns the host.
    :ivar problems: the last contained failures, as (what, error).
    :ivar abandoned: mounts that did not heed cancellation.
    """

    def __init__(self, *, grace: float = 5.0) -> None:
        super().__init__()
        self.grace = grace
        self.problems: deque[tuple[str, BaseException]] = deque(maxlen=256)
        self.abandoned: list[Mount] = []
        self.watchers: list[asyncio.Future[None]] = []
        self.registries: WeakKeyDictionary[Registry, None] = WeakKeyDictionary()
        self._cachers: dict[type[Any], set[Scope]] = {}
        self._waits: dict[Mount, list[tuple[Mount, bool]]] = {}
        self.root_scope = Scope(self, None, "host")
        self.root = Mount(self, None, self.root_scope, Plugin("host", _nothing, Kind.FUNCTION), None, "host", {})
        self.root.state = State.ACTIVE
        self.root.sealed = False
        self.ctx = Context(self, self.root, self.root_scope)

    # scopes and mounts

    def scope(self, parent: Scope | None = None, key: object = "") -> Scope:
        """Open a scope below ``parent`` (the host's own where it is None).

        :raises SealedError: if the parent is closed.
        """
        return Scope(self, parent or self.root_scope, key)

    def mount(
        self,
        plugin: Plugin,
        config: Any = None,
        *,
        id: str = "",
        scope: Scope | None = None,
        parent: Mount | None = None,
        isolate: Mapping[Any, object] | None = None,
        rank: int | None = None,
    ) -> Mount:
        """Apply a plugin. It starts at once if what it needs is there, else it waits.

        :param id: unique among its siblings; by default the plugin's name, numbered.
        :param isolate: per key ``True`` for a private instance of a service, or a label that names a shared one.
        :param rank: its place among its siblings in ordered views; by default after them.
        :raises DuplicateError: if a sibling has this id.
        :raises SealedError: if the parent or the scope is going away.
        """
        parent = parent or self.root
        scope = scope or parent.scope
        if parent.removed or scope.closed or (parent.sealed and parent.state is not State.WAITING):
            raise SealedError(f"{parent.label} mounts {id or plugin.name} after it was sealed", owner=parent.label)
        if not id:
            id = plugin.name if plugin.name not in parent.children else f"{plugin.name}#{parent.next_sequence()}"
        if id in parent.children:
            raise DuplicateError(f"{parent.label} has a mount {id!r} already", remedy="give one of the two another id", owner=id)
        realms = parent.realms
        mount = Mount(self, parent, scope, plugin, config, id, realms)
        if isolate:
            inside = {key: mount if how is True else how if isinstance(how, Mount) else str(how) for key, how in isolate.items()}
            mount.realms = {**realms, **inside}
        mount.rank = parent.next_sequence() if rank is None else rank
        parent.children[id] = mount
        scope.mounts[mount] = None
        self.enter(mount)
        return mount

    @contextmanager
    def hold(self) -> Generator[None]:
        """Start nothing inside, then everything that can: many mounts as one step."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self.pump()

    def context(self, mount: Mount) -> Context:
        return Context(self, mount, mount.scope)

    # services

    def provide(self, ctx: Context, key: Any, value: Any) -> None:
        mount, scope = ctx.owner, ctx.scope
        realm = mount.realms.get(key)
        other = scope.provisions.get((key, realm))
        if other is not None:
            raise DuplicateError(
                f"{key_name(key)} of {mount.label} is already provided by {other.mount.label}",
                remedy="remove one of the two rows, or isolate the service for one of them",
                owner=mount.label,
            )
        provision = Provision(key, realm, scope, value, mount)

        def withdraw() -> None:
            if scope.provisions.get((key, realm)) is provision:
                del scope.provisions[(key, realm)]
            if not mount.sealed:  # the scope ends before its owner
                mount.provisions.remove(provision)

        ctx.effect(f"provides {key_name(key)}", withdraw)
        scope.provisions[(key, realm)] = provision
        mount.provisions.append(provision)
        changed = self._affected(provision)
        if changed:
            self.restart(changed)
        else:
            self.pump()

    def get(self, key: AnyKey[T], scope: Scope | None = None) -> T | None:
        """The value that ``scope`` sees under a key now. For callers that resolve at each use and own no mount."""
        start = scope or self.root_scope
        veils = start.hidden()
        for each in start.chain():
            provision = each.provisions.get((key, None))
            if provision is None or provision.mount.state is not State.ACTIVE or provision.mount.sealed:
                continue
            if not veils or not veiled(provision.mount, veils, services=True):
                return provision.value
        return None

    def veiled(self, scope: Scope, *, services: bool) -> None:
        """What a scope hides has changed; services too, or not."""
        for registry in self.registries:
            registry.forget_views()
        for each in scope.below():
            for event in each.cached_events:
                self.forget_cached(event)
        if not services:
            return
        changed = {
            mount: None
            for each in scope.below()
            for mount in each.mounts
            if mount.state in LIVE and not mount.sealed and self._otherwise(mount)
        }
        waiting = (mount for each in scope.below() for mount in each.mounts if mount.state in (State.WAITING, State.FAILED))
        self._pending.update(dict.fromkeys(waiting))
        if changed:
            self.restart(changed)
        else:
            self.pump()

    def resume(self, scope: Scope) -> None:
        """Start what waits in a scope that is held no more."""
        self._pending.update((mount, None) for mount in scope.mounts if mount.state in (State.WAITING, State.FAILED))
        self.pump()

    def _otherwise(self, mount: Mount) -> bool:
        """Whether a mount would be given another service now."""
        return any(self.lookup(mount, key) is not mount.pins.get(key) for key in (*mount.plugin.needs, *mount.plugin.wants))

    # ending

    async def close_scope(self, scope: Scope) -> None:
        scopes = list(scope.below())
        mounts = [mount for each in reversed(scopes) for mount in each.mounts]
        with self.waiting_for(*mounts):
            for each in scopes:
                each.closed = True
            if mounts:
                self.stop(mounts)
            for each in scopes:
                for effect in reversed(tuple(each.borrowed)):
                    effect.withdraw()
            while any(mount.state is not State.STOPPED for mount in mounts):
                await self.changed()
        for each in scopes:
            self._detach(each)

    def _detach(self, scope: Scope) -> None:
        for event in scope.cached_events:
            cachers = self._cachers.get(event)
            if cachers is not None:
                cachers.discard(scope)
                if not cachers:
                    del self._cachers[event]
        scope.drop_cache()
        if scope.parent is not None:
            scope.parent.children.pop(scope, None)

    async def close(self) -> None:
        """Stop everything. Does not wait for mounts that were abandoned."""
        await self.close_scope(self.root_scope)
        self.root.seal()
        await self.root.cancel_tasks()
        for label, undo in reversed(self.root.undos):
            try:
                result = undo()
                if result is not None:
                    await result
            except Exception as error:
                self.root.record(label, error)
        self.root.undos.clear()

    async def __aenter__(self) -> Host:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def abandon(self, mount: Mount, error: BaseException) -> None:
        """Go on without a mount that neither ends nor heeds cancellation."""
        self.abandoned.append(mount)
        self.contain(mount.label, error)
        if not mount.sealed:
            mount.failing = True
            for child in mount.children.values():
                self._remove(child)
            self._wind_down(closure((mount,)))
        mount.removed = True
        for other in tuple(mount.blocked_by):
            other.blocks.remove(mount)
        mount.blocked_by.clear()
        self.ended(mount)

    # observing

    async def changed(self) -> None:
        """Wait for the next change of any mount's state."""
        future = asyncio.get_running_loop().create_future()
        self.watchers.append(future)
        await future

    def notify(self) -> None:
        if self.watchers:
            watchers, self.watchers = self.watchers, []
            for future in watchers:
                if not future.done():
                    future.set_result(None)

    async def settle(self) -> None:
        """Wait until no mount is starting or stopping.

        :raises WouldWaitForItself: if the caller is starting or stopping itself.
        """
        waiter = current_mount.get()
        if waiter is not None and waiter in self.moving:
            raise WouldWaitForItself(
                f"{waiter.label} waits for its own start or stop", remedy="wait in a task of your own", owner=waiter.label
            )
        while self.moving:
            await self.changed()

    def contain(self, what: str, error: BaseException) -> None:
        """Record a failure that must not go further."""
        self.problems.append((what, error))
        log.warning("%s: %s: %s", what, type(error).__name__, error, exc_info=error if log.isEnabledFor(logging.DEBUG) else None)

    @contextmanager
    def waiting_for(self, *mounts: Mount, start: bool = False) -> Generator[None]:
        """Mark that the running mount waits for the end of others, or for the start of one.

        :raises WouldWaitForItself: if one of those, or what has to happen before, waits for the running one.
        """
        waiter = current_mount.get()
        if waiter is None:
            yield
            return
        seen: set[Mount] = set()
        todo = [(mount, start) for mount in mounts]
        while todo:
            mount, starting = todo.pop()
            for member in (mount, *self.awaited(mount)) if starting else closure((mount,)):
                if member is waiter:
                    raise WouldWaitForItself(
                        f"{waiter.label} waits for {mount.label}, which waits for {waiter.label}",
                        remedy="use request_stop(), or wait in a task of your own",
                        owner=waiter.label,
                    )
                if member not in seen:
                    seen.add(member)
                    todo.extend(self._waits.get(member, ()))
                    if starting and member is not mount:
                        todo.append((member, True))
        waits = self._waits.setdefault(waiter, [])
        waiting = [(mount, start) for mount in mounts]
        waits.extend(waiting)
        try:
            yield
        finally:
            for entry in waiting:
                waits.remove(entry)
            if not waits:
                self._waits.pop(waiter, None)

    def reorder(self, ranks: Mapping[Mount, int]) -> None:
        """Give mounts new places among their siblings; all ordered views follow."""
        for mount, rank in ranks.items():
            mount.rank = rank
        for registry in self.registries:
            registry.forget_views()
        for event in tuple(self._cachers):
            self.forget_cached(event)

    def cached_in(self, event: type[Any], scope: Scope) -> None:
        self._cachers.setdefault(event, set()).add(scope)

    def forget_cached(self, event: type[Any]) -> None:
        for scope in self._cachers.pop(event, ()):
            scope.drop_cache(event)
