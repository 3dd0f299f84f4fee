"""What a schema may not say: keywords that are not enforced, and rules that nothing can follow. All of it is found at once."""

from __future__ import annotations

import json
import math
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
MOST = 200
"""Definitions that it may have."""
LONG = 20
"""Repetitions from which on a pattern counts as endless."""


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
    yield from _ranges(members, types, path)
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
    deep = [key for key in ("enum", "const") if key in members and _depth(members[key]) > DEEPEST]
    if deep:
        yield from (f"{path}: {key} is nested deeper than {DEEPEST} levels" for key in deep)
        return
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
    given = [members["const"]] if "const" in members else as_list(members.get("enum"))
    rest = {key: value for key, value in members.items() if key in OF_TYPE and key not in ("properties", "items", "additionalProperties")}
    sound = not list(_ranges(members, types, path)) and not _unusable(rest.get("pattern", ""))
    if given and rest and sound and all(violations(value, rest) for value in given):
        yield f"{path}: {'const' if 'const' in members else 'every value of enum'} breaks the rules beside it"
    if "pattern" in members:
        if wrong := _unusable(members["pattern"]):
            yield f"{path}: pattern is no regular expression: {wrong}"
        elif _repeats_within(members["pattern"]):
            yield f"{path}: pattern has a repetition within a repetition, which can take for ever"


def _unusable(pattern: Any) -> str:
    """Why a pattern is none; empty where it is one."""
    try:
        re.compile(pattern)
    except (re.error, TypeError, RecursionError, OverflowError) as error:
        return str(error)
    return ""


def _repeats_within(pattern: str) -> bool:
    """Whether a repetition without an end stands in another one: to look for such a pattern can take exponential time."""
    parser: Any = re._parser  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]

    def walk(items: Any, inside: bool) -> bool:
        for operation, argument in items:
            name = str(operation)
            if name in ("MAX_REPEAT", "MIN_REPEAT"):
                endless = argument[1] > LONG
                if (inside and endless) or walk(argument[2], inside or endless):
                    return True
            inner = argument[1] if name == "BRANCH" else [argument[3]] if name == "SUBPATTERN" else []
            if any(walk(each, inside) for each in inner):
                return True
        return False

    return walk(parser.parse(pattern), False)


def _depth(value: Any) -> int:
    """How deep a value is nested, as far as it matters."""
    level, parts = 0, [value]
    while parts and level <= DEEPEST:
        level += 1
        parts = [item for part in parts for item in (*as_object(part).values(), *as_list(part))]
    return level


def _fits(value: Any, types: list[str]) -> bool:
    return not types or any(is_of(value, name) for name in types)


SIZES = ("minItems", "maxItems", "minLength", "maxLength")
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def _ranges(members: dict[str, Any], types: list[str], path: str) -> Iterator[str]:
    sound: dict[str, Any] = {}
    for key in (*SIZES, *NUMBERS):
        if key not in members:
            continue
        bound, kinds = members[key], int if key in SIZES else (int, float)
        if isinstance(bound, bool) or not isinstance(bound, kinds) or (key in SIZES and bound < 0):
            yield f"{path}: {key} is a whole number from 0 on" if key in SIZES else f"{path}: {key} is a number"
        else:
            sound[key] = bound
    for low, high in (("minItems", "maxItems"), ("minLength", "maxLength"), ("minimum", "maximum")):
        if low in sound and high in sound and sound[low] > sound[high]:
            yield f"{path}: {low} is more than {high}, so nothing fits"
            return
    whole = types == ["integer"]
    lows = [(sound[key], key == "exclusiveMinimum") for key in ("minimum", "exclusiveMinimum") if key in sound]
    highs = [(sound[key], key == "exclusiveMaximum") for key in ("maximum", "exclusiveMaximum") if key in sound]
    least = max((_whole_from(low, open) if whole else low for low, open in lows), default=None)
    most = min((_whole_to(high, open) if whole else high for high, open in highs), default=None)
    if least is None or most is None:
        return
    ends_open = any(low == least and open for low, open in lows) or any(high == most and open for high, open in highs)
    if least > most or (least == most and ends_open and not whole):
        yield f"{path}: its bounds leave no number"


def _whole_from(low: float, is_open: bool) -> int:
    """The least whole number that a bound allows."""
    least = math.ceil(low)
    return least + 1 if is_open and least == low else least


def _whole_to(high: float, is_open: bool) -> int:
    most = math.floor(high)
    return most - 1 if is_open and most == high else most


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
        texts = [name for name in names if isinstance(name, str)]
        yield from (f"{path}: {name!r} is required and not in properties" for name in texts if name not in properties)
        yield from (f"{path}: {name!r} is required and never allowed" for name in texts if properties.get(name) is False)
    if members.get("items") is False and isinstance(members.get("minItems"), int) and members["minItems"] > 0:
        yield f"{path}: it needs items and allows none"
    if len(as_object(members.get("$defs"))) > MOST:
        yield f"{path}: $defs has more than {MOST} schemas"
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
    """Definitions of which no value is ever whole, since each needs another one."""
    definitions = as_object(root.get("$defs"))
    ends: set[str] = set()
    while more := {name for name, schema in definitions.items() if name not in ends and _ends(schema, ends)}:
        ends |= more
    yield from (f"$.{name}: it needs itself, so no value is ever whole" for name in definitions if name not in ends)
    if not _ends(root, ends) and len(ends) == len(definitions):
        yield "$: it needs itself, so no value is ever whole"


def _ends(schema: Any, known: set[str]) -> bool:
    """Whether some value of a schema is whole, given the definitions of which that is known."""
    members = as_object(schema)
    if "$ref" in members:
        return str(members["$ref"]).removeprefix("#/$defs/") in known
    if "const" in members or "enum" in members or members.get("nullable") is True:
        return True
    branches = [part for key in ("anyOf", "oneOf") for part in as_list(members.get(key))]
    if branches and not any(_ends(part, known) for part in branches):
        return False
    types = types_of(members)
    if types == ["object"]:
        properties = as_object(members.get("properties"))
        return all(_ends(properties.get(name), known) for name in as_list(members.get("required")))
    if types == ["array"] and members.get("minItems", 0) > 0:
        return _ends(members.get("items"), known)
    return True
