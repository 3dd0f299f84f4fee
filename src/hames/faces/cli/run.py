"""``hames run``: one task for one agent."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hames.agents import AGENTS, Agent, Agents, AgentSpec, Chunked, Retrying, ToolEnded, ToolProgress, ToolStarted, TurnEnd, TurnEnded
from hames.budget import Limits, Meter
from hames.compose import Layer
from hames.content.errors import KernelError, UsageError
from hames.content.finish import TextDelta, Usage
from hames.content.messages import Message, clean
from hames.content.paths import expanded
from hames.content.visible import visible
from hames.delegation import DELEGATION, Delegation
from hames.faces.cli.asking import ANSWERS, asked
from hames.faces.cli.common import (
    chosen_layers,
    hear_reloads,
    hear_servers,
    hear_tasks,
    json_option,
    layer_options,
    mode_option,
    opened,
    preset_option,
    reloaded,
    state_directory,
    state_option,
)
from hames.kernel import Host
from hames.policy import Answer
from hames.toolkit.mentions import with_mentions
from hames.toolkit.project import trusted
from hames.tools import Approval
from hames.trust import TRUST, Trust
from hames.workspaces.events import WorkspaceReloaded

SPEAKING = ("AGENTS.md", "CLAUDE.md", ".hames", ".mcp.json", ".agents", ".claude")


def untrusted(trust: Trust | None, cwd: Path) -> str:
    """What to say where a directory has something to say and is not trusted; empty where there is nothing to say."""
    names = [name for name in SPEAKING if (cwd / name).exists()]
    if not names or trusted(trust, cwd):
        return ""
    return f"hames: {', '.join(names)} of this directory count for nothing until it is trusted; see 'hames trust show'"


class Positive(click.FloatRange):
    """A number above 0 that is a number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no number that limits anything.", param, ctx)
        return number


POSITIVE = Positive(min=0, min_open=True)
STATUS = {"completed": 0, "aborted": 130, "error": 1}
USER_FAILURES = frozenset({"auth", "not-found"})


class Progress:
    """Shows what an agent does: streamed on a terminal, a line for each event in a pipe. The answer itself goes to standard output."""

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._open = False
        self.streamed = False

    def attach(self, host: Host, agent: Agent) -> None:
        on = host.ctx.at(agent.scope).on
        if self._live:
            on(Chunked, self._chunk)
        on(ToolStarted, self._tool_started)
        on(ToolProgress, self._tool_progress)
        hear_reloads(host, agent, self._reloaded)
        hear_servers(host, agent, lambda text: self._line(f"hames: {text}"))
        hear_tasks(host, agent, lambda text: self._line(f"  {text}"))
        on(ToolEnded, self._tool_ended)
        on(Retrying, self._retrying)

    def _retrying(self, notice: Retrying) -> None:
        self._line(f"~ {notice.failure.kind}: {notice.failure.message}; again in {notice.wait:.1f} s")

    def _chunk(self, notice: Chunked) -> None:
        if isinstance(notice.chunk, TextDelta):
            sys.stdout.write(visible(notice.chunk.text, keep="\n\t"))
            sys.stdout.flush()
            self._open = not notice.chunk.text.endswith("\n")
            self.streamed = True

    def _line(self, text: str) -> None:
        if self._open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._open = False
        click.echo(visible(text, keep="\n\t"), err=True)

    def _tool_started(self, notice: ToolStarted) -> None:
        self.streamed = False
        self._line(f"> {notice.call.name} {shortened(notice.call.arguments)}")

    def _reloaded(self, notice: WorkspaceReloaded) -> None:
        self._line(f"hames: {reloaded(notice)}")

    def _tool_progress(self, notice: ToolProgress) -> None:
        self._line(f"  {notice.call.name}: {shortened(notice.text)}")

    def _tool_ended(self, notice: ToolEnded) -> None:
        lines = notice.result.text.splitlines()
        what = f"{notice.result.code}: {shortened(lines[0] if lines else '')}" if notice.result.is_error else f"{len(lines)} lines"
        self._line(f"  {notice.call.name}: {what}")

    def finish(self, end: TurnEnd, session: str) -> None:
        if self.streamed and self._live:
            if self._open:
                click.echo()
        elif end.text:
            click.echo(visible(end.text, keep="\n\t") if sys.stdout.isatty() else end.text)
        if end.reason != "completed":
            self._line(f"hames: {end.reason}: {end.detail}")
            if end.remedy:
                self._line(f"       {end.remedy}")
        total = end.usage.total + end.below.total
        spent = f"{end.steps} steps" + (f", {end.steps_below} of tasks" if end.steps_below else "") + (f", {total} tokens" if total else "")
        self._line(f"session {session} ({spent}); go on with: hames run --resume {session} PROMPT")


async def ask_on_terminal(approval: Approval) -> Answer:
    """Ask the person at the terminal. The end of input refuses."""
    for line in asked(approval):
        click.echo(line, err=True)
    while True:
        click.echo("  allow it? [y]es, for this [s]ession, [a]lways here, [n]o: ", err=True, nl=False)
        line = await read_line()
        if line is None:
            return "denied"
        if (answer := ANSWERS.get(line.strip().lower())) is not None:
            return answer


async def read_line() -> str | None:
    """A line of the terminal; None at the end of input.

    Without a thread that would outlive us, and never blocked: what was there to read may be gone when it is read, since Ctrl-C drops it.
    So the terminal is opened once more, for a description of our own that does not block.
    """
    loop = asyncio.get_running_loop()
    terminal = os.open(os.ttyname(0), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    line = b""
    try:
        while not line.endswith(b"\n"):
            ready: asyncio.Future[None] = loop.create_future()
            loop.add_reader(terminal, lambda ready=ready: ready.done() or ready.set_result(None))
            try:
                await ready
            finally:
                loop.remove_reader(terminal)
            try:
                data = os.read(terminal, 1024)
            except BlockingIOError:
                continue
            if not data:
                return line.decode("utf-8", "replace") or None
            line += data
    finally:
        os.close(terminal)
    return line.decode("utf-8", "replace")


def shortened(text: str, limit: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def exit_status(end: TurnEnd) -> int:
    """The exit status that an outcome has."""
    if end.failure is not None and end.failure.kind in USER_FAILURES:
        return 2
    return STATUS.get(end.reason, 5)


def cancel_on_signals(agent: Agent, delegation: Delegation | None) -> Callable[[], None]:
    """The first Ctrl-C asks the agent, and all that it has given away, to end; the next one is Python's own. Returns how to undo it."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def undo() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    def cancel() -> None:
        undo()
        click.echo("hames: ending; press Ctrl-C again to leave at once", err=True)
        agent.finish()  # the ends of what it has given away begin no further turn
        agent.cancel("user")
        if delegation is not None:
            delegation.cancel(agent)

    for number in numbers:
        loop.add_signal_handler(number, cancel)
    return undo


async def ended(agent: Agent, message: Message, delegation: Delegation | None) -> TurnEnd:
    """How it ended, once the agent rests and has heard of all that it has given away: its last turn, with what all of them have spent."""
    ends: list[TurnEnd] = []
    agent.ctx.at(agent.scope).on(TurnEnded, lambda notice: ends.append(notice.end))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownMemberType]
    start, limit = asyncio.get_running_loop().time(), agent.limits.seconds
    end = await agent.run(message)
    if delegation is None:
        return end
    left = None if limit is None else max(0.0, start + limit - asyncio.get_running_loop().time())
    try:
        async with asyncio.timeout(left):
            await delegation.rest(agent)
    except TimeoutError:
        agent.finish()
        agent.cancel("deadline")
        delegation.cancel(agent)
        await delegation.rest(agent)
        await agent.idle()
        end = TurnEnd("budget", end.text, f"the limit of {limit:g} s is reached", code="DEADLINE", remedy="give it more time")
        return together(end, ends)
    last = agent.last or end
    if agent.finishing and last.reason == "completed":
        last = TurnEnd("aborted", last.text, "user")
    return together(last, ends)


def together(last: TurnEnd, ends: Sequence[TurnEnd]) -> TurnEnd:
    """The end of several turns."""
    if len(ends) < 2:
        return last
    usage = sum((end.usage for end in ends), Usage())
    below = sum((end.below for end in ends), Usage())
    return replace(last, usage=usage, below=below, steps=sum(end.steps for end in ends), steps_below=sum(end.steps_below for end in ends))


async def run_task(
    state: Path, chosen: Sequence[Layer], prompt: str, spec: AgentSpec, *, mode: str, as_json: bool, interactive: bool
) -> int:
    async with opened(state, Path(spec.cwd), chosen, mode=mode) as host:
        gc.freeze()
        gc.enable()  # from here on it may run for hours
        agents: Agents | None = host.get(AGENTS)
        if agents is None:
            raise KernelError("no row of this composition makes agents", code="MISSING_SERVICE")
        agent = await agents.create(spec)
        progress = None if as_json else Progress(live=sys.stdout.isatty())
        if progress is not None:
            progress.attach(host, agent)
            if note := untrusted(host.get(TRUST), agent.cwd):
                click.echo(note, err=True)
        if interactive:
            host.ctx.at(agent.scope).on(Approval, ask_on_terminal)
        delegation = host.get(DELEGATION, agent.scope)
        undo = cancel_on_signals(agent, delegation)
        try:
            end = await ended(agent, with_mentions(prompt, agent.cwd, agent.session.keep_picture), delegation)
        finally:
            undo()
        await agents.dispose(agent)
        if progress is not None:
            progress.finish(end, agent.id)
        else:
            result: dict[str, Any] = {"session": agent.id, "model": agent.model_ref, **end.as_json()}
            click.echo(json.dumps(result, ensure_ascii=False))
        return exit_status(end)


@click.command("run")
@click.argument("prompt")
@click.option("--model", metavar="REF", default="", help="The model, as provider:model (openai:…, anthropic:…, deepseek:…, local:smollm2).")
@click.option("--cwd", metavar="DIR", default=".", help="The directory to work in (default: this one).")
@click.option("--max-steps", metavar="N", type=click.IntRange(min=1), help="Stop after so many answers of the model.")
@click.option("--max-tokens", metavar="N", type=click.IntRange(min=1), help="Stop when so many tokens are spent.")
@click.option("--max-cost", metavar="USD", type=POSITIVE, help="Stop when so many US dollars are spent.")
@click.option("--max-time", metavar="SECONDS", type=POSITIVE, help="Stop after so many seconds.")
@click.option("--max-idle", metavar="SECONDS", type=POSITIVE, help="Stop when nothing happens for so long.")
@click.option("--no-questions", is_flag=True, help="Deny what the permissions ask about, on a terminal too.")
@preset_option
@mode_option
@click.option("--resume", metavar="SESSION", default="", help="Go on with a session; it keeps its directory and its model.")
@layer_options
@json_option
@state_option
def command(
    prompt: str,
    model: str,
    cwd: str,
    max_steps: int | None,
    max_tokens: int | None,
    max_cost: float | None,
    max_time: float | None,
    max_idle: float | None,
    no_questions: bool,
    mode: str,
    preset: str,
    resume: str,
    profile_name: str,
    patches: tuple[str, ...],
    as_json: bool,
    state_dir: str | None,
) -> int:
    """Give an agent one task and wait for its end. PROMPT is the task; '-' reads it from standard input."""
    if prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    prompt = clean(prompt)
    if not prompt.strip():
        raise UsageError("the prompt is empty", remedy="say what to do")
    try:
        directory = str(expanded(cwd).absolute())
    except FileNotFoundError:
        raise UsageError("the working directory is gone", remedy="go to another one, or name one with --cwd") from None
    limits = Limits(max_steps, max_tokens, max_cost, max_time, max_idle)
    whole = Meter(Limits(max_steps, max_tokens, max_cost))  # of all turns: what it has given away may begin further ones
    spec = AgentSpec(directory, model, resume, limits=limits, preset=preset, whole=whole)
    chosen = chosen_layers(profile_name, patches)
    interactive = sys.stdin.isatty() and sys.stderr.isatty() and not no_questions and not as_json
    return asyncio.run(run_task(state_directory(state_dir), chosen, prompt, spec, mode=mode, as_json=as_json, interactive=interactive))
