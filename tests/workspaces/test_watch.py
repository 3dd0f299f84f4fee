"""Notices of changed files on a real file system, and the look that finds what no notice told."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hames.workspaces.notify import Notifier
from hames.workspaces.watch import Watch, signature

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no inotify")

QUEUED = Path("/proc/sys/fs/inotify/max_queued_events")


def counted() -> tuple[int, int]:
    """How many inotify descriptors this process has, and how many directories they watch."""
    descriptors = watches = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            if str(each.readlink()) != "anon_inode:inotify":
                continue
            descriptors += 1
            watches += Path("/proc/self/fdinfo", each.name).read_text().count("inotify wd:")
        except OSError:
            continue
    return descriptors, watches


def watches() -> int:
    return counted()[1]


@pytest.fixture(autouse=True)
async def _nothing_left():
    tasks, threads, before = asyncio.all_tasks(), threading.active_count(), (counted(), len(os.listdir("/proc/self/fd")))
    yield
    assert (counted(), len(os.listdir("/proc/self/fd"))) == before
    assert threading.active_count() == threads
    assert asyncio.all_tasks() - tasks <= {asyncio.current_task()}


@pytest.fixture
async def notifier():
    made = Notifier()
    yield made
    made.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of a workspace."""
    (tmp_path / "w").mkdir()
    return (tmp_path / "w").resolve()


class Told:
    """A watch with what it has told."""

    def __init__(self, notifier, place: Path, *files: str) -> None:
        self.notifier, self.place = notifier, place
        self.count = 0
        self.watch = Watch(notifier, place, [place / name for name in files or (".hames/compose.yaml", ".mcp.json")])
        self.watch.start(self._changed)

    def _changed(self) -> None:
        self.count += 1

    async def since(self) -> int:
        """How often it has told something since the last time, after every notice until now has come."""
        await drained(self.notifier, self.place.parent / "drain")
        count, self.count = self.count, 0
        return count


async def drained(notifier: Notifier, place: Path) -> None:
    """Every notice until now has come: the system keeps their order."""
    place.mkdir(exist_ok=True)
    heard = asyncio.Event()
    remove = notifier.add(str(place), lambda name: heard.set())
    try:
        (place / "mark").write_text("")
        async with asyncio.timeout(5):
            await heard.wait()
    finally:
        remove()


@asynccontextmanager
async def watching(notifier, place: Path, *files: str):
    told = Told(notifier, place, *files)
    try:
        yield told
    finally:
        told.watch.close()


@pytest.fixture
async def told(notifier, place):
    async with watching(notifier, place) as told:
        yield told


def put(place: Path, text: str = "[]\n", name: str = ".hames/compose.yaml") -> Path:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def rename_into(path: Path, text: str) -> None:
    (path.parent / f".{path.name}.new").write_text(text)
    (path.parent / f".{path.name}.new").replace(path)


def backup_and_write(path: Path, text: str) -> None:
    path.rename(path.with_name(f"{path.name}~"))
    path.write_text(text)


def truncate_and_write(path: Path, text: str) -> None:
    with path.open("r+") as file:
        file.truncate(0)
        file.write(text)


def unlink_and_write(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def link_into(path: Path, text: str) -> None:
    (path.parent / "other").write_text(text)
    path.unlink()
    os.link(path.parent / "other", path)


EDITS = [Path.write_text, rename_into, backup_and_write, truncate_and_write, unlink_and_write, append, link_into]


# files


async def test_nothing_is_told_while_nothing_changes(told):
    assert await told.since() == 0
    told.watch.look()
    assert told.count == 0


@pytest.mark.parametrize("name", [".mcp.json", ".hames/compose.yaml"])
async def test_a_file_that_is_made_is_told(told, place, name):
    put(place, name=name)
    assert await told.since() > 0


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
async def test_an_edit_is_told_however_an_editor_writes(notifier, place, edit):
    path = put(place)
    async with watching(notifier, place) as told:
        for text in ("- {}\n", "- {}\n", "other"):
            edit(path, text)
            assert await told.since() > 0
        told.watch.look()
        assert told.count == 0


async def test_an_edit_that_looks_the_same_from_outside_is_told(notifier, place):
    path = put(place, "aaaa")
    async with watching(notifier, place) as told:
        before = path.stat()
        with path.open("r+") as file:
            file.write("bbbb")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert await told.since() > 0


async def test_a_file_that_is_removed_is_told(notifier, place):
    path = put(place)
    async with watching(notifier, place) as told:
        path.unlink()
        assert await told.since() > 0
        put(place)
        assert await told.since() > 0


async def test_a_file_that_is_moved_away_and_back_is_told_both_times(notifier, place):
    path = put(place)
    async with watching(notifier, place) as told:
        path.rename(place.parent / "away")
        assert await told.since() > 0
        (place.parent / "away").rename(path)
        assert await told.since() > 0


async def test_other_files_in_the_same_directories_are_not_told(notifier, place):
    put(place)
    async with watching(notifier, place) as told:
        for name in (".hames/other.yaml", "compose.yaml", ".hames/compose.yaml.swp", ".hames/compose.yam", "README", "src/a.py"):
            put(place, name=name)
        (place / ".hames/other.yaml").unlink()
        assert await told.since() == 0


async def test_reading_a_file_is_not_told(notifier, place):
    path = put(place)
    async with watching(notifier, place) as told:
        path.read_text()
        os.listdir(path.parent)
        assert await told.since() == 0


@pytest.mark.parametrize("name", [".mcp.json", ".hames/compose.yaml"])
async def test_what_holds_the_place_of_a_file_that_is_not_there_is_no_change(notifier, place, name):
    (place / ".hames").mkdir()
    path = place / name
    async with watching(notifier, place) as told:
        path.mkdir()
        assert await told.since() == 0
        path.rmdir()
        path.symlink_to(os.devnull)
        assert await told.since() == 0
        path.unlink()
        os.mkfifo(path)
        assert await told.since() == 0
        path.unlink()
        with socket.socket(socket.AF_UNIX) as server:
            here = os.open(path.parent, os.O_RDONLY)
            try:
                server.bind(f"/proc/self/fd/{here}/{path.name}")
            finally:
                os.close(here)
        assert await told.since() == 0
        path.unlink()
        path.symlink_to("nowhere")
        assert await told.since() == 0
        path.unlink()
        told.watch.look()
        assert await told.since() == 0
        put(place, name=name)
        assert await told.since() > 0


async def test_an_empty_directory_that_holds_the_place_of_another_is_no_change(told, place):
    for _ in range(3):
        (place / ".hames").mkdir()
        assert await told.since() == 0
        (place / ".hames").rmdir()
        assert await told.since() == 0
    assert watches() == 1


# directories


async def test_a_directory_that_is_made_later_is_watched(told, place):
    assert watches() == 1
    (place / ".hames").mkdir()
    assert await told.since() == 0
    assert watches() == 2
    put(place)
    assert await told.since() > 0


async def test_a_directory_and_its_file_made_at_once_are_told(told, place):
    put(place)
    assert await told.since() > 0
    put(place, "again")
    assert await told.since() > 0


async def test_deep_directories_that_are_made_later_are_watched(notifier, place):
    async with watching(notifier, place, "a/b/c/d.yaml") as told:
        for name in ("a", "a/b", "a/b/c"):
            (place / name).mkdir()
            assert await told.since() == 0
        put(place, name="a/b/c/d.yaml")
        assert await told.since() > 0
        assert watches() == 4
        shutil.rmtree(place / "a")
        assert await told.since() > 0
        assert watches() == 1
        put(place, name="a/b/c/d.yaml")
        assert await told.since() > 0
        assert watches() == 4


async def test_a_directory_that_is_removed_and_made_again_is_watched_again(told, place):
    for _ in range(5):
        put(place)
        assert await told.since() > 0
        assert watches() == 2
        shutil.rmtree(place / ".hames")
        assert await told.since() > 0
        assert watches() == 1


async def test_a_directory_removed_and_made_again_before_anybody_looked_is_watched(notifier, place):
    put(place)
    async with watching(notifier, place) as told:
        for _ in range(20):
            shutil.rmtree(place / ".hames")
            put(place)
        assert await told.since() > 0
        assert watches() == 2
        put(place, "again")
        assert await told.since() > 0


async def test_a_directory_that_is_renamed_away_and_replaced_is_watched_at_its_new_place(notifier, place):
    put(place)
    put(place, "the other", "other/compose.yaml")
    async with watching(notifier, place) as told:
        (place / ".hames").rename(place / "old")
        (place / "other").rename(place / ".hames")
        assert await told.since() > 0
        put(place, name="old/compose.yaml")
        assert await told.since() == 0
        put(place, "again")
        assert await told.since() > 0
        assert watches() == 2


async def test_a_directory_that_is_replaced_by_a_link_is_watched_where_that_leads(notifier, place):
    put(place)
    put(place, "one", "one/compose.yaml")
    put(place, "two", "two/compose.yaml")
    async with watching(notifier, place) as told:
        shutil.rmtree(place / ".hames")
        (place / ".hames").symlink_to("one")
        assert await told.since() > 0
        put(place, "one again", "one/compose.yaml")
        assert await told.since() > 0
        (place / "link").symlink_to("two")
        (place / "link").replace(place / ".hames")
        assert await told.since() > 0
        put(place, "one at last", "one/compose.yaml")
        assert await told.since() == 0
        put(place, "two again", "two/compose.yaml")
        assert await told.since() > 0
        assert watches() == 2
        (place / ".hames").unlink()
        assert await told.since() > 0
        assert watches() == 1


async def test_a_linked_directory_is_watched_by_both_its_names(notifier, place):
    target = put(place, name="config/compose.yaml")
    (place / ".hames").symlink_to("config")
    async with watching(notifier, place, ".hames/compose.yaml", "config/compose.yaml") as told:
        assert watches() == 2
        for edit in EDITS:
            edit(target, "[]")
            assert await told.since() > 0
        (place / "config").rename(place / "moved")
        assert await told.since() > 0
        (place / "moved").rename(place / "config")
        assert await told.since() > 0
        put(place, "more", "config/compose.yaml")
        assert await told.since() > 0
        assert watches() == 2


async def test_a_linked_file_is_told_when_its_target_changes(notifier, place):
    put(place, name="shared/compose.yaml")
    (place / ".hames").mkdir()
    (place / ".hames/compose.yaml").symlink_to("../shared/compose.yaml")
    async with watching(notifier, place, ".hames/compose.yaml", "shared/compose.yaml") as told:
        put(place, "more", "shared/compose.yaml")
        assert await told.since() > 0
        (place / ".hames/compose.yaml").unlink()
        assert await told.since() > 0


async def test_the_directory_of_a_workspace_that_is_renamed_is_told_and_found_when_it_is_back(notifier, place):
    put(place)
    async with watching(notifier, place) as told:
        place.rename(place.parent / "elsewhere")
        assert await told.since() > 0
        assert watches() == 0
        put(place.parent / "elsewhere", "not ours")
        assert await told.since() == 0
        (place.parent / "elsewhere").rename(place)
        told.watch.look()
        assert await told.since() > 0
        assert watches() == 2
        put(place, "again")
        assert await told.since() > 0


async def test_the_directory_of_a_workspace_that_is_removed_and_made_again_is_found_by_the_look(notifier, place):
    put(place)
    async with watching(notifier, place) as told:
        shutil.rmtree(place)
        assert await told.since() > 0
        assert watches() == 0
        put(place)
        told.watch.look()
        assert await told.since() > 0
        assert watches() == 2


async def test_a_workspace_renamed_away_and_back_without_a_change_is_watched_again(notifier, place):
    put(place)
    async with watching(notifier, place) as told:
        place.rename(place.parent / "elsewhere")
        (place.parent / "elsewhere").rename(place)
        await told.since()
        assert watches() == 2
        put(place, "again")
        assert await told.since() > 0


async def test_a_workspace_without_files_that_was_away_tells_by_notice_or_look_what_is_made_in_it(told, place):
    place.rmdir()
    assert await told.since() == 0
    place.mkdir()
    told.watch.look()
    put(place)
    told.watch.look()
    assert await told.since() > 0
    assert watches() == 2
    put(place, "again")
    assert await told.since() > 0


async def test_names_that_are_no_text_are_watched_too(notifier, tmp_path):
    place = Path(os.fsdecode(os.fsencode(tmp_path.resolve()) + b"/w\xff\n"))
    place.mkdir()
    name = os.fsdecode(b"n\xfe w\n.yaml")
    async with watching(notifier, place, name, f"{name}.d/a.yaml") as told:
        put(place, name=name)
        assert await told.since() > 0
        put(place, name=f"{name}.d/a.yaml")
        assert await told.since() > 0
        assert watches() == 2


# what cannot be watched


async def test_a_workspace_that_is_not_there_cannot_be_watched(notifier, tmp_path):
    watch = Watch(notifier, tmp_path / "none", [tmp_path / "none/.mcp.json"])
    with pytest.raises(OSError, match="No such file"):
        watch.start(lambda: None)
    watch.close()
    assert watches() == 0


class Refusing(Notifier):
    """The system refuses one directory."""

    def __init__(self, refused: Path) -> None:
        super().__init__()
        self.refused: Path | None = refused

    def add(self, directory, heard):
        if directory == str(self.refused):
            raise PermissionError(13, "Permission denied", directory)
        return super().add(directory, heard)


async def test_a_directory_that_may_not_be_watched_is_looked_at_and_watched_once_it_may_be(place):
    path = put(place)
    notifier = Refusing(path.parent)
    try:
        async with watching(notifier, place) as told:
            assert watches() == 1
            path.write_text("more")
            assert await told.since() == 0
            told.watch.look()
            assert told.count == 1
            put(place, name=".mcp.json")
            assert await told.since() > 0
            notifier.refused = None
            path.write_text("more yet")
            told.watch.look()
            assert await told.since() > 0
            assert watches() == 2
            path.write_text("by notice")
            assert await told.since() > 0
    finally:
        notifier.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
async def test_an_unreadable_directory_is_watched_once_it_can_be_read(notifier, place):
    path = put(place)
    path.parent.chmod(0)
    try:
        async with watching(notifier, place) as told:
            assert watches() == 1
            path.parent.chmod(0o700)
            assert await told.since() > 0
            path.write_text("more")
            assert await told.since() > 0
    finally:
        path.parent.chmod(0o700)


async def test_a_file_in_the_place_of_a_directory_is_no_change_and_no_mistake(told, place):
    (place / ".hames").write_text("a file")
    assert await told.since() == 0
    assert watches() == 1
    (place / ".hames").unlink()
    put(place)
    assert await told.since() > 0


async def test_links_in_a_circle_are_no_change_and_no_mistake(told, place):
    (place / ".hames").symlink_to(".hames")
    assert await told.since() == 0
    (place / ".mcp.json").symlink_to(".mcp.json")
    assert await told.since() == 0
    assert signature(str(place / ".mcp.json")) is None


# many at once


def overflow(place: Path) -> None:
    for number in range(int(QUEUED.read_text()) // 2 + 200):
        os.close(os.open(place / f"{number}", os.O_CREAT | os.O_WRONLY))


async def test_a_change_whose_notice_did_not_fit_the_queue_is_told(notifier, place):
    path = put(place)
    async with watching(notifier, place) as told:
        overflow(path.parent)
        path.write_text("after the queue was full")
        put(place, "too", ".mcp.json")
        assert await told.since() > 0
        told.watch.look()
        assert told.count == 0
        assert watches() == 2
        path.write_text("by notice")
        assert await told.since() > 0


async def test_a_directory_that_was_replaced_while_the_queue_was_full_is_watched(notifier, place):
    put(place)
    async with watching(notifier, place) as told:
        overflow(place)
        (place / ".hames").rename(place / "old")
        put(place, "another")
        assert await told.since() > 0
        put(place, "by notice")
        assert await told.since() > 0
        put(place, "not ours", "old/compose.yaml")
        assert await told.since() == 0
        assert watches() == 2


async def test_a_full_queue_is_no_change_by_itself_and_reaches_every_watch(notifier, place):
    other = place.parent / "v"
    other.mkdir()
    async with watching(notifier, place) as told, watching(notifier, other) as others:
        overflow(place)
        assert await told.since() == 0
        overflow(place)
        put(other, name=".mcp.json")
        assert await told.since() == 0
        assert others.count > 0


async def test_writing_one_file_many_times_is_told_and_loses_nothing(notifier, place):
    path = put(place)
    async with watching(notifier, place) as told:
        for number in range(3000):
            path.write_text(str(number))
        assert await told.since() > 0
        told.watch.look()
        assert told.count == 0


# several watches


async def test_two_watches_of_a_directory_share_it_and_are_both_told(notifier, place):
    put(place)
    async with watching(notifier, place) as one, watching(notifier, place) as two:
        assert watches() == 2
        put(place, "more")
        assert await one.since() > 0
        assert two.count > 0


async def test_the_end_of_one_watch_leaves_the_other(notifier, place):
    path = put(place)
    async with watching(notifier, place) as one:
        async with watching(notifier, place) as two:
            path.write_text("both")
            await one.since()
        assert watches() == 2
        path.write_text("one")
        assert await one.since() > 0
        assert two.count > 0
        two.count = 0
        shutil.rmtree(place / ".hames")
        put(place)
        assert await one.since() > 0
        assert two.count == 0
    assert watches() == 0


async def test_a_directory_of_two_watches_under_different_names_is_left_to_the_other(notifier, place):
    put(place, name="config/compose.yaml")
    (place / ".hames").symlink_to("config")
    async with watching(notifier, place, "config/compose.yaml") as straight:
        async with watching(notifier, place, ".hames/compose.yaml"):
            assert watches() == 2
        assert watches() == 2
        put(place, "more", "config/compose.yaml")
        assert await straight.since() > 0


async def test_a_watch_that_another_ends_while_both_are_told_stays_ended(notifier, place):
    two = Watch(notifier, place, [place / ".hames/compose.yaml"])
    one = Watch(notifier, place, [place / ".hames/compose.yaml"])
    count = 0

    def changed() -> None:
        nonlocal count
        count += 1
        two.close()

    one.start(changed)
    two.start(lambda: None)
    put(place)
    await drained(notifier, place.parent / "drain")
    assert count > 0
    one.close()
    await drained(notifier, place.parent / "drain")
    assert watches() == 0


# other files


async def test_a_watch_takes_up_further_files_and_lets_go_of_others(notifier, place):
    put(place)
    async with watching(notifier, place) as told:
        put(place, name="a/b/c.yaml")
        assert await told.since() == 0
        told.watch.watch([place / ".mcp.json", place / "a/b/c.yaml"])
        assert watches() == 3
        put(place, "more", "a/b/c.yaml")
        assert await told.since() > 0
        put(place, "not ours now")
        assert await told.since() == 0
        told.watch.watch([place / ".mcp.json"])
        assert watches() == 1
        put(place, "nor this", "a/b/c.yaml")
        assert await told.since() == 0
        told.watch.watch([place / ".mcp.json", place / ".hames/compose.yaml"])
        assert watches() == 2
        put(place, "ours again")
        assert await told.since() > 0


async def test_what_has_changed_before_further_files_are_named_is_still_told(notifier, place):
    put(place)
    async with watching(notifier, place) as told:
        put(place, "more")
        told.watch.watch([place / ".hames/compose.yaml", place / "new.yaml"])
        assert await told.since() > 0


async def test_files_in_many_directories_are_counted_by_directory(notifier, place):
    names = [f"d{number}/{part}.yaml" for number in range(30) for part in "abc"]
    for name in names:
        put(place, name=name)
    async with watching(notifier, place, *names):
        assert watches() == notifier.count == 31
    assert watches() == notifier.count == 0


# the end


async def test_a_watch_that_is_closed_tells_nothing_and_watches_nothing(notifier, place):
    put(place)
    async with watching(notifier, place) as told:
        told.watch.close()
        assert watches() == 0
        put(place, "more")
        assert await told.since() == 0
        told.watch.close()


async def test_a_watch_closed_with_notices_on_their_way_tells_nothing_and_watches_nothing(notifier, place):
    put(place)
    async with watching(notifier, place) as told:
        shutil.rmtree(place / ".hames")
        put(place, "more")
        told.watch.close()
        assert await told.since() == 0
        assert watches() == 0


async def test_a_closed_watch_that_is_given_further_files_watches_nothing(notifier, place):
    async with watching(notifier, place) as told:
        told.watch.close()
        put(place, name="a/b.yaml")
        told.watch.watch([place / "a/b.yaml"])
        assert watches() == 0


async def test_a_closed_watch_that_looks_watches_nothing(notifier, place):
    async with watching(notifier, place) as told:
        told.watch.close()
        put(place)
        told.watch.look()
        assert (told.count, watches()) == (0, 0)


async def test_watches_and_their_descriptor_are_gone_at_the_end_whatever_the_order(place):
    put(place)
    notifier = Notifier()
    assert counted()[0] >= 1
    told = Told(notifier, place)
    notifier.close()
    assert watches() == 0
    told.watch.close()
    notifier.close()
    with pytest.raises(OSError, match="descriptor"):
        notifier.add(str(place), lambda name: None)


# without notices


async def test_without_notices_the_look_finds_what_was_made_written_and_removed(place):
    told = Told(None, place)
    told.watch.look()
    assert (told.count, counted()[0]) == (0, 0)
    path = put(place)
    assert told.count == 0
    told.watch.look()
    told.watch.look()
    assert told.count == 1
    for count, edit in enumerate(EDITS, 2):
        edit(path, "x" * count)
        told.watch.look()
        told.watch.look()
        assert told.count == count
    path.unlink()
    told.count = 0
    told.watch.look()
    assert told.count == 1
    path.mkdir()
    told.watch.look()
    assert told.count == 1
    told.watch.close()
    path.rmdir()
    put(place)
    told.watch.look()
    assert told.count == 1


async def test_without_notices_further_files_are_looked_at(place):
    told = Told(None, place)
    put(place, name="a.yaml")
    told.watch.watch([place / "a.yaml"])
    told.watch.look()
    assert told.count == 0
    put(place, "more", "a.yaml")
    told.watch.look()
    assert told.count == 1
    told.watch.close()


async def test_a_link_further_on_that_no_notice_tells_of_is_found_by_the_look_and_watched_then(notifier, place):
    put(place, "one", "one/compose.yaml")
    put(place, "twenty", "two/compose.yaml")
    (place / "between").symlink_to("one")
    (place / ".hames").symlink_to("between")
    async with watching(notifier, place) as told:
        (place / "new").symlink_to("two")
        (place / "new").replace(place / "between")
        assert await told.since() == 0
        told.watch.look()
        assert told.count == 1
        put(place, "more", "two/compose.yaml")
        assert await told.since() > 1


# notices


async def test_what_is_no_directory_cannot_be_watched(notifier, place):
    put(place, name="file")
    for name in ("file", "none", "file/below"):
        with pytest.raises(OSError, match="directory"):
            notifier.add(str(place / name), lambda name: None)
    assert (notifier.count, watches()) == (0, 0)


async def test_a_directory_is_told_by_the_name_of_what_changed_and_by_none_when_it_goes_itself(notifier, place):
    names: list[str] = []
    remove = notifier.add(str(place), names.append)
    put(place, name="a")
    await drained(notifier, place.parent / "drain")
    assert set(names) == {"a"}
    names.clear()
    shutil.rmtree(place)
    await drained(notifier, place.parent / "drain")
    assert names[0] == "a" and names[-1] == ""
    assert notifier.count == 0
    remove()
    place.mkdir()
    remove()


async def test_the_end_of_a_notice_of_a_directory_made_anew_is_not_taken_by_the_old_one(notifier, place):
    first: list[str] = []
    second: list[str] = []
    old = notifier.add(str(place), first.append)
    shutil.rmtree(place)
    place.mkdir()
    new = notifier.add(str(place), second.append)
    await drained(notifier, place.parent / "drain")
    old()
    put(place, name="a")
    await drained(notifier, place.parent / "drain")
    assert "a" not in first and "a" in second
    assert watches() == notifier.count == 1
    new()
    new()
    assert watches() == notifier.count == 0


async def test_a_directory_let_go_and_taken_up_again_at_once_is_told_once_and_from_then_on(notifier, place):
    for _ in range(50):
        names: list[str] = []
        notifier.add(str(place), names.append)()
        again: list[str] = []
        remove = notifier.add(str(place), again.append)
        put(place, name="a")
        await drained(notifier, place.parent / "drain")
        assert names == [] and "a" in again
        assert watches() == notifier.count == 1
        remove()


async def test_a_notifier_has_no_thread_and_one_descriptor(place):
    threads, before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    notifier = Notifier()
    removes = [notifier.add(str(place), lambda name: None) for _ in range(20)]
    assert (threading.active_count(), len(os.listdir("/proc/self/fd")), watches()) == (threads, before + 1, 1)
    for remove in removes:
        remove()
    notifier.close()


# anything


@pytest.mark.parametrize("number", range(6))
async def test_whatever_is_done_to_the_files_is_told_by_notice_and_every_directory_stays_watched(notifier, place, number):
    """The look finds nothing that was not told, and what is watched is what is there."""
    chance = random.Random(number)
    names = (".hames/compose.yaml", ".mcp.json", "a/b/c.yaml", "a/d.yaml")
    put(place, name="link/compose.yaml")
    put(place, name="link/b/c.yaml")

    def act() -> None:
        top = place / chance.choice(["a", ".hames", "a/b"])
        match chance.randrange(8):
            case 0:
                shutil.rmtree(top) if top.is_dir() and not top.is_symlink() else top.unlink(missing_ok=True)
            case 1 | 2 | 3:
                put(place, str(chance.random()), chance.choice(names))
            case 4:
                (place / chance.choice(names)).unlink(missing_ok=True)
            case 5:
                away = place / f"away{chance.random()}"
                if top.exists():
                    top.rename(away)
                    if chance.random() < 0.5:
                        away.rename(top)
            case 6:
                if not top.exists() and not top.is_symlink() and top.parent.is_dir():
                    top.symlink_to(place / "link")
            case _:
                path = place / chance.choice(names)
                if path.is_file():
                    rename_into(path, str(chance.random()))

    files = [str(place / name) for name in names]
    directories = [place, place / ".hames", place / "a", place / "a/b"]
    async with watching(notifier, place, *names) as told:
        for _ in range(80):
            seen = [signature(path) for path in files]
            for _ in range(chance.choice([1, 1, 2, 5])):
                try:
                    act()
                except (FileExistsError, FileNotFoundError, NotADirectoryError):
                    continue
            changed = seen != [signature(path) for path in files]
            count = await told.since()
            assert count > 0 or not changed
            told.watch.look()
            assert told.count == 0, "the look had to find it"
            assert watches() == len({(path.stat().st_dev, path.stat().st_ino) for path in directories if path.is_dir()})
