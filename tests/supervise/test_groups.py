"""Groups of processes: nothing of one is left when it was ended."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from pathlib import Path

import pytest

from hames.supervise import Group
from hames.supervise.cgroup import own
from hames.supervise.processes import MARK

# Whatever is started here ends by itself after a while, also where a test fails.
BASE = """
import os, pathlib, signal, subprocess, sys, time
place = pathlib.Path(sys.argv[1])
until = time.monotonic() + 20
signal.signal(signal.SIGALRM, signal.SIG_DFL)

def here(name, text=""):
    other = place / f".{name}.{os.getpid()}"
    other.write_text(text or str(os.getpid()))
    other.rename(place / name)

def rest():
    while time.monotonic() < until:
        time.sleep(0.05)
    os._exit(0)

def deaf():
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass

"""


class Room:
    """Starts groups of programs and sees what lives of them, by something in their environment that hames does not know of."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.sign = f"ROOM={secrets.token_hex(8)}"
        self.groups: list[Group] = []

    def start(self, code: str, **options) -> Group:
        script = self.place / f"program-{len(self.groups)}.py"
        script.write_text(BASE + code)
        name, _, value = self.sign.partition("=")
        environment = {"PATH": os.environ["PATH"], name: value, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        argv = [sys.executable, "-S", str(script), str(self.place)]
        group = Group(argv, cwd=self.place, environment=environment, **options)
        self.groups.append(group)
        return group

    def alive(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self.sign.encode() in (path / "environ").read_bytes() or str(self.place).encode() in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    async def there(self, *names: str, seconds: float = 10) -> None:
        until = time.monotonic() + seconds
        while missing := [name for name in names if not (self.place / name).exists()]:
            assert time.monotonic() < until, missing
            await asyncio.sleep(0.005)

    async def gone(self, seconds: float = 5) -> bool:
        until = time.monotonic() + seconds
        while self.alive() and time.monotonic() < until:
            await asyncio.sleep(0.01)
        return not self.alive()


def descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sorted(each for each in found if not each.startswith("/proc"))


def children() -> set[int]:
    """All children of this process, dead ones too."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int((path / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(path.name))
        except OSError:
            continue
    return found


@pytest.fixture
async def room(tmp_path):
    """A place for groups; afterwards no process, no descriptor and no task of it is left."""
    before, below, tasks = descriptors(), children(), asyncio.all_tasks()
    room = Room(tmp_path)
    yield room
    left = room.alive()
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for group in room.groups:
        await group.end()
    assert not left
    assert descriptors() == before
    assert children() <= below
    assert asyncio.all_tasks() - tasks <= {asyncio.current_task()}


DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        deaf()
        here("daemon")
        rest()
    os._exit(0)
os.wait()
"""
KINDS = {
    "a plain program": "here('first'); rest()",
    "a program that ignores every signal": "deaf(); here('first'); rest()",
    "children in its session": "deaf()\nfor n in range(5):\n    if os.fork() == 0: here(f'child-{n}'); rest()\nhere('first'); rest()",
    "a long line of descendants": "for n in range(12):\n    if os.fork(): here(f'member-{n}'); rest()\nhere('first'); rest()",
    "a child in a session of its own": "if os.fork() == 0: os.setsid(); deaf(); here('daemon'); rest()\nhere('first'); rest()",
    "a child in a process group of its own": "if os.fork() == 0: os.setpgid(0, 0); deaf(); here('daemon'); rest()\nhere('first'); rest()",
    "a daemon": DAEMON + "here('first'); rest()",
    "children of a daemon": DAEMON.replace("deaf()", "deaf(); os.fork(); os.fork()") + "here('first'); rest()",
    "a stopped program": "if os.fork() == 0:\n    here('child'); os.kill(os.getpid(), signal.SIGSTOP); rest()\nhere('first'); rest()",
    "another program in a session of its own": (
        "subprocess.Popen(['sleep', '21.375'], start_new_session=True); subprocess.Popen(['sleep', '21.375']); here('first'); rest()"
    ),
}


@pytest.mark.parametrize("held", [False, True], ids=["", "in a control group"])
@pytest.mark.parametrize("code", KINDS.values(), ids=KINDS)
async def test_nothing_is_left_of(room, code, held, monkeypatch):
    monkeypatch.setattr("hames.supervise.group.POLITE", 0.4)
    if held and own() is None:
        pytest.skip("this process may make no control group")
    group = room.start(code, cgroup=held)
    await room.there("first", *(["daemon"] if "'daemon'" in code or '"daemon"' in code else []))
    assert room.alive()
    await group.end()
    assert not room.alive()
    assert group.returncode is not None


async def test_what_a_program_that_has_ended_left_behind_ends_too(room):
    group = room.start(DAEMON + "if os.fork() == 0: here('child'); deaf(); rest()\ntime.sleep(0.1); here('last'); sys.exit(7)")
    assert await asyncio.wait_for(group.wait(), 10) == 7
    await room.there("daemon", "child", "last")
    assert len(room.alive()) == 2
    await group.end()
    assert not room.alive() and group.returncode == 7


async def test_a_program_that_was_killed_by_somebody_else_leaves_nothing(room):
    group = room.start(DAEMON + "here('first'); rest()")
    await room.there("daemon", "first")
    os.kill(group.pid, signal.SIGKILL)
    assert await asyncio.wait_for(group.wait(), 10) == -signal.SIGKILL
    await group.end()
    assert not room.alive()


async def test_what_starts_others_all_the_time_ends(room, monkeypatch):
    monkeypatch.setattr("hames.supervise.group.POLITE", 0.4)
    code = """
deaf()
here("first")
while time.monotonic() < until:
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            if time.monotonic() % 1 < 0.5:
                rest()
            time.sleep(1)
        os._exit(0)
    os.wait()
    time.sleep(0.02)
"""
    group = room.start(code)
    await room.there("first")
    await group.end()
    assert not room.alive()


CHAIN = """
deaf()
here("first")
if os.fork() == 0:
    os.setsid()
    until = time.monotonic() + 3
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)
        PAUSE
    os._exit(0)
rest()
"""


@pytest.mark.parametrize(
    # Without a control group one that is fast enough may get away for a moment: nothing else holds it.
    ("pause", "held"),
    [("time.sleep(0.05)", False), ("pass", True)],
    ids=["slow", "fast, in a control group"],
)
async def test_what_lives_on_in_ever_new_processes_ends(room, pause, held, monkeypatch):
    monkeypatch.setattr("hames.supervise.group.POLITE", 0.4)
    if held and own() is None:
        pytest.skip("this process may make no control group")
    group = room.start(CHAIN.replace("PAUSE", pause), cgroup=held)
    await room.there("first")
    began = time.monotonic()
    await group.end()
    assert time.monotonic() - began < 4
    seen = [pid for _ in range(20) for pid in room.alive()]
    if seen:  # it ends by itself, and is not to meet another test
        await asyncio.sleep(3)
    assert not seen


async def test_what_takes_away_its_environment_and_its_parents_ends_in_a_control_group(room):
    if own() is None:
        pytest.skip("this process may make no control group")
    code = DAEMON.replace('here("daemon")', "here('daemon'); os.execve('/bin/sleep', ['sleep', '22.625'], {})") + "here('first'); rest()"
    group = room.start(code, cgroup=True)
    await room.there("daemon", "first")
    hidden = Path("/proc", (room.place / "daemon").read_text())
    until = time.monotonic() + 5
    while b"22.625" not in (hidden / "cmdline").read_bytes():
        assert time.monotonic() < until
        await asyncio.sleep(0.01)
    await group.end()
    assert not hidden.exists() or b"22.625" not in (hidden / "cmdline").read_bytes()


async def test_what_gets_away_in_its_first_moment_ends_in_a_control_group(tmp_path):
    if own() is None:
        pytest.skip("this process may make no control group")
    for turn in range(10):
        argv = ["/bin/sh", "-c", f"setsid env -i sh -c 'echo $$ > {tmp_path}/{turn}; exec sleep 22.75' & exit 0"]
        group = Group(argv, cwd=tmp_path, environment={"PATH": os.environ["PATH"]}, cgroup=True)
        await group.wait()
        until = time.monotonic() + 5
        while not (told := tmp_path / str(turn)).exists() or not told.read_text().endswith("\n"):
            assert time.monotonic() < until
            await asyncio.sleep(0.001)
        hidden = Path("/proc", told.read_text().strip())
        await group.end()
        assert not hidden.exists() or b"22.75" not in (hidden / "cmdline").read_bytes()


async def test_a_control_group_is_removed(room):
    if (parent := own()) is None:
        pytest.skip("this process may make no control group")
    mine = f"hames-{os.getpid()}-*"
    before = set(parent.glob(mine))
    group = room.start(KINDS["a daemon"], cgroup=True)
    await room.there("daemon")
    assert len(set(parent.glob(mine)) - before) == 1
    await group.end()
    assert set(parent.glob(mine)) == before


@pytest.mark.parametrize("after", [0.0, 0.05, 0.3], ids=["at once", "while it asks", "while it asks again"])
async def test_cancelling_the_end_does_not_keep_it_from_ending_them(room, after, monkeypatch):
    monkeypatch.setattr("hames.supervise.group.POLITE", 0.4)
    group = room.start(DAEMON + "deaf(); here('first'); rest()")
    await room.there("daemon", "first")
    ending = asyncio.create_task(group.end())
    await asyncio.sleep(after)
    began = time.monotonic()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert not room.alive()
    assert time.monotonic() - began < 2


async def test_cancelling_again_and_again_does_not_keep_it_from_ending_them(room):
    group = room.start(KINDS["children of a daemon"])
    await room.there("daemon", "first")
    ending = asyncio.create_task(group.end())
    while not ending.done():
        await asyncio.sleep(0)
        ending.cancel()
    assert ending.cancelled() and not room.alive()


async def test_ending_twice_at_once_and_after_it_has_ended_is_no_error(room):
    group = room.start(KINDS["a daemon"])
    await room.there("daemon", "first")
    await asyncio.gather(group.end(), group.end())
    await group.end()
    group.kill()
    group.signal(signal.SIGTERM)
    assert not room.alive() and group.members() == {}


async def test_killing_does_not_wait_and_the_end_is_heard(room):
    group = room.start("deaf(); here('first'); rest()")
    await room.there("first")
    group.kill()
    assert await asyncio.wait_for(group.wait(), 5) == -signal.SIGKILL
    await group.end()


async def test_programs_are_asked_to_end_first(room):
    code = """
def leave(*_):
    here(f"left-{name}")
    os._exit(0)

signal.signal(signal.SIGTERM, leave)
name = "first"
if os.fork() == 0:
    name = "child"
    if os.fork() == 0:
        os.setsid()
        name = "daemon"
here(name)
rest()
"""
    group = room.start(code)
    await room.there("first", "child", "daemon")
    began = time.monotonic()
    await group.end()
    assert all((room.place / f"left-{name}").exists() for name in ("first", "child", "daemon"))
    assert time.monotonic() - began < 1.5


async def test_a_program_that_needs_a_moment_to_end_has_it(room):
    code = """
def leave(*_):
    time.sleep(0.6)
    here("left")
    os._exit(3)

signal.signal(signal.SIGTERM, leave)
here("first")
rest()
"""
    group = room.start(code)
    await room.there("first")
    await group.end()
    assert (room.place / "left").exists() and group.returncode == 3


async def test_what_a_dead_program_left_is_asked_to_end_too(room):
    code = """
if os.fork() == 0:
    signal.signal(signal.SIGTERM, lambda *_: (here("left"), os._exit(0)))
    here("child")
    rest()
while not (place / "child").exists():
    time.sleep(0.01)
"""
    group = room.start(code)
    assert await asyncio.wait_for(group.wait(), 10) == 0
    await group.end()
    assert not room.alive()
    assert (room.place / "left").exists()


async def test_a_child_that_needs_a_moment_to_end_has_it_though_the_first_ends_at_once(room):
    code = """
def leave(*_):
    time.sleep(0.3)
    here("left")
    os._exit(0)

if os.fork() == 0:
    signal.signal(signal.SIGTERM, leave)
    here("child")
    rest()
here("first")
rest()
"""
    group = room.start(code)
    await room.there("first", "child")
    await group.end()
    assert not room.alive()
    assert (room.place / "left").exists()


async def test_a_group_inside_of_a_group_ends_with_it_and_ends_nothing_of_it(room):
    code = """
import asyncio
from hames.supervise import Group

async def main():
    daemon = "import os, time; os.setsid() if os.fork() == 0 else os._exit(0); os.fork(); time.sleep(20)"
    inner = Group([sys.executable, "-S", "-c", daemon, str(place)], cwd=place, environment={"ROOM": os.environ["ROOM"]})
    await inner.wait()
    here("inner", str(len(inner.members())))
    other = Group([sys.executable, "-S", "-c", daemon, str(place)], cwd=place, environment={"ROOM": os.environ["ROOM"]})
    await other.wait()
    await other.end()
    here("after", f"{len(inner.members())} {len(other.members())}")
    here("first")
    rest()

asyncio.run(main())
"""
    group = room.start(code)
    await room.there("first")
    assert (room.place / "after").read_text() == "2 0"
    marks = {Path("/proc", str(pid), "environ").read_bytes().partition(f"{MARK}=".encode())[2].partition(b"\0")[0] for pid in room.alive()}
    outer = min(marks, key=len)
    assert len(marks) == 2 and all(each == outer or each.startswith(outer + b":") for each in marks)
    await group.end()
    assert not room.alive()


async def test_ending_a_group_leaves_its_neighbours_alone(room):
    one = room.start(DAEMON.replace("daemon", "one") + "rest()")
    other = room.start(DAEMON.replace("daemon", "other") + "here('first'); rest()")
    await room.there("one", "other", "first")
    await one.end()
    assert len(other.members()) == 2 and sorted(other.members()) == sorted(room.alive())
    await other.end()


async def test_members_know_how_far_below_the_first_they_are(room):
    group = room.start("for n in range(3):\n    if os.fork(): here(f'member-{n}'); rest()\nhere('last'); rest()")
    await room.there("member-0", "member-1", "member-2", "last")
    pids = [int((room.place / name).read_text()) for name in ("member-0", "member-1", "member-2", "last")]
    assert group.members() == dict(zip(pids, range(4), strict=True))
    group.signal(signal.SIGKILL, below=2)
    until = time.monotonic() + 5
    while set(group.members()) != set(pids[:2]):
        assert time.monotonic() < until
        await asyncio.sleep(0.01)
    await group.end()


async def test_many_groups_at_once_leave_no_descriptor(room):
    before = descriptors()
    groups = [room.start("here(f'first-{os.getpid()}'); rest()") for _ in range(12)]
    assert descriptors().count("anon_inode:[pidfd]") == before.count("anon_inode:[pidfd]") + 12
    await room.there(*(f"first-{group.pid}" for group in groups))
    await asyncio.gather(*(group.end() for group in groups))
    assert descriptors() == before and not room.alive()


@pytest.mark.parametrize("argv", [["/nowhere/program"], ["sh", "a\0b"], ["."]], ids=["no program", "a zero byte", "a directory"])
async def test_what_cannot_be_started_leaves_nothing(room, argv):
    before = descriptors()
    for _ in range(3):
        with pytest.raises((OSError, ValueError)):
            Group(argv, cwd=room.place, environment={"PATH": os.environ["PATH"]}, cgroup=True)
    assert descriptors() == before


async def test_giving_up_to_wait_harms_nobody_else_who_waits(room):
    group = room.start("here('first'); rest()")
    waiting, other = asyncio.create_task(group.wait()), asyncio.create_task(group.wait())
    await room.there("first")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not await group.ends_within(0.01)
    await group.end()
    assert await other == group.returncode == -signal.SIGTERM
    assert await group.ends_within(0)


async def test_a_program_that_ends_at_once_is_no_error(room):
    for _ in range(10):
        group = room.start("sys.exit(5)", cgroup=True)
        assert await asyncio.wait_for(group.wait(), 10) == 5
        await group.end()


async def test_parents_are_asked_to_end_before_their_children(tmp_path, monkeypatch):
    """One that waits for a child would end with it, and never hear that it was asked."""
    told: list[int] = []
    kill = os.kill

    def record(pid: int, number: int) -> None:
        if number == signal.SIGTERM:
            told.append(pid)
        kill(pid, number)

    script = "trap 'exit 7' TERM; " + "sleep 71.125 & " * 8 + "touch ready; wait"
    group = Group(["bash", "-c", script], cwd=tmp_path, environment=dict(os.environ))
    while not (tmp_path / "ready").exists():
        await asyncio.sleep(0.005)
    monkeypatch.setattr(os, "kill", record)
    await group.end()
    assert told[0] == group.pid and len(told) >= 9
