"""The connections of a host: one for each distinct way to reach a server, however many rows lease it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hames.kernel import Context, Effect, Key, Registry, Scope
from hames.sandbox import scrubbed
from hames.tools import TOOLS

if TYPE_CHECKING:
    from hames.mcp.config import Launch
    from hames.mcp.connection import Connection
    from hames.mcp.oauth import Tokens
    from hames.mcp.seat import Seat


STARTING = 8  # servers that start side by side


class Pool:
    """Leases connections. One is opened with its first lease and closed with its last; another is not opened before that one is closed.

    :param ctx: that of the row which owns this.
    :param tokens: the directory of tokens.
    :ivar seats: the servers that a scope sees, by name.
    """

    def __init__(self, ctx: Context, tokens: Path, withhold: list[str], keep: list[str]) -> None:
        self._tokens = tokens
        self._withhold = withhold
        self._keep = keep
        self._gate = asyncio.Semaphore(STARTING)
        self._open: dict[Launch, tuple[Connection, list[object]]] = {}
        self._closing: dict[Launch, asyncio.Task[None]] = {}
        self.seats: Registry[Seat] = Registry("MCP server")
        self._ctx = ctx
        self._offering: dict[Scope, tuple[list[object], list[Effect]]] = {}

    def tokens(self, url: str, *, redirect: str = "") -> Tokens:
        """Where the tokens for an address are kept, see :class:`hames.mcp.oauth.Tokens`."""
        from hames.mcp.oauth import Tokens

        return Tokens(self._tokens, url, redirect=redirect)

    async def acquire(self, launch: Launch, name: str) -> tuple[Connection, object]:
        """A connection, and the lease to give back for it."""
        from hames.mcp.connection import Connection
        from hames.mcp.oauth import provider

        while (closing := self._closing.get(launch)) is not None:
            await asyncio.wait((closing,))
        if launch not in self._open:
            environment = scrubbed(os.environ, self._withhold, self._keep)

            def auth() -> Any:
                """With tokens or without: without it is a person who has to get some."""
                tokens = self.tokens(launch.url) if launch.oauth else None
                return provider(tokens) if tokens is not None and tokens.there else None

            self._open[launch] = (Connection(launch, name, environment, auth, gate=self._gate), [])
        connection, leases = self._open[launch]
        lease = object()
        leases.append(lease)
        return connection, lease

    async def release(self, launch: Launch, lease: object) -> None:
        """Give a lease back; with the last one the connection is closed, and that is waited for."""
        connection, leases = self._open[launch]
        leases.remove(lease)
        if leases:
            return
        del self._open[launch]
        closing = self._closing[launch] = asyncio.create_task(connection.close(), name=f"closing mcp {connection.name}")
        closing.add_done_callback(lambda _: self._closing.pop(launch, None))
        await asyncio.shield(closing)

    def offer_resources(self, ctx: Context) -> None:
        """Offer the tools that read resources in the scope of a context, for as long as it or another one there wants them."""
        from hames.mcp.resources import reading

        tools, scope, user = self._ctx.host.get(TOOLS, ctx.scope), ctx.scope, object()
        if tools is None:
            return

        def withdraw() -> None:
            users, effects = self._offering[scope]
            users.remove(user)
            if not users:
                del self._offering[scope]
                for effect in effects:
                    effect.withdraw()

        ctx.effect("offers resources", withdraw)
        if scope not in self._offering:
            here = self._ctx.at(scope)
            self._offering[scope] = ([], [tools.register(here, each) for each in reading(self.seats)])
        self._offering[scope][0].append(user)

    @property
    def connections(self) -> list[Connection]:
        """Those that are open."""
        return [connection for connection, _ in self._open.values()]

    async def close(self) -> None:
        """Close what is left."""
        left = [connection.close() for connection, _ in self._open.values()]
        self._open.clear()
        await asyncio.gather(*left, *self._closing.values())

    def kill(self) -> None:
        """End every program at once."""
        for connection in self.connections:
            connection.kill()


MCP: Key[Pool] = Key("mcp")
