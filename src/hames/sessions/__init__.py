"""Sessions: append-only logs from which everything that a model saw can be rebuilt."""

from hames.sessions.log import Event, Session, session_id, session_number
from hames.sessions.plugin import SESSIONS, Sessions, SessionSummary

__all__ = ["SESSIONS", "Event", "Session", "SessionSummary", "Sessions", "session_id", "session_number"]
