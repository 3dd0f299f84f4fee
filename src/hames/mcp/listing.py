"""What a server offers, as plain data: one look at it, taken whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hames.content.jsontext import dumps
from hames.mcp.lost import Lost

if TYPE_CHECKING:
    from mcp import Client

PAGES, OFFERS = 100, 2_000  # of one list that are taken
SCHEMA_BYTES, SCHEMA_DEPTH = 64 * 1024, 40
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
    for tool in await _pages(client.list_tools, "tools") if has.tools is not None else ():
        if tool.name in seen:
            raise Lost(f"it lists two tools with the name {tool.name[:100]!r}")
        seen.add(tool.name)
        annotations = tool.annotations
        if problem := schema_problem(tool.input_schema):
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


async def _pages(fetch: Any, what: str) -> list[Any]:
    found: list[Any] = []
    cursor = None
    for _ in range(PAGES):
        page = await fetch(cursor=cursor)
        found += getattr(page, what)
        if len(found) > OFFERS:
            raise Lost(f"it lists more than {OFFERS} {what}")
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise Lost(f"its list of {what} has more than {PAGES} pages")


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
