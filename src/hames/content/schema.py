"""The subset of JSON Schema that Hames enforces, with every violation reported.

Keywords (JSON Schema 2020-12): ``type enum const properties required additionalProperties items minItems maxItems minLength maxLength
pattern minimum maximum exclusiveMinimum exclusiveMaximum anyOf $defs $ref``; ``title description default examples`` are passed over.
``$ref`` may point into the ``$defs`` of the root.
"""

from __future__ import annotations

import re
from typing import Any, cast

from hames.content.jsontext import as_object

NOTES = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment"})
KEYWORDS = frozenset(
    {
        *("type", "enum", "const", "anyOf", "$defs", "$ref"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("minLength", "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }
)
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}


def unsupported(schema: Any, path: str = "$") -> list[str]:
    """What of a schema is not enforced, in words; nothing where all of it is."""
    if isinstance(schema, bool):
        return []
    if not isinstance(schema, dict):
        return [f"{path}: a schema is an object"]
    members = as_object(schema)
    found = [f"{path}: keyword {key!r} is not supported" for key in members if key not in KEYWORDS | NOTES]
    for name in _types(members):
        if name not in TYPES:
            found.append(f"{path}: there is no type {name!r}")
    for group in ("properties", "$defs"):
        for name, part in as_object(members.get(group)).items():
            found += unsupported(part, f"{path}.{name}")
    for index, part in enumerate(_list(members.get("anyOf"))):
        found += unsupported(part, f"{path}.anyOf[{index}]")
    for key in ("items", "additionalProperties"):
        if key in members:
            found += unsupported(members[key], f"{path}.{key}")
    return found


def violations(value: Any, schema: Any, path: str = "$", root: dict[str, Any] | None = None) -> list[str]:
    """Every way in which a value does not follow a schema, each with its path; nothing where it does."""
    if isinstance(schema, bool):
        return [] if schema else [f"{path}: nothing is allowed here"]
    members = as_object(schema)
    root = members if root is None else root
    if "$ref" in members:
        target = as_object(root.get("$defs")).get(str(members["$ref"]).removeprefix("#/$defs/"))
        if target is None:
            return [f"{path}: {members['$ref']} points nowhere"]
        return violations(value, target, path, root)
    types = _types(members)
    if types and not any(_is(value, name) for name in types):
        return [f"{path}: expected {' or '.join(types)}, got {_name(value)}"]
    found: list[str] = []
    if "enum" in members and not any(_same(value, item) for item in _list(members["enum"])):
        found.append(f"{path}: must be one of {_list(members['enum'])}")
    if "const" in members and not _same(value, members["const"]):
        found.append(f"{path}: must be {members['const']!r}")
    if "anyOf" in members and all(violations(value, part, path, root) for part in _list(members["anyOf"])):
        found.append(f"{path}: fits none of {len(_list(members['anyOf']))} alternatives")
    if isinstance(value, dict):
        found += _object(as_object(value), members, path, root)
    elif isinstance(value, list):
        found += _array(_list(value), members, path, root)
    elif isinstance(value, str):
        found += _string(value, members, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found += _number(value, members, path)
    return found


def _object(value: dict[str, Any], members: dict[str, Any], path: str, root: dict[str, Any]) -> list[str]:
    properties = as_object(members.get("properties"))
    found = [f"{path}: {name!r} is missing" for name in _list(members.get("required")) if name not in value]
    for name, item in value.items():
        if name in properties:
            found += violations(item, properties[name], f"{path}.{name}", root)
        elif members.get("additionalProperties") is False:
            found.append(f"{path}: {name!r} is not allowed")
        elif "additionalProperties" in members:
            found += violations(item, members["additionalProperties"], f"{path}.{name}", root)
    return found


def _array(value: list[Any], members: dict[str, Any], path: str, root: dict[str, Any]) -> list[str]:
    found = _bounds(len(value), "items", members.get("minItems"), members.get("maxItems"), path)
    if "items" in members:
        for index, item in enumerate(value):
            found += violations(item, members["items"], f"{path}[{index}]", root)
    return found


def _string(value: str, members: dict[str, Any], path: str) -> list[str]:
    found = _bounds(len(value), "characters", members.get("minLength"), members.get("maxLength"), path)
    if "pattern" in members and re.search(members["pattern"], value) is None:
        found.append(f"{path}: does not match {members['pattern']!r}")
    return found


def _number(value: float, members: dict[str, Any], path: str) -> list[str]:
    limits = {key: float(members[key]) for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if key in members}
    broken = {
        "minimum": ("at least", value < limits.get("minimum", value)),
        "maximum": ("at most", value > limits.get("maximum", value)),
        "exclusiveMinimum": ("more than", value <= limits.get("exclusiveMinimum", value - 1)),
        "exclusiveMaximum": ("less than", value >= limits.get("exclusiveMaximum", value + 1)),
    }
    return [f"{path}: must be {words} {members[key]}" for key, (words, is_broken) in broken.items() if is_broken]


def _bounds(size: int, what: str, low: int | None, high: int | None, path: str) -> list[str]:
    found: list[str] = []
    if low is not None and size < low:
        found.append(f"{path}: has {size} {what}, needs at least {low}")
    if high is not None and size > high:
        found.append(f"{path}: has {size} {what}, may have at most {high}")
    return found


def _types(members: dict[str, Any]) -> list[str]:
    declared = members.get("type")
    return [declared] if isinstance(declared, str) else [str(item) for item in _list(declared)]


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES.get(name, ()))


def _same(left: Any, right: Any) -> bool:
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _name(value: Any) -> str:
    return next((name for name in ("boolean", "integer", *TYPES) if _is(value, name)), type(value).__name__)
