"""``hames trust`` as a user runs it."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

FILE = ".hames/compose.yaml"


def put(root: Path, name: str, content: str | bytes) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture
def clone(hames: Any) -> Path:
    root = hames.root / "clone"
    put(root, FILE, "- {id: a, use: ./a.py}\n- {id: policy, set: {config: {mode: full}}}\n")
    put(root, ".hames/a.py", "x = 1\n")
    return Path(root)


@pytest.mark.parametrize("words", [(), ("show",), ("grant",), ("revoke",), ("list",)])
def test_every_command_has_help(inline: Any, words: tuple[str, ...]) -> None:
    done = inline.run("trust", *words, "--help")
    assert done.returncode == 0 and "Usage:" in done.stdout


def test_the_life_of_a_decision(inline: Any, clone: Path) -> None:
    shown = inline.json("trust", "show", str(clone))
    assert shown["standing"] == "undecided" and any('mode = "full"' in line for line in shown["executes"])
    assert "nobody has decided" in inline.run("trust", "show", str(clone)).stdout
    assert inline.json("trust", "list") == {"decisions": []}
    assert inline.json("trust", "grant", str(clone), "--yes")["standing"] == "granted"
    assert inline.json("trust", "show", str(clone))["standing"] == "granted"
    assert inline.json("trust", "list")["decisions"] == [{"directory": str(clone.resolve()), "granted": True, "exists": True}]
    put(clone, ".hames/a.py", "x = 2\n")
    said = inline.run("trust", "show", str(clone)).stdout
    assert "something else now" in said and "- a code" in said and "+ a code" in said
    assert inline.json("trust", "revoke", str(clone))["standing"] == "undecided"
    assert inline.run("trust", "revoke", str(clone)).returncode == 2


def test_nothing_is_granted_where_nobody_is_asked(inline: Any, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    done = inline.run("trust", "grant", str(clone))
    assert done.returncode == 2 and "--yes" in done.stderr
    assert inline.json("trust", "show", str(clone))["standing"] == "undecided"


def test_this_directory_is_meant_where_none_is_named(inline: Any, hames: Any) -> None:
    assert inline.json("trust", "show")["directory"] == str(hames.work.resolve())


def test_a_directory_that_is_gone_is_listed_and_revoked(inline: Any, clone: Path) -> None:
    inline.run("trust", "grant", str(clone), "--yes")
    clone.rename(clone.with_name("moved"))
    assert "is not there" in inline.run("trust", "list").stdout
    assert inline.run("trust", "show", str(clone)).returncode == 2
    assert inline.run("trust", "revoke", str(clone)).returncode == 0


@pytest.mark.parametrize("command", ["show", "grant", "revoke"])
@pytest.mark.parametrize("name", ["/no/such", "/etc/passwd", "x" * 5000, "~nosuchuser", "loop", "a\nb"], ids=lambda name: repr(name[:12]))
def test_bad_input_is_one_clear_error_and_2(inline: Any, hames: Any, command: str, name: str) -> None:
    (hames.work / "loop").symlink_to("loop")
    done = inline.run("trust", command, name)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("hames: ")
    found = json.loads(inline.run("trust", command, name, "--json").stdout)
    assert found["status"] == "error" and found["error"]["remedy"]


HOSTILE: dict[str, tuple[str, str | bytes]] = {
    "not YAML": (FILE, "a: [b"),
    "not UTF-8": (FILE, b"\xff"),
    "a tag": (FILE, "- !!python/name:os.system x"),
    "deep": (FILE, "- {id: a, use: x.y, config: {n: " + "[" * 900 + "]" * 900 + "}}"),
    "a zero": (FILE, '- include: "a\\0b"'),
    "a folder": (FILE + "/x", ""),
    "a folder of servers": (".mcp.json/x", ""),
    "servers that are no JSON": (".mcp.json", "{"),
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("command", [("show",), ("grant", "--yes")], ids=["show", "grant"])
def test_what_cannot_be_told_is_one_clear_error_and_2(inline: Any, hames: Any, what: str, command: tuple[str, ...]) -> None:
    put(hames.work, *HOSTILE[what])
    done = inline.run("trust", *command)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("hames: ")
    assert inline.json("trust", "list") == {"decisions": []}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (FILE, '- {id: "a\\e[8m\\r", use: x.y}'),
        (FILE, '- {id: a, use: x.y, config: {"command\\e[2J\\r": x}}'),
        (FILE, '- include: "a\\r\\e[1A\\e[2K.yaml"'),
        (FILE, '- {id: a, use: x.y, config: {command: "\\x9b2J\\u202e"}}'),
        (".mcp.json", '{"mcpServers": {"a\\u001b[8m\\r": {"command": "evil"}}}'),
        (".mcp.json", '{"mcpServers": {"a": {"command": "evil", "env": {"X\\r\\u001b[2K": "y"}}}}'),
    ],
)
def test_what_is_shown_cannot_change_a_terminal(inline: Any, hames: Any, file: str, content: str) -> None:
    """A stranger's names could hide from a person what else is there."""
    put(hames.work, file, content)
    done = inline.run("trust", "show")
    said = done.stdout + done.stderr
    assert not [letter for letter in said if letter != "\n" and not letter.isprintable()]


def test_a_line_of_a_stranger_stays_one_line(inline: Any, hames: Any) -> None:
    put(hames.work, ".mcp.json", json.dumps({"mcpServers": {"a\n  it would execute nothing": {"command": "evil"}}}))
    assert "\n  it would execute nothing" not in inline.run("trust", "show").stdout


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"path": 5}', b'{"path": "/x", "granted": true, "executes": 5}'])
def test_damaged_decisions_end_no_command(inline: Any, hames: Any, clone: Path, content: bytes) -> None:
    inline.run("trust", "grant", str(clone), "--yes")
    (path,) = (hames.state / "trust").iterdir()
    path.write_bytes(content)
    assert inline.run("trust", "list").returncode == 0
    assert inline.json("trust", "show", str(clone))["standing"] == "undecided"


@pytest.mark.parametrize("command", [("show",), ("grant", "--yes"), ("revoke",)], ids=lambda words: words[0])
def test_a_directory_whose_name_is_no_text_makes_no_traceback(hames: Any, command: tuple[str, ...]) -> None:
    odd = os.fsencode(hames.root) + b"/d\xff"
    os.mkdir(odd)
    done = hames.run("trust", *command, odd)
    assert done.returncode in (0, 2)
    assert not list(hames.state.rglob(".*")) if hames.state.exists() else True
