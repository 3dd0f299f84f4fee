"""Scopes: who sees what. A chain from the host down; each sees what its ancestors hold, nearest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hames.content.errors import SealedError
from hames.kernel.events import Handler, check_handler

if TYPE_CHECKING:
    from hames.kernel.host import Host
    from hames.kernel.mount import Effect, Mount


class Listener:
    """One subscription; its place among others is declared, never a matter of time."""

    __slots__ = ("event", "handler", "mount", "order", "sequence")

    def __init__(self, event: type[Any], handler: Handler, order: int, mount: Mount) -> None:
        self.event = event
        self.handler = handler
        self.order = order
        self.mount = mount
        self.sequence = mount.next_sequence()

    @property
    def rank(self) -> tuple[int, tuple[int, ...], int]:
        return (self.order, self.mount.path, self.sequence)


class Provision:
    """One value provided under a key. Others see it when its mount is active, its own subtree at once."""

    __slots__ = ("key", "mount", "realm", "scope", "users", "value")

    def __init__(self, key: Any, realm: object, scope: Scope, value: Any, mount: Mount) -> None:
        self.key = key
        self.realm = realm
        self.scope = scope
        self.value = value
        self.mount = mount
        self.users: dict[Mount, None] = {}


def veiled(mount: Mount, veils: Mapping[Mount, bool], *, services: bool = False) -> bool:
    """Whether a mount, or one that it stands below, is among those.

    :param services: only where its services are not seen either.
    """
    each: Mount | None = mount
    while each is not None:
        if each in veils and (not services or veils[each]):
            return True
        each = each.parent
    return False


class Scope:
    """A place in the chain host → workspace → preset → agent.

    :param key: what the scope is for, for people and for look-ups by identity.
    :ivar held: whether nothing here starts for now.
    :ivar staging: whether mounts that start here are not seen at first.
    :ivar veils: mounts whose registrations are not seen from here and below, with whether their services are not seen either.
    """

    __slots__ = (
        "_cached",
        "_listeners",
        "borrowed",
        "children",
        "closed",
        "held",
        "host",
        "key",
        "mounts",
        "parent",
        "provisions",
        "staging",
        "veils",
    )

    def __init__(self, host: Host, parent: Scope | None, key: object) -> None:
        self.host = host
        self.parent = parent
        self.key = key
        self.closed = False
        self.children: dict[Scope, None] = {}
        self.mounts: dict[Mount, None] = {}
        self.borrowed: dict[Effect, None] = {}
        self.provisions: dict[tuple[Any, object], Provision] = {}
        self.veils: dict[Mount, bool] = {}
        self.staging = False
        self.held = False
        self._listeners: dict[type[Any], list[Listener]] = {}
        self._cached: dict[type[Any], tuple[Handler, ...]] = {}
        if parent is not None:
            if parent.closed:
                raise SealedError(f"scope {parent.key!r} is closed", owner=str(key))
            parent.children[self] = None

    def __repr__(self) -> str:
        return f"<Scope {self.key!r}>"

    def hidden(self) -> dict[Mount, bool]:
        """What this scope and its ancestors hide; with whether services are hidden, too."""
        found: dict[Mount, bool] = {}
        for scope in self.chain():
            for mount, services in scope.veils.items():
                found[mount] = services or found.get(mount, False)
        return found

    def chain(self) -> Iterator[Scope]:
        """This scope, then its ancestors."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def below(self) -> Iterator[Scope]:
        """All scopes below this one, deepest first, then this one."""
        for child in tuple(self.children):
            yield from child.below()
        yield self

    def handlers(self, event: type[Any]) -> tuple[Handler, ...]:
        """Who hears an event that is dispatched here: listeners of this scope and of its ancestors, in declared order."""
        found = self._cached.get(event)
        if found is None:
            if self.parent is not None and event not in self._listeners and not self.veils:
                return self.parent.handlers(event)
            veils = self.hidden()
            entries = [entry for scope in self.chain() for entry in scope._listeners.get(event, ())]
            if veils:
                entries = [entry for entry in entries if not veiled(entry.mount, veils)]
            entries.sort(key=lambda entry: entry.rank)
            found = self._cached[event] = tuple(entry.handler for entry in entries)
            self.host.cached_in(event, self)
        return found

    def subscribe(self, listener: Listener) -> None:
        check_handler(listener.event, listener.handler)
        self._listeners.setdefault(listener.event, []).append(listener)
        self.host.forget_cached(listener.event)

    def unsubscribe(self, listener: Listener) -> None:
        entries = self._listeners.get(listener.event)
        if entries is None:
            return
        # Whole mounts leave in reverse, so what is removed stands near the end.
        for index in range(len(entries) - 1, -1, -1):
            if entries[index] is listener:
                del entries[index]
                break
        if not entries:
            del self._listeners[listener.event]
        self.host.forget_cached(listener.event)

    def drop_cache(self, event: type[Any] | None = None) -> None:
        """Forget the merged handlers of one event, or of all."""
        if event is None:
            self._cached.clear()
        else:
            self._cached.pop(event, None)

    @property
    def cached_events(self) -> tuple[type[Any], ...]:
        return tuple(self._cached)

    @property
    def listener_count(self) -> int:
        return sum(map(len, self._listeners.values()))

    def veil(self, changes: Mapping[Mount, bool | None]) -> None:
        """Hide from here and below what these mounts registered; with True their services too, with None not any more.

        Who has used a service that is not seen any more is started again with what is seen now.
        """
        services = False
        for mount, how in changes.items():
            services |= bool(how) != self.veils.get(mount, False)
            if how is None:
                self.veils.pop(mount, None)
            else:
                self.veils[mount] = how
        self.host.veiled(self, services=services)

    async def close(self) -> None:
        """End everything that lives here or below: mounts stop, borrowed registrations are withdrawn, the scope leaves the chain."""
        await self.host.close_scope(self)
