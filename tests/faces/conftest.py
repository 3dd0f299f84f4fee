"""The command ``hames`` as a user runs it: a child process with a home of its own, of which nothing is left at the end."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from hames.content.clock import Clock
from hames.faces.cli.main import main
from hames.faces.cli.sessions import as_object
from hames.sessions import Sessions
from hames.store import Store

HAMES = Path(sys.executable).with_name("hames")
DEADLINE = 30.0  # seconds

Done = subprocess.CompletedProcess[str]


class Cli:
    """The command line over one state directory.

    :ivar state: the state directory.
    :ivar work: the directory that commands run in.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.work = root / "work"
        self.work.mkdir()
        (root / "home").mkdir()
        self.mark = uuid.uuid4().hex
        self.environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(root / "home"),
            **{f"XDG_{name}_HOME": str(root / "home" / name.lower()) for name in ("CONFIG", "DATA", "STATE", "CACHE")},
            "HAMES_TEST": self.mark,  # every process that comes of this has it
        }
        self._started: list[subprocess.Popen[str]] = []

    def script(self, *answers: dict[str, Any], name: str = "script.json") -> str:
        """The reference of a scripted model."""
        path = self.root / name
        path.write_text(json.dumps(answers))
        return f"scripted:{path}"

    def start(
        self,
        *arguments: str | bytes | Path,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        cwd: Path | None = None,
        source: int = subprocess.PIPE,
        stdout: int = subprocess.PIPE,
        before: Callable[[], None] | None = None,
    ) -> subprocess.Popen[str]:
        """Start ``hames``.

        :param env: more of the environment.
        :param prefix: a command that runs it.
        :param source: a descriptor that becomes its standard input.
        :param before: called in the child before it starts.
        """
        child = subprocess.Popen(
            [*prefix, HAMES, *arguments],
            stdin=source,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            cwd=cwd or self.work,
            env={**self.environment, "HAMES_STATE": str(self.state), **(env or {})},
            preexec_fn=before,
        )
        self._started.append(child)
        return child

    def run(self, *arguments: str | bytes | Path, stdin: str = "", **more: Any) -> Done:
        """Run ``hames`` to its end. Whatever it does, a user is never shown a traceback."""
        child = self.start(*arguments, **more)
        output, errors = child.communicate(stdin if child.stdin else None, timeout=DEADLINE)
        if "Traceback" in errors:
            pytest.fail(f"a traceback for {arguments}:\n" + "\n".join(errors.splitlines()[-4:]), pytrace=False)
        return subprocess.CompletedProcess(child.args, child.returncode, output or "", errors)

    def json(self, *arguments: str | Path, status: int = 0, **more: Any) -> Any:
        """The one JSON object that a command prints, and that it ends with this status."""
        done = self.run(*arguments, "--json", **more)
        assert done.returncode == status, (done.stdout, done.stderr)
        assert done.stdout.count("\n") == 1
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def look(self, body: Callable[[Sessions], Any]) -> Any:
        """What a body finds in the sessions: looked at from here, as a start of the command takes long."""

        async def read() -> Any:
            store = Store(self.state)
            try:
                return body(Sessions(store, Clock()))
            finally:
                await store.close()

        return asyncio.run(read())

    def events(self, session: str) -> list[dict[str, Any]]:
        """The events of a session, in the form that ``hames sessions show --json`` has."""
        found = [as_object(event) for event in self.look(lambda sessions: sessions.read(session))]
        assert [event["seq"] for event in found] == list(range(len(found)))
        return found

    def session(self) -> dict[str, Any]:
        """The line of the only session, in the form that ``hames sessions list --json`` has."""
        (found,) = self.look(lambda sessions: sessions.list())
        return {"id": found.id, "state": found.state, "events": found.events, "cwd": found.cwd, "title": found.title}

    def processes(self) -> list[int]:
        """Every living process that came of these commands."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if f"HAMES_TEST={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:  # it has ended, or is not ours
                    continue
        return found

    def end(self) -> list[int]:
        """End what was started; what it has left behind is returned, and ended too."""
        for child in self._started:
            if child.poll() is None:
                child.kill()
            child.communicate()
        deadline = time.monotonic() + 3
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.01)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """What a condition gives as soon as it is true."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.005)
    raise AssertionError(f"not within {DEADLINE:g} s: {what}")


class Inline:
    """The command line in this process: for input that is refused before anything begins."""

    def __init__(self, cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.root = cli.root
        for name in os.environ:
            if name.endswith(("_API_KEY", "_BASE_URL")) or name == "HAMES_STATE":
                monkeypatch.delenv(name)
        for name, value in {**cli.environment, "HAMES_STATE": str(cli.state)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("HAMES_TEST")  # this process stays
        monkeypatch.chdir(cli.work)

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> Done:
        for name, value in (env or {}).items():
            self._monkeypatch.setenv(name, value)
        self._monkeypatch.setattr(sys, "argv", ["hames", *arguments])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        output, errors = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return subprocess.CompletedProcess(arguments, ended.value.code, output, errors)

    def json(self, *arguments: str, status: int = 0, env: dict[str, str] | None = None) -> Any:
        done = self.run(*arguments, "--json", env=env)
        assert done.returncode == status, (done.stdout, done.stderr)
        assert done.stdout.count("\n") == 1
        return json.loads(done.stdout)


@pytest.fixture
def inline(hames: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inline:
    return Inline(hames, monkeypatch, capsys)


class Near:
    """The command line, in this process where that makes no difference: what an agent does runs in one of its own."""

    def __init__(self, cli: Cli, inline: Inline) -> None:
        self._cli = cli
        self._inline = inline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cli, name)

    def _here(self, arguments: tuple[Any, ...], more: dict[str, Any]) -> bool:
        if arguments[0] == "run" or set(more) - {"env", "status"} or not all(isinstance(each, str) for each in arguments):
            return False
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return True
        return False

    def run(self, *arguments: Any, **more: Any) -> Done:
        return self._inline.run(*arguments, **more) if self._here(arguments, more) else self._cli.run(*arguments, **more)

    def json(self, *arguments: Any, **more: Any) -> Any:
        return self._inline.json(*arguments, **more) if self._here(arguments, more) else self._cli.json(*arguments, **more)


@pytest.fixture
def near(hames: Cli, inline: Inline) -> Near:
    return Near(hames, inline)


@pytest.fixture
def until() -> Callable[[Callable[[], Any], str], Any]:
    return wait_until


@pytest.fixture
def hames(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path)
    yield cli
    assert cli.end() == []


def blocks(events: list[dict[str, Any]], type: str) -> list[dict[str, Any]]:
    return [block for event in events if event["type"] == "message" for block in event["data"]["blocks"] if block["type"] == type]


@pytest.fixture
def of_type() -> Callable[[list[dict[str, Any]], str], list[dict[str, Any]]]:
    """Gives the blocks of one type in the messages of a log."""
    return blocks


@pytest.fixture
def hello(hames: Cli) -> str:
    """A model that says hello, and then again."""
    return hames.script(*({"text": f"Hello {n}."} for n in range(1, 10)), name="hello.json")


def build(template: Cli, answers: Callable[[int], list[dict[str, Any]]]) -> list[str]:
    """Three sessions, in order, whose prompts are ``<prompt 0>`` and so on."""
    return [
        str(template.json("run", f"<prompt {n}>", "--model", template.script(*answers(n), name=f"model{n}.json"))["session"])
        for n in range(3)
    ]


@pytest.fixture(scope="module")
def short_template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cli, list[str]]]:
    """Sessions of one turn each."""
    template = Cli(tmp_path_factory.mktemp("short"))
    yield template, build(template, lambda n: [{"text": f"Hello {k}."} for k in range(1, 5)])
    assert template.end() == []


@pytest.fixture(scope="module")
def long_template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cli, list[str]]]:
    """Sessions that each reach over several pages of the database."""

    def answers(n: int) -> list[dict[str, Any]]:
        calls = [{"name": "todo_write", "arguments": {"items": [{"content": f"{n}.{step}"}]}} for step in range(12)]
        steps = [{"text": f"<{n}.{step}>" + "words " * 100, "calls": [calls[step]]} for step in range(12)]
        return [*steps, {"text": f"<{n}.12>"}, *({"text": f"Again {step}."} for step in range(3))]

    template = Cli(tmp_path_factory.mktemp("long"))
    names = build(template, answers)
    apsw.Connection(str(template.state / "sessions.db")).execute("VACUUM")  # nothing stands twice then, as it would in pages left over
    yield template, names
    assert template.end() == []


@pytest.fixture
def three(hames: Cli, short_template: tuple[Cli, list[str]]) -> list[str]:
    """Three sessions of one turn each, in order."""
    shutil.copytree(short_template[0].state, hames.state)
    return short_template[1]


@pytest.fixture
def three_long(hames: Cli, long_template: tuple[Cli, list[str]]) -> list[str]:
    """Three sessions over several pages each, in order."""
    shutil.copytree(long_template[0].state, hames.state)
    return long_template[1]
