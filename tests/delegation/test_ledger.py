"""The ledger on a real ``control.db``: what is written comes back, an outcome stays, only its owner changes a task, and damage is told."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hames.budget import Limits
from hames.content.errors import FencedError
from hames.content.finish import Usage
from hames.content.messages import clean
from hames.delegation.failures import Refused
from hames.delegation.ledger import Ledger
from hames.delegation.outcome import Outcome, UsageItem, decode_outcome
from hames.delegation.records import INLINE, Attempt
from hames.delegation.recovery import recover
from hames.delegation.spec import TaskSpec, decode_spec
from hames.delegation.view import branches, seen
from hames.sessions import Sessions
from hames.store import Store
from hames.testing.clock import FakeClock

ODD = ["", "plain", "ünï 🫠", "nul \0 in it", "\x1b[31m\x9b", "line\r\nline", "\ud83d\ude00 a pair", "x" * 5000]
ALONE = "alone \ud800 and \udcff"

texts = st.text(max_size=30) | st.sampled_from([*ODD, ALONE])
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner)
)
amounts = st.none() | st.integers(1, 10**9)
limits = st.builds(Limits, amounts, amounts, st.none() | st.floats(0.001, 1e9), st.none() | st.floats(0.001, 1e9), st.none())
specs = st.builds(
    TaskSpec,
    texts,
    texts,
    st.sampled_from(["", "spawn", "ünï"]),
    texts,
    texts,
    texts,
    st.none() | st.dictionaries(texts, values, min_size=1, max_size=3),
    st.none() | st.lists(texts, min_size=1, max_size=3).map(tuple),
    st.sampled_from(["", "read-only", "full"]),
    limits,
    texts,
    texts,
    st.dictionaries(texts, texts, max_size=2),
    st.sampled_from(["foreground", "background", "continuable"]),
    st.integers(0, 9),
    st.integers(-9, 9),
    st.sampled_from(["enforced", "requested"]),
    st.lists(texts, max_size=3).map(tuple),
)
counts = st.integers(0, 2**40)
items = st.builds(
    UsageItem,
    texts,
    st.builds(Usage, counts, counts, counts, counts, counts),
    st.sampled_from(["own", "below"]),
    st.sampled_from(["reported", "estimated"]),
)
outcomes = st.builds(
    Outcome,
    st.sampled_from(["completed", "aborted", "budget", "error", "unknown"]),
    st.sampled_from(["none", "child", "infrastructure"]),
    texts,
    texts,
    values,
    texts,
    st.sampled_from([None, True, False]),
    st.integers(0, 9),
    st.booleans(),
    texts,
    st.lists(items, max_size=2).map(tuple),
    st.none() | st.floats(0, 1e6),
    st.dictionaries(texts, st.sampled_from(["enforced", "requested"]), max_size=2),
    st.integers(1, 9),
    counts,
    texts,
    texts,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
async def store(root: Path) -> AsyncIterator[Store]:
    store = Store(root)
    yield store
    await store.close()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert others == []
    assert open_files(root) == []


def open_files(root: Path) -> list[str]:
    """What this process has open below a directory."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except FileNotFoundError:  # the listing itself
            continue
    return [name for name in found if name.startswith(str(root))]


@pytest.fixture
def ledger(store: Store) -> Ledger:
    return Ledger(store, FakeClock())


async def intend(ledger: Ledger, id: str = "", spec: TaskSpec | None = None, **more: Any) -> str:
    id = id or ledger.new_id()
    place = {"parent": "", "root": "", "session": "", "call": "", "depth": 1, **more}
    await ledger.intend(id, spec or TaskSpec(f"do {id}"), **place)
    return id


def alter(root: Path, sql: str, *parameters: Any) -> None:
    """Change the database behind the ledger's back."""
    connection = apsw.Connection(str(root / "control.db"))
    connection.set_busy_timeout(5000)
    connection.execute(sql, parameters)
    connection.close()


def cleaned(value: Any) -> Any:
    """What is left of a value in UTF-8."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): cleaned(each) for key, each in value.items()}
    return [cleaned(each) for each in value] if isinstance(value, list) else value


# what is written comes back


@settings(max_examples=40, deadline=None)
@given(specs, outcomes)
def test_the_durable_form_of_a_spec_and_of_an_outcome_says_all_of_them(spec: TaskSpec, outcome: Outcome) -> None:
    assert decode_spec(spec.as_json()) == spec
    assert decode_outcome(outcome.as_json()) == outcome
    json.dumps([spec.as_json(), outcome.as_json()], allow_nan=False)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=specs, outcome=outcomes, receipt=st.dictionaries(texts, values, max_size=3))
async def test_every_record_comes_back_as_it_was_written(ledger: Ledger, spec: TaskSpec, outcome: Outcome, receipt: dict[str, Any]) -> None:
    id = await intend(ledger, spec=spec, session="a session", call="call \0 1", depth=3, parent="p", root="r", thread="th")
    await ledger.attempt(id, 1, Attempt(1, "r/1", "digest", "native", 5.5, 0.0, ""))
    await ledger.attempt(id, 1, Attempt(1, "r/1", "digest", "native", 5.5, 6.5, "completed"))
    await ledger.attempt(id, 1, Attempt(2, "r/2", "", "", 7.25, 1e300, "ü\0"))
    await ledger.settle(id, 1, outcome, liveness="undetermined", cause="because \0")
    await ledger.receive(id, "kind", receipt)
    record = ledger.get(id)
    assert record is not None
    assert record.damaged == ()
    assert record.spec.as_json() == cleaned(spec.as_json())
    assert record.outcome is not None
    assert record.outcome.as_json() == cleaned(outcome.as_json())
    assert (record.session, record.call, record.depth, record.parent, record.root) == ("a session", "call \0 1", 3, "p", "r")
    assert (record.thread, record.state, record.liveness, record.publication) == ("th", "settled", "undetermined", "committed")
    assert (record.cause, record.admission, record.epoch) == ("because \0", "admitted", 1)
    assert record.attempts == (
        Attempt(1, "r/1", "digest", "native", 5.5, 6.5, "completed"),
        Attempt(2, "r/2", "", "", 7.25, 1e300, "ü\0"),
    )
    ((kind, data),) = ((each.kind, each.data) for each in record.receipts)
    assert (kind, data) == ("kind", cleaned(receipt))
    json.dumps(record.as_json())


def test_a_schema_that_allows_everything_is_still_a_schema_when_it_comes_back() -> None:
    assert decode_spec(TaskSpec("do it", schema={}).as_json()).schema == {}


@pytest.mark.parametrize("endless", [math.inf, math.nan])
@pytest.mark.parametrize("where", ["budget", "value", "cost", "receipt"])
async def test_a_number_that_json_has_not_hides_no_task(ledger: Ledger, where: str, endless: float) -> None:
    other = await intend(ledger)
    id = ledger.new_id()
    try:  # it may be refused or be kept as something else, but what is taken must be readable
        await intend(ledger, id, TaskSpec("do it", budget=Limits(seconds=endless if where == "budget" else 5)))
        if where == "receipt":
            await ledger.receive(id, "kind", {"n": endless})
        else:
            outcome = Outcome("completed", text="x", schema_valid=True, value={"n": endless} if where == "value" else 5)
            await ledger.settle(id, 1, replace(outcome, cost=endless if where == "cost" else 1.0))
    except (Refused, ValueError):
        pass
    assert other in [each.id for each in ledger.list()]
    assert ledger.get(other) is not None
    ledger.get(id)


async def test_times_that_are_whole_numbers_are_not_taken_for_damage(ledger: Ledger) -> None:
    ledger.clock.now = lambda: 1_700_000_000  # type: ignore[method-assign]
    id = await intend(ledger)
    await ledger.attempt(id, 1, Attempt(1, "r", "", "", 5, 0, ""))
    await ledger.settle(id, 1, Outcome("completed", text="x"))
    await ledger.receive(id, "kind", {})
    record = ledger.get(id)
    assert record is not None
    assert record.damaged == ()


@pytest.mark.parametrize("field", ["call", "cause", "native", "stop"])
async def test_text_that_is_no_unicode_is_kept_as_far_as_it_goes(ledger: Ledger, field: str) -> None:
    given = {field: ALONE}
    id = await intend(ledger, call=given.get("call", ""))
    await ledger.attempt(id, 1, Attempt(1, "r", "", given.get("native", ""), 1.5, 2.5, "x"))
    await ledger.update(id, 1, "running", cause=given.get("cause", ""))
    await ledger.ask_to_stop(id, given.get("stop", "user"))
    await ledger.receive(id, "kind", {})
    record = ledger.get(id)
    assert record is not None
    assert record.damaged == ()


async def test_asking_for_a_name_that_is_no_unicode_finds_nothing(ledger: Ledger) -> None:
    await intend(ledger)
    assert ledger.get("t\udcff") is None
    assert ledger.below("t\udcff") == []
    assert ledger.stop_of("t\udcff") is None
    ledger.list(before="t\udcff")


async def test_members_of_later_versions_are_passed_over(root: Path, ledger: Ledger) -> None:
    spec = decode_spec({"prompt": "p", "later": {"a": 1}, "budget": {"steps": 3, "later": 5}, "label": "l"})
    assert spec == TaskSpec("p", "l", budget=Limits(steps=3))
    outcome = decode_outcome({"status": "completed", "later": [1], "usage": [{"model": "m", "input": 5, "later": 1}], "text": "t"})
    assert outcome == Outcome("completed", text="t", usage=(UsageItem("m", Usage(input=5)),))
    assert decode_outcome({}).status == "unknown"
    id = await intend(ledger)
    await ledger.settle(id, 1, Outcome("completed", text="x"))
    alter(root, "UPDATE outcomes SET v = 9")
    record = ledger.get(id)
    assert record is not None and record.outcome is not None
    assert record.damaged == ()


@pytest.mark.parametrize("table", ["threads", "tasks", "states", "attempts", "outcomes", "receipts", "stops"])
async def test_a_later_version_may_have_added_a_column_with_a_default(root: Path, ledger: Ledger, table: str) -> None:
    await intend(ledger)
    alter(root, f"ALTER TABLE {table} ADD COLUMN later TEXT NOT NULL DEFAULT 'x'")
    id = await intend(ledger)
    await ledger.attempt(id, 1, Attempt(1, "r", "", "", 1.5, 2.5, "x"))
    await ledger.update(id, 1, "running")
    await ledger.ask_to_stop(id, "user")
    await ledger.settle(id, 1, Outcome("completed", text="x"))
    await ledger.receive(id, "kind", {})
    record = ledger.get(id)
    assert record is not None and record.outcome is not None
    assert (record.damaged, len(record.attempts), len(record.receipts)) == ((), 1, 1)


async def test_what_was_written_is_there_for_another_process(root: Path, ledger: Ledger) -> None:
    id = await intend(ledger, spec=TaskSpec("do it", labels=("a",)))
    await ledger.settle(id, 1, Outcome("completed", text="Done."))
    program = """
        import asyncio, json, sys
        from pathlib import Path
        from hames.content.clock import Clock
        from hames.delegation.ledger import Ledger
        from hames.store import Store
        async def main():
            store = Store(Path(sys.argv[1]))
            print(json.dumps([each.as_json() for each in Ledger(store, Clock()).list()]))
            await store.close()
        asyncio.run(main())
        """
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", dedent(program), str(root)], capture_output=True, text=True, timeout=20, check=True
    )
    mine = ledger.get(id)
    assert mine is not None
    assert json.loads(done.stdout) == [mine.as_json()]


# once and for all


async def test_a_name_is_taken_once(ledger: Ledger) -> None:
    id = await intend(ledger, spec=TaskSpec("the first"))
    with pytest.raises(Refused) as refused:
        await intend(ledger, id, TaskSpec("the second"))
    assert refused.value.code == "TASK_CONFLICT"
    record = ledger.get(id)
    assert record is not None
    assert (record.spec.prompt, record.state, record.damaged) == ("the first", "intended", ())


async def test_a_refused_write_takes_no_other_of_the_same_commit_with_it(ledger: Ledger) -> None:
    id = await intend(ledger)
    place = {"parent": "", "root": "", "session": "", "call": "", "depth": 1}
    tickets = [ledger.intend(name, TaskSpec("x"), **place) for name in ("a1", id, "a2")]
    got = await asyncio.gather(*(settled(ticket) for ticket in tickets), return_exceptions=True)
    assert [type(each) for each in got] == [type(None), Refused, type(None)]
    assert [each.id for each in ledger.list()] == sorted([id, "a1", "a2"], reverse=True)


async def settled(ticket: Any) -> Any:
    return await ticket


async def test_an_outcome_is_written_once(ledger: Ledger) -> None:
    id = await intend(ledger)
    await ledger.settle(id, 1, Outcome("completed", text="the first"))
    before = ledger.get(id)
    with pytest.raises(FencedError):
        await ledger.settle(id, 1, Outcome("aborted", "none", "CANCELLED"), cause="user")
    assert ledger.get(id) == before


async def test_two_outcomes_in_one_commit_leave_the_first(ledger: Ledger) -> None:
    id = await intend(ledger)
    first, second = ledger.settle(id, 1, Outcome("completed", text="1")), ledger.settle(id, 1, Outcome("completed", text="2"))
    await first
    with pytest.raises(FencedError):
        await second
    record = ledger.get(id)
    assert record is not None and record.outcome is not None
    assert record.outcome.text == "1"


async def test_a_late_word_of_its_state_does_not_reopen_a_task_that_has_an_outcome(ledger: Ledger) -> None:
    id = await intend(ledger)
    ending = ledger.settle(id, 1, Outcome("completed", text="x"))
    try:  # somebody cancels it while its outcome is on its way to the disk
        await ledger.update(id, 1, "stopping", cause="user")
    except FencedError:
        pass
    await ending
    record = ledger.get(id)
    assert record is not None
    assert (record.state, record.publication, record.liveness, record.cause) == ("settled", "committed", "ended", "")
    assert ledger.list(live=True) == []


async def test_receipts_come_later_in_order_and_change_nothing_of_the_outcome(ledger: Ledger) -> None:
    id = await intend(ledger)
    await ledger.settle(id, 1, Outcome("completed", text="x"))
    before = ledger.get(id)
    assert before is not None
    for n in range(12):
        await ledger.receive(id, f"kind {n}", {"n": n})
    record = ledger.get(id)
    assert record is not None
    assert [each.data for each in record.receipts] == [{"n": n} for n in range(12)]
    assert replace(record, receipts=()) == before


# two owners


async def test_only_its_owner_in_its_epoch_changes_a_task(root: Path, ledger: Ledger) -> None:
    other_store = Store(root)
    other = Ledger(other_store, FakeClock())
    id = await intend(ledger)
    attempt = Attempt(1, "r", "", "", 1.5, 0.0, "")
    before = ledger.get(id)
    for who, epoch in ((other, 1), (ledger, 0), (ledger, 2)):
        for ticket in (
            who.update(id, epoch, "running"),
            who.attempt(id, epoch, attempt),
            who.settle(id, epoch, Outcome("completed", text="x")),
        ):
            with pytest.raises(FencedError):
                await ticket
    assert ledger.get(id) == before
    assert before is not None
    await other.take_over(before)
    for ticket in (
        ledger.update(id, 1, "running"),
        ledger.attempt(id, 1, attempt),
        ledger.settle(id, 1, Outcome("completed", text="the old one")),
        ledger.update(id, 2, "running"),
    ):
        with pytest.raises(FencedError):
            await ticket
    await other.settle(id, 2, Outcome("completed", text="the new one"))
    record = ledger.get(id)
    assert record is not None and record.outcome is not None
    assert (record.outcome.text, record.epoch, record.owner, record.damaged) == ("the new one", 2, other_store.owner.id, ())
    await other_store.close()


async def test_taking_over_needs_the_record_as_it_is_now(root: Path, ledger: Ledger) -> None:
    stores = [Store(root), Store(root)]
    one, two = (Ledger(each, FakeClock()) for each in stores)
    id = await intend(ledger)
    record = ledger.get(id)
    assert record is not None
    got = await asyncio.gather(settled(one.take_over(record)), settled(two.take_over(record)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in got) == ["FencedError", "NoneType"]
    with pytest.raises(FencedError):
        await two.take_over(record)
    now = ledger.get(id)
    assert now is not None
    assert (now.epoch, now.damaged) == (2, ())
    for each in stores:
        await each.close()


async def test_tasks_of_the_living_are_no_orphans_and_those_of_the_dead_are(root: Path, ledger: Ledger) -> None:
    other_store = Store(root)
    other = Ledger(other_store, FakeClock())
    mine, theirs, ended = await intend(ledger), await intend(other), await intend(other)
    await other.settle(ended, 1, Outcome("completed", text="x"))
    assert ledger.orphans() == []
    record = ledger.get(theirs)
    assert record is not None
    look = seen(record, ledger.store.owner.alive)
    assert (look.status, look.live) == ("intended", True)
    await other_store.close()
    assert [each.id for each in ledger.orphans()] == [theirs]
    look = seen(record, ledger.store.owner.alive)
    assert (look.status, look.live, look.liveness, look.publication) == ("interrupted", False, "ended", "unknown")
    assert ledger.get(theirs) == record  # looking changes nothing
    contained: list[Any] = []
    await recover(ledger, Sessions(ledger.store, FakeClock()), lambda what, error: contained.append(error))
    settled_record, untouched = ledger.get(theirs), ledger.get(mine)
    assert settled_record is not None and settled_record.outcome is not None and untouched is not None
    assert (settled_record.outcome.status, settled_record.outcome.code, settled_record.outcome.attempts) == ("interrupted", "HOST_DIED", 0)
    assert (untouched.outcome, contained) == (None, [])


RECOVERING = """
    import asyncio, sys
    from pathlib import Path
    from hames.content.clock import Clock
    from hames.content.errors import FencedError
    from hames.delegation.ledger import Ledger
    from hames.delegation.outcome import Outcome
    from hames.store import Store
    async def main():
        store = Store(Path(sys.argv[1]))
        ledger = Ledger(store, Clock())
        found = ledger.orphans()
        print(len(found), flush=True)
        sys.stdin.readline()
        won = 0
        for record in found:
            try:
                await ledger.take_over(record)
                await ledger.settle(record.id, record.epoch + 1, Outcome("interrupted", text=sys.argv[2]))
                won += 1
            except FencedError:
                pass
        print(won, flush=True)
        sys.stdin.readline()
        await store.close()
    asyncio.run(main())
    """


async def test_two_processes_that_take_over_at_once_settle_each_task_once(root: Path, ledger: Ledger) -> None:
    dead_store = Store(root)
    dead = Ledger(dead_store, FakeClock())
    ids = [await intend(dead) for _ in range(30)]
    await dead_store.close()
    command = [sys.executable, "-c", dedent(RECOVERING), str(root)]
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    children = [await asyncio.create_subprocess_exec(*command, name, **pipes) for name in ("a", "b")]
    try:
        async with asyncio.timeout(20):
            assert [int(await child.stdout.readline()) for child in children] == [30, 30]
            for child in children:
                child.stdin.write(b"\n")
            won = [int(await child.stdout.readline()) for child in children]
            records = [ledger.get(id) for id in ids]
            for child in children:
                child.stdin.write(b"\n")
                assert await child.wait() == 0
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
                await child.wait()
    assert sum(won) == 30
    told = [record.outcome.text for record in records if record is not None and record.outcome is not None]
    assert [told.count("a"), told.count("b")] == won
    assert {(record.epoch, record.damaged) for record in records if record is not None} == {(2, ())}


# damage

COLUMNS = {
    "tasks": ("thread", "parent", "root", "session", "call", "depth", "created", "digest", "spec"),
    "states": ("state", "waiting", "admission", "liveness", "publication", "cause", "owner", "epoch", "updated"),
    "outcomes": ("settled", "data"),
    "attempts": ("runner", "digest", "owner", "epoch", "native", "began", "ended", "exit"),
    "receipts": ("kind", "time", "data"),
}
MARKS = {"tasks": "task", "states": "state", "outcomes": "outcome", "attempts": "attempt 1", "receipts": "receipt 1"}
NUMBERS = {"depth", "created", "epoch", "updated", "settled", "began", "ended", "time"}
CASES = [(table, column) for table, own in COLUMNS.items() for column in own]
FULL = {"session": "session", "call": "call", "parent": "parent", "root": "root"}


async def three(ledger: Ledger) -> list[str]:
    """Three tasks with a record of every kind; the one in the middle is to be damaged."""
    ids = []
    for _ in range(3):
        id = await intend(ledger, **FULL)
        await ledger.attempt(id, 1, Attempt(1, "runner", "digest", "native", 5.5, 6.5, "completed"))
        await ledger.update(id, 1, "waiting", waiting="child", cause="cause")
        await ledger.settle(id, 1, Outcome("completed", text="Done."), cause="cause")
        await ledger.receive(id, "kind", {"a": 1})
        ids.append(id)
    return ids


def key(table: str) -> str:
    return "id" if table in ("tasks", "threads") else "task"


def check_damage(ledger: Ledger, ids: list[str], mark: str) -> None:
    """The one in the middle is marked, wherever it is looked at; the others stand as they were."""
    record = ledger.get(ids[1])
    assert record is not None
    assert record.damaged == (mark,)
    listed = ledger.list()
    assert [each.id for each in listed] == ids[::-1]
    for id in (ids[0], ids[2]):
        whole = ledger.get(id)
        assert whole is not None and whole.outcome is not None
        assert (whole.damaged, whole.outcome.text, whole.spec.prompt) == ((), "Done.", f"do {id}")
    for each in (*listed, record):
        json.dumps(seen(each, ledger.store.owner.alive).as_json())
    if mark == "outcome":
        assert record.outcome is None
        assert seen(record, ledger.store.owner.alive).status == "unknown"
        assert not seen(record, ledger.store.owner.alive).live
    elif mark != "state":
        assert seen(record, ledger.store.owner.alive).status == "completed"


@pytest.mark.parametrize(("table", "column"), CASES)
async def test_a_flipped_bit_marks_its_record_and_hides_no_other(root: Path, ledger: Ledger, table: str, column: str) -> None:
    ids = await three(ledger)
    connection = apsw.Connection(str(root / "control.db"))
    ((value,),) = connection.execute(f"SELECT {column} FROM {table} WHERE {key(table)} = ?", (ids[1],))
    if isinstance(value, bytes):
        changed: Any = value[:-2] + bytes([value[-2] ^ 1]) + value[-1:]
    elif isinstance(value, str):
        changed = chr(ord(value[0]) ^ 1) + value[1:] if value else "x"
    else:
        changed = value + 1
    connection.execute(f"UPDATE {table} SET {column} = ? WHERE {key(table)} = ?", (changed, ids[1]))
    connection.close()
    check_damage(ledger, ids, MARKS[table])


@pytest.mark.parametrize(("table", "column"), [(t, c) for t, c in CASES if c not in NUMBERS and c not in ("data", "spec")])
async def test_a_text_that_is_no_utf_8_any_more_marks_its_record_and_hides_no_other(
    root: Path, ledger: Ledger, table: str, column: str
) -> None:
    ids = await three(ledger)
    alter(root, f"UPDATE {table} SET {column} = CAST(X'f0e1' AS TEXT) WHERE {key(table)} = ?", ids[1])
    check_damage(ledger, ids, MARKS[table])


@pytest.mark.parametrize(("table", "column"), CASES)
async def test_a_value_of_another_type_marks_its_record_and_hides_no_other(root: Path, ledger: Ledger, table: str, column: str) -> None:
    ids = await three(ledger)
    other = "CAST('five' AS TEXT)" if column in NUMBERS or column in ("data", "spec") else "X'00ff'"
    alter(root, f"UPDATE {table} SET {column} = {other} WHERE {key(table)} = ?", ids[1])
    check_damage(ledger, ids, MARKS[table])


@pytest.mark.parametrize("table", list(COLUMNS))
async def test_a_wrong_checksum_marks_the_record(root: Path, ledger: Ledger, table: str) -> None:
    ids = await three(ledger)
    alter(root, f"UPDATE {table} SET crc = crc + 1 WHERE {key(table)} = ?", ids[1])
    check_damage(ledger, ids, MARKS[table])


@pytest.mark.parametrize(("table", "mark"), [("states", "state"), ("outcomes", "outcome")])
async def test_a_row_that_has_gone_is_damage(root: Path, ledger: Ledger, table: str, mark: str) -> None:
    ids = await three(ledger)
    alter(root, f"DELETE FROM {table} WHERE task = ?", ids[1])
    check_damage(ledger, ids, mark)


async def test_rows_of_two_tasks_that_are_exchanged_are_damage(root: Path, ledger: Ledger) -> None:
    ids = await three(ledger)
    for table in ("states", "outcomes"):
        for old, new in ((ids[0], "-"), (ids[1], ids[0]), ("-", ids[1])):
            alter(root, f"UPDATE {table} SET task = ? WHERE task = ?", new, old)
    for id in ids[:2]:
        record = ledger.get(id)
        assert record is not None
        assert record.damaged == ("state", "outcome")


async def test_a_damaged_request_to_stop_is_marked(root: Path, ledger: Ledger) -> None:
    id = await intend(ledger)
    await ledger.ask_to_stop(id, "user")
    alter(root, "UPDATE stops SET cause = 'usex'")
    record = ledger.get(id)
    assert record is not None
    assert record.damaged or ledger.stop_of(id) != ("usex", ledger.clock.now(), 0.0)


async def test_a_task_with_a_damaged_state_of_a_dead_process_is_not_live(root: Path, ledger: Ledger) -> None:
    dead_store = Store(root)
    id = await intend(Ledger(dead_store, FakeClock()))
    await dead_store.close()
    alter(root, "UPDATE states SET updated = updated + 1")
    record = ledger.get(id)
    assert record is not None
    look = seen(record, ledger.store.owner.alive)
    assert record.damaged == ("state",)
    assert look.status in ("unknown", "interrupted")
    assert not look.live  # whoever waits until nothing lives would wait for ever


async def test_recovery_goes_past_a_damaged_task_and_can_be_repeated(root: Path, ledger: Ledger) -> None:
    dead_store = Store(root)
    dead = Ledger(dead_store, FakeClock())
    ids = [await intend(dead) for _ in range(3)]
    await dead_store.close()
    alter(root, "UPDATE states SET updated = updated + 1 WHERE task = ?", ids[0])
    alter(root, "UPDATE tasks SET digest = 'x' WHERE id = ?", ids[1])
    for _ in range(2):
        await recover(ledger, Sessions(ledger.store, FakeClock()), lambda what, error: None)
        found = [ledger.get(id) for id in ids]
        assert [each.outcome.code for each in found[1:] if each is not None and each.outcome is not None] == ["HOST_DIED"] * 2


# long outcomes


@pytest.mark.parametrize("text", ["x" * INLINE, "ü" * INLINE, "\ud800" * INLINE, "y" * 3_000_000])
async def test_a_long_outcome_is_a_blob_and_comes_back(root: Path, ledger: Ledger, text: str) -> None:
    id = await intend(ledger)
    await ledger.settle(id, 1, Outcome("completed", text=text))
    record = ledger.get(id)
    assert record is not None and record.outcome is not None
    assert record.outcome.text == clean(text)
    ((size,),) = ledger.store.control.query("SELECT length(data) FROM outcomes")
    assert size < 200
    assert len([path for path in (root / "blobs").rglob("*") if path.is_file()]) == 1


async def test_a_short_outcome_is_no_blob(root: Path, ledger: Ledger) -> None:
    id = await intend(ledger)
    await ledger.settle(id, 1, Outcome("completed", text="x" * (INLINE - 100)))
    assert not (root / "blobs").exists()


@pytest.mark.parametrize("how", ["missing", "flipped", "empty", "directory"])
async def test_an_outcome_whose_blob_is_damaged_is_told_as_unknown_and_hides_no_other(root: Path, ledger: Ledger, how: str) -> None:
    ids = await three(ledger)
    long = await intend(ledger)
    await ledger.settle(long, 1, Outcome("completed", text="x" * INLINE))
    (blob,) = (path for path in (root / "blobs").rglob("*") if path.is_file())
    if how == "flipped":
        blob.write_bytes(b"X" + blob.read_bytes()[1:])
    elif how == "empty":
        blob.write_bytes(b"")
    else:
        blob.unlink()
        if how == "directory":
            blob.mkdir()
    record = ledger.get(long)
    assert record is not None
    look = seen(record, ledger.store.owner.alive)
    assert (record.outcome, record.damaged, look.status, look.publication, look.live) == (None, ("outcome",), "unknown", "unknown", False)
    assert [each.id for each in ledger.list()] == [long, *ids[::-1]]
    with pytest.raises(FencedError):  # damaged is not open
        await ledger.settle(long, 1, Outcome("completed", text="another"))


# names


def test_names_sort_by_the_time_of_their_creation(store: Store) -> None:
    clock = FakeClock()
    ledger = Ledger(store, clock)
    names = []
    for n in range(2000):
        clock.advance([0.0, 0.0, 0.0001, 0.001, 3.0][n % 5])
        names.append(ledger.new_id())
    clock.advance(-100)  # the clock is set back
    names += [ledger.new_id() for _ in range(5)]
    clock.advance(10**9)
    names.append(ledger.new_id())
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert {len(name) for name in names} == {16}
    assert all(name.isalnum() and name.isascii() and name.islower() for name in names)


NAMING = """
    import asyncio, sys, time
    from pathlib import Path
    from hames.content.clock import Clock
    from hames.delegation.ledger import Ledger
    from hames.store import Store
    async def main():
        store = Store(Path(sys.argv[1]))
        ledger = Ledger(store, Clock())
        print("ready", flush=True)
        sys.stdin.readline()
        print(" ".join(ledger.new_id() for _ in range(20000)), flush=True)
        await store.close()
    asyncio.run(main())
    """


def test_processes_that_name_tasks_at_the_same_time_never_make_the_same_name(root: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen([sys.executable, "-c", dedent(NAMING), str(root)], **pipes) for _ in range(2)]
    try:
        for child in children:
            assert child.stdout.readline() == "ready\n"
        for child in children:
            child.stdin.write("\n")
            child.stdin.flush()
        names = [name for child in children for name in child.communicate(timeout=20)[0].split()]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.communicate()
    assert len(names) == 40000
    assert len(names) - len(set(names)) == 0


async def test_owners_that_name_tasks_in_the_same_moment_never_make_the_same_name(root: Path, store: Store) -> None:
    clock = FakeClock()
    other = Store(root)
    ledgers = [Ledger(store, clock), Ledger(other, clock)]
    names = [ledger.new_id() for _ in range(3000) for ledger in ledgers]
    await other.close()
    assert len(names) - len(set(names)) == 0


# reading many


async def test_pages_have_every_task_once_the_newest_first_while_others_are_added(ledger: Ledger) -> None:
    ids = [await intend(ledger) for _ in range(25)]
    found: list[str] = []
    while page := ledger.list(limit=7, before=found[-1] if found else ""):
        assert len(page) <= 7
        found += [each.id for each in page]
        await intend(ledger)  # newer ones come on no later page
    assert found == ids[::-1]
    assert ledger.list(before=ids[0]) == []
    assert ledger.list(limit=0) == []


async def test_the_living_are_listed_alone(ledger: Ledger) -> None:
    ids = [await intend(ledger) for _ in range(6)]
    for id in ids[::2]:
        await ledger.settle(id, 1, Outcome("completed", text="x"))
    await ledger.update(ids[1], 1, "waiting", waiting="slot")
    live = ledger.list(live=True)
    assert [each.id for each in live] == ids[5:0:-2]
    assert [seen(each, ledger.store.owner.alive).status for each in live] == ["intended", "intended", "waiting (slot)"]


async def test_the_tree_of_a_task_is_read_from_its_records(ledger: Ledger) -> None:
    top = await intend(ledger, session="s")
    left, right = [await intend(ledger, parent=top, root=top, depth=2) for _ in range(2)]
    below = await intend(ledger, parent=left, root=top, depth=3)
    other = await intend(ledger, session="s")
    record = ledger.get(top)
    assert record is not None
    assert [(level, each.id) for level, each in branches(ledger, record)] == [(0, top), (1, left), (2, below), (1, right)]
    assert [each.id for each in ledger.below("s")] == [top, other]
    assert ledger.below("nobody") == []


async def test_damage_that_makes_a_task_its_own_parent_does_not_make_its_tree_endless(root: Path, ledger: Ledger) -> None:
    id = await intend(ledger)
    alter(root, "UPDATE tasks SET parent = id")
    record = ledger.get(id)
    assert record is not None
    assert len(list(zip(branches(ledger, record), range(5), strict=False))) == 1


async def test_the_first_cause_of_a_stop_is_kept_and_only_its_owner_is_told(root: Path, ledger: Ledger) -> None:
    other_store = Store(root)
    other = Ledger(other_store, FakeClock())
    id, elsewhere = await intend(ledger), await intend(other)
    await other.ask_to_stop(id, "the first")
    await other.ask_to_stop(id, "the second")
    await ledger.ask_to_stop(elsewhere, "mine")
    assert (ledger.stops(), other.stops()) == ([(id, "the first")], [(elsewhere, "mine")])
    assert ledger.stop_of(id) == ("the first", other.clock.now(), 0.0)
    ledger.acknowledge([id])
    await ledger.store.control.flush()
    assert (ledger.stops(), other.stops()) == ([], [(elsewhere, "mine")])
    stop = other.stop_of(id)
    assert stop is not None
    assert stop[2] > 0
    await other_store.close()


async def test_nothing_is_written_by_reading(root: Path, ledger: Ledger) -> None:
    ids = await three(ledger)
    dead_store = Store(root)
    await intend(Ledger(dead_store, FakeClock()))
    await dead_store.close()
    before = content(root)
    for id in ids:
        record = ledger.get(id)
        assert record is not None
        seen(record, ledger.store.owner.alive)
        list(branches(ledger, record))
        ledger.stop_of(id)
    for found in (ledger.list(), ledger.list(live=True), ledger.below("session"), ledger.orphans(), ledger.stops()):
        assert isinstance(found, list)
    await ledger.store.control.flush()
    assert content(root) == before


def content(root: Path) -> list[Any]:
    connection = apsw.Connection(str(root / "control.db"))
    found = [list(connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2")) for table in (*COLUMNS, "stops", "threads")]
    connection.close()
    return found


# all of it together


@dataclass
class Known:
    """What the model knows of a task."""

    spec: TaskSpec
    parent: str
    session: str
    owner: int | None
    """The number of its owner; None for one that has died."""
    epoch: int = 1
    state: str = "intended"
    waiting: str = ""
    outcome: Outcome | None = None
    attempts: dict[int, Attempt] = field(default_factory=dict)
    receipts: list[dict[str, Any]] = field(default_factory=list)
    stop: str = ""
    heard: bool = False


class LedgerMachine(RuleBasedStateMachine):
    """Two owners over one state directory that do all that a ledger can, and die now and then; a model says what must come of it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.known: dict[str, Known] = {}
        self.ledgers: list[Ledger] = []

    def do(self, awaitable: Any) -> Any:
        async def body() -> Any:
            return await awaitable

        return self.loop.run_until_complete(body())

    def opened(self) -> Ledger:
        async def body() -> Ledger:
            store = Store(self.root)
            assert store.control is not None
            return Ledger(store, self.clock)

        return self.loop.run_until_complete(body())

    @initialize()
    def begin(self) -> None:
        self.ledgers = [self.opened(), self.opened()]

    def pick(self, data: st.DataObject) -> tuple[str, Known]:
        id = data.draw(st.sampled_from(sorted(self.known)))
        return id, self.known[id]

    def allowed(self, known: Known, who: int, epoch: int) -> bool:
        return known.owner == who and known.epoch == epoch

    def attempted(self, ticket: Any, allowed: bool) -> None:
        if allowed:
            self.do(ticket)
        else:
            with pytest.raises(FencedError):
                self.do(ticket)

    @rule(who=st.integers(0, 1), spec=st.builds(TaskSpec, texts, texts), session=st.sampled_from(["", "s1", "s2"]), data=st.data())
    def intends(self, who: int, spec: TaskSpec, session: str, data: st.DataObject) -> None:
        self.clock.advance(0.002)
        parent = data.draw(st.sampled_from(["", *sorted(self.known)]))
        id = self.ledgers[who].new_id()
        assert id not in self.known
        self.do(intend(self.ledgers[who], id, spec, parent=parent, session=session))
        self.known[id] = Known(spec, parent, session, who)

    @precondition(lambda self: self.known)
    @rule(who=st.integers(0, 1), data=st.data())
    def intends_what_is_there(self, who: int, data: st.DataObject) -> None:
        id, _ = self.pick(data)
        with pytest.raises(Refused):
            self.do(intend(self.ledgers[who], id, TaskSpec("another")))

    @precondition(lambda self: any(each.outcome is None for each in self.known.values()))
    @rule(who=st.integers(0, 1), epoch=st.integers(1, 3), waits=st.booleans(), data=st.data())
    def updates(self, who: int, epoch: int, waits: bool, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(id for id, each in self.known.items() if each.outcome is None)))
        known, ok = self.known[id], self.allowed(self.known[id], who, epoch)
        state, waiting = ("waiting", "child") if waits else ("running", "")
        self.attempted(self.ledgers[who].update(id, epoch, state, waiting=waiting), ok)
        if ok:
            known.state, known.waiting = state, waiting

    @precondition(lambda self: self.known)
    @rule(who=st.integers(0, 1), epoch=st.integers(1, 3), n=st.integers(1, 3), exit=texts.map(clean), data=st.data())
    def launches(self, who: int, epoch: int, n: int, exit: str, data: st.DataObject) -> None:
        id, known = self.pick(data)
        attempt, ok = Attempt(n, "r/1", "", f"native {n}", 1.5, 2.5, exit), self.allowed(known, who, epoch)
        self.attempted(self.ledgers[who].attempt(id, epoch, attempt), ok)
        if ok:
            known.attempts[n] = attempt

    @precondition(lambda self: self.known)
    @rule(who=st.integers(0, 1), epoch=st.integers(1, 3), text=texts, long=st.booleans(), data=st.data())
    def settles(self, who: int, epoch: int, text: str, long: bool, data: st.DataObject) -> None:
        id, known = self.pick(data)
        outcome = Outcome("completed", text=text + ("long " * 20000 if long else ""))
        ok = self.allowed(known, who, epoch) and known.outcome is None
        self.attempted(self.ledgers[who].settle(id, epoch, outcome), ok)
        if ok:
            known.outcome, known.state, known.waiting = outcome, "settled", ""

    @precondition(lambda self: self.known)
    @rule(who=st.integers(0, 1), data=st.data())
    def receives(self, who: int, data: st.DataObject) -> None:
        id, known = self.pick(data)
        self.do(self.ledgers[who].receive(id, "kind", {"n": len(known.receipts)}))
        known.receipts.append({"n": len(known.receipts)})

    @precondition(lambda self: self.known)
    @rule(who=st.integers(0, 1), cause=texts.filter(bool).map(clean), data=st.data())
    def asks_to_stop(self, who: int, cause: str, data: st.DataObject) -> None:
        id, known = self.pick(data)
        self.do(self.ledgers[who].ask_to_stop(id, cause))
        known.stop = known.stop or cause

    @rule(who=st.integers(0, 1))
    def hears(self, who: int) -> None:
        ledger = self.ledgers[who]
        wanted = {
            id: each.stop for id, each in self.known.items() if each.stop and not each.heard and each.owner == who and each.outcome is None
        }
        assert dict(ledger.stops()) == wanted
        ledger.acknowledge(wanted)
        self.do(ledger.store.control.flush())
        for id in wanted:
            self.known[id].heard = True

    @precondition(lambda self: self.known)
    @rule(who=st.integers(0, 1), stale=st.booleans(), data=st.data())
    def takes_over(self, who: int, stale: bool, data: st.DataObject) -> None:
        id, known = self.pick(data)
        record = self.ledgers[who].get(id)
        assert record is not None
        if stale:
            record = replace(record, epoch=record.epoch - 1)
        self.attempted(self.ledgers[who].take_over(record), not stale)
        if not stale:
            known.owner, known.epoch = who, known.epoch + 1

    @rule(who=st.integers(0, 1))
    def dies(self, who: int) -> None:
        self.do(self.ledgers[who].store.close())
        self.ledgers[who] = self.opened()
        for each in self.known.values():
            if each.owner == who:
                each.owner = None

    @rule(who=st.integers(0, 1))
    def recovers(self, who: int) -> None:
        ledger = self.ledgers[who]
        left = sorted(id for id, each in self.known.items() if each.owner is None and each.outcome is None)
        assert sorted(each.id for each in ledger.orphans()) == left
        errors: list[Any] = []
        self.do(recover(ledger, Sessions(ledger.store, self.clock), lambda what, error: errors.append(error)))
        assert errors == []
        for id in left:
            known = self.known[id]
            record = ledger.get(id)
            assert record is not None and record.outcome is not None
            assert record.outcome.code == "HOST_DIED"
            known.owner, known.epoch, known.outcome, known.state, known.waiting = who, known.epoch + 1, record.outcome, "settled", ""

    @invariant()
    def the_records_say_what_was_done(self) -> None:
        if not self.ledgers:
            return
        ledger = self.ledgers[0]
        names = sorted(self.known, reverse=True)
        assert [each.id for each in ledger.list(limit=10_000)] == names
        assert [each.id for each in ledger.list(live=True)] == [id for id in names if self.known[id].outcome is None]
        for id, known in self.known.items():
            record = ledger.get(id)
            assert record is not None
            assert record.damaged == ()
            assert record.spec.as_json() == cleaned(known.spec.as_json())
            assert (record.parent, record.session, record.epoch) == (known.parent, known.session, known.epoch)
            assert (record.state, record.waiting) == (known.state, known.waiting)
            assert (record.outcome.as_json() if record.outcome else None) == (cleaned(known.outcome.as_json()) if known.outcome else None)
            assert record.attempts == tuple(known.attempts[n] for n in sorted(known.attempts))
            assert [each.data for each in record.receipts] == known.receipts
            stop = ledger.stop_of(id)
            assert (stop[0] if stop else "", bool(stop and stop[2])) == (known.stop, known.heard)
            owners = [each.store.owner.id for each in self.ledgers]
            assert (record.owner == owners[known.owner]) if known.owner is not None else (record.owner not in owners)
            look = seen(record, ledger.store.owner.alive)
            assert look.live == (known.outcome is None and known.owner is not None)

    def teardown(self) -> None:
        for ledger in self.ledgers:
            self.do(ledger.store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        assert open_files(self.root) == []
        shutil.rmtree(self.root)


LedgerMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestWhateverHappensTheLedgerSaysIt = LedgerMachine.TestCase
