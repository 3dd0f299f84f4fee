"""What a directory would execute: what counts, what does not, and that looking at it harms nobody."""

from __future__ import annotations

import importlib._bootstrap_external as bootstrap
import importlib.util
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hames.compose import Layer, compose
from hames.content.errors import ConfigError
from hames.profiles import profile
from hames.trust import executes
from hames.trust.executes import digest

BELOW = compose([Layer(profile("standard"))])
FILE = ".hames/compose.yaml"
CODE = "- {id: mine, use: ./mine.py}\n"


def put(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def lines_of(tmp_path, files, name="d"):
    return executes(put((tmp_path / name).resolve(), files), BELOW)


def differs(tmp_path, before, after):
    """Whether two directories differ in what they execute; each is looked at twice."""
    digests = []
    for files in (before, after):
        root = tmp_path / "same" / "place"
        put(root, files)
        digests.append(digest(executes(root.resolve(), BELOW)))
        assert digest(executes(root.resolve(), BELOW)) == digests[-1]
        subprocess.run(["rm", "-rf", str(root)], check=True)
    return digests[0] != digests[1]


def yaml(text):
    return {FILE: text}


def patch(id, config):
    return yaml(f"- {{id: {id}, set: {{config: {{{config}}}}}}}\n")


def code(**files):
    return {**yaml(CODE), **{f".hames/{name.replace('__', '/')}.py": text for name, text in files.items()}}


# what counts


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (patch("prompts", "persona: a"), patch("prompts", "persona: b")),
        (yaml("- {id: a, use: x.y, config: {n: 1}}"), yaml("- {id: a, use: x.y, config: {n: 2}}")),
        (yaml("- {id: a, use: x.y}"), yaml("# a remark\n- id: a\n  use: x.y\n")),
        ({}, {"README.md": "x", ".hames/notes.txt": "y", "AGENTS.md": "z"}),
        ({**code(mine="1")}, {**code(mine="1"), ".hames/other.py": "1"}),
        ({".mcp.json": '{"mcpServers": {"a": {"command": "b"}}}'}, {".mcp.json": '{ "mcpServers":{"a":{"command":"b"}}, "other": 1}'}),
    ],
)
def test_words_and_numbers_do_not_count(tmp_path, before, after):
    assert not differs(tmp_path, before, after)


COUNTS = {
    "a use": (yaml("- {id: a, use: x.y}"), yaml("- {id: a, use: x.z}")),
    "a row": (yaml("- {id: a, use: x.y}"), yaml("- {id: a, use: x.y}\n- {id: b, use: x.y}")),
    "a removal": (yaml("- {id: bash, remove: true}"), yaml("[]")),
    "another removal": (yaml("- {id: policy, remove: true}"), yaml("- {id: web, remove: true}")),
    "disabling": (yaml("- {id: policy, set: {disabled: true}}"), yaml("- {id: policy, set: {disabled: false}}")),
    "isolation": (yaml("- {id: a, use: x.y, isolate: {policy: true}}"), yaml("- {id: a, use: x.y}")),
    "a set use": (yaml("- {id: bash, set: {use: x.y}}"), yaml("- {id: bash, set: {use: x.z}}")),
    "a replacement": (yaml("- {id: bash, replace: {use: x.y}}"), yaml("- {id: bash, replace: {use: x.z}}")),
    "an insertion": (yaml("- {insert: [{id: a, use: x.y}]}"), yaml("- {insert: [{id: a, use: x.z}]}")),
    "an insertion into a group": (yaml("- {id: g, insert: [{id: a, use: x.y}]}"), yaml("- {id: h, insert: [{id: a, use: x.y}]}")),
    "a nested group": (
        yaml("- {id: g, group: [{id: h, group: [{id: a, use: x.y}]}]}"),
        yaml("- {id: g, group: [{id: h, group: [{id: a, use: x.z}]}]}"),
    ),
    "a command deep in a group": (
        yaml("- {id: g, group: [{id: h, group: [{id: a, use: x.y, config: {command: [a]}}]}]}"),
        yaml("- {id: g, group: [{id: h, group: [{id: a, use: x.y, config: {command: [b]}}]}]}"),
    ),
    "an include": (yaml("- include: a.yaml"), yaml("- include: b.yaml")),
    "an include that comes to be": (yaml("- include: a.yaml"), {**yaml("- include: a.yaml"), ".hames/a.yaml": "- {id: x, use: y.z}"}),
    "what is included": (
        {**yaml("- include: a.yaml"), ".hames/a.yaml": "- {id: x, use: y.z}"},
        {**yaml("- include: a.yaml"), ".hames/a.yaml": "- {id: x, use: y.w}"},
    ),
    "local code": (code(mine="1"), code(mine="2")),
    "code that is imported": (code(mine="from .help import x", help="1"), code(mine="from .help import x", help="2")),
    "code that is imported by that": (
        code(mine="from . import help", help="from .more import x", more="1"),
        code(mine="from . import help", help="from .more import x", more="2"),
    ),
    "code of an import in a function": (
        code(mine="def f():\n    from .help import x", help="1"),
        code(mine="def f():\n    from .help import x", help="2"),
    ),
    "a package's init": (
        {**code(mine="from .p.m import x", p__m=""), ".hames/p/__init__.py": "1"},
        {**code(mine="from .p.m import x", p__m=""), ".hames/p/__init__.py": "2"},
    ),
    "a module of a package": (
        code(mine="from .p import m", p____init__="", p__m="1"),
        code(mine="from .p import m", p____init__="", p__m="2"),
    ),
    "a module of a folder": (code(mine="from .p import m", p__m="1"), code(mine="from .p import m", p__m="2")),
    "a module imported upwards": (
        code(mine="from .p.m import x", p__m="from ..help import x", help="1"),
        code(mine="from .p.m import x", p__m="from ..help import x", help="2"),
    ),
    "code in a set": (
        {**yaml("- {id: bash, set: {use: ./m.py}}"), ".hames/m.py": "1"},
        {**yaml("- {id: bash, set: {use: ./m.py}}"), ".hames/m.py": "2"},
    ),
    "code with an attribute": (
        {**yaml("- {id: a, use: './m.py:b'}"), ".hames/m.py": "1"},
        {**yaml("- {id: a, use: './m.py:b'}"), ".hames/m.py": "2"},
    ),
    "code below": ({**yaml("- {id: a, use: ../src/m.py}"), "src/m.py": "1"}, {**yaml("- {id: a, use: ../src/m.py}"), "src/m.py": "2"}),
    "a name of a variable": (patch("prompts", "persona: '${env:A}'"), patch("prompts", "persona: '${env:B}'")),
    "a name of a variable with a default": (patch("prompts", "persona: '${env:A:-x}'"), patch("prompts", "persona: '${env:B:-x}'")),
    "which key goes to a provider": (
        patch("models", "providers: {x: {dialect: openai-chat, base_url: 'http://a', key_env: A}}"),
        patch("models", "providers: {x: {dialect: openai-chat, base_url: 'http://a', key_env: B}}"),
    ),
    "which variable names a provider": (
        patch("models", "providers: {x: {base_url_env: A}}"),
        patch("models", "providers: {x: {base_url_env: B}}"),
    ),
    "an address": (patch("models", "providers: {x: {base_url: 'http://a'}}"), patch("models", "providers: {x: {base_url: 'http://b'}}")),
    "a mode": (patch("policy", "mode: full"), patch("policy", "mode: read-only")),
    "a rule": (patch("policy", "rules: [{allow: a}]"), patch("policy", "rules: [{allow: b}]")),
    "rules that are taken away": (patch("policy", "mode: read-only"), patch("policy", "mode: read-only, rules: []")),
    "hidden places that are taken away": (patch("sandbox", "means: auto"), patch("sandbox", "means: auto, hide: []")),
    "a setting of the sandbox": (patch("sandbox", "writable: [a]"), patch("sandbox", "writable: [b]")),
    "variables that commands see": (patch("bash", "keep: [A]"), patch("bash", "keep: [B]")),
    "private hosts that are fetched": (patch("web", "private: [a]"), patch("web", "private: [localhost]")),
    "a guard under another name": (
        yaml("- {id: z, use: hames.policy, config: {mode: full}}"),
        yaml("- {id: z, use: hames.policy, config: {mode: read-only}}"),
    ),
}
KEYS = ["command", "args", "argv", "env", "cwd", "url", "script", "shell", "program", "hooks", "interpreter", "proxy", "headers"]


@pytest.mark.parametrize("what", COUNTS)
def test_what_executes_or_guards_counts(tmp_path, what):
    before, after = COUNTS[what]
    assert differs(tmp_path, before, after)


@pytest.mark.parametrize("key", [key for key in KEYS if key not in ("env", "headers")])
@pytest.mark.parametrize("value", ["{}", "[{}]", "{{a: {}}}", "[[{}]]", "{{a: [{{b: {}}}]}}"])
def test_settings_that_execute_count_however_deep(tmp_path, key, value):
    one, two = (yaml(f"- {{id: a, use: x.y, config: {{deep: {{{key}: {value.format(word)}}}}}}}") for word in ("v1", "v2"))
    assert differs(tmp_path, one, two)


@pytest.mark.parametrize("key", ["env", "headers"])
def test_names_of_variables_and_headers_count_and_their_values_are_nowhere(tmp_path, key):
    one, two = (yaml(f"- {{id: a, use: x.y, config: {{{key}: {{{name}: s3cret}}}}}}") for name in ("AA", "BB"))
    assert differs(tmp_path, one, two)
    assert "s3cret" not in str(lines_of(tmp_path, one)) and "AA" in str(lines_of(tmp_path, one))


MCP_CHANGES = [
    ({"command": "a"}, {"command": "b"}),
    ({"command": "a", "args": ["x"]}, {"command": "a", "args": ["y"]}),
    ({"command": "a", "env": {"A": "1"}}, {"command": "a", "env": {"B": "1"}}),
    ({"url": "http://a"}, {"url": "http://b"}),
    ({"url": "http://a", "headers": {"A": "1"}}, {"url": "http://a", "headers": {"B": "1"}}),
    ({"type": "http", "url": "u"}, {"type": "sse", "url": "u"}),
    ({"command": "a", "cwd": "x"}, {"command": "a", "cwd": "y"}),
    ({"command": "a", "env": {"A": "${env:X}"}}, {"command": "a", "env": {"A": "${env:Y}"}}),
]


@pytest.mark.parametrize(("before", "after"), MCP_CHANGES)
def test_what_a_server_is_counts(tmp_path, before, after):
    one, two = ({".mcp.json": json.dumps({"mcpServers": {"s": each}})} for each in (before, after))
    assert differs(tmp_path, one, two)


def test_values_of_variables_of_a_server_are_nowhere(tmp_path):
    server = {"command": "a", "env": {"A": "s3cret"}, "headers": {"B": "s3cret"}}
    assert "s3cret" not in str(lines_of(tmp_path, {".mcp.json": json.dumps({"mcpServers": {"s": server}})}))


def test_a_cache_of_compiled_code_is_not_what_is_run_unseen(tmp_path):
    """Python takes an unchecked cache file for the source that was looked at."""
    root = put((tmp_path / "d").resolve(), code(mine="WHO = 'seen'\n"))
    before = digest(executes(root, BELOW))
    source = root / ".hames" / "mine.py"
    cache = Path(importlib.util.cache_from_source(str(source)))
    cache.parent.mkdir()
    cache.write_bytes(bootstrap._code_to_hash_pyc(compile("WHO = 'unseen'\n", str(source), "exec"), b"\0" * 8, False))
    program = (
        "import sys; from pathlib import Path; from hames.compose.local import load_local; print(load_local(Path(sys.argv[1]), '').WHO)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(source)], capture_output=True, text=True, check=True)
    assert done.stdout == "seen\n" or digest(executes(root, BELOW)) != before


@given(st.lists(st.sampled_from(list(COUNTS)), min_size=1, max_size=4))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_looking_twice_sees_the_same(tmp_path, names):
    for name in names:
        assert not differs(tmp_path, COUNTS[name][0], COUNTS[name][0])


@pytest.mark.parametrize(
    "text", ["- include: [a, b]", "- {id: [a, b], use: x.y}", "- {id: {a: b}, use: x.y}", "- {id: a, use: [x]}", "- {id: a, group: b}"]
)
def test_what_is_malformed_is_the_same_each_time_or_refused(tmp_path, text):
    root = put((tmp_path / "d").resolve(), yaml(text))
    try:
        assert executes(root, BELOW) == executes(root, BELOW)
        assert " at 0x" not in str(executes(root, BELOW))
    except ConfigError:
        pass


# hostile directories: an answer or a ConfigError, soon


PROGRAM = """
import sys
from pathlib import Path
from hames.content.errors import ConfigError
from hames.trust.executes import digest, executes
try:
    digest(executes(Path(sys.argv[1])))
except ConfigError as error:
    print(error.message)
"""


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


def look(root, seconds=5):
    """What is said of a directory, looked at with little memory."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root.resolve())],
        capture_output=True,
        text=True,
        timeout=seconds,
        preexec_fn=limited,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-300:]
    return done.stdout


def link(name, target):
    def make(root):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).symlink_to(target)

    return make


def fifo(name):
    def make(root):
        (root / name).parent.mkdir(exist_ok=True)
        os.mkfifo(root / name)

    return make


def files(**more):
    return lambda root: put(root, more.get("all", more))


def composition(text):
    return lambda root: put(root, {FILE: text})


def both(*makers):
    def make(root):
        for each in makers:
            each(root)

    return make


HOSTILE = {
    "a link to itself": link(FILE, "compose.yaml"),
    "a folder that is a link to itself": link(".hames", ".hames"),
    "a server file that is a link to itself": link(".mcp.json", ".mcp.json"),
    "code that is a link to itself": both(composition(CODE), link(".hames/mine.py", "mine.py")),
    "an include that is a link to itself": both(composition("- include: a.yaml"), link(".hames/a.yaml", "a.yaml")),
    "a link to a device": link(FILE, "/dev/zero"),
    "a pipe": fifo(FILE),
    "a pipe of servers": fifo(".mcp.json"),
    "an include of a pipe": both(composition("- include: a.yaml"), fifo(".hames/a.yaml")),
    "code that is a pipe": both(composition(CODE), fifo(".hames/mine.py")),
    "code that is a device": composition("- {id: a, use: /dev/zero}"),
    "code that is a link to a device": both(composition(CODE), link(".hames/mine.py", "/dev/zero")),
    "code that imports a pipe": both(composition(CODE), files(all={".hames/mine.py": "from .p import x"}), fifo(".hames/p.py")),
    "an include of a device": composition("- include: /dev/zero"),
    "a directory": files(all={FILE + "/x": ""}),
    "a file in place of the folder": files(all={".hames": ""}),
    "servers that are a directory": files(all={".mcp.json/x": ""}),
    "code that is a directory": both(composition(CODE), files(all={".hames/mine.py/x": ""})),
    "50 MB": files(all={FILE: b"#" * 50_000_000}),
    "50 MB of servers": files(all={".mcp.json": b" " * 50_000_000}),
    "50 MB of code": both(composition(CODE), files(all={".hames/mine.py": b"x = 1\n" * 8_000_000})),
    "no UTF-8": files(all={FILE: b"- {id: \xff\xfe}"}),
    "no UTF-8 of servers": files(all={".mcp.json": b"\xff"}),
    "zeros": files(all={FILE: b"\0" * 100}),
    "code of zeros": both(composition(CODE), files(all={".hames/mine.py": b"\0"})),
    "code that is no Python": both(composition(CODE), files(all={".hames/mine.py": "def ("})),
    "code of many signs": both(composition(CODE), files(all={".hames/mine.py": "-" * 100_000 + "1"})),
    "code of many dots": both(composition(CODE), files(all={".hames/mine.py": "x" + ".a" * 100_000})),
    "code in another encoding": both(composition(CODE), files(all={".hames/mine.py": "# coding: nonsense\n"})),
    "a bomb": composition(
        "- &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"- &{chr(98 + n)} [{f'*{chr(97 + n)}, ' * 10}]\n" for n in range(9))
    ),
    "an anchor in itself": composition("- &a [*a]"),
    **{f"nesting {n}": composition(f"- {{id: a, use: x.y, config: {{n: {'[' * n}{']' * n}}}}}") for n in (300, 600, 900, 5000, 100_000)},
    **{f"nested mappings {n}": composition("\n".join(" " * k + "a:" for k in range(n))) for n in (300, 900)},
    **{
        f"nested servers {n}": files(all={".mcp.json": '{"mcpServers": {"a": {"args": ' + "[" * n + "]" * n + "}}}"})
        for n in (900, 980, 100_000)
    },
    "nested groups": composition("- {id: a, group: [" * 300 + "]}" * 300),
    "a long number": composition(f"- {{id: a, use: x.y, config: {{n: {'9' * 5000}}}}}"),
    "a long number of servers": files(all={".mcp.json": '{"mcpServers": {"a": {"args": ' + "9" * 5000 + "}}}"}),
    "half a character": files(all={".mcp.json": '{"mcpServers": {"a": {"command": "\\ud800"}}}'}),
    "half a character as a name": files(all={".mcp.json": '{"mcpServers": {"\\ud800": {"command": "x"}}}'}),
    "a zero in an include": composition('- include: "a\\0b"'),
    "a zero in a use": composition('- {id: a, use: "./a\\0b.py"}'),
    "a long include": composition(f"- include: {'a' * 5000}"),
    "a long use": composition(f"- {{id: a, use: ./{'a' * 5000}}}"),
    "a circle": both(composition("- include: a.yaml"), files(all={".hames/a.yaml": "- include: compose.yaml"})),
    "a circle by other names": composition("- include: ../.hames/compose.yaml"),
    "a chain": files(all={FILE: "- include: 0.yaml", **{f".hames/{n}.yaml": f"- include: {n + 1}.yaml" for n in range(150)}}),
    "no list": composition("just words"),
    "nothing": composition(""),
    "a tag": composition("- !!python/object/apply:os.system ['true']"),
    "two documents": composition("- {id: a, use: b.c}\n---\n- {id: a, use: b.d}"),
    "servers that are a list": files(all={".mcp.json": '{"mcpServers": ["a"]}'}),
    "servers that are text": files(all={".mcp.json": '{"mcpServers": {"a": "b", "c": null, "d": 1}}'}),
    "no object": files(all={".mcp.json": "[]"}),
    "odd members": files(all={".mcp.json": '{"mcpServers": {"a": {"env": [1], "headers": "x", "command": null, "args": {"a": 1}}}}'}),
    "no home": composition("- include: ~nosuchuser/x.yaml"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_directory_is_an_answer_or_one_mistake(tmp_path, what):
    root = tmp_path / "d"
    root.mkdir()
    HOSTILE[what](root)
    said = look(root)
    assert len(said) < 20_000


def test_nothing_is_imported(tmp_path):
    marker = tmp_path / "marker"
    evil = f"from pathlib import Path\nPath({str(marker)!r}).write_text('run')\n"
    root = put(
        (tmp_path / "d").resolve(),
        {
            **yaml("- {id: a, use: ./evil.py}\n- {id: b, use: evil}\n- {id: c, set: {use: './evil.py:x'}}\n- {id: d, use: p.q}\n"),
            ".hames/evil.py": evil,
            "evil.py": evil,
            "p/__init__.py": evil,
            "sitecustomize.py": evil,
            ".mcp.json": json.dumps({"mcpServers": {"a": {"command": "touch", "args": [str(marker)]}}}),
        },
    )
    subprocess.run([sys.executable, "-c", PROGRAM, str(root)], cwd=root, check=True, capture_output=True)
    executes(root, BELOW)
    assert not marker.exists()


# what lies outside


SECRETS = {
    "a mapping": "github.com:\n  oauth_token: CANARY\n",
    "rows": "- {id: a, use: b.c, password: CANARY}\n",
    "a word": "CANARY\n",
    "broken": "CANARY: [a\nb: 'x\n%CANARY",
    "an alias": "a: *CANARY\n",
    "anchors": "- &CANARY a\n- &CANARY b\n",
    "a tag": "a: !CANARY b\n",
    "a tag handle": "a: !CANARY!b c\n",
    "a directive": "%CANARY x\n--- a\n",
    "a key that is there twice": "CANARY: 1\nCANARY: 2\n",
    "an escape": 'a: "\\CANARY"\n',
    "settings": "[default]\nkey = CANARY\n",
    "JSON": '{"mcpServers": {"CANARY": {"command": "CANARY", "args": ["CANARY"]}}}',
    "broken JSON": '{"CANARY": CANARY}',
    "a key": "-----BEGIN KEY-----\nCANARY\n-----END KEY-----\n",
}


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("way", ["link", "folder", "include", "relative include", "include through a link", "servers", "use"])
def test_nothing_that_lies_outside_is_shown(tmp_path, secret, way):
    outside = tmp_path / "outside"
    put(outside, {"compose.yaml": SECRETS[secret]})
    target = outside / "compose.yaml"
    root = (tmp_path / "d").resolve()
    root.mkdir()
    if way == "link":
        link(FILE, target)(root)
    elif way == "folder":
        link(".hames", outside)(root)
    elif way == "include":
        put(root, yaml(f"- include: {target}"))
    elif way == "relative include":
        put(root, yaml("- include: ../../outside/compose.yaml"))
    elif way == "include through a link":
        put(root, yaml("- include: a.yaml"))
        link(".hames/a.yaml", target)(root)
    elif way == "servers":
        link(".mcp.json", target)(root)
    else:
        put(root, yaml(f"- {{id: a, use: {target}}}"))
    try:
        said = "\n".join(executes(root, BELOW))
    except ConfigError as error:
        said = f"{error.message} {error.remedy}"
    assert "CANARY" not in said


@pytest.mark.parametrize("name", ["/etc/passwd", "/etc/shadow", "../../../../../../etc/passwd"])
def test_the_files_of_the_system_are_not_shown(tmp_path, name):
    root = put((tmp_path / "d").resolve(), yaml(f"- include: {name}"))
    try:
        said = "\n".join(executes(root, BELOW))
    except ConfigError as error:
        said = error.message
    assert "root:" not in said
