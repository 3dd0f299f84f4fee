"""The attempts at one piece of work, and what may follow them.

Attempts are linked: each later one names the one before it. What became of them says what may come next; it is looked at before anything
starts, and what is refused never begins. All of it is read from the ledger, so it holds after a restart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from hames.delegation import report
from hames.delegation.goal import alike, covers, normal
from hames.delegation.outcome import bounded
from hames.delegation.records import MESSAGE, TaskRecord
from hames.delegation.spec import TaskSpec

Kind = Literal["running", "done", "poor", "error", "too-long", "refusal", "aborted", "interrupted", "unknown"]
POOR, ACCIDENT = "poor", "accident"
REASONS = (POOR, ACCIDENT)
UNRELATED = "unrelated"
"""Said instead of an attempt: this is other work."""
MARK = "\n\n--- Earlier attempts at this ---\n"
"""What is carried along stands behind this in a prompt."""
STRIKES = frozenset[Kind](("poor", "error", "too-long", "refusal"))
OPEN = STRIKES | frozenset[Kind](("aborted", "interrupted", "unknown"))
NESTED = 20
"""How often a mark is taken out of a text that shows one again; then the text ends before it."""
OLDER, POINTS = 4, 8
"""Attempts before the last one that the next is told of, and points that are missing."""
LINE, SAID = 240, 2000
"""Bytes of a line of what is carried along, and of what the last attempt said."""
CARRIED = 12_000
"""Bytes of what is carried along, at most."""


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


def goals(record: TaskRecord) -> list[str]:
    """All that a task was asked for: its goal, and messages that came while it ran."""
    return [goal(record.spec), *(str(receipt.data.get("text", "")) for receipt in record.receipts if receipt.kind == MESSAGE)]


def asked_alike(record: TaskRecord, text: str) -> bool:
    """Whether a task was asked for the same as a text asks."""
    return any(alike(each, text) for each in goals(record))


def said_alone(text: str) -> str:
    """What somebody asks for, without what looks as if it were carried along."""
    mark = MARK.strip()
    for _ in range(NESTED):
        if mark not in text:
            return text
        text = text.replace(mark, "")
    return text.partition(mark)[0]


def place(spec: TaskSpec) -> tuple[str, str]:
    """Where a task works."""
    return spec.isolation, real(spec.directory)


@lru_cache(256)
def real(directory: str) -> str:
    return os.path.realpath(directory)


def kind(record: TaskRecord) -> Kind:
    """What became of an attempt."""
    outcome = record.outcome
    if outcome is None:
        return "unknown" if record.damaged else "running"
    if outcome.ok:
        return "error" if report.failed(record.spec, outcome) else "done"
    match outcome.status:
        case "refusal" | "aborted" | "interrupted" | "unknown":
            return outcome.status
        case "max-tokens" | "budget" | "invalid":
            return "too-long"
        case _:
            return "error"


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

    def kinds(self) -> list[Kind]:
        """What became of each attempt; one that a later one calls poor is."""
        poor = {each.spec.after for each in self.attempts if each.spec.because == POOR}
        return ["poor" if kind(each) == "done" and each.id in poor else kind(each) for each in self.attempts]

    def counted(self, *, poor: bool = False) -> list[tuple[TaskRecord, Kind]]:
        """The attempts that count, with what became of them: those since a person has spoken, and since the work itself was done.

        :param poor: what the last one did is not what it says.
        """
        kinds = self.kinds()
        if poor and kinds[-1] == "done":
            kinds[-1] = "poor"
        first = self.lifted
        for n in range(self.lifted, len(self.attempts)):
            each = self.attempts[n]
            if kinds[n] == "done" and n and all(kinds[m] not in OPEN or self._does(each, self.attempts[m]) for m in range(first, n)):
                first = n + 1
        return [(self.attempts[n], kinds[n]) for n in range(max(first, self.lifted), len(self.attempts))]

    @staticmethod
    def _does(one: TaskRecord, other: TaskRecord) -> bool:
        """Whether one that is done did the work of another."""
        return covers(goal(one.spec), goal(other.spec))

    def strikes(self, *, poor: bool = False) -> int:
        """How many of those have failed."""
        return sum(what in STRIKES for _, what in self.counted(poor=poor))

    @property
    def open(self) -> bool:
        """Whether one of them has failed, and nothing has come of the work since."""
        return any(what in OPEN for _, what in self.counted())

    @property
    def standing(self) -> tuple[TaskRecord, Kind]:
        """The attempt that says what may come next: the last one, but for one that did something else."""
        kinds = self.kinds()
        if kinds[-1] == "done":
            failed = [each for each in self.counted() if each[1] in OPEN]
            if failed:
                return failed[-1]
        return self.last, kinds[-1]

    def counts(self, record: TaskRecord) -> bool:
        """Whether an attempt counts."""
        return any(each.id == record.id for each, _ in self.counted())

    def is_lifted(self, record: TaskRecord) -> bool:
        """Whether a person has spoken after an attempt."""
        return any(each.id == record.id for each in self.attempts[: self.lifted])

    def tried(self, text: str) -> int:
        """How many attempts that count had this goal."""
        return sum(asked_alike(each, text) for each, _ in self.counted())


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
        while matter.lifted < len(matter.attempts) and heard(matter.attempts[matter.lifted]):
            matter.lifted += 1
    return found


def carried(matter: Matter, missing: Sequence[str]) -> str:
    """What the next attempt is told of those before it; of long ones the part that says what to do differently."""
    lines: list[str] = []
    before, last = matter.attempts[:-1], matter.last
    if len(before) > OLDER:
        lines.append(f"There were {len(before) - OLDER} attempts before these.")
    for n in range(max(0, len(before) - OLDER), len(before)):
        lines.append(bounded(f"Attempt {n + 1}, {told(before[n])}", LINE))
        lines += (bounded(line, LINE) for line in (*failure(before[n]), *said_short(before[n])))
    lines.append(bounded(f"Attempt {len(before) + 1}, the last one, {told(last)}", LINE))
    lines += (bounded(line, LINE) for line in failure(last))
    if last.outcome is not None and (said := result(last)):
        lines.append(bounded(f"It said: {said}", SAID))
    lines += (bounded(f"What was missing before it: {point}", LINE) for point in last.spec.missing[:POINTS])
    lines += (bounded(f"What is missing: {point}", LINE) for point in list(missing)[:POINTS])
    lines.append("Do not begin from nothing: take up what there is, and do not repeat what failed.")
    return "\n".join(lines)


def told(record: TaskRecord) -> str:
    return f"task {record.id} ({record.spec.role or 'no role'}): {ended(record)}."


def failure(record: TaskRecord) -> Iterator[str]:
    """What an attempt says was in its way."""
    outcome = record.outcome
    if outcome is not None and report.failed(record.spec, outcome):
        yield from report.in_the_way(outcome.value)


def result(record: TaskRecord) -> str:
    """What an attempt did, in its own words."""
    outcome = record.outcome
    if outcome is None:
        return ""
    if report.asked(record.spec) and outcome.schema_valid:
        return report.done(outcome.value)
    return outcome.text or outcome.raw


def said_short(record: TaskRecord) -> Iterator[str]:
    if said := " ".join(result(record)[: 4 * LINE].split()):
        yield f"It said: {said}"


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
    record, what = matter.standing
    if what in ("done", "running"):
        return ""
    if matter.strikes() >= rules.strikes:
        return OVER
    again = f"with after: {matter.last.id!r}"
    match what:
        case "error":
            lack = report.lacks(record.spec, record.outcome) if record.outcome is not None else ""
            if lack:
                return f"It lacks {lack[:LINE]}: give the work to another role {again}, or do it yourself."
            if matter.tried(goal(record.spec)) > rules.retries:
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
        case "poor":
            return f"You may give it once more {again}."
        case _:
            return "Nobody knows what it has done: look yourself before you give it again, and ask the user."


OVER = "It has failed as often as it may. Do not give it again: tell the user what failed, why, and what you have tried."
