"""``AGENTS.md`` and ``CLAUDE.md``: what the user and a trusted repository tell every agent."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hames.agents import AGENTS, Agent, TurnBegan
from hames.compose.config import RowConfig
from hames.kernel import Context, plugin
from hames.prompts import PROMPTS, Facts
from hames.toolkit.project import directories, read_text, trusted, user_directory
from hames.trust import TRUST


class InstructionsConfig(RowConfig):
    """Which instructions are read."""

    names: list[str] = ["AGENTS.md", "CLAUDE.md"]
    """Names of files that are looked for in each directory from the top of the checkout to the working directory."""
    max_bytes: int = Field(default=64 * 1024, gt=0)
    """Bytes of all of them together that are told."""


def gathered(cwd: Path, config: InstructionsConfig, *, project: bool) -> str:
    """What the files say; files that say the same are told once, and what is left out is said.

    :param project: whether the repository's own files are read.
    """
    files: list[tuple[Path, Path | None]] = [(user_directory() / name, None) for name in config.names]
    if project:
        places = directories(cwd)
        files += [(place / name, places[0]) for place in places for name in config.names]
    left = config.max_bytes
    texts: list[str] = []
    told: set[str] = set()
    for path, inside in files:
        found = read_text(path, inside, config.max_bytes + 1)
        if found is None:
            continue
        if found.refused:
            texts.append(f"[{path} was not read: {found.refused}]")
            continue
        text = found.text.strip()
        if not text or text in told:
            continue
        told.add(text)
        data = text.encode()
        shown = data[: max(left, 0)].decode("utf-8", "ignore").strip()
        left -= len(data)
        if not shown:
            texts.append(f"[{path} was not read: the instructions are longer than {config.max_bytes} bytes]")
            continue
        cut = found.more or len(shown.encode()) < len(data)
        note = f"\n[the rest of {path} was not read: the instructions are longer than {config.max_bytes} bytes]" if cut else ""
        texts.append(f"Instructions from {path}:\n\n{shown}{note}")
    return "\n\n".join(texts)


@plugin(config=InstructionsConfig, needs=(PROMPTS, AGENTS), wants=(TRUST,), name="instructions")
def instructions(ctx: Context, config: InstructionsConfig) -> None:
    """Tell agents what AGENTS.md and CLAUDE.md say: at the first turn, and when it has changed at a later one."""
    agents, trust = ctx.use(AGENTS), ctx.find(TRUST)

    def look(notice: TurnBegan) -> None:
        agent = agents.live.get(notice.agent)
        if agent is not None:
            agent.memory["instructions"] = gathered(agent.cwd, config, project=trusted(trust, agent.cwd))

    def told(facts: Facts) -> str:
        agent = facts.scope.key
        return agent.memory.get("instructions", "") if isinstance(agent, Agent) else ""

    ctx.on(TurnBegan, look)
    ctx.use(PROMPTS).fact(ctx, "instructions", told, order=-50)
