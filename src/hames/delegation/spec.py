"""What a piece of work is, before it begins: immutable, and the same for every runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from typing import Any, Literal

from hames.budget import Limits
from hames.content.jsontext import as_list_of_texts, as_object, dumps
from hames.policy import Mode as Permission

Mode = Literal["foreground", "background", "continuable"]
Assurance = Literal["enforced", "requested"]

SHARED, WORKTREE = "shared", "worktree"
NEEDS_ENFORCED = frozenset({"tools", "permission", "isolation"})
"""Options that a runner has to enforce, unless the task says that asking for them is enough."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One piece of work.

    :param prompt: what is to be done, whole: whoever does it sees nothing else, unless the runner hands on the conversation.
    :param label: a few words for people.
    :param runner: who executes it; empty for the one that is configured.
    :param role: the name of a role; empty for none.
    :param model: a reference as in ``openai:gpt-5``; empty for that of whoever starts it.
    :param effort: how much to reason, a word of the provider's.
    :param schema: a JSON Schema that the result has to follow; None for a result in words.
    :param tools: names or patterns of the tools that it may use; None for all that may be handed down.
    :param permission: the widest permission mode that it may have; empty for that of whoever starts it.
    :param budget: what it, and all below it, may spend. Its ``steps``, ``tokens`` and ``cost`` are set aside from what is left above.
    :param isolation: ``shared`` works in the directory of whoever starts it, ``worktree`` in a checkout of its own.
    :param directory: an absolute directory to work in; empty for that of whoever starts it.
    :param inputs: files that are given along: a name and the SHA-256 of its bytes in the blob store.
    :param retries: further attempts after a fault that is not the child's.
    :param mode: a ``continuable`` one keeps its conversation, which takes further messages while it runs and goes on with them later.
    :param priority: the larger gets a free slot first, among those of one conversation.
    :param assurance: ``requested`` accepts a runner that is only asked to keep to tools, permission and isolation.
    :param labels: what else people want to find it by.
    :param after: the task that this is another attempt at; empty for none.
    :param because: why there is another one, where the outcome of the earlier does not say it.
    :param missing: what the result of the earlier one lacked.
    """

    prompt: str
    label: str = ""
    runner: str = ""
    role: str = ""
    model: str = ""
    effort: str = ""
    schema: Mapping[str, Any] | None = None
    tools: tuple[str, ...] | None = None
    permission: Permission | Literal[""] = ""
    budget: Limits = Limits()
    isolation: str = SHARED
    directory: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    mode: Mode = "foreground"
    retries: int = 0
    priority: int = 0
    assurance: Assurance = "enforced"
    labels: tuple[str, ...] = ()
    after: str = ""
    because: str = ""
    missing: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """A line for people."""
        return self.label or " ".join(self.prompt.split())[:72]

    def asked(self) -> set[str]:
        """The options that a runner has to know of."""
        given = {name for name in ("schema", "tools") if getattr(self, name) is not None}
        given |= {name for name in ("role", "model", "effort", "permission", "inputs") if getattr(self, name)}
        given |= {name for name in ("steps", "tokens", "cost") if getattr(self.budget, name) is not None}
        given |= {"isolation"} if self.isolation != SHARED else set()
        return given | ({"continuable"} if self.mode == "continuable" else set())

    def as_json(self) -> dict[str, Any]:
        """The durable form; members at their default are left out."""
        members: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "budget":
                value = {name: limit for name, limit in asdict(self.budget).items() if limit is not None}
            if value != DEFAULTS.get(each.name) and (value not in ({}, ()) or each.name == "schema"):
                members[each.name] = list(as_list_of_texts(value)) if isinstance(value, tuple) else value
        return members

    @property
    def digest(self) -> str:
        """Two tasks of the same digest ask for the same."""
        return sha256(dumps(self.as_json()).encode("utf-8", "replace")).hexdigest()


DEFAULTS = {each.name: each.default for each in fields(TaskSpec)}


def decode_spec(data: Mapping[str, Any]) -> TaskSpec:
    """The inverse of :meth:`TaskSpec.as_json`; members of later versions are passed over."""
    known: dict[str, Any] = {name: value for name, value in data.items() if name in DEFAULTS}
    limits = {name: value for name, value in as_object(known.pop("budget", {})).items() if name in Limits.__slots__}
    for name in ("tools", "labels", "missing"):
        if name in known:
            known[name] = as_list_of_texts(known[name])
    members: dict[str, Any] = {"prompt": "", **known, "budget": Limits(**limits)}
    return TaskSpec(**members)
