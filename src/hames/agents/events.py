"""What a face may listen to while an agent works. Live only: what is to last stands in the session."""

from __future__ import annotations

from dataclasses import dataclass

from hames.agents.turn import TurnEnd
from hames.content.finish import Chunk, Failure, Finish
from hames.content.messages import ToolCall, ToolResult
from hames.kernel import Notice


@dataclass(frozen=True, slots=True, eq=False)
class AgentMade(Notice):
    """An agent has been made, or taken up again, and stands in its scope; nothing has been said to it yet.

    :param delegated: whether it has just been made for work that somebody gave away.
    """

    agent: str
    delegated: bool


@dataclass(frozen=True, slots=True, eq=False)
class TurnBegan(Notice):
    """A turn has begun."""

    agent: str


@dataclass(frozen=True, slots=True, eq=False)
class Chunked(Notice):
    """A piece of an answer has arrived."""

    agent: str
    chunk: Chunk


@dataclass(frozen=True, slots=True, eq=False)
class Answered(Notice):
    """A request has been answered, or has failed for good."""

    agent: str
    finish: Finish


@dataclass(frozen=True, slots=True, eq=False)
class Retrying(Notice):
    """A request failed and is made again after ``wait`` seconds."""

    agent: str
    failure: Failure
    wait: float


@dataclass(frozen=True, slots=True, eq=False)
class ModelChanged(Notice):
    """A model failed for good, and the turn goes on with another one."""

    agent: str
    before: str
    now: str
    failure: Failure


@dataclass(frozen=True, slots=True, eq=False)
class SlotAwaited(Notice):
    """A request waits: as many of its provider run as may.

    :param why: why so many.
    """

    agent: str
    provider: str
    now: int
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Compacted(Notice):
    """A summary has taken the place of the past; both in tokens, roughly."""

    agent: str
    reason: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, eq=False)
class NotCompacted(Notice):
    """The past stays as it is, although somebody wanted it shortened."""

    agent: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class ToolStarted(Notice):
    """A call that may run is about to; its intent is on disk."""

    agent: str
    call: ToolCall


@dataclass(frozen=True, slots=True, eq=False)
class ToolProgress(Notice):
    """A call says how far it is."""

    agent: str
    call: ToolCall
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class ToolEnded(Notice):
    """A call has its result, whether it ran or not."""

    agent: str
    call: ToolCall
    result: ToolResult


@dataclass(frozen=True, slots=True, eq=False)
class TurnEnded(Notice):
    """A turn has ended, and its end is logged."""

    agent: str
    end: TurnEnd
