"""Workspaces: one live composition for each directory."""

from hames.workspaces.events import WorkspaceReloaded
from hames.workspaces.info import WorkspaceInfo
from hames.workspaces.service import WORKSPACES, Lease, Workspaces

__all__ = ["WORKSPACES", "Lease", "WorkspaceInfo", "WorkspaceReloaded", "Workspaces"]
