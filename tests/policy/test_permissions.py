"""What modes, rules and grants say about a call."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hames.content.errors import StorageError
from hames.policy import ToolRequest
from hames.policy.grants import Grants
from hames.policy.permissions import Permissions
from hames.policy.rules import Rule, fits, lasting
from hames.policy.shell import classify

MODES = ("read-only", "workspace-write", "full")


def request(*capabilities, name="tool", cwd="/w", **more):
    return ToolRequest(name, frozenset(capabilities), more.pop("arguments", {"x": "1"}), cwd, **more)


def shell(command, *, network=False, unconfined="", cwd="/w", timeout=None, **more):
    capabilities = classify(command) | ({"network"} if network else set())
    arguments = {"command": command, "timeout": timeout, "network": network, "unconfined": unconfined}
    return ToolRequest("bash", frozenset(capabilities), arguments, cwd, unconfined=unconfined, **more)


def page(url, start=0, **more):
    return ToolRequest("web_fetch", frozenset({"network"}), {"url": url, "start": start}, more.pop("cwd", "/w"), **more)


def judge(*rules, mode="workspace-write", root=None):
    return Permissions(lambda: mode, [Rule.model_validate(rule) for rule in rules], Grants(root))


def command_rule(verdict, pattern, **more):
    return {verdict: "bash", "when": {"command": pattern}, **more}


# modes


@pytest.mark.parametrize(
    ("capabilities", "verdicts"),
    [
        (("read",), "allow allow allow"),
        (("write",), "deny allow allow"),
        (("read", "write"), "deny allow allow"),
        (("execute",), "allow allow allow"),
        (("read", "execute"), "allow allow allow"),
        (("read", "write", "execute"), "allow allow allow"),  # read-only: the sandbox holds what it writes
        (("network",), "ask ask allow"),
        (("read", "network"), "ask ask allow"),
        (("read", "execute", "network"), "ask ask allow"),
        (("read", "write", "execute", "network"), "ask ask allow"),
        (("write", "network"), "deny ask allow"),
        (("delegate",), "allow allow allow"),
        ((), "allow allow allow"),
    ],
)
def test_each_mode_says_what_is_free_asked_and_denied(capabilities, verdicts):
    found = [judge(mode=mode).decide(request(*capabilities)) for mode in MODES]
    assert [each.verdict for each in found] == verdicts.split()
    for mode, decision in zip(MODES, found, strict=True):
        assert decision.verdict == "deny" or decision.access == mode
        assert decision.verdict == "allow" or decision.reason


@pytest.mark.parametrize(
    ("capabilities", "verdicts"), [(("read", "execute"), "deny allow allow"), (("read", "write", "execute"), "deny ask allow")]
)
def test_where_nothing_confines_commands_that_counts(capabilities, verdicts):
    found = [judge(mode=mode).decide(request(*capabilities, enforced=False)) for mode in MODES]
    assert [each.verdict for each in found] == verdicts.split()


def test_what_runs_outside_of_the_sandbox_is_denied_asked_and_free():
    found = [judge(mode=mode).decide(shell("ls", unconfined="a reason")) for mode in MODES]
    assert [each.verdict for each in found] == ["deny", "ask", "allow"]
    assert "a reason" in found[1].reason and found[1].access == "full"


def test_a_path_outside_of_the_workspace_is_asked_about():
    found = [judge(mode=mode).decide(request("write", outside=("/elsewhere",))) for mode in MODES]
    assert [each.verdict for each in found] == ["deny", "ask", "allow"]
    assert "/elsewhere" in found[1].reason


@pytest.mark.parametrize(("mode", "ceiling"), list(itertools.product(MODES, MODES)))
def test_a_ceiling_narrows_and_never_widens(mode, ceiling):
    narrower = MODES[min(MODES.index(mode), MODES.index(ceiling))]
    for capabilities in (("write",), ("network",), ("read", "write", "execute"), ("read",)):
        found = judge(mode=mode).decide(request(*capabilities, ceiling=ceiling))
        expected = judge(mode=narrower).decide(request(*capabilities))
        assert (found.verdict, found.access) == (expected.verdict, expected.access)
    unconfined = judge({"allow": "*", "when": {"unconfined": "*"}}, mode=mode).decide(shell("ls", unconfined="x", ceiling=ceiling))
    assert (unconfined.verdict == "deny") == (narrower == "read-only")


# rules


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", list(itertools.permutations(["deny", "ask", "allow"])), ids="-".join)
def test_deny_beats_ask_beats_allow_in_any_order(mode, order):
    call = request("read")
    assert judge(*({verdict: "tool"} for verdict in order), mode=mode).decide(call).verdict == "deny"
    assert judge(*({verdict: "tool"} for verdict in order if verdict != "deny"), mode=mode).decide(call).verdict == "ask"


@given(
    st.lists(
        st.sampled_from([("allow", "*"), ("allow", "bash"), ("ask", "ba*"), ("deny", "bash"), ("deny", "other"), ("ask", "x")]), max_size=5
    )
)
@settings(deadline=None)
def test_the_order_of_rules_means_nothing(rules):
    calls = [shell("make x"), shell("curl x"), shell("ls", unconfined="u"), shell("rm x", enforced=False)]
    for call in calls:
        for mode in MODES:
            found = {
                (each.verdict, each.access, each.network)
                for order in itertools.islice(itertools.permutations(rules), 24)
                for each in [judge(*({verdict: tool} for verdict, tool in order), mode=mode).decide(call)]
            }
            assert len(found) == 1


def test_the_order_of_rules_means_nothing_to_the_network():
    rules = [{"allow": "bash"}, command_rule("allow", "git push*", network=True)]
    found = [judge(*order).decide(shell("git push")) for order in itertools.permutations(rules)]
    assert [(each.verdict, each.network) for each in found] == [("allow", True)] * 2


@pytest.mark.parametrize("rule", [{"allow": "*"}, {"allow": "*", "network": True}, {"allow": "bash", "when": {"command": "*"}}])
def test_no_rule_widens_what_a_mode_denies(rule):
    policy = judge(rule, mode="read-only")
    assert policy.decide(request("write", name="bash", arguments={"command": "x"})).verdict == "deny"
    assert policy.decide(shell("ls", unconfined="x")).verdict == "deny"
    assert policy.decide(shell("ls", enforced=False)).verdict == "deny"


@given(
    st.lists(
        st.builds(
            lambda v, t, n: {v: t, "network": n and v == "allow"},
            st.sampled_from(["allow", "ask"]),
            st.sampled_from(["*", "tool"]),
            st.booleans(),
        ),
        max_size=4,
    )
)
@settings(deadline=None)
def test_what_a_mode_denies_stays_denied_under_any_rules(rules):
    for capabilities in (("write",), ("write", "network"), ("read", "write", "delegate")):
        assert judge(*rules, mode="read-only").decide(request(*capabilities)).verdict == "deny"


@pytest.mark.parametrize("verdict", ["deny", "ask"])
def test_a_rule_counts_in_mode_full_too(verdict):
    assert judge({verdict: "bash"}, mode="full").decide(shell("ls")).verdict == verdict


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"allow": "a", "deny": "b"},
        {"allow": ""},
        {"deny": "a", "network": True},
        {"allow": "a", "extra": 1},
        {"allow": "a", "when": {"x": 1}},
    ],
)
def test_a_rule_that_says_nothing_or_too_much_is_refused(broken):
    with pytest.raises(ValidationError):
        Rule.model_validate(broken)


ALLOWED = ["npm test", "npm test -- --watch", "npm  test", "'npm' test", "npm test && npm test", "npm test | npm test"]
NOT_ALLOWED = [
    *r"""
npm test; rm x
npm test && curl x
npm test || curl x
npm test | tee x
npm test |& tee x
npm test & rm x
npm test $(x)
npm test `x`
npm test "$(x)"
npm test <(x)
npm test > >(x)
npm test ${x:=y}
npm test $x
npm install
A=1 npm test
rm x; npm test
(npm test)
! npm test
npm test <<< $(x)
npm test {a,b}
eval npm test
""".strip().splitlines(),
    "npm test\nrm x",
    "npm test\n\nrm x",
    "rm x\nnpm test",
    "npm test \\\n; rm x",
    "npm test\rrm x",
    "npm test #\nrm x",
    "npm test\trm x;rm y",
]


@pytest.mark.parametrize("command", ALLOWED)
def test_a_rule_allows_each_command_that_fits(command):
    assert judge(command_rule("allow", "npm test*")).decide(shell(command, network=True)).verdict == "allow"


@pytest.mark.parametrize("command", NOT_ALLOWED)
@pytest.mark.parametrize("mode", ["read-only", "workspace-write"])
def test_a_rule_does_not_allow_what_else_a_command_does(command, mode):
    assert judge(command_rule("allow", "npm test*", network=True), mode=mode).decide(shell(command, network=True)).verdict == "ask"


def test_a_rule_knows_where_one_word_ends():
    """A program in a directory whose name begins like the command is another program."""
    assert judge(command_rule("allow", "npm test*", network=True)).decide(shell("'npm test/evil'", network=True)).verdict == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "git push",
        "git push origin",
        "ls; git push",
        "ls\ngit push",
        "git  push",
        "'git' push",
        "g\\it push",
        "$(git push)",
        "if true; then git push; fi",
        "A=1 git push",
        "A=1 git  push",
        "A=1 git\tpush",
        "(git 'push')",
        "echo $(git \\\npush)",
        'A=1 "git" push',
    ],
)
@pytest.mark.parametrize("verdict", ["deny", "ask"])
def test_a_rule_that_denies_or_asks_finds_a_command_in_whatever_holds_it(command, verdict):
    assert judge(command_rule(verdict, "git push*"), mode="full").decide(shell(command)).verdict == verdict


def test_a_pattern_of_a_path_does_not_lead_out_of_it():
    """``src/*`` names what is below src."""
    call = request("write", name="write", arguments={"path": "src/../../secret"}, outside=("/secret",))
    assert judge({"allow": "write", "when": {"path": "src/*"}}).decide(call).verdict == "ask"


def test_a_rule_needs_the_argument_that_it_names():
    assert judge({"deny": "tool", "when": {"missing": "*"}}).decide(request("read")).verdict == "allow"


# outside of the sandbox


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        ({"allow": "*"}, "ask"),
        ({"allow": "bash"}, "ask"),
        ({"allow": "bash", "network": True}, "ask"),
        (command_rule("allow", "*"), "ask"),
        (command_rule("allow", "ls"), "ask"),
        ({"allow": "bash", "when": {"unconfined": "*"}}, "allow"),
        ({"allow": "bash", "when": {"command": "ls", "unconfined": "*"}}, "allow"),
        ({"allow": "bash", "when": {"command": "rm *", "unconfined": "*"}}, "ask"),
    ],
)
def test_running_unconfined_needs_a_rule_that_names_it(rule, verdict):
    found = judge(rule).decide(shell("ls", unconfined="a reason"))
    assert (found.verdict, found.access) == (verdict, "full")


# the network


@pytest.mark.parametrize(
    ("rules", "call", "verdict", "opens"),
    [
        ([], shell("ls"), "allow", False),
        ([], shell("make"), "allow", False),
        ([], shell("make", network=True), "ask", True),
        ([], shell("curl x"), "ask", True),
        ([{"allow": "bash"}], shell("make", network=True), "allow", False),
        ([{"allow": "bash", "network": True}], shell("make", network=True), "allow", True),
        ([{"allow": "bash", "network": True}], shell("make"), "allow", True),
        ([command_rule("allow", "make", network=True)], shell("make"), "allow", True),
        ([command_rule("allow", "make", network=True)], shell("ls"), "allow", False),
        ([command_rule("allow", "make", network=True)], shell("make; ls"), "allow", False),
        ([{"ask": "bash"}], shell("ls"), "ask", False),
        ([{"ask": "bash"}, {"allow": "bash", "network": True}], shell("ls"), "ask", False),
        ([], page("https://a/"), "ask", True),
        ([{"allow": "web_fetch"}], page("https://a/"), "allow", True),
    ],
)
def test_the_network_opens_only_for_what_was_asked_or_is_ruled(rules, call, verdict, opens):
    found = judge(*rules).decide(call)
    assert (found.verdict, found.network) == (verdict, opens)


# what an answer covers


def covers(answer, given_for, other, tmp_path, *, again=False):
    policy = judge(root=tmp_path)
    assert policy.decide(given_for).verdict == "ask"
    policy.remember(given_for, answer)
    if again:
        policy = judge(root=tmp_path)
    return policy.decide(other).verdict == "allow"


CALLS = [
    shell("make", network=True, session="s"),
    shell("curl x | sh", network=True, session="s"),
    shell("ls *.py [a] ?", unconfined="reason", session="s"),
    page("https://a.example/b", session="s"),
    page("https://a.example/", session="s"),
    page("https://a.example", session="s"),
    page("https://a.example?x=1", session="s"),
    page("HTTPS://A.example/x", session="s"),
    request("write", outside=("/o",), arguments={"path": "/o", "content": "a*[b]?"}, session="s"),
    request("network", arguments={}, session="s"),
    request("network", arguments={"a": [1, {"b": None}], "c": True}, session="s"),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(dict(call.arguments))[:40])
@pytest.mark.parametrize("answer", ["session", "always"])
def test_an_answer_covers_the_very_call_it_was_given_for(call, answer, tmp_path):
    assert covers(answer, call, call, tmp_path)


@pytest.mark.parametrize("answer", ["once", "denied"])
def test_an_answer_for_once_covers_nothing_more(answer, tmp_path):
    assert not covers(answer, CALLS[0], CALLS[0], tmp_path)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    ("first", "other", "covered"),
    [
        (shell("make", network=True), shell("make", network=True, timeout=5.0), True),
        (shell("make", network=True), shell("make all", network=True), False),
        (shell("make", network=True), shell("make; rm x", network=True), False),
        (shell("make *", network=True), shell("make all", network=True), False),
        (shell("make [a]", network=True), shell("make a", network=True), False),
        (shell("make ?", network=True), shell("make x", network=True), False),
        (shell("make", network=True), shell("make", unconfined="x"), False),
        (shell("make", network=True), shell("make", network=True, unconfined="x"), False),
        (shell("ls", unconfined="one"), shell("ls", unconfined="another reason"), True),
        (shell("ls", unconfined="one"), shell("ls -l", unconfined="one"), False),
        (shell("ls", unconfined="one"), shell("ls", unconfined="one", network=True), False),
        (page("https://a.example/b"), page("https://a.example/c?d#e"), True),
        (page("https://a.example/b"), page("https://b.example/b"), False),
        (page("https://a.example/b"), page("http://a.example/b"), False),
        (page("https://a.example/b"), page("https://a.example:444/b"), False),
        (page("https://a.example/b"), page("https://a.example.evil/b"), False),
        (page("https://a.example/b"), page("https://a.example@evil/b"), False),
        (page("https://a.example/b"), page("https://evil/https://a.example/b"), False),
        (page("https://*/b"), page("https://evil/b"), False),
        (page("https://a.example/b"), page("https://aXexample/b"), False),
        (request("network", arguments={"a": "1"}), request("network", arguments={"a": "1", "b": "2"}), False),
        (request("network", arguments={"a": "1"}), request("network", name="other", arguments={"a": "1"}), False),
        (request("network", arguments={"a": ["1"]}), request("network", arguments={"a": ["2"]}), False),
        (request("network", arguments={}), request("network", arguments={"a": "1"}), False),
    ],
)
@pytest.mark.parametrize("answer", ["session", "always"])
def test_what_else_an_answer_covers(first, other, covered, answer, tmp_path):
    assert covers(answer, first, other, tmp_path) == covered


def test_an_answer_for_the_session_is_for_that_session_alone_and_ends_with_the_process(tmp_path):
    call = shell("make", network=True, session="a")
    assert covers("session", call, call, tmp_path)
    assert not covers("session", call, shell("make", network=True, session="b"), tmp_path)
    assert not covers("session", call, call, tmp_path, again=True)


def test_an_answer_for_always_is_for_that_workspace_alone_and_stays(tmp_path):
    call = shell("make", network=True, cwd="/one", session="a")
    assert covers("always", call, shell("make", network=True, cwd="/one", session="b"), tmp_path, again=True)
    assert not covers("always", call, shell("make", network=True, cwd="/two", session="a"), tmp_path / "n")
    assert not covers("always", call, shell("make", network=True, cwd="/one/below", session="a"), tmp_path / "m")


def test_a_workspace_is_known_through_links(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    real, link = (shell("make", network=True, cwd=str(tmp_path / name)) for name in ("real", "link"))
    assert covers("always", link, real, tmp_path / "grants")


@pytest.mark.parametrize("verdict", ["deny", "ask"])
def test_rules_and_modes_hold_against_grants(verdict, tmp_path):
    call = shell("make", network=True)
    judge(root=tmp_path).remember(call, "always")
    assert judge({"deny": "bash"}, root=tmp_path).decide(call).verdict == "deny"
    assert judge(mode="read-only", root=tmp_path).decide(shell("make", network=True, enforced=False)).verdict == "deny"


@given(
    st.dictionaries(st.text(max_size=5).filter(lambda name: name not in ("url", "timeout")), st.text(max_size=12), max_size=3),
    st.text(max_size=12),
)
@settings(deadline=None)
def test_a_lasting_pattern_fits_its_own_arguments_and_no_others(arguments, other):
    patterns = lasting(request("network", arguments=arguments))
    assert fits(patterns, request("network", arguments=arguments))
    for name in arguments:
        if other != arguments[name]:
            assert not fits(patterns, request("network", arguments={**arguments, name: other}))


# grants on disk


@pytest.fixture
def granted(tmp_path):
    """A grant, and how a fresh process judges its call."""
    call = shell("make", network=True, cwd="/w")
    grants = Grants(tmp_path)
    grant = grants.add("/w", "bash", lasting(call))
    path = grants.directory("/w") / f"{grant.id}.json"
    assert path.exists()
    return path, lambda: judge(root=tmp_path).decide(call).verdict


def test_a_grant_is_kept_privately_and_revoked(granted, tmp_path):
    path, verdict = granted
    assert verdict() == "allow"
    assert path.stat().st_mode & 0o077 == 0 and path.parent.stat().st_mode & 0o077 == 0
    assert [each.id for each in Grants(tmp_path).all()] == [path.stem]
    assert Grants(tmp_path).remove(path.stem) and not Grants(tmp_path).remove(path.stem)
    assert verdict() == "ask" and Grants(tmp_path).all() == []


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"\0" * 100,
        b"{}",
        b'{"workspace": "/w", "tool": "bash"}',
        b'{"workspace": "/w", "tool": "bash", "when": []}',
        b'{"workspace": "/w", "tool": "bash", "when": "*"}',
        b'{"workspace": "/w", "tool": "bash", "when": {"command": 1}}',
        b'{"workspace": "/w", "tool": 1, "when": {}}',
        b'{"workspace": 1, "tool": "bash", "when": {"command": "*"}}',
        b"[" * 100_000,
    ],
    ids=repr,
)
def test_a_damaged_grant_allows_nothing(granted, damage, tmp_path):
    path, verdict = granted
    path.write_bytes(damage)
    assert verdict() == "ask"
    Grants(tmp_path).all()


def test_a_grant_cut_anywhere_allows_nothing(granted):
    path, verdict = granted
    whole = path.read_bytes().rstrip()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert verdict() == "ask"


def test_what_is_no_file_allows_nothing(granted, tmp_path):
    path, verdict = granted
    path.unlink()
    path.mkdir()
    assert verdict() == "ask" and Grants(tmp_path).all() == []


def test_a_grant_of_another_workspace_allows_nothing_here(granted, tmp_path):
    path, verdict = granted
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "workspace": "/elsewhere"}))
    assert verdict() == "ask"


def test_what_a_crash_left_of_a_grant_allows_nothing_that_nobody_could_revoke(granted, tmp_path):
    path, verdict = granted
    path.rename(path.with_name(f".{path.name}.0123abcd"))
    assert Grants(tmp_path).all() == []
    assert verdict() == "ask"


def test_a_file_beside_the_grants_is_none(granted, tmp_path):
    path, verdict = granted
    path.rename(path.with_suffix(".json~"))
    assert verdict() == "ask"


def test_without_a_place_to_keep_it_nothing_is_granted():
    with pytest.raises(StorageError, match="no state directory"):
        Grants(None).add("/w", "bash", {})


def test_a_grant_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        Grants(tmp_path / "file").add("/w", "bash", {})
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_whose_name_is_no_text_can_be_granted_or_says_so(tmp_path):
    grants = Grants(tmp_path)
    try:
        grants.add(os.fsdecode(b"/w\xff"), "bash", {"a": "b"})
    except StorageError:
        pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".json"]


@pytest.mark.parametrize("id", ["*", "../x", "", "?", "[a-z]*", "."])
def test_a_name_that_is_no_id_revokes_nothing(granted, id, tmp_path):
    _, verdict = granted
    assert not Grants(tmp_path).remove(id)
    assert verdict() == "allow"


def test_a_grant_holds_in_another_process(granted, tmp_path):
    code = "import sys; from pathlib import Path; from hames.policy.grants import Grants; print(len(Grants(Path(sys.argv[1])).of('/w')))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
