"""The row of the tools with which an agent speaks to those that it has started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hames.content.errors import HamesError
from hames.delegation.plugin import DELEGATION
from hames.kernel import Context, plugin
from hames.tools import TOOLS, Invocation, tool

if TYPE_CHECKING:
    from hames.delegation.conversations import Conversations


@plugin(needs=(DELEGATION, TOOLS), name="control")
def control(ctx: Context, config: None) -> None:
    """The tools ``send_message``, ``interrupt_agent`` and ``list_agents``."""
    service = ctx.use(DELEGATION)

    def conversations() -> Conversations:
        return service.conversations

    @tool("delegate", timeout=None)
    async def send_message(agent_id: str, message: str, *, call: Invocation) -> str:
        """Give a message to an agent that you have started and that is kept. Messages wait for their turn, in order; one that was taken
        is never lost, so do not send it again: you are told when the agent has come to rest.

        :param agent_id: its name, as list_agents shows it.
        :param message: what it is to do next, whole.
        """
        from hames.delegation.give import speaker, told

        agent = speaker(call)
        try:
            with agent.waiting("child"):
                sent = await service.send(agent, call.call_id, agent_id, message)
        except HamesError as error:
            raise told(error) from None
        call.note("sent", {"call": call.call_id, "thread": sent.thread, "task": sent.task})
        if sent.waits:
            return f"{sent.thread} has it; it waits for its turn"
        return f"{sent.thread} goes on with it as task {sent.task}; you are told when it has come to rest"

    @tool("delegate")
    async def interrupt_agent(agent_id: str, *, call: Invocation) -> str:
        """Stop what an agent below you does now. What waits in it stays until you send it a message; what it has started goes on.

        :param agent_id: its name, as list_agents shows it.
        """
        from hames.delegation.give import speaker, told

        agent = speaker(call)
        try:
            return conversations().interrupt(agent_id, agent)
        except HamesError as error:
            raise told(error) from None

    @tool("delegate")
    async def list_agents(scope: Literal["children", "descendants"] = "children", *, call: Invocation) -> str:
        """List the agents that you have started: those that run, and those that are kept for further messages.

        :param scope: 'descendants' also lists those that they have started.
        """
        from hames.delegation.give import speaker, told

        agent = speaker(call)
        try:
            entries = conversations().list(agent.id, scope)
        except HamesError as error:
            raise told(error) from None
        return "\n".join(entry.line for entry in entries) or "there are none"

    for each in (send_message, interrupt_agent, list_agents):
        ctx.use(TOOLS).register(ctx, each)
