"""A row for one server."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from hames.content.errors import ConfigError
from hames.kernel import Context, Mask, plugin
from hames.mcp.config import ServerConfig
from hames.mcp.names import prefix, server_problem
from hames.mcp.pool import MCP
from hames.mcp.seat import Seat
from hames.prompts import PROMPTS
from hames.tools import TOOLS


@plugin(config=ServerConfig, needs=(MCP, TOOLS), wants=(PROMPTS,), start_limit=150, stop_limit=20, name="mcp server")
async def server(ctx: Context, config: ServerConfig) -> AsyncGenerator[None]:
    """The tools, resources, prompts and instructions of an MCP server, for as long as this row is mounted."""
    name = config.server or ctx.owner.id
    if problem := server_problem(name):
        raise ConfigError(f"{name!r}: {problem}", remedy="give it another one with config.server", owner=ctx.owner.label)
    pool, tools = ctx.use(MCP), ctx.use(TOOLS)
    connection, lease = await pool.acquire(config.launch, name)
    try:
        seat = Seat(ctx, name, config, connection, pool.offer_resources)
        pool.seats.add(ctx, name, seat)
        tools.registry.declare(ctx, f"{prefix(name)}*")
        if ctx.scope.parent is not None:  # a server of the same name further up is hidden whole
            tools.registry.mask(ctx, Mask(deny=frozenset({f"{prefix(name)}*"})))
        if (prompts := ctx.find(PROMPTS)) is not None:
            prompts.fact(ctx, f"mcp {name}", lambda facts: seat.about(), order=10)
        unwatch = connection.watch(seat.refresh)
        try:
            status = await connection.settled()
            if config.required and (status != "ready" or seat.problem):
                raise ConfigError(
                    f"the MCP server {name} is required and not there: {connection.reason or seat.problem or status}",
                    remedy=f"see 'hames mcp check {name}'",
                    owner=ctx.owner.label,
                    code="MCP_UNAVAILABLE",
                )
            seat.refresh()
            if config.required and seat.problem:
                raise ConfigError(f"the MCP server {name}: {seat.problem}", remedy="rename it, or leave tools out", owner=ctx.owner.label)
            yield
        finally:
            unwatch()
    finally:
        await pool.release(config.launch, lease)
