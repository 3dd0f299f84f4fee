"""Taking over a configuration of dsh-paoding: what it says becomes differences of a preset, and roles in files of their own."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hames.compose.layers import home
from hames.compose.yamltext import NULL, parse
from hames.content.errors import UsageError
from hames.content.jsontext import as_list_of_texts, as_object
from hames.delegation.orchestrator import REMOVABLE, ROLES, may_be_role
from hames.workspaces.choice import LONGEST

TOOLS = {"str_replace_editor": "edit", "pwsh": "bash"}
"""Names that are others here."""
KNOWN = frozenset(
    (
        *("profile", "main_agent_display_name", "roles", "roles_remove", "skills", "workspaces"),
        *("main_agent_extra", "main_agent_remove", "main_agent_skills", "main_agent_skills_inline", "main_agent_persona_extra"),
    )
)
OF_A_ROLE = frozenset(("name", "model", "provider", "start_mode", "background_mode", "persona", "tools"))
MODES = {"start_mode": ("fresh", "fork"), "background_mode": ("one-shot", "continuable")}
LENGTHS = {"name": 60, "model": 120, "provider": 120}
PLAIN = re.compile(r"[A-Za-z_][\w:/.@ -]*[\w.]|[A-Za-z_]", re.ASCII)
MEANT = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))


@dataclass(slots=True)
class Imported:
    """What a configuration becomes.

    :ivar files: what is to be written, by its path.
    :ivar notes: what is not followed, or has to be done by hand.
    """

    files: dict[Path, str] = field(default_factory=dict[Path, str])
    notes: list[str] = field(default_factory=list[str])


def imported(text: str, name: str, preset: str) -> Imported:
    """What a configuration becomes.

    :param name: of its file.
    :param preset: what it becomes.
    :raises ConfigError: if it is no YAML.
    :raises UsageError: if it is no mapping.
    """
    text = text.removeprefix("\ufeff")
    found = parse(text, name).plain()
    if not isinstance(found, dict):
        raise UsageError(f"{name} is no mapping", remedy="name the file dsh-paoding.config.yml")
    made, members, words = Imported(), as_object(found), as_object(as_written(yaml.compose(text, Loader=yaml.SafeLoader)))
    Taking(made, members, words, preset).all()
    taken = {preset}
    for directory, own in sorted(as_object(members.get("workspaces")).items()):
        if not directory or not isinstance(own, dict):
            made.notes.append(f"workspaces: {directory!r} says nothing that can be taken over")
            continue
        slug = named(directory, preset, taken)
        Taking(made, as_object(own), as_object(as_object(words.get("workspaces")).get(directory)), slug).all()
        made.notes.append(f"for {directory}: hames preset use {slug} --cwd {shlex.quote(directory)}")
    return made


def as_written(node: Any) -> Any:
    """A value with its texts as they stand there: a name of digits is a name."""
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): as_written(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [value for each in node.value if (value := as_written(each)) is not None]
    if not isinstance(node, yaml.ScalarNode) or (not node.style and node.value in NULL):
        return None
    return str(node.value)


def named(directory: str, preset: str, taken: set[str]) -> str:
    """A name for the preset of a directory that no other one of the file has."""
    base = re.sub(r"[^a-z0-9-]+", "-", Path(directory).name.lower()).strip("-") or "ws"
    name, n = f"{preset[: LONGEST // 2]}-{base}"[: LONGEST - 4].rstrip("-"), 1
    whole = name
    while name in taken:
        n += 1
        name = f"{whole}-{n}"
    taken.add(name)
    return name


class Taking:
    """Takes over one set of settings: the global one, or that of a directory.

    :param words: the same with all texts as they stand there.
    """

    def __init__(self, made: Imported, members: Mapping[str, Any], words: Mapping[str, Any], preset: str) -> None:
        self._made = made
        self._members = members
        self._words = words
        self._preset = preset

    def _note(self, text: str) -> None:
        self._made.notes.append(f"{self._preset}: {text}")

    def all(self) -> None:
        members, config = self._members, dict[str, Any]()
        for key in sorted(set(members) - KNOWN):
            self._note(f"{key} is no setting that is known, and is left out")
        if members.get("profile"):
            self._note(f"profile {members['profile']!r} is left out: compositions are chosen with --profile")
        removed = self._removed()
        roles = self._roles(removed)
        config |= {"roles": roles} if roles else {}
        config |= {"roles_remove": removed} if removed else {}
        if members.get("main_agent_extra") is not None:
            config["main_agent_extra"] = self._names(self._words, "main_agent_extra")
        if members.get("main_agent_remove"):
            config["main_agent_remove"] = self._names(self._words, "main_agent_remove")
        extra = [self._text(members, "main_agent_persona_extra", "the lead")]
        words = self._words
        skills = sorted({*as_list_of_texts(words.get("main_agent_skills")), *as_list_of_texts(words.get("main_agent_skills_inline"))})
        if skills:
            extra.append(helping(skills))
            self._note("skills of the lead are named in its persona; the tool skill is not among its own: add it to main_agent_extra")
        config |= {"persona_extra": "\n\n".join(filter(None, extra))} if any(extra) else {}
        self._preset_file(config)

    def _text(self, members: Mapping[str, Any], key: str, whose: str) -> str:
        """A text; empty where there is none, or what stands there is none that can be taken."""
        value, limit = members.get(key), LENGTHS.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            self._note(f"{whose}: {key} is no text, and is left out")
            return ""
        value = value.strip()
        if limit is not None and (len(value) > limit or len(value.splitlines()) > 1):
            self._note(f"{whose}: {key} is longer than {limit} characters or a line, and is left out")
            return ""
        return value

    def _removed(self) -> list[str]:
        given = as_list_of_texts(self._words.get("roles_remove"))
        for name in given:
            if name not in REMOVABLE:
                self._note(f"roles_remove: {name} cannot be removed, and stays")
        return list(dict.fromkeys(name for name in given if name in REMOVABLE))

    @staticmethod
    def _names(words: Mapping[str, Any], key: str) -> list[str]:
        return [TOOLS.get(name, name) for name in as_list_of_texts(words.get(key))]

    def _roles(self, removed: list[str]) -> dict[str, dict[str, Any]]:
        given, words = as_object(self._members.get("roles")), as_object(self._words.get("roles"))
        skills = {name: sorted(skill for skill, users in self._skills() if name in users) for _, users in self._skills() for name in users}
        made: dict[str, dict[str, Any]] = {}
        for name in dict.fromkeys((*given, *(name for name in skills if name in ROLES))):
            found = self._role(name, given.get(name, {}), as_object(words.get(name)), removed, skills.get(name, []))
            if found is not None and (found or name not in ROLES):
                made[name] = found
        for name in sorted(set(skills) - set(given) - set(ROLES)):
            self._note(f"skills: there is no role {name}")
        return made

    def _skills(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(skill, as_list_of_texts(users)) for skill, users in as_object(self._words.get("skills")).items()]

    def _role(self, name: str, own: Any, words: Mapping[str, Any], removed: list[str], skills: list[str]) -> dict[str, Any] | None:
        if not isinstance(own, dict) or not may_be_role(name):
            why = "its name is none of a role here, or that of a tool" if isinstance(own, dict) else "it says nothing"
            self._note(f"role {name!r} cannot be taken over: {why}")
            return None
        given, whose = as_object(own), f"role {name}"
        if name in removed:
            if given or skills:
                self._note(f"{whose} is removed; what is said of it is left out")
            return None
        for key in sorted(set(given) - OF_A_ROLE):
            self._note(f"{whose}: {key} is left out")
        made = {key: text for key in ("name", "model", "provider", "persona") if (text := self._text(given, key, whose))}
        for key, modes in MODES.items():
            if given.get(key) in modes:
                made |= {key: given[key]} if given[key] != modes[0] else {}
            elif given.get(key) is not None:
                self._note(f"{whose}: {key} is {given[key]!r}, and becomes {modes[0]}")
        if "provider" in made and "model" not in made:
            self._note(f"{whose}: provider {made.pop('provider')!r} says nothing without model, and is left out")
        if skills:
            made["persona_extra"] = helping(skills)
        tools = self._names(words, "tools")
        if given.get("tools") is not None and not tools:
            self._note(f"{whose} names no tools, which its origin refuses; here it has those of its file, or all that may be handed down")
        if name in ROLES:
            return {**made, **({"tools": [f"{each}?" for each in tools]} if tools else {})}
        self._role_file(name, made.pop("persona", ""), tools)
        return made

    def _role_file(self, name: str, persona: str, tools: list[str]) -> None:
        path = home(os.environ) / "roles" / f"{name}.md"
        persona = persona or f"You are the {name} agent. You do the tasks that are given to you."
        head = {"name": name, "description": persona.splitlines()[0][:200], **({"tools": [f"{each}?" for each in tools]} if tools else {})}
        text = f"---\n{written(head)}---\n{persona}\n"
        if self._made.files.get(path, text) != text:
            self._note(f"role {name} is said twice, and differently; the first counts")
            return
        self._made.files[path] = text

    def _preset_file(self, config: dict[str, Any]) -> None:
        said = self._text(self._members, "main_agent_display_name", "the lead") or "taken over from dsh-paoding"
        rows: list[dict[str, Any]] = [{"include": "shipped:presets/orchestrator.yaml"}]
        rows += [{"id": "orchestrator", "set": {"config": config}}] if config else []
        text = f"# {' '.join(said.split())[:100]}\n{written(rows)}"
        self._made.files[home(os.environ) / "presets" / f"{self._preset}.yaml"] = text


def helping(skills: list[str]) -> str:
    return f"Skills that help you, where they are there: {', '.join(skills)}."


class Dumper(yaml.SafeDumper):
    """Writes texts so that YAML 1.2 reads them as texts."""


def quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = PLAIN.fullmatch(text) and text.lower() not in MEANT and ": " not in text
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else "|" if "\n" in text else '"')


Dumper.add_representer(str, quoted)


def written(value: Any) -> str:
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)


def write(found: Imported) -> list[Path]:
    """Write the files; all of them, or none. A file that is there and says the same stays.

    :raises UsageError: naming those that are there and say something else, or where nothing can be written.
    """
    new = {path: text for path, text in found.files.items() if not (path.is_file() and path.read_text("utf-8", "replace") == text)}
    there = [str(path) for path in new if os.path.lexists(path)]
    if there:
        raise UsageError(f"{', '.join(there)} is there already, and says something else", remedy="move it away first")
    written: list[Path] = []
    try:
        for path, text in new.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        said = os.strerror(error.errno or 0)
        raise UsageError(f"{error.filename or home(os.environ)} cannot be written: {said}", remedy="nothing has been written") from None
    return written
