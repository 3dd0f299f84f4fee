"""MCP servers in the chat: how they are, and the prompts that they have templates of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hames.content.errors import HamesError, UsageError
from hames.mcp import MCP
from hames.tools import ToolError

if TYPE_CHECKING:
    from hames.faces.cli.chat import Chat
    from hames.mcp.listing import PromptOffer
    from hames.mcp.seat import Seat


def seats(chat: Chat) -> dict[str, Seat]:
    """The servers that the agent sees, by name."""
    pool = chat.host.get(MCP, chat.agent.scope)
    return pool.seats.view(chat.agent.scope) if pool is not None else {}


def prompts(chat: Chat) -> dict[str, tuple[Seat, PromptOffer]]:
    """The prompts of all servers, as ``server:prompt``."""
    return {
        f"{name}:{offer.raw}": (seat, offer)
        for name, seat in seats(chat).items()
        if seat.connection.listing is not None
        for offer in seat.connection.listing.prompts
    }


async def mcp(chat: Chat, rest: str) -> None:
    """``/mcp``, and ``/mcp reconnect SERVER``."""
    found = seats(chat)
    word, _, name = rest.partition(" ")
    if word == "reconnect" and name in found:
        found[name].connection.reconnect()
        chat.view.line(f"{name} is tried again")
        return
    if rest:
        raise UsageError(f"/mcp {rest[:60]!r} is nothing", remedy="write /mcp, or /mcp reconnect and the name of a server")
    for name, seat in found.items():
        state = seat.connection.status + (f": {seat.connection.reason or seat.problem}" if seat.connection.reason or seat.problem else "")
        chat.view.line(f"{name:<20} {len(seat.tools)} tools, {state}")
    for name, (_, offer) in prompts(chat).items():
        arguments = " ".join(f"{each}=" if required else f"[{each}=]" for each, required in offer.arguments)
        chat.view.line(f"/{name} {arguments}".ljust(24) + offer.description[:90])
    if not found:
        chat.view.line("no MCP server is mounted; add a row with use: hames.mcp.server")


async def use_prompt(chat: Chat, name: str, rest: str) -> None:
    """Have a server fill in a prompt, and say it."""
    seat, offer = prompts(chat)[name]
    given: dict[str, str] = {}
    for word in rest.split():
        key, equals, value = word.partition("=")
        if not equals and len(offer.arguments) == 1:
            key, value = offer.arguments[0][0], rest
        elif not equals:
            raise UsageError(f"{word[:40]!r} is no argument", remedy="write NAME=VALUE")
        given[key] = value
    try:
        found: Any = await seat.connection.request(lambda client: client.get_prompt(offer.raw, given))
    except ToolError as error:
        raise HamesError(str(error), code=error.code) from None
    texts = [getattr(each.content, "text", f"[{each.content.type}]") for each in found.messages]
    chat.say("\n\n".join(texts))
