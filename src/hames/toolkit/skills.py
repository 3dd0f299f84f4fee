"""Skills: instructions for one kind of work, in a folder with a ``SKILL.md``, read when they are needed.

The agent is told the catalogue once, as a message, and reads a skill with the tool ``skill``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from hames.agents import AGENTS, Agent, TurnBegan
from hames.compose.config import RowConfig
from hames.content.jsontext import as_object
from hames.content.visible import visible
from hames.kernel import Context, plugin
from hames.prompts import PROMPTS, Facts
from hames.toolkit.project import directories, read_text, trusted, user_directory
from hames.tools import TOOLS, Invocation, ToolError, tool
from hames.trust import TRUST

PLACES = (".hames/skills", ".agents/skills", ".claude/skills")
FILE_LIMIT = 256 * 1024  # bytes of a SKILL.md
DESCRIPTION = 500  # characters of a description that are told
NAME = 64  # characters of a name
Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # all values are texts: no tag makes anything of them
COUNT = 200  # skills of a place that are looked at


LEAD = "Skills, each with instructions for its kind of work; read one with the tool skill before you do that work:\n"


class SkillsConfig(RowConfig):
    """Where skills are."""

    paths: list[str] = []
    """More folders of skills, for example ``~/skills``."""
    max_told: int = Field(default=100, ge=0)
    """Skills that the catalogue holds at most."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill that was found.

    :param problem: why it cannot be read; empty for none.
    """

    name: str
    description: str
    path: Path
    body: str
    problem: str = ""


def found(cwd: Path, config: SkillsConfig, *, project: bool) -> dict[str, Skill]:
    """The skills that an agent sees, the nearest of each name, by name.

    :param project: whether the repository's own are read.
    """
    roots: list[tuple[Path, Path | None]] = []
    if project:
        places = directories(cwd)
        roots += [(place / name, places[0]) for place in reversed(places) for name in PLACES]
    roots.append((user_directory() / "skills", None))
    roots += [(Path(name).expanduser(), None) for name in config.paths]
    skills: dict[str, Skill] = {}
    for root, inside in roots:
        for skill in of(root, inside):
            skills.setdefault(skill.name, skill)
    return dict(sorted(skills.items()))


def of(root: Path, inside: Path | None) -> list[Skill]:
    try:
        folders = sorted(root.iterdir())[:COUNT]
    except OSError:
        return []
    return [skill for folder in folders if (skill := read(folder, inside)) is not None]


def read(folder: Path, inside: Path | None) -> Skill | None:
    """The skill of a folder; None where there is none."""
    if not folder.is_dir():
        return None
    path = folder / "SKILL.md"
    text = read_text(path, inside, FILE_LIMIT)
    if text is None:
        return None
    name = "".join(visible(folder.name).split())[:NAME]
    if text.refused or text.more:
        return Skill(name, "", path, "", text.refused or f"it is longer than {FILE_LIMIT} bytes")
    head, body = front_matter(text.text)
    if head is None:
        return Skill(name, "", path, "", "what stands between its --- lines is no YAML")
    named, description = head.get("name"), head.get("description")
    line = visible(" ".join(description.split())) if isinstance(description, str) else ""
    own = "".join(visible(named).split())[:NAME] if isinstance(named, str) else ""
    return Skill(own or name, line, path, body.strip())


def front_matter(text: str) -> tuple[dict[str, Any] | None, str]:
    """What stands between two ``---`` lines at the beginning, and what follows."""
    if not text.startswith("---"):
        return {}, text
    head, end, body = text[3:].partition("\n---")
    if not end:
        return None, text
    try:
        return as_object(yaml.load(head, Loader=Loader)), body.partition("\n")[2]
    except (yaml.YAMLError, ValueError, RecursionError):
        return None, text


def catalogue(skills: dict[str, Skill], limit: int) -> str:
    """What the agent is told of its skills."""
    usable = [skill for skill in skills.values() if not skill.problem]
    if not usable:
        return ""
    lines = [f"- {skill.name}: {skill.description[:DESCRIPTION]}" for skill in usable[:limit]]
    more = f"\n[{len(usable) - limit} more are not listed]" if len(usable) > limit else ""
    return LEAD + "\n".join(lines) + more


@plugin(config=SkillsConfig, needs=(TOOLS, PROMPTS, AGENTS), wants=(TRUST,), name="skills")
def skills(ctx: Context, config: SkillsConfig) -> None:
    """Tell agents which skills there are, and the tool ``skill`` that reads one."""
    agents, trust = ctx.use(AGENTS), ctx.find(TRUST)

    def look(notice: TurnBegan) -> None:
        agent = agents.live.get(notice.agent)
        if agent is not None:
            agent.memory["skills"] = found(agent.cwd, config, project=trusted(trust, agent.cwd))

    def told(facts: Facts) -> str:
        agent = facts.scope.key
        if not isinstance(agent, Agent) or ctx.use(TOOLS).registry.get(agent.scope, "skill") is None:
            return ""
        return catalogue(agent.memory.get("skills", {}), config.max_told)

    @tool("read")
    def skill(name: str, *, call: Invocation) -> str:
        """Read the instructions of a skill.

        :param name: its name, as in the list of skills.
        """
        seen: dict[str, Skill] = call.memory.get("skills", {})
        chosen = seen.get(name)
        if chosen is None:
            raise ToolError(f"there is no skill {name!r}; there are {', '.join(seen) or 'none'}", "NOT_FOUND")
        if chosen.problem:
            raise ToolError(f"{chosen.path}: {chosen.problem}", "UNREADABLE")
        return f"{chosen.body}\n\n[the files of this skill are in {chosen.path.parent}]"

    ctx.on(TurnBegan, look)
    ctx.use(PROMPTS).fact(ctx, "skills", told, order=-40)
    ctx.use(TOOLS).register(ctx, skill)
