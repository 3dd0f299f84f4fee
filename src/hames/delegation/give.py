"""Giving a task away by a call of a tool: waiting for it, letting it run meanwhile, or keeping it for further messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hames.agents import Agent
from hames.content.errors import HamesError, StorageError
from hames.content.messages import Text
from hames.delegation.notices import headed, received, said
from hames.delegation.outcome import Outcome
from hames.delegation.report import failed
from hames.delegation.runner import Origin
from hames.delegation.service import Tasks
from hames.delegation.spec import TaskSpec
from hames.delegation.task import Task
from hames.kernel import Context
from hames.toolkit.jobs import JOBS
from hames.tools import Invocation, Output, ToolError

Advice = Callable[[Agent, str], str]


def told(error: HamesError) -> ToolError:
    """An error as a model is told it."""
    return ToolError(f"{error.message}{f' ({error.remedy})' if error.remedy else ''}", error.code)


def speaker(call: Invocation) -> Agent:
    """The agent that makes a call.

    :raises ToolError: if there is none.
    """
    agent = call.scope.key
    if not isinstance(agent, Agent):
        raise ToolError("there is no conversation that could give work away", "PARENT_GONE")
    return agent


class Giving:
    """Gives tasks away for calls of tools.

    :param advice: what an agent is told beside the end of a task that did not do its work.
    """

    def __init__(self, ctx: Context, tasks: Tasks, advice: Advice | None = None) -> None:
        self._ctx = ctx
        self._tasks = tasks
        self._advice = advice
        self._told: dict[tuple[str, str], str] = {}  # calls whose result has been made and not logged yet: their tasks

    def delivered(self, agent: Agent, call: str) -> None:
        """The result of a call stands in the session of whoever made it."""
        if task := self._told.pop((agent.id, call), ""):
            self._tasks.spawn(received(self._tasks, agent, task))

    async def begin(self, call: Invocation, spec: TaskSpec, origin: Origin) -> Task:
        """Take a task on for a call. Its intent is on disk when this returns.

        :raises ToolError: if it may not begin; its code is one of the table of failures.
        """
        try:
            task = await self._tasks.start(spec, origin)
        except HamesError as error:
            raise told(error) from None
        try:
            call.note("delegated", {"call": call.call_id, "task": task.id, "spec": task.spec.as_json()})
        except HamesError:
            task.cancel("parent")
            raise
        return task

    async def carry(self, call: Invocation, agent: Agent, task: Task) -> Output:
        """Wait for a task that has begun, or let it run meanwhile, as it says itself."""
        if task.spec.mode == "background":
            return await self._in_background(task, agent, call)
        if task.spec.mode == "continuable":
            return await self._kept(task, agent, call)
        with agent.waiting("child"):
            outcome = await self._tasks.wait(task)
        return self.result(task, outcome, agent, call)

    async def _kept(self, task: Task, agent: Agent, call: Invocation) -> Output:
        try:
            await asyncio.shield(task.accepted)
        except asyncio.CancelledError:
            task.cancel("parent")
            await self._tasks.wait(task)
            raise
        if not task.was_accepted:
            outcome = await task.outcome()
            if isinstance(task.error, StorageError):
                raise ToolError(f"the conversation cannot be kept: {outcome.diagnostic}", "PERSISTENCE_UNAVAILABLE")
            return self.result(task, outcome, agent, call)
        text = f"{task.thread} has the work and runs while you go on; you are told when it comes to rest, and send_message goes on with it"
        return Output((Text(text),))

    async def _in_background(self, task: Task, agent: Agent, call: Invocation) -> Output:
        jobs = self._ctx.host.get(JOBS, call.scope)

        async def body() -> Output:
            return self.result(task, await self._tasks.wait(task), agent, call)

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
        if job.task is not None:
            self._tasks.owing.add(agent.id, job.task)
        return Output((Text(f"{job.id} runs in the background as task {task.id}; you are told when it has ended"),))

    def result(self, task: Task, outcome: Outcome, agent: Agent, call: Invocation) -> Output:
        """What whoever asked is told: how it ended, the head of the result, where the whole is, and what may be done next."""
        whole = said(task.spec, outcome)
        shown, path = headed(whole, call.spill)
        kept: dict[str, Any] = {"call": call.call_id, "task": task.id, "status": outcome.status, "session": outcome.native}
        kept |= {"code": outcome.code} if outcome.code else {}
        kept |= {"path": str(path), "characters": len(whole)} if path is not None else {}
        call.note("settled", kept)
        self._told[call.session, call.call_id] = task.id
        ill = failed(task.spec, outcome)
        if outcome.ok and not ill:
            return Output((Text(shown),))
        head = f"task {task.id} says that it failed" if ill else f"the task did not complete: {outcome.status} ({outcome.code})"
        lines = [head, outcome.diagnostic]
        if shown:
            lines += [shown] if ill else ["What there is of its answer:", shown]
        if outcome.proceed and not ill:
            lines.append(f"Its session is {outcome.native}.")
        if self._advice is not None:
            try:
                lines.append(self._advice(agent, task.id))
            except Exception as error:  # recorded: what may be done next is less than what has been done
                self._tasks.contain(f"advice after task {task.id}", error)
        return Output((Text("\n".join(line for line in lines if line)),), True, outcome.code or "FAILED")
