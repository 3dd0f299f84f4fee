"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path


def expanded(name: str) -> Path:
    """A path with ``~`` filled in; where there is no such home, the path as it is written."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


SHIPPED = Path(__file__).parents[1] / "profiles"
"""The data that Hames comes with: compositions, presets, roles, prompts."""
