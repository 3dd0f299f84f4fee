"""Composition: plugins as rows of a file, mounted as one."""

from hames.compose.mounting import mount_rows, running
from hames.compose.rows import Row, read_rows

__all__ = ["Row", "mount_rows", "read_rows", "running"]
