"""Masks, events, isolation and abandoned mounts against small models, for random worlds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from fnmatch import fnmatchcase

from hypothesis import given, settings
from hypothesis import strategies as st

from hames.kernel import Host, Key, Mask, Notice, Registry, State, plugin

NAMES = ["read", "write", "mcp__a__x", "mcp__a__y", "mcp__b__x"]
PATTERNS = [*NAMES, "mcp__*", "mcp__a__*", "*x"]
SCOPES = 4

names = st.sampled_from(NAMES)
masks = st.one_of(
    st.builds(lambda allow: Mask(allow=frozenset(allow)), st.sets(st.sampled_from(PATTERNS), min_size=1, max_size=3)),
    st.builds(lambda deny: Mask(deny=frozenset(deny)), st.sets(st.sampled_from(PATTERNS), max_size=2)),
    st.just(Mask.none()),
)
scopes = st.integers(0, SCOPES - 1)
entries = st.lists(st.tuples(names, scopes, st.integers(-1, 1), st.booleans()), max_size=8, unique_by=lambda entry: entry[:2])
narrowings = st.lists(st.tuples(scopes, masks, st.booleans()), max_size=4)
parents = st.tuples(st.just(0), st.integers(0, 0), st.integers(0, 1), st.integers(0, 2))


def opened(host, tree):
    """Scopes in the form of a tree, by number."""
    places = [host.root_scope]
    for index in range(1, SCOPES):
        places.append(host.scope(places[tree[index]], index))
    return places


def permits(mask: Mask, name: str) -> bool:
    allowed = mask.allow is None or any(fnmatchcase(name, pattern) for pattern in mask.allow)
    return allowed and not any(fnmatchcase(name, pattern) for pattern in mask.deny)


def modelled(scope, tree, held, narrowed):
    """What a scope sees, by the words of the documentation: inherited and not masked, then its own, then what a seal leaves."""
    seen = {} if scope == 0 else dict(modelled(tree[scope], tree, held, narrowed))
    for where, mask, seals in narrowed:
        if where == scope and not seals:
            seen = {name: entry for name, entry in seen.items() if permits(mask, name)}
    seen.update({entry[0]: (number, entry) for number, entry in held if entry[1] == scope})
    for where, mask, seals in narrowed:
        if where == scope and seals:
            seen = {name: (number, e) for name, (number, e) in seen.items() if (e[3] and e[1] == scope) or permits(mask, name)}
    return seen


@given(parents, entries, narrowings, st.sets(st.integers(0, 7)))
def test_views_are_what_layers_masks_and_seals_say(tree, wanted, narrowed, removed):
    async def check() -> None:
        async with Host() as host:
            registry: Registry[int] = Registry("tool")
            places = opened(host, tree)
            registry.declare(host.ctx, "*")
            mounts = []
            for number, (name, where, order, granted) in enumerate(wanted):

                @plugin()
                def row(ctx, config, name=name, where=where, order=order, granted=granted, number=number):
                    registry.add(ctx.at(places[where]), name, number, order=order, granted=granted)

                mounts.append(host.mount(row))
            for where, mask, seals in narrowed:
                (registry.seal if seals else registry.mask)(host.ctx.at(places[where]), mask)
            held = list(enumerate(wanted))
            for number in sorted(removed):
                if number < len(mounts):
                    await mounts[number].stop()
                    held = [(n, entry) for n, entry in held if n != number]
            for index, place in enumerate(places):
                model = modelled(index, tree, held, narrowed)
                ordered = sorted(model.items(), key=lambda item: (item[1][1][2], item[1][0]))
                assert list(registry.view(place).items()) == [(name, number) for name, (number, _) in ordered]
            for place in reversed(places[1:]):
                await place.close()
        assert registry.size == 0

    asyncio.run(check())


@dataclass(frozen=True)
class Ping(Notice):
    text: str = ""


@given(parents, st.lists(st.tuples(scopes, st.integers(-1, 1)), max_size=8), st.sets(st.integers(0, 7)), scopes)
def test_listeners_of_a_scope_and_of_those_above_hear_in_declared_order(tree, listeners, removed, at):
    async def check() -> None:
        async with Host() as host:
            places = opened(host, tree)
            heard: list[int] = []
            mounts = []
            for number, (where, order) in enumerate(listeners):

                @plugin()
                def row(ctx, config, number=number, where=where, order=order):
                    ctx.at(places[where]).on(Ping, lambda notice: heard.append(number), order=order)

                mounts.append(host.mount(row))
            host.ctx.emit(Ping(), at=places[at])  # fills the caches that the removals have to empty
            heard.clear()
            for number in removed:
                if number < len(mounts):
                    mounts[number].request_stop()
            host.ctx.emit(Ping(), at=places[at])
            above, where = set(), at
            while True:
                above.add(where)
                if where == 0:
                    break
                where = tree[where]
            expected = [(order, n) for n, (place, order) in enumerate(listeners) if place in above and n not in removed]
            assert heard == [number for _, number in sorted(expected)]

    asyncio.run(check())


SERVICE: Key[int] = Key("service")
realms = st.sampled_from([None, True, "left", "right"])


@given(st.lists(st.tuples(realms, st.sampled_from(["provides", "uses", "both"])), min_size=1, max_size=6))
def test_an_isolated_service_is_seen_where_its_realm_is(groups):
    @plugin()
    def group(ctx, config):
        pass

    @plugin()
    def provider(ctx, number):
        ctx.provide(SERVICE, number)

    @plugin(wants=(SERVICE,))
    def user(ctx, seen):
        seen.append(ctx.find(SERVICE))

    async def check() -> None:
        async with Host() as host:
            owner: dict[object, int] = {}  # the first provider of a realm; a second one is refused
            users = []
            for number, (how, what) in enumerate(groups):
                mount = host.mount(group, id=f"g{number}", isolate={} if how is None else {SERVICE: how})
                realm = number + 100 if how is True else how
                if what != "uses":
                    made = host.mount(provider, number, parent=mount)
                    assert (made.state is State.FAILED) == (realm in owner)
                    owner.setdefault(realm, number)
                if what != "provides":
                    seen: list = []
                    users.append((realm, seen))
                    host.mount(user, seen, parent=mount)
            assert [seen[-1] for _, seen in users] == [owner.get(realm) for realm, _ in users]

    asyncio.run(check())


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=5))
def test_a_chain_ends_in_order_round_those_that_do_not_heed_their_end(links):
    """Each link uses the one before it; some do not heed their cancellation at the stop."""

    async def check() -> None:
        release = asyncio.Event()
        ended: list[int] = []
        keys: list[Key[int]] = [Key(f"k{index}") for index in range(len(links) + 1)]

        def link(index: int, stubborn: bool, asynchronous: bool):
            needs = (keys[index],) if index else ()

            if not (stubborn or asynchronous):

                @plugin(needs=needs)
                def quick(ctx, config):
                    ctx.provide(keys[index + 1], index)
                    yield
                    ended.append(index)

                return quick

            @plugin(needs=needs, stop_limit=0.01)
            async def slow(ctx, config):
                ctx.provide(keys[index + 1], index)
                yield
                while stubborn and not release.is_set():
                    try:
                        await release.wait()
                    except asyncio.CancelledError:
                        continue
                if not stubborn:
                    ended.append(index)

            return slow

        host = Host(grace=0.01)
        mounts = [host.mount(link(index, *how)) for index, how in enumerate(links)]
        for mount in mounts:
            await mount.ready()
        async with asyncio.timeout(5):
            await host.close()
        assert all(mount.state is State.STOPPED for mount in mounts)
        assert ended == [index for index in reversed(range(len(links))) if not links[index][0]]
        assert [mounts.index(mount) for mount in host.abandoned] == [index for index in reversed(range(len(links))) if links[index][0]]
        release.set()
        await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(check())
