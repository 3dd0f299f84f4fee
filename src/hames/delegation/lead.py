"""An agent that leads: what it sees, who it is, and its tools that give work to roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from hames.agents import Agent
from hames.budget import Limits
from hames.content.errors import HamesError
from hames.content.jsontext import as_list_of_texts, dumps
from hames.content.paths import SHIPPED
from hames.content.schema import violations
from hames.content.visible import visible
from hames.delegation import report
from hames.delegation.attempts import REASONS, UNRELATED, Rules, real, said_alone
from hames.delegation.dress import of, with_braces
from hames.delegation.give import Giving, speaker, told
from hames.delegation.orchestrator import LEAD, ROLES, OrchestratorConfig, RoleSettings, may_be_role, surface
from hames.delegation.plugin import Delegation
from hames.delegation.role import Role, intents
from hames.delegation.roles import chosen
from hames.delegation.runner import Origin
from hames.delegation.spec import SHARED, Mode, TaskSpec
from hames.delegation.strikes import Strikes, Work
from hames.kernel import Context, Effect, Mask, Scope
from hames.policy import Mode as Permission
from hames.policy.port import narrowest
from hames.prompts import PROMPTS
from hames.tools import TOOLS, Invocation, Output, Tool, ToolError

VARIABLES = ("model", "cwd", "delegates")
"""What a persona may speak of."""
SEPARATOR = " · "
"""Between the name of a role and what it is asked for."""
CODEGRAPH = """The tools of codegraph may look into another repository than this one: name {{cwd}} as their projectPath in every call.
Where there is no index of it, use glob and grep, and say nothing of it."""
DUTY = 300
"""Characters of what a role is for."""


class Offered(NamedTuple):
    """A tool of a role that an agent has."""

    digest: str
    effect: Effect


class Lead(Giving):
    """Dresses agents as leads, and gives work to roles for them.

    :ivar mask: what a lead sees of what there is.
    :ivar strikes: judges what may be given after something has failed.
    """

    def __init__(self, ctx: Context, service: Delegation, config: OrchestratorConfig) -> None:
        self.strikes = Strikes(service.tasks, Rules(config.failure.retries, config.failure.strikes))
        super().__init__(ctx, service.tasks, self.strikes.advice)
        self.config = config
        self._budget = Limits(**config.budget.model_dump())
        self.mask = mask(ctx, config)
        for name in sorted({*LEAD, *self.mask.names}):
            ctx.use(TOOLS).registry.declare(ctx, name)

    def dress(self, agent: Agent) -> None:
        """Make an agent of a user a lead, once; one that works for a task stays what it is."""
        other = agent.memory.get("lead")
        if of(agent) or (other is not None and other.lives):
            return
        agent.memory["lead"], agent.memory["role tools"] = self, dict[str, Offered]()
        at = self._ctx.at(agent.scope)
        self._ctx.use(TOOLS).registry.mask(at, self.mask)
        prompts, config = self._ctx.use(PROMPTS), self.config
        text = config.persona or (SHIPPED / "prompts" / "lead.md").read_text("utf-8")
        prompts.variable(at, "delegates", lambda facts: self._delegates(agent) or "- nobody: do it yourself")
        prompts.section(at, "codegraph", lambda facts: CODEGRAPH if self._maps(agent) else None, order=1)
        whole = "\n\n".join(filter(None, (text.strip(), config.persona_extra.strip())))
        prompts.variable(at, "open_braces", lambda facts: "{{")
        prompts.section(at, "persona", with_braces(whole, {*prompts.variables.view(agent.scope), *VARIABLES}), order=0)
        self.refresh(agent)

    @property
    def lives(self) -> bool:
        """Whether its row still stands."""
        return self._ctx.live

    def _maps(self, agent: Agent) -> bool:
        """Whether it has the tools of codegraph."""
        return any(name.startswith("mcp__codegraph__") for name in self._ctx.use(TOOLS).registry.view(agent.scope))

    # roles

    @property
    def extra(self) -> list[str]:
        """What the lead sees beyond the tools that it comes with."""
        return list(dict.fromkeys((*self.config.roles, *self.config.main_agent_extra)))

    def known(self, scope: Scope, directory: Path) -> dict[str, list[Role]]:
        """The roles that there are for leads in a directory."""
        return self._tasks.roles(Origin(scope, str(directory)))

    def names(self, roles: Mapping[str, list[Role]]) -> list[str]:
        """The roles that are tools of the lead, in order."""
        tools, scope = self._ctx.use(TOOLS).registry, self._ctx.scope
        own = [name for name in self.extra if tools.get(scope, name) is None]  # a role takes the place of no tool
        wanted = [name for name in dict.fromkeys((*ROLES, *own)) if name in roles and may_be_role(name)]
        return [name for name in wanted if self.mask.permits(name) and not roles[name][0].problem]

    def overlay(self, roles: dict[str, list[Role]], cwd: Path) -> dict[str, list[Role]]:
        """The roles of a directory with what the configuration says of them."""
        made = {
            name: (narrowed(found) if name in ROLES else found) for name, found in roles.items() if name not in self.config.roles_remove
        }
        for name, settings in self.config.roles.items():
            if name in self.config.roles_remove:
                continue
            found = made.get(name, [])
            own = found[0] if found else invented(name, settings)
            if own is not None:
                made[name] = [said(own, settings), *found]
        return made

    def _roles(self, agent: Agent) -> dict[str, list[Role]]:
        return self._tasks.roles(self._tasks.origin(agent))

    def _delegates(self, agent: Agent) -> str:
        """What the persona says of those whom the lead has."""
        roles = agent.memory.get("delegates", {})
        return "\n".join(f"- {duty}: delegate to {name}." for name, duty in roles.items())

    def refresh(self, agent: Agent) -> None:
        """Give a lead the tools of the roles that there are now."""
        if agent.memory.get("lead") is not self:
            return
        offered: dict[str, Offered] = agent.memory["role tools"]
        roles = self._roles(agent)
        usable = {name: roles[name][0] for name in self.names(roles)}
        agent.memory["delegates"] = {name: duty(role) for name, role in usable.items()}
        for name in [name for name in offered if name not in usable]:
            offered.pop(name).effect.withdraw()
        for name, role in usable.items():
            tool = self.tool(role)
            digest = sha256(dumps([tool.description, tool.parameters]).encode("utf-8", "replace")).hexdigest()
            if name in offered and offered[name].digest == digest:
                continue
            if name in offered:
                offered.pop(name).effect.withdraw()
            offered[name] = Offered(digest, self._ctx.use(TOOLS).register(self._ctx.at(agent.scope), tool))

    def tool(self, role: Role) -> Tool:
        """The tool that gives work to a role."""
        settings = self.config.roles.get(role.name, RoleSettings())
        kept = settings.background_mode == "continuable"
        sees = "begins with what was said before this turn" if role.runner == "fork" else "sees nothing of this conversation"
        text = f"{duty(role)}. Gives the work to the agent {settings.name or role.name}, which {sees}."
        if kept:
            text += " It is kept: it runs while you go on, you are told when it comes to rest, and send_message goes on with it."
        body = partial(self._run, role.name)
        shown = parameters(kept)
        return Tool(role.name, text, shown, body, frozenset({"delegate"}), parallel=True, timeout=None, invocation=" call")

    # giving work

    async def _run(self, name: str, /, **given: Any) -> Output:
        call: Invocation = given.pop(" call")
        agent, settings = speaker(call), self.config.roles.get(name, RoleSettings())
        kept = settings.background_mode == "continuable"
        given = {key: value for key, value in given.items() if value not in ("", [], None) or key in ("description", "prompt")}
        if wrong := violations(given, parameters(kept)):
            raise ToolError("the arguments are not valid:\n" + "\n".join(wrong), "INVALID_ARGS")
        mode: Mode = "continuable" if kept else "background" if given.get("run_in_background") else "foreground"
        label = labelled(settings.name or name, given["description"])
        missing = as_list_of_texts(given.get("missing", []))
        async with self.strikes.turn(agent):
            try:
                origin = self._tasks.origin(agent, call.call_id)
                role = chosen(self._tasks.roles(origin), name)
                where, goal = (SHARED, real(origin.cwd)), said_alone(given["prompt"])
                work = Work(name, goal, where, given.get("after", ""), given.get("reason", ""), missing)
                more = await self.strikes.judge(agent, work)
            except HamesError as error:
                raise told(error) from None
            spec = TaskSpec(goal, label, role=name, schema=report.SCHEMA, budget=beside(self._budget, role.budget), mode=mode)
            task = await self.begin(call, replace(spec, **more), origin)
        return await self.carry(call, agent, task)


def mask(ctx: Context, config: OrchestratorConfig) -> Mask:
    """What a lead sees; where that cannot be told, what it comes with, and not more."""
    try:
        return Mask(*surface(config))
    except Exception as error:  # recorded: what nobody foresaw must not show more either
        ctx.host.contain("the tools of the lead", error)
        plain = frozenset(LEAD) if config.tools is None else frozenset(LEAD) & frozenset(config.tools)
        left = plain - frozenset(config.main_agent_remove) - frozenset(config.roles_remove)
        return Mask(left) if left else Mask.none()


def parameters(kept: bool) -> dict[str, Any]:
    """The parameters of the tool of a role, as a JSON Schema."""

    def text(said: str, **more: Any) -> dict[str, Any]:
        return {"type": "string", "description": said, **more}

    properties: dict[str, Any] = {
        "description": text("A few words for people."),
        "prompt": text("The work, whole."),
        "after": text(f"The earlier attempt at this, as in t01…; {UNRELATED!r} for other work while one stands failed."),
        "reason": text("Why again, where its end does not say it.", enum=list(REASONS)),
        "missing": {"type": "array", "items": {"type": "string"}, "description": "What a poor result lacks."},
    }
    if not kept:
        properties["run_in_background"] = {"type": "boolean", "description": "Go on meanwhile; you are told when it has ended."}
    return {"type": "object", "properties": properties, "required": ["description", "prompt"], "additionalProperties": False}


def duty(role: Role) -> str:
    """What a role is for, in a line."""
    first = role.persona.strip().splitlines()[0] if role.persona.strip() else ""
    return visible(role.description or first or f"Work for {role.name}").strip().rstrip("。.！!")[:DUTY]


def labelled(name: str, description: str) -> str:
    """What people see of a piece of work, with who does it; said once."""
    description = description.strip()
    if not description:
        return name
    return description if description.startswith(f"{name}{SEPARATOR}") else f"{name}{SEPARATOR}{description}"


def narrowed(found: list[Role]) -> list[Role]:
    """The roles of a name that Hames comes with: the first that can be used counts, and one of a repository is no wider than the shipped
    one, and does not say who executes it."""
    usable = [role for role in found if not role.problem] or found
    shipped = next((role for role in found if role.origin == "shipped"), None)
    first = usable[0]
    if shipped is None or first.origin not in ("workspace", "claude"):
        return usable
    modes: list[Permission] = [mode for mode in (first.permission, shipped.permission) if mode]
    tools = first.tools if first.tools is not None else shipped.tools
    return [replace(first, permission=narrowest(*modes) if modes else "", runner="", tools=tools), *usable[1:]]


def invented(name: str, settings: RoleSettings) -> Role | None:
    """A role of which only the configuration speaks; None where it says too little to make one."""
    if settings.tools is None:
        return None
    persona = settings.persona or f"You are the {name} agent. You do the tasks that are given to you."
    return Role(name, "user", Path(f"orchestrator.roles.{name}"), persona=persona)


def said(role: Role, settings: RoleSettings) -> Role:
    """A role with what the configuration says of it."""
    notes = list(role.notes)
    tools = role.tools if settings.tools is None else intents(settings.tools)
    model, fork = settings.ref or role.model, settings.start_mode == "fork"
    if settings.provider and not settings.model:
        notes.append("provider says nothing without model")
    if fork and model:
        notes.append("a conversation that is handed on keeps its model; the one that is named is left out")
        model = ""
    own = settings.budget
    limits = {key: getattr(own, key) for key in own.model_fields_set} if own is not None else {}
    modes: list[Permission] = [mode for mode in (role.permission, settings.permission) if mode]
    return replace(
        role,
        persona="\n\n".join(filter(None, (settings.persona or role.persona, settings.persona_extra))),
        tools=tools,
        model=model,
        effort=settings.effort or role.effort,
        permission=narrowest(*modes) if modes else "",
        runner="fork" if fork else "" if "start_mode" in settings.model_fields_set and role.runner == "fork" else role.runner,
        budget=replace(role.budget, **limits),
        digest=sha256(f"{role.digest} {settings.model_dump_json()}".encode()).hexdigest(),
        notes=tuple(notes),
    )


def beside(usual: Limits, own: Limits) -> Limits:
    """The usual limits of which a role says nothing itself."""
    return Limits(**{name: getattr(usual, name) for name in Limits.__slots__ if getattr(own, name) is None})
