"""What a face may listen to of workspaces."""

from __future__ import annotations

from dataclasses import dataclass

from hames.kernel import Notice


@dataclass(frozen=True, slots=True, eq=False)
class WorkspaceReloaded(Notice):
    """A pass over a live workspace has ended.

    :param reason: why it failed: ``invalid`` files, rows that did not ``start``, or ``trust``; empty where it went well.
    :param message: what is wrong, without a value of the configuration.
    :param started: paths of rows.
    :param stopped: paths of rows.
    """

    directory: str
    reason: str
    message: str
    started: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
