"""``hames run``: output, exit status, and errors in a line."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.compose import running
from hames.content.clock import Clock
from hames.faces.cli.run import exit_status
from hames.profiles import profile
from hames.store import STATE
from hames.testing.clock import FakeClock

# what is printed where


def test_the_answer_goes_to_stdout_and_progress_to_stderr(hames: Any) -> None:
    model = hames.script(
        {"text": "I look.", "calls": [{"name": "bash", "arguments": {"command": "echo a; echo b"}}]}, {"text": "Done.\nAll."}
    )
    done = hames.run("run", "look", "--model", model)
    assert (done.returncode, done.stdout) == (0, "Done.\nAll.\n")
    assert '> bash {"command":"echo a; echo b"}' in done.stderr
    assert "bash: 2 lines" in done.stderr
    assert f"hames run --resume {hames.session()['id']}" in done.stderr


def test_json_is_one_object_and_nothing_else(hames: Any) -> None:
    model = hames.script(
        {"text": "I look.", "calls": [{"name": "bash", "arguments": {"command": "echo a"}}], "usage": {"input": 5, "output": 2}},
        {"text": "Done.", "usage": {"input": 9, "output": 1}},
    )
    child = hames.run("run", "look", "--model", model, "--json")
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout.count("\n") == 1
    assert json.loads(child.stdout) == {
        "session": hames.session()["id"],
        "model": model,
        "status": "completed",
        "text": "Done.",
        "usage": {"input": 14, "output": 3},
        "steps": 2,
    }


def test_the_prompt_may_come_from_stdin(hames: Any, hello: str, of_type: Any) -> None:
    done = hames.run("run", "-", "--model", hello, stdin="first line\nsecond ü\n")
    assert (done.returncode, done.stdout) == (0, "Hello 1.\n")
    assert of_type(hames.events(hames.session()["id"]), "text")[0]["text"] == "first line\nsecond ü\n"


def test_a_session_goes_on_with_its_directory_and_model(hames: Any, hello: str, of_type: Any, tmp_path: Path) -> None:
    first = hames.json("run", "one", "--model", hello)
    second = hames.json("run", "two", "--resume", first["session"], cwd=tmp_path)
    assert (second["session"], second["model"], second["text"]) == (first["session"], hello, "Hello 2.")
    assert hames.session()["cwd"] == str(hames.work)
    texts = [block["text"] for block in of_type(hames.events(first["session"]), "text")]
    assert texts == ["one", "Hello 1.", "two", "Hello 2."]


def test_runs_beside_each_other_do_not_disturb_each_other(hames: Any, hello: str, of_type: Any) -> None:
    children = [hames.start("run", f"prompt {n}", "--model", hello, "--json") for n in range(4)]
    found = [json.loads(child.communicate(timeout=30)[0]) for child in children]
    assert [result["status"] for result in found] == ["completed"] * 4
    for n, result in enumerate(found):
        assert [block["text"] for block in of_type(hames.events(result["session"]), "text")] == [f"prompt {n}", "Hello 1."]


def test_it_works_in_the_directory_that_is_named(hames: Any, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    model = hames.script({"calls": [{"name": "bash", "arguments": {"command": "pwd > here"}}]}, {"text": "Done."})
    assert hames.run("run", "where", "--model", model, "--cwd", "../other").returncode == 0
    assert Path((tmp_path / "other" / "here").read_text().strip()).samefile(tmp_path / "other")


def test_commands_do_not_see_the_keys(hames: Any) -> None:
    model = hames.script({"calls": [{"name": "bash", "arguments": {"command": "env > environment"}}]}, {"text": "Done."})
    assert hames.run("run", "x", "--model", model, env={"OPENAI_API_KEY": "secret-1", "ANTHROPIC_API_KEY": "secret-2"}).returncode == 0
    environment = (hames.work / "environment").read_text()
    assert "HAMES_TEST" in environment
    assert "secret" not in environment


# exit status


@pytest.mark.parametrize(
    ("answer", "status", "word"),
    [
        ({"text": "Done."}, 0, "completed"),
        ({"text": "Half", "finish": "max-tokens"}, 5, "max-tokens"),
        ({"text": "No.", "finish": "refusal"}, 5, "refusal"),
        ({"failure": "invalid-request"}, 1, "error"),
        ({"failure": "context-overflow"}, 1, "error"),
        ({"failure": "unknown-finish"}, 1, "error"),
        ({"failure": "auth"}, 2, "error"),
        ({"failure": "not-found"}, 2, "error"),
    ],
    ids=lambda value: str(value) if isinstance(value, str | int) else None,
)
def test_the_exit_status_says_how_it_ended(hames: Any, inline: Any, answer: dict[str, Any], status: int, word: str) -> None:
    found = inline.json("run", "x", "--model", hames.script(answer), status=status)
    assert found["status"] == word
    if "failure" in answer:
        assert found["failure"]["kind"] == answer["failure"]


def test_a_run_that_fails_says_so_in_one_line(hames: Any) -> None:
    done = hames.run("run", "x", "--model", hames.script({"failure": "invalid-request"}))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("invalid-request") == 1


def test_a_limit_of_steps_ends_with_5_and_budget(hames: Any, inline: Any) -> None:
    model = hames.script(*[{"text": f"Step {n}.", "calls": [{"name": "bash", "arguments": {"command": f"echo {n}"}}]} for n in range(9)])
    found = inline.json("run", "x", "--model", model, "--max-steps", "2", status=5)
    assert (found["status"], found["steps"], found["text"]) == ("budget", 2, "Step 1.")
    assert "2 steps" in found["detail"]
    again = inline.json("run", "go on", "--resume", found["session"], "--max-steps", "1", status=5)
    assert (again["status"], again["text"]) == ("budget", "Step 2.")


def test_a_limit_of_tokens_ends_with_5_and_budget(hames: Any, inline: Any) -> None:
    call = {"calls": [{"name": "bash", "arguments": {"command": "echo x"}}], "usage": {"input": 60, "output": 1}}
    found = inline.json("run", "x", "--model", hames.script(call, call, call), "--max-tokens", "100", status=5)
    assert (found["status"], found["steps"]) == ("budget", 2)


# invalid input


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("run", "x", "--model", "nonsense"), "MODEL_UNKNOWN", "nonsense"),
        (("run", "x", "--model", "nobody:gpt-5"), "MODEL_UNKNOWN", "openai:"),
        (("run", "x", "--model", "openai:"), "MODEL_UNKNOWN", "openai:"),
        (("run", "x"), "MODEL_UNKNOWN", "no model is named"),
        (("run", "x", "--model", "openai:gpt-5"), "MODEL_KEY_MISSING", "OPENAI_API_KEY"),
        (("run", "x", "--model", "anthropic:claude"), "MODEL_KEY_MISSING", "ANTHROPIC_API_KEY"),
        (("run", "x", "--model", "deepseek:chat"), "MODEL_KEY_MISSING", "DEEPSEEK_API_KEY"),
        (("run", "x", "--model", "scripted:/no/such/script.json"), "MODEL_UNKNOWN", "/no/such/script.json"),
        (("run", "x", "--model", "scripted:/tmp"), "MODEL_UNKNOWN", "/tmp"),
        (("run", "x", "--model", "scripted:~nosuchuser/script.json"), "MODEL_UNKNOWN", "nosuchuser"),
        (("run", "x", "--model", "scripted:/dev/null", "--cwd", "/no/such/directory"), "DIRECTORY_UNKNOWN", "/no/such/directory"),
        (("run", "x", "--model", "scripted:/dev/null", "--cwd", "/etc/passwd"), "DIRECTORY_UNKNOWN", "/etc/passwd"),
        (("run", "x", "--model", "scripted:/dev/null", "--cwd", "~nosuchuser"), "DIRECTORY_UNKNOWN", "nosuchuser"),
        (("run", "x", "--resume", "1m8q3dc3m19wh"), "SESSION_UNKNOWN", "1m8q3dc3m19wh"),
        (("run", "x", "--resume", "../../etc/passwd"), "SESSION_UNKNOWN", "passwd"),
        (("run", ""), "USAGE", "empty"),
        (("run", " \n\t "), "USAGE", "empty"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else None,
)
def test_invalid_input_is_an_error_with_a_code_a_way_out_and_2(inline: Any, arguments: tuple[str, ...], code: str, says: str) -> None:
    found = inline.json(*arguments, status=2)
    assert found["status"] == "error"
    assert found["error"]["code"] == code
    assert found["error"]["remedy"]
    assert says in found["error"]["message"] + found["error"]["remedy"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "x", "--model", "openai:gpt-5"),
        ("run", "x", "--model", "scripted:/dev/null", "--cwd", "/no/such"),
        ("run", "x", "--resume", "x"),
        ("run", " "),
    ],
    ids=["key", "directory", "session", "prompt"],
)
def test_an_error_is_said_in_a_line_and_its_way_out(inline: Any, arguments: tuple[str, ...]) -> None:
    done = inline.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    said, remedy = done.stderr.splitlines()
    assert said.startswith("hames: ")
    assert remedy.strip()


@pytest.mark.parametrize(
    "url",
    [
        "not a url",
        "localhost:8000/v1",
        "http://",
        "ftp://host/v1",
        "http://[",
        "http://[::1",
        "http://host:port/v1",
        "http://host:99999/v1",
    ],
)
def test_a_malformed_base_url_is_invalid_input(inline: Any, url: str) -> None:
    found = inline.json("run", "x", "--model", "openai:gpt-5", status=2, env={"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": url})
    assert found["error"]["code"] == "MODEL_UNKNOWN"
    assert "OPENAI_BASE_URL" in found["error"]["remedy"]


def test_nothing_is_kept_of_a_run_that_could_not_begin(hames: Any) -> None:
    assert hames.run("run", "x", "--model", "nonsense").returncode == 2
    assert hames.json("sessions", "list") == {"sessions": []}
    assert list((hames.state / "owners").iterdir()) == []


def test_an_empty_stdin_is_an_empty_prompt(hames: Any, hello: str) -> None:
    done = hames.run("run", "-", "--model", hello, stdin="\n")
    assert done.returncode == 2
    assert "the prompt is empty" in done.stderr


@pytest.mark.parametrize(("typed", "meant"), [("rnu", "run"), ("session", "sessions"), ("docter", "doctor")])
def test_an_unknown_command_is_answered_with_a_suggestion(inline: Any, typed: str, meant: str) -> None:
    done = inline.run(typed, "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Did you mean '{meant}'?" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("run",), ("run", "a", "b"), ("run", "x", "--no-such"), ("run", "x", "--max-steps", "0"), ("xyzzy",)]
)
def test_wrong_usage_is_2(inline: Any, arguments: tuple[str, ...]) -> None:
    done = inline.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error:" in done.stderr


def test_wrong_usage_with_json_is_an_object_too(inline: Any) -> None:
    found = inline.json("run", "x", "--no-such", status=2)
    assert found["error"]["code"] == "USAGE"


@pytest.mark.parametrize(
    "text",
    [b"{", b"text: not a list", b'[{"texts": "x"}]', b"- !!python/object:os.system {}", b"\x00\x01", b"- text: \xff\xfe"],
    ids=["syntax", "mapping", "member", "tag", "control", "unicode"],
)
def test_a_script_that_is_no_script_is_invalid_input(inline: Any, text: bytes) -> None:
    path = inline.root / "bad.json"
    path.write_bytes(text)
    assert inline.json("run", "x", "--model", f"scripted:{path}", status=2)["error"]["code"] == "MODEL_UNKNOWN"


# odd surroundings


def test_a_prompt_that_is_no_unicode_is_taken_as_far_as_it_goes(hames: Any, hello: str, of_type: Any) -> None:
    done = hames.run("run", b"caf\xe9 now", "--model", hello)
    assert (done.returncode, done.stdout) == (0, "Hello 1.\n")
    assert of_type(hames.events(hames.session()["id"]), "text")[0]["text"] == "caf� now"


@pytest.mark.parametrize("encoding", ["utf-8:strict", "utf-8:surrogateescape"])
def test_stdin_that_is_no_unicode_is_taken_as_far_as_it_goes(hames: Any, hello: str, of_type: Any, encoding: str) -> None:
    path = hames.root / "prompt"
    path.write_bytes(b"caf\xe9 now")
    with path.open("rb") as file:
        done = hames.run("run", "-", "--model", hello, source=file.fileno(), env={"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stdout) == (0, "Hello 1.\n")
    assert of_type(hames.events(hames.session()["id"]), "text")[0]["text"] == "caf� now"


def test_a_directory_whose_name_is_no_unicode_can_be_worked_in(hames: Any, hello: str) -> None:
    name = os.fsencode(hames.root) + b"/caf\xe9"
    os.mkdir(name)
    done = hames.run("run", "x", "--model", hello, "--cwd", name)
    assert (done.returncode, done.stdout) == (0, "Hello 1.\n")
    assert hames.run("sessions", "list").returncode == 0


def test_a_working_directory_that_is_gone_is_invalid_input(hames: Any, hello: str) -> None:
    gone = hames.root / "gone"
    done = hames.run("run", "x", "--model", hello, prefix=("bash", "-c", f'mkdir {gone}; cd {gone}; rmdir {gone}; exec "$@"', "-"))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 2


def test_an_answer_that_the_terminal_cannot_show_is_shown_as_far_as_it_goes(hames: Any) -> None:
    done = hames.run("run", "x", "--model", hames.script({"text": "a → b"}), env={"PYTHONIOENCODING": "latin-1"})
    assert done.returncode == 0
    assert done.stdout.startswith("a ")


def test_an_output_that_is_full_is_a_fault_in_a_line(hames: Any, hello: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = hames.run("run", "x", "--model", hello, stdout=full.fileno())
    assert done.returncode == 1
    assert "space" in done.stderr


@pytest.mark.parametrize("kind", ["file", "below a file", "no home"])
def test_a_state_directory_that_cannot_be_made_is_a_fault_with_a_way_out(hames: Any, hello: str, kind: str) -> None:
    (hames.root / "file").write_text("")
    named = {"file": f"{hames.root}/file", "below a file": f"{hames.root}/file/state", "no home": "~nosuchuser/state"}[kind]
    done = hames.run("run", "x", "--model", hello, "--state-dir", named)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2
    assert "--state-dir" in done.stderr


# a provider that cannot be reached


def test_a_refused_connection_is_tried_again_and_the_wait_can_be_interrupted(hames: Any) -> None:
    environment = {"OPENAI_API_KEY": "secret-key", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    child = hames.start("run", "x", "--model", "openai:gpt-5", env=environment)
    line = child.stderr.readline()
    assert line.startswith("~ transport: ")
    assert "127.0.0.1" in line
    child.send_signal(signal.SIGINT)
    output, errors = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "Traceback" not in errors
    assert "secret-key" not in line + output + errors
    session = hames.session()
    assert session["state"] == "idle"
    assert [event["type"] for event in hames.events(session["id"])] == ["start", "turn", "message", "retry", "end"]


def test_a_refused_connection_ends_the_run_after_its_retries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    clock = FakeClock()

    async def main() -> Any:
        async with running(profile("standard"), {STATE: tmp_path / "state", Clock: clock}) as host:
            agents: Any = host.get(AGENTS)
            agent = await agents.create(AgentSpec(str(tmp_path), "openai:gpt-5"))
            return await agent.run("x")

    end = asyncio.run(main())
    assert (end.reason, end.failure.kind, exit_status(end)) == ("error", "transport", 1)
    assert len(clock.slept) == 5
    assert max(clock.slept) <= 11
