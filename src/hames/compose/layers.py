"""Which files make a composition, and where state lives.

In order: a shipped profile, the user's ``compose.yaml`` in ``$HAMES_HOME`` (default: the XDG configuration directory), then what is
named with ``--patch``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hames.content.errors import ConfigError
from hames.content.paths import expanded

MARKER = ".hames-worktree"  # what a managed worktree is known by


@dataclass(frozen=True, slots=True)
class Layer:
    """One file.

    :param label: what messages call it; empty for its path, relative to the current directory where it is below it.
    """

    path: Path
    label: str = ""

    @property
    def name(self) -> str:
        if self.label:
            return self.label
        absolute, here = self.path.absolute(), Path.cwd()
        return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(self.path)


def home(environment: Mapping[str, str]) -> Path:
    """Where a user's configuration lives."""
    if named := environment.get("HAMES_HOME"):
        return expanded(named).absolute()
    return expanded(environment.get("XDG_CONFIG_HOME") or "~/.config") / "hames"


def layers(profile: Layer, patches: Iterable[Path], environment: Mapping[str, str]) -> list[Layer]:
    """The files of a composition, in order; the user's file only where it exists.

    :raises ConfigError: if a patch file does not exist.
    """
    found = [profile]
    user = home(environment) / "compose.yaml"
    if user.exists():
        found.append(Layer(user))
    for patch in patches:
        if not patch.is_file():
            raise ConfigError(f"there is no file {patch}", remedy="name an existing file with --patch")
        found.append(Layer(patch))
    return found


def state_directory(environment: Mapping[str, str], named: str = "") -> Path:
    """Where state lives: what is named, ``HAMES_STATE``, or the XDG state directory.

    :raises ConfigError: if it begins with the home of somebody who has none.
    """
    if chosen := named or environment.get("HAMES_STATE", ""):
        place = expanded(chosen)
        if str(place).startswith("~"):
            raise ConfigError(f"there is no home for {chosen}", remedy="name another state directory with --state-dir or HAMES_STATE")
        return place.absolute()
    return expanded(environment.get("XDG_STATE_HOME") or "~/.local/state") / "hames"


def checkout(directory: Path) -> Path | None:
    """The top of the Git checkout that a directory is in."""
    return next((place for place in (directory, *directory.parents) if is_git(place / ".git")), None)


def is_git(entry: Path) -> bool:
    """Whether this is the ``.git`` of a checkout: a file, or a directory that is not empty."""
    try:
        return entry.is_file() or (entry / "HEAD").exists()
    except OSError:
        return False


def check_state(state: Path, cwd: Path) -> None:
    """Refuse a state directory inside the checkout that an agent works in, and a checkout inside the state directory.

    Managed worktrees, which lie in the state directory, are excepted by their marker.

    :raises ConfigError: STATE_IN_CHECKOUT.
    """
    state, cwd = state.resolve(), cwd.resolve()
    top = checkout(cwd)
    remedy = "name another place with --state-dir or HAMES_STATE"
    if top is not None and state.is_relative_to(top):
        raise ConfigError(f"the state directory {state} is inside the checkout {top}", remedy=remedy, code="STATE_IN_CHECKOUT")
    if cwd.is_relative_to(state) and not (top is not None and (top / MARKER).exists()):
        raise ConfigError(f"{cwd} is inside the state directory {state}", remedy=remedy, code="STATE_IN_CHECKOUT")
