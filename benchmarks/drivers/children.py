"""The command line and the measuring of drivers of children: ``DRIVER MODE URL CHILDREN AT_ONCE``, one line of JSON.

``run``
    A warm-up, then CHILDREN children of one parent, AT_ONCE at a time, each with one tool call and one text; timed.
``wait``
    A warm-up, then CHILDREN children that have all begun and wait for their model's answer: the memory of each.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from measure import SETTLE, TEXT, Timer, model_name, resident

HANG = "fault=hang"


class Parent(Protocol):
    """Starts children."""

    async def child(self, number: int, model: str) -> str:
        """One child, from its start to its end; what it said."""
        ...


Opened = Callable[[str, int], AbstractAsyncContextManager[Parent]]
"""Opens a driver on the URL of the server, for so many children at a time."""


async def measure(opened: Opened, mode: str, url: str, children: int, at_once: int) -> dict[str, Any]:
    async with opened(url, at_once if mode == "run" else children + 1) as parent:
        await parent.child(0, model_name(1))
        await asyncio.sleep(SETTLE)
        before = resident()
        if mode == "wait":
            crowd = [asyncio.ensure_future(parent.child(number, HANG)) for number in range(children)]
            await asyncio.sleep(4.0)
            if any(each.done() for each in crowd):
                raise SystemExit("a child did not wait")
            memory = (resident() - before) / children
            for each in crowd:
                each.cancel()
            await asyncio.wait(crowd)
            return {"memory": memory}
        with Timer("") as timer:
            said = await asyncio.gather(*(parent.child(number, model_name(1)) for number in range(children)))
        if said != [TEXT] * children:
            raise SystemExit(f"the children are not as scripted: {next(text for text in said if text != TEXT)!r}")
        await asyncio.sleep(SETTLE)
        return {"children": children, "memory": (resident() - before) / children, **timer.spent}


def main(opened: Opened) -> None:
    """Measure what the command line says."""
    mode, url, children, at_once = sys.argv[1:]
    print(json.dumps(asyncio.run(measure(opened, mode, url, int(children), int(at_once)))))
