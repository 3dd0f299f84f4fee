"""A list of what is to be done, for long work."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hames.agents import Agent
from hames.kernel import Context, plugin
from hames.prompts import PROMPTS, Facts
from hames.tools import TOOLS, Invocation, tool

MARKS = {"pending": "[ ]", "in_progress": "[~]", "completed": "[x]"}


class Item(BaseModel):
    """One thing to do."""

    model_config = ConfigDict(extra="forbid")

    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"


@tool("read", timeout=None)
async def todo_write(items: list[Item], *, call: Invocation) -> str:
    """Write down what is to be done, or what has been. Replaces the whole list; use it for work of several parts.

    :param items: all things to do, in order, each with its status.
    """
    agent = call.scope.key
    if isinstance(agent, Agent):
        agent.session.remember("todo", [item.model_dump() for item in items])
    return "\n".join(f"{MARKS[item.status]} {item.content}" for item in items) or "the list is empty"


def remembered(facts: Facts) -> str:
    agent = facts.scope.key
    items = agent.session.state.get("todo") if isinstance(agent, Agent) else None
    if not items:
        return ""
    return "Your list of what is to be done:\n" + "\n".join(f"{MARKS.get(item['status'], '[ ]')} {item['content']}" for item in items)


@plugin(needs=(TOOLS, PROMPTS), name="todo")
def todo(ctx: Context, config: Any) -> None:
    """The tool ``todo_write``; the list is told again after a compaction."""
    ctx.use(TOOLS).register(ctx, todo_write)
    ctx.use(PROMPTS).fact(ctx, "todo", remembered, order=10, quiet=True)
