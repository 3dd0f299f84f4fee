"""Names for URLs."""

import re


def slug(title: str, limit: int = 40) -> str:
    """The words of a title in lower case, joined by single hyphens, at most ``limit`` characters and never ending in a hyphen."""
    words = re.sub(r"[^a-z0-9]", "-", title.lower())
    return words[:limit]
