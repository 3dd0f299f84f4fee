"""An encoded model request: the bytes that go on the wire, in pieces that stay the same from one request to the next.

``body = head + separator.join(groups) + tail``, where one group may carry a cache marker spliced in at an offset that the
group names. Models make it, agents pass it on, sessions persist it; nobody but the adapter that made it reads the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is shown it; ``parameters`` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """The bytes of one wire group (what the protocol makes one message) as sent, without a cache marker.

    :param marker_at: the offset at which a cache marker may be spliced in, -1 where none can.
    """

    data: bytes
    marker_at: int = -1


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """One request body in pieces.

    :param adapter: name and version of the encoder, for example ``openai-chat/1``.
    :param groups: one fragment per wire group, oldest first.
    :param sha256: of the whole body, in hexadecimal.
    :param marker: what is spliced into the group number ``marked``; ``marked`` is -1 where nothing is.
    :param kept: how many leading groups are those of the request before from the same encoder.
    :param reason: why it does not just extend that one (``initial``, ``head``, ``history``); empty where it does.
    """

    adapter: str
    head: bytes
    groups: Sequence[Fragment]
    tail: bytes
    sha256: str
    separator: bytes = b","
    marker: bytes = b""
    marked: int = -1
    kept: int = 0
    reason: str = ""

    def body(self) -> bytes:
        """The whole body, as it goes on the wire."""
        parts = [group.data for group in self.groups]
        if self.marked >= 0:
            parts[self.marked] = splice(self.groups[self.marked], self.marker)
        return b"".join((self.head, self.separator.join(parts), self.tail))


def splice(group: Fragment, marker: bytes) -> bytes:
    """A group's bytes with the marker at its place."""
    return b"".join((group.data[: group.marker_at], marker, group.data[group.marker_at :]))
