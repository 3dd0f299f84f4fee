"""Taking over a configuration of dsh-paoding: what it says becomes differences of a preset, and roles in files of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hames.compose.layers import home
from hames.compose.yamltext import parse
from hames.content.errors import UsageError
from hames.content.jsontext import as_list_of_texts, as_object
from hames.delegation.orchestrator import REMOVABLE, ROLES
from hames.delegation.role import NAME

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
    found = parse(text, name).plain()
    if not isinstance(found, dict):
        raise UsageError(f"{name} is no mapping", remedy="name the file dsh-paoding.config.yml")
    made = Imported()
    members = as_object(found)
    Taking(made, members, preset).all()
    slugs: set[str] = set()
    for directory, own in sorted(as_object(members.get("workspaces") or {}).items()):
        if not directory or not isinstance(own, dict):
            made.notes.append(f"workspaces: {directory!r} says nothing that can be taken over")
            continue
        slug = named(directory, preset, slugs)
        Taking(made, as_object(own), slug).all()
        made.notes.append(f"for {directory}: hames preset use {slug} --cwd {directory}")
    return made


def named(directory: str, preset: str, taken: set[str]) -> str:
    """A name for the preset of a directory that no other one of the file has."""
    base = re.sub(r"[^a-z0-9-]+", "-", Path(directory).name.lower()).strip("-") or "ws"
    name, n = f"{preset}-{base}"[:60], 1
    while name in taken:
        n += 1
        name = f"{preset}-{base}"[:56] + f"-{n}"
    taken.add(name)
    return name


class Taking:
    """Takes over one set of settings: the global one, or that of a directory."""

    def __init__(self, made: Imported, members: Mapping[str, Any], preset: str) -> None:
        self._made = made
        self._members = members
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
        roles = {name: found for name, own in as_object(members.get("roles") or {}).items() if (found := self._role(name, own, removed))}
        config |= {"roles": roles} if roles else {}
        config |= {"roles_remove": removed} if removed else {}
        if "main_agent_extra" in members and members["main_agent_extra"] is not None:
            config["main_agent_extra"] = self._names("main_agent_extra")
        if members.get("main_agent_remove"):
            config["main_agent_remove"] = self._names("main_agent_remove")
        extra = [str(members["main_agent_persona_extra"]).strip()] if members.get("main_agent_persona_extra") else []
        skills = sorted({*as_list_of_texts(members.get("main_agent_skills")), *as_list_of_texts(members.get("main_agent_skills_inline"))})
        if skills:
            extra.append(f"Skills that help you, where they are there: {', '.join(skills)}.")
            self._note("skills of the lead are named in its persona; the tool skill is not among its own: add it to main_agent_extra")
        config |= {"persona_extra": "\n\n".join(extra)} if any(extra) else {}
        self._preset_file(config)

    def _removed(self) -> list[str]:
        given = as_list_of_texts(self._members.get("roles_remove"))
        for name in given:
            if name not in REMOVABLE:
                self._note(f"roles_remove: {name} cannot be removed, and stays")
        return list(dict.fromkeys(name for name in given if name in REMOVABLE))

    def _names(self, key: str) -> list[str]:
        return [TOOLS.get(name, name) for name in as_list_of_texts(self._members.get(key))]

    def _role(self, name: str, own: Any, removed: Iterable[str]) -> dict[str, Any] | None:
        if not isinstance(own, dict) or not NAME.fullmatch(name):
            self._note(f"role {name!r} cannot be taken over: {'its name is none here' if isinstance(own, dict) else 'it says nothing'}")
            return None
        if name in removed:
            self._note(f"role {name} is removed; what is said of it is left out")
            return None
        given = as_object(own)
        for key in sorted(set(given) - OF_A_ROLE):
            self._note(f"role {name}: {key} is left out")
        made = {key: str(given[key]) for key in ("name", "model", "provider", "persona") if given.get(key)}
        for key, words in MODES.items():
            if given.get(key) in words:
                made |= {key: given[key]} if given[key] != words[0] else {}
            elif given.get(key) is not None:
                self._note(f"role {name}: {key} is {given[key]!r}, and becomes {words[0]}")
        if "provider" in made and "model" not in made:
            self._note(f"role {name}: provider {made.pop('provider')!r} says nothing without model, and is left out")
        tools = None if given.get("tools") is None else [TOOLS.get(each, each) for each in as_list_of_texts(given["tools"])]
        used = sorted(skill for skill, users in as_object(self._members.get("skills") or {}).items() if name in as_list_of_texts(users))
        if used:
            made["persona_extra"] = f"Skills that help you, where they are there: {', '.join(used)}."
        if name in ROLES:
            return {**made, **({"tools": [f"{each}?" for each in tools]} if tools else {})} or None
        self._role_file(name, made.pop("persona", ""), tools)
        return made

    def _role_file(self, name: str, persona: str, tools: list[str] | None) -> None:
        path = home(os.environ) / "roles" / f"{name}.md"
        persona = persona.strip() or f"You are the {name} agent. You do the tasks that are given to you."
        if not tools:
            self._note(f"role {name} names no tools, which its origin refuses; here it gets all that may be handed down")
        head = {"name": name, "description": persona.splitlines()[0][:200], **({"tools": [f"{each}?" for each in tools]} if tools else {})}
        text = f"---\n{written(head)}---\n{persona}\n"
        if self._made.files.get(path, text) != text:
            self._note(f"role {name} is said twice, and differently; the first counts")
            return
        self._made.files[path] = text

    def _preset_file(self, config: dict[str, Any]) -> None:
        said = str(self._members.get("main_agent_display_name") or "taken over from dsh-paoding")
        rows: list[dict[str, Any]] = [{"include": "shipped:presets/orchestrator.yaml"}]
        rows += [{"id": "orchestrator", "set": {"config": config}}] if config else []
        text = f"# {' '.join(said.split())[:100]}\n{written(rows)}"
        self._made.files[home(os.environ) / "presets" / f"{self._preset}.yaml"] = text


def written(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)


def write(found: Imported) -> list[Path]:
    """Write the files; all of them, or none where one is there already.

    :raises UsageError: naming those that are there.
    """
    there = [str(path) for path in found.files if path.exists()]
    if there:
        raise UsageError(f"{', '.join(there)} is there already", remedy="move it away, or take another name with --name")
    for path, text in found.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    return list(found.files)
