"""Goals: something to work towards over many turns, without a user in between, within a number of rounds.

A goal is durable. That it drives the agent on is not: after a resume somebody has to resume the goal too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hames.agents import AGENTS, Agent, TurnEnded
from hames.compose.config import RowConfig
from hames.content.errors import HamesError
from hames.content.messages import Message, Text
from hames.kernel import Context, plugin
from hames.prompts import PROMPTS, Facts
from hames.tools import TOOLS, Invocation, ToolError, tool

Action = Literal["edit", "pause", "resume", "complete", "blocked"]
PHASES: dict[str, str] = {"pause": "paused", "resume": "active", "complete": "complete", "blocked": "blocked"}


class GoalConfig(RowConfig):
    """How far a goal drives an agent."""

    max_rounds: int = Field(default=256, gt=0)
    """Turns that a goal may bring about at most, whatever the agent asks for."""


def goal_of(agent: Agent) -> dict[str, Any] | None:
    goal = agent.session.state.get("goal")
    return goal if isinstance(goal, dict) else None  # pyright: ignore[reportUnknownVariableType]


def said(goal: dict[str, Any]) -> str:
    return f"goal (revision {goal['revision']}, {goal['phase']}, round {goal['rounds']} of {goal['max_rounds']}): {goal['objective']}"


def agent_of(call: Invocation) -> Agent:
    agent = call.scope.key
    if not isinstance(agent, Agent):
        raise ToolError("there is no conversation that could have a goal", "NO_AGENT")
    return agent


def store(agent: Agent, goal: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Keep a goal with changes, as its next revision."""
    kept = {**goal, **changes, "revision": goal["revision"] + 1}
    agent.session.remember("goal", kept)
    return kept


@plugin(config=GoalConfig, needs=(TOOLS, PROMPTS, AGENTS), name="goal")
def goal(ctx: Context, config: GoalConfig) -> None:
    """The tools ``create_goal``, ``get_goal`` and ``update_goal``, and what drives an agent towards its goal."""
    agents = ctx.use(AGENTS)

    @tool("read")
    async def create_goal(objective: str, max_rounds: Annotated[int, Field(ge=1)] = 20, *, call: Invocation) -> str:
        """Set a goal to work towards over several turns. You go on by yourself until you say that it is complete or blocked.

        :param objective: what is to be true at the end, so that it can be checked.
        :param max_rounds: turns that may be spent on it at most.
        """
        agent = agent_of(call)
        known = goal_of(agent)
        if known is not None and known["phase"] in ("active", "paused"):
            raise ToolError(f"there is a goal already: {said(known)}", "GOAL_EXISTS")
        revision = known["revision"] if known is not None else 0
        spent = agent.memory.get("goal rounds", 0)
        if spent >= config.max_rounds:
            raise ToolError(f"goals have driven this agent for {spent} rounds; the user goes on from here", "ROUNDS_SPENT")
        rounds = min(max_rounds, config.max_rounds - spent)
        fresh = {"objective": objective, "phase": "active", "rounds": 0, "max_rounds": rounds, "note": ""}
        made = store(agent, {**fresh, "revision": revision})
        agent.memory["goal"] = True
        return said(made)

    @tool("read")
    async def get_goal(*, call: Invocation) -> str:
        """Show the goal, its revision and how far it is."""
        known = goal_of(agent_of(call))
        return said(known) + (f"\n{known['note']}" if known["note"] else "") if known is not None else "there is no goal"

    @tool("read")
    async def update_goal(action: Action, revision: int, objective: str = "", note: str = "", *, call: Invocation) -> str:
        """Change the goal: say that it is complete or blocked, pause or resume it, or put it differently.

        :param action: what to do; edit needs the new objective.
        :param revision: the revision of the goal that you mean.
        :param note: why: what was checked, or what is in the way.
        """
        agent = agent_of(call)
        known = goal_of(agent)
        if known is None:
            raise ToolError("there is no goal", "NO_GOAL")
        if known["revision"] != revision:
            raise ToolError(f"that is not its revision any more: {said(known)}", "STALE")
        if action == "edit" and not objective:
            raise ToolError("say the new objective", "INVALID_ARGS")
        changes: dict[str, Any] = {"note": note or known["note"]}
        changes |= {"objective": objective} if action == "edit" else {"phase": PHASES[action]}
        agent.memory["goal"] = changes.get("phase", known["phase"]) == "active"
        return said(store(agent, known, **changes))

    def drive(notice: TurnEnded) -> None:
        agent = agents.live.get(notice.agent)
        known = goal_of(agent) if agent is not None else None
        if agent is None or known is None or known["phase"] != "active" or not agent.memory.get("goal"):
            return
        if notice.end.reason == "completed" and len(agent.inbox):
            return  # what the user says comes first
        try:
            if notice.end.reason != "completed":
                agent.memory["goal"] = False
                store(agent, known, phase="paused", note=f"a turn ended as {notice.end.reason}")
            elif known["rounds"] >= known["max_rounds"]:
                agent.memory["goal"] = False
                store(agent, known, phase="blocked", note="its rounds are used up")
            else:
                now = store(agent, known, rounds=known["rounds"] + 1)
                agent.memory["goal rounds"] = agent.memory.get("goal rounds", 0) + 1
                text = f"Go on with the {said(now)}\nWhen it is reached, or cannot be, say so with update_goal."
                agent.send(Message("user", (Text(text),), "harness"))
        except HamesError as error:
            ctx.host.contain(f"the goal of agent {agent.id}", error)

    def told(facts: Facts) -> str:
        agent = facts.scope.key
        known = goal_of(agent) if isinstance(agent, Agent) else None
        return f"The {said(known)}" if known is not None and known["phase"] in ("active", "paused") else ""

    ctx.on(TurnEnded, drive)
    ctx.use(PROMPTS).fact(ctx, "goal", told, order=15, quiet=True)
    for each in (create_goal, get_goal, update_goal):
        ctx.use(TOOLS).register(ctx, each)
