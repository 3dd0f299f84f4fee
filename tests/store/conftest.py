"""Child processes, and databases that leave nothing behind."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from hames.store import Database

ITEMS = ("CREATE TABLE IF NOT EXISTS items (n INTEGER PRIMARY KEY, text TEXT UNIQUE)",)


class Children:
    """Starts Python programs and ends what is left of them."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(self, program: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", dedent(program), *map(str, arguments)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._started.append(child)
        return child

    def run(self, program: str, *arguments: object, timeout: float = 40.0) -> str:
        """What a program prints; it has to end well."""
        child = self.start(program, *arguments)
        output, errors = child.communicate(timeout=timeout)
        assert child.returncode == 0, errors
        return output

    def end(self) -> None:
        for child in self._started:
            if child.poll() is None:
                child.kill()
            child.communicate()


def descriptors() -> dict[str, str]:
    """What this process has open, by number."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except FileNotFoundError:  # the listing itself
            continue
    return found


@pytest.fixture
def children() -> Iterator[Children]:
    started = Children()
    yield started
    started.end()


@pytest.fixture
def items() -> tuple[str, ...]:
    """The schema of the databases of these tests."""
    return ITEMS


@pytest.fixture
def opened() -> Callable[[], dict[str, str]]:
    return descriptors


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(tmp_path / "items.db", ITEMS)
    yield database
    await database.close()
    left = [target for target in descriptors().values() if target.startswith(str(tmp_path))]
    assert left == []
    assert sorted(os.listdir(tmp_path)) == ["items.db", "items.db.checkpoint"]
