"""Mounting a composition as one: every row active, or none."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hames.compose.interpolate import Interpolation
from hames.compose.layers import Layer
from hames.compose.local import LocalModules
from hames.compose.plugins import describe, load_plugin, validate
from hames.compose.rows import Composition, Row, compose, suggestion
from hames.content.errors import ConfigError, HamesError
from hames.kernel import Context, Host, Key, Mount, Plugin, Scope, State, plugin


@dataclass(slots=True)
class Loaded:
    """The files that compositions are made of: composition files and local modules, canonical.

    :ivar paths: of the host's composition.
    """

    paths: frozenset[Path] = frozenset()
    _others: dict[Path, frozenset[Path]] = field(default_factory=dict[Path, frozenset[Path]])
    _all: frozenset[Path] | None = None

    def put(self, directory: Path, files: frozenset[Path]) -> None:
        """Those of the composition of a directory; none where it has none any more."""
        if self._others.get(directory, frozenset[Path]()) != files:
            self._others.pop(directory, None)
            if files:
                self._others[directory] = files
            self._all = None

    @property
    def workspaces(self) -> frozenset[Path]:
        """Those of the compositions of directories."""
        return frozenset[Path]().union(*self._others.values())

    @property
    def all(self) -> frozenset[Path]:
        """The files of all compositions."""
        if self._all is None:
            self._all = self.paths.union(*self._others.values())
        return self._all


LOADED: Key[Loaded] = Key("loaded files")


@dataclass(slots=True)
class Base:
    """The composition of a host: what compositions of scopes below it change.

    :param composition: what they say together.
    :ivar planned: its rows.
    :ivar extra: those of them that stand in no file of the composition.
    :ivar mounts: what is mounted, by path.
    :ivar environment: what ``${env:…}`` reads.
    """

    layers: tuple[Layer, ...]
    composition: Composition
    environment: Mapping[str, str]
    planned: list[Planned] = field(default_factory=list["Planned"])
    mounts: dict[str, Mount] = field(default_factory=dict[str, Mount])
    extra: list[Planned] = field(default_factory=list["Planned"])


BASE: Key[Base] = Key("composition of the host")


@plugin(name="group")
def group(ctx: Context, config: None) -> None:
    """What a group of rows is mounted as: it does nothing, and its rows end with it."""


@dataclass(slots=True)
class Planned:
    """A row that is ready to be mounted."""

    path: str
    row: Row
    plugin: Plugin
    config: Any
    rows: list[Planned] = field(default_factory=list["Planned"])
    isolate: dict[Any, object] = field(default_factory=dict[Any, object])

    def walk(self) -> Iterable[Planned]:
        yield self
        for planned in self.rows:
            yield from planned.walk()


def plan(composition: Composition, interpolation: Interpolation) -> list[Planned]:
    """Import and validate every row that is not disabled. Nothing is mounted.

    :raises ConfigError: naming every mistake of every row, and of the files.
    """
    problems = composition.problems
    local = LocalModules()
    planned = [made for row in composition.rows if (made := _plan(row, "", interpolation, problems, local)) is not None]
    keys = _keys(each.plugin for top in planned for each in top.walk())
    for top in planned:
        for each in top.walk():
            _isolate(each, keys, problems)
    composition.files += local.files
    composition.check()
    return planned


def _plan(row: Row, path: str, interpolation: Interpolation, problems: list[str], local: LocalModules) -> Planned | None:
    if row.is_disabled:
        return None
    here = f"{path}/{row.id}" if path else row.id
    if row.group is not None:
        planned = Planned(here, row, group, None)
        planned.rows = [made for each in row.group if (made := _plan(each, here, interpolation, problems, local)) is not None]
        return planned
    values: Any = interpolation.fill(row.config, problems.append) if row.config is not None else {}
    try:
        found = load_plugin(row, local)
    except ConfigError as error:
        problems.append(f"{error.message} ({error.remedy})" if error.remedy else error.message)
        return None
    config, violations = validate(row, found, values or {})
    problems.extend(violations)
    return Planned(here, row, found, config)


def _keys(plugins: Iterable[Plugin]) -> dict[str, Any]:
    """Every key that the modules of these plugins know, by name."""
    import sys

    keys: dict[str, Any] = {}
    for each in plugins:
        for key in (*each.needs, *each.wants):
            keys[key.name if isinstance(key, Key) else key.__name__] = key
        for value in vars(sys.modules[each.body.__module__]).values():
            if isinstance(value, Key):
                keys[value.name] = value
    return keys


def _isolate(planned: Planned, keys: Mapping[str, Any], problems: list[str]) -> None:
    if planned.row.isolate is None:
        return
    for name, node in planned.row.isolate.members.items():
        if name in keys:
            planned.isolate[keys[name]] = node.value
        else:
            problems.append(f"{node.origin}: no row here knows a service {name!r}{suggestion(name, keys)}")


async def mount(host: Host, planned: Sequence[Planned], scope: Scope | None = None) -> dict[str, Mount]:
    """Mount planned rows as one.

    :returns: the mounts by path.
    :raises HamesError: if a row did not start; nothing of the composition is left then.
    """
    mounts: dict[str, Mount] = {}
    with host.hold():
        for rank, each in enumerate(planned):
            _mount(host, each, scope or host.root_scope, None, rank, mounts)
    await host.settle()
    complaints = [text for path, each in mounts.items() if (text := complaint(path, each))]
    complaints += leaks(mounts, scope or host.root_scope)
    if not complaints:
        return mounts
    failures = [each.error for each in mounts.values() if each.state is State.FAILED]
    tops = [mounts[each.path] for each in planned]
    host.stop(tops)
    await host.settle()
    if len(failures) == 1 and isinstance(failures[0], HamesError):
        raise failures[0]
    raise ConfigError("\n".join(complaints), remedy="nothing is mounted; mend these rows")


def _mount(host: Host, planned: Planned, scope: Scope, parent: Mount | None, rank: int, mounts: dict[str, Mount]) -> None:
    row = planned.row
    made = host.mount(planned.plugin, planned.config, id=row.id, scope=scope, parent=parent, isolate=planned.isolate, rank=rank)
    mounts[planned.path] = made
    for index, each in enumerate(planned.rows):
        _mount(host, each, scope, made, index, mounts)


def complaint(path: str, mount: Mount) -> str:
    if mount.state is State.ACTIVE:
        return ""
    if mount.state is State.WAITING:
        return f"row {path} needs {', '.join(mount.missing)}, which no row provides"
    error = mount.error
    said = error.message if isinstance(error, HamesError) else describe(error) if error is not None else mount.state.value
    return f"row {path} did not start: {said}"


def leaks(mounts: Mapping[str, Mount], scope: Scope) -> list[str]:
    """Services that a composition provides outside of its own scope."""
    inside = set(scope.below())
    leaks: list[str] = []
    for path, mount in mounts.items():
        for provision in mount.provisions:
            if provision.scope not in inside:
                name = getattr(provision.key, "name", None) or provision.key.__name__
                leaks.append(f"row {path} provides {name} in scope {provision.scope.key!r}, outside of its composition")
    return leaks


@asynccontextmanager
async def running(
    files: Path | Sequence[Path | Layer], provided: Mapping[Any, Any], *, environment: Mapping[str, str] | None = None
) -> AsyncGenerator[Host]:
    """A host with a composition mounted, closed at the end.

    :param files: composition files in order, the profile first.
    :param provided: values under keys that rows may need, for example the state directory.
    :param environment: what ``${env:…}`` reads; this process's where it is None.
    :raises HamesError: if the composition cannot be mounted.
    """
    layers = [each if isinstance(each, Layer) else Layer(each) for each in ([files] if isinstance(files, Path) else files)]
    host = Host()
    try:
        for key, value in provided.items():
            host.ctx.provide(key, value)
        composition = compose(layers)
        base = Base(tuple(layers), composition, os.environ if environment is None else environment)
        base.planned = plan(composition, Interpolation(base.environment))
        host.ctx.provide(LOADED, Loaded(frozenset(path.resolve() for path in composition.files)))
        host.ctx.provide(BASE, base)
        base.mounts = await mount(host, base.planned)
        yield host
    finally:
        await host.close()
