"""Questions of a server to the person before whose agent it is called."""

from __future__ import annotations

from math import isfinite
from typing import Any

from hames.content.jsontext import as_object
from hames.content.messages import clean
from hames.tools import Choice, Invocation
from hames.tools.approvals import Approvals
from hames.tools.questions import ask

FIELDS = 20  # of one form
YES, NO = ("yes", "y", "true", "1"), ("no", "n", "false", "0")
DECLINE = "decline"
NONE = "-"
NUMBERS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
LISTS = ("enum", "oneOf", "anyOf")


async def elicit(server: str, params: Any, call: Invocation, approvals: Approvals) -> Any:
    """Put a form or an address to the person; nobody to answer, or an answer that does not fit twice, cancels it.

    :param params: as the protocol has them.
    """
    from mcp_types import ElicitResult

    message = clean(params.message)[:2000]
    if params.mode == "url":
        text = f"The MCP server {server} asks you to open {clean(params.url)[:500]} ({message}). Say when it is done."
        question = Choice(text, ("done", DECLINE))
        answer = await ask(approvals, call, (question,))
        return ElicitResult(action="cancel" if answer is None else "accept" if answer[0] == "done" else "decline")
    schema = as_object(params.requested_schema)
    fields = {name: as_object(field) for name, field in as_object(schema.get("properties")).items()}
    listed = schema.get("required", [])
    required = set(map(str, listed)) if isinstance(listed, list) else set[str]()  # pyright: ignore[reportUnknownArgumentType]
    if len(fields) > FIELDS or not all(map(sound, fields.values())):
        return ElicitResult(action="decline")
    if not fields:
        answer = await ask(approvals, call, (Choice(f"The MCP server {server}: {message}", ("accept", DECLINE)),))
        return ElicitResult(action="cancel" if answer is None else "accept" if answer[0] == "accept" else "decline", content={})
    content: dict[str, Any] = {}
    lead = f"The MCP server {server}: {message}\n"
    for name, field in fields.items():
        for again in ("", "That does not fit. "):
            answer = await ask(approvals, call, (choice(f"{again}{lead}", name, field, name in required),))
            if answer is None:
                return ElicitResult(action="cancel")
            if answer[0] == DECLINE:
                return ElicitResult(action="decline")
            try:
                value = fitting(answer[0], field, name in required)
            except ValueError:
                continue
            if value is not None:
                content[name] = value
            break
        else:
            return ElicitResult(action="cancel")
        lead = ""
    return ElicitResult(action="accept", content=content)


def sound(field: dict[str, Any]) -> bool:
    """Whether a field can be asked for: its limits are numbers, and its options lists."""
    numbers = all(isinstance(field[key], int | float) and not isinstance(field[key], bool) for key in NUMBERS if key in field)
    lists = all(isinstance(field[key], list) for key in LISTS if key in field)
    items = as_object(field.get("items"))
    return numbers and lists and (not items or sound(items))


def options(field: dict[str, Any]) -> list[str]:
    """The values that a field may have, where they are listed."""
    listed = field.get("enum") or [as_object(each).get("const") for each in field.get("oneOf") or field.get("anyOf") or ()]
    items = as_object(field.get("items"))
    return [str(each) for each in listed] or (options(items) if items else [])


def choice(lead: str, name: str, field: dict[str, Any], required: bool) -> Choice:
    title = field.get("title") or name
    about = f" ({field['description']})" if field.get("description") else ""
    default = f" [{field['default']}]" if "default" in field else "" if required else f" [{NONE} for none]"
    found = ["yes", "no"] if field.get("type") == "boolean" else options(field)
    return Choice(clean(f"{lead}{title}{about}{default}")[:3000], (*found, DECLINE) if found else (), field.get("type") == "array")


def fitting(text: str, field: dict[str, Any], required: bool) -> Any:
    """An answer as the value of a field; None for none.

    :raises ValueError: if it is none that fits.
    """
    text = text.strip()
    if not text or (text == NONE and not required):
        if required and "default" not in field:
            raise ValueError("it is required")
        return field.get("default")
    kind = field.get("type", "string")
    if kind == "boolean":
        if text.lower() not in (*YES, *NO):
            raise ValueError("neither yes nor no")
        return text.lower() in YES
    if kind in ("integer", "number"):
        value = int(text) if kind == "integer" else float(text)
        if not isfinite(value):
            raise ValueError("no number")
        if not field.get("minimum", value) <= value <= field.get("maximum", value):
            raise ValueError("out of bounds")
        return value
    known = options(field)
    if kind == "array":
        words = [word.strip() for word in text.split(",") if word.strip()]
        if known and not set(words) <= set(known):
            raise ValueError("not one of the options")
        if not field.get("minItems", 0) <= len(words) <= field.get("maxItems", len(words)):
            raise ValueError("too few or too many")
        return words
    if known and text not in known:
        raise ValueError("not one of the options")
    if not field.get("minLength", 0) <= len(text) <= field.get("maxLength", len(text)):
        raise ValueError("too short or too long")
    return text
