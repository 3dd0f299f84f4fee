"""Running the calls of an answer: their intent is logged before, their results after."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hames.agents.agent import Agent
from hames.agents.events import ToolEnded, ToolProgress, ToolStarted
from hames.agents.spill import spiller
from hames.agents.watch import Watch
from hames.budget import BLOCK, REMIND, Repeats
from hames.content.messages import Message, Text, ToolCall, ToolResult
from hames.kernel import Context
from hames.tools import TOOLS, Invocation, Tools
from hames.tools.plugin import Cancelled


async def run_tools(ctx: Context, agent: Agent, calls: Sequence[ToolCall], repeats: Repeats, watch: Watch) -> tuple[bool, int]:
    """Run the calls of an answer; whether one concludes the turn, and how often the last one has been repeated."""
    session, scope = agent.session, agent.scope
    tools = ctx.host.get(TOOLS, scope) or Tools(ctx)

    def surroundings(call: ToolCall) -> Invocation:
        return Invocation(
            call.id,
            scope,
            agent.cwd,
            agent.memory,
            spiller(agent.root / "spill", agent.id, call.id),
            session=agent.id,
            scratch=agent.scratch,
            note=note,
            progress=lambda text: progress(call, text),
            keep_picture=session.keep_picture,
        )

    def progress(call: ToolCall, text: str) -> None:
        watch.touch()
        ctx.emit(ToolProgress(agent.id, call, text), at=scope)

    def note(type: str, data: dict[str, object]) -> None:
        session.append(type, data)
        if type == "asked":
            agent.begin_wait("user")
        elif type == "decided":
            agent.end_wait("user")

    async def begin(started: Sequence[ToolCall]) -> None:
        watch.touch()  # what ran before these has ended
        for call in started:
            session.append("call", {"id": call.id, "name": call.name})
        await session.barrier()
        for call in started:
            ctx.emit(ToolStarted(agent.id, call), at=scope)

    def refuse(call: ToolCall) -> ToolResult | None:
        if not repeats.blocks(call.name, call.arguments):
            return None
        text = "it had the same result each time before, and was not run again; do something else, or say what is in the way"
        return ToolResult(call.id, (Text(text),), True, "REPEATED")

    concluded = False
    cancelled: Cancelled | None = None
    try:
        results, concluded = await tools.run(calls, scope, surroundings, begin, refuse, lambda: agent.ceiling)
    except Cancelled as error:
        results, cancelled = error.results, error
    watch.touch()
    repeated = 0
    for call, result in zip(calls, results, strict=True):
        session.add(Message("user", (result,), "tool"))
        ctx.emit(ToolEnded(agent.id, call, result), at=scope)
        repeated = repeats.count(call.name, call.arguments, result.text)
    if cancelled is not None:
        raise asyncio.CancelledError from cancelled
    if repeated == REMIND:
        text = f"You have made the same call {REMIND} times with the same result. From the {BLOCK}th time on it is not run any more."
        session.add(Message("user", (Text(text),), "harness"))
    return concluded, repeated
