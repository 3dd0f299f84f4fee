"""A result that follows a schema: a tool of the child's own takes it, and the child ends with it.

The tool stands in the child's scope alone, with the schema as its parameters. The instruction to use it is appended to each request after
every listener has had its say, and is no part of the agent. A value counts once the recorded result of its call is no error; from the call
on nothing else of the same answer runs, and no listener makes the child go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from hames.agents import Agent, ToolEnded
from hames.content.jsontext import as_json, dumps
from hames.content.messages import Text
from hames.content.schema import types_of, violations
from hames.kernel import Context
from hames.policy import ToolRequest
from hames.prompts.service import Assemble, Assembly, Section
from hames.tools import TOOLS, Invocation, Output, Tool, ToolError

NAME = "structured_output"
TRIES = 5
"""How often a value may be offered."""
LAST = 10**9
INSTRUCTION = f"""When your work is done, give its result by calling the tool {NAME}, once, with arguments that follow its parameters.
Nothing that you say besides counts as the result, and nothing follows after it."""
NUDGE = f"You ended without giving the result. Call {NAME} now, with what you have found."
ONLY = "value"
"""Under this name stands a result that is no object."""


def parameters(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The parameters of the tool, and whether the result stands in them under a name of its own: parameters are always an object."""
    if types_of(dict(schema)) == ["object"]:
        return dict(schema), False
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    wrapped: dict[str, Any] = {"type": "object", "properties": {ONLY: inner}, "required": [ONLY], "additionalProperties": False}
    return ({**wrapped, "$defs": schema["$defs"]} if "$defs" in schema else wrapped), True


class Capture:
    """Takes the result of one child.

    :ivar value: the result, once ``done``.
    :ivar tries: how often one was offered.
    :ivar wrong: what was wrong with the last one that was refused.
    :ivar gave_up: why no further one is taken; empty while one is.
    """

    def __init__(self, ctx: Context, agent: Agent, schema: Mapping[str, Any]) -> None:
        self._agent = agent
        self._staged: tuple[str, Any] | None = None
        self.done = False
        self.value: Any = None
        self.tries = 0
        self.wrong = ""
        self.raw = ""
        self.gave_up = ""
        shown, self._wrapped = parameters(schema)
        self._shown = shown
        self._judged: set[str] = set()  # calls that were looked at here, and not refused before
        tools = ctx.host.get(TOOLS, agent.scope)
        at = ctx.at(agent.scope)
        if tools is None:
            self.gave_up = "no row of this composition runs tools"
            return
        tool = Tool(NAME, "Give the result of your work.", shown, self._take, frozenset({"read"}), invocation=" call")
        tools.register(at, tool, granted=True)
        tools.guard(at, NAME, self._guard)
        at.on(ToolEnded, self._ended)
        at.on(Assemble, self._instruct, order=-LAST)

    def again(self) -> None:
        """Take another result: a further message has come."""
        self._staged, self.done, self.value = None, False, None
        self.tries, self.wrong, self.raw, self.gave_up = 0, "", "", ""
        self._agent.unfinish()

    async def _instruct(self, call: Assemble, proceed: Callable[[Assemble], Awaitable[Assembly]]) -> Assembly:
        assembly = await proceed(call)
        return replace(assembly, sections=[*assembly.sections, Section(NAME, LAST, INSTRUCTION)])

    def _guard(self, request: ToolRequest) -> str | None:
        if self.done or self._staged is not None:
            return "the result has been given; nothing runs after it"
        if self.gave_up:
            return "no further result is taken"
        return None

    async def _take(self, /, **arguments: Any) -> Output:
        call: Invocation = arguments.pop(" call")
        self.tries += 1
        self._judged.add(call.call_id)
        wrong = violations(arguments, self._shown)
        try:
            given = as_json(arguments)
        except ValueError as error:
            given, wrong = {}, [*wrong, f"$: {error}"]
        if wrong:
            self._refuse("\n".join(wrong), dumps(arguments.get(ONLY, arguments) if self._wrapped else arguments))
            if self.gave_up:
                return Output((Text(f"Error: {self.gave_up}"),), True, "INVALID_ARGS", concludes=True)
            raise ToolError(f"the result does not follow its schema:\n{self.wrong}", "INVALID_ARGS")
        self._staged = (call.call_id, given[ONLY] if self._wrapped else given)
        self._agent.finish()
        return Output((Text("the result is taken"),), concludes=True)

    def _refuse(self, wrong: str, raw: str) -> None:
        """A result that was offered is none; whether another one is taken is decided."""
        again, self.wrong, self.raw = wrong == self.wrong, wrong, raw
        if again:
            self.gave_up = f"the same mistakes twice: {wrong}"
        elif self.tries >= TRIES:
            self.gave_up = f"{TRIES} results were offered and none follows the schema: {wrong}"
        if self.gave_up:
            self._agent.finish()

    def _ended(self, notice: ToolEnded) -> None:
        """The recorded result of a call: what a listener has made of it counts."""
        call, result = notice.call, notice.result
        if call.name == NAME and result.code == "INVALID_ARGS" and call.id not in self._judged and not self.gave_up:
            self.tries += 1  # its arguments were no JSON
            self._refuse(result.text, call.arguments)
        if self._staged is None or call.id != self._staged[0]:
            return
        value, self._staged = self._staged[1], None
        if not result.is_error:
            self.done, self.value = True, value
            return
        self.wrong, self.raw = result.text, dumps(value)
        if not self._agent.cause:
            self._agent.unfinish()
