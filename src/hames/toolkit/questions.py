"""Asking the user."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from hames.kernel import Context, plugin
from hames.tools import TOOLS, Choice, Invocation, ToolError, tool
from hames.tools.questions import ask


class Asked(BaseModel):
    """One question."""

    model_config = ConfigDict(extra="forbid")

    question: str = Field(min_length=1)
    options: list[str] = []
    several: bool = False


@plugin(needs=(TOOLS,), name="questions")
def questions(ctx: Context, config: Any) -> None:
    """The tool ``ask_user_question``."""
    tools = ctx.use(TOOLS)

    @tool("read", timeout=None)
    async def ask_user_question(questions: Annotated[list[Asked], Field(min_length=1, max_length=4)], *, call: Invocation) -> str:
        """Ask the user something that you cannot find out and must not guess. Waits for the answer.

        :param questions: up to four, each with answers to choose from where there are such; the user may always answer otherwise.
        """
        chosen = tuple(Choice(each.question, tuple(each.options), each.several) for each in questions)
        answers = await ask(tools.approvals, call, chosen)
        if answers is None:
            raise ToolError("nobody is here to answer; decide yourself, and say in your answer what you assumed", "NOBODY")
        given = (*answers, *("(not answered)",) * (len(chosen) - len(answers)))
        return "\n".join(f"{each.question}\n→ {answer}" for each, answer in zip(chosen, given, strict=False))

    tools.register(ctx, ask_user_question)
