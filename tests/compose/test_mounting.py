"""From rows to mounts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hames.compose import Interpolation, mount, plan
from hames.content.errors import ConfigError
from hames.kernel import Host, Key, State

LOCAL = """
from pydantic import BaseModel, ConfigDict
from hames.kernel import Key, plugin

LOG = []
GREETING = Key("greeting")


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = "hello"
    times: int = 1


@plugin(config=Settings)
def greeter(ctx, config):
    ctx.provide(GREETING, config.text * config.times)
    LOG.append("up")
    yield
    LOG.append("down")


@plugin(needs=(GREETING,))
def reader(ctx, config):
    LOG.append(ctx.use(GREETING))


@plugin()
def broken(ctx, config):
    raise RuntimeError("no luck")


@plugin(needs=(Key("nobody"),))
def lonely(ctx, config):
    pass


@plugin()
def leaky(ctx, config):
    ctx.at(ctx.host.root_scope).provide(Key("leak"), 1)
"""


@pytest.fixture
def planned(files):
    def make(rows, environment=None, **named):
        return plan(files(rows, local_py=named.pop("local_py", LOCAL), **named), Interpolation(environment or {}, Path("/project")))

    return make


def module(planned):
    return sys.modules[planned[0].plugin.body.__module__]


async def test_rows_are_mounted_as_one_and_end_in_reverse(planned):
    rows = planned("- {id: read, use: './local.py:reader'}\n- {id: g, group: [{id: greet, use: './local.py:greeter', config: {times: 2}}]}")
    log = module(rows).LOG
    async with Host() as host:
        mounts = await mount(host, rows)
        assert {path: each.state for path, each in mounts.items()} == dict.fromkeys(("read", "g", "g/greet"), State.ACTIVE)
        assert mounts["g/greet"].label == "g/greet"
        assert log == ["up", "hellohello"]
    assert log[-1] == "down" and not host.root.children


async def test_one_bad_row_unwinds_all(planned):
    rows = planned(
        "- {id: greet, use: './local.py:greeter'}\n- {id: bad, use: './local.py:broken'}\n- {id: alone, use: './local.py:lonely'}"
    )
    async with Host() as host:
        with pytest.raises(ConfigError) as caught:
            await mount(host, rows)
        assert "row bad did not start: RuntimeError: no luck (" in caught.value.message
        assert "row alone needs nobody, which no row provides" in caught.value.message
        assert not host.root.children and module(rows).LOG[-1] == "down"


async def test_a_service_that_leaks_out_of_its_composition_is_found(planned):
    rows = planned("- {id: leaky, use: './local.py:leaky'}")
    async with Host() as host:
        workspace = host.scope(key="workspace")
        with pytest.raises(ConfigError, match="row leaky provides leak in scope 'host', outside of its composition"):
            await mount(host, rows, workspace)
        assert not host.root_scope.provisions


async def test_disabled_rows_are_not_imported(planned):
    rows = planned("- {id: a, use: './local.py:greeter'}\n- {id: b, use: no.such.module, disabled: true}")
    assert [each.path for each in rows] == ["a"]


async def test_isolated_rows_have_instances_of_their_own(planned):
    text = """
- {id: one, isolate: {greeting: true}, group: [{id: w, use: './local.py:greeter', config: {text: a}}, {id: r, use: './local.py:reader'}]}
- {id: two, isolate: {greeting: pair}, group: [{id: w, use: './local.py:greeter', config: {text: b}}, {id: r, use: './local.py:reader'}]}
- {id: three, isolate: {greeting: pair}, group: [{id: r, use: './local.py:reader'}]}
"""
    rows = planned(text)
    async with Host() as host:
        await mount(host, rows)
        assert host.get(module([rows[0].rows[0]]).GREETING) is None
    assert sorted(x for x in module([rows[0].rows[0]]).LOG if len(x) == 1) == ["a", "b", "b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {id: a, use: hames.toolkit.fils}", "layer1.yaml:1: there is no plugin 'hames.toolkit.fils'"),
        ("- {id: a, use: nothing-of-this-name}", "there is no plugin 'nothing-of-this-name'"),
        ("- {id: a, use: hames.toolkit.files:fils}", "hames.toolkit.files:fils names no plugin; did you mean 'files'?"),
        ("- {id: a, use: hames.content.errors}", "has no plugin"),
        ("- {id: a, use: ./local.py}", "has several plugins (greeter, reader, broken, lonely, leaky); write ./local.py:greeter"),
        ("- {id: a, use: ./gone.py}", "gone.py: No such file or directory"),
        ("- {id: a, use: ./bad.py}", "bad.py:2: not Python"),
        ("- {id: a, use: ./raises.py}", "failed: ZeroDivisionError: division by zero ("),
        ("- {id: a, use: ./lacks.py}", "No module named 'not_installed_here'"),
        (
            "- {id: a, use: './local.py:greeter', config: {txt: x}}",
            "layer1.yaml:1: config.txt is no setting of greeter; did you mean 'text'?",
        ),
        ("- id: a\n  use: ./local.py:greeter\n  config:\n    times: many", "layer1.yaml:4: config.times input should be a valid integer"),
        ("- {id: a, use: './local.py:reader', config: {x: 1}}", "reader takes no config"),
        (
            "- {id: a, use: './local.py:greeter', isolate: {greting: true}}",
            "no row here knows a service 'greting'; did you mean 'greeting'?",
        ),
        ("- {id: a, use: './local.py:greeter', config: {text: '${env:NOPE}'}}", "the environment variable NOPE is not set"),
        ("- {id: a, use: './local.py:greeter', config: {text: '${workspce}'}}", "${workspce} is not known; did you mean 'workspace'?"),
    ],
)
async def test_mistakes_are_found_before_anything_is_mounted(planned, text, said):
    with pytest.raises(ConfigError) as caught:
        planned(text, bad_py="x = 1\ndef (", raises_py="1 / 0", lacks_py="import not_installed_here")
    assert said in caught.value.message


async def test_all_mistakes_of_all_rows_are_named_at_once(planned):
    text = "- {id: a, use: './local.py:greeter', config: {txt: 1, times: x}}\n- {id: b, use: no.where}\n- {id: c, use: 5}"
    with pytest.raises(ConfigError) as caught:
        planned(text)
    assert caught.value.message.count("\n") == 3


async def test_values_from_outside_are_filled_in(planned):
    text = (
        "- {id: a, use: './local.py:greeter', config: {text: '$$1 ${env:WHO} ${env:NOT:-no one} ${env:EMPTY:-x} ${workspace}${env:NOT:-}'}}"
    )
    rows = planned(text, {"WHO": "you ${home}", "EMPTY": ""})
    assert rows[0].config.text == "$1 you ${home} no one  /project"


async def test_equal_code_is_one_module_and_changed_code_another(planned, files):
    first = planned("- {id: a, use: './local.py:greeter'}")
    again = planned("- {id: b, use: './local.py:reader'}")
    assert module(first) is module(again)
    changed = planned("- {id: a, use: './local.py:greeter'}", local_py=LOCAL + "\n# changed\n")
    assert module(changed) is not module(first)
    assert isinstance(module(changed).GREETING, Key) and module(changed).GREETING is not module(first).GREETING


async def test_what_a_local_plugin_imports_belongs_to_its_code(planned):
    text = "from .helper import WORD\nfrom hames.kernel import plugin\n\n@plugin()\ndef p(ctx, config):\n    ctx.provide(str, WORD)\n"
    seen = []
    for word in ("one", "two"):
        rows = planned("- {id: a, use: './local.py'}", local_py=text, helper_py=f"WORD = {word!r}")
        async with Host() as host:
            await mount(host, rows)
            seen.append(host.get(str))
    assert seen == ["one", "two"]
