"""Messages as lines, from a program that may send anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

EDGE = 512  # bytes of a line that is too long that are kept at both ends, to see which request it answers
ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\b')


@dataclass(frozen=True, slots=True)
class TooLong:
    """A line that is too long, of which only this is known.

    :param answers: the number of the request that it seems to answer; None where that cannot be told.
    """

    size: int
    answers: int | None


class Lines:
    """Cuts what arrives into lines, each looked at once.

    :param limit: bytes of a line that are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        self._tail = b""

    def feed(self, data: bytes) -> Iterator[bytes | TooLong]:
        """The lines that end in this data."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._add(data[start:end])
            yield self._take()
            start = end + 1
        self._add(data[start:])

    def _add(self, part: bytes) -> None:
        if not part:
            return
        self._size += len(part)
        if self._size <= self._limit:
            self._parts.append(part)
            return
        if self._parts or not self._head:
            whole = b"".join((*self._parts, part))
            self._head, self._tail = whole[:EDGE], whole[-EDGE:]
            self._parts = []
        else:
            self._tail = (self._tail + part)[-EDGE:]

    def _take(self) -> bytes | TooLong:
        size, head, tail = self._size, self._head, self._tail
        line = b"".join(self._parts)
        self._parts, self._size, self._head, self._tail = [], 0, b"", b""
        if size <= self._limit:
            return line
        before = ID.search(head.partition(b'"result"')[0].partition(b'"error"')[0])
        after = None if before else next(iter(reversed(list(ID.finditer(tail)))), None)
        found = before or after
        return TooLong(size, int(found[1]) if found else None)
