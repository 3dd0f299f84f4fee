"""A hundred thousand operations in one host: nothing is left, and every order held."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from dataclasses import dataclass

import pytest

from hames.kernel import Host, Key, Notice, Registry, State, plugin

KEYS = [Key(name) for name in "abcd"]
OPERATIONS = 100_000


@dataclass(frozen=True)
class Tick(Notice):
    number: int


class World:
    """A host under random operations, and what has been seen of the order in which things end."""

    def __init__(self, host: Host, chance: random.Random) -> None:
        self.host = host
        self.chance = chance
        self.registry: Registry[int] = Registry("entry")
        self.mounts: list = []
        self.scopes = [host.root_scope]
        self.heard = 0
        self.count = 0
        self.active: dict[int, tuple] = {}  # number of a start: the starts that it uses

    def plugin(self):
        chance = self.chance
        provides = chance.choice([None, None, *KEYS])
        before = KEYS[: KEYS.index(provides)] if provides is not None else KEYS  # so that no two chase each other
        needs = tuple(key for key in before if chance.random() < 0.2)
        asynchronous = chance.random() < 0.15
        entries = chance.randrange(4)

        def start(ctx):
            self.count += 1
            number = self.count
            ended: list[int] = []
            for index in range(entries):
                ctx.effect(f"entry {index}", lambda index=index: ended.append(index))
            ctx.defer(lambda: self.end(number, ended, entries))
            self.active[number] = tuple(ctx.use(key) for key in needs)
            if chance.random() < 0.3:
                self.registry.add(ctx, f"{number}", number)
            ctx.on(Tick, self.hear, order=chance.randrange(3))
            if provides is not None:
                ctx.provide(provides, number)

        if asynchronous:

            @plugin(needs=needs)
            async def body(ctx, config):
                start(ctx)
                yield

        else:

            @plugin(needs=needs)
            def body(ctx, config):
                start(ctx)

        return body

    def hear(self, notice: Tick) -> None:
        self.heard += 1

    def end(self, number: int, ended: list[int], entries: int) -> None:
        assert ended == list(reversed(range(entries))), "what was registered last is withdrawn first"
        users = [other for other, used in self.active.items() if number in used]
        assert not users, "dependents end before what they use"
        del self.active[number]

    async def operate(self) -> None:
        chance, host = self.chance, self.host
        self.mounts = [mount for mount in self.mounts if mount.state is not State.STOPPED]
        match chance.randrange(10):
            case 0 | 1 | 2 | 3 if len(self.mounts) < 40:
                scope = chance.choice(self.scopes)
                try:
                    self.mounts.append(host.mount(self.plugin(), scope=scope, id=f"m{self.count}-{chance.random()}"))
                except Exception as error:  # a second provider in one scope fails its mount, never the call
                    raise AssertionError from error
            case 4 | 5 if self.mounts:
                chance.choice(self.mounts).request_stop()
            case 6 if self.mounts:
                mount = chance.choice(self.mounts)
                if not mount.removed and mount.state in (State.ACTIVE, State.WAITING):
                    host.restart((mount,), (self.plugin(), None))
            case 7 if len(self.scopes) < 6:
                self.scopes.append(host.scope(chance.choice(self.scopes), "scope"))
            case 8 if len(self.scopes) > 1 and chance.random() < 0.2:
                scope = self.scopes.pop(chance.randrange(1, len(self.scopes)))
                await scope.close()
                self.scopes = [each for each in self.scopes if not each.closed]
            case _:
                host.ctx.emit(Tick(1), at=chance.choice(self.scopes))
        if chance.random() < 0.05:
            await asyncio.sleep(0)


@pytest.mark.slow
async def test_after_a_hundred_thousand_operations_nothing_is_left() -> None:
    number = random.randrange(1 << 32)
    print(f"chance {number}")
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    async with Host() as host:
        world = World(host, random.Random(number))
        for _ in range(OPERATIONS):
            await world.operate()
        await host.settle()
        assert world.count > 1000 and world.heard > 1000
    assert not world.active and not host.moving and not host.interested and not host.abandoned
    assert world.registry.size == 0 and host.root_scope.listener_count == 0 and not host.root_scope.provisions
    assert not host.root_scope.children and not host.root.children
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    unexpected = [error for _, error in host.problems if "already provided" not in str(error)]
    assert not unexpected


async def test_rows_that_shadow_what_they_need_for_each_other_are_stopped() -> None:
    """X needs A and provides B, Y needs B and provides A: each takes from the other what it stands on."""
    above, below = KEYS[0], KEYS[1]

    @plugin()
    def first(ctx, config):
        ctx.provide(above, "first")

    @plugin(needs=(above,))
    def x(ctx, config):
        ctx.provide(below, "x")

    @plugin(needs=(below,))
    def y(ctx, config):
        ctx.provide(above, "y")

    async with Host() as host:
        inner = host.scope(key="inner")
        host.mount(first)
        host.mount(x, scope=inner)
        host.mount(y, scope=inner)
        await host.settle()
        failed = [mount for mount in host.root.children.values() if mount.state is State.FAILED]
        assert len(failed) == 1 and "restart each other without end" in str(failed[0].error)
