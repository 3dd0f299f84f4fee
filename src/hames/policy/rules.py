"""Rules: patterns over tools and their arguments, and what they say.

A rule that denies beats one that asks, and that one beats one that allows; their order means nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from hames.compose.config import RowConfig
from hames.content.paths import expanded
from hames.policy.port import ToolRequest
from hames.policy.shell import loosened, simple_commands

Verdict = Literal["allow", "ask", "deny"]


class Rule(RowConfig):
    """One rule: exactly one of ``allow``, ``ask`` and ``deny`` names tools, as a pattern like ``bash`` or ``mcp__github__*``."""

    allow: str = ""
    ask: str = ""
    deny: str = ""
    when: dict[str, str] = {}
    """Patterns that arguments must match, for example ``{command: "npm test*"}``. A pattern of a shell command is matched with each of
    the simple commands that it consists of; one that allows must match all of them."""
    network: bool = False
    """Whether a call that is allowed by this rule may speak to others."""
    reason: str = ""
    """What is said to the model where the rule denies or asks."""

    @model_validator(mode="after")
    def check_verdict(self) -> Rule:
        if sum(bool(each) for each in (self.allow, self.ask, self.deny)) != 1:
            raise ValueError("a rule has exactly one of allow, ask and deny")
        if self.network and not self.allow:
            raise ValueError("only a rule that allows can open the network")
        return self

    @property
    def verdict(self) -> Verdict:
        return "allow" if self.allow else "ask" if self.ask else "deny"

    @property
    def tool(self) -> str:
        return self.allow or self.ask or self.deny

    def __str__(self) -> str:
        when = ", ".join(f"{name}: {pattern}" for name, pattern in self.when.items())
        return f"{self.verdict} {self.tool}{f' when {{{when}}}' if when else ''}"

    def matches(self, request: ToolRequest) -> bool:
        if not fnmatchcase(request.name, self.tool):
            return False
        return all(self._fits(request, name, pattern) for name, pattern in self.when.items())

    def _fits(self, request: ToolRequest, name: str, pattern: str) -> bool:
        if name not in request.arguments:
            return False
        value = text(request.arguments[name])
        if "execute" in request.capabilities and name == "command":
            return self._fits_command(value, pattern)
        if name == "path":
            places = located(value, request.cwd)
            return any(fnmatchcase(place, pattern) for place in (places if self.verdict == "allow" else (value, *places)))
        return fnmatchcase(value, pattern)

    def _fits_command(self, command: str, pattern: str) -> bool:
        """A rule that allows must fit the whole: ``npm test*`` does not allow ``npm test; rm x``. The others need a part, and look for it
        also in what is not understood: they are a help there, and no wall, which the sandbox is."""
        parts = simple_commands(command)
        if self.verdict == "allow":
            if not parts:
                return command == pattern or pattern == "*"
            return command == pattern or all(fnmatchcase(part, pattern) for part in parts)
        loose = loosened(command)
        if parts is None:
            return fnmatchcase(command, pattern) or fnmatchcase(loose, f"*{pattern}*")
        return any(fnmatchcase(part, pattern) for part in (command, loose, *parts))


def located(path: str, cwd: str) -> tuple[str, ...]:
    """Where a path leads: relative to the working directory where it is inside, and absolute."""
    base = Path(cwd).resolve()
    try:
        real = (base / expanded(path)).resolve()
    except (OSError, RuntimeError, ValueError):
        return ()
    return (str(real.relative_to(base)), str(real)) if real.is_relative_to(base) else (str(real),)


def text(value: Any) -> str:
    """An argument as patterns see it: a text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def exact(value: Any) -> str:
    """A pattern that matches this value alone."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text(value))


def lasting(request: ToolRequest) -> dict[str, str]:
    """The patterns of what an answer for longer than once covers: an address with its whole host, everything else as it is."""
    if request.whole:
        return {"*": "*"}
    patterns = {name: exact(value) for name, value in request.arguments.items() if name != "timeout" and value not in EMPTY}
    url = request.arguments.get("url")
    if isinstance(url, str) and (host := HOST.match(url)):
        patterns["url"] = f"{exact(host[1])}/*"
    if request.unconfined:
        patterns["unconfined"] = "?*"
    return patterns


HOST = re.compile(r"(https?://[^/?#\\]+)(.*)", re.DOTALL)
EMPTY = (None, False, "")


def fits(when: Mapping[str, str], request: ToolRequest) -> bool:
    """Whether every argument matches its pattern; one without a pattern does not, unless it is empty."""
    if when == {"*": "*"}:
        return request.whole
    for name, value in request.arguments.items():
        if name == "timeout" or (name not in when and value in EMPTY):
            continue
        if name not in when:
            return False
        shown = text(value)
        if name == "url" and (host := HOST.match(shown)) and not host[2].startswith("/"):
            shown = f"{host[1]}/{host[2]}"
        if not fnmatchcase(shown, when[name]):
            return False
    return True
