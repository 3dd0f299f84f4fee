"""A server at an address: streamable HTTP, with the limits that the client's own has not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from hames.content.jsontext import parse_object
from hames.mcp.config import Launch

if TYPE_CHECKING:
    import httpx2
    from mcp.client._transport import TransportStreams

UNREACHED = "it cannot be reached"
READ = 300.0  # seconds of a stream without anything


class HttpTransport:
    """Speaks to an address for as long as it is entered.

    :param auth: logs in; None where nobody has to.
    :ivar refused: why the server did not take the last request that it did not take.
    """

    def __init__(self, launch: Launch, auth: Any) -> None:
        self._launch = launch
        self._auth = auth
        self._stack = AsyncExitStack()
        self._how = "; run 'hames mcp login' with its name" if launch.oauth else ""
        self.refused = ""
        self.oversized = ""  # why the last answer that was given up was
        self.forgotten = False  # whether the last request was refused as one of a session that is not known

    async def __aenter__(self) -> TransportStreams:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        client = httpx2.AsyncClient(
            headers=dict(self._launch.headers),
            auth=self._auth,
            timeout=httpx2.Timeout(self._launch.connect_timeout, read=READ),
            transport=bounded(httpx2.AsyncHTTPTransport(), self._launch.max_message_bytes, self._note),
            event_hooks={"response": [self._look]},
        )
        try:
            await self._stack.enter_async_context(client)
            return await self._stack.enter_async_context(
                streamable_http_client(self._launch.url, http_client=client, max_sse_event_size=None)
            )
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(self, *args: Any) -> None:
        await self._stack.__aexit__(*args)

    def last_words(self) -> str:
        return ""

    def _note(self, text: str) -> None:
        self.oversized = text

    async def _look(self, response: httpx2.Response) -> None:
        """Keep what the client would make a riddle of. A redirect is not followed: it would carry the headers elsewhere."""
        status = response.status_code
        if (unreached := response.extensions.get(UNREACHED)) is not None:
            self.refused = unreached
            return
        self.forgotten = status in (400, 404) and "mcp-session-id" in response.request.headers
        if status in (301, 302, 303, 307, 308):
            self.refused = f"it redirects to {response.headers.get('location', '?')[:200]}; name that address"
        elif status in (401, 403):
            self.refused = f"it answers with status {status}: it wants a login{self._how}"
        elif status >= 500:
            self.refused = f"it answers with status {status}"
        else:
            self.refused = ""


def bounded(inner: httpx2.AsyncHTTPTransport, limit: int, note: Callable[[str], None]) -> httpx2.AsyncBaseTransport:
    """A transport that gives up an answer, or an event of a stream, that is too long."""
    import httpx2

    class Counted(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream, events: bool) -> None:
            self._stream = stream
            self._events = events

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for data in self._stream:
                end = max(data.rfind(b"\n\n"), data.rfind(b"\r\r"), data.rfind(b"\r\n\r\n")) if self._events else -1
                size = len(data) - end if end >= 0 else size + len(data)
                if size > limit:
                    text = f"its answer has more than {limit} bytes, which is max_message_bytes"
                    note(text)
                    raise httpx2.StreamError(text)
                yield data

        async def aclose(self) -> None:
            await self._stream.aclose()

    class Bounded(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            try:
                response = await inner.handle_async_request(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                if request.method != "POST":
                    raise
                return unreached(request, str(error) or type(error).__name__)
            events = response.headers.get("content-type", "").startswith("text/event-stream")
            stream: Any = response.stream
            return httpx2.Response(
                response.status_code, headers=response.headers, stream=Counted(stream, events), extensions=response.extensions
            )

        async def aclose(self) -> None:
            await inner.aclose()

    return Bounded()


def unreached(request: httpx2.Request, why: str) -> httpx2.Response:
    """The answer to a request that never arrived: its own error, so that no other one is taken for lost with it."""
    import httpx2

    try:
        id = parse_object(request.content.decode()).get("id")
    except (ValueError, httpx2.StreamError):
        id = None
    if id is None:
        return httpx2.Response(202, request=request)
    error = {"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": f"{UNREACHED}: {why}"}}
    return httpx2.Response(503, json=error, request=request, extensions={UNREACHED: f"{UNREACHED}: {why}"})
