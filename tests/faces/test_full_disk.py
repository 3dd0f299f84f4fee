"""A disk that runs full while a run is under way: one clear error, nothing that was confirmed is lost, and it goes on afterwards."""

import json
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


def calls(events: list[dict[str, Any]]) -> list[str]:
    return [event["data"]["id"] for event in events if event["type"] == "call"]


def limited(size: int) -> Callable[[], None]:
    """Lets no file of a child grow beyond a size."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def check_one_clear_error(errors: str) -> None:
    """The cause is said once, with its code and the way out, and nothing of what followed from it."""
    said = [line for line in errors.splitlines() if "no space" in line or "STORAGE_FULL" in line or "cannot be written" in line]
    assert len(said) == 1, errors
    assert "STORAGE_FULL" in said[0]
    assert "free some space" in errors
    assert "FENCED" not in errors


# a limit of the size of a file


@pytest.fixture
def steps(hames: Any) -> str:
    """A model that calls a command with 6 KB of output, forty times."""
    command = "head -c 6000 /dev/zero | tr '\\0' x"
    answers = [
        {"text": f"Step {n}.", "calls": [{"name": "bash", "arguments": {"command": f"{command}; echo {n}"}, "id": f"call_number_{n}"}]}
        for n in range(40)
    ]
    return str(hames.script(*answers, {"text": "Done."}))


def test_a_run_that_meets_the_limit_ends_with_storage_full_and_1(hames: Any, steps: str) -> None:
    found = hames.json("run", "x", "--model", steps, status=1, before=limited(200_000))
    assert found["status"] == "error"
    assert found["detail"].startswith("STORAGE_FULL: ")
    assert found["session"] == hames.session()["id"]


def test_a_run_that_meets_the_limit_says_one_clear_error(hames: Any, steps: str) -> None:
    done = hames.run("run", "x", "--model", steps, before=limited(200_000))
    assert done.returncode == 1
    check_one_clear_error(done.stderr)


def test_nothing_that_was_confirmed_is_lost_and_the_session_goes_on(hames: Any, steps: str, of_type: Any) -> None:
    done = hames.run("run", "x", "--model", steps, before=limited(200_000))
    assert done.returncode == 1
    begun = sum(line.startswith("> bash") for line in done.stderr.splitlines())
    assert 3 < begun < 40
    id = hames.session()["id"]
    before = hames.events(id)
    assert not any(event.get("damaged") for event in before)
    # A tool begins when its call is on disk.
    assert calls(before) == [f"call_number_{n}" for n in range(begun)]
    assert len(of_type(before, "tool-result")) >= begun - 1
    found = hames.json("run", "go on", "--resume", id)
    assert (found["status"], found["text"]) == ("completed", "Done.")
    after = hames.events(id)
    assert after[: len(before)] == before
    assert [block["call_id"] for block in of_type(after, "tool-result")] == [f"call_number_{n}" for n in range(40)]
    assert sum(block.get("code") == "OUTCOME_UNKNOWN" for block in of_type(after, "tool-result")) <= 1


@pytest.mark.parametrize("size", [1_000, 20_000, 60_000])
def test_a_limit_that_is_met_before_the_first_answer_is_storage_full_too(hames: Any, hello: str, size: int) -> None:
    prompt = "".join(chr(97 + n * n % 26) for n in range(60_000))
    found = hames.json("run", prompt, "--model", hello, status=1, before=limited(size))
    assert "STORAGE_FULL" in (found["error"]["code"] if "error" in found else found["detail"])
    found = hames.json("run", "after", "--model", hello)
    assert found["text"] == "Hello 1."


def test_reading_needs_no_space(hames: Any, hello: str) -> None:
    id = hames.json("run", "x", "--model", hello)["session"]
    done = hames.run("sessions", "show", id, before=limited(40_000))
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 5)


# a file system of one megabyte


class TinyDisk:
    """A tmpfs of 1 MB in a namespace of its own, which ends with the process that holds it.

    :ivar prefix: runs a command inside.
    """

    def __init__(self, place: Path) -> None:
        place.mkdir()
        script = f"mount -t tmpfs -o size=1m tmpfs {place} && echo mounted && cat > /dev/null"
        self._place = place
        self._holder = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        self.mounted = self._holder.stdout.readline() == "mounted\n"
        self.prefix = ("nsenter", f"--target={self._holder.pid}", "--user", "--mount", "--preserve-credentials")

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a shell command inside, in the directory of the disk."""
        command = f"cd {self._place} && {command}"
        return subprocess.run([*self.prefix, "sh", "-c", command], capture_output=True, text=True, check=False, timeout=20)

    def fill(self) -> None:
        assert self.run("dd if=/dev/zero of=balloon bs=1k; echo x >> balloon").returncode != 0

    def free(self) -> None:
        assert self.run("rm balloon").returncode == 0

    def end(self) -> str:
        _, errors = self._holder.communicate("", timeout=10)
        return errors


@pytest.fixture
def disk(hames: Any, record_property: Callable[[str, object], None]) -> Iterator[TinyDisk]:
    for program in ("unshare", "nsenter"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
    place = hames.root / "disk"
    disk = TinyDisk(place)
    if not disk.mounted or disk.run("true").returncode != 0:
        pytest.skip(f"no tmpfs can be mounted: {disk.end().strip()}")
    record_property("tmpfs", "1 MB, by unshare -rm")
    print("on a tmpfs of 1 MB, by unshare -rm")
    hames.state = place / "state"
    yield disk
    disk.end()
    assert list(place.iterdir()) == []


class OnDisk:
    """The command line inside the namespace."""

    def __init__(self, hames: Any, disk: TinyDisk) -> None:
        self._hames, self._disk = hames, disk

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **more: getattr(self._hames, name)(*arguments, prefix=self._disk.prefix, **more)

    def events(self, session: str) -> list[dict[str, Any]]:
        return list(self.json("sessions", "show", session)["events"])


@pytest.fixture
def inside(hames: Any, disk: TinyDisk) -> OnDisk:
    return OnDisk(hames, disk)


def filling(hames: Any, more: str = "") -> str:
    """A model whose command fills the disk, so that what follows it cannot be recorded."""
    balloon = hames.state.parent / "balloon"
    command = f"dd if=/dev/zero of={balloon} bs=1k 2> /dev/null; echo x >> {balloon}; {more} true"
    call = {"name": "bash", "arguments": {"command": command, "timeout": 20}, "id": "the_call_of_this_test"}
    return str(hames.script({"text": "I fill it.", "calls": [call]}, {"text": "Done."}, {"text": "More."}))


def test_a_full_disk_ends_the_run_with_one_clear_error_and_1(inside: Any, hames: Any) -> None:
    done = inside.run("run", "x", "--mode", "full", "--model", filling(hames))
    assert done.returncode == 1
    check_one_clear_error(done.stderr)


def test_a_full_disk_loses_nothing_and_the_session_goes_on_when_there_is_space(
    inside: Any, hames: Any, disk: TinyDisk, of_type: Any
) -> None:
    found = inside.json("run", "x", "--mode", "full", "--model", filling(hames), status=1)
    assert found["detail"].startswith("STORAGE_FULL: ")
    before = inside.events(found["session"])
    assert [event["type"] for event in before][:5] == ["start", "turn", "message", "message", "call"]
    disk.free()
    again = inside.json("run", "go on", "--resume", found["session"])
    assert (again["status"], again["text"]) == ("completed", "Done.")
    after = inside.events(found["session"])
    assert after[: len(before)] == before
    (result,) = of_type(after, "tool-result")
    assert (result["call_id"], result["code"]) == ("the_call_of_this_test", "OUTCOME_UNKNOWN")


def test_a_disk_that_is_full_from_the_start_is_storage_full(inside: Any, disk: TinyDisk, hello: str) -> None:
    disk.fill()
    found = inside.json("run", "x", "--model", hello, status=1)
    assert "STORAGE_FULL" in json.dumps(found)
    disk.free()
    assert inside.json("run", "x", "--model", hello)["text"] == "Hello 1."


def test_a_full_disk_does_not_stop_a_command_with_a_long_output(inside: Any, hames: Any) -> None:
    model = filling(hames, "head -c 3000000 /dev/zero | tr '\\0' x;")
    child = hames.start("run", "x", "--model", model, prefix=inside._disk.prefix)
    _, errors = child.communicate(timeout=10)
    assert child.returncode == 1
    assert "STORAGE_FULL" in errors
    assert "TIMEOUT" not in errors


def test_looking_at_a_full_disk_works_or_says_that_it_is_full(inside: Any, disk: TinyDisk, hello: str) -> None:
    id = inside.json("run", "x", "--model", hello)["session"]
    disk.fill()
    done = inside.run("sessions", "show", id, "--json")
    found = json.loads(done.stdout)
    assert "events" in found or found["error"]["code"] == "STORAGE_FULL"


def test_a_session_on_a_full_disk_goes_on_when_there_is_space(inside: Any, disk: TinyDisk, hello: str) -> None:
    id = inside.json("run", "x", "--model", hello)["session"]
    disk.fill()
    found = inside.json("run", "go on", "--resume", id, status=1)
    disk.free()
    assert inside.json("run", "go on", "--resume", id)["text"] == "Hello 2."
    assert "STORAGE_FULL" in json.dumps(found)
