"""Edits as people and programs make them: with other processes, at any time, in every way that a file is written."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from hames.compose import running
from hames.store import STATE
from hames.tools import TOOLS
from hames.workspaces import WORKSPACES, WorkspaceReloaded

SOON = 15  # seconds
DEBOUNCE = 0.15

PROFILE = """
- {id: store, use: hames.store}
- {id: sessions, use: hames.sessions}
- {id: models, use: hames.models}
- {id: prompts, use: hames.prompts.service}
- {id: trust, use: hames.trust, config: {default: always}}
- {id: tools, use: hames.tools}
- {id: loop, use: hames.agents.loop}
- {id: agents, use: hames.agents}
- {id: workspaces, use: hames.workspaces, config: {on_failure: FAILURE}}
"""

ROWS = '''
import dataclasses

from pydantic import BaseModel

from hames.kernel import plugin
from hames.tools import TOOLS, tool


class Config(BaseModel):
    number: int = 0


@plugin(config=Config, needs=(TOOLS,), name="rows")
def rows(ctx, config):
    @tool("read", name=ctx.owner.id)
    def body() -> str:
        """Say something."""
        return "something"

    ctx.use(TOOLS).registry.add(ctx, body.name, dataclasses.replace(body, description=f"number {config.number}"))
'''


def line(number: int) -> str:
    return f"- {{id: mine, use: ./rows.py, config: {{number: {number}}}}}\n"


def extra(name: str) -> str:
    return f"- {{id: {name}, use: ./rows.py, config: {{number: 7}}}}\n"


# Every way to write a number into a file; each is a command of another process.
PYTHON = {
    "rename over": "import os, sys; p, t = sys.argv[1:]; open(p + '~', 'w').write(t); os.replace(p + '~', p)",
    "truncate and write": "import sys; p, t = sys.argv[1:]; f = open(p, 'w'); f.flush(); f.write(t); f.close()",
    "delete and create": "import os, sys; p, t = sys.argv[1:]; os.unlink(p); open(p, 'x').write(t)",
    "in pieces": "import sys; p, t = sys.argv[1:]; f = open(p, 'wb', 0); [f.write(bytes([c])) for c in t.encode()]; f.close()",
    "move away and back": "import os, sys; p, t = sys.argv[1:]; os.rename(p, p + '.old'); open(p + '.old', 'w').write(t); "
    "os.rename(p + '.old', p)",
    "through a backup": "import os, sys; p, t = sys.argv[1:]; os.rename(p, p + '.bak'); open(p, 'x').write(t); os.unlink(p + '.bak')",
    "replace the directory": "import os, shutil, sys; p, t = sys.argv[1:]; d = os.path.dirname(p); "
    "shutil.copytree(d, d + '.new'); "
    "open(os.path.join(d + '.new', os.path.basename(p)), 'w').write(t); "
    "os.rename(d, d + '.was'); os.rename(d + '.new', d); shutil.rmtree(d + '.was')",
}


def command(way: str, path: Path, number: int) -> list[str]:
    replaced = f"s/number: [0-9]*/number: {number}/"
    if way == "sed":
        return ["sed", "-i", replaced, str(path)]
    if way == "vim":
        return ["vim", "-es", "-u", "NONE", "-n", f"+%{replaced}", "+wq", str(path)]
    if way == "ed":
        return ["sh", "-c", f"printf '%s\\n' '1,$s/number: [0-9]*/number: {number}/' w q | ed -s \"$1\"", "sh", str(path)]
    return [sys.executable, "-S", "-c", PYTHON[way], str(path), line(number)]


WAYS = [
    *PYTHON,
    *(
        pytest.param(way, marks=pytest.mark.skipif(shutil.which(way) is None, reason=f"{way} is not installed"))
        for way in ("sed", "vim", "ed")
    ),
]


async def edit(way: str, path: Path, number: int) -> None:
    await run(command(way, path, number))


async def run(words: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.DEVNULL)
    assert await asyncio.wait_for(process.wait(), SOON) == 0, words


class Live:
    """A workspace that is watched."""

    def __init__(self, host, directory: Path, lease) -> None:
        self.host, self.directory, self.lease = host, directory, lease
        self.file = directory / ".hames" / "compose.yaml"
        self.notices: list[WorkspaceReloaded] = []
        host.ctx.on(WorkspaceReloaded, self.notices.append)

    @property
    def shown(self) -> dict[str, str]:
        view = self.host.get(TOOLS, self.lease.scope).registry.view(self.lease.scope)
        return {name: tool.description for name, tool in view.items()}

    @property
    def info(self):
        return self.host.get(WORKSPACES).get(self.directory)

    async def until(self, condition) -> None:
        async with asyncio.timeout(SOON):
            while not condition():
                await asyncio.sleep(0.005)

    async def quiet(self) -> None:
        """Wait until nothing has been told for some time, and nothing is under way."""
        calm = 0
        count = -1
        async with asyncio.timeout(SOON):
            while calm < 20:
                await asyncio.sleep(DEBOUNCE / 10)
                still = self.info.reload.status in ("idle", "failed") and len(self.notices) == count
                calm, count = calm + 1 if still else 0, len(self.notices)


@pytest.fixture
def failure() -> str:
    return "empty"


@pytest.fixture
async def live(tmp_path: Path, failure: str):
    directory = tmp_path / "repository"
    (directory / ".hames").mkdir(parents=True)
    (directory / ".hames" / "rows.py").write_text(ROWS)
    (directory / ".hames" / "compose.yaml").write_text(line(1))
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE.replace("FAILURE", failure))
    left = children()
    async with running(profile, {STATE: tmp_path / "state"}) as host:
        lease = await host.get(WORKSPACES).acquire(directory)
        found = Live(host, directory, lease)
        assert found.shown == {"mine": "number 1"}
        assert watched() > 0
        yield found
        await lease.release()
        assert watched() == 0
        assert not host.root_scope.children
    assert children() <= left
    # The event loop of the tests keeps threads of its own: for blocking calls, and for processes that these tests start.
    assert {each.name.rstrip("0123456789") for each in threading.enumerate()} <= {"MainThread", "asyncio_", "waitpid-"}
    assert not [task for task in asyncio.all_tasks() if "workspace" in task.get_name() or "mount" in task.get_name()]


def watched() -> int:
    """The directories that this process watches, as the system counts them."""
    count = 0
    for place in Path("/proc/self/fdinfo").iterdir():
        try:
            count += sum(each.startswith("inotify") for each in place.read_text().splitlines())
        except OSError:
            continue
    return count


def children() -> set[str]:
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            found |= set((task / "children").read_text().split())
    return found


@pytest.mark.parametrize("way", WAYS)
async def test_one_edit_of_any_kind_is_taken_up_by_one_pass(live, way):
    for number in (2, 3):
        count = len(live.notices)
        await edit(way, live.file, number)
        await live.until(lambda number=number: live.shown == {"mine": f"number {number}"})
        await live.quiet()
        assert [notice.reason for notice in live.notices[count:]] == [""], live.notices[count:]
    assert live.info.reload.successful_reloads == 2


async def test_what_is_appended_is_taken_up_and_what_was_there_is_not_restarted(live):
    mount = next(each for each in live.lease.scope.mounts if each.id == "mine")
    for index in range(3):
        await run(["sh", "-c", 'printf "%s" "$2" >> "$1"', "sh", str(live.file), extra(f"more{index}")])
        await live.until(lambda index=index: f"more{index}" in live.shown)
    await live.quiet()
    assert [notice.started for notice in live.notices] == [("more0",), ("more1",), ("more2",)]
    assert mount in live.lease.scope.mounts and mount.starts == 1


async def test_a_file_that_is_written_in_two_halves_is_read_once(live):
    """The halves come within the time that it waits for quiet."""
    text = line(2) + extra("more")
    program = (
        "import sys, time; f = open(sys.argv[1], 'w', 1); [(f.write(h), f.flush(), time.sleep(0.04)) for h in sys.argv[2:]]; f.close()"
    )
    await run([sys.executable, "-S", "-c", program, str(live.file), text[:20], text[20:60], text[60:]])
    await live.until(lambda: live.shown == {"mine": "number 2", "more": "number 7"})
    await live.quiet()
    assert [notice.reason for notice in live.notices] == [""]


async def test_a_file_that_goes_leaves_the_composition_of_the_host_and_one_that_comes_is_taken_up(live):
    await run(["rm", str(live.file)])
    await live.until(lambda: live.shown == {})
    await live.quiet()
    assert [notice.stopped for notice in live.notices] == [("mine",)] and live.info.composition is False
    await run(["sh", "-c", 'printf "%s" "$2" > "$1"', "sh", str(live.file), line(4)])
    await live.until(lambda: live.shown == {"mine": "number 4"})
    await live.quiet()
    assert len(live.notices) == 2


async def test_a_directory_that_is_removed_and_made_again_is_watched_again(live):
    for number in (5, 6):
        await run(["rm", "-r", str(live.file.parent)])
        await live.until(lambda: live.shown == {})
        script = 'mkdir "$1" && printf "%s" "$2" > "$1/rows.py" && printf "%s" "$3" > "$1/compose.yaml"'
        await run(["sh", "-c", script, "sh", str(live.file.parent), ROWS, line(number)])
        await live.until(lambda number=number: live.shown == {"mine": f"number {number}"})
    await live.quiet()
    await edit("truncate and write", live.file, 9)
    await live.until(lambda: live.shown == {"mine": "number 9"})


async def test_files_beside_it_and_reading_it_make_no_pass(live):
    for words in (
        ["touch", str(live.directory / "README"), str(live.file.parent / "notes.txt")],
        ["cat", str(live.file)],
        ["sh", "-c", f"echo x > {live.file}.swp; mv {live.file}.swp {live.file}.other; rm {live.file}.other"],
        ["mkdir", "-p", str(live.directory / "src" / ".hames")],
    ):
        await run(words)
    await live.quiet()
    assert live.notices == []
    assert live.info.reload.successful_reloads == 0


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["empty", "keep"])
async def test_a_hundred_edits_at_random_times_end_with_what_the_files_say_last(live, failure):
    number = int(os.environ.get("HAMES_CHANCE", "0")) or random.randrange(1 << 32)
    print(f"HAMES_CHANCE={number}")
    chance = random.Random(number)
    ways = [*PYTHON, *(way for way in ("sed", "vim", "ed") if shutil.which(way))]
    written = 0
    names: list[str] = []
    for index in range(100):
        kind = chance.random()
        if kind < 0.15 and len(names) < 8:
            name = f"more{index}"
            names.append(name)
            await run(["sh", "-c", 'printf "%s" "$2" >> "$1"', "sh", str(live.file), extra(name)])
        elif kind < 0.25:
            names = []
            await run(["sh", "-c", 'printf "%s" "- {id: mine" > "$1"; printf "%s" "$2" > "$1"', "sh", str(live.file), line(index)])
            written = index
        elif kind < 0.3:
            await run(["sh", "-c", 'printf "%s" "$2" >> "$1"', "sh", str(live.file.parent / "rows.py"), f"\nEDITED = {index}\n"])
        else:
            way = chance.choice(ways)
            await edit(way, live.file, index)
            written = index
            names = [] if way in PYTHON else names  # the editors write the number into every line
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 2 * DEBOUNCE)
    said = live.file.read_text()
    expected = {row.split("id: ")[1].split(",")[0]: f"number {row.split('number: ')[1].split('}')[0]}" for row in said.splitlines()}
    assert expected["mine"] == f"number {written}" and set(expected) == {"mine", *names}
    await live.until(lambda: live.shown == expected and live.info.reload.status == "idle")
    await live.quiet()
    assert live.shown == expected
    good = [notice for notice in live.notices if not notice.reason]
    assert 1 <= len(good) == live.info.reload.successful_reloads <= 100
    assert len(live.notices) <= 100 + 10, "a hundred edits, ten of which are two writes"
    assert {notice.reason for notice in live.notices} <= {"", "invalid", "trust"}
    assert live.info.reason == ""
    count = len(live.notices)
    await live.quiet()
    assert len(live.notices) == count
    assert live.info.message == ""
