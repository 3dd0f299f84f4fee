"""What a tool is: a typed function with a docstring.

The first paragraph of the docstring is what the model is told; ``:param name:`` lines describe its parameters. A parameter that is
annotated with :class:`Invocation` is not the model's: it gives the function its surroundings.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from hames.content.messages import Image, Text
from hames.content.paths import expanded
from hames.policy import Capability, Mode
from hames.sandbox import Confinement, Sandbox
from hames.sandbox.protect import Rules

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hames.kernel import Scope


class ToolError(Exception):
    """A tool's own way to say that the call failed.

    :param code: a stable word.
    """

    def __init__(self, message: str, code: str = "FAILED") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Output:
    """A result that is more than a text.

    :param concludes: the turn ends with this result.
    """

    content: tuple[Text | Image, ...]
    is_error: bool = False
    code: str = ""
    concludes: bool = False


def unconfined() -> Sandbox:
    return Sandbox("none", Path("/nonexistent"), Rules)


@dataclass(slots=True)
class Invocation:
    """The surroundings of one call.

    :param cwd: the absolute directory that the agent works in.
    :param memory: what tools remember for the life of the agent, by a name of their own.
    :param spill: keeps a text that is too long for the model and returns the path of its file.
    :param session: that of the agent; empty outside of one.
    :param scratch: a directory for temporary files of the agent, made when it is needed.
    :param ceiling: the widest mode that the agent may have.
    :param note: logs an event of the call in the session.
    :param progress: tells people how far the call is.
    :param keep_picture: keeps the bytes of a picture for models that see; None outside of a conversation.
    :param confinement: what the call may reach, once it is allowed.
    :param sandbox: holds it to that.
    """

    call_id: str
    scope: Scope
    cwd: Path
    memory: dict[str, Any]
    spill: Callable[[bytes, str], Path]
    session: str = ""
    scratch: Path | None = None
    ceiling: Mode = "full"
    note: Callable[[str, dict[str, Any]], None] = lambda type, data: None
    progress: Callable[[str], None] = lambda text: None
    keep_picture: Callable[[str, bytes], Image] | None = None
    confinement: Confinement = Confinement()
    sandbox: Sandbox = field(default_factory=unconfined)

    def path(self, name: str, *, write: bool = False) -> Path:
        """An absolute path from what a model wrote, where it is for this call.

        :param write: whether it is to be written.
        """
        return self.sandbox.located(self.cwd / expanded(name), self.confinement, write=write)

    def real(self, name: str, *, write: bool = False) -> Path:
        """The canonical path of what a model wrote.

        :raises ToolError: if it is no path, or its links lead in a circle.
        """
        try:
            path = self.path(name, write=write).resolve()
            path.exists()
        except (OSError, RuntimeError, ValueError) as error:
            said = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
            raise ToolError(f"{name[:200]!r}: {said}", "UNREADABLE") from None
        return path

    def open(self, path: Path) -> int:
        """A descriptor of a file for reading.

        :raises Refused: if the call may not read it.
        :raises OSError: if it cannot be read.
        """
        return self.sandbox.open(path.resolve(), self.confinement)

    def replace(self, path: Path, data: bytes) -> None:
        """Write a file whole or not at all, with the mode that it had; missing directories are made.

        :raises Refused: if the call may not write it.
        :raises OSError: if it cannot be written; it is as it was then.
        """
        self.sandbox.replace(path.resolve(), data, self.confinement)


@dataclass(frozen=True, slots=True)
class Needs:
    """What one call needs, given its arguments.

    :param writes: paths that it writes itself.
    :param unconfined: why it asks to run outside of the sandbox; empty where it does not.
    :param whole: an answer for longer than once is about the tool, whatever its arguments.
    :param confined: whether what it runs is in the sandbox; a program of somebody else's that runs already is not.
    """

    capabilities: frozenset[Capability]
    writes: tuple[Path, ...] = ()
    unconfined: str = ""
    whole: bool = False
    confined: bool = True


Body = Callable[..., Awaitable[str | Output] | str | Output]


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """A tool.

    :param make_model: makes what validates arguments, when it is first needed; None for a tool whose parameters are given as a schema.
    :param parameters: JSON Schema of its arguments.
    :param capabilities: the classes of what a call may do, whatever its arguments.
    :param parallel: whether calls may run beside each other and beside other such tools.
    :param needs: what a call needs given its validated arguments; None where that is always ``capabilities``.
    :param timeout: seconds after which a call is cancelled; None for tools that have their own limit.
    :param invocation: the name of the body's parameter that takes the surroundings; empty where there is none.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    body: Body
    capabilities: frozenset[Capability]
    make_model: Callable[[], type[BaseModel]] | None = None
    parallel: bool = False
    timeout: float | None = 600.0
    invocation: str = ""
    needs: Callable[[Mapping[str, Any], Invocation], Needs] | None = None

    @property
    def model(self) -> type[BaseModel] | None:
        """Validates arguments; None for a tool whose parameters are given as a schema."""
        return None if self.make_model is None else self.make_model()


def tool(
    *capabilities: Capability,
    name: str = "",
    parallel: bool = False,
    timeout: float | None = 600.0,
    needs: Callable[[Mapping[str, Any], Invocation], Needs] | None = None,
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function.

    :param capabilities: what a call may do: ``read write execute network delegate``.
    :param needs: what a call needs given its validated arguments, where that is less or more than ``capabilities`` say.
    :raises TypeError: if a parameter has no type, or the function no docstring.
    """

    def decorate(body: Callable[..., Any]) -> Tool:
        made = build(body, name or body.__name__.rstrip("_"), frozenset(capabilities), parallel, timeout)
        return made if needs is None else replace(made, needs=needs)

    return decorate


def build(body: Callable[..., Any], name: str, capabilities: frozenset[Capability], parallel: bool, timeout: float | None) -> Tool:
    if not body.__doc__:
        raise TypeError(f"tool {name} has no docstring to tell the model what it does")
    description, notes = split_docstring(body.__doc__)
    hints = get_type_hints(body, include_extras=True)
    invocation = ""
    fields: dict[str, tuple[Any, Any, str | None]] = {}
    for parameter in inspect.signature(body).parameters.values():
        hint = hints.get(parameter.name)
        if hint is None:
            raise TypeError(f"parameter {parameter.name} of tool {name} has no type")
        if hint is Invocation:
            invocation = parameter.name
            continue
        fields[parameter.name] = (hint, parameter.default, notes.get(parameter.name))

    @cache
    def model() -> type[BaseModel]:
        from pydantic import ConfigDict, Field, create_model

        made: dict[str, Any] = {
            each: (hint, Field(... if default is inspect.Parameter.empty else default, description=note))
            for each, (hint, default, note) in fields.items()
        }
        return create_model(name, __config__=ConfigDict(extra="forbid"), **made)

    schema = plain_schema(fields) or trimmed(model().model_json_schema())
    return Tool(name, description, schema, body, capabilities, model, parallel, timeout, invocation)


PLAIN: dict[Any, str] = {str: "string", int: "integer", bool: "boolean", float: "number"}
BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def plain_schema(fields: Mapping[str, tuple[Any, Any, str | None]]) -> dict[str, Any] | None:
    """The schema of parameters that are plain, exactly as pydantic has it: it takes a millisecond for each tool, and this takes none.

    :returns: None where a parameter is not plain.
    """
    properties: dict[str, Any] = {}
    for name, (hint, default, note) in fields.items():
        bounds: dict[str, Any] = {}
        if get_origin(hint) is Annotated:
            hint, info = get_args(hint)[:2]
            for bound in getattr(info, "metadata", [None]):
                known = [key for key in BOUNDS if hasattr(bound, key)]
                if len(known) != 1:
                    return None
                bounds[BOUNDS[known[0]]] = getattr(bound, known[0])
        if hint not in PLAIN:
            return None
        members = {"type": PLAIN[hint], **bounds}
        members |= {} if default is inspect.Parameter.empty else {"default": default}
        members |= {} if note is None else {"description": note}
        properties[name] = dict(sorted(members.items()))
    required = [name for name, (_, default, _) in fields.items() if default is inspect.Parameter.empty]
    schema: dict[str, Any] = {"additionalProperties": False, "properties": properties}
    return {**schema, **({"required": required} if required else {}), "type": "object"}


def split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description, and what is said of each parameter."""
    parts = re.split(r"^:param (\w+):", inspect.cleandoc(text), flags=re.MULTILINE)
    notes = {parts[i]: " ".join(parts[i + 1].split()) for i in range(1, len(parts), 2)}
    return parts[0].strip(), notes


def trimmed(schema: Any) -> Any:
    """A schema without the titles that pydantic adds: the model pays for each word."""
    if isinstance(schema, dict):
        return {key: trimmed(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(schema, list):
        return [trimmed(item) for item in schema]  # pyright: ignore[reportUnknownVariableType]
    return schema
