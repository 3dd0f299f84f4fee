"""What the composition of a scope changes of that of its host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hames.compose.mounting import Base, Planned
from hames.compose.tree import Placed, placed
from hames.content.errors import ConfigError
from hames.kernel import Mount
from hames.kernel.plan import closure


def difference(base: Base, planned: Iterable[Planned], owner: Mount) -> tuple[dict[str, Placed], list[Mount]]:
    """The rows that a scope mounts itself, and the mounts of the host that it does not see.

    A row that is not in the host's composition, or is another one there, is the scope's own; so is every row that uses a service of such
    a row. The host's rows of these names, and those that the scope leaves out, are hidden from it.

    :param owner: the mount that owns the scope: what that stands on cannot be changed.
    :raises ConfigError: naming the rows that the scope cannot change.
    """
    wanted, ours = placed(planned), placed(base.planned)
    changed = {path for path, place in ours.items() if path not in wanted or wanted[path].identity != place.identity}
    paths = {mount: path for path, mount in base.mounts.items()}
    affected = closure([base.mounts[path] for path in ours if path in changed and path in base.mounts])
    if owner in affected:
        firm = sorted(path for path in changed if path in base.mounts and owner in closure((base.mounts[path],)))
        raise ConfigError(
            f"{', '.join(firm)}: the workspace stands on this, and cannot change it",
            remedy="change it in your own compose.yaml, or with --patch",
        )
    hidden = [base.mounts[path] for path in ours if path in base.mounts and base.mounts[path] in affected]
    own = {path for path in wanted if path not in ours or path in changed} | {paths[mount] for mount in affected if mount in paths}
    groups = around(own, wanted)
    for path in groups - own:
        if path in base.mounts and path in ours and ours[path].identity == wanted[path].identity:
            _share(wanted[path], base.mounts[path])
    own |= groups
    _rank(wanted, ours)
    return {path: wanted[path] for path in wanted if path in own}, hidden


def _rank(wanted: Mapping[str, Placed], ours: Mapping[str, Placed]) -> None:
    """Give each row the place that it has among those of the host; those that are new come after them, in their order."""
    siblings: dict[str, int] = {}
    for place in ours.values():
        siblings[place.parent] = max(siblings.get(place.parent, 0), place.rank + 1)
    for path, place in wanted.items():
        known = ours.get(path)
        place.rank = known.rank if known is not None else siblings.get(place.parent, 0) + place.rank


def _share(place: Placed, group: Mount) -> None:
    """A group of the host that gets another row here: what it isolates is seen by that, too."""
    planned = place.planned
    shared = {key: group if how is True else how for key, how in planned.isolate.items()}
    place.planned = Planned(planned.path, planned.row, planned.plugin, planned.config, planned.rows, shared)


def around(paths: Iterable[str], placed: Mapping[str, Placed]) -> set[str]:
    """The groups that these rows stand in."""
    found: set[str] = set()
    for path in paths:
        place = placed.get(path)
        while place is not None and place.parent:
            found.add(place.parent)
            place = placed.get(place.parent)
    return found
