"""State directories as earlier commits wrote them: all in them can still be read and gone on with, and nothing is lost.

The files below ``earlier`` are dumps of what the code of these commits wrote: ``before-tasks`` knows no tasks, ``first-tasks`` holds
tasks that were settled, interrupted, left by a dead process, and damaged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from hames.content.clock import Clock
from hames.delegation.ledger import Ledger
from hames.delegation.outcome import UsageItem
from hames.delegation.recovery import recover
from hames.delegation.view import seen
from hames.faces.cli.main import run
from hames.sessions import Sessions
from hames.store import Store

DUMPS = Path(__file__).with_name("earlier")
NAMES = ("before-tasks", "first-tasks")
TALK, SECOND = "1m8rn24zbdps4", "1m8rn251c2w3v"

Run = Callable[..., tuple[int, str, str]]


def load(name: str, state: Path) -> None:
    """Make the databases of a dump."""
    state.mkdir(exist_ok=True)
    for database in ("sessions", "control"):
        connection = apsw.Connection(str(state / f"{database}.db"))
        connection.execute((DUMPS / f"{name}-{database}.sql").read_text())
        connection.close()


def columns(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """For each table its columns: name, type, whether it may be empty, default, place in the key."""
    connection = apsw.Connection(str(path))
    try:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return {table: [row[1:] for row in connection.execute(f"PRAGMA table_info({table})")] for table in tables}
    finally:
        connection.close()


def rows(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Everything that a database holds, by table."""
    connection = apsw.Connection(str(path))
    try:
        return {
            table: sorted(connection.execute(f"SELECT {', '.join(each[0] for each in own)} FROM {table}"), key=repr)
            for table, own in columns(path).items()
        }
    finally:
        connection.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def hames(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line in this process."""
    monkeypatch.setenv("HAMES_STATE", str(state))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "home" / name.lower()))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hames", *arguments])
        capsys.readouterr()
        status = run()
        return status, *capsys.readouterr()

    return command


def found(hames: Run, *arguments: str) -> Any:
    status, output, errors = hames(*arguments, "--json")
    assert status == 0, (output, errors)
    return json.loads(output)


@pytest.mark.parametrize("name", NAMES)
async def test_opening_an_earlier_store_only_adds_to_its_tables_and_changes_no_row(state: Path, name: str) -> None:
    load(name, state)
    files = [state / "sessions.db", state / "control.db"]
    before = [columns(file) for file in files]
    held = [rows(file) for file in files]
    store = Store(state)
    assert store.control.query("SELECT value FROM meta WHERE key = 'schema_version'") == [("1",)]
    await store.close()
    for file, old, kept in zip(files, before, held, strict=True):
        new = columns(file)
        assert set(old) <= set(new)
        for table, own in old.items():
            assert new[table][: len(own)] == own, table
            for name_, _, not_null, default, _ in new[table][len(own) :]:
                assert not not_null or default is not None, (table, name_)
        now = rows(file)
        width = {table: len(own) for table, own in old.items()}
        assert {table: sorted((row[: width[table]] for row in now[table]), key=repr) for table in kept} == kept
    assert {"tasks", "states", "attempts", "outcomes", "receipts", "stops", "threads"} <= set(columns(files[1]))


async def test_the_tables_of_an_earlier_store_are_those_of_a_fresh_one_after_it_was_opened(tmp_path: Path, state: Path) -> None:
    load("first-tasks", state)
    for place in (state, tmp_path / "fresh"):
        store = Store(place)
        assert not store.control.closed
        await store.close()
    for file in ("sessions.db", "control.db"):
        old, fresh = columns(state / file), columns(tmp_path / "fresh" / file)
        assert {table: sorted(own, key=repr) for table, own in old.items()} == {
            table: sorted(own, key=repr) for table, own in fresh.items()
        }


def test_the_sessions_of_a_store_without_tasks_are_listed_and_shown(hames: Run, state: Path) -> None:
    load("before-tasks", state)
    listed = found(hames, "sessions", "list")["sessions"]
    assert [(each["id"], each["title"], each["state"]) for each in listed] == [
        (SECOND, "A second session.", "idle"),
        (TALK, "Say what echo says.", "idle"),
    ]
    events = found(hames, "sessions", "show", TALK)["events"]
    assert [event["type"] for event in events] == ["start", "turn", "message", "message", "call", "message", "message", "end"]
    assert not any(event.get("damaged") for event in events)
    status, output, _ = hames("sessions", "show", TALK)
    assert status == 0
    assert "It says one." in output


@pytest.mark.parametrize(("name", "count"), [("before-tasks", 2), ("first-tasks", 2)])
async def test_every_request_of_an_earlier_store_can_be_rebuilt_byte_for_byte(state: Path, name: str, count: int) -> None:
    load(name, state)
    store = Store(state)
    sessions = Sessions(store, Clock())
    listed = sessions.list()
    assert len(listed) == count
    for each in listed:
        rebuilt = list(sessions.rebuild(each.id))  # a body that does not match its hash is an error
        assert rebuilt
        for _, request in rebuilt:
            assert json.loads(request.body())["messages"][0]["role"] == "system"
    await store.close()


def test_a_session_of_a_store_without_tasks_goes_on(hames: Run, state: Path, tmp_path: Path) -> None:
    load("before-tasks", state)
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"text": "0"}, {"text": "1"}, {"text": "It goes on."}]))
    result = found(hames, "run", "go on", "--resume", TALK, "--model", f"scripted:{script}")
    assert (result["session"], result["status"], result["text"]) == (TALK, "completed", "It goes on.")
    events = found(hames, "sessions", "show", TALK)["events"]
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert not any(event.get("damaged") for event in events)
    assert events[-1]["data"] == {"reason": "completed"}


def test_a_store_without_tasks_lists_none_and_takes_some(hames: Run, state: Path, tmp_path: Path) -> None:
    load("before-tasks", state)
    assert found(hames, "task", "list") == {"tasks": [], "after": ""}
    assert hames("task", "list")[:2] == (0, "")
    child, lead = tmp_path / "child.json", tmp_path / "lead.json"
    child.write_text(json.dumps([{"text": "Dug."}]))
    call = {"name": "delegate", "arguments": {"description": "dig", "prompt": "dig", "model": f"scripted:{child}"}}
    lead.write_text(json.dumps([{"text": "0"}, {"text": "1"}, {"calls": [call]}, {"text": "Done."}]))
    assert found(hames, "run", "go on", "--resume", TALK, "--model", f"scripted:{lead}")["text"] == "Done."
    (task,) = found(hames, "task", "list")["tasks"]
    assert (task["status"], task["session"], task["outcome"]["text"]) == ("completed", TALK, "Dug.")


STATUS = {
    "t9blob": "unknown",  # its outcome is a blob that is not there
    "t8receipt": "completed",
    "t7attempt": "completed",
    "t6outcome": "unknown",
    "t5state": "completed",
    "t4task": "completed",
    "t3left": "interrupted",
    "t2interrupted": "interrupted",
    "t1m8rn25may8w2": "completed",
    "t1child": "aborted",
    "t0whole": "completed",
}
DAMAGED = {
    "t9blob": ["outcome"],
    "t8receipt": ["receipt 1"],
    "t7attempt": ["attempt 1"],
    "t6outcome": ["outcome"],
    "t5state": ["state"],
    "t4task": ["task"],
}


def test_the_tasks_of_the_first_store_with_tasks_are_listed_and_damage_hides_none(hames: Run, state: Path) -> None:
    load("first-tasks", state)
    listed = found(hames, "task", "list")["tasks"]
    assert {each["id"]: each["status"] for each in listed} == STATUS
    assert [each["id"] for each in listed] == list(STATUS)
    shown = {id: found(hames, "task", "show", id) for id in STATUS}
    assert {id: each["damaged"] for id, each in shown.items() if "damaged" in each} == DAMAGED
    assert {id: each["status"] for id, each in shown.items()} == STATUS
    status, output, _ = hames("task", "list")
    assert status == 0
    assert len(output.splitlines()) == len(STATUS)
    for id in STATUS:
        status, output, errors = hames("task", "show", id)
        assert (status, errors) == (0, "")
        assert output.startswith(f"task       {id}")
    assert hames("task", "tree")[0] == 0


async def test_every_field_of_a_task_of_the_first_store_is_read(state: Path) -> None:
    load("first-tasks", state)
    store = Store(state)
    ledger = Ledger(store, Clock())
    record = ledger.get("t0whole")
    assert record is not None
    spec, outcome = record.spec, record.outcome
    assert outcome is not None
    assert (spec.prompt, spec.title, spec.runner) == ("Do the work of t0whole.", "work of t0whole", "spawn")
    assert (spec.schema, spec.tools, spec.permission, spec.labels) == ({"type": "object"}, ("read", "bash"), "read-only", ("old", "ünï"))
    assert (spec.budget.steps, spec.budget.idle, spec.inputs) == (4, 30.0, {"a": "0" * 64})
    assert (outcome.status, outcome.text, outcome.value, outcome.schema_valid) == ("completed", "All of it.", {"n": 5}, True)
    assert (outcome.cost, outcome.tries, outcome.attempts, outcome.steps) == (0.25, 2, 2, 3)
    assert outcome.assurance == {"tools": "enforced"}
    assert [(item.model, item.usage.input, item.usage.output) for item in outcome.usage] == [("m", 5, 6)]
    assert isinstance(outcome.usage[0], UsageItem)
    assert [(each.n, each.exit, each.native) for each in record.attempts] == [(1, "LAUNCH_FAILED", ""), (2, "completed", "1m0000000000a")]
    assert [(each.kind, each.data) for each in record.receipts] == [("delivered", {"session": "x"})]
    assert (record.depth, record.root, record.damaged) == (1, "t0whole", ())
    assert [each.id for each in ledger.children("t0whole")] == ["t1child"]
    assert ledger.stop_of("t1child") == ("user", 1790000003.25, 1790000003.75)
    await store.close()


async def test_a_task_that_an_earlier_process_left_is_settled_and_no_other_is_touched(state: Path) -> None:
    load("first-tasks", state)
    before = rows(state / "control.db")
    store = Store(state)
    ledger = Ledger(store, Clock())
    contained: list[tuple[str, BaseException]] = []
    assert [each.id for each in ledger.orphans() if not each.damaged] == ["t3left"]
    await recover(ledger, Sessions(store, Clock()), lambda what, error: contained.append((what, error)))
    record = ledger.get("t3left")
    assert record is not None and record.outcome is not None
    assert (record.outcome.status, record.outcome.code, record.epoch, record.damaged) == ("interrupted", "HOST_DIED", 2, ())
    assert seen(record, store.owner.alive).status == "interrupted"
    await store.close()
    after = rows(state / "control.db")
    assert contained == []
    assert len(after["outcomes"]) == len(before["outcomes"]) + 1
    for table in before:
        assert [row for row in before[table] if row[0] != "t3left"] == [row for row in after[table] if row[0] != "t3left"], table


def test_a_lead_of_the_first_store_goes_on_and_is_not_told_again_what_it_knows(hames: Run, state: Path, tmp_path: Path) -> None:
    load("first-tasks", state)
    (task,) = (each for each in found(hames, "task", "list")["tasks"] if each["session"])
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"text": "0"}, {"text": "1"}, {"text": "It goes on."}]))
    result = found(hames, "run", "go on", "--resume", task["session"], "--model", f"scripted:{script}")
    assert (result["status"], result["text"]) == ("completed", "It goes on.")
    told = [
        event
        for event in found(hames, "sessions", "show", task["session"])["events"]
        if event["type"] == "message" and event["data"].get("source") == "harness"
    ]
    assert told == []
    script.write_text(json.dumps([{"text": "0"}, {"text": "1"}, {"text": "I dig on."}]))
    result = found(hames, "run", "go on", "--resume", task["outcome"]["native"], "--model", f"scripted:{script}")
    assert (result["status"], result["text"]) == ("completed", "I dig on.")
