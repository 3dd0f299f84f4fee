"""Requests as records: what was sent is rebuilt from the database alone."""

import random
import zlib
from hashlib import sha256
from typing import Any

import pytest

from hames.content.errors import DamagedError, FencedError
from hames.content.messages import Message, Text, ToolCall, ToolResult, user
from hames.content.request import EncodedRequest, Fragment, ToolSpec
from hames.models import Encoder
from hames.models.anthropic import AnthropicMessages
from hames.models.openai import OpenAIChat
from hames.models.port import Settings
from hames.sessions import Session, Sessions

TOOLS = (ToolSpec("bash", "Run a command. " * 60, {"type": "object", "properties": {"command": {"type": "string"}}}),)


def noise(size: int) -> str:
    """Text that does not compress to nothing."""
    return "".join(random.Random(size).choices("abcdefghijklmnopqrstuvwxyz0123456789 ", k=size))


def request(*groups: bytes, head: bytes = b"[", tail: bytes = b"]", kept: int = 0) -> EncodedRequest:
    body = head + b",".join(groups) + tail
    return EncodedRequest("test/1", head, [Fragment(group) for group in groups], tail, sha256(body).hexdigest(), kept=kept)


def bodies(sessions: Sessions, name: str) -> list[bytes]:
    return [request.body() for _, request in sessions.rebuild(name)]


async def talk(session: Session, encoder: Encoder, sizes: list[int], *, system: str = "Be brief.") -> list[EncodedRequest]:
    """A conversation whose questions have these sizes; every request is recorded."""
    sent = []
    for place, size in enumerate(sizes):
        session.add(user(noise(size)))
        for step in range(2):
            encoded = encoder.encode(system, TOOLS, session.messages, Settings())
            sent.append(encoded)
            session.record(encoded)
            await session.barrier()
            if step == 0:
                id = f"call_{place}"
                session.add(Message("assistant", (Text("ü"), ToolCall(id, "bash", '{"command": "ls"}')), "model"))
                session.add(Message("user", (ToolResult(id, (Text(noise(size // 2)),)),), "tool"))
            else:
                session.add(Message("assistant", (Text("done"),), "model"))
    return sent


@pytest.mark.parametrize("dialect", [OpenAIChat(), AnthropicMessages()], ids=["openai", "anthropic"])
async def test_every_request_is_rebuilt_byte_for_byte(sessions: Sessions, reopen: Any, dialect: Any) -> None:
    session = sessions.create("/project")
    sent = await talk(session, Encoder(dialect, "model"), [10, 5_000, 150_000, 20, 64 * 1024, 3])
    sessions = await reopen()
    found = list(sessions.rebuild(session.id))
    assert [record.n for record, _ in found] == list(range(12))
    for original, (record, rebuilt) in zip(sent, found, strict=True):
        assert rebuilt.body() == original.body()
        assert [group.data for group in rebuilt.groups] == [group.data for group in original.groups]
        assert (rebuilt.adapter, rebuilt.reason, rebuilt.sha256) == (original.adapter, original.reason, original.sha256)
        assert (record.kept, rebuilt.marker, rebuilt.marked) == (original.kept, original.marker, original.marked)
    assert [record.reason for record, _ in found] == ["initial"] + [""] * 11


async def test_a_request_stores_only_what_is_new(sessions: Sessions) -> None:
    session = sessions.create("/project")
    await talk(session, Encoder(OpenAIChat(), "model"), [2_000] * 8)
    ((fragments, size),) = sessions.store.sessions.query("SELECT COUNT(*), SUM(LENGTH(data)) FROM fragments")
    # 16 requests of up to 32 groups, over 31 groups: head and tail once, and each group once; the open group may change hands.
    assert fragments <= 2 + 32
    assert size < 8 * 3_500


async def test_long_fragments_are_blobs_middle_ones_compressed_short_ones_as_they_are(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    groups = (b"short", b"m" * 5_000, noise(64 * 1024).encode(), noise(64 * 1024 + 1).encode(), bytes(range(256)) * 1024)
    session.record(request(*groups))
    await session.barrier()
    rows = sessions.store.sessions.query("SELECT codec, data FROM fragments ORDER BY n")
    stored = [(codec, data) for codec, data in rows if data not in (b"[", b"]")]
    assert [codec for codec, _ in stored] == [0, 1, 1, 2, 2]
    assert zlib.decompress(stored[1][1]) == groups[1]
    assert sessions.store.blobs.get(stored[3][1].hex()) == groups[3]
    assert bodies(await reopen(), session.id) == [b"[" + b",".join(groups) + b"]"]


async def test_what_does_not_compress_is_stored_as_it_is(sessions: Sessions) -> None:
    session = sessions.create("/project")
    session.record(request(random.Random(1).randbytes(2_000)))
    await session.barrier()
    assert {codec for (codec,) in sessions.store.sessions.query("SELECT codec FROM fragments")} == {0}
    assert len(bodies(sessions, session.id)) == 1


async def test_requests_go_on_after_the_session_was_opened_again(sessions: Sessions, reopen: Any) -> None:
    session = sessions.create("/project")
    sent = await talk(session, Encoder(OpenAIChat(), "model"), [100, 70_000])
    opened = await (await reopen()).open(session.id)
    sent += await talk(opened, Encoder(OpenAIChat(), "model"), [200])
    sessions = await reopen()
    assert bodies(sessions, session.id) == [each.body() for each in sent]
    assert [record.reason for record, _ in sessions.rebuild(session.id)] == ["initial", "", "", "", "resume", ""]


async def test_another_head_starts_a_new_base_with_its_reason(sessions: Sessions) -> None:
    session = sessions.create("/project")
    encoder = Encoder(OpenAIChat(), "model")
    sent = await talk(session, encoder, [100]) + await talk(session, encoder, [100], system="Be verbose.")
    found = list(sessions.rebuild(session.id))
    assert [each.body() for _, each in found] == [each.body() for each in sent]
    assert [record.reason for record, _ in found] == ["initial", "", "head", ""]
    assert found[2][0].kept == 0


async def test_requests_of_sessions_do_not_mix(sessions: Sessions) -> None:
    first, second = sessions.create("/a"), sessions.create("/b")
    one = await talk(first, Encoder(OpenAIChat(), "model"), [100])
    two = await talk(second, Encoder(OpenAIChat(), "model"), [200])
    assert bodies(sessions, first.id) == [each.body() for each in one]
    assert bodies(sessions, second.id) == [each.body() for each in two]


async def test_a_record_says_before_which_event_it_was_sent(sessions: Sessions) -> None:
    session = sessions.create("/project")
    await talk(session, Encoder(OpenAIChat(), "model"), [10])
    assert [record.seq for record, _ in sessions.rebuild(session.id)] == [2, 4]


# damage


async def three_requests(sessions: Sessions) -> tuple[Session, list[bytes]]:
    """Requests that each keep the groups before and append one; the last group of the second is a blob."""
    session = sessions.create("/project")
    groups = [b"one", noise(70_000).encode(), noise(3_000).encode()]
    sent = []
    for count in range(1, 4):
        sent.append(request(*groups[:count], kept=count - 1))
        session.record(sent[-1])
        await session.barrier()
    return session, [each.body() for each in sent]


async def check_first_only(sessions: Sessions, name: str, expected: bytes) -> None:
    """The first request comes, the second one is said to be damaged."""
    found = sessions.rebuild(name)
    assert next(found)[1].body() == expected
    with pytest.raises(DamagedError) as caught:
        next(found)
    assert caught.value.code == "STORAGE_DAMAGED"
    assert caught.value.remedy


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE fragments SET data = CAST(x'00' || SUBSTR(data, 2) AS BLOB) WHERE codec = 2",
        "UPDATE fragments SET codec = 0 WHERE codec = 2",
        "UPDATE fragments SET marker_at = 7 WHERE codec = 2",
        "DELETE FROM fragments WHERE codec = 2",
        "UPDATE requests SET kept = 0 WHERE n = 1",
        "UPDATE requests SET first = first + 1 WHERE n = 1",
        "UPDATE requests SET separator = x'20' WHERE n = 1",
        "UPDATE requests SET adapter = 'other/1' WHERE n = 1",
        "UPDATE requests SET sha256 = zeroblob(32) WHERE n = 1",
        "UPDATE requests SET reason = 'history' WHERE n = 1",
    ],
)
async def test_a_damaged_record_is_reported_not_returned(sessions: Sessions, reopen: Any, damage: str) -> None:
    session, sent = await three_requests(sessions)
    await sessions.store.sessions.write(damage, must_change=True)
    await check_first_only(await reopen(), session.id, sent[0])


@pytest.mark.parametrize("how", ["flipped", "missing"])
async def test_a_damaged_blob_is_reported_not_returned(sessions: Sessions, reopen: Any, how: str) -> None:
    session, sent = await three_requests(sessions)
    ((digest,),) = sessions.store.sessions.query("SELECT data FROM fragments WHERE codec = 2")
    path = sessions.store.blobs.path(digest.hex())
    if how == "missing":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[1000] ^= 1
        path.write_bytes(data)
    await check_first_only(await reopen(), session.id, sent[0])


async def test_a_lost_request_is_seen(sessions: Sessions, reopen: Any) -> None:
    session, sent = await three_requests(sessions)
    await sessions.store.sessions.write("DELETE FROM requests WHERE n = 1", must_change=True)
    found = (await reopen()).rebuild(session.id)
    assert next(found)[1].body() == sent[0]
    with pytest.raises(DamagedError):
        next(found)


async def test_a_damaged_request_does_not_stop_the_conversation(sessions: Sessions, reopen: Any) -> None:
    session, _ = await three_requests(sessions)
    await sessions.store.sessions.write("UPDATE requests SET kept = 0 WHERE n = 1", must_change=True)
    opened = await (await reopen()).open(session.id)
    opened.record(request(b"new"))
    await opened.barrier()


async def test_a_fenced_writer_records_no_request(sessions: Sessions) -> None:
    session, sent = await three_requests(sessions)
    await sessions.store.sessions.write("UPDATE sessions SET epoch = 99")
    session.record(request(b"late"))
    with pytest.raises(FencedError):
        await session.barrier()
    assert bodies(sessions, session.id) == sent
