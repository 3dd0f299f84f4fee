"""From a confinement to the view of the file system that it means."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hames.content.paths import expanded
from hames.sandbox.git import repository
from hames.sandbox.port import Confinement, Place, View

#: What other programs and Hames itself take orders from: protected from tools at the top of a workspace, by file tools anywhere.
NAMES: tuple[str, ...] = (".hames", ".mcp.json", ".claude", ".agents", ".git")

#: What no command and no file tool reads.
SECRETS: tuple[str, ...] = (
    "~/.ssh",
    "~/.gnupg",
    "~/.aws",
    "~/.azure",
    "~/.kube",
    "~/.docker",
    "~/.netrc",
    "~/.git-credentials",
    "~/.pypirc",
    "~/.npmrc",
    "~/.cargo/credentials.toml",
    "~/.config/gcloud",
    "~/.config/gh",
    "~/.config/op",
    "~/.config/git/credentials",
    "~/.local/share/keyrings",
    "~/.password-store",
    "~/.claude/.credentials.json",
    "~/.claude.json",
    "~/.codex/auth.json",
    "~/.mozilla",
    "~/.config/google-chrome",
    "~/.config/chromium",
    "~/.bash_history",
    "~/.zsh_history",
    "~/.python_history",
)


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for every call of a composition.

    :param hidden: canonical paths that nothing reads.
    :param writable: more canonical roots that ``workspace-write`` may write.
    :param loaded: composition files and local modules: what an agent must not write.
    :param names: protected names at the top of a workspace.
    :param readable: canonical paths below hidden ones that may be read all the same.
    """

    hidden: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    loaded: tuple[Path, ...] = ()
    names: tuple[str, ...] = NAMES
    readable: tuple[Path, ...] = ()


def canonical(names: Iterable[str]) -> list[Path]:
    return [expanded(name).resolve() for name in names]


def secrets(hide: Sequence[str], reveal: Sequence[str]) -> tuple[Path, ...]:
    """The canonical paths to hide, of those that exist."""
    revealed = set(canonical(reveal))
    return tuple(path for path in canonical((*SECRETS, *hide)) if path not in revealed and os.path.lexists(path))


def view(confinement: Confinement, rules: Rules) -> View:
    """The places of a confinement. One that is ``full`` has a single place: the root, writable."""
    if confinement.access == "full":
        return View({Path("/"): "write"}, True)
    places: dict[Path, Place] = {Path("/"): "read"}
    why: dict[Path, str] = {}
    for path in rules.hidden:
        places[path] = "hidden"
        why[path] = "it may hold secrets"
    for path in rules.readable:
        places[path] = "read"
    if confinement.scratch is not None:
        places[confinement.scratch] = "write"
    roots = [] if confinement.scratch is None else [confinement.scratch]
    workspace = confinement.workspace.resolve()
    empty: list[Path] = []
    absent: list[Path] = []
    if confinement.access == "workspace-write":
        roots += [workspace, *rules.writable, *confinement.also]
        places.update((path, "write") for path in roots)
        kept = [(path, "the composition of this agent is made of it") for path in rules.loaded]
        if ".git" in rules.names:
            git = repository(workspace)
            places.update((path, place) for path, place in git.places.items() if place == "write")
            kept += [(path, "Git runs code that it names") for path, place in git.places.items() if place == "read"]
            empty, absent = git.empty, git.absent
        own = {path for path, place in places.items() if place == "write"}
        kept += [(workspace / name, "programs take orders from it") for name in rules.names if workspace / name not in own]
        kept += [(path, "Git runs code that it names") for path in empty]
        for path, reason in kept:
            for each in (path, target(path)):  # what a protected link leads to is protected too
                if each not in own and writable(each, places):
                    places[each] = "read"
                    why[each] = reason
    elif workspace not in places:
        places[workspace] = "read"
    for path in rules.hidden:
        if path not in (workspace, confinement.scratch):
            places[path] = "hidden"
    absent = [path for path in absent if writable(path, places)]
    return View(places, confinement.network, tuple(roots), tuple(empty), tuple(absent), why)


def target(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path


def writable(path: Path, places: Mapping[Path, Place]) -> bool:
    """Whether the nearest place around a path may be written, so that it needs protection."""
    for each in path.parents:
        if each in places:
            return places[each] == "write" or (places[each] == "read" and writable(each, places))
    return False
