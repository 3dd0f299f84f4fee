"""YAML as composition files mean it: version 1.2, no duplicate keys, nothing evaluated, and a place for every value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from hames.content.errors import ConfigError

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

SIZE_LIMIT = 4 * 1024 * 1024  # bytes of one file
NODE_LIMIT = 200_000  # values of one file, aliases counted as often as they are used
TAGS = frozenset({"str", "int", "float", "bool", "null", "timestamp", "value", "merge"})
BOOL = {"true": True, "false": False}
NULL = frozenset({"", "~", "null", "Null", "NULL"})
INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
SPECIAL = {".inf": float("inf"), "-.inf": float("-inf"), "+.inf": float("inf"), ".nan": float("nan")}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value stands."""

    source: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"


class Node:
    """A value with its place.

    :ivar value: a scalar, a list of nodes, or a dict of nodes.
    :ivar replaced: what stood there before a patch, newest first.
    """

    __slots__ = ("origin", "replaced", "value")

    def __init__(self, value: Any, origin: Origin, replaced: tuple[Node, ...] = ()) -> None:
        self.value = value
        self.origin = origin
        self.replaced = replaced

    @property
    def members(self) -> dict[str, Node]:
        """The members of a mapping; nothing where it is none."""
        return self.value if isinstance(self.value, dict) else {}  # pyright: ignore[reportUnknownVariableType]

    @property
    def items(self) -> list[Node]:
        """The items of a list; nothing where it is none."""
        return self.value if isinstance(self.value, list) else []  # pyright: ignore[reportUnknownVariableType]

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.members.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.items]
        return self.value


def parse(text: str, source: str) -> Node:
    """The one document of a text.

    :param source: what messages call it.
    :raises ConfigError: with source and line, if it is no YAML, too large, repeats a key, or uses a tag.
    """
    if len(text) > SIZE_LIMIT:
        raise ConfigError(f"{source}: {len(text)} characters are too many for a composition", remedy=f"keep it below {SIZE_LIMIT}")
    try:
        tree: Any = yaml.compose(text, Loader=Loader)  # pyright: ignore[reportUnknownVariableType]
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply", remedy="write it flatter") from None
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{source}{line}: not YAML: {problem}", remedy="mend the file; indent with spaces, not tabs") from None
    try:
        return Node([], Origin(source, 1)) if tree is None else _Builder(source).build(tree)
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply", remedy="write it flatter") from None


class _Builder:
    """Turns the parser's tree into nodes."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._count = 0
        self._open: set[int] = set()

    def build(self, tree: Any) -> Node:
        line: int = tree.start_mark.line + 1
        self._count += 1
        if self._count > NODE_LIMIT:
            raise ConfigError(f"{self._source}:{line}: more than {NODE_LIMIT} values", remedy="aliases of aliases multiply; write less")
        if id(tree) in self._open:
            raise ConfigError(f"{self._source}:{line}: an anchor contains itself", remedy="remove the alias")
        self._open.add(id(tree))
        try:
            return Node(self._value(tree, line), Origin(self._source, line))
        finally:
            self._open.discard(id(tree))

    def _value(self, tree: Any, line: int) -> Any:
        if isinstance(tree, yaml.MappingNode):
            return self._mapping(tree, line)
        if isinstance(tree, yaml.SequenceNode):
            return [self.build(item) for item in tree.value]
        if tree.tag.removeprefix("tag:yaml.org,2002:") not in TAGS:
            remedy = "remove it; nothing in a composition is evaluated"
            raise ConfigError(f"{self._source}:{line}: the tag of this value means nothing here", remedy=remedy)
        return tree.value if tree.style else scalar(tree.value)

    def _mapping(self, tree: Any, line: int) -> dict[str, Node]:
        members: dict[str, Node] = {}
        for key, value in tree.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{self._source}:{line}: a key must be a plain word", remedy="write 'key: value'")
            name: str = key.value  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            if name in members:
                place = f"{self._source}:{key.start_mark.line + 1}"  # pyright: ignore[reportUnknownMemberType]
                raise ConfigError(f"{place}: the key {name!r} stands here twice", remedy="keep one of the two")
            members[name] = self.build(value)
        return members


def scalar(text: str) -> Any:
    """A plain scalar by the core schema of YAML 1.2: yes, no, on and off are words."""
    if text in NULL:
        return None
    lowered = text.lower()
    if lowered in BOOL:
        return BOOL[lowered]
    if lowered in SPECIAL:
        return SPECIAL[lowered]
    if INT.fullmatch(text) and len(text) <= 4000:  # Python converts no longer ones
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if FLOAT.fullmatch(text):
        return float(text)
    return text
