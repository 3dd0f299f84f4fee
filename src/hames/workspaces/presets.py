"""Presets: agent compositions to choose from, in a scope between that of the workspace and that of the agent.

A preset is a file ``presets/NAME.yaml``: a layer over the composition of the workspace. What it says when an agent joins is a
*generation*; agents of the same one share it. One that is superseded ends with its last agent, the newest with the workspace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from hames.compose import Base, Interpolation, Layer, compose, plan
from hames.compose.difference import difference
from hames.compose.mounting import Planned, group
from hames.compose.tree import Tree, placed
from hames.kernel import Context, Scope
from hames.workspaces.choice import preset_file


@dataclass(slots=True, eq=False)
class Generation:
    """A preset as it was at one moment.

    :ivar joined: how many agents stand in it.
    """

    digest: str
    scope: Scope
    tree: Tree
    joined: int = 0
    superseded: bool = False


class Presets:
    """The generations of the presets of one workspace.

    :param places: gives the directories that have presets, the one that counts most first.
    """

    def __init__(self, ctx: Context, scope: Scope, directory: Path, places: Callable[[], Sequence[Path]]) -> None:
        self._ctx = ctx
        self._scope = scope
        self._directory = directory
        self._places = places
        self._current: dict[str, Generation] = {}
        self._live: dict[Generation, tuple[str, ...]] = {}  # with the paths of the rows that each hides
        self._turn = asyncio.Lock()
        self._count = 0

    def find(self, name: str) -> Path:
        """The file of a preset.

        :raises NotFoundError: if there is none of that name.
        """
        return preset_file(name, self._places())

    async def join(self, name: str, base: Base) -> Generation:
        """Join a preset as it is now; the same generation as others where nothing has changed.

        :param base: the composition of the workspace, with what is mounted of it.
        :raises HamesError: if there is none, or it cannot be mounted: nothing has changed then.
        """
        async with self._turn:
            composition = compose([*base.layers, Layer(self.find(name), f"preset {name}")])
            planned = [*plan(composition, Interpolation(base.environment, self._directory)), *base.extra]
            rows = placed(planned)
            digest = sha256("\n".join(f"{path} {row.identity} {row.rank}" for path, row in rows.items()).encode()).hexdigest()
            current = self._current.get(name)
            if current is None or current.digest != digest:
                made = await self._make(name, digest, base, planned)
                if current is not None:
                    current.superseded = True
                    await self._reclaim(current)
                current = self._current[name] = made
            current.joined += 1
            return current

    async def _make(self, name: str, digest: str, base: Base, planned: list[Planned]) -> Generation:
        self._count += 1
        scope = self._ctx.host.scope(self._scope, f"preset {name}")
        try:
            anchor = self._ctx.host.mount(group, id=f"{self._directory} {name} {self._count}", scope=scope, parent=self._ctx.owner)
            desired, hides = difference(base, planned, self._ctx.owner)
            anchor.stands_as = self._ctx.host.root.path
            tree = Tree(Context(self._ctx.host, anchor, scope))
            await tree.reconcile(desired, hides)
        except BaseException:
            await scope.close()
            raise
        made = Generation(digest, scope, tree)
        paths = {mount: path for path, mount in base.mounts.items()}
        self._live[made] = tuple(paths[mount] for mount in hides if mount in paths)
        return made

    def follow(self, base: Base) -> None:
        """The workspace has other mounts now: what generations hide of it stays hidden."""
        for generation, hidden in self._live.items():
            generation.scope.veil({base.mounts[path]: True for path in hidden if path in base.mounts})

    async def leave(self, generation: Generation) -> None:
        """An agent has gone."""
        generation.joined -= 1
        await self._reclaim(generation)

    async def _reclaim(self, generation: Generation) -> None:
        if generation.superseded and generation.joined == 0:
            self._live.pop(generation, None)
            await generation.scope.close()
