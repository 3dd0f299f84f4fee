"""One record of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One record of a session.

    :param seq: its place, from 0 without gaps.
    :param time: seconds since the epoch.
    :param damaged: its bytes do not match their checksum; ``data`` is empty then.
    """

    seq: int
    time: float
    type: str
    data: dict[str, Any]
    damaged: bool = False
