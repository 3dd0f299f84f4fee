"""How a piece of work ended: immutable, and the same whoever did it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hames.content.finish import Usage
from hames.content.jsontext import as_object
from hames.content.messages import clean
from hames.delegation.failures import ENDED, FAILURES, Fault, Status

Level = Literal["enforced", "requested", "unsupported"]

DIAGNOSTIC = 4096
"""Bytes of a diagnostic."""


@dataclass(frozen=True, slots=True)
class UsageItem:
    """Tokens of one model.

    :param scope: ``own`` what the task itself spent, ``below`` what the tasks that it started did.
    :param reliability: ``reported`` by the provider, or ``estimated``.
    """

    model: str
    usage: Usage
    scope: Literal["own", "below"] = "own"
    reliability: Literal["reported", "estimated"] = "reported"

    def as_json(self) -> dict[str, Any]:
        return {"model": self.model, "scope": self.scope, "reliability": self.reliability, **self.usage.as_json()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended.

    :param fault: whose fault it is that it is not as it should be.
    :param code: why, a word of :data:`hames.delegation.failures.TABLE`; empty where it completed.
    :param text: its last words, or what there is of them.
    :param value: what follows the schema; only where ``schema_valid``.
    :param raw: what it said where a schema was asked for and missed.
    :param schema_valid: None where no schema was asked for.
    :param tries: how often a value was offered.
    :param partial: whether the text is what there was when it was stopped.
    :param diagnostic: what happened, for a person: at most 4,096 bytes, without a secret.
    :param cost: US dollars, its own and of all below; None where nobody knows.
    :param assurance: what was really obtained of each option that was asked for.
    :param attempts: how often it was launched.
    :param steps: model requests that were answered.
    :param native: the conversation as its runner names it; that of a session where Hames itself did the work.
    :param proceed: the command that goes on with it; empty where that is not possible.
    """

    status: Status
    fault: Fault = "none"
    code: str = ""
    text: str = ""
    value: Any = None
    raw: str = ""
    schema_valid: bool | None = None
    tries: int = 0
    partial: bool = False
    diagnostic: str = ""
    usage: tuple[UsageItem, ...] = ()
    cost: float | None = None
    assurance: Mapping[str, Level] = field(default_factory=dict[str, Level])
    attempts: int = 1
    steps: int = 0
    native: str = ""
    proceed: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "completed"

    @property
    def exit_status(self) -> int:
        """That of a command which ends with it."""
        return 0 if self.ok else FAILURES[self.code].exit if self.code in FAILURES else ENDED

    def as_json(self) -> dict[str, Any]:
        """The durable form; members at their default are left out."""
        members = {name: getattr(self, name) for name in PLAIN if getattr(self, name) != DEFAULTS[name]}
        if self.schema_valid is not None:
            members["schema_valid"] = self.schema_valid
        if self.value is not None or self.schema_valid:
            members["value"] = self.value
        if self.usage:
            members["usage"] = [item.as_json() for item in self.usage]
        if self.cost is not None:
            members["cost"] = self.cost
        if self.assurance:
            members["assurance"] = dict(self.assurance)
        return {"status": self.status, **members}


PLAIN = ("fault", "code", "text", "raw", "tries", "partial", "diagnostic", "attempts", "steps", "native", "proceed")
DEFAULTS: dict[str, Any] = dict.fromkeys(PLAIN, "") | {"fault": "none", "tries": 0, "partial": False, "attempts": 1, "steps": 0}
TOKENS = ("input", "output", "cache_read", "cache_write", "reasoning")


def decode_outcome(data: Mapping[str, Any]) -> Outcome:
    """The inverse of :meth:`Outcome.as_json`; members of later versions are passed over."""
    plain = {name: data[name] for name in PLAIN if name in data}
    usage = tuple(
        UsageItem(
            item.get("model", ""),
            Usage(**{name: item[name] for name in TOKENS if name in item}),
            item.get("scope", "own"),
            item.get("reliability", "reported"),
        )
        for item in map(as_object, data.get("usage", ()))
    )
    return Outcome(
        data.get("status", "unknown"),
        **plain,
        value=data.get("value"),
        schema_valid=data.get("schema_valid"),
        usage=usage,
        cost=data.get("cost"),
        assurance=data.get("assurance", {}),
    )


def failed(code: str, diagnostic: str = "", **more: Any) -> Outcome:
    """An outcome of the table of failures."""
    return Outcome(FAILURES[code].status, FAILURES[code].fault, code, diagnostic=bounded(diagnostic), **more)


def bounded(text: str, limit: int = DIAGNOSTIC) -> str:
    """A text of at most so many bytes; what was longer says so at its end."""
    data = clean(text).encode()
    if len(data) <= limit:
        return data.decode()
    mark = " […]"
    return data[: limit - len(mark.encode())].decode("utf-8", "ignore") + mark
