"""The limits of one agent, and the meter that holds it to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from hames.content.finish import Usage

SOFT = 0.8  # of a limit, from which on an agent is told to come to an end


@dataclass(frozen=True, slots=True)
class Limits:
    """What a turn may spend; None is without limit.

    :param steps: model requests that were answered.
    :param tokens: input, output and cache tokens together.
    :param cost: US dollars, by the price list.
    :param seconds: of time, from the beginning of the turn; what runs is cancelled then.
    :param idle: seconds in which nothing came from the model and no tool ended.
    """

    steps: int | None = None
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    idle: float | None = None


def dollars(amount: float, digits: int = 4) -> str:
    """An amount as people write it, with so many digits that matter."""
    if amount >= 1:
        return f"${amount:,.2f}".removesuffix(".00")
    return f"${Decimal(f'{amount:.{digits}g}'):f}"


class Meter:
    """Counts one turn against its limits.

    :ivar cost: US dollars so far, counted only where it is limited; None once it is not known any more.
    """

    __slots__ = ("_warned", "cost", "limits", "steps", "usage")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.steps = 0
        self.usage = Usage()
        self.cost: float | None = 0.0
        self._warned = False

    def spend(self, usage: Usage | None, cost: Callable[[Usage], float | None]) -> None:
        """Count one answered request.

        :param cost: the price of the model's tokens, asked only where cost is limited.
        """
        self.steps += 1
        self.count(usage, cost)

    def count(self, usage: Usage | None, cost: Callable[[Usage], float | None]) -> None:
        """Count tokens that were no answer to the conversation."""
        if usage is None:
            self.cost = None if self.limits.cost is not None else self.cost
            return
        self.usage = self.usage + usage
        if self.limits.cost is not None and self.cost is not None:
            spent = cost(usage)
            self.cost = None if spent is None else self.cost + spent

    def exhausted(self) -> str:
        """Which limit forbids another request, in words; empty while none does."""
        limits = self.limits
        if limits.steps is not None and self.steps >= limits.steps:
            return f"the limit of {limits.steps} steps is reached"
        if limits.tokens is not None and self.usage.total >= limits.tokens:
            return f"the limit of {limits.tokens} tokens is reached ({self.usage.total} used)"
        if limits.cost is not None and (self.cost is None or self.cost >= limits.cost):
            spent = "nobody knows how much is spent" if self.cost is None else f"{dollars(self.cost)} spent"
            return f"the limit of {dollars(limits.cost)} is reached ({spent})"
        return ""

    def warning(self) -> str:
        """What to tell the agent when it is near a limit, once; empty otherwise."""
        limits = self.limits
        if self._warned:
            return ""
        left: list[str] = []
        if limits.steps is not None and limits.steps > 1 and self.steps >= SOFT * limits.steps:
            left.append(f"{limits.steps - self.steps} more answers")
        if limits.tokens is not None and self.usage.total >= SOFT * limits.tokens:
            left.append(f"{max(0, limits.tokens - self.usage.total)} more tokens")
        if limits.cost is not None and self.cost is not None and self.cost >= SOFT * limits.cost:
            left.append(f"{dollars(max(0.0, limits.cost - self.cost), 2)} more")
        if not left:
            return ""
        self._warned = True
        return f"Your budget allows {' and '.join(left)}. Come to an end: finish what you are at, and say what is left to do."
