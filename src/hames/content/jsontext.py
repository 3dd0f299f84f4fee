"""JSON as Hames writes and reads it."""

from __future__ import annotations

import json
from typing import Any, cast

#: Compact JSON text; characters stand for themselves. The text must be valid Unicode (see ``messages.clean``).
dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def as_object(value: Any) -> dict[str, Any]:
    """The value itself if it is an object, else an empty one: for data of other people, read leniently."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def parse_object(text: str | bytes) -> dict[str, Any]:
    """An object from its text.

    :raises ValueError: if the text is no JSON, or no object.
    """
    value: Any = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return cast(dict[str, Any], value)
