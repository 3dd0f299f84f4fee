"""The row of the tool ``ralph``: one objective, worked on by one fresh child after another until it is reached."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from hames.compose.config import RowConfig
from hames.delegation.plugin import DELEGATION
from hames.delegation.tool import Spending
from hames.kernel import Context, plugin
from hames.tools import TOOLS, Invocation, Output, Tool


class RalphConfig(RowConfig):
    """How an objective is worked on."""

    runner: str = ""
    """Who executes the rounds; that of the row delegation where nothing is said. It must not hand on the conversation."""
    max_rounds: int = Field(default=64, gt=0)
    """The most rounds that a call may have."""
    max_handoff_chars: int = Field(default=16384, gt=0)
    """Characters of a report that the next round is shown."""
    max_result_chars: int = Field(default=16384, gt=0)
    """Characters of the last report that whoever asked is shown."""
    budget: Spending = Spending()
    """What one round may spend."""


DESCRIPTION = """Work on an objective in rounds: each is a fresh agent that sees the objective and the report of the round before it, and
reports what it did. Ends when a round says that the objective is reached, or that it is blocked."""


@plugin(config=RalphConfig, needs=(DELEGATION, TOOLS), name="ralph")
def ralph(ctx: Context, config: RalphConfig) -> None:
    """The tool ``ralph``: rounds of fresh children for one objective."""
    service = ctx.use(DELEGATION)

    async def body(**arguments: Any) -> Output:
        from hames.delegation.rounds import run

        call: Invocation = arguments.pop(" call")
        return await run(service.tasks, config, call, arguments)

    parameters = {
        "type": "object",
        "properties": {
            "objective": {"type": "string", "minLength": 1, "description": "What is to be reached, whole, and how one sees that it is."},
            "max_rounds": {"type": "integer", "minimum": 1, "maximum": config.max_rounds},
        },
        "required": ["objective"],
        "additionalProperties": False,
    }
    ctx.use(TOOLS).register(
        ctx, Tool("ralph", DESCRIPTION, parameters, body, frozenset({"delegate"}), parallel=True, timeout=None, invocation=" call")
    )
