"""YAML as composition files mean it: version 1.2, no duplicate keys, and a place for every value."""

from __future__ import annotations

import re
from typing import Any

import yaml

from hames.content.errors import ConfigError

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

TAGS = frozenset({"str", "int", "float", "bool", "null", "timestamp", "value", "merge"})
BOOL = {"true": True, "false": False}
NULL = frozenset({"", "~", "null", "Null", "NULL"})
INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
SPECIAL = {".inf": float("inf"), "-.inf": float("-inf"), "+.inf": float("inf"), ".nan": float("nan")}


class Node:
    """A value with the line that it stands on.

    :ivar value: a scalar, a list of nodes, or a dict of nodes.
    :ivar line: from 1.
    """

    __slots__ = ("line", "value")

    def __init__(self, value: Any, line: int) -> None:
        self.value = value
        self.line = line

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}  # pyright: ignore[reportUnknownVariableType]
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]  # pyright: ignore[reportUnknownVariableType]
        return self.value


def parse(text: str, source: str) -> Node:
    """The one document of a text.

    :raises ConfigError: with source and line, if it is no YAML, repeats a key, or uses a tag.
    """
    try:
        tree: Any = yaml.compose(text, Loader=Loader)  # pyright: ignore[reportUnknownVariableType]
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{source}{line}: not YAML: {problem}", remedy="mend the file; indent with spaces, not tabs") from None
    return Node([], 1) if tree is None else _node(tree, source)


def _node(tree: Any, source: str) -> Node:
    line: int = tree.start_mark.line + 1
    if isinstance(tree, yaml.MappingNode):
        members: dict[str, Node] = {}
        for key, value in tree.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{source}:{line}: a key must be a plain word")
            if key.value in members:
                raise ConfigError(
                    f"{source}:{key.start_mark.line + 1}: the key {key.value!r} stands here twice", remedy="keep one of the two"
                )
            members[key.value] = _node(value, source)
        return Node(members, line)
    if isinstance(tree, yaml.SequenceNode):
        return Node([_node(item, source) for item in tree.value], line)
    if tree.tag.removeprefix("tag:yaml.org,2002:") not in TAGS:
        raise ConfigError(
            f"{source}:{line}: the tag {tree.tag} means nothing here", remedy="remove it; nothing in a composition is evaluated"
        )
    return Node(tree.value if tree.style else _scalar(tree.value), line)


def _scalar(text: str) -> Any:
    """A plain scalar by the core schema of YAML 1.2: yes, no, on and off are words."""
    if text in NULL:
        return None
    lowered = text.lower()
    if lowered in BOOL:
        return BOOL[lowered]
    if lowered in SPECIAL:
        return SPECIAL[lowered]
    if INT.fullmatch(text):
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if FLOAT.fullmatch(text):
        return float(text)
    return text
