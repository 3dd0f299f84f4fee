"""The servers of a repository's ``.mcp.json``, in the form that other programs share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hames.content.errors import ConfigError
from hames.content.jsontext import as_object, parse_object
from hames.mcp.config import ServerConfig
from hames.mcp.listing import depth
from hames.mcp.names import normalised, server_problem
from hames.trust.executes import MCP, read

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
KNOWN = ("command", "args", "env", "url", "headers")


def project_servers(directory: Path, environment: Mapping[str, str]) -> dict[str, ServerConfig]:
    """The servers of a directory, by name; none where it has no ``.mcp.json``. Programs run in that directory.

    Names are brought into the form that names of tools can have. ``${NAME}`` and ``${NAME:-default}`` stand for environment variables.

    :param directory: canonical, and trusted: what it says is started.
    :raises ConfigError: naming every mistake of the file.
    """
    data = read(directory / MCP, directory)
    if data is None:
        return {}
    try:
        whole = parse_object(data)
        if not isinstance(whole.get("mcpServers", {}), dict):
            raise ValueError("mcpServers is no object")
        listed = as_object(whole.get("mcpServers"))
    except ValueError as error:
        raise ConfigError(f"{directory / MCP}: {error}", remedy="mend the file or remove it") from None
    problems: list[str] = []
    found: dict[str, ServerConfig] = {}
    raws: dict[str, str] = {}
    for full, value in listed.items():
        raw = full if len(full) <= 80 else f"{full[:80]}…"
        name = normalised(full)
        if server_problem(name):
            problems.append(f"{raw!r} cannot be made a name")
        elif name in raws:
            problems.append(f"{raws[name]!r} and {raw!r} would both be {name}")
        else:
            raws[name] = raw
            config = _config(name, raw, as_object(value), str(directory), environment, problems.append)
            if config is not None:
                found[name] = config
    if problems:
        raise ConfigError("\n".join(f"{MCP}: {each}" for each in problems), remedy="mend the file, or leave these servers out of it")
    return found


def _config(
    name: str, raw: str, server: dict[str, Any], directory: str, environment: Mapping[str, str], complain: Callable[[str], None]
) -> ServerConfig | None:
    kind = server.get("type", "stdio" if "command" in server else "http")
    if kind not in ("stdio", "http", "streamable-http"):
        complain(f"{raw!r} has the type {str(kind)[:40]!r}; known are stdio and http")
        return None
    if ("command" in server) != (kind == "stdio"):
        complain(f"{raw!r} has the type {kind!r}, which goes with {'a command' if kind == 'stdio' else 'a url'}")
        return None
    missing: set[str] = set()

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return VARIABLE.sub(variable, value)
        if isinstance(value, list):
            return [filled(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        return value

    def variable(match: re.Match[str]) -> str:
        given = environment.get(match[1])
        if given is None and match[2] is None:
            missing.add(match[1])
        return given if given is not None else match[2] or ""

    if any(depth(server[key]) > 4 for key in KNOWN if key in server):
        complain(f"{raw!r} is nested too deeply")
        return None
    values = {key: filled(server[key]) for key in KNOWN if key in server}
    if missing:
        complain(f"{raw!r} needs {', '.join(sorted(missing))} in the environment")
        return None
    try:
        place = {"cwd": directory} if "command" in values else {}
        return ServerConfig.model_validate({"server": name, **values, **place})
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False, include_context=False):
            complain(f"{raw!r}: {'.'.join(map(str, item['loc']))} {item['msg']}".strip())
        return None
