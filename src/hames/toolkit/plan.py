"""Plan mode: the agent looks and thinks, and writes nothing until the user has accepted its plan.

While it lasts the agent is held to the mode ``read-only``, by the permissions and the sandbox and not by words.
"""

from __future__ import annotations

from typing import Any

from hames.agents import AGENTS, Agent, TurnBegan
from hames.kernel import Context, plugin
from hames.prompts import PROMPTS, Facts
from hames.tools import TOOLS, Choice, Invocation, Output, ToolError, tool
from hames.tools.questions import ask

TOLD = """Plan mode is on: look as much as you need, write nothing. Nothing you do can change a file. When you know what to do, call
exit_plan_mode with your plan; the user accepts it, or says what to change."""

ACCEPT = "Yes, do it"


def set_plan_mode(agent: Agent, active: bool) -> None:
    """Turn plan mode on or off, for this session."""
    agent.session.remember("plan", active)
    agent.narrow("plan", "read-only" if active else None)


def in_plan_mode(agent: Agent) -> bool:
    return bool(agent.session.state.get("plan"))


@plugin(needs=(TOOLS, PROMPTS, AGENTS), name="plan")
def plan(ctx: Context, config: Any) -> None:
    """Plan mode, and the tool ``exit_plan_mode``."""
    agents, tools = ctx.use(AGENTS), ctx.use(TOOLS)

    def hold(notice: TurnBegan) -> None:
        agent = agents.live.get(notice.agent)
        if agent is not None:
            agent.narrow("plan", "read-only" if in_plan_mode(agent) else None)

    def told(facts: Facts) -> str:
        agent = facts.scope.key
        return TOLD if isinstance(agent, Agent) and in_plan_mode(agent) else ""

    @tool("read", timeout=None)
    async def exit_plan_mode(plan: str, *, call: Invocation) -> Output | str:
        """Show the user your plan, when plan mode is on. If the user accepts it, plan mode ends and you carry it out.

        :param plan: what you will do, in order, with the files that change.
        """
        agent = call.scope.key
        if not isinstance(agent, Agent) or not in_plan_mode(agent):
            return "plan mode is not on; go on with your work"
        answers = await ask(tools.approvals, call, (Choice(f"{plan}\n\nDo it?", (ACCEPT, "No")),))
        if answers is None:
            raise ToolError("nobody is here to accept the plan; say it as your answer, and end there", "NOBODY")
        if answers[0] != ACCEPT and answers[0].strip().lower() not in ("y", "yes"):
            return f"the user did not accept the plan: {answers[0]}"
        set_plan_mode(agent, False)
        return "the user accepted the plan; plan mode is over, carry it out"

    ctx.on(TurnBegan, hold)
    ctx.use(PROMPTS).fact(ctx, "plan", told, order=20)
    tools.register(ctx, exit_plan_mode)
