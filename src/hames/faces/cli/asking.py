"""How a person at a terminal is asked whether a call may run."""

from __future__ import annotations

from hames.content.visible import visible
from hames.policy import Answer
from hames.tools import Approval

#: What is an answer; anything else is asked again.
ANSWERS: dict[str, Answer] = {
    "y": "once",
    "yes": "once",
    "s": "session",
    "session": "session",
    "a": "always",
    "always": "always",
    "n": "denied",
    "no": "denied",
}
SHOWN = 20_000  # characters of an argument


def asked(approval: Approval) -> list[str]:
    """The question in lines, with every argument whole: nobody allows what is not shown."""
    request = approval.request
    lines = [f"? {request.name}: {visible(approval.reason)}"]
    for name, value in request.arguments.items():
        if value in (None, "", False):
            continue
        first, *more = visible(str(value)[:SHOWN], keep="\n").split("\n")
        lines.append(f"    {name}: {first}")
        lines += [f"    | {line}" for line in more]
        if len(str(value)) > SHOWN:
            lines.append(f"    | [and {len(str(value)) - SHOWN} more characters; refuse what you cannot see]")
    return lines
