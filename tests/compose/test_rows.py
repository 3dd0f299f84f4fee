"""Composition files: what they say, and what is said of mistakes in them."""

from __future__ import annotations

import pytest

from hames.compose import Row, mount_rows, read_rows
from hames.compose.yamltext import parse
from hames.content.errors import ConfigError
from hames.kernel import Host


def written(tmp_path, text):
    path = tmp_path / "rows.yaml"
    path.write_text(text)
    return path


def test_scalars_mean_what_yaml_1_2_says():
    text = "{a: yes, b: on, c: true, d: 010, e: 0o10, f: 1e3, g: ~, h: '1', i: 1_000, j: .5, k: 12:30}"
    assert parse(text, "x").plain() == {
        "a": "yes", "b": "on", "c": True, "d": 10, "e": 8, "f": 1000.0, "g": None, "h": "1", "i": "1_000", "j": 0.5, "k": "12:30"
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {id: a, use: x, id: b}", "rows.yaml:1: the key 'id' stands here twice"),
        ("a: 1", "a composition is a list of rows"),
        ("- a\n- {use: x}\n- {id: b, uses: y}", "rows.yaml:1: a row is a mapping"),
        ("- {id: b, uses: y}", "unknown key 'uses'; did you mean 'use'"),
        ("- {id: a, use: x}\n- {id: a, use: y}", "rows.yaml:2: the id 'a' is used at"),
        ("- {id: a,\n\tuse: x", ": not YAML"),
        ("- {id: a, use: !!python/name:os.system x}", "the tag .*os.system means nothing here"),
        ("- {id: a, use: !run x}", "the tag !run means nothing here"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        read_rows(written(tmp_path, text))


def test_every_bad_row_is_named_at_once(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_rows(written(tmp_path, "- {id: a}\n- {use: x}\n- 5"))
    assert [line.split(": ")[0].rpartition(":")[2] for line in caught.value.message.splitlines()] == ["1", "2", "3"]


def row(id, use, **config):
    return Row(id, use, config, f"test:{id}")


async def test_rows_are_mounted_all_or_none():
    async with Host() as host:
        rows = [row("tools", "hames.tools"), row("files", "hames.toolkit.files"), row("loop", "hames.agents.loop")]
        with pytest.raises(ConfigError, match="row loop needs prompts, which no row provides"):
            await mount_rows(host, rows)
        assert not host.root.children
        mounts = await mount_rows(host, rows[:2])
        assert [mount.state.value for mount in mounts.values()] == ["active", "active"]


async def test_all_violations_of_a_configuration_are_told_with_a_suggestion():
    async with Host() as host:
        with pytest.raises(ConfigError) as caught:
            await mount_rows(host, [row("bash", "hames.toolkit.bash", timeot=3, longest=-1), row("files", "hames.toolkit.fils")])
        text = caught.value.message
        assert "test:bash: config.timeot: is no setting of this plugin; did you mean 'timeout'?" in text
        assert "test:bash: config.longest: Input should be greater than 0" in text
        assert "test:files: row files uses 'hames.toolkit.fils'" in text
