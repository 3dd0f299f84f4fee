"""The registry of those who execute tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from hames.kernel import Context, Effect, Registry, Scope

if TYPE_CHECKING:
    from hames.delegation.runner import Runner


class Runners:
    """The runners that scopes see.

    A runner comes with its registration and goes with it: one that has gone takes no new tasks, and what runs goes on. A watcher of the
    registry may refuse one that comes, which is not registered then; one that fails when a runner goes keeps nothing and nobody.
    """

    def __init__(self) -> None:
        self.registry: Registry[Callable[[], Runner]] = Registry("runner")
        self._there: dict[str, int] = {}

    def count(self, name: str) -> int:
        """How many runners of a name are registered, seen or not: what is about to be shown counts."""
        return self._there.get(name, 0)

    def _add(self, ctx: Context, name: str, make: Callable[[], Runner]) -> Effect:
        effect = self.registry.add(ctx, name, make)

        def gone() -> None:
            self._there[name] -= 1

        ctx.effect(f"runner {name} is there", gone)
        self._there[name] = self.count(name) + 1
        return effect

    def register(self, ctx: Context, runner: Runner) -> Effect:
        """Offer a runner for the lifetime of ``ctx``.

        :raises DuplicateError: if its scope has one of this name.
        """
        return self._add(ctx, runner.name, lambda: runner)

    def offer(self, ctx: Context, name: str, make: Callable[[], Runner]) -> Effect:
        """Offer one that is made when it is first needed.

        :raises DuplicateError: if its scope has one of this name.
        """
        return self._add(ctx, name, cache(make))

    def choose(self, scope: Scope, name: str) -> Runner:
        """The runner of a name.

        :raises Refused: ``RUNNER_UNKNOWN``.
        """
        found = self.registry.get(scope, name)
        if found is None:
            from hames.delegation.failures import Refused

            known = ", ".join(self.registry.view(scope)) or "none"
            raise Refused("RUNNER_UNKNOWN", f"there is no runner {name!r}", remedy=f"there are {known}")
        return found()
