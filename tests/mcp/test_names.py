"""What tools of servers are called."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hames.mcp.names import normalised, prefix, public_name, server_problem

ALLOWED = re.compile(r"[A-Za-z0-9_-]{1,64}")
ALPHABET = "abcXYZ019-_"
servers = st.text(ALPHABET, min_size=1, max_size=32).filter(lambda name: not server_problem(name))
raws = st.one_of(
    st.text(max_size=120), st.text(ALPHABET + ". /é", max_size=120), st.text(st.characters(categories=["Cs", "L"]), max_size=9)
)


@pytest.mark.parametrize(
    ("server", "raw", "name"),
    [
        ("github", "create_issue", "mcp__github__create_issue"),
        ("srv", "admin.reset", "mcp__srv__admin_reset_3b185f786768"),
        ("srv", "admin_reset", "mcp__srv__admin_reset"),
        ("fixture", "admin.reset", "mcp__fixture__admin_reset_2d9bb2dfe9aa"),
        ("s", "a" * 56, "mcp__s__" + "a" * 56),
    ],
)
def test_known_names(server, raw, name):
    assert public_name(server, raw) == name


def test_a_long_name_is_cut_and_ends_in_its_digest():
    name = public_name("srv", "a" * 80)
    assert len(name) == 64 and name.endswith("_3b75b5cc78d8") and name.startswith("mcp__srv__aaaa")
    assert len(public_name("s", "a" * 57)) == 64 and not public_name("s", "a" * 57).endswith("a" * 14)


@pytest.mark.parametrize("raw", ["", "a\n", "\n", "é", "a b", "\ud800", "\0", "a/b", "a" * 10_000, "名" * 100])
def test_every_name_that_a_server_may_send_becomes_one_that_providers_take(raw):
    name = public_name("srv", raw)
    assert ALLOWED.fullmatch(name) and name.startswith("mcp__srv__")


@given(servers, raws)
def test_names_fit_and_keep_their_prefix(server, raw):
    name = public_name(server, raw)
    assert ALLOWED.fullmatch(name) and name.startswith(prefix(server))
    plain = f"mcp__{server}__{raw}"
    if ALLOWED.fullmatch(plain):
        assert name == plain
    else:
        digest = sha256(server.encode() + b"\0" + raw.encode("utf-8", "surrogatepass")).hexdigest()
        shown = "".join(letter if re.fullmatch("[A-Za-z0-9_-]", letter) else "_" for letter in plain)
        assert name == f"{shown[:51]}_{digest[:12]}"


@given(servers, raws, servers, raws)
def test_no_tool_of_one_server_has_the_prefix_of_another(server, raw, other, another):
    if server != other:
        assert not public_name(server, raw).startswith(prefix(other))
        assert public_name(server, raw) != public_name(other, another)


@given(servers, raws, raws)
def test_names_that_had_to_be_changed_stay_apart(server, one, two):
    names = {raw: public_name(server, raw) for raw in (one, two)}
    changed = [raw for raw in names if names[raw] != prefix(server) + raw]
    assert len({names[raw] for raw in changed}) == len(set(changed))


@pytest.mark.parametrize("name", ["a", "a-b", "a_b", "-", "A1", "a_b_c", "x" * 32])
def test_names_that_a_server_may_have(name):
    assert server_problem(name) == ""


@pytest.mark.parametrize(
    "name", ["", "_", "_a", "a_", "a__b", "a.b", "a b", "a\n", "é", "\uff11", "x" * 33, "a/b", "*", "a\0"], ids=lambda name: repr(name[:8])
)
def test_names_that_a_server_may_not_have(name):
    assert "1 to 32" in server_problem(name)


@given(st.text(max_size=80))
def test_the_nearest_name_is_one_that_a_server_may_have_or_none(raw):
    name = normalised(raw)
    assert name == "" or not server_problem(name)
    assert normalised(name) == name
    if not server_problem(raw):
        assert name == raw


@pytest.mark.parametrize(
    ("raw", "name"), [("a b", "a_b"), ("a__b", "a_b"), ("@org/name", "org_name"), ("..", ""), ("x" * 31 + "_y", "x" * 31), ("é", "")]
)
def test_nearest_names(raw, name):
    assert normalised(raw) == name
