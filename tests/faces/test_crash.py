"""A process that dies, or is told to end, in the middle of a tool call."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

GO_ON = {"text": "I saw it."}


def sleeping(marker: Path, *, stubborn: bool = False) -> str:
    """A command that writes its process group to a file and sleeps; a stubborn one notes that it is told to end, and sleeps again."""
    trap = f"trap 'touch {marker}.told' TERM; " if stubborn else ""
    return f"{trap}echo $$ > {marker}.part; mv {marker}.part {marker}; sleep 60; sleep 60"


class Running:
    """A run that is in the middle of a tool call.

    :ivar group: the process group of its command.
    """

    def __init__(self, hames: Any, until: Any, *, stubborn: bool = False) -> None:
        self._hames = hames
        self.marker = hames.root / "marker"
        command = sleeping(self.marker, stubborn=stubborn)
        self.model = hames.script(
            {"text": "I start it.", "calls": [{"name": "bash", "arguments": {"command": command}, "id": "the_call_of_this_test"}]},
            GO_ON,
            {"text": "More."},
        )
        self.process = hames.start("run", "start it", "--model", self.model, "--mode", "full")
        until(lambda: self.marker.exists() or self.process.poll() is not None, "the command runs")
        assert self.process.poll() is None, self.process.stderr.read()
        self.group = int(self.marker.read_text())

    def living(self) -> bool:
        """Whether the command lives; what was killed and waits to be reaped by somebody else does not."""
        return bool(self._hames.processes()) and self._group_exists()

    def _group_exists(self) -> bool:
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return False
        return True

    def end(self) -> None:
        if self._group_exists():
            os.killpg(self.group, signal.SIGKILL)


@pytest.fixture
def running(hames: Any, until: Any) -> Iterator[Running]:
    found = Running(hames, until)
    yield found
    found.end()


@pytest.fixture
def killed(hames: Any, running: Running) -> Running:
    """One that was killed, from another process."""
    subprocess.run(["kill", "-KILL", str(running.process.pid)], check=True)
    running.process.communicate(timeout=10)
    assert running.process.returncode == -signal.SIGKILL
    return running


def test_after_a_kill_the_log_is_whole_and_holds_the_call(hames: Any, killed: Running, of_type: Any) -> None:
    (session,) = hames.json("sessions", "list")["sessions"]
    assert (session["state"], session["title"]) == ("interrupted", "start it")
    events = hames.json("sessions", "show", session["id"])["events"]
    assert [event["type"] for event in events] == ["start", "turn", "message", "message", "call"]
    assert not any(event.get("damaged") for event in events)
    (call,) = of_type(events, "tool-call")
    assert (call["id"], call["name"]) == ("the_call_of_this_test", "bash")
    assert "sleep 60" in json.loads(call["arguments"])["command"]
    shown = hames.run("sessions", "show", session["id"])
    assert shown.returncode == 0
    assert "model calls bash" in shown.stdout
    assert shown.stdout.count("\n") == len(events) + 1  # an answer of two blocks
    assert killed.living()  # the command itself goes on: its outcome is not known


def test_after_a_kill_the_session_goes_on_and_the_call_is_closed_once(hames: Any, killed: Running, of_type: Any) -> None:
    id = hames.session()["id"]
    before = hames.events(id)
    for prompt, answer in (("go on", "I saw it."), ("and then?", "More.")):
        found = hames.json("run", prompt, "--resume", id, "--model", killed.model)
        assert (found["session"], found["status"], found["text"]) == (id, "completed", answer)
        events = hames.events(id)
        assert events[: len(before)] == before
        (result,) = of_type(events, "tool-result")
        assert (result["call_id"], result["is_error"], result["code"]) == ("the_call_of_this_test", True, "OUTCOME_UNKNOWN")
        assert "outcome unknown" in result["content"][0]["text"]
    kinds = [event["type"] for event in events]
    assert kinds[len(before) :] == ["message", "end", *["turn", "message", "message", "end"] * 2]
    assert events[len(before) + 1]["data"] == {"reason": "interrupted"}
    assert hames.session()["state"] == "idle"


def test_the_model_is_told_that_the_outcome_is_unknown(hames: Any, killed: Running) -> None:
    id = hames.session()["id"]
    assert hames.run("run", "go on", "--resume", id).returncode == 0
    lines = [json.loads(line) for line in hames.run("sessions", "export", id, "--requests").stdout.splitlines()]
    bodies = [json.loads(line["body"]) for line in lines if "request" in line]
    assert len(bodies) == 2
    roles = [message["role"] for message in bodies[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    assert "outcome unknown" in bodies[1]["messages"][3]["content"]


def test_salvage_after_a_kill_keeps_what_stands_in_the_log_file_only(hames: Any, killed: Running) -> None:
    assert (hames.state / "sessions.db-wal").stat().st_size > 0
    shutil.copytree(hames.state, hames.root / "copy")
    events = hames.events(hames.session()["id"])
    # Looking has put the log file into the database; salvage the state as the kill left it.
    shutil.rmtree(hames.state)
    (hames.root / "copy").rename(hames.state)
    found = hames.json("doctor", "--salvage")
    assert found["tables"]["events"] == {"kept": len(events), "damaged": 0}
    assert hames.events(hames.session()["id"]) == events
    assert killed.living()


@pytest.mark.parametrize("calls", [1, 3, 6])
def test_whenever_it_is_killed_what_was_confirmed_is_there_and_every_call_is_answered_once(hames: Any, calls: int, of_type: Any) -> None:
    made = [{"name": "bash", "arguments": {"command": f"echo {n}"}, "id": f"call_number_{n}"} for n in range(8)]
    model = hames.script(*({"text": f"Answer {n}.", "calls": [made[n]]} for n in range(8)), {"text": "Done."})
    child = hames.start("run", "x", "--model", model)
    begun = 0
    while begun < calls:
        begun += child.stderr.readline().startswith("> bash")
    child.kill()
    _, rest = child.communicate(timeout=10)
    begun += sum(line.startswith("> bash") for line in rest.splitlines())
    id = hames.session()["id"]
    before = hames.events(id)
    # A tool begins when its call is on disk.
    assert [event["data"]["id"] for event in before if event["type"] == "call"][:begun] == [f"call_number_{n}" for n in range(begun)]
    found = hames.json("run", "go on", "--resume", id)
    assert (found["status"], found["text"]) == ("completed", "Done.")
    after = hames.events(id)
    assert after[: len(before)] == before
    assert [block["call_id"] for block in of_type(after, "tool-result")] == [f"call_number_{n}" for n in range(8)]


def test_a_kill_leaves_no_file_of_a_dead_owner_for_ever(hames: Any, killed: Running) -> None:
    assert len(list((hames.state / "owners").iterdir())) == 1
    assert hames.run("run", "go on", "--resume", hames.session()["id"]).returncode == 0
    assert list((hames.state / "owners").iterdir()) == []


def test_a_session_in_use_is_rejected_in_one_line(hames: Any, running: Running) -> None:
    session = hames.session()
    assert session["state"] == "running"
    done = hames.run("run", "me too", "--resume", session["id"], "--model", running.model)
    assert (done.returncode, done.stdout) == (4, "")
    said, remedy = done.stderr.splitlines()
    assert said.startswith("hames: ")
    assert str(running.process.pid) in said
    assert remedy.strip()
    found = hames.json("run", "me too", "--resume", session["id"], status=4)
    assert found["error"]["code"] == "SESSION_BUSY"
    assert [event["type"] for event in hames.events(session["id"])] == ["start", "turn", "message", "message", "call"]


def test_salvage_is_rejected_while_a_run_lives(hames: Any, running: Running) -> None:
    found = hames.json("doctor", "--salvage", status=4)
    assert found["error"]["code"] == "BUSY"
    assert not list(hames.state.glob("*.damaged*"))
    assert running.living()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_aborts_the_call_and_leaves_the_session_idle(hames: Any, running: Running, of_type: Any, number: int) -> None:
    running.process.send_signal(number)
    _, errors = running.process.communicate(timeout=20)
    assert running.process.returncode == 130
    assert "Traceback" not in errors
    assert "aborted" in errors
    assert not running.living()
    session = hames.session()
    assert session["state"] == "idle"
    events = hames.events(session["id"])
    assert [event["type"] for event in events] == ["start", "turn", "message", "message", "call", "message", "end"]
    assert events[-1]["data"] == {"reason": "aborted"}
    (result,) = of_type(events, "tool-result")
    assert (result["call_id"], result["code"]) == ("the_call_of_this_test", "ABORTED")
    found = hames.json("run", "go on", "--resume", session["id"])
    assert (found["status"], found["text"]) == ("completed", "I saw it.")
    assert len(of_type(hames.events(session["id"]), "tool-result")) == 1


def test_an_interrupted_run_says_so_in_json(hames: Any, until: Any) -> None:
    marker = hames.root / "marker"
    model = hames.script(
        {"text": "I start it.", "calls": [{"name": "bash", "arguments": {"command": sleeping(marker)}}], "usage": {"input": 7}}
    )
    child = hames.start("run", "x", "--model", model, "--mode", "full", "--json")
    until(marker.exists, "the command runs")
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "Traceback" not in errors
    found = json.loads(output)
    assert (found["status"], found["detail"]) == ("aborted", "user")
    assert (found["session"], found["model"]) == (hames.session()["id"], model)
    # What had been answered and spent by then is part of the outcome.
    assert (found.get("text"), found["steps"], found["usage"]) == ("I start it.", 1, {"input": 7})


def test_a_command_that_does_not_heed_the_end_is_killed(hames: Any, until: Any) -> None:
    running = Running(hames, until, stubborn=True)
    running.process.send_signal(signal.SIGINT)
    running.process.communicate(timeout=20)
    assert running.process.returncode == 130
    assert not running.living()
    assert hames.session()["state"] == "idle"


def test_a_second_interrupt_ends_at_once_without_a_traceback_and_leaves_no_process(hames: Any, until: Any, of_type: Any) -> None:
    running = Running(hames, until, stubborn=True)
    running.process.send_signal(signal.SIGINT)
    until(running.marker.with_name("marker.told").exists, "the command is told to end")
    running.process.send_signal(signal.SIGINT)
    _, errors = running.process.communicate(timeout=20)
    left = running.living()
    running.end()
    assert (left, "Traceback" in errors, running.process.returncode) == (False, False, 130)
    found = hames.json("run", "go on", "--resume", hames.session()["id"])
    assert found["text"] == "I saw it."
    assert len(of_type(hames.events(found["session"]), "tool-result")) == 1
