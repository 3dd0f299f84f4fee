"""Fits a conversation into its model's window: before a request that would be too long, after one that was, and when asked to."""

from __future__ import annotations

from hames.agents.agent import Agent
from hames.agents.ask import Asking
from hames.agents.compaction import INSTRUCTION, Fitting, Rewrite, cut, prunable, summary
from hames.agents.context import estimate
from hames.agents.events import Compacted, NotCompacted
from hames.agents.watch import Watch
from hames.budget import Meter
from hames.content.messages import Message, Text, ToolResult, user
from hames.kernel import Context

AGAIN = 0.05  # of the window: how much must have come before notes that failed are asked for again


class Fit:
    """Prunes and compacts."""

    def __init__(self, ctx: Context, asking: Asking, fitting: Fitting) -> None:
        self._ctx = ctx
        self._asking = asking
        self._fitting = fitting

    async def before(self, agent: Agent, meter: Meter, watch: Watch) -> None:
        """Do what the next request needs, if it needs something."""
        if agent.compact_next:
            agent.compact_next = False
            if not await self._compact(agent, meter, watch, "user"):
                self._ctx.emit(NotCompacted(agent.id, "user"), at=agent.scope)
            return
        window = agent.model()[0].window
        limit = self._fitting.threshold * window
        if await self._tokens(agent) < limit or len(agent.session.messages) < 2:
            return
        self._prune(agent)
        tokens = await self._tokens(agent)
        if tokens >= max(limit, agent.context.not_below) and not await self._compact(agent, meter, watch, "pressure"):
            agent.context.not_below = tokens + int(AGAIN * window)

    async def overflowed(self, agent: Agent, meter: Meter, watch: Watch) -> bool:
        """Make room after a request that was too long; whether something was gained."""
        before = agent.session.messages
        self._prune(agent, everything=True)
        return await self._compact(agent, meter, watch, "overflow") or agent.session.messages is not before

    async def _tokens(self, agent: Agent) -> int:
        system, specs = await self._asking.surroundings(agent)
        overhead = agent.overhead(system, specs)
        return agent.context.tokens(agent.session, overhead)

    def _prune(self, agent: Agent, *, everything: bool = False) -> None:
        session = agent.session
        end = len(session.messages) if everything else self._place(agent)
        found = prunable(session, self._fitting, end)
        if found:
            session.prune(found, self._fitting.head, self._fitting.tail)

    def _place(self, agent: Agent) -> int:
        return cut(agent.session, int(self._fitting.retain * agent.model()[0].window))

    async def _compact(self, agent: Agent, meter: Meter, watch: Watch, reason: Rewrite) -> bool:
        """Put a summary in the place of the past; whether that made it shorter. What fails leaves the conversation as it is."""
        session = agent.session
        place = self._place(agent)
        if place < 2:
            return False
        until = session.messages[place][0] if place < len(session.messages) else session.next_seq
        past = sum(estimate(message) for _, message in session.messages[:place])
        text = await self._summarize(agent, meter, watch, session.messages[:place] if reason == "overflow" else session.messages)
        made = summary(text)
        if not text.strip() or estimate(made) >= past:
            session.append("not-compacted", {"reason": reason, "why": "there was no summary" if not text.strip() else "it is no shorter"})
            return False
        session.compact(until, made, reason=reason, tokens=past)
        self._ctx.emit(Compacted(agent.id, reason, past, estimate(made)), at=agent.scope)
        return True

    async def _summarize(self, agent: Agent, meter: Meter, watch: Watch, messages: list[tuple[int, Message]]) -> str:
        """The notes that the model makes of messages; of the later half where all are too many for it. Empty where it makes none."""
        for _ in range(4):
            asked = [*messages, (-1, Message("user", (Text(INSTRUCTION),), "harness"))]
            finish = await self._asking.attempt(agent, watch, asked, aside=True)
            if finish.usage is not None:
                meter.count(finish.usage, agent.model()[0].cost, agent.model_ref)
            if finish.reason in ("stop", "tool-calls"):
                return "".join(block.text for block in finish.blocks if isinstance(block, Text))
            if finish.failure is None or finish.failure.kind != "context-overflow":
                return ""
            messages = later_half(messages)
            if len(messages) < 2:
                return ""
        return ""


def later_half(messages: list[tuple[int, Message]]) -> list[tuple[int, Message]]:
    """The later half, from a message on that answers no call; results whose calls are left out stand as plain text."""
    half = len(messages) // 2
    orphans: list[str] = []
    while half < len(messages) and messages[half][1].source == "tool":
        orphans += [block.text for block in messages[half][1].blocks if isinstance(block, ToolResult)]
        half += 1
    lead = [(-1, user("[what came before is left out]"))]
    kept = messages[half:]
    return [*lead, *kept] if kept or not orphans else [*lead, (-1, user("\n\n".join(orphans[len(orphans) // 2 :])))]
