"""The limits of one agent, and the meter that holds it to them."""

from __future__ import annotations

from dataclasses import dataclass

from hames.content.finish import Usage


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may spend; None is without limit.

    :param steps: model requests that were answered.
    :param tokens: input, output and cache tokens together.
    """

    steps: int | None = None
    tokens: int | None = None


class Meter:
    """Counts one run against its limits."""

    __slots__ = ("limits", "steps", "usage")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.steps = 0
        self.usage = Usage()

    def spend(self, usage: Usage | None) -> None:
        """Count one answered request."""
        self.steps += 1
        if usage is not None:
            self.usage = self.usage + usage

    def exhausted(self) -> str:
        """Which limit forbids another request, in words; empty while none does."""
        limits = self.limits
        if limits.steps is not None and self.steps >= limits.steps:
            return f"the limit of {limits.steps} steps is reached"
        if limits.tokens is not None and self.usage.total >= limits.tokens:
            return f"the limit of {limits.tokens} tokens is reached ({self.usage.total} used)"
        return ""
