"""Asking people something that is no permission."""

from __future__ import annotations

from dataclasses import dataclass

from hames.kernel import Ask
from hames.tools.approvals import Approvals
from hames.tools.tool import Invocation


@dataclass(frozen=True, slots=True)
class Choice:
    """One question.

    :param options: answers to choose from; a person may always answer in words of their own.
    :param several: whether more than one may be chosen.
    """

    question: str
    options: tuple[str, ...] = ()
    several: bool = False


@dataclass(frozen=True, slots=True)
class Question(Ask[tuple[str, ...]]):
    """Somebody is needed to answer; the answer is one text for each question, in order. Nobody to answer gives None, or an empty answer
    where no other listener is to be asked.

    :param session: who asks.
    """

    session: str
    questions: tuple[Choice, ...]


async def ask(approvals: Approvals, call: Invocation, questions: tuple[Choice, ...]) -> tuple[str, ...] | None:
    """Ask the person at whatever face shows this agent, one question of the process at a time; logged in the session."""
    question = Question(call.session, questions)
    call.note("asked", {"id": call.call_id, "name": "question", "reason": "; ".join(each.question for each in questions)})
    answer: tuple[str, ...] | None = None
    try:
        answer = await approvals.put(question, call.scope) or None
    finally:
        call.note("decided", {"id": call.call_id, "answer": list(answer) if answer is not None else "nobody answered"})
    return answer
