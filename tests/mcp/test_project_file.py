"""The servers of a repository's ``.mcp.json``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from hames.content.errors import ConfigError
from hames.mcp.project import project_servers

WITNESS = "import sys; open(sys.argv[1], 'w').close()"


@pytest.fixture
def clone(tmp_path):
    root = (tmp_path / "clone").resolve()
    root.mkdir()
    return root


@pytest.fixture
def load(clone):
    """The servers of a file that has these, or this text."""

    def read(servers, **environment):
        text = servers if isinstance(servers, str | bytes) else json.dumps({"mcpServers": servers})
        (clone / ".mcp.json").write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        return project_servers(clone, environment)

    return read


def complaint(load, servers, **environment):
    with pytest.raises(ConfigError) as caught:
        load(servers, **environment)
    assert caught.value.remedy
    return caught.value.message


def test_a_directory_without_the_file_has_no_servers(clone):
    assert project_servers(clone, {}) == {}


@pytest.mark.parametrize("text", ["{}", '{"mcpServers": {}}', '{"mcpServers": {}, "other": [1]}'])
def test_a_file_without_servers_has_none(load, text):
    assert load(text) == {}


def test_a_program_runs_in_the_directory_of_the_file(load, clone):
    found = load({"time": {"command": "srv", "args": ["-v", "x y"], "env": {"A": "b"}}})
    assert list(found) == ["time"]
    config = found["time"]
    assert (config.server, config.command, config.args, config.env, config.cwd) == ("time", "srv", ["-v", "x y"], {"A": "b"}, str(clone))


def test_an_address_has_headers(load):
    config = load({"far": {"type": "http", "url": "https://x/mcp", "headers": {"Authorization": "Bearer ${T}"}}}, T="t")["far"]
    assert (config.url, config.headers, config.cwd, config.command) == ("https://x/mcp", {"Authorization": "Bearer t"}, "", "")


@pytest.mark.parametrize(
    ("server", "program"),
    [
        ({"command": "a"}, True),
        ({"type": "stdio", "command": "a"}, True),
        ({"url": "http://a"}, False),
        ({"type": "http", "url": "http://a"}, False),
        ({"type": "streamable-http", "url": "http://a"}, False),
    ],
    ids=str,
)
def test_forms_of_a_server(load, server, program):
    assert bool(load({"a": server})["a"].command) is program


def test_what_other_programs_know_beside_it_is_passed_over(load):
    found = load({"a": {"command": "a", "disabled": False, "autoApprove": ["*"], "timeout": 5}})
    assert found["a"].command == "a"


@pytest.mark.parametrize(
    "more",
    [
        {"capabilities": ["read"]},
        {"read": ["*"]},
        {"server": "other"},
        {"cwd": "/"},
        {"required": True},
        {"without": ["x"]},
        {"oauth": True},
    ],
    ids=str,
)
def test_a_repository_does_not_say_what_its_servers_may_do(load, clone, more):
    config = load({"a": {"command": "a", **more}})["a"]
    assert config == load({"a": {"command": "a"}})["a"]
    assert (config.capabilities, config.read, config.server, config.cwd) == (["read", "write", "network"], [], "a", str(clone))


# variables


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("${A}", "one"),
        ("x${A}y${A}", "xoneyone"),
        ("${A:-two}", "one"),
        ("${B:-two}", "two"),
        ("${B:-}", ""),
        ("${B:-a:b-c}", "a:b-c"),
        ("${B:-${A}}", "${A}"),
        ("$A", "$A"),
        ("${}", "${}"),
        ("${1A}", "${1A}"),
        ("${A", "${A"),
        ("${EMPTY}", ""),
        ("${NESTED}", "${A}"),
        ("$(A)", "$(A)"),
        ("`A`", "`A`"),
    ],
)
def test_variables_stand_for_the_environment_once(load, text, filled):
    if text == "${B:-${A}}":
        filled = "${A}"  # the first brace ends it; what is left is plain text
    environment = {"A": "one", "EMPTY": "", "NESTED": "${A}"}
    config = load({"a": {"command": "c", "args": [text], "env": {"E": text}}}, **environment)["a"]
    assert config.args == [filled] and config.env == {"E": filled}


def test_variables_are_filled_in_everywhere(load):
    servers = {"a": {"command": "${C}/bin", "args": ["${C}"]}, "b": {"url": "${U:-http://x}/mcp", "headers": {"H": "${C}"}}}
    found = load(servers, C="c")
    assert (found["a"].command, found["b"].url, found["b"].headers) == ("c/bin", "http://x/mcp", {"H": "c"})


def test_missing_variables_are_named_with_their_server_all_at_once(load):
    said = complaint(load, {"a": {"command": "${B}", "args": ["${A}", "${B}"]}, "b": {"url": "http://x", "headers": {"H": "${C}"}}})
    assert said.splitlines() == [".mcp.json: 'a' needs A, B in the environment", ".mcp.json: 'b' needs C in the environment"]


def test_values_of_the_environment_are_in_no_complaint(load):
    said = complaint(
        load, {"a": {"command": "c", "url": "${SECRET}"}, "b": {"url": "${SECRET}"}, "c": {"args": "${SECRET}"}}, SECRET="canary"
    )
    assert "canary" not in said and len(said.splitlines()) >= 3


# mistakes


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({}, "exactly one of command and url"),
        ("text", "exactly one of command and url"),
        (None, "exactly one of command and url"),
        ({"command": "a", "url": "http://x"}, "exactly one of command and url"),
        ({"type": "sse", "url": "http://x"}, "'sse'"),
        ({"type": "websocket", "url": "ws://x"}, "'websocket'"),
        ({"type": 5, "command": "a"}, "'5'"),
        ({"type": ["http"], "url": "http://x"}, "http"),
        ({"type": "http", "command": "a"}, "http"),
        ({"type": "stdio", "url": "http://x"}, "stdio"),
        ({"url": "file:///etc/passwd"}, "http"),
        ({"command": "a", "args": "b"}, "args"),
        ({"command": "a", "args": [1]}, "args"),
        ({"command": "a", "args": {"a": "b"}}, "args"),
        ({"command": ["a", "b"]}, "command"),
        ({"command": "a", "env": {"A": 5}}, "env"),
        ({"command": "a", "headers": {"A": "b"}}, "headers"),
        ({"url": "http://x", "env": {"A": "b"}}, "env"),
    ],
    ids=lambda value: json.dumps(value)[:50] if not isinstance(value, str) else "",
)
def test_a_mistake_names_its_server_and_what_is_wrong(load, server, said):
    message = complaint(load, {"fine": {"command": "a"}, "bad one": server})
    assert "'bad one'" in message and said in message and message.startswith(".mcp.json: ") and "fine" not in message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "nonsense",
        '{"mcpServers": {"a": {"command": "a"}',
        "\ufeff[]",
        b"\xff\xfe",
        '{"mcpServers": []}',
        '{"mcpServers": "a"}',
        '{"mcpServers": [{"command": "a"}]}',
    ],
    ids=lambda text: repr(text)[:30],
)
def test_a_file_that_is_none_is_a_clear_mistake(load, text):
    assert ".mcp.json" in complaint(load, text)


@pytest.mark.parametrize("names", [("search a", "search_a"), ("a.b", "a b"), ("a__b", "a_b"), ("_a", "a")], ids=str)
def test_names_that_become_one_are_an_error_that_names_both(load, names):
    said = complaint(load, {name: {"command": "a"} for name in names})
    assert all(repr(name) in said for name in names)


def test_names_that_stay_apart_do(load):
    assert list(load({"search-a": {"command": "a"}, "search_a": {"command": "b"}, "Search_a": {"command": "c"}})) == [
        "search-a",
        "search_a",
        "Search_a",
    ]


@pytest.mark.parametrize("name", ["", "..", "\n", "é", "__", "\ud800"], ids=repr)
def test_a_name_that_cannot_be_one_is_a_mistake(load, name):
    said = complaint(load, {name: {"command": "a"}})
    assert "cannot be made a name" in said and "\n" not in said


@pytest.mark.parametrize(("raw", "name"), [("@org/server", "org_server"), ("my server", "my_server"), ("x" * 50, "x" * 32)])
def test_names_are_brought_into_form(load, raw, name):
    assert load({raw: {"command": "a"}})[name].server == name


# content of somebody who means harm


def test_what_is_nested_beyond_measure_is_a_mistake(load):
    deep = "[" * 100_000 + "]" * 100_000
    assert "nested" in complaint(load, f'{{"mcpServers": {{"a": {{"command": "a", "args": {deep}}}}}}}')


@pytest.mark.parametrize("depth", [50, 300, 900])
def test_what_is_nested_deeply_is_a_mistake_too(load, depth):
    deep = "[" * depth + '"x"' + "]" * depth
    assert "nested too deeply" in complaint(load, f'{{"mcpServers": {{"a": {{"command": "a", "args": {deep}}}}}}}')


def test_a_complaint_about_a_hostile_file_is_short(load):
    said = complaint(load, {"x" * 100_000: {"type": "y" * 100_000}, "b": {"type": "sse\u202e\x1b[31m\n"}})
    assert len(said) < 3_000 and "\x1b" not in said and "\u202e" not in said


@pytest.mark.parametrize("kind", ["fifo", "directory", "link out", "loop", "large"])
def test_what_is_no_plain_file_of_the_directory_is_not_read(clone, kind, tmp_path):
    path = clone / ".mcp.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        (path / "more").mkdir(parents=True)
    elif kind == "link out":
        (tmp_path / "elsewhere.json").write_text('{"mcpServers": {"a": {"command": "a"}}}')
        path.symlink_to(tmp_path / "elsewhere.json")
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.write_text(json.dumps({"mcpServers": {"a": {"command": "a" * 2_000_000}}}))
    with pytest.raises(ConfigError) as caught:
        project_servers(clone, {})
    assert ".mcp.json" in caught.value.message


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "\x1b[2J", "${A:-\0}"], ids=repr)
def test_strange_text_is_kept_or_refused_and_nothing_else(load, text):
    try:
        config = load({"a": {"command": "c", "args": [text], "env": {"E": text}}})["a"]
    except ConfigError as error:
        assert "'a'" in error.message
        return
    assert len(config.launch.digest) == 12


# trust


@pytest.fixture
def hostile(tmp_path, clone):
    """A checkout whose server leaves a trace as soon as it is started."""
    (clone / ".git").mkdir()
    trace = tmp_path / "trace"
    (clone / ".mcp.json").write_text(json.dumps({"mcpServers": {"evil": {"command": sys.executable, "args": ["-c", WITNESS, str(trace)]}}}))
    return trace


async def test_no_agent_starts_the_servers_of_a_directory_that_nobody_trusts(agents, script, clone, hostile):
    from hames.agents import AgentSpec

    agent = await agents.create(AgentSpec(str(clone), script({"text": "hello"})))
    assert (await agent.run("go")).reason == "completed"
    assert not hostile.exists() and not processes(hostile)


@pytest.mark.parametrize("words", [("check",), ("list",), ("check", "evil"), ("call", "evil", "x"), ("read", "evil", "x:y")], ids=" ".join)
def test_no_command_starts_them(clone, hostile, monkeypatch, capsys, tmp_path, words):
    from hames.faces.cli.main import main

    monkeypatch.setattr(sys, "argv", ["hames", "mcp", *words, "--cwd", str(clone), "--state-dir", str(tmp_path / "state")])
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == (2 if len(words) > 1 else 0)
    assert not hostile.exists() and not processes(hostile)
    assert "trust" in said.err, "what to do is said"


@pytest.mark.parametrize("changed", [False, True])
def test_a_file_that_changed_after_it_was_trusted_starts_nothing(clone, hostile, monkeypatch, capsys, tmp_path, changed):
    from hames.faces.cli.main import main

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def hames(*words):
        monkeypatch.setattr(sys, "argv", ["hames", *words, "--state-dir", str(tmp_path / "state")])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    assert hames("trust", "grant", str(clone), "--yes") == 0
    if changed:
        data = json.loads((clone / ".mcp.json").read_text())
        data["mcpServers"]["evil"]["args"].append("more")
        (clone / ".mcp.json").write_text(json.dumps(data))
    capsys.readouterr()
    assert hames("mcp", "check", "--cwd", str(clone)) == (0 if changed else 1)
    assert hostile.exists() is not changed and not processes(hostile)


def processes(trace: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(trace).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
