"""Shipped compositions, roles and prompts: data."""

from pathlib import Path


def profile(name: str) -> Path:
    """The file of a shipped profile."""
    return Path(__file__).with_name(f"{name}.yaml")


def profile_names() -> list[str]:
    """The names of the shipped profiles."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.yaml"))
