"""What a tool is: a typed function with a docstring.

The first paragraph of the docstring is what the model is told; ``:param name:`` lines describe its parameters. A parameter that is
annotated with :class:`Invocation` is not the model's: it gives the function its surroundings.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from hames.content.messages import Image, Text
from hames.content.paths import expanded
from hames.policy import Capability

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


@dataclass(slots=True)
class Invocation:
    """The surroundings of one call.

    :param cwd: the absolute directory that the agent works in.
    :param memory: what tools remember for the life of the agent, by a name of their own.
    :param spill: keeps a text that is too long for the model and returns the path of its file.
    """

    call_id: str
    scope: Scope
    cwd: Path
    memory: dict[str, Any]
    spill: Callable[[bytes, str], Path]

    def path(self, name: str) -> Path:
        """An absolute path from what a model wrote."""
        return self.cwd / expanded(name)


Body = Callable[..., Awaitable[str | Output] | str | Output]


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """A tool.

    :param model: validates arguments; None for a tool whose parameters are given as a schema.
    :param parameters: JSON Schema of its arguments.
    :param capabilities: the classes of what a call may do, given its arguments.
    :param parallel: whether calls may run beside each other and beside other such tools.
    :param timeout: seconds after which a call is cancelled; None for tools that have their own limit.
    :param invocation: the name of the body's parameter that takes the surroundings; empty where there is none.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    body: Body
    capabilities: frozenset[Capability]
    model: type[BaseModel] | None = None
    parallel: bool = False
    timeout: float | None = 600.0
    invocation: str = ""


def tool(
    *capabilities: Capability, name: str = "", parallel: bool = False, timeout: float | None = 600.0
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function.

    :param capabilities: what a call may do: ``read write execute network delegate``.
    :raises TypeError: if a parameter has no type, or the function no docstring.
    """

    def decorate(body: Callable[..., Any]) -> Tool:
        return build(body, name or body.__name__.rstrip("_"), frozenset(capabilities), parallel, timeout)

    return decorate


def build(body: Callable[..., Any], name: str, capabilities: frozenset[Capability], parallel: bool, timeout: float | None) -> Tool:
    from pydantic import ConfigDict, Field, create_model  # a plugin without tools pays nothing for it

    if not body.__doc__:
        raise TypeError(f"tool {name} has no docstring to tell the model what it does")
    description, notes = split_docstring(body.__doc__)
    hints = get_type_hints(body, include_extras=True)
    invocation = ""
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(body).parameters.values():
        hint = hints.get(parameter.name)
        if hint is None:
            raise TypeError(f"parameter {parameter.name} of tool {name} has no type")
        if hint is Invocation:
            invocation = parameter.name
            continue
        default: Any = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hint, Field(default, description=notes.get(parameter.name)))
    model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    return Tool(name, description, trimmed(model.model_json_schema()), body, capabilities, model, parallel, timeout, invocation)


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
