"""Decisions about directories: what is trusted, and what stops being it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from hames.content.clock import Clock
from hames.content.errors import ConfigError, StorageError
from hames.testing.clock import FakeClock
from hames.trust import Trust
from hames.trust.executes import digest

FILE = ".hames/compose.yaml"


def put(root, text="- {id: a, use: x.y}\n"):
    (root / ".hames").mkdir(parents=True, exist_ok=True)
    (root / FILE).write_text(text)
    return root


@pytest.fixture
def place(tmp_path):
    return put(tmp_path / "d")


@pytest.fixture
def trust(tmp_path):
    return Trust(tmp_path / "trust")


def kept(tmp_path):
    (path,) = (tmp_path / "trust").iterdir()
    return path


def grant(trust, place):
    trust.decide(trust.status(place), True)


def test_nobody_has_decided_at_first(trust, place):
    status = trust.status(place)
    assert (status.standing, status.directory) == ("undecided", place.resolve())
    assert status.executes == ('.hames/compose.yaml: a use "x.y"',)
    assert trust.all() == []


def test_a_grant_holds_until_what_executes_changes_and_again_when_it_is_as_before(trust, place):
    grant(trust, place)
    assert trust.status(place).standing == "granted"
    put(place, "- {id: a, use: x.z}\n")
    changed = trust.status(place)
    assert changed.standing == "changed" and changed.before != changed.executes
    put(place)
    assert trust.status(place).standing == "granted"


def test_a_grant_outlasts_the_process_and_is_private(trust, place, tmp_path):
    grant(trust, place)
    assert Trust(tmp_path / "trust").status(place).standing == "granted"
    assert kept(tmp_path).stat().st_mode & 0o077 == 0


def test_a_refusal_is_remembered_whatever_changes(trust, place):
    trust.decide(trust.status(place), False)
    assert trust.status(place).standing == "refused"
    put(place, "- {id: a, use: x.z}\n")
    assert trust.status(place).standing == "refused"
    assert trust.all() == [(place.resolve(), False)]


def test_what_is_granted_is_what_was_looked_at(trust, place):
    looked = trust.status(place)
    put(place, "- {id: a, use: evil.one}\n")
    trust.decide(looked, True)
    assert trust.status(place).standing == "changed"


def test_an_empty_directory_can_be_trusted_and_is_not_any_more_when_it_executes(trust, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    grant(trust, empty)
    assert trust.status(empty).standing == "granted"
    put(empty)
    assert trust.status(empty).standing == "changed"


def test_revoking_forgets(trust, place):
    assert not trust.revoke(place)
    grant(trust, place)
    assert trust.revoke(place) and not trust.revoke(place)
    assert trust.status(place).standing == "undecided"


def test_revoking_works_for_what_is_gone(trust, place, tmp_path):
    grant(trust, place)
    place.rename(tmp_path / "elsewhere")
    assert trust.revoke(place) and trust.all() == []


def test_a_link_to_itself_in_place_of_a_directory_is_no_accident(trust, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(ConfigError):
        trust.revoke(loop)


def test_a_directory_is_known_by_every_way_that_leads_to_it(trust, place, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(place)
    (tmp_path / "link2").symlink_to("link")
    grant(trust, tmp_path / "link2")
    monkeypatch.chdir(place)
    for way in (place, tmp_path / "link", place / ".hames" / "..", Path(".")):
        assert trust.status(way).standing == "granted"
    assert trust.all() == [(place.resolve(), True)]
    assert trust.revoke(tmp_path / "link")


def test_a_link_that_leads_elsewhere_now_is_another_directory(trust, place, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(place)
    grant(trust, link)
    link.unlink()
    link.symlink_to(put(tmp_path / "other"))
    assert trust.status(link).standing == "undecided"


def test_a_moved_directory_is_another_one(trust, place, tmp_path):
    grant(trust, place)
    place.rename(tmp_path / "moved")
    assert trust.status(tmp_path / "moved").standing == "undecided"
    put(place, "- {id: a, use: evil.one}\n")  # and what stands in its place is looked at
    assert trust.status(place).standing == "changed"


def test_a_directory_above_or_below_is_not_trusted_with_it(trust, place, tmp_path):
    grant(trust, place)
    put(place / "below")
    assert trust.status(place / "below").standing == "undecided"
    assert trust.status(tmp_path).standing == "undecided"


@pytest.mark.parametrize("default", ["ask", "always", "never"])
def test_the_default_holds_where_nobody_has_decided(tmp_path, place, default):
    trust = Trust(tmp_path / "trust", default)
    assert trust.status(place).standing == ("granted" if default == "always" else "undecided")
    grant(trust, place)
    assert trust.status(place).standing == ("undecided" if default == "never" else "granted")


def test_the_time_of_a_decision_is_kept(tmp_path, place):
    clock = FakeClock()
    grant(Trust(tmp_path / "trust", clock=clock), place)
    assert json.loads(kept(tmp_path).read_text())["time"] == clock.now()
    assert isinstance(clock, Clock)


# damaged decisions


def damaged(file, changes):
    record = json.loads(file.read_text())
    for key, value in changes.items():
        if value is KeyError:
            record.pop(key)
        else:
            record[key] = value
    file.write_text(json.dumps(record))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"\0" * 64, b"{}", b'"granted"', b"[" * 100_000], ids=repr)
def test_a_damaged_decision_trusts_nothing(trust, place, tmp_path, content):
    grant(trust, place)
    kept(tmp_path).write_bytes(content)
    assert trust.status(place).standing == "undecided"
    trust.all()


def test_a_decision_cut_anywhere_trusts_nothing(trust, place, tmp_path):
    grant(trust, place)
    path = kept(tmp_path)
    whole = path.read_bytes().rstrip()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert trust.status(place).standing == "undecided"


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "/elsewhere"},
        {"path": KeyError},
        {"path": None},
        {"granted": KeyError},
        {"granted": None},
        {"granted": 0},
        {"digest": KeyError},
        {"digest": None},
        {"digest": "0" * 64},
        {"digest": 5},
        {"executes": []},
        {"executes": ["other"]},
        {"executes": KeyError},
        {"executes": None},
        {"executes": 5},
        {"executes": "text"},
        {"executes": {"a": "b"}},
        {"executes": [None, 1]},
        {"digest": digest([]), "executes": []},
    ],
    ids=str,
)
def test_a_decision_that_was_tampered_with_trusts_nothing(trust, place, tmp_path, changes):
    grant(trust, place)
    damaged(kept(tmp_path), changes)
    assert trust.status(place).standing != "granted"
    trust.all()


def test_a_decision_of_another_directory_does_not_count_for_this_one(trust, place, tmp_path):
    grant(trust, place)
    path = kept(tmp_path)
    other = put(tmp_path / "other")
    grant(trust, other)
    (mine,) = (each for each in (tmp_path / "trust").iterdir() if each != path)
    mine.write_bytes(path.read_bytes())
    assert trust.status(other).standing == "undecided"


def test_what_a_crash_left_of_a_decision_is_none(trust, place, tmp_path):
    grant(trust, place)
    path = kept(tmp_path)
    path.rename(path.with_name(f".{path.name}.0123abcd"))
    assert trust.status(place).standing == "undecided" and trust.all() == []


def test_a_decision_that_cannot_be_kept_says_so_and_leaves_nothing(place, tmp_path):
    (tmp_path / "file").write_text("")
    trust = Trust(tmp_path / "file" / "trust")
    with pytest.raises(StorageError):
        grant(trust, place)
    assert trust.status(place).standing == "undecided"


def test_a_directory_whose_name_is_no_text_is_decided_about_or_refused(trust, tmp_path):
    odd = put(tmp_path / os.fsdecode(b"d\xff"))
    try:
        grant(trust, odd)
    except StorageError:
        pass
    left = list((tmp_path / "trust").iterdir()) if (tmp_path / "trust").exists() else []
    assert all(path.suffix == ".json" for path in left)


# races


def test_decisions_at_the_same_time_leave_a_whole_one(trust, place, tmp_path):
    status = trust.status(place)
    errors = []

    def decide(granted):
        try:
            for _ in range(10):
                trust.decide(status, granted)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=decide, args=(n % 2 == 0,)) for n in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert trust.status(place).standing in ("granted", "refused", "undecided")
    for thread in threads:
        thread.join()
    assert errors == [] and trust.status(place).standing in ("granted", "refused")
    assert [path.suffix for path in (tmp_path / "trust").iterdir()] == [".json"]


def test_revoking_beside_a_decision_harms_neither(trust, place):
    status = trust.status(place)
    errors = []

    def work(body):
        try:
            for _ in range(20):
                body()
        except Exception as error:
            errors.append(error)

    bodies = [lambda: trust.decide(status, True), lambda: trust.revoke(place), trust.all, lambda: trust.status(place)]
    threads = [threading.Thread(target=work, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
