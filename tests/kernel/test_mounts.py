"""How a mount starts, fails, is replaced and ends; what a context is good for and for how long."""

import asyncio
import subprocess
import sys
from dataclasses import dataclass

import pytest

from hames.content.errors import DuplicateError, ExitedError, KernelError, SealedError
from hames.kernel import Context, Host, Key, Mount, Notice, Registry, State, plugin


@dataclass(frozen=True)
class Ping(Notice):
    pass


@plugin()
def blank(ctx, config):
    pass


@plugin()
async def blank_async(ctx, config):
    yield


async def reached(mount: Mount, state: State) -> None:
    async with asyncio.timeout(5):
        while mount.state is not state:
            await mount.host.changed()


# the shapes of a body


async def test_a_function_is_active_when_mount_returns(host: Host) -> None:
    log: list[str] = []

    @plugin()
    def body(ctx, config):
        log.append(config)

    mount = host.mount(body, "configured")
    assert mount.state is State.ACTIVE
    assert log == ["configured"]


async def test_a_generator_is_resumed_when_it_stops(host: Host) -> None:
    log: list[str] = []

    @plugin()
    def body(ctx, config):
        log.append("start")
        yield
        log.append("stop")

    mount = host.mount(body)
    assert (mount.state, log) == (State.ACTIVE, ["start"])
    await mount.stop()
    assert (mount.state, log) == (State.STOPPED, ["start", "stop"])


async def test_an_async_generator_is_active_when_it_has_reached_its_yield(host: Host) -> None:
    gate = asyncio.Event()
    log: list[str] = []

    @plugin()
    async def body(ctx, config):
        await gate.wait()
        yield
        log.append("stop")

    mount = host.mount(body)
    assert mount.state is State.STARTING
    gate.set()
    await mount.ready()
    assert mount.state is State.ACTIVE
    await mount.stop()
    assert log == ["stop"]


def test_a_coroutine_function_is_no_plugin() -> None:
    async def body(ctx, config):
        pass

    with pytest.raises(TypeError, match="never yields"):
        plugin()(body)


async def test_a_generator_that_ends_before_its_yield_has_exited(host: Host) -> None:
    @plugin()
    def body(ctx, config):
        if config:
            yield

    mount = host.mount(body)
    assert mount.state is State.FAILED
    assert isinstance(mount.error, ExitedError)
    assert mount.error.code == "EXITED"


async def test_an_async_generator_that_ends_before_its_yield_has_exited(host: Host) -> None:
    @plugin()
    async def body(ctx, config):
        if config:
            yield

    mount = host.mount(body)
    with pytest.raises(ExitedError):
        await mount.ready()
    assert mount.state is State.FAILED


async def test_a_second_yield_of_a_generator_is_recorded_and_its_cleanup_runs(host: Host) -> None:
    log: list[str] = []

    @plugin()
    def body(ctx, config):
        try:
            yield
            yield
        finally:
            log.append("cleaned")

    mount = host.mount(body)
    await mount.stop()
    assert log == ["cleaned"]
    assert [str(error) for _, error in mount.failures] == ["body has a second yield"]


async def test_a_second_yield_of_an_async_generator_is_recorded_and_its_cleanup_runs(host: Host) -> None:
    thrown: list[BaseException] = []

    @plugin()
    async def body(ctx, config):
        try:
            yield
            yield
        except BaseException as error:
            thrown.append(error)
            raise

    mount = host.mount(body)
    await mount.ready()
    await mount.stop()
    assert mount.state is State.STOPPED
    assert [type(error) for error in thrown] == [KernelError]
    assert [str(error) for _, error in mount.failures] == ["body has a second yield"]


async def test_only_its_own_task_touches_an_async_generator(host: Host) -> None:
    tasks: list[asyncio.Task | None] = []

    @plugin()
    async def body(ctx, config):
        tasks.append(asyncio.current_task())
        try:
            yield
        finally:
            tasks.append(asyncio.current_task())

    for end in (lambda mount: mount.stop(), lambda mount: mount.replace(blank)):
        tasks.clear()
        mount = host.mount(body)
        await mount.ready()
        await end(mount)
        first, last = tasks
        assert first is last
        assert first is not asyncio.current_task()


# failing


@pytest.mark.parametrize("shape", ["function", "generator", "async"])
async def test_a_failing_start_undoes_all_that_it_did(host: Host, shape: str) -> None:
    log: list[str] = []
    tools: Registry[int] = Registry("tool")
    key: Key[int] = Key("key")
    mounts: list[Mount] = []

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            log.append("task")

    @plugin()
    def child(ctx, config):
        ctx.defer(lambda: log.append("child"))

    def work(ctx):
        ctx.on(Ping, print)
        ctx.provide(key, 1)
        tools.add(ctx, "tool", 1)
        ctx.effect("effect", lambda: log.append("effect"))
        ctx.defer(lambda: log.append("undo 1"))
        ctx.defer(lambda: log.append("undo 2"))
        mounts.append(ctx.mount(child))

    @plugin(name="broken")
    def function(ctx, config):
        work(ctx)
        raise ValueError("broken")

    @plugin(name="broken")
    def generator(ctx, config):
        work(ctx)
        raise ValueError("broken")
        yield

    @plugin(name="broken")
    async def asynchronous(ctx, config):
        work(ctx)
        await asyncio.sleep(0)
        ctx.spawn(forever())
        await asyncio.sleep(0)
        raise ValueError("broken")
        yield

    mount = host.mount({"function": function, "generator": generator, "async": asynchronous}[shape])
    with pytest.raises(ValueError, match="broken"):
        await mount.ready()
    assert mount.state is State.FAILED
    assert log == (["effect", "child", "task", "undo 2", "undo 1"] if shape == "async" else ["effect", "undo 2", "undo 1"])
    assert mounts[0].state is State.STOPPED
    assert not mount.children and not mount.effects and not mount.undos
    assert not host.root_scope.listener_count and not host.root_scope.provisions and not tools.size


@pytest.mark.parametrize("shape", ["function", "generator", "async"])
async def test_a_body_that_cannot_be_called_fails_its_mount(shape: str) -> None:
    def function():
        pass

    def generator():
        yield

    async def asynchronous():
        yield

    host = Host()
    mount = host.mount(plugin()({"function": function, "generator": generator, "async": asynchronous}[shape]))
    with pytest.raises(TypeError):
        await mount.ready()
    assert mount.state is State.FAILED
    await host.close()


async def test_a_foreign_cancellation_in_a_plain_start_fails_the_mount() -> None:
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    log: list[str] = []

    @plugin()
    def body(ctx, config):
        ctx.defer(lambda: log.append("undo"))
        cancelled.result()

    host = Host()
    mount = host.mount(body)
    assert mount.state is State.FAILED
    assert log == ["undo"]
    await host.close()


@pytest.mark.parametrize("where", ["effect", "cleanup", "undo"])
async def test_a_foreign_cancellation_in_a_plain_stop_is_recorded_and_the_rest_runs(where: str) -> None:
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    log: list[str] = []

    @plugin()
    def body(ctx, config):
        ctx.defer(lambda: log.append("undo"))
        ctx.effect("effect", lambda: log.append("effect"))
        if where == "effect":
            ctx.effect("broken", cancelled.result)
        if where == "undo":
            ctx.defer(cancelled.result)
        yield
        if where == "cleanup":
            cancelled.result()

    host = Host()
    mount = host.mount(body)
    async with asyncio.timeout(1):
        await mount.stop()
        await host.close()
    assert mount.state is State.STOPPED
    assert log == ["effect", "undo"]
    assert [type(error) for _, error in mount.failures] == [asyncio.CancelledError]


@pytest.mark.parametrize("body", ["start of a function", "start of an async generator", "stop of an async generator"])
def test_a_plugin_that_exits_ends_the_program(body: str) -> None:
    bodies = {
        "start of a function": "def body(ctx, config): sys.exit(3)",
        "start of an async generator": "async def body(ctx, config): sys.exit(3); yield",
        "stop of an async generator": "async def body(ctx, config): yield; sys.exit(3)",
    }
    program = f"""
import asyncio, sys
from hames.kernel import Host, plugin

@plugin()
{bodies[body]}

async def main():
    async with Host(grace=0.05) as host:
        await host.mount(body).ready()

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=5, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr


async def test_a_failing_sibling_does_not_block_the_others(host: Host) -> None:
    @plugin()
    def broken(ctx, config):
        raise ValueError("broken")

    @plugin()
    def parent(ctx, config):
        ctx.mount(blank, id="before")
        ctx.mount(broken)
        ctx.mount(blank, id="after")

    mount = host.mount(parent)
    assert {id: child.state for id, child in mount.children.items()} == {
        "before": State.ACTIVE,
        "broken": State.FAILED,
        "after": State.ACTIVE,
    }
    assert mount.state is State.ACTIVE


async def test_a_failing_task_fails_its_mount_and_reaches_the_generator(host: Host) -> None:
    gate = asyncio.Event()
    seen: list[BaseException] = []

    async def work():
        await gate.wait()
        raise ValueError("task")

    @plugin()
    async def asynchronous(ctx, config):
        ctx.spawn(work())
        try:
            yield
        except BaseException as error:
            seen.append(error)
            raise

    @plugin()
    def generator(ctx, config):
        ctx.spawn(work())
        try:
            yield
        except BaseException as error:
            seen.append(error)
            raise

    @plugin()
    def function(ctx, config):
        ctx.spawn(work())

    mounts = [host.mount(each) for each in (asynchronous, generator, function)]
    for mount in mounts:
        await mount.ready()
    gate.set()
    for mount in mounts:
        await reached(mount, State.FAILED)
        assert isinstance(mount.error, ValueError)
    assert [type(error) for error in seen] == [ValueError, ValueError]


async def test_a_task_that_ends_leaves_its_mount_active(host: Host) -> None:
    done = asyncio.Event()

    async def work():
        done.set()

    @plugin()
    def body(ctx, config):
        ctx.spawn(work())

    mount = host.mount(body)
    await done.wait()
    await asyncio.sleep(0)
    assert mount.state is State.ACTIVE
    assert not mount.tasks


async def test_a_task_that_fails_during_the_start_lets_the_start_finish_first(host: Host) -> None:
    log: list[str] = []
    gate = asyncio.Event()

    async def work():
        raise ValueError("task")

    @plugin()
    async def body(ctx, config):
        ctx.spawn(work())
        await gate.wait()
        log.append("started")
        try:
            yield
        except ValueError:
            log.append("thrown in")
            raise

    mount = host.mount(body)
    await reached(mount, State.STOPPING)
    gate.set()
    with pytest.raises(ValueError, match="task"):
        await mount.ready()
    assert log == ["started", "thrown in"]


async def test_a_task_cancelled_before_its_first_turn_leaves_no_coroutine_behind(host: Host) -> None:
    async def work():
        pass

    coroutine = work()

    @plugin()
    async def body(ctx, config):
        ctx.spawn(coroutine)
        raise ValueError("broken")
        yield

    await reached(host.mount(body), State.FAILED)
    never_awaited = coroutine.cr_frame is not None
    coroutine.close()
    assert not never_awaited


async def test_a_dead_child_of_a_task_group_reaches_the_generator_as_a_clean_group(host: Host) -> None:
    gate = asyncio.Event()
    inside: list[BaseException] = []

    async def child():
        await gate.wait()
        raise ValueError("child")

    @plugin()
    async def body(ctx, config):
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            try:
                yield
            except BaseException as error:
                inside.append(error)
                raise

    mount = host.mount(body)
    await mount.ready()
    gate.set()
    await reached(mount, State.FAILED)
    assert isinstance(mount.error, ExceptionGroup)
    assert [type(error) for error in mount.error.exceptions] == [ValueError]
    assert [type(error) for error in inside] == [asyncio.CancelledError]


async def test_a_timeout_across_the_yield_ends_the_mount_as_exited(host: Host) -> None:
    @plugin()
    async def body(ctx, config):
        try:
            async with asyncio.timeout(0):
                yield
        except TimeoutError:
            pass

    mount = host.mount(body)
    await reached(mount, State.FAILED)
    assert isinstance(mount.error, ExitedError)


async def test_a_timeout_across_the_yield_that_nobody_catches_fails_the_mount(host: Host) -> None:
    @plugin()
    async def body(ctx, config):
        async with asyncio.timeout(0):
            yield

    mount = host.mount(body)
    await reached(mount, State.FAILED)
    assert isinstance(mount.error, TimeoutError)


async def test_a_cancellation_from_outside_runs_the_generator_to_its_end(host: Host) -> None:
    tasks: list[asyncio.Task] = []
    log: list[object] = []

    @plugin()
    async def body(ctx, config):
        tasks.append(asyncio.current_task())
        try:
            yield
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            log.append("cleaned")
            raise

    mount = host.mount(body)
    await mount.ready()
    tasks[0].cancel()
    await reached(mount, State.FAILED)
    assert log == ["cleaned"]


@pytest.mark.parametrize("when", ["start", "active"])
async def test_a_cancelled_mount_does_not_cancel_who_asks_whether_it_is_ready(host: Host, when: str) -> None:
    @plugin()
    async def body(ctx, config):
        if when == "start":
            raise asyncio.CancelledError
        asyncio.current_task().cancel()
        yield

    mount = host.mount(body)
    await reached(mount, State.FAILED)
    with pytest.raises(KernelError):
        await mount.ready()


# stopping


async def test_stopping_twice_is_stopping_once(host: Host) -> None:
    log: list[str] = []

    @plugin()
    async def body(ctx, config):
        yield
        await asyncio.sleep(0)
        log.append("stop")

    mount = host.mount(body)
    await mount.ready()
    await asyncio.gather(mount.stop(), mount.stop())
    await mount.stop()
    mount.request_stop()
    assert log == ["stop"]
    assert mount.state is State.STOPPED


async def test_a_waiting_and_a_failed_mount_can_be_stopped(host: Host) -> None:
    @plugin(needs=(Key("nothing"),))
    def waiting(ctx, config):
        pass

    @plugin()
    def broken(ctx, config):
        raise ValueError("broken")

    for mount in (host.mount(waiting), host.mount(broken)):
        await mount.stop()
        assert mount.state is State.STOPPED
    assert not host.root.children


@pytest.mark.parametrize("shape", ["function", "generator", "async"])
async def test_a_body_may_request_its_own_stop(host: Host, shape: str) -> None:
    log: list[str] = []

    @plugin()
    def function(ctx, config):
        ctx.defer(lambda: log.append("undo"))
        ctx.owner.request_stop()
        log.append("rest of the start")

    @plugin()
    def generator(ctx, config):
        ctx.defer(lambda: log.append("undo"))
        ctx.owner.request_stop()
        log.append("rest of the start")
        yield
        log.append("cleanup")

    @plugin()
    async def asynchronous(ctx, config):
        ctx.defer(lambda: log.append("undo"))
        ctx.owner.request_stop()
        await asyncio.sleep(0)
        log.append("rest of the start")
        yield
        log.append("cleanup")

    mount = host.mount({"function": function, "generator": generator, "async": asynchronous}[shape])
    await reached(mount, State.STOPPED)
    assert log == ["rest of the start", "undo"] if shape == "function" else ["rest of the start", "cleanup", "undo"]


async def test_a_stop_during_the_start_waits_for_the_start(host: Host) -> None:
    log: list[str] = []
    gate = asyncio.Event()

    @plugin()
    async def body(ctx, config):
        await gate.wait()
        log.append("started")
        yield
        log.append("stopped")

    mount = host.mount(body)
    await asyncio.sleep(0)
    mount.request_stop()
    assert mount.state is State.STOPPING
    await asyncio.sleep(0)
    assert log == []
    gate.set()
    await mount.stop()
    assert log == ["started", "stopped"]


async def test_who_waits_for_a_mount_that_is_stopped_is_told(host: Host) -> None:
    @plugin(needs=(Key("nothing"),))
    def waiting(ctx, config):
        pass

    mount = host.mount(waiting)
    waiter = asyncio.create_task(mount.ready())
    await asyncio.sleep(0)
    mount.request_stop()
    with pytest.raises(KernelError, match="was stopped"):
        await waiter


# contexts


async def test_registering_after_the_seal_is_refused(host: Host) -> None:
    contexts: list[Context] = []

    @plugin()
    def body(ctx, config):
        contexts.append(ctx)

    async def work():
        pass

    mount = host.mount(body)
    (ctx,) = contexts
    assert ctx.live
    await mount.stop()
    assert not ctx.live
    late = [
        lambda: ctx.effect("late", lambda: None),
        lambda: ctx.on(Ping, print),
        lambda: ctx.provide(Key("late"), 1),
        lambda: ctx.defer(lambda: None),
        lambda: ctx.spawn(work()),
        lambda: ctx.mount(blank),
        lambda: Registry("tool").add(ctx, "late", 1),
    ]
    for register in late:
        with pytest.raises(SealedError):
            register()
    assert not host.root_scope.listener_count and not host.root_scope.provisions


async def test_a_context_is_sealed_at_once_when_its_mount_is_asked_to_stop(host: Host) -> None:
    live: list[bool] = []

    @plugin()
    async def body(ctx, config):
        live.append(ctx.live)
        yield
        live.append(ctx.live)
        with pytest.raises(SealedError):
            ctx.on(Ping, print)

    mount = host.mount(body)
    await mount.ready()
    await mount.stop()
    assert live == [True, False]
    assert not mount.failures


async def test_a_context_of_an_earlier_start_stays_sealed(host: Host) -> None:
    contexts: list[Context] = []

    @plugin()
    def body(ctx, config):
        contexts.append(ctx)

    mount = host.mount(body)
    await mount.replace()
    old, new = contexts
    assert new.live
    assert not old.live
    with pytest.raises(SealedError):
        old.on(Ping, print)


async def test_nothing_is_registered_for_a_mount_that_waits(host: Host) -> None:
    key: Key[int] = Key("key")
    contexts: list[Context] = []
    withdrawn: list[str] = []

    @plugin()
    def provider(ctx, config):
        ctx.provide(key, 1)

    @plugin(needs=(key,))
    def body(ctx, config):
        contexts.append(ctx)

    providing = host.mount(provider)
    mount = host.mount(body)
    await providing.stop()
    assert mount.state is State.WAITING
    assert not contexts[0].live
    with pytest.raises(SealedError):
        contexts[0].effect("late", lambda: withdrawn.append("late"))


# the tree


async def test_ids_are_unique_among_siblings(host: Host) -> None:
    first, second = host.mount(blank), host.mount(blank)
    assert first.id == "blank"
    assert second.id != first.id
    with pytest.raises(DuplicateError, match="blank"):
        host.mount(blank, id="blank")
    await first.stop()
    host.mount(blank, id="blank")


async def test_labels_name_the_way_from_the_top(host: Host) -> None:
    @plugin()
    def parent(ctx, config):
        ctx.mount(blank, id="web")

    assert host.mount(parent, id="research").children["web"].label == "research/web"


async def test_what_a_mount_holds_can_be_printed(host: Host) -> None:
    key: Key[int] = Key("key")

    @plugin()
    def body(ctx, config):
        ctx.provide(key, 1)
        ctx.on(Ping, print)
        ctx.defer(lambda: None, "close the file")
        ctx.spawn(asyncio.Event().wait(), "watch")
        ctx.mount(blank, id="child")

    mount = host.mount(body, id="row")
    assert mount.describe().splitlines() == [
        "row [active]",
        "  · provides key",
        "  · Ping",
        "  ↩ close the file",
        "  ⟳ watch",
        "  child [active]",
    ]
    await asyncio.sleep(0)


async def test_many_mounts_can_be_entered_at_once(host: Host) -> None:
    with host.hold():
        mount = host.mount(blank)
        assert mount.state is State.WAITING
    assert mount.state is State.ACTIVE


# replacing


async def test_a_replaced_mount_runs_the_new_plugin_in_the_same_place(host: Host) -> None:
    log: list[str] = []

    @plugin()
    async def body(ctx, config):
        log.append(f"start {config}")
        yield
        log.append(f"stop {config}")

    mount = host.mount(body, 1)
    await mount.ready()
    path = mount.path
    await mount.replace(body, 2)
    assert log == ["start 1", "stop 1", "start 2"]
    assert (mount.state, mount.config, mount.path) == (State.ACTIVE, 2, path)
    await mount.replace()
    assert log[3:] == ["stop 2", "start 2"]


async def test_a_replacement_that_fails_raises_and_can_be_replaced_again(host: Host) -> None:
    @plugin()
    def broken(ctx, config):
        raise ValueError("broken")

    mount = host.mount(blank)
    with pytest.raises(ValueError, match="broken"):
        await mount.replace(broken)
    assert mount.state is State.FAILED
    await mount.replace(blank)
    assert mount.state is State.ACTIVE
    assert mount.error is None


async def test_replacing_during_the_start_waits_for_the_start(host: Host) -> None:
    gate = asyncio.Event()
    log: list[str] = []

    @plugin()
    async def slow(ctx, config):
        await gate.wait()
        log.append("started")
        yield
        log.append("stopped")

    mount = host.mount(slow)
    await asyncio.sleep(0)
    replacing = asyncio.create_task(mount.replace(blank))
    await asyncio.sleep(0)
    assert log == []
    gate.set()
    await replacing
    assert log == ["started", "stopped"]
    assert mount.plugin is blank and mount.state is State.ACTIVE


async def test_the_later_of_two_replacements_wins(host: Host) -> None:
    configs: list[int] = []

    @plugin()
    async def body(ctx, config):
        configs.append(config)
        yield
        await asyncio.sleep(0)

    mount = host.mount(body, 1)
    await mount.ready()
    await asyncio.gather(mount.replace(body, 2), mount.replace(body, 3))
    assert configs[-1] == mount.config == 3
    assert mount.state is State.ACTIVE


async def test_a_replacement_that_has_to_wait_returns(host: Host) -> None:
    key: Key[int] = Key("key")

    @plugin(needs=(key,))
    def needy(ctx, config):
        pass

    mount = host.mount(blank)
    async with asyncio.timeout(5):
        await mount.replace(needy)
    assert mount.state is State.WAITING
    assert mount.missing == ["key"]
    host.ctx.provide(key, 1)
    assert mount.state is State.ACTIVE


async def test_children_end_with_a_replaced_parent_and_are_mounted_anew(host: Host) -> None:
    children: list[Mount] = []

    @plugin()
    async def parent(ctx, config):
        children.append(ctx.mount(blank_async, id="child"))
        yield

    mount = host.mount(parent)
    await mount.ready()
    await mount.replace()
    old, new = children
    assert old.state is State.STOPPED
    assert mount.children == {"child": new}


async def test_a_waiting_child_ends_when_what_its_parent_depends_on_stops(host: Host) -> None:
    key: Key[int] = Key("key")
    children: list[Mount] = []

    @plugin()
    def provider(ctx, config):
        ctx.provide(key, 1)

    @plugin(needs=(Key("nothing"),))
    def never(ctx, config):
        pass

    @plugin(needs=(key,))
    def parent(ctx, config):
        children.append(ctx.mount(never, id="child"))

    providing = host.mount(provider)
    mount = host.mount(parent)
    await providing.stop()
    assert mount.state is State.WAITING
    assert children[0].state is State.STOPPED
    assert not mount.children
    host.mount(provider)
    assert mount.state is State.ACTIVE, mount.error


async def test_a_failed_child_ends_when_what_its_parent_depends_on_fails(host: Host) -> None:
    key: Key[int] = Key("key")
    gate = asyncio.Event()
    children: list[Mount] = []

    async def work():
        await gate.wait()
        raise ValueError("task")

    @plugin()
    def provider(ctx, config):
        ctx.provide(key, 1)
        ctx.spawn(work())

    @plugin()
    def broken(ctx, config):
        raise ValueError("broken")

    @plugin(needs=(key,))
    def parent(ctx, config):
        children.append(ctx.mount(broken, id="child"))

    providing = host.mount(provider)
    mount = host.mount(parent)
    await asyncio.sleep(0)
    gate.set()
    await reached(providing, State.FAILED)
    assert children[0].state is State.STOPPED
    await providing.replace()
    assert mount.state is State.ACTIVE, mount.error


async def test_closing_the_host_leaves_no_task_behind() -> None:
    async def forever():
        await asyncio.Event().wait()

    @plugin()
    async def inner(ctx, config):
        ctx.spawn(forever())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(forever())
            yield
            task.cancel()

    @plugin()
    async def outer(ctx, config):
        await ctx.mount(inner).ready()
        yield
        await asyncio.sleep(0)

    async with Host() as host:
        await host.mount(outer).ready()
        host.mount(outer, id="still starting")
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_closing_the_host_ends_the_tasks_of_the_host_itself() -> None:
    host = Host()
    host.ctx.spawn(asyncio.Event().wait())
    await asyncio.sleep(0)
    await host.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_closing_the_host_runs_what_its_owner_deferred_last_and_in_reverse(host: Host) -> None:
    log: list[str] = []

    @plugin()
    def body(ctx, config):
        ctx.defer(lambda: log.append("mount"))

    async def later():
        log.append("second")

    host.ctx.defer(lambda: log.append("first"))
    host.ctx.defer(later)
    host.mount(body)
    await host.close()
    assert log == ["mount", "second", "first"]


async def test_a_closed_host_takes_nothing_in_and_can_be_closed_again(host: Host) -> None:
    await host.close()
    await host.close()
    for enter in (lambda: host.mount(blank), lambda: host.ctx.on(Ping, print), lambda: host.ctx.mount(blank), host.scope):
        with pytest.raises(SealedError):
            enter()


async def test_a_failing_task_of_the_program_itself_is_recorded_and_stops_no_mount() -> None:
    async def work():
        raise ValueError("host")

    host = Host()
    mount = host.mount(blank_async)
    await mount.ready()
    host.ctx.spawn(work())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert mount.state is State.ACTIVE
    assert [type(error) for _, error in host.problems] == [ValueError]
    async with asyncio.timeout(1):
        await host.close()
    assert mount.state is State.STOPPED
