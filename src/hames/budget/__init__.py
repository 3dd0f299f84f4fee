"""Budgets: what an agent may spend."""

from hames.budget.limits import Limits, Meter
from hames.budget.prices import Rates, looked_up
from hames.budget.repeats import BLOCK, REMIND, STOP, Repeats
from hames.budget.scheduler import SCHEDULER, Place, Scheduler

__all__ = ["BLOCK", "REMIND", "SCHEDULER", "STOP", "Limits", "Meter", "Place", "Rates", "Repeats", "Scheduler", "looked_up"]
