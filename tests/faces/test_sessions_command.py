"""``hames sessions``: listing, showing and exporting."""

import json
import struct
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest


def damage(hames: Any, change: Callable[[bytes, int], tuple[int, bytes]], text: str) -> None:
    """Overwrite bytes of the database near a text that stands in one place of the events."""
    path = hames.state / "sessions.db"
    data = path.read_bytes()
    place = data.index(text.encode())
    at, new = change(data, place)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(new)


def flip(data: bytes, place: int) -> tuple[int, bytes]:
    return place + 3, bytes([data[place + 3] ^ 1])


def wipe(data: bytes, place: int) -> tuple[int, bytes]:
    return place // 4096 * 4096, b"\xa5" * 4096


def odd_time(data: bytes, place: int) -> tuple[int, bytes]:
    """The time of the event is the big-endian float before the word ``message``."""
    return data.rindex(b"message", 0, place) - 8, struct.pack(">d", 1e300)


def shown(hames: Any, session: str) -> list[dict[str, Any]]:
    return list(hames.json("sessions", "show", session)["events"])


def test_no_sessions_are_an_empty_list(hames: Any) -> None:
    assert hames.json("sessions", "list") == {"sessions": []}
    done = hames.run("sessions", "list")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "there are no sessions\n")


def test_the_list_has_the_newest_first(hames: Any, three: list[str]) -> None:
    found = hames.json("sessions", "list")["sessions"]
    assert [line["id"] for line in found] == three[::-1]
    assert {line["state"] for line in found} == {"idle"}
    assert {Path(line["cwd"]).name for line in found} == {"work"}
    assert [line["title"] for line in found] == [f"<prompt {n}>" for n in (2, 1, 0)]
    assert {line["events"] for line in found} == {5}
    lines = hames.run("sessions", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == three[::-1]
    created = datetime.fromtimestamp(found[0]["created"]).strftime("%Y-%m-%d %H:%M")
    assert created in lines[0]


def test_show_has_every_event(hames: Any, three: list[str]) -> None:
    assert [event["type"] for event in shown(hames, three[1])] == ["start", "turn", "message", "message", "end"]
    lines = hames.run("sessions", "show", three[1]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3", "4"]
    assert lines[2].endswith("user: <prompt 1>")
    assert lines[3].endswith("model: Hello 1.")


@pytest.mark.parametrize("command", ["show", "export"])
@pytest.mark.parametrize("name", ["1m8q3dc3m19wh", "nonsense", "", "../../etc/passwd", "ü"])
def test_an_unknown_session_is_invalid_input(inline: Any, three: list[str], command: str, name: str) -> None:
    done = inline.run("sessions", command, name)
    assert (done.returncode, done.stdout) == (2, "")
    said, remedy = done.stderr.splitlines()
    assert said.startswith("hames: there is no session")
    assert "sessions list" in remedy


def test_an_unknown_command_is_invalid_input(inline: Any) -> None:
    done = inline.run("sessions", "lits")
    assert (done.returncode, done.stdout) == (2, "")
    assert "lits" in done.stderr


# export


def test_export_is_a_header_and_the_events_as_lines(hames: Any, three: list[str]) -> None:
    lines = [json.loads(line) for line in hames.run("sessions", "export", three[0]).stdout.splitlines()]
    assert {key: lines[0][key] for key in ("hames_session", "format", "events")} == {
        "hames_session": three[0],
        "format": 1,
        "events": len(lines) - 1,
    }
    assert lines[1:] == shown(hames, three[0])


def test_export_has_the_requests_as_they_were_sent(hames: Any, three: list[str]) -> None:
    lines = [json.loads(line) for line in hames.run("sessions", "export", three[0], "--requests").stdout.splitlines()]
    (request,) = (line for line in lines if "request" in line)
    body = json.loads(request["body"])
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["messages"][1]["content"] == "<prompt 0>"
    assert body["tools"]


def test_export_writes_a_file(hames: Any, three: list[str]) -> None:
    done = hames.run("sessions", "export", three[0], "-o", "out.jsonl")
    assert (done.returncode, done.stdout) == (0, "")
    assert (hames.work / "out.jsonl").read_text() == hames.run("sessions", "export", three[0]).stdout


@pytest.mark.parametrize("name", ["missing/out.jsonl", "/dev/full"])
def test_export_to_where_nothing_can_be_written_is_a_fault_in_a_line(hames: Any, three: list[str], name: str) -> None:
    done = hames.run("sessions", "export", three[0], "-o", name)
    assert done.returncode in (1, 2)
    assert done.stderr


def test_a_reader_that_has_gone_is_no_fault_to_shout_about(hames: Any, hello: str) -> None:
    session = hames.json("run", "x" * 100_000, "--model", hello)["session"]
    child = hames.start("sessions", "export", session, "--requests")
    child.stdout.close()
    errors = child.stderr.read()
    child.wait(timeout=20)
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors


def test_a_full_output_is_a_fault_in_a_line(hames: Any, three: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = hames.run("sessions", "show", three[0], stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr


# damage


def test_show_marks_exactly_the_damaged_record(hames: Any, three: list[str]) -> None:
    damage(hames, flip, "<prompt 1>")
    events = shown(hames, three[1])
    assert [event["seq"] for event in events if event.get("damaged")] == [2]
    assert events[2]["data"] == {}
    lines = hames.run("sessions", "show", three[1]).stdout.splitlines()
    assert len(lines) == 5
    assert [number for number, line in enumerate(lines) if "DAMAGED" in line] == [2]
    assert lines[3].endswith("model: Hello 1.")


def test_a_damaged_session_is_not_resumed_and_others_are(hames: Any, three: list[str]) -> None:
    damage(hames, flip, "<prompt 1>")
    found = hames.json("run", "go on", "--resume", three[1], status=1)
    assert found["error"]["code"] == "STORAGE_DAMAGED"
    assert f"hames sessions show {three[1]}" in found["error"]["remedy"]
    done = hames.run("run", "go on", "--resume", three[1])
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 2)
    for name in (three[0], three[2]):
        assert hames.json("run", "go on", "--resume", name)["text"] == "Hello 2."
    assert {line["id"]: line["state"] for line in hames.json("sessions", "list")["sessions"]} == dict.fromkeys(three, "idle")


def test_a_damaged_session_is_still_in_the_list(hames: Any, three: list[str]) -> None:
    damage(hames, flip, "<prompt 1>")
    titles = [line["title"] for line in hames.json("sessions", "list")["sessions"]]
    assert (titles[0], titles[2]) == ("<prompt 2>", "<prompt 0>")


def test_a_damaged_session_is_exported_with_its_damage_marked(hames: Any, three: list[str]) -> None:
    damage(hames, flip, "<prompt 1>")
    lines = [json.loads(line) for line in hames.run("sessions", "export", three[1]).stdout.splitlines()]
    assert [line["seq"] for line in lines[1:] if line.get("damaged")] == [2]


def test_a_time_that_is_damaged_is_marked_too(hames: Any, three: list[str]) -> None:
    damage(hames, odd_time, "<prompt 1>")
    assert [event["seq"] for event in shown(hames, three[1]) if event.get("damaged")] == [2]
    lines = hames.run("sessions", "show", three[1]).stdout.splitlines()
    assert [number for number, line in enumerate(lines) if "DAMAGED" in line] == [2]


def test_a_type_that_is_no_unicode_is_marked_and_stops_no_list(hames: Any, three: list[str]) -> None:
    damage(hames, lambda data, place: (data.rindex(b"message", 0, place), b"\xff\xfe"), "<prompt 1>")
    assert len(hames.json("sessions", "list")["sessions"]) == 3
    assert [event["seq"] for event in shown(hames, three[1]) if event.get("damaged")] == [2]


@pytest.mark.parametrize("arguments", [("list",), ("show", "1"), ("export", "1")], ids=lambda value: value[0])
def test_an_overwritten_page_is_one_line_with_a_way_out(hames: Any, three: list[str], arguments: tuple[str, ...]) -> None:
    damage(hames, wipe, "<prompt 1>")
    done = hames.run("sessions", *(three[1] if word == "1" else word for word in arguments))
    assert (done.returncode, done.stdout) == (1, "")
    said, remedy = done.stderr.splitlines()
    assert "damaged" in said
    assert "hames doctor --salvage" in remedy


def test_an_overwritten_page_has_its_code_in_json(hames: Any, three: list[str]) -> None:
    damage(hames, wipe, "<prompt 1>")
    assert hames.json("sessions", "show", three[1], status=1)["error"]["code"] == "STORAGE_DAMAGED"
    assert hames.json("run", "go on", "--resume", three[1], status=1)["error"]["code"] == "STORAGE_DAMAGED"


def test_a_damaged_start_of_the_file_is_one_line_with_a_way_out(hames: Any, three: list[str]) -> None:
    damage(hames, lambda data, place: (0, b"\xa5" * 4096), "<prompt 1>")
    done = hames.run("sessions", "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert "hames doctor --salvage" in done.stderr
    assert hames.json("run", "x", "--resume", three[0], status=1)["error"]["code"] == "STORAGE_DAMAGED"
