"""Text of others on a terminal: what would steer it is shown instead of obeyed."""

from __future__ import annotations

import unicodedata


def visible(text: str, keep: str = "") -> str:
    """The text with escapes for all that is not printable: control characters, marks of direction, lone surrogates.

    :param keep: characters that stay as they are, for example line breaks.
    """
    return "".join(letter if letter.isprintable() or letter in keep or is_harmless(letter) else escape(letter) for letter in text)


def is_harmless(letter: str) -> bool:
    """A space of another width, or what joins two signs to one."""
    return letter in "\u200c\u200d" or unicodedata.category(letter) == "Zs"


def escape(letter: str) -> str:
    number = ord(letter)
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(letter) or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")
