"""Which parts of a Git repository a confined command may write: all that commits need, nothing that runs code.

``config`` and ``hooks`` run code, and so does ``commondir``, which says where both are read. The private directories of other
worktrees and the configuration of submodules have the same. A repository is somebody else's data: what it says of other places counts
only where those say the same of it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hames.sandbox.port import Place

CODE = ("config", "config.worktree", "hooks", "commondir", "gitdir")
MODULES = 200  # submodules that are looked at; a repository with more keeps them all as they are
CONFIG_LIMIT = 1024 * 1024  # bytes of a configuration that are looked at
INCLUDES = 50  # files that configurations include
HOOKS_PATH = re.compile(r"^\s*hookspath\s*=\s*\"?([^\"\n;#]+)", re.IGNORECASE | re.MULTILINE)
INCLUDE_PATH = re.compile(r"^\s*path\s*=\s*\"?([^\"\n;#]+)", re.IGNORECASE | re.MULTILINE)
WORKTREE = re.compile(r"^\s*worktree\s*=\s*\"?([^\"\n;#]+)", re.IGNORECASE | re.MULTILINE)
WORKTREE_CONFIG = re.compile(r"^\s*worktreeconfig\s*=\s*(true|yes|on|1)\b", re.IGNORECASE | re.MULTILINE)


@dataclass(slots=True)
class Repository:
    """What of the repository around a workspace is what to a confined command.

    :ivar places: canonical paths that may be written, or that stay as they are.
    :ivar empty: files that are not there and mean nothing while they are empty: they are held so.
    :ivar absent: names that are not there and must not come to be; no mount can keep them away.
    """

    places: dict[Path, Place] = field(default_factory=dict[Path, Place])
    empty: list[Path] = field(default_factory=list[Path])
    absent: list[Path] = field(default_factory=list[Path])


def git_directories(workspace: Path) -> tuple[Path, Path, Path] | None:
    """The ``.git`` that a directory belongs to, the directory that it means, and the common one; None where there is none that can be
    believed."""
    for top in (workspace, *workspace.parents):
        entry = top / ".git"
        try:
            if entry.is_symlink():
                return None
            if entry.is_dir():
                return None if (entry / "commondir").exists() or not (entry / "HEAD").exists() else (entry, entry, entry)
            if entry.is_file():
                return linked(entry)
        except OSError:
            return None
    return None


def first_line(path: Path) -> str:
    return text_of(path)[:4096].split("\n", 1)[0].strip()


def text_of(path: Path) -> str:
    """The text of a small regular file; nothing of anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return ""
    with os.fdopen(descriptor, "rb") as file:
        try:
            return file.read(CONFIG_LIMIT).decode("utf-8", "surrogateescape")
        except OSError:
            return ""


def resolved(base: Path, name: str) -> Path | None:
    try:
        return (base / Path(name.strip()).expanduser()).resolve()
    except (OSError, RuntimeError, ValueError):
        return None


def linked(entry: Path) -> tuple[Path, Path, Path] | None:
    """What a ``.git`` file means: the private directory of a worktree, or that of a submodule, if that one says the same."""
    text = first_line(entry)
    own = resolved(entry.parent, text.removeprefix("gitdir:")) if text.startswith("gitdir:") else None
    if own is None or not (own / "HEAD").exists():
        return None
    if own.parent.name == "worktrees":
        common = resolved(own, first_line(own / "commondir"))
        back = resolved(own, first_line(own / "gitdir"))
        return (entry, own, own.parent.parent) if common == own.parent.parent and back == entry.resolve() else None
    if (own / "commondir").exists():
        return None
    match = WORKTREE.search(text_of(own / "config"))
    back = resolved(own, match.group(1)) if match is not None else None
    return (entry, own, own) if back == entry.parent.resolve() else None


def repository(workspace: Path) -> Repository:
    """The repository around a workspace; nothing may be written of one that cannot be believed."""
    found = git_directories(workspace)
    result = Repository()
    if found is None:
        return result
    entry, own, common = found
    places = result.places
    places.update({common: "write", own: "write"})
    if entry.is_file():
        places[entry] = "read"
    if (common / "worktrees").exists():
        places[common / "worktrees"] = "read"
        places[own] = "write"
    inner = list(modules(common))
    if len(inner) >= MODULES or (common / "modules").is_symlink():
        places[common / "modules"] = "read"
        inner = []
    for directory in dict.fromkeys((common, own, *inner)):
        for name in CODE:
            if os.path.lexists(directory / name) or name == "hooks":
                places[directory / name] = "read"
            elif name == "commondir":
                result.absent.append(directory / name)
        config = text_of(directory / "config")
        if WORKTREE_CONFIG.search(config) and not os.path.lexists(directory / "config.worktree"):
            result.empty.append(directory / "config.worktree")
        for path in executed(directory, workspace):
            if os.path.lexists(path):
                places[path] = "read"
            else:
                result.absent.append(path)
    if WORKTREE_CONFIG.search(text_of(common / "config")) and not os.path.lexists(own / "config.worktree"):
        result.empty.append(own / "config.worktree")
    return result


def modules(common: Path) -> Iterator[Path]:
    """The Git directories of submodules, as many as are looked at."""
    top = common / "modules"
    if top.is_symlink():
        return
    count = 0
    for directory, names, files in os.walk(top):
        if "HEAD" in files and "config" in files:
            names[:] = [name for name in names if name == "modules"]
            yield Path(directory)
            count += 1
            if count >= MODULES:
                return


def executed(directory: Path, workspace: Path) -> list[Path]:
    """What the configuration of a Git directory names elsewhere: its hooks, and further configurations, which name the same."""
    found: list[Path] = []
    todo = [directory / "config", directory / "config.worktree"]
    seen: set[Path] = set()
    while todo and len(seen) < INCLUDES:
        config = todo.pop()
        if config in seen:
            continue
        seen.add(config)
        text = text_of(config)
        if (hooks := HOOKS_PATH.search(text)) is not None and (path := resolved(workspace, hooks.group(1))) is not None:
            found.append(path)
        for match in INCLUDE_PATH.finditer(text):
            if (path := resolved(config.parent, match.group(1))) is not None:
                found.append(path)
                todo.append(path)
    return found
