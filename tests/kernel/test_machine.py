"""Random histories of mounts, compared with a small model of who runs and who gets which service.

Keys are numbered and a row provides only keys above those that it uses, so the model can be computed from the rows alone. The value
of a service is the :class:`Run` that provides it, so a user can be asked which start of which provider it was given.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hames.content.errors import SealedError
from hames.kernel import Context, Host, Key, Mount, Notice, Plugin, Registry, Scope, State, plugin

KEYS: list[Key["Run"]] = [Key(str(number)) for number in range(4)]
PARENTS = {"left": "host", "right": "host", "below": "left"}


class Broken(Exception):
    """A body that cannot start."""


class Burnt(Exception):
    """A task that fails while its mount is active."""


@dataclass(frozen=True)
class Ping(Notice):
    pass


@dataclass(frozen=True)
class Row:
    """What a mount is made of; ``child`` is the key that its child needs, ``turns`` how often an asynchronous body lets others run."""

    shape: str
    needs: frozenset[int]
    wants: frozenset[int]
    provides: frozenset[int]
    child: int | None
    turns: int
    broken: bool


@dataclass(eq=False)
class Run:
    """One start of a row, from its first registration to its last undo."""

    used: dict[int, "Run"]
    parent: "Run | None"
    fuse: asyncio.Event = field(default_factory=asyncio.Event)
    effects: list[int] = field(default_factory=list)
    undos: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Record:
    """A mount and what the model knows of it."""

    mount: Mount
    row: Row
    scope: Scope
    removed: bool = False
    burnt: bool = False
    run: Run | None = None
    child_run: Run | None = None
    starts: int = 0


class World:
    def __init__(self) -> None:
        self.host = Host()
        self.tools: Registry[Run] = Registry("tool")
        self.scopes = {"host": self.host.root_scope}
        self.all_scopes: list[Scope] = [self.host.root_scope]
        self.records: list[Record] = []
        self.open: dict[Run, None] = {}
        self.wrong: list[str] = []
        self.waiting: list[asyncio.Task[Any]] = []
        self.starts = 0
        for name in PARENTS:
            self.open_scope(name)

    def open_scope(self, name: str) -> None:
        self.scopes[name] = self.host.scope(self.scopes[PARENTS[name]], name)
        self.all_scopes.append(self.scopes[name])

    # bodies

    def begin(self, ctx: Context, row: Row, name: str, parent: Run | None) -> Run:
        self.starts += 1
        if self.starts > 2000:
            self.wrong.append("it starts for ever")
            raise Broken
        used = {n: ctx.use(KEYS[n]) for n in row.needs}
        used |= {n: run for n in row.wants if (run := ctx.find(KEYS[n])) is not None}
        run = Run(used, parent)
        ctx.defer(lambda: self.end(run, name))
        self.open[run] = None
        for other in [*used.values(), *([parent] if parent else [])]:
            if other not in self.open:
                self.wrong.append(f"{name} starts with something that has ended")
        for n in range(3):
            ctx.effect(f"effect {n}", lambda n=n: self.pop(run.effects, n, name))
            run.effects.append(n)
            ctx.defer(lambda n=n: self.pop(run.undos, n, name))
            run.undos.append(n)
        ctx.on(Ping, print)
        self.tools.add(ctx, name, run)
        for n in row.provides:
            ctx.provide(KEYS[n], run)
        return run

    def pop(self, stack: list[int], n: int, name: str) -> None:
        if stack.pop() != n:
            self.wrong.append(f"{name} does not end in reverse")

    def resumed(self, ctx: Context, run: Run) -> None:
        if run.effects:
            self.wrong.append(f"{ctx.owner.label} is resumed before it is sealed")
        if ctx.owner.tasks:
            self.wrong.append(f"{ctx.owner.label} is resumed before its tasks have ended")
        self.check_alone(run, ctx.owner.label)

    def end(self, run: Run, name: str) -> None:
        if run.undos:
            self.wrong.append(f"{name} skips an undo")
        self.check_alone(run, name)
        del self.open[run]

    def check_alone(self, run: Run, name: str) -> None:
        for other in self.open:
            if other.parent is run or run in other.used.values():
                self.wrong.append(f"{name} ends before what depends on it")

    def plugin(self, row: Row, name: str, started: Callable[[Context, Run], None], parent: Run | None = None) -> Plugin:
        def function(ctx: Context, config: None) -> Run:
            run = self.begin(ctx, row, name, parent)
            started(ctx, run)
            if row.broken:
                raise Broken
            return run

        def generator(ctx: Context, config: None):
            run = function(ctx, config)
            try:
                yield
            finally:
                self.resumed(ctx, run)

        async def asynchronous(ctx: Context, config: None):
            await self.turns(row.turns)
            run = function(ctx, config)
            await self.turns(row.turns)
            try:
                yield
            finally:
                await self.turns(row.turns)
                self.resumed(ctx, run)

        shapes = {"function": function, "generator": generator, "async": asynchronous}
        needs, wants = (tuple(KEYS[n] for n in sorted(numbers)) for numbers in (row.needs, row.wants))
        return plugin(needs=needs, wants=wants, name=name)(shapes[row.shape])

    def top_plugin(self, record: Record, row: Row) -> Plugin:
        name = f"row {self.records.index(record)}"

        async def burn(ctx: Context, run: Run) -> None:
            await run.fuse.wait()
            if ctx.live:
                record.burnt = True
            raise Burnt

        def started(ctx: Context, run: Run) -> None:
            record.run = run
            record.child_run = None
            record.starts += 1
            ctx.spawn(burn(ctx, run))
            if row.child is not None:
                child = Row(row.shape, frozenset({row.child}), frozenset(), frozenset(), None, 1, False)
                ctx.mount(self.plugin(child, f"{name} child", child_started, run), id="child")

        def child_started(ctx: Context, run: Run) -> None:
            record.child_run = run

        return self.plugin(row, name, started)

    @staticmethod
    async def turns(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    # commands

    def pick(self, number: int) -> Record | None:
        left = [record for record in self.records if not record.removed]
        return left[number % len(left)] if left else None

    def fitting(self, row: Row, scope: Scope, but: Record | None = None) -> Row:
        """The row without what another one provides in this scope."""
        taken = {n for r in self.records if r.scope is scope and not r.removed and r is not but for n in r.row.provides}
        return replace(row, provides=row.provides - taken)

    async def do(self, coroutine: Any) -> None:
        """Begin something and leave it going."""
        self.waiting.append(asyncio.create_task(coroutine))
        await asyncio.sleep(0)

    async def mount(self, row: Row, scope_name: str) -> None:
        scope = self.scopes[scope_name]
        row = self.fitting(row, scope)
        record = Record(self.host.root, row, scope)
        self.records.append(record)
        record.mount = self.host.mount(self.top_plugin(record, row), scope=scope)

    async def request_stop(self, number: int) -> None:
        if (record := self.pick(number)) is not None:
            record.removed = True
            record.mount.request_stop()

    async def stop(self, number: int) -> None:
        if (record := self.pick(number)) is not None:
            record.removed = True
            await self.do(record.mount.stop())

    async def replace(self, number: int, row: Row) -> None:
        if (record := self.pick(number)) is not None:
            record.row = self.fitting(row, record.scope, record)
            record.burnt = False
            await self.do(record.mount.replace(self.top_plugin(record, record.row)))

    async def replace_alone(self, number: int) -> None:
        """Restart one row while nothing else happens: whoever runs before and after has restarted at most once."""
        await self.settle()
        if (record := self.pick(number)) is None or any(r.burnt for r in self.records):
            return
        before = {r: r.starts for r in self.records if r.mount.state is State.ACTIVE}
        await self.do(record.mount.replace())
        await self.settle()
        for other, starts in before.items():
            assert other.starts <= starts + 1
            assert other.mount.state is State.ACTIVE

    async def burn(self, number: int) -> None:
        if (record := self.pick(number)) is not None and record.run is not None:
            record.run.fuse.set()

    async def close_scope(self, name: str) -> None:
        closing = self.scopes[name]
        for record in self.records:
            record.removed = record.removed or closing in record.scope.chain()
        await self.do(closing.close())
        for each in (name, *(child for child, parent in PARENTS.items() if parent == name)):
            self.open_scope(each)

    async def turn(self) -> None:
        await asyncio.sleep(0)

    async def settle(self) -> None:
        await self.turns(4)  # a fuse that burns is seen only after some turns
        for _ in range(500):
            if not self.host.moving and all(task.done() for task in self.waiting):
                break
            await asyncio.sleep(0)
        for task in self.waiting:
            assert task.done(), "it never settles"
            assert isinstance(task.exception(), Broken | Burnt | SealedError | None), repr(task.exception())
        self.waiting.clear()
        self.check()

    # the model

    def provider(self, scope: Scope, number: int) -> Record | None:
        for each in scope.chain():
            for record in self.records:
                if record.scope is each and number in record.row.provides and self.runs(record):
                    return record
        return None

    def runs(self, record: Record) -> bool:
        if record.removed or record.row.broken:
            return False
        if record.burnt:
            return record.mount.state is State.ACTIVE
        return not self.missing(record)

    def missing(self, record: Record) -> set[int]:
        return {n for n in record.row.needs if self.provider(record.scope, n) is None}

    def resolved(self, scope: Scope, numbers: frozenset[int]) -> dict[int, Run | None]:
        found = {n: self.provider(scope, n) for n in numbers}
        return {n: record.run for n, record in found.items() if record is not None}

    def check(self) -> None:
        assert not self.wrong
        for scope in self.scopes.values():
            for n, key in enumerate(KEYS):
                provider = self.provider(scope, n)
                assert self.host.get(key, scope) is (provider.run if provider else None)
        for record in self.records:
            mount, row = record.mount, record.row
            missing = self.missing(record)
            if record.removed:
                assert mount.state is State.STOPPED
            elif row.broken:
                assert mount.state is State.FAILED or (missing and mount.state is State.WAITING)
            elif record.burnt:
                assert mount.state in (State.FAILED, State.WAITING if missing else State.ACTIVE)
                record.burnt = mount.state is not State.ACTIVE
            else:
                assert mount.state is (State.WAITING if missing else State.ACTIVE), (mount, mount.error)
            if mount.state is State.WAITING:
                assert mount.missing == [str(n) for n in sorted(missing)]
            if mount.state is State.ACTIVE:
                assert record.run is not None
                assert record.run.used == self.resolved(record.scope, row.needs | row.wants)
                self.check_child(record)
            else:
                assert not mount.children and not mount.effects and not mount.undos and not mount.tasks and not mount.pins
        assert not self.host.moving
        assert {run for r in self.records if r.mount.state is State.ACTIVE for run in (r.run, r.child_run) if run} == set(self.open)

    def check_child(self, record: Record) -> None:
        if record.row.child is None:
            assert not record.mount.children
            return
        child = record.mount.children["child"]
        expected = self.resolved(record.scope, frozenset({record.row.child}))
        assert child.state is (State.ACTIVE if expected else State.WAITING)
        if expected:
            assert record.child_run is not None
            assert record.child_run.used == expected
        else:
            record.child_run = None

    async def close(self) -> None:
        for record in self.records:
            record.removed = True
        await self.do(self.host.close())
        await self.settle()
        assert not self.open
        assert all(record.mount.state is State.STOPPED for record in self.records)
        assert not any(scope.listener_count or scope.provisions or scope.mounts or scope.borrowed for scope in self.all_scopes)
        assert not self.tools.size
        assert not self.host.moving and not self.host.interested and not self.host.root.children
        assert not self.host.abandoned
        assert all(isinstance(error, Burnt) for _, error in self.host.problems)
        assert asyncio.all_tasks() == {asyncio.current_task()}


numbers = st.integers(0, len(KEYS) - 1)
levels = st.integers(0, len(KEYS))


@st.composite
def rows(draw: Any) -> Row:
    """A row that uses keys below its level and provides those from its level on."""
    level = draw(levels)
    below = st.frozensets(st.integers(0, level - 1), min_size=1, max_size=2) if level else st.just(frozenset[int]())
    used = draw(below)
    wants = draw(st.frozensets(st.sampled_from(sorted(used)), max_size=1)) if used else used
    more = draw(st.frozensets(numbers, max_size=1))
    return Row(
        shape=draw(st.sampled_from(["async", "generator", "function"])),
        needs=used - wants,
        wants=wants,
        provides=frozenset(n for n in more | {level} if level <= n < len(KEYS)),
        child=draw(st.none() | numbers),
        turns=draw(st.integers(0, 2)),
        broken=draw(st.integers(0, 15)) == 15,
    )


picks = st.integers(0, 9)
mounting = st.tuples(st.just("mount"), rows(), st.sampled_from(["host", "host", *PARENTS]))
commands = st.one_of(
    mounting,
    st.tuples(st.sampled_from(["request_stop", "stop"]), picks),
    st.tuples(st.sampled_from(["burn", "replace_alone"]), picks),
    st.tuples(st.just("replace"), picks, rows()),
    st.tuples(st.sampled_from(["turn", "turn", "settle"])),
    mounting,
    st.tuples(st.sampled_from(["turn", "settle", "close_scope"])).map(lambda it: (*it, "left") if it[0] == "close_scope" else it),
)
histories = st.tuples(st.lists(mounting, min_size=4, max_size=8), st.lists(commands, min_size=5, max_size=20)).map(lambda it: it[0] + it[1])


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)
@given(histories)
def test_whatever_happens_the_mounts_settle_as_the_model_says(history: list[tuple[Any, ...]]) -> None:
    async def drive() -> None:
        world = World()
        for name, *arguments in history:
            await getattr(world, name)(*arguments)
        await world.settle()
        await world.close()

    asyncio.run(drive())
