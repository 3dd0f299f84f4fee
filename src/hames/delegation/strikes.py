"""Judging a piece of work before it is given: what failed before, and how, says what may come now."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from hames.agents import Agent
from hames.content.errors import HamesError
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
    asked_alike,
    carried,
    ended,
    goal,
    goals,
    kind,
    matters,
    place,
)
from hames.delegation.failures import Refused
from hames.delegation.goal import alike, normal, related
from hames.delegation.heard import Heard
from hames.delegation.records import NOT_TAKEN, REFUSED, TaskRecord
from hames.delegation.rounds import ROUND
from hames.delegation.service import Tasks
from hames.delegation.turns import Turns

SMALLER = 0.8
"""Part of a goal that was too long up to which another one is smaller."""
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


class NotNow(Refused):
    """Something must not begin because of an attempt.

    :param at: the attempt where that is noted; empty for none.
    """

    def __init__(self, code: str, message: str, *, remedy: str, at: str = "") -> None:
        super().__init__(code, message, remedy=remedy)
        self.at = at


class Strikes:
    """Judges what conversations give to roles."""

    def __init__(self, tasks: Tasks, rules: Rules) -> None:
        self._tasks = tasks
        self._turns = Turns()
        self.rules = rules

    def turn(self, agent: Agent) -> AbstractAsyncContextManager[None]:
        """While work of an agent is judged, and until its intent is on disk, no other work of it is: calls of one answer run beside
        each other."""
        return self._turns.of(agent.id)

    def matters(self, agent: Agent) -> list[Matter]:
        """The pieces of work that an agent has given, with what became of them; rounds of one objective have rules of their own."""
        ledger = self._tasks.ledger
        found = [record for record in ledger.below(agent.id) if ROUND not in record.spec.labels]
        whole = [(ledger.get(record.id) or record) if record.spec.mode == "continuable" else record for record in found]
        records = [record for record in whole if not any(receipt.kind == NOT_TAKEN for receipt in record.receipts)]
        return matters(records, Heard(self._tasks.sessions.read(agent.id)))

    def advice(self, agent: Agent, task: str) -> str:
        """What an agent may do after a task that has ended."""
        found = [matter for matter in self.matters(agent) if any(record.id == task for record in matter.attempts)]
        return advice(found[0], self.rules) if found else ""

    async def judge(self, agent: Agent, work: Work) -> dict[str, Any]:
        """What a task has to say of the attempt that it follows, and its prompt.

        :raises Refused: if it must not begin; that is noted at the attempt before it.
        """
        try:
            matter = self._judged(self.matters(agent), work)
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
        thread = [record for record in thread if not any(receipt.kind == NOT_TAKEN for receipt in record.receipts)]
        last = thread[-1]
        every = self.matters(agent)
        found = next((each for each in every if any(record.id == last.id for record in each.attempts)), None)
        if found is None:
            return {}
        try:
            self._may_go_on(every, found, last, text)
        except NotNow as error:
            await self._note(error)
            raise
        return {"after": last.id} if kind(last) not in ("done", "running") else {}

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
        matter = named(every, work.after) if work.after and work.after != UNRELATED else None
        if work.because and matter is None:
            raise NotNow("ATTEMPT_UNNAMED", f"reason {work.because!r} speaks of an attempt", remedy="name it with after")
        self._not_refused(every, work.role, work.goal)
        if matter is not None:
            self._may_follow(matter, work)
        here = [each for each in every if each is not matter and stands_at(each, work.where)]
        self._not_running(here, work)
        mine = [each for each in here if each.open and of_role(each, work.role)]
        same = [each for each in here if each.open and any(asked_alike(one, work.goal) for one in each.attempts)]
        if matter is not None:
            if same:
                raise self._unnamed(same, f"this is also the work of {same[-1].last.id}: name that one")
            return matter
        if work.after == UNRELATED:
            for each in here:
                if each.open and any(related(text, work.goal) for one in each.attempts for text in goals(one)):
                    said = f"this looks like the work of {each.last.id}, which has failed"
                    raise NotNow("SAME_WORK", said, remedy=advice(each, self.rules), at=each.last.id)
            if len(mine) >= IN_A_ROW:
                raise NotNow("STRUCK_OUT", f"{len(mine)} pieces of work of {work.role} have failed", remedy=OVER, at=mine[-1].last.id)
            return None
        if blocking := mine or same:
            remedy = f"if this is another attempt, name the one before it with after; if it is other work, say after: {UNRELATED!r}"
            raise self._unnamed(blocking, remedy)
        return None

    def _unnamed(self, blocking: Sequence[Matter], remedy: str) -> NotNow:
        names = ", ".join(f"{each.last.id} ({each.last.spec.title}: {ended(each.last)})" for each in blocking[-5:])
        said = f"work of this conversation has failed and stands open: {names}"
        return NotNow("ATTEMPT_UNNAMED", said, remedy=remedy, at=blocking[-1].last.id)

    def _not_refused(self, every: Sequence[Matter], role: str, text: str) -> None:
        """
        :raises Refused: if the role has refused this, whenever that was.
        """
        for matter in every:
            for record in matter.attempts:
                if record.spec.role == role and kind(record) == "refusal" and asked_alike(record, text):
                    remedy = "change what you ask for, give it to another role, or do it yourself"
                    raise NotNow("SAME_WORK", f"{role} has refused this ({record.id})", remedy=remedy, at=record.id)

    def _not_running(self, here: Sequence[Matter], work: Work) -> None:
        """
        :raises Refused: if somebody works on the very same.
        """
        for matter in here:
            last = matter.last
            if kind(last) == "running" and asked_alike(last, work.goal):
                raise NotNow("STILL_RUNNING", f"{last.id} works on this", remedy="wait for its end, or end it first", at=last.id)

    def _may_follow(self, matter: Matter, work: Work) -> None:
        """
        :raises Refused: if another attempt must not be made so.
        """
        rules, last = self.rules, matter.last
        record, what = matter.standing
        counts = matter.counts(record)
        advised = advice(matter, rules)
        if kind(last) == "running":
            raise NotNow("STILL_RUNNING", f"{last.id} still runs", remedy="wait for its end, or end it first", at=last.id)
        if work.because == POOR and not [point for point in work.missing if point.strip()]:
            raise NotNow("REASON_NEEDED", "a result that is poor lacks something", remedy="say what, in missing", at=last.id)
        if what == "done" and work.because != POOR:
            remedy = f"if its result is poor, say reason: {POOR!r} and what is missing; for other work leave after out"
            raise NotNow("REASON_NEEDED", f"{last.id} completed", remedy=remedy, at=last.id)
        strikes = matter.strikes(poor=work.because == POOR)
        if strikes >= rules.strikes:
            raise NotNow("STRUCK_OUT", f"{last.id} was attempt {len(matter.attempts)}, and {strikes} have failed", remedy=OVER, at=last.id)
        if not counts:
            return
        if what == "aborted" and work.because != ACCIDENT:
            raise NotNow("REASON_NEEDED", f"somebody ended {record.id}", remedy=advised, at=record.id)
        if what == "aborted" and any(each.spec.because == ACCIDENT for each, _ in matter.counted()):
            raise NotNow("STRUCK_OUT", f"{record.id} was ended too, and not by accident again", remedy=OVER, at=record.id)
        if what == "unknown":
            raise NotNow("STRUCK_OUT", f"nobody knows what {record.id} has done", remedy=advised, at=record.id)
        before = goal(record.spec)
        if what == "too-long" and alike(before, work.goal) and len(normal(work.goal)) > SMALLER * len(normal(before)):
            raise NotNow("SAME_WORK", f"{record.id} did not get to its end with as much as this", remedy=advised, at=record.id)
        if what == "error" and record.outcome is not None and work.role == record.spec.role:
            if lack := report.lacks(record.spec, record.outcome):
                raise NotNow("TOOL_LACKING", f"{work.role} lacks {lack[:400]}", remedy=advised, at=record.id)
            if matter.tried(work.goal) > rules.retries:
                raise NotNow("SAME_WORK", f"this was tried {matter.tried(work.goal)} times", remedy=advised, at=record.id)

    def _may_go_on(self, every: Sequence[Matter], matter: Matter, last: TaskRecord, text: str) -> None:
        """
        :raises Refused: if a conversation must not go on with a message.
        """
        advised, what = advice(matter, self.rules), kind(last)
        self._not_refused(every, last.spec.role, text)
        if what == "running" or matter.is_lifted(last):
            return
        if matter.strikes() >= self.rules.strikes:
            raise NotNow("STRUCK_OUT", f"{matter.strikes()} attempts of {last.thread} have failed", remedy=OVER, at=last.id)
        if what == "error":
            raise NotNow("FRESH_NEEDED", f"{last.id} ended with an error: {ended(last)}", remedy=advised, at=last.id)
        if what == "unknown":
            raise NotNow("STRUCK_OUT", f"nobody knows what {last.id} has done", remedy=advised, at=last.id)
        if what == "aborted" and last.cause == "user":
            raise NotNow("REASON_NEEDED", f"a person has ended {last.id}", remedy="ask the user whether it is to go on", at=last.id)


def stands_at(matter: Matter, where: tuple[str, str]) -> bool:
    """Whether a piece of work belongs to a place; of a damaged one nobody knows."""
    return "task" in matter.last.damaged or place(matter.last.spec) == where


def of_role(matter: Matter, role: str) -> bool:
    """Whether an attempt that counts was given to a role; of a damaged one nobody knows."""
    return any(record.spec.role == role or "task" in record.damaged for record, _ in matter.counted())


def named(every: Sequence[Matter], name: str) -> Matter:
    """The piece of work that has an attempt of a name.

    :raises Refused: ``ATTEMPT_UNKNOWN``.
    """
    for matter in every:
        if any(name in (record.id, record.thread) for record in matter.attempts):
            return matter
    known = ", ".join(matter.last.id for matter in every[-10:]) or "none"
    raise NotNow("ATTEMPT_UNKNOWN", f"this conversation has made no attempt {name[:64]!r}", remedy=f"there are {known}")
