"""The runners ``spawn`` and ``fork``: a child is an agent of this process, with a session of its own.

``spawn`` begins with nothing, ``fork`` with the conversation of whoever starts it, up to the end of its last turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hames import __version__
from hames.agents import Agent, Agents, AgentSpec, ToolStarted
from hames.budget import Limits
from hames.content.errors import NotFoundError
from hames.content.finish import Usage
from hames.delegation.child import Child
from hames.delegation.dress import STATE, dressed, kept, of
from hames.delegation.outcome import Level
from hames.delegation.relay import relay
from hames.delegation.runner import Launch, Origin
from hames.delegation.spec import TaskSpec
from hames.delegation.structured import Capture
from hames.kernel import Context
from hames.models import MODELS
from hames.store import Blobs
from hames.workspaces.choice import PRESET

OPTIONS = ("role", "schema", "tools", "permission", "model", "inputs", "steps", "tokens", "cost", "idle", "continuable")
CAPABILITIES: dict[str, Level] = {
    **dict.fromkeys(OPTIONS, "enforced"),
    "effort": "requested",
}


class InProcess:
    """Runs children as agents of this process.

    :param nudges: how often a child that ends without its result is reminded of it.
    """

    keeps_idle = True
    version = __version__
    digest = ""
    capabilities: Mapping[str, Level] = CAPABILITIES

    def __init__(self, ctx: Context, agents: Agents, blobs: Blobs, *, fork: bool, nudges: int) -> None:
        self._ctx = ctx
        self._agents = agents
        self._blobs = blobs
        self._nudges = nudges
        self.hands_on = fork
        self.name = "fork" if fork else "spawn"

    def check(self, spec: TaskSpec, origin: Origin) -> TaskSpec:
        models = self._ctx.host.get(MODELS, origin.home or origin.scope)
        if self.hands_on and not origin.session:
            raise NotFoundError("there is no conversation that could be handed on", remedy="use the runner spawn", code="SPEC_INVALID")
        if self.hands_on and spec.directory and Path(spec.directory).resolve() != Path(origin.cwd).resolve():
            raise NotFoundError("a conversation goes on in its own directory", remedy="use the runner spawn", code="SPEC_INVALID")
        ref = spec.model or origin.model or (models.default if models is not None else "")
        if models is not None:
            model = models.resolve(ref, origin.home or origin.scope)
            limited = spec.budget.cost is not None or (origin.meter is not None and origin.meter.counts_cost)
            if limited and model.cost(Usage()) is None:
                raise NotFoundError(f"nobody knows what {ref} costs", remedy="limit tokens instead", code="PRICE_UNKNOWN")
        return replace(spec, model=ref)

    async def start(self, launch: Launch) -> Child:
        spec, origin = launch.spec, launch.origin
        settings = replace(origin.settings, effort=spec.effort or origin.settings.effort)
        if self.hands_on and origin.agent is not None and not launch.resume:
            await origin.agent.session.barrier()  # what it begins with is on disk
        made = AgentSpec(
            spec.directory,
            spec.model,
            launch.resume,
            settings=settings,
            limits=Limits(idle=spec.budget.idle),
            ceiling=launch.permission,
            parent=origin.home,
            origin=origin.session,
            fork=self.hands_on and not launch.resume,
            grant=launch.grant,
            place=launch.place,
            whole=launch.meter,
        )
        agent = await self._agents.create(made)
        try:
            return self._prepare(launch, agent)
        except BaseException:
            await self._agents.dispose(agent)
            raise

    def _prepare(self, launch: Launch, agent: Agent) -> Child:
        spec, origin, at = launch.spec, launch.origin, self._ctx.at(agent.scope)
        if launch.resume:
            agent.grant = (*launch.grant, *(mask for mask in agent.grant if mask not in launch.grant))
            own = {**of(agent), "task": launch.task, "root": origin.root or launch.task}
            agent.session.remember(STATE, own)
        else:
            agent.session.remember(STATE, kept(launch))
            if origin.agent is not None and (preset := origin.agent.session.state.get(PRESET)):
                agent.session.remember(PRESET, preset)  # where it stands again when somebody else goes on with it
            dressed(self._ctx, agent, of(agent))
        relay(self._ctx, agent, origin, spec.title)
        capture = Capture(self._ctx, agent, spec.schema) if spec.schema is not None else None

        def started(notice: ToolStarted) -> None:
            launch.say(f"{notice.call.name} {notice.call.arguments[:200]}")

        at.on(ToolStarted, started)
        agent.heard_waits = lambda: launch.waits(agent.waits[-1] if agent.waits else "")
        return Child(self._agents, agent, launch, capture, self._nudges, prompt(spec, self._blobs))


def prompt(spec: TaskSpec, blobs: Blobs) -> str:
    """What the child is told: the prompt, and where the files are that are given along."""
    if not spec.inputs:
        return spec.prompt
    files = "\n".join(f"- {name}: {blobs.path(digest)}" for name, digest in spec.inputs.items())
    return f"{spec.prompt}\n\nFiles that are given along:\n{files}"
