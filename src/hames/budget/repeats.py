"""Notices that an agent does the same again and again: the same call with the same result."""

from __future__ import annotations

from hashlib import sha256

REMIND: int = 3
BLOCK: int = 5
STOP: int = 8


class Repeats:
    """Counts equal calls that follow each other and had equal results."""

    __slots__ = ("_call", "_count", "_result")

    def __init__(self) -> None:
        self._call = b""
        self._result = b""
        self._count: int = 0

    @staticmethod
    def _digest(*parts: str) -> bytes:
        return sha256("\0".join(parts).encode("utf-8", "replace")).digest()

    def blocks(self, name: str, arguments: str) -> bool:
        """Whether this call shall not run: it would be at least the fifth of its kind."""
        return self._count + 1 >= BLOCK and self._digest(name, arguments) == self._call

    def count(self, name: str, arguments: str, result: str) -> int:
        """Count a call that has its result, or that was blocked; how many of its kind there have been."""
        call, answer = self._digest(name, arguments), self._digest(result)
        if call == self._call and (answer == self._result or self._count >= BLOCK - 1):
            self._count += 1
        else:
            self._call, self._result, self._count = call, answer, 1
        return self._count
