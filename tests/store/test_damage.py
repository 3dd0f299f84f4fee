"""Damaged records and damaged files: what is sound stays usable, what is not is never taken for sound."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from hames.content.errors import BusyError, DamagedError, StorageError
from hames.content.messages import Message, Text, user
from hames.sessions import Event, Sessions
from hames.store import Owner, Store
from hames.store.checks import damage, salvage_state
from hames.testing.clock import FakeClock

PAGE = 4096


def with_sessions(root: Path, body: Callable[[Sessions], Any]) -> Any:
    """Run a body with the sessions of a state directory, and close it."""

    async def run() -> Any:
        store = Store(root)
        try:
            result = body(Sessions(store, FakeClock()))
            return await result if asyncio.iscoroutine(result) else result
        finally:
            await store.close()

    return asyncio.run(run())


def words(session: int, event: int) -> str:
    """A text that stands in one place of the file only."""
    return f"<{session}.{event}>" + "abcdefgh" * 40


async def fill(sessions: Sessions, counts: list[int]) -> list[str]:
    """Sessions of so many messages each, in order of their names."""
    names: list[str] = []
    for number, count in enumerate(counts):
        assert isinstance(sessions.clock, FakeClock)
        sessions.clock.advance(1)
        session = sessions.create("/project")
        names.append(session.id)
        for event in range(count):
            text = words(number, event)
            session.add(user(text) if event % 2 == 0 else Message("assistant", (Text(text),), "model"))
        await session.barrier()
        await session.release()
    return names


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def place(state: Path, text: str) -> int:
    """Where a text stands in the file."""
    data = (state / "sessions.db").read_bytes()
    assert data.count(text.encode()) == 1
    return data.index(text.encode())


def overwrite(state: Path, at: int, data: bytes) -> None:
    with (state / "sessions.db").open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(state: Path, at: int) -> None:
    byte = (state / "sessions.db").read_bytes()[at]
    overwrite(state, at, bytes([byte ^ 0x01]))


def texts(events: list[Event]) -> list[str]:
    return [event.data["blocks"][0]["text"] for event in events if event.type == "message" and not event.damaged]


def expected(number: int, count: int) -> list[str]:
    return [words(number, event) for event in range(count)]


# a record


def test_a_flipped_byte_marks_that_event_only(state: Path) -> None:
    names = with_sessions(state, lambda sessions: fill(sessions, [6, 6, 6]))
    flip(state, place(state, "<1.3>") + 20)

    def look(sessions: Sessions) -> None:
        events = sessions.read(names[1])
        assert [event.seq for event in events] == list(range(7))
        assert [event.seq for event in events if event.damaged] == [4]
        assert events[4].data == {}
        assert texts(events) == [text for text in expected(1, 6) if "<1.3>" not in text]
        assert texts(sessions.read(names[0])) == expected(0, 6)
        assert [summary.id for summary in sessions.list()] == names[::-1]

    with_sessions(state, look)


def test_a_session_with_a_damaged_event_is_refused_and_others_open(state: Path) -> None:
    names = with_sessions(state, lambda sessions: fill(sessions, [6, 6, 6]))
    flip(state, place(state, "<1.3>") + 20)

    async def open_all(sessions: Sessions) -> None:
        with pytest.raises(DamagedError) as caught:
            await sessions.open(names[1])
        assert caught.value.code == "STORAGE_DAMAGED"
        assert "event 4" in caught.value.message
        assert "hames sessions show" in caught.value.remedy
        for name in (names[0], names[2]):
            session = await sessions.open(name)
            session.add(user("go on"))
            await session.barrier()
            await session.release()
        # The refusal has given it back.
        assert {summary.id: summary.state for summary in sessions.list()} == dict.fromkeys(names, "idle")

    with_sessions(state, open_all)


EVERY_BYTE = """
    import asyncio, json, resource, sys
    from pathlib import Path
    from hames.content.errors import HamesError
    from hames.content.clock import Clock
    from hames.sessions import Sessions
    from hames.store import Store

    state, names, start, end = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
    path = state / "sessions.db"
    original = path.read_bytes()

    async def read():
        # What each session says, or the code of the error.
        try:
            store = Store(state)
        except HamesError as error:
            return {name: error.code for name in names}
        found = {}
        try:
            sessions = Sessions(store, Clock())
            for name in names:
                try:
                    found[name] = sessions.read(name)
                except HamesError as error:
                    found[name] = error.code
            try:
                sessions.list()
            except HamesError:
                pass
        finally:
            await store.close()
        return found

    truth = asyncio.run(read())
    faults = []
    for at in range(start, end):
        for mask in (0x01, 0x80):
            damaged = bytearray(original)
            damaged[at] ^= mask
            path.write_bytes(damaged)
            try:
                found = asyncio.run(read())
            except (Exception, MemoryError) as error:
                faults.append(f"byte {at - start} ^ {mask:#x}: {type(error).__name__}: {error}")
                continue
            for name in names:
                events = found[name]
                if isinstance(events, str):
                    if events != "STORAGE_DAMAGED":
                        faults.append(f"byte {at - start} ^ {mask:#x}: {name}: {events}")
                    continue
                for event in events:
                    if not event.damaged and event != truth[name][event.seq]:
                        faults.append(f"byte {at - start} ^ {mask:#x}: {name}: wrong data taken for sound")
                if len(events) > 1000:
                    faults.append(f"byte {at - start} ^ {mask:#x}: {name}: {len(events)} events")
        if len(faults) > 5:
            break
    path.write_bytes(original)
    print("\\n".join(faults))
"""


def test_whichever_byte_of_a_record_is_flipped_it_is_said_and_nothing_wrong_is_returned(state: Path, children: Any) -> None:
    names = with_sessions(state, lambda sessions: fill(sessions, [3, 3, 3]))
    # From the header of the cell (size, serial types, key) into the text.
    end = place(state, "<1.1>")
    start = end - 110
    assert children.run(EVERY_BYTE, state, json.dumps(names), start, end).strip() == ""


def test_a_damaged_sequence_number_invents_no_events(state: Path, children: Any) -> None:
    names = with_sessions(state, lambda sessions: fill(sessions, [4]))
    connection = apsw.Connection(str(state / "sessions.db"))
    connection.execute("UPDATE events SET seq = ? WHERE seq = 4", (1 << 40,))
    connection.close()
    program = """
        import resource, sys
        from hames.faces.cli.main import main
        resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
        main()
    """
    child = children.start(program, "sessions", "show", "--state-dir", state, names[0])
    output, errors = child.communicate(timeout=30)
    assert "Traceback" not in errors
    assert "DAMAGED" in output
    assert len(output.splitlines()) < 20


def test_a_lost_event_is_seen_as_a_hole(state: Path) -> None:
    names = with_sessions(state, lambda sessions: fill(sessions, [5, 5]))
    connection = apsw.Connection(str(state / "sessions.db"))
    connection.execute("DELETE FROM events WHERE seq IN (2, 3) AND sid = (SELECT MIN(sid) FROM events)")
    connection.close()

    async def look(sessions: Sessions) -> None:
        events = sessions.read(names[0])
        assert [(event.seq, event.damaged) for event in events] == [(0, False), (1, False), (2, True), (3, True), (4, False), (5, False)]
        assert {event.type for event in events if event.damaged} == {"missing"}
        with pytest.raises(DamagedError, match="event 2, 3"):
            await sessions.open(names[0])
        assert texts(sessions.read(names[1])) == expected(1, 5)

    with_sessions(state, look)


# the file


@pytest.fixture
def large(state: Path) -> tuple[Path, list[str]]:
    """Four sessions, of which each but the last reaches over several pages."""
    names = with_sessions(state, lambda sessions: fill(sessions, [60, 60, 60, 2]))
    return state, names


def page_of(state: Path, text: str) -> int:
    return place(state, text) // PAGE


def wipe(state: Path, page: int) -> None:
    overwrite(state, page * PAGE, b"\xa5" * PAGE)


def test_an_overwritten_page_is_a_damaged_error(large: tuple[Path, list[str]]) -> None:
    state, names = large
    wipe(state, page_of(state, "<1.30>"))

    def look(sessions: Sessions) -> None:
        with pytest.raises(DamagedError) as caught:
            sessions.read(names[1])
        assert caught.value.code == "STORAGE_DAMAGED"
        assert "salvage" in caught.value.remedy
        assert texts(sessions.read(names[0])) == expected(0, 60)
        assert texts(sessions.read(names[3])) == expected(3, 2)

    with_sessions(state, look)
    assert damage(state / "sessions.db")


@pytest.mark.parametrize("content", [b"no database at all " * 500, b"SQLite format 3\x00" + b"\xa5" * 8176], ids=["text", "header"])
def test_a_file_that_is_no_database_is_damaged(state: Path, content: bytes) -> None:
    state.mkdir()
    (state / "sessions.db").write_bytes(content)
    with pytest.raises(DamagedError) as caught:
        with_sessions(state, lambda sessions: sessions.list())
    assert caught.value.code == "STORAGE_DAMAGED"
    assert list((state / "owners").iterdir()) == []
    assert damage(state / "sessions.db")


def test_a_file_that_was_cut_off_is_damaged(large: tuple[Path, list[str]]) -> None:
    state, names = large
    data = (state / "sessions.db").read_bytes()
    (state / "sessions.db").write_bytes(data[: len(data) // 2])

    def read_all(sessions: Sessions) -> None:
        for name in names:
            sessions.read(name)

    with pytest.raises(DamagedError):
        with_sessions(state, read_all)


def test_a_sound_file_has_no_damage(large: tuple[Path, list[str]]) -> None:
    assert damage(large[0] / "sessions.db") == []


# salvage


def salvaged(state: Path) -> dict[str, dict[str, int]]:
    """Salvage a state, and check what holds for every salvage: the damaged file is kept as it was, the new one is sound."""
    before = (state / "sessions.db").read_bytes()
    kept, report = salvage_state(state)
    assert kept.read_bytes() == before
    assert damage(state / "sessions.db") == []
    assert not list(state.glob("*.salvaged*"))
    return report


def resume(state: Path, name: str) -> list[str]:
    """The texts of a session, after it has been gone on with."""

    async def body(sessions: Sessions) -> list[str]:
        session = await sessions.open(name)
        session.add(user("go on"))
        await session.barrier()
        await session.release()
        return texts(sessions.read(name))

    return with_sessions(state, body)  # type: ignore[no-any-return]


def test_salvage_keeps_everything_but_a_damaged_event(state: Path) -> None:
    names = with_sessions(state, lambda sessions: fill(sessions, [6, 6, 6]))
    flip(state, place(state, "<1.3>") + 20)
    report = salvaged(state)
    assert report["events"] == {"kept": 20, "damaged": 1}
    assert report["sessions"] == {"kept": 3, "damaged": 0}
    for number in (0, 2):
        assert resume(state, names[number]) == [*expected(number, 6), "go on"]

    def look(sessions: Sessions) -> None:
        events = sessions.read(names[1])
        assert [event.type for event in events] == ["start", "message", "message", "message", "lost", "message", "message"]
        assert not any(event.damaged for event in events)
        assert texts(events) == [text for text in expected(1, 6) if "<1.3>" not in text]
        ((source, n, why, data),) = sessions.store.sessions.query("SELECT source, n, why, data FROM quarantine")
        assert (source, n, why) == ("events", 4, "checksum")
        assert b"<1.3>" in data

    with_sessions(state, look)


@pytest.mark.parametrize("field", ["type", "role"])
def test_salvage_goes_round_text_that_is_no_unicode(state: Path, field: str) -> None:
    names = with_sessions(state, lambda sessions: fill(sessions, [6, 6, 6]))
    at = place(state, "<1.3>")
    data = (state / "sessions.db").read_bytes()
    # The type of an event is text in its own column before the data; the role is text inside the data.
    word = data.rindex(b"message{" if field == "type" else b'"assistant"', 0, at)
    overwrite(state, word + 1, b"\xff\xfe")

    def look(sessions: Sessions) -> None:
        assert len(sessions.list()) == 3
        assert [event.seq for event in sessions.read(names[1]) if event.damaged] == [4]

    with_sessions(state, look)
    assert salvaged(state)["events"] == {"kept": 20, "damaged": 1}
    for number in (0, 2):
        assert resume(state, names[number]) == [*expected(number, 6), "go on"]


def test_salvage_goes_round_a_page_in_the_middle_of_a_session(large: tuple[Path, list[str]]) -> None:
    state, names = large
    wipe(state, page_of(state, "<1.30>"))
    salvaged(state)
    for number, count in ((0, 60), (2, 60), (3, 2)):
        assert resume(state, names[number]) == [*expected(number, count), "go on"]

    def look(sessions: Sessions) -> None:
        events = sessions.read(names[1])
        assert [event.seq for event in events] == list(range(61))
        found = texts(events)
        assert set(found) < set(expected(1, 60))
        assert len(found) > 40
        assert {event.type for event in events} == {"start", "message", "lost"}

    with_sessions(state, look)


def test_salvage_goes_round_a_page_that_two_sessions_share(large: tuple[Path, list[str]]) -> None:
    state, names = large
    page = page_of(state, "<1.59>")
    shared = (state / "sessions.db").read_bytes()[page * PAGE : (page + 1) * PAGE]
    assert b"<2.0>" in shared
    wipe(state, page)
    salvaged(state)
    assert resume(state, names[0]) == [*expected(0, 60), "go on"]
    assert resume(state, names[3]) == [*expected(3, 2), "go on"]
    for number in (1, 2):
        found = with_sessions(state, lambda sessions, name=names[number]: texts(sessions.read(name)))
        assert len(found) > 40


def test_salvage_goes_round_the_first_page_of_the_events(large: tuple[Path, list[str]]) -> None:
    state, names = large
    wipe(state, page_of(state, "<0.0>"))
    salvaged(state)
    for number, count in ((1, 60), (2, 60), (3, 2)):
        assert resume(state, names[number]) == [*expected(number, count), "go on"]


def test_salvage_of_a_sound_state_loses_nothing(large: tuple[Path, list[str]]) -> None:
    state, names = large
    report = salvaged(state)
    assert report["events"] == {"kept": 186, "damaged": 0}
    for number, count in enumerate((60, 60, 60, 2)):
        assert resume(state, names[number]) == [*expected(number, count), "go on"]


def test_every_salvage_keeps_its_own_damaged_file(state: Path) -> None:
    with_sessions(state, lambda sessions: fill(sessions, [2]))
    first = (state / "sessions.db").read_bytes()
    assert [salvage_state(state)[0].name for _ in range(2)] == ["sessions.db.damaged-1", "sessions.db.damaged-2"]
    assert (state / "sessions.db.damaged-1").read_bytes() == first


def test_salvage_is_refused_while_a_process_works_with_the_state(state: Path) -> None:
    with_sessions(state, lambda sessions: fill(sessions, [2]))
    before = sorted(path.name for path in state.iterdir())
    owner = Owner(state / "owners")
    try:
        with pytest.raises(BusyError) as caught:
            salvage_state(state)
    finally:
        owner.release()
    assert caught.value.exit_status == 4
    assert caught.value.remedy
    assert sorted(path.name for path in state.iterdir()) == before


def test_a_file_of_which_nothing_is_left_is_refused_and_kept(state: Path) -> None:
    state.mkdir()
    (state / "sessions.db").write_bytes(b"\xa5" * 8192)
    with pytest.raises(StorageError) as caught:
        salvage_state(state)
    assert caught.value.remedy
    assert (state / "sessions.db").read_bytes() == b"\xa5" * 8192
    assert not list(state.glob("*.salvaged*"))
