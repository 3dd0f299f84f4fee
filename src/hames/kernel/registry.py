"""Registries in layers, and the masks that narrow them.

A registry holds named entries, each in a scope. A view from a scope has, for every name, the nearest entry; masks of the scopes
on the way hide names. Views are ordered by (declared order, path of the row, sequence in the row), so they never depend on history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

from hames.content.errors import ConfigError, DuplicateError
from hames.kernel.context import Context
from hames.kernel.mount import Effect, Mount
from hames.kernel.scope import Scope, veiled

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Mask:
    """Which names a scope may see: what ``allow`` matches (everything where it is None) less what ``deny`` matches.

    Names may be patterns as in ``mcp__github__*``. An empty allow list is refused, since it is as often a mistake as a wish.

    :raises ConfigError: on an empty ``allow``; :meth:`none` says it on purpose.
    """

    allow: frozenset[str] | None = None
    deny: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.allow is not None and not self.allow:
            raise ConfigError("a list of allowed names is empty", remedy="name at least one, or say none on purpose with Mask.none()")

    @staticmethod
    def none() -> Mask:
        """The mask that hides everything."""
        return Mask(deny=frozenset({"*"}))

    def permits(self, name: str) -> bool:
        return (self.allow is None or matches(name, self.allow)) and not matches(name, self.deny)

    @property
    def names(self) -> frozenset[str]:
        return (self.allow or frozenset()) | (self.deny - {"*"})


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is one of these or matches one of them as a pattern."""
    return name in patterns or any(fnmatchcase(name, pattern) for pattern in patterns if "*" in pattern or "?" in pattern)


class Entry(Generic[T]):
    """A named value of one mount in one scope. A granted entry is seen in spite of the scope's seal."""

    __slots__ = ("granted", "mount", "name", "order", "scope", "sequence", "value")

    def __init__(self, name: str, value: T, order: int, granted: bool, scope: Scope, mount: Mount) -> None:
        self.name = name
        self.value = value
        self.order = order
        self.granted = granted
        self.scope = scope
        self.mount = mount
        self.sequence = mount.next_sequence()

    @property
    def rank(self) -> tuple[int, tuple[int, ...], int]:
        return (self.order, self.mount.path, self.sequence)


class Layer(Generic[T]):
    """What one scope contributes."""

    __slots__ = ("declared", "entries", "masks", "seals")

    def __init__(self) -> None:
        self.entries: dict[str, Entry[T]] = {}
        self.declared: list[str] = []
        self.masks: list[Mask] = []
        self.seals: list[Mask] = []

    @property
    def empty(self) -> bool:
        return not (self.entries or self.declared or self.masks or self.seals)


class Watcher(Generic[T]):
    """Somebody who hears of entries that come and go."""

    __slots__ = ("_ctx", "_removed", "added")

    def __init__(self, ctx: Context, added: Callable[[str, T], None], removed: Callable[[str], None]) -> None:
        self._ctx = ctx
        self.added = added
        self._removed = removed

    def tell_removed(self, kind: str, name: str) -> None:
        try:
            self._removed(name)
        except Exception as error:
            self._ctx.host.contain(f"{self._ctx.owner.label} heard that {kind} {name} has gone", error)


class Registry(Generic[T]):
    """Named entries in layers.

    :param kind: what messages call an entry, for example ``tool``.
    :param denies: entries only deny: nothing of what is inherited is ever kept hidden while a scope changes.
    """

    def __init__(self, kind: str, *, denies: bool = False) -> None:
        self.kind = kind
        self._denies = denies
        self._layers: dict[Scope, Layer[T]] = {}
        self._views: dict[Scope, dict[str, Entry[T]]] = {}
        self._watchers: dict[int, Watcher[T]] = {}

    def watch(self, ctx: Context, added: Callable[[str, T], None], removed: Callable[[str], None]) -> None:
        """Hear of every entry that comes and goes, in any scope, for the lifetime of ``ctx``.

        :param added: called when an entry has been registered; if it raises, the registration is undone and raises too.
        :param removed: called when one has gone; its failures are recorded and go no further.
        """
        watcher = Watcher(ctx, added, removed)

        def withdraw() -> None:
            self._watchers.pop(id(watcher), None)

        ctx.effect(f"watches {self.kind}s", withdraw)
        self._watchers[id(watcher)] = watcher

    def add(self, ctx: Context, name: str, value: T, *, order: int = 0, granted: bool = False) -> Effect:
        """Register an entry for the lifetime of ``ctx``.

        :param granted: seen even where a seal would hide it; for what the runner of an agent itself gives it.
        :returns: takes it back earlier.
        :raises DuplicateError: if the scope already has an entry of this name; names both owners.
        """
        entry = Entry(name, value, order, granted, ctx.scope, ctx.owner)
        held = self._layers.get(ctx.scope)
        other = held.entries.get(name) if held is not None else None
        if other is not None:
            raise DuplicateError(
                f"{self.kind} {name!r} of {ctx.owner.label} is already registered by {other.mount.label}",
                remedy="rename one of them, or remove one of the two rows",
                owner=ctx.owner.label,
            )

        def withdraw() -> None:
            layer = self._layers.get(entry.scope)
            if layer is not None and layer.entries.get(name) is entry:
                del layer.entries[name]
                self._changed(entry.scope)
                for watcher in tuple(self._watchers.values()):
                    watcher.tell_removed(self.kind, name)

        effect = ctx.effect(f"{self.kind} {name}", withdraw)
        self._layer(entry.scope).entries[name] = entry
        self._views.clear()
        try:
            for watcher in tuple(self._watchers.values()):
                watcher.added(name, value)
        except BaseException:
            effect.withdraw()
            raise
        return effect

    def declare(self, ctx: Context, pattern: str) -> None:
        """Say that names matching ``pattern`` may come later, so that masks may speak of them."""
        self._put(ctx, f"declares {self.kind} {pattern}", "declared", pattern)

    def mask(self, ctx: Context, mask: Mask) -> None:
        """Narrow what the scope of ``ctx`` inherits, for itself and all below it. Its own entries stay visible."""
        self._check(ctx.scope, mask, own=False)
        self._put(ctx, f"mask of {self.kind}s", "masks", mask)

    def seal(self, ctx: Context, mask: Mask) -> None:
        """Narrow everything that the scope of ``ctx`` sees, its own entries too, save granted ones."""
        self._check(ctx.scope, mask)
        self._put(ctx, f"seal of {self.kind}s", "seals", mask)

    def get(self, scope: Scope, name: str) -> T | None:
        """The entry that ``scope`` sees under ``name``, or None: a hidden one is as one that does not exist."""
        entry = self._view(scope).get(name)
        return None if entry is None else entry.value

    def view(self, scope: Scope) -> dict[str, T]:
        """All that ``scope`` sees, in order."""
        return {name: entry.value for name, entry in self._view(scope).items()}

    def entries(self, scope: Scope) -> dict[str, Entry[T]]:
        """All that ``scope`` sees, in order, with owner and order of each. Not to be changed."""
        return self._view(scope)

    def owners(self, scope: Scope) -> dict[str, str]:
        """For each visible name the row that owns it."""
        return {name: entry.mount.label for name, entry in self._view(scope).items()}

    def known(self, scope: Scope, pattern: str, *, own: bool = True) -> bool:
        """Whether a name or pattern speaks of something registered or declared in ``scope`` or above it, hidden or not.

        :param own: whether entries of the scope itself count, beside its declarations.
        """
        for layer in self._chain(scope):
            if (own or layer is not self._layers.get(scope)) and any(matches(name, (pattern,)) for name in layer.entries):
                return True
            if any(matches(pattern, (declared,)) or matches(declared, (pattern,)) for declared in layer.declared):
                return True
        return False

    def freeze(self, ctx: Context) -> list[Effect]:
        """Keep what the scope of ``ctx`` hides of what it inherits as it is now, until the returned effects are withdrawn: what its
        masks and seals hide, and what its own entries stand before; and what is hidden from scopes below it."""
        if self._denies:
            return []
        below = [scope for scope in self._layers if scope is not ctx.scope and ctx.scope in scope.chain()]
        return [*self._freeze_own(ctx), *(effect for scope in below for effect in self._freeze_masks(ctx.at(scope), self._layers[scope]))]

    def _freeze_own(self, ctx: Context) -> list[Effect]:
        layer = self._layers.get(ctx.scope)
        if layer is None or not (layer.entries or layer.masks or layer.seals):
            return []
        before = [Mask(deny=frozenset(layer.entries))] if layer.entries else []
        kept = self._freeze_masks(ctx, layer)
        return kept + [self._put(ctx, f"keeps {self.kind}s hidden", "masks", mask) for mask in before]

    def _freeze_masks(self, ctx: Context, layer: Layer[T]) -> list[Effect]:
        label, masks, seals = f"keeps {self.kind}s hidden", list(layer.masks), list(layer.seals)
        kept = [self._put(ctx, label, "masks", copy(mask)) for mask in masks]
        return kept + [self._put(ctx, label, "seals", copy(seal)) for seal in seals]

    def forget_views(self) -> None:
        """Rows have moved, or something is hidden: look again."""
        self._views.clear()

    @property
    def size(self) -> int:
        """How many entries, declarations and masks are held, over all scopes."""
        return sum(len(x.entries) + len(x.declared) + len(x.masks) + len(x.seals) for x in self._layers.values())

    def _check(self, scope: Scope, mask: Mask, *, own: bool = True) -> None:
        """
        :param own: whether entries of the scope itself may be spoken of; which of them are there yet depends on who started first.
        """
        unknown = sorted(name for name in mask.names if not self.known(scope, name, own=own))
        if unknown:
            raise ConfigError(
                f"unknown {self.kind} in a mask: {', '.join(unknown)}",
                remedy=f"known are {', '.join(sorted(name for layer in self._chain(scope) for name in layer.entries))}",
            )

    def _put(self, ctx: Context, label: str, slot: str, value: Any) -> Effect:
        scope = ctx.scope

        def withdraw() -> None:
            layer = self._layers.get(scope)
            held: list[Any] = getattr(layer, slot) if layer is not None else []
            for index, item in enumerate(held):
                if item is value:
                    del held[index]
                    self._changed(scope)
                    return

        effect = ctx.effect(label, withdraw)
        getattr(self._layer(scope), slot).append(value)
        self._views.clear()
        return effect

    def _layer(self, scope: Scope) -> Layer[T]:
        layer = self._layers.get(scope)
        if layer is None:
            layer = self._layers[scope] = Layer()
            scope.host.registries[self] = None
        return layer

    def _chain(self, scope: Scope) -> Iterable[Layer[T]]:
        return [layer for each in scope.chain() if (layer := self._layers.get(each)) is not None]

    def _changed(self, scope: Scope) -> None:
        self._views.clear()
        if self._layers[scope].empty:
            del self._layers[scope]

    def _view(self, scope: Scope) -> dict[str, Entry[T]]:
        found = self._views.get(scope)
        if found is not None:
            return found
        layer = self._layers.get(scope)
        if layer is None and not scope.veils:
            return self._view(scope.parent) if scope.parent is not None else {}  # never cached: what holds nothing leaves nothing behind
        veils = scope.hidden()
        seen = self._built(scope, veils) if scope.veils else self._narrowed(scope, self._view(scope.parent) if scope.parent else {}, veils)
        ordered = dict(sorted(seen.items(), key=lambda item: (item[1].rank, item[0])))
        if layer is not None:
            self._views[scope] = ordered
        return ordered

    def _built(self, scope: Scope, veils: Mapping[Mount, bool]) -> dict[str, Entry[T]]:
        """The view of a scope without what is hidden: what stood behind that is seen."""
        return self._narrowed(scope, self._built(scope.parent, veils) if scope.parent is not None else {}, veils)

    def _narrowed(self, scope: Scope, inherited: dict[str, Entry[T]], veils: Mapping[Mount, bool]) -> dict[str, Entry[T]]:
        """What a scope sees of what it inherits, with its own."""
        layer = self._layers.get(scope)
        if layer is None:
            return inherited
        seen = {name: entry for name, entry in inherited.items() if all(mask.permits(name) for mask in layer.masks)}
        seen.update((name, entry) for name, entry in layer.entries.items() if not veils or not veiled(entry.mount, veils))
        if not layer.seals:
            return seen
        return {name: e for name, e in seen.items() if (e.granted and e.scope is scope) or all(mask.permits(name) for mask in layer.seals)}
