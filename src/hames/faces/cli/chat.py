"""``hames`` without arguments: a conversation on the terminal."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from hames.agents import AGENTS, Agent, Agents, AgentSpec
from hames.compose import Layer
from hames.content.errors import HamesError, KernelError, NotFoundError, UsageError
from hames.content.finish import Usage
from hames.content.messages import Message, clean
from hames.content.visible import visible
from hames.faces.cli import chat_commands
from hames.faces.cli.chat_asks import Asks
from hames.faces.cli.chat_view import View
from hames.faces.cli.common import (
    chosen_layers,
    existing_directory,
    layer_options,
    mode_option,
    opened,
    preset_option,
    state_directory,
    state_option,
)
from hames.kernel import Host
from hames.models import MODELS
from hames.sessions import SESSIONS
from hames.toolkit.mentions import with_mentions
from hames.toolkit.plan import in_plan_mode
from hames.toolkit.project import trusted
from hames.toolkit.skills import Skill, SkillsConfig, found
from hames.tools import Approval, Question
from hames.trust import TRUST


class Chat:
    """One conversation after the other, in one process.

    :ivar agent: whom the person speaks to.
    :ivar leaving: whether the person has said goodbye.
    """

    agent: Agent

    def __init__(self, host: Host, agents: Agents, spec: AgentSpec, history: Path) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory

        self.host = host
        self.view = View()
        self.leaving = False
        self._agents = agents
        self._spec = spec
        self._asks = Asks(self.view, self._redraw)
        history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        history.touch(mode=0o600)
        words = [f"/{name}" for name in chat_commands.COMMANDS]
        self._prompt: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)),
            completer=WordCompleter(words, sentence=True),
            complete_while_typing=False,
            bottom_toolbar=self._toolbar,
        )

    def _redraw(self) -> None:
        if self._prompt.app.is_running:
            self._prompt.app.invalidate()

    def _toolbar(self) -> str:
        agent = self.agent
        parts = ["PLAN MODE"] if in_plan_mode(agent) else []
        parts += [agent.status, f"session {agent.id}", agent.model_ref, str(agent.cwd)]
        return visible("  ".join(parts))

    def _before_line(self) -> str:
        asked = self._asks.open
        return asked.prompt if asked is not None else "› "

    async def open(self, *, resume: str = "", model: str = "") -> None:
        """Speak to another agent: a new one, or that of a session. The one before is closed when this one is there."""
        before: Agent | None = getattr(self, "agent", None)
        if before is not None and before.id == resume:
            return
        agent = await self._agents.create(replace(self._spec, resume=resume, model=model if resume else self._spec.model))
        self.agent = agent
        if before is not None:
            await self._agents.dispose(before)
        self.view.attach(self.host, agent)
        on = self.host.ctx.at(agent.scope).on
        on(Approval, self._asks.approval)
        on(Question, self._asks.question)
        if resume:
            self.view.history(agent.session)
            self.view.line(f"session {agent.id} goes on with {agent.model_ref}")

    def skills(self) -> dict[str, Skill]:
        """The skills that the agent sees, also before its first turn."""
        if "skills" not in self.agent.memory:
            return found(self.agent.cwd, SkillsConfig(), project=trusted(self.host.get(TRUST), self.agent.cwd))
        known: dict[str, Skill] = self.agent.memory["skills"]
        return known

    def price(self, ref: str, usage: Usage) -> str:
        models = self.host.get(MODELS, self.agent.scope)
        try:
            cost = models.resolve(ref, self.agent.scope).cost(usage) if models is not None else None
        except HamesError:
            cost = None
        return f", ${cost:.4f}" if cost is not None else ", at a price that nobody knows"

    def message(self, text: str) -> Message:
        return with_mentions(text, self.agent.cwd, self.agent.session.keep_picture)

    def say(self, text: str) -> None:
        """Give the agent a message: for its next step while it works, for a turn otherwise."""
        if self.agent.status == "running":
            self.agent.steer(self.message(text))
        else:
            self.agent.send(self.message(text))

    async def run(self) -> None:
        """Read lines until the person leaves."""
        from prompt_toolkit.patch_stdout import patch_stdout

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)  # between two lines the terminal sends a signal instead of a key
        with patch_stdout(raw=True):
            while not self.leaving:
                try:
                    line = clean(await self._prompt.prompt_async(self._before_line))
                except KeyboardInterrupt:
                    self._interrupt()
                    continue
                except EOFError:
                    return
                try:
                    await self._line(line)
                except HamesError as error:
                    self.view.line(error.message, fg="red")
                    if error.remedy:
                        self.view.line(f"  {error.remedy}")
                except Exception as error:
                    self.host.contain("a line of the chat", error)
                    self.view.line(f"that failed: {type(error).__name__}: {error}", fg="red")

    async def _line(self, line: str) -> None:
        if self._asks.open is not None:
            self._asks.take(line)
        elif line.startswith("/") and len(line) > 1:
            await chat_commands.run(self, line.strip())
        elif line.strip():
            self.say(line)

    def _interrupt(self) -> None:
        if self.agent.status == "running":
            self.agent.cancel("user")
        else:
            self.view.line("Ctrl-D or /quit leaves")

    async def ask_trust(self) -> None:
        """Ask once about a directory that nobody has decided about."""
        trust = self.host.get(TRUST)
        if trust is None or trust.default != "ask":
            return
        try:
            status = trust.status(self.agent.cwd)
        except HamesError as error:
            self.view.line(f"this directory is not trusted: {error.message}", fg="yellow")
            return
        if status.standing not in ("undecided", "changed"):
            return
        self.view.line(f"Do you trust {status.directory}? Its instructions, skills and roles count then, and it would execute:", bold=True)
        for line in status.executes or ("nothing",):
            self.view.line(f"    {line}")
        from prompt_toolkit import PromptSession

        asking: PromptSession[str] = PromptSession()
        with suppress(KeyboardInterrupt, EOFError):
            answer = None
            while answer not in ("y", "yes", "", "n", "not now", "no", "e", "never"):
                answer = (await asking.prompt_async("[y]es, [n]ot now, n[e]ver: ")).strip().lower()
            if answer in ("y", "yes", "e", "never"):
                trust.decide(status, answer.startswith("y"))


async def talk(state: Path, chosen: Sequence[Layer], spec: AgentSpec, prompt: str, *, mode: str, go_on: bool) -> int:
    async with opened(state, Path(spec.cwd), chosen, mode=mode) as host:
        gc.freeze()
        gc.enable()
        agents = host.get(AGENTS)
        if agents is None:
            raise KernelError("no row of this composition makes agents", code="MISSING_SERVICE")
        resume = spec.resume or (latest(host, spec.cwd) if go_on else "")
        chat = Chat(host, agents, replace(spec, resume=""), state / "history")
        await chat.open(resume=resume, model=spec.model)
        await chat.ask_trust()
        if prompt:
            chat.view.line(f"› {prompt}", bold=True)
            chat.say(prompt)
        try:
            await chat.run()
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
            await agents.dispose(chat.agent)
            click.echo(f"session {chat.agent.id}; go on with: hames chat --resume {chat.agent.id}", err=True)
        return 0


def latest(host: Host, cwd: str) -> str:
    """The newest session of a directory that nobody holds.

    :raises NotFoundError: if there is none.
    """
    sessions = host.get(SESSIONS)
    for item in sessions.list() if sessions is not None else ():
        if item.cwd == cwd and item.state != "running":
            return item.id
    raise NotFoundError(f"there is no session in {cwd}", remedy="begin one with 'hames'", code="SESSION_UNKNOWN")


@click.command("chat")
@click.argument("prompt", required=False, default="")
@click.option("--model", metavar="REF", default="", help="The model, as provider:model (openai:…, anthropic:…, deepseek:…, local:smollm2).")
@click.option("--cwd", metavar="DIR", default=".", help="The directory to work in (default: this one).")
@click.option("--resume", metavar="SESSION", default="", help="Go on with a session; it keeps its directory and its model.")
@click.option("--continue", "go_on", is_flag=True, help="Go on with the newest session of this directory.")
@preset_option
@mode_option
@layer_options
@state_option
def command(
    prompt: str,
    model: str,
    cwd: str,
    resume: str,
    go_on: bool,
    mode: str,
    preset: str,
    profile_name: str,
    patches: tuple[str, ...],
    state_dir: str | None,
) -> int:
    """Speak with an agent on the terminal. PROMPT is what you say first. /help shows what else there is."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the chat needs a terminal", remedy="give one task with 'hames run PROMPT'")
    directory = os.path.normpath(existing_directory(cwd, "--cwd"))
    spec = AgentSpec(directory, model, resume, preset=preset)
    return asyncio.run(talk(state_directory(state_dir), chosen_layers(profile_name, patches), spec, clean(prompt), mode=mode, go_on=go_on))
