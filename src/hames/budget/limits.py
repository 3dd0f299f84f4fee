"""Limits, and the meters that hold agents and all below them to these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from hames.content.errors import UsageError
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


KINDS = ("steps", "tokens", "cost")


class Meter:
    """Counts what is spent against limits, and against those of the meter that it is a part of.

    A part with a limit of its own has that much set aside for it: the whole cannot spend it elsewhere, and gets back what is left when
    the part is closed. A part without one draws on what the whole has not set aside. So the sum of all parts is never more than the whole.

    :ivar steps: so far, with those of its parts; as ``usage``.
    :ivar own_steps: without those of its parts; as ``own_usage``.
    :ivar cost: US dollars so far, counted only where it is limited here or above; None once it is not known any more.
    """

    __slots__ = ("_open", "_set_aside", "_warned", "cost", "limits", "own_steps", "own_usage", "steps", "usage", "whole")

    def __init__(self, limits: Limits, whole: Meter | None = None) -> None:
        self.limits = limits
        self.whole = whole
        self.steps = self.own_steps = 0
        self.usage = self.own_usage = Usage()
        self.cost: float | None = 0.0
        self._set_aside: dict[str, float] = {}
        self._warned = False
        self._open = True

    # what is left

    def spent(self, kind: str) -> float | None:
        """Of ``steps``, ``tokens`` or ``cost``; None where nobody knows."""
        return self.steps if kind == "steps" else self.usage.total if kind == "tokens" else self.cost

    def limit(self, kind: str) -> float | None:
        return getattr(self.limits, kind)

    def left(self, kind: str) -> float | None:
        """What may still be spent here; None where nothing limits it."""
        limit, spent = self.limit(kind), self.spent(kind)
        if limit is None:
            return None if self.whole is None else self.whole.left(kind)
        return 0.0 if spent is None else limit - spent - self._set_aside.get(kind, 0.0)

    def part(self, limits: Limits) -> Meter:
        """A part with limits of its own, which are set aside for it.

        :raises UsageError: if there is not so much left.
        """
        for kind in KINDS:
            wanted, left = getattr(limits, kind), self.left(kind)
            if wanted is not None and left is not None and wanted > left:
                shown = (dollars(wanted), dollars(max(0.0, left))) if kind == "cost" else (f"{wanted:g} {kind}", f"{max(0, left):g}")
                raise UsageError(f"{shown[0]} are asked for, and {shown[1]} are left", remedy="ask for less", code="BUDGET_EXCEEDED")
        made = Meter(limits, self)
        for kind in KINDS:
            if (wanted := made.limit(kind)) is not None:
                self._reserve(kind, wanted)
        return made

    def close(self) -> None:
        """Give back what was set aside and not spent."""
        if self._open and self.whole is not None:
            self._open = False
            for kind in KINDS:
                limit, spent = self.limit(kind), self.spent(kind)
                if limit is not None:
                    self.whole._reserve(kind, -max(0.0, limit - (limit if spent is None else spent)))

    def _reserve(self, kind: str, amount: float) -> None:
        """Set something aside, or give it back, at the nearest meter that limits it: above that one it has been set aside already."""
        if self.limit(kind) is not None:
            self._set_aside[kind] = max(0.0, self._set_aside.get(kind, 0.0) + amount)
        elif self.whole is not None:
            self.whole._reserve(kind, amount)

    # spending

    @property
    def counts_cost(self) -> bool:
        return self.limits.cost is not None or (self.whole is not None and self.whole.counts_cost)

    def spend(self, usage: Usage | None, cost: Callable[[Usage], float | None]) -> None:
        """Count one answered request.

        :param cost: the price of the model's tokens, asked only where cost is limited.
        """
        self.own_steps += 1
        self.count(usage, cost, steps=1)

    def count(self, usage: Usage | None, cost: Callable[[Usage], float | None], *, steps: int = 0) -> None:
        """Count tokens that were no answer to the conversation."""
        if usage is not None:
            self.own_usage = self.own_usage + usage
        self._spend(usage, cost(usage) if usage is not None and self.counts_cost else None, steps)

    def _spend(self, usage: Usage | None, cost: float | None, steps: int) -> None:
        before = {kind: self.spent(kind) for kind in KINDS}
        self.steps += steps
        if usage is not None:
            self.usage = self.usage + usage
        if self.counts_cost and self.cost is not None:
            self.cost = None if cost is None else self.cost + cost
        if self.whole is None:
            return
        for kind in KINDS:
            limit, old, new = self.limit(kind), before[kind], self.spent(kind)
            if limit is not None and self._open:  # what was set aside has become what is spent
                self.whole._reserve(kind, -(min(limit, limit if new is None else new) - min(limit, limit if old is None else old)))
        self.whole._spend(usage, cost, steps)

    def exhausted(self) -> str:
        """Which limit forbids another request, in words; empty while none does."""
        for kind in KINDS:
            if said := self._exhausted(kind):
                return said
        return ""

    def _exhausted(self, kind: str) -> str:
        limit, left = self.limit(kind), self.left(kind)
        if limit is None:
            return "" if self.whole is None else self.whole._exhausted(kind)
        if left is None or left > 0:
            return ""
        aside = self._set_aside.get(kind, 0.0)
        if kind == "cost":
            spent = "nobody knows how much is spent" if self.cost is None else f"{dollars(self.cost)} spent"
            spent += f", {dollars(aside)} set aside" if aside else ""
            return f"the limit of {dollars(limit)} is reached ({spent})"
        if kind == "steps":
            return f"the limit of {limit:g} steps is reached" + (f" ({aside:g} set aside)" if aside else "")
        return f"the limit of {limit:g} tokens is reached ({self.usage.total} used{f', {aside:g} set aside' if aside else ''})"

    def warning(self) -> str:
        """What to tell the agent when it is near a limit, once; empty otherwise."""
        if self._warned:
            return ""
        left: list[str] = []
        for kind, said in (("steps", "more answers"), ("tokens", "more tokens"), ("cost", "more")):
            limit, rest = self.limit(kind), self.left(kind)
            if limit is None or rest is None or rest > (1 - SOFT) * limit + 1e-9 or (kind == "steps" and limit <= 1):
                continue
            if kind != "cost" or self.cost is not None:
                left.append(f"{dollars(max(0.0, rest), 2) if kind == 'cost' else f'{max(0, rest):g}'} {said}")
        if not left:
            return ""
        self._warned = True
        return f"Your budget allows {' and '.join(left)}. Come to an end: finish what you are at, and say what is left to do."
