"""How a child ends that was given a role: with a report that says whether it did its work, and if not, what was in the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hames.content.jsontext import as_object
from hames.delegation.outcome import Outcome
from hames.delegation.spec import TaskSpec

DONE, FAILED = "done", "failed"


def _text(said: str) -> dict[str, str]:
    return {"type": "string", "description": said}


SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "description": "Your report: all that is seen of your work.",
    "properties": {
        "outcome": {"enum": [DONE, FAILED], "description": "'failed' if what you were asked for is not there."},
        "result": _text("What you did or found; if you failed, what you completed."),
        "error": _text("If you failed: the exact error."),
        "missing": _text("If you failed: the tool or permission that you lack."),
        "next": _text("If you failed: what you suggest to do."),
    },
    "required": ["outcome", "result"],
    "additionalProperties": False,
}
NOTHING = frozenset(("", "none", "nothing", "no", "n/a", "na", "null", "not applicable", "nothing missing", "no tool", "no permission"))
"""What models say where there is nothing to say."""
LINES = {"error": "The error", "missing": "It lacks", "next": "It suggests"}


def asked(spec: TaskSpec) -> bool:
    """Whether a task ends with a report."""
    return spec.schema is not None and dict(spec.schema) == SCHEMA


def done(value: Any) -> str:
    """What a report says was done."""
    return str(as_object(value).get("result", ""))


def in_the_way(value: Any) -> list[str]:
    """What a report says was in the way, a line each."""
    found = as_object(value)
    return [f"{head}: {found[name]}" for name, head in LINES.items() if found.get(name)]


def words(value: Any) -> str:
    """A report as whoever asked for it reads it: what is in the way first, since a long result is shown by its head."""
    return "\n".join([*in_the_way(value), done(value)])


def failed(spec: TaskSpec, outcome: Outcome) -> bool:
    """Whether a task says of itself that it did not do its work."""
    return asked(spec) and as_object(outcome.value).get("outcome") == FAILED


def lacks(spec: TaskSpec, outcome: Outcome) -> str:
    """The tool or permission that a task says it lacked; empty for none."""
    said = str(as_object(outcome.value).get("missing", "")).strip() if failed(spec, outcome) else ""
    return "" if said.casefold().strip(" .-") in NOTHING else said
