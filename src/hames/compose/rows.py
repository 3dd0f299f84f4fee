"""Rows and patches: what composition files say, before anything of it is imported.

A layer is a YAML list. An entry with ``id`` and ``use`` is a row, one with ``id`` and ``group`` a group of rows, ``include`` takes in
another file, and the others are patches of rows of the layers before: ``set`` merges deeply (a list replaces, null deletes),
``replace`` puts another row in the place, ``remove: true`` takes it away, ``insert`` adds rows to a group or, without an id, at the
end. Rows in groups are named by their path, as in ``research/web``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hames.compose.layers import Layer
from hames.compose.yamltext import Node, Origin, parse
from hames.content.errors import ConfigError
from hames.content.paths import SHIPPED, expanded

ROW_KEYS = ("id", "use", "config", "disabled", "group", "isolate")
PATCH_KEYS = ("id", "set", "replace", "remove", "insert")
SET_KEYS = ("use", "config", "disabled", "isolate")
ID = re.compile(r"[A-Za-z0-9_.-]+")
OURS = "shipped:"
DEPTH = 32  # of groups in groups, and of files in files


@dataclass(slots=True)
class Row:
    """One row, or a group of rows.

    :param use: what to mount; None for a group.
    :param config: as written, not validated.
    :param isolate: for each name of a service ``true`` for an instance of its own, or a label.
    :param group: the rows of a group; None for a row.
    :param base: the directory that a relative ``use`` starts from.
    """

    id: str
    origin: Origin
    base: Path
    use: Node | None = None
    config: Node | None = None
    disabled: Node | None = None
    isolate: Node | None = None
    group: list[Row] | None = None

    @property
    def is_disabled(self) -> bool:
        return self.disabled is not None and self.disabled.value is True

    def walk(self, path: str = "") -> Iterator[tuple[str, Row]]:
        """This row and those below it, each with its path."""
        here = f"{path}/{self.id}" if path else self.id
        yield here, self
        for row in self.group or ():
            yield from row.walk(here)


@dataclass(slots=True)
class Composition:
    """Rows after all layers, and the layers that made them.

    :ivar problems: every mistake so far, one line each, with file and line.
    :ivar files: the files that were read, in order.
    """

    rows: list[Row] = field(default_factory=list[Row])
    problems: list[str] = field(default_factory=list[str])
    files: list[Path] = field(default_factory=list[Path])

    def walk(self) -> Iterator[tuple[str, Row]]:
        for row in self.rows:
            yield from row.walk()

    def find(self, path: str) -> Row | None:
        return next((row for name, row in self.walk() if name == path), None)

    def check(self) -> None:
        """Raise what has been found.

        :raises ConfigError: naming every mistake.
        """
        if self.problems:
            count = len(self.problems)
            remedy = "mend this line" if count == 1 else f"mend these {count} lines"
            raise ConfigError("\n".join(self.problems), remedy=f"{remedy}; 'hames compose show' prints what the files say together")


def compose(layers: Iterable[Layer]) -> Composition:
    """Apply layers in order. Nothing is imported."""
    composition = Composition()
    for layer in layers:
        _Application(composition, layer).apply()
    return composition


class _Application:
    """One layer on its way into a composition."""

    def __init__(self, composition: Composition, layer: Layer, including: tuple[Path, ...] = ()) -> None:
        self._composition = composition
        self._layer = layer
        self._including = (*including, layer.path.resolve())

    def _problem(self, origin: Origin, text: str) -> None:
        self._composition.problems.append(f"{origin}: {text}")

    def apply(self) -> None:
        name = self._layer.name
        try:
            text = self._layer.path.read_text()
        except UnicodeDecodeError:
            self._composition.problems.append(f"{name}: not UTF-8 text")
            return
        except OSError as error:
            self._composition.problems.append(f"{name}: {error.strerror}")
            return
        self._composition.files.append(self._layer.path)
        try:
            tree = parse(text, name)
        except ConfigError as error:
            self._composition.problems.append(f"{error.message} ({error.remedy})")
            return
        if not isinstance(tree.value, list):
            self._problem(tree.origin, "a composition is a list of rows, each as '- {id: …, use: …}'")
            return
        for entry in tree.items:
            self._entry(entry)

    def _entry(self, entry: Node) -> None:
        members = entry.members
        if not isinstance(entry.value, dict):
            self._problem(entry.origin, "a row is a mapping with id and use")
        elif "include" in members:
            self._include(entry)
        elif "use" in members or "group" in members:
            row = self._row(entry)
            if row is not None:
                self._insert(self._composition.rows, row, "")
        elif any(key in members for key in PATCH_KEYS[1:]):
            self._patch(entry)
        else:
            known = suggestion(next((key for key in members if key != "id"), ""), (*ROW_KEYS, *PATCH_KEYS, "include"))
            self._problem(entry.origin, f"neither a row (id, use) nor a patch (set, replace, remove, insert) nor an include{known}")

    def _unknown(self, entry: Node, allowed: tuple[str, ...]) -> bool:
        unknown = [(key, node) for key, node in entry.members.items() if key not in allowed]
        for key, node in unknown:
            self._problem(node.origin, f"unknown key {key!r}{suggestion(key, allowed)}")
        return bool(unknown)

    def _include(self, entry: Node) -> None:
        if self._unknown(entry, ("include",)):
            return
        node = entry.members["include"]
        if not isinstance(node.value, str) or not node.value:
            self._problem(node.origin, "'include' names a file")
            return
        path = included(node.value, self._layer.path.parent)
        if path.resolve() in self._including:
            chain = " → ".join(file.name for file in (*self._including, path))
            self._problem(node.origin, f"files include each other in a circle: {chain}")
        elif len(self._including) > DEPTH:
            self._problem(node.origin, f"files include each other more than {DEPTH} deep")
        elif not path.is_file():
            self._problem(node.origin, f"there is no file {path}")
        else:
            _Application(self._composition, Layer(path), self._including).apply()

    # rows

    def _row(self, entry: Node, depth: int = 0) -> Row | None:
        members = entry.members
        bad = self._unknown(entry, ROW_KEYS)
        id = self._id(entry)
        if "use" in members and "group" in members:
            self._problem(entry.origin, "a row has either use or group")
            bad = True
        bad |= self._typed(members, "use", str) | self._typed(members, "config", dict)
        bad |= self._typed(members, "disabled", bool) | self._typed(members, "isolate", dict) | self._typed(members, "group", list)
        for name, how in (members["isolate"].members if "isolate" in members else {}).items():
            if how.value is not True and not (isinstance(how.value, str) and how.value):
                self._problem(how.origin, f"isolate.{name} is true, or a label")
                bad = True
        if id is None or bad:
            return None
        row = Row(id, entry.origin, self._layer.path.parent.absolute())
        row.use, row.config, row.disabled, row.isolate = (members.get(key) for key in ("use", "config", "disabled", "isolate"))
        if "group" in members:
            row.group = []
            if depth > DEPTH:
                self._problem(entry.origin, f"groups stand more than {DEPTH} deep in each other")
                return None
            for item in members["group"].items:
                if "use" not in item.members and "group" not in item.members:
                    self._problem(item.origin, "a group holds rows, each with id and use")
                elif (child := self._row(item, depth + 1)) is not None:
                    self._insert(row.group, child, row.id)
        return row

    def _id(self, entry: Node) -> str | None:
        node = entry.members.get("id")
        if node is None:
            self._problem(entry.origin, "a row needs an id")
        elif not isinstance(node.value, str) or not ID.fullmatch(node.value):
            self._problem(node.origin, f"{node.value!r} is no id: letters, digits, '_', '.' and '-' make one")
        else:
            return node.value
        return None

    def _typed(self, members: dict[str, Node], key: str, kind: type) -> bool:
        """Whether a member is of the wrong type; says so."""
        node = members.get(key)
        if node is None or isinstance(node.value, kind) or (key == "config" and node.value is None):
            return False
        names = {str: "text", dict: "a mapping", list: "a list", bool: "true or false"}
        value: object = node.value
        given = "nothing" if value is None else next((said for each, said in names.items() if isinstance(value, each)), "a number")
        self._problem(node.origin, f"{key} must be {names[kind]}, not {given}")
        return True

    def _insert(self, rows: list[Row], row: Row, group: str) -> None:
        other = next((each for each in rows if each.id == row.id), None)
        if other is None:
            rows.append(row)
            return
        path = f"{group}/{row.id}" if group else row.id
        self._problem(row.origin, f"there is a row {path!r} already, at {other.origin}; change it with 'set' or 'replace'")

    # patches

    def _patch(self, entry: Node) -> None:
        members = entry.members
        if self._unknown(entry, PATCH_KEYS):
            return
        kinds = [key for key in PATCH_KEYS[1:] if key in members]
        if len(kinds) > 1:
            self._problem(entry.origin, f"one patch does one thing, not {' and '.join(kinds)}")
            return
        kind, target = kinds[0], members.get("id")
        if target is None:
            if kind == "insert":
                self._add(members["insert"], self._composition.rows, "")
            else:
                self._problem(entry.origin, f"'{kind}' needs the id of a row")
            return
        path = str(target.value)
        rows, index = self._locate(path)
        if index < 0:
            known = [name for name, _ in self._composition.walk()]
            self._problem(target.origin, f"there is no row {path!r} to {kind}{suggestion(path, known)}")
            return
        row = rows[index]
        if kind == "remove":
            if members["remove"].value is not True:
                self._problem(members["remove"].origin, "'remove' is true")
            else:
                del rows[index]
        elif kind == "replace":
            self._replace(rows, index, members["replace"])
        elif kind == "insert":
            if row.group is None:
                self._problem(entry.origin, f"{path!r} is no group to insert into")
            else:
                self._add(members["insert"], row.group, path)
        else:
            self._set(row, members["set"])

    def _locate(self, path: str) -> tuple[list[Row], int]:
        rows = self._composition.rows
        *groups, last = path.split("/")
        for name in groups:
            group = next((row for row in rows if row.id == name), None)
            if group is None or group.group is None:
                return rows, -1
            rows = group.group
        return rows, next((index for index, row in enumerate(rows) if row.id == last), -1)

    def _add(self, entries: Node, rows: list[Row], path: str) -> None:
        if not isinstance(entries.value, list):
            self._problem(entries.origin, "'insert' is a list of rows")
            return
        for entry in entries.items:
            row = self._row(entry)
            if row is not None:
                self._insert(rows, row, path)

    def _replace(self, rows: list[Row], index: int, entry: Node) -> None:
        if not isinstance(entry.value, dict):
            self._problem(entry.origin, "'replace' is a mapping with use and config")
            return
        old = rows[index]
        named = Node({"id": Node(old.id, entry.origin), **entry.members}, entry.origin)
        if entry.members.get("id", named.members["id"]).value != old.id:
            self._problem(entry.members["id"].origin, f"a replaced row keeps its id {old.id!r}")
            return
        row = self._row(named)
        if row is not None:
            if old.config is not None and row.config is not None:
                row.config = Node(row.config.value, row.config.origin, (old.config, *old.config.replaced))
            rows[index] = row

    def _set(self, row: Row, change: Node) -> None:
        if not isinstance(change.value, dict):
            self._problem(change.origin, "'set' is a mapping")
            return
        if self._unknown(change, SET_KEYS):
            return
        for key, kind in (("use", str), ("config", dict), ("disabled", bool), ("isolate", dict)):
            node = change.members.get(key)
            if node is None or (node.value is not None and self._typed(change.members, key, kind)):
                continue
            if key == "use" and (row.group is not None or node.value is None):
                self._problem(node.origin, f"{row.id!r} keeps its use: a group has none, and a row cannot be without")
                continue
            setattr(row, key, merged(getattr(row, key), node))


def included(name: str, base: Path) -> Path:
    """The file that an ``include`` names: beside the one that it stands in, or with ``shipped:`` one that Hames comes with."""
    if name.startswith(OURS):
        return SHIPPED / "/".join(part for part in name.removeprefix(OURS).split("/") if part not in ("", ".", ".."))
    return base / expanded(name)


def merged(old: Node | None, new: Node) -> Node | None:
    """``new`` over ``old``: mappings member by member, everything else whole; null deletes."""
    if new.value is None:
        return None
    if not isinstance(new.value, dict):
        return new if old is None else Node(new.value, new.origin, (old, *old.replaced))
    if old is None or not isinstance(old.value, dict):
        cleaned = {key: node for key, member in new.members.items() if (node := merged(None, member)) is not None}
        return Node(cleaned, new.origin, () if old is None else (old, *old.replaced))
    members: dict[str, Node] = dict(old.members)
    for key, node in new.members.items():
        result = merged(members.get(key), node)
        if result is None:
            members.pop(key, None)
        else:
            members[key] = result
    return Node(members, old.origin, old.replaced)


def suggestion(word: str, known: Iterable[str]) -> str:
    """What may have been meant, as the end of a message."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""
