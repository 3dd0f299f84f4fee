"""Reading, writing and editing."""

from __future__ import annotations

import os
import stat

import pytest

from hames.toolkit.files import edit, read, write
from hames.tools import ToolError


@pytest.fixture
def work(invocation):
    return invocation.cwd


async def refused(awaitable):
    with pytest.raises(ToolError) as caught:
        await awaitable
    return caught.value.code


async def test_lines_come_numbered_and_in_pieces(work, use):
    (work / "a").write_text("".join(f"line {n}\n" for n in range(1, 2501)))
    first = await use(read, path="a")
    assert first.startswith("     1\tline 1\n") and first.endswith("[more lines follow; read on with offset 2001]")
    assert (await use(read, path="a", offset=2500)).strip() == "2500\tline 2500"
    assert await use(read, path="a", offset=3000) == "a has only 2500 lines"


async def test_a_long_line_is_cut_and_the_next_one_keeps_its_number(work, use):
    (work / "a").write_text("x" * 5_000_000 + "\nsecond\n")
    text = await use(read, path="a")
    assert len(text) < 3000 and text.splitlines()[1] == "     2\tsecond"


@pytest.mark.parametrize("kind", ["missing", "directory", "binary", "fifo", "device"])
async def test_what_is_no_text_file_is_refused(work, use, kind):
    path = work / "x"
    codes = {"missing": "NOT_FOUND", "directory": "IS_DIRECTORY", "binary": "BINARY", "fifo": "NOT_REGULAR", "device": "NOT_REGULAR"}
    if kind == "directory":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"a\0b")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    assert await refused(use(read, path="x")) == codes[kind]


async def test_an_unreadable_file_is_refused(work, use):
    path = work / "x"
    if os.geteuid() == 0:  # root may read every file, but not every one gives its bytes
        path.symlink_to("/proc/self/mem")
    else:
        path.write_text("a")
        path.chmod(0)
    assert await refused(use(read, path="x")) == "UNREADABLE"


async def test_an_existing_file_is_changed_only_as_it_was_read(work, use):
    path = work / "a"
    path.write_text("one two one")
    assert await refused(use(write, path="a", content="x")) == "NOT_READ"
    assert await refused(use(edit, path="a", old="two", new="2")) == "NOT_READ"
    await use(read, path="a")
    path.write_text("one two one, changed by somebody else")
    assert await refused(use(edit, path="a", old="two", new="2")) == "STALE"
    await use(read, path="a")
    await use(edit, path="a", old="two", new="2")
    await use(edit, path="a", old=" 2 ", new=" and ")
    assert path.read_text() == "one and one, changed by somebody else"


async def test_an_edit_needs_exactly_one_place_or_all(work, use):
    (work / "a").write_text("one two one")
    await use(read, path="a")
    assert await refused(use(edit, path="a", old="one", new="1")) == "AMBIGUOUS"
    assert await refused(use(edit, path="a", old="three", new="3")) == "NO_MATCH"
    assert await refused(use(edit, path="a", old="", new="3")) == "NOTHING_TO_DO"
    assert "2 occurrences" in await use(edit, path="a", old="one", new="1", all=True)
    assert (work / "a").read_text() == "1 two 1"


async def test_a_new_file_gets_its_folders_and_can_be_edited_at_once(work, use):
    await use(write, path="deep/er/a", content="text\n")
    await use(edit, path="deep/er/a", old="text", new="words")
    assert (work / "deep/er/a").read_text() == "words\n"


async def test_mode_links_and_line_ends_are_kept(work, use):
    target = work / "script"
    target.write_bytes(b"a\r\nb\r\n")
    target.chmod(0o750)
    (work / "link").symlink_to(target)
    await use(read, path="link")
    await use(edit, path="link", old="a\nb", new="a\nc")
    assert target.read_bytes() == b"a\r\nc\r\n" and stat.S_IMODE(target.stat().st_mode) == 0o750
    assert (work / "link").is_symlink()


async def test_a_write_that_fails_leaves_the_file_as_it_was(work, use):
    (work / "file").write_text("text")
    assert await refused(use(write, path="file/below", content="x")) == "UNWRITABLE"
    assert sorted(path.name for path in work.iterdir()) == ["file"]
