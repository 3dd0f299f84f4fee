"""One objective in rounds: what each round is told, what its report has to be, and how the whole ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hames.budget import Limits
from hames.content.errors import HamesError
from hames.content.jsontext import as_list_of_texts, as_object
from hames.content.messages import Text
from hames.content.schema import violations
from hames.delegation.failures import Refused
from hames.delegation.give import speaker, told
from hames.delegation.outcome import Outcome
from hames.delegation.ralph import RalphConfig
from hames.delegation.runner import Origin
from hames.delegation.service import Tasks
from hames.delegation.spec import TaskSpec
from hames.tools import Invocation, Output, ToolError

ROUND = "round"
"""The label of a task that is one of several rounds."""
CONTINUE, COMPLETE, BLOCKED = "continue", "complete", "blocked"
LIST = {"type": "array", "items": {"type": "string"}}
REPORT: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "status": {"enum": [CONTINUE, COMPLETE, BLOCKED]},
        "summary": {"type": "string", "description": "What was done, for whoever goes on: it sees nothing else."},
        "evidence": {**LIST, "description": "What was seen that shows it: commands with their results, files with lines."},
        "next_steps": {**LIST, "description": "What is left, in order; none when the objective is reached."},
        "blocker": {"type": "string", "description": "What is in the way, when it cannot go on."},
    },
    "required": ["status", "summary", "evidence", "next_steps", "blocker"],
    "additionalProperties": False,
}
PROMPT = """Work on this objective as far as one round gets, and check what you did:

{objective}

This is round {n} of {most}. Rounds see nothing of each other but the report.{before}
Say 'complete' only with evidence that the objective is reached, 'blocked' only where nobody could go on without help, else 'continue'."""


def mistakes(report: Mapping[str, Any]) -> list[str]:
    """What in a report contradicts its status."""
    status, wrong = report["status"], list[str]()
    steps, evidence = as_list_of_texts(report["next_steps"]), as_list_of_texts(report["evidence"])
    blocker = str(report["blocker"]).strip()
    if status == CONTINUE and not steps:
        wrong.append("'continue' names the next steps")
    if status == COMPLETE and not evidence:
        wrong.append("'complete' shows evidence")
    if status == COMPLETE and steps:
        wrong.append("'complete' leaves no next steps")
    if status == BLOCKED and not blocker:
        wrong.append("'blocked' says what is in the way")
    if status != BLOCKED and blocker:
        wrong.append(f"{status!r} has no blocker")
    return wrong


def words(report: Mapping[str, Any], limit: int) -> str:
    """A report for whoever goes on, of at most so many characters."""
    lines = [str(report["summary"])]
    lines += [f"Seen: {each}" for each in report["evidence"]]
    lines += [f"Next: {each}" for each in report["next_steps"]]
    lines += [f"In the way: {report['blocker']}"] if str(report["blocker"]).strip() else []
    text = "\n".join(lines)
    return text if len(text) <= limit else f"{text[: max(limit - 2, 0)]} …"[:limit]


async def run(tasks: Tasks, config: RalphConfig, call: Invocation, given: Mapping[str, Any]) -> Output:
    """All rounds of a call.

    :raises ToolError: if a round cannot begin, does not complete, or hands in what is no report.
    """
    agent = speaker(call)
    most = given.get("max_rounds", config.max_rounds)
    objective = given.get("objective")
    if not isinstance(objective, str) or not objective.strip() or type(most) is not int or not 0 < most <= config.max_rounds:
        raise ToolError(f"objective is a text, and max_rounds a number from 1 to {config.max_rounds}", "INVALID_ARGS")
    origin = tasks.origin(agent, call.call_id)
    name = config.runner or tasks.config.runner
    try:
        if tasks.runners.choose(origin.scope, name).hands_on:
            raise Refused("OPTION_UNSUPPORTED", f"runner {name} hands on the conversation", remedy="a round begins with its report alone")
    except HamesError as error:
        raise told(error) from None
    report: Mapping[str, Any] = {"status": CONTINUE}
    n = 0
    while n < most and report["status"] == CONTINUE:
        n += 1
        report = await one(tasks, config, call, origin, (objective, n, most), report)
    status = {CONTINUE: f"the {most} rounds are over", COMPLETE: "complete", BLOCKED: "blocked"}[report["status"]]
    text = f"{status} after round {n}.\n{words(report, config.max_result_chars)}"
    return Output((Text(text),), report["status"] == BLOCKED, "BLOCKED" if report["status"] == BLOCKED else "")


async def one(
    tasks: Tasks, config: RalphConfig, call: Invocation, origin: Origin, place: tuple[str, int, int], before: Mapping[str, Any]
) -> Mapping[str, Any]:
    """One round: its report."""
    objective, n, most = place
    handed = words(before, config.max_handoff_chars) if "summary" in before else ""
    prompt = PROMPT.format(
        objective=objective, n=n, most=most, before=f" The round before this one says:\n\n{handed}\n" if handed else " Nobody has begun."
    )
    label, budget = f"round {n}/{most} · {' '.join(objective.split())[:60]}", Limits(**config.budget.model_dump())
    spec = TaskSpec(prompt, label, config.runner, schema=REPORT, budget=budget, labels=(ROUND,))
    call.progress(f"round {n} of at most {most}")
    try:
        task = await tasks.start(spec, origin)
    except HamesError as error:
        raise ToolError(f"round {n}: {told(error)}{left(handed)}", error.code) from None
    call.note("delegated", {"call": call.call_id, "task": task.id, "spec": task.spec.as_json()})
    with speaker(call).waiting("child"):
        outcome = await tasks.wait(task)
    call.note("settled", {"call": call.call_id, "task": task.id, "status": outcome.status, "session": outcome.native})
    return judged(outcome, n, handed)


def judged(outcome: Outcome, n: int, handed: str) -> Mapping[str, Any]:
    """The report of a round that completed.

    :raises ToolError: if it did not, or what it hands in is none.
    """
    if not outcome.ok:
        said = f"round {n} did not complete: {outcome.status} ({outcome.code}) {outcome.diagnostic}"
        raise ToolError(f"{said}{left(handed)}", outcome.code or "FAILED")
    report = as_object(outcome.value)
    wrong = violations(report, REPORT) or mistakes(report)
    if wrong:
        raise ToolError(f"round {n} contradicts itself: {'; '.join(wrong)}{left(handed)}", "SCHEMA_MISSED")
    return report


def left(handed: str) -> str:
    return f"\nWhat there was before it:\n{handed}" if handed else ""
