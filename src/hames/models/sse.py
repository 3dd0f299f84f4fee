"""Server-sent events, as far as model providers use them (WHATWG HTML, section 9.2)."""

from __future__ import annotations

LIMIT = 32 * 1024 * 1024  # bytes of one event


class EventSplitter:
    """Splits a byte stream into events; bytes may come in any pieces."""

    __slots__ = ("_buffer", "_data", "_event", "_size")

    def __init__(self) -> None:
        self._buffer = b""
        self._event = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> list[tuple[str, str]]:
        """The events that are complete now, as (event, data).

        :raises ValueError: if an event is larger than the limit, or not UTF-8.
        """
        lines = (self._buffer + data if self._buffer else data).split(b"\n")
        self._buffer = lines.pop()
        events: list[tuple[str, str]] = []
        for raw in lines:
            line = raw[:-1] if raw.endswith(b"\r") else raw
            if not line:
                if self._data:
                    events.append((self._event, "\n".join(self._data)))
                    self._data = []
                self._event = ""
                self._size = 0
                continue
            self._grow(len(line))
            if line.startswith(b"data:"):
                self._data.append(line[5:].decode().removeprefix(" "))
            elif line.startswith(b"event:"):
                self._event = line[6:].decode().strip()
        if len(self._buffer) + self._size > LIMIT:
            self._grow(len(self._buffer))
        return events

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > LIMIT:
            raise ValueError(f"an event of more than {LIMIT} bytes")
