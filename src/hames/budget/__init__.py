"""Budgets: what an agent may spend."""

from hames.budget.limits import Limits, Meter
from hames.budget.prices import Rates, looked_up
from hames.budget.repeats import BLOCK, REMIND, STOP, Repeats

__all__ = ["BLOCK", "REMIND", "STOP", "Limits", "Meter", "Rates", "Repeats", "looked_up"]
