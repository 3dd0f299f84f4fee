"""Why there is no connection."""

from __future__ import annotations

from typing import Any, Protocol

from hames.content.errors import HamesError


class Lost(Exception):
    """A connection that could not be made, or has ended.

    :param lasting: whether to try again is of no use.
    :param unsent: whether what was on its way is known not to have arrived.
    :param again: whether to try again at once is no failure, but what mends it.
    """

    def __init__(self, reason: str, *, lasting: bool = False, unsent: bool = False, again: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lasting = lasting
        self.unsent = unsent
        self.again = again


class Witness(Protocol):
    """A transport that knows more than the errors say.

    :ivar refused: why the server did not take the last request that it did not take.
    """

    refused: str

    def last_words(self) -> str:
        """How the server ended and the end of what it said, as far as that is known."""
        ...


def said(transport: Witness) -> str:
    """What is known of a server that does not answer, in brackets."""
    words = transport.refused or transport.last_words()
    return f" ({words})" if words else ""


def first(group: Any) -> BaseException:
    """The first error of a group."""
    return group.exceptions[0]


def why(error: BaseException, transport: Witness) -> Lost:
    """What ended a connection, out of the groups of errors that the client wraps it in."""
    import httpx2
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED

    while isinstance(error, BaseExceptionGroup):
        error = first(error)
    if isinstance(error, Lost):
        return error
    if isinstance(error, HamesError):
        return Lost(error.message, lasting=True)
    if transport.refused:
        return Lost(transport.refused, lasting="login" in transport.refused or "redirects" in transport.refused)
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return Lost(f"it cannot be reached: {error or type(error).__name__}", unsent=True)
    if isinstance(error, httpx2.TransportError):
        return Lost(f"the connection broke: {error or type(error).__name__}")
    words = transport.last_words()
    if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
        return Lost(words or "it closed the connection")
    reason = f"{error.message if isinstance(error, MCPError) else f'{type(error).__name__}: {error}'}"[:400]
    return Lost(f"{reason} ({words})" if words else reason)
