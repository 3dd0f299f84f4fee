"""Blocks and their durable form."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from hames.content.messages import (
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    clean,
    decode_message,
    encode_message,
)

words = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
parts = st.one_of(st.builds(Text, words), st.builds(Image, words, words))
blocks = st.one_of(
    st.builds(Text, words),
    st.builds(Reasoning, words, words, words, words),
    st.builds(ToolCall, words, words, words),
    st.builds(ToolResult, words, st.lists(parts).map(tuple), st.booleans(), words),
    st.builds(Image, words, words),
    st.just(Unknown({"type": "later", "deep": {"a": [1]}})),
)
messages = st.builds(Message, st.sampled_from(["user", "assistant"]), st.lists(blocks).map(tuple), words)


@given(messages)
def test_a_message_survives_its_durable_form(message):
    assert decode_message(json.loads(json.dumps(encode_message(message)))) == message


@given(st.text(st.characters(), max_size=20))
def test_every_text_can_be_made_valid(text):
    clean(text).encode()


def test_surrogates_become_what_they_stand_for_or_a_mark():
    assert clean("a\ud83d\ude00b\udcff") == "a\U0001f600b\ufffd"
