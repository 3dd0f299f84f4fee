"""Promises about a live composition, each by itself: what a pass waits for, what it leaves alone, what is watched, and what is said."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import BaseModel

from hames.agents import AGENTS, Agents, AgentSpec
from hames.content.errors import HamesError
from hames.content.finish import Finish
from hames.content.jsontext import parse_object
from hames.content.messages import Text, ToolCall, ToolResult
from hames.kernel import plugin
from hames.models import MODELS, Encoder
from hames.models.openai import OpenAIChat
from hames.prompts import PROMPTS
from hames.tools import TOOLS, tool
from hames.workspaces import WORKSPACES, WorkspaceReloaded, controller
from hames.workspaces.notify import Notifier
from hames.workspaces.plugin import WorkspacesConfig
from hames.workspaces.watch import Watch
from hames.workspaces.workspace import Workspace

HERE = __name__  # what rows use: the plugin of this file
ROOT = Path(__file__).parents[2]
BOARD = SimpleNamespace()


@pytest.fixture(autouse=True)
async def board():
    """What the rows of this file did, and what holds them; nothing of a workspace is left at the end."""
    BOARD.said, BOARD.starting, BOARD.ending = [], None, None
    before = watches()
    yield BOARD
    assert watches() == before
    assert not [task for task in asyncio.all_tasks() if "workspace" in task.get_name() or "mount" in task.get_name()]


class Note(BaseModel):
    name: str = "one"


@plugin(config=Note, needs=(TOOLS, PROMPTS), name="noter")
async def noter(ctx, config):
    BOARD.said.append(f"{config.name} starts")
    if BOARD.starting is not None:
        await BOARD.starting.wait()

    @tool("read", name=config.name)
    async def body() -> str:
        """Say something."""
        return config.name

    ctx.use(TOOLS).register(ctx, body)
    ctx.use(PROMPTS).section(ctx, config.name, f"The repository says {config.name}.", order=50)
    yield
    BOARD.said.append(f"{config.name} ends")
    if BOARD.ending is not None:
        await BOARD.ending.wait()
    BOARD.said.append(f"{config.name} has ended")


def row(name: str = "one", id: str = "mine") -> str:
    return f"- {{id: {id}, use: '{HERE}:noter', config: {{name: {name}}}}}\n"


def put(place: Path, text: str, name: str = ".hames/compose.yaml") -> Path:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def watches() -> int:
    """The directories that this process watches, as the system counts them."""
    count = 0
    for path in Path("/proc/self/fdinfo").iterdir():
        try:
            count += path.read_text().count("inotify wd:")
        except OSError:
            continue
    return count


async def until(condition, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class World:
    """A host that trusts every directory, with what was told of reloads."""

    def __init__(self, host) -> None:
        self.host = host
        self.workspaces, self.agents = host.get(WORKSPACES), host.get(AGENTS)
        self.notices: list[WorkspaceReloaded] = []
        host.ctx.on(WorkspaceReloaded, self.notices.append)

    async def reloaded(self) -> WorkspaceReloaded:
        """The next notice, waited for."""
        await until(lambda: self.notices)
        return self.notices.pop(0)


@pytest.fixture
def starting(opened, tmp_path):
    @asynccontextmanager
    async def start(config: str = "debounce_ms: 20"):
        patch = tmp_path / "patch.yaml"
        patch.write_text("- {id: trust, set: {config: {default: always}}}\n")
        if config:
            patch.write_text(f"{patch.read_text()}- {{id: workspaces, set: {{config: {{{config}}}}}}}\n")
        async with opened(patch) as host:
            yield World(host)

    return start


@pytest.fixture
async def world(starting):
    async with starting() as world:
        yield world


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    return (tmp_path / "w").resolve()


# agents


class Slow:
    """A model whose answers wait until a test lets them go; the requests themselves are kept."""

    def __init__(self, *answers: tuple) -> None:
        self.requests: list = []
        self.answers = [*answers]
        self.go = asyncio.Event()

    def model(self, name, profile, ref):
        return SimpleNamespace(
            ref=ref,
            window=128_000,
            stream=lambda request: Answer(self, request),
            cost=lambda usage: 0.0,
            encoder=lambda pictures: Encoder(OpenAIChat(), ref, pictures=pictures),
        )


class Answer:
    def __init__(self, slow: Slow, request) -> None:
        self._slow, self._request = slow, request

    def partial(self):
        return ()

    async def __aiter__(self):
        self._slow.requests.append(self._request)
        await self._slow.go.wait()
        blocks = self._slow.answers.pop(0) if self._slow.answers else (Text("Done."),)
        calls = any(isinstance(block, ToolCall) for block in blocks)
        yield Finish("tool-calls" if calls else "stop", tuple(blocks), None)


def slow_model(world: World, *answers: tuple) -> Slow:
    slow = Slow(*answers)

    @plugin(needs=(MODELS,), name="slow")
    def body(ctx, config):
        ctx.use(MODELS).register(ctx, "slow", slow)

    world.host.mount(body)
    return slow


def names(request) -> list[str]:
    return [each["function"]["name"] for each in parse_object(request.body())["tools"]]


def system(request) -> str:
    return parse_object(request.body())["messages"][0]["content"]


async def test_a_request_that_is_under_way_is_the_same_to_the_byte_after_a_pass(world, place):
    put(place, row("one"))
    slow = slow_model(world)
    agent = await world.agents.create(AgentSpec(str(place), "slow:x"))
    turn = asyncio.create_task(agent.run("Begin."))
    await until(lambda: slow.requests)
    (request,) = slow.requests
    before = request.body()
    put(place, row("two"))
    assert (await world.reloaded()).reason == ""
    assert request.body() == before and not turn.done()
    assert "one" in names(request) and "two" not in names(request) and "The repository says one." in system(request)
    slow.go.set()
    await turn
    await agent.run("Go on.")
    assert "two" in names(slow.requests[1]) and "one" not in names(slow.requests[1])
    assert "The repository says two." in system(slow.requests[1])
    await world.agents.dispose(agent)


async def test_messages_that_wait_for_an_agent_wait_on_over_a_pass(world, place):
    put(place, row("one"))
    slow = slow_model(world)
    agent = await world.agents.create(AgentSpec(str(place), "slow:x"))
    inbox, scope, session = agent.inbox, agent.scope, agent.session
    turn = asyncio.create_task(agent.run("Begin."))
    await until(lambda: slow.requests)
    agent.send("And then?")
    assert len(inbox) == 1
    for text in (row("two"), "- [\n", row("three")):
        put(place, text)
        await world.reloaded()
    assert (agent.inbox, agent.scope, agent.session, len(inbox)) == (inbox, scope, session, 1)
    slow.go.set()
    await turn
    await agent.idle()
    said = [block.text for _, message in session.messages if message.role == "user" for block in message.blocks if isinstance(block, Text)]
    assert [text for text in said if text in ("Begin.", "And then?")] == ["Begin.", "And then?"]
    assert len(inbox) == 0
    await world.agents.dispose(agent)


async def test_a_pass_does_not_wait_for_a_call_of_a_plugin_that_it_leaves_alone(world, place):
    put(place, row("one"))
    called, go = asyncio.Event(), asyncio.Event()

    @tool("read")
    async def patience() -> str:
        """Wait."""
        called.set()
        await go.wait()
        return "it was worth it"

    @plugin(needs=(TOOLS,), name="patient")
    def patient(ctx, config):
        ctx.use(TOOLS).register(ctx, patience)

    world.host.mount(patient)
    slow = slow_model(world, (ToolCall("c0", "patience", "{}"),))
    slow.go.set()
    agent = await world.agents.create(AgentSpec(str(place), "slow:x"))
    turn = asyncio.create_task(agent.run("Begin."))
    await asyncio.wait_for(called.wait(), 5)
    put(place, row("two"))
    notice = await world.reloaded()
    assert (notice.reason, notice.started, notice.stopped, turn.done()) == ("", ("mine",), ("mine",), False)
    go.set()
    await turn
    results = [block for _, message in agent.session.messages for block in message.blocks if isinstance(block, ToolResult)]
    assert [(result.text, result.is_error) for result in results] == [("it was worth it", False)]
    await world.agents.dispose(agent)


async def test_every_agent_is_made_with_a_lease_of_its_directory_and_in_no_other_way(world, place, script):
    public = {name: each for name, each in vars(Agents).items() if callable(each) and not name.startswith("_")}
    assert set(public) == {"create", "dispose", "close"} and all(map(inspect.iscoroutinefunction, public.values()))
    made = [path for path in (ROOT / "src").rglob("*.py") if re.search(r"(?<!\w)Agent\(\n", path.read_text())]
    assert [path.name for path in made] == ["plugin.py"]
    put(place, row("one"))
    first = await world.agents.create(AgentSpec(str(place), script({"text": "hello"})))
    lease = await world.workspaces.acquire(place)
    assert first.scope.parent is lease.scope and world.workspaces.get(place).leases == 2
    await lease.release()
    await first.run("go")
    await world.agents.dispose(first)
    assert world.workspaces.get(place) is None
    again = await world.agents.create(AgentSpec("/", resume=first.session.id))
    assert world.workspaces.get(place).leases == 1 and "one" in world.host.get(TOOLS).registry.view(again.scope)
    await world.agents.dispose(again)
    assert world.workspaces.get(place) is None


# a pass


async def test_what_goes_has_ended_entirely_before_what_comes_is_started(world, place):
    put(place, row("one", "first") + row("kept", "kept"))
    lease = await world.workspaces.acquire(place)
    BOARD.ending = asyncio.Event()
    put(place, row("two", "second") + row("kept", "kept"))
    await until(lambda: "one ends" in BOARD.said)
    await turns()
    assert "two starts" not in BOARD.said and world.workspaces.get(place).reload.status == "reloading"
    BOARD.ending.set()
    await world.reloaded()
    assert BOARD.said == ["one starts", "kept starts", "one ends", "one has ended", "two starts"]
    await lease.release()


async def test_an_edit_of_a_preset_makes_no_pass(world, place, script):
    put(place, row("one"))
    put(place, "[]\n", ".hames/presets/careful.yaml")
    agent = await world.agents.create(AgentSpec(str(place), script({"text": "hello"}), preset="careful"))
    put(place, row("two", "more"), ".hames/presets/careful.yaml")
    put(place, "[]\n", ".hames/presets/other.yaml")
    await asyncio.sleep(0.1)  # longer than the debounce: there is nothing that could be waited for
    info = world.workspaces.get(place).reload
    assert (info.status, info.successful_reloads, world.notices, BOARD.said) == ("idle", 0, [], ["one starts"])
    put(place, row("three"))
    assert (await world.reloaded()).started == ("mine",)
    await world.agents.dispose(agent)


@pytest.mark.parametrize("watch", [True, False], ids=["watched", "not watched"])
async def test_a_reading_that_is_due_when_its_workspace_ends_mounts_nothing(starting, place, watch):
    async with starting("debounce_ms: 20" if watch else "watch: false") as world:
        put(place, row("one"))
        lease = await world.workspaces.acquire(place)
        BOARD.starting = asyncio.Event()
        put(place, row("two"))
        first = asyncio.create_task(world.workspaces.reload(place))
        await until(lambda: "two starts" in BOARD.said)
        put(place, row("three"))
        second = asyncio.create_task(world.workspaces.reload(place))
        await turns()
        releasing = asyncio.create_task(lease.release())
        await turns()
        BOARD.starting.set()
        await asyncio.wait_for(asyncio.gather(first, second, releasing, return_exceptions=True), 5)
        assert releasing.exception() is None and lease.scope.closed
        assert [said for said in BOARD.said if said.startswith("three")] == []
        assert world.workspaces.all == [] and not {"one", "two", "three"} & set(world.host.get(TOOLS).registry.view(lease.scope))


# watching


async def test_a_workspace_is_watched_before_its_files_are_first_read_and_no_edit_falls_between(world, place, monkeypatch):
    file, read, armed = put(place, row("one")), Workspace._read, []

    def reading(self):
        armed.append(watches())
        found = read(self)
        if len(armed) == 1:
            file.write_text(row("two"))
        return found

    monkeypatch.setattr(Workspace, "_read", reading)
    lease = await world.workspaces.acquire(place)
    assert armed[0] >= 2 and world.workspaces.get(place).reload.watching and BOARD.said == ["one starts"]
    notice = await world.reloaded()
    assert (notice.reason, notice.started) == ("", ("mine",))
    assert "two" in world.host.get(TOOLS).registry.view(lease.scope)
    await lease.release()


async def test_a_file_that_is_written_as_it_was_while_it_is_first_mounted_gives_one_pass_that_mounts_nothing(world, place):
    put(place, row("one"))
    BOARD.starting = asyncio.Event()
    taking = asyncio.create_task(world.workspaces.acquire(place))
    await until(lambda: BOARD.said)
    for _ in range(3):
        put(place, row("one"))
        await asyncio.sleep(0.01)
    BOARD.starting.set()
    lease = await taking
    notice = await world.reloaded()
    assert (notice.reason, notice.started, notice.stopped, BOARD.said) == ("", (), (), ["one starts"])
    await until(lambda: world.workspaces.get(place).reload.status == "idle")
    assert (world.workspaces.get(place).reload.successful_reloads, world.notices) == (1, [])
    await lease.release()


async def test_nothing_of_the_rest_of_a_project_is_watched(world, place):
    for number in range(30):
        put(place, "", f"src/d{number}/deep/er/a.py")
    put(place, row("one"))
    before = watches()
    lease = await world.workspaces.acquire(place)
    assert watches() - before == 3  # the directory, .hames, and where other processes ask for a reading
    for number in range(30):
        put(place, "", f"src/e{number}/.hames/compose.yaml")
    await asyncio.sleep(0.1)  # longer than the debounce: there is nothing that could be waited for
    assert (watches() - before, world.notices, world.workspaces.get(place).reload.status) == (3, [], "idle")
    await lease.release()


async def test_the_last_lease_ends_what_watches_before_it_ends_what_is_mounted(world, place):
    put(place, row("one"))
    before = watches()
    lease = await world.workspaces.acquire(place)
    BOARD.ending = asyncio.Event()
    releasing = asyncio.create_task(lease.release())
    await until(lambda: "one ends" in BOARD.said)
    assert world.workspaces.get(place) is None and not releasing.done()
    assert watches() - before == 1  # where other processes ask for a reading
    put(place, row("two"))
    await asyncio.sleep(0.1)  # longer than the debounce: there is nothing that could be waited for
    assert (BOARD.said, world.notices) == (["one starts", "one ends"], [])
    BOARD.ending.set()
    await asyncio.wait_for(releasing, 5)
    assert BOARD.said == ["one starts", "one ends", "one has ended"]


@pytest.mark.parametrize(("config", "seconds"), [("", 0.15), ("debounce_ms: 0", 0.0), ("debounce_ms: 40", 0.04)])
async def test_the_debounce_is_what_the_row_says_and_150_milliseconds_otherwise(starting, place, monkeypatch, config, seconds):
    made, make = [], controller.ReloadController.__init__

    def noted(self, *args, debounce, **more) -> None:
        made.append(debounce)
        make(self, *args, debounce=debounce, **more)

    monkeypatch.setattr(controller.ReloadController, "__init__", noted)
    async with starting(config) as world:
        leases = [await world.workspaces.acquire(place) for _ in range(5)]
        assert made == [seconds]  # all leases have one controller
        for lease in leases:
            await lease.release()


async def test_a_callback_that_raises_ends_neither_the_watching_nor_the_host(place, caplog):
    told = []

    def changed() -> None:
        told.append(1)
        if len(told) == 1:
            raise RuntimeError("whoever is told")

    notifier = Notifier()
    watch = Watch(notifier, place, [place / ".mcp.json"])
    watch.start(changed)
    put(place, "one", ".mcp.json")
    await until(lambda: "was not heard" in caplog.text)
    count = len(told)
    put(place, "another", ".mcp.json")
    await until(lambda: len(told) > count)
    watch.close()
    notifier.close()


def test_the_controller_knows_files_and_callbacks_alone():
    tree = ast.parse(Path(inspect.getfile(controller)).read_text())
    known = {each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    known |= {alias.name for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names}
    assert {name for name in known if name.startswith("hames")} <= {"hames.workspaces.watch", "hames.workspaces.info"}


# what is said


async def test_a_lease_keeps_saying_what_was_there_and_the_workspace_says_what_is(world, place):
    first = await world.workspaces.acquire(place)
    assert (first.configured, world.workspaces.get(place).configured) == (False, False)
    put(place, row("one"))
    assert (await world.reloaded()).started == ("mine",)
    second = await world.workspaces.acquire(place)
    assert (first.configured, second.configured, world.workspaces.get(place).configured) == (False, True, True)
    (place / ".hames/compose.yaml").unlink()
    await world.reloaded()
    info = world.workspaces.get(place)
    assert (first.configured, second.configured, info.configured, info.composition) == (False, True, False, False)
    await first.release()
    await second.release()


async def test_what_is_told_of_a_workspace_names_it_by_its_canonical_path(world, place, monkeypatch):
    put(place, row("one"))
    (place.parent / "link").symlink_to("w")
    lease = await world.workspaces.acquire(place.parent / "link")
    for text in (row("two"), "- [\n"):
        put(place.parent / "link", text)
        assert (await world.reloaded()).directory == str(place)
    assert [info.directory for info in world.workspaces.all] == [str(place)]
    await lease.release()

    def full(self, directory, heard):
        raise OSError(28, "No space left on device", directory)

    put(place, row("one"))
    monkeypatch.setattr(Notifier, "add", full)
    with pytest.raises(HamesError) as caught:
        await world.workspaces.acquire(place.parent / "link")
    assert caught.value.message.startswith(f"{place} cannot be watched")
    monkeypatch.undo()


def test_the_manual_says_when_a_reload_reaches_an_agent_what_a_failed_one_leaves_and_which_files_are_watched():
    text = (ROOT / "README.md").read_text().partition("### A composition for each directory")[2].partition("\n### ")[0]
    said = " ".join(text.split())
    assert "a request that is under way keeps what it was made with; the next one sees the new tools and prompts" in said
    assert "a reading that fails leaves nothing of the directory's own (`on_failure: keep` leaves what there was)" in said
    assert "read again when it, a file that it includes, a local plugin or `.mcp.json` changes" in said


@pytest.mark.parametrize("value", [-1, 2147483648, 1.5, True, "soon", ".inf"])
def test_the_debounce_is_a_whole_number_within_its_bounds_or_a_mistake(value):
    with pytest.raises(ValueError):
        WorkspacesConfig(debounce_ms=value)


def test_the_debounce_takes_its_least_and_its_greatest_value_and_what_the_environment_gives():
    assert [WorkspacesConfig(debounce_ms=value).debounce_ms for value in (0, 2147483647, "20")] == [0, 2147483647, 20]
