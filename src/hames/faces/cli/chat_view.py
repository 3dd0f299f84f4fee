"""What a conversation looks like on a terminal: answers as they come, a card for each call, a line for what else happens."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import click

from hames.agents import (
    Agent,
    Answered,
    Chunked,
    Compacted,
    ModelChanged,
    NotCompacted,
    Retrying,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    TurnEnded,
)
from hames.content.finish import ReasoningDelta, TextDelta
from hames.content.messages import ToolCall, ToolResult
from hames.content.visible import visible
from hames.faces.cli.common import hear_reloads, hear_servers, hear_tasks, reloaded
from hames.kernel import Host
from hames.sessions import Session
from hames.workspaces.events import WorkspaceReloaded

LINES = 6  # of a result that a card shows
WIDTH = 160  # characters of a line of a card


def plain(text: str) -> str:
    """Text of others without what would steer the terminal."""
    return visible(text.replace("\r\n", "\n"), keep="\n\t")


def short(text: str, limit: int = WIDTH) -> str:
    line = " ".join(plain(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def arguments_of(call: ToolCall) -> str:
    """The arguments of a call in a line: the one text alone, where there is just one."""
    try:
        values: Any = json.loads(call.arguments or "{}")
    except ValueError:
        return call.arguments
    if isinstance(values, dict) and len(values) == 1:  # pyright: ignore[reportUnknownArgumentType]
        (value,) = values.values()  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, str):
            return value
    return call.arguments


def folded(text: str, width: int) -> tuple[str, str]:
    """The first line of a text that is too long for one, and the rest."""
    place = text.rfind(" ", 1, width + 1)
    return (text[:place], text[place + 1 :]) if place > 0 else (text[:width], text[width:])


class View:
    """Writes to standard output; whoever shows a prompt below takes care of it (see ``patch_stdout`` of prompt_toolkit)."""

    def __init__(self) -> None:
        self._text = ""  # what has come and is no whole line yet
        self._thinking = False

    def attach(self, host: Host, agent: Agent) -> None:
        on = host.ctx.at(agent.scope).on
        on(Chunked, self._chunk)
        on(Answered, self._answered)
        on(ToolStarted, self._started)
        on(ToolProgress, self._progress)
        hear_reloads(host, agent, self._reloaded)
        hear_servers(host, agent, lambda text: self.line(f"~ {text}", fg="yellow"))
        hear_tasks(host, agent, lambda text: self.line(f"~ {text}", dim=True))
        on(ToolEnded, self._ended)
        on(Retrying, self._retrying)
        on(ModelChanged, self._model_changed)
        on(Compacted, self._compacted)
        on(NotCompacted, self._not_compacted)
        on(TurnEnded, self._turn_ended)

    def line(self, text: str, **style: Any) -> None:
        """A line of its own."""
        self._break()
        sys.stdout.write(click.style(plain(text), **(style or {"dim": True})) + "\n")
        sys.stdout.flush()

    def _break(self) -> None:
        """End the line that is being written."""
        if self._text:
            sys.stdout.write(self._text + "\n")
            self._text = ""

    def _chunk(self, notice: Chunked) -> None:
        """Text is written in whole lines, since a prompt may stand below it."""
        if isinstance(notice.chunk, TextDelta):
            self._thinking = False
            self._text += plain(notice.chunk.text)
            width = max(20, shutil.get_terminal_size().columns - 1)
            while "\n" in self._text or len(self._text) > width:
                line, rest = self._text.split("\n", 1) if "\n" in self._text[: width + 1] else folded(self._text, width)
                sys.stdout.write(line + "\n")
                self._text = rest
            sys.stdout.flush()
        elif isinstance(notice.chunk, ReasoningDelta) and not self._thinking:
            self._thinking = True
            self.line("… thinking")

    def _answered(self, notice: Answered) -> None:
        self._thinking = False
        self._break()
        sys.stdout.flush()

    def _retrying(self, notice: Retrying) -> None:
        self.line(f"~ {notice.failure.kind}: {short(notice.failure.message)}; again in {notice.wait:.1f} s")

    def _model_changed(self, notice: ModelChanged) -> None:
        self.line(f"~ {notice.before} failed; going on with {notice.now}")

    def _compacted(self, notice: Compacted) -> None:
        self.line(f"~ the past was shortened ({notice.before} to {notice.after} tokens)")

    def _not_compacted(self, notice: NotCompacted) -> None:
        self.line("~ the past stays as it is: there was nothing to gain")

    def _started(self, notice: ToolStarted) -> None:
        self.line(f"● {notice.call.name} {short(arguments_of(notice.call))}", fg="cyan")

    def _reloaded(self, notice: WorkspaceReloaded) -> None:
        self.line(f"~ {reloaded(notice)}", fg="yellow" if notice.reason else None, dim=not notice.reason)

    def _progress(self, notice: ToolProgress) -> None:
        self.line(f"  … {short(notice.text)}")

    def _ended(self, notice: ToolEnded) -> None:
        self.card(notice.result)

    def card(self, result: ToolResult) -> None:
        """What came of a call, by its first lines."""
        lines = [plain(line)[:WIDTH] for line in result.text.splitlines()] or ["(nothing)"]
        more = f"  … {len(lines) - LINES} more lines" if len(lines) > LINES else ""
        color = "red" if result.is_error else None
        for index, line in enumerate(lines[:LINES]):
            self.line(("  └ " if index == 0 else "    ") + line, fg=color, dim=color is None)
        if more:
            self.line(more)

    def _turn_ended(self, notice: TurnEnded) -> None:
        end = notice.end
        if end.reason != "completed":
            self.line(f"{end.reason}: {short(end.detail, 400)}", fg="yellow")
            if end.remedy:
                self.line(f"  {end.remedy}")

    def history(self, session: Session, count: int = 6) -> None:
        """The end of a conversation that goes on."""
        shown = [(message.source, message.text) for _, message in session.messages if message.source in ("user", "model") and message.text]
        for source, text in shown[-count:]:
            self.line(("› " if source == "user" else "") + plain(text)[:2000], bold=source == "user")
