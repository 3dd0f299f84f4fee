"""Messages as lines, from a program that may send anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

EDGE = 512  # bytes of a line that is too long that are kept at both ends, to see which request it answers
ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\b')
KIND = re.compile(rb'"(result|error|params|method)"\s*:')


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
        self._line = bytearray()
        self._size = 0
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
        self._size += len(part)
        if self._size <= max(self._limit, EDGE):
            self._line += part
        else:  # too long: its head stays, and its tail follows
            self._tail = (self._tail + bytes(self._line[-EDGE:]) + part)[-EDGE:] if not self._tail else (self._tail + part)[-EDGE:]
            self._line += part[: max(0, EDGE - len(self._line))]
            del self._line[EDGE:]

    def _take(self) -> bytes | TooLong:
        size, line, tail = self._size, bytes(self._line), self._tail
        self._line, self._size, self._tail = bytearray(), 0, b""
        return line if size <= self._limit else TooLong(size, answered(line[:EDGE], tail or line[-EDGE:]))


def answered(head: bytes, tail: bytes) -> int | None:
    """The number of the request that a message answers, from both of its ends; None where it seems to be no answer."""
    kind = KIND.search(head)
    if kind is None or kind[1] not in (b"result", b"error"):
        return None
    found = ID.search(head[: kind.start()]) or next(iter(reversed(list(ID.finditer(tail)))), None)
    return int(found[1]) if found else None
