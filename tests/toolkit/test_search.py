"""Finding names and lines."""

from __future__ import annotations

import os

import pytest

from hames.toolkit import search
from hames.toolkit.search import glob, grep, pattern_of
from hames.tools import ToolError


@pytest.fixture
def work(invocation):
    tree = {
        "a.py": "import os\nx = 1\n",
        "src/b.py": "import sys\n",
        "src/deep/c.txt": "IMPORT\n",
        ".git/config": "import",
        "bin": "a\0import",
    }
    for name, text in tree.items():
        path = invocation.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return invocation.cwd


@pytest.fixture(params=["ripgrep", "python"])
def engine(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(search.shutil, "which", lambda name: None)
    elif search.shutil.which("rg") is None:
        pytest.skip("ripgrep is not installed here")


@pytest.mark.parametrize(
    ("pattern", "matches", "not_matches"),
    [
        ("*.py", "a.py", "src/a.py"),
        ("**/*.py", "a.py", "a.txt"),
        ("src/**/x", "src/a/b/x", "x"),
        ("*.{c,h}", "a.h", "a.x"),
        ("[!a].txt", "b.txt", "a.txt"),
        ("a+b(1).txt", "a+b(1).txt", "aab1.txt"),
    ],
)
def test_globs(pattern, matches, not_matches):
    assert pattern_of(pattern).fullmatch(matches) and not pattern_of(pattern).fullmatch(not_matches)


async def test_names_are_found_in_order_without_version_control(work, use):
    assert await use(glob, pattern="*.py") == "a.py\nsrc/b.py"
    assert await use(glob, pattern="src/**") == "src/b.py\nsrc/deep/c.txt"
    assert await use(glob, pattern="*.rs") == "no file matches"
    assert (await use(glob, pattern="*", limit=2)).endswith("[more than 2 files match]")


async def test_lines_are_found_with_their_place(work, use, engine):
    assert await use(grep, pattern="^import") == "a.py:1:import os\nsrc/b.py:1:import sys"
    assert await use(grep, pattern="import", glob="*.txt", ignore_case=True) == "src/deep/c.txt:1:IMPORT"
    assert await use(grep, pattern="nowhere") == "no line matches"
    assert (await use(grep, pattern="import", limit=1)).endswith("[more than 1 lines match]")


async def test_a_bad_pattern_or_place_says_so(work, use, engine):
    with pytest.raises(ToolError) as caught:
        await use(grep, pattern="(")
    assert caught.value.code == "INVALID_PATTERN"
    with pytest.raises(ToolError) as caught:
        await use(grep, pattern="a", path="nowhere")
    assert caught.value.code == "NOT_FOUND"


async def test_pipes_and_loops_of_links_hang_nobody(work, use, engine):
    os.mkfifo(work / "pipe")
    (work / "loop").symlink_to(work)
    (work / "bad\udcff").write_text("import bytes\n")
    assert "a.py:1:import os" in await use(grep, pattern="import")
    await use(glob, pattern="*")
