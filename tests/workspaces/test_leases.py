"""Leases of workspaces: one scope for a directory, all or nothing at first, and nothing left at the end."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import shutil
import sys
import threading
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import BaseModel, ConfigDict

from hames.compose import BASE, LOADED
from hames.content.errors import HamesError, NotFoundError
from hames.kernel import Key, plugin
from hames.trust import TRUST
from hames.workspaces import WORKSPACES, WorkspaceReloaded
from hames.workspaces import service as service_module
from hames.workspaces.live import Live
from hames.workspaces.workspace import Workspace

MARK: Key[str] = Key("mark of a test")
ABSENT: Key[str] = Key("service of nobody")
HERE = __name__  # what rows use: plugins of this file
BOARD = SimpleNamespace()


@pytest.fixture(autouse=True)
def board():
    """What the plugins of this file did, and what holds them."""
    BOARD.started, BOARD.stopped, BOARD.now, BOARD.most = [], [], 0, 0
    BOARD.gate = BOARD.leaving = None
    BOARD.before = everything()
    BOARD.free = asyncio.Event()
    return BOARD


class Note(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "mine"
    token: str = ""
    number: int = 0


@plugin(config=Note, name="noter")
async def noter(ctx, config):
    BOARD.started.append(config.name)
    BOARD.now += 1
    BOARD.most = max(BOARD.most, BOARD.now)
    try:
        if BOARD.gate is not None:
            await BOARD.gate.wait()
        ctx.provide(MARK, config.name)
        yield
        BOARD.stopped.append(config.name)
        if BOARD.leaving is not None:
            await BOARD.leaving.wait()
    finally:
        BOARD.now -= 1


@plugin(config=Note, name="failing")
def failing(ctx, config):
    BOARD.started.append("failing")
    raise ValueError("this one never starts")


@plugin(name="needing", needs=(ABSENT,))
def needing(ctx, config):
    raise AssertionError("it cannot start")


@plugin(name="ending_badly")
def ending_badly(ctx, config):
    BOARD.started.append("ending badly")
    yield
    raise ValueError("this one does not end well")


async def deaf():
    """Wait until a test lets go, whatever is cancelled."""
    while not BOARD.free.is_set():
        with suppress(asyncio.CancelledError):
            await BOARD.free.wait()


@plugin(name="never_starts", start_limit=0.1)
async def never_starts(ctx, config):
    BOARD.started.append("never starts")
    await asyncio.Event().wait()
    yield


@plugin(name="deaf_start", start_limit=0.1)
async def deaf_start(ctx, config):
    BOARD.started.append("deaf start")
    await deaf()
    yield


@plugin(name="never_stops", stop_limit=0.1)
async def never_stops(ctx, config):
    BOARD.started.append("never stops")
    yield
    await asyncio.Event().wait()


@plugin(name="deaf_stop", stop_limit=0.1)
async def deaf_stop(ctx, config):
    BOARD.started.append("deaf stop")
    yield
    await deaf()


def counted() -> tuple[int, int]:
    """How many inotify descriptors this process has more than at first, and how many directories they watch more."""
    descriptors, watches = everything()
    return descriptors - BOARD.before[0], watches - BOARD.before[1]


def everything() -> tuple[int, int]:
    descriptors = watches = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(each.readlink()) == "anon_inode:inotify":
                descriptors += 1
                watches += Path("/proc/self/fdinfo", each.name).read_text().count("inotify wd:")
    return descriptors, watches


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}


@pytest.fixture(autouse=True)
async def _nothing_left(board):
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    tasks = asyncio.all_tasks()
    before = (counted(), len(os.listdir("/proc/self/fd")), threads(), children())
    yield
    BOARD.free.set()
    async with asyncio.timeout(5):
        while asyncio.all_tasks() - tasks - {asyncio.current_task()}:
            await asyncio.sleep(0.005)
    gc.collect()
    assert (counted(), len(os.listdir("/proc/self/fd")), threads(), children()) == before
    assert not complaints


async def until(condition, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def put(place: Path, text: str = "", name: str = ".hames/compose.yaml") -> Path:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or row())
    return path


def row(use: str = "noter", id: str = "mine", **config) -> str:
    return f"- {{id: {id}, use: '{HERE}:{use}'{f', config: {json.dumps(config)}' if config else ''}}}\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    return (tmp_path / "w").resolve()


ALWAYS = "- {id: trust, set: {config: {default: always}}}\n"
FAST = "- {id: workspaces, set: {config: {debounce_ms: 20}}}\n"


class Opened:
    """A host with its workspaces."""

    def __init__(self, host) -> None:
        self.host = host
        self.workspaces = host.get(WORKSPACES)
        self.notices: list[WorkspaceReloaded] = []
        host.ctx.on(WorkspaceReloaded, self.notices.append)
        self.scopes, self.mounts = set(host.root_scope.children), self.anchors

    @property
    def anchors(self) -> set[str]:
        """What stands below the row of the workspaces."""
        return set(self.host.get(BASE).mounts["workspaces"].children)

    def as_before(self) -> None:
        """Nothing of any workspace is left."""
        assert self.workspaces.all == []
        assert set(self.host.root_scope.children) == self.scopes
        assert self.anchors == self.mounts
        assert not self.host.get(LOADED).workspaces
        assert counted() == (0, 0)
        assert BOARD.now == 0

    def trust(self, place: Path, granted: bool = True) -> None:
        trust = self.host.get(TRUST)
        trust.decide(trust.status(place, self.host.get(BASE).composition), granted)

    def mark(self, lease) -> str | None:
        return self.host.get(MARK, lease.scope)


@pytest.fixture
def starting(opened, tmp_path):
    """Opens a host; trusts every directory unless told otherwise."""

    @asynccontextmanager
    async def start(text: str = ALWAYS + FAST):
        patch = tmp_path / "patch.yaml"
        patch.write_text(text or "[]\n")
        async with opened(patch) as host:
            host.grace = 0.1
            yield Opened(host)

    return start


@pytest.fixture
async def world(starting):
    async with starting() as world:
        yield world


def soon(awaitable, seconds: float = 5.0):
    return asyncio.wait_for(awaitable, seconds)


# which workspace


async def test_every_way_to_a_directory_leads_to_one_scope(world, place, tmp_path):
    put(place)
    (place / "sub").mkdir()
    (tmp_path / "link").symlink_to("w")
    (tmp_path / "far").symlink_to("link")
    ways = [place, str(place), f"{place}/", place / "sub" / "..", tmp_path / "link", tmp_path / "far", tmp_path / "link/sub/.."]
    leases = [await world.workspaces.acquire(way) for way in ways]
    assert len({lease.scope for lease in leases}) == 1
    assert {lease.directory for lease in leases} == {place}
    assert BOARD.started == ["mine"]
    assert [info.leases for info in world.workspaces.all] == [len(ways)]
    assert all(world.workspaces.get(way).directory == str(place) for way in ways)
    for lease in leases:
        await lease.release()
    world.as_before()


async def test_other_directories_have_other_scopes_below_the_host(world, place, tmp_path):
    (tmp_path / "v").mkdir()
    put(place)
    put(tmp_path / "v", row(name="other"))
    one, two = await world.workspaces.acquire(place), await world.workspaces.acquire(tmp_path / "v")
    assert one.scope is not two.scope and one.scope.parent is two.scope.parent is world.host.root_scope
    assert (world.mark(one), world.mark(two), world.host.get(MARK)) == ("mine", "other", None)
    await one.release()
    assert (world.mark(two), BOARD.stopped) == ("other", ["mine"])
    await two.release()
    world.as_before()


@pytest.mark.parametrize("name", ["none", "file", "dangling", "circle", "file/below", "zero\0byte", "x" * 300])
async def test_what_is_no_directory_is_refused(world, tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    for call in (world.workspaces.acquire, world.workspaces.reload):
        with pytest.raises(NotFoundError) as caught:
            await call(f"{tmp_path}/{name}")
        assert caught.value.code == "WORKSPACE_UNKNOWN"
    world.as_before()


@pytest.mark.parametrize("name", ["", ".", "w", "./w", "../w", "~"])
async def test_a_directory_that_is_not_named_absolutely_is_refused(world, place, monkeypatch, name):
    monkeypatch.chdir(place.parent)
    with pytest.raises(NotFoundError):
        await world.workspaces.acquire(name)
    world.as_before()


async def test_nothing_above_the_directory_is_looked_for(world, place):
    put(place)
    (place / "sub").mkdir()
    lease = await world.workspaces.acquire(place / "sub")
    assert (BOARD.started, world.mark(lease), lease.configured) == ([], None, False)
    await lease.release()
    world.as_before()


async def test_a_directory_in_which_nobody_works_is_neither_known_nor_reloaded(world, place):
    assert world.workspaces.get(place) is None
    with pytest.raises(NotFoundError) as caught:
        await world.workspaces.reload(place)
    assert caught.value.code == "WORKSPACE_UNKNOWN"


async def test_a_directory_with_nothing_of_its_own_can_be_worked_in(world, place):
    lease = await world.workspaces.acquire(place)
    info = world.workspaces.get(place)
    assert (info.configured, info.composition, info.trusted, info.leases) == (False, False, True, 1)
    await lease.release()
    world.as_before()


# taking


async def test_ten_who_come_at_once_share_one_mount(world, place, tmp_path):
    put(place)
    (tmp_path / "link").symlink_to("w")
    leases = await soon(asyncio.gather(*(world.workspaces.acquire([place, tmp_path / "link"][n % 2]) for n in range(10))))
    assert (BOARD.started, len({lease.scope for lease in leases}), world.workspaces.get(place).leases) == (["mine"], 1, 10)
    await soon(asyncio.gather(*(lease.release() for lease in leases)))
    assert BOARD.stopped == ["mine"]
    world.as_before()


async def test_who_comes_while_it_is_opened_waits_for_that(world, place):
    put(place)
    BOARD.gate = asyncio.Event()
    first = asyncio.create_task(world.workspaces.acquire(place))
    await until(lambda: BOARD.started)
    second = asyncio.create_task(world.workspaces.acquire(place))
    await turns()
    assert not first.done() and not second.done()
    assert world.workspaces.get(place) is None
    BOARD.gate.set()
    leases = await soon(asyncio.gather(first, second))
    assert (BOARD.started, leases[0].scope is leases[1].scope) == (["mine"], True)
    await soon(asyncio.gather(*(lease.release() for lease in leases)))
    world.as_before()


async def test_a_failure_reaches_all_who_wait_and_the_next_one_tries_again(world, place):
    put(place, row("failing"))
    results = await soon(asyncio.gather(*(world.workspaces.acquire(place) for _ in range(10)), return_exceptions=True))
    assert all(isinstance(result, HamesError) for result in results)
    assert BOARD.started == ["failing"]
    with pytest.raises(HamesError):
        await world.workspaces.acquire(place)
    assert BOARD.started == ["failing", "failing"]
    put(place)
    lease = await world.workspaces.acquire(place)
    assert world.mark(lease) == "mine"
    await lease.release()
    world.as_before()


BAD = {
    "plugin that is not there": "- {id: mine, use: no.such.plugin}\n",
    "local file that is not there": "- {id: mine, use: ./none.py}\n",
    "start that fails": row("failing"),
    "start that fails after one that does not": row(id="good", name="good") + row("failing"),
    "service that nobody provides": row("needing"),
    "unknown setting": row(wrong=1),
    "setting of another type": row(number="many"),
    "patch of a row that is not there": "- {id: nothing, set: {disabled: true}}\n",
    "two rows of one name": row() + row(),
    "no list": "id: mine\n",
    "no YAML": "- {id: mine, use: [\n",
    "include that is not there": "- {include: none.yaml}\n",
    "row that workspaces stand on": "- {id: store, set: {disabled: true}}\n",
}


@pytest.mark.parametrize("granted", [False, True], ids=["always trusted", "granted before"])
@pytest.mark.parametrize("text", ["- {id: mine, use: [\n", "- {id: mine, id: mine, use: x}\n"], ids=["no YAML", "a key that stands twice"])
async def test_files_that_are_broken_after_they_were_trusted_are_refused_as_well(starting, place, text, granted):
    async with starting(FAST if granted else ALWAYS) as world:
        path = put(place)
        if granted:
            world.trust(place)
        path.write_text(text)
        with pytest.raises(HamesError):
            lease = await soon(world.workspaces.acquire(place))
            await lease.release()
        world.as_before()


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
async def test_a_composition_that_is_wrong_is_refused_whole_and_leaves_nothing(world, place, text):
    path = put(place, text)
    with pytest.raises(HamesError):
        lease = await soon(world.workspaces.acquire(place))
        await lease.release()
    assert BOARD.now == 0 and world.workspaces.get(place) is None and world.workspaces.all == []
    assert counted()[1] == 0
    path.write_text(row())
    lease = await world.workspaces.acquire(place)
    assert world.mark(lease) == "mine"
    await lease.release()
    world.as_before()


async def test_a_first_opening_that_fails_leaves_no_descriptor_either(world, place):
    put(place, row("failing"))
    with pytest.raises(HamesError):
        await world.workspaces.acquire(place)
    await turns()
    world.as_before()


async def test_servers_file_that_is_no_json_is_refused(world, place):
    put(place, "{", ".mcp.json")
    with pytest.raises(HamesError):
        lease = await world.workspaces.acquire(place)
        await lease.release()


async def test_who_is_cancelled_while_others_wait_takes_nothing_from_them(world, place):
    put(place)
    BOARD.gate = asyncio.Event()
    first, second, third = (asyncio.create_task(world.workspaces.acquire(place)) for _ in range(3))
    await until(lambda: BOARD.started)
    first.cancel()
    third.cancel()
    await turns()
    BOARD.gate.set()
    lease = await soon(second)
    assert (BOARD.started, world.workspaces.get(place).leases) == (["mine"], 1)
    await lease.release()
    world.as_before()


async def test_a_workspace_whose_only_taker_is_cancelled_does_not_stay(world, place):
    put(place)
    BOARD.gate = asyncio.Event()
    taking = asyncio.create_task(world.workspaces.acquire(place))
    await until(lambda: BOARD.started)
    taking.cancel()
    with suppress(asyncio.CancelledError):
        await taking
    BOARD.gate.set()
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == f"workspace {place}"])
    with suppress(TimeoutError):
        await until(lambda: not world.workspaces.all and BOARD.now == 0 and counted() == (0, 0), 2)
    assert BOARD.stopped == ["mine"]
    world.as_before()


async def test_a_failure_that_nobody_waits_for_any_more_is_not_complained_about(world, place):
    put(place, row(id="first") + row("failing"))
    BOARD.gate = asyncio.Event()
    taking = asyncio.create_task(world.workspaces.acquire(place))
    await until(lambda: "mine" in BOARD.started)
    taking.cancel()
    with suppress(asyncio.CancelledError):
        await taking
    BOARD.gate.set()
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == f"workspace {place}"])
    del taking
    gc.collect()
    await turns()
    assert world.workspaces.all == []  # the loop's handler has heard nothing: looked at for every test


# giving back


async def test_a_lease_given_back_twice_counts_once(world, place):
    put(place)
    one, two = await world.workspaces.acquire(place), await world.workspaces.acquire(place)
    await one.release()
    await one.release()
    await asyncio.gather(one.release(), one.release())
    assert (world.workspaces.get(place).leases, world.mark(two), BOARD.stopped) == (1, "mine", [])
    await two.release()
    world.as_before()


async def test_all_who_give_back_one_lease_wait_for_the_end(world, place):
    put(place)
    BOARD.leaving = asyncio.Event()
    lease = await world.workspaces.acquire(place)
    releases = [asyncio.create_task(lease.release()) for _ in range(3)]
    await until(lambda: BOARD.stopped)
    await turns()
    assert not any(task.done() for task in releases)
    BOARD.leaving.set()
    await soon(asyncio.gather(*releases))
    world.as_before()


async def test_the_last_lease_ends_all_of_it(world, place, tmp_path):
    put(place)
    lease = await world.workspaces.acquire(place)
    assert counted() == (1, 3) and world.host.get(LOADED).workspaces
    assert [each["directory"] for each in Live(tmp_path / "state/workspaces").all()] == [str(place)]
    await lease.release()
    assert lease.scope.closed and BOARD.stopped == ["mine"]
    assert Live(tmp_path / "state/workspaces").all() == []
    world.as_before()
    put(place, row(name="later"))
    await asyncio.sleep(0.06)  # longer than the debounce: there is nothing that could be waited for
    assert (BOARD.started, world.notices) == (["mine"], [])


async def test_giving_back_may_be_cancelled_and_ends_all_the_same(world, place):
    put(place)
    BOARD.leaving = asyncio.Event()
    lease = await world.workspaces.acquire(place)
    releasing = asyncio.create_task(lease.release())
    await until(lambda: BOARD.stopped)
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    BOARD.leaving.set()
    await soon(lease.release())
    world.as_before()


async def test_giving_back_before_the_debounce_is_over_makes_no_pass(starting, place):
    async with starting(ALWAYS + "- {id: workspaces, set: {config: {debounce_ms: 60000}}}\n") as world:
        put(place)
        lease = await world.workspaces.acquire(place)
        put(place, row(name="later"))
        await until(lambda: world.workspaces.get(place).reload.status == "scheduled")
        await soon(lease.release())
        assert (BOARD.started, BOARD.stopped) == (["mine"], ["mine"])
        world.as_before()


async def test_giving_back_during_a_pass_waits_for_it(world, place):
    put(place)
    lease = await world.workspaces.acquire(place)
    BOARD.gate = asyncio.Event()
    put(place, row(name="later"))
    await until(lambda: "later" in BOARD.started)
    releasing = asyncio.create_task(lease.release())
    await turns()
    assert not releasing.done()
    BOARD.gate.set()
    await soon(releasing)
    assert BOARD.started == ["mine", "later"] and "later" in BOARD.stopped
    world.as_before()


async def test_giving_back_as_a_pass_is_about_to_begin_leaves_nothing_watched(world, place, tmp_path):
    (tmp_path / "v").mkdir()
    put(place)
    other = await world.workspaces.acquire(tmp_path / "v")
    alone = counted()
    lease = await world.workspaces.acquire(place)
    put(place, row() + "- {include: more/rows.yaml}\n")
    put(place, "[]\n", ".hames/more/rows.yaml")
    reloading = asyncio.create_task(world.workspaces.reload(place))
    releasing = asyncio.create_task(lease.release())
    await soon(asyncio.gather(reloading, releasing, return_exceptions=True))
    left = counted()
    await other.release()
    assert left == alone


async def test_who_comes_back_during_the_end_waits_for_it_and_gets_another_scope(world, place):
    put(place)
    BOARD.leaving = asyncio.Event()
    lease = await world.workspaces.acquire(place)
    releasing = asyncio.create_task(lease.release())
    await until(lambda: BOARD.stopped)
    coming = [asyncio.create_task(world.workspaces.acquire(place)) for _ in range(5)]
    await turns()
    assert not any(task.done() for task in coming) and BOARD.started == ["mine"]
    BOARD.leaving.set()
    leases = await soon(asyncio.gather(*coming))
    await soon(releasing)
    assert BOARD.started == ["mine", "mine"]
    assert {each.scope for each in leases} == {leases[0].scope} and leases[0].scope is not lease.scope
    assert world.mark(leases[0]) == "mine" and not leases[0].scope.closed
    assert counted() == (1, 3)
    await lease.release()
    assert world.workspaces.get(place).leases == 5
    await asyncio.gather(*(each.release() for each in leases))
    world.as_before()


async def test_leases_taken_and_given_back_by_many_at_once_never_stand_in_a_closed_scope(world, place, tmp_path):
    put(place)
    (tmp_path / "v").mkdir()

    async def work(number: int) -> None:
        for turn in range(12):
            lease = await world.workspaces.acquire([place, tmp_path / "v"][(number + turn) % 5 == 0])
            assert not lease.scope.closed
            for _ in range((number * 7 + turn) % 4):
                await asyncio.sleep(0)
            assert not lease.scope.closed
            await lease.release()

    await soon(asyncio.gather(*(work(number) for number in range(8))), 20)
    assert BOARD.most == 1 and len(BOARD.started) == len(BOARD.stopped)
    world.as_before()


async def test_an_end_that_fails_is_told_and_a_new_lease_works(world, place, monkeypatch):
    put(place)
    close = Workspace.close

    async def failing_close(self) -> None:
        await close(self)
        raise RuntimeError("the end failed")

    lease = await world.workspaces.acquire(place)
    monkeypatch.setattr(Workspace, "close", failing_close)
    with pytest.raises(RuntimeError):
        await soon(lease.release())
    monkeypatch.undo()
    world.as_before()
    again = await soon(world.workspaces.acquire(place))
    assert world.mark(again) == "mine"
    await again.release()
    world.as_before()


# rows that do not behave


@pytest.mark.parametrize("use", ["never_starts", "deaf_start"])
async def test_a_row_whose_start_never_returns_is_refused_and_the_next_lease_works(world, place, use):
    put(place, row(id="good", name="good") + row(use))
    with pytest.raises(HamesError):
        await soon(world.workspaces.acquire(place))
    assert "good" in BOARD.stopped and BOARD.now == 0
    put(place)
    lease = await soon(world.workspaces.acquire(place))
    assert world.mark(lease) == "mine"
    await soon(lease.release())
    BOARD.free.set()
    world.as_before()


@pytest.mark.parametrize("use", ["never_stops", "deaf_stop", "ending_badly"])
async def test_a_row_that_does_not_end_keeps_neither_the_end_nor_the_next_lease_from_working(world, place, use):
    put(place, row(use) + row(id="good", name="good"))
    lease = await soon(world.workspaces.acquire(place))
    with suppress(HamesError):
        await soon(lease.release())
    assert "good" in BOARD.stopped
    world.as_before()
    again = await soon(world.workspaces.acquire(place))
    assert again.scope is not lease.scope and world.mark(again) == "good"
    with suppress(HamesError):
        await soon(again.release())
    world.as_before()


@pytest.mark.parametrize("use", ["never_starts", "deaf_start"])
async def test_a_row_whose_start_never_returns_fails_a_pass_and_the_next_one_works(world, place, use):
    put(place)
    lease = await world.workspaces.acquire(place)
    put(place, row(use))
    await until(lambda: world.notices)
    assert (world.notices[0].reason, world.mark(lease)) == ("start", None)
    await until(lambda: world.workspaces.get(place).reload.status == "failed")
    put(place, row(name="mended"))
    await until(lambda: len(world.notices) == 2)
    assert (world.notices[1].reason, world.mark(lease)) == ("", "mended")
    await soon(lease.release())
    world.as_before()


# trust


@pytest.mark.parametrize("text", ["- {id: mine, use: ./mine.py}\n", "- [no, : YAML\n", "- {id: store, remove: true}\n"])
@pytest.mark.parametrize("standing", ["undecided", "refused", "changed"])
async def test_a_directory_that_is_not_trusted_is_not_read_imported_mounted_or_watched(starting, place, tmp_path, text, standing):
    async with starting(FAST) as world:
        if standing == "changed":
            put(place, row())
        if standing != "undecided":
            world.trust(place, standing == "changed")
        put(place, text)
        put(place, f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).write_text('')\n", ".hames/mine.py")
        put(place, '{"mcpServers": {"a": {"command": "false"}}}', ".mcp.json")
        modules = set(sys.modules)
        if standing == "changed" and "YAML" in text:  # somebody trusts it, and is told what is wrong with it
            with pytest.raises(HamesError, match="not YAML"):
                await world.workspaces.acquire(place)
            assert not (tmp_path / "ran").exists()
            return
        lease = await world.workspaces.acquire(place)
        info = world.workspaces.get(place)
        assert (info.trusted, info.configured, info.composition, info.reload) == (False, True, False, None)
        assert not lease.scope.veils and not lease.scope.provisions
        put(place, "- {id: other, use: ./mine.py}\n")
        with suppress(HamesError):
            await world.workspaces.reload(place)
        assert (world.workspaces.get(place).composition, counted()) == (False, (0, 0))
        assert not (tmp_path / "ran").exists()
        assert not [name for name in set(sys.modules) - modules if name.startswith("hames_local")]
        await lease.release()
        world.as_before()


async def test_a_directory_that_is_granted_is_mounted_and_watched(starting, place):
    async with starting(FAST) as world:
        put(place)
        world.trust(place)
        lease = await world.workspaces.acquire(place)
        info = world.workspaces.get(place)
        assert (info.trusted, info.configured, info.composition, info.reload.watching) == (True, True, True, True)
        assert world.mark(lease) == "mine" and lease.configured
        await lease.release()
        world.as_before()


async def test_whatever_was_granted_nothing_is_trusted_where_that_is_never(starting, place):
    async with starting("- {id: trust, set: {config: {default: never}}}\n") as world:
        put(place)
        world.trust(place)
        lease = await world.workspaces.acquire(place)
        assert (world.mark(lease), world.workspaces.get(place).trusted, counted()) == (None, False, (0, 0))
        await lease.release()


async def test_a_directory_granted_while_somebody_works_in_it_is_mounted_and_watched_when_it_is_read_again(starting, place):
    async with starting(FAST) as world:
        put(place)
        lease = await world.workspaces.acquire(place)
        world.trust(place)
        info = await soon(world.workspaces.reload(place))
        assert (info.trusted, info.composition, world.mark(lease)) == (True, True, "mine")
        assert info.reload.watching and info.reload.status == "idle"
        put(place, row(name="later", number=3))
        await until(lambda: world.mark(lease) == "later" or (world.notices and world.notices[-1].reason))
        assert world.mark(lease) == "later"
        await lease.release()
        world.as_before()


async def test_two_who_read_a_newly_granted_directory_again_at_once_mount_it_once(starting, place):
    async with starting(FAST) as world:
        put(place)
        lease = await world.workspaces.acquire(place)
        world.trust(place)
        await soon(asyncio.gather(world.workspaces.reload(place), world.workspaces.reload(place)))
        assert (BOARD.started, BOARD.most, counted()) == (["mine"], 1, (1, 3))
        await lease.release()
        world.as_before()


async def test_trust_that_is_taken_back_and_given_again_is_followed(starting, place):
    async with starting(FAST) as world:
        put(place)
        world.trust(place)
        lease = await world.workspaces.acquire(place)
        world.host.get(TRUST).revoke(place)
        info = await soon(world.workspaces.reload(place))
        assert (info.composition, world.mark(lease)) == (False, None)
        world.trust(place)
        info = await soon(world.workspaces.reload(place))
        assert (info.composition, world.mark(lease)) == (True, "mine")
        assert info.trusted
        await lease.release()
        world.as_before()


async def test_trust_that_is_taken_back_shows_in_what_is_said_of_the_workspace(starting, place):
    async with starting(FAST) as world:
        put(place)
        world.trust(place)
        lease = await world.workspaces.acquire(place)
        world.host.get(TRUST).revoke(place)
        info = await soon(world.workspaces.reload(place))
        assert (info.composition, info.trusted) == (False, False)
        await lease.release()


async def test_a_file_that_was_broken_and_is_mended_leaves_the_workspace_said_to_be_trusted(world, place):
    path = put(place)
    lease = await world.workspaces.acquire(place)
    path.write_text("- no: [\n")
    assert (await soon(world.workspaces.reload(place))).reason == "invalid"
    path.write_text(row())
    info = await soon(world.workspaces.reload(place))
    assert (info.reason, info.composition, world.mark(lease), info.trusted) == ("", True, "mine", True)
    await lease.release()
    world.as_before()


# watching


async def test_one_watcher_serves_all_leases_and_all_workspaces(world, place, tmp_path):
    put(place)
    leases = [await world.workspaces.acquire(place) for _ in range(10)]
    assert counted() == (1, 3)
    for number in range(5):
        (tmp_path / f"v{number}").mkdir()
        leases.append(await world.workspaces.acquire(tmp_path / f"v{number}"))
    assert counted() == (1, 8)
    assert [task.get_name() for task in asyncio.all_tasks()].count("workspaces: slow look") == 1
    for lease in leases[:9]:
        await lease.release()
    assert counted() == (1, 8)
    await leases[9].release()
    assert counted() == (1, 6)
    for lease in leases[10:]:
        await lease.release()
    world.as_before()


async def test_a_workspace_that_cannot_be_watched_is_refused_and_leaves_nothing(world, place, monkeypatch):
    from hames.workspaces.notify import Notifier

    def full(self, directory, heard):
        raise OSError(28, "No space left on device", directory)

    put(place)
    monkeypatch.setattr(Notifier, "add", full)
    with pytest.raises(HamesError) as caught:
        await world.workspaces.acquire(place)
    assert "max_user_watches" in caught.value.remedy
    assert (BOARD.started, world.workspaces.all) == ([], [])
    monkeypatch.undo()
    lease = await world.workspaces.acquire(place)
    await lease.release()
    world.as_before()


async def test_without_a_notifier_the_slow_look_sees_changes(world, place, monkeypatch):
    import hames.workspaces.notify

    def none(self):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(service_module, "LOOK", 0.02)
    monkeypatch.setattr(hames.workspaces.notify.Notifier, "__init__", none)
    put(place)
    lease = await world.workspaces.acquire(place)
    assert counted() == (0, 0)
    put(place, row(name="later", number=100))
    await until(lambda: world.mark(lease) == "later")
    await until(lambda: world.workspaces.get(place).reload.status == "idle")
    assert [notice.reason for notice in world.notices] == [""]
    await lease.release()
    world.as_before()


NOT_WATCHED = ALWAYS + "- {id: workspaces, set: {config: {watch: false}}}\n"


async def test_where_nothing_is_watched_only_reading_again_changes_anything(starting, place):
    async with starting(NOT_WATCHED) as world:
        put(place)
        lease = await world.workspaces.acquire(place)
        assert (counted(), world.workspaces.get(place).reload) == ((0, 0), None)
        put(place, row(name="later"))
        await turns()
        assert world.mark(lease) == "mine"
        await soon(world.workspaces.reload(place))
        assert (world.mark(lease), [notice.reason for notice in world.notices]) == ("later", [""])
        await soon(world.workspaces.reload(place))
        assert BOARD.started == ["mine", "later"]
        await soon(world.workspaces.reload(place, all=True))
        assert BOARD.started == ["mine", "later", "later"]
        put(place, "- no: [\n")
        info = await soon(world.workspaces.reload(place))
        assert (info.reason, info.composition, world.mark(lease)) == ("invalid", False, None)
        await lease.release()
        world.as_before()


async def test_where_nothing_is_watched_readings_of_one_workspace_do_not_overlap(starting, place):
    async with starting(NOT_WATCHED) as world:
        put(place)
        lease = await world.workspaces.acquire(place)
        BOARD.gate = asyncio.Event()
        put(place, row(name="later"))
        first = asyncio.create_task(world.workspaces.reload(place))
        await until(lambda: "later" in BOARD.started)
        put(place, row(name="last"))
        second = asyncio.create_task(world.workspaces.reload(place))
        await turns()
        overlapped = BOARD.started != ["mine", "later"] or second.done()
        BOARD.gate.set()
        results = await soon(asyncio.gather(first, second, return_exceptions=True))
        await soon(lease.release())
        assert not [result for result in results if isinstance(result, BaseException)]
        assert not overlapped
        assert (BOARD.started, BOARD.most) == (["mine", "later", "last"], 1)


async def test_where_nothing_is_watched_the_end_waits_for_a_reading(starting, place):
    async with starting(NOT_WATCHED) as world:
        put(place)
        lease = await world.workspaces.acquire(place)
        BOARD.gate = asyncio.Event()
        put(place, row(name="later"))
        reading = asyncio.create_task(world.workspaces.reload(place))
        await until(lambda: "later" in BOARD.started)
        releasing = asyncio.create_task(lease.release())
        await turns()
        early = releasing.done()
        BOARD.gate.set()
        results = await soon(asyncio.gather(reading, releasing, return_exceptions=True))
        assert not [result for result in results if isinstance(result, BaseException)]
        assert not early
        world.as_before()


@pytest.mark.parametrize("watch", [True, False], ids=["watched", "not watched"])
async def test_who_reads_again_may_be_cancelled_and_the_next_reading_is_right(starting, place, watch):
    async with starting(ALWAYS + FAST if watch else NOT_WATCHED) as world:
        put(place)
        lease = await world.workspaces.acquire(place)
        BOARD.gate = asyncio.Event()
        put(place, row(name="later"))
        reading = asyncio.create_task(world.workspaces.reload(place))
        await until(lambda: "later" in BOARD.started)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        put(place, row(name="last"))
        again = asyncio.create_task(world.workspaces.reload(place))
        await turns()
        BOARD.gate.set()
        info = await soon(again)
        assert (info.reason, world.mark(lease), BOARD.most) == ("", "last", 1)
        await soon(lease.release())
        world.as_before()


async def test_a_working_directory_that_goes_away_can_still_be_given_back(world, place):
    put(place)
    lease = await world.workspaces.acquire(place)
    shutil.rmtree(place)
    await until(lambda: world.notices)
    assert world.mark(lease) is None
    await soon(lease.release())
    world.as_before()


async def test_a_pass_of_one_workspace_does_not_wait_for_that_of_another(world, place, tmp_path):
    (tmp_path / "v").mkdir()
    put(place)
    put(tmp_path / "v", row(name="other"))
    one, two = await world.workspaces.acquire(place), await world.workspaces.acquire(tmp_path / "v")
    BOARD.gate = asyncio.Event()
    put(place, row(name="later"))
    await until(lambda: "later" in BOARD.started)
    held, BOARD.gate = BOARD.gate, None
    put(tmp_path / "v", row(name="another"))
    await until(lambda: world.mark(two) == "another")
    assert world.workspaces.get(place).reload.status == "reloading"
    await soon(two.release())
    held.set()
    await until(lambda: world.mark(one) == "later")
    await one.release()
    world.as_before()


# the end of the host


async def test_the_end_of_the_host_ends_every_workspace_and_later_nothing_is_leased(starting, place, tmp_path):
    put(place)
    put(tmp_path / "v", row(name="other"))
    async with starting() as world:
        leases = [await world.workspaces.acquire(each) for each in (place, place, tmp_path / "v")]
    assert sorted(BOARD.stopped) == ["mine", "other"] and counted() == (0, 0)
    assert Live(tmp_path / "state/workspaces").all() == []
    for lease in leases:
        await soon(lease.release())
    with pytest.raises(HamesError) as caught:
        await soon(world.workspaces.acquire(place))
    assert caught.value.code == "CLOSED"
    assert BOARD.started == ["mine", "other"]


async def test_the_end_of_the_host_covers_a_workspace_that_is_being_opened(starting, place):
    put(place)
    BOARD.gate = asyncio.Event()
    async with asyncio.timeout(10):
        async with starting() as world:
            taking = [asyncio.create_task(world.workspaces.acquire(place)) for _ in range(2)]
            await until(lambda: BOARD.started)
            asyncio.get_running_loop().call_later(0.05, BOARD.gate.set)
        results = await asyncio.gather(*taking, return_exceptions=True)
    for result in results:
        if not isinstance(result, BaseException):
            assert result.scope.closed
            await soon(result.release())
        else:
            assert isinstance(result, HamesError)
    assert (BOARD.started, BOARD.now, counted()) == (["mine"], 0, (0, 0))


async def test_the_end_of_the_host_covers_one_that_ends_and_whoever_waits_for_that(starting, place):
    put(place)
    BOARD.leaving = asyncio.Event()
    async with asyncio.timeout(10):
        async with starting() as world:
            lease = await world.workspaces.acquire(place)
            releasing = asyncio.create_task(lease.release())
            await until(lambda: BOARD.stopped)
            coming = asyncio.create_task(world.workspaces.acquire(place))
            await turns()
            asyncio.get_running_loop().call_later(0.05, BOARD.leaving.set)
        await releasing
        (result,) = await asyncio.gather(coming, return_exceptions=True)
    if not isinstance(result, BaseException):
        assert result.scope.closed
    else:
        assert isinstance(result, HamesError)
    assert BOARD.now == 0 and counted() == (0, 0)


async def test_the_end_of_the_host_covers_a_pass_that_is_being_made(starting, place):
    put(place)
    async with asyncio.timeout(10):
        async with starting() as world:
            await world.workspaces.acquire(place)
            BOARD.gate = asyncio.Event()
            put(place, row(name="later"))
            await until(lambda: "later" in BOARD.started)
            asyncio.get_running_loop().call_later(0.05, BOARD.gate.set)
    assert BOARD.now == 0 and counted() == (0, 0)


@pytest.mark.parametrize("use", ["never_stops", "deaf_stop", "ending_badly"])
async def test_the_end_of_the_host_is_not_held_up_by_a_row_that_does_not_end(starting, place, use):
    put(place, row(use) + row(id="good", name="good"))
    async with asyncio.timeout(10):
        async with starting() as world:
            await world.workspaces.acquire(place)
    assert BOARD.stopped == ["good"] and counted() == (0, 0)


@pytest.mark.parametrize("use", ["never_starts", "deaf_start"])
async def test_the_end_of_the_host_is_not_held_up_by_a_row_that_does_not_start(starting, place, use):
    put(place, row(use))
    async with asyncio.timeout(10):
        async with starting() as world:
            taking = asyncio.create_task(world.workspaces.acquire(place))
            await until(lambda: BOARD.started)
        with pytest.raises(HamesError):
            await taking
    assert counted() == (0, 0)


# what is said of them


async def test_what_is_said_of_a_workspace_follows_it(world, place):
    path = put(place)
    lease = await world.workspaces.acquire(place)

    def seen():
        info = world.workspaces.get(place)
        return (info.reload.status, info.reload.successful_reloads, info.reason, info.composition, info.configured)

    assert seen() == ("idle", 0, "", True, True)
    path.write_text(row(name="later"))
    await until(lambda: seen() == ("idle", 1, "", True, True))
    path.write_text("- no: [\n")
    await until(lambda: seen() == ("failed", 1, "invalid", False, True))
    path.write_text(row("failing"))
    await until(lambda: seen() == ("failed", 1, "start", False, True))
    path.write_text(row())
    await until(lambda: seen() == ("idle", 2, "", True, True))
    path.unlink()
    await until(lambda: seen() == ("idle", 3, "", False, False))
    assert [notice.reason for notice in world.notices] == ["", "invalid", "start", "", ""]
    assert world.workspaces.all == [world.workspaces.get(place)]
    await lease.release()


async def test_what_other_processes_are_told_after_a_pass_is_how_it_is_then(world, place, tmp_path):
    put(place)
    lease = await world.workspaces.acquire(place)
    live = Live(tmp_path / "state/workspaces")

    def told():
        (record,) = live.all()
        return record["leases"], record["reload"]["status"], record["reload"]["successful_reloads"], record["reason"]

    put(place, row(name="later"))
    await until(lambda: world.workspaces.get(place).reload.successful_reloads == 1)
    await until(lambda: world.workspaces.get(place).reload.status == "idle")
    with suppress(TimeoutError):
        await until(lambda: told()[1] != "reloading", 1)
    assert told()[1:] == ("idle", 1, "")
    put(place, "- no: [\n")
    await until(lambda: world.workspaces.get(place).reload.status == "failed")
    with suppress(TimeoutError):
        await until(lambda: told()[1] != "reloading", 1)
    assert told()[1:] == ("failed", 1, "invalid")
    await lease.release()


async def test_other_processes_are_told_how_many_work_there(world, place, tmp_path):
    put(place)
    leases = [await world.workspaces.acquire(place) for _ in range(3)]
    live = Live(tmp_path / "state/workspaces")
    assert [each["leases"] for each in live.all()] == [3]
    await leases[0].release()
    assert [each["leases"] for each in live.all()] == [2]
    await asyncio.gather(*(lease.release() for lease in leases))
    assert live.all() == []


async def test_a_request_of_another_process_is_answered_once_and_one_from_before_is_not(world, place, tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "LOOK", 0.02)
    put(place)
    live = Live(tmp_path / "state/workspaces")
    live.request(str(place), all=True)
    lease = await world.workspaces.acquire(place)
    token = live.request(str(place), all=True)
    await until(lambda: [each["answered"] for each in live.all()] == [token])
    assert BOARD.started == ["mine", "mine"]
    await asyncio.sleep(0.1)  # several looks: there is nothing that could be waited for
    assert BOARD.started == ["mine", "mine"]
    await lease.release()


@pytest.mark.parametrize("watch", [True, False], ids=["watched", "not watched"])
async def test_a_workspace_that_ends_during_a_reading_that_was_asked_for_is_not_said_to_be_there(
    starting, place, tmp_path, monkeypatch, watch
):
    monkeypatch.setattr(service_module, "LOOK", 0.02)
    put(place)
    live = Live(tmp_path / "state/workspaces")
    async with starting(ALWAYS + FAST if watch else NOT_WATCHED) as world:
        lease = await world.workspaces.acquire(place)
        BOARD.gate = asyncio.Event()
        live.request(str(place), all=True)
        await until(lambda: len(BOARD.started) == 2)
        releasing = asyncio.create_task(lease.release())
        await turns()
        BOARD.gate.set()
        await soon(releasing)
        await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "workspace reload asked for"])
        await turns()
        assert live.all() == []
        world.as_before()


@pytest.mark.parametrize(
    "text", ["[" * 200000, '{"id": ' * 100000, "\0", "[]", '{"id": 1}'], ids=["deep", "deeper", "zero", "list", "number"]
)
async def test_a_request_that_is_none_keeps_nobody_from_being_looked_at(world, place, tmp_path, monkeypatch, text):
    monkeypatch.setattr(service_module, "LOOK", 0.02)
    live = Live(tmp_path / "state/workspaces")
    live.request(str(place), all=True)
    lease = await world.workspaces.acquire(place)
    (request,) = live.requests.iterdir()
    request.write_text(text)
    await asyncio.sleep(0.1)  # several looks: there is nothing that could be waited for
    token = live.request(str(place), all=True)
    await until(lambda: [each["answered"] for each in live.all()] == [token])
    await lease.release()


CANARY = "cAnArY93q"


def shown(world, tmp_path, caplog) -> str:
    """All that is said anywhere about workspaces."""
    parts = [json.dumps([asdict(info) for info in world.workspaces.all]), caplog.text, *(str(notice) for notice in world.notices)]
    parts += [path.read_text() for path in (tmp_path / "state/workspaces").rglob("*") if path.is_file()]
    parts += [f"{what} {error}" for what, error in world.host.problems]
    return "\n".join(parts)


LEAKS = {
    "right": row(token=CANARY),
    "of another type": row(number=CANARY),
    "of another type in a list": row(token=[CANARY]),
    "unknown setting": row(wrong=CANARY),
    "before a mistake of YAML": f"- id: mine\n  use: x\n  config: {{token: {CANARY}, [\n",
    "in a string without an end": f'- id: mine\n  config: {{token: "{CANARY}\n',
    "after a tab": f"- id: mine\n  config:\n\t token: {CANARY}\n",
    "like an alias": f"- id: mine\n  use: '{HERE}:noter'\n  config:\n    token: *{CANARY}\n",
    "like a tag": f"- id: mine\n  use: '{HERE}:noter'\n  config:\n    token: !{CANARY}\n",
    "of a row that does not start": row("failing", token=CANARY),
    "of a patch of a row that is not there": f"- {{id: nothing, set: {{config: {{token: {CANARY}}}}}}}\n",
    "of a patch of another type": f"- {{id: files, set: {{config: {CANARY}}}}}\n",
    "of a plugin without settings": row("needing", token=CANARY),
}


@pytest.mark.parametrize("text", LEAKS.values(), ids=LEAKS)
async def test_no_value_of_a_configuration_is_said_anywhere(world, place, tmp_path, caplog, text):
    caplog.set_level(logging.DEBUG)
    lease = await world.workspaces.acquire(place)
    put(place, text)
    await until(lambda: world.notices)
    await soon(world.workspaces.reload(place, all=True))
    assert CANARY not in shown(world, tmp_path, caplog)
    await lease.release()
    try:
        lease = await world.workspaces.acquire(place)
        await lease.release()
    except HamesError as error:
        assert CANARY not in f"{error.message} {error.remedy} {error}"
    assert CANARY not in shown(world, tmp_path, caplog)


MCP_LEAKS = {
    "no JSON": f'{{"mcpServers": {{"a": {{"command": "true", "env": {{"A": "{CANARY}"}}',
    "wrong setting": json.dumps({"mcpServers": {"a": {"command": ["true"], "env": {"A": CANARY}}}}),
    "value of another type": json.dumps({"mcpServers": {"a": {"command": "true", "env": {"A": [CANARY]}}}}),
    "headers of another type": json.dumps({"mcpServers": {"a": {"type": "http", "url": 7, "headers": {"Authorization": CANARY}}}}),
}


@pytest.mark.parametrize("text", MCP_LEAKS.values(), ids=MCP_LEAKS)
async def test_no_value_of_the_servers_file_is_said_anywhere(world, place, tmp_path, caplog, text):
    caplog.set_level(logging.DEBUG)
    lease = await world.workspaces.acquire(place)
    put(place, text, ".mcp.json")
    await until(lambda: world.notices)
    assert CANARY not in shown(world, tmp_path, caplog)
    await lease.release()
