"""The attempts at one piece of work, and what may follow them.

Attempts are linked: each later one names the one before it. What became of the last one says what may come next; it is looked at before
anything starts, and what is refused never begins. All of it is read from the ledger, so it holds after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hames.delegation import report
from hames.delegation.goal import alike, normal
from hames.delegation.outcome import bounded
from hames.delegation.records import TaskRecord
from hames.delegation.spec import TaskSpec

Kind = Literal["running", "done", "poor", "error", "too-long", "refusal", "aborted", "interrupted", "unknown"]
POOR, ACCIDENT = "poor", "accident"
REASONS = (POOR, ACCIDENT)
UNRELATED = "unrelated"
"""Said instead of an attempt: this is other work."""
MARK = "\n\n--- Earlier attempts at this ---\n"
"""What is carried along stands behind this in a prompt."""
CARRIED = 6000
"""Bytes of what is carried along."""
STRIKES = frozenset[Kind](("poor", "error", "too-long", "refusal"))
OPEN = STRIKES | frozenset[Kind](("aborted", "interrupted", "unknown"))


@dataclass(frozen=True, slots=True)
class Rules:
    """How often the same work may fail.

    :param retries: further attempts at the same goal after an error.
    :param strikes: failures that end it.
    """

    retries: int = 1
    strikes: int = 2


def goal(spec: TaskSpec) -> str:
    """What a task was asked for, without what was carried along."""
    return spec.prompt.partition(MARK)[0]


def place(spec: TaskSpec) -> tuple[str, str]:
    """Where a task works."""
    return spec.isolation, spec.directory


@dataclass(slots=True)
class Matter:
    """One piece of work: its attempts, the oldest first.

    :ivar lifted: how many of them a person has heard of and spoken after: those count no more.
    """

    attempts: list[TaskRecord] = field(default_factory=list[TaskRecord])
    lifted: int = 0

    @property
    def last(self) -> TaskRecord:
        return self.attempts[-1]

    def kind(self, n: int = -1) -> Kind:
        """What became of an attempt; one that a later one calls poor is."""
        record = self.attempts[n]
        found = kind(record)
        poor = any(each.spec.after == record.id and each.spec.because == POOR for each in self.attempts)
        return "poor" if found == "done" and poor else found

    def counted(self, *, poor: bool = False) -> list[int]:
        """The attempts that count: those since a person has spoken, and since the work was done.

        :param poor: what the last one did is not what it says.
        """
        ends = range(len(self.attempts) - poor)
        done = max((n + 1 for n in ends if self.kind(n) == "done"), default=0)
        return list(range(max(done, self.lifted), len(self.attempts)))

    def strikes(self, *, poor: bool = False) -> int:
        """How many of those have failed."""
        last = len(self.attempts) - 1
        return sum(self.kind(n) in STRIKES or (poor and n == last) for n in self.counted(poor=poor))

    @property
    def open(self) -> bool:
        """Whether its last attempt has failed, and nobody has spoken since."""
        return self.lifted < len(self.attempts) and self.kind() in OPEN

    def tried(self, text: str) -> int:
        """How many attempts that count had this goal."""
        return sum(alike(goal(self.attempts[n].spec), text) for n in self.counted())


def kind(record: TaskRecord) -> Kind:
    """What became of an attempt."""
    outcome = record.outcome
    if outcome is None:
        return "unknown" if "outcome" in record.damaged else "running"
    if outcome.ok:
        return "error" if report.failed(record.spec, outcome) else "done"
    match outcome.status:
        case "refusal" | "aborted" | "interrupted" | "unknown":
            return outcome.status
        case "max-tokens" | "budget" | "invalid":
            return "too-long"
        case _:
            return "error"


def matters(records: Iterable[TaskRecord], heard: Callable[[TaskRecord], bool]) -> list[Matter]:
    """The pieces of work of a conversation.

    :param records: its tasks, the oldest first.
    :param heard: whether a person has spoken after the end of a task.
    """
    of: dict[object, Matter] = {}  # by the name of a task or thread, and by what was asked for, word for word
    found: list[Matter] = []
    for record in records:
        spec = record.spec
        told = (spec.role, *place(spec), normal(goal(spec)))
        known = of.get(spec.after) or (of.get(record.thread) if record.thread != record.id else None) or of.get(told)
        if known is None:
            known = Matter()
            found.append(known)
        known.attempts.append(record)
        of[record.id] = of[record.thread] = of[told] = known
    for matter in found:
        while matter.lifted < len(matter.attempts) and kind(matter.attempts[matter.lifted]) != "running":
            if not heard(matter.attempts[matter.lifted]):
                break
            matter.lifted += 1
    return found


def carried(matter: Matter, missing: Sequence[str]) -> str:
    """What the next attempt is told of those before it."""
    lines: list[str] = []
    for n, record in enumerate(matter.attempts):
        outcome = record.outcome
        lines.append(f"Attempt {n + 1}, task {record.id} ({record.spec.role or 'no role'}): {ended(record)}.")
        if outcome is not None:
            said = report.words(outcome.value) if report.asked(record.spec) and outcome.schema_valid else outcome.text
            room = CARRIED // 2 if n == len(matter.attempts) - 1 else CARRIED // 8
            lines += [bounded(f"It said: {said}", room)] if said else []
        lines += [f"What was missing then: {point}" for point in record.spec.missing]
    lines += [f"What is missing: {point}" for point in missing]
    lines.append("Do not begin from nothing: take up what there is, and do not repeat what failed.")
    return bounded("\n".join(lines), CARRIED)


def ended(record: TaskRecord) -> str:
    """How an attempt ended, in a line."""
    outcome = record.outcome
    if outcome is None:
        return "it still runs"
    if outcome.ok:
        return "it says that it failed" if report.failed(record.spec, outcome) else "completed"
    detail = " ".join(outcome.diagnostic.split())[:300]
    return f"{outcome.status}{f' ({outcome.code})' if outcome.code else ''}{f': {detail}' if detail else ''}"


def advice(matter: Matter, rules: Rules) -> str:
    """What whoever gave the work may do next, once its last attempt has ended; empty where nothing is to be said."""
    last, name = matter.last, matter.last.id
    what = matter.kind()
    if what in ("done", "running"):
        return ""
    if matter.strikes() >= rules.strikes:
        return OVER
    again = f"with after: {name!r}"
    match what:
        case "error":
            lack = report.lacks(last.spec, last.outcome) if last.outcome is not None else ""
            if lack:
                return f"It lacks {lack}: give the work to another role {again}, or do it yourself."
            if matter.tried(goal(last.spec)) > rules.retries:
                return f"Change the goal, give it to another role {again}, or do it yourself."
            return f"You may give it once more, as a fresh task, {again}."
        case "too-long":
            return f"Give a smaller part of it {again}, or let it hand in its work in parts."
        case "refusal":
            return f"Do not ask the same of it again: change what you ask for, or give it to another role, {again}; or do it yourself."
        case "aborted":
            return f"Give it again only if it was ended by accident, {again} and reason: {ACCIDENT!r}."
        case "interrupted":
            return f"Its process ended: give it again {again}, or go on with its conversation where it is kept."
        case _:
            return "Nobody knows what it has done: look yourself before you give it again, and ask the user."


OVER = "It has failed as often as it may. Do not give it again: tell the user what failed, why, and what you have tried."


def same(one: TaskSpec, text: str) -> bool:
    """Whether a goal is, word for word, that of a task."""
    return normal(goal(one)) == normal(text)
