"""What a lead is shown and what it is not: on the socket, by name, in its children, in a new process, and while files change."""

# pyright: basic

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.compose import running
from hames.content.errors import HamesError
from hames.delegation import DELEGATION
from hames.kernel import plugin
from hames.profiles import profile
from hames.store import STATE
from hames.tools import TOOLS, tool
from hames.trust import TRUST
from hames.workspaces import WORKSPACES

ROLES = {"search_external", "design", "implement", "search_internal_deep"}
SHOWN = {
    *ROLES,
    *("send_message", "list_agents", "interrupt_agent"),
    *("glob", "grep", "read", "read_image", "bash"),
    *("todo_write", "ask_user_question", "get_goal", "create_goal", "update_goal", "exit_plan_mode"),
    *("job_output", "job_list", "job_kill"),
}
REPORTS = 'openai:steps=1;tool=structured_output;args={"outcome":"done","result":"built"}'
LEADS = "You lead work in the repository at"
SERVER = """
import json, pathlib, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"error": {"code": -32601, "message": "no"}}
    if message["method"] == "initialize":
        info = {"name": "s", "version": "1"}
        answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}}
    elif message["method"] == "tools/list":
        answer = {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in sys.argv[2].split(",")]}}
    elif message["method"] == "tools/call":
        pathlib.Path(sys.argv[1]).write_text("ran")
        answer = {"result": {"content": [{"type": "text", "text": "ran"}]}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


class Room:
    """A workspace whose agents lead."""

    host: Any
    agents: Any
    service: Any
    tasks: Any
    tools: Any

    def __init__(self, root):
        self.root, self.work = root, root / "work"
        self.work.mkdir()
        self.ran = []

    @asynccontextmanager
    async def open(self, *rows):
        patch = self.root / "patch.json"
        patch.write_text(json.dumps([{"id": "loop", "set": {"config": {"retries": 0}}}, *rows]))
        async with running([profile("standard"), patch], {STATE: self.root / "state"}) as host:
            self.host, self.agents, self.service = host, host.get(AGENTS), host.get(DELEGATION)
            self.tasks, self.tools = self.service.tasks, host.get(TOOLS)
            yield self

    async def lead(self, model="openai:text=x", preset="orchestrator", **more):
        return await self.agents.create(AgentSpec(str(self.work), model, preset=preset, **more))

    async def dispose(self, *agents):
        for each in agents:
            await self.agents.dispose(each)

    def preset(self, config, name="orchestrator", rows=()):
        own = [{"include": "shipped:presets/orchestrator.yaml"}, {"id": "orchestrator", "set": {"config": config}}, *rows]
        self.write(f".hames/presets/{name}.yaml", json.dumps(own))

    def compose(self, *rows):
        self.write(".hames/compose.yaml", json.dumps(list(rows)))

    def role(self, name, text):
        self.write(f".hames/roles/{name}.md", text)

    def write(self, name, text):
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.trust()

    def trust(self):
        trust = self.host.get(TRUST)
        trust.decide(trust.status(self.work), True)

    def server(self, id, names):
        program = self.root / "server.py"
        program.write_text(SERVER)
        config = {"command": sys.executable, "args": ["-S", str(program), str(self.root / "ran.txt"), names]}
        return {"id": id, "use": "hames.mcp.server", "config": config}

    def seen(self, agent):
        return set(self.tools.registry.view(agent.scope))

    def results(self, agent):
        return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]

    def records(self, lead):
        return [self.tasks.ledger.get(record.id) for record in self.tasks.ledger.below(lead.id)]

    def add_tools(self, *names):
        """Tools that only note that they ran."""

        def made(name):
            @tool("read", name=name)
            async def run() -> str:
                """Run."""
                self.ran.append(name)
                return name

            return run

        @plugin(needs=(TOOLS,))
        def more(ctx, config):
            for name in names:
                ctx.use(TOOLS).register(ctx, made(name))

        self.host.mount(more)


@pytest.fixture
def place(tmp_path, monkeypatch, wired):
    monkeypatch.setenv("HAMES_HOME", str(tmp_path / "home"))
    return Room(tmp_path)


@pytest.fixture
async def room(place):
    async with place.open():
        yield place


def sent(received):
    """The tools of a request on the socket, and its system prompt."""
    body = json.loads(received.body)
    if "system" in body:
        return [each["name"] for each in body["tools"]], json.dumps(body["system"])
    return [each["function"]["name"] for each in body["tools"]], str(body["messages"][0]["content"])


def headed(lines, body="You are somebody."):
    return f"---\n{lines}\n---\n{body}\n"


# on the socket


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_the_request_of_a_lead_carries_its_21_tools_and_no_others(room, wired, provider):
    room.add_tools("web_search", "workflow", "codegraph_search")
    lead = await room.lead(f"{provider}:text=x")
    assert (await lead.run("hello")).reason == "completed"
    names, system = sent(wired.received[-1])
    assert len(names) == 21 and set(names) == SHOWN
    assert LEADS in system and str(room.work) in system and f"{provider}:text=x" in system
    assert "{{" not in system and "You do what the user asks" not in system
    await room.dispose(lead)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_tools_of_rows_that_are_not_there_are_absent(place, wired, provider):
    async with place.open(*({"id": each, "remove": True} for each in ("goal", "pictures", "control", "questions"))) as room:
        lead = await room.lead(f"{provider}:text=x")
        assert (await lead.run("hello")).reason == "completed"
        gone = {"get_goal", "create_goal", "update_goal", "read_image", "send_message", "list_agents", "interrupt_agent"}
        names, _ = sent(wired.received[-1])
        assert set(names) == SHOWN - gone - {"ask_user_question"} and len(set(names)) == len(names)
        await room.dispose(lead)


async def test_a_role_whose_row_is_not_there_is_not_named_as_a_tool(place, wired):
    async with place.open({"id": "spawn", "remove": True}, {"id": "delegate", "remove": True}) as room:
        lead = await room.lead()
        assert (await lead.run("hello")).reason == "completed"
        assert room.seen(lead) <= SHOWN
        await room.dispose(lead)


async def test_the_persona_says_how_work_is_given_and_what_follows_a_failure(room, wired):
    lead = await room.lead()
    await lead.run("hello")
    _, system = sent(wired.received[-1])
    for name in ROLES:
        assert f": delegate to {name}." in system
    for word in ("error:", "too long", "refusal:", "aborted:", "completed and poor:", "interrupted:"):
        assert word in system
    system = " ".join(system.split())
    for word in (
        "todo_write",
        "glob, grep, read",
        "user alone",
        "context small",
        "wait for its notice",
        "failed as often as it may, stop",
        "after",
    ):
        assert word in system
    await room.dispose(lead)


async def test_a_persona_of_the_preset_replaces_the_shipped_one_and_more_is_said_after_it(room, wired):
    room.preset({"persona": "You conduct {{cwd}}.\n{{delegates}}", "persona_extra": "Always pass {{cwd}}."})
    lead = await room.lead()
    await lead.run("hello")
    _, system = sent(wired.received[-1])
    assert f"You conduct {room.work}." in system and LEADS not in system and ": delegate to design." in system
    assert f"Always pass {room.work}." in system and system.index("You conduct") < system.index("Always pass")
    await room.dispose(lead)


async def test_a_plain_agent_of_the_same_host_sees_what_it_saw(room, wired):
    lead, plain = await room.lead(), await room.lead(preset="")
    assert {"write", "edit", "delegate", "skill"} <= room.seen(plain) and not room.seen(plain) & ROLES
    await plain.run("hello")
    assert LEADS not in sent(wired.received[-1])[1]
    await room.dispose(lead, plain)


# hidden tools


async def test_a_hidden_tool_that_the_model_names_is_unknown_and_nothing_runs(place, script, calling):
    async with place.open(place.server("docs", "search")) as room:
        room.add_tools("web_search", "workflow", "subagent", "mcp__fake__look")
        calls = [
            ("write", {"path": "made.txt", "content": "x"}),
            ("edit", {"path": "there.txt", "old": "a", "new": "b"}),
            ("web_search", {"query": "x"}),
            ("delegate", {"description": "x", "prompt": "x"}),
            ("skill", {"name": "x"}),
            ("ralph", {"objective": "x"}),
            ("recall", {"query": "x"}),
            ("web_fetch", {"url": "http://127.0.0.1:1/"}),
            ("workflow", {}),
            ("subagent", {}),
            ("mcp__fake__look", {}),
            ("mcp__docs__search", {}),
        ]
        (room.work / "there.txt").write_text("a")
        lead = await room.lead(script(calling(("read", {"path": "there.txt"})), calling(*calls), {"text": "done"}))
        plain = await room.lead(preset="")
        assert "mcp__docs__search" in room.seen(plain)
        await lead.run("go")
        first, *others = room.results(lead)
        assert not first.is_error
        assert [each.code for each in others] == ["UNKNOWN_TOOL"] * len(calls)
        assert not (room.work / "made.txt").exists() and (room.work / "there.txt").read_text() == "a"
        assert room.ran == [] and not (room.root / "ran.txt").exists() and room.records(lead) == []
        await room.dispose(lead, plain)


# children


@pytest.mark.parametrize("preset", ["", "orchestrator"], ids=["as it was", "with the preset named"])
async def test_a_child_is_no_lead_and_neither_is_its_session_when_it_goes_on(room, wired, script, calling, preset):
    room.preset({"roles": {"implement": {"model": REPORTS}}})
    lead = await room.lead(script(calling(("implement", {"description": "x", "prompt": "x"})), {"text": "done"}))
    await lead.run("go")
    names, system = sent(wired.received[-1])
    (record,) = room.records(lead)
    assert record.outcome.ok

    def is_the_worker(names, system):
        assert {"read", "write", "edit", "glob", "grep", "bash"} <= set(names)
        assert not set(names) & {*ROLES, "send_message", "list_agents", "interrupt_agent", "delegate", "ralph", "web_fetch"}
        assert "You are the implementation agent." in system and LEADS not in system and "delegate to" not in system

    is_the_worker(names, system)
    assert "structured_output" in names
    child = await room.agents.create(AgentSpec(str(room.work), "openai:text=more", record.outcome.native, preset=preset))
    assert (await child.run("go on")).text == "more"
    is_the_worker(*sent(wired.received[-1]))
    await room.dispose(child, lead)


async def test_a_child_of_a_plain_agent_beside_a_lead_is_no_lead(room, wired, script, calling):
    given = {"description": "x", "prompt": "x", "model": "openai:text=mine"}
    plain = await room.lead(script(calling(("delegate", given)), {"text": "done"}), preset="")
    lead = await room.lead()
    await plain.run("go")
    names, system = sent(wired.received[-1])
    assert {"write", "edit"} <= set(names) and not set(names) & ROLES and LEADS not in system
    await room.dispose(plain, lead)


# a new process


async def test_a_lead_that_goes_on_in_a_new_host_is_a_lead_until_that_is_lifted(place, wired):
    async with place.open() as room:
        lead = await room.lead()
        await lead.run("hello")
        await room.dispose(lead)
    async with place.open() as room:
        again = await room.lead(preset="", resume=lead.id)
        await again.run("and now?")
        names, system = sent(wired.received[-1])
        assert set(names) == SHOWN and LEADS in system
        await room.dispose(again)
        lifted = await room.lead(preset="none", resume=lead.id)
        await lifted.run("yourself")
        names, system = sent(wired.received[-1])
        assert {"write", "edit", "delegate"} <= set(names) and not set(names) & ROLES and LEADS not in system
        await room.dispose(lifted)
    async with place.open() as room:
        still = await room.lead(preset="", resume=lead.id)
        assert "write" in room.seen(still)
        await room.dispose(still)


# what the settings may say


@pytest.mark.parametrize(
    "error", [ValueError("no"), HamesError("no"), RuntimeError("no"), KeyError("no")], ids=lambda each: type(each).__name__
)
async def test_an_error_in_the_filter_leaves_what_a_lead_comes_with(room, wired, monkeypatch, error):
    def broken(config):
        raise error

    room.preset({"main_agent_extra": ["write"], "main_agent_remove": ["read_image"]})
    monkeypatch.setattr("hames.delegation.lead.surface", broken)
    lead = await room.lead()
    await lead.run("hello")
    assert set(sent(wired.received[-1])[0]) == SHOWN - {"read_image"}
    await room.dispose(lead)


async def test_an_error_in_dressing_a_lead_leaves_it_nothing(room, wired, monkeypatch):
    def broken(self, agent):
        raise RuntimeError("no")

    monkeypatch.setattr("hames.delegation.lead.Lead.dress", broken)
    lead = await room.lead()
    await lead.run("hello")
    assert room.seen(lead) == set() and "tools" not in json.loads(wired.received[-1].body)
    await room.dispose(lead)


@pytest.mark.parametrize(
    "config",
    [
        {"tools": []},
        {"tools": ["read"], "main_agent_remove": ["read"], "main_agent_extra": []},
        {"main_agent_remove": sorted(SHOWN), "main_agent_extra": []},
        {"tools": ["design"], "roles_remove": ["design"], "main_agent_extra": []},
        {"main_agent_extra": ["write"], "main_agent_remove": [*sorted(SHOWN), "write"]},
    ],
    ids=["no tools", "the only one", "all of them", "the only role", "the extra too"],
)
async def test_a_lead_without_any_tool_is_refused(room, config):
    room.preset(config)
    with pytest.raises(HamesError) as raised:
        await room.lead()
    assert "no tool at all" in str(raised.value) and raised.value.remedy
    assert room.agents.live == {}


@pytest.mark.parametrize(
    "config",
    [
        {"main_agent_extra": ["@nothing"]},
        {"tools": ["@nothing"]},
        {"main_agent_remove": ["bash"], "main_agent_extra": ["@nothing"]},
        {"unknown": 1},
        {"roles": {"design": {"colour": "red"}}},
        {"main_agent_extra": "write"},
    ],
    ids=["a set to add", "a set as tools", "a set beside what is removed", "a key", "a key of a role", "no list"],
)
async def test_settings_that_mean_nothing_are_refused_with_a_remedy(room, config):
    room.preset(config)
    with pytest.raises(HamesError) as raised:
        await room.lead()
    assert raised.value.remedy or "nothing" in str(raised.value)
    assert room.agents.live == {}


async def test_an_extra_tool_is_seen_and_one_that_is_nowhere_harms_nothing(room, wired):
    room.add_tools("memory_search")
    room.preset({"main_agent_extra": ["memory_search", "write", "no_such_tool", "mcp:nowhere/*", "design"]})
    lead = await room.lead()
    await lead.run("hello")
    names, _ = sent(wired.received[-1])
    assert set(names) == SHOWN | {"memory_search", "write"} and len(names) == len(set(names))
    await room.dispose(lead)


async def test_tools_replace_those_that_a_lead_comes_with(room, wired):
    room.preset({"tools": ["read", "implement", "@plan"], "main_agent_extra": []})
    lead = await room.lead()
    await lead.run("hello")
    names, system = sent(wired.received[-1])
    assert set(names) == {"read", "implement", "todo_write", "create_goal", "get_goal", "update_goal"}
    assert "delegate to implement." in system and "delegate to design." not in system
    await room.dispose(lead)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"main_agent_extra": ["mcp:docs/*"]}, {"mcp__docs__search", "mcp__docs__fetch"}),
        ({"main_agent_extra": ["mcp:docs/search"]}, {"mcp__docs__search"}),
        ({"main_agent_extra": ["mcp:docs"]}, {"mcp__docs__search", "mcp__docs__fetch"}),
        ({"main_agent_extra": ["mcp__docs__*"]}, {"mcp__docs__search", "mcp__docs__fetch"}),
        ({}, {"mcp__codegraph__graph"}),
        ({"main_agent_extra": []}, set()),
        ({"main_agent_remove": ["mcp:codegraph/*"]}, set()),
    ],
    ids=["all of a server", "one", "a server", "a pattern", "codegraph by itself", "nothing on purpose", "codegraph taken away"],
)
async def test_tools_of_a_server_are_seen_where_they_are_named(place, wired, config, expected):
    async with place.open(place.server("docs", "search,fetch"), place.server("codegraph", "graph")) as room:
        room.preset(config)
        lead = await room.lead()
        await lead.run("hello")
        assert set(sent(wired.received[-1])[0]) == SHOWN | expected
        await room.dispose(lead)


async def test_a_tool_of_a_server_that_a_lead_sees_can_be_called(place, script, calling):
    async with place.open(place.server("docs", "search"), {"id": "policy", "set": {"config": {"mode": "full"}}}) as room:
        room.preset({"main_agent_extra": ["mcp:docs/*"]})
        lead = await room.lead(script(calling(("mcp__docs__search", {})), {"text": "done"}))
        await lead.run("go")
        (result,) = room.results(lead)
        assert not result.is_error and (room.root / "ran.txt").exists()
        await room.dispose(lead)


@pytest.mark.parametrize(
    ("extra", "remove"),
    [
        ("write", "write"),
        ("write?", "write"),
        ("write", "write?"),
        ("@write", "write"),
        ("wri*", "write"),
        ("mcp:docs/search", "mcp__docs__search"),
        ("mcp__docs__search", "mcp:docs/search"),
        ("mcp:docs/*", "mcp__docs__search"),
        ("mcp:docs/*", "mcp:docs/search"),
    ],
)
async def test_what_is_added_and_removed_is_removed_however_it_is_written(place, extra, remove):
    async with place.open(place.server("docs", "search,fetch")) as room:
        room.preset({"main_agent_extra": [extra], "main_agent_remove": [remove]})
        lead = await room.lead()
        assert not room.seen(lead) & {"write", "mcp__docs__search"}
        assert room.seen(lead) >= SHOWN
        await room.dispose(lead)


@pytest.mark.parametrize("removed", ["bash", "b?sh", "get_goal", "send_message", "@run"])
async def test_what_is_removed_is_not_seen(room, removed):
    room.preset({"main_agent_remove": [removed, "no_such_tool", "mcp__no__where"]})
    lead = await room.lead()
    gone = {"b?sh": {"bash"}, "@run": {"bash", "job_output", "job_list", "job_kill"}}.get(removed, {removed})
    assert room.seen(lead) == SHOWN - gone
    await room.dispose(lead)


async def test_what_is_removed_that_is_not_there_harms_nothing(room, wired):
    room.preset({"main_agent_remove": ["no_such_tool", "web_search", "mcp:nowhere/*"]})
    lead = await room.lead()
    assert (await lead.run("hello")).reason == "completed"
    assert set(sent(wired.received[-1])[0]) == SHOWN
    await room.dispose(lead)


# roles that are taken away


@pytest.mark.parametrize("removed", [["search_external"], ["design"], ["implement"], ["search_external", "design", "implement", "design"]])
async def test_a_role_that_is_removed_is_no_tool_no_line_and_no_role(room, wired, script, calling, removed):
    settings = {name: {"model": REPORTS, "background_mode": "continuable", "start_mode": "fork", "persona": "You."} for name in removed}
    room.preset({"roles_remove": removed, "roles": settings})
    calls = [(name, {"description": "x", "prompt": "x"}) for name in removed]
    lead = await room.lead(script(calling(*calls), {"text": "done"}))
    await lead.run("go")
    assert {each.code for each in room.results(lead)} == {"UNKNOWN_TOOL"} and room.records(lead) == []
    assert room.seen(lead) == SHOWN - set(removed)
    lead.model_ref = "openai:text=x"
    await lead.run("hello")
    names, system = sent(wired.received[-1])
    assert set(names) == SHOWN - set(removed)
    for name in ROLES:
        assert (f"delegate to {name}." in system) == (name not in removed)
    assert "\n\n\n" not in system
    assert not set(room.tasks.roles(room.tasks.origin(lead))) & set(removed)
    await room.dispose(lead)


async def test_a_removed_role_is_still_there_for_agents_that_do_not_lead(room):
    room.preset({"roles_remove": ["implement"]})
    lead, plain = await room.lead(), await room.lead(preset="")
    assert "implement" in room.tasks.roles(room.tasks.origin(plain))
    await room.dispose(lead, plain)


@pytest.mark.parametrize("removed", [["search_internal_deep"], ["implement", "reviewer"], ["IMPLEMENT"], "implement"])
async def test_other_roles_cannot_be_removed_and_the_error_names_those_that_can(room, removed):
    room.preset({"roles_remove": removed})
    with pytest.raises(HamesError) as raised:
        await room.lead()
    said = f"{raised.value} {raised.value.remedy}"
    assert "roles_remove" in said
    if isinstance(removed, list):
        assert all(name in said for name in ("search_external", "design", "implement"))


async def test_the_tool_of_the_fourth_role_can_be_hidden(room, wired):
    room.preset({"main_agent_remove": ["search_internal_deep"]})
    lead = await room.lead()
    await lead.run("hello")
    names, system = sent(wired.received[-1])
    assert set(names) == SHOWN - {"search_internal_deep"} and "delegate to search_internal_deep" not in system
    await room.dispose(lead)


# files that change


async def test_an_edit_of_a_role_is_used_by_the_next_turn_and_the_next_call(room, wired, script, calling):
    def text(said):
        return f"description: {said}\ntools: [read]\nmodel: '{REPORTS}'"

    room.role("implement", headed(text("Builds one."), "You are the first."))
    call = calling(("implement", {"description": "x", "prompt": "x"}))
    lead = await room.lead(script(call, {"text": "a"}, call, {"text": "b"}))
    await lead.run("go")
    assert "You are the first." in sent(wired.received[-1])[1]
    room.role("implement", headed(text("Builds two."), "You are the second."))
    await lead.run("again")
    _, system = sent(wired.received[-1])
    assert "You are the second." in system and "You are the first." not in system
    lead.model_ref = "openai:text=x"
    await lead.run("hello")
    body = json.loads(wired.received[-1].body)
    described = {each["function"]["name"]: each["function"]["description"] for each in body["tools"]}
    assert described["implement"].startswith("Builds two.") and "Builds two: delegate to implement." in sent(wired.received[-1])[1]
    assert len(described) == 21
    await room.dispose(lead)


async def test_a_role_of_a_directory_that_is_not_trusted_changes_nothing(room, wired):
    path = room.work / ".hames/roles/implement.md"
    path.parent.mkdir(parents=True)
    path.write_text(headed("description: Mine.\ntools: [read]"))
    lead = await room.lead()
    await lead.run("hello")
    assert "Mine: delegate to implement." not in sent(wired.received[-1])[1]
    await room.dispose(lead)


async def test_a_role_that_appears_is_a_tool_of_the_next_turn_and_goes_with_its_file(room, wired):
    room.preset({"main_agent_extra": ["reviewer"]})
    lead = await room.lead()
    await lead.run("hello")
    assert set(sent(wired.received[-1])[0]) == SHOWN
    room.role("reviewer", headed("description: Reads a change.\ntools: [read]"))
    room.role("stranger", headed("description: Nobody asked.\ntools: [read]"))
    await lead.run("hello")
    names, system = sent(wired.received[-1])
    assert set(names) == SHOWN | {"reviewer"} and "- Reads a change: delegate to reviewer." in system and "stranger" not in system
    (room.work / ".hames/roles/reviewer.md").unlink()
    await lead.run("hello")
    names, system = sent(wired.received[-1])
    assert set(names) == SHOWN and "reviewer" not in system
    await room.dispose(lead)


async def test_a_file_of_a_role_takes_no_tool_of_its_name_away(room, wired, script, calling):
    room.role("bash", headed("description: Not a shell.\ntools: [read]"))
    room.role("write", headed("description: Not for files.\ntools: [read]"))
    room.preset({"main_agent_extra": ["bash", "write"]})
    lead = await room.lead(script(calling(("write", {"path": "made.txt", "content": "x"})), {"text": "done"}))
    await lead.run("go")
    assert (room.work / "made.txt").exists() and not room.results(lead)[0].is_error
    await room.dispose(lead)


async def test_an_edit_of_the_preset_makes_new_leads_different_and_leaves_living_ones(room, wired):
    room.preset({"persona_extra": "The first."})
    old = await room.lead()
    room.preset({"persona_extra": "The second.", "main_agent_remove": ["bash"], "roles_remove": ["design"]})
    new = await room.lead()
    for agent, said, gone in ((old, "The first.", set()), (new, "The second.", {"bash", "design"})):
        await agent.run("hello")
        names, system = sent(wired.received[-1])
        assert set(names) == SHOWN - gone and said in system
    await room.dispose(old, new)


async def test_a_row_of_the_workspace_dresses_its_agents_and_undresses_them_while_they_live(room, wired):
    row = {"id": "orchestrator", "use": "hames.delegation.orchestrator"}
    room.compose({"id": "todo", "set": {"disabled": False}})
    agent = await room.lead(preset="")
    assert "write" in room.seen(agent)

    async def read_again(*rows):
        room.compose(*rows)
        info = await room.host.get(WORKSPACES).reload(room.work)
        assert info.reason == ""
        await agent.run("hello")
        return sent(wired.received[-1])

    before = room.seen(agent)
    for _ in range(2):
        names, system = await read_again(row)
        assert set(names) == SHOWN and LEADS in system and "delegate to design." in system
        names, system = await read_again(
            {**row, "config": {"main_agent_extra": ["write"], "roles_remove": ["design"], "persona": "You conduct {{delegates}}."}}
        )
        assert set(names) == SHOWN - {"design"} | {"write"} and "You conduct" in system and LEADS not in system
        assert "delegate to implement." in system and "delegate to design." not in system
        names, system = await read_again()
        assert set(names) == before and LEADS not in system and "You conduct" not in system
    await room.dispose(agent)


async def test_a_child_that_works_is_not_dressed_when_the_row_comes(room, wired, script, calling):
    room.compose({"id": "todo", "set": {"disabled": False}})
    given = {"description": "x", "prompt": "x", "keep": True, "model": "openai:text=mine"}
    plain = await room.lead(script(calling(("delegate", given)), {"text": "done"}, {"text": "heard"}), preset="")
    await plain.run("go")
    await room.service.rest(plain)
    (record,) = room.records(plain)
    room.compose({"id": "orchestrator", "use": "hames.delegation.orchestrator"})
    assert (await room.host.get(WORKSPACES).reload(room.work)).reason == ""
    assert room.seen(plain) == SHOWN
    await room.service.conversations.send(record.thread, "go on", room.tasks.origin(plain))
    await room.service.rest(plain)
    names, system = sent(wired.received[-1])
    assert {"write", "edit"} <= set(names) and not set(names) & ROLES and LEADS not in system
    await room.dispose(plain)
