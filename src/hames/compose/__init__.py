"""Composition: plugins as rows of files, in layers, mounted as one."""

from hames.compose.interpolate import Interpolation
from hames.compose.layers import Layer, check_state, layers, state_directory
from hames.compose.mounting import BASE, LOADED, Base, Loaded, mount, plan, running
from hames.compose.rows import Composition, Row, compose

__all__ = [
    "BASE",
    "LOADED",
    "Base",
    "Composition",
    "Interpolation",
    "Layer",
    "Loaded",
    "Row",
    "check_state",
    "compose",
    "layers",
    "mount",
    "plan",
    "running",
    "state_directory",
]
