"""Budgets: what an agent may spend."""

from hames.budget.limits import Limits, Meter

__all__ = ["Limits", "Meter"]
