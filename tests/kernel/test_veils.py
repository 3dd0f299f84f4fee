"""What a scope hides of what mounts registered, for itself and for the scopes below it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hames.content.errors import ConfigError
from hames.kernel import Around, Ask, Context, Host, Key, Mask, Mount, Notice, Registry, Scope, State, plugin

SHELL: Key[str] = Key("shell")


@dataclass(frozen=True)
class Ping(Notice):
    pass


class Question(Ask[str]):
    pass


class Call(Around[str]):
    pass


@plugin()
def blank(ctx, config):
    pass


@plugin()
def shell(ctx, value):
    ctx.provide(SHELL, value)


def user(log, *, needs=True):
    """A plugin that says which shell it uses, at each start."""

    @plugin(needs=(SHELL,) if needs else (), wants=() if needs else (SHELL,))
    def body(ctx, config):
        log.append(ctx.find(SHELL))

    return body


@pytest.fixture
def tools() -> Registry[str]:
    return Registry("tool")


def mounted(host: Host, **options) -> Context:
    return host.context(host.mount(blank, **options))


def names(tools: Registry[str], scope: Scope) -> list[str]:
    return list(tools.view(scope))


class World:
    """A host, two workspaces, and an agent in the first."""

    def __init__(self, host: Host) -> None:
        self.here = host.scope(key="here")
        self.there = host.scope(key="there")
        self.agent = host.scope(self.here, "agent")


@pytest.fixture
async def world(host):
    world = World(host)
    yield world
    await world.here.close()
    await world.there.close()


# entries


async def test_entries_of_a_hidden_mount_are_not_seen_from_the_scope_and_below_and_are_seen_elsewhere(host, tools, world):
    hidden, other = mounted(host), mounted(host)
    tools.add(hidden, "bash", "b")
    tools.add(other, "read", "r")
    assert names(tools, world.agent) == ["bash", "read"]
    world.here.veil({hidden.owner: False})
    assert names(tools, world.here) == names(tools, world.agent) == ["read"]
    assert tools.get(world.agent, "bash") is None and "bash" not in tools.owners(world.agent)
    assert names(tools, host.root_scope) == names(tools, world.there) == ["bash", "read"]


@pytest.mark.parametrize("how", [True, False])
async def test_mounts_below_a_hidden_one_are_hidden_too(host, tools, world, how):
    group = host.mount(blank)
    inner = host.mount(blank, parent=host.mount(blank, parent=group))
    tools.add(host.context(inner), "deep", "d")
    world.here.veil({group: how})
    assert names(tools, world.here) == names(tools, world.agent) == []
    assert names(tools, world.there) == ["deep"]
    late = host.mount(blank, parent=inner)
    tools.add(host.context(late), "late", "l")
    assert names(tools, world.agent) == [] and names(tools, world.there) == ["deep", "late"]


async def test_entries_are_seen_again_in_their_order(host, tools, world):
    rows = [mounted(host) for _ in range(3)]
    for number, ctx in enumerate(rows):
        tools.add(ctx, f"t{number}", "")
    world.here.veil({rows[0].owner: True, rows[1].owner: False})
    assert names(tools, world.agent) == ["t2"]
    world.here.veil({rows[1].owner: None})
    assert names(tools, world.agent) == ["t1", "t2"]
    world.here.veil({rows[0].owner: None})
    assert names(tools, world.agent) == ["t0", "t1", "t2"]
    assert not world.here.veils


async def test_showing_what_was_not_hidden_changes_nothing(host, tools, world):
    ctx = mounted(host)
    tools.add(ctx, "read", "")
    world.here.veil({ctx.owner: None})
    world.here.veil({})
    assert names(tools, world.here) == ["read"] and not world.here.veils


async def test_the_own_entries_of_the_scope_can_be_hidden_in_it(host, tools, world):
    staged = mounted(host, scope=world.here)
    tools.add(staged, "new", "n")
    world.here.veil({staged.owner: False})
    assert names(tools, world.here) == names(tools, world.agent) == []
    world.here.veil({staged.owner: None})
    assert names(tools, world.agent) == ["new"]


async def test_hiding_in_the_agent_leaves_the_workspace_alone(host, tools, world):
    ctx = mounted(host, scope=world.here)
    tools.add(ctx, "read", "")
    world.agent.veil({ctx.owner: True})
    assert names(tools, world.agent) == [] and names(tools, world.here) == ["read"]


async def test_entries_that_a_hidden_mount_registered_on_behalf_of_a_scope_below_are_not_seen_there(host, tools, world):
    hidden = mounted(host)
    tools.add(hidden.at(world.agent), "gift", "g")
    assert names(tools, world.agent) == ["gift"]
    world.here.veil({hidden.owner: True})
    assert names(tools, world.agent) == []


async def test_an_entry_farther_away_is_seen_where_a_scope_below_hides_the_nearer_one(host, tools, world):
    far, near = mounted(host), mounted(host, scope=world.here)
    tools.add(far, "read", "far")
    tools.add(near, "read", "near")
    world.agent.veil({near.owner: True})
    assert tools.view(world.agent) == {"read": "far"}
    assert tools.view(world.here) == {"read": "near"}


async def test_a_mount_with_the_id_of_a_hidden_one_that_has_gone_is_seen(host, tools, world):
    first = mounted(host, id="row")
    tools.add(first, "read", "old")
    world.here.veil({first.owner: True})
    await first.owner.stop()
    second = mounted(host, id="row")
    tools.add(second, "read", "new")
    assert tools.view(world.agent) == {"read": "new"}


async def test_a_hidden_mount_that_starts_anew_stays_hidden(host, tools, world):
    @plugin()
    def row(ctx, config):
        tools.add(ctx, "read", config)

    mount = host.mount(row, "a")
    world.here.veil({mount: True})
    await mount.replace(row, "b")
    assert names(tools, world.agent) == [] and tools.view(world.there) == {"read": "b"}


async def test_two_scopes_of_a_chain_hide_and_both_must_show(host, tools, world):
    ctx = mounted(host)
    tools.add(ctx, "read", "")
    world.here.veil({ctx.owner: False})
    world.agent.veil({ctx.owner: False})
    world.here.veil({ctx.owner: None})
    assert names(tools, world.here) == ["read"] and names(tools, world.agent) == []
    world.agent.veil({ctx.owner: None})
    assert names(tools, world.agent) == ["read"]


# masks, seals, granted entries


async def test_masks_narrow_what_is_not_hidden(host, tools, world):
    hidden, other = mounted(host), mounted(host)
    tools.add(hidden, "bash", "")
    tools.add(other, "read", "")
    tools.add(other, "web", "")
    tools.mask(host.ctx.at(world.here), Mask(deny=frozenset({"web"})))
    world.here.veil({hidden.owner: True})
    assert names(tools, world.agent) == ["read"]
    world.here.veil({hidden.owner: None})
    assert names(tools, world.agent) == ["bash", "read"]


async def test_a_mask_may_still_speak_of_what_is_hidden(host, tools, world):
    hidden = mounted(host)
    tools.add(hidden, "bash", "")
    world.here.veil({hidden.owner: True})
    tools.mask(host.ctx.at(world.agent), Mask(deny=frozenset({"bash"})))
    with pytest.raises(ConfigError, match="unknown tool"):
        tools.mask(host.ctx.at(world.agent), Mask(deny=frozenset({"bsh"})))


async def test_a_granted_entry_of_a_hidden_mount_is_not_seen(host, tools, world):
    ctx = mounted(host)
    tools.add(ctx.at(world.agent), "result", "", granted=True)
    tools.add(ctx.at(world.agent), "read", "")
    tools.seal(host.ctx.at(world.agent), Mask(deny=frozenset({"read"})))
    assert names(tools, world.agent) == ["result"]
    world.agent.veil({ctx.owner: False})
    assert names(tools, world.agent) == []
    world.agent.veil({ctx.owner: None})
    assert names(tools, world.agent) == ["result"]


# listeners


async def test_listeners_of_a_hidden_mount_hear_nothing_of_the_scope_and_below(host, world):
    heard: list[str] = []

    @plugin()
    def row(ctx, name):
        ctx.on(Ping, lambda _: heard.append(name))

    @plugin()
    def group(ctx, config):
        ctx.mount(row, "inner")

    hidden = host.mount(group)
    host.mount(row, "other")
    host.mount(row, "own", scope=world.here)

    def hearing(scope: Scope) -> list[str]:
        heard.clear()
        host.ctx.emit(Ping(), at=scope)
        return list(heard)

    assert hearing(world.agent) == ["inner", "other", "own"]  # fills caches
    world.here.veil({hidden: False})
    assert hearing(world.agent) == hearing(world.here) == ["other", "own"]
    assert hearing(world.there) == hearing(host.root_scope) == ["inner", "other"]
    world.here.veil({hidden: None})
    assert hearing(world.agent) == ["inner", "other", "own"]


async def test_listeners_that_a_hidden_mount_has_in_a_scope_below_hear_nothing(host, world):
    heard: list[str] = []
    hidden = mounted(host)
    hidden.at(world.agent).on(Ping, lambda _: heard.append("gift"))
    world.here.veil({hidden.owner: True})
    host.ctx.emit(Ping(), at=world.agent)
    assert heard == []


async def test_hidden_listeners_neither_answer_nor_wrap(host, world):
    ctx = mounted(host)

    async def answer(question):
        return "answer"

    async def wrap(call, proceed):
        return f"wrapped {await proceed(call)}"

    async def inner(call):
        return "plain"

    ctx.on(Question, answer)
    ctx.on(Call, wrap)
    world.here.veil({ctx.owner: True})
    assert await host.ctx.ask(Question(), at=world.agent) is None
    assert await host.ctx.around(Call(), inner, at=world.agent) == "plain"
    assert await host.ctx.ask(Question(), at=world.there) == "answer"
    assert await host.ctx.around(Call(), inner, at=world.there) == "wrapped plain"


# services


async def test_services_are_hidden_only_where_that_is_said(host, world):
    mount = host.mount(shell, "sh")
    world.here.veil({mount: False})
    assert host.get(SHELL, world.agent) == "sh"
    world.here.veil({mount: True})
    assert host.get(SHELL, world.agent) is None and host.get(SHELL, world.here) is None
    assert host.get(SHELL) == host.get(SHELL, world.there) == "sh"
    world.here.veil({mount: False})
    assert host.get(SHELL, world.agent) == "sh"
    world.here.veil({mount: True})
    world.here.veil({mount: None})
    assert host.get(SHELL, world.agent) == "sh"


async def test_a_service_of_a_mount_below_a_hidden_one_is_hidden(host, world):
    group = host.mount(blank)
    host.mount(shell, "sh", parent=group)
    world.here.veil({group: True})
    assert host.get(SHELL, world.agent) is None and host.get(SHELL, world.there) == "sh"


async def test_who_used_a_hidden_service_starts_again_once_with_what_is_seen_now(host, world):
    log: list[str] = []
    far = host.mount(shell, "far")
    near = host.mount(shell, "near", scope=world.here)
    using = host.mount(user(log), scope=world.agent)
    elsewhere = host.mount(user([]), scope=world.there)
    world.agent.veil({near: True})
    await host.settle()
    assert log == ["near", "far"] and using.starts == 2 and elsewhere.starts == 1
    world.agent.veil({near: None})
    await host.settle()
    assert log == ["near", "far", "near"] and using.starts == 3 and elsewhere.starts == 1
    assert far.starts == near.starts == 1


async def test_several_services_that_are_hidden_in_one_step_restart_their_user_once(host, world):
    other: Key[str] = Key("other")

    @plugin()
    def both(ctx, value):
        ctx.provide(SHELL, value)
        ctx.provide(other, value)

    log: list[tuple[str, str]] = []

    @plugin(needs=(SHELL, other))
    def using(ctx, config):
        log.append((ctx.use(SHELL), ctx.use(other)))

    host.mount(both, "far")
    near = host.mount(both, "near", scope=world.here)
    host.mount(using, scope=world.agent)
    world.agent.veil({near: True})
    await host.settle()
    assert log == [("near", "near"), ("far", "far")]


async def test_users_of_a_service_are_left_alone_where_only_entries_are_hidden(host, world):
    mount = host.mount(shell, "sh")
    using = host.mount(user([]), scope=world.agent)
    world.here.veil({mount: False})
    world.here.veil({mount: None})
    world.here.veil({mount: False})
    await host.settle()
    assert using.starts == 1 and using.state is State.ACTIVE


async def test_who_needs_a_hidden_service_waits_and_starts_when_it_is_shown_again(host, world):
    log: list[str] = []
    mount = host.mount(shell, "sh")
    using = host.mount(user(log), scope=world.agent)
    world.here.veil({mount: True})
    await host.settle()
    assert using.state is State.WAITING and using.missing == ["shell"]
    world.here.veil({mount: None})
    await host.settle()
    assert using.state is State.ACTIVE and log == ["sh", "sh"]


async def test_who_was_mounted_while_what_it_needs_was_hidden_starts_when_it_is_shown(host, world):
    mount = host.mount(shell, "sh")
    world.here.veil({mount: True})
    using = host.mount(user([]), scope=world.agent)
    assert using.state is State.WAITING
    world.here.veil({mount: False})
    await host.settle()
    assert using.state is State.ACTIVE


async def test_who_wants_a_hidden_service_goes_without_and_has_it_when_it_is_shown_again(host, world):
    log: list[str | None] = []
    mount = host.mount(shell, "sh")
    host.mount(user(log, needs=False), scope=world.agent)
    world.here.veil({mount: True})
    await host.settle()
    assert log == ["sh", None]
    world.here.veil({mount: None})
    await host.settle()
    assert log == ["sh", None, "sh"]


async def test_a_scope_below_that_hides_a_service_is_not_overruled_by_one_above_that_hides_less(host, world):
    mount = host.mount(shell, "sh")
    world.agent.veil({mount: True})
    assert host.get(SHELL, world.agent) is None
    world.here.veil({mount: False})
    assert host.get(SHELL, world.agent) is None


async def test_a_scope_below_that_hides_less_is_overruled(host, world):
    mount = host.mount(shell, "sh")
    world.agent.veil({mount: False})
    world.here.veil({mount: True})
    assert host.get(SHELL, world.agent) is None


async def test_a_service_that_a_hidden_mount_provides_in_a_scope_below_is_not_seen_there(host, world):
    hidden = mounted(host)
    hidden.at(world.agent).provide(SHELL, "gift")
    assert host.get(SHELL, world.agent) == "gift"
    world.here.veil({hidden.owner: True})
    assert host.get(SHELL, world.agent) is None


async def test_a_service_that_is_provided_while_its_mount_is_hidden_restarts_nobody(host, world):
    @plugin()
    async def slow(ctx, config):
        await asyncio.sleep(0)
        ctx.provide(SHELL, "slow")
        yield

    host.mount(shell, "far")
    using = host.mount(user([]), scope=world.agent)
    gate = host.mount(slow, scope=world.here)
    world.here.veil({gate: True})
    await host.settle()
    assert gate.state is State.ACTIVE and using.starts == 1 and host.get(SHELL, world.agent) == "far"


async def test_an_isolated_service_is_hidden_like_any_other(host, world):
    log: list[str] = []
    host.mount(shell, "far", isolate={SHELL: "pair"})
    near = host.mount(shell, "near", isolate={SHELL: "pair"}, scope=world.here)
    host.mount(user(log), isolate={SHELL: "pair"}, scope=world.agent)
    world.here.veil({near: True})
    await host.settle()
    assert log == ["near", "far"]


# freeze


async def test_what_a_scope_hides_stays_hidden_until_what_is_kept_is_let_go(host, tools, world):
    for name in ("bash", "read", "web"):
        tools.add(host.ctx, name, "far")
    own = mounted(host, scope=world.here)
    tools.add(own, "bash", "near")
    tools.mask(own, Mask(deny=frozenset({"web"})))
    anchor = mounted(host, scope=world.here)
    kept = tools.freeze(anchor)
    assert tools.view(world.agent) == {"read": "far", "bash": "near"}
    await own.owner.stop()
    assert tools.view(world.agent) == {"read": "far"} and tools.view(world.there) == dict.fromkeys(("bash", "read", "web"), "far")
    for effect in (*kept, *kept):
        effect.withdraw()
    assert names(tools, world.agent) == ["bash", "read", "web"]
    assert not anchor.owner.effects and tools.size == 3


async def test_what_a_seal_hid_stays_hidden_too(host, tools, world):
    tools.add(host.ctx, "bash", "far")
    tools.add(host.ctx, "read", "far")
    own, anchor = mounted(host, scope=world.here), mounted(host, scope=world.here)
    tools.seal(own, Mask(deny=frozenset({"bash"})))
    assert names(tools, world.agent) == ["read"]
    tools.freeze(anchor)
    await own.owner.stop()
    assert names(tools, world.agent) == ["read"]


async def test_new_own_entries_are_seen_in_spite_of_what_is_kept_hidden(host, tools, world):
    tools.add(host.ctx, "bash", "far")
    own, anchor = mounted(host, scope=world.here), mounted(host, scope=world.here)
    tools.add(own, "bash", "near")
    tools.freeze(anchor)
    await own.owner.stop()
    again = mounted(host, scope=world.here)
    tools.add(again, "bash", "again")
    assert tools.view(world.agent) == {"bash": "again"}


async def test_a_scope_that_hides_nothing_has_nothing_to_keep(host, tools, world):
    tools.add(host.ctx, "bash", "far")
    anchor = mounted(host, scope=world.here)
    assert tools.freeze(anchor) == [] and not anchor.owner.effects and tools.size == 1


async def test_an_allow_list_that_is_kept_hides_what_comes_later(host, tools, world):
    tools.add(host.ctx, "read", "")
    own, anchor = mounted(host, scope=world.here), mounted(host, scope=world.here)
    tools.mask(own, Mask(allow=frozenset({"read"})))
    tools.freeze(anchor)
    await own.owner.stop()
    tools.add(host.ctx, "late", "")
    assert names(tools, world.agent) == ["read"]


async def test_what_is_kept_ends_with_the_scope(host, tools, world):
    tools.add(host.ctx, "read", "")
    scope = host.scope(key="short")
    own, anchor = mounted(host, scope=scope), mounted(host, scope=scope)
    tools.add(own, "read", "near")
    tools.freeze(anchor)
    await scope.close()
    assert tools.size == 1 and names(tools, host.root_scope) == ["read"]


# order


async def test_views_and_listeners_follow_new_places_in_every_scope(host, tools, world):
    heard: list[str] = []
    mounts: list[Mount] = []
    for name in ("a", "b", "c"):
        ctx = mounted(host, scope=world.here)
        tools.add(ctx, name, name)
        ctx.on(Ping, lambda _, name=name: heard.append(name))
        mounts.append(ctx.owner)
    hidden = mounted(host)
    tools.add(hidden, "hidden", "")
    world.agent.veil({hidden.owner: True})
    tools.add(host.ctx.at(world.agent), "own", "", order=1)
    host.ctx.emit(Ping(), at=world.agent)
    assert heard == ["a", "b", "c"] and names(tools, world.agent) == ["a", "b", "c", "own"]
    host.reorder({mount: rank for rank, mount in enumerate(reversed(mounts))})
    heard.clear()
    host.ctx.emit(Ping(), at=world.agent)
    assert heard == ["c", "b", "a"] and names(tools, world.agent) == ["c", "b", "a", "own"]


async def test_rows_of_a_moved_group_move_with_it(host, tools, world):
    first, second = host.mount(blank, scope=world.here), host.mount(blank, scope=world.here)
    tools.add(host.context(host.mount(blank, parent=first, scope=world.here)), "a", "")
    tools.add(host.context(host.mount(blank, parent=second, scope=world.here)), "b", "")
    assert names(tools, world.agent) == ["a", "b"]
    host.reorder({first: second.rank + 1})
    assert names(tools, world.agent) == ["b", "a"]


# ending


class Place:
    """A key of a scope that can be looked for."""


async def test_closing_a_scope_that_hides_leaves_nothing_of_it(host, tools):
    hidden = mounted(host)
    tools.add(hidden, "bash", "")
    hidden.on(Ping, lambda _: None)
    hidden.provide(SHELL, "sh")
    place = Place()
    scope = host.scope(key=place)
    agent = host.scope(scope, "agent")
    using = host.mount(user([]), scope=agent)
    tools.add(host.ctx.at(agent), "own", "")
    host.ctx.emit(Ping(), at=agent)
    scope.veil({hidden.owner: True})
    host.ctx.emit(Ping(), at=agent)
    assert names(tools, agent) == ["own"]
    await scope.close()
    assert using.state is State.STOPPED and not host.root_scope.children and tools.size == 1
    gone = weakref.ref(place)
    del using, agent, scope, place
    gc.collect()
    assert gone() is None


async def test_a_closed_scope_is_forgotten_though_it_hid_something_after_it_was_spoken_in(host):
    hidden = mounted(host)
    hidden.on(Ping, lambda _: None)
    place = Place()
    scope = host.scope(key=place)
    scope.veil({hidden.owner: False})
    host.ctx.emit(Ping(), at=scope)
    scope.veil({hidden.owner: None})
    await scope.close()
    gone = weakref.ref(place)
    del place, scope
    gc.collect()
    assert gone() is None


async def test_hiding_in_a_scope_that_is_closed_or_of_a_mount_that_is_gone_does_no_harm(host, tools):
    ctx = mounted(host)
    tools.add(ctx, "read", "")
    scope = host.scope(key="workspace")
    await ctx.owner.stop()
    scope.veil({ctx.owner: True})
    await scope.close()
    scope.veil({ctx.owner: None})
    assert tools.size == 0


# a simple model

SCOPES = 4
MOUNTS = 5
TREE = (None, 0, 1, 0)  # host, workspace, agent, another workspace


def chain(scope):
    while scope is not None:
        yield scope
        scope = TREE[scope]


mounts_of = st.lists(st.tuples(st.integers(0, SCOPES - 1), st.integers(-1, MOUNTS - 2)), min_size=MOUNTS, max_size=MOUNTS)
changes = st.lists(
    st.tuples(st.integers(0, SCOPES - 1), st.integers(0, MOUNTS - 1), st.sampled_from([True, False, None])), min_size=1, max_size=12
)


@settings(deadline=None)
@given(mounts_of, changes)
def test_whatever_is_hidden_and_shown_every_scope_sees_what_a_simple_model_says(rows, steps):
    """Mounts stand anywhere, and those below another one in its scope; the nearest service that is not hidden counts."""

    async def check() -> None:
        async with Host() as host:
            tools: Registry[int] = Registry("tool")
            places = [host.root_scope]
            for number in range(1, SCOPES):
                places.append(host.scope(places[TREE[number]], number))
            heard: list[int] = []
            mounts: list[Mount] = []
            where: list[int] = []
            parents: list[int] = []
            provided: dict[int, int] = {}
            for number, (scope, parent) in enumerate(rows):
                parent = parent if parent < number else -1
                scope = where[parent] if parent >= 0 else scope
                provides = scope not in provided

                @plugin()
                def row(ctx, number, provides=provides):
                    tools.add(ctx, f"t{number}", number)
                    ctx.on(Ping, lambda _: heard.append(number))
                    if provides:
                        ctx.provide(SHELL, number)

                mounts.append(host.mount(row, number, scope=places[scope], parent=mounts[parent] if parent >= 0 else None))
                where.append(scope)
                parents.append(parent)
                if provides:
                    provided[scope] = number
            logs: list[list[int | None]] = [[] for _ in places]
            users = [host.mount(user(log, needs=False), scope=place) for log, place in zip(logs, places, strict=True)]
            veils: dict[tuple[int, int], bool] = {}

            def hidden(scope: int, mount: int, services: bool) -> bool:
                each = mount
                while each >= 0:
                    if any((place, each) in veils and (not services or veils[place, each]) for place in chain(scope)):
                        return True
                    each = parents[each]
                return False

            def service(scope: int) -> int | None:
                found = (provided[place] for place in chain(scope) if place in provided and not hidden(scope, provided[place], True))
                return next(found, None)

            for scope, mount, how in steps:
                if where[mount] not in chain(scope) or any(each == mount and place != scope for place, each in veils):
                    continue  # what the tests above look at
                if how is None:
                    veils.pop((scope, mount), None)
                else:
                    veils[scope, mount] = how
                before = [each.starts for each in users]
                wanted_before = [log[-1] for log in logs]
                places[scope].veil({mounts[mount]: how})
                await host.settle()
                for number, place in enumerate(places):
                    seen = [m for m in range(MOUNTS) if where[m] in chain(number) and not hidden(number, m, False)]
                    assert set(tools.view(place).values()) == set(seen)
                    heard.clear()
                    host.ctx.emit(Ping(), at=place)
                    assert set(heard) == set(seen) and len(heard) == len(seen)
                    assert host.get(SHELL, place) == service(number)
                    assert logs[number][-1] == service(number)
                    assert users[number].starts == before[number] + (wanted_before[number] != service(number))
            for place in reversed(places[1:]):
                await place.close()

    asyncio.run(check())
