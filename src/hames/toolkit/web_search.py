"""Searching the web: the tool, and the providers that it can ask.

The tool comes with whatever row provides ``WEB_SEARCH``: one of the providers here, or a plugin of yours.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from hames.compose.config import RowConfig
from hames.content.jsontext import as_object, parse_object
from hames.content.messages import clean
from hames.kernel import Context, Key, plugin
from hames.tools import TOOLS, ToolError, tool

TIMEOUT = 30.0  # seconds
LIMIT = 4 * 1024 * 1024  # bytes of an answer


@dataclass(frozen=True, slots=True)
class Hit:
    """One page that was found."""

    title: str
    url: str
    text: str = ""


class WebSearch(Protocol):
    """Finds pages."""

    async def search(self, query: str, count: int) -> Sequence[Hit]:
        """
        :raises ToolError: if it cannot be asked.
        """
        ...


WEB_SEARCH: Key[WebSearch] = Key("web search")


class SearchConfig(RowConfig):
    """Who is asked."""

    provider: Literal["brave", "searxng", "tavily"]
    """The service."""
    base_url: str = ""
    """Where it is; SearXNG has no default."""
    key_env: str = ""
    """The environment variable that holds the key; ``BRAVE_API_KEY`` and ``TAVILY_API_KEY`` by default, none for SearXNG."""


DEFAULTS = {
    "brave": ("https://api.search.brave.com/res/v1", "BRAVE_API_KEY"),
    "tavily": ("https://api.tavily.com", "TAVILY_API_KEY"),
    "searxng": ("", ""),
}


class Service:
    """A search service over HTTP."""

    def __init__(self, config: SearchConfig) -> None:
        base, key_env = DEFAULTS[config.provider]
        self._provider = config.provider
        self._base = (config.base_url or base).rstrip("/")
        self._key_env = config.key_env or key_env

    async def search(self, query: str, count: int) -> Sequence[Hit]:
        key = os.environ.get(self._key_env, "") if self._key_env else ""
        if self._key_env and not key:
            raise ToolError(f"{self._provider} needs a key and {self._key_env} is not set", "KEY_MISSING")
        if not self._base:
            raise ToolError(f"the base_url of {self._provider} is not configured", "NOT_CONFIGURED")
        if self._provider == "brave":
            found = await self._ask("GET", "/web/search", {"X-Subscription-Token": key}, params={"q": query, "count": str(min(count, 20))})
            return hits(as_object(found.get("web")).get("results"), "description")
        if self._provider == "tavily":
            body = {"query": query, "max_results": count}
            return hits((await self._ask("POST", "/search", {"Authorization": f"Bearer {key}"}, json=body)).get("results"), "content")
        return hits((await self._ask("GET", "/search", {}, params={"q": query, "format": "json"})).get("results"), "content")[:count]

    async def _ask(self, method: str, path: str, headers: dict[str, str], **more: Any) -> dict[str, Any]:
        import aiohttp

        try:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT)
            async with (
                aiohttp.ClientSession(timeout=timeout, headers={**headers, "Accept": "application/json"}) as session,
                session.request(method, self._base + path, allow_redirects=False, **more) as response,
            ):
                data = await response.content.read(LIMIT)
                if response.status != 200:
                    raise ToolError(f"{self._provider} answered with status {response.status}", "REFUSED")
                while not response.content.at_eof() and len(data) < LIMIT:
                    data += await response.content.read(LIMIT - len(data))
        except TimeoutError:
            raise ToolError(f"{self._provider} did not answer within {TIMEOUT:g} s", "TIMEOUT") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a key or an address that no request can have
            raise ToolError(f"{self._provider} could not be asked: {type(error).__name__}", "UNREACHABLE") from None
        try:
            return parse_object(data)
        except ValueError as error:
            raise ToolError(f"{self._provider} answered something else than JSON: {error}", "MALFORMED") from None


def hits(results: Any, text: str) -> list[Hit]:
    """Pages from an answer; what is no page is left out."""
    found = [as_object(item) for item in results] if isinstance(results, list) else []  # pyright: ignore[reportUnknownVariableType]
    return [Hit(str(item.get("title") or ""), str(item["url"]), str(item.get(text) or "")) for item in found if item.get("url")]


def lines(hit: Hit) -> str:
    texts = ((hit.title, 200), (hit.url, 1000), (hit.text, 500))
    return "\n   ".join(clean(" ".join(text.split()))[:limit] for text, limit in texts)


@plugin(config=SearchConfig, name="web-search-service")
def service(ctx: Context, config: SearchConfig) -> None:
    """Ask a search service."""
    ctx.provide(WEB_SEARCH, Service(config))


@plugin(needs=(TOOLS, WEB_SEARCH), name="web-search")
def search(ctx: Context, config: None) -> None:
    """The tool ``web_search``."""
    provider = ctx.use(WEB_SEARCH)

    @tool("network", parallel=True)
    async def web_search(query: str, count: Annotated[int, Field(ge=1, le=20)] = 8) -> str:
        """Search the web. Shows title, address and a few words of each page; fetch a page to read it.

        :param query: what to look for.
        :param count: how many pages to show at most.
        """
        found = await provider.search(query, count)
        shown = [f"{number}. {lines(hit)}" for number, hit in enumerate(found[:count], 1)]
        return "\n".join(shown) or "nothing was found"

    ctx.use(TOOLS).register(ctx, web_search)
