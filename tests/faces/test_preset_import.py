"""``hames preset import``: the settings of another lead, key by key, and what agents have of them when they are mounted."""

# pyright: basic

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hames.delegation.orchestrator import LEAD, ROLES, RoleSettings

HELPER = "roles:\n  helper:\n    persona: You help.\n    tools: [read]\n"


class Import:
    """A configuration that is taken over."""

    def __init__(self, inline: Any) -> None:
        self.inline = inline
        self.home = inline.root / "home" / "config" / "hames"
        self.file = inline.root / "dsh-paoding.config.yml"

    def write(self, text: str | bytes) -> None:
        self.file.write_bytes(text.encode() if isinstance(text, str) else text)

    def take(self, text: str | bytes, *words: str, status: int = 0) -> Any:
        self.write(text)
        return self.inline.json("preset", "import", str(self.file), *words, status=status)

    def config(self, text: str | bytes, name: str = "orchestrator") -> dict[str, Any]:
        """What the row of the lead is told."""
        files = self.take(text, "--dry-run", "--name", name)["files"]
        rows = yaml.safe_load(files[str(self.home / "presets" / f"{name}.yaml")])
        assert rows[0] == {"include": "shipped:presets/orchestrator.yaml"}
        return rows[1]["set"]["config"] if len(rows) > 1 else {}

    def notes(self, text: str) -> str:
        return "\n".join(self.take(text, "--dry-run")["notes"])

    def check(self, name: str = "orchestrator", status: int = 0) -> Any:
        return self.inline.json("preset", "check", name, status=status)

    def mounted(self, text: str | bytes, status: int = 0) -> Any:
        """What it comes to."""
        self.take(text)
        return self.check(status=status)

    def roles(self, text: str, status: int = 0) -> dict[str, Any]:
        return {role["name"]: role for role in self.mounted(text, status)["roles"]}

    def there(self) -> list[str]:
        return sorted(str(path.relative_to(self.home)) for path in self.home.rglob("*") if path.is_file())


@pytest.fixture
def take(inline: Any) -> Import:
    return Import(inline)


# as a whole


WHOLE = """
profile: web
main_agent_display_name: "Ox: the lead"
roles:
  implement:
    name: Smith
    model: gpt-5-mini
    provider: openai
    start_mode: fresh
    background_mode: continuable
    persona: |
      You forge.

      # not a comment
    tools: [read, str_replace_editor, pwsh]
  design:
    model: "openai:gpt-5"
  helper:
    name: null
    model: null
    background_mode: continuable
    persona: >-
      You help
      with all.
    tools: [read, "123"]
roles_remove: [search_external]
skills:
  drawing: [design, helper]
  broken: nothing
main_agent_extra: [web_fetch]
main_agent_remove: [read_image]
main_agent_skills: [planning]
main_agent_persona_extra: "Be brief."
"""


def test_a_whole_configuration_is_what_agents_have(take: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    done = take.take(WHOLE)
    assert done["written"] == list(done["files"]) and take.there() == ["presets/orchestrator.yaml", "roles/helper.md"]
    found = take.check()
    tools = set(found["lead"]["tools"])
    assert tools == (set(LEAD) - {"search_external", "read_image"}) | {"web_fetch", "helper"}
    roles = {role["name"]: role for role in found["roles"]}
    assert set(roles) == {"design", "implement", "search_internal_deep", "helper"}
    assert set(roles["implement"]["tools"]) == {"read", "edit", "bash"} and roles["helper"]["tools"] == ["read"]
    assert roles["helper"]["dropped"] == [{"tool": "123", "why": "it is not there"}]
    listed = {each["name"]: each for each in take.inline.json("preset", "list")["presets"]}
    assert listed["orchestrator"]["description"] == "Ox: the lead" and listed["orchestrator"]["origin"] == "user"


async def test_what_a_configuration_says_reaches_the_models(take: Import, hames: Any, stub: Any) -> None:
    text = """
roles:
  implement:
    model: "text=Done;child=1"
    provider: openai
    persona: You forge {{model}} with {{unknown}} braces.
    tools: [read]
skills: {drawing: [implement]}
main_agent_persona_extra: Be brief.
"""
    take.take(text)
    arguments = json.dumps({"description": "d", "prompt": "p"}, separators=(",", ":"))
    environment = {"OPENAI_BASE_URL": f"{stub.url}/v1", "OPENAI_API_KEY": "test-key"}
    words = ("run", "go", "--model", f"openai:steps=1;tool=implement;args={arguments}", "--preset", "orchestrator")
    await asyncio.to_thread(lambda: hames.json(*words, env=environment))
    bodies = [json.loads(each.body) for each in stub.received]
    lead = next(body for body in bodies if "child=1" not in body["model"])
    child = next(body for body in bodies if "child=1" in body["model"])
    assert "Be brief." in str(lead["messages"][0]) and "You forge" not in str(lead["messages"][0])
    assert "You forge" in str(child["messages"][0]) and "braces." in str(child["messages"][0]) and "drawing" in str(child["messages"][0])
    names = {each["function"]["name"] for each in child["tools"]}
    assert "read" in names and not names & {"write", "edit", "bash"}


@pytest.mark.parametrize(
    "text", ["{}", "profile: null", "roles: {}\nroles_remove: []\nskills: {}\nworkspaces: {}", "main_agent_extra: null"]
)
def test_a_configuration_that_says_nothing_is_the_shipped_lead(take: Import, text: str) -> None:
    shipped = take.check()
    assert take.config(text) == {} and take.mounted(text) == shipped


# keys of the lead


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", None),
        ("main_agent_extra: null", None),
        ("main_agent_extra: []", []),
        ("main_agent_extra: [web_fetch]", ["web_fetch"]),
        ("main_agent_extra:\n- web_fetch\n- 'mcp__codegraph__*'", ["web_fetch", "mcp__codegraph__*"]),
    ],
)
def test_more_tools_of_the_lead_have_three_states(take: Import, text: str, expected: list[str] | None) -> None:
    assert take.config(text).get("main_agent_extra") == expected
    extra = take.mounted(text)["lead"]["extra"]
    assert [each["tool"] for each in extra] == (["mcp:codegraph/*"] if expected is None else expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", None),
        ("main_agent_persona_extra: null", None),
        ("main_agent_persona_extra: ''", None),
        ("main_agent_persona_extra: Hi", "Hi"),
    ],
)
def test_more_of_the_persona_of_the_lead_has_three_states(take: Import, text: str, expected: str | None) -> None:
    assert take.config(text).get("persona_extra") == expected


def test_tools_that_the_lead_does_not_have_are_removed(take: Import) -> None:
    found = take.mounted("main_agent_remove: [pwsh, read_image, nowhere, web_fetch]\nmain_agent_extra: [web_fetch]")
    assert set(found["lead"]["tools"]) == set(LEAD) - {"bash", "read_image"}


def test_skills_of_the_lead_are_named_to_it(take: Import) -> None:
    said = take.config("main_agent_skills: [b, a]\nmain_agent_skills_inline: [c, a]\nmain_agent_persona_extra: Be brief.")["persona_extra"]
    assert said.startswith("Be brief.\n\n") and "a, b, c" in said
    assert "skill" in take.notes("main_agent_skills: [a]")


def test_a_name_to_show_becomes_a_description_in_one_line(take: Import) -> None:
    text = json.dumps({"main_agent_display_name": "One\n- {id: x, use: nothing.there}\nthree " + "x" * 300})
    take.take(text)
    assert take.check()["agent"]["tools"] == 21
    assert len((take.home / "presets" / "orchestrator.yaml").read_text().splitlines()) == 2


# roles


@pytest.mark.parametrize("role", ROLES)
def test_settings_of_a_role_that_is_there_become_a_difference(take: Import, role: str) -> None:
    text = f"roles:\n  {role}:\n    name: Smith\n    persona: You forge.\n    tools: [read, grep]\n    background_mode: continuable\n"
    own = {"name": "Smith", "persona": "You forge.", "background_mode": "continuable", "tools": ["read?", "grep?"]}
    assert take.config(text) == {"roles": {role: own}}
    found = take.roles(text)
    assert set(found) == set(ROLES) and set(found[role]["tools"]) == {"read", "grep"}
    assert take.there() == ["presets/orchestrator.yaml"]


@pytest.mark.parametrize("text", [HELPER, HELPER + "    name: Helper\n"])
def test_a_role_of_its_own_is_a_tool_of_the_lead(take: Import, text: str) -> None:
    found = take.mounted(text)
    assert "helper" in found["lead"]["tools"]
    assert next(role for role in found["roles"] if role["name"] == "helper")["tools"] == ["read"]
    shown = take.inline.json("roles", "show", "helper")
    assert shown["persona"] == "You help." and shown["description"] == "You help." and shown["origin"] == "user"


def test_a_managed_role_without_settings_is_as_it_comes(take: Import) -> None:
    nothing = "name: null, model: null, provider: null, start_mode: fresh, background_mode: one-shot, persona: null, tools: null"
    assert take.config("roles:\n" + "".join(f"  {role}: {{{nothing}}}\n" for role in ROLES)) == {}


@pytest.mark.parametrize("blank", ["''", "'  '", '"\\n"', "null", "~"])
def test_a_persona_that_is_blank_is_none(take: Import, blank: str) -> None:
    assert take.config(f"roles: {{implement: {{persona: {blank}}}}}") == {}


@pytest.mark.parametrize(
    ("given", "model"), [("model: gpt-5\n    provider: openai", "openai:gpt-5"), ("model: 'openai:gpt-5'", "openai:gpt-5")]
)
def test_a_model_of_a_role_is_its_model(take: Import, monkeypatch: pytest.MonkeyPatch, given: str, model: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    text = f"roles:\n  implement:\n    {given}\n"
    assert RoleSettings.model_validate(take.config(text)["roles"]["implement"]).ref == model
    assert take.roles(text)["implement"]["usable"]


def test_a_provider_alone_says_nothing(take: Import) -> None:
    text = "roles: {implement: {provider: openai}, helper: {provider: openai, persona: x, tools: [read]}}"
    notes = take.notes(text)
    assert notes.count("provider 'openai' says nothing without model") == 2
    assert "implement" not in take.config(text).get("roles", {})


@pytest.mark.parametrize("key", ["start_mode", "background_mode"])
@pytest.mark.parametrize("word", ["nonsense", "5", "true", "[fork]", "{a: b}", "Fork"])
def test_a_mode_that_is_none_becomes_the_first(take: Import, key: str, word: str) -> None:
    text = f"roles: {{implement: {{{key}: {word}}}}}"
    first = {"start_mode": "fresh", "background_mode": "one-shot"}[key]
    assert take.config(text) == {} and f"becomes {first}" in take.notes(text)
    assert take.mounted(text)["agent"]["tools"] == 21


def test_both_modes_of_a_role_are_kept_and_mount(take: Import) -> None:
    text = "roles: {implement: {start_mode: fork, background_mode: continuable, model: 'openai:x'}}"
    own = take.config(text)["roles"]["implement"]
    assert own["start_mode"] == "fork" and own["background_mode"] == "continuable"
    found = take.roles(text)["implement"]
    assert found["usable"] and any("keeps its model" in note for note in found["notes"])


def test_roles_that_are_removed_are_gone_with_all_that_is_said_of_them(take: Import) -> None:
    text = """
roles_remove: [design, design, search_internal_deep, helper, nonsense, 5]
roles:
  design: {model: x, provider: y, background_mode: continuable, start_mode: fork, persona: z, tools: [read]}
skills: {drawing: [design]}
"""
    done = take.take(text)
    notes = "\n".join(done["notes"])
    for name in ("search_internal_deep", "helper", "nonsense", "5"):
        assert f"roles_remove: {name} cannot be removed" in notes
    assert "role design is removed; what is said of it is left out" in notes
    assert take.config(text) == {"roles_remove": ["design"]}
    found = take.check()
    assert "design" not in found["lead"]["tools"] and {role["name"] for role in found["roles"]} == set(ROLES) - {"design"}


@pytest.mark.parametrize("removed", [["search_external"], ["search_external", "design", "implement"]])
def test_each_role_that_can_be_removed_is(take: Import, removed: list[str]) -> None:
    found = take.mounted(json.dumps({"roles_remove": removed}))
    assert set(found["lead"]["tools"]) == set(LEAD) - set(removed)


def test_skills_go_to_the_roles_that_use_them(take: Import) -> None:
    skills = "skills: {b: [implement, helper], a: [implement], c: nothing, d: [design]}\n"
    text = skills + "roles: {implement: {name: S}, helper: {name: H, tools: [read]}}"
    roles = take.config(text)["roles"]
    assert "a, b" in roles["implement"]["persona_extra"] and roles["helper"]["persona_extra"].endswith(": b.")


def test_skills_of_a_role_of_which_nothing_else_is_said_are_not_lost(take: Import) -> None:
    assert "drawing" in str(take.config("skills: {drawing: [implement]}"))


def test_skills_of_a_role_that_there_is_not_are_said(take: Import) -> None:
    assert "nobody" in take.notes("skills: {drawing: [nobody]}")


@pytest.mark.parametrize("name", ["bash", "read", "delegate", "send_message", "subagent", "subagent_fork", "mcp__x__y", "workflow"])
def test_a_role_with_the_name_of_a_tool_is_said_and_what_is_written_mounts(take: Import, name: str) -> None:
    text = f"roles: {{{name}: {{name: X, persona: x, tools: [read]}}}}"
    done = take.take(text)
    assert name in "\n".join(done["notes"])
    assert take.check()["agent"]["tools"] == 21


@pytest.mark.parametrize("name", ["Upper", "../x", "a b", "two\nlines", "\x1b[31m", "x" * 70, "ü"])
def test_a_role_whose_name_is_none_is_said_and_left_out(take: Import, name: str) -> None:
    text = json.dumps({"roles": {name: {"tools": ["read"], "name": "X"}}})
    done = take.take(text)
    assert "cannot be taken over" in "\n".join(done["notes"]) and take.there() == ["presets/orchestrator.yaml"]
    assert take.check()["agent"]["tools"] == 21
    said = take.inline.run("preset", "import", str(take.file), "--dry-run").stderr
    assert "\x1b" not in said and all(line.startswith("hames: ") for line in said.splitlines())


@pytest.mark.parametrize("own", ["null", "5", "[]", "words"])
def test_a_role_that_says_nothing_is_said_and_left_out(take: Import, own: str) -> None:
    assert "it says nothing" in take.notes(f"roles: {{implement: {own}}}")
    assert take.config(f"roles: {{implement: {own}}}") == {}


@pytest.mark.parametrize("key", ["name", "model", "provider"])
@pytest.mark.parametrize("value", ["x" * 121, "two\nlines", "two\r\nlines"])
def test_a_word_that_is_too_long_or_has_lines_is_said_and_what_is_written_mounts(take: Import, key: str, value: str) -> None:
    """Where it is refused instead, nothing is written."""
    take.write(json.dumps({"roles": {"implement": {key: value, **({"model": "m"} if key == "provider" else {})}}}))
    done = take.inline.run("preset", "import", str(take.file))
    if done.returncode == 0:
        assert f"{key}" in done.stderr
        assert take.inline.run("preset", "check", "orchestrator").stderr == ""
    else:
        assert done.returncode == 2 and take.there() == []


def test_a_name_of_a_role_of_more_than_sixty_characters_mounts_or_is_refused(take: Import) -> None:
    take.write(json.dumps({"roles": {"implement": {"name": "x" * 61}}}))
    if take.inline.run("preset", "import", str(take.file)).returncode == 0:
        assert take.inline.run("preset", "check", "orchestrator").returncode == 0


@pytest.mark.parametrize("key", ["name", "model", "persona"])
@pytest.mark.parametrize("value", ["5", "true", "[a]", "{a: b}", "1.10"])
def test_what_is_no_text_where_a_text_belongs_is_said_and_left_out(take: Import, key: str, value: str) -> None:
    text = f"roles: {{implement: {{{key}: {value}}}}}"
    assert take.config(text) == {} and key in take.notes(text)


NUMBERS = ["123", "1.10", "0x10", "0o17", "1e3", "007", "1_000", ".5"]
LITERALS = ["true", "True", "tRuE", "yes", "2024-01-01"]


@pytest.mark.parametrize(
    ("name", "quoted"),
    [(name, quoted) for name in (*NUMBERS, *LITERALS) for quoted in (True, False)] + [("null", True), ("~", True)],
)
def test_a_name_of_a_tool_is_the_text_that_stands_there(take: Import, name: str, quoted: bool) -> None:
    word = f'"{name}"' if quoted else name
    text = f"roles: {{implement: {{tools: [read, {word}]}}, helper: {{name: H, tools: [read, {word}]}}}}\nmain_agent_extra: [{word}]"
    config = take.config(text)
    assert config["main_agent_extra"] == [name] and config["roles"]["implement"]["tools"] == ["read?", f"{name}?"]
    take.take(text)
    assert take.inline.json("roles", "show", "helper")["tools"] == ["read?", f"{name}?"]
    assert take.check()["agent"]["tools"] == 22


@pytest.mark.parametrize("word", ["null", "~"])
def test_nothing_where_a_tool_is_to_be_named_is_no_tool(take: Import, word: str) -> None:
    assert "None" not in str(take.config(f"main_agent_extra: [{word}]\nroles: {{implement: {{tools: [read, {word}]}}}}"))


@pytest.mark.parametrize("word", ["1e3", "0o17", "tRuE", "1e5"])
@pytest.mark.parametrize("key", ["name", "model", "persona"])
def test_a_text_of_a_role_that_looks_like_something_else_is_mounted_as_text(take: Import, key: str, word: str) -> None:
    take.take(json.dumps({"roles": {"implement": {key: word}}}))
    done = take.inline.run("preset", "check", "orchestrator")
    assert "not valid" not in done.stderr and done.stdout.startswith("an agent: 21 tools"), done.stderr


def test_no_tools_at_all_are_said(take: Import) -> None:
    """Its origin refuses that; it must not become more than was said without a word."""
    assert "implement" in take.notes("roles: {implement: {tools: []}}")
    assert "helper" in take.notes("roles: {helper: {persona: x, tools: []}}")


def test_tools_of_which_none_is_there_make_a_role_that_cannot_be_used(take: Import) -> None:
    found = take.roles("roles: {implement: {tools: [nowhere, mcp__x__y]}}", status=2)
    assert not found["implement"]["usable"] and {each["tool"] for each in found["implement"]["dropped"]} == {"nowhere", "mcp__x__y"}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("|\n      You forge.\n\n      # no comment\n      --- \n      end", "You forge.\n\n# no comment\n--- \nend"),
        (">-\n      You\n      forge.", "You forge."),
        ("|2\n        Indented.\n      Less.", "  Indented.\nLess."),
        ("'It''s: # so'", "It's: # so"),
        ('"a \\"b\\" # c"', 'a "b" # c'),
        ("|\n      ---\n      name: x\n      ---\n      body", "---\nname: x\n---\nbody"),
    ],
)
def test_a_persona_of_many_lines_is_kept_as_it_is(take: Import, block: str, expected: str) -> None:
    text = f"roles:\n  helper:\n    name: H\n    tools: [read]\n    persona: {block}\n  implement:\n    persona: {block}\n"
    assert take.config(text)["roles"]["implement"]["persona"].strip() == expected.strip()
    take.take(text)
    shown = take.inline.json("roles", "show", "helper")
    assert shown["persona"].strip() == expected.strip() and shown["tools"] == ["read?"]
    assert "helper" in take.check()["lead"]["tools"]


# workspaces


def test_workspaces_with_equal_names_get_presets_of_their_own(take: Import) -> None:
    places = [take.inline.root / name / "My Repo" for name in "ab"]
    for place in places:
        place.mkdir(parents=True)
    own = [
        {"main_agent_remove": ["bash"]},
        {"main_agent_remove": ["read"], "roles": {"helper": {"persona": "x", "name": "H", "tools": ["read"]}}},
    ]
    text = json.dumps({"roles_remove": ["design"], "workspaces": dict(zip(map(str, places), own, strict=True))})
    done = take.take(text)
    slugs = ["orchestrator-my-repo", "orchestrator-my-repo-2"]
    presets = [f"presets/{name}.yaml" for name in (*slugs, "orchestrator")]
    assert set(take.there()) == {*presets, "roles/helper.md"}
    for slug, place in zip(slugs, places, strict=True):
        assert any(slug in note and str(place) in note for note in done["notes"])
        assert take.inline.run("preset", "use", slug, "--cwd", str(place)).returncode == 0
    assert "bash" not in take.check(slugs[0])["lead"]["tools"] and "design" in take.check(slugs[0])["lead"]["tools"]
    assert "read" not in take.check(slugs[1])["lead"]["tools"] and "helper" in take.check(slugs[1])["lead"]["tools"]
    assert "design" not in take.check()["lead"]["tools"]


@pytest.mark.parametrize("own", ["null", "5", "[a]"])
def test_a_workspace_that_says_nothing_is_said_and_left_out(take: Import, own: str) -> None:
    assert "says nothing that can be taken over" in take.notes(f"workspaces: {{/a: {own}, '': {{}}}}")
    assert take.notes("workspaces: {'': {}}").count("says nothing") == 1


@pytest.mark.parametrize("directory", ["/", "/ü/日本", "/a/...", "/a/" + "x" * 200, "relative", "/a/\x1b[31m", "/a/new\nline"])
@pytest.mark.parametrize("name", ["orchestrator", "x" * 60, "x" * 64])
def test_a_workspace_of_any_name_gets_a_preset_beside_the_global_one(take: Import, directory: str, name: str) -> None:
    text = json.dumps({"main_agent_remove": ["bash"], "workspaces": {directory: {"main_agent_remove": ["read"]}}})
    done = take.take(text, "--name", name)
    assert len(done["files"]) == 2
    removed = {Path(path).stem: "bash" in text for path, text in done["files"].items()}
    assert removed[name] and sum(removed.values()) == 1
    assert all(len(stem) <= 64 for stem in removed)
    listed = take.inline.json("preset", "list")["presets"]
    assert set(removed) <= {each["name"] for each in listed}
    said = take.inline.run("preset", "import", str(take.file), "--name", "other", "--dry-run")
    assert said.returncode == 0 and "\x1b" not in said.stdout + said.stderr


def test_a_role_that_is_said_differently_for_a_workspace_is_said(take: Import) -> None:
    helper = {"name": "H", "tools": ["read"]}
    text = json.dumps(
        {"roles": {"helper": {**helper, "persona": "one"}}, "workspaces": {"/a": {"roles": {"helper": {**helper, "persona": "two"}}}}}
    )
    assert "role helper is said twice" in take.notes(text)
    take.take(text)
    assert take.inline.json("roles", "show", "helper")["persona"] == "one"


# the file


@pytest.mark.parametrize("key", ["main_agent_name", "nonsense", "Roles", "main_agent_persona", "<<"])
def test_a_key_that_is_not_known_is_said_and_left_out(take: Import, key: str) -> None:
    assert take.config(f"{key}: x") == {} and f"{key} is no setting that is known" in take.notes(f"{key}: x")


def test_keys_of_a_role_that_are_not_known_are_said(take: Import) -> None:
    assert "role implement: colour is left out" in take.notes("roles: {implement: {colour: red, name: x}}")


def test_a_profile_is_said(take: Import) -> None:
    assert "profile 'cli' is left out" in take.notes("profile: cli")


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "[]", "- a\n- b", "words", "5", "null", "\ufeff"])
def test_what_is_no_mapping_is_refused(take: Import, text: str) -> None:
    assert "is no mapping" in take.take(text, status=2)["error"]["message"] and take.there() == []
    done = take.inline.run("preset", "import", str(take.file))
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "a: b\n\tc: d",
        "a: 1\na: 2",
        "a: !!python/object:os.system x",
        "{" * 3000,
        "a: &x [*x]",
        "\0",
        "? [a]\n: b",
        "a: 'x",
        b"\xff\xfea\0",
    ],
)
def test_what_is_no_sound_yaml_is_refused(take: Import, text: str | bytes) -> None:
    error = take.take(text, status=2)["error"]
    assert take.file.name in error["message"] and error["remedy"] and take.there() == []
    done = take.inline.run("preset", "import", str(take.file))
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize("change", [lambda text: "\ufeff" + text, lambda text: text.replace("\n", "\r\n"), lambda text: text + "...\n"])
def test_marks_and_ends_of_lines_change_nothing(take: Import, change: Any) -> None:
    plain = take.take(WHOLE, "--dry-run")
    assert take.take(change(WHOLE), "--dry-run") == plain


def test_bytes_that_are_no_unicode_do_not_break_it(take: Import) -> None:
    take.take(b"main_agent_persona_extra: caf\xe9\n")
    assert take.check()["agent"]["tools"] == 21


@pytest.mark.parametrize(
    "members", [{key: value} for key in ("roles", "skills", "workspaces", "roles_remove") for value in (5, "x", [5], {"a": 5})]
)
def test_a_value_of_another_kind_breaks_nothing(take: Import, members: dict[str, Any]) -> None:
    take.take(json.dumps(members))
    assert take.check()["agent"]["tools"] == 21


# writing


def test_a_dry_run_writes_nothing_and_shows_all(take: Import) -> None:
    take.write(WHOLE)
    done = take.inline.run("preset", "import", str(take.file), "--dry-run")
    assert done.returncode == 0 and done.stdout.count("would write ") == 2 and "shipped:presets/orchestrator.yaml" in done.stdout
    dry = take.take(WHOLE, "--dry-run")
    assert dry["written"] == [] and not take.home.exists()
    real = take.take(WHOLE)
    assert real["files"] == dry["files"] and {path: Path(path).read_text() for path in real["written"]} == real["files"]


def test_what_is_written_is_said_to_people(take: Import) -> None:
    take.write(HELPER + "    name: H\nnonsense: 1\n")
    done = take.inline.run("preset", "import", str(take.file), "--name", "mine")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [f"wrote {take.home / 'roles' / 'helper.md'}", f"wrote {take.home / 'presets' / 'mine.yaml'}"]
    assert "nonsense is no setting" in done.stderr and "hames preset check mine" in done.stderr and "hames preset use mine" in done.stderr


@pytest.mark.parametrize("there", ["presets/mine.yaml", "roles/helper.md", "presets/mine-b.yaml"])
def test_nothing_at_all_is_written_where_something_is_there(take: Import, there: str) -> None:
    path = take.home / there
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    text = HELPER + "    name: H\nworkspaces: {/a/b: {}}\n"
    error = take.take(text, "--name", "mine", status=2)["error"]
    assert f"{path} is there already" in error["message"] and error["remedy"]
    assert take.there() == [there] and path.read_text() == "mine"
    assert take.take(text, "--name", "mine", "--dry-run")["written"] == []


@pytest.mark.parametrize("name", ["presets/mine.yaml", "roles/helper.md"])
def test_a_link_that_leads_nowhere_is_there(take: Import, name: str) -> None:
    path = take.home / name
    path.parent.mkdir(parents=True)
    path.symlink_to(take.inline.root / "elsewhere")
    take.write(HELPER + "    name: H\n")
    done = take.inline.run("preset", "import", str(take.file), "--name", "mine")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2
    assert take.there() == [] and not (take.inline.root / "elsewhere").exists()


@pytest.mark.parametrize("place", ["presets", "roles"])
def test_nothing_is_left_where_one_of_the_files_cannot_be_written(take: Import, place: str) -> None:
    take.home.mkdir(parents=True)
    (take.home / place).write_text("a file")
    take.write(HELPER + "    name: H\n")
    done = take.inline.run("preset", "import", str(take.file), "--name", "mine")
    assert done.returncode in (1, 2) and len(done.stderr.splitlines()) == 2
    assert take.there() == [place]


def test_a_second_import_under_another_name_takes_the_same_roles(take: Import) -> None:
    """A role that is there just as it would be written is no obstacle, or the remedy that is named helps."""
    text = HELPER + "    name: H\n"
    take.take(text, "--name", "one")
    again = take.inline.run("preset", "import", str(take.file), "--name", "two")
    assert again.returncode == 0 or "--name" not in again.stderr


@pytest.mark.parametrize("name", ["../x", "a/b", "none", "", "two\nlines", "x" * 65, "\x1b[31m"])
def test_a_name_that_is_none_is_refused(take: Import, name: str) -> None:
    assert "is no name of a preset" in take.take("{}", "--name", name, status=2)["error"]["message"] and not take.home.exists()
    done = take.inline.run("preset", "import", str(take.file), "--name", name)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2 and "\x1b" not in done.stderr


def test_a_file_that_is_not_there_is_invalid_input(take: Import) -> None:
    for path in (take.file, take.inline.root):
        assert take.inline.run("preset", "import", str(path)).returncode == 2
        assert take.inline.json("preset", "import", str(path), status=2)["error"]["message"]


def test_an_import_of_what_was_written_by_an_import_changes_nothing_by_itself(take: Import) -> None:
    """What is chosen stays chosen: an import chooses nothing."""
    take.take(WHOLE)
    assert take.inline.json("preset", "list")["chosen"] == ""
