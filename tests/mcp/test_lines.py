"""Lines of a program that sends what it likes, against a model that has all of it at once."""

from __future__ import annotations

import json
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hames.mcp.lines import Lines, TooLong

FILL = "x" * 3_000


def cut(data: bytes, limit: int, sizes=()):
    """What comes out of data that arrives in pieces of these sizes, the last one taking the rest."""
    lines, found, start = Lines(limit), [], 0
    for size in sizes:
        found += lines.feed(data[start : start + size])
        start += size
    return [*found, *lines.feed(data[start:])]


def model(data: bytes, limit: int):
    """The complete lines, with the size alone of those that are too long."""
    return [line if len(line) <= limit else len(line) for line in data.split(b"\n")[:-1]]


def plain(found):
    return [each.size if isinstance(each, TooLong) else each for each in found]


def answer(number, result, last=False):
    head, tail = {"jsonrpc": "2.0"}, {"result": result}
    return {**head, **tail, "id": number} if last else {**head, "id": number, **tail}


def only(message, sizes=(), limit=1_000):
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    (found,) = cut(data + b"\n", limit, sizes)
    assert isinstance(found, TooLong) and found.size == len(data)
    return found.answers


pieces = st.lists(st.integers(0, 700), max_size=40)
bits = st.one_of(
    st.binary(max_size=30), st.just(b"\n"), st.just(b"\r\n"), st.just(b"\n\n"), st.builds(lambda n: b"y" * n, st.integers(0, 900))
)
streams = st.lists(bits, max_size=30).map(b"".join)


@given(streams, pieces, st.integers(1, 1_500))
@settings(deadline=None, max_examples=300)
def test_every_cut_of_a_stream_gives_the_lines_of_the_model(data, sizes, limit):
    assert plain(cut(data, limit, sizes)) == model(data, limit)


@given(streams, st.integers(1, 1_500))
@settings(deadline=None, max_examples=100)
def test_single_bytes_give_the_lines_of_the_model(data, limit):
    assert plain(cut(data, limit, [1] * len(data))) == model(data, limit)


@given(st.integers(0, 10**15 - 1), st.booleans(), pieces, st.integers(1, 2_500))
@settings(deadline=None, max_examples=300)
def test_a_line_that_is_too_long_names_the_request_that_it_answers_however_it_arrives(number, last, sizes, limit):
    assert only(answer(number, {"text": FILL}, last), sizes, limit) == number


def test_a_small_limit_does_not_cut_the_number_of_the_request():
    message = answer(123_456, {"text": FILL})
    wrong = {(limit, size) for limit in range(1, 60) for size in range(1, 80) if only(message, [size], limit) != 123_456}
    assert not wrong


@given(st.integers(0, 99), st.integers(100, 999), st.booleans(), pieces)
@settings(deadline=None, max_examples=200)
def test_numbers_in_the_answer_are_not_taken_for_that_of_the_request(number, other, last, sizes):
    inner = {"id": other, "rows": [{"id": other}, FILL, {"id": other}]}
    assert only(answer(number, inner, last), sizes) == number
    error = {"jsonrpc": "2.0", "id": number, "error": {"code": 1, "message": FILL, "data": {"id": other}}}
    assert only(error, sizes) == number


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": {"id": 3, "text": FILL}}},
        {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": {"text": FILL, "id": 3}}},
        {"jsonrpc": "2.0", "id": 3, "method": "sampling/createMessage", "params": {"text": FILL}},
        {"method": "sampling/createMessage", "params": {"text": FILL}, "jsonrpc": "2.0", "id": 3},
    ],
    ids=["notification with a number at its begin", "notification with a number at its end", "request", "request that ends in its number"],
)
def test_what_the_server_asks_or_tells_by_itself_answers_nothing(message):
    assert only(message) is None


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 5_000,
        b'{"jsonrpc": "2.0", "id": "three", "result": "' + b"x" * 5_000 + b'"}',
        b"\0" * 5_000,
        b'{"id": 1' + b"2" * 5_000,
    ],
    ids=["letters", "words", "zeros", "digits"],
)
def test_a_long_line_without_a_number_answers_nothing(data):
    assert only(data) is None


def test_the_limit_itself_is_not_too_long():
    assert cut(b"a" * 100 + b"\n" + b"b" * 101 + b"\nc\n", 100) == [b"a" * 100, TooLong(101, None), b"c"]


def test_what_has_no_end_is_no_line_and_nothing_of_a_long_line_leaks_into_the_next():
    lines = Lines(600)
    assert list(lines.feed(b"half")) == []
    assert list(lines.feed(b" and half\nrest")) == [b"half and half"]
    assert plain(lines.feed(b"z" * 2_000)) == []
    assert plain(lines.feed(b"\nshort\n")) == [2_004, b"short"]
    assert plain(lines.feed(b'{"id": 1}\n')) == [b'{"id": 1}']


@pytest.mark.parametrize("size", [1_000, 65_536], ids=["small pieces", "pieces of a pipe"])
@pytest.mark.parametrize("limit", [16 << 20, 200 << 20], ids=["too long", "kept"])
def test_a_hundred_megabytes_in_pieces_take_linear_time(size, limit):
    lines, piece, began = Lines(limit), b"x" * size, time.process_time()
    count = (100 << 20) // size
    for _ in range(count):
        assert not list(lines.feed(piece))
    (found,) = lines.feed(b"\n")
    assert (found.size if isinstance(found, TooLong) else len(found)) == count * size
    assert time.process_time() - began < 3


def test_a_million_short_lines_at_once_take_linear_time():
    began = time.process_time()
    assert sum(1 for _ in Lines(100).feed(b"{}\n" * 1_000_000)) == 1_000_000
    assert time.process_time() - began < 4


def test_a_line_that_is_too_long_is_not_held():
    tracemalloc.start()
    try:
        lines = Lines(1 << 20)
        piece = b"x" * 65_536
        for _ in range(800):
            assert not list(lines.feed(piece))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_line_that_dribbles_in_is_held_in_a_small_multiple_of_its_size():
    size = 1 << 20
    tracemalloc.start()
    try:
        lines, data = Lines(16 << 20), b"abcd" * (size // 4)
        for start in range(0, size, 2):
            list(lines.feed(data[start : start + 2]))
        assert tracemalloc.get_traced_memory()[0] < 6 * size
    finally:
        tracemalloc.stop()
