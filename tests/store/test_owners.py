"""Who is alive."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hames.store import Owner
from hames.store.owners import is_alive, sweep

HOLD = """
    import subprocess, sys
    from pathlib import Path
    from hames.store import Owner

    owner = Owner(Path(sys.argv[1]))
    child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(owner.id, child.pid, flush=True)
    sys.stdin.readline()
    child.kill()
    child.wait()
    owner.release()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "owners"


@pytest.fixture
def owner(directory: Path, opened: Callable[[], dict[str, str]]) -> Iterator[Owner]:
    before = opened()
    owner = Owner(directory)
    yield owner
    owner.release()
    assert opened() == before


def test_an_owner_is_alive_until_it_is_released(directory: Path, opened: Callable[[], dict[str, str]]) -> None:
    before = opened()
    owner = Owner(directory)
    assert owner.alive(owner.id)
    assert is_alive(directory, owner.id)
    assert [path.name for path in directory.iterdir()] == [owner.id]
    owner.release()
    assert not is_alive(directory, owner.id)
    assert list(directory.iterdir()) == []
    assert opened() == before


def test_owners_are_never_the_same(directory: Path) -> None:
    owners = [Owner(directory) for _ in range(20)]
    assert len({owner.id for owner in owners}) == 20
    assert all(owners[0].alive(owner.id) for owner in owners)
    for owner in owners:
        owner.release()


@pytest.mark.parametrize("name", ["", "1-unknown", "../owners", "/etc/passwd", "a/b"])
def test_what_is_no_owner_is_dead(owner: Owner, name: str) -> None:
    assert not owner.alive(name)


def test_a_killed_process_is_dead_though_its_child_lives(owner: Owner, directory: Path, children: Any) -> None:
    process = children.start(HOLD, directory)
    other, child = process.stdout.readline().split()
    try:
        assert owner.alive(other)
        assert int(other.split("-")[0], 16) == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        assert not owner.alive(other)
        assert subprocess.run(["kill", "-0", child], check=False).returncode == 0
    finally:
        subprocess.run(["kill", "-9", child], check=False)


def test_a_process_that_ends_well_leaves_no_file(owner: Owner, directory: Path, children: Any) -> None:
    process = children.start(HOLD, directory)
    other = process.stdout.readline().split()[0]
    assert owner.alive(other)
    _, errors = process.communicate("end\n", timeout=10)
    assert errors == ""
    assert not owner.alive(other)
    assert [path.name for path in directory.iterdir()] == [owner.id]


def test_looking_takes_nobody_for_dead_or_alive(owner: Owner, directory: Path, children: Any) -> None:
    dead = directory / "ffff-dead"
    dead.touch()
    program = """
        import sys
        from pathlib import Path
        from hames.store.owners import is_alive
        directory, living = Path(sys.argv[1]), sys.argv[2]
        print("ready", flush=True)
        sys.stdin.readline()
        print(sum(is_alive(directory, living) for _ in range(2000)), sum(is_alive(directory, "ffff-dead") for _ in range(2000)))
    """
    looking = [children.start(program, directory, owner.id) for _ in range(3)]
    for child in looking:
        assert child.stdout.readline() == "ready\n"
    for child in looking:
        child.stdin.write("go\n")
        child.stdin.flush()
    assert [child.communicate(timeout=30)[0] for child in looking] == ["2000 0\n"] * 3


def test_sweeping_removes_the_dead_only(owner: Owner, directory: Path) -> None:
    for name in ("1-dead", "2-dead"):
        (directory / name).touch()
    assert sweep(directory) == 2
    assert [path.name for path in directory.iterdir()] == [owner.id]
    assert owner.alive(owner.id)
    assert sweep(directory / "missing") == 0
