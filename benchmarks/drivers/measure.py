"""The command line and the measuring of every driver: ``DRIVER MODE URL ANSWERS [AGENTS [PROFILE]]``, one line of JSON.

``once``
    One conversation and nothing before it: the cold start, which the parent process times.
``history``
    A warm-up of two answers, then one conversation, timed from its first request to its end.
``many``
    A warm-up, then AGENTS conversations made and run at once, timed; and the memory that is kept with all of them held.
``idle``
    A warm-up, then AGENTS conversations made and not run: the memory of each.

A conversation has ANSWERS answers with one tool call each and one with a text: ANSWERS + 1 requests. One that goes otherwise
raises. With PROFILE, what is timed runs under cProfile, whose data goes to that file.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

TOOL = "todo_write"
TEXT = "All is done."
PROMPT = "Do it."
WARM_UP = 2
SETTLE = 0.3  # seconds for what a driver writes in the background


class Outcome(NamedTuple):
    """What a conversation came to.

    :param calls: requests that the model answered.
    :param tools: calls of the tool that succeeded.
    """

    text: str
    calls: int
    tools: int


class Conversation(Protocol):
    """One agent and its history, which it keeps."""

    async def run(self) -> None: ...

    def outcome(self) -> Outcome: ...


Make = Callable[[int], Awaitable[Conversation]]
Opened = Callable[[str], AbstractAsyncContextManager[Make]]
"""Opens a driver on the URL of the server; what it gives makes conversations of so many answers."""


def model_name(answers: int) -> str:
    """The model of the stub server that plays such a conversation."""
    return f'steps={answers};tool={TOOL};args={{"items":[{{"content":"#"}}]}}'


def check(conversation: Conversation, answers: int) -> None:
    found, expected = conversation.outcome(), Outcome(TEXT, answers + 1, answers)
    if found != expected:
        raise SystemExit(f"the run is not as scripted: {found} instead of {expected}")


def resident() -> int:
    """Bytes of memory in use; 0 where the system does not tell."""
    gc.collect()
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 (a cold start should not pay for more)
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Timer:
    """CPU of the process, CPU of this thread and time on the wall, and a profile of this thread where one is wanted."""

    def __init__(self, profile: str) -> None:
        self._path = profile
        self._profile: Any = None
        if profile:
            import cProfile

            self._profile = cProfile.Profile()
        self.spent: dict[str, float] = {}

    def __enter__(self) -> Timer:
        gc.collect()
        self._start = (time.process_time(), time.thread_time(), time.perf_counter())
        if self._profile is not None:
            self._profile.enable()
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._profile.disable()
            self._profile.dump_stats(self._path)
        now = (time.process_time(), time.thread_time(), time.perf_counter())
        self.spent = dict(zip(("cpu", "main_cpu", "wall"), (b - a for a, b in zip(self._start, now, strict=True)), strict=True))


async def conversation(make: Make, answers: int) -> None:
    made = await make(answers)
    await made.run()
    check(made, answers)


async def measure(opened: Opened, mode: str, url: str, answers: int, agents: int, profile: str) -> dict[str, Any]:
    async with opened(url) as make:
        if mode == "once":
            await conversation(make, answers)
            return {}
        await conversation(make, WARM_UP)
        await asyncio.sleep(SETTLE)
        if mode == "history":
            made = await make(answers)
            with Timer(profile) as timer:
                await made.run()
            check(made, answers)
            return {"calls": answers + 1, **timer.spent}
        before = resident()
        if mode == "idle":
            idle = [await make(answers) for _ in range(agents)]
            await asyncio.sleep(SETTLE)
            return {"agents": len(idle), "memory": (resident() - before) / len(idle)}
        if mode == "many":
            with Timer(profile) as timer:
                crowd = [await make(answers) for _ in range(agents)]
                await asyncio.gather(*(each.run() for each in crowd))
            await asyncio.sleep(SETTLE)
            memory = (resident() - before) / len(crowd)
            for each in crowd:
                check(each, answers)
            return {"calls": agents * (answers + 1), "memory": memory, "threads": threading.active_count(), **timer.spent}
        raise SystemExit(f"there is no mode {mode!r}")


def main(opened: Opened) -> None:
    """Measure what the command line says."""
    mode, url, answers, agents, profile = sys.argv[1:] + ["0", ""][len(sys.argv) - 4 :]
    print(json.dumps(asyncio.run(measure(opened, mode, url, int(answers), int(agents), profile))))
