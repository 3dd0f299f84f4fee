"""Real weights on this machine: ``local:smollm2``.

The model runs in a child process (llama.cpp, package xllamacpp) that serves the chat-completions protocol on a loopback port, with a
key of its own, and ends with the row or with this process. Weights are fetched once, by digest, with ``hames models fetch``.
"""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import aiohttp
from pydantic import Field

from hames.compose.config import RowConfig
from hames.content.clock import Clock
from hames.content.errors import HamesError, ModelReferenceError
from hames.content.finish import Chunk, Failure, Finish, Usage
from hames.content.messages import Block
from hames.content.request import EncodedRequest
from hames.kernel import Context, plugin
from hames.models.encoder import Encoder
from hames.models.openai import OpenAIChat
from hames.models.plugin import MODELS, client_session
from hames.models.port import Pictures
from hames.models.weights import WEIGHTS, weights_file
from hames.models.wire import WireModel
from hames.store import STATE


class LocalConfig(RowConfig):
    """How local models run."""

    context: int = Field(default=8192, ge=256)
    """Tokens of context."""
    threads: int = Field(default=1, ge=1)
    """Threads of the model. More than one is slow where other programs use the cores."""
    start_seconds: float = Field(default=120.0, gt=0)
    """Seconds that loading may take."""


class LocalServer:
    """The child process of one file of weights, started when first used."""

    def __init__(self, weights: Path, config: LocalConfig) -> None:
        self._weights = weights
        self._config = config
        self._key = secrets.token_urlsafe(24)
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._url = ""

    @property
    def window(self) -> int:
        return self._config.context

    async def url(self) -> tuple[str, str]:
        """Where it listens, and its key.

        :raises HamesError: if it does not start.
        """
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                await self._start()
        return self._url, self._key

    async def _start(self) -> None:
        arguments = [str(self._weights), str(self._config.context), str(self._config.threads)]
        # It reads its key from its standard input and ends when that closes, even if this process dies without a word.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hames.models.local_server",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        self._process = process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{self._key}\n".encode())
        try:
            await process.stdin.drain()
            line = await asyncio.wait_for(process.stdout.readline(), self._config.start_seconds)
        except BaseException:
            await self.stop()
            raise
        self._url = line.decode().strip()
        if not self._url.startswith("http"):
            await self.stop()
            raise HamesError(
                "the local model did not start", remedy=f"run '{sys.executable} -m hames.models.local_server {self._weights} 2048 1'"
            )

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 2.0)
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()


class LocalModel:
    """A model of a local server."""

    def __init__(self, ref: str, name: str, server: LocalServer, session: Callable[[], aiohttp.ClientSession], clock: Clock) -> None:
        self.ref = ref
        self._name = name
        self._server = server
        self._session = session
        self._clock = clock
        self.dialect = OpenAIChat(max_tokens_field="max_tokens")

    @property
    def window(self) -> int:
        return self._server.window

    def encoder(self, pictures: Pictures) -> Encoder:
        return Encoder(self.dialect, self._name, reasoning="never", pictures=pictures)

    def stream(self, request: EncodedRequest) -> LocalStream:
        return LocalStream(self, request)

    def cost(self, usage: Usage) -> float | None:
        return 0.0

    async def wire(self) -> WireModel:
        base, key = await self._server.url()
        url = f"{base}/v1{self.dialect.path}"
        return WireModel(self.ref, self._name, self.dialect, url, key, self._session, clock=self._clock, reasoning="never")


class LocalStream:
    """One request to a local server, which is started for it if need be."""

    def __init__(self, model: LocalModel, request: EncodedRequest) -> None:
        self._model = model
        self._request = request
        self._partial: Callable[[], tuple[Block, ...]] = tuple

    def partial(self) -> tuple[Block, ...]:
        return self._partial()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            wire = await self._model.wire()
        except (HamesError, OSError, TimeoutError) as error:
            yield Finish("error", (), None, Failure("invalid-request", f"the local model did not start: {error}"))
            return
        stream = wire.stream(self._request)
        self._partial = stream.partial
        async for chunk in stream:
            yield chunk


class LocalProvider:
    """Serves ``local:NAME``."""

    def __init__(self, directory: Path, config: LocalConfig, session: Callable[[], aiohttp.ClientSession], clock: Clock) -> None:
        self._directory = directory
        self._config = config
        self._session = session
        self._clock = clock
        self.servers: dict[str, LocalServer] = {}

    def model(self, name: str, profile: str, ref: str) -> LocalModel:
        if name not in WEIGHTS:
            raise ModelReferenceError(f"there is no local model {name!r}", remedy=f"local models are {', '.join(WEIGHTS)}")
        if profile:
            raise ModelReferenceError(f"local:{name} has no profile {profile!r}", remedy=f"write local:{name}")
        if importlib.util.find_spec("xllamacpp") is None:
            raise ModelReferenceError(f"{ref} needs the package xllamacpp", remedy="pip install 'hames[local]'", code="MODEL_EXTRA_MISSING")
        weights = weights_file(self._directory, name)
        if not weights.exists():
            raise ModelReferenceError(
                f"the weights of {ref} are not here", remedy=f"run 'hames models fetch {name}'", code="MODEL_WEIGHTS_MISSING"
            )
        server = self.servers.get(name)
        if server is None:
            server = self.servers[name] = LocalServer(weights, self._config)
        return LocalModel(ref, name, server, self._session, self._clock)


@plugin(config=LocalConfig, needs=(MODELS, STATE), wants=(Clock,), name="local", stop_limit=30)
async def local(ctx: Context, config: LocalConfig) -> AsyncGenerator[None]:
    """Serve ``local:NAME``."""
    async with client_session() as session:
        provider = LocalProvider(ctx.use(STATE) / "models", config, session, ctx.find(Clock) or Clock())
        ctx.use(MODELS).register(ctx, "local", provider)
        yield
        for server in provider.servers.values():
            await server.stop()
