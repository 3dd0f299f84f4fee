"""Typed names of services."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Key(Generic[T]):
    """A typed constant under which a service is provided; a class can serve as its own key instead.

    :param name: what messages call it.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Key({self.name!r})"


AnyKey = Key[T] | type[T]


def key_name(key: object) -> str:
    """What messages call a key."""
    return key.name if isinstance(key, Key) else getattr(key, "__name__", repr(key))
