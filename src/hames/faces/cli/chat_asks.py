"""Questions of an agent to the person at the terminal: the next line that is typed answers the one that is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from hames.faces.cli.asking import ANSWERS, asked
from hames.faces.cli.chat_view import View, plain
from hames.policy import Answer
from hames.tools import Approval, Choice, Question


@dataclass(slots=True)
class Open:
    """A question that is shown.

    :param prompt: what stands before the line that answers it.
    :param take: makes an answer of a line, or says what is wrong with it.
    """

    prompt: str
    take: Callable[[str], object | None]
    answer: asyncio.Future[object]


class Asks:
    """Shows one question at a time.

    :param changed: called when a question comes or goes.
    """

    def __init__(self, view: View, changed: Callable[[], None]) -> None:
        self._view = view
        self._changed = changed
        self.open: Open | None = None

    async def _put(self, prompt: str, take: Callable[[str], object | None]) -> object:
        asked = self.open = Open(prompt, take, asyncio.get_running_loop().create_future())
        self._changed()
        try:
            return await asked.answer
        finally:
            self.open = None
            self._changed()

    def take(self, line: str) -> None:
        """A line was typed while a question is open."""
        asked = self.open
        if asked is None or asked.answer.done():
            return
        answer = asked.take(line.strip())
        if answer is None:
            self._view.line("that is no answer to this question", fg="yellow")
        else:
            asked.answer.set_result(answer)

    async def approval(self, approval: Approval) -> Answer | None:
        for number, line in enumerate(asked(approval)):
            self._view.line(line, fg="yellow", bold=number == 0)
        found = await self._put("allow it? [y]es, this [s]ession, [a]lways here, [n]o: ", lambda line: ANSWERS.get(line.lower()))
        return next(answer for answer in ANSWERS.values() if answer == found)

    async def question(self, question: Question) -> tuple[str, ...]:
        answers: list[str] = []
        for choice in question.questions:
            self._view.line(f"? {plain(choice.question)}", fg="yellow", bold=True)
            for number, option in enumerate(choice.options, 1):
                self._view.line(f"    {number}. {plain(option)}", fg="yellow")
            several = ", several with commas" if choice.several else ""
            prompt = f"number{several}, or your own words: " if choice.options else "your answer: "
            answers.append(str(await self._put(prompt, lambda line, choice=choice: chosen(line, choice))))
        return tuple(answers)


def chosen(line: str, choice: Choice) -> str | None:
    """The answer that a line means: options by their numbers, or the words themselves."""
    parts = [part.strip() for part in line.split(",")] if choice.several else [line]
    if choice.options and all(part.isdecimal() and len(part) < 10 for part in parts):
        if not all(1 <= int(part) <= len(choice.options) for part in parts):
            return None
        return ", ".join(choice.options[int(part) - 1] for part in parts)
    return line or None
