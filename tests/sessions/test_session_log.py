"""The log of a session: what is written, what a crash leaves, and who may write."""

import asyncio
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from hames.content.errors import BusyError, DamagedError, FencedError, NotFoundError, StorageError
from hames.content.messages import (
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    decode_message,
    encode_message,
    user,
)
from hames.sessions import Event, Session, Sessions, session_id, session_number
from hames.store import Store
from hames.testing.clock import FakeClock


def answer(*blocks: Any) -> Message:
    return Message("assistant", blocks, "model")


def call(id: str, name: str = "bash") -> ToolCall:
    return ToolCall(id, name, "{}")


def result(id: str) -> Message:
    return Message("user", (ToolResult(id, (Text("fine"),)),), "tool")


def kinds(events: list[Event]) -> list[str]:
    return [event.type for event in events]


def results(session: Session) -> list[tuple[str, str]]:
    """The answers to calls: which, and with what code."""
    blocks = [block for _, message in session.messages for block in message.blocks]
    return [(block.call_id, block.code) for block in blocks if isinstance(block, ToolResult)]


# events


async def test_events_come_back_as_they_were_written(sessions: Sessions, clock: FakeClock, reopen: Any) -> None:
    session = sessions.create("/project")
    clock.advance(1.5)
    session.append("turn", {})
    session.add(user("hello"))
    session.add(answer(Text("hi")), model="scripted:x", finish="stop")
    session.append("end", {"reason": "completed"})
    await session.barrier()
    events = (await reopen()).read(session.id)
    assert kinds(events) == ["start", "turn", "message", "message", "end"]
    assert [event.seq for event in events] == [0, 1, 2, 3, 4]
    assert [event.time for event in events] == [1_700_000_000.0] + [1_700_000_001.5] * 4
    assert events[3].data == {**encode_message(answer(Text("hi"))), "model": "scripted:x", "finish": "stop"}
    assert not any(event.damaged for event in events)


async def test_unknown_types_are_carried_and_never_touched(sessions: Sessions, reopen: Any) -> None:
    data = {"deep": [1, {"a": None}], "text": "ü", "id": 3, "reason": [], "blocks": "none"}
    session = sessions.create("/project")
    session.add(answer(Text("hi")))
    session.append("plugin.example/note", data)
    await session.barrier()
    opened = await (await reopen()).open(session.id)
    assert [message.text for _, message in opened.messages] == ["hi"]
    opened.add(user("go on"))
    await opened.barrier()
    events = (await reopen()).read(session.id)
    assert kinds(events) == ["start", "message", "plugin.example/note", "message"]
    assert events[2].data == data


async def test_the_last_model_is_that_of_an_answer_not_a_word_of_another_event(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    session.add(answer(Text("hi")), model="scripted:x")
    session.append("failed", {"model": "scripted:y", "finish": "error"})
    session.append("plugin.example/note", {"model": {"not": "a reference"}})
    await session.barrier()
    opened = await (await reopen()).open(session.id)
    assert opened.last_model == "scripted:y"


ALL_BLOCKS = (
    Text("plain ü 漢 😀"),
    Text(""),
    Reasoning("thought", "signature", "opaque", "anthropic/claude"),
    Reasoning("", "", "secret"),
    Image("image/png", "ab" * 32),
    ToolCall("call_1", "bash", '{"command": "ls", "command": 1.0e5}'),
    ToolCall("call_2", "no such", "not json {"),
    ToolResult("call_1", (Text("out"), Image("image/png", "cd" * 32)), True, "EXIT_STATUS"),
    ToolResult("call_2", ()),
    Unknown({"type": "hologram", "data": {"x": [1, None, "ü"]}}),
)


async def test_every_block_makes_the_round_trip(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    messages = [Message("assistant", ALL_BLOCKS, "model"), Message("user", ALL_BLOCKS[::-1], "harness"), Message("user", (), "tool")]
    for message in messages:
        session.add(message)
    await session.barrier()
    opened = await (await reopen()).open(session.id)
    assert [message for _, message in opened.messages[:3]] == messages


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("lone \ud800 high", "lone � high"),
        ("at the end \ud83d", "at the end �"),
        ("low \udcff first", "low � first"),
        ("pair \ud83d\ude00", "pair 😀"),
        ("\udcff\udcfe", "��"),
    ],
)
async def test_the_log_holds_valid_unicode(sessions: Sessions, reopen: Any, text: str, clean: str) -> None:
    session = sessions.create("/project")
    blocks = (Text(text), ToolCall(text, "bash", text), Reasoning(text), ToolResult("other", (Text(text),)))
    session.add(Message("assistant", blocks, "model"))
    session.add(Message("user", (ToolResult(text, (Text("fine"),)),), "tool"))
    await session.barrier()
    stored = [message for _, message in (await (await reopen()).open(session.id)).messages]
    assert stored[0].blocks == (Text(clean), ToolCall(clean, "bash", clean), Reasoning(clean), ToolResult("other", (Text(clean),)))
    assert len(stored) == 2  # the result still belongs to its call


async def test_the_model_is_shown_what_the_log_holds(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    session.add(user("lone \ud800 high, pair \ud83d\ude00"))
    session.add(answer(call("x\udcff")))
    session.add(result("x\udcff"))
    await session.barrier()
    shown = [message for _, message in session.messages]
    stored = [message for _, message in (await (await reopen()).open(session.id)).messages]
    assert shown == stored
    assert shown[0].text == "lone � high, pair 😀"


async def test_a_call_whose_id_is_no_unicode_can_be_begun(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    session.add(answer(call("x\ud800")))
    (asked,) = session.messages[-1][1].calls
    session.append("call", {"id": asked.id, "name": asked.name})
    await session.barrier()
    assert results(await (await reopen()).open(session.id)) == [("x�", "OUTCOME_UNKNOWN")]


def test_what_a_later_version_wrote_decodes() -> None:
    data = {"role": "user", "blocks": [{"type": "video", "url": "x"}, {"no": "type"}, {"type": "text", "text": "hi", "new": 1}]}
    message = decode_message(data)
    assert message.blocks[0] == Unknown({"type": "video", "url": "x"})
    assert encode_message(message)["blocks"][:2] == data["blocks"][:2]
    assert message.text == "hi"


# what a crash leaves


async def interrupted(sessions: Sessions, *, begun: tuple[str, ...] = (), answered: tuple[str, ...] = ()) -> Session:
    """A session whose process died in the middle of a turn with the calls a, b and c."""
    session = sessions.create("/project")
    session.append("turn", {})
    session.add(user("do it"))
    session.add(answer(Text("I will"), call("a"), call("b"), call("c")))
    for id in begun:
        session.append("call", {"id": id, "name": "bash"})
    for id in answered:
        session.add(result(id))
    await session.barrier()
    return session


@pytest.mark.parametrize(
    ("begun", "answered", "closed"),
    [
        ((), (), [("a", "NOT_STARTED"), ("b", "NOT_STARTED"), ("c", "NOT_STARTED")]),
        (("a",), (), [("a", "OUTCOME_UNKNOWN"), ("b", "NOT_STARTED"), ("c", "NOT_STARTED")]),
        (("a", "b", "c"), ("b",), [("b", ""), ("a", "OUTCOME_UNKNOWN"), ("c", "OUTCOME_UNKNOWN")]),
        (("a", "b", "c"), ("a", "b", "c"), [("a", ""), ("b", ""), ("c", "")]),
    ],
)
async def test_an_interrupted_call_is_closed_once(
    sessions: Sessions, reopen: Any, begun: tuple[str, ...], answered: tuple[str, ...], closed: list[tuple[str, str]]
) -> None:
    session = await interrupted(sessions, begun=begun, answered=answered)
    for _ in range(3):
        opened = await (await reopen()).open(session.id)
        await opened.barrier()
        assert results(opened) == closed
        events = (await reopen()).read(session.id)
        assert [event.data for event in events if event.type == "end"] == [{"reason": "interrupted"}]
    assert not any(event.damaged for event in events)
    assert [event.seq for event in events] == list(range(len(events)))


async def test_closing_is_no_more_than_one_write_away(sessions: Sessions, reopen: Any) -> None:
    """A process that dies again before its first barrier leaves a session that is closed or not, never twice."""
    session = await interrupted(sessions, begun=("a",))
    await (await reopen()).open(session.id)  # no barrier
    opened = await (await reopen()).open(session.id)
    assert results(opened) == [("a", "OUTCOME_UNKNOWN"), ("b", "NOT_STARTED"), ("c", "NOT_STARTED")]
    await opened.barrier()
    assert kinds((await reopen()).read(session.id)).count("end") == 1


async def test_the_words_say_what_is_known(sessions: Sessions, reopen: Any) -> None:
    session = await interrupted(sessions, begun=("a",))
    opened = await (await reopen()).open(session.id)
    blocks = [message.blocks[0] for _, message in opened.messages if message.source == "tool"]
    said = [block.text for block in blocks if isinstance(block, ToolResult) and block.is_error]
    assert said[0].startswith("outcome unknown")
    assert said[1].startswith("not started")


async def test_an_id_that_is_used_again_is_another_call(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    session.append("turn", {})
    session.add(answer(call("a")))
    session.append("call", {"id": "a", "name": "bash"})
    session.add(result("a"))
    session.add(answer(call("a")))
    await session.barrier()
    assert results(await (await reopen()).open(session.id)) == [("a", ""), ("a", "NOT_STARTED")]


async def test_two_calls_of_one_id_are_both_answered(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    session.append("turn", {})
    session.add(answer(call("a"), call("a")))
    await session.barrier()
    assert results(await (await reopen()).open(session.id)) == [("a", "NOT_STARTED")] * 2


async def test_an_open_turn_is_ended(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    session.append("turn", {})
    session.add(user("do it"))
    await session.barrier()
    opened = await (await reopen()).open(session.id)
    await opened.barrier()
    events = (await reopen()).read(session.id)
    assert kinds(events) == ["start", "turn", "message", "end"]
    assert events[-1].data == {"reason": "interrupted"}


async def test_a_session_that_ended_well_gets_nothing(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    session.append("turn", {})
    session.add(answer(call("a")))
    session.add(result("a"))
    session.append("end", {"reason": "completed"})
    await session.barrier()
    before = sessions.read(session.id)
    opened = await (await reopen()).open(session.id)
    await opened.barrier()
    assert (await reopen()).read(session.id) == before


async def test_what_was_not_confirmed_may_be_lost_but_leaves_no_hole(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    await session.barrier()
    for n in range(100):
        session.append("note", {"n": n})
    events = (await reopen()).read(session.id)
    assert [event.seq for event in events] == list(range(len(events)))


# failing


FULL = """
    import asyncio, resource, sys
    from pathlib import Path
    from hames.content.clock import Clock
    from hames.content.errors import HamesError
    from hames.content.messages import Message, Text, ToolCall, ToolResult, user
    from hames.sessions import Sessions
    from hames.store import Store

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def noise(size):
        import random
        return "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=size))

    async def main():
        state = Path(sys.argv[1])
        store = Store(state)
        sessions = Sessions(store, Clock())
        session = sessions.create("/project")
        session.add(user("first"))
        await session.barrier()
"""


def run_child(program: str, *arguments: object) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_failed_write_leaves_no_hole_behind_it(tmp_path: Path) -> None:
    program = (
        FULL
        + """
        limit(300_000)
        session.add(user(noise(400_000)))  # too large
        session.add(user("small"))  # there would be space for this one
        try:
            await session.barrier()
        except HamesError as error:
            print(error.code)
        limit(resource.RLIM_INFINITY)
        await store.close()
        store = Store(state)
        sessions = Sessions(store, Clock())
        print([(event.seq, event.type, event.damaged) for event in sessions.read(session.id)])
        opened = await sessions.open(session.id)
        opened.add(user("go on"))
        await opened.barrier()
        print([message.text for _, message in opened.messages])
        await store.close()

    asyncio.run(main())
"""
    )
    code, events, messages = run_child(dedent(program), tmp_path / "state")
    assert code == "STORAGE_FULL"
    assert events == "[(0, 'start', False), (1, 'message', False)]"
    assert messages == "['first', 'go on']"


def test_a_session_that_could_not_be_written_says_that_the_store_is_full(tmp_path: Path) -> None:
    program = (
        FULL
        + """
        await store.sessions.run(lambda connection: connection.execute("CREATE TABLE filler (x)"))
        limit((state / "sessions.db-wal").stat().st_size)
        other = sessions.create("/project")
        other.add(user("first"))
        try:
            await other.barrier()
        except HamesError as error:
            print(error.code)
        limit(resource.RLIM_INFINITY)
        await store.close()

    asyncio.run(main())
"""
    )
    assert run_child(dedent(program), tmp_path / "state") == ["STORAGE_FULL"]


async def test_after_a_failed_barrier_nothing_more_is_taken(sessions: Sessions) -> None:
    session = sessions.create("/project")
    await session.barrier()
    session.append("note", {})
    await sessions.store.sessions.write("UPDATE sessions SET epoch = 99")  # somebody has taken it over
    session.append("late", {})
    with pytest.raises(FencedError):
        await session.barrier()
    for write in (lambda: session.append("later", {}), lambda: session.add(user("x"))):
        with pytest.raises(StorageError) as caught:
            write()
        assert caught.value.remedy
    assert kinds(sessions.read(session.id)) == ["start", "note"]
    await sessions.store.sessions.write("UPDATE sessions SET owner = ''")


# who may write


async def test_a_session_of_a_living_process_is_busy(sessions: Sessions, tmp_path: Path, clock: FakeClock) -> None:
    session = sessions.create("/project")
    await session.barrier()
    other = Store(tmp_path / "state")  # has another owner, as another process would
    try:
        with pytest.raises(BusyError) as caught:
            await Sessions(other, clock).open(session.id)
        assert (caught.value.code, caught.value.exit_status) == ("SESSION_BUSY", 4)
        assert session.id in caught.value.message
        assert caught.value.remedy
        with pytest.raises(BusyError):
            await sessions.open(session.id)
        await session.release()
        opened = await Sessions(other, clock).open(session.id)
        assert opened.epoch == session.epoch + 1
        await opened.release()
    finally:
        await other.close()


async def test_a_takeover_raises_the_epoch_and_the_old_writer_writes_nothing(sessions: Sessions, tmp_path: Path, clock: FakeClock) -> None:
    old = sessions.create("/project")
    old.add(user("before"))
    await old.barrier()
    sessions.store.owner.release()  # the process is taken for dead, and is not
    other = Store(tmp_path / "state")
    try:
        new = await Sessions(other, clock).open(old.id)
        assert new.epoch == old.epoch + 1
        new.add(user("taken over"))
        await new.barrier()
        before = Sessions(other, clock).read(old.id)
        old.add(user("late"))
        old.append("end", {"reason": "completed"})
        with pytest.raises(FencedError) as caught:
            await old.barrier()
        assert caught.value.code == "FENCED"
        await old.release()
        assert Sessions(other, clock).read(old.id) == before
        with pytest.raises(BusyError):  # the old one's release has given nothing back
            await Sessions(other, clock).open(old.id)
        new.add(user("goes on"))
        await new.barrier()
        assert [message.text for _, message in new.messages] == ["before", "taken over", "goes on"]
        await new.release()
    finally:
        await other.close()
        sessions.store.owner = type(sessions.store.owner)(tmp_path / "state" / "owners")


async def test_of_many_that_open_at_once_one_gets_it(sessions: Sessions, reopen: Any, tmp_path: Path, clock: FakeClock) -> None:
    session = await interrupted(sessions)
    stores = [(await reopen()).store, *(Store(tmp_path / "state") for _ in range(4))]
    try:
        found = await asyncio.gather(*(Sessions(store, clock).open(session.id) for store in stores), return_exceptions=True)
        assert sorted(type(each).__name__ for each in found) == ["BusyError"] * 4 + ["Session"]
        assert [each.epoch for each in found if isinstance(each, Session)] == [2]
    finally:
        for store in stores[1:]:
            await store.close()


# finding


async def test_unknown_names_are_not_found(sessions: Sessions) -> None:
    session = sessions.create("/project")
    await session.barrier()
    for name in ("", "x", "zzzzzzzzzzzzz", session.id[:-1], session.id + "0", session.id.upper(), "0" * 13):
        with pytest.raises(NotFoundError) as caught:
            sessions.read(name)
        assert (caught.value.code, caught.value.exit_status) == ("SESSION_UNKNOWN", 2)
        with pytest.raises(NotFoundError):
            await sessions.open(name)


async def test_the_list_says_who_runs_and_who_died(sessions: Sessions, reopen: Any, clock: FakeClock) -> None:
    died = sessions.create("/project/a")
    died.add(user("the  first\nquestion " + "long " * 50))
    await died.barrier()
    sessions = await reopen()
    clock.advance(10)
    idle = sessions.create("/project/b")
    await idle.barrier()
    await idle.release()
    clock.advance(10)
    running = sessions.create("/project/c")
    await running.barrier()
    listed = sessions.list()
    assert [(summary.id, summary.state, summary.cwd) for summary in listed] == [
        (running.id, "running", "/project/c"),
        (idle.id, "idle", "/project/b"),
        (died.id, "interrupted", "/project/a"),
    ]
    assert [summary.events for summary in listed] == [1, 1, 2]
    assert listed[2].title.startswith("the first question long")
    assert len(listed[2].title) <= 72
    assert [summary.created for summary in listed] == [1_700_000_020.0, 1_700_000_010.0, 1_700_000_000.0]


async def test_many_sessions_of_one_moment_have_names_of_their_own(sessions: Sessions) -> None:
    made = [sessions.create("/project") for _ in range(5000)]
    assert len({session.id for session in made}) == 5000
    await asyncio.gather(*(session.barrier() for session in made[::100]))
    assert len(sessions.store.sessions.query("SELECT sid FROM sessions")) == 5000


async def test_two_processes_that_make_the_same_name_do_not_share_a_log(tmp_path: Path) -> None:
    stores = [Store(tmp_path / "state") for _ in range(2)]
    try:
        first, second = (Sessions(store, FakeClock()).create("/project") for store in stores)
        first.add(user("mine"))
        await first.barrier()
        second.add(user("not yours"))
        try:
            await second.barrier()
        except StorageError:
            pass
        first.add(user("mine again"))
        await first.barrier()
        events = Sessions(stores[0], FakeClock()).read(first.id)
        said = [decode_message(event.data).text for event in events if event.type == "message"]
        assert said == ["mine", "mine again"]
    finally:
        for store in stores:
            await store.close()


def test_names_and_numbers_are_inverse_and_sort_alike() -> None:
    numbers = [0, 1, 31, 32, 1 << 20, 1_700_000_000_000 << 20, (1 << 63) - 1]
    names = [session_id(number) for number in numbers]
    assert [session_number(name) for name in names] == numbers
    assert names == sorted(names)
    assert {len(name) for name in names} == {13}


@pytest.mark.parametrize("name", ["", "z" * 13, "i" * 13, "0" * 12, "0" * 14, "../../etc/pw", "🙂" * 13])
def test_what_is_no_name_has_no_number(name: str) -> None:
    assert session_number(name) is None


async def test_a_damaged_session_is_refused_with_a_way_out(sessions: Sessions, reopen: Any) -> None:
    session = await interrupted(sessions)
    await sessions.store.sessions.write("UPDATE events SET data = x'7b7d' WHERE seq = 2")
    sessions = await reopen()
    with pytest.raises(DamagedError, match="event 2 is damaged") as caught:
        await sessions.open(session.id)
    assert (caught.value.code, caught.value.exit_status) == ("STORAGE_DAMAGED", 1)
    assert session.id in caught.value.remedy
    assert sessions.list()[0].state == "idle"
