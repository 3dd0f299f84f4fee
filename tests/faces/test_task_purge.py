"""``hames task purge`` and what ``hames task tree`` says of why tasks are there, over conversations of real runs."""

# pyright: basic

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apsw
import pytest

from hames.delegation.structured import NAME

SPILLS = "for i in $(seq 1 4000); do echo line number $i of many; done"


def delegate(name: str, model: str, **more: Any) -> dict[str, Any]:
    return {"name": "delegate", "arguments": {"description": name, "prompt": name, "model": model, **more}, "id": name}


class Room:
    """A lead with conversations that it keeps.

    :ivar lead: its session.
    :ivar tasks: the records of its tasks by what they were asked for.
    """

    def __init__(self, hames: Any) -> None:
        self.hames = hames
        self.lead, self.tasks = "", dict[str, Any]()

    def run(self, *names: str, **more: dict[str, Any]) -> None:
        """Run a lead that gives work of these names away, and keeps all of it but what ``more`` says otherwise."""
        work = {"text": "I look.", "calls": [{"name": "bash", "arguments": {"command": SPILLS}}]}
        child = self.hames.script(work, {"text": "First end."}, {"text": "Second end."}, name="child.json")
        calls = [delegate(name, child, **{"keep": True, **more.get(name, {})}) for name in names]
        self.answers = [{"text": "I give it away.", "calls": calls}, *({"text": f"So {n}."} for n in range(4))]
        self.model = self.hames.script(*self.answers, name="lead.json")
        done = self.hames.json("run", "begin", "--model", self.model)
        assert done["status"] == "completed", done
        self.lead = done["session"]
        listed = self.hames.json("task", "list")["tasks"]
        self.tasks = {each["spec"]["prompt"]: self.show(each["id"]) for each in listed}

    def say_next(self, answer: dict[str, Any]) -> None:
        """What the lead says when it goes on."""
        messages = [each["data"] for each in self.hames.events(self.lead) if each["type"] == "message"]
        said = sum(each["role"] == "assistant" for each in messages)
        self.hames.script(*[{"text": "x"}] * said, answer, *[{"text": "So."}] * 4, name="lead.json")

    def show(self, task: str) -> dict[str, Any]:
        return self.hames.json("task", "show", task)

    def id(self, name: str) -> str:
        return self.tasks[name]["id"]

    def native(self, name: str) -> str:
        return self.tasks[name]["attempts"][0]["native"]

    def purge(self, *words: str, status: int = 0) -> Any:
        return self.hames.json("task", "purge", *words, status=status)

    def tree(self) -> dict[str, list[str]]:
        return {each["id"]: each["why"] for each in self.hames.json("task", "tree")["tasks"]}

    def sessions(self) -> dict[str, set[int]]:
        """The sessions of which each table of the log has rows."""
        connection = apsw.Connection(str(self.hames.state / "sessions.db"))
        tables = ("sessions", "events", "fragments", "requests")
        found = {table: {sid for (sid,) in connection.execute(f"SELECT sid FROM {table}")} for table in tables}
        connection.close()
        return found

    def exists(self, session: str) -> bool:
        listed = self.hames.json("sessions", "list", "--all")["sessions"]
        return session in {each["id"] for each in listed}

    def spilled(self, session: str) -> list[Path]:
        return list((self.hames.state / "spill" / session).rglob("*"))


@pytest.fixture
def room(near: Any) -> Room:
    return Room(near)


@pytest.fixture
def kept(room: Room) -> Room:
    """With two conversations that rest."""
    room.run("left", "right")
    return room


def test_a_conversation_is_removed_for_good_and_what_is_known_of_its_tasks_stays(kept: Room) -> None:
    before, session = kept.tasks["left"], kept.native("left")
    assert kept.exists(session) and kept.spilled(session)
    had = kept.sessions()
    files = (kept.hames.state / "spill" / session, kept.hames.state / "scratch" / session)
    (done,) = kept.purge(kept.id("left"), "--yes")["tasks"]
    assert done["task"] == before["thread"] and done["bytes"] > 100
    assert not kept.exists(session) and not any(path.exists() for path in files)
    gone = {table: had[table] - sids for table, sids in kept.sessions().items()}
    assert len(gone["sessions"]) == 1 and all(sids == gone["sessions"] for sids in gone.values())
    after = kept.show(kept.id("left"))
    assert {key: after[key] for key in ("spec", "outcome", "attempts", "status")} == {
        key: before[key] for key in ("spec", "outcome", "attempts", "status")
    }
    assert [each["kind"] for each in after["receipts"]][-1] == "purged"
    assert "purged" in kept.hames.run("task", "show", kept.id("left")).stdout
    assert kept.exists(kept.native("right")) and kept.spilled(kept.native("right")) and kept.exists(kept.lead)
    exported = kept.hames.run("sessions", "export", session, "--requests")
    assert exported.returncode == 2 and exported.stdout == ""


def test_logs_of_what_was_removed_are_one_clear_error(kept: Room) -> None:
    kept.purge(kept.id("left"), "--yes")
    done = kept.hames.run("task", "logs", kept.id("left"))
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 2
    assert kept.hames.run("task", "logs", kept.id("right")).returncode == 0


def test_a_beginning_of_a_name_stands_for_its_task(kept: Room) -> None:
    one, other = kept.id("left"), kept.id("right")
    length = next(n for n in range(6, len(one) + 1) if one[:n] != other[:n])
    (done,) = kept.purge(one[:length], "--yes")["tasks"]
    assert done["task"] == one
    if length > 6:
        assert "2 tasks begin with" in kept.purge(one[: length - 1], "--yes", status=2)["error"]["message"]
    assert kept.exists(kept.native("right"))


def test_several_are_removed_at_once_and_each_once(kept: Room) -> None:
    done = kept.purge(kept.id("left"), kept.id("right"), kept.id("left"), "--yes")
    assert done["removed"] is True and [each["task"] for each in done["tasks"]] == [kept.id("left"), kept.id("right")]
    assert not kept.exists(kept.native("left")) and not kept.exists(kept.native("right")) and kept.exists(kept.lead)


def test_a_dry_run_says_what_would_be_removed_and_removes_nothing(kept: Room) -> None:
    dry = kept.purge(kept.id("left"), kept.id("right"), "--dry-run")
    assert dry["removed"] is False and all(each["bytes"] > 0 for each in dry["tasks"])
    said = kept.hames.run("task", "purge", kept.id("left"), "--dry-run")
    assert said.returncode == 0 and said.stdout == f"{kept.id('left')}  would remove {dry['tasks'][0]['bytes']} bytes\n"
    assert kept.exists(kept.native("left")) and kept.spilled(kept.native("left"))
    assert kept.show(kept.id("left")) == kept.tasks["left"]
    done = kept.hames.run("task", "purge", kept.id("left"), "--yes")
    assert done.stdout == f"{kept.id('left')}  removed {dry['tasks'][0]['bytes']} bytes\n"


def test_without_yes_nothing_is_removed_where_nobody_can_be_asked(kept: Room) -> None:
    for words in ((kept.id("left"),), ("--older-than", "0")):
        done = kept.hames.run("task", "purge", *words, stdin="y\n")
        assert (done.returncode, done.stdout) == (2, "") and "--yes" in done.stderr and len(done.stderr.splitlines()) == 2
        assert kept.purge(*words, status=2)["error"]["remedy"]
    assert kept.exists(kept.native("left"))


def test_what_is_removed_already_stays_as_it_is(kept: Room) -> None:
    kept.purge(kept.id("left"), "--yes")
    for words in (("--yes",), ("--dry-run",)):
        (done,) = kept.purge(kept.id("left"), *words, status=4)["tasks"]
        assert done["code"] == "CONVERSATION_GONE" and "bytes" not in done
    said = kept.hames.run("task", "purge", kept.id("left"), kept.id("right"), "--yes")
    assert said.returncode == 4
    assert [line.split("  ")[1].split()[0] for line in said.stdout.splitlines()] == ["stays:", "removed"]
    assert [each["kind"] for each in kept.show(kept.id("left"))["receipts"]].count("purged") == 1


def test_an_unknown_task_is_refused_and_nothing_is_removed(kept: Room) -> None:
    for name in ("nonsense", "t1m8q3dc3m19wh", "../../x", "\x1b[31m", kept.lead):
        found = kept.purge(kept.id("left"), name, "--yes", status=2)
        assert found["error"]["code"] == "TASK_UNKNOWN"
        done = kept.hames.run("task", "purge", name, "--yes")
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 2 and "\x1b" not in done.stderr
    assert kept.exists(kept.native("left"))


@pytest.mark.parametrize(
    "words", [(), ("--older-than", "-1"), ("--older-than", "x"), ("--older-than", ""), ("t1", "--older-than", "3"), ("--yes",)]
)
def test_what_contradicts_itself_or_says_nothing_is_refused(inline: Any, words: tuple[str, ...]) -> None:
    done = inline.run("task", "purge", *words, "--yes")
    assert (done.returncode, done.stdout) == (2, "")
    assert inline.json("task", "purge", *words, "--yes", status=2)["error"]["message"]


@pytest.mark.parametrize("days", ["nan", "inf", "1e308", "0"])
def test_odd_numbers_of_days_remove_nothing_where_nothing_is(inline: Any, days: str) -> None:
    assert inline.json("task", "purge", "--older-than", days, "--yes") == {"tasks": [], "removed": True}


@pytest.mark.parametrize("days", ["nan", "inf", "1", "0.5"])
def test_what_is_younger_stays(kept: Room, days: str) -> None:
    assert kept.purge("--older-than", days, "--yes")["tasks"] == []
    assert kept.exists(kept.native("left")) and kept.exists(kept.native("right"))


def test_what_has_rested_for_so_long_is_removed_and_no_other_session(room: Room) -> None:
    room.run("left", "right")
    room.run("left", "right", "plain", plain={"keep": False})
    dry = room.purge("--older-than", "0", "--dry-run")["tasks"]
    assert len(dry) == 4 and {room.id("left"), room.id("right")} <= {each["task"] for each in dry}
    done = room.purge("--older-than", "0", "--yes")["tasks"]
    assert {each["task"] for each in done} == {each["task"] for each in dry} and all(each["bytes"] > 0 for each in done)
    assert room.exists(room.native("plain")) and room.exists(room.lead)
    assert room.purge("--older-than", "0", "--yes")["tasks"] == []


def test_all_of_a_conversation_goes_with_any_of_its_tasks(kept: Room) -> None:
    send = {"name": "send_message", "arguments": {"agent_id": kept.id("left"), "message": "and now more"}, "id": "send"}
    kept.say_next({"text": "I say more.", "calls": [send]})
    before = {each["id"] for each in kept.hames.json("task", "list")["tasks"]}
    assert kept.hames.json("run", "go on", "--resume", kept.lead)["status"] == "completed"
    (later,) = {each["id"] for each in kept.hames.json("task", "list")["tasks"]} - before
    assert kept.show(later)["thread"] == kept.id("left")
    assert f"goes on with {kept.id('left')}" in kept.tree()[later] or any(kept.id("left") in why for why in kept.tree()[later])
    (done,) = kept.purge(later, "--yes")["tasks"]
    assert done["task"] == kept.id("left") and not kept.exists(kept.native("left"))
    for task in (later, kept.id("left")):
        (again,) = kept.purge(task, "--yes", status=4)["tasks"]
        assert again["code"] == "CONVERSATION_GONE"


def test_a_lead_that_speaks_to_a_removed_conversation_is_told_that_it_is_gone(kept: Room) -> None:
    calls = [
        {"name": "send_message", "arguments": {"agent_id": kept.id("left"), "message": "more"}, "id": "send"},
        {"name": "list_agents", "arguments": {}, "id": "list"},
    ]
    kept.purge(kept.id("left"), "--yes")
    kept.say_next({"text": "I say more.", "calls": calls})
    assert kept.hames.json("run", "go on", "--resume", kept.lead)["status"] == "completed"
    said = {
        block["call_id"]: json.dumps(block)
        for event in kept.hames.events(kept.lead)
        if event["type"] == "message"
        for block in event["data"]["blocks"]
        if block["type"] == "tool-result"
    }
    assert "CONVERSATION_GONE" in said["send"] and kept.id("right") in said["list"]
    assert len(kept.hames.json("task", "list")["tasks"]) == 2


class Running:
    """A lead in another process whose kept child waits in a command."""

    def __init__(self, room: Room, until: Any) -> None:
        self.room, self.work = room, room.hames.work
        command = f"touch {self.work}/mark; until test -e {self.work}/go; do sleep 0.02; done"
        wait = {"text": "I wait.", "calls": [{"name": "bash", "arguments": {"command": command, "timeout": 100}}]}
        child = room.hames.script(wait, {"text": "End."}, name="waiting.json")
        model = room.hames.script({"text": "x", "calls": [delegate("slow", child, keep=True)]}, {"text": "So."}, {"text": "Ended."})
        self.process = room.hames.start("run", "begin", "--model", model, "--mode", "full", "--json")
        until(lambda: (self.work / "mark").exists() or self.process.poll() is not None, "the child runs")
        listed = room.hames.json("task", "list")["tasks"]
        self.task = next(each["id"] for each in listed if each["spec"]["prompt"] == "slow")

    def end(self) -> Any:
        (self.work / "go").touch()
        output, errors = self.process.communicate(timeout=20)
        assert self.process.returncode == 0 and "Traceback" not in errors, errors
        return json.loads(output)


def test_what_runs_stays_and_can_be_removed_when_it_rests(kept: Room, until: Any) -> None:
    running = Running(kept, until)
    session = kept.show(running.task)["attempts"][0]["native"]
    for words in (("--yes",), ("--dry-run",)):
        (found,) = kept.purge(running.task, *words, status=4)["tasks"]
        assert found["code"] == "CONVERSATION_BUSY" and "bytes" not in found
    said = kept.hames.run("task", "purge", running.task, kept.id("left"), "--yes")
    assert said.returncode == 4 and f"{running.task}  stays: " in said.stdout and f"{kept.id('left')}  removed " in said.stdout
    rested = kept.purge("--older-than", "0", "--yes")["tasks"]
    assert [each["task"] for each in rested] == [kept.id("right")]
    assert kept.exists(session)
    assert running.end()["status"] == "completed" and kept.show(running.task)["status"] == "completed"
    (done,) = kept.purge(running.task, "--yes")["tasks"]
    assert done["bytes"] > 0 and not kept.exists(session)


def test_what_a_killed_process_has_left_can_be_removed(room: Room, until: Any) -> None:
    running = Running(room, until)
    session = room.show(running.task)["attempts"][0]["native"]
    running.process.kill()
    running.process.wait()
    (room.hames.work / "go").touch()
    (done,) = room.purge(running.task, "--yes")["tasks"]
    assert done.get("bytes", 0) > 0 and not room.exists(session)


# why


def test_a_tree_says_which_conversations_were_removed(kept: Room) -> None:
    assert kept.tree() == {kept.id("left"): [], kept.id("right"): []}
    kept.purge(kept.id("left"), "--yes")
    assert kept.tree() == {kept.id("left"): ["its conversation was removed"], kept.id("right"): []}
    lines = kept.hames.run("task", "tree").stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith(kept.id("left")))
    assert lines[at + 1] == "    its conversation was removed" and len(lines) == 3


def test_a_tree_says_why_each_attempt_is_there_and_what_was_not_begun(room: Room) -> None:
    report = {"outcome": "failed", "result": "nothing", "error": "boom"}
    good = {"outcome": "done", "result": "it is there"}

    bad = room.hames.script({"calls": [{"name": NAME, "arguments": report}]}, {"text": "x"}, name="bad.json")
    fine = room.hames.script({"calls": [{"name": NAME, "arguments": good}]}, {"text": "x"}, name="fine.json")
    presets = room.hames.root / "home" / "config" / "hames" / "presets"
    presets.mkdir(parents=True)

    def preset(model: str) -> None:
        config = {"roles": {"implement": {"model": model}}}
        rows = [{"include": "shipped:presets/orchestrator.yaml"}, {"id": "orchestrator", "set": {"config": config}}]
        (presets / "mine.yaml").write_text(json.dumps(rows))

    def call(id: str, prompt: str, **more: Any) -> dict[str, Any]:
        return {"text": id, "calls": [{"name": "implement", "arguments": {"description": "d", "prompt": prompt, **more}, "id": id}]}

    first = [call("one", "make it blue"), call("two", "paint all in red tomorrow"), {"text": "So."}]
    preset(bad)
    model = room.hames.script(*first, name="lead.json")
    lead = room.hames.json("run", "begin", "--model", model, "--preset", "mine")["session"]
    (one,) = room.hames.json("task", "list")["tasks"]
    why = room.tree()[one["id"]]
    assert (
        why[0].startswith("it says that it failed") and why[1].startswith("not begun after it: ") and why[1].endswith("(ATTEMPT_UNNAMED)")
    )
    preset(fine)
    again = call("three", "make it blue", after=one["id"])
    room.hames.script(*first, again, {"text": "So."}, name="lead.json")
    room.hames.json("run", "try again", "--resume", lead)
    two = next(each for each in room.hames.json("task", "list")["tasks"] if each["id"] != one["id"])
    assert room.tree()[two["id"]] == [f"after {one['id']}"]
    poor = call("four", "make it blue", after=two["id"], reason="poor", missing=["tests", "\x1b[31mred"])
    room.hames.script(*first, again, {"text": "So."}, poor, {"text": "So."}, name="lead.json")
    room.hames.json("run", "it is poor", "--resume", lead)
    three = next(each for each in room.hames.json("task", "list")["tasks"] if each["id"] not in (one["id"], two["id"]))
    assert room.tree()[three["id"]] == [f"after {two['id']} (poor): it lacked tests; \x1b[31mred"]
    said = room.hames.run("task", "tree").stdout
    assert f"    after {two['id']} (poor): it lacked tests; \\x1b[31mred\n" in said and f"    after {one['id']}\n" in said
    assert "    not begun after it: " in said and "    it says that it failed" in said and "\x1b" not in said
    assert [each["id"] for each in room.hames.json("task", "tree", three["id"])["tasks"]] == [three["id"]]
