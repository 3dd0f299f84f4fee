"""``hames task``: looking at delegated work from another process, and ending it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from hames.budget import Limits
from hames.content.clock import Clock
from hames.delegation.failures import TABLE
from hames.delegation.ledger import Ledger
from hames.delegation.outcome import Outcome
from hames.delegation.records import Attempt
from hames.delegation.spec import TaskSpec
from hames.sessions import Sessions
from hames.store import Store

Body = Callable[[Ledger], Any]
NASTY = "red \x1b[31m csi \x9b31m right \u202e bell \x07 end"
BARE = ("\x1b", "\x9b", "\u202e", "\x07")


class Host:
    """A host of this process, whose tasks live as long as it does."""

    def __init__(self, state: Path) -> None:
        self.loop = asyncio.new_event_loop()

        async def opened() -> Store:
            return Store(state)

        self.store = self.loop.run_until_complete(opened())
        self.ledger = Ledger(self.store, Clock())

    def do(self, awaitable: Any) -> Any:
        async def body() -> Any:
            return await awaitable

        return self.loop.run_until_complete(body())

    def task(self, spec: TaskSpec | None = None, *, outcome: Outcome | None = None, id: str = "", **more: Any) -> str:
        id = id or self.ledger.new_id()
        place = {"parent": "", "root": "", "session": "", "call": "", "depth": 1, **more}

        async def body() -> None:
            await self.ledger.intend(id, spec or TaskSpec(f"do {id}", runner="spawn"), **place)
            await self.ledger.update(id, 1, "running")
            if outcome is not None:
                await self.ledger.settle(id, 1, outcome)

        self.do(body())
        return id

    def session(self, *lines: str) -> str:
        async def body() -> str:
            session = Sessions(self.store, Clock()).create("/")
            for line in lines:
                session.remember("line", line)
            await session.barrier()
            return session.id

        return self.do(body())

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.run_until_complete(self.store.close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


@pytest.fixture
def host(hames: Any) -> Iterator[Host]:
    host = Host(hames.state)
    yield host
    host.close()


def done(text: str = "Done.") -> Outcome:
    return Outcome("completed", text=text)


def rows(state: Path) -> list[Any]:
    connection = apsw.Connection(str(state / "control.db"))
    tables = ("tasks", "states", "attempts", "outcomes", "receipts", "stops", "threads")
    found = [list(connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2")) for table in tables]
    connection.close()
    return found


def alter(state: Path, sql: str, *parameters: Any) -> None:
    connection = apsw.Connection(str(state / "control.db"))
    connection.set_busy_timeout(5000)
    connection.execute(sql, parameters)
    connection.close()


# a run with children in another process


class Running:
    """A lead that has given work to two children, which wait in commands.

    :ivar left: the task of the child ``left``.
    """

    def __init__(self, hames: Any, until: Any, *, background: bool = False) -> None:
        self.hames = hames
        self.marker = hames.work / "marker"
        calls = [self._call(name, background) for name in ("left", "right")]
        answers: list[dict[str, Any]] = [{"text": "I give it away.", "calls": calls}]
        if background:
            wait = f"touch {self.marker}; until test -e {hames.work}/go; do sleep 0.02; done"
            answers.append({"text": "I go on.", "calls": [{"name": "bash", "arguments": {"command": wait}}]})
        model = hames.script(*answers, *({"text": f"It is over {n}."} for n in range(9)), name="lead.json")
        self.process = hames.start("run", "begin", "--model", model, "--mode", "full", "--json")
        marks = [hames.work / f"{name}.mark" for name in ("left", "right")]
        until(lambda: all(mark.exists() for mark in marks) or self.process.poll() is not None, "the children run")
        assert self.process.poll() is None
        tasks = until(lambda: self._listed(), "the tasks are on disk")
        self.left, self.right = tasks["left"], tasks["right"]

    def _listed(self) -> dict[str, str]:
        found = look(self.hames.state, lambda ledger: [ledger.get(each.id) for each in ledger.list()])
        ready = [each for each in found if each.state in ("running", "waiting") and each.attempts and each.attempts[0].native]
        return {each.spec.prompt: each.id for each in ready} if len(ready) == 2 else {}

    def _call(self, name: str, background: bool) -> dict[str, Any]:
        command = f"touch {self.hames.work}/{name}.mark; until test -e {self.hames.work}/{name}.go; do sleep 0.02; done"
        work = {"text": f"I am {name}.", "calls": [{"name": "bash", "arguments": {"command": command, "timeout": 100}}]}
        model = self.hames.script(work, {"text": f"End of {name}."}, name=f"{name}.json")
        arguments = {"description": name, "prompt": name, "model": model}
        return {"name": "delegate", "arguments": {**arguments, "run_in_background": True} if background else arguments, "id": name}

    def go(self, name: str) -> None:
        (self.hames.work / (f"{name}.go" if name != "go" else name)).touch()

    def result(self) -> Any:
        output, errors = self.process.communicate(timeout=20)
        assert "Traceback" not in errors, errors
        return json.loads(output)


def look(state: Path, body: Body) -> Any:
    async def read() -> Any:
        store = Store(state)
        try:
            return body(Ledger(store, Clock()))
        finally:
            await store.close()

    return asyncio.run(read())


@pytest.fixture
def running(hames: Any, until: Any) -> Running:
    return Running(hames, until)


# nothing there


def test_no_tasks_are_an_empty_list(inline: Any) -> None:
    assert inline.json("task", "list") == {"tasks": [], "after": ""}
    assert inline.json("task", "tree") == {"tasks": []}
    for command in ("list", "tree"):
        found = inline.run("task", command)
        assert (found.returncode, found.stdout, found.stderr) == (0, "", "there are no tasks\n")
    assert inline.run("task", "list", "--watch").returncode == 0


def test_a_state_directory_that_is_named_and_not_there_is_invalid_input_and_is_not_made(inline: Any) -> None:
    absent = inline.root / "absent"
    for arguments in (("list",), ("tree",), ("show", "t1"), ("logs", "t1"), ("cancel", "t1")):
        found = inline.json("task", *arguments, "--state-dir", str(absent), status=2)
        assert found["error"]["code"] == "STATE_UNKNOWN"
    assert not absent.exists()


@pytest.mark.parametrize("command", ["show", "logs", "cancel", "tree"])
@pytest.mark.parametrize("name", ["t1m8q3dc3m19wh", "nonsense", "../../etc/passwd", "ü", "t\udcff1234567", "\x1b[31m", "%", "_" * 14])
def test_an_unknown_task_is_invalid_input(hames: Any, inline: Any, host: Host, command: str, name: str) -> None:
    host.task(outcome=done())
    found = inline.run("task", command, name)
    assert (found.returncode, found.stdout) == (2, "")
    said, remedy = found.stderr.splitlines()
    assert said.startswith("hames: there is no task")
    assert "\x1b" not in said
    assert "task list" in remedy
    assert inline.json("task", command, name, status=2)["error"]["code"] == "TASK_UNKNOWN"


@pytest.mark.parametrize("arguments", [("lits",), ("list", "--limit", "0"), ("list", "--limit", "x"), ("cancel",), ("show",)])
def test_what_the_command_does_not_know_is_invalid_input(inline: Any, arguments: tuple[str, ...]) -> None:
    found = inline.run("task", *arguments)
    assert (found.returncode, found.stdout) == (2, "")


@pytest.mark.parametrize("command", ["list", "show", "tree", "logs", "cancel", "codes"])
def test_every_command_has_a_help_text(inline: Any, command: str) -> None:
    assert f"  {command} " in inline.run("task", "--help").stdout
    found = inline.run("task", command, "--help")
    assert found.returncode == 0
    assert "--json" in found.stdout
    lines = [line for line in found.stdout.splitlines() if line.startswith("  --")]
    assert all(len(line.split()) > 2 for line in lines if "--help" not in line)


def test_the_codes_are_those_of_the_table(inline: Any) -> None:
    found = inline.json("task", "codes")["codes"]
    assert [each["code"] for each in found] == [each.code for each in TABLE]
    assert all(each["meaning"] and each["next_action"] and each["retry"] for each in found)
    lines = inline.run("task", "codes").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [each.code for each in TABLE]


# what is there


def test_the_list_has_the_newest_first(inline: Any, host: Host) -> None:
    names = [host.task(outcome=done()), host.task(outcome=Outcome("refusal", "child", "REFUSAL")), host.task()]
    found = inline.json("task", "list")["tasks"]
    assert [(each["id"], each["status"]) for each in found] == [
        (names[2], "running"),
        (names[1], "refusal"),
        (names[0], "completed"),
    ]
    lines = inline.run("task", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == names[::-1]
    assert "refusal REFUSAL" in lines[1]
    assert [each["id"] for each in inline.json("task", "list", "--live")["tasks"]] == [names[2]]
    assert [line.split()[0] for line in inline.run("task", "list", "--live").stdout.splitlines()] == [names[2]]


def test_pages_follow_each_other(inline: Any, host: Host) -> None:
    names = [host.task(outcome=done()) for _ in range(7)]
    found: list[str] = []
    after: list[str] = []
    while True:
        page = inline.json("task", "list", "--limit", "3", *after)
        found += [each["id"] for each in page["tasks"]]
        if not page["after"]:
            break
        after = ["--after", page["after"]]
    assert found == names[::-1]
    assert [line.split()[0] for line in inline.run("task", "list", "--limit", "2", "--after", names[5]).stdout.splitlines()] == [
        names[4],
        names[3],
    ]


@pytest.mark.parametrize("option", [("--label", "wanted"), ("--live",)])
def test_pages_of_chosen_tasks_reach_all_of_them(inline: Any, host: Host, option: tuple[str, ...]) -> None:
    wanted = []
    for n in range(12):
        chosen = n % 4 == 0
        labels = ("wanted",) if chosen else ("other",)
        id = host.task(TaskSpec(f"do {n}", runner="spawn", labels=labels), outcome=None if chosen else done())
        wanted += [id] if chosen else []
    # Tasks that a dead process has left look live to the database alone.
    dead = Host(host.store.root)
    for n in range(4):
        dead.task(TaskSpec(f"left {n}", runner="spawn"))
    dead.close()
    found: list[str] = []
    after: list[str] = []
    for _ in range(20):
        page = inline.json("task", "list", "--limit", "2", *option, *after)
        found += [each["id"] for each in page["tasks"]]
        if not page["after"]:
            break
        after = ["--after", page["after"]]
    assert found == wanted[::-1]


def test_a_task_is_found_by_the_beginning_of_its_name_unless_it_is_ambiguous(inline: Any, host: Host) -> None:
    host.task(id="taskone1", outcome=done())
    host.task(id="taskone2", outcome=done())
    assert inline.json("task", "show", "taskone1")["id"] == "taskone1"
    host.task(id="alone123456", outcome=done())
    assert inline.json("task", "show", "alone1")["id"] == "alone123456"
    assert inline.json("task", "cancel", "alone1234")["tasks"][0]["task"] == "alone123456"
    assert inline.json("task", "show", "taskone", status=2)["error"]["code"] == "TASK_UNKNOWN"
    assert inline.json("task", "show", "alone", status=2)["error"]["code"] == "TASK_UNKNOWN"  # too short to be meant
    host.task(id="taskone", outcome=done())
    assert inline.json("task", "show", "taskone")["id"] == "taskone"  # its whole name


def test_show_says_all_that_is_known(inline: Any, host: Host) -> None:
    spec = TaskSpec(
        "line one\nline two", "a title", "spawn", tools=("read",), permission="read-only", budget=Limits(steps=4), labels=("l",)
    )
    id = host.task(spec, session="1m0000000000a", call="c", parent="tparent")
    host.do(host.ledger.attempt(id, 1, Attempt(1, "spawn/9", "", "1m0000000000b", 1e9, 1e9 + 5, "completed")))
    outcome = Outcome("completed", text="Its\nwords.", value={"n": 5}, schema_valid=True, cost=0.5, proceed="hames run --resume x PROMPT")
    host.do(host.ledger.settle(id, 1, outcome))
    host.do(host.ledger.receive(id, "delivered", {"session": "x"}))
    host.do(host.ledger.ask_to_stop(id, "too slow"))
    found = inline.json("task", "show", id)
    assert found["schema_version"] == 1
    assert (found["status"], found["admission"], found["liveness"], found["publication"]) == ("completed", "admitted", "ended", "committed")
    assert found["spec"] == spec.as_json()
    assert found["outcome"] == outcome.as_json()
    assert found["attempts"][0]["native"] == "1m0000000000b"
    assert found["receipts"][0]["kind"] == "delivered"
    assert (found["stop"]["cause"], found["stop"]["acknowledged"]) == ("too slow", 0)
    output = inline.run("task", "show", id).stdout
    for text in ("a title", "completed", "session 1m0000000000a", "tparent", "line one", "line two", '"n": 5', "Its", "words.", "too slow"):
        assert text in output, text
    for line in output.splitlines():  # a name and what it says are two words
        name = line.split()[0] if line.split() else ""
        assert not name.startswith("permission") or name == "permission", line


def test_looking_writes_nothing(inline: Any, host: Host) -> None:
    lost = Host(host.store.root)
    id = lost.task(TaskSpec("do it", runner="spawn"))
    lost.close()
    mine = host.task()
    before = rows(host.store.root)
    for arguments in (("list",), ("list", "--live"), ("list", "--watch", "--after", mine), ("show", id), ("tree",), ("logs", id)):
        assert inline.run("task", *arguments).returncode == 0
    assert rows(host.store.root) == before
    assert inline.json("task", "show", id)["status"] == "interrupted"


def test_what_would_steer_a_terminal_is_shown_instead(inline: Any, host: Host) -> None:
    spec = TaskSpec(f"prompt {NASTY}\n{NASTY}", f"title {NASTY}", "spawn", model=f"m{NASTY}", labels=(NASTY,), schema={"title": NASTY})
    id = host.task(spec)
    host.do(host.ledger.attempt(id, 1, Attempt(1, f"r{NASTY}", "", f"n{NASTY}", 1e9, 2e9, NASTY)))
    outcome = Outcome("error", "child", "REFUSAL", NASTY, {"v": NASTY}, diagnostic=NASTY, schema_valid=True, proceed=NASTY)
    host.do(host.ledger.settle(id, 1, outcome, cause=NASTY))
    host.do(host.ledger.ask_to_stop(id, NASTY))
    for arguments in (("list",), ("show", id), ("tree",), ("cancel", id)):
        output = inline.run("task", *arguments).stdout
        assert [letter for letter in BARE if letter in output] == [], arguments
    assert "\\x1b[31m" in inline.run("task", "list").stdout


@pytest.mark.parametrize("how", ["spec", "state", "outcome", "text", "type"])
def test_damaged_tasks_are_shown_as_such_and_hide_no_other(inline: Any, host: Host, how: str) -> None:
    whole, id, last = (host.task(outcome=done(), session="s") for _ in range(3))
    sql = {
        "spec": 'UPDATE tasks SET spec = CAST(\'{"prompt":"else"}\' AS BLOB) WHERE id = ?',
        "state": "UPDATE states SET updated = updated + 1 WHERE task = ?",
        "outcome": "UPDATE outcomes SET data = X'00ff' WHERE task = ?",
        "text": "UPDATE tasks SET call = CAST(X'f0' AS TEXT) WHERE id = ?",
        "type": "UPDATE tasks SET created = 'yesterday', session = X'00ff' WHERE id = ?",
    }
    alter(host.store.root, sql[how], id)
    shown = inline.run("task", "list")
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = {line.split()[0]: line for line in shown.stdout.splitlines()}
    assert list(lines) == [last, id, whole]
    assert [name for name, line in lines.items() if "DAMAGED" in line] == [id]
    listed = {each["id"]: each.get("damaged", []) for each in inline.json("task", "list")["tasks"]}
    assert [bool(listed[name]) for name in (whole, id, last)] == [False, True, False]
    assert "damaged" in inline.run("task", "show", id).stdout
    assert inline.run("task", "tree").returncode == 0


def test_a_limit_without_end_in_the_composition_does_not_take_the_list_away(hames: Any) -> None:
    patch = hames.root / "patch.yaml"
    patch.write_text("- {id: delegate, set: {config: {budget: {idle: .inf}}}}\n")
    child = hames.script({"text": "Done."}, name="child.json")
    call = {"name": "delegate", "arguments": {"description": "d", "prompt": "p", "model": child}}
    model = hames.script({"text": "x", "calls": [call]}, {"text": "End."}, name="lead.json")
    run = hames.run("run", "begin", "--model", model, "--mode", "full", "--patch", str(patch))
    if run.returncode == 2:  # the composition is refused
        assert "idle" in run.stderr
        return
    assert run.returncode == 0
    hames.json("task", "list")


# trees


def test_a_tree_is_a_task_with_all_below_it(inline: Any, host: Host) -> None:
    top = host.task(outcome=done(), session="1m0000000000a")
    left, right = (host.task(outcome=done(), parent=top, root=top, depth=2) for _ in range(2))
    below = host.task(outcome=done(), parent=left, root=top, depth=3)
    other = host.task(outcome=done(), session="1m0000000000b")
    tree = [(0, top), (1, left), (2, below), (1, right)]
    assert [(each["level"], each["id"]) for each in inline.json("task", "tree", top)["tasks"]] == tree
    assert [(each["level"], each["id"]) for each in inline.json("task", "tree", "1m0000000000a")["tasks"]] == tree
    assert [(each["level"], each["id"]) for each in inline.json("task", "tree", left)["tasks"]] == [(0, left), (1, below)]
    assert [(each["level"], each["id"]) for each in inline.json("task", "tree")["tasks"]] == [(0, other), *tree]
    lines = inline.run("task", "tree", top).stdout.splitlines()
    assert [line.split()[0] for line in lines] == [id for _, id in tree]
    indents = [line.index(f"do {id}") for line, (_, id) in zip(lines, tree, strict=True)]
    assert [indent - indents[0] for indent in indents] == [0, 2, 4, 2]


def test_the_latest_tree_is_shown_however_many_tasks_it_has(inline: Any, host: Host) -> None:
    top = host.task(outcome=done())
    for _ in range(5):
        host.task(outcome=done(), parent=top, root=top, depth=2)
    found = inline.json("task", "tree", "--limit", "3")["tasks"]
    assert [each["level"] for each in found] == [0, 1, 1, 1, 1, 1]


# watching


def read_line(process: subprocess.Popen[str], until: Any, word: str) -> str:
    assert process.stdout is not None
    while line := process.stdout.readline():
        if word in line:
            return line
    raise AssertionError(f"it ended without saying {word}")


@pytest.mark.parametrize("command", [("list",), ("list", "--live"), ("tree",)])
def test_watching_ends_when_nothing_lives_any_more(hames: Any, host: Host, until: Any, command: tuple[str, ...]) -> None:
    id = host.task()
    process = hames.start("task", *command, "--watch")
    read_line(process, until, id)
    host.do(host.ledger.update(id, 1, "waiting", waiting="child"))
    assert id in read_line(process, until, "waiting (child)")
    assert process.poll() is None
    host.do(host.ledger.settle(id, 1, done()))
    output, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (0, "")
    assert "completed" in output or "--live" in command


def test_watching_ends_when_the_process_that_works_dies(hames: Any, host: Host, until: Any) -> None:
    id = host.task()
    process = hames.start("task", "list", "--watch")
    read_line(process, until, id)
    host.close()
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "interrupted" in output.splitlines()[-1]


# what happened in a task


def test_logs_are_the_events_of_its_session(inline: Any, host: Host) -> None:
    native = host.session("one", "two \x1b[31m")
    id = host.task()
    host.do(host.ledger.attempt(id, 1, Attempt(1, "spawn/9", "", native, 1e9, 0.0, "")))
    host.do(host.ledger.settle(id, 1, done()))
    found = [json.loads(line) for line in inline.run("task", "logs", id, "--json").stdout.splitlines()]
    assert [event["type"] for event in found] == ["start", "state", "state"]
    assert [event["data"].get("value") for event in found[1:]] == ["one", "two \x1b[31m"]
    output = inline.run("task", "logs", id).stdout
    assert "one" in output
    assert "\x1b" not in output


def test_a_task_without_a_session_has_no_logs(inline: Any, host: Host) -> None:
    id = host.task(outcome=done())
    found = inline.run("task", "logs", id)
    assert (found.returncode, found.stdout) == (0, "")
    assert "nothing is written of it" in found.stderr
    assert inline.run("task", "logs", id, "--follow").returncode == 0


def test_following_a_live_task_ends_when_it_has_ended(hames: Any, running: Running, until: Any) -> None:
    process = hames.start("task", "logs", running.left, "--follow", "--json")
    read_line(process, until, "left.mark")
    assert process.poll() is None
    running.go("left")
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    assert "End of left." in output
    running.go("right")
    assert running.result()["status"] == "completed"


def test_following_goes_on_with_the_session_of_the_next_attempt(hames: Any, host: Host, until: Any) -> None:
    first, second = host.session("one", "two", "three"), host.session("four", "five")
    id = host.task()
    host.do(host.ledger.attempt(id, 1, Attempt(1, "spawn/9", "", first, 1e9, 0.0, "")))
    process = hames.start("task", "logs", id, "--follow", "--json")
    read_line(process, until, "three")
    host.do(host.ledger.attempt(id, 1, Attempt(2, "spawn/9", "", second, 1e9, 0.0, "")))
    host.do(host.ledger.settle(id, 1, done()))
    output, _ = process.communicate(timeout=10)
    assert [json.loads(line)["data"].get("value") for line in output.splitlines()] == [None, "four", "five"]


# ending


def test_cancel_ends_a_task_of_another_process_and_not_its_sibling(hames: Any, running: Running) -> None:
    found = hames.json("task", "cancel", running.left, "--cause", "too slow")
    assert found == {"tasks": [{"task": running.left, "status": "aborted", "requested": True, "acknowledged": True, "terminated": True}]}
    shown = hames.json("task", "show", running.left)
    assert (shown["outcome"]["status"], shown["outcome"]["code"], shown["cause"]) == ("aborted", "CANCELLED", "too slow")
    assert shown["stop"]["cause"] == "too slow"
    other = hames.json("task", "show", running.right)
    assert other["status"].split()[0] in ("running", "waiting")
    assert "stop" not in other
    running.go("right")
    assert running.result()["status"] == "completed"
    assert hames.json("task", "show", running.right)["status"] == "completed"
    again = hames.json("task", "cancel", running.left)
    assert (again["tasks"][0]["already"], again["tasks"][0]["status"]) == (True, "aborted")


def test_cancel_of_several_ends_them_all_and_the_lead_goes_on(hames: Any, running: Running) -> None:
    done_ = hames.run("task", "cancel", running.left, running.right)
    assert done_.returncode == 0
    assert done_.stdout.splitlines() == [f"{id} has ended (aborted)" for id in (running.left, running.right)]
    result = running.result()
    assert (result["status"], result["text"]) == ("completed", "It is over 0.")


def test_cancel_of_a_background_task_leaves_its_parent_at_work(hames: Any, until: Any) -> None:
    running = Running(hames, until, background=True)
    until(running.marker.exists, "the lead goes on")
    assert hames.json("task", "cancel", running.left)["tasks"][0]["status"] == "aborted"
    assert running.process.poll() is None
    running.go("right")
    until(lambda: look(hames.state, lambda ledger: ledger.get(running.right).outcome), "the sibling has ended")
    running.go("go")
    assert running.result()["status"] == "completed"
    assert hames.json("task", "show", running.right)["status"] == "completed"


def test_cancel_without_time_to_wait_says_that_it_is_pending(hames: Any, running: Running) -> None:
    os.kill(running.process.pid, signal.SIGSTOP)  # it cannot hear now
    try:
        found = hames.json("task", "cancel", running.left, "--wait", "0.2", status=3)
        (asked,) = found["tasks"]
        assert (asked["requested"], asked["acknowledged"], asked["terminated"]) == (True, False, False)
        said = hames.run("task", "cancel", running.left, "--wait", "0")
        assert said.returncode == 3
        assert "asked to end, and has not yet" in said.stdout
        assert "not heard yet" in hames.run("task", "show", running.left).stdout
    finally:
        os.kill(running.process.pid, signal.SIGCONT)
    assert hames.json("task", "cancel", running.left)["tasks"][0]["terminated"]
    running.go("right")
    running.result()


def test_cancel_with_one_unknown_name_asks_nobody_to_end(inline: Any, host: Host) -> None:
    id = host.task()
    assert inline.json("task", "cancel", id, "t1m8q3dc3m19wh", status=2)["error"]["code"] == "TASK_UNKNOWN"
    assert host.ledger.stop_of(id) is None


def test_cancel_of_what_a_dead_process_has_left_says_that_it_has_ended(inline: Any, host: Host) -> None:
    lost = Host(host.store.root)
    id = lost.task()
    lost.close()
    before = rows(host.store.root)
    (found,) = inline.json("task", "cancel", id)["tasks"]
    assert (found["already"], found["status"], found["requested"]) == (True, "interrupted", False)
    assert rows(host.store.root) == before


@pytest.mark.parametrize("cause", ["ü", "\udcff", NASTY, ""])
def test_any_words_may_be_the_cause(inline: Any, host: Host, cause: str) -> None:
    id = host.task()
    found = inline.run("task", "cancel", id, "--wait", "0", "--cause", cause)
    assert found.returncode == 3
    stop = host.ledger.stop_of(id)
    assert stop is not None
    assert "\x1b" not in inline.run("task", "show", id).stdout


def test_sessions_of_tasks_are_listed_when_they_are_asked_for(hames: Any) -> None:
    child = hames.script({"text": "Done."}, name="child.json")
    call = {"name": "delegate", "arguments": {"description": "do it", "prompt": "do it", "model": child}}
    model = hames.script({"calls": [call]}, {"text": "Fine."})
    assert hames.run("run", "go", "--model", model).returncode == 0
    done = hames.run("sessions", "list")
    assert len(done.stdout.splitlines()) == 1 and "1 more are those of tasks" in done.stderr
    assert len(hames.json("sessions", "list")["sessions"]) == 1
    both = {each["id"] for each in hames.json("sessions", "list", "--all")["sessions"]}
    (task,) = hames.json("task", "list")["tasks"]
    assert both == {task["session"], hames.json("task", "show", task["id"])["attempts"][0]["native"]}


def test_what_a_child_says_does_not_steer_the_terminal(hames: Any) -> None:
    child = hames.script({"text": "\x1b]0;owned\x07 Done."}, name="child.json")
    call = {"name": "delegate", "arguments": {"description": "do it", "prompt": "do it", "model": child}}
    model = hames.script({"calls": [call]}, {"text": "Fine."})
    assert hames.run("run", "go", "--model", model).returncode == 0
    (task,) = hames.json("task", "list")["tasks"]
    session = hames.json("task", "show", task["id"])["attempts"][0]["native"]
    for words in (("task", "logs", task["id"]), ("sessions", "show", session), ("task", "show", task["id"])):
        said = hames.run(*words).stdout
        assert "owned" in said and not set("\x1b\x07") & set(said)
