"""``hames doctor``: what is wrong, and salvage."""

from pathlib import Path
from typing import Any

import pytest

PAGE = 4096


def overwrite(hames: Any, text: str, *, page: bool) -> None:
    """Flip a byte of the one event that holds a text, or overwrite the page that it stands on."""
    path: Path = hames.state / "sessions.db"
    data = path.read_bytes()
    assert data.count(text.encode()) == 1
    place = data.index(text.encode())
    with path.open("r+b") as file:
        file.seek(place // PAGE * PAGE if page else place + 2)
        file.write(b"\xa5" * PAGE if page else bytes([data[place + 2] ^ 1]))


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {item["what"]: item["verdict"] for item in found["findings"]}


def texts(hames: Any, session: str, of_type: Any) -> list[str]:
    return [block["text"].replace("words ", "") for block in of_type(hames.events(session), "text")]


def whole(n: int) -> list[str]:
    return [f"<prompt {n}>", *(f"<{n}.{step}>" for step in range(13))]


def test_a_sound_state_is_ok(hames: Any, three_long: list[str]) -> None:
    found = hames.json("doctor")
    assert verdicts(found)["sessions.db"] == "ok"
    assert "fail" not in verdicts(found).values()
    done = hames.run("doctor")
    assert done.returncode == 0
    assert "ok    sessions.db" in done.stdout


def test_a_state_that_is_not_there_yet_is_ok(hames: Any) -> None:
    found = hames.json("doctor")
    assert "sessions.db" not in verdicts(found)
    assert verdicts(found)["state"] == "ok"


def test_a_state_that_cannot_be_written_fails(hames: Any) -> None:
    hames.state.write_text("a file")
    found = hames.json("doctor", status=1)
    assert verdicts(found)["state"] == "fail"
    (item,) = (item for item in found["findings"] if item["what"] == "state")
    assert "--state-dir" in item["remedy"]


def test_an_overwritten_page_fails_with_the_way_out(hames: Any, three_long: list[str]) -> None:
    overwrite(hames, "<1.5>", page=True)
    done = hames.run("doctor")
    assert done.returncode == 1
    assert done.stderr == ""
    (line,) = (line for line in done.stdout.splitlines() if "sessions.db" in line)
    assert line.startswith("fail")
    assert "hames doctor --salvage" in line
    assert verdicts(hames.json("doctor", status=1))["sessions.db"] == "fail"


def test_a_record_that_does_not_match_its_checksum_fails(hames: Any, three_long: list[str]) -> None:
    overwrite(hames, "<1.5>", page=False)
    found = hames.json("doctor", status=1)
    assert verdicts(found)["sessions.db"] == "fail"
    (item,) = (item for item in found["findings"] if item["what"] == "sessions.db")
    assert three_long[1] in item["detail"]
    assert "--salvage" in item["remedy"]


def test_a_file_that_is_no_database_fails(hames: Any) -> None:
    hames.state.mkdir()
    (hames.state / "sessions.db").write_bytes(b"\xa5" * 8192)
    assert verdicts(hames.json("doctor", status=1))["sessions.db"] == "fail"


@pytest.mark.parametrize("page", [False, True], ids=["record", "page"])
def test_salvage_keeps_the_damaged_file_and_all_other_sessions(hames: Any, three_long: list[str], of_type: Any, page: bool) -> None:
    overwrite(hames, "<1.5>", page=page)
    damaged = (hames.state / "sessions.db").read_bytes()
    done = hames.run("doctor", "--salvage")
    assert (done.returncode, done.stderr) == (0, "")
    kept = hames.state / "sessions.db.damaged-1"
    assert str(kept) in done.stdout
    assert kept.read_bytes() == damaged
    assert verdicts(hames.json("doctor"))["sessions.db"] == "ok"
    for n in (0, 2):
        assert texts(hames, three_long[n], of_type) == whole(n)
        found = hames.json("run", "go on", "--resume", three_long[n])
        assert (found["status"], found["text"]) == ("completed", "Again 0.")
        assert texts(hames, three_long[n], of_type) == [*whole(n), "go on", "Again 0."]
    found = texts(hames, three_long[1], of_type)
    assert [text for text in whole(1) if text in found] == found
    assert 6 < len(found) < 14
    assert hames.run("sessions", "show", three_long[1]).returncode == 0
    assert {event["type"] for event in hames.events(three_long[1])} >= {"message", "lost"}


def test_salvage_keeps_the_requests_of_other_sessions(hames: Any, three_long: list[str]) -> None:
    before = [hames.run("sessions", "export", name, "--requests").stdout for name in three_long]
    overwrite(hames, "<1.5>", page=False)
    assert hames.run("doctor", "--salvage").returncode == 0
    for n in (0, 2):
        assert hames.run("sessions", "export", three_long[n], "--requests").stdout == before[n]


def test_salvage_says_how_much_was_lost(hames: Any, three_long: list[str]) -> None:
    overwrite(hames, "<1.5>", page=True)
    found = hames.json("doctor", "--salvage")
    assert Path(found["damaged"]).exists()
    events = found["tables"]["events"]
    lost = sum(event["type"] == "lost" for event in hames.events(three_long[1]))
    assert lost > 0
    assert events["damaged"] >= lost


@pytest.mark.parametrize("content", [None, b"\xa5" * 8192], ids=["missing", "rubbish"])
def test_salvage_of_nothing_is_a_fault_in_a_line_and_changes_nothing(hames: Any, content: bytes | None) -> None:
    hames.state.mkdir()
    if content is not None:
        (hames.state / "sessions.db").write_bytes(content)
    before = {path.name: path.read_bytes() for path in hames.state.iterdir()}
    done = hames.run("doctor", "--salvage")
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2
    assert {path.name: path.read_bytes() for path in hames.state.iterdir()} == before
