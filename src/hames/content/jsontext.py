"""JSON as Hames writes and reads it."""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast

from hames.content.messages import clean

#: Compact JSON text; characters stand for themselves. The text must be valid Unicode (see ``messages.clean``).
dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def as_object(value: Any) -> dict[str, Any]:
    """The value itself if it is an object, else an empty one: for data of other people, read leniently."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def as_json(value: Any) -> Any:
    """The value as JSON keeps it: valid Unicode, and copies of lists and objects.

    :raises ValueError: if it is no JSON: a number that is none, a key that is no text, nested beyond measure.
    """
    try:
        return json.loads(clean(json.dumps(value, ensure_ascii=False, allow_nan=False)))
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def as_list_of_texts(value: Any) -> tuple[str, ...]:
    """The texts of a list; none where it is no list."""
    return tuple(str(item) for item in cast(list[Any], value)) if isinstance(value, list | tuple) else ()


def as_text(value: Any) -> str:
    """A text, or nothing where there is none.

    :raises ValueError: if it is something else.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"a text is expected, not {type(value).__name__}")
    return value


def as_count(value: Any) -> int:
    """A number of things; 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


_decode = json.JSONDecoder(parse_constant=_refuse).decode  # made once: loads() would make one at each call


def parse_object(text: str | bytes) -> dict[str, Any]:
    """An object from its text.

    :raises ValueError: if the text is no JSON (RFC 8259, so no NaN), no object, or nested beyond measure.
    """
    try:
        value: Any = _decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return cast(dict[str, Any], value)
