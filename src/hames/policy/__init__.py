"""Policy: what a call of a tool may do."""

from hames.policy.port import POLICY, Answer, Capability, Decision, Mode, Policy, ToolRequest, narrowest

__all__ = ["POLICY", "Answer", "Capability", "Decision", "Mode", "Policy", "ToolRequest", "narrowest"]
