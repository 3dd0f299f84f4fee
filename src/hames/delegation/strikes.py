"""Judging a piece of work before it is given: what failed before, and how, says what may come now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hames.agents import Agent
from hames.content.errors import HamesError
from hames.content.messages import ToolResult
from hames.delegation import report
from hames.delegation.attempts import (
    ACCIDENT,
    MARK,
    OVER,
    POOR,
    REASONS,
    UNRELATED,
    Matter,
    Rules,
    advice,
    carried,
    ended,
    goal,
    matters,
    place,
)
from hames.delegation.failures import Refused
from hames.delegation.goal import alike
from hames.delegation.notices import heading
from hames.delegation.records import REFUSED, TaskRecord
from hames.delegation.service import Tasks

IN_A_ROW = 4
"""Different pieces of work of one role that fail one after another, from which on it gets no more."""


class Work(NamedTuple):
    """What is about to be given.

    :param after: the attempt that it follows, ``unrelated``, or nothing.
    :param because: why another attempt is made, where the outcome of the earlier does not say it.
    :param missing: what the earlier result lacked.
    """

    role: str
    goal: str
    where: tuple[str, str]
    after: str = ""
    because: str = ""
    missing: tuple[str, ...] = ()


class Strikes:
    """Judges what one conversation gives to roles."""

    def __init__(self, tasks: Tasks, rules: Rules) -> None:
        self._tasks = tasks
        self.rules = rules

    def matters(self, agent: Agent) -> list[Matter]:
        """The pieces of work that an agent has given, with what became of them."""
        records = [record for record in self._tasks.ledger.below(agent.id) if record.spec.role]
        return matters(records, Heard(agent))

    def advice(self, agent: Agent, task: str) -> str:
        """What an agent may do after a task that has ended."""
        found = [matter for matter in self.matters(agent) if any(record.id == task for record in matter.attempts)]
        return advice(found[0], self.rules) if found else ""

    async def judge(self, agent: Agent, work: Work) -> dict[str, Any]:
        """What a task has to say of the attempt that it follows, and its prompt.

        :raises Refused: if it must not begin; that is noted at the attempt before it.
        """
        every = self.matters(agent)
        try:
            matter = self._judged(every, work)
        except NotNow as error:
            await self._note(error)
            raise
        if matter is None:
            return {"prompt": work.goal}
        prompt = f"{work.goal}{MARK}{carried(matter, work.missing)}"
        return {"prompt": prompt, "after": matter.last.id, "because": work.because, "missing": work.missing}

    async def judge_message(self, agent: Agent, thread: Sequence[TaskRecord], text: str) -> dict[str, Any]:
        """What the next task of a conversation has to say of the one before it.

        :raises Refused: if the message must not be given.
        """
        last = thread[-1]
        found = next((each for each in self.matters(agent) if any(record.id == last.id for record in each.attempts)), None)
        if found is None or found.last.outcome is None:
            return {}
        try:
            self._may_go_on(found, text)
        except NotNow as error:
            await self._note(error)
            raise
        return {"after": last.id} if found.kind() != "done" else {}

    async def _note(self, error: NotNow) -> None:
        """Note at an attempt what was not begun after it."""
        if error.at:
            try:
                await self._tasks.ledger.receive(error.at, REFUSED, {"code": error.code, "why": error.message})
            except HamesError as failed:  # it is refused all the same
                self._tasks.contain(f"a note at task {error.at}", failed)

    def _judged(self, every: Sequence[Matter], work: Work) -> Matter | None:
        """The piece of work that this is a further attempt at; None for a new one."""
        if work.because and work.because not in REASONS:
            raise NotNow("REASON_NEEDED", f"there is no reason {work.because!r}", remedy=f"reasons are {', '.join(REASONS)}")
        if work.after and work.after != UNRELATED:
            matter = named(every, work.after)
            self._may_follow(matter, work)
            return matter
        if work.because:
            raise NotNow("ATTEMPT_UNNAMED", f"reason {work.because!r} speaks of an attempt", remedy="name it with after")
        for matter in every:
            if matter.kind() == "refusal" and matter.last.spec.role == work.role and alike(goal(matter.last.spec), work.goal):
                raise NotNow(
                    "SAME_WORK", f"{work.role} has refused this ({matter.last.id})", remedy=advice(matter, self.rules), at=matter.last.id
                )
        here = [matter for matter in every if matter.open and place(matter.last.spec) == work.where]
        role = [matter for matter in here if matter.last.spec.role == work.role]
        if work.after == UNRELATED:
            for matter in role:
                if any(alike(goal(each.spec), work.goal) for each in matter.attempts):
                    said = f"this is the work of {matter.last.id}, which has failed"
                    raise NotNow("SAME_WORK", said, remedy=advice(matter, self.rules), at=matter.last.id)
            if len(role) >= IN_A_ROW:
                raise NotNow("STRUCK_OUT", f"{len(role)} pieces of work of {work.role} have failed", remedy=OVER, at=role[-1].last.id)
            return None
        blocking = role or [matter for matter in here if any(alike(goal(each.spec), work.goal) for each in matter.attempts)]
        if blocking:
            last = blocking[-1].last
            names = ", ".join(f"{each.last.id} ({each.last.spec.title}: {ended(each.last)})" for each in blocking[-5:])
            remedy = f"if this is another attempt, name the one before it with after; if it is other work, say after: {UNRELATED!r}"
            raise NotNow("ATTEMPT_UNNAMED", f"work of this conversation has failed and stands open: {names}", remedy=remedy, at=last.id)
        return None

    def _may_follow(self, matter: Matter, work: Work) -> None:
        """
        :raises Refused: if another attempt must not be made so.
        """
        rules, last, what = self.rules, matter.last, matter.kind()
        advised = advice(matter, rules)
        if what == "running":
            raise NotNow("STILL_RUNNING", f"{last.id} still runs", remedy="wait for its end, or end it first", at=last.id)
        if work.because == POOR and not [point for point in work.missing if point.strip()]:
            raise NotNow("REASON_NEEDED", "a result that is poor lacks something", remedy="say what, in missing", at=last.id)
        if what == "done" and work.because != POOR:
            remedy = f"if its result is poor, say reason: {POOR!r} and what is missing; for other work leave after out"
            raise NotNow("REASON_NEEDED", f"{last.id} completed", remedy=remedy, at=last.id)
        strikes = matter.strikes(poor=what == "done")
        if strikes >= rules.strikes:
            raise NotNow("STRUCK_OUT", f"{last.id} was attempt {len(matter.attempts)}, and {strikes} have failed", remedy=OVER, at=last.id)
        counts = matter.lifted < len(matter.attempts)
        if what == "refusal" and work.role == last.spec.role and alike(goal(last.spec), work.goal):
            raise NotNow("SAME_WORK", f"{work.role} has refused this", remedy=advised, at=last.id)
        if what == "aborted" and counts and work.because != ACCIDENT:
            raise NotNow("REASON_NEEDED", f"somebody ended {last.id}", remedy=advised, at=last.id)
        if what == "unknown" and counts:
            raise NotNow("STRUCK_OUT", f"nobody knows what {last.id} has done", remedy=advised, at=last.id)
        if what == "too-long" and counts and alike(goal(last.spec), work.goal) and len(work.goal) > 0.8 * len(goal(last.spec)):
            raise NotNow("SAME_WORK", f"{last.id} did not get to its end with as much as this", remedy=advised, at=last.id)
        if what == "error" and counts and last.outcome is not None and work.role == last.spec.role:
            if lack := report.lacks(last.spec, last.outcome):
                raise NotNow("TOOL_LACKING", f"{work.role} lacks {lack}", remedy=advised, at=last.id)
            if matter.tried(work.goal) > rules.retries:
                raise NotNow("SAME_WORK", f"this was tried {matter.tried(work.goal)} times", remedy=advised, at=last.id)

    def _may_go_on(self, matter: Matter, text: str) -> None:
        """
        :raises Refused: if a conversation must not go on with a message.
        """
        last, what = matter.last, matter.kind()
        advised = advice(matter, self.rules)
        counts = matter.lifted < len(matter.attempts)
        if counts and matter.strikes() >= self.rules.strikes:
            raise NotNow("STRUCK_OUT", f"{matter.strikes()} attempts of {last.thread} have failed", remedy=OVER, at=last.id)
        if what == "error" and counts:
            raise NotNow("FRESH_NEEDED", f"{last.id} ended with an error: {ended(last)}", remedy=advised, at=last.id)
        if what == "refusal" and alike(goal(last.spec), text):
            raise NotNow("SAME_WORK", f"{last.thread} has refused this", remedy=advised, at=last.id)
        if what == "unknown" and counts:
            raise NotNow("STRUCK_OUT", f"nobody knows what {last.id} has done", remedy=advised, at=last.id)


class NotNow(Refused):
    """Something must not begin because of an attempt.

    :param at: the attempt where that is noted; empty for none.
    """

    def __init__(self, code: str, message: str, *, remedy: str, at: str = "") -> None:
        super().__init__(code, message, remedy=remedy)
        self.at = at


def named(every: Sequence[Matter], name: str) -> Matter:
    """The piece of work that has an attempt of a name.

    :raises Refused: ``ATTEMPT_UNKNOWN``.
    """
    for matter in every:
        if any(name in (record.id, record.thread) for record in matter.attempts):
            return matter
    known = ", ".join(matter.last.id for matter in every[-10:]) or "none"
    raise NotNow("ATTEMPT_UNKNOWN", f"this conversation has made no attempt {name[:64]!r}", remedy=f"there are {known}")


class Heard:
    """Whether a person has spoken after the end of a task was told."""

    def __init__(self, agent: Agent) -> None:
        self._answered: dict[str, int] = {}
        self._told: list[tuple[int, str]] = []
        self._spoke = -1
        for n, (_, message) in enumerate(agent.session.messages):
            if message.source == "user":
                self._spoke = n
            elif message.source == "harness":
                self._told.append((n, message.text))
            for block in message.blocks:
                if isinstance(block, ToolResult):
                    self._answered[block.call_id] = n

    def __call__(self, record: TaskRecord) -> bool:
        if record.spec.mode == "foreground":
            at = self._answered.get(record.call, -1)
        else:
            at = next((n for n, text in self._told if heading(record.id).strip() in text), -1)
            if at < 0:
                at = self._answered.get(record.call, -1)
        return record.outcome is not None and self._spoke > at
