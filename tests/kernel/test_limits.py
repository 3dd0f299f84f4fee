"""What happens to a mount that neither starts nor stops in its time."""

import asyncio

import pytest

from hames.content.errors import LimitError
from hames.kernel import Host, Key, Mount, State, plugin


async def stubborn(release: asyncio.Event) -> None:
    """Wait for ``release`` and heed no cancellation."""
    while not release.is_set():
        try:
            await release.wait()
        except asyncio.CancelledError:
            pass


async def reached(mount: Mount, state: State) -> None:
    async with asyncio.timeout(5):
        while mount.state is not state:
            await mount.host.changed()


async def finished() -> None:
    """Let the tasks that were left behind come to their end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if not others:
        return
    _, pending = await asyncio.wait(others, timeout=1)
    for task in pending:
        task.get_coro().close()  # it heeds no cancellation and would hold up the end of the loop
    assert not pending


async def test_a_start_past_its_limit_is_cancelled_and_fails(host: Host) -> None:
    log: list[str] = []

    @plugin(start_limit=0.05)
    async def body(ctx, config):
        ctx.defer(lambda: log.append("undo"))
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cleanup")
        yield

    mount = host.mount(body)
    with pytest.raises(LimitError, match=r"did not start within 0\.05 s"):
        await mount.ready()
    assert log == ["cleanup", "undo"]
    assert mount.state is State.FAILED
    assert not host.abandoned


async def test_a_cleanup_past_its_limit_is_cancelled_and_the_rest_runs(host: Host) -> None:
    log: list[str] = []

    @plugin(stop_limit=0.05)
    async def body(ctx, config):
        ctx.defer(lambda: log.append("undo"))
        try:
            yield
            await asyncio.Event().wait()
        finally:
            log.append("cleanup")

    mount = host.mount(body)
    await mount.ready()
    await mount.stop()
    assert log == ["cleanup", "undo"]
    assert mount.state is State.STOPPED
    assert any(isinstance(error, LimitError) for _, error in mount.failures)
    assert not host.abandoned


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_undo_past_its_limit_is_cancelled_and_the_rest_runs(host: Host, asynchronous: bool) -> None:
    log: list[str] = []

    def function(ctx, config):
        ctx.defer(lambda: log.append("undo"), "first")
        ctx.defer(asyncio.Event().wait, "hangs")

    async def generator(ctx, config):
        function(ctx, config)
        yield

    mount = host.mount(plugin(stop_limit=0.05)(generator if asynchronous else function))
    await mount.ready()
    await mount.stop()
    assert log == ["undo"]
    assert mount.state is State.STOPPED
    assert any(isinstance(error, LimitError) for _, error in mount.failures)


async def test_a_limit_of_the_start_does_not_run_on_afterwards(host: Host) -> None:
    @plugin(start_limit=0.01, stop_limit=0.01)
    async def body(ctx, config):
        yield

    mount = host.mount(body)
    await mount.ready()
    await asyncio.sleep(0.03)
    assert mount.state is State.ACTIVE


async def test_a_swallowed_cancellation_abandons_the_mount_and_close_does_not_wait(host: Host) -> None:
    release = asyncio.Event()
    killed: list[str] = []
    tasks: list[asyncio.Task] = []

    @plugin(stop_limit=0.05)
    async def body(ctx, config):
        tasks.append(asyncio.current_task())
        ctx.last_resort(lambda: killed.append("process"))
        yield
        await stubborn(release)

    mount = host.mount(body)
    await mount.ready()
    async with asyncio.timeout(5):
        await host.close()
    assert not tasks[0].done()
    assert host.abandoned == [mount]
    assert mount.state is State.STOPPED
    assert isinstance(mount.error, LimitError)
    assert "abandoned" in str(mount.error)
    assert (mount.label, mount.error) in host.problems
    assert killed == ["process"]
    release.set()
    await finished()


async def test_the_last_resort_is_not_used_on_a_mount_that_ends_in_time(host: Host) -> None:
    killed: list[str] = []

    @plugin()
    async def body(ctx, config):
        ctx.last_resort(lambda: killed.append("process"))
        yield

    mount = host.mount(body)
    await mount.ready()
    await mount.stop()
    assert killed == []


async def test_a_task_that_heeds_no_cancellation_abandons_its_mount(host: Host) -> None:
    release = asyncio.Event()

    @plugin(stop_limit=0.05)
    def body(ctx, config):
        ctx.spawn(stubborn(release))

    mount = host.mount(body)
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await mount.stop()
    assert host.abandoned == [mount]
    release.set()
    await finished()


async def test_what_an_abandoned_dependent_needed_stops_nevertheless(host: Host) -> None:
    key: Key[int] = Key("key")
    release = asyncio.Event()
    log: list[str] = []

    @plugin()
    async def provider(ctx, config):
        ctx.provide(key, 1)
        yield
        log.append("provider")

    @plugin(needs=(key,), stop_limit=0.05)
    async def dependent(ctx, config):
        yield
        await stubborn(release)

    providing = host.mount(provider)
    using = host.mount(dependent)
    await using.ready()
    async with asyncio.timeout(5):
        await providing.stop()
    assert log == ["provider"]
    assert host.abandoned == [using]
    release.set()
    await finished()


@pytest.mark.parametrize("with_child", [False, True])
async def test_an_abandoned_start_is_sealed_and_cleans_up_if_it_ends_after_all(host: Host, with_child: bool) -> None:
    release = asyncio.Event()
    log: list[str] = []

    @plugin()
    async def child(ctx, config):
        yield
        log.append("child")

    @plugin(start_limit=0.05)
    async def body(ctx, config):
        ctx.effect("effect", lambda: log.append("seal"))
        ctx.defer(lambda: log.append("undo"))
        if with_child:
            await ctx.mount(child).ready()
        await stubborn(release)
        yield
        log.append("cleanup")

    mount = host.mount(body)
    await reached(mount, State.STOPPED)
    assert host.abandoned == [mount]
    assert log[0] == "seal"
    assert not host.context(mount).live
    await host.settle()
    release.set()
    await finished()
    assert log == (["seal", "child", "cleanup", "undo"] if with_child else ["seal", "cleanup", "undo"])


async def test_a_mount_is_abandoned_and_killed_once(host: Host) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()
    killed: list[str] = []

    @plugin(start_limit=0.02, stop_limit=0.02)
    async def body(ctx, config):
        ctx.last_resort(lambda: killed.append("process"))
        await stubborn(started)
        yield
        await stubborn(stopped)

    mount = host.mount(body)
    await reached(mount, State.STOPPED)
    started.set()
    await asyncio.sleep(0.02 + host.grace + 0.05)
    stopped.set()
    await finished()
    assert host.abandoned == [mount]
    assert killed == ["process"]


async def test_a_place_left_by_an_abandoned_mount_can_be_taken(host: Host) -> None:
    release = asyncio.Event()

    @plugin(stop_limit=0.05)
    async def body(ctx, config):
        yield
        await stubborn(release)

    mount = host.mount(body, id="row")
    await mount.ready()
    await mount.stop()
    again = host.mount(plugin()(lambda ctx, config: None), id="row")
    release.set()
    await finished()
    assert again.state is State.ACTIVE
    assert host.root.children == {"row": again}
