"""What is done with whole sessions: fork, export and import, search, purge."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hames.agents import AGENTS, AgentSpec
from hames.content.clock import Clock
from hames.content.errors import BusyError, DamagedError, HamesError, NotFoundError
from hames.content.messages import Image, Message, Text, ToolCall, ToolResult, encode_message, user
from hames.faces.cli.sessions import command
from hames.sessions import SESSIONS, Session, Sessions
from hames.sessions.requests import BLOB
from hames.store import Store

PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000020000000208020000") + b"\0" * 30


def answer(*blocks: Any) -> Message:
    return Message("assistant", blocks, "model")


def result(id: str, *parts: Any) -> Message:
    return Message("user", (ToolResult(id, parts or (Text("fine"),)),), "tool")


def turn(session: Session, number: int) -> None:
    session.append("turn", {})
    session.add(user(f"question {number}"))
    session.add(answer(ToolCall(f"c{number}", "bash", "{}")), model="scripted:x", finish="tool-calls")
    session.append("call", {"id": f"c{number}", "name": "bash"})
    session.add(result(f"c{number}"))
    session.add(answer(Text(f"answer {number}")), model="scripted:x", finish="stop")
    session.append("end", {"reason": "completed"})


def plain(events: Any) -> list[Any]:
    return [(event.seq, event.type, event.data) for event in events]


def rows(store: Store, table: str, sid: int) -> int:
    return store.sessions.query(f"SELECT COUNT(*) FROM {table} WHERE sid = ?", (sid,))[0][0]


# forks


async def test_a_fork_holds_the_turns_that_it_was_made_at_and_its_parent_is_as_it_was(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    for number in range(3):
        turn(session, number)
    session.queue("turn", user("waits"))
    await session.barrier()
    before = sessions.read(session.id)
    for count in range(4):
        made = await sessions.fork(session.id, count)
        kept = [message.text for _, message in made.messages if message.source != "tool" and message.text]
        assert kept == [word for number in range(count) for word in (f"question {number}", f"answer {number}")]
        assert made.pending == []
        assert made.id != session.id and made.cwd == "/project"
        made.add(user("more"))
        await made.barrier()
        assert [event.seq for event in sessions.read(made.id)] == list(range(len(sessions.read(made.id))))
        await made.release()
    assert sessions.read(session.id) == before
    assert session.pending == [] and session.next_seq == len(before)
    session.add(user("the parent goes on"))
    await session.barrier()


@pytest.mark.parametrize("turn_number", [-1, 3, 10**9])
async def test_a_fork_at_a_turn_that_is_not_there_is_refused(turn_number: int, sessions: Sessions) -> None:
    session = sessions.create("/project")
    for number in range(2):
        turn(session, number)
    await session.barrier()
    with pytest.raises(NotFoundError) as refused:
        await sessions.fork(session.id, turn_number)
    assert refused.value.code == "TURN_UNKNOWN"
    with pytest.raises(NotFoundError):
        await sessions.fork("nobody")
    assert len(sessions.list()) == 1


async def test_a_fork_of_a_turn_that_runs_ends_with_the_turn_before(sessions: Sessions) -> None:
    session = sessions.create("/project")
    turn(session, 0)
    session.append("turn", {})
    session.add(user("under way"))
    session.add(answer(ToolCall("open", "bash", "{}")))
    await session.barrier()
    made = await sessions.fork(session.id)
    assert "under way" not in [message.text for _, message in made.messages]
    assert {call.id for _, message in made.messages for call in message.calls} == {"c0"}


async def test_what_waited_and_was_taken_is_in_the_fork_and_what_waits_is_not(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    seq = session.next_seq
    session.queue("turn", user("taken"))
    later = session.next_seq
    session.queue("step", user("still waits"))
    session.append("turn", {})
    session.add(user("taken"), queued=seq)
    session.append("end", {"reason": "completed"})
    await session.barrier()
    made = await sessions.fork(session.id)
    assert [message.text for _, message in made.messages] == ["taken"]
    assert made.pending == []
    await made.release()
    await session.release()
    sessions = await reopen()
    forked, parent = await sessions.open(made.id), await sessions.open(session.id)
    assert forked.pending == []
    assert [(item.seq, item.message.text) for item in parent.pending] == [(later, "still waits")]


async def test_a_fork_of_a_shortened_conversation_shows_the_same(sessions: Sessions) -> None:
    session = sessions.create("/project")
    turn(session, 0)
    session.append("turn", {})
    session.add(user("long"), contexts={"weather": "rain"})
    session.add(answer(ToolCall("long", "bash", "{}")))
    place = session.next_seq
    session.add(result("long", Text("r" * 10_000)))
    session.prune([place], 100, 50)
    session.compact(session.messages[-3][0], user("notes"), reason="user")
    session.remember("todo", ["a"])
    session.append("end", {"reason": "completed"})
    turn(session, 1)
    await session.barrier()
    made = await sessions.fork(session.id)
    assert (made.messages, made.told, made.is_compacted, made.state) == (session.messages, session.told, True, {"todo": ["a"]})
    first = await sessions.fork(session.id, 1)
    assert not first.is_compacted
    assert first.state == {}


async def test_a_damaged_session_is_not_forked_where_the_damage_would_come_along(sessions: Sessions) -> None:
    session = sessions.create("/project")
    for number in range(2):
        turn(session, number)
    await session.barrier()
    await sessions.store.sessions.write("UPDATE events SET data = ? WHERE sid = ? AND seq = 10", (b"{}", session.sid))
    with pytest.raises(DamagedError):
        await sessions.fork(session.id)
    assert len((await sessions.fork(session.id, 1)).messages) == 4


async def test_requests_of_a_fork_are_rebuilt_as_they_were_sent(opened: Any, wired: Any, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    async with opened() as host:
        agents, service = host.get(AGENTS), host.get(SESSIONS)
        agent = await agents.create(AgentSpec(str(tmp_path / "work"), 'openai:steps=2;tool=todo_write;args={"items":[{"content":"#"}]}'))
        await agent.run("x" * 100_000)
        await agent.run("on")
        sent = len(wired.received)
        parent = [request.body() for _, request in service.rebuild(agent.id)]
        made = await service.fork(agent.id, 1)
        await made.release()
        forked = await agents.create(AgentSpec("", resume=made.id))
        await forked.run("elsewhere")
        await forked.run("again")
        bodies = [received.body for received in wired.received]
        assert [request.body() for _, request in service.rebuild(made.id)] == bodies[sent:]
        assert [request.body() for _, request in service.rebuild(agent.id)] == parent == bodies[:sent]
        assert bodies[sent].startswith(bodies[0][:-2])  # it goes on where the turn ended


# one writer


async def test_a_session_has_one_writer_at_a_time(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    await session.barrier()
    with pytest.raises(BusyError):
        await sessions.open(session.id)
    await session.release()
    opened = await asyncio.gather(*(sessions.open(session.id) for _ in range(5)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in opened) == ["BusyError"] * 4 + ["Session"]


async def test_a_session_with_events_of_plugins_that_nobody_knows_opens_and_goes_on(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    strange = [
        ("plugin.example/queue", {"target": 1, "blocks": "none", "queued": [1]}),
        ("plugin.example/state", {"name": None}),
        ("statement", {"until": "x", "items": 3}),
        ("Message", {"role": 5}),
        ("", {"blob": "no"}),
    ]
    turn(session, 0)
    for type, data in strange:
        session.append(type, data)
    turn(session, 1)
    await session.barrier()
    sessions = await reopen()
    opened = await sessions.open(session.id)
    assert len(opened.messages) == 8
    made = await sessions.fork(session.id)
    assert [(event.type, event.data) for event in sessions.read(made.id)][8:13] == strange
    assert len(sessions.search("question")) == 4
    await opened.release()
    await sessions.purge(session.id)


# export and import


@asynccontextmanager
async def stored(state: Path):
    store = Store(state)
    try:
        yield Sessions(store, Clock())
    finally:
        await store.close()


@pytest.fixture
def cli(tmp_path: Path) -> Any:
    """Runs ``hames sessions`` in this process; gives its output, or raises what it raised."""

    def run(*arguments: str, state: str = "state") -> str:
        done = CliRunner().invoke(command, [*arguments, "--state-dir", str(tmp_path / state)])
        if done.exception is not None:
            raise done.exception
        return done.stdout

    return run


def made(tmp_path: Path, body: Any, cwd: str = "/project") -> str:
    """A session in a state directory that is closed again."""

    async def make() -> str:
        async with stored(tmp_path / "state") as sessions:
            session = sessions.create(cwd)
            body(session)
            await session.barrier()
            await session.release()
            return session.id

    return asyncio.run(make())


def read_back(tmp_path: Path, name: str, state: str) -> tuple[Any, Any, Any]:
    async def read() -> tuple[Any, Any, Any]:
        async with stored(tmp_path / state) as sessions:
            events = sessions.read(name)
            session = await sessions.open(name)
            await session.release()
            return events, session, [session.picture(blob) for _, message in session.messages for blob in blobs(message)]

    return asyncio.run(read())


def blobs(message: Message) -> list[str]:
    parts = [part for block in message.blocks for part in (block.content if isinstance(block, ToolResult) else (block,))]
    return [part.blob for part in parts if isinstance(part, Image)]


def rich(session: Session) -> None:
    """Pictures, events of plugins, odd text, shortened results, notes, and what waits."""
    turn(session, 0)
    session.add(Message("user", (Text('look \u2028 \x7f \ud83d\ude00 "blob": "x"'), session.keep_picture("image/png", PNG))))
    session.add(answer(ToolCall("p", "read_image", '{"path": "ü"}')))
    place = session.next_seq
    session.add(result("p", Text("r" * 9000), session.keep_picture("image/gif", b"GIF89a" + b"\1" * 300_000)))
    session.append("plugin.example/note", {"deep": [1, {"a": None}], "number": 1.5, "seq": 3, "blob": ["x"]})
    session.prune([place], 10, 10)
    turn(session, 1)
    session.compact(session.messages[-2][0], user("notes \u0085"), reason="user")
    session.remember("todo", [{"content": "a"}])
    picture = session.keep_picture("image/webp", b"RIFF" + b"\2" * 40)
    session.queue("turn", Message("user", (Text("waits"), picture)))


def test_what_is_exported_is_imported_with_pictures_and_what_plugins_wrote(tmp_path: Path, cli: Any) -> None:
    name = made(tmp_path, rich)
    text = cli("export", name)
    file = tmp_path / "exported.jsonl"
    file.write_text(text)
    report = json.loads(cli("import", str(file), "--json", state="other"))
    events, session, pictures = read_back(tmp_path, report["session"], "other")
    original, parent, seen = read_back(tmp_path, name, "state")
    assert plain(events) == plain(original)
    assert report["events"] == len(original)
    assert (session.messages, session.state, session.told, session.pending) == (parent.messages, parent.state, parent.told, parent.pending)
    assert pictures == seen
    assert session.cwd == "/project"
    again = cli("export", report["session"], state="other")

    def content(exported: str) -> list[Any]:
        items = [json.loads(line) for line in exported.split("\n")[1:] if line]
        return [{key: value for key, value in item.items() if key != "time"} for item in items]

    assert content(again) == content(text)
    assert (tmp_path / "other" / "blobs").is_dir()


def test_an_imported_session_keeps_when_things_happened(tmp_path: Path, cli: Any) -> None:
    name = made(tmp_path, lambda session: turn(session, 0))
    lines = [json.loads(line) for line in cli("export", name).splitlines()]
    for line in lines[1:]:
        line["time"] = 1_000_000_000.0 + line["seq"]
    file = tmp_path / "old.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    report = json.loads(cli("import", str(file), "--json"))
    events, _, _ = read_back(tmp_path, report["session"], "state")
    assert [event.time for event in events[1:]] == [1_000_000_000.0 + event.seq for event in events[1:]]


def test_a_directory_whose_name_is_no_unicode_is_exported(tmp_path: Path, cli: Any) -> None:
    name = made(tmp_path, lambda session: turn(session, 0), cwd="/project/caf\udce9")
    file = tmp_path / "exported.jsonl"
    cli("export", name, "-o", str(file))
    report = json.loads(cli("import", str(file), "--json", state="other"))
    assert read_back(tmp_path, report["session"], "other")[1].cwd == "/project/caf\udce9"


def changed(lines: list[str], number: int, **members: Any) -> list[str]:
    item = {**json.loads(lines[number]), **members}
    return [*lines[:number], json.dumps({key: value for key, value in item.items() if value is not ...}), *lines[number + 1 :]]


def appended(lines: list[str], type: str, data: Any) -> list[str]:
    events = [line for line in lines if '"seq": ' in line.split('"data"')[0]]
    item = {"seq": len(events), "time": 1.0, "type": type, "data": data}
    return [lines[0], *events, json.dumps(item), *lines[1 + len(events) :]]


DAMAGES: dict[str, Any] = {
    "empty": lambda lines: [],
    "no header": lambda lines: lines[1:],
    "only a header": lambda lines: lines[:1],
    "another format": lambda lines: changed(lines, 0, format=2),
    "an event missing": lambda lines: [*lines[:4], *lines[5:]],
    "an event twice": lambda lines: [*lines[:4], *lines[3:]],
    "an event damaged": lambda lines: changed(lines, 4, damaged=True),
    "cut in a line": lambda lines: [*lines[:4], lines[4][:20]],
    "cut between lines": lambda lines: lines[:5],
    "no list of blocks": lambda lines: changed(lines, 3, data={"role": "user", "blocks": 5}),
    "a block that is none": lambda lines: changed(lines, 3, data={"role": "user", "blocks": ["x"]}),
    "a text that is none": lambda lines: changed(lines, 3, data={"role": "user", "blocks": [{"type": "text", "text": 5}]}),
    "a role that is none": lambda lines: changed(lines, 3, data={"role": "system", "blocks": [{"type": "text", "text": "x"}]}),
    "no time": lambda lines: changed(lines, 4, time=...),
    "data that is none": lambda lines: changed(lines, 3, data=[1]),
    "notes without a place": lambda lines: appended(lines, "compacted", {"role": "user", "blocks": []}),
    "notes that are no message": lambda lines: appended(lines, "compacted", {"until": 2}),
    "a shortening of nothing": lambda lines: appended(lines, "pruned", {}),
    "a state without a name": lambda lines: appended(lines, "state", {}),
    "something waiting for nothing": lambda lines: appended(lines, "queued", {"role": "user", "blocks": []}),
    "something waiting that is no message": lambda lines: appended(lines, "queued", {"target": "turn"}),
    "something dropped that is no list": lambda lines: appended(lines, "dropped", {}),
    "a call without an id": lambda lines: appended(lines, "call", {}),
    "another picture": lambda lines: [*lines, json.dumps({"blob": "0" * 64, "data": base64.b64encode(b"x").decode()})],
    "a picture that is no Base64": lambda lines: [*lines, json.dumps({"blob": "0" * 64, "data": "***"})],
    "a picture missing": lambda lines: appended(
        lines, "message", encode_message(Message("user", (Image("image/png", sha256(b"nowhere").hexdigest()),)))
    ),
    "nested beyond measure": lambda lines: [*lines[:3], "[" * 200_000],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_and_leaves_nothing(damage: str, tmp_path: Path, cli: Any) -> None:
    lines = cli("export", made(tmp_path, lambda session: turn(session, 0))).splitlines()
    file = tmp_path / "damaged.jsonl"
    file.write_text("\n".join(DAMAGES[damage](lines)) + "\n")
    with pytest.raises(HamesError):
        cli("import", str(file), state="other")

    async def count() -> int:
        async with stored(tmp_path / "other") as sessions:
            return len(sessions.list())

    assert asyncio.run(count()) == 0


def test_a_file_that_is_no_text_is_refused(tmp_path: Path, cli: Any) -> None:
    file = tmp_path / "binary.jsonl"
    file.write_bytes(b"\xff\xfe\0\1" * 100)
    with pytest.raises(HamesError):
        cli("import", str(file), state="other")


def test_what_a_plugin_calls_a_blob_does_not_forbid_the_export(tmp_path: Path, cli: Any) -> None:
    def body(session: Session) -> None:
        turn(session, 0)
        session.append("plugin.example/note", {"blob": "a" * 64})

    assert "plugin.example/note" in cli("export", made(tmp_path, body))


# search


TEXTS = [
    "An ordinary Sentence",
    "100% sure, or 5_000 of them",
    "1000 sure, or 5X000 of them",
    'she said "stop" and \\n is no line break',
    "two\nlines\tand a tab",
    "Straße, ÜBER allem, 漢字 and 😀",
    "percent at the end %",
    "control \x01 and \x7f and \u2028",
    "it's a quote; DROP TABLE events; --",
]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("ordinary", [0]),
        ("ORDINARY sentence", [0]),
        ("100%", [1]),
        ("5_000", [1]),
        ("%", [1, 6]),
        ("_", [1]),
        ('"stop"', [3]),
        ("\\n", [3]),
        ("two\nlines", [4]),
        ("lines\tand", [4]),
        ("Straße", [5]),
        ("STRASSE", [5]),
        ("über", [5]),
        ("ÜBER", [5]),
        ("漢字", [5]),
        ("😀", [5]),
        ("\x01", [7]),
        ("\u2028", [7]),
        ("it's a quote; drop", [8]),
        ("nowhere", []),
    ],
)
async def test_what_is_searched_is_found_whatever_it_is_made_of(text: str, places: list[int], sessions: Sessions) -> None:
    session = sessions.create("/project")
    seqs = []
    for each in TEXTS:
        seqs.append(session.next_seq)
        session.add(user(each))
    await session.barrier()
    assert [seq for _, seq, _ in sessions.search(text)] == [seqs[place] for place in places]


async def test_calls_and_results_are_searched_and_the_newest_session_comes_first(sessions: Sessions) -> None:
    names = []
    for number in range(3):
        session = sessions.create("/project")
        session.add(answer(ToolCall("c", "bash", json.dumps({"command": f'echo "needle{number}"'}))))
        session.add(result("c", Text("in the haystack")))
        await session.barrier()
        names.append(session.id)
    assert [name for name, _, _ in sessions.search("haystack")] == names[::-1]
    assert [name for name, _, _ in sessions.search("needle1")] == [names[1]]
    assert [name for name, _, _ in sessions.search('\\"needle1\\"')] == [names[1]]
    assert len(sessions.search("haystack", limit=2)) == 2


@pytest.mark.parametrize("lead", ["", "x" * 500, "ß" * 500, "İ" * 300])
async def test_the_words_around_a_place_hold_what_was_searched(lead: str, sessions: Sessions) -> None:
    session = sessions.create("/project")
    session.add(user(f"{lead} the needle {lead}"))
    await session.barrier()
    ((_, _, words),) = sessions.search("needle")
    assert "needle" in words


@pytest.mark.parametrize("text", ["caf\udce9", "\ud83d", "\0", "x" * 60_000, "%" * 3000, ""])
async def test_a_search_for_anything_ends_well(text: str, sessions: Sessions) -> None:
    session = sessions.create("/project")
    session.add(user("caf and " + "a%" * 200))
    await session.barrier()
    assert len(sessions.search(text)) == (0 if text else 1)


async def test_damaged_events_are_left_out_of_a_search(sessions: Sessions) -> None:
    session = sessions.create("/project")
    for number in range(3):
        session.add(user(f"needle {number}"))
    await session.barrier()
    await sessions.store.sessions.write("UPDATE events SET data = ? WHERE sid = ? AND seq = 2", (b'{"needle"', session.sid))
    assert [seq for _, seq, _ in sessions.search("needle")] == [1, 3]


# purge


def files(store: Store) -> set[str]:
    return {path.name for path in store.blobs.root.rglob("*") if path.is_file()}


async def test_a_purge_removes_everything_of_a_session_and_nothing_of_another(opened: Any, wired: Any, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    async with opened() as host:
        agents, service = host.get(AGENTS), host.get(SESSIONS)
        store = service.store
        made = []
        for number in range(2):
            agent = await agents.create(AgentSpec(str(tmp_path / "work"), "openai:text=hello"))
            shared = agent.session.keep_picture("image/png", PNG)
            own = agent.session.keep_picture("image/gif", b"GIF89a" + bytes([number]) * 400)
            await agent.run(Message("user", (Text(f"{number}" + "x" * 100_000), shared, own)))
            picture_of_a_result = agent.session.keep_picture("image/webp", b"RIFF" + bytes([number]) * 90)
            agent.session.add(answer(ToolCall("c", "read_image", "{}")))
            agent.session.add(result("c", picture_of_a_result))
            waits = agent.session.keep_picture("image/webp", b"RIFF" + bytes([number]) * 60)
            agent.inject(Message("user", (waits,)))
            await agent.session.barrier()
            names = {own.blob, picture_of_a_result.blob, waits.blob}
            long = {
                bytes(data).hex()
                for (data,) in store.sessions.query("SELECT data FROM fragments WHERE sid = ? AND codec = ?", (agent.session.sid, BLOB))
            }
            assert long
            made.append((agent, names, long))
        first, second = made
        with pytest.raises(BusyError):
            await service.purge(first[0].id)
        assert service.read(first[0].id)
        await agents.dispose(first[0])
        await agents.dispose(second[0])
        kept = [request.body() for _, request in service.rebuild(second[0].id)]
        before = files(store)
        await service.purge(first[0].id)
        assert before - files(store) == first[1] | (first[2] - second[2])
        for table in ("events", "requests", "fragments", "sessions"):
            assert rows(store, table, first[0].session.sid) == 0
            assert rows(store, table, second[0].session.sid) > 0
        assert [request.body() for _, request in service.rebuild(second[0].id)] == kept
        assert second[0].session.picture(sha256(PNG).hexdigest()) == PNG
        with pytest.raises(NotFoundError):
            await service.purge(first[0].id)
        await service.purge(second[0].id)
        assert files(store) == set()


async def test_a_fork_keeps_the_pictures_of_a_parent_that_is_purged(sessions: Sessions) -> None:
    session = sessions.create("/project")
    session.append("turn", {})
    session.add(Message("user", (session.keep_picture("image/png", PNG),)))
    session.append("end", {"reason": "completed"})
    await session.barrier()
    await session.release()
    fork = await sessions.fork(session.id)
    await sessions.purge(session.id)
    assert fork.picture(sha256(PNG).hexdigest()) == PNG
    fork.add(user("goes on"))
    await fork.barrier()


async def test_a_purge_leaves_a_picture_that_is_about_to_be_named(sessions: Sessions) -> None:
    """Another session has kept the same picture and its message is on the way to the log."""
    old = sessions.create("/project")
    old.add(Message("user", (old.keep_picture("image/png", PNG),)))
    await old.barrier()
    await old.release()
    session = sessions.create("/project")
    await session.barrier()
    image = session.keep_picture("image/png", PNG)
    await sessions.purge(old.id)
    session.add(Message("user", (image,)))
    await session.barrier()
    assert session.picture(image.blob) == PNG


HOLDER = """
import asyncio, sys
from pathlib import Path
from hames.content.clock import Clock
from hames.sessions.plugin import Sessions
from hames.store import Store

async def main(state, name):
    store = Store(Path(state))
    await Sessions(store, Clock()).open(name)
    print("open", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_session_that_another_process_holds_is_not_purged_and_one_whose_process_died_is(
    sessions: Sessions, tmp_path: Path, reopen: Any
) -> None:
    session = sessions.create("/project")
    turn(session, 0)
    await session.barrier()
    await session.release()
    await sessions.store.sessions.flush()
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "state"), session.id], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == b"open\n"
        before = sessions.read(session.id)
        with pytest.raises(BusyError):
            await sessions.purge(session.id)
        assert sessions.read(session.id) == before
    finally:
        child.kill()
        child.communicate()
    await sessions.purge(session.id)
    with pytest.raises(NotFoundError):
        sessions.read(session.id)
    await reopen()  # which sweeps away what the dead process has left
