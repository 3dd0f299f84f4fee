"""What a session that is taken up again is told and held to."""

from __future__ import annotations

from pathlib import Path

from hames.agents import Agent
from hames.agents.spill import spiller
from hames.content.jsontext import as_object, dumps
from hames.content.messages import Message, Text, ToolResult
from hames.delegation.delegate import DELIVERED, headed
from hames.delegation.inprocess import decoded_grant
from hames.delegation.service import Tasks
from hames.kernel import Context, Mask, Scope
from hames.tools import TOOLS, Tools


async def reunite(ctx: Context, tasks: Tasks, agent: Agent) -> None:
    """Tell an agent how the tasks ended that it had not heard of, and hold one that worked for a task to what it was given then."""
    own = as_object(agent.session.state.get("delegation"))
    if own:
        agent.narrow("delegation", own["permission"])
        agent.grant = decoded_grant(own["grant"])
        tools = ctx.host.get(TOOLS, agent.scope)
        if tools is not None:
            for mask in agent.grant:
                tools.registry.seal(ctx.at(agent.scope), of_known(mask, tools, agent.scope))
    records = tasks.ledger.below(agent.id)
    if not records:
        return
    await tasks.recover()
    for record in records:
        record = tasks.ledger.get(record.id)
        if record is None or record.outcome is None or any(each.kind == DELIVERED for each in record.receipts):
            continue
        outcome = record.outcome
        if answered(agent, record.call) and record.spec.mode == "foreground":
            await tasks.ledger.receive(record.id, DELIVERED, {"session": agent.id})
            continue
        shown, path = headed(
            dumps(outcome.value) if outcome.schema_valid else outcome.text, lambda data, suffix, id=record.id: kept(agent, id, data, suffix)
        )
        lines = [
            f"The task {record.id} ({record.spec.title}), which you had started, has ended: {outcome.status}.",
            outcome.diagnostic,
            shown,
        ]
        if outcome.proceed and not outcome.ok:
            lines.append(f"Its session is {outcome.native}; what it did until then stands there.")
        agent.inject(Message("user", (Text("\n".join(line for line in lines if line)),), "harness"))
        await agent.session.barrier()
        await tasks.ledger.receive(record.id, DELIVERED, {"session": agent.id, "path": str(path or "")})


def of_known(mask: Mask, tools: Tools, scope: Scope) -> Mask:
    """A mask without the names of tools that are not there any more."""
    deny = frozenset(name for name in mask.deny if name == "*" or tools.registry.known(scope, name))
    if mask.allow is None:
        return Mask(deny=deny)
    allow = frozenset(name for name in mask.allow if tools.registry.known(scope, name))
    return Mask(allow, deny) if allow else Mask.none()


def answered(agent: Agent, call: str) -> bool:
    """Whether the result of a call stands in the session: one that a crash left open was not told anything."""
    results = (block for _, message in agent.session.messages for block in message.blocks if isinstance(block, ToolResult))
    return any(result.call_id == call and result.code not in ("OUTCOME_UNKNOWN", "NOT_STARTED", "RAISED", "ABORTED") for result in results)


def kept(agent: Agent, task: str, data: bytes, suffix: str) -> Path:
    return spiller(agent.root / "spill", agent.id, task)(data, suffix)
