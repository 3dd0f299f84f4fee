"""A server in one scope: its tools as agents there see them, swapped as a whole when its list changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from hames.content.errors import DuplicateError
from hames.kernel import Context, Effect
from hames.kernel.registry import matches
from hames.mcp.config import ServerConfig
from hames.mcp.connection import Active, Connection
from hames.mcp.elicitation import elicit
from hames.mcp.events import ServerChanged
from hames.mcp.listing import Listing, Offer
from hames.mcp.names import prefix, public_name
from hames.mcp.results import output
from hames.policy import Capability
from hames.tools import TOOLS, Invocation, Needs, Output, Tool

log = logging.getLogger("hames.mcp")

CALL = " call"  # the parameter of a tool's body that takes its surroundings: no name that a schema would have


class Seat:
    """One row's use of a connection.

    :param offer: offers the tools that read resources, to the scope of a context.
    :ivar name: that of the server.
    :ivar left_out: tools that agents do not get, with the reason.
    """

    def __init__(self, ctx: Context, name: str, config: ServerConfig, connection: Connection, offer: Callable[[Context], None]) -> None:
        self._ctx = ctx
        self.name = name
        self.config = config
        self.connection = connection
        self.left_out: tuple[tuple[str, str], ...] = ()
        self.problem = ""
        self._listing: Listing | None = None
        self._given_up = False
        self._offers: dict[str, Offer] = {}
        self._made: dict[str, Tool] = {}
        self._held: list[Effect] = []
        self._told: tuple[Any, ...] = ()
        self._offer: Callable[[Context], None] | None = offer

    @property
    def tools(self) -> Mapping[str, Tool]:
        """What agents have of it, by name."""
        return self._made

    def refresh(self) -> None:
        """Bring what agents see in line with the connection. A generation of tools that cannot be taken whole leaves the one before."""
        if not self._ctx.live:
            return
        if self.connection.status in ("failed", "closed", "ready"):
            self._given_up = self.connection.status != "ready"
        listing = Listing() if self._given_up else self.connection.listing
        if listing is not None and listing is not self._listing:
            self._swap(listing)
            if listing.resources and self._offer is not None:
                self._offer(self._ctx)
                self._offer = None
        told = (self.connection.status, self.connection.reason, len(self._made), self.problem)
        if told != self._told:
            self._told = told
            self._ctx.emit(ServerChanged(self.name, self.connection.status, self.connection.reason or self.problem, len(self._made)))

    def _swap(self, listing: Listing) -> None:
        offers = [each for each in listing.tools if matches(each.raw, self.config.tools) and not matches(each.raw, self.config.without)]
        made: dict[str, Tool] = {}
        raws: dict[str, str] = {}
        kept: dict[str, Offer] = {}
        for offer in offers:
            name = public_name(self.name, offer.raw)
            if name in raws:
                self._refuse(f"its tools {raws[name]!r} and {offer.raw!r} would both be {name}")
                return
            raws[name] = offer.raw
            kept[name] = offer
            # The same description gives the same object, and cached prompts stay as they are.
            made[name] = self._made[name] if self._offers.get(name) == offer else self._tool(name, offer)
        if list(made.items()) != list(self._made.items()):
            old = self._made
            self._put(())
            try:
                self._put(made.values())
            except DuplicateError as error:
                self._put(old.values())
                self._refuse(error.message)
                return
            self._made = made
        self._offers = kept
        self._listing, self.left_out, self.problem = listing, listing.left_out, ""

    def _refuse(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("MCP server %s: its tools are not taken: %s", self.name, problem)
        self.problem = problem

    def _put(self, tools: Any) -> None:
        """Replace what is registered, all of it or nothing."""
        for effect in reversed(self._held):
            effect.withdraw()
        self._held = []
        for tool in tools:
            try:
                self._held.append(self._ctx.use(TOOLS).register(self._ctx, tool))
            except DuplicateError:
                self._put(())
                raise

    def _tool(self, name: str, offer: Offer) -> Tool:
        capabilities = frozenset[Capability](("read",) if matches(offer.raw, self.config.read) else self.config.capabilities)

        async def run(**arguments: Any) -> Output:
            call: Invocation = arguments.pop(CALL)
            return await self.call(offer.raw, arguments, call)

        return Tool(
            name,
            offer.description or f"{offer.raw} of the MCP server {self.name}",
            offer.schema,
            run,
            capabilities,
            parallel=offer.reads or not capabilities - {"read"},
            timeout=self.config.longest_call,
            invocation=CALL,
            needs=lambda arguments, call: Needs(capabilities, whole=True, confined=False),
        )

    async def call(self, raw: str, arguments: dict[str, Any], call: Invocation) -> Output:
        """Call a tool by the name that the server gives it.

        :raises ToolError: if there is no answer.
        """
        approvals = self._ctx.use(TOOLS).approvals
        active = Active(call.session, self.config.call_timeout, lambda params: elicit(self.name, params, call, approvals))

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            active.alive()
            call.progress(far(progress, total, message or ""))

        result = await self.connection.request(lambda client: client.call_tool(raw, arguments, progress_callback=heard), active)
        return output(result, call)

    def about(self) -> str:
        """What agents are told of it: its instructions, or that it is not there."""
        connection, listing = self.connection, self.connection.listing
        if connection.status == "failed":
            return f"[The MCP server {self.name} is not available now; its tools are gone.]"
        if listing is None or not listing.instructions.strip() or not self.config.max_instruction_bytes:
            return ""
        text = listing.instructions.encode("utf-8", "replace")
        shown = text[: self.config.max_instruction_bytes].decode("utf-8", "ignore").strip()
        more = "\n[the rest was left out]" if len(text) > self.config.max_instruction_bytes else ""
        return f"The MCP server {self.name} (tools {prefix(self.name)}*) says how it is used:\n\n{shown}{more}"


def far(done: float, total: float | None, message: str) -> str:
    """How far a call is, in words."""
    number = f"{done:g} of {total:g}" if total else f"{done:g}"
    return f"{number}: {message[:200]}" if message else number
