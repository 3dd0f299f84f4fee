"""What a composition says, and where each value comes from. Nothing is imported, and no value from outside is filled in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hames.compose.rows import Composition, Row, suggestion
from hames.compose.yamltext import Node
from hames.content.errors import NotFoundError


def leaves(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """The values of a node with their paths; lists count as one value."""
    if isinstance(node.value, dict) and node.members:
        for key, member in node.members.items():
            yield from leaves(member, f"{path}.{key}" if path else key)
    else:
        yield path, node


def parts(row: Row) -> Iterator[tuple[str, Node]]:
    """Everything that a row says, with the path of each value."""
    for name in ("use", "disabled", "isolate", "config"):
        node: Node | None = getattr(row, name)
        if node is not None and not (name == "config" and node.value is None):
            yield from leaves(node, name)


def text(value: Any) -> str:
    """A value in a line."""
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) or value != value.strip() or not value else value


def shown(composition: Composition) -> str:
    """The rows after all layers, as YAML, with the origin of each value behind it."""
    lines: list[tuple[str, str]] = []

    def put(row: Row, indent: str) -> None:
        lines.append((f"{indent}- id: {row.id}", str(row.origin)))
        for name in ("use", "disabled", "isolate", "config"):
            node: Node | None = getattr(row, name)
            if node is not None and node.value is not None:
                _put_node(name, node, indent + "  ", lines)
        if row.group is not None:
            lines.append((f"{indent}  group:{'' if row.group else ' []'}", ""))
            for each in row.group:
                put(each, indent + "    ")

    for row in composition.rows:
        put(row, "")
    width = min(64, max((len(line) for line, origin in lines if origin), default=0)) + 2
    return "\n".join(f"{line + ' ':<{width}}# {origin}" if origin else line for line, origin in lines)


def _put_node(name: str, node: Node, indent: str, lines: list[tuple[str, str]]) -> None:
    if isinstance(node.value, dict) and node.members:
        lines.append((f"{indent}{name}:", ""))
        for key, member in node.members.items():
            _put_node(key, member, indent + "  ", lines)
    else:
        value = json.dumps(node.plain(), ensure_ascii=False)
        if name == "use":
            value = str(node.plain())
        lines.append((f"{indent}{name}: {value}", str(node.origin)))


def as_data(composition: Composition) -> list[dict[str, Any]]:
    """The rows as data: path, what each says, and the origin of each value."""
    return [
        {
            "path": path,
            "origin": str(row.origin),
            **({} if row.use is None else {"use": row.use.value}),
            **({} if row.group is None else {"group": [each.id for each in row.group]}),
            **({"disabled": True} if row.is_disabled else {}),
            **({} if row.isolate is None else {"isolate": row.isolate.plain()}),
            "config": row.config.plain() if row.config is not None else {},
            "origins": {name: str(node.origin) for name, node in parts(row)},
        }
        for path, row in composition.walk()
    ]


def explained(composition: Composition, name: str) -> str:
    """What a row, or one value of it (``row:config.key``), is and was, with every origin.

    :raises NotFoundError: if there is no such row or value.
    """
    path, _, value = name.partition(":")
    row = composition.find(path)
    if row is None:
        known = [each for each, _ in composition.walk()]
        raise NotFoundError(
            f"there is no row {path!r}{suggestion(path, known)}", remedy="'hames compose show' prints all rows", code="ROW_UNKNOWN"
        )
    values = list(parts(row))
    chosen = [(each, node) for each, node in values if not value or each == value or each.startswith(f"{value}.")]
    if value and not chosen:
        hint = suggestion(value, [each for each, _ in values])
        raise NotFoundError(
            f"row {path!r} says nothing about {value!r}{hint}",
            remedy="a value that no file names has its plugin's default",
            code="VALUE_UNKNOWN",
        )
    lines = [] if value else [f"row {path} stands at {row.origin}"]
    if row.group is not None and not value:
        lines.append(f"  a group of {', '.join(each.id for each in row.group) or 'no rows'}")
    for each, node in chosen:
        lines.append(f"  {each} = {text(node.plain())}  ({node.origin})")
        lines += [f"      instead of {text(old.plain())}  ({old.origin})" for old in node.replaced]
    return "\n".join(lines)
