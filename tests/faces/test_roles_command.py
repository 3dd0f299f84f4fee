"""``hames roles``: what it lists, shows, checks and makes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    result = {}
    if asked["method"] == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "docs", "version": "1"}}
    elif asked["method"] == "tools/list":
        result = {"tools": [{"name": "search", "description": "Search.", "inputSchema": {"type": "object"}}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def put(place: Path, name: str, lines: str, body: str = "You are somebody.") -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.md").write_text(f"---\n{lines}\n---\n{body}\n")


def roles(hames: Any, *words: str) -> dict[str, Any]:
    done = hames.run("roles", *words, "--json")
    return {**json.loads(done.stdout), "status": done.returncode}


def own(hames: Any) -> list[dict[str, Any]]:
    """The roles that somebody has written."""
    return [each for each in roles(hames, "list")["roles"] if each["origin"] != "shipped"]


@pytest.fixture
def place(hames: Any) -> Path:
    """A trusted repository."""
    (hames.work / ".hames").mkdir()
    assert hames.run("trust", "grant", "--yes").returncode == 0
    return hames.work / ".hames" / "roles"


def test_a_new_role_can_be_used_as_it_is(hames: Any, place: Path) -> None:
    done = hames.run("roles", "new", "reviewer")
    assert done.returncode == 0 and Path(done.stdout.strip()) == place / "reviewer.md"
    (found,) = roles(hames, "check", "reviewer")["roles"]
    assert found["usable"] and set(found["tools"]) >= {"read", "grep"} and found["tokens"] > 0 and found["missing"] == []
    again = hames.run("roles", "new", "reviewer")
    assert again.returncode == 2 and "is there already" in again.stderr


def test_a_role_for_the_user_counts_everywhere(hames: Any) -> None:
    done = hames.run("roles", "new", "helper", "--user")
    assert done.returncode == 0
    assert [(each["name"], each["origin"]) for each in own(hames)] == [("helper", "user")]


@pytest.mark.parametrize("name", ["", "A", "../x", "a b", "x" * 65])
def test_a_name_that_is_none_makes_no_file(hames: Any, name: str) -> None:
    done = hames.run("roles", "new", name)
    assert done.returncode == 2 and "no name of a role" in done.stderr and not (hames.work / ".hames").exists()


def test_roles_are_listed_with_where_they_are_from_and_what_is_wrong(hames: Any, place: Path) -> None:
    put(place, "good", "description: Does it well.")
    put(place, "bad", "tools: []")
    put(hames.work / ".claude" / "agents", "good", "name: good")
    listed = [line for line in hames.run("roles", "list").stdout.splitlines() if " shipped " not in line]
    assert listed[0].startswith("bad") and "CANNOT BE USED: tools is empty" in listed[0]
    assert listed[1].split()[:2] == ["good", "workspace"] and "Does it well." in listed[1] and "before claude" in listed[1]


def test_a_repository_that_is_not_trusted_has_no_roles_and_says_so(hames: Any) -> None:
    put(hames.work / ".hames" / "roles", "good", "description: x")
    done = hames.run("roles", "list")
    assert "good" not in done.stdout and "until it is trusted" in done.stderr
    assert own(hames) == [] and roles(hames, "list")["trusted"] is False


def test_a_role_is_shown_as_its_file_has_it(hames: Any, place: Path) -> None:
    put(place, "good", "description: x\ntools: [read, 'bash?']\npermission: read-only", "You are \x1b[31mred\x1b[0m.")
    shown = hames.run("roles", "show", "good").stdout
    assert "read-only" in shown and '["read", "bash?"]' in shown and "\x1b" not in shown
    assert roles(hames, "show", "good")["persona"] == "You are \x1b[31mred\x1b[0m."
    missing = hames.run("roles", "show", "nobody")
    assert missing.returncode == 2 and "there is no role 'nobody'" in missing.stderr and "design, good, implement" in missing.stderr


def test_a_check_says_what_each_role_gets_and_why_not_more(hames: Any, place: Path, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    layer = tmp_path / "rows.yaml"
    config = {"command": sys.executable, "args": [str(tmp_path / "server.py")]}
    layer.write_text(json.dumps([{"id": "docs", "use": "hames.mcp.server", "config": config}]))
    put(place, "reader", "tools: [read, 'mcp:docs/*', 'mcp:other/*?', 'gone?']")
    put(place, "worker", "tools: [read, gone]")
    done = roles(hames, "check", "--patch", str(layer))
    assert done["status"] == 2
    reader, worker = done["roles"]
    assert reader["usable"] and set(reader["tools"]) == {"read", "mcp__docs__search"}
    assert [each["tool"] for each in reader["dropped"]] == ["mcp__other__*", "gone"]
    assert not worker["usable"] and worker["missing"] == ["gone"]
    said = hames.run("roles", "check", "reader", "--patch", str(layer))
    assert said.returncode == 0 and "without  gone: it is not there" in said.stdout and "tokens a request" in said.stdout


def test_a_run_gives_work_to_a_role(hames: Any, place: Path) -> None:
    put(place, "reader", "description: Reads.\ntools: [read]", "You read.")
    child = hames.script({"text": "Read."}, name="child.json")
    call = {"name": "delegate", "arguments": {"description": "read it", "prompt": "read", "role": "reader", "model": child}}
    model = hames.script({"text": "I ask.", "calls": [call]}, {"text": "Done."})
    done = hames.run("run", "go", "--model", model)
    assert done.returncode == 0, done.stderr
    tasks = json.loads(hames.run("task", "list", "--json").stdout)["tasks"]
    assert [(each["status"], each["spec"]["role"], each["spec"]["tools"]) for each in tasks] == [("completed", "reader", ["read"])]


def test_what_a_file_says_does_not_steer_the_terminal(hames: Any, place: Path) -> None:
    put(place, "odd", '"\\e]0;owned\\a": 1')
    for words in (("check", "odd"), ("list",), ("show", "odd")):
        done = hames.run("roles", *words)
        assert "owned" in done.stdout + done.stderr and not set("\x1b\x07") & set(done.stdout + done.stderr)


def test_what_a_tool_that_is_required_does_not_bring_is_missing(hames: Any, place: Path, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    layer = tmp_path / "rows.yaml"
    config = {"command": sys.executable, "args": [str(tmp_path / "server.py")]}
    layer.write_text(json.dumps([{"id": "docs", "use": "hames.mcp.server", "config": config}]))
    put(place, "reader", "tools: [read, 'mcp:docs/no_such_tool']")
    (found,) = roles(hames, "check", "--patch", str(layer))["roles"]
    assert not found["usable"] and found["missing"] == ["mcp:docs/no_such_tool"]
