"""``hames run`` of a lead that gives work away: its end, its limits, and what it reports are those of all of it."""

# pyright: basic

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import Any

import pytest

HANGS = "openai:fault=hang"


def delegate(model: str, name: str = "kid", /, **more: Any) -> dict[str, Any]:
    return {"name": "delegate", "arguments": {"description": name, "prompt": name, "model": model, **more}, "id": name}


class Room:
    """Runs of a lead, with a model of the stub for children."""

    def __init__(self, hames: Any, stub: Any) -> None:
        self.hames, self.stub = hames, stub
        self.env = {"OPENAI_BASE_URL": f"{stub.url}/v1", "OPENAI_API_KEY": "test-key"}

    def start(self, model: str, *more: str) -> Any:
        return self.hames.start("run", "begin", "--model", model, "--json", *more, env=self.env)

    async def ended(self, process: Any) -> Any:
        """What it prints."""
        output, errors = await asyncio.to_thread(process.communicate, timeout=20)
        assert "Traceback" not in errors, errors
        return json.loads(output)

    async def run(self, model: str, *more: str, status: int = 0) -> Any:
        process = self.start(model, *more)
        found = await self.ended(process)
        assert process.returncode == status, found
        return found

    async def read(self, body: Any) -> Any:
        return await asyncio.to_thread(self.hames.look, body)

    async def answers(self) -> dict[str, int]:
        """How often the model of each session has answered."""

        def count(sessions: Any) -> dict[str, int]:
            return {
                each.id: sum(event.type == "message" and event.data["role"] == "assistant" for event in sessions.read(each.id))
                for each in sessions.list()
            }

        return await self.read(count)

    async def tasks(self) -> list[dict[str, Any]]:
        found = await asyncio.to_thread(self.hames.json, "task", "list")
        return found["tasks"]


@pytest.fixture
def room(hames: Any, stub: Any) -> Room:
    return Room(hames, stub)


async def test_ctrl_c_ends_a_run_with_a_kept_child_that_hangs_and_begins_no_further_turn(room: Room) -> None:
    model = room.hames.script({"text": "I give it.", "calls": [delegate(HANGS, keep=True)]}, *[{"text": "So."}] * 4)
    process = room.start(model)
    async with asyncio.timeout(20):
        while not (room.stub.received and 2 in (await room.answers()).values()):
            assert process.poll() is None
            await asyncio.sleep(0.02)
    before = time.monotonic()
    process.send_signal(signal.SIGINT)
    found = await room.ended(process)
    assert process.returncode == 130 and found["status"] == "aborted" and time.monotonic() - before < 10
    assert (await room.answers())[found["session"]] == 2
    (task,) = await room.tasks()
    assert task["status"] == "aborted" and len(room.stub.received) == 1


async def test_a_limit_of_answers_holds_for_all_turns_and_for_all_that_is_given_away(room: Room) -> None:
    child = room.hames.script({"text": "Well."}, name="child.json")
    turns = [({"text": "More.", "calls": [delegate(child, f"kid{n}", keep=True)]}, {"text": "So."}) for n in range(12)]
    model = room.hames.script(*(answer for turn in turns for answer in turn), name="lead.json")
    found = await room.run(model, "--max-steps", "7", status=5)
    assert found["status"] == "budget"
    assert 7 <= sum((await room.answers()).values()) <= 8


@pytest.mark.parametrize("how", ["run_in_background", "keep"])
async def test_a_run_waits_for_what_runs_beside_it_and_reports_the_answers_of_all_turns(room: Room, how: str) -> None:
    work = {"text": "I look.", "calls": [{"name": "bash", "arguments": {"command": "sleep 0.3"}}]}
    child = room.hames.script(work, {"text": "Well."}, name="child.json")
    model = room.hames.script(
        {"text": "I give it.", "calls": [delegate(child, "kid", **{how: True})]}, *[{"text": "So."}] * 4, name="lead.json"
    )
    found = await room.run(model, "--mode", "full")
    (task,) = await room.tasks()
    assert found["status"] == "completed" and task["status"] == "completed"
    answers = await room.answers()
    assert found["steps"] == answers.pop(found["session"]) == 3
    assert sum(answers.values()) == 2


async def test_a_limit_of_time_holds_for_a_kept_child_that_hangs(room: Room) -> None:
    model = room.hames.script({"text": "I give it.", "calls": [delegate(HANGS, keep=True)]}, *[{"text": "So."}] * 4)
    before = time.monotonic()
    found = await room.run(model, "--max-time", "2", status=5)
    assert found["status"] == "budget" and "2 s" in found["detail"] and time.monotonic() - before < 15
    (task,) = await room.tasks()
    assert task["status"] not in ("completed", "running")
