"""Logging in to servers by OAuth 2.1: tokens in the system's keyring where it has one, else in files that only their owner can read.

The flow is the client library's (RFC 9728, 8414, 7591, PKCE); ours are where tokens stay and how the person comes to the browser.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hames.content.errors import HamesError, StorageError
from hames.content.jsontext import as_object
from hames.content.records import read_record, write_record
from hames.mcp.lost import Lost

SERVICE = "hames mcp"
PAST = 1.0  # when a token that was refused has expired: the client library takes 0 for never
WAIT = 300.0  # seconds that a person has to log in


class Tokens:
    """The tokens and the registration of this client at one server; what the client library calls a token storage.

    :param root: the directory of the files.
    :param redirect: the address that a person comes back to; a registration for another one does not count.
    """

    def __init__(self, root: Path, url: str, *, redirect: str = "") -> None:
        self._redirect = redirect
        self._account = sha256(url.encode()).hexdigest()[:32]
        self._file = root / f"{self._account}.json"
        self.url = url

    def _read(self) -> dict[str, Any]:
        ring = keyring()
        text = ring.get_password(SERVICE, self._account) if ring is not None else None
        if text:
            try:
                return as_object(json.loads(text))
            except ValueError:
                pass
        return read_record(self._file) or {}

    def _write(self, **changed: Any) -> None:
        record = {"url": self.url, **self._read(), **changed}
        ring = keyring()
        if ring is None:
            write_record(self._file, record)
            return
        try:
            ring.set_password(SERVICE, self._account, json.dumps(record))
        except Exception as error:  # recorded: the keyring of a system fails in ways of its own
            raise StorageError(f"the keyring does not take a token: {type(error).__name__}", remedy="unlock it and try again") from None

    def forget(self) -> bool:
        """Remove what is kept; whether there was something."""
        found = self.there
        if (ring := keyring()) is not None and ring.get_password(SERVICE, self._account) is not None:
            ring.delete_password(SERVICE, self._account)
        self._file.unlink(missing_ok=True)
        return found

    @property
    def there(self) -> bool:
        return "tokens" in self._read()

    async def get_tokens(self) -> Any:
        from mcp.shared.auth import OAuthToken

        found = (await asyncio.to_thread(self._read)).get("tokens")
        return valid(OAuthToken, found)

    async def set_tokens(self, tokens: Any) -> None:
        expires = time.time() + tokens.expires_in if tokens.expires_in is not None else None
        await asyncio.to_thread(self._write, tokens=tokens.model_dump(mode="json", exclude_none=True), expires=expires)

    async def expires(self) -> float | None:
        """When the token expires, in seconds since 1970; None where nobody knows."""
        found = (await asyncio.to_thread(self._read)).get("expires")
        return float(found) if isinstance(found, int | float) else None

    async def expire(self) -> bool:
        """The token was refused: take it for expired, so that it is refreshed; whether it can be."""
        record = await asyncio.to_thread(self._read)
        if record.get("expires") == PAST or "refresh_token" not in as_object(record.get("tokens")):
            return False
        await asyncio.to_thread(self._write, expires=PAST)
        return True

    async def get_client_info(self) -> Any:
        from mcp.shared.auth import OAuthClientInformationFull

        found = valid(OAuthClientInformationFull, (await asyncio.to_thread(self._read)).get("client"))
        if found is not None and self._redirect and self._redirect not in map(str, found.redirect_uris or ()):
            return None
        return found

    async def set_client_info(self, client_info: Any) -> None:
        await asyncio.to_thread(self._write, client=client_info.model_dump(mode="json", exclude_none=True))


def valid(model: Any, found: Any) -> Any:
    """What was kept, as the client library has it; None where it is not there or spoilt."""
    try:
        return model.model_validate(found) if found else None
    except ValueError:
        return None


def keyring() -> Any:
    """The system's keyring, where the package is installed and finds one."""
    try:
        module: Any = importlib.import_module("keyring")
        return module if module.get_keyring().priority >= 1 else None
    except Exception:  # recorded as: there is none
        return None


Show = Callable[[str], Awaitable[None]]


def provider(tokens: Tokens, show: Show | None = None, callback: Callback | None = None) -> Any:
    """What logs requests in, with the tokens that there are; without a person it asks for none.

    :param show: brings the person to an address.
    :param callback: where they come back to.
    """
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata
    from pydantic import AnyUrl

    class Provider(OAuthClientProvider):
        async def _initialize(self) -> None:
            await super()._initialize()
            self.context.token_expiry_time = await tokens.expires()

    async def nobody(*args: str) -> Any:
        if await tokens.expire():
            raise Lost("its token was refused, and is refreshed", unsent=True, again=True)
        raise Lost("it wants a login; run 'hames mcp login' with its name", lasting=True)

    return Provider(
        tokens.url,
        OAuthClientMetadata(client_name="Hames", redirect_uris=[AnyUrl(callback.url if callback else "http://127.0.0.1/callback")]),
        tokens,
        redirect_handler=show or nobody,
        callback_handler=callback.result if callback else nobody,
    )


class Callback:
    """A server on loopback that the browser comes back to, once."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._came: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self.url = ""

    async def __aenter__(self) -> Callback:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/callback"
        return self

    async def __aexit__(self, *args: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                line = (await reader.readline()).decode("latin-1").split()
            target = urlsplit(line[1] if len(line) > 1 else "")
            query = {name: values[0] for name, values in parse_qs(target.query).items()}
            known = target.path == "/callback" and ("code" in query or "error" in query)
            if known and not self._came.done():
                self._came.set_result(query)
            said = "You can close this page." if "code" in query else f"Not logged in: {escape(query.get('error', 'no answer'))[:200]}"
            body = f"<!doctype html><title>Hames</title><p>{said}</p>".encode()
            head = f"HTTP/1.1 {'200 OK' if known else '404 Not Found'}\r\nContent-Type: text/html; charset=utf-8\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass
        finally:
            writer.close()

    async def result(self) -> Any:
        """What the browser brought.

        :raises HamesError: if that is no login, or nobody came.
        """
        from mcp.client.auth import AuthorizationCodeResult

        try:
            async with asyncio.timeout(WAIT):
                query = await asyncio.shield(self._came)
        except TimeoutError:
            raise HamesError(f"nobody logged in within {WAIT:g} s", remedy="run the command again", code="LOGIN_FAILED") from None
        if "code" not in query:
            raise HamesError(f"the login was refused: {query.get('error', '?')[:200]}", remedy="run the command again", code="LOGIN_FAILED")
        return AuthorizationCodeResult(code=query["code"], state=query.get("state"), iss=query.get("iss"))
