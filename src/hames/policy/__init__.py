"""Policy: what a call of a tool may do."""

from hames.policy.modes import MODES, Modes
from hames.policy.port import POLICY, Capability, Decision, Policy, ToolRequest

__all__ = ["MODES", "POLICY", "Capability", "Decision", "Modes", "Policy", "ToolRequest"]
