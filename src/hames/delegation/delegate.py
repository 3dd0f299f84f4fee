"""The tool ``delegate``: an agent gives a piece of work to another one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hames.agents import Agent
from hames.budget import Limits
from hames.content.errors import HamesError
from hames.content.jsontext import as_list_of_texts, as_object, dumps
from hames.content.messages import Text
from hames.content.schema import violations
from hames.content.visible import visible
from hames.delegation.failures import Refused
from hames.delegation.outcome import Outcome
from hames.delegation.role import Role
from hames.delegation.runner import Origin
from hames.delegation.service import Tasks
from hames.delegation.spec import TaskSpec
from hames.delegation.task import Task
from hames.delegation.tool import DelegateConfig, parameters
from hames.kernel import Context
from hames.kernel.registry import matches
from hames.toolkit.jobs import JOBS
from hames.tools import Invocation, Output, ToolError

DELIVERED = "delivered"
"""The kind of receipt that says that whoever asked for a task has its outcome."""
TOLD, DESCRIPTION = 100, 300
"""Roles that an agent is told, and characters of what each is for."""
HEAD = 12_000
"""Characters of a result that whoever asked for it is shown; the whole is in a file."""


class Delegating:
    """One tool that gives work away.

    :param config: what calls may choose.
    """

    def __init__(self, ctx: Context, tasks: Tasks, config: DelegateConfig) -> None:
        self._ctx = ctx
        self._tasks = tasks
        self._config = config
        self._budget = Limits(**config.budget.model_dump())
        self._told: dict[tuple[str, str], str] = {}  # calls whose result has been made and not logged yet: their tasks

    def delivered(self, agent: Agent, call: str) -> None:
        """The result of a call stands in the session of whoever made it."""
        if task := self._told.pop((agent.id, call), ""):
            self._tasks.spawn(self._receive(agent, task))

    async def _receive(self, agent: Agent, task: str) -> None:
        """Note that an outcome has been delivered, once that is on disk itself."""
        try:
            await agent.session.barrier()
            await self._tasks.ledger.receive(task, DELIVERED, {"session": agent.id})
        except HamesError as error:  # it is told once more then, when the session is resumed
            self._tasks.contain(f"the delivery of task {task}", error)

    async def run(self, call: Invocation, given: Mapping[str, Any]) -> Output:
        """Do what a call asks for.

        :raises ToolError: if the task may not begin; its code is one of the table of failures.
        """
        agent = call.scope.key
        if not isinstance(agent, Agent):
            raise ToolError("there is no conversation that could give work away", "PARENT_GONE")
        tasks = self._tasks
        wrong = violations(dict(given), parameters(self._config))
        if wrong:
            raise ToolError("the arguments are not valid:\n" + "\n".join(wrong), "INVALID_ARGS")
        try:
            origin = tasks.origin(agent, call.call_id)
            task = await tasks.start(self._spec(given, self._role(tasks, given, origin)), origin)
        except Refused as error:
            raise ToolError(f"{error.message}{f' ({error.remedy})' if error.remedy else ''}", error.code) from None
        except HamesError as error:
            raise ToolError(str(error), error.code) from None
        try:
            call.note("delegated", {"call": call.call_id, "task": task.id, "spec": task.spec.as_json()})
        except HamesError:
            task.cancel("parent")
            raise
        if given.get("run_in_background"):
            return await self._in_background(task, agent, call)
        with agent.waiting("child"):
            outcome = await tasks.wait(task)
        return self._result(task, outcome, call)

    def _role(self, tasks: Tasks, given: Mapping[str, Any], origin: Origin) -> Role | None:
        roles = tasks.roles(origin).get(given.get("role", ""), []) if given.get("role") else []
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
        schema = given.get("output_schema")
        tools = given.get("tools")
        limits = {name: value for name, value in as_object(given.get("budget")).items() if name in Limits.__slots__}
        return TaskSpec(
            given["prompt"],
            given.get("description", ""),
            config.runner,
            given.get("role", ""),
            given.get("model", ""),
            given.get("effort", ""),
            schema,
            as_list_of_texts(tools) if tools is not None else None,
            given.get("permission", ""),
            budget=replace(self._budget, **limits),
            isolation=isolation,
            mode="background" if given.get("run_in_background") else "foreground",
        )

    async def _in_background(self, task: Task, agent: Agent, call: Invocation) -> Output:
        jobs = self._ctx.host.get(JOBS, call.scope)

        async def body() -> Output:
            return self._result(task, await self._tasks.wait(task), call)

        def heard() -> None:
            self.delivered(agent, call.call_id)

        try:
            if jobs is None:
                raise ToolError("nothing here runs work in the background", "OPTION_UNSUPPORTED")
            title = f"{task.spec.title} (task {task.id})"
            job = jobs.start(agent, title, lambda: f"task {task.id}: {task.state}", body, heard=heard)
        except ToolError:
            task.cancel("parent")
            await self._tasks.wait(task)
            raise
        return Output((Text(f"{job.id} runs in the background as task {task.id}; you are told when it has ended"),))

    def _result(self, task: Task, outcome: Outcome, call: Invocation) -> Output:
        """What whoever asked is told: how it ended, the head of the result, and where the whole is."""
        said = dumps(outcome.value) if outcome.schema_valid else outcome.text
        shown, path = headed(said, call.spill)
        kept: dict[str, Any] = {"call": call.call_id, "task": task.id, "status": outcome.status, "session": outcome.native}
        kept |= {"code": outcome.code} if outcome.code else {}
        kept |= {"path": str(path), "characters": len(said)} if path is not None else {}
        call.note("settled", kept)
        self._told[call.session, call.call_id] = task.id
        if outcome.ok:
            return Output((Text(shown),))
        lines = [f"the task did not complete: {outcome.status} ({outcome.code})", outcome.diagnostic]
        if shown:
            lines += ["What there is of its answer:", shown]
        if outcome.proceed:
            lines.append(f"Its session is {outcome.native}.")
        return Output((Text("\n".join(line for line in lines if line)),), True, outcome.code or "FAILED")


def catalogue(roles: Mapping[str, Sequence[Role]]) -> str:
    """What an agent is told of the roles that there are."""
    usable = [found[0] for found in roles.values() if not found[0].problem][:TOLD]
    lines = [f"- {role.name}: {visible(role.description)[:DESCRIPTION]}" for role in usable]
    return "Roles to whom you can give work with delegate:\n" + "\n".join(lines) if lines else ""


def headed(text: str, spill: Callable[[bytes, str], Path]) -> tuple[str, Path | None]:
    """The head of a text, and the file that holds the whole of one that is longer."""
    if len(text) <= HEAD:
        return text, None
    try:
        path = spill(text.encode("utf-8", "replace"), "txt")
    except OSError as error:
        said = os.strerror(error.errno or 0)
        return f"{text[:HEAD]}\n\n[… {len(text) - HEAD} more characters, which could not be kept in a file: {said} …]", None
    return f"{text[:HEAD]}\n\n[… {len(text) - HEAD} more characters; the whole result is in {path} …]", path
