"""The subset of JSON Schema that Hames enforces, with every violation reported.

Keywords (JSON Schema 2020-12): ``type enum const properties required additionalProperties items minItems maxItems minLength maxLength
pattern minimum maximum exclusiveMinimum exclusiveMaximum anyOf oneOf $defs $ref``, and ``nullable`` of OpenAPI 3.0; ``title description
default examples`` are passed over. ``$ref`` may point into the ``$defs`` of the root. What a schema itself may not say is found by
:func:`hames.content.schema_check.mistakes`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, cast

from hames.content.jsontext import as_object

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
DEEPEST = 100
"""Levels that a value may have."""
MOST = 50
"""Violations that are listed of one value."""


def violations(value: Any, schema: Any) -> list[str]:
    """Every way in which a value does not follow a schema, each with its path; nothing where it does. Raises for no value."""
    found = _Judge(as_object(schema)).violations(value, schema, "$", DEEPEST)
    return found if len(found) <= MOST else [*found[:MOST], f"and {len(found) - MOST} more"]


class _Judge:
    """Judges one value. What was found at one place for one part of the schema is found once: alternatives within alternatives would
    ask for it again and again."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[tuple[str, int], list[str]] = {}

    def violations(self, value: Any, schema: Any, path: str, deep: int) -> list[str]:
        if isinstance(schema, bool):
            return [] if schema else [f"{path}: nothing is allowed here"]
        if deep <= 0:
            return [f"{path}: nested deeper than {DEEPEST} levels"]
        key = (path, id(schema))
        if key not in self._known:
            self._known[key] = self._judged(value, as_object(schema), path, deep)
        return self._known[key]

    def _judged(self, value: Any, members: dict[str, Any], path: str, deep: int) -> list[str]:
        if "$ref" in members:
            target = defined(self._root, members["$ref"])
            return [f"{path}: {members['$ref']} points nowhere"] if target is None else self.violations(value, target, path, deep - 1)
        types = types_of(members)
        if types and not any(is_of(value, name) for name in types):
            return [f"{path}: expected {' or '.join(types)}, got {type_name(value)}"]
        if value is None and members.get("nullable") is True:
            return []
        found: list[str] = []
        if "enum" in members and not any(same(value, item) for item in as_list(members["enum"])):
            found.append(f"{path}: must be one of {as_list(members['enum'])}")
        if "const" in members and not same(value, members["const"]):
            found.append(f"{path}: must be {members['const']!r}")
        found += self._alternatives(value, members, path, deep)
        if isinstance(value, dict):
            found += self._object(as_object(value), members, path, deep)
        elif isinstance(value, list):
            found += self._array(as_list(value), members, path, deep)
        elif isinstance(value, str):
            found += _string(value, members, path)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found += _number(value, members, path)
        return found

    def _alternatives(self, value: Any, members: dict[str, Any], path: str, deep: int) -> list[str]:
        found: list[str] = []
        for key in ("anyOf", "oneOf"):
            if key not in members:
                continue
            parts = as_list(members[key])
            said = [self.violations(value, part, path, deep - 1) for part in parts]
            fits = sum(not each for each in said)
            if not fits:
                nearest: list[str] = min(said, key=len) if said else []
                hint = f"; nearest: {'; '.join(nearest[:3])}" if nearest else ""
                found.append(f"{path}: fits none of {len(parts)} alternatives{hint}")
            elif key == "oneOf" and fits > 1:
                found.append(f"{path}: fits {fits} of {len(parts)} alternatives, and may fit only one")
        return found

    def _object(self, value: dict[str, Any], members: dict[str, Any], path: str, deep: int) -> list[str]:
        properties = as_object(members.get("properties"))
        found = [f"{path}: {name!r} is missing" for name in as_list(members.get("required")) if name not in value]
        for name, item in value.items():
            if name in properties:
                found += self.violations(item, properties[name], f"{path}.{name}", deep - 1)
            elif members.get("additionalProperties") is False:
                found.append(f"{path}: {name!r} is not allowed")
            elif "additionalProperties" in members:
                found += self.violations(item, members["additionalProperties"], f"{path}.{name}", deep - 1)
        return found

    def _array(self, value: list[Any], members: dict[str, Any], path: str, deep: int) -> list[str]:
        found = _bounds(len(value), "items", members.get("minItems"), members.get("maxItems"), path)
        if "items" in members:
            for index, item in enumerate(value):
                found += self.violations(item, members["items"], f"{path}[{index}]", deep - 1)
        return found


def _string(value: str, members: dict[str, Any], path: str) -> list[str]:
    found = _bounds(len(value), "characters", members.get("minLength"), members.get("maxLength"), path)
    if "pattern" in members and re.search(members["pattern"], value) is None:
        found.append(f"{path}: does not match {members['pattern']!r}")
    return found


def _number(value: float, members: dict[str, Any], path: str) -> list[str]:
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{path}: {value} is no number of JSON"]
    return [f"{path}: must be {words} {members[key]}" for key, words, wrong in LIMITS if key in members and wrong(value, members[key])]


LIMITS: tuple[tuple[str, str, Callable[[float, float], bool]], ...] = (
    ("minimum", "at least", operator.lt),
    ("maximum", "at most", operator.gt),
    ("exclusiveMinimum", "more than", operator.le),
    ("exclusiveMaximum", "less than", operator.ge),
)


def _bounds(size: int, what: str, low: int | None, high: int | None, path: str) -> list[str]:
    found: list[str] = []
    if low is not None and size < low:
        found.append(f"{path}: has {size} {what}, needs at least {low}")
    if high is not None and size > high:
        found.append(f"{path}: has {size} {what}, may have at most {high}")
    return found


def defined(root: dict[str, Any], reference: Any) -> Any:
    """What a reference points to, or None."""
    name = str(reference)
    return as_object(root.get("$defs")).get(name.removeprefix("#/$defs/")) if name.startswith("#/$defs/") else None


def types_of(members: dict[str, Any]) -> list[str]:
    """The types that a schema allows; none where it allows all."""
    declared = members.get("type")
    types = [declared] if isinstance(declared, str) else [str(item) for item in as_list(declared)]
    return [*types, "null"] if types and members.get("nullable") is True and "null" not in types else types


def as_list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def is_of(value: Any, name: str) -> bool:
    """Whether a value is of a type; 1.0 is an integer, and True is no number."""
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES.get(name, ()))


def same(left: Any, right: Any) -> bool:
    """Whether two values are the same in JSON, where True is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        ours, theirs = as_object(left), as_object(right)
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(left, list) and isinstance(right, list):
        mine, others = as_list(left), as_list(right)
        return len(mine) == len(others) and all(map(same, mine, others))
    return left == right


def type_name(value: Any) -> str:
    return next((name for name in ("boolean", "integer", *TYPES) if is_of(value, name)), type(value).__name__)
