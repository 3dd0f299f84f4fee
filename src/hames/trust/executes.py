"""What a directory would make Hames execute, read as data: nothing is imported, followed out of the directory, or run.

Each thing is a line; equal lines mean that nothing of what executes has changed. They hold the names of plugins, digests of local code,
commands and their arguments, names of environment variables and headers, addresses, the structure of the composition, and all that is
said to the rows that guard. Other values, a prompt or a number, are not in them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from hames.compose import Composition
from hames.compose.local import code_files
from hames.compose.rows import OURS
from hames.compose.yamltext import Node, parse
from hames.content.errors import ConfigError
from hames.content.jsontext import as_object, dumps, parse_object
from hames.content.paths import expanded
from hames.content.visible import visible

COMPOSITION = Path(".hames", "compose.yaml")
MCP = Path(".mcp.json")
PRESETS = Path(".hames", "presets")
LIMIT = 1024 * 1024  # bytes of a file that is looked at
FILES = 100  # of a composition with all that it includes and uses

#: Names of settings that execute, or say where to.
KEYS = frozenset[str](
    re.findall(
        r"\w+",
        "arg args argv base_url cmd command cwd endpoint entry env environment exec executable file headers hook hooks host include "
        "interpreter module path program proxy run script server shell url use",
    )
)
#: Rows of which every setting counts: they guard.
GUARDS = (
    *("hames.policy", "hames.sandbox", "hames.trust", "hames.toolkit.bash", "hames.toolkit.web", "hames.mcp", "hames.store"),
    "hames.delegation",
)
ENV = re.compile(r"\$\{env:([A-Za-z_]\w*)")


def read(path: Path, inside: Path) -> bytes | None:
    """A file of a directory that nobody has trusted yet; None where there is none.

    :param inside: the canonical directory that it may not lead out of.
    :raises ConfigError: if it leads out, is no regular file, or is too large.
    """
    try:
        if not path.resolve().is_relative_to(inside):
            raise ConfigError(f"{visible(str(path))} leads out of {inside}", remedy="put a file in its place")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            placeholder = stat.S_ISDIR(status.st_mode) and not os.listdir(descriptor)  # noqa: PTH208 - of a descriptor; the sandbox makes such
            os.close(descriptor)
            if placeholder:
                return None
            raise ConfigError(f"{visible(str(path))} is no regular file", remedy="put a file in its place")
        with os.fdopen(descriptor, "rb") as file:
            if status.st_size > LIMIT:
                raise ConfigError(
                    f"{visible(str(path))} has {status.st_size} bytes; at most {LIMIT} are looked at", remedy="make it smaller"
                )
            return file.read()
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError) as error:  # ValueError: a name with a zero byte; RuntimeError: links in a circle
        said = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{visible(str(path))}: {said}", remedy="mend it or remove it") from None


def executes(directory: Path, below: Composition | None = None) -> list[str]:
    """What a directory would execute, a line each; empty where that is nothing.

    :param directory: canonical.
    :param below: the composition that the directory's own would change: tells which rows guard.
    :raises ConfigError: if something of it cannot be told.
    """
    directory = directory.resolve()
    uses = {path: str(row.use.value) for path, row in below.walk() if row.use is not None} if below is not None else {}
    try:
        reading = Reading(directory, uses)
        found = [*reading.composition(directory / COMPOSITION), *mcp_servers(directory)]
        for path in sorted((directory / PRESETS).glob("*.yaml")):
            found += reading.alone().composition(path)  # each is a layer of its own: what one says of a row says nothing of another's
    except RecursionError:
        raise ConfigError(f"{directory}: what it says is nested too deeply", remedy="write it flatter") from None
    return [visible(line) for line in found]


def digest(lines: list[str]) -> str:
    return sha256("\n".join(lines).encode("utf-8", "backslashreplace")).hexdigest()


def words(node: Node) -> str:
    """A value as text, whatever it is."""
    return node.value if isinstance(node.value, str) else dumps(node.plain())


class Reading:
    """One look at a composition file and what it includes."""

    def __init__(self, directory: Path, uses: dict[str, str]) -> None:
        self._directory = directory
        self._uses = dict(uses)
        self._seen: set[Path] = set()
        self._count = [0]  # files of all layers
        self._looked: dict[Path, list[str]] = {}

    def alone(self) -> Reading:
        """The same for another layer over what has been read so far."""
        other = Reading(self._directory, self._uses)
        other._looked, other._count = self._looked, self._count
        return other

    def composition(self, path: Path) -> Iterator[str]:
        path = Path(os.path.normpath(path))
        if path in self._seen:
            return
        self._seen.add(path)
        self._count[0] += 1
        if self._count[0] > FILES:
            raise ConfigError(f"{path} is one of more than {FILES} files", remedy="use fewer")
        data = read(path, self._directory)
        if data is None:
            if path != self._directory / COMPOSITION:
                yield f"{self._name(path)}: is not there"
            return
        name = self._name(path)
        try:
            tree = parse(data.decode(), name)
        except UnicodeDecodeError:
            raise ConfigError(f"{name}: not UTF-8 text", remedy="mend the file") from None
        for entry in tree.items if isinstance(tree.value, list) else [tree]:
            yield from self._entry(entry, name, path.parent, "")

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._directory)) if path.is_relative_to(self._directory) else str(path)

    def _entry(self, entry: Node, name: str, base: Path, group: str) -> Iterator[str]:
        members = entry.members
        id = f"{group}{words(members['id'])}" if "id" in members else f"{group}?"
        use = words(members["use"]) if "use" in members else self._uses.get(id, "")
        self._uses[id] = use
        for key, node in members.items():
            where = f"{name}: {id} {key}"
            if key == "config":
                yield from self._settings(node, where, use, False)
            elif key in ("group", "insert"):
                yield f"{where}:"
                for item in node.items:
                    yield from self._entry(item, name, base, f"{id}/" if "id" in members else group)
            elif key in ("set", "replace"):
                yield f"{where}:"
                inner = {
                    **({"use": Node(use, entry.origin)} if use else {}),
                    **node.members,
                    "id": members.get("id", Node("?", entry.origin)),
                }
                yield from self._entry(Node(inner, node.origin), name, base, group)
            elif key == "include":
                yield f"{where} {words(node)}"
                if not words(node).startswith(OURS):
                    yield from self.composition(base / expanded(words(node)))
            elif key != "id":
                yield f"{where} {dumps(node.plain())}"
        if use.startswith(("./", "../", "/")) and "use" in members:
            yield from self._code(base / use.partition(":")[0], id)

    def _settings(self, node: Node, where: str, use: str, executing: bool) -> Iterator[str]:
        """The lines of a setting: whole where its name says that it executes, or where its row guards or is not known."""
        counts = executing or not use or use.startswith(GUARDS)
        if counts and node.value in ({}, []):
            yield f"{where} is empty"
        elif isinstance(node.value, dict):
            for key, member in node.members.items():
                if key in ("env", "environment", "headers") and isinstance(member.value, dict):
                    yield f"{where}.{key}: {', '.join(sorted(member.members))}"
                    yield from self._settings(member, f"{where}.{key}", "hames.", False)
                else:
                    yield from self._settings(member, f"{where}.{key}", use, counts or key.lower() in KEYS or key.lower().endswith("_env"))
        elif isinstance(node.value, list):
            for index, item in enumerate(node.items):
                yield from self._settings(item, f"{where}[{index}]", use, executing)
        elif counts:
            yield f"{where} = {dumps(node.plain())}"
        elif isinstance(node.value, str) and (names := ENV.findall(node.value)):
            yield f"{where} reads {', '.join(names)}"

    def _code(self, path: Path, id: str) -> Iterator[str]:
        """The lines of local code; each file is looked at once, however many rows use it."""
        if path not in self._looked:
            self._looked[path] = list(self._files(path))
        for line in self._looked[path]:
            yield f"{id} code {line}"

    def _files(self, path: Path) -> Iterator[str]:
        if read(path, self._directory) is None:
            yield f"{self._name(path)} is not there"
            return
        try:
            files = code_files(path)
        except (OSError, SyntaxError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{self._name(path)}: {visible(str(error))}", remedy="mend the code") from None
        for file in files:
            data = read(file, self._directory)
            yield f"{self._name(file)} {'is not there' if data is None else sha256(data).hexdigest()[:20]}"


def mcp_servers(directory: Path) -> Iterator[str]:
    """The servers of ``.mcp.json``: what is started or spoken to, with names of variables and headers but no values."""
    data = read(directory / MCP, directory)
    if data is None:
        return
    try:
        servers = as_object(parse_object(data).get("mcpServers"))
    except ValueError as error:
        raise ConfigError(f"{directory / MCP}: {error}", remedy="mend the file or remove it") from None
    for name, value in servers.items():
        server: dict[str, Any] = as_object(value)
        for key, setting in server.items():
            if key in ("env", "headers"):
                yield f"{MCP}: {name} {key}: {', '.join(sorted(as_object(setting)))}"
                for variable in sorted(set(ENV.findall(dumps(setting)))):
                    yield f"{MCP}: {name} {key} reads {variable}"
            elif key in KEYS or key == "type":
                yield f"{MCP}: {name} {key} = {dumps(setting)}"
