"""Jobs: commands that run in the background of one agent, and end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from hames.agents import AGENTS, Agent
from hames.compose.config import RowConfig
from hames.content.errors import HamesError
from hames.content.messages import Message, Text
from hames.kernel import Context, Key, plugin
from hames.prompts import PROMPTS, Facts
from hames.tools import TOOLS, Invocation, Output, ToolError, tool

JobStatus = Literal["running", "completed", "failed", "killed"]
SHOWN = 20_000  # characters of output that are shown


class JobsConfig(RowConfig):
    """How many jobs, and how often they wake an agent."""

    max_running: int = Field(default=10, gt=0)
    """Jobs of one agent that run at a time."""
    max_seconds: float = Field(default=6 * 3600.0, gt=0)
    """Seconds after which a job is ended."""
    max_wakes: int = Field(default=3, ge=0)
    """How often the ends of jobs wake an agent that has nothing to do, until its user says something again."""


@dataclass(slots=True)
class Job:
    """One command in the background.

    :ivar output: gives what it has printed so far.
    :ivar heard: called when the agent has been told its result, which it is only where this is given.
    """

    id: str
    command: str
    output: Callable[[], str]
    status: JobStatus = "running"
    result: str = ""
    task: asyncio.Task[None] | None = None
    killed: bool = False
    heard: Callable[[], None] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Jobs:
    """The jobs of the agents of a process."""

    def __init__(self, ctx: Context, config: JobsConfig) -> None:
        self._ctx = ctx
        self.config = config

    def of(self, agent: Agent) -> dict[str, Job]:
        jobs: dict[str, Job] | None = agent.memory.get("jobs")
        if jobs is None:
            jobs = agent.memory["jobs"] = {}
            agent.defer(lambda: self._end_all(agent))
        return jobs

    def start(
        self,
        agent: Agent,
        command: str,
        output: Callable[[], str],
        body: Callable[[], Awaitable[Output]],
        *,
        heard: Callable[[], None] | None = None,
    ) -> Job:
        """Run a command in the background of an agent, which is told when it has ended.

        :param heard: tell it the result too, and call this then.
        :raises ToolError: if too many run already.
        """
        jobs = self.of(agent)
        running = [job.id for job in jobs.values() if job.status == "running"]
        if len(running) >= self.config.max_running:
            raise ToolError(f"{len(running)} jobs run already: {', '.join(running)}; wait for one or end one", "TOO_MANY_JOBS")
        job = Job(f"job-{len(jobs) + 1}", command, output, heard=heard)
        jobs[job.id] = job
        job.task = asyncio.create_task(self._run(agent, job, body), name=f"{job.id} of agent {agent.id}")
        return job

    async def _run(self, agent: Agent, job: Job, body: Callable[[], Awaitable[Output]]) -> None:
        try:
            output = await body()
            job.result = "".join(part.text for part in output.content if isinstance(part, Text))
            job.status = "failed" if output.is_error else "completed"
        except asyncio.CancelledError:
            job.status = "killed"
            job.result = f"{job.output()}\n[ended]"
        except Exception as error:
            job.status, job.result = "failed", f"{type(error).__name__}: {error}"
            self._ctx.host.contain(f"{job.id} of agent {agent.id}", error)
        finally:
            job.done.set()
        if not job.killed:
            self._tell(agent, job)

    def _tell(self, agent: Agent, job: Job) -> None:
        """Tell the agent, and wake it unless jobs alone have woken it often enough."""
        text = f"{job.id} has ended ({job.status}): {job.command[:200]}\n{'See it with job_output.' if job.heard is None else job.result}"
        message = Message("user", (Text(text),), "harness")
        spoken = agent.inbox.heard
        since, wakes = agent.memory.get("wakes", (-1, 0))
        wakes = wakes if since == spoken else 0
        try:
            if agent.status == "running" or agent.held:
                agent.inject(message)
            elif wakes < self.config.max_wakes:
                agent.memory["wakes"] = (spoken, wakes + 1)
                agent.steer(message)
            else:
                agent.inject(message)
            if job.heard is not None:
                job.heard()
        except HamesError as error:  # it is being closed
            self._ctx.host.contain(f"{job.id} of agent {agent.id}", error)

    async def kill(self, job: Job) -> None:
        """End a job and wait until nothing of it is left."""
        job.killed = True
        if job.task is not None and not job.task.done():
            job.task.cancel()
            await asyncio.wait((job.task,))
        if job.status == "running":  # it never began
            job.status = "killed"
            job.done.set()

    async def _end_all(self, agent: Agent) -> None:
        jobs: dict[str, Job] = agent.memory.get("jobs", {})
        await asyncio.gather(*(self.kill(job) for job in jobs.values()))


JOBS: Key[Jobs] = Key("jobs")


def shown(job: Job) -> str:
    text = job.result or job.output()
    head = f"[… {len(text) - SHOWN} characters before …]\n" if len(text) > SHOWN else ""
    return f"{job.id} ({job.status}): {job.command[:200]}\n{head}{text[-SHOWN:]}"


@plugin(config=JobsConfig, needs=(TOOLS, PROMPTS, AGENTS), name="jobs")
def jobs(ctx: Context, config: JobsConfig) -> None:
    """Commands in the background, and the tools ``job_output``, ``job_list`` and ``job_kill``."""
    service = Jobs(ctx, config)

    def chosen(call: Invocation, id: str) -> Job:
        agent = call.scope.key
        known = service.of(agent) if isinstance(agent, Agent) else {}
        if id not in known:
            raise ToolError(f"there is no {id!r}; there are {', '.join(known) or 'none'}", "NOT_FOUND")
        return known[id]

    @tool("read", timeout=None)
    async def job_output(job: str, wait: Annotated[float, Field(ge=0, le=600)] = 0, *, call: Invocation) -> str:
        """Show what a command in the background has printed, and whether it still runs.

        :param job: its name, as in job-1.
        :param wait: seconds to wait for its end.
        """
        found = chosen(call, job)
        if wait and found.status == "running":
            try:
                await asyncio.wait_for(found.done.wait(), wait)
            except TimeoutError:
                pass
        return shown(found)

    @tool("read")
    def job_list(*, call: Invocation) -> str:
        """List the commands that run in the background, and those that have ended."""
        agent = call.scope.key
        known = service.of(agent) if isinstance(agent, Agent) else {}
        return "\n".join(f"{job.id} ({job.status}): {job.command[:200]}" for job in known.values()) or "there are none"

    @tool("execute", timeout=None)
    async def job_kill(job: str, *, call: Invocation) -> str:
        """End a command in the background, with all its processes.

        :param job: its name.
        """
        found = chosen(call, job)
        await service.kill(found)
        return shown(found)

    def told(facts: Facts) -> str:
        agent = facts.scope.key
        known: dict[str, Job] = agent.memory.get("jobs", {}) if isinstance(agent, Agent) else {}
        running = [f"{job.id}: {job.command[:200]}" for job in known.values() if job.status == "running"]
        return "Commands that run in the background:\n" + "\n".join(running) if running else ""

    ctx.provide(JOBS, service)
    ctx.use(PROMPTS).fact(ctx, "jobs", told, order=12, quiet=True)
    for each in (job_output, job_list, job_kill):
        ctx.use(TOOLS).register(ctx, each)
