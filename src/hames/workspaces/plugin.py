"""The row that gives every directory a scope of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Literal

from pydantic import Field, field_validator

from hames.agents import AGENTS, Agent, AgentCreate
from hames.compose import BASE, LOADED
from hames.compose.config import RowConfig
from hames.kernel import Context, plugin
from hames.sessions import SESSIONS
from hames.store import STATE
from hames.trust import TRUST
from hames.workspaces.choice import NONE, PRESET, chosen
from hames.workspaces.live import Live
from hames.workspaces.service import WORKSPACES, Workspaces
from hames.workspaces.workspace import Settings

LONGEST_DEBOUNCE = 2_147_483_647  # milliseconds


class WorkspacesConfig(RowConfig):
    """How the compositions of workspaces follow their files."""

    watch: bool = True
    """Whether a workspace is read again when its files change."""
    debounce_ms: int = Field(default=150, ge=0, le=LONGEST_DEBOUNCE)
    """Milliseconds without a change before that: a whole number from 0 to 2147483647."""
    on_failure: Literal["empty", "keep"] = "empty"
    """What a reading leaves that fails: nothing of the workspace's own, or what there was."""

    @field_validator("debounce_ms", mode="before")
    @classmethod
    def check_whole(cls, value: object) -> object:
        if isinstance(value, bool | float):
            raise ValueError("debounce_ms is a whole number")
        return value


@plugin(config=WorkspacesConfig, needs=(AGENTS, TRUST, BASE, STATE), wants=(LOADED, SESSIONS), stop_limit=60, name="workspaces")
async def workspaces(ctx: Context, config: WorkspacesConfig) -> AsyncGenerator[None]:
    """Give every trusted directory its own composition, live; agents stand in the scope of their directory."""
    settings = Settings(config.watch, config.debounce_ms / 1000, config.on_failure == "keep")
    service = Workspaces(ctx, ctx.use(BASE), ctx.use(TRUST), settings, ctx.find(LOADED), Live(ctx.use(STATE) / "workspaces"))

    async def join(call: AgentCreate, proceed: Callable[[AgentCreate], Awaitable[Agent]]) -> Agent:
        if call.spec.parent is not None:
            return await proceed(call)
        lease = await service.acquire(call.directory)
        generation = None
        try:
            usual = remembered(call.spec.resume) if call.spec.resume else chosen(lease.directory, base.environment)
            preset = call.spec.preset or usual
            generation = await lease.join(preset) if preset and preset != NONE else None
            scope = generation.scope if generation is not None else lease.scope
            agent = await proceed(replace(call, spec=replace(call.spec, parent=scope)))
        except BaseException:
            await lease.leave(generation)
            await lease.release()
            raise
        agent.defer(lease.release, last=True)
        agent.defer(lambda: lease.leave(generation), last=True)
        if (preset or NONE) != agent.session.state.get(PRESET, NONE):
            agent.session.remember(PRESET, preset or NONE)
        return agent

    def remembered(session: str) -> str:
        """The preset that a session stood in when it was worked on last: what was chosen since is for new ones."""
        name = sessions.remembered(session, PRESET) if sessions is not None else None
        return name if isinstance(name, str) else NONE

    base, sessions = ctx.use(BASE), ctx.find(SESSIONS)
    ctx.provide(WORKSPACES, service)
    ctx.on(AgentCreate, join)
    yield
    await service.close()
