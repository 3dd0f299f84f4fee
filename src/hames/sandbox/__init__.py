"""The sandbox: what the calls of tools can reach, held by the system and not by words."""

from hames.sandbox.environment import scrubbed
from hames.sandbox.port import Access, Confinement, Enforcement, Refused
from hames.sandbox.service import SANDBOX, Sandbox

__all__ = ["SANDBOX", "Access", "Confinement", "Enforcement", "Refused", "Sandbox", "scrubbed"]
