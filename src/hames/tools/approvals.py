"""Asking people whether a call may run: one question at a time, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hames.kernel import Ask, Context, Scope
from hames.policy import Answer, Decision, ToolRequest
from hames.tools.tool import Invocation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Approval(Ask[Answer]):
    """May this call run? ``once`` this call, ``session`` and ``always`` also others like it. Nobody to answer means that it may not.

    :param request: what wants to run, with its id, whose it is and its arguments.
    :param reason: why it is asked.
    :param decision: what an answer would allow.
    """

    request: ToolRequest
    reason: str
    decision: Decision


class Approvals:
    """The queue of questions: whoever answers has one before them, and none is lost behind another.

    :ivar waiting: what has not been answered yet, the one that is being asked first.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._turn = asyncio.Lock()
        self.waiting: list[Approval] = []

    async def put(self, question: Ask[T], scope: Scope) -> T | None:
        """Ask something else in turn; None where nobody answers."""
        async with self._turn:
            return await self._ctx.ask(question, at=scope)

    async def ask(self, request: ToolRequest, decision: Decision, invocation: Invocation, settled: Callable[[], bool]) -> Answer | None:
        """Ask, and log question and answer in the session.

        :param settled: whether an answer to an earlier question has allowed this one too.
        :returns: the answer, or None where nobody gives one.
        """
        approval = Approval(request, decision.reason, decision)
        invocation.note("asked", {"id": request.id, "name": request.name, "reason": decision.reason})
        answer: Answer | None = None
        self.waiting.append(approval)
        try:
            async with self._turn:
                if settled():
                    answer = "once"
                elif invocation.scope.handlers(Approval):
                    answer = await self._ctx.ask(approval, at=invocation.scope)
        finally:
            self.waiting.remove(approval)
            said = "nobody answered" if answer in (None, "nobody") else answer
            invocation.note("decided", {"id": request.id, "answer": said})
        return answer
