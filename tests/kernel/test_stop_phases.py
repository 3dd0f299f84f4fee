"""The order in which things end, and waits that could never end."""

import asyncio
from dataclasses import dataclass

import pytest

from hames.content.errors import WouldWaitForItself
from hames.kernel import Context, Host, Key, Mount, Notice, Registry, State, plugin

Store: Key[str] = Key("store")


@dataclass(frozen=True)
class Ping(Notice):
    pass


async def forever(log: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        log.append(name)


# the four phases


async def test_the_four_phases_of_an_async_generator(host: Host) -> None:
    log: list[str] = []

    @plugin()
    async def child(ctx, config):
        ctx.effect("child", lambda: log.append("seal child"))
        yield
        await asyncio.sleep(0)
        log.append("child")

    @plugin(needs=(Store,))
    async def dependent(ctx, config):
        ctx.effect("dependent", lambda: log.append("seal dependent"))
        ctx.defer(lambda: log.append("undo dependent"))
        yield
        await asyncio.sleep(0)
        log.append("dependent")

    @plugin()
    async def body(ctx, config):
        ctx.provide(Store, "store")
        ctx.effect("body", lambda: log.append("seal body"))
        ctx.defer(lambda: log.append("undo 1"))
        ctx.defer(lambda: log.append("undo 2"))
        ctx.spawn(forever(log, "task"))
        await ctx.mount(child).ready()
        yield
        log.append("generator")

    mount = host.mount(body)
    using = host.mount(dependent)
    await using.ready()
    await mount.stop()
    sealing, rest = log[:3], log[3:]
    assert set(sealing) == {"seal child", "seal dependent", "seal body"}
    assert sealing[-1] == "seal body"
    assert set(rest[:3]) == {"child", "dependent", "undo dependent"}
    assert rest[3:] == ["task", "generator", "undo 2", "undo 1"]


async def test_the_four_phases_of_a_generator(host: Host) -> None:
    log: list[str] = []

    @plugin()
    def child(ctx, config):
        ctx.effect("child", lambda: log.append("seal child"))
        yield
        log.append("child")

    @plugin()
    def body(ctx, config):
        ctx.effect("body", lambda: log.append("seal body"))
        ctx.defer(lambda: log.append("undo 1"))
        ctx.defer(lambda: log.append("undo 2"))
        ctx.spawn(forever(log, "task"))
        ctx.mount(child)
        yield
        log.append("generator")

    mount = host.mount(body)
    await asyncio.sleep(0)
    await mount.stop()
    assert log == ["seal child", "seal body", "child", "task", "generator", "undo 2", "undo 1"]


async def test_the_whole_closure_is_sealed_before_anything_else_happens(host: Host) -> None:
    log: list[str] = []
    tools: Registry[int] = Registry("tool")

    @plugin()
    async def provider(ctx, config):
        ctx.provide(Store, "store")
        ctx.on(Ping, lambda _: log.append("provider heard"))
        tools.add(ctx, "provider", 1)
        yield

    @plugin(needs=(Store,))
    async def dependent(ctx, config):
        ctx.on(Ping, lambda _: log.append("dependent heard"))
        tools.add(ctx, "dependent", 1)
        ctx.mount(grandchild)
        yield

    @plugin()
    async def grandchild(ctx, config):
        tools.add(ctx, "grandchild", 1)
        yield

    providing = host.mount(provider)
    using = host.mount(dependent)
    await using.ready()
    await host.settle()
    assert list(tools.view(host.root_scope)) == ["provider", "dependent", "grandchild"]

    providing.request_stop()

    host.ctx.emit(Ping())
    assert log == []
    assert tools.view(host.root_scope) == {}
    assert host.get(Store) is None
    assert [mount.state for mount in (providing, using, using.children["grandchild"])] == [State.STOPPING] * 3
    await providing.stop()


async def test_holders_keep_a_service_until_they_have_ended(host: Host) -> None:
    open_: list[str] = []
    seen: list[tuple[str, list[str]]] = []

    @plugin()
    async def provider(ctx, config):
        open_.append("store")
        ctx.provide(Store, "value")
        yield
        open_.remove("store")

    @plugin(needs=(Store,))
    async def dependent(ctx, config):
        yield
        await asyncio.sleep(0)
        seen.append((ctx.use(Store), open_.copy()))

    providing = host.mount(provider)
    await host.mount(dependent).ready()
    await providing.stop()
    assert seen == [("value", ["store"])]


async def test_effects_are_withdrawn_in_reverse_and_a_failing_one_is_recorded(host: Host) -> None:
    log: list[int] = []

    def broken():
        raise ValueError("broken")

    @plugin()
    def body(ctx, config):
        ctx.effect("1", lambda: log.append(1))
        ctx.effect("broken", broken)
        ctx.effect("3", lambda: log.append(3))

    mount = host.mount(body)
    await mount.stop()
    assert log == [3, 1]
    assert [(what, str(error)) for what, error in mount.failures] == [("withdrawing broken", "broken")]
    assert mount.state is State.STOPPED


async def test_an_effect_withdrawn_by_hand_is_not_withdrawn_again(host: Host) -> None:
    log: list[str] = []
    mount = host.mount(plugin()(lambda ctx, config: None))
    effect = host.context(mount).effect("effect", lambda: log.append("withdrawn"))
    effect.withdraw()
    effect.withdraw()
    await mount.stop()
    assert log == ["withdrawn"]


async def test_a_failing_undo_is_recorded_and_the_rest_run(host: Host) -> None:
    log: list[int] = []

    def broken():
        raise ValueError("plain")

    async def broken_later():
        await asyncio.sleep(0)
        raise ValueError("awaited")

    async def fine_later():
        await asyncio.sleep(0)
        log.append(3)

    def work(ctx: Context) -> None:
        ctx.defer(lambda: log.append(1), "1")
        ctx.defer(broken, "broken")
        ctx.defer(fine_later, "3")
        ctx.defer(broken_later, "broken later")
        ctx.defer(lambda: log.append(5), "5")

    @plugin()
    def function(ctx, config):
        work(ctx)

    @plugin()
    async def asynchronous(ctx, config):
        work(ctx)
        yield

    for each in (function, asynchronous):
        log.clear()
        mount = host.mount(each)
        await mount.ready()
        await mount.stop()
        assert log == [5, 3, 1]
        assert [(what, str(error)) for what, error in mount.failures] == [("broken later", "awaited"), ("broken", "plain")]
        assert mount.state is State.STOPPED


async def test_a_failing_cleanup_is_recorded_and_the_undos_run(host: Host) -> None:
    log: list[str] = []

    @plugin()
    def generator(ctx, config):
        ctx.defer(lambda: log.append("undo"))
        yield
        raise ValueError("cleanup")

    @plugin()
    async def asynchronous(ctx, config):
        ctx.defer(lambda: log.append("undo"))
        yield
        raise ValueError("cleanup")

    for each in (generator, asynchronous):
        mount = host.mount(each)
        await mount.ready()
        await mount.stop()
        assert [str(error) for _, error in mount.failures] == ["cleanup"]
        assert mount.state is State.STOPPED
    assert log == ["undo", "undo"]
    assert [str(error) for _, error in host.problems] == ["cleanup", "cleanup"]


async def test_what_a_plugin_opens_with_with_is_open_until_its_dependents_have_ended(host: Host) -> None:
    log: list[str] = []

    class Session:
        async def __aenter__(self):
            log.append("open")

        async def __aexit__(self, *_):
            log.append("close")

    @plugin()
    async def server(ctx, config):
        async with Session():
            ctx.effect("tool", lambda: log.append("tool gone"))
            ctx.provide(Store, "store")
            yield

    @plugin(needs=(Store,))
    async def dependent(ctx, config):
        yield
        log.append("dependent")

    mount = host.mount(server)
    await host.mount(dependent).ready()
    await mount.stop()
    assert log == ["open", "tool gone", "dependent", "close"]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_chain_stops_in_reverse_and_starts_in_order(host: Host, asynchronous: bool) -> None:
    log: list[str] = []
    keys = [Key(str(n)) for n in range(4)]

    def link(n):
        needs = keys[n - 1 : n] if n else []

        def function(ctx, config):
            log.append(f"+{n}")
            ctx.provide(keys[n], n)
            ctx.defer(lambda: log.append(f"-{n}"))

        async def generator(ctx, config):
            function(ctx, config)
            await asyncio.sleep(0)
            yield
            await asyncio.sleep(0)

        return plugin(needs=tuple(needs), name=str(n))(generator if asynchronous else function)

    mounts = [host.mount(link(n)) for n in (3, 1, 0, 2)]
    for mount in mounts:
        await mount.ready()
    assert log == ["+0", "+1", "+2", "+3"]
    log.clear()
    await mounts[2].replace()
    assert log == ["-3", "-2", "-1", "-0", "+0", "+1", "+2", "+3"]
    log.clear()
    await mounts[1].stop()
    assert log == ["-3", "-2", "-1"]
    log.clear()
    await host.close()
    assert log == ["-0"]


def chain(length: int) -> list:
    keys = [Key(str(n)) for n in range(length)]

    def link(n):
        @plugin(needs=tuple(keys[n - 1 : n]) if n else (), name=str(n))
        def body(ctx, config):
            ctx.provide(keys[n], n)

        return body

    return [link(n) for n in range(length)]


async def test_a_chain_may_be_longer_than_the_stack_of_python() -> None:
    host = Host()
    mounts = [host.mount(each) for each in chain(400)]
    assert all(mount.state is State.ACTIVE for mount in mounts)
    await mounts[0].replace()
    assert all(mount.state is State.ACTIVE for mount in mounts)
    await mounts[0].stop()
    assert all(mount.state is State.WAITING for mount in mounts[1:])
    await host.close()


async def test_a_chain_whose_root_is_gone_settles_in_a_time_in_proportion_to_its_length(host: Host) -> None:
    looks = 0

    class Counted(Host):
        def lookup(self, mount, key):
            nonlocal looks
            looks += 1
            return super().lookup(mount, key)

    async with Counted() as host:
        mounts = [host.mount(each) for each in chain(12)]
        looks = 0
        await mounts[0].replace(plugin()(lambda ctx, config: None))
        assert all(mount.state is State.WAITING for mount in mounts[1:])
        assert looks < 12 * 12


# waits that could never end


async def test_waiting_for_the_own_stop_while_starting_is_refused(host: Host) -> None:
    refused: list[str] = []

    @plugin(start_limit=1)
    async def body(ctx, config):
        for wait in (ctx.owner.stop, ctx.owner.replace):
            try:
                await wait()
            except WouldWaitForItself as error:
                refused.append(error.owner)
        yield

    mount = host.mount(body)
    await mount.ready()
    assert refused == ["body", "body"]
    assert mount.state is State.ACTIVE, "a refused stop stops nothing"


async def test_waiting_for_the_own_stop_while_stopping_is_refused(host: Host) -> None:
    refused: list[str] = []

    async def wait(mount: Mount, where: str) -> None:
        try:
            await mount.stop()
        except WouldWaitForItself:
            refused.append(where)

    @plugin(stop_limit=1)
    async def asynchronous(ctx, config):
        ctx.defer(lambda: wait(ctx.owner, "undo"))
        yield
        await wait(ctx.owner, "cleanup")

    @plugin(stop_limit=1)
    def function(ctx, config):
        ctx.defer(lambda: wait(ctx.owner, "undo of a function"))

    for each in (asynchronous, function):
        mount = host.mount(each)
        await mount.ready()
        await mount.stop()
        assert not mount.failures
    assert refused == ["cleanup", "undo", "undo of a function"]


async def test_waiting_for_the_own_stop_in_a_task_is_refused(host: Host) -> None:
    refused = asyncio.Event()

    async def work(mount: Mount) -> None:
        try:
            await mount.stop()
        except WouldWaitForItself:
            refused.set()

    @plugin()
    def body(ctx, config):
        ctx.spawn(work(ctx.owner))

    mount = host.mount(body)
    await refused.wait()
    assert mount.state is State.ACTIVE


@pytest.mark.parametrize("when", ["start", "stop"])
async def test_a_dependent_cannot_wait_for_the_end_of_what_it_depends_on(host: Host, when: str) -> None:
    refused: list[str] = []

    @plugin()
    def provider(ctx, config):
        ctx.provide(Store, "store")

    async def wait() -> None:
        try:
            await providing.stop()
        except WouldWaitForItself:
            refused.append(when)

    @plugin(needs=(Store,), start_limit=1, stop_limit=1)
    async def dependent(ctx, config):
        if when == "start":
            await wait()
        yield
        if when == "stop":
            await wait()

    providing = host.mount(provider)
    mount = host.mount(dependent)
    await mount.ready()
    await mount.stop()
    assert refused == [when]
    assert providing.state is State.ACTIVE


async def test_a_child_cannot_wait_for_the_end_of_its_parent(host: Host) -> None:
    refused: list[str] = []

    @plugin(start_limit=1)
    async def child(ctx, config):
        for wait in (config.stop, config.replace):
            try:
                await wait()
            except WouldWaitForItself:
                refused.append("child")
        yield

    @plugin()
    async def parent(ctx, config):
        await ctx.mount(child, ctx.owner).ready()
        yield

    await host.mount(parent).ready()
    assert refused == ["child", "child"]


async def test_two_mounts_cannot_wait_for_each_other(host: Host) -> None:
    refused: list[str] = []
    mounts: dict[str, Mount] = {}

    @plugin(stop_limit=1)
    async def body(ctx, other):
        yield
        try:
            await mounts[other].stop()
        except WouldWaitForItself:
            refused.append(ctx.owner.id)

    mounts["a"] = host.mount(body, "b", id="a")
    mounts["b"] = host.mount(body, "a", id="b")
    for mount in mounts.values():
        await mount.ready()
    await mounts["a"].stop()
    assert refused == ["b"]
    assert all(mount.state is State.STOPPED for mount in mounts.values())
    assert not any(mount.failures for mount in mounts.values())


async def test_two_mounts_cannot_wait_for_each_other_through_dependents(host: Host) -> None:
    refused: list[str] = []
    mounts: dict[str, Mount] = {}
    keys: dict[str, Key[int]] = {"a": Key("a"), "b": Key("b")}

    def provider(name):
        @plugin(name=f"provider of {name}")
        async def body(ctx, config):
            ctx.provide(keys[name], 1)
            yield

        return body

    def user(name, other):
        @plugin(needs=(keys[name],), name=f"user of {name}", stop_limit=1)
        async def body(ctx, config):
            yield
            try:
                await mounts[other].stop()
            except WouldWaitForItself:
                refused.append(name)

        return body

    for name, other in (("a", "b"), ("b", "a")):
        mounts[name] = host.mount(provider(name))
        await host.mount(user(name, other)).ready()
    await mounts["a"].stop()
    assert refused == ["b"]
    assert all(mount.state is State.STOPPED for mount in mounts.values())


async def test_a_mount_may_wait_for_the_end_of_a_stranger_and_of_its_own_child(host: Host) -> None:
    @plugin()
    async def quiet(ctx, config):
        yield

    @plugin()
    async def body(ctx, config):
        child = ctx.mount(quiet)
        await child.ready()
        await child.stop()
        await stranger.stop()
        yield

    stranger = host.mount(quiet, id="stranger")
    await host.mount(body).ready()
    assert stranger.state is State.STOPPED


@pytest.mark.parametrize("what", ["scope", "host"])
async def test_waiting_for_the_close_of_the_own_scope_is_refused(host: Host, what: str) -> None:
    refused: list[str] = []

    @plugin(start_limit=0.05)
    async def body(ctx, config):
        try:
            await (ctx.scope if what == "scope" else ctx.host).close()
        except WouldWaitForItself:
            refused.append(what)
        yield

    mount = host.mount(body, scope=host.scope(key="inner"))
    await host.settle()
    assert refused == [what]
    assert mount.state is State.ACTIVE


async def test_waiting_for_the_own_start_is_refused(host: Host) -> None:
    refused: list[str] = []

    @plugin(start_limit=0.05)
    async def body(ctx, config):
        try:
            await ctx.owner.ready()
        except WouldWaitForItself:
            refused.append("start")
        yield

    host.mount(body)
    await host.settle()
    assert refused == ["start"]


async def test_a_start_cannot_wait_for_one_that_waits_for_its_service(host: Host) -> None:
    refused: list[str] = []

    @plugin(start_limit=0.05)
    async def provider(ctx, config):
        ctx.provide(Store, "store")
        try:
            await using.ready()
        except WouldWaitForItself:
            refused.append("provider")
        yield

    @plugin(needs=(Store,))
    def dependent(ctx, config):
        pass

    using = host.mount(dependent)
    host.mount(provider)
    await host.settle()
    assert refused == ["provider"]
