"""``hames workspace`` beside processes that work there, what they say of it, and workspaces that are as bad as they can be."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.compose import BASE, Layer, compose
from hames.content.errors import HamesError
from hames.policy import POLICY
from hames.profiles import profile
from hames.tools import TOOLS
from hames.trust import TRUST, Trust, executes
from hames.workspaces import WORKSPACES, WorkspaceReloaded

FILE = ".hames/compose.yaml"

MARK = """
import os
from pathlib import Path
from pydantic import BaseModel
from hames.kernel import plugin

HERE = Path(__file__).parent.parent


class Config(BaseModel):
    text: str = ""


@plugin(config=Config, name="mark")
def mark(ctx, config):
    if config.text == "broken":
        raise RuntimeError("no luck today")
    with (HERE / "marks").open("a") as file:
        file.write(f"{os.getpid()} {config.text}\\n")
"""

WAITING = "for i in $(seq 900); do test -e go && break; sleep 0.05; done"


def put(root: Path, name: str, content: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    other = path.with_name(f".{path.name}.new")
    other.write_text(content)
    other.replace(path)
    return path


def mark(work: Path, text: str, more: str = "") -> None:
    put(work, FILE, f"- {{id: mark, use: ./mark.py, config: {{text: {text}}}}}\n{more}")


def marks(work: Path) -> list[str]:
    file = work / "marks"
    return [line.split()[1] for line in file.read_text().splitlines()] if file.exists() else []


def grant(state: Path, directory: Path) -> None:
    trust = Trust(state / "trust")
    trust.decide(trust.status(directory, compose([Layer(profile("standard"))])), True)


@pytest.fixture
def work(hames: Any) -> Path:
    """A trusted directory with a row of its own."""
    directory = Path(hames.work).resolve()
    put(directory, ".hames/mark.py", MARK)
    mark(directory, "first")
    grant(hames.state, directory)
    return directory


@pytest.fixture
def busy(hames: Any, work: Path, until: Any) -> Iterator[Any]:
    """Starts ``hames run`` with a model that takes long, and waits until it works; ends by itself when ``go`` is there."""

    def start(*more: str) -> Any:
        before = len(marks(work))
        (work / "go").unlink(missing_ok=True)
        model = hames.script({"text": "I wait.", "calls": [{"name": "bash", "arguments": {"command": WAITING}}]}, {"text": "Done."})
        child = hames.start("run", "wait", "--model", model, *more)
        children.append(child)
        until(lambda: len(marks(work)) > before, "the workspace is mounted")
        until(lambda: list((hames.state / "workspaces").glob(f"*.{child.pid}-*.json")), "it tells of itself")
        return child

    children: list[Any] = []
    yield start
    (work / "go").touch()
    for child in children:
        child.wait(timeout=30)


def finish(work: Path, child: Any) -> tuple[str, str]:
    (work / "go").touch()
    return child.communicate(timeout=30)


# nobody works there


@pytest.mark.parametrize("words", [(), ("status",), ("reload",)])
def test_every_workspace_command_has_help(inline: Any, words: tuple[str, ...]) -> None:
    done = inline.run("workspace", *words, "--help")
    assert done.returncode == 0 and "Usage:" in done.stdout


def test_status_of_a_directory_with_nothing_of_its_own(inline: Any, hames: Any) -> None:
    found = inline.json("workspace", "status")
    assert found == {
        "directory": str(hames.work.resolve()), "files": [], "trust": "undecided", "changed": [], "removed": [], "problems": [], "live": [],
    }  # fmt: skip
    said = inline.run("workspace", "status").stdout
    assert "nothing of its own" in said and "nobody works in it now" in said


def test_status_says_what_a_trusted_directory_changes(inline: Any, work: Path, hames: Any) -> None:
    mark(work, "first", "- {id: todo, set: {disabled: true}}\n- {id: bash, remove: true}\n- {id: mcp, set: {config: {keep: [X]}}}\n")
    grant(hames.state, work)
    found = inline.json("workspace", "status", str(work))
    assert (found["files"], found["trust"]) == ([FILE], "granted")
    assert (found["changed"], sorted(found["removed"])) == (["mcp", "mark"], ["bash", "todo"])
    said = inline.run("workspace", "status", str(work)).stdout
    assert all(line in said for line in ("  + mark\n", "  + mcp\n", "  - bash\n", "  - todo\n"))
    assert marks(work) == []  # nothing is mounted by looking


def test_status_reads_an_untrusted_directory_as_data(inline: Any, hames: Any) -> None:
    directory = Path(hames.work)
    put(directory, ".hames/mark.py", f"open({str(directory / 'witness')!r}, 'w').close()\n" + MARK)
    mark(directory, "first")
    found = inline.json("workspace", "status")
    assert (found["trust"], found["files"], found["changed"], found["problems"]) == ("undecided", [FILE], [], [])
    assert not (directory / "witness").exists()


def test_status_of_a_directory_that_has_changed_since_it_was_trusted(inline: Any, work: Path) -> None:
    put(work, ".hames/mark.py", f"open({str(work / 'witness')!r}, 'w').close()\n")
    found = inline.json("workspace", "status", str(work))
    assert (found["trust"], found["changed"]) == ("changed", [])
    assert not (work / "witness").exists()


@pytest.mark.parametrize("mistake", ["- {id: x, use: no.such.plugin}", "- [", "- {id: store, bad: 1}", "- {id: nobody, remove: true}"])
def test_status_shows_mistakes_and_fails(inline: Any, work: Path, hames: Any, mistake: str) -> None:
    put(work, FILE, mistake)
    if mistake != "- [":
        grant(hames.state, work)
    found = inline.json("workspace", "status", str(work), status=2)
    assert found["problems"] and any("compose.yaml" in each for each in found["problems"])
    done = inline.run("workspace", "status", str(work))
    assert done.returncode == 2 and "  ! " in done.stdout


def test_status_shows_a_row_that_a_workspace_cannot_change(inline: Any, work: Path, hames: Any) -> None:
    put(work, FILE, "- {id: store, remove: true}")
    grant(hames.state, work)
    assert any("store" in each for each in inline.json("workspace", "status", str(work), status=2)["problems"])


@pytest.mark.parametrize("text", ["{", '{"mcpServers": {"a": {"command": "x", "url": "http://x"}}}'])
def test_status_shows_mistakes_of_the_project_file(inline: Any, work: Path, hames: Any, text: str) -> None:
    put(work, ".mcp.json", '{"mcpServers": {}}')
    grant(hames.state, work)
    put(work, ".mcp.json", text)
    if text != "{":
        grant(hames.state, work)
    found = inline.json("workspace", "status", str(work), status=2)
    assert any(".mcp.json" in each for each in found["problems"])


def test_reload_where_nobody_works_is_an_error(inline: Any, work: Path) -> None:
    done = inline.run("workspace", "reload", str(work))
    assert done.returncode == 2 and "nobody works in" in done.stderr
    assert not list(Path(os.environ["HAMES_STATE"]).glob("workspaces/requests/*"))


@pytest.mark.parametrize("verb", ["status", "reload"])
@pytest.mark.parametrize("name", ["nowhere", "a-file", "a\x1bb"], ids=ascii)
def test_a_directory_that_is_none_is_an_error(inline: Any, hames: Any, verb: str, name: str) -> None:
    (hames.work / "a-file").touch()
    done = inline.run("workspace", verb, name)
    assert done.returncode == 2 and "\x1b" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    "record",
    [b"", b"{", b"[]", b'{"process": "x"}', b'{"process": "1-1", "directory": "/"}', b'{"process": 3}', b"\xff", b"null"],
    ids=repr,
)
def test_records_that_no_living_process_has_written_are_removed(inline: Any, hames: Any, record: bytes) -> None:
    path = hames.state / "workspaces" / "0123456789abcdef.1-1.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(record)
    assert inline.json("workspace", "status")["live"] == []
    assert not path.exists()


def test_a_record_of_a_pid_that_another_process_has_now_is_removed(inline: Any, hames: Any) -> None:
    path = hames.state / "workspaces" / f"0123456789abcdef.{os.getpid()}-1.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"process": f"{os.getpid()}-1", "directory": str(hames.work.resolve()), "leases": 1}))
    assert inline.json("workspace", "status")["live"] == []
    assert not path.exists()


# somebody works there


@pytest.mark.slow
def test_a_process_that_works_there_sees_an_edit_and_says_so(hames: Any, inline: Any, work: Path, busy: Any, until: Any) -> None:
    child = busy()
    (live,) = until(lambda: inline.json("workspace", "status")["live"], "it tells of itself")
    assert (live["directory"], live["trusted"], live["reload"]["watching"]) == (str(work), True, True)
    mark(work, "second")
    until(lambda: marks(work) == ["first", "second"], "it sees the edit")
    output, errors = finish(work, child)
    assert (child.returncode, output) == (0, "Done.\n")
    assert [line for line in errors.splitlines() if "the workspace was reloaded" in line], errors
    assert inline.json("workspace", "status")["live"] == []
    assert list((hames.state / "workspaces").glob("*.json")) == []


@pytest.mark.slow
def test_the_person_at_run_is_told_why_a_workspace_was_not_reloaded(inline: Any, work: Path, busy: Any, until: Any) -> None:
    child = busy()
    mark(work, "broken")
    until(lambda: any(each["reason"] for each in inline.json("workspace", "status")["live"]), "it has failed")
    said = inline.run("workspace", "status").stdout
    assert "start: " in said and "mark" in said
    _, errors = finish(work, child)
    assert child.returncode == 0
    lines = [line for line in errors.splitlines() if "was not reloaded" in line]
    assert lines and "mark" in lines[0], errors


@pytest.mark.slow
def test_status_of_a_process_settles_after_an_edit(inline: Any, work: Path, busy: Any, until: Any) -> None:
    child = busy()
    mark(work, "second")
    until(lambda: len(marks(work)) == 2, "it sees the edit")
    end = time.monotonic() + 5

    def found() -> Any:
        return inline.json("workspace", "status")["live"][0]["reload"]

    while found() != {"watching": True, "status": "idle", "successful_reloads": 1} and time.monotonic() < end:
        time.sleep(0.05)
    assert found() == {"watching": True, "status": "idle", "successful_reloads": 1}
    finish(work, child)


def test_status_counts_those_who_work_there(inline: Any, work: Path, busy: Any) -> None:
    child = busy()
    (live,) = inline.json("workspace", "status")["live"]
    assert (live["leases"], live["reload"]["status"]) == (1, "idle")
    finish(work, child)


@pytest.mark.slow
def test_reload_from_another_process_reads_it_again_and_waits_for_that(inline: Any, work: Path, busy: Any) -> None:
    patch = put(work.parent, "unwatched.yaml", "- {id: workspaces, set: {config: {watch: false}}}\n")
    child = busy("--patch", str(patch))
    mark(work, "second")
    found = inline.json("workspace", "reload", str(work))
    assert marks(work) == ["first", "second"]
    (live,) = found["live"]
    assert (found["directory"], live["reason"], live["reload"], live["leases"]) == (str(work), "", None, 1)
    inline.json("workspace", "reload", str(work), "--all")
    assert marks(work) == ["first", "second", "second"]
    mark(work, "broken")
    done = inline.run("workspace", "reload", str(work))
    assert done.returncode == 1 and "start: " in done.stdout and "mark" in done.stdout
    mark(work, "third")
    done = inline.run("workspace", "reload", str(work))
    assert done.returncode == 0 and f"process {child.pid}: 1 leases" in done.stdout
    assert marks(work)[-1] == "third"
    _, errors = finish(work, child)
    assert child.returncode == 0
    assert "was not reloaded" in errors and "was reloaded" in errors, errors


@pytest.mark.slow
def test_reload_reaches_every_process_that_works_there(inline: Any, work: Path, busy: Any) -> None:
    children = [busy(), busy()]
    assert {each["process"].partition("-")[0] for each in inline.json("workspace", "status")["live"]} == {str(c.pid) for c in children}
    found = inline.json("workspace", "reload", str(work), "--all")
    assert len(found["live"]) == 2
    lines = (work / "marks").read_text().splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(str(child.pid) for child in children for _ in range(2))
    for child in children:
        finish(work, child)
        assert child.returncode == 0


@pytest.mark.slow
def test_an_edit_of_code_waits_for_a_grant_which_another_process_gives(hames: Any, inline: Any, work: Path, busy: Any, until: Any) -> None:
    child = busy()
    put(work, ".hames/mark.py", MARK.replace("{config.text}", "{config.text}-other"))
    until(lambda: any(each["reason"] == "trust" for each in inline.json("workspace", "status")["live"]), "it waits")
    done = inline.run("workspace", "reload", str(work))
    assert done.returncode == 1 and "trust" in done.stdout
    assert marks(work) == ["first"]
    assert inline.run("trust", "grant", str(work), "--yes").returncode == 0
    until(lambda: marks(work) == ["first", "first-other"], "it is taken up")
    finish(work, child)
    assert child.returncode == 0


@pytest.mark.slow
def test_a_process_that_was_killed_is_nobody(hames: Any, inline: Any, work: Path, busy: Any) -> None:
    child = busy()
    assert len(inline.json("workspace", "status")["live"]) == 1
    (work / "go").touch()
    os.kill(child.pid, signal.SIGKILL)
    child.wait(timeout=10)
    assert len(list((hames.state / "workspaces").glob("*.json"))) == 1
    assert inline.run("workspace", "reload", str(work)).returncode == 2
    assert "nobody works in it now" in inline.run("workspace", "status", str(work)).stdout
    assert list((hames.state / "workspaces").glob("*.json")) == []


@pytest.mark.slow
def test_reload_of_an_untrusted_directory_in_which_somebody_works_mounts_nothing(hames: Any, inline: Any, work: Path, until: Any) -> None:
    inline.run("trust", "revoke", str(work))
    model = hames.script({"text": "I wait.", "calls": [{"name": "bash", "arguments": {"command": WAITING}}]}, {"text": "Done."})
    child = hames.start("run", "wait", "--model", model)
    (live,) = until(lambda: inline.json("workspace", "status")["live"], "it works there")
    assert (live["trusted"], live["configured"], live["composition"], live["reload"]) == (False, True, False, None)
    found = inline.json("workspace", "reload")
    assert (found["live"][0]["trusted"], found["live"][0]["composition"]) == (False, False)
    assert marks(work) == []
    finish(work, child)
    assert child.returncode == 0


# bad input


LAYER = "- {id: trust, set: {config: {default: always}}}\n- {id: workspaces, set: {config: {debounce_ms: 20}}}\n"
GOOD = "- {id: todo, set: {disabled: true}}\n- {id: extra, use: ./mark.py, config: {text: fine}}\n"


def spoil(directory: Path, how: str) -> None:
    """Make what a workspace says as bad as can be."""
    file, outside = directory / FILE, directory.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "compose.yaml").write_text(GOOD)
    (outside / "mark.py").write_text(f"# of {outside}\n" + MARK)
    if how == "a link out in the place of the directory":
        shutil.move(directory / ".hames", directory.parent / "moved")
        (directory / ".hames").symlink_to(outside)
        return
    if how == "an include outside":
        put(directory, FILE, f"- {{include: {outside}/compose.yaml}}\n")
        return
    if how == "an include above":
        put(directory, FILE, "- {include: ../../outside/compose.yaml}\n")
        return
    if how == "code outside":
        put(directory, FILE, "- {id: extra, use: ../../outside/mark.py}\n")
        return
    if how == "2 MB":
        put(directory, FILE, GOOD + "#" * 2_000_000)
        return
    file.unlink()
    if how == "a pipe":
        os.mkfifo(file)
    elif how == "not YAML":
        file.write_text(GOOD + "- [")
    elif how == "not UTF-8":
        file.write_bytes(b"- {id: \xff\xfe, use: x}\n")
    elif how == "a directory with something":
        file.mkdir()
        (file / "x").touch()
    elif how == "a link out":
        file.symlink_to(outside / "compose.yaml")
    elif how == "a link in a circle":
        file.symlink_to(file)
    elif how == "a device":
        file.symlink_to("/dev/zero")
    else:
        raise AssertionError(how)


BAD = [
    "a link out in the place of the directory", "an include outside", "an include above", "code outside", "2 MB", "a pipe", "not UTF-8",
    "a directory with something", "a link out", "a link in a circle", "a device", "not YAML",
]  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a sound composition of its own."""
    directory = (tmp_path / "place").resolve()
    put(directory, ".hames/mark.py", f"# of {directory}\n" + MARK)
    put(directory, FILE, GOOD)
    return directory


@pytest.fixture
def always(opened: Any, tmp_path: Path) -> Any:
    """Opens a host that trusts everything; its tasks are gone afterwards."""

    @asynccontextmanager
    async def open(*more: str) -> Any:
        tasks = asyncio.all_tasks()
        files = [put(tmp_path, f"layer{index}.yaml", text) for index, text in enumerate((LAYER, *more))]
        async with opened(*files) as host:
            yield host
        assert asyncio.all_tasks() - tasks == set()

    return open


async def soon(condition: Any, what: str) -> Any:
    end = time.monotonic() + 8
    while not (found := condition()):
        assert time.monotonic() < end, what
        await asyncio.sleep(0.01)
    return found


@pytest.mark.parametrize("how", BAD)
async def test_a_bad_workspace_that_is_trusted_is_refused_at_first_and_again_until_it_is_mended(always: Any, place: Path, how: str) -> None:
    spoil(place, how)
    async with always() as host:
        workspaces = host.get(WORKSPACES)
        for _ in range(2):
            with pytest.raises(HamesError):
                lease = await asyncio.wait_for(workspaces.acquire(place), 10)
                await lease.release()
            assert workspaces.get(place) is None
        assert marks(place) == marks(place.parent) == []


@pytest.mark.parametrize("how", BAD)
async def test_a_workspace_that_becomes_bad_is_emptied_with_a_reason_and_comes_back(always: Any, place: Path, how: str) -> None:
    async with always() as host:
        workspaces, notices = host.get(WORKSPACES), []
        host.ctx.on(WorkspaceReloaded, notices.append)
        lease = await workspaces.acquire(place)
        view = host.get(TOOLS).registry.view
        assert "todo_write" in view(host.root_scope) and "todo_write" not in view(lease.scope)
        spoil(place, how)
        await soon(lambda: notices and workspaces.get(place).reload.status == "failed", "it is seen")
        info = workspaces.get(place)
        assert (notices[-1].reason, info.reason, info.composition) == ("invalid", "invalid", False)
        assert info.message
        assert "todo_write" not in view(lease.scope)  # what was hidden stays hidden
        assert marks(place) == ["fine"]
        if (place / ".hames").is_symlink():
            (place / ".hames").unlink()
            shutil.move(place.parent / "moved", place / ".hames")
        elif (place / FILE).is_dir():
            shutil.rmtree(place / FILE)
        notices.clear()
        put(place, FILE, GOOD)
        await soon(lambda: notices and notices[-1].reason == "", "it is back")
        assert marks(place) == ["fine", "fine"]
        assert workspaces.get(place).composition
        await lease.release()


@pytest.mark.parametrize("how", BAD)
def test_the_commands_name_what_is_bad_without_hanging(inline: Any, hames: Any, work: Path, how: str) -> None:
    spoil(work, how)
    found = inline.json("workspace", "status", str(work), status=2)
    assert found["problems"]
    shown = inline.run("trust", "show", str(work))
    assert shown.returncode != 0 and "Traceback" not in shown.stderr
    assert inline.run("trust", "grant", str(work), "--yes").returncode != 0
    assert marks(work) == marks(work.parent) == []


async def test_a_granted_workspace_with_a_mistake_is_not_passed_over_in_silence(opened: Any, place: Path) -> None:
    put(place, FILE, "- {id: policy, set: {config: {mode: read-only}}}\n")
    async with opened() as host:
        trust, workspaces = host.get(TRUST), host.get(WORKSPACES)
        trust.decide(trust.status(place, host.get(BASE).composition), True)
        put(place, FILE, "- {id: policy, set: {config: {mode: read-only}}\n")  # a bracket is missing
        try:
            lease = await workspaces.acquire(place)
        except HamesError as error:
            assert "compose.yaml" in error.message
            return
        info = workspaces.get(place)
        await lease.release()
        assert info.reason, "its policy is not there, and nobody is told"


async def test_an_empty_directory_in_place_of_a_file_is_as_if_there_were_none(always: Any, place: Path) -> None:
    """The sandbox holds names of files that are not there with something of its own."""
    (place / FILE).unlink()
    (place / FILE).mkdir()
    (place / ".mcp.json").mkdir()
    async with always() as host:
        lease = await host.get(WORKSPACES).acquire(place)
        assert not host.get(WORKSPACES).get(place).configured
        info = await host.get(WORKSPACES).reload(place)
        assert info.reason == ""
        await lease.release()


def test_status_of_a_directory_in_which_empty_directories_hold_the_names(inline: Any, work: Path) -> None:
    (work / FILE).unlink()
    (work / FILE).mkdir()
    assert inline.json("workspace", "status", str(work))["files"] == []


@pytest.mark.parametrize("row", ["store", "sessions", "agents", "trust", "workspaces"])
@pytest.mark.parametrize("how", ["remove: true", "set: {disabled: true}", "replace: {use: hames.toolkit.plan}"])
async def test_a_row_on_which_workspaces_stand_cannot_be_changed(always: Any, place: Path, row: str, how: str) -> None:
    async with always() as host:
        workspaces = host.get(WORKSPACES)
        lease = await workspaces.acquire(place)
        put(place, FILE, GOOD + f"- {{id: {row}, {how}}}\n")
        info = await workspaces.reload(place)
        assert info.reason == "invalid"
        assert row in info.message
        assert host.get(AGENTS) is not None
        await lease.release()
        with pytest.raises(HamesError) as caught:
            await workspaces.acquire(place)
        assert row in caught.value.message


# rows that guard

WRITE = {"name": "write", "arguments": {"path": "made.txt", "content": "x"}}
READ_ONLY = "- {id: policy, set: {config: {mode: read-only}}}\n"


async def writes(host: Any, place: Path, script: Any, ceiling: Any = "full", call: Any = WRITE) -> bool:
    """Whether an agent in a directory can write a file there."""
    (place / "made.txt").unlink(missing_ok=True)
    agents = host.get(AGENTS)
    agent = await agents.create(AgentSpec(str(place), script({"text": "", "calls": [call]}, {"text": "done"}), ceiling=ceiling))
    try:
        await agent.run("go")
    finally:
        await agents.dispose(agent)
    return (place / "made.txt").exists()


@pytest.mark.parametrize("change", ["remove: true", "set: {disabled: true}", "set: {config: {mode: full}}", "replace: {use: hames.policy}"])
@pytest.mark.parametrize("row", ["policy", "sandbox"])
def test_whoever_is_asked_for_trust_is_shown_a_change_of_a_row_that_guards(inline: Any, hames: Any, row: str, change: str) -> None:
    put(Path(hames.work), FILE, f"- {{id: {row}, {change}}}\n")
    shown = inline.run("trust", "show")
    assert any(row in line and word in shown.stdout for line in shown.stdout.splitlines()[1:] for word in change.split(":")[:1])
    assert executes(Path(hames.work).resolve(), compose([Layer(profile("standard"))]))


async def test_a_workspace_may_have_a_narrower_policy(always: Any, place: Path, script: Any) -> None:
    put(place, FILE, READ_ONLY)
    async with always() as host:
        assert not await writes(host, place, script)
        assert await writes(host, place.parent, script)


@pytest.mark.parametrize(
    "mistake", ["- [", "- {id: extra, use: no.such.plugin}\n", "- {id: extra, use: ./mark.py, config: {text: broken}}\n"]
)
async def test_a_failed_reload_does_not_free_what_a_policy_of_the_workspace_forbade(
    always: Any, place: Path, script: Any, mistake: str
) -> None:
    put(place, FILE, READ_ONLY)
    async with always() as host:
        workspaces = host.get(WORKSPACES)
        lease = await workspaces.acquire(place)
        assert not await writes(host, place, script)
        put(place, FILE, READ_ONLY + mistake)
        info = await workspaces.reload(place)
        assert info.reason in ("invalid", "start")
        assert not await writes(host, place, script)
        await lease.release()


@pytest.mark.parametrize("mistake", ["- [", "- {id: extra, use: no.such.plugin}\n"])
async def test_a_failed_reload_does_not_free_what_the_policy_of_the_host_forbids(
    always: Any, place: Path, script: Any, mistake: str
) -> None:
    put(place, FILE, "- {id: policy, set: {config: {rules: [{deny: bash}]}}}\n")
    async with always(READ_ONLY) as host:
        workspaces = host.get(WORKSPACES)
        lease = await workspaces.acquire(place)
        assert not await writes(host, place, script)
        put(place, FILE, mistake)
        await workspaces.reload(place)
        assert not await writes(host, place, script)
        await lease.release()


async def test_no_call_is_free_while_the_policy_of_a_workspace_is_replaced(always: Any, place: Path) -> None:
    slow = (
        MARK.replace("def mark(ctx, config):", "async def mark(ctx, config):\n    import asyncio\n    await asyncio.sleep(0.3)")
        + "    yield\n"
    )
    put(place, ".hames/mark.py", slow)
    put(place, FILE, READ_ONLY)
    async with always() as host:
        workspaces = host.get(WORKSPACES)
        lease = await workspaces.acquire(place)
        put(place, FILE, "- {id: policy, set: {config: {mode: read-only, rules: [{deny: bash}]}}}\n- {id: extra, use: ./mark.py}\n")
        reload = asyncio.create_task(workspaces.reload(place))
        seen = set()
        while not reload.done():
            seen.add(host.get(POLICY, lease.scope) is None)
            await asyncio.sleep(0)
        assert (await reload).reason == ""
        assert seen == {False}
        await lease.release()


SLOW_POLICY = """
import asyncio
from pydantic import BaseModel
from hames.kernel import plugin
from hames.policy import POLICY, Decision


class Config(BaseModel):
    seconds: float = 0.0


class Nothing:
    def decide(self, request):
        return Decision("deny", "nothing is allowed here")

    def remember(self, request, answer):
        pass


@plugin(config=Config, name="own policy")
async def own(ctx, config):
    await asyncio.sleep(config.seconds)
    ctx.provide(POLICY, Nothing())
    yield
"""


@pytest.mark.parametrize("failed", [False, True], ids=["edited", "on top of a failure"])
async def test_no_call_is_free_while_a_policy_that_starts_slowly_is_replaced(always: Any, place: Path, script: Any, failed: bool) -> None:
    put(place, ".hames/policy.py", SLOW_POLICY)
    row = "- {id: policy, replace: {use: ./policy.py, config: {seconds: %s}}}\n"
    put(place, FILE, row % 0.0)
    async with always() as host:
        workspaces = host.get(WORKSPACES)
        lease = await workspaces.acquire(place)
        assert not await writes(host, place, script)
        if failed:
            put(place, FILE, "- [")
            await workspaces.reload(place)
        put(place, FILE, row % 0.8)
        reload = asyncio.create_task(workspaces.reload(place))
        await soon(lambda: reload.done() or workspaces.get(place).reload.status == "reloading", "it begins")
        await soon(lambda: reload.done() or host.get(POLICY, lease.scope) is None, "the old one has gone")
        assert not await writes(host, place, script)
        assert (await reload).reason == ""
        await lease.release()


async def test_a_workspace_that_removes_the_policy_keeps_the_ceiling_of_an_agent(always: Any, place: Path, script: Any) -> None:
    put(place, FILE, "- {id: policy, remove: true}\n")
    async with always() as host:
        assert not await writes(host, place, script, ceiling="read-only")


def test_a_workspace_that_removes_the_policy_keeps_the_mode_that_was_named_at_the_start(hames: Any, work: Path) -> None:
    put(work, FILE, "- {id: policy, remove: true}\n")
    grant(hames.state, work)
    model = hames.script({"text": "", "calls": [WRITE]}, {"text": "Done."})
    done = hames.run("run", "go", "--model", model, "--mode", "read-only")
    assert not (work / "made.txt").exists(), done.stderr


async def test_a_command_asks_where_a_workspace_has_removed_the_sandbox(always: Any, place: Path, script: Any) -> None:
    put(place, FILE, "- {id: sandbox, remove: true}\n")
    async with always() as host:
        call = {"name": "bash", "arguments": {"command": "touch made.txt"}}
        assert not await writes(host, place, script, call=call)


@pytest.mark.parametrize("mistake", ["- [", "- {id: extra, use: no.such.plugin}\n"])
async def test_a_failed_reload_does_not_free_commands_of_a_sandbox_of_the_workspace(
    always: Any, place: Path, script: Any, mistake: str
) -> None:
    put(place, FILE, "- {id: sandbox, set: {config: {hide: [private]}}}\n")
    call = {"name": "bash", "arguments": {"command": "touch ../made-outside.txt"}}
    async with always() as host:
        workspaces = host.get(WORKSPACES)
        try:
            lease = await workspaces.acquire(place)
        except HamesError as error:
            pytest.fail(error.message)
        put(place, FILE, mistake)
        await workspaces.reload(place)
        await writes(host, place, script, call=call)
        assert not (place.parent / "made-outside.txt").exists()
        await lease.release()


async def test_a_reload_that_removes_the_policy_needs_a_grant(opened: Any, tmp_path: Path, place: Path, script: Any) -> None:
    put(place, FILE, READ_ONLY)
    async with opened() as host:
        trust, workspaces = host.get(TRUST), host.get(WORKSPACES)
        trust.decide(trust.status(place, host.get(BASE).composition), True)
        lease = await workspaces.acquire(place)
        put(place, FILE, "- {id: policy, remove: true}\n")
        assert (await workspaces.reload(place)).reason == "trust"
        assert not await writes(host, place, script)
        await lease.release()
