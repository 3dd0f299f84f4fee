"""Which parts of a Git repository a confined command may write: all that commits need, nothing that runs code.

``config`` and ``hooks`` run code, and so does ``commondir``, which says where both are read. The private directories of other
worktrees and the configuration of submodules have the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from hames.sandbox.port import Place

CODE = ("config", "config.worktree", "hooks", "commondir", "gitdir")
MODULES = 200  # submodules that are looked at; a repository with more keeps them all as they are
HOOKS_PATH = re.compile(rb"^\s*hookspath\s*=\s*\"?([^\"\n;#]+)", re.IGNORECASE | re.MULTILINE)


def git_directory(workspace: Path) -> tuple[Path, Path] | None:
    """The ``.git`` that a directory belongs to, and the directory that it means; None outside of a repository.

    A ``.git`` file that points to a directory which does not point back says nothing: it could name anybody's repository.
    """
    for top in (workspace, *workspace.parents):
        entry = top / ".git"
        if entry.is_dir():
            return (entry, entry.resolve()) if (entry / "HEAD").exists() else None
        if entry.is_file():
            target = pointed(entry)
            return None if target is None or not points_back(target, entry) else (entry, target)
    return None


def first_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(4096).decode("utf-8", "replace").split("\n", 1)[0].strip()
    except OSError:
        return ""


def pointed(entry: Path) -> Path | None:
    text = first_line(entry)
    return (entry.parent / text.removeprefix("gitdir:").strip()).resolve() if text.startswith("gitdir:") else None


def points_back(directory: Path, entry: Path) -> bool:
    """Whether a Git directory belongs to the worktree or the submodule whose ``.git`` file names it."""
    back = first_line(directory / "gitdir")
    if back:
        return (directory / back).resolve() == entry.resolve()
    return "modules" in directory.parts and directory.is_relative_to(super_directory(directory)) and (directory / "HEAD").exists()


def super_directory(directory: Path) -> Path:
    """The Git directory that holds the one of a submodule."""
    parts = directory.parts
    return Path(*parts[: parts.index("modules")])


def common_directory(directory: Path) -> Path:
    text = first_line(directory / "commondir")
    return (directory / text).resolve() if text else directory


def git_places(workspace: Path) -> dict[Path, Place]:
    """What of the repository around a workspace may be written and what may not; empty outside of one."""
    found = git_directory(workspace)
    if found is None:
        return {}
    entry, own = found
    common = common_directory(own)
    places: dict[Path, Place] = {common: "write", own: "write"}
    if entry.is_file() and entry.is_relative_to(workspace):
        places[entry] = "read"
    if own != common or (common / "worktrees").exists():
        places[common / "worktrees"] = "read"
    for directory in {own, common, *modules(common)}:
        for name in CODE:
            if (directory / name).exists() or name == "hooks":
                places[directory / name] = "read"
    if (hooks := hooks_path(common, workspace)) is not None:
        places[hooks] = "read"
    if len(list(modules(common))) >= MODULES:
        places[common / "modules"] = "read"
    return places


def modules(common: Path) -> Iterator[Path]:
    """The Git directories of submodules, as many as are looked at."""
    count = 0
    for directory, names, files in os.walk(common / "modules"):
        if "HEAD" in files and "config" in files:
            names[:] = [name for name in names if name == "modules"]
            yield Path(directory)
            count += 1
            if count >= MODULES:
                return


def hooks_path(common: Path, workspace: Path) -> Path | None:
    """Where the repository's own configuration looks for hooks, if not in its ``hooks``."""
    try:
        match = HOOKS_PATH.search((common / "config").read_bytes())
    except OSError:
        return None
    if match is None:
        return None
    path = Path(os.fsdecode(match.group(1).strip())).expanduser()
    return (workspace / path).resolve()


def later_redirects(workspace: Path) -> list[Path]:
    """Names in Git directories that are not there and must not be there later: no mount can keep them away."""
    found = git_directory(workspace)
    if found is None:
        return []
    return [directory / "commondir" for directory in {found[1], common_directory(found[1])} if not (directory / "commondir").exists()]
