"""A workspace as others see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["starting", "idle", "scheduled", "reloading", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class ReloadInfo:
    """How watching stands."""

    watching: bool
    status: Status
    successful_reloads: int


@dataclass(frozen=True, slots=True)
class WorkspaceInfo:
    """A workspace as it is, without anything of its configuration.

    :param leases: how many work in it.
    :param trusted: whether it may mount anything.
    :param configured: whether it has files that say something.
    :param composition: whether rows of it are mounted.
    :param reload: None where nothing is watched.
    :param reason: why the last pass failed; empty where it did not.
    """

    directory: str
    leases: int
    trusted: bool
    configured: bool
    composition: bool
    reload: ReloadInfo | None
    reason: str = ""
    message: str = ""
