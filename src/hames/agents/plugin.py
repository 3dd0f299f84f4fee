"""The service that makes agents and owns them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

from hames.agents.agent import Agent
from hames.agents.events import AgentMade
from hames.agents.loop import LOOP, Loop
from hames.budget import Limits, Meter, Place
from hames.content.clock import Clock
from hames.content.errors import KernelError, ModelReferenceError, NotFoundError
from hames.content.finish import Usage
from hames.kernel import Around, Context, Key, Mask, Scope, plugin
from hames.models import MODELS, Models, Settings
from hames.policy import Mode
from hames.sessions import SESSIONS, Session, Sessions
from hames.store import STORE
from hames.tools import TOOLS


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What an agent is made of.

    :param cwd: the absolute directory that it works in; a session that is resumed stays in its own.
    :param model: a reference as in ``openai:gpt-5``; empty for that of the session or of the composition.
    :param resume: the session to continue; empty for a new one.
    :param tools: narrows what it sees, its own scope too; None leaves the composition's tools.
    :param ceiling: the widest permission mode that it may have.
    :param preset: the name of a composition to choose; empty for that of its workspace.
    :param parent: the scope that its own is opened in; None for the host's.
    :param origin: the session that it was delegated from; empty for none.
    :param fork: begin with what the session ``origin`` holds, up to the end of its last turn.
    :param grant: masks that it sees through, and that bind all that it hands down.
    :param place: where it stands among those who wait for a model; None for a lane of its own.
    :param whole: what it spends is a part of this.
    """

    cwd: str
    model: str = ""
    resume: str = ""
    settings: Settings = Settings()
    limits: Limits = Limits()
    tools: Mask | None = None
    ceiling: Mode = "full"
    preset: str = ""
    parent: Scope | None = field(default=None, compare=False)
    origin: str = ""
    fork: bool = False
    grant: tuple[Mask, ...] = ()
    place: Place | None = None
    whole: Meter | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class AgentCreate(Around[Agent]):
    """An agent is being made, or taken up again; a listener may choose the scope that its own is opened in.

    :param directory: the absolute directory that it works in.
    """

    spec: AgentSpec
    directory: str


class Agents:
    """Makes agents. Whoever made one closes it; what is left is closed with this service."""

    def __init__(self, ctx: Context, sessions: Sessions, clock: Clock, root: Path) -> None:
        self._ctx = ctx
        self._sessions = sessions
        self._clock = clock
        self._root = root
        self.live: dict[str, Agent] = {}

    async def create(self, spec: AgentSpec) -> Agent:
        """Make an agent, or take up a session again.

        :raises NotFoundError: if the directory or the session does not exist.
        :raises BusyError: if another process holds the session.
        :raises ModelReferenceError: if there is no such model.
        """
        session: Session | None = None
        if spec.resume:
            session = await self._sessions.open(spec.resume)
        elif spec.fork:
            session = await self._sessions.fork(spec.origin)
        try:
            directory = session.cwd if session is not None else spec.cwd
            if not Path(directory).is_dir():
                raise NotFoundError(
                    f"there is no directory {directory}", remedy="name an existing one with --cwd", code="DIRECTORY_UNKNOWN"
                )

            async def make(call: AgentCreate) -> Agent:
                return await self._make(call.spec, session)

            agent = await self._ctx.around(AgentCreate(spec, directory), make, at=spec.parent)
        except BaseException:
            if session is not None and session.id not in self.live:
                await session.release()
            raise
        self._ctx.emit(AgentMade(agent.id, bool(spec.origin)), at=agent.scope)
        return agent

    async def _make(self, spec: AgentSpec, session: Session | None) -> Agent:
        scope = self._ctx.host.scope(spec.parent, "agent")
        try:
            models = self._models(scope)
            ref = spec.model or (session.last_model if session is not None else "") or models.default
            model = models.resolve(ref, scope)
            if spec.limits.cost is not None and model.cost(Usage()) is None:
                raise ModelReferenceError(
                    f"nobody knows what {ref} costs, so its cost cannot be limited",
                    remedy="limit steps or tokens instead, or give its prices to the provider in the row models",
                    code="PRICE_UNKNOWN",
                )
            tools = self._ctx.host.get(TOOLS, scope)
            for mask in (*spec.grant, *((spec.tools,) if spec.tools is not None else ())):
                if tools is not None:
                    tools.registry.seal(self._ctx.at(scope), mask)
            session = session or self._sessions.create(spec.cwd, parent=spec.origin)
        except BaseException:
            await scope.close()
            raise
        agent = Agent(
            self._ctx,
            scope,
            session,
            lambda: self._models(scope),
            lambda: self._loop(scope),
            model=ref,
            settings=spec.settings,
            limits=spec.limits,
            clock=self._clock,
            ceiling=spec.ceiling,
            root=self._root,
            grant=spec.grant,
            place=spec.place,
            whole=spec.whole,
        )
        self.live[agent.id] = agent
        scope.key = agent

        async def forget() -> None:
            self.live.pop(agent.id, None)

        agent.defer(forget, last=True)
        return agent

    async def dispose(self, agent: Agent) -> None:
        """Close an agent and forget it."""
        await agent.close()

    async def close(self) -> None:
        for agent in tuple(self.live.values()):
            agent.cancel("disposed", keep_inbox=True)
        for agent in tuple(self.live.values()):
            await self.dispose(agent)

    def _models(self, scope: Scope) -> Models:
        found = self._ctx.host.get(MODELS, scope)
        if found is None:
            raise KernelError("no row provides models", remedy="add a row with use: hames.models", code="MISSING_SERVICE")
        return found

    def _loop(self, scope: Scope) -> Loop:
        found = self._ctx.host.get(LOOP, scope)
        if found is None:
            raise KernelError("no row provides a loop", remedy="add a row with use: hames.agents.loop", code="MISSING_SERVICE")
        return found


AGENTS: Key[Agents] = Key("agents")


@plugin(needs=(SESSIONS, STORE), wants=(Clock,), name="agents", stop_limit=60)
async def agents(ctx: Context, config: None) -> AsyncGenerator[None]:
    """Provide the service that makes agents; those that are left are closed with it."""
    service = Agents(ctx, ctx.use(SESSIONS), ctx.find(Clock) or Clock(), ctx.use(STORE).root)
    ctx.provide(AGENTS, service)
    yield
    await service.close()
