"""Commands and what they leave."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from hames.toolkit.bash import run_command


def processes(marker):
    """Living processes with a marker in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, state = ((path / name).read_text(errors="replace") for name in ("cmdline", "stat"))  # others may be of any bytes
            if marker in command and "Z" not in state.rpartition(")")[2].split()[0]:
                found.append(int(path.name))
        except OSError:
            continue
    return found


@pytest.fixture
def run(invocation):
    return lambda command, seconds=20.0: run_command(command, seconds, dict(os.environ), invocation)


async def test_output_and_status(run, invocation):
    done = await run("echo out; echo err >&2; exit 3")
    assert (done.content[0].text, done.is_error, done.code) == ("out\nerr\n\n[exit status 3]", True, "EXIT_STATUS")
    assert (await run("pwd")).content[0].text.strip() == str(invocation.cwd)
    assert (await run("true")).content[0].text == "[no output]"


async def test_a_command_past_its_time_ends_with_all_its_processes(run):
    done = await run("sleep 61.25 & sleep 61.25; echo never", 0.3)
    assert done.code == "TIMEOUT" and "stopped after 0.3 s" in done.content[0].text
    assert not processes("61.25")


async def test_a_command_that_ignores_the_polite_signal_is_killed(run):
    done = await run("trap '' TERM; while :; do sleep 0.0625; done", 0.2)
    assert done.code == "TIMEOUT" and not processes("0.0625")


async def test_what_a_command_leaves_in_the_background_ends_with_it(run):
    done = await run("sleep 62.5 & echo started")
    assert done.content[0].text == "started\n" and not processes("62.5")


@pytest.mark.parametrize(
    "command",
    ["setsid sleep 64.5 & sleep 0.1", "(setsid bash -c 'setsid sleep 64.5 &' &) ; sleep 0.1", "nohup sleep 64.5 >/dev/null 2>&1 &"],
    ids=["a session of its own", "two forks away", "deaf to the end of the terminal"],
)
async def test_what_leaves_its_session_ends_with_the_command_where_nothing_confines_it_either(run, command):
    await run(command)
    assert not processes("sleep\x0064.5")


async def test_cancelling_ends_the_processes_first(run):
    task = asyncio.create_task(run("sleep 63.75 & wait"))
    while not processes("sleep\x0063.75"):
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not processes("63.75")


async def test_long_output_is_kept_in_a_file_and_its_ends_are_shown(run):
    done = await run("echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last")
    text = done.content[0].text
    assert text.startswith("first\n") and text.endswith("last\n") and len(text) < 50_000
    path = Path(text.split("the output is in ")[1].split(" ")[0])
    assert path.stat().st_size == 5_000_000 + len("first\n\nlast\n")


async def test_nothing_is_typed_into_a_command_and_bytes_become_text(run):
    assert (await run("cat; printf '\\377\\n'")).content[0].text == "\ufffd\n"


async def test_keys_of_providers_are_withheld(agents, script, calling, tmp_path, monkeypatch):
    from hames.agents import AgentSpec

    monkeypatch.setenv("OPENAI_API_KEY", "canary-secret")
    monkeypatch.setenv("HARMLESS", "visible")
    agent = await agents.create(AgentSpec(str(tmp_path), script(calling(("bash", {"command": "env"})), {"text": "x"})))
    await agent.run("go")
    shown = "".join(block.text for _, message in agent.session.messages if message.source == "tool" for block in message.blocks)
    assert "HARMLESS=visible" in shown and "canary-secret" not in shown
