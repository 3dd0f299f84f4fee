"""What a server offers, as plain data: one look at it, taken whole."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hames.content.jsontext import as_object, dumps
from hames.mcp.lost import Lost

if TYPE_CHECKING:
    from mcp import Client

PAGES, OFFERS = 100, 2_000  # of one list that are taken
SCHEMA_BYTES, SCHEMA_DEPTH = 64 * 1024, 40
ALL_BYTES = 1024 * 1024  # of the schemas of one server
DESCRIPTION = 8 * 1024  # characters of a description


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as its server describes it.

    :param raw: its name there.
    :param reads: whether the server says that it only reads.
    """

    raw: str
    description: str
    schema: dict[str, Any]
    reads: bool = False


@dataclass(frozen=True, slots=True)
class PromptOffer:
    """A prompt that a server has a template of.

    :param arguments: names of what it takes, with whether it must be given.
    """

    raw: str
    description: str
    arguments: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """What a server offers.

    :param about: its name and version, as it says.
    :param left_out: tools that no model can be given, with the reason.
    :param resources: whether it has any to read.
    """

    about: str = ""
    instructions: str = ""
    tools: tuple[Offer, ...] = ()
    prompts: tuple[PromptOffer, ...] = ()
    resources: bool = False
    left_out: tuple[tuple[str, str], ...] = ()


async def listed(client: Client) -> Listing:
    """Ask for everything that a server offers, all pages of it.

    :raises Lost: if the list is none that can be used.
    """
    has = client.server_capabilities
    info = client.server_info
    offers: list[Offer] = []
    left_out: list[tuple[str, str]] = []
    seen: set[str] = set()
    found = await _tools(client, left_out) if has.tools is not None else []
    problems = await asyncio.to_thread(schema_problems, [tool.input_schema for tool in found])
    for tool, problem in zip(found, problems, strict=True):
        if tool.name in seen:
            raise Lost(f"it lists two tools with the name {tool.name[:100]!r}")
        seen.add(tool.name)
        annotations = tool.annotations
        if problem:
            left_out.append((tool.name, problem))
            continue
        schema = tool.input_schema if "type" in tool.input_schema else {**tool.input_schema, "type": "object"}
        reads = bool(annotations is not None and annotations.read_only_hint)
        offers.append(Offer(tool.name, (tool.description or tool.title or "")[:DESCRIPTION], schema, reads))
    prompts = [
        PromptOffer(each.name, (each.description or "")[:500], tuple((a.name, bool(a.required)) for a in each.arguments or ()))
        for each in (await _pages(client.list_prompts, "prompts") if has.prompts is not None else ())
    ]
    about = f"{info.name} {info.version}".strip()[:100] if info is not None else ""
    return Listing(about, client.instructions or "", tuple(offers), tuple(prompts), has.resources is not None, tuple(left_out))


async def _tools(client: Client, left_out: list[tuple[str, str]]) -> list[Any]:
    """All tools. Where the client library takes none because of one, those that it can take."""
    from mcp_types import Tool
    from pydantic import ValidationError

    try:
        return await _pages(client.list_tools, "tools")
    except ValidationError:
        pass

    async def raw(cursor: str | None) -> SimpleNamespace:
        data: dict[str, Any] = {"method": "tools/list", "params": {} if cursor is None else {"cursor": cursor}}
        options: Any = {}
        session = client.session
        session._stamp(data, options)
        page = as_object(await session._dispatcher.send_raw_request(data["method"], data["params"], options))
        listed = page.get("tools")
        if not isinstance(listed, list):
            raise Lost("what it lists as its tools is no list")
        following = page.get("nextCursor")
        following = following if isinstance(following, str) else None
        return SimpleNamespace(tools=listed, next_cursor=following if isinstance(following, str) else None)

    found: list[Any] = []
    for item in await _pages(raw, "tools"):
        try:
            found.append(Tool.model_validate(item, by_name=False))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            name = as_object(item).get("name")
            where = ".".join(map(str, first["loc"]))
            left_out.append((str(name)[:100], f"its description is not valid: {where} {first['msg'][:1].lower()}{first['msg'][1:]}"))
    return found


async def _pages(fetch: Any, what: str) -> list[Any]:
    found: list[Any] = []
    cursor = None
    for _ in range(PAGES):
        page = await fetch(cursor=cursor)
        found += [trimmed(item) for item in getattr(page, what)]
        if len(found) > OFFERS:
            raise Lost(f"it lists more than {OFFERS} {what}")
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise Lost(f"its list of {what} has more than {PAGES} pages")


def trimmed(item: Any) -> Any:
    """An item of a page without what is long and not used: a list may have many."""
    for name in ("output_schema", "icons", "meta"):
        if getattr(item, name, None) is not None:
            setattr(item, name, None)
    if len(getattr(item, "description", None) or "") > DESCRIPTION:
        item.description = item.description[:DESCRIPTION]
    return item


def schema_problems(schemas: list[dict[str, Any]]) -> list[str]:
    """Why no provider would take each of these; looking at them takes long where they are long."""
    problems: list[str] = []
    size = 0
    for schema in schemas:
        problem = schema_problem(schema) if size <= ALL_BYTES else f"the schemas of all tools before it have more than {ALL_BYTES} bytes"
        problems.append(problem)
        size += len(dumps(schema)) if not problem else 0
    return problems


def schema_problem(schema: dict[str, Any]) -> str:
    """Why no provider would take a schema of arguments; empty where it is sound. One that is refused would cost the whole request."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    if schema.get("type", "object") != "object":
        return f"the type of its arguments is {str(schema['type'])[:50]!r} instead of 'object'"
    if depth(schema) > SCHEMA_DEPTH:
        return f"its schema is nested deeper than {SCHEMA_DEPTH} levels"
    try:
        if len(dumps(schema)) > SCHEMA_BYTES:
            return f"its schema has more than {SCHEMA_BYTES} bytes"
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"its schema is not valid: {error.message[:200]}"
    except (ValueError, RecursionError) as error:
        return f"its schema is not valid: {str(error)[:200]}"
    return ""


def depth(value: Any) -> int:
    """How deeply a value is nested, without recursion."""
    deepest = 0
    row: list[Any] = [value]
    while row and deepest <= SCHEMA_DEPTH + 1:
        deepest += 1
        row = [inner for each in row if isinstance(each, dict | list) for inner in inside(each)]
    return deepest


def inside(value: Any) -> list[Any]:
    return list(value.values() if isinstance(value, dict) else value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
