"""The row that makes an agent lead: it decomposes, gives work to roles, and integrates what they report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field, field_validator

from hames.agents import AGENTS, AgentMade, ToolEnded, TurnBegan
from hames.compose.config import RowConfig
from hames.content.errors import ConfigError
from hames.delegation.plugin import DELEGATION, LEADING
from hames.delegation.tool import Spending
from hames.kernel import Context, Mask, plugin
from hames.kernel.registry import matches
from hames.prompts import PROMPTS
from hames.tools import TOOLS

if TYPE_CHECKING:
    from hames.delegation.lead import Lead

REMOVABLE = ("search_external", "design", "implement")
ROLES = (*REMOVABLE, "search_internal_deep")
"""The roles that a lead has."""
CONTROL = ("send_message", "list_agents", "interrupt_agent")
LOOKING = ("glob", "grep", "read", "read_image", "bash")
COORDINATION = (
    *("todo_write", "ask_user_question", "get_goal", "create_goal", "update_goal", "exit_plan_mode"),
    *("job_output", "job_list", "job_kill"),
)
LEAD = (*ROLES, *CONTROL, *LOOKING, *COORDINATION)
"""The tools that a lead sees."""
CODEGRAPH = "mcp:codegraph/*"
RESERVED = ("subagent", "subagent_fork", "workflow", "ralph", "recall", "structured_output", *CONTROL)


class RoleSettings(RowConfig):
    """What this composition says of a role; what it leaves out is said by the role's file."""

    name: str = Field(default="", max_length=60, pattern=r"^[^\r\n]*$")
    """What people see it called."""
    model: str = Field(default="", max_length=120, pattern=r"^[^\r\n]*$")
    """A model of its own, which stays when the lead's changes: ``provider:model``, or a name beside ``provider``."""
    provider: str = Field(default="", max_length=120, pattern=r"^[^\r\n:]*$")
    """The provider of ``model``."""
    effort: str = ""
    background_mode: Literal["one-shot", "continuable"] = "one-shot"
    """``continuable`` keeps each child for further messages; it runs while the lead goes on."""
    start_mode: Literal["fresh", "fork"] = "fresh"
    """``fork`` begins with the conversation of the lead."""
    persona: str = ""
    """Who it is, instead of what its file says."""
    persona_extra: str = ""
    """What is said after that."""
    tools: list[str] | None = None
    """Its tools, instead of those of its file."""
    permission: Literal["", "read-only", "workspace-write", "full"] = ""
    """No more than what its file says."""
    budget: Spending | None = None

    @property
    def ref(self) -> str:
        """The model as tasks name it."""
        return f"{self.provider}:{self.model}" if self.provider and self.model else self.model


class FailureSettings(RowConfig):
    """How often the same work may fail."""

    retries: int = Field(default=1, ge=0)
    """Further attempts at the same goal after an error."""
    strikes: int = Field(default=2, ge=1)
    """Failures that end it: the user decides then."""


class OrchestratorConfig(RowConfig):
    """What the lead sees, and whom it gives work to."""

    main_agent_extra: list[str] = [CODEGRAPH]
    """Further tools of the lead, as a role's file names them; the name of a role is its tool."""
    main_agent_remove: list[str] = []
    """Tools that it does not see after all."""
    tools: list[str] | None = None
    """Its tools instead of the 21 that it comes with."""
    persona: str = ""
    """Who it is, instead of the shipped text; may use ``{{model}}``, ``{{cwd}}`` and ``{{delegates}}``."""
    persona_extra: str = ""
    """What is said after that."""
    roles: dict[str, RoleSettings] = {}
    """What is said of roles; one that the lead does not come with becomes a tool of its own."""
    roles_remove: list[Literal["search_external", "design", "implement"]] = []
    """Roles that it does not have; this beats ``roles``."""
    failure: FailureSettings = FailureSettings()
    budget: Spending = Spending()
    """What one piece of work may spend of which its role says nothing."""

    @field_validator("roles_remove", mode="before")
    @classmethod
    def check_removable(cls, value: object) -> object:
        wrong = [str(name) for name in value if name not in REMOVABLE] if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} cannot be removed; {', '.join(REMOVABLE)} can")
        return value  # pyright: ignore[reportUnknownVariableType]


def may_be_role(name: str) -> bool:
    """Whether the tool of a role may have this name: it is no tool of another kind."""
    from hames.delegation.role import CLAUDE_TOOLS, NAME, SETS

    taken = {*CONTROL, *LOOKING, *COORDINATION, *CLAUDE_TOOLS.values(), *(name for names in SETS.values() for name in names), *RESERVED}
    return name in ROLES or (bool(NAME.fullmatch(name)) and name not in taken and not name.startswith("mcp__"))


class Surface(NamedTuple):
    """The tools of the lead, before anybody looks what is there: names and patterns."""

    allow: frozenset[str]
    deny: frozenset[str]


def surface(config: OrchestratorConfig) -> Surface:
    """What the settings say that a lead sees.

    :raises ConfigError: if they name a set that there is not, leave nothing, or a role cannot be a tool.
    """
    from hames.delegation.role import intents

    base = LEAD if config.tools is None else config.tools
    try:
        allow = frozenset(each.pattern for each in intents((*base, *config.roles, *config.main_agent_extra)))
        deny = frozenset(each.pattern for each in intents(config.main_agent_remove)) | frozenset(config.roles_remove)
        for name, settings in config.roles.items():
            if not may_be_role(name):
                remedy = "small letters, digits, - and _, and no name of a tool"
                raise ConfigError(f"roles.{name[:64]}: the lead has no room for a role of this name", remedy=remedy)
            if settings.tools is not None and not intents(settings.tools):
                raise ConfigError(f"roles.{name}.tools is empty", remedy="name at least one, say 'none', or leave it out")
    except ValueError as error:
        raise ConfigError(str(error), remedy="name tools, patterns, or one of the sets") from None
    if config.tools == [] or not any(not matches(name, deny) for name in allow):
        raise ConfigError("the lead would have no tool at all", remedy="name at least one, or leave tools out for those that it comes with")
    return Surface(allow, deny)


@plugin(config=OrchestratorConfig, needs=(DELEGATION, TOOLS, AGENTS, PROMPTS), name="orchestrator")
def orchestrator(ctx: Context, config: OrchestratorConfig) -> None:
    """Make the agents of users in this scope leads. Their children are not changed."""
    surface(config)
    service, agents = ctx.use(DELEGATION), ctx.use(AGENTS)
    made: list[Lead] = []

    def lead() -> Lead:
        if not made:
            from hames.delegation.lead import Lead

            made.append(Lead(ctx, service, config))
        return made[0]

    def joined(notice: AgentMade) -> None:
        agent = agents.live.get(notice.agent)
        if agent is not None and not notice.delegated:
            try:
                lead().dress(agent)
            except BaseException:
                ctx.use(TOOLS).registry.mask(ctx.at(agent.scope), Mask.none())  # rather nothing than everything
                raise

    def began(notice: TurnBegan) -> None:
        agent = agents.live.get(notice.agent)
        if agent is not None:
            lead().refresh(agent)

    def ended(notice: ToolEnded) -> None:
        agent = agents.live.get(notice.agent)
        if made and agent is not None:
            made[0].delivered(agent, notice.call.id)

    ctx.provide(LEADING, lead)
    service.overlays.add(ctx, f"orchestrator {ctx.owner.label}", lambda roles, cwd: lead().overlay(roles, cwd))
    ctx.on(AgentMade, joined)
    ctx.on(TurnBegan, began)
    ctx.on(ToolEnded, ended)
    for agent in tuple(agents.live.values()):
        if ctx.scope in agent.scope.chain():
            lead().dress(agent)
