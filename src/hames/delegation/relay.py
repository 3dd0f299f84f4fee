"""What a child asks reaches the person at the face of whoever started it; where nobody is there, it is denied with the reason."""

from __future__ import annotations

from dataclasses import replace

from hames.agents import Agent
from hames.delegation.runner import Origin
from hames.kernel import Context
from hames.policy import Answer
from hames.tools import Approval, Question

FIRST = -(10**9)
"""Before all others: what they answer, they answer to whoever started the child."""


def relay(ctx: Context, child: Agent, origin: Origin, title: str) -> None:
    """Pass on what a child asks, under its name."""
    at = ctx.at(child.scope)

    async def approval(question: Approval) -> Answer | None:
        if origin.scope.closed:
            return "nobody"
        reason = f"[{title}] {question.reason}"
        return await ctx.ask(replace(question, reason=reason), at=origin.scope) or "nobody"

    async def answers(question: Question) -> tuple[str, ...] | None:
        if origin.scope.closed:
            return ()
        named = tuple(replace(each, question=f"[{title}] {each.question}") for each in question.questions)
        return await ctx.ask(replace(question, questions=named), at=origin.scope) or ()

    if origin.agent is not None:
        at.on(Approval, approval, order=FIRST)
        at.on(Question, answers, order=FIRST)
