"""A process that dies in the middle of delegated work: what is seen of its tasks, who settles them, and what sessions are told later."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import apsw
import pytest

from hames.content.clock import Clock
from hames.delegation.ledger import Ledger
from hames.delegation.records import TaskRecord
from hames.sessions import Sessions
from hames.store import Store

LIMIT = 20.0  # seconds
TABLES = ("tasks", "states", "attempts", "outcomes", "receipts", "stops", "threads")

DYING = """
    # The command line, in a process that is killed at one moment.
    import os, signal, sys

    from hames.delegation.ledger import Ledger
    from hames.faces.cli.main import main

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    class Last:
        def __init__(self, ticket):
            self.ticket = ticket

        def __await__(self):
            yield from self.ticket.__await__()
            die()

    moment, method = os.environ["DIES"].split()
    original = getattr(Ledger, method)

    def instead(*given, **named):
        return die() if moment == "before" else Last(original(*given, **named))

    setattr(Ledger, method, instead)
    main()
    """


class Place:
    """A state directory, and the command line over it in processes of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.work = root / "work"
        self.work.mkdir()
        (root / "home").mkdir()
        (root / "dying.py").write_text(dedent(DYING))
        self.mark = uuid.uuid4().hex
        self.environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(root / "home"),
            **{f"XDG_{name}_HOME": str(root / "home" / name.lower()) for name in ("CONFIG", "DATA", "STATE", "CACHE")},
            "HAMES_STATE": str(self.state),
            "RECOVERY_TEST": self.mark,
        }
        self.started: list[subprocess.Popen[str]] = []

    def script(self, name: str, *answers: dict[str, Any]) -> str:
        path = self.root / f"{name}.json"
        path.write_text(json.dumps(answers))
        return f"scripted:{path}"

    def start(self, *arguments: str, dies: str = "") -> subprocess.Popen[str]:
        """Start ``hames``.

        :param dies: a method of the ledger, and whether the process is killed before it or when it has been done.
        """
        command = [sys.executable, self.root / "dying.py"] if dies else [Path(sys.executable).with_name("hames")]
        child = subprocess.Popen(
            [*map(str, command), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.work,
            env={**self.environment, "DIES": dies},
        )
        self.started.append(child)
        return child

    def run(self, *arguments: str, status: int = 0, dies: str = "") -> str:
        child = self.start(*arguments, dies=dies)
        output, errors = child.communicate(timeout=LIMIT)
        assert "Traceback" not in errors, errors
        assert child.returncode == status, (output, errors)
        return output

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", status=status))

    def look(self, body: Callable[[Ledger, Sessions], Any]) -> Any:
        async def read() -> Any:
            store = Store(self.state)
            try:
                return body(Ledger(store, Clock()), Sessions(store, Clock()))
            finally:
                await store.close()

        return asyncio.run(read())

    def tasks(self) -> list[TaskRecord]:
        """All tasks, the oldest first, whole."""
        return self.look(lambda ledger, _: [ledger.get(each.id) for each in reversed(ledger.list(limit=1000))])

    def events(self, session: str) -> list[tuple[str, dict[str, Any]]]:
        def body(_: Ledger, sessions: Sessions) -> Any:
            return [(event.type, event.data) for event in sessions.read(session)]

        return self.look(body)

    def told(self, session: str) -> list[str]:
        """What the harness has said to a session."""
        said = [data for type, data in self.events(session) if type == "message" and data["source"] == "harness" and data["role"] == "user"]
        return ["".join(block.get("text", "") for block in data["blocks"]) for data in said]

    def results(self, session: str) -> list[dict[str, Any]]:
        """The results of tools in a log."""
        messages = [data for type, data in self.events(session) if type == "message"]
        return [block for data in messages for block in data["blocks"] if block["type"] == "tool-result"]

    def last_request(self, session: str) -> str:
        return self.look(lambda _, sessions: [request.body().decode() for _, request in sessions.rebuild(session)][-1])

    def processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"RECOVERY_TEST={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # it has ended, or is not ours
                continue
        return found

    def end(self) -> None:
        for child in self.started:
            if child.poll() is None:
                child.kill()
            child.communicate()
        deadline = time.monotonic() + 5
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.01)


def content(state: Path) -> dict[str, list[Any]]:
    """Every row that tasks have in a state directory."""
    connection = apsw.Connection(str(state / "control.db"))
    found = {table: list(connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2")) for table in TABLES}
    connection.close()
    return found


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within {LIMIT:g} s: {what}")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.end()
    assert place.processes() == []


def delegating(prompt: str, model: str, **more: Any) -> dict[str, Any]:
    return {"name": "delegate", "arguments": {"description": prompt, "prompt": prompt, "model": model, **more}, "id": f"call_{prompt}"}


GO_ON = [{"text": f"I go on {n}."} for n in range(6)]


def sleeping(place: Place, name: str) -> str:
    """A command that says that it runs, and sleeps."""
    return f"echo run >> {place.work}/{name}.runs; sleep 61.5"


def waiting_child(place: Place, name: str = "child") -> str:
    """A child that says something and then waits in a command."""
    call = {"name": "bash", "arguments": {"command": sleeping(place, name), "timeout": 100}}
    return place.script(name, {"text": f"Words of {name}.", "calls": [call]}, {"text": f"End of {name}."}, {"text": "More."}, *GO_ON)


def runs(place: Place, name: str = "child") -> int:
    path = place.work / f"{name}.runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def lead(place: Place, *calls: dict[str, Any]) -> str:
    return place.script("lead", {"text": "I give it away.", "calls": list(calls)}, *GO_ON)


def killed_while_children_run(place: Place, *names: str, **more: Any) -> tuple[str, list[TaskRecord]]:
    """The session of a lead that was killed while its children wait in a command, and their tasks."""
    model = lead(place, *(delegating(name, waiting_child(place, name), **more) for name in names))
    child = place.start("run", "begin", "--model", model, "--mode", "full")
    until(lambda: all(runs(place, name) for name in names) or child.poll() is not None, "the children run")
    assert child.poll() is None, child.stderr.read() if child.stderr else ""
    until(lambda: all(each.attempts and each.attempts[0].native for each in place.tasks()), "the names of their sessions are on disk")
    child.kill()
    child.communicate(timeout=LIMIT)
    tasks = [each for each in place.tasks() if each.spec.prompt in names]
    assert len(tasks) == len(names)
    return tasks[0].session, tasks


def seen_without_writing(place: Place, statuses: dict[str, str]) -> None:
    """What every command that looks says of tasks; none of them writes anything."""
    before = content(place.state)
    assert {each["id"]: each["status"] for each in place.json("task", "list")["tasks"]} == statuses
    assert [each["id"] for each in place.json("task", "list", "--live")["tasks"]] == []
    for id, status in statuses.items():
        shown = place.json("task", "show", id)
        assert (shown["status"], "running" in shown["liveness"]) == (status, False)
        assert status in place.run("task", "show", id)
    assert place.json("task", "tree")["tasks"]
    assert content(place.state) == before


MOMENTS = {
    "before attempt": ("interrupted", "HOST_DIED", 0, ""),  # its intent is on disk, and nothing else
    "after update": ("interrupted", "HOST_DIED", 1, ""),  # the launch is on disk, and has not happened
    "before settle": ("interrupted", "HOST_DIED", 1, "All is dug."),  # it has ended, and nobody knows how
    "after settle": ("completed", "", 1, "All is dug."),  # it has ended, and whoever asked has not heard of it
}


@pytest.mark.parametrize("moment", list(MOMENTS))
def test_whenever_it_dies_the_task_is_settled_once_and_told_once(place: Place, moment: str) -> None:
    status, code, attempts, text = MOMENTS[moment]
    counting = {"name": "bash", "arguments": {"command": f"echo run >> {place.work}/child.runs"}}
    quick = place.script("child", {"text": "I dig.", "calls": [counting]}, {"text": "All is dug."})
    place.run("run", "begin", "--model", lead(place, delegating("dig", quick)), "--mode", "full", status=-signal.SIGKILL, dies=moment)
    (record,) = place.tasks()
    ran = runs(place)
    assert (record.damaged, record.spec.prompt, ran) == ((), "dig", 1 if "settle" in moment else 0)
    seen_without_writing(place, {record.id: status})
    session, native = record.session, record.attempts[-1].native if record.attempts else ""
    before = place.events(native) if native else []
    first = place.json("run", "go on", "--resume", session)
    assert (first["status"], first["text"]) == ("completed", "I go on 0.")
    (settled,) = place.tasks()
    assert settled.outcome is not None
    outcome = settled.outcome
    assert (outcome.status, outcome.code, outcome.attempts, outcome.text) == (status, code, attempts, text)
    assert (settled.state, settled.publication, settled.damaged) == ("settled", "committed", ())
    (told,) = place.told(session)
    assert record.id in told
    assert status in told
    assert text in told
    assert record.id in place.last_request(session)  # the model has been told, and not the log alone
    for n in (1, 2):
        assert place.json("run", "and then?", "--resume", session)["text"] == f"I go on {n}."
    assert place.told(session) == [told]
    assert place.tasks() == [settled]
    # Nothing was done again by itself.
    assert runs(place) == ran
    assert (place.events(native) if native else []) == before


def test_when_it_dies_while_children_run_each_is_interrupted_and_told_once(place: Place) -> None:
    session, tasks = killed_while_children_run(place, "left", "right")
    seen_without_writing(place, {each.id: "interrupted" for each in tasks})
    assert place.json("run", "go on", "--resume", session)["status"] == "completed"
    told = place.told(session)
    assert [each.id for each in tasks] == [next(task.id for task in tasks if task.id in text) for text in told]
    for task, text in zip(tasks, told, strict=True):
        record = next(each for each in place.tasks() if each.id == task.id)
        assert record.outcome is not None
        outcome = record.outcome
        assert (outcome.status, outcome.code, outcome.fault) == ("interrupted", "HOST_DIED", "infrastructure")
        assert (outcome.partial, outcome.text) == (True, f"Words of {task.spec.prompt}.")
        assert outcome.native == task.attempts[0].native
        assert outcome.native in outcome.proceed
        assert outcome.native in text
        assert outcome.text in text
        assert record.epoch == 2
    place.run("run", "and then?", "--resume", session)
    assert place.told(session) == told
    assert (runs(place, "left"), runs(place, "right")) == (1, 1)
    # The calls in the lead's own log are closed as well, each once.
    closed = place.results(session)
    assert sorted(block["call_id"] for block in closed) == ["call_left", "call_right"]
    assert {block["code"] for block in closed} == {"OUTCOME_UNKNOWN"}


def test_a_value_that_was_settled_and_not_heard_of_is_told(place: Place) -> None:
    schema = {"type": "object", "properties": {"depth": {"type": "integer"}}, "required": ["depth"]}
    child = place.script("child", {"text": "Here it is.", "calls": [{"name": "structured_output", "arguments": {"depth": 73519}}]})
    model = lead(place, delegating("measure", child, output_schema=schema))
    place.run("run", "begin", "--model", model, "--mode", "full", status=-signal.SIGKILL, dies="after settle")
    (record,) = place.tasks()
    assert record.outcome is not None
    assert (record.outcome.status, record.outcome.value) == ("completed", {"depth": 73519})
    place.run("run", "go on", "--resume", record.session)
    (told,) = place.told(record.session)
    assert "73519" in told


def test_a_long_result_that_was_not_heard_of_is_told_by_its_head_and_a_file(place: Place) -> None:
    child = place.script("child", {"text": "word " * 20_000})
    model = lead(place, delegating("write", child))
    place.run("run", "begin", "--model", model, "--mode", "full", status=-signal.SIGKILL, dies="after settle")
    (record,) = place.tasks()
    place.run("run", "go on", "--resume", record.session)
    (told,) = place.told(record.session)
    assert len(told) < 14_000
    (receipt,) = (each for each in place.tasks()[0].receipts if each.kind == "delivered")
    assert receipt.data["path"] in told
    assert len(Path(receipt.data["path"]).read_text().split()) == 20_000


def test_an_outcome_that_stands_in_the_log_already_is_not_told_again(place: Place) -> None:
    child = place.script("child", {"text": "All is dug."})
    model = lead(place, delegating("dig", child))
    # The result of the call is on disk; that it was delivered is not.
    place.run("run", "begin", "--model", model, "--mode", "full", status=-signal.SIGKILL, dies="before receive")
    (record,) = place.tasks()
    results = place.results(record.session)
    assert [block["content"][0]["text"] for block in results] == ["All is dug."]
    assert record.receipts == ()
    place.run("run", "go on", "--resume", record.session)
    assert place.told(record.session) == []


def test_a_background_task_that_ended_unheard_of_is_told_once(place: Place) -> None:
    quick = place.script("quick", {"text": "All is dug."})
    busy = {"name": "bash", "arguments": {"command": sleeping(place, "lead"), "timeout": 100}}
    model = place.script(
        "lead", {"text": "I give it away.", "calls": [delegating("dig", quick, run_in_background=True)]}, {"calls": [busy]}, *GO_ON
    )
    child = place.start("run", "begin", "--model", model, "--mode", "full")
    until(lambda: runs(place, "lead") or child.poll() is not None, "the lead waits in a command")
    until(lambda: place.tasks()[0].outcome, "the task is settled")
    child.kill()
    child.communicate(timeout=LIMIT)
    (record,) = place.tasks()
    seen_without_writing(place, {record.id: "completed"})
    for _ in range(2):
        place.run("run", "go on", "--resume", record.session)
        assert place.last_request(record.session).count("All is dug.") == 1
    assert runs(place, "lead") == 1


def test_a_task_that_was_heard_of_is_not_told_at_resume(place: Place) -> None:
    quick = place.script("quick", {"text": "All is dug."})
    session = place.json("run", "begin", "--model", lead(place, delegating("dig", quick)), "--mode", "full")["session"]
    place.run("run", "go on", "--resume", session)
    assert place.told(session) == []
    assert [[each.kind for each in record.receipts] for record in place.tasks()] == [["delivered"]]


def test_two_hosts_that_recover_at_once_settle_each_task_once(place: Place) -> None:
    first, one = killed_while_children_run(place, "a", "b")
    second, two = killed_while_children_run(place, "c", "d")
    assert first != second
    for _ in range(2):  # whoever comes while the other one settles a task is told of it the next time
        resumed = [place.start("run", "go on", "--resume", session) for session in (first, second)]
        for child in resumed:
            _, errors = child.communicate(timeout=LIMIT)
            assert (child.returncode, "Traceback" in errors) == (0, False), errors
    records = {each.id: each for each in place.tasks()}
    for session, tasks in ((first, one), (second, two)):
        told = place.told(session)
        assert sorted(task.id for task in tasks for text in told if task.id in text) == sorted(task.id for task in tasks)
        for task in tasks:
            record = records[task.id]
            assert record.outcome is not None
            assert (record.outcome.code, record.epoch, record.damaged) == ("HOST_DIED", 2, ())
            assert [each.kind for each in record.receipts] == ["delivered"]
    assert len(content(place.state)["outcomes"]) == 4


def test_a_host_that_dies_while_it_takes_over_leaves_the_task_to_the_next(place: Place) -> None:
    session, (task,) = killed_while_children_run(place, "child")
    place.run("run", "go on", "--resume", session, status=-signal.SIGKILL, dies="after take_over")
    (record,) = place.tasks()
    assert (record.outcome, record.epoch) == (None, 2)
    seen_without_writing(place, {task.id: "interrupted"})
    place.run("run", "go on", "--resume", session)
    (record,) = place.tasks()
    assert record.outcome is not None
    assert (record.outcome.code, record.epoch) == ("HOST_DIED", 3)
    assert [task.id in text for text in place.told(session)] == [True]


def test_a_child_that_is_resumed_keeps_depth_tools_and_permission(place: Place, request: pytest.FixtureRequest) -> None:
    # What lies below the directory for temporary files may be written, so this is elsewhere.
    outside = Path("/var") / f"outside-{place.mark}.txt"
    request.addfinalizer(lambda: outside.unlink(missing_ok=True))

    def attempts(n: int) -> list[dict[str, Any]]:
        tried = [("read", str(place.root / "child.json")), ("write", str(outside)), ("write", str(place.work / f"inside-{n}.txt"))]
        calls = [{"name": name, "arguments": {"path": path, **({"content": "x"} if name == "write" else {})}} for name, path in tried]
        made = [*calls, delegating("deeper", "scripted:/nowhere.json")]
        return [{**call, "id": f"round_{n}_{number}"} for number, call in enumerate(made)]

    bash = {"name": "bash", "arguments": {"command": sleeping(place, "child"), "timeout": 100}}
    model = place.script(
        "child",
        {"text": "I wait.", "calls": [bash]},
        {"calls": attempts(1)},
        {"text": "Tried."},
        {"calls": attempts(2)},
        {"text": "Again."},
    )
    calls = delegating("try", model, tools=["bash", "write", "delegate"], permission="workspace-write")
    process = place.start("run", "begin", "--model", lead(place, calls), "--mode", "full")
    until(lambda: runs(place) or process.poll() is not None, "the child runs")
    until(lambda: place.tasks()[0].attempts and place.tasks()[0].attempts[0].native, "its session has a name")
    process.kill()
    process.communicate(timeout=LIMIT)
    (record,) = place.tasks()
    native = record.attempts[0].native

    def kept() -> Any:
        return [data["value"] for type, data in place.events(native) if type == "state" and data["name"] == "delegation"]

    (own,) = kept()
    assert (own["task"], own["depth"], own["permission"]) == (record.id, 1, "workspace-write")
    for n, said in enumerate(("Tried.", "Again."), 1):
        result = place.json("run", "go on", "--resume", native, "--mode", "full")
        assert (result["status"], result["text"]) == ("completed", said)
        offered = [tool["function"]["name"] for tool in json.loads(place.last_request(native))["tools"]]
        assert sorted(offered) == ["bash", "write"]
        # A tool that it was not given, a file outside of its workspace, one inside, and a child of its own.
        assert [bool(block.get("is_error")) for block in place.results(native)[-4:]] == [True, True, False, True]
        assert not outside.exists()
        assert (place.work / f"inside-{n}.txt").read_text() == "x"
        assert kept() == [own]
        assert [each.id for each in place.tasks()] == [record.id], n


def test_resuming_the_child_does_not_settle_its_task_otherwise_and_the_lead_is_still_told(place: Place) -> None:
    session, (task,) = killed_while_children_run(place, "child")
    native = task.attempts[0].native
    assert place.json("run", "go on", "--resume", native)["text"] == "End of child."
    assert place.json("run", "go on", "--resume", session)["status"] == "completed"
    (record,) = place.tasks()
    assert record.outcome is not None
    assert record.outcome.status == "interrupted"
    assert [task.id in text for text in place.told(session)] == [True]
    assert place.told(native) == []


def test_a_session_that_gave_no_work_away_settles_nobodys_tasks_and_is_told_nothing(place: Place) -> None:
    _, (task,) = killed_while_children_run(place, "child")
    other = place.json("run", "hello", "--model", place.script("other", *GO_ON))["session"]
    before = content(place.state)
    place.run("run", "go on", "--resume", other)
    assert place.told(other) == []
    assert content(place.state) == before
    assert place.json("task", "show", task.id)["status"] == "interrupted"


def test_a_task_of_a_process_that_lives_is_not_taken_over(place: Place) -> None:
    model = lead(place, delegating("a", waiting_child(place, "a")))
    living = place.start("run", "begin", "--model", model, "--mode", "full")
    until(lambda: runs(place, "a") or living.poll() is not None, "the child runs")
    dead, (task,) = killed_while_children_run_beside(place, "b")
    place.run("run", "go on", "--resume", dead)
    states = {each.spec.prompt: each for each in place.tasks()}
    assert states["a"].outcome is None
    assert states["a"].epoch == 1
    assert states["b"].outcome is not None
    assert task.id == states["b"].id
    living.send_signal(signal.SIGINT)
    living.communicate(timeout=LIMIT)
    ended = {each.spec.prompt: each for each in place.tasks()}["a"]
    assert ended.outcome is not None
    assert (ended.outcome.status, ended.epoch) == ("aborted", 1)


def killed_while_children_run_beside(place: Place, name: str) -> tuple[str, list[TaskRecord]]:
    """As :func:`killed_while_children_run`, while another process goes on."""
    model = place.script("beside", {"text": "I give it away.", "calls": [delegating(name, waiting_child(place, name))]}, *GO_ON)
    child = place.start("run", "begin", "--model", model, "--mode", "full")
    until(lambda: runs(place, name) or child.poll() is not None, "the child runs")
    child.kill()
    child.communicate(timeout=LIMIT)
    tasks = [each for each in place.tasks() if each.spec.prompt == name]
    return tasks[0].session, tasks
