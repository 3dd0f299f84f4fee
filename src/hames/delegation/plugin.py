"""The row of delegation: the tasks of a host, and who may execute them.

What they need is imported when the first task is given: most conversations give none, and start no slower for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from hames.agents import AGENTS, Agent, AgentCreate, TurnBegan
from hames.compose.config import RowConfig
from hames.content.clock import Clock
from hames.delegation.runners import Runners
from hames.kernel import Context, Key, Registry, plugin
from hames.prompts import PROMPTS, Facts
from hames.sessions import SESSIONS
from hames.store import STORE
from hames.toolkit.project import directories, user_directory
from hames.tools import TOOLS

if TYPE_CHECKING:
    from hames.delegation.conversations import Conversations, Sent
    from hames.delegation.lead import Lead
    from hames.delegation.role import Role
    from hames.delegation.service import Tasks


class DelegationConfig(RowConfig):
    """What tasks may be."""

    runner: str = "spawn"
    """Who executes tasks that name nobody."""
    max_depth: int = Field(default=1, ge=0)
    """How deep tasks may stand below a user's conversation: with 1 a child starts no children."""
    max_tasks: int = Field(default=1000, gt=0)
    """How many tasks one conversation of a user may start, with all below it."""
    grace: float = Field(default=10.0, gt=0)
    """Seconds that a runner has to end, and to give back what it holds."""


class Delegation:
    """The tasks of a host, made when they are first asked for."""

    def __init__(self, ctx: Context, config: DelegationConfig, clock: Clock) -> None:
        self.ctx = ctx
        self.config = config
        self._clock = clock
        self._made: Tasks | None = None
        self._conversations: Conversations | None = None
        self.runners = Runners()
        self.overlays: Registry[Overlay] = Registry("roles")

    @property
    def tasks(self) -> Tasks:
        """The service that takes tasks on."""
        if self._made is None:
            from hames.delegation.ledger import Ledger
            from hames.delegation.service import Settings, Tasks

            ctx, config = self.ctx, self.config
            settings = Settings(config.runner, config.max_depth, config.max_tasks, config.grace)
            ledger = Ledger(ctx.use(STORE), self._clock)
            self._made = Tasks(ctx, ledger, ctx.use(SESSIONS), self.runners, self.overlays, self._clock, settings)
        return self._made

    @property
    def conversations(self) -> Conversations:
        """The conversations that tasks keep."""
        if self._conversations is None:
            from hames.delegation.conversations import Conversations

            self._conversations = Conversations(self.ctx, self.tasks)
        return self._conversations

    async def rest(self, agent: Agent) -> bool:
        """Wait until an agent rests and has been told the end of all that it has started; whether there was anything to wait for."""
        if self._made is None:
            await agent.idle()
            return False
        from hames.delegation.owing import rested

        made = self._made
        return await rested(agent, lambda: made.owing.of(agent.id))

    def cancel(self, agent: Agent) -> None:
        """Ask all that an agent has started to end."""
        for task in tuple(self._made.live.values()) if self._made is not None else ():
            if task.origin.agent is agent:
                task.cancel("user")

    async def send(self, agent: Agent, call: str, name: str, text: str) -> Sent:
        """Give a message of an agent to a conversation, where this composition lets it.

        :raises Refused: if it was not taken.
        """
        origin, lead = self.tasks.origin(agent, call), self.ctx.host.get(LEADING, agent.scope)
        if lead is None:
            return await self.conversations.send(name, text, origin)
        from hames.delegation.attempts import said_alone
        from hames.delegation.records import MESSAGE

        strikes, text = lead().strikes, said_alone(text)
        async with strikes.turn(agent):
            await strikes.judge_message(agent, self.conversations.thread(name), text)
            sent = await self.conversations.send(name, text, origin, lambda thread: strikes.judge_message(agent, thread, text))
            if sent.waits:
                await self.tasks.ledger.receive(sent.task, MESSAGE, {"text": text[:4000]})
            return sent

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()


def has_roles(cwd: Path) -> bool:
    """Whether there may be roles for a directory: looking for them takes more."""
    places = [place / name for place in directories(cwd) for name in (".hames/roles", ".claude/agents")]
    return any(place.is_dir() for place in (*places, user_directory() / "roles"))


DELEGATION: Key[Delegation] = Key("delegation")
LEADING: Key[Callable[[], Lead]] = Key("lead")
"""Makes agents lead, and judges what may follow an attempt that has failed; where nobody provides it, everything may."""
Overlay = Callable[[dict[str, list["Role"]], Path], dict[str, list["Role"]]]
"""What a composition makes of the roles of a directory."""


@plugin(config=DelegationConfig, needs=(STORE, SESSIONS, AGENTS), wants=(Clock, PROMPTS, TOOLS), name="delegation", stop_limit=60)
async def delegation(ctx: Context, config: DelegationConfig) -> AsyncGenerator[None]:
    """Provide the tasks and the registry of runners. What still runs at the end is ended."""
    service = Delegation(ctx, config, ctx.find(Clock) or Clock())
    control = ctx.use(STORE).root / "control.db"

    async def resumed(call: AgentCreate, proceed: Callable[[AgentCreate], Awaitable[Agent]]) -> Agent:
        agent = await proceed(call)
        if call.spec.resume and control.exists():
            from hames.delegation.reunion import reunite

            own = ctx.host.get(DELEGATION, agent.scope) or service  # that of its workspace, where it has one
            try:
                await reunite(own.ctx, own.tasks, agent)
            except BaseException:
                await agents.dispose(agent)
                raise
        return agent

    def began(notice: TurnBegan) -> None:
        """Look at the roles, where the agent can give work to one."""
        agent = agents.live.get(notice.agent)
        if agent is None or tools is None:
            return
        agent.memory["roles"] = ""
        if not has_roles(agent.cwd):
            return
        if any("role" in tool.parameters.get("properties", {}) for tool in tools.registry.view(agent.scope).values()):
            from hames.delegation.delegate import catalogue

            agent.memory["roles"] = catalogue(service.tasks.roles(service.tasks.origin(agent)))

    def told(facts: Facts) -> str:
        agent = facts.scope.key
        return agent.memory.get("roles", "") if isinstance(agent, Agent) else ""

    agents, tools, prompts = ctx.use(AGENTS), ctx.find(TOOLS), ctx.find(PROMPTS)
    if prompts is not None:
        prompts.fact(ctx, "roles", told, order=13)
        ctx.on(TurnBegan, began)
    ctx.provide(DELEGATION, service)
    ctx.on(AgentCreate, resumed, order=10)
    yield
    await service.close()
