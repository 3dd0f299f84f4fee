"""The prompt service: who may say what in the system prompt, and where.

Sections are sorted by their order: identity −100, persona 0, guidance of tools 100–199. Empty ones are dropped, the rest is joined
by blank lines. ``{{name}}`` stands for a variable; one that is unknown, without a value or malformed is an error, and what a value
contains is not looked at again. Listeners of :class:`Assemble` have the last word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from hames.compose.config import RowConfig
from hames.content.errors import ConfigError
from hames.kernel import Around, Context, Key, Registry, Scope, plugin

IDENTITY = "You are an agent of Hames, a harness for teams of coding agents. You work in a real repository through the tools you are given."
VARIABLE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a variable or a section may depend on.

    :param model: the reference of the model that the request goes to.
    :param cwd: the absolute directory that the agent works in.
    """

    scope: Scope
    model: str
    cwd: str


Value = Callable[[Facts], str | None]


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that agents are told in a message when it changes, and again after a compaction.

    :param quiet: told after a compaction only: the conversation itself has told it before.
    """

    value: Value
    quiet: bool = False


@dataclass(slots=True)
class Section:
    """A part of the system prompt, its variables not yet filled in."""

    name: str
    order: int
    text: str


@dataclass(slots=True)
class Assembly:
    """What a system prompt is about to be made of; listeners may change all of it."""

    facts: Facts
    sections: list[Section]
    variables: dict[str, str | None] = field(default_factory=dict[str, "str | None"])


@dataclass(frozen=True, slots=True)
class Assemble(Around[Assembly]):
    """A system prompt is being assembled for a request."""

    facts: Facts


class Prompts:
    """The sections and variables that a scope sees."""

    def __init__(self) -> None:
        self.sections: Registry[Value] = Registry("prompt section")
        self.variables: Registry[Value] = Registry("prompt variable")
        self.facts: Registry[Fact] = Registry("fact")

    def section(self, ctx: Context, name: str, text: str | Value, *, order: int) -> None:
        """Add a section for the lifetime of ``ctx``.

        :param text: the text, or a function of the facts; None or an empty text leaves the section out.
        """
        value: Value = text if callable(text) else lambda facts: text
        self.sections.add(ctx, name, value, order=order)

    def variable(self, ctx: Context, name: str, value: Value) -> None:
        """Define ``{{name}}`` for the lifetime of ``ctx``.

        :raises ConfigError: if the name is not of the form ``[a-z][a-z0-9_]*``.
        """
        if not NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no name of a prompt variable", remedy="use lower-case letters, digits and _")
        self.variables.add(ctx, name, value)

    def fact(self, ctx: Context, name: str, value: Value, *, order: int = 0, quiet: bool = False) -> None:
        """Tell agents something in messages of the harness, for the lifetime of ``ctx``: at the first step, whenever it has changed, and
        again after a compaction. The system prompt, and with it the cached prefix, stays as it is.

        :param value: gives the text; None or an empty one says nothing. Asked before each request, so it must be fast.
        :param quiet: tell it after a compaction only.
        """
        self.facts.add(ctx, name, Fact(value, quiet), order=order)

    def news(self, facts: Facts, told: Mapping[str, str], *, compacted: bool) -> tuple[list[str], dict[str, str]]:
        """What is to be told now, and the digests of all facts in it.

        :param told: the digests of what stands in the conversation.
        :param compacted: whether the conversation begins with a summary.
        """
        texts: list[str] = []
        digests: dict[str, str] = {}
        for name, fact in self.facts.view(facts.scope).items():
            text = fact.value(facts) or ""
            digest = sha256(text.encode("utf-8", "replace")).hexdigest()[:16] if text else ""
            if digest == told.get(name, ""):
                continue
            digests[name] = digest
            if text and (not fact.quiet or (compacted and name not in told)):
                texts.append(text)
        return texts, digests

    async def assemble(self, ctx: Context, facts: Facts) -> str:
        """The system prompt for a request; empty where nothing has anything to say.

        :raises ConfigError: if a variable is unknown, has no value, or is malformed.
        """

        async def base(call: Assemble) -> Assembly:
            sections = [
                Section(name, entry.order, text)
                for name, entry in self.sections.entries(facts.scope).items()
                if (text := entry.value(facts)) is not None
            ]
            variables = {name: value(facts) for name, value in self.variables.view(facts.scope).items()}
            return Assembly(facts, sections, variables)

        assembly = await ctx.around(Assemble(facts), base, at=facts.scope)
        return render(assembly)


def render(assembly: Assembly) -> str:
    """The text of an assembly."""

    def value(match: re.Match[str], section: Section) -> str:
        name = match.group(1).strip()
        found = assembly.variables.get(name)
        if found is None:
            why = "has no value" if name in assembly.variables else "is not defined" if NAME.fullmatch(name) else "is malformed"
            known = ", ".join(sorted(name for name, text in assembly.variables.items() if text is not None)) or "none"
            raise ConfigError(
                f"prompt section {section.name!r}: variable {{{{{name}}}}} {why}", remedy=f"variables with a value here: {known}"
            )
        return found

    texts = [
        VARIABLE.sub(lambda match, section=section: value(match, section), section.text) if "{{" in section.text else section.text
        for section in sorted(assembly.sections, key=lambda section: section.order)
    ]
    return "\n\n".join(text.strip() for text in texts if text.strip())


PROMPTS: Key[Prompts] = Key("prompts")


class PromptsConfig(RowConfig):
    """Who the agents are."""

    persona: str = ""
    """What this deployment's agents are for, and how they behave; may use ``{{model}}`` and ``{{cwd}}``."""
    identity: bool = True
    """Whether the prompt begins by saying that the agent runs in Hames."""


@plugin(config=PromptsConfig, name="prompts")
def prompts(ctx: Context, config: PromptsConfig) -> None:
    """Provide the prompt service with identity and persona."""
    service = Prompts()
    if config.identity:
        service.section(ctx, "identity", IDENTITY, order=-100)
    if config.persona:
        service.section(ctx, "persona", config.persona, order=0)
    ctx.provide(PROMPTS, service)
