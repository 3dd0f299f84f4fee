"""What a face may listen to of MCP servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hames.kernel import Notice

Status = Literal["connecting", "ready", "waiting", "failed", "closed"]


@dataclass(frozen=True, slots=True, eq=False)
class ServerChanged(Notice):
    """A server is ready, or is not any more, or offers something else.

    :param reason: why it is not ready.
    :param tools: how many tools of it agents have.
    """

    server: str
    status: Status
    reason: str
    tools: int
