"""Agents: a session, an inbox, a scope, and the loop that drives them."""

from hames.agents.agent import Agent, Status
from hames.agents.events import (
    AgentMade,
    Answered,
    Chunked,
    Compacted,
    ModelChanged,
    NotCompacted,
    Retrying,
    SlotAwaited,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    TurnBegan,
    TurnEnded,
)
from hames.agents.inbox import Inbox
from hames.agents.loop import LOOP, Loop
from hames.agents.plugin import AGENTS, AgentCreate, Agents, AgentSpec
from hames.agents.turn import Reason, TurnEnd

__all__ = [
    "AGENTS",
    "LOOP",
    "Agent",
    "AgentCreate",
    "AgentMade",
    "AgentSpec",
    "Agents",
    "Answered",
    "Chunked",
    "Compacted",
    "Inbox",
    "Loop",
    "ModelChanged",
    "NotCompacted",
    "Reason",
    "Retrying",
    "SlotAwaited",
    "Status",
    "ToolEnded",
    "ToolProgress",
    "ToolStarted",
    "TurnBegan",
    "TurnEnd",
    "TurnEnded",
]
