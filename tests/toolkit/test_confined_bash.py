"""Commands of an agent, confined: what they reach, what they are told, and what of them is left."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import signal
import uuid
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.compose import running
from hames.profiles import profile
from hames.store import STATE
from hames.tools import Approval

MEANS = ("bubblewrap", "landlock")
means = pytest.mark.parametrize("means", MEANS)


def processes(mark: str) -> list[int]:
    """Living processes that have a mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state not in "ZX" and mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.fixture
def mark(monkeypatch) -> str:
    """A word in the environment of every command; whatever still has it is ended afterwards."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("MARK", mark)
    yield mark
    for pid in processes(mark):
        os.kill(pid, signal.SIGKILL)


class Shell:
    """An agent that does as it is told, one answer after another."""

    def __init__(self, agents, script, cwd, scope_of) -> None:
        self.agents, self._script, self.cwd, self._scope_of = agents, script, cwd, scope_of
        self.answers: list[str | None] = []
        self.questions: list[Approval] = []
        self.agent = None

    async def _answer(self, question: Approval):
        self.questions.append(question)
        return self.answers.pop(0) if self.answers else "denied"

    async def calls(self, *calls, limit: float = 20.0):
        """The results of these calls, made one after another."""
        answers = [{"calls": [{"name": name, "arguments": arguments}]} for name, arguments in calls]
        agent = await self.agents.create(AgentSpec(str(self.cwd), self._script(*answers, {"text": "done"})))
        self.agent = agent
        self._scope_of(agent).on(Approval, self._answer)
        async with asyncio.timeout(limit):
            end = await agent.run("go")
        assert end.reason == "completed", end
        return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]

    async def bash(self, command: str, **more):
        (result,) = await self.calls(("bash", {"command": command, **more}))
        return result

    async def read(self, path: str):
        (result,) = await self.calls(("read", {"path": path}))
        return result


@pytest.fixture
def shell(tmp_path, script, mark):
    """Opens a composition, and a shell in it."""

    @asynccontextmanager
    async def open(means: str = "bubblewrap", cwd: Path | str | None = None, mode: str = "workspace-write", state: Path | None = None):
        patch = tmp_path / "patch.yaml"
        patch.write_text(f"- {{id: sandbox, set: {{config: {{means: {means}}}}}}}\n- {{id: policy, set: {{config: {{mode: {mode}}}}}}}\n")
        work = cwd
        if work is None:
            work = tmp_path / "work"
            (work / "d").mkdir(parents=True, exist_ok=True)  # Landlock lets commands make no name beside what is protected
        state = state or tmp_path / "state"
        before = set(os.listdir("/proc/self/fd"))
        async with running([profile("standard"), patch], {STATE: state}) as host:
            yield Shell(host.get(AGENTS), script, work, lambda agent: host.ctx.at(agent.scope))
        assert not processes(mark)
        assert set(os.listdir("/proc/self/fd")) == before
        assert not list((state / "scratch").glob("*")), "a scratch directory is left"

    return open


def text(result) -> str:
    return "".join(part.text for part in result.content)


# the network


@means
async def test_the_network_is_closed_and_the_agent_is_told_how_to_ask(shell, means):
    code = "import socket; socket.getaddrinfo('example.invalid', 80)"
    async with shell(means) as sh:
        for command in (f'python3 -c "{code}"', "exec 3<>/dev/tcp/example.invalid/80"):
            result = await sh.bash(command)
            assert result.is_error and "network: true" in text(result), text(result)
        assert sh.questions == []


@means
async def test_not_even_loopback_is_reached(shell, means):
    async def greet(reader, writer):
        came.append(1)
        writer.close()

    came: list[int] = []
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with shell(means) as sh:
            result = await sh.bash(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected")
            assert result.is_error and not came
            sh.answers = ["once"]
            opened = await sh.bash(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected", network=True)
            assert (text(opened), len(sh.questions), len(came)) == ("connected\n", 1, 1)
            assert (await sh.bash(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected")).is_error
    finally:
        server.close()


@pytest.mark.parametrize("arguments", [{"command": "true", "network": True}, {"command": "curl http://x"}, {"command": "git push"}])
async def test_the_network_is_asked_for(shell, arguments):
    async with shell() as sh:
        (result,) = await sh.calls(("bash", arguments))
        assert result.code == "DENIED" and len(sh.questions) == 1 and "network" in sh.questions[0].reason


# outside of the sandbox


@means
async def test_what_runs_outside_of_the_sandbox_is_asked_for_and_does_as_it_likes(shell, tmp_path, means):
    outside = tmp_path / "outside"
    outside.mkdir()
    async with shell(means) as sh:
        held = await sh.bash(f"touch {outside}/a")
        refused = await sh.bash(f"touch {outside}/b", unconfined="I need to")
        sh.answers = ["once"]
        done = await sh.bash(f"touch {outside}/c && echo ${{TMPDIR-none}}", unconfined="I need to")
        assert held.is_error and refused.code == "DENIED" and not done.is_error
        assert [question.reason for question in sh.questions] == ["it is to run outside of the sandbox: I need to"] * 2
    assert [path.name for path in outside.iterdir()] == ["c"]


async def test_a_mode_that_reads_runs_nothing_outside_of_the_sandbox(shell):
    async with shell(mode="read-only") as sh:
        assert (await sh.bash("true", unconfined="why not")).code == "DENIED"
        assert sh.questions == []
        result = await sh.bash("echo x > d/file")
        assert result.is_error and "write nothing here but $TMPDIR" in text(result)
        assert text(await sh.bash("echo x > $TMPDIR/file; cat $TMPDIR/file")) == "x\n"


# temporary files


@means
async def test_each_agent_has_a_temporary_directory_that_goes_with_it(shell, tmp_path, means):
    async with shell(means) as sh:
        first, second = await sh.calls(
            ("bash", {"command": "echo $TMPDIR; echo kept > $TMPDIR/file; mkdir -p $TMPDIR/a/b; chmod 0 $TMPDIR/a; ln -s / $TMPDIR/root"}),
            ("bash", {"command": "cat $TMPDIR/file; mktemp | xargs dirname"}),
        )
        place = Path(text(first).strip())
        assert text(second) == f"kept\n{place}\n" and place.is_relative_to(tmp_path / "state") and place.stat().st_mode & 0o77 == 0
        agent = sh.agent
        assert "kept" not in text(await sh.bash("cat $TMPDIR/file"))  # another agent
        await sh.agents.dispose(agent)
        assert not place.exists() and Path("/etc/passwd").exists()


async def test_what_one_command_puts_into_tmp_others_and_the_file_tools_see(shell):
    name = uuid.uuid4().hex
    async with shell() as sh:
        results = await sh.calls(
            ("bash", {"command": f"mkdir -p /tmp/{name}; echo one > /tmp/{name}/a"}),
            ("bash", {"command": f"cat /tmp/{name}/a"}),
            ("read", {"path": f"/tmp/{name}/a"}),
            ("edit", {"path": f"/tmp/{name}/a", "old": "one", "new": "two"}),
            ("write", {"path": f"/tmp/{name}/b/c", "content": "three\n"}),
            ("bash", {"command": f"cat /tmp/{name}/a /tmp/{name}/b/c"}),
            ("glob", {"pattern": "*", "path": f"/tmp/{name}"}),
            ("grep", {"pattern": "t", "path": f"/tmp/{name}"}),
        )
        assert [result.code for result in results] == [""] * 8, [text(result) for result in results]
        assert text(results[1]) == "one\n" and "one" in text(results[2]) and text(results[5]) == "two\nthree\n"
        assert text(results[6]) == "a\nb/c" and "two" in text(results[7]) and "three" in text(results[7])
        assert sh.questions == []
        assert not os.path.lexists(f"/tmp/{name}")
        assert (await sh.read(f"/tmp/{name}/a")).code == "NOT_FOUND"  # another agent


@pytest.mark.parametrize("where", ["relative", "dots"])
async def test_a_path_into_tmp_may_be_spelled_in_other_ways(shell, where):
    name = uuid.uuid4().hex
    async with shell() as sh:
        up = os.path.relpath(f"/tmp/{name}", sh.cwd) if where == "relative" else f"/tmp/../tmp/./{name}"
        results = await sh.calls(
            ("bash", {"command": f"echo one > /tmp/{name}"}), ("read", {"path": up}), ("edit", {"path": up, "old": "one", "new": "two"})
        )
        assert [result.code for result in results] == [""] * 3, [text(result) for result in results]
    assert not os.path.lexists(f"/tmp/{name}")


@pytest.mark.parametrize("path", ["/tmp/../etc/shadow-of-test", "/tmp/../root/x", "/tmp/../../../usr/x"])
async def test_dots_lead_out_of_no_temporary_directory(shell, path):
    async with shell() as sh:
        (result,) = await sh.calls(("write", {"path": path, "content": "x"}))
        assert result.code == "DENIED"
    assert not os.path.lexists(os.path.normpath(path))


async def test_a_link_out_of_the_temporary_directory_is_not_followed(shell, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("old")
    async with shell() as sh:
        _, read, written = await sh.calls(
            ("bash", {"command": f"ln -s {tmp_path} /tmp/link; ln -s {tmp_path}/state /tmp/state"}),
            ("read", {"path": "/tmp/state/lock"}),
            ("write", {"path": "/tmp/link/new", "content": "x"}),
        )
        assert read.is_error and written.is_error
    assert not (tmp_path / "new").exists()


async def test_a_state_directory_behind_a_link_serves_as_well(shell, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    async with shell(state=tmp_path / "link" / "state") as sh:
        results = await sh.calls(
            ("bash", {"command": "echo one > /tmp/a; echo two > $TMPDIR/b; cat /tmp/b"}),
            ("read", {"path": "/tmp/a"}),
            ("write", {"path": "/tmp/c", "content": "three\n"}),
            ("bash", {"command": "cat /tmp/c; head -c 100000 /dev/zero | tr '\\0' x"}),
        )
        assert [result.code for result in results] == [""] * 4, [text(result) for result in results]
        spilled = text(results[3]).split("the output is in ")[1].split(" ")[0]
        assert not (await sh.read(spilled)).is_error


# how commands end

ENDINGS = {
    "trap": "trap 'echo bye; echo bye > d/gone; exit 7' TERM; echo ready > d/ready; sleep 67.5 & wait",
    "trap with a command in front": "trap 'echo bye > d/gone' TERM; echo ready > d/ready; sleep 67.5",
}
LEAVINGS = {
    "background": "sleep 68.5 & echo $! > d/ready",
    "ignores": "(trap '' TERM HUP INT; echo > d/ready; while :; do sleep 0.05; done) & until [ -e d/ready ]; do sleep 0.01; done",
    "daemon": "setsid -f sleep 68.5; echo > d/ready",
    "no hang-up": "nohup sleep 68.5 > /dev/null 2>&1 & echo > d/ready",
    "own group": "set -m; sleep 68.5 & echo > d/ready",
    "timeout": "timeout 68 sleep 68.5 & echo > d/ready",
}
every = pytest.mark.parametrize("means", [*MEANS, "none"])


async def cancelled(sh: Shell, command: str):
    """The result of a command that is cancelled when it is ready."""
    answer = {"calls": [{"name": "bash", "arguments": {"command": command}}]}
    agent = await sh.agents.create(AgentSpec(str(sh.cwd), sh._script(answer, {"text": "done"})))
    task = asyncio.create_task(agent.run("go"))
    async with asyncio.timeout(20):
        while not (sh.cwd / "d/ready").exists():
            await asyncio.sleep(0.005)
        agent.cancel("user")
        assert (await task).reason == "aborted"


def sandboxed(means: str) -> dict[str, str]:
    """Without any means a mode that confines would ask, so nothing is confined."""
    return {"means": means, "mode": "full" if means == "none" else "workspace-write"}


@every
@pytest.mark.parametrize("how", ["timeout", "cancel"])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_command_may_tidy_up_before_it_ends(shell, means, how, ending, mark):
    async with shell(**sandboxed(means)) as sh:
        if how == "cancel":
            await cancelled(sh, ENDINGS[ending])
        else:
            result = await sh.bash(ENDINGS[ending], timeout=1.0)
            assert result.code == "TIMEOUT"
            assert "bye\n" in text(result) or ending != "trap"
        assert not processes(mark)
        assert (sh.cwd / "d/gone").read_text() == "bye\n"


@every
@pytest.mark.parametrize("how", ["end", "timeout", "cancel"])
@pytest.mark.parametrize("leaving", LEAVINGS)
async def test_nothing_of_a_command_is_left(shell, means, how, leaving, mark):
    if (leaving, means) == ("daemon", "none"):
        pytest.skip("what leaves its session is found only where something confines it")
    async with shell(**sandboxed(means)) as sh:
        if how == "end":
            assert not (await sh.bash(f"{LEAVINGS[leaving]}; sleep 0.05")).is_error
        elif how == "timeout":
            assert (await sh.bash(f"{LEAVINGS[leaving]}; sleep 69.5", timeout=0.4)).code == "TIMEOUT"
        else:
            await cancelled(sh, f"{LEAVINGS[leaving]}; sleep 69.5")
        found = processes(mark)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        while processes(mark):
            await asyncio.sleep(0.005)
        assert found == []


@means
async def test_a_cancellation_at_any_moment_of_the_start_leaves_nothing(shell, means, mark):
    async with shell(means) as sh:
        before = len(os.listdir("/proc/self/fd"))
        for turns in range(1, 60, 3):
            answer = {"calls": [{"name": "bash", "arguments": {"command": f"sleep 70.5; echo {turns}"}}]}
            agent = await sh.agents.create(AgentSpec(str(sh.cwd), sh._script(answer)))
            agent.send("go")
            for _ in range(turns):
                await asyncio.sleep(0)
            agent.cancel("user")
            async with asyncio.timeout(10):
                await agent.idle()
                await sh.agents.dispose(agent)
            assert not processes(mark)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(os.listdir("/proc/self/fd")) <= before


async def test_an_agent_that_is_cancelled_before_its_turn_begins_is_idle_again(shell):
    async with shell() as sh:
        agent = await sh.agents.create(AgentSpec(str(sh.cwd), sh._script({"text": "hello"})))
        agent.send("go")
        agent.cancel("user")
        try:
            async with asyncio.timeout(3):
                await agent.idle()
        except TimeoutError:
            agent._driver = None  # so that the rest of this test can end
            pytest.fail("it never becomes idle")


@pytest.mark.parametrize("command", ["echo a\0b", "echo \ud800", "echo " + "x" * 3_000_000])
async def test_a_command_that_cannot_be_started_leaves_no_descriptor(shell, command):
    async with shell() as sh:
        before = len(os.listdir("/proc/self/fd"))
        call = {"name": "bash", "raw_arguments": json.dumps({"command": command})}
        agent = await sh.agents.create(AgentSpec(str(sh.cwd), sh._script({"calls": [call]}, {"text": "done"})))
        await agent.run("go")
        (result,) = [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]
        gc.collect()
        await asyncio.sleep(0)
        assert len(os.listdir("/proc/self/fd")) <= before
        assert (result.is_error, result.code) in ((True, "NOT_STARTED"), (True, "INVALID_ARGS"))


# output


@means
async def test_long_output_is_kept_where_the_agent_can_read_it(shell, means):
    async with shell(means) as sh:
        first = await sh.bash("seq -f 'line %06g' 1 20000")
        assert len(text(first)) < 45_000 and text(first).startswith("line 000001\n") and text(first).endswith("line 020000\n")
        path = text(first).split("the output is in ")[1].split(" ")[0]
        read, searched, catted, changed = await sh.calls(
            ("read", {"path": path, "offset": 10_000, "limit": 2}),
            ("grep", {"pattern": "line 015000", "path": path}),
            ("bash", {"command": f"sed -n 12345p {path}"}),
            ("bash", {"command": f"echo x >> {path}"}),
        )
        assert "line 010000" in text(read) and "line 010001" in text(read)
        assert "line 015000" in text(searched) and text(catted) == "line 012345\n" and changed.is_error


async def test_outputs_of_calls_with_like_names_do_not_replace_each_other(shell):
    async with shell() as sh:
        calls = [
            {"name": "bash", "id": "x" * 60 + str(n), "arguments": {"command": f"echo first {n}; head -c 60000 /dev/zero | tr '\\0' {n}"}}
            for n in range(2)
        ]
        agent = await sh.agents.create(AgentSpec(str(sh.cwd), sh._script({"calls": calls}, {"text": "done"})))
        await agent.run("go")
        results = [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]
        places = [Path(text(result).split("the output is in ")[1].split(" ")[0]) for result in results]
        assert [place.read_text()[:7] for place in places] == ["first 0", "first 1"]


# the environment


@means
async def test_commands_see_no_secret_of_the_environment(shell, monkeypatch, means):
    secrets = [
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "GITHUB_TOKEN",
        "GH_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "NPM_TOKEN",
        "PGPASSWORD",
        "SSH_AUTH_SOCK",
        "DATABASE_URL",
        "DB_PASSWORD",
        "my_secret_thing",
        "NPM_CONFIG__AUTH",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "DEEPSEEK_API_KEY",
    ]
    for name in secrets:
        monkeypatch.setenv(name, "canary-secret")
    monkeypatch.setenv("PLAIN", "visible")
    async with shell(means) as sh:
        shown = text(await sh.bash("env; cat /proc/self/environ /proc/1/environ /proc/$PPID/environ 2>&1 | tr '\\0' '\\n'"))
    assert "PLAIN=visible" in shown
    assert "canary-secret" not in shown


@pytest.mark.parametrize("name", ["MYSQL_PWD", "SSHPASS", "GITHUB_PAT", "AZURE_STORAGE_KEY", "STRIPE_KEY", "REDIS_URL", "MONGODB_URI"])
async def test_other_names_that_secrets_usually_have_are_withheld_too(shell, monkeypatch, name):
    monkeypatch.setenv(name, "canary-secret")
    async with shell() as sh:
        assert "canary-secret" not in text(await sh.bash("env"))


# where an agent works

NAMES = {
    "spaces": b"a  b ",
    "newline": b"a\nb",
    "not UTF-8": b"caf\xe9\xff",
    "quotes": b"a'b\"c`d$HOME",
    "leading hyphen": b"-rf",
    "unicode": "\u65e5\u672c \U0001f600".encode(),
    "percent and braces": b"%s{{cwd}}{0}",
    "backslash": b"a\\b",
    "colon": b"a:b",
    "long": b"n" * 255,
}


@means
@pytest.mark.parametrize("name", NAMES)
async def test_a_workspace_may_have_any_name(shell, tmp_path, means, name):
    work = tmp_path / os.fsdecode(NAMES[name])
    work.mkdir()
    (work / "old").write_text("old\n")
    async with shell(means, work) as sh:
        made = "" if means == "landlock" else "; echo new > new"
        command, read, written, found = await sh.calls(
            ("bash", {"command": f'cat old; echo changed > old; test "$PWD" -ef .{made}'}),
            ("read", {"path": "old"}),
            ("write", {"path": "more", "content": "more\n"}),
            ("grep", {"pattern": "changed"}),
        )
        assert [each.code for each in (command, read, written, found)] == [""] * 4, [text(each) for each in (command, read, written, found)]
        assert text(command) == "old\n" and "changed" in text(read) and "old:1:changed" in text(found)
    assert sorted(path.name for path in work.iterdir()) == sorted(["old", "more", *([] if means == "landlock" else ["new"])])


@means
@pytest.mark.parametrize("where", ["beside", "through a chain", "parent"])
async def test_a_workspace_may_be_a_link(shell, tmp_path, means, where):
    real = tmp_path / "real"
    (real / "sub").mkdir(parents=True)
    (tmp_path / "one").symlink_to("real")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    work = {"beside": tmp_path / "one", "through a chain": tmp_path / "two", "parent": tmp_path / "one" / "sub"}[where]
    target = work.resolve()
    (target / "old").write_text("old\n")
    async with shell(means, work) as sh:
        results = await sh.calls(
            ("bash", {"command": "echo one > old; cat old"}),
            ("read", {"path": "old"}),
            ("edit", {"path": "old", "old": "one", "new": "two"}),
            ("write", {"path": "new", "content": "new\n"}),
            ("write", {"path": str(work / "absolute"), "content": "new\n"}),
            ("bash", {"command": "cat old new absolute"}),
            ("glob", {"pattern": "*"}),
        )
        assert [result.code for result in results] == [""] * 7, [text(result) for result in results]
        assert text(results[5]) == "two\nnew\nnew\n"
        assert sh.questions == []
    assert (target / "new").read_text() == "new\n" and (target / "absolute").read_text() == "new\n"


@means
async def test_the_temporary_directory_itself_may_be_the_workspace(shell, means):
    name = f"hames-{uuid.uuid4().hex}"
    old = Path("/tmp", f"{name}-old")
    old.write_text("old\n")
    try:
        async with shell(means, "/tmp") as sh:
            results = await sh.calls(
                ("bash", {"command": f"cat {name}-old; echo new > {name}-old"}),
                ("read", {"path": f"{name}-old"}),
                ("write", {"path": f"{name}-more", "content": "more\n"}),
                ("bash", {"command": f"cat {name}-more"}),
            )
            assert [result.code for result in results] == [""] * 4, [text(result) for result in results]
            assert "new" in text(results[1]) and text(results[3]) == "more\n"
        assert old.read_text() == "new\n"
    finally:
        for path in Path("/tmp").glob(f"{name}*"):
            path.unlink()


@means
async def test_the_home_directory_may_be_the_workspace(shell, tmp_path, monkeypatch, means):
    home = tmp_path / "home"
    for name in (".ssh", ".aws", "project"):
        (home / name).mkdir(parents=True)
    (home / ".ssh" / "id").write_text("canary-secret")
    (home / ".netrc").write_text("canary-secret")
    (home / "old").write_text("old\n")
    monkeypatch.setenv("HOME", str(home))
    async with shell(means, home) as sh:
        results = await sh.calls(
            ("bash", {"command": "cat .ssh/* .netrc ~/.ssh/id; cat old; echo new > old; echo x > project/file; ls -a"}),
            ("read", {"path": ".ssh/id"}),
            ("read", {"path": "~/.netrc"}),
            ("grep", {"pattern": "canary"}),
            ("write", {"path": "~/.ssh/authorized_keys", "content": "x"}),
            ("bash", {"command": "echo x > .ssh/authorized_keys; echo x > .netrc"}),
            ("write", {"path": "~/more", "content": "x"}),
        )
        assert "canary-secret" not in "".join(text(result) for result in results)
        assert "old\n" in text(results[0])
        assert [result.code for result in results[1:3]] == ["DENIED"] * 2 and results[4].is_error and not results[6].is_error
    assert [path.name for path in (home / ".ssh").iterdir()] == ["id"]
    assert ((home / ".netrc").read_text(), (home / "old").read_text(), (home / "more").read_text()) == ("canary-secret", "new\n", "x")


@means
async def test_a_workspace_may_lie_in_a_hidden_directory(shell, tmp_path, monkeypatch, means):
    home = tmp_path / "home"
    work = home / ".config" / "gh" / "project"
    work.mkdir(parents=True)
    (home / ".config" / "gh" / "hosts.yml").write_text("canary-secret")
    (work / "old").write_text("old\n")
    monkeypatch.setenv("HOME", str(home))
    async with shell(means, work) as sh:
        results = await sh.calls(
            ("bash", {"command": "cat old; echo new > old; cat ../hosts.yml"}),
            ("read", {"path": "old"}),
            ("write", {"path": "more", "content": "x"}),
            ("read", {"path": "../hosts.yml"}),
            ("write", {"path": "../other", "content": "x"}),
            ("grep", {"pattern": "e"}),
        )
        assert "canary-secret" not in "".join(text(result) for result in results)
        assert "old\n" in text(results[0]) and "new" in text(results[1]) and not results[2].is_error
        assert results[3].code == results[4].code == "DENIED" and "old:1:new" in text(results[5])
    assert (work / "old").read_text() == "new\n"


@means
async def test_a_workspace_that_goes_away_is_said(shell, tmp_path, means):
    work = tmp_path / "going"
    work.mkdir()
    async with shell(means, work) as sh:
        agent = await sh.agents.create(
            AgentSpec(str(work), sh._script({"calls": [{"name": "bash", "arguments": {"command": "true"}}]}, {}))
        )
        shutil.rmtree(work)
        await agent.run("go")
        (result,) = [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]
        assert result.is_error and result.code in ("NOT_STARTED", "EXIT_STATUS")
    assert not work.exists()
