"""What a plugin's body is given: the one way to register, to use services and to speak to others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from hames.content.errors import MissingServiceError, SealedError
from hames.kernel.events import Around, Ask, Handler, Notice, call_around, snapshot
from hames.kernel.keys import AnyKey, key_name
from hames.kernel.mount import Effect, Mount, Undo
from hames.kernel.plugin import Plugin
from hames.kernel.scope import Listener, Scope

if TYPE_CHECKING:
    from hames.kernel.host import Host

T = TypeVar("T")


class Context:
    """A mount's view from one scope.

    Everything registered through a context is owned by its mount and seen from its scope; it is withdrawn when either ends.
    """

    __slots__ = ("_start", "host", "owner", "scope")

    def __init__(self, host: Host, owner: Mount, scope: Scope) -> None:
        self.host = host
        self.owner = owner
        self.scope = scope
        self._start = owner.starts

    def __repr__(self) -> str:
        return f"<Context of {self.owner.label} in {self.scope!r}>"

    @property
    def live(self) -> bool:
        """Whether something can still be registered here."""
        return not (self.owner.sealed or self.scope.closed or self.owner.starts != self._start)

    def _check(self, what: str) -> None:
        if not self.live:
            raise SealedError(
                f"{self.owner.label} {what} after it was sealed",
                remedy="check ctx.live before registering from a task or a callback",
                owner=self.owner.label,
            )

    def at(self, scope: Scope) -> Context:
        """The same owner, another scope: registering on behalf of somebody else.

        What is registered through it is seen in ``scope`` and lives while both live.
        """
        context = Context(self.host, self.owner, scope)
        context._start = self._start
        return context

    # services

    def _check_start(self, key: object) -> None:
        if self.owner.starts != self._start:
            raise SealedError(f"{self.owner.label} asks for {key_name(key)} after it was started anew", owner=self.owner.label)

    def use(self, key: AnyKey[T]) -> T:
        """A service that the plugin declared in ``needs``; the same object for as long as this start lasts.

        :raises MissingServiceError: if the plugin did not declare it.
        :raises SealedError: if that start is over.
        """
        self._check_start(key)
        pin = self.owner.pins.get(key)
        if pin is None:
            raise MissingServiceError(
                f"{self.owner.label} uses {key_name(key)} without declaring it",
                remedy="add it to the plugin's needs, or to wants and take it with find()",
                owner=self.owner.label,
            )
        return pin.value

    def find(self, key: AnyKey[T]) -> T | None:
        """A service that the plugin declared in ``wants`` or ``needs``, or None where nobody provides it.

        :raises MissingServiceError: if the plugin declared it in neither.
        :raises SealedError: if the start of this context is over.
        """
        self._check_start(key)
        if key not in self.owner.plugin.wants and key not in self.owner.plugin.needs:
            return self.use(key)
        pin = self.owner.pins.get(key)
        return None if pin is None else pin.value

    def provide(self, key: AnyKey[T], value: T) -> None:
        """Offer a service. This mount's subtree sees it at once, everyone else when this mount is active.

        :raises DuplicateError: if this scope has a provider already; names both.
        """
        self.host.provide(self, key, value)

    # registering

    def effect(self, label: str, withdraw: Callable[[], None]) -> Effect:
        """Record how a registration is taken back. Every registry uses this door.

        :param withdraw: synchronous and idempotent; run when this mount is sealed, in reverse order.
        :raises SealedError: if the owner or the scope is going away; nothing may be registered then.
        """
        self._check(f"registers {label!r}")
        mount = self.owner
        effect = Effect(label, withdraw, mount)
        mount.effects[effect] = None
        if self.scope is not mount.scope:
            effect.scope = self.scope
            self.scope.borrowed[effect] = None
        return effect

    def on(self, event: type[Any], handler: Handler, *, order: int = 0) -> Effect:
        """Listen. A listener hears the events of its scope and of the scopes below it, lower ``order`` first.

        :raises TypeError: if the handler does not fit how the event is dispatched.
        """
        scope = self.scope
        listener = Listener(event, handler, order, self.owner)
        effect = self.effect(event.__name__, lambda: scope.unsubscribe(listener))
        try:
            scope.subscribe(listener)
        except TypeError:
            effect.withdraw()
            raise
        return effect

    def defer(self, undo: Undo, label: str = "undo") -> None:
        """Run ``undo`` as the last phase of this mount's stop, in reverse order; it may return an awaitable.

        :raises SealedError: if the mount is already going away.
        """
        self._check(f"defers {label!r}")
        self.owner.undos.append((label, undo))

    def last_resort(self, kill: Callable[[], None]) -> None:
        """Run ``kill`` if this mount neither starts nor stops in its time and is abandoned: end what it holds in the system."""
        if self.owner.starts == self._start:
            self.owner.kills.append(kill)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], label: str = "task") -> None:
        """Run a coroutine that this mount owns: cancelled and awaited when it stops; if it raises, the mount fails.

        :raises SealedError: if the mount is already going away.
        """
        if not self.live:
            coroutine.close()
        self._check(f"spawns {label!r}")
        self.owner.spawn(coroutine, label)

    def mount(self, plugin: Plugin, config: Any = None, *, id: str = "", isolate: Mapping[Any, object] | None = None) -> Mount:
        """Mount a plugin below this one; it stops with this one, and before it.

        :param isolate: per key ``True`` for a private instance of a service, or a label that names a shared one.
        :raises SealedError: if this mount is going away.
        """
        self._check(f"mounts {plugin.name}")
        return self.host.mount(plugin, config, id=id, isolate=isolate, parent=self.owner, scope=self.scope)

    # speaking

    def emit(self, notice: Notice, *, at: Scope | None = None) -> None:
        """Tell the listeners of a scope and of its ancestors. Their failures are recorded and go no further."""
        scope = self.scope if at is None else at
        cls = notice.__class__
        handlers = scope.handlers(cls)
        for handler in handlers:
            try:
                handler(snapshot(notice))
            except Exception as error:
                self.host.contain(f"a listener of {cls.__name__}", error)

    async def ask(self, question: Ask[T], *, at: Scope | None = None) -> T | None:
        """The first answer, or None where nobody answers. A listener that fails is recorded and has not answered."""
        for handler in (self.scope if at is None else at).handlers(question.__class__):
            try:
                answer = await handler(question)
            except Exception as error:
                self.host.contain(f"a listener of {question.__class__.__name__}", error)
                continue
            if answer is not None:
                return answer
        return None

    async def around(self, call: Around[T], inner: Callable[[Any], Awaitable[T]], *, at: Scope | None = None) -> T:
        """Run ``inner(call)`` inside the listeners of the call; whatever they raise reaches the caller."""
        return await call_around((self.scope if at is None else at).handlers(call.__class__), call, inner)
