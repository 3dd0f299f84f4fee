"""Recordings: a conversation with a model server, byte for byte, and a server that plays it back.

A recording is a JSON-lines file; each line holds one exchange: path, request body, status, content type, and the pieces of the
response as they came. Headers are left out, so no key gets into a file.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from hames.content.jsontext import dumps, parse_object


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def _end(request: web.Request, response: web.StreamResponse, broken: bool) -> web.StreamResponse:
    """End an answer in good order, or break it off as it was broken off."""
    if broken and request.transport is not None:
        request.transport.abort()
    else:
        await response.write_eof()
    return response


class _Server(ABC):
    """A loopback server with one handler."""

    def __init__(self) -> None:
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Any:
        app = web.Application(client_max_size=256 * 1024 * 1024)
        app.router.add_post("/{path:.*}", self.handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @abstractmethod
    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""


class Recorder(_Server):
    """Passes requests on to a server and records the exchange.

    :param upstream: where the requests go, for example ``https://api.openai.com``.
    :param path: the file that exchanges are appended to.
    """

    def __init__(self, upstream: str, path: Path) -> None:
        super().__init__()
        self._upstream = upstream.rstrip("/")
        self._path = path

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in ("host", "content-length")}
        pieces: list[bytes] = []
        broken = False
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.post(self._upstream + request.path_qs, data=body, headers=headers) as answer,
        ):
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.headers.get("Content-Type", "")})
            await response.prepare(request)
            try:
                async for piece in answer.content.iter_any():
                    pieces.append(piece)
                    await response.write(piece)
            except aiohttp.ClientError:
                broken = True
        exchange = {
            "path": request.path_qs,
            "request": _encode(body),
            "status": answer.status,
            "content_type": answer.headers.get("Content-Type", ""),
            "response": [_encode(piece) for piece in pieces],
            **({"broken": True} if broken else {}),
        }
        with self._path.open("a") as file:
            file.write(dumps(exchange) + "\n")
        return await _end(request, response, broken)


class Replayer(_Server):
    """Plays a recording back, in its order. A request that differs from the recorded one by a byte is refused with the place.

    :ivar mismatches: what was refused, in words.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._exchanges = [parse_object(line) for line in path.read_text().splitlines()]
        self._next = 0
        self.mismatches: list[str] = []

    @property
    def left(self) -> int:
        """How many recorded exchanges have not been asked for."""
        return len(self._exchanges) - self._next

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if not self.left:
            return self._refuse(f"request {self._next + 1} is not in the recording")
        exchange = self._exchanges[self._next]
        recorded = base64.b64decode(exchange["request"])
        if request.path_qs != exchange["path"]:
            return self._refuse(f"request {self._next + 1} goes to {request.path_qs} instead of {exchange['path']}")
        if body != recorded:
            pairs = enumerate(zip(body, recorded, strict=False))
            place = next((index for index, (sent, kept) in pairs if sent != kept), min(len(body), len(recorded)))
            got, wanted = body[place : place + 40], recorded[place : place + 40]
            return self._refuse(f"request {self._next + 1} differs at byte {place}: {got!r} instead of {wanted!r}")
        self._next += 1
        response = web.StreamResponse(status=exchange["status"], headers={"Content-Type": exchange["content_type"]})
        await response.prepare(request)
        for piece in exchange["response"]:
            await response.write(base64.b64decode(piece))
        return await _end(request, response, exchange.get("broken", False))

    def _refuse(self, why: str) -> web.Response:
        self.mismatches.append(why)
        return web.json_response({"error": {"type": "invalid_request_error", "message": why}}, status=409)
