"""Roles: who a child is. A Markdown file with front matter; what follows it is the persona.

::

    ---
    name: reviewer                    # the name of the file where it is left out
    description: Reads a change and says what is wrong with it.
    tools: [read, grep, "@read", "mcp:github/*?"]
    model: anthropic:claude-haiku-4-5
    permission: read-only
    ---
    You review changes. Say what is wrong, with file and line.

An entry of ``tools`` is a name, a pattern, a set as in ``@read``, or ``mcp:SERVER/TOOL``; with ``?`` at its end it may be missing. Without
``tools`` a role has all that may be handed down. Files of ``.claude/agents`` are read with one table of their names of tools and models;
what they ask for and Hames has not is left out, and said. Where such a file is no YAML, each of its keys is read by itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from hames.budget import Limits
from hames.content.jsontext import as_object
from hames.policy.port import WIDTH
from hames.policy.port import Mode as Permission

Origin = Literal["workspace", "claude", "user", "shipped"]
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
LISTS = ("tools", "allowed-tools", "disallowedTools")
KEYS = ("name", "description", "tools", "model", "effort", "permission", "runner", "assurance", "budget")
LONGEST = 256 * 1024
"""Bytes of a file."""
FRONT = 16 * 1024
"""Characters of front matter."""
Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # all values are texts: no tag makes anything of them

SETS = {
    "@read": ("read", "read_image", "glob", "grep", "recall"),
    "@write": ("write", "edit"),
    "@run": ("bash", "job_output", "job_list", "job_kill"),
    "@web": ("web_search", "web_fetch"),
    "@plan": ("todo_write", "create_goal", "get_goal", "update_goal"),
}
CLAUDE_TOOLS = {
    "Read": "read",
    "Write": "write",
    "Edit": "edit",
    "MultiEdit": "edit",
    "Glob": "glob",
    "Grep": "grep",
    "LS": "glob",
    "Bash": "bash",
    "BashOutput": "job_output",
    "KillShell": "job_kill",
    "KillBash": "job_kill",
    "TodoWrite": "todo_write",
    "WebFetch": "web_fetch",
    "WebSearch": "web_search",
    "Task": "delegate",
    "Agent": "delegate",
    "Skill": "skill",
    "AskUserQuestion": "ask_user_question",
    "ExitPlanMode": "exit_plan_mode",
    "ListMcpResourcesTool": "mcp_resources",
    "ReadMcpResourceTool": "mcp_read",
}
CLAUDE_MODELS = {
    "inherit": "",
    "default": "",
    "sonnet": "anthropic:claude-sonnet-4-5",
    "opus": "anthropic:claude-opus-4-1",
    "haiku": "anthropic:claude-haiku-4-5",
}


OWN_TOOL = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
"""Names of tools as Hames writes them."""


@dataclass(frozen=True, slots=True)
class Intent:
    """A tool, or several, that a role wants.

    :param word: as it stands in the file.
    :param pattern: a name or pattern of registered tools; empty where there is none.
    :param why: why it can never be had; empty where it may.
    """

    word: str
    pattern: str
    required: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class Role:
    """A role as its file has it.

    :param persona: who the child is; empty for that of the deployment.
    :param tools: None for all that may be handed down.
    :param without: what it does not get, whatever ``tools`` say.
    :param digest: of the file.
    :param notes: what of the file is not followed.
    :param problem: why it cannot be used; empty where it can.
    """

    name: str
    origin: Origin
    path: Path
    description: str = ""
    persona: str = ""
    tools: tuple[Intent, ...] | None = None
    without: tuple[str, ...] = ()
    model: str = ""
    effort: str = ""
    permission: Permission | Literal[""] = ""
    runner: str = ""
    assurance: str = "enforced"
    budget: Limits = Limits()
    digest: str = ""
    notes: tuple[str, ...] = ()
    problem: str = ""


def read_role(text: str, path: Path, origin: Origin) -> Role:
    """The role of a file; one that cannot be used says why."""
    role = Role(path.stem, origin, path, digest=sha256(text.encode("utf-8", "replace")).hexdigest())
    head, body = parted(text)
    if head is None:
        return replace(role, persona=text.strip(), problem="it has no front matter between two lines of ---")
    try:
        members = front_matter(head, lenient=origin == "claude")
    except ValueError as error:
        return replace(role, persona=body, problem=str(error))
    return Reader(role, members, claude=origin == "claude").role(body)


def parted(text: str) -> tuple[str | None, str]:
    """Front matter and body; None where there is no front matter."""
    found = re.match(r"\s*---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)(.*)\Z", text, re.DOTALL | re.MULTILINE)
    return (None, text) if found is None else (found.group(1), found.group(2).strip())


def front_matter(head: str, *, lenient: bool) -> dict[str, Any]:
    """What stands in front matter.

    :param lenient: take a line ``key: text`` as it stands where it is no YAML: descriptions with colons in them are common.
    :raises ValueError: if it is none.
    """
    if len(head) > FRONT:
        raise ValueError(f"its front matter has more than {FRONT} characters")
    try:
        found = loaded(head)
    except ValueError as error:
        if not lenient:
            raise ValueError(f"its front matter is no YAML: {error}") from None
        found = by_parts(head)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError("its front matter is no mapping")
    return as_object(found)


def loaded(text: str) -> Any:
    """What a text is as YAML.

    :raises ValueError: if it is none.
    """
    try:
        return yaml.load(text, Loader=Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(getattr(error, "problem", "") or "it cannot be parsed") from None


def by_parts(head: str) -> dict[str, Any]:
    """The members of front matter that is no YAML as a whole: each key with the lines that belong to it by itself, and what is no YAML
    even then as the text that it is.

    :raises ValueError: if a list of tools cannot be read: a role must not get more than its file names.
    """
    members: dict[str, Any] = {}
    for match in re.finditer(r"^([A-Za-z_-]+):(.*(?:\n(?:[ \t-].*|$))*)", head, re.MULTILINE):
        key, value = match.groups()
        try:
            part = loaded(match.group(0).expandtabs(2))
        except ValueError:
            part = None
        if isinstance(part, dict) and key in part:
            members[key] = as_object(part)[key]
        elif key in LISTS and "\n" in value.rstrip():
            raise ValueError(f"its {key} are no list that can be read")
        else:
            value = " ".join(value.split())
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            members[key] = value[1:-1] if quoted else value
    return members


class Reader:
    """Reads the members of one file; everything that is wrong with them is said at once."""

    def __init__(self, role: Role, members: Mapping[str, Any], *, claude: bool) -> None:
        self._role = role
        self._members = members
        self._claude = claude
        self._wrong: list[str] = []
        self._notes: list[str] = []

    def role(self, body: str) -> Role:
        known = (*KEYS, *LISTS) if self._claude else KEYS
        unknown = [str(key) for key in self._members if key not in known]
        if unknown and self._claude:
            self._notes.append(f"not followed: {', '.join(unknown)}")
        elif unknown:
            self._wrong.append(f"there is no key {', '.join(unknown)}; keys are {', '.join(KEYS)}")
        name = self._text("name").lower() if self._claude else self._text("name")
        name = name or (self._role.name.lower() if self._claude else self._role.name)
        if not NAME.fullmatch(name):
            self._wrong.append(f"{name[:80]!r} is no name: small letters, digits, - and _")
            name = self._role.name
        read = replace(
            self._role,
            name=name,
            description=" ".join(self._text("description").split()),
            persona=body,
            tools=self._tools("allowed-tools" if self._claude and "tools" not in self._members else "tools"),
            without=tuple(each.pattern for each in self._tools("disallowedTools") or () if each.pattern) if self._claude else (),
            model=self._model(),
            effort=self._text("effort"),
            permission=cast(Permission, self._one_of("permission", tuple(WIDTH))),
            runner=self._text("runner"),
            assurance=self._one_of("assurance", ("enforced", "requested")) or "enforced",
            budget=self._budget(),
        )
        return replace(read, notes=tuple(self._notes), problem="; ".join(self._wrong))

    def _text(self, key: str) -> str:
        value = self._members.get(key)
        if value is None:
            return ""
        if isinstance(value, str):
            return value.strip()
        self._wrong.append(f"{key} is no text")
        return ""

    def _one_of(self, key: str, words: tuple[str, ...]) -> str:
        value = self._text(key)
        if value and value not in words:
            self._wrong.append(f"{key} is {value!r}, and may be {', '.join(words)}")
            return ""
        return value

    def _model(self) -> str:
        model = self._text("model")
        if not self._claude or ":" in model:
            return model
        if model.lower() in CLAUDE_MODELS or not model:
            return CLAUDE_MODELS.get(model.lower(), "")
        return f"anthropic:{model}"

    def _budget(self) -> Limits:
        given = self._members.get("budget", {})
        if not isinstance(given, dict):
            self._wrong.append(f"budget is a mapping of limits; limits are {', '.join(Limits.__slots__)}")
            return Limits()
        limits: dict[str, Any] = {}
        for name, text in as_object(given).items():
            try:
                value = float(text) if name not in ("steps", "tokens") else int(text)
                sound = name in Limits.__slots__ and 0 < value < math.inf
            except (ValueError, TypeError, OverflowError):
                value, sound = 0, False
            if sound:
                limits[name] = value
            else:
                self._wrong.append(f"budget.{name} is no limit; limits are positive numbers of {', '.join(Limits.__slots__)}")
        return Limits(**limits)

    def _tools(self, key: str) -> tuple[Intent, ...] | None:
        given = self._members.get(key)
        if given is None or given == "":
            return None
        words = split_words(given) if isinstance(given, str) else given
        if not isinstance(words, list):
            self._wrong.append(f"{key} is a list, or words between commas")
            return None
        texts = [word.strip() for word in words if isinstance(word, str)]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if len(texts) < len(words):  # pyright: ignore[reportUnknownArgumentType]
            self._wrong.append(f"{key} holds what is no text")
            return None
        found = [intent for text in texts if text for intent in self._intents(text)]
        if not found:
            self._wrong.append(f"{key} is empty; 'none' stands for no tools at all, and no line for all that may be handed down")
        return None if self._claude and [each.word for each in found] == ["*"] else tuple(found)

    def intents(self, words: Iterable[str]) -> tuple[Intent, ...]:
        """
        :raises ValueError: if one of them is none.
        """
        found = tuple(intent for word in words for intent in self._intents(word))
        if self._wrong:
            raise ValueError("; ".join(self._wrong))
        return found

    def _intents(self, word: str) -> list[Intent]:
        plain, required = word.removesuffix("?"), not word.endswith("?")
        if plain in SETS:
            return [Intent(word, name, required=False) for name in SETS[plain]]
        if plain.startswith("@"):
            self._wrong.append(f"there is no set {plain}; sets are {', '.join(SETS)}")
            return []
        if plain.startswith("mcp:"):
            server, _, tool = plain.removeprefix("mcp:").partition("/")
            return [Intent(word, f"mcp__{server}__{tool or '*'}", required)]
        return [self._foreign(word, plain)] if self._claude else [Intent(word, plain, required)]

    def _foreign(self, word: str, plain: str) -> Intent:
        """A tool as ``.claude/agents`` names it: what is not there costs the role that tool and no more."""
        name, limited, _ = plain.partition("(")
        if limited:
            return Intent(word, "", False, "a limit on arguments is no tool; say it as a rule of the row policy")
        if name.startswith("mcp__"):
            return Intent(word, name if name.count("__") > 1 else f"{name}__*", False)
        if name == "none":
            return Intent(word, name)
        known = CLAUDE_TOOLS.get(name, name if name == "*" or OWN_TOOL.fullmatch(name) else "")
        return Intent(word, known, False, "" if known else "there is no such tool here")


def intents(words: Iterable[str]) -> tuple[Intent, ...]:
    """What a list of tools wants.

    :raises ValueError: if it names a set that there is not.
    """
    reader = Reader(Role("", "user", Path()), {}, claude=False)
    return reader.intents(words)


def split_words(text: str) -> list[str]:
    """Words between commas, where commas in brackets part nothing."""
    words, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")" and depth > 0)
        if letter == "," and not depth:
            words.append("")
        else:
            words[-1] += letter
    return [word.strip() for word in words if word.strip()]
