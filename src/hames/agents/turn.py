"""How a turn ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hames.content.finish import Failure, Usage, encode_failure

Reason = Literal["completed", "max-tokens", "refusal", "aborted", "budget", "error"]


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The outcome of one turn.

    :param text: the last answer of the model, or what there is of it.
    :param detail: what stopped it, in a line; empty when it completed.
    :param code: a stable word for what failed, where it was not the model.
    :param remedy: what can be done about it, in a line; empty where nothing is known.
    :param steps: model requests that were answered in this turn.
    :param models: of ``usage``, what each model spent.
    :param below: what tasks spent that were started in this turn, as far as they did so before its end.
    """

    reason: Reason
    text: str = ""
    detail: str = ""
    failure: Failure | None = None
    usage: Usage = Usage()
    steps: int = 0
    code: str = ""
    remedy: str = ""
    models: tuple[tuple[str, Usage], ...] = ()
    below: Usage = Usage()
    steps_below: int = 0

    def as_json(self) -> dict[str, Any]:
        """The outcome as an object; empty members are left out."""
        members = {
            "status": self.reason,
            "text": self.text,
            "detail": self.detail,
            "code": self.code,
            "remedy": self.remedy,
            "failure": encode_failure(self.failure) if self.failure is not None else None,
            "usage": self.usage.as_json(),
            "steps": self.steps,
            "below": {"usage": self.below.as_json(), "steps": self.steps_below} if self.steps_below else None,
        }
        return {key: value for key, value in members.items() if value not in ("", None)}
