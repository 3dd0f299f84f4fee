"""What a schema may not say: keywords that are not enforced, and rules that nothing can follow. All of it is found at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from hames.content.jsontext import as_object
from hames.content.schema import TYPES, as_list, defined, is_of, types_of, violations

NOTES = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment"})
OF_TYPE = {  # keyword: the types that it says something about
    **dict.fromkeys(("properties", "required", "additionalProperties"), ("object",)),
    **dict.fromkeys(("items", "minItems", "maxItems"), ("array",)),
    **dict.fromkeys(("minLength", "maxLength", "pattern"), ("string",)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), ("integer", "number")),
}
KEYWORDS = frozenset({"type", "enum", "const", "anyOf", "oneOf", "nullable", "$defs", "$ref", *OF_TYPE})
DEEPEST = 32
"""Levels that a schema may have."""
LONGEST = 64 * 1024
"""Characters that it may have."""


def mistakes(schema: Any) -> list[str]:
    """What is wrong with a schema, each with its path; nothing where all of it is enforced and something can follow it."""
    try:
        size = len(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        return [f"$: it is no JSON: {error}"]
    if size > LONGEST:
        return [f"$: it has {size} characters, and may have {LONGEST}"]
    if not isinstance(schema, dict):
        return ["$: a schema is an object"]
    root = as_object(schema)
    found = list(_mistakes(root, "$", root, DEEPEST))
    return found or list(_circles(root))


def _mistakes(schema: Any, path: str, root: dict[str, Any], deep: int) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield f"{path}: a schema is an object"
        return
    if deep <= 0:
        yield f"{path}: nested deeper than {DEEPEST} levels"
        return
    members = as_object(schema)
    yield from (f"{path}: keyword {key!r} is not supported" for key in members if key not in KEYWORDS | NOTES)
    if "$defs" in members and members is not root:
        yield f"{path}: $defs stands at the root only"
    if "$ref" in members:
        if defined(root, members["$ref"]) is None:
            yield f"{path}: $ref {members['$ref']!r} points nowhere; it may point to '#/$defs/NAME'"
        if beside := sorted(members.keys() & KEYWORDS - {"$ref", "$defs"}):
            yield f"{path}: {', '.join(beside)} beside $ref"
    types = types_of(members)
    yield from _types(members, types, path)
    yield from _values(members, types, path)
    yield from _ranges(members, path)
    yield from _parts(members, path, root, deep)


def _types(members: dict[str, Any], types: list[str], path: str) -> Iterator[str]:
    if "type" in members and (not types or not isinstance(members["type"], str | list)):
        yield f"{path}: type names no type"
    yield from (f"{path}: there is no type {name!r}" for name in types if name not in TYPES)
    if len(set(types)) != len(types):
        yield f"{path}: type names one type twice"
    if "nullable" in members and not isinstance(members["nullable"], bool):
        yield f"{path}: nullable is true or false"
    for key, of in OF_TYPE.items():
        if key in members and types and not any(name in of for name in types):
            yield f"{path}: {key} says nothing about {' or '.join(types)}"


def _values(members: dict[str, Any], types: list[str], path: str) -> Iterator[str]:
    if "enum" in members:
        values = as_list(members["enum"])
        if not values:
            yield f"{path}: enum has no value"
        yield from (f"{path}: {value!r} of enum is not of type {' or '.join(types)}" for value in values if not _fits(value, types))
    if "const" in members:
        if not _fits(members["const"], types):
            yield f"{path}: const is not of type {' or '.join(types)}"
        if "enum" in members and violations(members["const"], {"enum": members["enum"]}):
            yield f"{path}: const is none of enum"
    if "pattern" in members:
        try:
            re.compile(members["pattern"])
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            yield f"{path}: pattern is no regular expression: {error}"


def _fits(value: Any, types: list[str]) -> bool:
    return not types or any(is_of(value, name) for name in types)


def _ranges(members: dict[str, Any], path: str) -> Iterator[str]:
    for key in ("minItems", "maxItems", "minLength", "maxLength"):
        if key in members and (isinstance(members[key], bool) or not isinstance(members[key], int) or members[key] < 0):
            yield f"{path}: {key} is a whole number from 0 on"
            return
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if key in members and (isinstance(members[key], bool) or not isinstance(members[key], int | float)):
            yield f"{path}: {key} is a number"
            return
    for low, high in (("minItems", "maxItems"), ("minLength", "maxLength"), ("minimum", "maximum")):
        if low in members and high in members and members[low] > members[high]:
            yield f"{path}: {low} is more than {high}, so nothing fits"
    lows = ((members[key], key == "exclusiveMinimum") for key in ("minimum", "exclusiveMinimum") if key in members)
    highs = [(members[key], key == "exclusiveMaximum") for key in ("maximum", "exclusiveMaximum") if key in members]
    for low, open_low in lows:
        if any((low >= high if open_low or open_high else False) for high, open_high in highs):
            yield f"{path}: its bounds leave no number"
            return


def _parts(members: dict[str, Any], path: str, root: dict[str, Any], deep: int) -> Iterator[str]:
    for group in ("properties", "$defs"):
        if group in members and not isinstance(members[group], dict):
            yield f"{path}: {group} is an object of schemas"
        for name, part in as_object(members.get(group)).items():
            yield from _mistakes(part, f"{path}.{name}", root, deep - 1)
    if "required" in members:
        names, properties = as_list(members["required"]), as_object(members.get("properties"))
        if not isinstance(members["required"], list) or not all(isinstance(name, str) for name in names):
            yield f"{path}: required is a list of names"
        yield from (f"{path}: {name!r} is required and not in properties" for name in names if name not in properties)
    for key in ("anyOf", "oneOf"):
        if key not in members:
            continue
        branches = as_list(members[key])
        if not branches:
            yield f"{path}: {key} has no alternative"
        for index, part in enumerate(branches):
            yield from _mistakes(part, f"{path}.{key}[{index}]", root, deep - 1)
    for key in ("items", "additionalProperties"):
        if key in members:
            yield from _mistakes(members[key], f"{path}.{key}", root, deep - 1)


def _circles(root: dict[str, Any]) -> Iterator[str]:
    """References that no value can end: those reached without a step into the value."""
    for name in as_object(root.get("$defs")):
        if _must_hold(root, as_object(root["$defs"]).get(name), frozenset({name})):
            yield f"$.{name}: it needs itself, so no value is ever whole"


def _must_hold(root: dict[str, Any], schema: Any, seen: frozenset[str]) -> bool:
    """Whether a value of this schema must hold another one of these."""
    members = as_object(schema)
    if "$ref" in members:
        name = str(members["$ref"]).removeprefix("#/$defs/")
        return name in seen or _must_hold(root, defined(root, members["$ref"]), seen | {name})
    properties, types = as_object(members.get("properties")), types_of(members)
    if types == ["object"] and any(_must_hold(root, properties.get(name), seen) for name in as_list(members.get("required"))):
        return True
    if types == ["array"] and members.get("minItems", 0) > 0 and _must_hold(root, members.get("items"), seen):
        return True
    branches = [part for key in ("anyOf", "oneOf") for part in as_list(members.get(key))]
    return bool(branches) and all(_must_hold(root, part, seen) for part in branches)
