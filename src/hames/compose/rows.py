"""Rows: what a composition file says, before anything of it is imported."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hames.compose.yamltext import Node, parse
from hames.content.errors import ConfigError
from hames.content.jsontext import as_object

KEYS = ("id", "use", "config")
ID = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    :param use: what to mount, as ``package.module`` or ``package.module:attribute``.
    :param config: as written, not validated.
    :param source: file and line.
    """

    id: str
    use: str
    config: dict[str, Any]
    source: str


def read_rows(path: Path) -> list[Row]:
    """The rows of a file. Nothing is imported.

    :raises ConfigError: if it cannot be read or is not a list of rows; every bad row is named.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", remedy="name an existing file") from None
    tree = parse(text, str(path))
    if not isinstance(tree.value, list):
        raise ConfigError(f"{path}:{tree.line}: a composition is a list of rows", remedy="write each row as '- {id: …, use: …}'")
    rows: list[Row] = []
    errors: list[str] = []
    seen: dict[str, str] = {}
    items: list[Node] = tree.value  # pyright: ignore[reportUnknownVariableType]
    for node in items:
        source = f"{path}:{node.line}"
        found = _row(node, source, errors)
        if found is None:
            continue
        if found.id in seen:
            errors.append(f"{source}: the id {found.id!r} is used at {seen[found.id]} too")
        seen[found.id] = source
        rows.append(found)
    if errors:
        raise ConfigError("\n".join(errors), remedy="mend these rows")
    return rows


def _row(node: Node, source: str, errors: list[str]) -> Row | None:
    if not isinstance(node.value, dict):
        errors.append(f"{source}: a row is a mapping with id and use")
        return None
    members: dict[str, Node] = node.value  # pyright: ignore[reportUnknownVariableType]
    before = len(errors)
    errors += [f"{source}: unknown key {key!r}{suggestion(key, KEYS)}" for key in members if key not in KEYS]
    values = {key: member.plain() for key, member in members.items()}
    id, use, config = values.get("id"), values.get("use"), values.get("config")
    if not isinstance(id, str) or not ID.fullmatch(id):
        errors.append(f"{source}: a row needs an id of letters, digits, '_', '.' and '-'")
    if not isinstance(use, str) or not use:
        errors.append(f"{source}: a row needs a 'use' that names a plugin")
    if config is not None and not isinstance(config, dict):
        errors.append(f"{source}: config must be a mapping")
    if len(errors) > before:
        return None
    return Row(str(id), str(use), as_object(config), source)


def suggestion(word: str, known: tuple[str, ...] | list[str]) -> str:
    """What may have been meant, as the end of a message."""
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
