"""Rows of one scope that follow what is desired of them, and what a scope changes of its host."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from hames.compose import Base, Interpolation, compose, mount, plan
from hames.compose.difference import difference
from hames.compose.mounting import Planned, group
from hames.compose.rows import Row
from hames.compose.tree import Tree, placed
from hames.compose.yamltext import Origin
from hames.content.errors import ConfigError
from hames.kernel import Context, Host, Key, Mask, Notice, Plugin, Registry, Scope, State, plugin
from hames.policy.port import POLICY
from hames.tools import TOOLS
from hames.tools.pipeline import unjudged
from hames.workspaces import WORKSPACES

SHELL: Key[str] = Key("shell")
OTHER: Key[str] = Key("other")
LIMIT = 2.0  # seconds of a pass; more are a pass that never ends


@dataclass(frozen=True)
class Said(Notice):
    pass


class Names(BaseModel):
    names: tuple[str, ...] = ()
    note: str = ""
    hides: tuple[str, ...] = ()


@plugin(config=Names, needs=(Registry,))
def tool(ctx, config):
    for name in config.names:
        ctx.use(Registry).add(ctx, name, config.note)
    if config.hides:
        ctx.use(Registry).mask(ctx, Mask(deny=frozenset(config.hides)))


@plugin(config=Names)
def shell(ctx, config):
    ctx.provide(SHELL, config.note)


@plugin(config=Names)
async def slow_shell(ctx, config):
    await asyncio.sleep(0)
    ctx.provide(SHELL, config.note)
    yield
    await asyncio.sleep(0)


@plugin(config=Names, needs=(SHELL, Registry))
def using(ctx, config):
    ctx.use(Registry).add(ctx, config.note or "using", ctx.use(SHELL))


@plugin(config=Names, wants=(SHELL,), needs=(Registry,))
def wanting(ctx, config):
    ctx.use(Registry).add(ctx, "wanting", ctx.find(SHELL))


@plugin(config=Names, needs=(SHELL, Registry))
async def slow_using(ctx, config):
    await asyncio.sleep(0)
    ctx.use(Registry).add(ctx, "slow", ctx.use(SHELL))
    yield
    for _ in range(5):
        await asyncio.sleep(0)


@plugin(config=Names)
def broken(ctx, config):
    raise RuntimeError(f"no luck{config.note}")


@plugin(config=Names, start_limit=0.05)
async def stuck(ctx, config):
    await asyncio.Event().wait()
    yield


@plugin(config=Names)
async def lingering(ctx, config):
    yield
    for _ in range(20):
        await asyncio.sleep(0)


@plugin(config=Names, needs=(Key("nobody"),))
def lonely(ctx, config):
    pass


@plugin(config=Names)
def leaky(ctx, config):
    ctx.at(ctx.host.root_scope).provide(OTHER, "leak")


def row(id: str, plugin: Plugin, *names: str, note: str = "", hides: tuple[str, ...] = (), isolate: Any = None) -> Planned:
    made = Planned(id, Row(id, Origin("rows", 1), Path()), plugin, Names(names=names, note=note, hides=hides))
    made.isolate = isolate or {}
    return made


def groups(id: str, *rows: Planned, isolate: Any = None) -> Planned:
    made = Planned(id, Row(id, Origin("rows", 1), Path()), group, None, list(rows), isolate or {})

    def name(each: Planned, path: str) -> None:
        each.path = path
        for below in each.rows:
            name(below, f"{path}/{below.row.id}")

    name(made, id)
    return made


class World:
    """A host with a registry, and a tree of rows in a workspace with an agent below it."""

    def __init__(self) -> None:
        self.host = Host(grace=0.05)
        self.tools: Registry[Any] = Registry("tool")
        self.host.ctx.provide(Registry, self.tools)
        self.here = self.host.scope(key="here")
        self.agent = self.host.scope(self.here, "agent")
        self.anchor = self.host.mount(group, id="workspace", scope=self.here)
        self.tree = Tree(Context(self.host, self.anchor, self.here))

    async def become(self, *rows: Planned, **options: Any):
        return await asyncio.wait_for(self.tree.reconcile(placed(rows), **options), LIMIT)

    @property
    def view(self) -> dict[str, Any]:
        return self.tools.view(self.agent)

    def mounts(self) -> dict[str, Any]:
        return {path: found for path, (_, found) in self.tree.rows.items()}

    def far(self, *names: str) -> None:
        for name in names:
            self.tools.add(self.host.ctx, name, "far")

    @contextmanager
    def ticking(self, look=None):
        """What is seen at every turn of the loop."""
        loop = asyncio.get_running_loop()
        seen: list[Any] = []
        handle = None

        def tick() -> None:
            nonlocal handle
            seen.append(look() if look else dict(self.view))
            handle = loop.call_soon(tick)

        tick()
        try:
            yield seen
        finally:
            handle.cancel()


@pytest.fixture
async def world():
    world = World()
    yield world
    await world.here.close()
    assert not world.here.mounts and not world.here.children and world.here not in world.host.root_scope.children
    assert not world.anchor.effects and not world.anchor.children
    await world.host.close()
    assert world.tools.size == 0 and not world.host.moving and not world.host.interested
    assert asyncio.all_tasks() == {asyncio.current_task()}


# identity


LOCAL = """
from pydantic import BaseModel, SecretStr
from hames.kernel import Key, plugin

SERVICE = Key("service")

class Settings(BaseModel):
    text: str = ""
    secret: SecretStr = SecretStr("")
    ports: frozenset[int] = frozenset()
    limit: float | None = None

@plugin(config=Settings, wants=(SERVICE,))
def one(ctx, config):
    pass

@plugin(config=Settings, wants=(SERVICE,))
def two(ctx, config):
    pass

def make(number):
    @plugin(config=Settings)
    def made(ctx, config):
        pass
    return made

first, second = make(1), make(2)
"""


@pytest.fixture
def identified(files):
    def make(text: str, code: str = LOCAL) -> dict[str, str]:
        return {path: place.identity for path, place in placed(plan(files(text, local_py=code), Interpolation({}))).items()}

    return make


def same(identified, one: str, two: str, path: str = "a") -> bool:
    return identified(one)[path] == identified(two)[path]


def test_a_row_is_the_same_however_its_file_is_written(identified):
    assert same(
        identified, "- {id: a, use: './local.py:one', config: {text: x}}", "- id: a\n  config: {text: 'x'}\n  use: './local.py:one'\n"
    )
    assert same(identified, "- {id: a, use: './local.py:one'}", "- {id: a, use: './local.py:one', config: {text: ''}}")
    assert same(identified, "- {id: a, use: './local.py:one'}", "- {id: b, use: './local.py:two'}\n- {id: a, use: './local.py:one'}")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("use: './local.py:one'", "use: './local.py:two'"),
        ("use: './local.py:first'", "use: './local.py:second'"),
        ("use: './local.py:one'", "use: './local.py:one', config: {text: x}"),
        ("use: './local.py:one', config: {secret: a}", "use: './local.py:one', config: {secret: b}"),
        ("use: './local.py:one', config: {limit: .inf}", "use: './local.py:one', config: {limit: null}"),
        ("use: './local.py:one'", "use: './local.py:one', isolate: {service: true}"),
        ("use: './local.py:one', isolate: {service: pair}", "use: './local.py:one', isolate: {service: true}"),
        ("use: './local.py:one', isolate: {service: 'True'}", "use: './local.py:one', isolate: {service: true}"),
        ("use: './local.py:one', isolate: {service: a}", "use: './local.py:one', isolate: {service: b}"),
    ],
    ids=["plugin", "plugin of a factory", "config", "secret", "infinite and none", "isolated", "label", "label like true", "labels"],
)
def test_a_row_that_says_something_else_is_another_row(identified, before, after):
    assert not same(identified, f"- {{id: a, {before}}}", f"- {{id: a, {after}}}")


def test_a_set_in_another_order_is_the_same_set(identified):
    assert same(
        identified, "- {id: a, use: './local.py:one', config: {ports: [0, 8]}}", "- {id: a, use: './local.py:one', config: {ports: [8, 0]}}"
    )


def test_a_row_with_other_code_is_another_row(identified):
    text = "- {id: a, use: './local.py:one'}"
    assert identified(text)["a"] != identified(text, LOCAL + "\n# more\n")["a"]
    assert identified(text)["a"] == identified(text)["a"]


def test_what_a_group_isolates_counts_for_the_rows_in_it(identified):
    inside = "group: [{id: a, use: './local.py:one'}]"
    assert not same(identified, f"- {{id: g, {inside}}}", f"- {{id: g, isolate: {{service: true}}, {inside}}}", "g/a")
    assert same(identified, f"- {{id: g, {inside}}}", f"- {{id: h, {inside}}}\n- {{id: g, {inside}}}", "g/a")


def test_the_identity_shows_nothing_of_the_configuration(identified):
    assert "swordfish" not in str(identified("- {id: a, use: './local.py:one', config: {text: swordfish}}"))


# rows come, stay and go


async def test_what_has_not_changed_is_not_started_again(world):
    first = await world.become(row("a", tool, "a"), groups("g", row("b", tool, "b"), row("c", tool, "c")))
    assert first.started == ("a", "g", "g/b", "g/c") and not first.stopped and not first.kept
    before = world.mounts()
    change = await world.become(row("a", tool, "a"), groups("g", row("b", tool, "b", note="new"), row("c", tool, "c")))
    assert (change.started, change.stopped, change.kept) == (("g/b",), ("g/b",), ("a", "g", "g/c"))
    assert world.view == {"a": "", "b": "new", "c": ""}
    assert all(world.mounts()[path] is before[path] and before[path].starts == 1 for path in ("a", "g", "g/c"))
    assert before["g/b"].state is State.STOPPED
    assert not world.here.veils


async def test_the_same_again_does_nothing(world):
    rows = [row("a", tool, "a"), groups("g", row("b", tool, "b"))]
    await world.become(*rows)
    with world.ticking() as seen:
        change = await world.become(*rows)
    assert not change.started and not change.stopped and all(view == {"a": "", "b": ""} for view in seen)


async def test_all_rows_start_anew_where_that_is_asked_for(world):
    rows = [row("a", tool, "a"), groups("g", row("b", tool, "b"))]
    await world.become(*rows)
    before = world.mounts()
    change = await world.become(*rows, all=True)
    assert change.started == change.stopped == ("a", "g", "g/b") and not change.kept
    assert all(each.state is State.STOPPED for each in before.values()) and world.view == {"a": "", "b": ""}


async def test_groups_are_added_renamed_nested_and_removed(world):
    await world.become(groups("g", row("a", tool, "a")))
    change = await world.become(groups("h", row("a", tool, "a")))
    assert change.stopped == ("g", "g/a") and change.started == ("h", "h/a")
    await world.become(groups("h", groups("i", row("a", tool, "a"))), row("b", tool, "b"))
    assert set(world.tree.rows) == {"h", "h/i", "h/i/a", "b"} and world.view == {"a": "", "b": ""}
    await world.become(row("a", tool, "a"), groups("empty"))
    assert world.view == {"a": ""} and set(world.anchor.children) == {"a", "empty"}
    await world.become()
    assert not world.tree.rows and not world.anchor.children and world.view == {}


async def test_a_row_that_takes_the_name_of_a_group_and_back(world):
    await world.become(groups("x", row("a", tool, "a")))
    await world.become(row("x", tool, "x"))
    assert world.view == {"x": ""}
    await world.become(groups("x", row("a", tool, "a")))
    assert world.view == {"a": ""}


async def test_a_group_that_isolates_otherwise_takes_its_rows_with_it(world):
    inside = [row("s", shell, note="sh"), row("u", using)]
    await world.become(groups("g", *inside, isolate={SHELL: True}))
    assert world.host.get(SHELL, world.here) is None
    change = await world.become(groups("g", *inside))
    assert set(change.stopped) == {"g", "g/s", "g/u"} and world.host.get(SHELL, world.here) == "sh"
    change = await world.become(groups("g", *inside, isolate={SHELL: "pair"}))
    assert set(change.started) == {"g", "g/s", "g/u"} and world.view == {"using": "sh"}


async def test_moved_rows_are_kept_and_views_follow(world):
    rows = [row(name, tool, name) for name in "abcd"]
    await world.become(*rows)
    before = world.mounts()
    change = await world.become(*reversed(rows))
    assert not change.started and list(world.view) == list("dcba") and world.mounts() == before
    await world.become(rows[2], row("new", tool, "new"), rows[0])
    assert list(world.view) == ["c", "new", "a"] and world.mounts()["a"].starts == 1


async def test_views_are_those_of_rows_mounted_afresh_after_any_edits(world):
    rows = [row("a", tool, "a"), groups("g", row("b", tool, "b"), row("c", tool, "c")), row("d", tool, "d")]
    await world.become(*rows)
    await world.become(rows[2], groups("g", row("c", tool, "c"), row("e", tool, "e"), row("b", tool, "b")), rows[0])
    assert list(world.view) == ["d", "c", "e", "b", "a"]
    await world.become(groups("g", row("b", tool, "b")), row("x", tool, "x"), rows[2])
    assert list(world.view) == ["b", "x", "d"]


async def test_a_row_that_failed_meanwhile_starts_again(world):
    @plugin(config=Names, needs=(Registry,))
    def fragile(ctx, config):
        ctx.use(Registry).add(ctx, "f", "")

        async def fail() -> None:
            raise RuntimeError("gone")

        if not starts:
            ctx.spawn(fail())
        starts.append(1)

    starts: list[int] = []
    await world.become(row("f", fragile))
    while world.mounts()["f"].state is not State.FAILED:
        await world.host.changed()
    change = await world.become(row("f", fragile))
    assert change.started == ("f",) and world.view == {"f": ""}


# services


@pytest.mark.parametrize("provider", [shell, slow_shell], ids=["at once", "slow"])
@pytest.mark.parametrize("user", [using, slow_using], ids=["user", "slow user"])
async def test_who_uses_a_service_of_a_changed_row_starts_again_once(world, provider, user):
    await world.become(row("s", provider, note="one"), row("u", user), row("a", tool, "a"))
    mounts = world.mounts()
    change = await world.become(row("s", provider, note="two"), row("u", user), row("a", tool, "a"))
    assert change.started == ("s",) and set(world.view.values()) == {"two", ""}
    assert mounts["u"].starts == 2 and mounts["a"].starts == 1 and not world.here.veils


async def test_who_wants_a_service_of_a_changed_row_starts_again_once(world):
    await world.become(row("s", shell, note="one"), row("w", wanting))
    await world.become(row("s", shell, note="two"), row("w", wanting))
    assert world.view == {"wanting": "two"} and world.mounts()["w"].starts == 2


async def test_a_chain_of_users_starts_again_once_each(world):
    @plugin(config=Names, needs=(SHELL,))
    def between(ctx, config):
        ctx.provide(OTHER, f"{ctx.use(SHELL)}!")

    @plugin(config=Names, needs=(SHELL, OTHER, Registry))
    def last(ctx, config):
        ctx.use(Registry).add(ctx, "last", ctx.use(SHELL) + ctx.use(OTHER))

    await world.become(row("s", slow_shell, note="one"), row("m", between), row("l", last))
    await world.become(row("s", slow_shell, note="two"), row("m", between), row("l", last))
    assert world.view == {"last": "twotwo!"} and world.mounts()["m"].starts == world.mounts()["l"].starts == 2


@pytest.mark.parametrize("provider", [shell, slow_shell], ids=["at once", "slow"])
@pytest.mark.parametrize(("user", "name"), [(using, "using"), (slow_using, "slow")], ids=["user", "slow user"])
async def test_a_kept_row_takes_up_a_service_that_a_new_row_stands_before_the_hosts(world, provider, user, name):
    world.host.mount(shell, Names(note="far"))
    await world.become(row("u", user))
    assert world.view == {name: "far"}
    with world.ticking() as seen:
        await world.become(row("u", user), row("s", provider, note="near"))
    # One that only wants it may begin without: nobody knows yet what a row that starts will provide.
    assert world.view == {name: "near"} and world.mounts()["u"].starts in ((2, 3) if name == "wanting" else (2,))
    assert all(view in ({name: "far"}, {}, {name: "near"}) for view in seen)
    change = await world.become(row("u", user))
    assert change.kept == ("u",) and world.view == {name: "far"} and world.mounts()["u"].starts == 3


async def test_a_kept_row_that_wants_a_service_of_the_host_goes_without_while_it_is_hidden_and_has_it_again(world):
    far = world.host.mount(shell, Names(note="far"))
    await world.become(row("w", wanting))
    await world.become(row("w", wanting), hides=(far,))
    assert world.view == {"wanting": None}
    await world.become(row("w", wanting))
    assert world.view == {"wanting": "far"}


@pytest.mark.parametrize(
    ("user", "name"), [(using, "using"), (slow_using, "slow"), (wanting, "wanting")], ids=["user", "slow user", "who wants it"]
)
async def test_a_kept_row_starts_again_once_where_a_hidden_service_is_replaced(world, user, name):
    far = world.host.mount(shell, Names(note="far"))
    await world.become(row("u", user))
    await world.become(row("u", user), row("s", slow_shell, note="near"), hides=(far,))
    # One that only wants it may begin without: nobody knows yet what a row that starts will provide.
    assert world.view == {name: "near"} and world.mounts()["u"].starts in ((2, 3) if name == "wanting" else (2,))
    await world.become(row("u", user))
    assert world.view == {name: "far"}


async def test_rows_that_need_what_no_row_provides_do_not_start(world):
    with pytest.raises(ConfigError, match="row l needs nobody, which no row provides"):
        await world.become(row("a", tool, "a"), row("l", lonely))
    assert not world.tree.rows and not world.anchor.children and world.view == {}


async def test_a_row_whose_provider_is_removed_makes_the_pass_fail(world):
    await world.become(row("s", shell, note="one"), row("u", using))
    with pytest.raises(ConfigError, match="row u needs shell"):
        await world.become(row("u", using), keep=True)
    assert world.view == {"using": "one"} and set(world.tree.rows) == {"s", "u"}


async def test_a_row_that_leaks_a_service_makes_the_pass_fail(world):
    await world.become(row("a", tool, "a"))
    with pytest.raises(ConfigError, match="row l provides other in scope 'host', outside of its composition"):
        await world.become(row("a", tool, "a"), row("l", leaky), keep=True)
    assert world.view == {"a": ""} and world.host.get(OTHER) is None
    with pytest.raises(ConfigError, match="outside of its composition"):
        await world.become(row("l", leaky))
    assert world.host.get(OTHER) is None and not world.anchor.children


# failures


@pytest.mark.parametrize("bad", [broken, lonely, stuck], ids=["broken", "lonely", "stuck"])
async def test_a_pass_that_fails_leaves_nothing_of_its_own_and_what_was_hidden_stays_hidden(world, bad):
    world.far("bash", "read", "web")
    await world.become(row("a", tool, "bash", note="near"), row("m", tool, hides=("web",)))
    with world.ticking() as seen, pytest.raises(ConfigError, match="row bad "):
        await world.become(row("a", tool, "bash", note="other"), row("bad", bad))
    assert world.view == {"read": "far"} and not world.tree.rows and not world.here.veils
    assert all(view in ({"read": "far", "bash": "near"}, {"read": "far"}) for view in seen)
    await world.become(row("n", tool, "new"))
    assert set(world.view) == {"bash", "read", "web", "new"}


@pytest.mark.parametrize("bad", [broken, lonely, stuck], ids=["broken", "lonely", "stuck"])
async def test_a_pass_that_fails_goes_back_where_that_is_asked_for(world, bad):
    world.far("bash", "read", "web")
    rows = [row("a", tool, "bash", note="near"), row("m", tool, hides=("web",)), row("k", tool, "kept")]
    await world.become(*rows)
    mounts, before, size = world.mounts(), dict(world.view), world.tools.size
    with world.ticking() as seen, pytest.raises(ConfigError, match="row bad "):
        await world.become(row("a", tool, "bash", note="other"), row("bad", bad), rows[2], keep=True)
    assert world.view == before and list(world.view) == list(before) and list(world.tree.rows) == ["a", "m", "k"]
    assert world.mounts()["k"] is mounts["k"] and mounts["k"].starts == 1
    assert world.tools.size == size and not world.here.veils
    assert all("web" not in view and view.get("bash") in ("near", None) for view in seen)


async def test_a_second_failure_while_going_back_leaves_nothing_and_names_both(world):
    world.far("bash")
    starts: list[int] = []

    @plugin(config=Names, needs=(Registry,))
    def once(ctx, config):
        starts.append(1)
        if len(starts) > 1:
            raise RuntimeError("not twice")
        ctx.use(Registry).add(ctx, "bash", "near")

    await world.become(row("o", once), row("k", tool, "kept"))
    with pytest.raises(ConfigError) as caught:
        await world.become(row("o", broken), row("k", tool, "kept"), keep=True)
    assert "no luck" in caught.value.message and "not twice" in caught.value.message
    assert not world.tree.rows and world.view == {} and not world.anchor.children
    await world.become(row("k", tool, "kept"))
    assert set(world.view) == {"bash", "kept"} and world.tools.size == 2 and not world.here.veils


@pytest.mark.parametrize("keep", [True, False])
async def test_failures_one_after_the_other_add_up_to_nothing(world, keep):
    world.far("bash", "read")
    await world.become(row("a", tool, "bash", note="near"), row("m", tool, hides=("read",)))
    sizes, effects = set(), set()
    for number in range(10):
        with pytest.raises(ConfigError):
            await world.become(row("a", tool, "bash", note=str(number)), row("b", broken), keep=keep)
        sizes.add(world.tools.size)
        effects.add(len(world.anchor.effects))
        assert world.view == ({"bash": "near"} if keep else {})
    assert len(sizes) == len(effects) == 1 and not world.here.veils
    await world.become()
    assert set(world.view) == {"bash", "read"} and world.tools.size == 2 and not world.anchor.effects


async def test_a_failure_after_others_still_hides_what_the_last_good_rows_hid(world):
    world.far("bash", "read")
    await world.become(row("a", tool, "bash"))
    for rows in ([row("b", broken)], [row("a", tool, "read"), row("b", broken)], [row("b", stuck)]):
        with pytest.raises(ConfigError):
            await world.become(*rows)
        assert world.view == {"read": "far"}


async def test_emptied_rows_hide_what_they_hid_until_a_pass_succeeds(world):
    world.far("bash", "read", "web")
    far = world.host.mount(tool, Names(names=("far",)))
    await world.become(row("a", tool, "bash"), row("m", tool, hides=("web",)), hides=(far,))
    await world.tree.empty()
    await world.tree.empty()
    assert world.view == {"read": "far"} and not world.tree.rows and not world.anchor.children
    await world.become()
    assert set(world.view) == {"bash", "read", "web", "far"} and not world.anchor.effects and not world.here.veils


async def test_what_a_row_sealed_stays_hidden_after_a_failure(world):
    @plugin(config=Names, needs=(Registry,))
    def sealing(ctx, config):
        ctx.use(Registry).seal(ctx, Mask(deny=frozenset({"bash"})))

    world.far("bash", "read")
    await world.become(row("s", sealing))
    assert world.view == {"read": "far"}
    with world.ticking() as seen, pytest.raises(ConfigError):
        await world.become(row("s", sealing, note="x"), row("b", broken))
    assert world.view == {"read": "far"} and all("bash" not in view for view in seen)


async def test_every_row_that_did_not_start_is_named(world):
    with pytest.raises(ConfigError) as caught:
        await world.become(row("a", broken), groups("g", row("b", lonely)), row("c", stuck))
    message = caught.value.message
    assert "row a did not start" in message and "row g/b needs nobody" in message and "row c did not start" in message
    assert "did not start within 0.05 s" in message


async def test_a_row_that_neither_starts_nor_heeds_cancellation_is_left_behind_and_the_tree_goes_on(world):
    release = asyncio.Event()

    @plugin(config=Names, start_limit=0.05, stop_limit=0.05)
    async def deaf(ctx, config):
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        yield

    await world.become(row("a", tool, "a"))
    with pytest.raises(ConfigError, match="abandoned"):
        await asyncio.wait_for(world.become(row("a", tool, "a"), row("d", deaf), keep=True), 10)
    assert world.view == {"a": ""}
    await world.become(row("a", tool, "a"), row("b", tool, "b"))
    assert set(world.view) == {"a", "b"}
    release.set()
    while any("mount workspace/d" in task.get_name() for task in asyncio.all_tasks()):
        await asyncio.sleep(0)


# while a pass is made


async def test_new_rows_are_not_seen_before_all_of_them_are_there(world):
    gate = asyncio.Event()

    @plugin(config=Names, needs=(Registry,))
    async def late(ctx, config):
        ctx.use(Registry).add(ctx, "early", "")
        await gate.wait()
        ctx.use(Registry).add(ctx, "late", "")
        yield

    world.far("read")
    await world.become(row("a", tool, "a"))
    with world.ticking() as seen:
        task = asyncio.create_task(world.become(row("a", tool, "a"), row("b", tool, "b"), row("l", late)))
        while world.tools.size < 4:
            await asyncio.sleep(0)
        gate.set()
        await task
    full = {"read": "far", "a": "", "b": "", "early": "", "late": ""}
    assert all(view in ({"read": "far", "a": ""}, full) for view in seen) and world.view == full


async def test_a_row_that_changes_is_missing_until_all_is_there_and_nothing_shows_through(world):
    world.far("bash", "read", "web")
    await world.become(row("a", tool, "bash", note="one"), row("m", tool, hides=("web",)), row("s", slow_shell, note="1"), row("u", using))
    with world.ticking() as seen:
        await world.become(
            row("a", tool, "bash", note="two"), row("m", tool, hides=("web",), note="x"), row("s", slow_shell, note="2"), row("u", using)
        )
    allowed = [
        {"read": "far", "bash": "one", "using": "1"},
        {"read": "far"},
        {"read": "far", "bash": "two", "using": "2"},
    ]
    assert all(view in allowed for view in seen) and world.view == allowed[2]


async def test_a_new_row_takes_nothing_away_before_it_is_seen(world):
    world.far("read")
    with world.ticking() as seen:
        await world.become(row("r", tool, "read", note="near"), row("s", slow_shell))
    assert all(view in ({"read": "far"}, {"read": "near"}) for view in seen) and world.view == {"read": "near"}


async def test_what_new_rows_give_to_scopes_below_is_not_seen_before_all_is_there(world):
    @plugin(config=Names, needs=(Registry,))
    def giving(ctx, config):
        ctx.use(Registry).add(ctx.at(world.agent), "gift", "")

    with world.ticking() as seen, pytest.raises(ConfigError):
        await world.become(row("g", giving), row("x", stuck))
    assert all(view == {} for view in seen)


async def test_new_listeners_hear_nothing_before_all_is_there(world):
    heard: list[int] = []

    @plugin(config=Names)
    def listening(ctx, config):
        ctx.on(Said, lambda _: heard.append(1))

    def look() -> tuple[bool, bool]:
        heard.clear()
        world.host.ctx.emit(Said(), at=world.agent)
        return bool(heard), "a" in world.view

    with world.ticking(look) as seen:
        await world.become(row("l", listening), row("a", tool, "a"), row("s", slow_shell))
    assert set(seen) <= {(False, False), (True, True)} and look() == (True, True)


async def test_watchers_hear_of_every_entry_once(world):
    events: list[str] = []
    world.tools.watch(world.host.ctx, lambda name, _: events.append(f"+{name}"), lambda name: events.append(f"-{name}"))
    await world.become(row("a", tool, "a"), row("b", tool, "b"))
    await world.become(row("a", tool, "a", note="x"), row("b", tool, "b"))
    await world.become(row("b", tool, "b"), row("a", tool, "a", note="x"))
    with pytest.raises(ConfigError):
        await world.become(row("a", tool, "a", note="y"), row("x", broken), keep=True)
    assert events[:4] == ["+a", "+b", "-a", "+a"]
    assert sorted(events[4:]) == ["+a", "+a", "+b", "-a", "-a", "-b"] and set(world.view) == {"a", "b"}


async def test_a_watcher_that_refuses_an_entry_makes_the_pass_fail(world):
    def added(name: str, _: Any) -> None:
        if name == "bad":
            raise ConfigError("a bad name")

    world.tools.watch(world.host.ctx, added, lambda _: None)
    await world.become(row("a", tool, "a"))
    with pytest.raises(ConfigError, match="row b did not start: a bad name"):
        await world.become(row("a", tool, "a"), row("b", tool, "bad"), keep=True)
    assert world.view == {"a": ""} and world.tools.size == 1


# cancellation


@pytest.mark.parametrize("turns", range(0, 30, 3))
async def test_a_cancelled_pass_can_be_followed_by_another(world, turns):
    await world.become(row("a", lingering), row("b", tool, "b"), row("s", slow_shell, note="1"), row("u", slow_using))
    after = [row("a", lingering, note="x"), row("b", tool, "b", note="x"), row("s", slow_shell, note="2"), row("u", slow_using)]
    task = asyncio.create_task(world.become(*after))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.wait_for(world.become(*after), 10)
    assert world.view == {"b": "x", "slow": "2"} and not world.here.veils and not world.anchor.effects
    await world.become()
    assert world.view == {} and not world.anchor.children


async def test_a_cancelled_pass_that_waits_for_a_start_shows_nothing(world):
    @plugin(config=Names, needs=(Registry,), start_limit=0.2)
    async def never(ctx, config):
        ctx.use(Registry).add(ctx, "never", "")
        await asyncio.Event().wait()
        yield

    world.far("read")
    await world.become(row("a", tool, "read", note="near"))
    task = asyncio.create_task(world.become(row("a", tool, "read", note="other"), row("n", never)))
    while world.tools.get(world.agent, "read") is not None:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.view == {}
    await world.become()
    assert world.view == {"read": "far"} and not world.anchor.children


# what a scope changes of its host


class Hosted(World):
    """A world whose host has rows of its own."""

    async def mount(self, *rows: Planned) -> None:
        self.base = Base((), compose([]), {}, list(rows))
        self.base.mounts = await mount(self.host, rows)

    async def differ(self, *rows: Planned, **options: Any):
        desired, hides = difference(self.base, rows, self.anchor)
        return await asyncio.wait_for(self.tree.reconcile(desired, hides, **options), LIMIT)


@pytest.fixture
async def hosted():
    world = Hosted()
    yield world
    await world.here.close()
    await world.host.close()
    assert world.tools.size == 0


async def test_a_scope_that_changes_nothing_mounts_nothing(hosted):
    rows = [row("a", tool, "a"), groups("g", row("b", tool, "b"))]
    await hosted.mount(*rows)
    change = await hosted.differ(*rows)
    assert not change.started and not hosted.tree.rows and not hosted.here.veils and list(hosted.view) == ["a", "b"]


async def test_a_row_of_the_host_is_changed_left_out_and_given_back_for_the_scope_alone(hosted):
    rows = [row("a", tool, "a"), groups("g", row("b", tool, "b"), row("c", tool, "c"))]
    await hosted.mount(*rows)
    await hosted.differ(row("a", tool, "a", note="mine"), groups("g", row("c", tool, "c")))
    assert hosted.view == {"a": "mine", "c": ""}
    assert hosted.tools.view(hosted.host.root_scope) == {"a": "", "b": "", "c": ""}
    await hosted.differ(groups("g", row("c", tool, "c"), row("b", tool, "b", note="mine")))
    assert hosted.view == {"c": "", "b": "mine"}
    await hosted.differ(*rows)
    assert hosted.view == {"a": "", "b": "", "c": ""} and not hosted.here.veils and not hosted.tree.rows
    assert all(each.starts == 1 for each in hosted.base.mounts.values())


async def test_a_group_of_the_host_is_left_out_with_all_its_rows(hosted):
    await hosted.mount(groups("g", row("b", tool, "b"), groups("h", row("c", tool, "c"))), row("a", tool, "a"))
    await hosted.differ(row("a", tool, "a"))
    assert hosted.view == {"a": ""} and list(hosted.tools.view(hosted.host.root_scope)) == ["b", "c", "a"]


async def test_dependents_of_a_changed_host_row_are_made_anew_in_the_scope(hosted):
    rows = [row("s", shell, note="far"), row("u", using), row("a", tool, "a")]
    await hosted.mount(*rows)
    change = await hosted.differ(row("s", shell, note="near"), *rows[1:])
    assert change.started == ("s", "u") and hosted.view == {"a": "", "using": "near"}
    assert hosted.tools.get(hosted.host.root_scope, "using") == "far" and hosted.base.mounts["u"].starts == 1
    await hosted.differ(*rows)
    assert hosted.view["using"] == "far" and not hosted.tree.rows


async def test_a_host_row_that_wants_a_service_that_the_scope_leaves_out_goes_without_it_there(hosted):
    rows = [row("s", shell, note="far"), row("w", wanting)]
    await hosted.mount(*rows)
    await hosted.differ(rows[1])
    assert hosted.view == {"wanting": None} and hosted.tools.get(hosted.host.root_scope, "wanting") == "far"


async def test_leaving_out_what_another_row_of_the_host_needs_fails(hosted):
    rows = [row("s", shell, note="far"), row("u", using)]
    await hosted.mount(*rows)
    with pytest.raises(ConfigError, match="row u needs shell"):
        await hosted.differ(rows[1], keep=True)
    assert hosted.view == {"using": "far"} and not hosted.here.veils


async def test_the_scope_adds_a_row_to_a_group_of_the_host(hosted):
    await hosted.mount(groups("g", row("b", tool, "b")), row("z", tool, "z"))
    await hosted.differ(groups("g", row("b", tool, "b"), row("n", tool, "new")), row("z", tool, "z"))
    assert set(hosted.view) == {"b", "new", "z"} and set(hosted.tree.rows) == {"g", "g/n"}


async def test_a_row_that_the_scope_adds_to_an_isolated_group_sees_what_is_in_it(hosted):
    inside = [row("s", shell, note="inside"), row("u", using)]
    await hosted.mount(groups("g", *inside, isolate={SHELL: True}))
    await hosted.differ(groups("g", *inside, row("n", using, note="new"), isolate={SHELL: True}))
    assert hosted.view["new"] == "inside"


async def test_a_changed_host_row_fails_and_what_the_scope_saw_last_is_not_wider(hosted):
    rows = [row("a", tool, "a"), row("b", tool, "b")]
    await hosted.mount(*rows)
    await hosted.differ(row("a", tool, "a", note="mine"), rows[1])
    with hosted.ticking() as seen, pytest.raises(ConfigError):
        await hosted.differ(row("a", broken), rows[1])
    assert hosted.view == {"b": ""} and all(view.get("a", "mine") == "mine" for view in seen)
    with pytest.raises(ConfigError):
        await hosted.differ(rows[0], row("b", broken))
    assert hosted.view.get("b") is None
    await hosted.differ(*rows)
    assert hosted.view == {"a": "", "b": ""} and not hosted.here.veils


async def test_going_back_shows_the_host_rows_that_were_seen(hosted):
    rows = [row("a", tool, "a"), row("b", tool, "b")]
    await hosted.mount(*rows)
    await hosted.differ(*rows)
    with pytest.raises(ConfigError):
        await hosted.differ(row("a", broken), rows[1], keep=True)
    assert hosted.view == {"a": "", "b": ""} and not hosted.here.veils and not hosted.tree.rows


async def test_what_the_owner_stands_on_cannot_be_changed(hosted):
    @plugin(config=Names, needs=(SHELL,))
    def owner(ctx, config):
        pass

    @plugin(config=Names, needs=(OTHER,))
    def shell_of(ctx, config):
        ctx.provide(SHELL, ctx.use(OTHER))

    @plugin(config=Names)
    def other(ctx, config):
        ctx.provide(OTHER, config.note)

    rows = [groups("g", row("o", other)), row("s", shell_of), row("w", owner), row("a", tool, "a")]
    await hosted.mount(*rows)
    for changed, named in (
        ([groups("g", row("o", other, note="x")), *rows[1:]], "g/o"),
        (rows[1:], "g, g/o"),
        ([rows[0], row("s", broken), *rows[2:]], "s"),
        (rows[:2] + rows[3:], "w"),
    ):
        with pytest.raises(ConfigError, match=f"^{named}: the workspace stands on this, and cannot change it"):
            difference(hosted.base, changed, hosted.base.mounts["w"])
    desired, hides = difference(hosted.base, rows[:3], hosted.base.mounts["w"])
    assert desired == {} and hides == [hosted.base.mounts["a"]]


# policy and guards


SLOW = """
import asyncio
from hames.kernel import plugin

@plugin()
async def slow(ctx, config):
    for _ in range(5):
        await asyncio.sleep(0)
    yield
"""


async def test_no_call_goes_unjudged_while_a_policy_changes(opened, tmp_path):
    work = tmp_path / "work"
    (work / ".hames").mkdir(parents=True)
    (work / ".hames" / "slow.py").write_text(SLOW)
    file = work / ".hames" / "compose.yaml"
    trusting = tmp_path / "trusting.yaml"
    trusting.write_text("- {id: trust, set: {config: {default: always}}}\n- {id: workspaces, set: {config: {watch: false}}}\n")
    file.write_text("- {id: policy, set: {config: {mode: read-only}}}\n")
    async with opened(trusting) as host:
        lease = await host.get(WORKSPACES).acquire(work)
        seen: list[bool] = []
        loop = asyncio.get_running_loop()

        def tick() -> None:
            nonlocal handle
            seen.append(host.get(POLICY, lease.scope) is not None or unjudged(host, lease.scope))
            handle = loop.call_soon(tick)

        handle = loop.call_soon(tick)
        try:
            before = host.get(POLICY, lease.scope)
            assert before is not None and before is not host.get(POLICY)
            file.write_text("- {id: policy, set: {config: {mode: full}}}\n- {id: slow, use: ./slow.py}\n")
            info = await host.get(WORKSPACES).reload(work)
            assert info.reason == "" and host.get(POLICY, lease.scope) is not before
            file.write_text("- {id: policy, set: {config: {mode: read-only}}}\n- {id: slow, remove: true}\n- {id: slow2, use: ./slow.py}\n")
            await host.get(WORKSPACES).reload(work)
        finally:
            handle.cancel()
            await lease.release()
    assert seen and all(seen)


async def test_no_call_goes_unjudged_after_a_pass_that_failed(opened, tmp_path):
    work = tmp_path / "work"
    (work / ".hames").mkdir(parents=True)
    file = work / ".hames" / "compose.yaml"
    trusting = tmp_path / "trusting.yaml"
    trusting.write_text("- {id: trust, set: {config: {default: always}}}\n- {id: workspaces, set: {config: {watch: false}}}\n")
    file.write_text("- {id: policy, set: {config: {mode: read-only}}}\n")
    async with opened(trusting) as host:
        lease = await host.get(WORKSPACES).acquire(work)
        file.write_text("- {id: policy, set: {config: {mode: nonsense}}}\n")
        info = await host.get(WORKSPACES).reload(work)
        try:
            assert info.reason == "invalid" and unjudged(host, lease.scope)
        finally:
            await lease.release()


async def test_a_guard_of_the_host_guards_again_where_the_one_that_stood_before_it_has_failed(opened):
    async with opened() as host:
        guards = host.get(TOOLS).guards
        guards.add(host.ctx, "careful", lambda request: "never")
        scope: Scope = host.scope(key="here")
        tree = Tree(Context(host, host.mount(group, id="here", scope=scope), scope))

        @plugin(config=Names, needs=(TOOLS,))
        def guarding(ctx, config):
            ctx.use(TOOLS).guard(ctx, "careful", lambda request: "never")

        await tree.reconcile(placed([row("g", guarding)]))
        seen: list[bool] = []
        loop = asyncio.get_running_loop()

        def tick() -> None:
            nonlocal handle
            seen.append("careful" in guards.view(scope))
            handle = loop.call_soon(tick)

        handle = loop.call_soon(tick)
        try:
            with pytest.raises(ConfigError):
                await tree.reconcile(placed([row("g", guarding, note="x"), row("b", stuck)]))
            assert "careful" in guards.view(scope) and all(seen)
        finally:
            handle.cancel()
            await scope.close()


async def test_a_guard_that_a_row_adds_to_those_of_the_host_is_missed_at_no_moment_of_a_pass_that_keeps_it(opened):
    async with opened() as host:
        guards = host.get(TOOLS).guards
        scope: Scope = host.scope(key="here")
        tree = Tree(Context(host, host.mount(group, id="here", scope=scope), scope))

        @plugin(config=Names, needs=(TOOLS,))
        def guarding(ctx, config):
            ctx.use(TOOLS).guard(ctx, "careful", lambda request: "never")

        await tree.reconcile(placed([row("g", guarding)]))
        guard = guards.get(scope, "careful")
        await tree.reconcile(placed([row("s", slow_shell), row("g", guarding)]))
        with pytest.raises(ConfigError):
            await tree.reconcile(placed([row("b", broken), row("g", guarding)]), keep=True)
        assert guards.get(scope, "careful") is guard
        await scope.close()
