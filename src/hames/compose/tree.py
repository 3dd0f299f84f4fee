"""Rows in a scope, brought in line with what files say, again and again.

A row is kept if its identity is the same and nothing that it uses has started anew. What has changed stops, in one step for all views,
then what is new starts unseen; when all of it is active it is shown, with its order and what it hides, in one step again. Between the
two nothing of the scopes above shows through where the rows that stop stood before something.

Whatever has been edited before, all views are then those of the files mounted afresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, cast

from hames.compose.mounting import Planned, complaint, leaks
from hames.content.errors import ConfigError
from hames.kernel import Context, Effect, Mount, State


def identity(planned: Planned, isolate: Mapping[Any, object]) -> str:
    """What makes a row another one: its plugin with its code, its configuration, and what it and its groups isolate.

    Modules of local plugins are named by the digest of their code. The result shows nothing of the configuration.
    """
    body = planned.plugin.body
    use = planned.row.use.value.partition(":")[2] if planned.row.use is not None else ""
    isolated = sorted(f"{getattr(key, 'name', key)}={how!r}" for key, how in isolate.items())
    parts = [body.__module__, body.__qualname__, planned.plugin.name, use, plain(planned.config), *isolated]
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def plain(value: Any) -> str:
    """A value of a configuration as text: another one for every other value, the same for an equal one."""
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if hasattr(value, "get_secret_value"):
        return f"secret {value.get_secret_value()!r}"
    if hasattr(value, "model_dump"):
        return f"{value.__class__.__qualname__}({', '.join(f'{key}={plain(item)}' for key, item in value)})"
    if isinstance(value, Mapping):
        items = cast(Mapping[Any, Any], value)
        return "{" + ", ".join(sorted(f"{plain(key)}: {plain(item)}" for key, item in items.items())) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(plain, cast(Iterable[Any], value)))) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(plain, cast(Iterable[Any], value)))}]"
    return repr(value)


@dataclass(slots=True)
class Placed:
    """A row with its place.

    :param parent: the path of its group; empty at the top.
    :param rank: its place among its siblings.
    """

    planned: Planned
    identity: str
    parent: str
    rank: int


def placed(planned: Iterable[Planned]) -> dict[str, Placed]:
    """All rows by path, each after its group."""
    found: dict[str, Placed] = {}

    def walk(rows: Iterable[Planned], parent: str, isolate: Mapping[Any, object]) -> None:
        for rank, each in enumerate(rows):
            inside = {**isolate, **each.isolate}
            found[each.path] = Placed(each, identity(each, inside), parent, rank)
            walk(each.rows, each.path, inside)

    walk(planned, "", {})
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """What a pass did to the rows, by path."""

    started: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(slots=True)
class Tree:
    """The rows of one composition in one scope.

    :param anchor: the context of the mount below which they stand, in their scope.
    :ivar rows: what is mounted, by path.
    :ivar hides: mounts of scopes above that are not seen here.
    """

    anchor: Context
    rows: dict[str, tuple[Placed, Mount]] = field(default_factory=dict[str, tuple[Placed, Mount]])
    hides: tuple[Mount, ...] = ()
    _frozen: list[Effect] = field(default_factory=list[Effect])

    async def reconcile(
        self, desired: Mapping[str, Placed], hides: Iterable[Mount] = (), *, keep: bool = False, all: bool = False
    ) -> Change:
        """Bring the rows in line with what is desired.

        :param hides: mounts of scopes above that shall not be seen from here on.
        :param keep: if a row does not start, go back to what there was; otherwise nothing is left then, and what there was before
            still hides what it hid.
        :param all: start every row anew.
        :raises ConfigError: if a row did not start, naming all that did not.
        """
        before = {path: place for path, (place, _) in self.rows.items()}
        hidden_before = self.hides
        self._freeze()
        try:
            change = await self._become(desired, tuple(hides), all=all)
        except ConfigError as error:
            if keep:
                try:
                    await self._become(before, hidden_before, all=False)
                except ConfigError as worse:
                    await self.empty()
                    remedy = "mend these rows; those that were there before did not start again"
                    raise ConfigError(f"{error.message}\n{worse.message}", remedy=remedy) from None
                self._show()
                raise
            await self._stop(self.rows)
            raise
        self._show()
        return change

    async def empty(self) -> None:
        """Stop every row. What they hid stays hidden until a pass succeeds."""
        self._freeze()
        await self._stop(self.rows)

    def _freeze(self) -> None:
        if not self._frozen:
            self._frozen = [effect for registry in self.anchor.host.registries for effect in registry.freeze(self.anchor)]

    async def _become(self, desired: Mapping[str, Placed], hides: tuple[Mount, ...], *, all: bool) -> Change:
        host, scope = self.anchor.host, self.anchor.scope
        same = {path for path, (old, _) in self.rows.items() if not all and path in desired and desired[path].identity == old.identity}
        same = {path for path in same if _unbroken(path, same, desired) and self.rows[path][1].state is State.ACTIVE}
        stopped = [path for path in self.rows if path not in same]
        started: list[str] = []
        scope.staging = scope.held = True  # nothing starts between the two without what it is about to have
        try:
            scope.veil({mount: False for mount in hides if mount not in scope.veils})
            await self._stop(stopped)
            scope.veil({**dict.fromkeys(hides, True), **{mount: False for mount in self.hides if mount not in hides}})
            self.hides = tuple(dict.fromkeys((*self.hides, *hides)))
            for path, place in desired.items():
                if path not in same:
                    self.rows[path] = (place, self._mount(place))
                    started.append(path)
        finally:
            scope.held = False
            host.resume(scope)
        while any(not mount.settled for _, mount in self.rows.values()):
            await host.changed()
        complaints = [said for path, (_, mount) in self.rows.items() if (said := complaint(path, mount))]
        complaints += leaks({path: mount for path, (_, mount) in self.rows.items()}, scope)
        if complaints:
            raise ConfigError("\n".join(complaints), remedy="mend these rows")
        self._settle_on(desired, hides)
        return Change(tuple(started), tuple(stopped), tuple(sorted(same)))

    def _mount(self, place: Placed) -> Mount:
        planned = place.planned
        parent = self.rows[place.parent][1] if place.parent else self.anchor.owner
        return self.anchor.host.mount(
            planned.plugin,
            planned.config,
            id=planned.row.id,
            scope=self.anchor.scope,
            parent=parent,
            isolate=planned.isolate,
            rank=place.rank,
        )

    async def _stop(self, paths: Iterable[str]) -> None:
        """Stop rows and wait for it; others that use something of theirs start anew with what there is then."""
        host = self.anchor.host
        paths = tuple(paths)
        gone = [self.rows[path][1] for path in paths]
        host.stop(gone)
        while any(mount.state is not State.STOPPED for mount in gone):
            await host.changed()
        for path in paths:
            self.rows.pop(path, None)
        self.anchor.scope.veil(dict.fromkeys(gone, None))

    def _settle_on(self, desired: Mapping[str, Placed], hides: tuple[Mount, ...]) -> None:
        self.rows = {path: (place, self.rows[path][1]) for path, place in desired.items()}
        self.hides = hides

    def _show(self) -> None:
        """Show what is there now, in its order, and let go of what was kept hidden: one step for whoever looks."""
        scope, host = self.anchor.scope, self.anchor.host
        for effect in self._frozen:
            effect.withdraw()
        self._frozen = []
        scope.staging = False
        host.reorder({mount: place.rank for place, mount in self.rows.values()})
        shown = {mount: None for mount in scope.veils if mount not in self.hides}
        scope.veil(shown)


def _unbroken(path: str, same: set[str], desired: Mapping[str, Placed]) -> bool:
    """Whether all groups around a row are kept, too."""
    parent = desired[path].parent
    return not parent or (parent in same and _unbroken(parent, same, desired))
