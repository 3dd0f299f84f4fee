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
NANO = 1_000_000_000  # of a dollar: cost is counted in whole ones, so that three parts of a third are the whole


class Meter:
    """Counts what is spent against limits, and against those of the meter that it is inside of.

    A *part* has its limits set aside for it: the whole cannot spend that elsewhere, and gets back what is left when the part is closed. A
    meter that is only inside of another one, or that has no limit of a kind, draws on what is not set aside there. So what all may still
    spend is never more than the whole has left.

    :ivar steps: so far, with those of the meters inside; as ``usage``.
    :ivar own_steps: without them; as ``own_usage``, and ``models`` for each model.
    """

    __slots__ = ("_aside", "_cost", "_held", "_limits", "_warned", "limits", "models", "own_steps", "own_usage", "steps", "usage", "whole")

    def __init__(self, limits: Limits, whole: Meter | None = None) -> None:
        self.limits = limits
        self.whole = whole
        self.steps = self.own_steps = 0
        self.usage = self.own_usage = Usage()
        self.models: dict[str, Usage] = {}
        self._limits: dict[str, int | None] = {"steps": limits.steps, "tokens": limits.tokens}
        self._limits["cost"] = None if limits.cost is None else round(limits.cost * NANO)
        self._cost: int | None = 0
        self._aside: dict[str, int] = dict.fromkeys(KINDS, 0)  # set aside here for parts
        self._held: dict[str, int] = {}  # set aside for this one above; only of kinds that are
        self._warned = False

    @property
    def cost(self) -> float | None:
        """US dollars so far, counted only where it is limited here or above; None once it is not known any more."""
        return None if self._cost is None else self._cost / NANO

    # what is left

    def spent(self, kind: str) -> float | None:
        """Of ``steps``, ``tokens`` or ``cost``; None where nobody knows."""
        spent = self._spent(kind)
        return spent if spent is None or kind != "cost" else spent / NANO

    def _spent(self, kind: str) -> int | None:
        return self.steps if kind == "steps" else self.usage.total if kind == "tokens" else self._cost

    def _own(self, kind: str) -> int | None:
        """What its own limit leaves; None without one."""
        limit, spent = self._limits[kind], self._spent(kind)
        return None if limit is None else 0 if spent is None else limit - spent - self._aside[kind]

    def _left(self, kind: str) -> int | None:
        own = self._own(kind)
        if kind in self._held or self.whole is None:
            return own
        above = self.whole._left(kind)
        return above if own is None else own if above is None else min(own, above)

    def left(self, kind: str) -> float | None:
        """What may still be spent of ``steps``, ``tokens`` or ``cost``; None where nothing limits it."""
        left = self._left(kind)
        return left if left is None or kind != "cost" else left / NANO

    def part(self, limits: Limits) -> Meter:
        """A meter inside of this one for which its limits are set aside.

        :raises UsageError: if there is not so much left.
        """
        made = Meter(limits, self)
        for kind in KINDS:
            wanted, left = made._limits[kind], self._left(kind)
            if wanted is not None and (wanted < 0 or (left is not None and wanted > left)):
                rest = dollars(max(0, left or 0) / NANO) if kind == "cost" else max(0, left or 0)
                raise UsageError(f"{said(kind, wanted)} are asked for, and {rest} are left", remedy="ask for less", code="BUDGET_EXCEEDED")
        for kind in KINDS:
            if made._limits[kind] is not None:
                made._held[kind] = 0
                made._hold(kind)
        return made

    def close(self) -> None:
        """Give back what was set aside and not spent."""
        for kind, held in tuple(self._held.items()):
            del self._held[kind]
            if self.whole is not None:
                self.whole._set_aside(kind, -held)

    def _hold(self, kind: str) -> None:
        """Hold above what this one, or a part of it, may still spend."""
        held, limit, spent = self._held.get(kind), self._limits[kind], self._spent(kind)
        if held is None or limit is None or self.whole is None:
            return
        self._held[kind] = max(0 if spent is None else limit - spent, self._aside[kind], 0)
        self.whole._set_aside(kind, self._held[kind] - held)

    def _set_aside(self, kind: str, amount: int) -> None:
        if self._limits[kind] is not None:
            self._aside[kind] += amount
        if kind in self._held:
            self._hold(kind)
        elif self.whole is not None:
            self.whole._set_aside(kind, amount)

    # spending

    @property
    def counts_cost(self) -> bool:
        return self.limits.cost is not None or (self.whole is not None and self.whole.counts_cost)

    def spend(self, usage: Usage | None, cost: Callable[[Usage], float | None], model: str = "") -> None:
        """Count one answered request.

        :param cost: the price of the model's tokens, asked only where cost is limited.
        :param model: who answered.
        """
        self.own_steps += 1
        self.count(usage, cost, model, steps=1)

    def count(self, usage: Usage | None, cost: Callable[[Usage], float | None], model: str = "", *, steps: int = 0) -> None:
        """Count tokens that were no answer to the conversation."""
        if usage is not None:
            self.models[model] = self.models.get(model, Usage()) + usage
            self.own_usage = self.own_usage + usage
        price = cost(usage) if usage is not None and self.counts_cost else None
        self._spend(usage, None if price is None else round(price * NANO), steps)

    def _spend(self, usage: Usage | None, cost: int | None, steps: int) -> None:
        self.steps += steps
        if usage is not None:
            self.usage = self.usage + usage
        if self.counts_cost and self._cost is not None:
            self._cost = None if cost is None else self._cost + cost
        for kind in self._held:
            self._hold(kind)
        if self.whole is not None:
            self.whole._spend(usage, cost, steps)

    def exhausted(self) -> str:
        """Which limit forbids another request, in words; empty while none does."""
        for kind in KINDS:
            left = self._left(kind)
            if left is not None and left <= 0:
                return self._exhausted(kind)
        return ""

    def _exhausted(self, kind: str) -> str:
        limit, own = self._limits[kind], self._own(kind)
        if (limit is None or own is None or own > 0) and self.whole is not None:
            return self.whole._exhausted(kind)
        aside = f"{dollars(self._aside[kind] / NANO) if kind == 'cost' else self._aside[kind]} set aside" if self._aside[kind] else ""
        spent = f"{self.usage.total} used" if kind == "tokens" else ""
        if kind == "cost":
            spent = "nobody knows how much is spent" if self._cost is None else f"{said(kind, self._cost)} spent"
        why = ", ".join(each for each in (spent, aside) if each)
        return f"the limit of {said(kind, limit or 0)} is reached" + (f" ({why})" if why else "")

    def warning(self) -> str:
        """What to tell the agent when it is near a limit, once; empty otherwise."""
        if self._warned:
            return ""
        left: list[str] = []
        for kind, more in (("steps", "more answers"), ("tokens", "more tokens"), ("cost", "more")):
            limit, own = self._limits[kind], self._own(kind)
            if limit is None or own is None or limit - own < SOFT * limit * (1 - 1e-12) or (kind == "steps" and limit <= 1):
                continue
            if kind != "cost" or self._cost is not None:
                left.append(f"{dollars(max(0, own) / NANO, 2) if kind == 'cost' else max(0, own)} {more}")
        if not left:
            return ""
        self._warned = True
        return f"Your budget allows {' and '.join(left)}. Come to an end: finish what you are at, and say what is left to do."


def said(kind: str, amount: int) -> str:
    """An amount of a kind, for people."""
    return dollars(amount / NANO) if kind == "cost" else f"{amount} {kind}"
