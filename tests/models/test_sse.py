"""Server-sent events come in any pieces and mean the same."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hames.models import sse
from hames.models.sse import EventSplitter

Events = list[tuple[str, str]]

STEADY = settings(derandomize=True, deadline=None)
WORDS = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=12)
LINES = st.lists(WORDS, min_size=1, max_size=3)
NAMES = st.text("abcdefgh_.", max_size=8)
NOISE = st.sampled_from([":", ": ping", ":data: no", "id: 7", "retry: 10", "unknown", "unknown: field"])


def split(*pieces: bytes) -> Events:
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, Events]:
    """The bytes of some events and what they mean."""
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    text: list[str] = []
    events: Events = []
    for name, lines in draw(st.lists(st.tuples(NAMES, LINES), max_size=5)):
        fields = [f"data: {line}" for line in lines]
        if name:
            fields.insert(draw(st.integers(0, len(fields))), f"event: {name}")
        for noise in draw(st.lists(NOISE, max_size=2)):
            fields.insert(draw(st.integers(0, len(fields))), noise)
        text += [*fields, "", *[""] * draw(st.integers(0, 2))]
        events.append((name, "\n".join(lines)))
    return "".join(line + ending for line in text).encode(), events


@STEADY
@given(streams(), st.lists(st.integers(0, 500), max_size=8))
def test_any_split_of_the_bytes_gives_the_same_events(stream: tuple[bytes, Events], places: list[int]) -> None:
    data, events = stream
    assert split(data) == events
    assert split(*cut(data, places)) == events


@STEADY
@given(streams())
def test_bytes_one_by_one_give_the_same_events(stream: tuple[bytes, Events]) -> None:
    data, events = stream
    assert split(*(bytes((byte,)) for byte in data)) == events


def test_lines_may_end_with_carriage_return_and_line_feed() -> None:
    assert split(b"event: a\r\ndata: 1\r", b"\n\r", b"\ndata: 2\r\n\r\n") == [("a", "1"), ("", "2")]


def test_data_lines_are_joined_by_line_feeds() -> None:
    assert split(b"data: one\ndata:\ndata:two\n\n") == [("", "one\n\ntwo")]


def test_only_one_space_after_the_colon_belongs_to_the_field() -> None:
    assert split(b"data:  x \n\n") == [("", " x ")]


def test_comments_and_unknown_fields_are_passed_over() -> None:
    assert split(b": keep-alive\n\nid: 1\nretry: 5\n\ndata: x\n: y\n\n") == [("", "x")]


def test_an_event_without_data_is_none_and_gives_its_name_to_nobody() -> None:
    assert split(b"event: lost\n\ndata: x\n\n") == [("", "x")]


def test_an_event_without_its_blank_line_is_not_complete() -> None:
    assert split(b"data: a\n\ndata: b\n") == [("", "a")]


def test_bytes_that_are_no_utf8_are_refused() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        split(b"data: \xff\n\n")


def test_a_line_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LIMIT", 64)
    with pytest.raises(ValueError, match="64 bytes"):
        split(b"data: " + b"x" * 40, b"x" * 40)


def test_an_event_of_many_lines_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LIMIT", 64)
    with pytest.raises(ValueError, match="64 bytes"):
        split(*[b"data: " + b"x" * 10 + b"\n"] * 50)


def test_the_limit_is_one_of_events_not_of_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LIMIT", 64)
    assert split(b"data: x\n\n" * 50) == [("", "x")] * 50
