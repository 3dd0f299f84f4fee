"""How much an installation holds: a distribution and all that it requires, without bytecode."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

BASES: dict[str, tuple[str, frozenset[str]]] = {
    "bare": ("aiohttp", frozenset()),
    "hames": ("hames", frozenset()),
    "pydantic_ai": ("pydantic-ai-slim", frozenset({"openai"})),
}
"""What each driver has installed, with extras."""


def installed(name: str, extras: Iterable[str], environment: Path) -> int:
    """Bytes of the files of a distribution and of its requirements in a virtual environment."""
    (site,) = environment.glob("lib/python*/site-packages")
    distributions = {canonicalize_name(found.metadata["Name"]): found for found in metadata.distributions(path=[str(site)])}
    seen: set[str] = set()
    todo = [(canonicalize_name(name), frozenset(extras))]
    total = 0
    while todo:
        wanted, with_extras = todo.pop()
        distribution = distributions[wanted]
        if wanted not in seen:
            seen.add(wanted)
            total += size(distribution)
        for line in distribution.requires or ():
            requirement = Requirement(line)
            for extra in ("", *with_extras):
                if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                    following = (canonicalize_name(requirement.name), frozenset(requirement.extras))
                    if following[0] not in seen or following[1]:
                        todo.append(following)
                    break
    return total


def size(distribution: metadata.Distribution) -> int:
    """Bytes of one distribution; an editable one counts with its package."""
    name = distribution.metadata["Name"]
    files = [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
    if any(file.name.startswith("__editable__") for file in files):
        files = list((Path(__file__).parents[1] / "src" / name).rglob("*"))
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file())
