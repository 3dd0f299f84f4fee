"""A repository that was made to harm: each tool answers soon, with a message, and little memory."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hames.agents import AgentSpec
from hames.compose.layers import checkout
from hames.sandbox.protect import Rules, view
from hames.sandbox.service import Confinement
from hames.toolkit.instructions import InstructionsConfig, gathered
from hames.toolkit.mentions import with_mentions
from hames.toolkit.project import directories
from hames.toolkit.skills import SkillsConfig, found
from hames.trust import TRUST

HUGE = 2 << 30


@pytest.fixture(autouse=True)
def user(tmp_path, monkeypatch):
    path = tmp_path / "user"
    path.mkdir()
    (path / "AGENTS.md").write_text("of the user")
    monkeypatch.setenv("HAMES_HOME", str(path))
    return path


@pytest.fixture
def repo(tmp_path):
    path = tmp_path / "repo"
    (path / ".git").mkdir(parents=True)
    (path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (path / ".git" / "config").write_text("[core]\n\tbare = false\n")
    return path


@pytest.fixture
def play(agents, script, calling, host):
    """The results of these calls, one after another, and the agent."""

    async def run(cwd, *calls, limit=20.0, trusted=False):
        if trusted:
            trust = host.get(TRUST)
            trust.decide(trust.status(cwd), True)
        answers = [calling(call) for call in calls]
        agent = await agents.create(AgentSpec(str(cwd), script(*answers, {"text": "done"})))
        async with asyncio.timeout(limit):
            end = await agent.run("go")
        assert end.reason == "completed", end
        run.agent = agent
        return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]

    return run


@contextmanager
def soon(seconds=5.0, memory=100):
    """Little time, little memory in MiB, and no descriptor that is left."""
    descriptors = opened()
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    yield
    assert time.perf_counter() - began < seconds
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < memory * 1024
    assert opened() <= descriptors


def opened() -> set[str]:
    """Descriptors, but that by which the workspace of a live agent is watched."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if "inotify" not in os.readlink(f"/proc/self/fd/{name}"):
                found.add(name)
    return found


@contextmanager
def rescued(*pipes: Path, seconds=1.5):
    """Whoever waits for the other end of a pipe gets it after a while: the test fails then, and does not hang."""
    rescues = []

    def rescue():
        for pipe in pipes:
            with suppress(OSError):
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
                rescues.append(pipe)

    timers = [threading.Timer(seconds + n / 2, rescue) for n in range(8)]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()
    assert not rescues, f"somebody waited for {rescues[0].name}"


def sparse(path, begin=b"", end=b""):
    with path.open("wb") as file:
        file.write(begin)
        file.truncate(HUGE - len(end))
        file.seek(0, os.SEEK_END)
        file.write(end)


def listener(path):
    """A socket in the file system."""
    server = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    try:
        os.chdir(path.parent)
        server.bind(path.name)
    finally:
        os.chdir(here)
    server.close()


# huge files


async def test_a_huge_file_is_refused_or_shown_in_part(play, repo):
    sparse(repo / "zeros.bin")
    sparse(repo / "text.txt", b"first line\nneedle\n" + b"x" * 9000)
    calls = [
        ("read", {"path": "zeros.bin"}),
        ("read", {"path": "text.txt"}),
        ("edit", {"path": "zeros.bin", "old": "a", "new": "b"}),
        ("edit", {"path": "text.txt", "old": "needle", "new": "b"}),
        ("write", {"path": "zeros.bin", "content": "x"}),
        ("read_image", {"path": "zeros.bin"}),
        ("glob", {"pattern": "*.bin"}),
    ]
    with soon(15):
        zeros, text, unread, edited, written, image, names = await play(repo, *calls)
    assert (zeros.code, zeros.text) == ("BINARY", f"Error: zeros.bin is a binary file of {HUGE} bytes")
    assert text.text.startswith("     1\tfirst line\n     2\tneedle\n     3\txxx") and text.text.endswith(" […]") and len(text.text) < 3000
    assert unread.code == written.code == "NOT_READ"
    assert edited.text == f"Error: text.txt has {HUGE} bytes; edit takes at most {32 << 20}"
    assert "at most 5242880 are shown" in image.text and names.text == "zeros.bin"


async def test_a_huge_file_is_searched_in_bounded_memory_and_time(play, repo):
    sparse(repo / "zeros.bin", end=b"needle\n")
    (repo / "a.txt").write_text("needle\n")
    with soon(20):
        below, named = await play(repo, ("grep", {"pattern": "needle"}), ("grep", {"pattern": "needle", "path": "zeros.bin"}))
    assert below.text.splitlines()[0] == "a.txt:1:needle" and len(named.text) < 2000


def test_a_huge_file_is_mentioned_by_its_name(repo):
    sparse(repo / "zeros.bin")
    sparse(repo / "zeros.png")
    sparse(repo / "text.txt", b"x" * 70_000)
    with soon(2):
        zeros, picture, text = with_mentions("@zeros.bin @zeros.png @text.txt", repo, None).blocks[1:]
    assert zeros.text == "\n\n[zeros.bin was not read: it is no text]"
    assert picture.text.startswith("\n\n[zeros.png was not ") and text.text.endswith(f"[{HUGE - 65536} more bytes; read shows them]")


def test_huge_instructions_are_cut(repo):
    with (repo / "AGENTS.md").open("wb") as file:
        for _ in range(50):
            file.write(b"be kind\n" * (1 << 17))
    with soon(1, 20):
        told = gathered(repo, InstructionsConfig(), project=True)
    assert len(told) < 70_000 and "the instructions are longer than 65536 bytes" in told


async def test_lines_without_an_end_are_cut_by_every_tool(play, repo):
    (repo / "one.txt").write_bytes(b"needle " + b"x" * 30_000_000)
    with soon(10, 250):
        read, grep, edit = await play(
            repo,
            ("read", {"path": "one.txt"}),
            ("grep", {"pattern": "needle"}),
            ("edit", {"path": "one.txt", "old": "x", "new": "y"}),
        )
    assert len(read.text) < 3000 and len(grep.text) < 1000 and grep.text.startswith("one.txt:1:needle x")
    assert edit.code == "AMBIGUOUS"


# what is no file

SPECIAL = ["fifo", "socket", "device", "to zero", "loop", "out"]


def place(path, kind, tmp_path):
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "socket":
            listener(path)
        case "device":
            try:
                os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))
            except PermissionError:
                pytest.skip("no device can be made here")
        case "to zero":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path.name)
        case _:
            (tmp_path / "secret").write_text("the token")
            path.symlink_to(tmp_path / "secret")


@pytest.mark.parametrize("kind", SPECIAL[:-1])
async def test_what_is_no_file_is_refused_by_every_tool_of_files(play, repo, tmp_path, kind):
    place(repo / "odd", kind, tmp_path)
    calls = [
        ("read", {"path": "odd"}),
        ("write", {"path": "odd", "content": "x"}),
        ("edit", {"path": "odd", "old": "a", "new": "b"}),
        ("read_image", {"path": "odd"}),
    ]
    with rescued(repo / "odd"), soon():
        results = await play(repo, *calls)
    for call, result in zip(calls, results, strict=True):
        assert result.is_error and ("odd" in result.text or result.code == "DENIED"), (call, result)
        assert result.code not in ("RAISED", "TIMEOUT"), (call, result)
        assert "Traceback" not in result.text
    assert os.path.lexists(repo / "odd") and not (repo / "odd").is_file()


@pytest.mark.parametrize("kind", SPECIAL)
async def test_a_search_goes_past_what_is_no_file(play, repo, tmp_path, kind):
    place(repo / "odd", kind, tmp_path)
    (repo / "z.txt").write_text("the needle\n")
    with rescued(repo / "odd"), soon():
        grep, glob = await play(repo, ("grep", {"pattern": "needle|token"}), ("glob", {"pattern": "*"}), limit=10)
    assert grep.text == "z.txt:1:the needle" and glob.text.splitlines()[-2:] == ["odd", "z.txt"]


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "loop"])
async def test_a_search_in_what_is_no_file_ends(play, repo, tmp_path, kind):
    place(repo / "odd", kind, tmp_path)
    with rescued(repo / "odd"), soon():
        (grep,) = await play(repo, ("grep", {"pattern": "needle", "path": "odd"}), limit=8)
    assert grep.is_error or grep.text == "no line matches"


async def test_a_search_in_a_device_that_never_ends_ends(play, repo):
    (repo / "odd").symlink_to("/dev/urandom")
    (grep,) = await play(repo, ("grep", {"pattern": "n{40}eedle", "path": "odd"}), limit=3)
    assert grep.is_error or grep.text == "no line matches"


@pytest.mark.parametrize("kind", [*SPECIAL, "directory"])
@pytest.mark.parametrize("name", ["AGENTS.md", "CLAUDE.md"])
async def test_instructions_that_are_no_file_take_nothing_from_the_others(play, repo, tmp_path, kind, name):
    other = {"AGENTS.md": "CLAUDE.md", "CLAUDE.md": "AGENTS.md"}[name]
    (repo / other).write_text("of the project")
    if kind == "directory":
        (repo / name).mkdir()
    else:
        place(repo / name, kind, tmp_path)
    with rescued(repo / name), soon():
        await play(repo, trusted=True)
    told = "\n".join(message.text for _, message in play.agent.session.messages if message.source == "harness")
    assert "of the user" in told and "of the project" in told and f"[{repo / name} was not read: " in told
    assert "the token" not in str(play.agent.session.messages)


@pytest.mark.parametrize("kind", SPECIAL)
async def test_a_skill_that_is_no_file_takes_nothing_from_the_others(play, repo, tmp_path, kind):
    root = repo / ".hames" / "skills"
    for name in ("good", "odd"):
        (root / name).mkdir(parents=True)
    (root / "good" / "SKILL.md").write_text("---\ndescription: fine\n---\nDo it.")
    place(root / "odd" / "SKILL.md", kind, tmp_path)
    with rescued(root / "odd" / "SKILL.md"), soon():
        good, odd = await play(repo, ("skill", {"name": "good"}), ("skill", {"name": "odd"}), trusted=True)
    assert good.text.startswith("Do it.") and odd.code == "UNREADABLE" and str(root / "odd" / "SKILL.md") in odd.text


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", [".hames/compose.yaml", ".mcp.json"])
async def test_a_composition_that_is_no_file_is_not_trusted_and_all_else_works(play, host, repo, tmp_path, kind, name):
    (repo / "AGENTS.md").write_text("of the project")
    (repo / name).parent.mkdir(exist_ok=True)
    place(repo / name, kind, tmp_path)
    with rescued(repo / name), soon():
        (result,) = await play(repo, ("bash", {"command": "echo alive"}))
    assert result.text == "alive\n"
    told = "\n".join(message.text for _, message in play.agent.session.messages if message.source == "harness")
    assert "of the user" in told and "of the project" not in told


# names


def odd_names(repo):
    names = [b"new\nline", b"tab\tin", b"\x1b]0;title\x07\x1b[2J", b"\xff\xfe", b"-rf", b"$(touch pwned)", b"`id`", b" space ", b"..."]
    for name in names:
        with open(os.path.join(os.fsencode(repo), name), "wb") as file:
            file.write(b"the needle\n")
    return names


async def test_odd_names_go_through_every_tool(play, repo):
    names = odd_names(repo)
    readable = [name.decode() for name in names if name != b"\xff\xfe"]
    calls = [("read", {"path": name}) for name in readable]
    calls += [("edit", {"path": name, "old": "needle", "new": "thread"}) for name in readable]
    calls += [("write", {"path": f"made {name}", "content": "x"}) for name in readable]
    calls += [("glob", {"pattern": "*"}), ("grep", {"pattern": "needle"}), ("bash", {"command": "ls -1 | wc -l; cat -- *"})]
    with soon(10):
        results = await play(repo, *calls)
    for call, result in zip(calls, results, strict=True):
        assert not result.is_error, (call, result)
        result.text.encode()
    for name in readable:
        assert (repo / name).read_text() == "the thread\n" and (repo / f"made {name}").read_text() == "x"
    glob, grep = results[-3], results[-2]
    assert "\ufffd\ufffd" in glob.text and grep.text.endswith(":1:the needle") and not (repo / "pwned").exists()


async def test_a_name_with_a_zero_byte_is_no_name(play, repo):
    calls = [
        ("read", {"path": "a\0b"}),
        ("write", {"path": "a\0b", "content": "x"}),
        ("edit", {"path": "a\0b", "old": "x", "new": "y"}),
        ("glob", {"pattern": "*", "path": "a\0b"}),
        ("grep", {"pattern": "x", "path": "a\0b"}),
        ("grep", {"pattern": "x\0"}),
        ("read_image", {"path": "a\0b"}),
        ("bash", {"command": "echo a\0b"}),
    ]
    results = await play(repo, *calls)
    for call, result in zip(calls, results, strict=True):
        assert result.is_error or call[1].get("pattern") == "x\0", (call, result)
        assert result.code != "RAISED", (call, result)
    assert sorted(path.name for path in repo.iterdir()) == [".git"]


async def test_names_that_are_too_long_are_said(play, repo):
    long = "x" * 300
    calls = [
        ("read", {"path": long}),
        ("write", {"path": long, "content": "x"}),
        ("edit", {"path": long, "old": "x", "new": "y"}),
        ("glob", {"pattern": "*", "path": long}),
        ("grep", {"pattern": "x", "path": long}),
        ("read", {"path": "a/" * 3000}),
    ]
    results = await play(repo, *calls)
    for call, result in zip(calls, results, strict=True):
        assert result.is_error and result.code != "RAISED", (call, result.code, result.text[-200:])


async def test_a_working_directory_with_an_odd_name_can_be_worked_in(play, tmp_path, repo):
    for name in (b"new\nline", b"\xff\xfe", b"\x1b[2J"):
        work = Path(os.fsdecode(os.path.join(os.fsencode(repo), name)))
        work.mkdir()
        (work / "a.txt").write_text("needle\n")
        (work / "AGENTS.md").write_text("of the project")
        calls = [
            ("bash", {"command": "cat a.txt"}),
            ("read", {"path": "a.txt"}),
            ("grep", {"pattern": "needle"}),
            ("glob", {"pattern": "a*"}),
        ]
        results = await play(work, *calls, ("write", {"path": "b.txt", "content": "x"}), trusted=True)
        assert [result.is_error for result in results] == [False] * 5, results
        assert (work / "b.txt").read_text() == "x" and results[2].text.endswith("a.txt:1:needle")


# links


async def test_links_in_circles_are_gone_past(play, repo):
    (repo / "a").symlink_to("b")
    (repo / "b").symlink_to("a")
    (repo / "self").symlink_to(".")
    (repo / "d").mkdir()
    (repo / "d" / "up").symlink_to("../d")
    (repo / "d" / "z.txt").write_text("the needle\n")
    calls = [
        ("glob", {"pattern": "**/z.txt"}),
        ("grep", {"pattern": "needle"}),
        ("read", {"path": "self/self/self/d/up/up/z.txt"}),
        ("read", {"path": "a"}),
        ("glob", {"pattern": "*", "path": "a"}),
        ("grep", {"pattern": "x", "path": "a"}),
        ("write", {"path": "a", "content": "x"}),
        ("write", {"path": "a/x", "content": "x"}),
        ("bash", {"command": "cat d/z.txt"}),
    ]
    with soon(10):
        results = await play(repo, *calls)
    assert results[0].text == "d/z.txt" and results[1].text == "d/z.txt:1:the needle" and "the needle" in results[2].text
    for call, result in zip(calls[3:-1], results[3:-1], strict=True):
        assert result.is_error and result.code != "RAISED", (call, result)
    assert results[-1].text == "the needle\n"


def test_instructions_and_skills_in_circles_are_none(repo):
    (repo / "self").symlink_to(".")
    (repo / "AGENTS.md").write_text("of the project")
    (repo / ".claude").symlink_to(".")
    (repo / "skills").symlink_to("skills")
    deep = repo / "self" / "self"
    assert gathered(deep, InstructionsConfig(), project=True).count("of the project") == 1
    assert found(deep, SkillsConfig(), project=True) == {}


# very many


async def test_very_many_entries_are_bounded(play, repo):
    many = repo / "many"
    many.mkdir()
    for index in range(50_000):
        os.close(os.open(many / f"f{index:05}", os.O_CREAT | os.O_WRONLY, 0o644))
    (many / "z.txt").write_text("the needle\n")
    with soon(25, 150):
        glob, grep, listing = await play(
            repo, ("glob", {"pattern": "f*"}), ("grep", {"pattern": "needle"}), ("bash", {"command": "ls many"}), limit=25
        )
        mention = with_mentions("@many", repo, None).blocks[1]
    assert glob.text.count("\n") == 500 and glob.text.endswith("[more than 500 files match]")
    assert grep.text == "many/z.txt:1:the needle" and len(listing.text) < 60_000
    assert mention.text.endswith("[49801 more]")


async def test_a_search_ends_also_where_ripgrep_has_very_much_to_complain_about(play, repo):
    (repo / ".ignore").write_text("".join(f"[bad{index:05}{'x' * 60}\n" for index in range(5000)))
    (repo / "z.txt").write_text("the needle\n")
    (grep,) = await play(repo, ("grep", {"pattern": "needle"}), limit=4)
    assert grep.text == "z.txt:1:the needle"


async def test_a_deep_tree_is_searched(play, repo):
    here = os.getcwd()
    try:
        os.chdir(repo)
        for _ in range(400):
            os.mkdir("directory-d")
            os.chdir("directory-d")
        Path("z.txt").write_text("the needle\n")
    finally:
        os.chdir(here)
    with soon(10):
        glob, grep, bash = await play(
            repo, ("glob", {"pattern": "*.txt"}), ("grep", {"pattern": "needle"}), ("bash", {"command": "find . -name z.txt | wc -c"})
        )
    assert not bash.is_error and glob.code != "RAISED" and grep.code != "RAISED"


# Git directories


def git_case(repo, kind):
    """Makes the Git directory of a repository hostile; gives what could be waited for."""
    git = repo / ".git"
    if kind.startswith("dir "):
        part, what = kind.removeprefix("dir ").split(" ", 1)
        path = git / part
        path.unlink(missing_ok=True)
        match what:
            case "fifo":
                os.mkfifo(path)
                return [path]
            case "loop":
                path.symlink_to(part)
            case "zeros":
                sparse(path)
            case "garbage":
                path.write_bytes(bytes(range(256)) * 100)
            case "null":
                path.write_bytes(b"a\0b\n")
            case "directory":
                path.mkdir()
            case "unknown home":
                path.write_text("[core]\n\thooksPath = ~nobody-of-that-name/hooks\n")
            case "to a loop":
                (repo / "loop").symlink_to("loop")
                path.write_text("../loop\n")
            case "hooks in a loop":
                (repo / "loop").symlink_to("loop")
                path.write_text("[core]\n\thooksPath = loop/hooks\n")
            case "hooks null":
                path.write_bytes(b"[core]\n\thooksPath = a\0b\n")
        return []
    for path in git.iterdir():
        path.unlink()
    git.rmdir()
    match kind:
        case "fifo":
            os.mkfifo(git)
            return [git]
        case "socket":
            listener(git)
        case "loop":
            git.symlink_to(".git")
        case "dangling":
            git.symlink_to("gone")
        case "zeros":
            sparse(git)
        case "garbage":
            git.write_bytes(bytes(range(256)) * 100)
        case "empty":
            git.write_text("")
        case "itself":
            git.write_text("gitdir: .git\n")
        case "null":
            git.write_bytes(b"gitdir: a\0b\n")
        case "to a loop":
            (repo / "loop").symlink_to("loop")
            git.write_text("gitdir: loop\n")
        case "long":
            git.write_text(f"gitdir: {'x' * 3000}\n")
        case "to the root":
            git.write_text("gitdir: /\n")
    return []


GIT = ["fifo", "socket", "loop", "dangling", "zeros", "garbage", "empty", "itself", "null", "to a loop", "long", "to the root"]
GIT += [f"dir config {what}" for what in ("fifo", "loop", "zeros", "garbage", "directory", "unknown home", "hooks in a loop", "hooks null")]
GIT += [f"dir commondir {what}" for what in ("fifo", "loop", "zeros", "garbage", "null", "directory", "to a loop")]
GIT += [f"dir HEAD {what}" for what in ("fifo", "loop", "garbage", "directory")]


@pytest.mark.parametrize("kind", GIT)
def test_a_hostile_git_directory_is_looked_at_without_harm(repo, kind):
    pipes = git_case(repo, kind)
    (repo / "below").mkdir()
    with rescued(*pipes), soon(3):
        assert checkout(repo / "below") in (repo, None)
        assert directories(repo / "below")[-1] == repo / "below"
        seen = view(Confinement("workspace-write", repo, None, False), Rules())
    assert seen.place(repo / "a.txt") == "write" and seen.place(repo / ".hames") == "read"
    assert not any(place == "write" and not path.is_relative_to(repo) for path, place in seen.places.items())


@pytest.mark.parametrize("kind", GIT)
async def test_in_a_hostile_git_directory_tools_work(play, repo, kind):
    pipes = git_case(repo, kind)
    (repo / "a.txt").write_text("the needle\n")
    calls = [
        ("read", {"path": "a.txt"}),
        ("edit", {"path": "a.txt", "old": "needle", "new": "thread"}),
        ("write", {"path": "b.txt", "content": "x"}),
        ("bash", {"command": "cat a.txt; echo made > c.txt"}),
        ("grep", {"pattern": "thread", "path": "a.txt"}),
    ]
    with rescued(*pipes), soon(5):
        results = await play(repo, *calls, limit=15)
    assert [(result.is_error, result.code) for result in results] == [(False, "")] * 5, [result.text[-300:] for result in results]
    assert (repo / "a.txt").read_text() == "the thread\n" and (repo / "c.txt").read_text() == "made\n"
    (repo / "loop").unlink(missing_ok=True)
    assert sorted(path.name for path in repo.iterdir()) == [".git", "a.txt", "b.txt", "c.txt"]
