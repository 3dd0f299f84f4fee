"""What the files of a workspace say at one moment. Nothing has an effect yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hames.compose import Base, Interpolation, Layer, compose, plan
from hames.compose.mounting import Planned
from hames.compose.rows import Row
from hames.compose.yamltext import Origin
from hames.trust.executes import COMPOSITION, MCP


@dataclass(frozen=True, slots=True)
class Reading:
    """A workspace as its files have it.

    :param planned: all rows, those of the host too.
    :param extra: the servers of ``.mcp.json``, which are among them.
    """

    layers: tuple[Layer, ...]
    planned: list[Planned]
    extra: list[Planned]


def own_files(directory: Path) -> tuple[Path, Path]:
    """The files that can make a directory say something."""
    return directory / COMPOSITION, directory / MCP


def read(directory: Path, base: Base, found: Callable[[Iterable[Path]], None]) -> Reading:
    """Read a directory that is trusted.

    :param found: told the files that its composition is made of, also where they are no composition.
    :raises HamesError: if they are none; names every mistake.
    """
    file, servers = own_files(directory)
    layers, planned = base.layers, [*base.planned]
    if file.is_file():
        layers = (*base.layers, Layer(file, str(COMPOSITION)))
        composition = compose(layers)
        try:
            planned = plan(composition, Interpolation(base.environment, directory))
        finally:
            below = {path.resolve() for path in base.composition.files}
            found([path for path in composition.files if path.resolve() not in below])
    else:
        found(())
    extra: list[Planned] = []
    if servers.is_file():
        from hames.mcp.project import project_servers
        from hames.mcp.server import server

        for name, config in project_servers(directory, base.environment).items():
            row = Row(f"{MCP}:{name}", Origin(str(MCP), 1), directory)
            extra.append(Planned(row.id, row, server, config))
    return Reading(layers, [*planned, *extra], extra)
