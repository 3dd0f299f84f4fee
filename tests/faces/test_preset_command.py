"""``hames preset``: what it lists, shows, checks, chooses, makes and removes, and what agents then really have."""

# pyright: basic

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hames.delegation.orchestrator import LEAD

SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    result = {}
    if asked["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "codegraph", "version": "1"}}
    elif asked["method"] == "tools/list":
        schema = {"type": "object", "properties": {"symbol": {"type": "string"}}}
        tools = ("callers", "callees")
        result = {"tools": [{"name": name, "description": "Who " + name, "inputSchema": schema} for name in tools]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
SHIPPED = '- {include: "shipped:presets/orchestrator.yaml"}\n'
BAD = ["../x", "a/b", "a b", "two\nlines", "\x1b[31m", "ü", "*", "", "x" * 65, "x" * 300]
TOKEN = 4


class Room:
    """A repository with presets, and the user's own."""

    def __init__(self, hames: Any) -> None:
        self.hames = hames
        self.own = hames.work / ".hames" / "presets"
        self.home = hames.root / "home" / "config" / "hames"
        self.user = self.home / "presets"

    def put(self, name: str, text: str = SHIPPED, *, place: Path | None = None) -> Path:
        path = (place or self.own) / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def lead(self, name: str, place: Path | None = None, **config: Any) -> Path:
        rows = [{"include": "shipped:presets/orchestrator.yaml"}, {"id": "orchestrator", "set": {"config": config}}]
        return self.put(name, json.dumps(rows), place=place)

    def trust(self) -> None:
        self.own.mkdir(parents=True, exist_ok=True)
        done = self.hames.run("trust", "grant", "--yes")
        assert done.returncode == 0, done.stderr

    def preset(self, *words: str, **more: Any) -> Any:
        return self.hames.json("preset", *words, **more)

    def listed(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self.preset("list")["presets"]}

    def record(self) -> Any:
        return json.loads((self.home / "default-presets.json").read_text())

    def tree(self) -> dict[str, bytes]:
        """Every file below the home and the work directory."""
        found = [path for root in (self.hames.work, self.home) for path in root.rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in found}


@pytest.fixture
def room(near: Any) -> Iterator[Room]:
    yield Room(near)


def refused(hames: Any, *words: str, code: str = "", **more: Any) -> str:
    """What is said where a command refuses: a line, and a line of what can be done. The same as an object with ``--json``."""
    done = hames.run("preset", *words, **more)
    assert (done.returncode, done.stdout) == (2, ""), (done.stdout, done.stderr)
    said = done.stderr.splitlines()
    assert len(said) == 2 and said[0].startswith("hames: ") and said[1].startswith("       "), done.stderr
    assert "\x1b" not in done.stderr
    if words[0] not in ("new", "remove"):
        error = hames.json("preset", *words, status=2, **more)["error"]
        assert error["message"] and error["remedy"] and (not code or error["code"] == code)
    return done.stderr


def wire(stub: Any) -> dict[str, Any]:
    """The tools of the last request, by their names."""
    body = json.loads(stub.received[-1].body)
    return {each["function"]["name"]: each["function"] for each in body["tools"]}


def tokens(tools: dict[str, Any]) -> int:
    def size(tool: Any) -> int:
        return len(tool["name"]) + len(tool["description"]) + len(json.dumps(tool["parameters"], ensure_ascii=False, separators=(",", ":")))

    return sum(map(size, tools.values())) // TOKEN


class Seer:
    """Runs the command, and looks at what its model was sent."""

    def __init__(self, hames: Any, stub: Any) -> None:
        self.hames, self.stub = hames, stub
        self.environment = {"OPENAI_BASE_URL": f"{stub.url}/v1", "OPENAI_API_KEY": "test-key"}

    async def run(self, *words: str, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        known = () if "--resume" in words else ("--model", "openai:text=Done")
        arguments = ("run", "go", *known, *words)
        done = await asyncio.to_thread(lambda: self.hames.json(*arguments, env=self.environment, **more))
        return done, wire(self.stub)


@pytest.fixture
def seer(hames: Any, stub: Any) -> Seer:
    return Seer(hames, stub)


# list


def test_presets_are_listed_with_whose_they_are_and_a_star_at_the_one_that_agents_get(room: Room) -> None:
    room.put("team", "# The team of this repository.\n" + SHIPPED)
    room.put("mine", "#    Mine, everywhere.  \n" + SHIPPED, place=room.user)
    room.trust()
    room.preset("use", "team")
    found = room.listed()
    assert {name: each["origin"] for name, each in found.items()} == {"mine": "user", "orchestrator": "shipped", "team": "workspace"}
    assert found["team"]["description"] == "The team of this repository." and found["mine"]["description"] == "Mine, everywhere."
    assert [name for name, each in found.items() if each["chosen"]] == ["team"] and room.preset("list")["chosen"] == "team"
    lines = room.hames.run("preset", "list").stdout.splitlines()
    assert [line[:2] for line in lines] == ["  ", "  ", "* "]
    assert lines[2].split()[1:3] == ["team", "workspace"] and "The team of this repository." in lines[2]


def test_a_preset_of_the_repository_comes_before_one_of_the_user_and_before_a_shipped_one(room: Room) -> None:
    room.put("orchestrator", place=room.user)
    assert room.listed()["orchestrator"]["origin"] == "user"
    own = room.put("orchestrator")
    room.trust()
    assert room.listed()["orchestrator"] == {
        "name": "orchestrator",
        "origin": "workspace",
        "path": str(own),
        "description": "",
        "chosen": False,
    }


def test_presets_of_an_untrusted_directory_do_not_count_and_that_is_said(room: Room) -> None:
    room.put("team", "# Mine.\n" + SHIPPED)
    done = room.hames.run("preset", "list")
    assert "team" not in done.stdout and "trusted" in done.stderr and "hames trust show" in done.stderr
    assert list(room.listed()) == ["orchestrator"]
    for command in ("show", "check", "use"):
        refused(room.hames, command, "team", code="PRESET_UNKNOWN")
    room.trust()
    done = room.hames.run("preset", "list")
    assert "team" in done.stdout and done.stderr == ""


@pytest.mark.parametrize("command", ["show", "check", "use"])
def test_whoever_names_a_preset_of_an_untrusted_directory_is_told_of_trust(room: Room, command: str) -> None:
    assert room.hames.run("preset", "new", "team").returncode == 0
    assert "trust" in refused(room.hames, command, "team")


def test_files_that_are_no_presets_are_not_listed(room: Room) -> None:
    for name in ("a b", "two\nlines", "\x1b[31mred", "ü", "x" * 65, "esc\u202e"):
        room.put(name, place=room.user)
    (room.user / "notes.yml").write_text("x")
    (room.user / "README.md").write_text("x")
    room.put("good", place=room.user)
    done = room.hames.run("preset", "list")
    assert list(room.listed()) == ["good", "orchestrator"] and len(done.stdout.splitlines()) == 2 and "\x1b" not in done.stdout


def test_what_has_the_name_of_a_preset_and_is_no_file_is_not_listed(room: Room) -> None:
    (room.user / "folder.yaml").mkdir(parents=True)
    (room.user / "gone.yaml").symlink_to(room.user / "nowhere")
    refused(room.hames, "show", "folder", code="PRESET_UNKNOWN")
    assert list(room.listed()) == ["orchestrator"]


def test_a_preset_without_a_description_and_one_that_is_no_text_are_listed(room: Room) -> None:
    room.put("plain", SHIPPED, place=room.user)
    (room.user / "binary.yaml").write_bytes(b"#\xff\xfe\x00\x1b[31m\x9b red\n\x00\x01" * 50)
    (room.user / "long.yaml").write_text("# " + "words " * 100_000)
    (room.user / "empty.yaml").write_bytes(b"")
    found = room.listed()
    assert found["plain"]["description"] == found["empty"]["description"] == "" and len(found["long"]["description"]) <= 400
    done = room.hames.run("preset", "list")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 5 and not set("\x00\x1b\x9b") & set(done.stdout)
    shown = room.hames.run("preset", "show", "binary")
    assert shown.returncode == 0 and not set("\x00\x1b\x9b") & set(shown.stdout)
    for command in ("show", "list"):
        assert room.preset(command, *(["binary"] if command == "show" else []))


def test_a_name_that_stands_in_no_list_of_files_forges_no_line_of_an_error(room: Room) -> None:
    room.put("x\nhames: all is well", place=room.user)
    room.put("\x1b[31mred", place=room.user)
    refused(room.hames, "show", "nobody", code="PRESET_UNKNOWN")


# show


def test_a_preset_is_shown_as_its_file_has_it(room: Room) -> None:
    text = "# Mine.\n" + SHIPPED + "# \x1b[31mred\x1b[0m\ttab\n"
    path = room.put("mine", text, place=room.user)
    shown = room.hames.run("preset", "show", "mine").stdout
    assert shown.splitlines()[0] == f"{path} (user)" and SHIPPED in shown and "\x1b" not in shown and "\ttab" in shown
    assert room.preset("show", "mine") == {"name": "mine", "origin": "user", "path": str(path), "description": "Mine.", "text": text}
    assert room.preset("show", "orchestrator")["origin"] == "shipped"


@pytest.mark.parametrize("command", ["show", "check", "use", "remove"])
@pytest.mark.parametrize("name", [*BAD, "nobody", "..", "orchestrator.yaml"])
def test_an_unknown_preset_is_refused_with_those_that_there_are(hames: Any, inline: Any, command: str, name: str) -> None:
    (hames.root / "home" / "config" / "hames" / "presets").mkdir(parents=True)
    before = sorted(hames.root.rglob("*"))
    said = refused(Within(inline), command, name, code="PRESET_UNKNOWN")
    assert "there is no preset" in said and "orchestrator" in said
    assert sorted(hames.root.rglob("*")) == before


class Within:
    """The command line of this process, with the two methods that are used here."""

    def __init__(self, inline: Any) -> None:
        self.run, self.json = inline.run, inline.json


@pytest.mark.parametrize("command", ["list", "show", "check", "use", "new", "remove"])
def test_a_directory_that_is_not_there_is_refused(inline: Any, command: str) -> None:
    names = [] if command == "list" else ["orchestrator"]
    assert "there is no directory" in refused(Within(inline), command, *names, "--cwd", "nowhere/at/all", code="DIRECTORY_UNKNOWN")


@pytest.mark.parametrize("command", ["list", "show", "check", "use", "new", "remove", "import"])
def test_every_command_has_a_help_text(inline: Any, command: str) -> None:
    assert f"  {command} " in inline.run("preset", "--help").stdout
    done = inline.run("preset", command, "--help")
    assert done.returncode == 0 and all(len(line) <= 140 for line in done.stdout.splitlines())
    options = [line for line in done.stdout.splitlines() if line.startswith("  -")]
    assert all(len(line.split("  ")) > 2 for line in options if "--help" not in line)


# check


def test_a_check_says_what_the_lead_and_each_role_get(room: Room) -> None:
    found = room.preset("check", "orchestrator")
    assert found["preset"] == "orchestrator"
    lead = found["lead"]
    assert [each["tool"] for each in lead["base"]] == list(LEAD) and all(each["kept"] for each in lead["base"])
    assert lead["extra"] == [{"tool": "mcp:codegraph/*", "kept": False, "why": "it is not there"}] and lead["removed"] == []
    assert set(lead["tools"]) == set(LEAD) and len(lead["tools"]) == 21 == found["agent"]["tools"]
    assert 0 < found["agent"]["tokens"] < found["catalogue"]["tokens"] and found["catalogue"]["tools"] > 21
    assert {role["name"] for role in found["roles"]} == {"search_external", "design", "implement", "search_internal_deep"}
    design = next(role for role in found["roles"] if role["name"] == "design")
    assert "write" not in design["tools"] and design["dropped"] == [{"tool": "web_search", "why": "it is not there"}]
    for role in found["roles"]:
        assert role["usable"] and role["tools"] and role["tokens"] > 0 and all(each["why"] for each in role["dropped"])


def test_a_check_shows_people_the_same(room: Room) -> None:
    done = room.hames.run("preset", "check", "orchestrator")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[0].startswith("an agent: 21 tools, about ") and "the whole catalogue: " in lines[0]
    assert lines[1].startswith("  base     search_external, design,") and "  without  mcp:codegraph/*: it is not there" in lines
    assert any(line.startswith("implement: ") and "tokens a request" in line for line in lines)


def test_base_with_extra_without_removed_is_what_the_lead_has(room: Room) -> None:
    room.lead("mine", room.user, main_agent_extra=["web_fetch", "todo_write", "gone"], main_agent_remove=["bash", "gone2", "web_search"])
    found = room.preset("check", "mine")
    lead = found["lead"]
    assert set(lead["tools"]) == (set(LEAD) | {"web_fetch"}) - {"bash"} and len(lead["tools"]) == found["agent"]["tools"] == 21
    assert {"tool": "gone", "kept": False, "why": "it is not there"} in lead["extra"]
    assert {"tool": "bash", "kept": False, "why": "it is removed"} in lead["base"]
    assert lead["removed"] == ["bash", "gone2", "web_search"]
    said = room.hames.run("preset", "check", "mine").stdout
    assert "  + extra  web_fetch\n" in said and "  - removed  bash\n" in said and "  without  bash: it is removed\n" in said


def test_what_stands_in_extra_and_in_remove_is_removed(room: Room) -> None:
    room.lead("mine", room.user, main_agent_extra=["web_fetch"], main_agent_remove=["web_fetch"])
    lead = room.preset("check", "mine")["lead"]
    assert "web_fetch" not in lead["tools"] and lead["extra"] == [{"tool": "web_fetch", "kept": False, "why": "it is removed"}]


def test_a_role_that_is_removed_is_no_tool_and_no_role(room: Room) -> None:
    room.lead("mine", room.user, roles_remove=["design"], roles={"design": {"persona": "x"}})
    found = room.preset("check", "mine")
    assert "design" not in found["lead"]["tools"] and "design" not in {role["name"] for role in found["roles"]}
    assert found["agent"]["tools"] == 20


def test_a_role_that_cannot_be_used_gives_status_two_and_says_why(room: Room) -> None:
    roles = {"implement": {"tools": ["read", "no_such_tool"]}, "design": {"model": "nowhere:model"}, "design2": {"persona": "x"}}
    room.lead("mine", room.user, roles=roles)
    found = room.preset("check", "mine", status=2)
    by = {role["name"]: role for role in found["roles"]}
    assert not by["implement"]["usable"] and by["implement"]["missing"] == ["no_such_tool"]
    assert not by["design"]["usable"] and "nowhere:model" in by["design"]["missing"][0]
    assert by["search_external"]["usable"]
    done = room.hames.run("preset", "check", "mine")
    assert done.returncode == 2 and "  MISSING  no_such_tool\n" in done.stdout and "CANNOT BE USED" in done.stdout
    dry = room.preset("use", "mine", "--dry-run", status=2)
    assert dry == found and not (room.home / "default-presets.json").exists()


@pytest.mark.parametrize("key", ["main_agent_extra", "tools"])
def test_a_set_that_there_is_not_is_a_mistake_that_is_said(room: Room, key: str) -> None:
    room.lead("mine", room.user, **{key: ["read", "@nosuch"]})
    done = room.hames.run("preset", "check", "mine")
    assert done.returncode == 2 and "@nosuch" in done.stdout + done.stderr


def test_no_preset_can_be_checked_as_it_can_be_chosen(room: Room) -> None:
    found = room.preset("use", "none", "--dry-run")
    assert found["preset"] == "none" and found["lead"] is None and found["roles"] == [] and found["agent"] == found["catalogue"]
    assert room.preset("check", "none") == found


@pytest.mark.parametrize("name", ["orchestrator", "mine"])
async def test_the_numbers_of_a_check_are_those_of_what_the_model_gets(room: Room, seer: Seer, name: str) -> None:
    (room.hames.root / "server.py").write_text(SERVER)
    room.lead("mine", room.user, main_agent_extra=["web_fetch", "mcp:codegraph/*"], main_agent_remove=["bash"])
    config = {"command": sys.executable, "args": [str(room.hames.root / "server.py")]}
    patch = room.hames.root / "rows.yaml"
    patch.write_text(json.dumps([{"id": "codegraph", "use": "hames.mcp.server", "config": config}]))
    found = room.preset("check", name, "--patch", str(patch))
    _, lead = await seer.run("--preset", name, "--patch", str(patch))
    _, whole = await seer.run("--preset", "none", "--patch", str(patch))
    assert set(lead) == set(found["lead"]["tools"]) and len(lead) == found["agent"]["tools"]
    assert {"mcp__codegraph__callers", "mcp__codegraph__callees"} <= set(lead)
    assert {"tool": "mcp:codegraph/*", "kept": True} in found["lead"]["extra"]
    assert abs(tokens(lead) - found["agent"]["tokens"]) <= 1
    assert tokens(lead) < tokens(whole) <= found["catalogue"]["tokens"]
    assert found["catalogue"]["tools"] >= len({*whole, *lead})
    assert ("web_fetch" in lead) == (name == "mine") and ("bash" in lead) == (name != "mine")


async def test_a_role_costs_what_a_check_says(room: Room, seer: Seer) -> None:
    """The child has its report beside that."""
    room.lead("mine", room.user, roles={"implement": {"model": "openai:text=Done;child=1"}})
    arguments = json.dumps({"description": "d", "prompt": "p"}, separators=(",", ":"))
    found = room.preset("check", "mine", env=seer.environment)
    words = ("run", "go", "--model", f"openai:steps=1;tool=implement;args={arguments}", "--preset", "mine")
    await asyncio.to_thread(lambda: room.hames.json(*words, env=seer.environment))
    bodies = [json.loads(each.body) for each in seer.stub.received]
    child = next(body for body in bodies if "child=1" in body["model"])
    seen = {each["function"]["name"]: each["function"] for each in child["tools"]}
    role = next(each for each in found["roles"] if each["name"] == "implement")
    (report,) = set(seen) - set(role["tools"])
    assert set(role["tools"]) <= set(seen)
    seen.pop(report)
    assert abs(tokens(seen) - role["tokens"]) <= 1


@pytest.mark.parametrize(
    "text",
    [
        "- {id: x, use: nothing.there}\n",
        "roles: {",
        "just words\n",
        "key: value\n",
        SHIPPED + "- {id: orchestrator, set: {config: {no_such_setting: 1}}}\n",
        SHIPPED + "- {id: orchestrator, set: {config: {roles_remove: [search_internal_deep]}}}\n",
        SHIPPED + "- {id: orchestrator, set: {config: {tools: []}}}\n",
        SHIPPED + "- {id: orchestrator, set: {config: {roles: {bash: {}}}}}\n",
        SHIPPED + "- {id: orchestrator, set: {config: {roles: {'../x': {}}}}}\n",
        "- {include: ./nowhere.yaml}\n",
        "- {include: ./mine.yaml}\n",
        "- {id: mine, use: ./nowhere.py}\n",
        "\0\0\0",
    ],
)
def test_a_preset_that_cannot_be_mounted_is_one_clear_error(room: Room, text: str) -> None:
    room.put("mine", text, place=room.user)
    done = room.hames.run("preset", "check", "mine")
    assert (done.returncode, done.stdout) == (2, ""), (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("hames: ") and len(done.stderr.splitlines()) == 2
    assert room.preset("check", "mine", status=2)["error"]["message"]


def test_servers_that_had_started_are_ended_where_a_preset_cannot_be_mounted(room: Room) -> None:
    """The fixture sees to it that nothing is left."""
    (room.hames.root / "server.py").write_text(SERVER)
    config = {"command": sys.executable, "args": [str(room.hames.root / "server.py")]}
    rows = [{"id": "codegraph", "use": "hames.mcp.server", "config": config}]
    fails = "from hames.kernel import plugin\n\n@plugin()\ndef fails(ctx, config):\n    raise ValueError('I will not')\n"
    (room.user).mkdir(parents=True)
    (room.user / "fails.py").write_text(fails)
    room.put("mine", json.dumps([*rows, {"id": "fails", "use": "./fails.py"}]), place=room.user)
    done = room.hames.run("preset", "check", "mine")
    assert done.returncode in (1, 2) and done.stdout == "" and "I will not" in done.stderr
    assert room.preset("check", "mine", status=done.returncode)["error"]["message"]


def test_a_profile_without_tools_for_a_lead_is_one_clear_error(room: Room) -> None:
    done = room.hames.run("preset", "check", "orchestrator", "--profile", "minimal")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2 and done.stdout == ""


# use


async def test_what_is_chosen_is_what_agents_of_the_directory_have(room: Room, seer: Seer) -> None:
    other = room.hames.root / "other"
    other.mkdir()
    said = room.hames.run("preset", "use", "orchestrator").stdout
    assert said == f"new agents in {room.hames.work} have preset orchestrator\n"
    _, lead = await seer.run()
    _, plain = await seer.run("--preset", "none")
    _, elsewhere = await seer.run(cwd=other)
    assert set(lead) == set(LEAD) and "delegate" in plain and not set(plain) & {"implement", "design"} and set(elsewhere) == set(plain)


async def test_a_choice_for_everywhere_gives_way_to_that_of_a_directory(room: Room, seer: Seer) -> None:
    other = room.hames.root / "other"
    other.mkdir()
    found = room.preset("use", "orchestrator", "--everywhere")
    assert found["directory"] == "" and found["preset"] == "orchestrator"
    assert room.preset("use", "none")["directory"] == str(room.hames.work)
    assert not room.listed()["orchestrator"]["chosen"]
    _, here = await seer.run()
    _, elsewhere = await seer.run(cwd=other)
    assert "delegate" in here and set(elsewhere) == set(LEAD)
    room.preset("use", "none", "--everywhere")
    _, elsewhere = await seer.run(cwd=other)
    assert "delegate" in elsewhere


async def test_a_session_keeps_its_preset_when_it_goes_on(room: Room, seer: Seer) -> None:
    room.preset("use", "orchestrator")
    led, _ = await seer.run()
    plain, _ = await seer.run("--preset", "none")
    room.preset("use", "none")
    _, again = await seer.run("--resume", led["session"])
    assert set(again) == set(LEAD)
    room.preset("use", "orchestrator")
    _, again = await seer.run("--resume", plain["session"])
    assert "delegate" in again and "implement" not in again
    _, changed = await seer.run("--resume", plain["session"], "--preset", "orchestrator")
    assert set(changed) == set(LEAD)
    _, changed = await seer.run("--resume", plain["session"])
    assert set(changed) == set(LEAD)


async def test_a_directory_that_a_link_leads_to_is_the_directory(room: Room, seer: Seer) -> None:
    link = room.hames.root / "link"
    link.symlink_to(room.hames.work, target_is_directory=True)
    assert room.preset("use", "orchestrator", "--cwd", str(link))["directory"] == str(room.hames.work)
    assert room.record() == {str(room.hames.work): "orchestrator"} and room.listed()["orchestrator"]["chosen"]
    _, lead = await seer.run(cwd=link)
    assert set(lead) == set(LEAD)


def test_a_dry_run_writes_nothing_and_says_what_agents_would_get(room: Room) -> None:
    room.put("mine", place=room.user)
    before = room.tree()
    assert room.preset("use", "mine", "--dry-run") == room.preset("check", "mine")
    assert room.preset("use", "mine", "--dry-run", "--everywhere")["preset"] == "mine"
    assert room.hames.run("preset", "use", "mine", "--dry-run").stdout == room.hames.run("preset", "check", "mine").stdout
    assert room.tree() == before and not room.listed()["mine"]["chosen"]


def test_a_preset_of_this_repository_does_not_become_that_of_all_others(room: Room) -> None:
    """It is not there for them, so nothing could run."""
    room.put("team")
    room.trust()
    other = room.hames.root / "other"
    other.mkdir()
    room.hames.run("preset", "use", "team", "--everywhere")
    done = room.hames.run("run", "go", "--model", room.hames.script({"text": "Done."}), cwd=other)
    assert done.returncode == 0, done.stderr


def test_two_that_choose_at_once_leave_a_sound_file(room: Room) -> None:
    places = [room.hames.root / f"place{n}" for n in range(6)]
    for place in places:
        place.mkdir()
    started = [room.hames.start("preset", "use", "orchestrator", "--cwd", str(place)) for place in places]
    for each in started:
        _, errors = each.communicate(timeout=30)
        assert each.returncode == 0 and errors == ""
    record = room.record()
    assert record and set(record) <= {str(place) for place in places} and set(record.values()) == {"orchestrator"}
    assert [path.name for path in room.home.iterdir()] == ["default-presets.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"*": 5}', '{"*": ["x"]}', "\0", '{"*": "../../x"}'])
def test_a_damaged_record_of_choices_stops_no_command_of_presets(room: Room, text: str) -> None:
    room.home.mkdir(parents=True)
    (room.home / "default-presets.json").write_text(text)
    assert "orchestrator" in room.listed()
    room.preset("use", "orchestrator")
    assert room.listed()["orchestrator"]["chosen"]


def test_a_chosen_preset_that_has_gone_is_an_error_with_a_remedy(room: Room) -> None:
    path = room.put("mine", place=room.user)
    room.preset("use", "mine")
    path.unlink()
    done = room.hames.run("run", "go", "--model", room.hames.script({"text": "Done."}))
    assert done.returncode == 2 and "there is no preset 'mine'" in done.stderr and "'none'" in done.stderr
    assert room.hames.run("run", "go", "--model", room.hames.script({"text": "Done."}), "--preset", "none").returncode == 0
    assert room.preset("use", "none")["preset"] == "none"


@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null", "/dev/null/x"])
@pytest.mark.parametrize("words", [("use", "orchestrator"), ("new", "mine", "--user")])
def test_a_home_that_cannot_be_written_is_one_clear_error(room: Room, home: str, words: tuple[str, ...]) -> None:
    done = room.hames.run("preset", *words, env={"HAMES_HOME": home})
    assert done.returncode in (1, 2) and done.stdout == ""
    assert len(done.stderr.splitlines()) == 2 and done.stderr.startswith("hames: ") and home.split("/")[1] in done.stderr


@pytest.mark.parametrize("command", ["list", "show"])
def test_a_home_that_is_none_hides_no_shipped_preset(room: Room, command: str) -> None:
    words = () if command == "list" else ("orchestrator",)
    assert room.hames.json("preset", command, *words, env={"HAMES_HOME": "/dev/null/x"})


@pytest.mark.parametrize("command", ["list", "show", "use", "remove"])
def test_the_name_of_a_directory_does_not_steer_the_terminal(room: Room, command: str) -> None:
    odd = room.hames.root / "\x1b[31mred"
    (odd / ".hames" / "presets").mkdir(parents=True)
    (odd / ".hames" / "presets" / "mine.yaml").write_text(SHIPPED)
    assert room.hames.run("trust", "grant", "--yes", str(odd)).returncode == 0
    words = () if command == "list" else ("mine",)
    done = room.hames.run("preset", command, *words, "--cwd", str(odd))
    assert done.returncode == 0 and "\x1b" not in done.stdout + done.stderr


# new


def numbers(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "preset"}


@pytest.mark.parametrize("user", [False, True])
def test_a_new_preset_holds_a_difference_and_equals_the_one_that_it_changes(room: Room, user: bool) -> None:
    done = room.hames.run("preset", "new", "team", *(["--user"] if user else []))
    path = (room.user if user else room.own) / "team.yaml"
    assert done.returncode == 0 and Path(done.stdout.strip()) == path
    rows = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert rows == ["- {include: shipped:presets/orchestrator.yaml}"]
    room.trust()
    assert numbers(room.preset("check", "team")) == numbers(room.preset("check", "orchestrator"))
    assert room.listed()["team"]["description"] == "team: like orchestrator, with these differences."


def test_what_a_new_preset_suggests_can_be_taken_out_of_its_comment(room: Room) -> None:
    assert room.hames.run("preset", "new", "team", "--user").returncode == 0
    (room.home / "roles").mkdir()
    (room.home / "roles" / "implement_cont.md").write_text("---\ntools: [read]\n---\nYou implement.\n")
    path = room.user / "team.yaml"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], *(line.removeprefix("# ") for line in lines[3:])]) + "\n")
    found = room.preset("check", "team", env={"ANTHROPIC_API_KEY": "x"})
    assert "implement_cont" in found["lead"]["tools"] and "design" not in found["lead"]["tools"]
    assert all(role["usable"] for role in found["roles"])


def test_a_new_preset_changes_another_one_of_the_repository(room: Room) -> None:
    room.lead("base", main_agent_remove=["bash"])
    room.trust()
    assert room.hames.run("preset", "new", "team", "--from", "base").returncode == 0
    room.trust()
    assert "- {include: ./base.yaml}" in (room.own / "team.yaml").read_text()
    assert numbers(room.preset("check", "team")) == numbers(room.preset("check", "base"))


def test_a_new_preset_of_the_user_changes_another_one_of_the_user(room: Room) -> None:
    room.lead("base", room.user, main_agent_remove=["bash"])
    assert room.hames.run("preset", "new", "mine", "--from", "base", "--user").returncode == 0
    assert "- {include: ./base.yaml}" in (room.user / "mine.yaml").read_text()
    assert "bash" not in room.preset("check", "mine")["lead"]["tools"]


@pytest.mark.parametrize("user", [False, True])
def test_a_new_preset_of_a_shipped_name_changes_the_shipped_one(room: Room, user: bool) -> None:
    shipped = room.preset("check", "orchestrator")
    assert room.hames.run("preset", "new", "orchestrator", *(["--user"] if user else [])).returncode == 0
    room.trust()
    assert room.listed()["orchestrator"]["origin"] == ("user" if user else "workspace")
    assert room.preset("check", "orchestrator") == shipped
    again = refused(room.hames, "new", "orchestrator", *(["--user"] if user else []))
    assert "is there already" in again


def test_a_repository_cannot_take_in_what_is_the_users(room: Room) -> None:
    room.put("mine", place=room.user)
    assert "is yours" in refused(room.hames, "new", "team", "--from", "mine") and not room.own.exists()


def test_a_preset_that_changes_itself_or_nothing_is_refused(room: Room) -> None:
    for words in (("team", "--from", "team"), ("team", "--from", "nobody"), ("team", "--from", "../x"), ("team", "--from", "none")):
        assert "there is no preset" in refused(room.hames, "new", *words)
    assert not room.own.exists()


def test_a_preset_that_is_there_is_never_written_over(room: Room) -> None:
    path = room.put("team", "mine")
    assert "is there already" in refused(room.hames, "new", "team") and path.read_text() == "mine"
    (room.own / "link.yaml").symlink_to(room.hames.root / "elsewhere")
    assert "is there already" in refused(room.hames, "new", "link") and not (room.hames.root / "elsewhere").exists()


@pytest.mark.parametrize("name", [*BAD, "none"])
@pytest.mark.parametrize("user", [False, True])
def test_a_name_that_is_none_makes_no_file(hames: Any, inline: Any, name: str, user: bool) -> None:
    before = sorted(hames.root.rglob("*"))
    assert "is no name of a preset" in refused(Within(inline), "new", name, *(["--user"] if user else []))
    assert sorted(hames.root.rglob("*")) == before


@pytest.mark.parametrize("name", [".", "..", "-", "a.yaml", ".hidden"])
def test_an_odd_name_that_is_one_works_from_its_making_to_its_end(room: Room, name: str) -> None:
    assert room.hames.run("preset", "new", "--user", "--", name).returncode == 0
    assert [path.parent for path in room.user.rglob("*.yaml")] == [room.user]
    assert room.listed()[name]["origin"] == "user" and "agent: 21 tools" in room.hames.run("preset", "check", "--", name).stdout
    assert room.hames.run("preset", "remove", "--", name).returncode == 0
    assert list(room.user.iterdir()) == []


# remove


def test_a_preset_of_ones_own_is_removed_and_a_shipped_one_is_not(room: Room) -> None:
    path = room.put("mine", place=room.user)
    assert room.hames.run("preset", "remove", "mine").stdout == f"removed {path}\n" and not path.exists()
    assert "comes with Hames" in refused(room.hames, "remove", "orchestrator")
    assert room.preset("show", "orchestrator")["origin"] == "shipped"


def test_the_nearest_of_several_is_removed_first(room: Room) -> None:
    own, users = room.put("orchestrator"), room.put("orchestrator", place=room.user)
    room.trust()
    room.preset("use", "orchestrator")
    for path in (own, users):
        done = room.hames.run("preset", "remove", "orchestrator")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"removed {path}\n", "") and not path.exists()
    assert room.listed()["orchestrator"]["chosen"]
    refused(room.hames, "remove", "orchestrator")


@pytest.mark.parametrize("choices", [[()], [("--everywhere",)], [(), ("--everywhere",)]])
def test_a_chosen_preset_that_is_removed_is_chosen_no_more(room: Room, choices: list[tuple[str, ...]]) -> None:
    room.put("mine", place=room.user)
    for words in choices:
        room.preset("use", "mine", *words)
    done = room.hames.run("preset", "remove", "mine")
    assert done.returncode == 0 and "no preset now" in done.stderr and room.preset("list")["chosen"] == ""
    assert room.hames.run("run", "go", "--model", room.hames.script({"text": "Done."})).returncode == 0


def test_a_removed_preset_is_chosen_in_no_other_directory_either(room: Room) -> None:
    other = room.hames.root / "other"
    other.mkdir()
    room.put("mine", place=room.user)
    room.preset("use", "mine", "--cwd", str(other))
    assert room.hames.run("preset", "remove", "mine").returncode == 0
    assert room.preset("list", "--cwd", str(other))["chosen"] == ""


def test_a_preset_of_an_untrusted_directory_can_be_removed(room: Room) -> None:
    path = room.put("team")
    assert room.hames.run("preset", "remove", "team").returncode == 0 and not path.exists()


def test_nothing_outside_of_the_places_of_presets_is_removed(room: Room) -> None:
    outside = room.put("victim", place=room.home)
    room.user.mkdir(parents=True)
    for name in ("../victim", "./../victim", str(outside.with_suffix("")), "presets/../../victim"):
        refused(room.hames, "remove", name)
    target = room.put("target", place=room.hames.root)
    (room.user / "link.yaml").symlink_to(target)
    assert room.hames.run("preset", "remove", "link").returncode == 0 and outside.exists() and target.exists()
    assert not os.path.lexists(room.user / "link.yaml")
