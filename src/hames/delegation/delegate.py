"""The tool ``delegate``: an agent gives a piece of work to another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hames.agents import Agent
from hames.budget import Limits
from hames.content.errors import HamesError
from hames.content.jsontext import as_list_of_texts, as_object
from hames.content.schema import violations
from hames.content.visible import visible
from hames.delegation.attempts import real, said_alone
from hames.delegation.failures import Refused
from hames.delegation.give import Giving, speaker, told
from hames.delegation.plugin import LEADING
from hames.delegation.role import Role
from hames.delegation.runner import Origin
from hames.delegation.service import Tasks
from hames.delegation.spec import Mode, TaskSpec
from hames.delegation.strikes import Work
from hames.delegation.tool import DelegateConfig, parameters
from hames.kernel import Context
from hames.kernel.registry import matches
from hames.tools import Invocation, Output, ToolError

TOLD, DESCRIPTION = 100, 300
"""Roles that an agent is told, and characters of what each is for."""


class Delegating(Giving):
    """One tool that gives work away.

    :param config: what calls may choose.
    """

    def __init__(self, ctx: Context, tasks: Tasks, config: DelegateConfig) -> None:
        super().__init__(ctx, tasks)
        self._config = config
        self._budget = Limits(**config.budget.model_dump())

    async def run(self, call: Invocation, given: Mapping[str, Any]) -> Output:
        """Do what a call asks for.

        :raises ToolError: if the task may not begin; its code is one of the table of failures.
        """
        agent = speaker(call)
        wrong = violations(dict(given), parameters(self._config))
        if wrong:
            raise ToolError("the arguments are not valid:\n" + "\n".join(wrong), "INVALID_ARGS")
        try:
            origin = self._tasks.origin(agent, call.call_id)
            self._not_a_leads(agent, given.get("role", ""))
            spec = self._spec(given, self._role(given, origin))
        except HamesError as error:
            raise told(error) from None
        lead = self._ctx.host.get(LEADING, agent.scope)
        if lead is None:
            return await self.carry(call, agent, await self.begin(call, spec, origin))
        strikes = lead().strikes
        async with strikes.turn(agent):
            try:
                spec = replace(spec, prompt=said_alone(spec.prompt))
                await strikes.judge(agent, Work(spec.role, spec.prompt, (spec.isolation, real(spec.directory or origin.cwd))))
            except HamesError as error:
                raise told(error) from None
            task = await self.begin(call, spec, origin)
        return await self.carry(call, agent, task)

    def _not_a_leads(self, agent: Agent, role: str) -> None:
        """
        :raises Refused: if an agent leads that has a tool for the role: what it gives that way is judged.
        """
        if role and agent.memory.get("lead") is not None and role in agent.memory.get("role tools", {}):
            raise Refused("GRANT_EXCEEDED", f"{role} has a tool of its own here", remedy=f"call {role}")

    def _role(self, given: Mapping[str, Any], origin: Origin) -> Role | None:
        roles = self._tasks.roles(origin).get(given.get("role", ""), []) if given.get("role") else []
        return roles[0] if roles else None

    def _spec(self, given: Mapping[str, Any], role: Role | None) -> TaskSpec:
        config = self._config
        isolation = given.get("isolation") or next(iter(config.isolation))
        for name, allowed in (("model", config.models), ("effort", config.efforts)):
            value = given.get(name, "")
            if not value and role is not None and role.origin in ("workspace", "claude"):  # the repository's word, not yours
                value = role.model if name == "model" else role.effort
            if value and allowed is not None and not matches(value, allowed):
                raise Refused(
                    "MODEL_NOT_ALLOWED" if name == "model" else "GRANT_EXCEEDED",
                    f"{name} {value!r} is not allowed here",
                    remedy=f"allowed are {', '.join(allowed) or 'none'}",
                )
        tools = given.get("tools")
        limits = {name: value for name, value in as_object(given.get("budget")).items() if name in Limits.__slots__}
        mode: Mode = "continuable" if given.get("keep") else "background" if given.get("run_in_background") else "foreground"
        return TaskSpec(
            given["prompt"],
            given.get("description", ""),
            config.runner,
            given.get("role", ""),
            given.get("model", ""),
            given.get("effort", ""),
            given.get("output_schema"),
            as_list_of_texts(tools) if tools is not None else None,
            given.get("permission", ""),
            budget=replace(self._budget, **limits),
            isolation=isolation,
            mode=mode,
        )


def catalogue(roles: Mapping[str, Sequence[Role]]) -> str:
    """What an agent is told of the roles that there are."""
    usable = [found[0] for found in roles.values() if not found[0].problem and found[0].origin != "shipped"][:TOLD]
    lines = [f"- {role.name}: {visible(role.description)[:DESCRIPTION]}" for role in usable]
    return "Roles to whom you can give work with delegate:\n" + "\n".join(lines) if lines else ""
