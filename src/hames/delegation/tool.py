"""The row of the tool that gives work to another agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field

from hames.agents import AGENTS, ToolEnded
from hames.compose.config import RowConfig
from hames.delegation.plugin import DELEGATION
from hames.kernel import Context, Effect, plugin
from hames.tools import TOOLS, Invocation, Output, Tool

if TYPE_CHECKING:
    from hames.delegation.delegate import Delegating


class Spending(RowConfig):
    """What one task may spend."""

    model_config = ConfigDict(allow_inf_nan=False)

    steps: int | None = Field(default=None, gt=0)
    """Answers of the model."""
    tokens: int | None = Field(default=None, gt=0)
    cost: float | None = Field(default=None, gt=0)
    """US dollars."""
    seconds: float | None = Field(default=None, gt=0)
    """From its start on."""
    idle: float | None = Field(default=600.0, gt=0)
    """Seconds in which nothing happens."""


class DelegateConfig(RowConfig):
    """What calls of the tool may choose."""

    name: str = "delegate"
    """What the tool is called."""
    runner: str = ""
    """Who executes the tasks; that of the row delegation where nothing is said."""
    budget: Spending = Spending()
    """What a task may spend of which the call says nothing."""
    models: list[str] | None = None
    """Patterns of the models that a call may name; all where nothing is said."""
    efforts: list[str] | None = None
    """The efforts that a call may name; all where nothing is said."""
    isolation: list[Literal["shared", "worktree"]] = Field(default=["shared"], min_length=1)
    """The kinds of isolation that a task may have; the first one is that of a call which names none."""
    background: bool = True
    """Whether a task may run while its parent goes on."""
    keep: bool = True
    """Whether a task may keep its conversation for further messages."""


DESCRIPTION = """Give a piece of work to another agent and get its result. It has tools of its own and sees nothing of this
conversation{fork}, so say all that it needs to know: what is to be done, where, what is known already, and what its answer is to hold.
Several calls in one answer run beside each other. What it says at its end is all that you get of its work."""


def parameters(config: DelegateConfig) -> dict[str, Any]:
    """The parameters of the tool, as a JSON Schema."""

    def text(said: str, **more: Any) -> dict[str, Any]:
        return {"type": "string", "description": said, **more}

    limits = {
        "steps": {"type": "integer", "minimum": 1, "description": "Answers of its model."},
        "tokens": {"type": "integer", "minimum": 1},
        "cost": {"type": "number", "exclusiveMinimum": 0, "description": "US dollars."},
        "seconds": {"type": "number", "exclusiveMinimum": 0},
        "idle": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds in which nothing happens."},
    }
    properties: dict[str, Any] = {
        "description": text("A few words for people."),
        "prompt": text("The work, whole."),
        "role": text("Who does it: the name of a role."),
        "model": text("Another model than yours, as provider:model."),
        "effort": text("How much to reason, a word of the provider's."),
        "output_schema": {"type": "object", "description": "A JSON Schema that the result has to follow."},
        "tools": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "description": "The only tools that it gets, by name or pattern, or ['none']; without this all that you may hand down.",
        },
        "permission": {"enum": ["read-only", "workspace-write", "full"], "description": "No more than you have."},
        "isolation": text("'shared' works in your directory.", enum=config.isolation),
        "budget": {
            "type": "object",
            "properties": limits,
            "additionalProperties": False,
            "description": "What it may spend, of what you have.",
        },
    }
    if config.background:
        properties["run_in_background"] = {"type": "boolean", "description": "Go on meanwhile; you are told when it has ended."}
    if config.keep:
        said = "Keep the agent: it runs while you go on, you are told when it comes to rest, and send_message goes on with it."
        properties["keep"] = {"type": "boolean", "description": said}
    return {"type": "object", "properties": properties, "required": ["description", "prompt"], "additionalProperties": False}


@plugin(config=DelegateConfig, needs=(DELEGATION, TOOLS, AGENTS), name="delegate")
def delegate(ctx: Context, config: DelegateConfig) -> None:
    """The tool ``delegate``: an agent gives work to another one."""
    service, agents, made = ctx.use(DELEGATION), ctx.use(AGENTS), list["Delegating"]()

    def delegating() -> Delegating:
        if not made:
            from hames.delegation.delegate import Delegating

            made.append(Delegating(ctx, service.tasks, config))
        return made[0]

    async def body(**arguments: Any) -> Output:
        call: Invocation = arguments.pop(" call")
        return await delegating().run(call, arguments)

    def ended(notice: ToolEnded) -> None:
        agent = agents.live.get(notice.agent)
        if made and agent is not None and notice.call.name == config.name:
            made[0].delivered(agent, notice.call.id)

    runner = config.runner or service.config.runner
    offered: list[Effect] = []
    there = service.runners.count(runner)

    def follow(name: str, change: int) -> None:
        """The tool stands for its runner: it is there while that one is."""
        nonlocal there
        if name == runner:
            there += change
        if there and not offered:
            offered.append(ctx.use(TOOLS).register(ctx, tool))
        elif not there and offered:
            offered.pop().withdraw()

    hands_on = runner == "fork"
    said = DESCRIPTION.format(fork=" but what was said before this turn" if hands_on else "")
    tool = Tool(config.name, said, parameters(config), body, frozenset({"delegate"}), parallel=True, timeout=None, invocation=" call")
    service.runners.registry.watch(ctx, lambda name, _: follow(name, 1), lambda name: follow(name, -1))
    follow(runner, 0)
    ctx.on(ToolEnded, ended)
