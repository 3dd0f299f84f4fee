"""The row that owns the connections to MCP servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from hames.compose.config import RowConfig
from hames.kernel import Context, plugin
from hames.mcp.pool import MCP, Pool
from hames.store import STATE


class McpConfig(RowConfig):
    """What the programs of all MCP servers see of the environment."""

    withhold: list[str] = []
    """Patterns of environment variables that they do not see, beside those that look like secrets."""
    keep: list[str] = []
    """Patterns of those that they see although they look like secrets. What one server needs is better named in its ``env``."""


@plugin(config=McpConfig, needs=(STATE,), stop_limit=20, name="mcp")
async def mcp(ctx: Context, config: McpConfig) -> AsyncGenerator[None]:
    """Own the connections to MCP servers; rows of ``hames.mcp.server`` lease them."""
    pool = Pool(ctx, ctx.use(STATE).resolve() / "mcp", config.withhold, config.keep)
    ctx.provide(MCP, pool)
    ctx.last_resort(pool.kill)
    yield
    await pool.close()
