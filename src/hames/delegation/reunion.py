"""What a session that is taken up again is told and held to."""

from __future__ import annotations

from hames.agents import Agent
from hames.content.errors import ConfigError
from hames.content.messages import ToolResult
from hames.delegation.dress import decoded_grant, dressed, of
from hames.delegation.notices import notice, received, spill_of, tell, waiting_in
from hames.delegation.records import DELIVERED
from hames.delegation.service import Tasks
from hames.kernel import Context
from hames.tools import TOOLS


async def reunite(ctx: Context, tasks: Tasks, agent: Agent) -> None:
    """Tell an agent how the tasks ended that it had not heard of, and hold one that worked for a task to what it was given then."""
    own = of(agent)
    if own:
        agent.narrow("delegation", own["permission"])
        agent.grant = decoded_grant(own["grant"])
        tools = ctx.host.get(TOOLS, agent.scope)
        if tools is None:
            raise ConfigError("nothing here runs tools, and this session is held to some", remedy="add a row with use: hames.tools")
        at = agent.ctx.at(agent.scope)  # for as long as the agent lives, whatever becomes of this row
        for mask in agent.grant:
            for name in mask.names:
                tools.registry.declare(at, name)  # what is not there now may come, and is held to the same then
            tools.registry.seal(at, mask)
        dressed(ctx, agent, own)
    records = tasks.ledger.below(agent.id)
    if not records:
        return
    await tasks.recover()
    for record in records:
        record = tasks.ledger.get(record.id)
        if record is None or record.outcome is None or any(each.kind == DELIVERED for each in record.receipts):
            continue
        if answered(agent, record.call) and record.spec.mode == "foreground":
            await received(tasks, agent, record.id)
            continue
        outcome, kept = record.outcome, record.spec.mode == "continuable"
        waiting = waiting_in(tasks, outcome.native) if kept else 0
        thread = record.thread if kept and outcome.native else ""
        text, path = notice(record.id, record.spec, outcome, spill_of(agent, record.id), thread=thread, waiting=waiting)
        await tell(tasks, agent, record.id, text, path, wake=False)


def answered(agent: Agent, call: str) -> bool:
    """Whether the result of a call stands in the session: one that a crash left open was not told anything."""
    results = (block for _, message in agent.session.messages for block in message.blocks if isinstance(block, ToolResult))
    return any(result.call_id == call and result.code not in ("OUTCOME_UNKNOWN", "NOT_STARTED", "RAISED", "ABORTED") for result in results)
