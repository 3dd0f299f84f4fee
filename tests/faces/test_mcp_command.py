"""``hames mcp`` as a user runs it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

SERVER = """
import json, os, sys, time

if os.environ.get("WITNESS"):
    with open(os.environ["WITNESS"], "a") as file:
        file.write(f"{os.getpid()}\\n")
if "broken" in sys.argv:
    sys.exit("no luck: " + os.environ.get("MY_TOKEN", ""))
if "hangs" in sys.argv:
    time.sleep(600)
hostile = "\\x1b]0;evil\\x07" if "hostile" in sys.argv else ""


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method == "initialize":
        send(id=id, result={"protocolVersion": "2025-06-18", "serverInfo": {"name": f"fixture{hostile}", "version": "7"},
                            "capabilities": {"tools": {}, "prompts": {}, "resources": {}}})
    elif method == "tools/list":
        schema = {"type": "object"}
        send(id=id, result={"tools": [
            {"name": "echo", "description": f"Says it{hostile} again.\\nSecond line", "inputSchema": schema},
            *({"name": name, "inputSchema": schema} for name in ("fail", "admin.reset", "wait", "crash")),
            {"name": f"odd{hostile}", "inputSchema": {**schema, "properties": {"a": {"type": "nonsense"}}}}]})
    elif method == "prompts/list":
        send(id=id, result={"prompts": [{"name": "greet"}]})
    elif method == "resources/read":
        if params["uri"] == "memo://a":
            send(id=id, result={"contents": [{"uri": "memo://a", "text": f"a{hostile} memo"}]})
        else:
            send(id=id, error={"code": -32002, "message": f"no resource {params['uri']}"})
    elif method == "tools/call":
        name, given = params["name"], params.get("arguments")
        token = params.get("_meta", {}).get("progressToken")
        if token is not None:
            send(method="notifications/progress", params={"progressToken": token, "progress": 1, "total": 2, "message": f"half{hostile}"})
        if name == "crash":
            os._exit(3)
        if name == "wait":
            time.sleep(600)
        text = json.dumps(given, sort_keys=True) + hostile + os.environ.get("SAID", "")
        send(id=id, result={"content": [{"type": "text", "text": text}], "isError": name == "fail"})
    elif id is not None:
        send(id=id, error={"code": -32601, "message": "no such method"})
"""


@pytest.fixture
def rows(hames: Any) -> Any:
    """Writes a layer with rows of the fixture server and gives the options that name it; each row has more arguments or configuration."""
    program = hames.root / "server.py"
    program.write_text(SERVER)

    def write(**servers: Any) -> tuple[str, str]:
        path: Path = hames.root / "servers.yaml"
        listed = []
        for id, more in servers.items():
            config = {"command": sys.executable, "args": ["-S", str(program), *more.pop("args", [])], "protocol": "legacy", **more}
            if "url" in config:
                config = more
            listed.append({"id": id, "use": "hames.mcp.server", "config": config})
        path.write_text(json.dumps(listed))
        return "--patch", str(path)

    return write


@pytest.mark.parametrize("words", [(), ("list",), ("check",), ("call",), ("read",), ("login",), ("logout",)])
def test_every_command_has_help(inline: Any, words: tuple[str, ...]) -> None:
    done = inline.run("mcp", *words, "--help")
    assert done.returncode == 0 and "Usage:" in done.stdout


# list


def test_where_no_server_is_configured_it_says_how_to_add_one(inline: Any) -> None:
    for word in ("list", "check"):
        done = inline.run("mcp", word)
        assert (done.returncode, done.stdout) == (0, "") and "use: hames.mcp.server" in done.stderr
        assert inline.json("mcp", word)["servers"] == []


def test_list_shows_rows_and_starts_nothing(hames: Any, inline: Any, rows: Any) -> None:
    patch = rows(one={}, two={"url": "https://example.com/mcp?key=canary-secret", "required": True})
    witness = hames.root / "witness"
    done = inline.run("mcp", "list", *patch, env={"WITNESS": str(witness)})
    assert done.returncode == 0 and "row one" in done.stdout and "https://example.com/mcp" in done.stdout
    found = inline.json("mcp", "list", *patch)
    assert [(item["name"], item["origin"], item["required"]) for item in found["servers"]] == [
        ("one", "row one", False),
        ("two", "row two", True),
    ]
    assert found["untrusted"] is False and not witness.exists()


def test_a_server_that_is_disabled_is_not_listed(hames: Any, inline: Any, rows: Any) -> None:
    patch = rows(one={}, two={})
    (hames.root / "more.yaml").write_text("- {id: one, set: {disabled: true}}\n")
    found = inline.json("mcp", "list", *patch, "--patch", str(hames.root / "more.yaml"))
    assert [item["name"] for item in found["servers"]] in (["two"], ["one", "two"])
    assert [item["name"] for item in found["servers"]] == ["two"]


# check


def test_check_tells_what_a_server_offers(inline: Any, rows: Any) -> None:
    patch = rows(one={})
    done = inline.run("mcp", "check", *patch)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok    one: fixture 7, 5 tools, about ") and "1 prompts" in lines[0] and "resources" in lines[0]
    assert "      mcp__one__echo  Says it again." in lines and "Second line" not in done.stdout
    assert any("odd is left out" in line and "schema is not valid" in line for line in lines)
    (item,) = inline.json("mcp", "check", *patch)["servers"]
    assert item["status"] == "ready" and item["prompts"] == ["greet"] and item["resources"] is True and item["reason"] == ""
    assert item["tools"][0] == {"name": "mcp__one__echo", "description": "Says it again.\nSecond line"}
    assert item["tools"][2]["name"].startswith("mcp__one__admin_reset_") and item["left_out"][0]["name"] == "odd"
    assert item["tokens"] > 0 and item["seconds"] < 15


def test_one_server_that_fails_makes_the_check_fail_and_hides_no_other(inline: Any, rows: Any) -> None:
    patch = rows(good={}, bad={"args": ["broken"]}, gone={"command": "no-such-program-here", "args": []})
    done = inline.run("mcp", "check", *patch)
    assert done.returncode == 1
    assert (
        "ok    good" in done.stdout and "fail  bad: " in done.stdout and "no luck" in done.stdout and "no-such-program-here" in done.stdout
    )
    found = inline.json("mcp", "check", *patch, status=1)
    assert [item["status"] for item in found["servers"]] == ["ready", "failed", "failed"]
    assert inline.json("mcp", "check", "good", *patch)["servers"][0]["status"] == "ready"


def test_a_server_that_does_not_answer_says_so(inline: Any, rows: Any) -> None:
    patch = rows(slow={"args": ["hangs"], "connect_timeout": 0.3})
    done = inline.run("mcp", "check", *patch)
    assert done.returncode == 1 and "did not answer within 0.3 s" in done.stdout


# call and read


@pytest.mark.parametrize(
    ("arguments", "heard"),
    [((), {}), (("a=1", "b=x y"), {"a": 1, "b": "x y"}), (('{"a": [1, null]}',), {"a": [1, None]}), (("a={}",), {"a": {}})],
    ids=str,
)
def test_call_gives_arguments_and_prints_the_answer(inline: Any, rows: Any, arguments: tuple[str, ...], heard: Any) -> None:
    done = inline.run("mcp", "call", *rows(one={}), "one", "echo", *arguments)
    assert done.returncode == 0 and json.loads(done.stdout) == heard
    assert "1 of 2: half" in done.stderr


def test_call_by_machine(inline: Any, rows: Any) -> None:
    patch = rows(one={})
    assert inline.json("mcp", "call", "one", "echo", "a=1", *patch) == {"is_error": False, "text": '{"a": 1}'}
    assert inline.json("mcp", "call", "one", "fail", "a=1", *patch, status=1) == {"is_error": True, "text": '{"a": 1}'}


def test_a_call_that_loses_its_server_says_so(inline: Any, rows: Any) -> None:
    done = inline.run("mcp", "call", "one", "crash", *rows(one={}))
    assert (done.returncode, done.stdout) == (1, "")
    assert "lost" in done.stderr and "status 3" in done.stderr and "hames mcp check one" in done.stderr
    found = inline.json("mcp", "call", "one", "crash", *rows(one={}), status=1)
    assert found["error"]["code"] == "MCP_LOST"


def test_read_prints_a_resource(inline: Any, rows: Any) -> None:
    patch = rows(one={})
    assert inline.run("mcp", "read", "one", "memo://a", *patch).stdout == "a memo\n"
    assert inline.json("mcp", "read", "one", "memo://a", *patch) == {"uri": "memo://a", "text": "a memo"}
    done = inline.run("mcp", "read", "one", "memo://b", *patch)
    assert (done.returncode, done.stdout) == (1, "") and "no resource memo://b" in done.stderr


# mistakes


@pytest.mark.parametrize(
    "words",
    [
        ("check", "nobody"),
        ("check", "one", "nobody"),
        ("call", "nobody", "echo"),
        ("read", "nobody", "x:y"),
        ("login", "nobody"),
        ("logout", "nobody"),
    ],
    ids=" ".join,
)
def test_an_unknown_server_is_2_and_the_known_ones_are_named(inline: Any, rows: Any, words: tuple[str, ...]) -> None:
    patch = rows(one={}, other={})
    done = inline.run("mcp", *words, *patch)
    assert (done.returncode, done.stdout) == (2, "") and "'nobody'" in done.stderr and "one, other" in done.stderr
    error = inline.json("mcp", *words, *patch, status=2)["error"]
    assert "hames mcp list" in error["remedy"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("call", "one", "nothing"), "echo, fail, admin.reset"),
        (("call", "one", "mcp__one__echo"), "echo, fail"),
        (("call", "one", "echo", "novalue"), "NAME=VALUE"),
        (("call", "one", "echo", "{broken"), "JSON"),
        (("login", "one"), "oauth: true"),
        (("logout", "one"), "logged in"),
        (("call", "one"), "TOOL"),
        (("list", "--cwd", "no/such/directory"), "--cwd"),
        (("list", "--profile", "nothing"), "profile"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_input_is_2_with_what_to_do(inline: Any, rows: Any, words: tuple[str, ...], said: str) -> None:
    done = inline.run("mcp", *words, *rows(one={}))
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr


def test_two_rows_with_one_server_name_both(inline: Any, rows: Any) -> None:
    done = inline.run("mcp", "list", *rows(one={"server": "same"}, two={"server": "same"}))
    assert done.returncode == 2 and "one" in done.stderr and "two" in done.stderr and "same" in done.stderr


def test_all_mistakes_in_rows_are_told(inline: Any, rows: Any) -> None:
    done = inline.run("mcp", "check", *rows(one={"capabilities": []}, two={"comand": "x"}))
    assert done.returncode == 2 and "capabilities" in done.stderr and "comand" in done.stderr


def test_a_row_whose_id_cannot_be_a_name_is_a_mistake_here_too(hames: Any, inline: Any, rows: Any) -> None:
    done = inline.run("mcp", "list", *rows(a__b={}))
    assert done.returncode == 2 and "'a__b'" in done.stderr


# secrets, and what would steer a terminal


@pytest.mark.parametrize(
    "words", [("list",), ("check",), ("call", "one", "echo"), ("call", "one", "crash"), ("read", "one", "x:y")], ids=" ".join
)
@pytest.mark.parametrize("how", ["human", "json"])
def test_secrets_of_a_row_are_never_printed(inline: Any, rows: Any, words: tuple[str, ...], how: str) -> None:
    patch = rows(
        one={"env": {"MY_TOKEN": "canary-secret"}, "args": ["--api-key=canary-secret", "--token", "canary-secret"]},
        bad={"env": {"MY_TOKEN": "canary-secret"}, "args": ["broken"]},
        url={"url": "http://user:canary-secret@127.0.0.1:9/canary?key=canary-secret", "reconnect": {"attempts": 0}},
        head={"url": "http://127.0.0.1:9/x", "headers": {"Authorization": "Bearer canary-secret"}},
    )
    done = inline.run("mcp", *words, *patch, *(("--json",) if how == "json" else ()))
    assert "canary-secret" not in done.stdout + done.stderr


@pytest.mark.parametrize("words", [("check",), ("call", "one", "echo"), ("read", "one", "memo://a")], ids=" ".join)
def test_what_a_server_says_steers_no_terminal(inline: Any, rows: Any, words: tuple[str, ...]) -> None:
    done = inline.run("mcp", *words, *rows(one={"args": ["hostile"]}))
    assert done.returncode == 0 and "\x1b" not in done.stdout + done.stderr


# trust


def test_servers_of_a_directory_count_once_it_is_trusted(hames: Any, inline: Any, rows: Any) -> None:
    rows(one={})
    clone = hames.root / "clone"
    clone.mkdir()
    server = {"command": sys.executable, "args": ["-S", str(hames.root / "server.py")]}
    (clone / ".mcp.json").write_text(json.dumps({"mcpServers": {"their server": server}}))
    found = inline.json("mcp", "list", "--cwd", str(clone))
    assert found == {"servers": [], "untrusted": True}
    assert "hames trust" in inline.run("mcp", "list", "--cwd", str(clone)).stderr
    assert inline.run("trust", "grant", str(clone), "--yes").returncode == 0
    (item,) = inline.json("mcp", "list", "--cwd", str(clone))["servers"]
    assert (item["name"], item["origin"]) == ("their_server", ".mcp.json")
    assert inline.json("mcp", "call", "their_server", "echo", "a=1", "--cwd", str(clone))["text"] == '{"a": 1}'


@pytest.mark.parametrize("words", [("check",), ("check", "their"), ("call", "their", "echo")], ids=" ".join)
def test_an_untrusted_directory_is_named_as_the_reason(hames: Any, inline: Any, words: tuple[str, ...]) -> None:
    (hames.work / ".mcp.json").write_text(json.dumps({"mcpServers": {"their": {"command": "x"}}}))
    done = inline.run("mcp", *words)
    assert done.returncode == (2 if len(words) > 1 else 0) and "trust" in done.stderr


# being interrupted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "server"), [(("check",), {"args": ["hangs"], "connect_timeout": 60}), (("call", "one", "wait"), {})], ids=["check", "call"]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_interrupted_leaves_no_process(hames: Any, rows: Any, until: Any, words: Any, server: Any, number: int) -> None:
    witness = hames.root / "witness"
    child = hames.start("mcp", *words, *rows(one=dict(server)), env={"WITNESS": str(witness)})
    until(lambda: witness.exists() and witness.read_text(), "the server is started")
    if words[0] == "call":
        assert "half" in child.stderr.readline()
    child.send_signal(number)
    output, errors = child.communicate(timeout=20)
    assert child.returncode in ((130,) if number == signal.SIGINT else (130, 143, -signal.SIGTERM)), (output, errors)
    assert "Traceback" not in errors
    until(lambda: not hames.processes(), "all have ended")
    assert number == signal.SIGTERM or not Path(f"/proc/{witness.read_text().split()[0]}").exists()  # it was waited for


@pytest.mark.slow
def test_a_child_process_of_the_command_does_the_same(hames: Any, rows: Any) -> None:
    found = hames.json("mcp", "check", *rows(one={}))
    assert found["servers"][0]["status"] == "ready" and hames.processes() == []
    done = hames.run("mcp", "call", *rows(one={"env": {"SAID": "é"}}), "one", "echo", "a=ü")
    assert done.returncode == 0 and "é" in done.stdout
