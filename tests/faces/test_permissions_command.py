"""``hames permissions`` as a user runs it, and ``hames run`` where somebody is asked."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import termios
import time
from typing import Any

import pytest

from hames.policy.grants import Grants

# explain


@pytest.mark.parametrize("words", [("permissions",), ("permissions", "explain"), ("permissions", "list"), ("permissions", "revoke")])
def test_every_command_has_help(inline: Any, words: tuple[str, ...]) -> None:
    done = inline.run(*words, "--help")
    assert done.returncode == 0 and "Usage:" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        (("bash", "command=ls"), "allow"),
        (("bash", "command=git push"), "ask"),
        (("bash", '{"command": "git push"}'), "ask"),
        (("bash", "command=ls", "unconfined=because"), "ask"),
        (("bash", "command=ls", "network=true"), "ask"),
        (("write", "path=x", "content=y"), "allow"),
        (("write", "path=/elsewhere/x", "content=y"), "ask"),
        (("write", "path=.git/config", "content=y"), "deny"),
        (("write", "path=x", "content=y", "--mode", "read-only"), "deny"),
        (("bash", "command=git push", "--mode", "full"), "allow"),
        (("bash", "command=ls", "unconfined=x", "--mode", "read-only"), "deny"),
        (("web_fetch", "url=https://example.com/"), "ask"),
        (("read", "path=x"), "allow"),
    ],
)
def test_explain_says_what_would_happen_and_why(inline: Any, arguments: tuple[str, ...], verdict: str) -> None:
    found = inline.json("permissions", "explain", *arguments)
    assert found["verdict"] == verdict and found["because"]
    said = inline.run("permissions", "explain", *arguments)
    assert said.returncode == 0 and said.stderr == ""
    assert {"allow": "is allowed", "ask": "is asked about", "deny": "is denied"}[verdict] in said.stdout


def test_explain_knows_the_rules_of_a_composition(hames: Any, inline: Any) -> None:
    (hames.root / "rules.yaml").write_text(
        "- {id: policy, set: {config: {rules: [{deny: bash, when: {command: 'rm *'}, reason: not here}]}}}\n"
    )
    patch = ("--patch", str(hames.root / "rules.yaml"))
    assert inline.json("permissions", "explain", "bash", "command=ls; rm x", *patch)["reason"] == "not here"
    assert inline.json("permissions", "explain", "bash", "command=ls", *patch)["verdict"] == "allow"


def test_explain_runs_and_leaves_nothing(hames: Any, inline: Any) -> None:
    assert inline.json("permissions", "explain", "bash", "command=touch marker", "--mode", "full")["verdict"] == "allow"
    assert list(hames.work.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain",),
        ("explain", "nonsense"),
        ("explain", "bash"),
        ("explain", "bash", "ls"),
        ("explain", "bash", "=ls"),
        ("explain", "bash", "command=5"),
        ("explain", "bash", "command=ls", "other=1"),
        ("explain", "bash", "{"),
        ("explain", "bash", '{"command": NaN}'),
        ("explain", "bash", "command=NaN"),
        ("explain", "bash", "{" * 50_000),
        ("explain", "bash", "command=ls", "--cwd", "/no/such"),
        ("explain", "bash", "command=ls", "--cwd", "/etc/passwd"),
        ("explain", "bash", "command=ls", "--cwd", "x" * 5000),
        ("explain", "bash", "command=ls", "--mode", "nonsense"),
        ("explain", "bash", "command=ls", "--profile", "nonsense"),
        ("explain", "bash", "command=ls", "--patch", "/no/such"),
        ("explain", "write", "path=a\0b", "content=x"),
        ("explain", "\udcff", "a=b"),
        ("revoke",),
        ("revoke", "nonsense"),
        ("revoke", "*"),
        ("revoke", "../x"),
        ("revoke", ""),
        ("nonsense",),
    ],
    ids=lambda words: " ".join(words)[:40].encode("unicode_escape").decode(),
)
def test_bad_input_is_one_clear_error_and_2(inline: Any, arguments: tuple[str, ...]) -> None:
    done = inline.run("permissions", *arguments)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.strip()
    assert len(done.stderr) < 1000
    found = json.loads(inline.run("permissions", *arguments, "--json").stdout or "null") if arguments[0] == "explain" else None
    assert found is None or (found["status"] == "error" and found["error"]["message"])


# grants


def test_grants_are_listed_and_revoked(hames: Any, inline: Any) -> None:
    assert inline.json("permissions", "list") == {"grants": []}
    grant = Grants(hames.state / "grants").add(str(hames.work), "web_fetch", {"url": "https://a.example/*", "start": "0"})
    (found,) = inline.json("permissions", "list")["grants"]
    assert (found["id"], found["tool"], found["workspace"]) == (grant.id, "web_fetch", os.path.realpath(hames.work))
    assert inline.json("permissions", "explain", "web_fetch", "url=https://a.example/x")["verdict"] == "allow"
    assert grant.id in inline.run("permissions", "list").stdout
    assert inline.run("permissions", "revoke", grant.id).returncode == 0
    assert inline.run("permissions", "revoke", grant.id).returncode == 2
    assert inline.json("permissions", "explain", "web_fetch", "url=https://a.example/x")["verdict"] == "ask"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"workspace": null, "tool": 1}', b"[" * 50_000])
def test_damaged_grants_do_not_end_the_command(hames: Any, inline: Any, content: bytes) -> None:
    Grants(hames.state / "grants").add(str(hames.work), "bash", {})
    for path in (hames.state / "grants").rglob("*.json"):
        path.write_bytes(content)
    (hames.state / "grants" / "a file").write_text("")
    assert inline.json("permissions", "list") == {"grants": []}


def test_a_list_shows_no_signs_that_change_a_terminal(hames: Any, inline: Any) -> None:
    Grants(hames.state / "grants").add(str(hames.work), "bash\x1b[2J\r", {"command": "a\x1b[8mb\x9b2K\u202e"})
    said = inline.run("permissions", "list").stdout
    assert not [letter for letter in said if letter != "\n" and not letter.isprintable()]


# on a terminal


class Terminal:
    """A command on a pseudo terminal."""

    def __init__(self, hames: Any, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        self.child = self._start(hames, arguments, slave)
        os.close(slave)
        self.said = ""

    def _start(self, hames: Any, arguments: tuple[str, ...], slave: int) -> Any:
        def before() -> None:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            os.dup2(slave, 2)

        return hames.start(*arguments, source=slave, stdout=slave, before=before)

    def until(self, text: str, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.said:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} was not said: {self.said[-500:]}"
            if select.select([self.master], [], [], left)[0]:
                try:
                    data = os.read(self.master, 65536)
                except OSError:
                    data = b""
                assert data, f"{text!r} was not said: {self.said[-500:]}"
                self.said += data.decode("utf-8", "replace")

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def end(self, seconds: float = 20) -> int:
        deadline = time.monotonic() + seconds
        while self.child.poll() is None and time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    self.said += os.read(self.master, 65536).decode("utf-8", "replace")
                except OSError:
                    break
        status = self.child.wait(max(0.1, deadline - time.monotonic()))
        self.close()
        return int(status)

    def close(self) -> None:
        if self.master >= 0:
            try:
                while select.select([self.master], [], [], 0)[0] and (data := os.read(self.master, 65536)):
                    self.said += data.decode("utf-8", "replace")
            except OSError:
                pass
            os.close(self.master)
            self.master = -1


@pytest.fixture
def terminal(hames: Any) -> Any:
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(hames, *arguments))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


QUESTION = "[n]o: "


def asking(hames: Any, *commands: str) -> str:
    calls = [{"calls": [{"name": "bash", "arguments": {"command": command, "unconfined": "a test"}}]} for command in commands]
    return str(hames.script(*calls, {"text": "The end."}))


@pytest.mark.parametrize(
    ("typed", "ran", "kept"),
    [
        (b"y\n", True, 0),
        (b"yes\n", True, 0),
        (b"s\n", True, 0),
        (b"a\n", True, 1),
        (b"n\n", False, 0),
        (b"no\n", False, 0),
        (b"\n?\nwhat\ny\n", True, 0),
        (b"\x04", False, 0),
    ],
    ids=repr,
)
def test_a_person_on_a_terminal_is_asked(hames: Any, terminal: Any, typed: bytes, ran: bool, kept: int) -> None:
    screen = terminal("run", "go", "--model", asking(hames, "touch marker"))
    screen.until(QUESTION)
    assert "a test" in screen.said and "touch marker" in screen.said
    screen.type(typed)
    assert screen.end() == 0
    assert "The end." in screen.said and "Traceback" not in screen.said
    assert (hames.work / "marker").exists() == ran
    assert len(Grants(hames.state / "grants").all()) == kept


@pytest.mark.parametrize("typed", [b"abort\n", b"stop\n", b"skip\n", b"are you sure?\n"], ids=repr)
def test_a_word_that_is_no_answer_allows_nothing(hames: Any, terminal: Any, typed: bytes) -> None:
    screen = terminal("run", "go", "--model", asking(hames, "touch marker"))
    screen.until(QUESTION)
    screen.type(typed + b"n\n")
    screen.end()
    assert not (hames.work / "marker").exists()
    assert Grants(hames.state / "grants").all() == []


def test_an_answer_for_the_session_is_not_asked_for_again(hames: Any, terminal: Any) -> None:
    screen = terminal("run", "go", "--model", asking(hames, "echo a >> marker", "echo a >> marker", "echo b >> marker"))
    screen.until(QUESTION)
    screen.type(b"s\n")
    screen.until("echo b >> marker")
    screen.until(QUESTION)
    screen.said = screen.said.rpartition("echo b")[2]
    screen.until(QUESTION)
    screen.type(b"n\n")
    assert screen.end() == 0
    assert (hames.work / "marker").read_text() == "a\na\n"


def test_control_c_at_a_question_ends_the_run(hames: Any, terminal: Any) -> None:
    screen = terminal("run", "go", "--model", asking(hames, "touch marker"))
    screen.until(QUESTION)
    screen.type(b"\x03")
    assert screen.end() == 130
    assert not (hames.work / "marker").exists() and "Traceback" not in screen.said
    found = hames.events(hames.session()["id"])
    assert [event["data"]["reason"] for event in found if event["type"] == "end"] == ["aborted"]


def test_control_c_works_in_the_middle_of_a_line_too(hames: Any, terminal: Any) -> None:
    """Control-D after a letter hands over a line without its end."""
    screen = terminal("run", "go", "--model", asking(hames, "touch marker"))
    screen.until(QUESTION)
    screen.type(b"x\x04")
    screen.until("x")
    screen.type(b"\x03")
    try:
        screen.until("ending", 5)
    finally:
        screen.child.send_signal(signal.SIGKILL)


def test_the_question_shows_all_of_a_command(hames: Any, terminal: Any) -> None:
    command = "echo " + "a" * 600 + "; touch evil"
    screen = terminal("run", "go", "--model", asking(hames, command))
    screen.until(QUESTION)
    screen.type(b"n\n")
    screen.end()
    assert "touch evil" in screen.said.replace("\r\n", "").partition("[y]es")[0]


def test_the_question_shows_where_a_line_ends(hames: Any, terminal: Any) -> None:
    """``echo a`` and, on a line of its own, ``rm x`` is another command than ``echo a rm x``."""
    screen = terminal("run", "go", "--model", asking(hames, "echo a\nrm x"))
    screen.until(QUESTION)
    screen.type(b"n\n")
    screen.end()
    assert "command: echo a rm x" not in screen.said


def test_the_question_shows_no_signs_that_change_a_terminal(hames: Any, terminal: Any) -> None:
    screen = terminal("run", "go", "--model", asking(hames, "touch evil #\x1b[2K\x1b[8m\x9b1A"))
    screen.until(QUESTION)
    screen.type(b"n\n")
    screen.end()
    assert "\x1b[2K" not in screen.said and "\x1b[8m" not in screen.said


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_without_a_terminal_it_is_denied_and_said(hames: Any, options: tuple[str, ...]) -> None:
    done = hames.run("run", "go", "--model", asking(hames, "touch marker"), *options, stdin="y\ny\n")
    assert done.returncode == 0 and not (hames.work / "marker").exists()
    assert "nobody is there" in json.dumps(hames.events(hames.session()["id"]))
    assert options or "DENIED" in done.stderr


def test_no_questions_on_a_terminal_denies_too(hames: Any, terminal: Any) -> None:
    screen = terminal("run", "go", "--no-questions", "--model", asking(hames, "touch marker"))
    assert screen.end() == 0
    assert QUESTION not in screen.said and not (hames.work / "marker").exists()
