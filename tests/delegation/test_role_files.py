"""Fifty role files as people write them, each with the tools that it comes to. The table was written by hand from the rules."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hames.budget import Limits
from hames.delegation.role import Origin, Role
from hames.delegation.roles import Resolved, found, of, resolved
from hames.kernel import Context, Host, Mask, Scope, plugin
from hames.tools import TOOLS, Tool, Tools
from hames.tools.plugin import tools as tools_plugin

FILES = Path(__file__).parent / "role_files"
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((FILES / "expected.yaml").read_text(encoding="utf-8"))
ORIGINS: dict[str, Origin] = {"claude": "claude", "own": "workspace"}
PLACES = {"claude": ".claude/agents", "own": ".hames/roles"}
CATALOGUE = (
    *("read", "read_image", "glob", "grep", "recall", "write", "edit", "bash", "job_output", "job_list", "job_kill"),
    *("web_search", "web_fetch", "todo_write", "create_goal", "get_goal", "update_goal", "skill", "ask_user_question"),
    *("exit_plan_mode", "delegate", "mcp_resources", "mcp_read"),
    *("mcp__github__create_issue", "mcp__github__list_issues", "mcp__tavily__tavily_search"),
)
REASONS = {
    "limit": "a limit on arguments is no tool; say it as a rule of the row policy",
    "unknown": "there is no such tool here",
    "absent": "it is not there",
}
NAMES = sorted(EXPECTED)
USABLE = [name for name in NAMES if "problem" not in EXPECTED[name]]
UNUSABLE = [name for name in NAMES if "problem" in EXPECTED[name]]


# what the files are


def present() -> list[str]:
    return sorted(path.relative_to(FILES).as_posix() for path in FILES.glob("*/*.md"))


def form_of_tools(head: str) -> str:
    """How the value of ``tools`` is written."""
    line = re.search(r"^tools:(.*)$", head, re.MULTILINE)
    if line is None:
        return "absent"
    value = line.group(1).strip()
    if value == "":
        below = head[line.end() :].lstrip("\r\n").partition("\n")[0]
        forms = {"- ": "flush block", "  - ": "block", "\t- ": "tab block"}
        return next((form for start, form in forms.items() if below.startswith(start)), "mapping" if below.startswith(" ") else "empty")
    if value[0] in "[>*":
        kind = {"[": "flow", ">": "folded", "*": "star"}[value[0]]
        return f"{kind} quoted" if "'" in value or '"' in value else kind
    return ("quoted " if value[0] in "\"'" else "") + ("wrapped" if value.endswith(",") else "commas" if "," in value else "word")


def form_of_description(head: str) -> str:
    """How the value of ``description`` is written."""
    line = re.search(r"^description:[ \t]*(.*?)\r?$", head, re.MULTILINE)
    if line is None:
        return "absent"
    value, below = line.group(1), head[line.end() :].lstrip("\r\n")
    kind = {">": "folded", "|": "literal", '"': "double", "'": "single", "[": "bracket"}.get(value[:1], "plain")
    marks = [mark for mark, there in {"colon": ": " in value, "escape": "\\n" in value, "wrapped": below.startswith("  ")}.items() if there]
    return " ".join([kind, *marks, *(["example"] if "<example>" in head else []), *(["long"] if len(head) > 2000 else [])])


def fingerprint(path: Path) -> tuple[object, ...]:
    """The structure of a file without its words, told from its bytes and by no reader of the product."""
    data = path.read_bytes()
    text = data.decode("utf-8-sig")
    parts = re.split(r"^---[ \t]*\r?$", text, maxsplit=2, flags=re.MULTILINE)
    head, body = (parts[1], parts[2]) if len(parts) == 3 else ("", text)
    features = {
        "empty": not body.strip(),
        "rule": re.search(r"^---\s*$", body, re.MULTILINE) is not None,
        "heading": re.search(r"^#", body, re.MULTILINE) is not None,
        "list": re.search(r"^(?:-|\d\.) ", body, re.MULTILINE) is not None,
        "braces": "{{" in body,
        "beyond ASCII": not body.isascii(),
    }
    return (
        path.parent.name,
        len(parts),
        frozenset(re.findall(r"^([A-Za-z_-]+):", head, re.MULTILINE)),
        form_of_tools(head),
        form_of_description(head),
        "#" in head,
        "crlf" if b"\r\n" in data else "lf",
        data.startswith(b"\xef\xbb\xbf"),
        frozenset(name for name, there in features.items() if there),
    )


def test_there_are_fifty_files_and_each_has_its_line_in_the_table():
    assert len(present()) == 50 and present() == NAMES


def test_more_than_half_of_the_files_differ_in_structure():
    assert len({fingerprint(FILES / name) for name in present()}) >= 25


def test_the_forms_that_people_use_are_all_among_the_files():
    heads = [(FILES / name).read_bytes().decode("utf-8-sig") for name in present()]
    forms = {form_of_tools(head) for head in heads}
    assert forms >= {"absent", "empty", "commas", "wrapped", "folded", "flow", "flow quoted", "block", "flush block", "tab block", "star"}
    assert {fingerprint(FILES / name)[6:8] for name in present()} == {("lf", False), ("crlf", False), ("lf", True)}


# what each comes to


@pytest.fixture(scope="module")
def read() -> dict[str, Role]:
    """All files, read as a directory is read."""
    return {f"{place}/{role.path.name}": role for place, origin in ORIGINS.items() for role in of(FILES / place, origin, FILES)}


@plugin(needs=(TOOLS,))
def catalogue(ctx: Context, config: None) -> None:
    """Offer the tools that the table speaks of."""
    for name in CATALOGUE:
        ctx.use(TOOLS).register(ctx, Tool(name, "A tool.", {"type": "object"}, lambda: "", frozenset({"read"})))


@pytest.fixture
async def scope() -> AsyncGenerator[Scope]:
    """The scope of a child in a host that has the catalogue."""
    async with Host() as host:
        host.mount(tools_plugin)
        await host.mount(catalogue).ready()
        yield host.scope(key="child")


def held(gets: Resolved, tools: Tools, scope: Scope) -> list[str] | str:
    """The tools that a child sees who is sealed as a role says; a word where it is not sealed, or has none on purpose."""
    if gets.kept is None or gets.kept == ("none",):
        return "all" if gets.kept is None else "none"
    if gets.kept:
        tools.registry.seal(scope.host.ctx.at(scope), Mask(frozenset(gets.kept)))
    return sorted(tools.registry.view(scope)) if gets.kept else []


def listed(value: list[str] | str) -> list[str] | str:
    return sorted(CATALOGUE) if value == "every" else sorted(value) if isinstance(value, list) else value


def short(text: str, wanted: str) -> str:
    """A text as the table has it: whole, or what the table says of it where it begins and ends so."""
    begin, between, end = wanted.partition("…")
    return wanted if between and text.startswith(begin) and text.endswith(end) and len(text) >= len(begin + end) else text


def keys_in(notes: tuple[str, ...]) -> list[str]:
    return [key for note in notes for key in note.removeprefix("not followed: ").split(", ")]


def row(role: Role, tools: Tools, scope: Scope, wanted: dict[str, Any]) -> dict[str, Any]:
    """What a file comes to, as the table has it."""
    gets = resolved(role.tools, tools, scope)
    members = {
        "name": role.name,
        "origin": role.origin,
        "problem": role.problem,
        "tools": held(gets, tools, scope),
        "dropped": dict(gets.dropped),
        "missing": list(gets.missing),
        "unfollowed": keys_in(role.notes),
        "model": role.model,
        "effort": role.effort,
        "permission": role.permission,
        "runner": role.runner,
        "assurance": role.assurance,
        "budget": {key: getattr(role.budget, key) for key in Limits.__slots__ if getattr(role.budget, key) is not None},
        "description": short(role.description, wanted.get("description", "")),
        "persona": short(role.persona, wanted.get("persona", "")),
    }
    return {key: value for key, value in members.items() if value not in ("", [], {}) or key == "tools"}


@pytest.mark.parametrize("name", USABLE)
async def test_a_file_comes_to_what_the_table_says(name: str, read: dict[str, Role], scope: Scope):
    wanted, tools = EXPECTED[name], scope.host.get(TOOLS)
    assert tools is not None
    dropped = {word: REASONS[why] for word, why in wanted.get("dropped", {}).items()}
    spelled = {"assurance": "enforced", **wanted, "tools": listed(wanted["tools"]), **({"dropped": dropped} if dropped else {})}
    assert row(read[name], tools, scope, wanted) == spelled


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_file_that_cannot_be_used_says_all_that_is_wrong(name: str, read: dict[str, Role]):
    wanted, role = EXPECTED[name], read[name]
    assert (role.name, role.origin) == (wanted["name"], wanted["origin"])
    assert not [part for part in wanted["problem"] if part not in role.problem], role.problem


# together


def test_no_file_hides_another(read: dict[str, Role]):
    assert sorted(read) == present()
    assert len({(role.origin, role.name) for role in read.values()}) == 50


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_read_alone_as_among_the_others(name: str, read: dict[str, Role], tmp_path: Path):
    shutil.copy(FILES / name, tmp_path)
    (alone,) = of(tmp_path, ORIGINS[Path(name).parent.name], tmp_path)
    assert alone == replace(read[name], path=alone.path)


def test_a_repository_has_all_fifty_roles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: dict[str, Role]):
    monkeypatch.setenv("HAMES_HOME", str(tmp_path / "home"))
    for place, path in PLACES.items():
        shutil.copytree(FILES / place, tmp_path / "work" / path)
    roles = [role for every in found(tmp_path / "work", project=True).values() for role in every]
    assert sorted((role.origin, role.path.name, role.digest) for role in roles) == sorted(
        (role.origin, role.path.name, role.digest) for role in read.values()
    )
