"""What YAML means in a composition."""

from __future__ import annotations

import pytest

from hames.compose.yamltext import parse
from hames.content.errors import ConfigError


def test_scalars_mean_what_yaml_1_2_says():
    text = "{a: yes, b: on, c: true, d: 010, e: 0o10, f: 1e3, g: ~, h: '1', i: 1_000, j: .5, k: 12:30, l: 2001-01-01, on: no}"
    assert parse(text, "x").plain() == {
        "a": "yes",
        "b": "on",
        "c": True,
        "d": 10,
        "e": 8,
        "f": 1000.0,
        "g": None,
        "h": "1",
        "i": "1_000",
        "j": 0.5,
        "k": "12:30",
        "l": "2001-01-01",
        "on": "no",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {id: a, use: x, id: b}", "x.yaml:1: the key 'id' stands here twice"),
        ("- {id: a,\n\tuse: x", "x.yaml:3: not YAML"),
        ("\tid: a", "x.yaml:1: not YAML"),
        ("- {id: a, use: !!python/name:os.system x}", "the tag of this value means nothing here"),
        ("- {id: a, use: !run x}", "the tag of this value means nothing here"),
        ("- &a [*a]", "an anchor contains itself"),
        ("a: 1\n---\nb: 2", "not YAML"),
        ("{[a]: 1}", "a key must be a plain word"),
        ("x" * 5_000_000, "too many for a composition"),
    ],
)
def test_mistakes_are_named_with_their_line(text, said):
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml")
    assert said in caught.value.message and caught.value.remedy


def test_aliases_are_values_of_their_own_and_cannot_multiply_without_end():
    assert parse("- &a {x: 1}\n- *a", "x").plain() == [{"x": 1}, {"x": 1}]
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    with pytest.raises(ConfigError, match="more than 200000 values"):
        parse(bomb, "x")
