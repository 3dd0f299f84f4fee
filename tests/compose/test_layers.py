"""Rows, groups, includes and patches."""

from __future__ import annotations

from pathlib import Path

import pytest

from hames.compose import check_state, layers, state_directory
from hames.compose.explain import as_data, explained, shown
from hames.compose.layers import MARKER, Layer
from hames.content.errors import ConfigError, NotFoundError

BASE = """
- {id: files, use: hames.toolkit.files}
- id: research
  group:
    - {id: web, use: pack.web, config: {fetch: true, limits: {size: 10, hosts: [a, b]}}}
    - {id: notes, use: pack.notes}
- {id: shell, use: hames.toolkit.bash}
"""


def paths(composition):
    composition.check()
    return [path for path, _ in composition.walk()]


def test_rows_stand_in_the_order_of_the_files(files):
    composition = files(BASE, "- {id: more, use: x}\n- {include: ./deep.yaml}", deep_yaml="- {id: deep, use: y}")
    assert paths(composition) == ["files", "research", "research/web", "research/notes", "shell", "more", "deep"]
    assert [path.name for path in composition.files] == ["layer1.yaml", "layer2.yaml", "deep.yaml"]


def test_a_patch_merges_deeply_replaces_lists_and_deletes_with_null(files):
    change = "- {id: research/web, set: {config: {fetch: null, limits: {hosts: [c]}, extra: 1}}}"
    composition = files(BASE, change)
    assert composition.find("research/web").config.plain() == {"limits": {"size": 10, "hosts": ["c"]}, "extra": 1}


def test_every_value_knows_its_origin_and_what_it_replaced(files):
    composition = files(
        BASE, "\n- {id: research/web, set: {config: {limits: {size: 20}}}}", "- {id: research/web, set: {config: {limits: {size: 30}}}}"
    )
    assert explained(composition, "research/web:config.limits.size").splitlines() == [
        "  config.limits.size = 30  (layer3.yaml:1)",
        "      instead of 20  (layer2.yaml:2)",
        "      instead of 10  (layer1.yaml:5)",
    ]
    assert as_data(composition)[2]["origins"]["config.fetch"] == "layer1.yaml:5"


def test_what_is_shown_says_the_same_when_it_is_read_again(files, tmp_path):
    composition = files(BASE, "- {id: shell, set: {disabled: true, config: {text: 'a: #b', none: ~}}}\n- {id: empty, group: []}")
    again = files(shown(composition))
    assert [{**row, "origins": 0, "origin": 0} for row in as_data(again)] == [
        {**row, "origins": 0, "origin": 0} for row in as_data(composition)
    ]


def test_rows_are_replaced_removed_and_inserted(files):
    changes = """
- {id: shell, replace: {use: other.shell, config: {a: 1}}}
- {id: files, remove: true}
- {id: research, insert: [{id: papers, use: pack.papers}]}
- {insert: [{id: last, use: z}]}
"""
    composition = files(BASE, changes)
    assert paths(composition) == ["research", "research/web", "research/notes", "research/papers", "shell", "last"]
    shell = composition.find("shell")
    assert (shell.use.value, shell.config.plain()) == ("other.shell", {"a": 1})


def test_an_inserted_row_can_be_patched_by_what_follows(files):
    composition = files(BASE, "- {id: new, use: x}\n- {id: new, set: {disabled: true}}")
    assert composition.find("new").is_disabled


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "layer2.yaml:1: a row is a mapping with id and use"),
        (
            "- {id: b, uses: y}",
            "layer2.yaml:1: neither a row (id, use) nor a patch (set, replace, remove, insert) nor an include; did you mean 'use'?",
        ),
        ("- {use: x}", "layer2.yaml:1: a row needs an id"),
        ("- {id: 'a b', use: x}", "'a b' is no id"),
        ("- {id: a, use: x, confg: {}}", "unknown key 'confg'; did you mean 'config'?"),
        ("- {id: a, use: 5}", "use must be text, not a number"),
        ("- {id: a, use: x, config: [1]}", "config must be a mapping"),
        ("- {id: a, use: x, disabled: maybe}", "disabled must be true or false, not text"),
        ("- {id: a, use: x, group: []}", "either use or group"),
        ("- {id: a, use: x, isolate: {tools: 5}}", "isolate.tools is true, or a label"),
        ("- {id: files, use: x}", "there is a row 'files' already, at layer1.yaml:2; change it with 'set' or 'replace'"),
        ("- {id: flies, set: {disabled: true}}", "there is no row 'flies' to set; did you mean 'files'?"),
        ("- {id: research/wib, remove: true}", "did you mean 'research/web'?"),
        ("- {id: files, remove: false}", "'remove' is true"),
        ("- {id: files, set: {}, remove: true}", "one patch does one thing, not set and remove"),
        ("- {id: files, insert: [{id: a, use: b}]}", "'files' is no group to insert into"),
        ("- {id: files, set: {confg: 1}}", "unknown key 'confg'; did you mean 'config'?"),
        ("- {id: files, set: {use: null}}", "keeps its use"),
        ("- {set: {disabled: true}}", "'set' needs the id of a row"),
        ("- {id: files, replace: {id: other, use: x}}", "a replaced row keeps its id 'files'"),
        ("- {include: nowhere.yaml}", "there is no file"),
        ("- {include: 5}", "'include' names a file"),
        ("- {include: layer2.yaml}", "files include each other in a circle: layer2.yaml → layer2.yaml"),
        ("id: a", "a composition is a list of rows"),
        ("- {id: g, group: [{id: a, set: {}}]}", "a group holds rows"),
        ("- {id: g, group: [{id: a, use: x}, {id: a, use: y}]}", "there is a row 'g/a' already"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_what_was_meant(files, text, said):
    with pytest.raises(ConfigError) as caught:
        files(BASE, text).check()
    assert said in caught.value.message and caught.value.message.count("\n") == 0


def test_every_mistake_of_every_file_is_named_at_once(files):
    with pytest.raises(ConfigError) as caught:
        files("- {id: a}\n- {use: x}\n- 5", "- {id: nobody, remove: true}\n- {id: b, use: y, x: 1}").check()
    assert [line.rpartition(": ")[0][:13] for line in caught.value.message.splitlines()][-1].startswith("layer2.yaml:2")
    assert caught.value.message.count("\n") == 4


def test_an_unknown_row_or_value_is_answered_with_what_is_near(files):
    composition = files(BASE)
    with pytest.raises(NotFoundError, match="did you mean 'research/web'"):
        explained(composition, "research/wbe")
    with pytest.raises(NotFoundError, match=r"did you mean .config\.fetch."):
        explained(composition, "research/web:config.fech")


def test_the_user_file_comes_after_the_profile_and_before_patches(tmp_path):
    (tmp_path / "compose.yaml").write_text("[]")
    patch = tmp_path / "patch.yaml"
    patch.write_text("[]")
    found = layers(Layer(Path("profile.yaml")), [patch], {"HAMES_HOME": str(tmp_path)})
    assert [layer.path.name for layer in found] == ["profile.yaml", "compose.yaml", "patch.yaml"]
    with pytest.raises(ConfigError, match="there is no file"):
        layers(Layer(Path("profile.yaml")), [tmp_path / "gone"], {})


def test_state_lives_where_it_is_named_else_in_the_xdg_place():
    assert state_directory({"HAMES_STATE": "/a"}, "/b") == Path("/b")
    assert state_directory({"HAMES_STATE": "/a"}) == Path("/a")
    assert state_directory({"XDG_STATE_HOME": "/x"}) == Path("/x/hames")


def test_state_and_checkout_must_not_lie_in_each_other(tmp_path):
    top = tmp_path / "repository"
    (top / ".git").mkdir(parents=True)
    (top / ".git" / "HEAD").touch()
    (top / "deep").mkdir()
    check_state(tmp_path / "state", top / "deep")
    with pytest.raises(ConfigError, match="is inside the checkout"):
        check_state(top / "state", top / "deep")
    with pytest.raises(ConfigError, match="is inside the state directory"):
        check_state(tmp_path, top)
    (top / MARKER).touch()
    check_state(tmp_path, top)
