"""Events: dataclasses whose base says how they are dispatched.

A *notice* tells observers; each gets its own snapshot and none can harm another. An *ask* goes to one listener after the other
until one answers. An *around* wraps a call. Which listeners are asked is the scope's affair (``Scope.handlers``).
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import fields
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Notice:
    """A fact. Dispatched synchronously; a listener that raises is recorded and the next one is told."""


class Ask(Generic[T]):
    """A question. The first listener that returns something else than None has answered it."""


class Around(Generic[T]):
    """A call that listeners may wrap: each gets the event and ``proceed``, and returns what the caller gets."""


Handler = Callable[..., Any]
ATOMS = frozenset({str, int, float, bool, bytes, type(None)})


def check_handler(event: type[Any], handler: Handler) -> None:
    """Refuse a handler of the wrong colour when it is registered, not when it is called.

    :raises TypeError: a coroutine function for a notice, or another function for an ask or an around.
    """
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
    if issubclass(event, Notice):
        if is_async:
            raise TypeError(f"{event.__name__} is a notice: its listener must be a plain function, not a coroutine function")
        if not is_frozen(event):
            raise TypeError(f"{event.__name__} is a notice: it must be a frozen dataclass")
    elif issubclass(event, (Ask, Around)):
        if not is_async:
            raise TypeError(f"a listener of {event.__name__} must be a coroutine function")
    else:
        raise TypeError(f"{event.__name__} is not an event: derive it from Notice, Ask or Around")


def is_frozen(cls: type[Any]) -> bool:
    """Whether a class is a frozen dataclass."""
    parameters: Any = getattr(cls, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


_names: dict[type[Any], tuple[str, ...]] = {}


def snapshot(notice: Any) -> Any:
    """A copy that shares nothing mutable with the original; live objects, which are no data, stay references."""
    cls: type[Any] = notice.__class__
    names = _names.get(cls)
    if names is None:
        names = _names[cls] = tuple(field.name for field in fields(cls))
    for name in names:
        value = getattr(notice, name)
        if value.__class__ not in ATOMS and copied(value) is not value:
            made = object.__new__(cls)
            for field in names:
                object.__setattr__(made, field, copied(getattr(notice, field)))
            return made
    return notice


def copied(value: Any) -> Any:
    """The value itself if nothing in it can change, else a copy of the data in it."""
    cls: Any = value.__class__
    if cls in ATOMS:
        return value
    if cls is tuple:
        parts = tuple(copied(item) for item in value)
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
    if isinstance(value, dict):
        made = cast(dict[Any, Any], copy(value))  # pyright: ignore[reportUnknownArgumentType]
        for key in made:
            made[key] = copied(made[key])
        return made
    if isinstance(value, list | deque):
        items = cast(list[Any], copy(value))  # pyright: ignore[reportUnknownArgumentType]
        for index, item in enumerate(items):
            items[index] = copied(item)
        return items
    if isinstance(value, set | bytearray):
        return copy(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return snapshot(value) if is_frozen(cls) else value


async def call_around(handlers: tuple[Handler, ...], call: Any, inner: Callable[[Any], Awaitable[T]]) -> T:
    """Run ``inner`` inside the handlers, the first of them outermost."""
    if not handlers:
        return await inner(call)
    head, rest = handlers[0], handlers[1:]

    async def proceed(changed: Any = call) -> T:
        return await call_around(rest, changed, inner)

    return await head(call, proceed)
