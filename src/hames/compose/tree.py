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
from typing import Any

from hames.compose.mounting import Planned, complaint, leaks
from hames.content.errors import ConfigError
from hames.kernel import Context, Effect, Mount, State
from hames.kernel.plan import closure


def identity(planned: Planned, isolate: Mapping[Any, object]) -> str:
    """What makes a row another one: its plugin with its code, its configuration, and what it and its groups isolate.

    Modules of local plugins are named by the digest of their code. The result shows nothing of the configuration.
    """
    body = planned.plugin.body
    config = planned.config.model_dump_json() if planned.config is not None else ""
    isolated = sorted(f"{getattr(key, 'name', key)}={how}" for key, how in isolate.items())
    return sha256("\0".join([body.__module__, body.__qualname__, config, *isolated]).encode("utf-8", "surrogatepass")).hexdigest()


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
        restarting = await self._stop(stopped)
        starts = {mount: mount.starts for _, mount in self.rows.values()}
        scope.veil({**dict.fromkeys(hides, True), **{mount: False for mount in self.hides if mount not in hides}})
        again = [mount for mount, count in starts.items() if mount.state is not State.ACTIVE or mount.starts != count]
        restarting = list(dict.fromkeys((*restarting, *again)))
        self.hides = tuple(dict.fromkeys((*self.hides, *hides)))
        started: dict[str, Mount] = {}
        with host.hold():
            for path, place in desired.items():
                if path in same:
                    continue
                parent = self.rows[place.parent][1] if place.parent else self.anchor.owner
                planned = place.planned
                mount = host.mount(
                    planned.plugin, planned.config, id=planned.row.id, scope=scope, parent=parent, isolate=planned.isolate, rank=place.rank
                )
                started[path] = mount
                self.rows[path] = (place, mount)
            scope.veil(dict.fromkeys((*started.values(), *restarting), False))
        while not (_settled(started.values()) and _settled(restarting)):
            await host.changed()
        complaints = [said for path, (_, mount) in self.rows.items() if (said := complaint(path, mount))]
        complaints += leaks({path: mount for path, (_, mount) in self.rows.items()}, scope)
        if complaints:
            raise ConfigError("\n".join(complaints), remedy="mend these rows")
        self._settle_on(desired, hides)
        return Change(tuple(started), tuple(stopped), tuple(sorted(same)))

    async def _stop(self, paths: Iterable[str]) -> list[Mount]:
        """Stop rows and wait for it; the others that started anew with them, which are not seen for now."""
        host = self.anchor.host
        gone = [self.rows.pop(path)[1] for path in tuple(paths)]
        ours = {mount for _, mount in self.rows.values()}
        restarting = [mount for mount in closure(gone) if mount in ours]
        self.anchor.scope.veil(dict.fromkeys(restarting, False))
        host.stop(gone)
        while any(mount.state is not State.STOPPED for mount in gone):
            await host.changed()
        self.anchor.scope.veil(dict.fromkeys(gone, None))
        return restarting

    def _settle_on(self, desired: Mapping[str, Placed], hides: tuple[Mount, ...]) -> None:
        self.rows = {path: (place, self.rows[path][1]) for path, place in desired.items()}
        self.hides = hides

    def _show(self) -> None:
        """Show what is there now, in its order, and let go of what was kept hidden: one step for whoever looks."""
        scope, host = self.anchor.scope, self.anchor.host
        for effect in self._frozen:
            effect.withdraw()
        self._frozen = []
        host.reorder({mount: place.rank for place, mount in self.rows.values()})
        shown = {mount: None for mount in scope.veils if mount not in self.hides}
        scope.veil(shown)


def _unbroken(path: str, same: set[str], desired: Mapping[str, Placed]) -> bool:
    """Whether all groups around a row are kept, too."""
    parent = desired[path].parent
    return not parent or (parent in same and _unbroken(parent, same, desired))


def _settled(mounts: Iterable[Mount]) -> bool:
    return all(mount.settled for mount in mounts)
