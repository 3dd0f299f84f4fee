"""A process that is killed while kept children work: who is told what afterwards, and which messages are heard."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from hames.content.clock import Clock
from hames.delegation.ledger import Ledger
from hames.delegation.records import TaskRecord
from hames.sessions import Sessions
from hames.sessions.history import waiting
from hames.store import Store

LIMIT = 20.0  # seconds
PATCH = [
    {"id": "loop", "set": {"config": {"retries": 0}}},
    {"id": "delegation", "set": {"config": {"max_depth": 3}}},
    {"id": "policy", "set": {"config": {"mode": "full"}}},
]

DYING = """
    # The command line, in a process that is killed at one moment.
    import os, signal, sys

    from hames.delegation.conversations import Conversations
    from hames.delegation.ledger import Ledger
    from hames.faces.cli.main import main

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    moment, name, method, left = os.environ["DIES"].split()
    owner = {"Ledger": Ledger, "Conversations": Conversations}[name]
    original = getattr(owner, method)
    calls = 0

    class Last:
        def __init__(self, awaited):
            self.awaited = awaited

        def __await__(self):
            found = yield from self.awaited.__await__()
            die()

    def instead(*given, **named):
        global calls
        calls += 1
        if calls != int(left):
            return original(*given, **named)
        return die() if moment == "before" else Last(original(*given, **named))

    setattr(owner, method, instead)
    main()
    """

TREE = """
    # A lead with children at three levels, all of them at work and with messages that wait; it says their names and goes on for ever.
    import asyncio, json, sys
    from pathlib import Path

    from hames.agents import AGENTS, AgentSpec, Chunked, ToolStarted
    from hames.compose import running
    from hames.delegation import DELEGATION
    from hames.delegation.spec import TaskSpec
    from hames.profiles import profile
    from hames.store import STATE

    state, work, patch, plan = sys.argv[1:]

    async def main():
        async with running([profile("standard"), Path(patch)], {STATE: Path(state)}) as host:
            agents, service = host.get(AGENTS), host.get(DELEGATION)
            tasks, known = service.tasks, {}
            asking, running_tools = set(), set()
            host.ctx.on(Chunked, lambda notice: asking.add(notice.agent))
            host.ctx.on(ToolStarted, lambda notice: running_tools.add(notice.agent))
            lead = await agents.create(AgentSpec(work, json.loads(plan)["lead"][1]))
            await lead.run("hello")
            made = {"lead": lead}
            for name, (parent, model) in json.loads(plan).items():
                if not parent:
                    continue
                above = made[parent]
                task = await tasks.start(TaskSpec("begin", name, model=model, mode="continuable"), tasks.origin(above))
                await asyncio.shield(task.accepted)
                made[name] = agents.live[task.work.native]
                known[name] = {"thread": task.thread, "session": made[name].id, "parent": above.id}
                at_work = running_tools if model.startswith("scripted:") else asking
                while made[name].id not in at_work:
                    await asyncio.sleep(0.001)
                for text in ("first", "second"):
                    await service.conversations.send(task.thread, text, tasks.origin(above))
            print(json.dumps({"lead": lead.id, "known": known}), flush=True)
            await asyncio.Event().wait()

    asyncio.run(main())
    """


class Place:
    """A state directory, a model server, and processes over them."""

    def __init__(self, root: Path) -> None:
        self.root, self.state, self.work = root, root / "state", root / "work"
        self.work.mkdir()
        (root / "home").mkdir()
        (root / "patch.json").write_text(json.dumps(PATCH))
        (root / "dying.py").write_text(dedent(DYING))
        (root / "tree.py").write_text(dedent(TREE))
        self.mark = uuid.uuid4().hex
        self.started: list[subprocess.Popen[str]] = []
        self.environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(root / "home"),
            **{f"XDG_{name}_HOME": str(root / "home" / name.lower()) for name in ("CONFIG", "DATA", "STATE", "CACHE")},
            "HAMES_STATE": str(self.state),
            "KEPT_TEST": self.mark,
            "OPENAI_API_KEY": "test-key",
        }

    def start(self, *command: object, dies: str = "") -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [str(each) for each in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.work,
            env={**self.environment, "DIES": dies},
        )
        self.started.append(child)
        return child

    def serve(self) -> None:
        """Start a model server that outlives the others."""
        server = self.start(sys.executable, "-m", "hames.testing.stub")
        assert server.stdout is not None
        self.environment["OPENAI_BASE_URL"] = server.stdout.readline().strip() + "/v1"

    def run(self, *arguments: str, dies: str = "") -> str:
        """Run ``hames``.

        :param dies: ``before`` or ``after`` with a class, a method, and the number of the call at which it is killed.
        """
        head = [sys.executable, self.root / "dying.py"] if dies else [Path(sys.executable).with_name("hames")]
        more = ["--patch", str(self.root / "patch.json")] if arguments[0] == "run" else []
        child = self.start(*head, *arguments, *more, dies=dies)
        output, errors = child.communicate(timeout=LIMIT)
        assert "Traceback" not in errors, errors
        assert child.returncode == (-signal.SIGKILL if dies else 0), (output, errors)
        return output

    def resume(self, session: str, prompt: str = "go on", *, dies: str = "") -> None:
        self.run("run", prompt, "--resume", session, dies=dies)

    def script(self, name: str, *answers: dict[str, Any]) -> str:
        path = self.root / f"{name}.json"
        path.write_text(json.dumps(answers))
        return f"scripted:{path}"

    def look(self, body: Any) -> Any:
        async def read() -> Any:
            store = Store(self.state)
            try:
                return body(Ledger(store, Clock()), Sessions(store, Clock()))
            finally:
                await store.close()

        return asyncio.run(read())

    def tasks(self) -> list[TaskRecord]:
        """All tasks, the oldest first, whole."""

        def body(ledger: Ledger, _: Sessions) -> Any:
            return [ledger.get(each.id) for each in reversed(ledger.list(limit=1000))]

        return self.look(body)

    def said(self, session: str, source: str = "user") -> list[str]:
        """What a conversation was told, in order."""

        def body(_: Ledger, sessions: Sessions) -> Any:
            found = [event.data for event in sessions.read(session) if event.type == "message"]
            return [data for data in found if data["role"] == "user" and data["source"] == source]

        return ["".join(block.get("text", "") for block in data["blocks"]) for data in self.look(body)]

    def waits(self, session: str) -> list[str]:
        def body(_: Ledger, sessions: Sessions) -> Any:
            return [item.message.text for item in waiting(sessions.read(session))]

        return self.look(body)

    def notices(self, session: str) -> Counter[str]:
        """How often each task's end was told to a session."""
        texts = [text for text in self.said(session, "harness") + self.waits(session) if "has ended" in text]
        return Counter(text.split()[2] for text in texts)

    def processes(self) -> list[int]:
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"KEPT_TEST={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
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


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.end()
    assert place.processes() == []


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def sending(thread: str, text: str) -> dict[str, Any]:
    return call("send_message", agent_id=thread, message=text)


TEXTS = [{"text": f"Said {n}."} for n in range(12)]
SLEEP = {"text": "I wait.", "calls": [call("bash", command="sleep 61.5", timeout=100)]}


def killed_tree(place: Place) -> tuple[str, dict[str, dict[str, str]]]:
    """A lead and its four children at three levels after the kill: two hang in a request, two in a command, two messages wait in each."""
    place.serve()
    plan = {
        "lead": ("", place.script("lead", {"text": "Hello."})),
        "top": ("lead", place.script("top", SLEEP)),
        "other": ("lead", "openai:fault=hang;times=1;text=other"),
        "middle": ("top", place.script("middle", SLEEP)),
        "leaf": ("middle", "openai:fault=hang;times=1;text=leaf"),
    }
    process = place.start(sys.executable, place.root / "tree.py", place.state, place.work, place.root / "patch.json", json.dumps(plan))
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr is not None else ""
    made = json.loads(line)
    process.kill()
    process.wait(timeout=LIMIT)
    return made["lead"], made["known"]


@pytest.mark.slow
def test_after_a_kill_every_child_at_every_level_goes_on_with_its_own_parent(place: Place) -> None:
    lead, known = killed_tree(place)
    ids = {name: each["thread"] for name, each in known.items()}
    listed = json.loads(place.run("task", "list", "--json"))["tasks"]
    assert {each["id"]: each["status"] for each in listed} == dict.fromkeys(ids.values(), "interrupted")
    tree = json.loads(place.run("task", "tree", "--json"))["tasks"]
    assert {each["id"]: each["level"] for each in tree} == {ids["top"]: 0, ids["other"]: 0, ids["middle"]: 1, ids["leaf"]: 2}
    for each in known.values():
        assert place.said(each["session"]) == ["begin"] and place.waits(each["session"]) == ["first", "second"]
    # Messages that wait come first, a turn each: the place of an answer tells which message it follows.
    place.script("lead", {"text": "Hello."}, {"calls": [sending(ids["top"], "go on"), sending(ids["other"], "go on")]}, *TEXTS)
    place.script("top", SLEEP, *TEXTS[:2], {"calls": [sending(ids["middle"], "go on")]}, *TEXTS)
    place.script("middle", SLEEP, *TEXTS[:2], {"calls": [sending(ids["leaf"], "go on")]}, *TEXTS)
    place.resume(lead)
    records = place.tasks()
    for name, each in known.items():
        assert place.said(each["session"]) == ["begin", "first", "second", "go on"], name
        assert place.waits(each["session"]) == []
        own = [record for record in records if record.thread == each["thread"]]
        assert [record.outcome.status if record.outcome else "" for record in own] == ["interrupted", "completed"], name
        assert [[receipt.kind for receipt in record.receipts] for record in own] == [["delivered"]] * 2
        assert {record.attempts[0].native for record in own} == {each["session"]}
        told = place.notices(each["parent"])
        assert [told[record.id] for record in own] == [1, 1], name
    assert len(records) == 8
    before = place.notices(lead)
    assert sum(before.values()) == 4
    place.resume(lead, "and then?")
    assert place.notices(lead) == before and len(place.tasks()) == 8
    statuses = {each["status"] for each in json.loads(place.run("task", "list", "--json"))["tasks"]}
    assert statuses == {"interrupted", "completed"}


@pytest.mark.slow
def test_a_second_kill_in_the_middle_of_going_on_loses_and_doubles_nothing(place: Place) -> None:
    lead, known = killed_tree(place)
    ids = {name: each["thread"] for name, each in known.items()}
    go_on, more = ({"calls": [sending(ids[name], text) for name in ("top", "other")]} for text in ("again", "and again"))
    place.script("lead", {"text": "Hello."}, go_on, more, *TEXTS)
    place.script("top", SLEEP, *TEXTS)
    place.script("middle", SLEEP, *TEXTS)
    place.resume(lead, dies="after Conversations send 2")
    place.resume(lead)
    for name in ("top", "other"):
        session = known[name]["session"]
        assert place.said(session) == ["begin", "first", "second", "again", "and again"] and place.waits(session) == []
        own = [record for record in place.tasks() if record.thread == ids[name]]
        assert [place.notices(lead)[record.id] for record in own] == [1] * len(own)
        assert len(own) == 3
    for name, told in (("middle", 1), ("leaf", 0)):  # nobody has spoken to them
        assert place.waits(known[name]["session"]) == ["first", "second"]
        assert place.notices(known[name]["parent"])[ids[name]] == told


def kept_child(place: Place, *, dies: str = "", child: dict[str, Any] | None = None) -> tuple[str, str, str]:
    """A lead with one kept child: its session, the conversation, and the session of the child."""
    model = place.script("child", child or {"text": "Well."}, *TEXTS)
    giving = call("delegate", description="a bit", prompt="begin", keep=True, model=model)
    lead = place.script("lead", {"calls": [giving]}, *TEXTS)
    place.run("run", "hello", "--model", lead, dies=dies)
    (record,) = place.tasks()
    native = record.attempts[0].native if record.attempts else ""
    return record.session, record.thread, native


def answers(place: Place, session: str) -> int:
    """How many answers a conversation holds."""

    def body(_: Ledger, sessions: Sessions) -> int:
        return sum(event.type == "message" and event.data["role"] == "assistant" for event in sessions.read(session))

    return place.look(body)


def told_to_send(place: Place, session: str, thread: str, text: str, *, dies: str = "") -> None:
    """Let the lead send one message with its next answer."""
    place.script("lead", *TEXTS[: answers(place, session)], {"calls": [sending(thread, text)]}, *TEXTS)
    place.resume(session, dies=dies)


def check_told_once(place: Place, session: str) -> None:
    records = [record for record in place.tasks() if record.session == session]
    assert place.notices(session) == {record.id: 1 for record in records}
    assert [[receipt.kind for receipt in record.receipts] for record in records] == [["delivered"]] * len(records)


@pytest.mark.slow
def test_a_message_that_was_taken_and_not_answered_is_heard_once(place: Place) -> None:
    session, thread, native = kept_child(place)
    told_to_send(place, session, thread, "more", dies="after Conversations send 1")
    assert [*place.said(native), *place.waits(native)] == ["begin", "more"]
    told_to_send(place, session, thread, "last")
    assert place.said(native) == ["begin", "more", "last"] and place.waits(native) == []
    check_told_once(place, session)


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["after Ledger intend 1", "after Ledger update 1", "before Ledger attempt 1"])
def test_a_message_whose_task_was_not_launched_was_not_taken_and_harms_nothing(place: Place, dies: str) -> None:
    session, thread, native = kept_child(place)
    told_to_send(place, session, thread, "more", dies=dies)
    assert place.said(native) == ["begin"] and place.waits(native) == []
    told_to_send(place, session, thread, "last")
    assert place.said(native) == ["begin", "last"]
    check_told_once(place, session)


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["before Ledger settle 1", "after Ledger settle 1", "before Ledger receive 1", "after Ledger receive 1"])
def test_whenever_it_dies_around_the_notice_the_end_is_told_once(place: Place, dies: str) -> None:
    session, thread, native = kept_child(place, dies=dies)
    stands = sum(place.notices(session).values())
    assert stands == (1 if "receive" in dies else 0)
    for _ in range(2):
        place.resume(session)
        check_told_once(place, session)
    told_to_send(place, session, thread, "more")
    assert place.said(native) == ["begin", "more"]
    check_told_once(place, session)


@pytest.mark.slow
def test_a_kill_while_a_resumed_lead_is_being_told_tells_it_once(place: Place) -> None:
    session, thread, _ = kept_child(place, dies="before Ledger settle 1")
    place.resume(session, dies="before Ledger receive 1")
    assert place.notices(session) == {thread: 1}
    place.resume(session)
    check_told_once(place, session)


@pytest.mark.slow
def test_a_child_that_never_came_to_be_is_gone_and_told_once(place: Place) -> None:
    session, thread, _ = kept_child(place, dies="after Ledger intend 1")
    told_to_send(place, session, thread, "are you there?")
    check_told_once(place, session)

    def results(_: Ledger, sessions: Sessions) -> Any:
        found = [event.data for event in sessions.read(session) if event.type == "message" and event.data["source"] == "tool"]
        return [block.get("code", "") for data in found for block in data["blocks"]]

    assert place.look(results) == ["OUTCOME_UNKNOWN", "CONVERSATION_GONE"]
