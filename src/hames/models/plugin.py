"""The row that provides models: the registry of providers, the shared client session, and the providers that speak over HTTP."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from pydantic import Field

from hames.budget import Rates, looked_up
from hames.compose.config import RowConfig
from hames.content.clock import Clock
from hames.content.errors import ModelReferenceError
from hames.kernel import Context, Key, Registry, Scope, plugin
from hames.models.anthropic import AnthropicMessages
from hames.models.openai import OpenAIChat
from hames.models.port import WINDOW, Dialect, Model, Provider
from hames.models.wire import WireModel


class Models:
    """The providers that a scope sees, and their models.

    :param default: the reference of the model that is used where nobody names one; empty for none.
    """

    def __init__(self, default: str = "") -> None:
        self.providers: Registry[Provider] = Registry("provider")
        self.default = default

    def register(self, ctx: Context, name: str, provider: Provider) -> None:
        """Serve models under ``name:…`` for the lifetime of ``ctx``."""
        self.providers.add(ctx, name, provider)

    def resolve(self, ref: str, scope: Scope) -> Model:
        """The model that ``provider:model[@profile]`` names.

        :raises ModelReferenceError: if no such provider is there, or it cannot be used.
        """
        provider_name, colon, rest = ref.partition(":")
        provider = self.providers.get(scope, provider_name) if colon and rest else None
        if provider is None:
            known = ", ".join(f"{name}:…" for name in self.providers.view(scope))
            raise ModelReferenceError(
                f"there is no model {ref!r}" if ref else "no model is named",
                remedy=f"name one as provider:model; providers here are {known}",
            )
        name, _, profile = rest.rpartition("@") if "@" in rest else (rest, "", "")
        return provider.model(name, profile, ref)


class ProviderConfig(RowConfig):
    """A provider that is spoken to over HTTP."""

    dialect: Literal["openai-chat", "anthropic-messages"]
    """The protocol."""
    base_url: str
    """Where its paths begin."""
    base_url_env: str = ""
    """An environment variable that names another place."""
    key_env: str = ""
    """The environment variable that holds the key; empty where none is needed."""
    reasoning: Literal["never", "turn", "always"] = "always"
    """Which of its earlier reasoning is sent again."""
    max_tokens_field: str = "max_completion_tokens"
    """The name of the limit of an answer (chat completions)."""
    idle_seconds: float = Field(default=300.0, gt=0)
    """Seconds without a byte after which a request has failed."""
    windows: dict[str, int] = {}
    """Tokens of a model's window by a pattern of its name, as in ``gpt-5*``; the first that matches counts, others have 128,000."""
    prices: dict[str, Rates] = {}
    """Prices by name of model, where the price list does not know them or you pay others."""


PROVIDERS = {
    "openai": ProviderConfig.model_construct(
        dialect="openai-chat",
        base_url="https://api.openai.com/v1",
        base_url_env="OPENAI_BASE_URL",
        key_env="OPENAI_API_KEY",
        reasoning="never",
        windows={"gpt-4.1*": 1_000_000, "gpt-5*": 400_000, "o[134]*": 200_000},
    ),
    "anthropic": ProviderConfig.model_construct(
        dialect="anthropic-messages",
        base_url="https://api.anthropic.com",
        base_url_env="ANTHROPIC_BASE_URL",
        key_env="ANTHROPIC_API_KEY",
        windows={"claude-*": 200_000},
    ),
    "deepseek": ProviderConfig.model_construct(
        dialect="openai-chat",
        base_url="https://api.deepseek.com",
        base_url_env="DEEPSEEK_BASE_URL",
        key_env="DEEPSEEK_API_KEY",
        reasoning="turn",
        max_tokens_field="max_tokens",
    ),
}


class ModelsConfig(RowConfig):
    """Which models there are."""

    default: str = ""
    """The model that is used where nobody names one."""
    providers: dict[str, ProviderConfig] = {}
    """More providers, or other settings of ``openai``, ``anthropic`` and ``deepseek``."""


class HttpProvider:
    """A provider behind an HTTP endpoint."""

    def __init__(
        self, name: str, config: ProviderConfig, session: Callable[[], aiohttp.ClientSession], clock: Clock, environment: Mapping[str, str]
    ) -> None:
        self._name = name
        self._config = config
        self._session = session
        self._clock = clock
        self._environment = environment

    def model(self, name: str, profile: str, ref: str) -> WireModel:
        config = self._config
        if profile:  # these providers have no profiles of their own: it belongs to the name
            name = f"{name}@{profile}"
        key = self._environment.get(config.key_env, "") if config.key_env else ""
        if config.key_env and not key:
            raise ModelReferenceError(
                f"{ref} needs a key and {config.key_env} is not set",
                remedy=f"set {config.key_env} in the environment",
                code="MODEL_KEY_MISSING",
            )
        base = self._environment.get(config.base_url_env, "") if config.base_url_env else ""
        base = (base or config.base_url).rstrip("/")
        try:
            url = urlsplit(base)
            sound = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0  # a bad port raises
        except ValueError:
            url, sound = urlsplit(""), False
        if not sound:
            source = config.base_url_env if config.base_url_env in self._environment else f"the base_url of provider {self._name}"
            raise ModelReferenceError(f"{base!r} is no base URL", remedy=f"set {source} to something like https://host/v1")
        dialect: Dialect = AnthropicMessages()
        if config.dialect == "openai-chat":
            dialect = OpenAIChat(max_tokens_field=config.max_tokens_field)
        return WireModel(
            ref,
            name,
            dialect,
            base + dialect.path,
            key,
            self._session,
            clock=self._clock,
            idle=config.idle_seconds,
            reasoning=config.reasoning,
            proxy=None if proxy_bypass(url.hostname or "") else getproxies().get(url.scheme),
            window=next((size for pattern, size in config.windows.items() if fnmatchcase(name, pattern)), WINDOW),
            cost=config.prices[name].cost if name in config.prices else lambda usage: looked_up(self._name, name, usage),
        )


MODELS: Key[Models] = Key("models")


@plugin(config=ModelsConfig, wants=(Clock,), name="models")
async def models(ctx: Context, config: ModelsConfig) -> AsyncGenerator[None]:
    """Provide the registry of models and the providers that speak over HTTP."""
    service = Models(config.default)
    clock = ctx.find(Clock) or Clock()
    async with client_session() as session:
        for name, provider in {**PROVIDERS, **config.providers}.items():
            service.register(ctx, name, HttpProvider(name, provider, session, clock, os.environ))
        ctx.provide(MODELS, service)
        yield


@asynccontextmanager
async def client_session() -> AsyncGenerator[Callable[[], aiohttp.ClientSession]]:
    """A client session that is opened when first asked for, and closed at the end."""
    opened: list[aiohttp.ClientSession] = []

    def session() -> aiohttp.ClientSession:
        if not opened:
            connector = aiohttp.TCPConnector(limit=0)
            opened.append(aiohttp.ClientSession(connector=connector, skip_auto_headers=("User-Agent", "Accept-Encoding")))
        return opened[0]

    try:
        yield session
    finally:
        for client in opened:
            await client.close()
