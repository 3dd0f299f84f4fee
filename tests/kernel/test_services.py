"""Who gets which service, when, and what happens when it is replaced."""

import asyncio

import pytest

from hames.content.errors import DuplicateError, KernelError, MissingServiceError
from hames.kernel import Host, Key, Plugin, State, plugin

Shell: Key[str] = Key("shell")
Log: Key[str] = Key("log")


def provides(key, value, *, needs=(), name="provider") -> Plugin:
    @plugin(needs=needs, name=name)
    def body(ctx, config):
        ctx.provide(key, value)

    return body


def uses(log: list, *keys, wants=(), name="user") -> Plugin:
    """A plugin that records what it gets, a line each start."""

    @plugin(needs=keys, wants=wants, name=name)
    def body(ctx, config):
        log.append(tuple(ctx.use(key) for key in keys) + tuple(ctx.find(key) for key in wants))

    return body


# needing


async def test_a_mount_waits_for_what_it_needs_and_names_what_is_missing(host: Host) -> None:
    log: list = []
    mount = host.mount(uses(log, Shell, Log))
    assert mount.state is State.WAITING
    assert mount.missing == ["shell", "log"]
    host.mount(provides(Log, "log"), id="log")
    assert mount.missing == ["shell"]
    host.mount(provides(Shell, "bash"), id="shell")
    assert mount.missing == []
    assert mount.state is State.ACTIVE
    assert log == [("bash", "log")]


async def test_a_class_can_be_the_key_of_its_service(host: Host) -> None:
    class Clock:
        pass

    clock = Clock()
    log: list = []
    mount = host.mount(uses(log, Clock))
    assert mount.missing == ["Clock"]
    host.ctx.provide(Clock, clock)
    assert log == [(clock,)]
    assert host.get(Clock) is clock


async def test_a_service_stays_the_same_for_one_start(host: Host) -> None:
    seen: list = []
    contexts: list = []

    @plugin(needs=(Shell,))
    async def body(ctx, config):
        contexts.append(ctx)
        seen.append(ctx.use(Shell))
        yield
        seen.append(ctx.use(Shell))

    providing = host.mount(provides(Shell, "old"))
    mount = host.mount(body)
    await mount.ready()
    assert contexts[0].find(Shell) == "old"
    await providing.replace(provides(Shell, "new"))
    assert seen == ["old", "old", "new"]


async def test_using_what_was_not_declared_is_an_error(host: Host) -> None:
    host.ctx.provide(Shell, "bash")
    ctx = host.context(host.mount(uses([])))
    for ask in (ctx.use, ctx.find):
        with pytest.raises(MissingServiceError, match=r"user uses shell without declaring it") as raised:
            ask(Shell)
        assert raised.value.owner == "user"


async def test_everyone_else_sees_a_service_when_its_provider_is_active(host: Host) -> None:
    gate = asyncio.Event()
    log: list = []

    @plugin()
    async def provider(ctx, config):
        ctx.provide(Shell, "bash")
        await gate.wait()
        yield

    providing = host.mount(provider)
    mount = host.mount(uses(log, Shell))
    await asyncio.sleep(0)
    assert (mount.state, mount.missing, host.get(Shell)) == (State.WAITING, ["shell"], None)
    gate.set()
    await providing.ready()
    assert (mount.state, host.get(Shell)) == (State.ACTIVE, "bash")


async def test_the_own_subtree_sees_a_service_at_once(host: Host) -> None:
    log: list = []
    states: list[State] = []

    @plugin()
    async def provider(ctx, config):
        child = ctx.mount(uses(log, Shell, name="child"))
        states.append(child.state)
        ctx.provide(Shell, "bash")
        states.append(child.state)
        yield

    await host.mount(provider).ready()
    assert states == [State.WAITING, State.ACTIVE]
    assert log == [("bash",)]


async def test_a_child_that_runs_already_gets_what_its_starting_parent_provides_at_once(host: Host) -> None:
    log: list = []
    before: list = []

    @plugin()
    async def provider(ctx, config):
        ctx.mount(uses(log, wants=(Shell,), name="child"))
        ctx.provide(Shell, "bash")
        before.extend(log)
        yield

    await host.mount(provider).ready()
    assert before == [(None,), ("bash",)]
    assert log == before


async def test_dependents_wait_when_their_provider_goes(host: Host) -> None:
    log: list = []
    providing = host.mount(provides(Shell, "bash"))
    mount = host.mount(uses(log, Shell))
    await providing.stop()
    assert (mount.state, mount.missing) == (State.WAITING, ["shell"])
    host.mount(provides(Shell, "zsh"))
    assert mount.state is State.ACTIVE
    assert log == [("bash",), ("zsh",)]


async def test_dependents_wait_when_their_provider_fails_and_return_with_it(host: Host) -> None:
    log: list = []
    fuse = asyncio.Event()

    async def burn():
        await fuse.wait()
        raise ValueError("burnt")

    @plugin()
    def provider(ctx, config):
        ctx.provide(Shell, "bash")
        ctx.spawn(burn())

    providing = host.mount(provider)
    mount = host.mount(uses(log, Shell))
    fuse.set()
    async with asyncio.timeout(5):
        while providing.state is not State.FAILED:
            await host.changed()
    assert (mount.state, mount.missing) == (State.WAITING, ["shell"])
    await providing.replace(provides(Shell, "zsh"))
    assert mount.state is State.ACTIVE
    assert log == [("bash",), ("zsh",)]


async def test_a_provider_that_fails_to_start_is_seen_by_nobody(host: Host) -> None:
    @plugin()
    def broken(ctx, config):
        ctx.provide(Shell, "bash")
        raise ValueError("broken")

    log: list = []
    mount = host.mount(uses(log, Shell))
    host.mount(broken)
    assert (mount.state, log) == (State.WAITING, [])
    host.mount(provides(Shell, "zsh"))
    assert log == [("zsh",)]


# replacing


async def test_a_dependent_restarts_once_with_the_new_service(host: Host) -> None:
    log: list = []
    providing = host.mount(provides(Shell, "old"))
    mount = host.mount(uses(log, Shell))
    bystander = host.mount(uses(log, name="bystander"))
    await providing.replace(provides(Shell, "new"))
    assert log == [("old",), (), ("new",)]
    assert mount.starts == 2
    assert bystander.starts == 1


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_diamond_restarts_each_once_and_in_order(host: Host, asynchronous: bool) -> None:
    keys = {name: Key(name) for name in "ABD"}
    log: list[str] = []

    def part(name: str, needs: str) -> Plugin:
        def function(ctx, config):
            log.append(f"+{name}")
            ctx.provide(keys[name], name)
            ctx.defer(lambda: log.append(f"-{name}"))

        async def generator(ctx, config):
            await asyncio.sleep(0)
            function(ctx, config)
            yield
            await asyncio.sleep(0)

        return plugin(name=name, needs=tuple(keys[need] for need in needs))(generator if asynchronous else function)

    d, b, a = (host.mount(part(name, needs)) for name, needs in (("D", "AB"), ("B", "A"), ("A", "")))
    for mount in (a, b, d):
        await mount.ready()
    assert log == ["+A", "+B", "+D"]
    log.clear()
    await a.replace()
    assert log == ["-D", "-B", "-A", "+A", "+B", "+D"]
    assert all(mount.state is State.ACTIVE for mount in (a, b, d))


async def test_a_provider_of_two_keys_restarts_their_common_user_once(host: Host) -> None:
    log: list = []

    @plugin()
    def both(ctx, config):
        ctx.provide(Shell, f"shell {config}")
        ctx.provide(Log, f"log {config}")

    mount = host.mount(both, 1)
    host.mount(uses(log, Shell, Log))
    await mount.replace(both, 2)
    assert log == [("shell 1", "log 1"), ("shell 2", "log 2")]


async def test_dependents_wait_when_the_replacement_provides_no_more(host: Host) -> None:
    log: list = []
    providing = host.mount(provides(Shell, "bash"))
    mount = host.mount(uses(log, Shell))
    await providing.replace(provides(Log, "log"))
    assert (providing.state, mount.state) == (State.ACTIVE, State.WAITING)
    assert mount.missing == ["shell"]


async def test_a_dependent_that_failed_is_tried_again_with_the_new_service(host: Host) -> None:
    @plugin(needs=(Shell,))
    def picky(ctx, config):
        if ctx.use(Shell) == "broken":
            raise ValueError("picky")

    providing = host.mount(provides(Shell, "broken"))
    mount = host.mount(picky)
    assert mount.state is State.FAILED
    await providing.replace(provides(Shell, "bash"))
    assert mount.state is State.ACTIVE


async def test_a_dependent_that_failed_is_tried_again_with_the_service_that_shows_through(host: Host) -> None:
    @plugin(needs=(Shell,))
    def picky(ctx, config):
        if ctx.use(Shell) == "broken":
            raise ValueError("picky")

    scope = host.scope()
    host.mount(provides(Shell, "bash"))
    nearer = host.mount(provides(Shell, "broken"), scope=scope)
    mount = host.mount(picky, scope=scope)
    assert mount.state is State.FAILED
    await nearer.stop()
    assert mount.state is State.ACTIVE


# scopes


async def test_a_scope_sees_the_services_of_its_ancestors_and_not_of_its_siblings(host: Host) -> None:
    left, right = host.scope(key="left"), host.scope(key="right")
    below = host.scope(left, "below")
    host.mount(provides(Shell, "host"))
    host.mount(provides(Log, "left"), scope=left)
    log: list = []
    inside = host.mount(uses(log, Shell, Log), scope=below)
    outside = host.mount(uses(log, Shell, Log), scope=right)
    assert (inside.state, outside.state) == (State.ACTIVE, State.WAITING)
    assert log == [("host", "left")]
    assert (host.get(Log, below), host.get(Log, right), host.get(Log)) == ("left", None, None)


async def test_a_nearer_provider_shadows_and_dependents_there_resolve_again_as_one_batch(host: Host) -> None:
    scope = host.scope(key="workspace")
    log: list = []

    def part(name: str, key: Key[str], *needs: Key[str]) -> Plugin:
        @plugin(name=name, needs=needs)
        def body(ctx, config):
            log.append((name, *(ctx.use(need) for need in needs)))
            ctx.provide(key, name)
            ctx.defer(lambda: log.append(f"-{name}"))

        return body

    server, client = Key("server"), Key("client")
    host.mount(provides(Shell, "raw"))
    host.mount(uses(log, Shell, name="outside"))
    host.mount(part("server", server, Shell), scope=scope)
    host.mount(part("client", client, Shell, server), scope=scope)
    log.clear()
    nearer = host.mount(provides(Shell, "safe"), scope=scope)
    assert log == ["-client", "-server", ("server", "safe"), ("client", "safe", "server")]
    log.clear()
    await nearer.stop()
    assert log[:2] == ["-client", "-server"]
    assert log[2:] == [("server", "raw"), ("client", "raw", "server")]


async def test_a_plugin_may_wrap_the_service_that_it_shadows(host: Host) -> None:
    starts: list[str] = []

    @plugin(needs=(Shell,))
    def wrapper(ctx, config):
        starts.append(ctx.use(Shell))
        assert len(starts) < 5, "it restarts for its own service"
        ctx.provide(Shell, f"safe {ctx.use(Shell)}")

    scope = host.scope(key="workspace")
    host.mount(provides(Shell, "raw"))
    mount = host.mount(wrapper, scope=scope)
    assert starts == ["raw"]
    assert mount.state is State.ACTIVE
    assert host.get(Shell, scope) == "safe raw"


async def test_a_second_provider_in_one_scope_is_an_error_that_names_both(host: Host) -> None:
    host.mount(provides(Shell, "bash"), id="first")
    second = host.mount(provides(Shell, "zsh"), id="second")
    assert second.state is State.FAILED
    assert isinstance(second.error, DuplicateError)
    assert "first" in str(second.error) and "second" in str(second.error) and "shell" in str(second.error)
    assert host.get(Shell) == "bash"


# wanting


async def test_what_is_wanted_comes_and_goes(host: Host) -> None:
    log: list = []
    mount = host.mount(uses(log, wants=(Shell,)))
    assert mount.state is State.ACTIVE
    assert mount.missing == []
    providing = host.mount(provides(Shell, "bash"))
    await providing.replace(provides(Shell, "zsh"))
    await providing.stop()
    assert log == [(None,), ("bash",), ("zsh",), (None,)]
    assert mount.state is State.ACTIVE


async def test_what_is_wanted_and_mounted_together_is_there_at_the_first_start(host: Host) -> None:
    log: list = []
    with host.hold():
        host.mount(uses(log, wants=(Shell,)))
        host.mount(provides(Shell, "bash"))
    assert log == [("bash",)]


async def test_a_mount_that_wants_restarts_in_the_batch_of_its_provider(host: Host) -> None:
    log: list = []
    providing = host.mount(provides(Shell, "old"))
    mount = host.mount(uses(log, wants=(Shell,)))
    await providing.replace(provides(Shell, "new"))
    assert log == [("old",), ("new",)]
    assert mount.starts == 2


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_mount_that_wants_does_without_when_what_it_wanted_does_not_return(host: Host, asynchronous: bool) -> None:
    log: list = []

    @plugin()
    async def slow(ctx, config):
        ctx.provide(Shell, "bash")
        yield
        await asyncio.sleep(0)

    providing = host.mount(slow if asynchronous else provides(Shell, "bash"))
    await providing.ready()
    between = host.mount(provides(Log, "log", needs=(Shell,)), id="between")
    mount = host.mount(uses(log, wants=(Log,)))
    replacing = asyncio.create_task(providing.replace(provides(Key("other"), "other")))
    _, unfinished = await asyncio.wait([replacing], timeout=1)
    replacing.cancel()
    assert (between.state, mount.state) == (State.WAITING, State.ACTIVE)
    assert log == [("log",), (None,)]
    assert not unfinished


async def test_two_replacements_at_once_restart_a_common_dependent_once(host: Host) -> None:
    log: list = []

    def slow(key, value):
        @plugin(name=value)
        async def body(ctx, config):
            await asyncio.sleep(0)
            ctx.provide(key, value)
            yield
            await asyncio.sleep(0)

        return body

    shell, log_ = host.mount(slow(Shell, "bash")), host.mount(slow(Log, "log"))
    mount = host.mount(uses(log, Shell, Log))
    await mount.ready()
    await asyncio.gather(shell.replace(), log_.replace())
    assert log == [("bash", "log"), ("bash", "log")]
    assert mount.state is State.ACTIVE


async def test_a_waiting_dependent_is_not_forgotten_when_its_former_provider_restarts_with_the_new_one(host: Host) -> None:
    log: list = []
    former = host.mount(provides(Shell, "old"))
    mount = host.mount(uses(log, Shell))
    await former.replace(uses([], wants=(Shell,), name="former"))
    assert mount.state is State.WAITING
    host.mount(provides(Shell, "new"))
    assert mount.state is State.ACTIVE
    assert log == [("old",), ("new",)]


async def test_a_context_of_an_earlier_start_does_not_get_the_services_of_a_later_one(host: Host) -> None:
    contexts: list = []

    @plugin(needs=(Shell,))
    def body(ctx, config):
        contexts.append(ctx)

    providing = host.mount(provides(Shell, "old"))
    host.mount(body)
    await providing.replace(provides(Shell, "new"))
    old, new = contexts
    assert new.use(Shell) == "new"
    for ask in (old.use, old.find):
        try:
            seen = ask(Shell)
        except KernelError:
            continue
        assert seen == "old"


# isolation


async def test_isolation_gives_a_group_a_private_instance(host: Host) -> None:
    log: list = []

    @plugin()
    def group(ctx, config):
        ctx.mount(provides(Shell, f"shell of {config}"))
        ctx.mount(uses(log, Shell))

    shared = host.mount(provides(Shell, "shared"))
    host.mount(group, "one", id="one", isolate={Shell: True})
    host.mount(group, "two", id="two", isolate={Shell: True})
    outside = host.mount(uses(log, Shell))
    assert log == [("shell of one",), ("shell of two",), ("shared",)]
    assert host.get(Shell) == "shared"
    await shared.stop()
    assert outside.state is State.WAITING
    assert host.root.children["one"].children["user"].state is State.ACTIVE


async def test_an_isolated_row_does_not_see_the_shared_instance(host: Host) -> None:
    host.ctx.provide(Shell, "shared")
    mount = host.mount(uses([], Shell), isolate={Shell: True})
    assert (mount.state, mount.missing) == (State.WAITING, ["shell"])


async def test_what_an_isolated_row_provides_is_seen_below_it_only(host: Host) -> None:
    log: list = []

    @plugin()
    def row(ctx, config):
        ctx.provide(Shell, "private")
        ctx.mount(uses(log, Shell))

    outside = host.mount(uses([], Shell))
    host.mount(row, isolate={Shell: True})
    assert log == [("private",)]
    assert outside.state is State.WAITING
    assert host.get(Shell) is None


async def test_rows_with_one_label_share_an_instance(host: Host) -> None:
    log: list = []
    host.mount(provides(Shell, "shared"), id="shared")
    host.mount(provides(Shell, "labelled"), id="labelled", isolate={Shell: "pair"})
    host.mount(uses(log, Shell), id="a", isolate={Shell: "pair"})
    host.mount(uses(log, Shell), id="b")
    host.mount(uses(log, Shell), id="c", isolate={Shell: "other"})
    assert log == [("labelled",), ("shared",)]
    second = host.mount(provides(Shell, "again"), id="again", isolate={Shell: "pair"})
    assert isinstance(second.error, DuplicateError)


async def test_isolation_of_one_key_leaves_the_others_shared(host: Host) -> None:
    log: list = []
    host.ctx.provide(Log, "shared")

    @plugin()
    def group(ctx, config):
        ctx.provide(Shell, "private")
        ctx.mount(uses(log, Shell, Log))

    host.mount(group, isolate={Shell: True})
    assert log == [("private", "shared")]
