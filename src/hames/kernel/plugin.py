"""What a plugin is: a body and the facts about it that are read before the body runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(Enum):
    FUNCTION = "function"
    GENERATOR = "generator"
    ASYNC = "async generator"


@dataclass(frozen=True, slots=True, eq=False)
class Plugin:
    """A mountable body.

    :param body: called with ``(ctx, config)``; what stands before its one ``yield`` mounts it, what follows unmounts it.
    :param config: the model that a composition validates its configuration with; the kernel never looks inside.
    :param needs: keys that must be there before the body runs; the mount restarts when one of them is replaced.
    :param wants: keys that the body uses when they are there.
    :param start_limit: seconds for the start of an asynchronous body.
    :param stop_limit: seconds for what follows its ``yield`` and for its deferred undos.
    """

    name: str
    body: Callable[..., Any]
    kind: Kind
    config: type[Any] | None = None
    needs: tuple[Any, ...] = ()
    wants: tuple[Any, ...] = ()
    start_limit: float = 30.0
    stop_limit: float = 10.0


def kind_of(body: Callable[..., Any]) -> Kind:
    """Tell the three shapes of a body apart.

    :raises TypeError: for a coroutine function, whose clean-up could never run.
    """
    if inspect.isasyncgenfunction(body):
        return Kind.ASYNC
    if inspect.isgeneratorfunction(body):
        return Kind.GENERATOR
    if inspect.iscoroutinefunction(body):
        raise TypeError(f"plugin {body.__qualname__} is async but never yields; add a yield where its start ends")
    return Kind.FUNCTION


def plugin(
    *,
    config: type[Any] | None = None,
    needs: tuple[Any, ...] = (),
    wants: tuple[Any, ...] = (),
    start_limit: float = 30.0,
    stop_limit: float = 10.0,
    name: str = "",
) -> Callable[[Callable[..., Any]], Plugin]:
    """Make a plugin of a function, a generator or an async generator that takes ``(ctx, config)``."""

    def decorate(body: Callable[..., Any]) -> Plugin:
        return Plugin(name or body.__name__, body, kind_of(body), config, needs, wants, start_limit, stop_limit)

    return decorate
