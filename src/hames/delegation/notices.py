"""What whoever started a task is told of its end, once, and how it is known that it has been."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hames.agents import Agent
from hames.agents.spill import spiller
from hames.content.errors import HamesError
from hames.content.jsontext import dumps
from hames.content.messages import Message, Text
from hames.delegation import report
from hames.delegation.outcome import Outcome
from hames.delegation.plugin import LEADING
from hames.delegation.records import DELIVERED
from hames.delegation.spec import TaskSpec
from hames.sessions.history import waiting

if TYPE_CHECKING:
    from hames.delegation.service import Tasks
    from hames.delegation.task import Task

HEAD = 12_000
"""Characters of a result that whoever asked for it is shown; the whole is in a file."""
Spill = Callable[[bytes, str], Path]


def headed(text: str, spill: Spill) -> tuple[str, Path | None]:
    """The head of a text, and the file that holds the whole of one that is longer."""
    if len(text) <= HEAD:
        return text, None
    try:
        path = spill(text.encode("utf-8", "replace"), "txt")
    except OSError as error:
        said = os.strerror(error.errno or 0)
        return f"{text[:HEAD]}\n\n[… {len(text) - HEAD} more characters, which could not be kept in a file: {said} …]", None
    return f"{text[:HEAD]}\n\n[… {len(text) - HEAD} more characters; the whole result is in {path} …]", path


def said(spec: TaskSpec, outcome: Outcome) -> str:
    """What a task has to say, whole."""
    if not outcome.schema_valid:
        return outcome.text
    return report.words(outcome.value) if report.asked(spec) else dumps(outcome.value)


ENDED = "has ended"


def heading(task: str) -> str:
    """How a notice of the end of a task begins."""
    return f"The task {task} "


def notice(task: str, spec: TaskSpec, outcome: Outcome, spill: Spill, *, thread: str = "", waiting: int = 0) -> tuple[str, Path | None]:
    """The message that tells the end of a task that nobody waited for, and the file of a long result.

    :param thread: the conversation that is kept; empty for none.
    :param waiting: messages that wait in it.
    """
    text, path = headed(said(spec, outcome), spill)
    lines = [f"{heading(task)}({spec.title}), which you had started, has ended: {outcome.status}.", outcome.diagnostic, text]
    if thread:
        left = f", with {waiting} messages that wait in it" if waiting else ""
        lines.append(f"Its conversation is kept{left}: send_message to {thread} goes on with it.")
    elif outcome.proceed and not outcome.ok:
        lines.append(f"Its session is {outcome.native}; what it did until then stands there.")
    return "\n".join(line for line in lines if line), path


def told(agent: Agent, task: str) -> bool:
    """Whether the notice stands in the session of an agent, or waits there."""
    messages = [message for _, message in agent.session.messages]
    inbox = agent.inbox
    messages += [item.message for item in (*agent.session.pending, *inbox.next_step, *inbox.next_turn)]
    return any(message.source == "harness" and speaks_of(message.text, task) for message in messages)


def speaks_of(text: str, task: str) -> bool:
    """Whether a text of the harness is the notice of the end of a task: by itself, or as that of a job."""
    first = text.partition("\n")[0]
    return first.startswith(heading(task)) or (f"(task {task})" in first and ENDED in first)


async def tell(tasks: Tasks, agent: Agent, task: str, text: str, path: Path | None, *, wake: bool) -> None:
    """Give an agent the notice, and note that it has it.

    :param wake: let it have a turn for it where it has nothing else to do.
    """
    message = Message("user", (Text(text),), "harness")
    if not told(agent, task):
        if wake and agent.status == "idle" and not agent.held:
            agent.steer(message)
        else:
            agent.inject(message)
    await received(tasks, agent, task, path)


async def received(tasks: Tasks, agent: Agent, task: str, path: Path | None = None) -> None:
    """Note that an outcome has been delivered, once that is on disk itself."""
    try:
        agent.inbox.keep()
        await agent.session.barrier()
        await tasks.ledger.receive(task, DELIVERED, {"session": agent.id, "path": str(path or "")})
    except HamesError as error:  # it is looked for once more then, when the session is resumed
        tasks.contain(f"the delivery of task {task}", error)


async def tell_end(tasks: Tasks, task: Task, agent: Agent) -> None:
    """Tell whoever started a task that runs beside it how it ended, once."""
    outcome = await task.outcome()
    if not task.was_accepted or agent.finishing:  # the call itself has said so, or the session is told when it is resumed
        return
    waits = waiting_in(tasks, outcome.native)
    text, path = notice(task.id, task.spec, outcome, spill_of(agent, task.id), thread=task.thread, waiting=waits)
    advice = ""
    try:
        lead = agent.ctx.host.get(LEADING, agent.scope)
        advice = lead().strikes.advice(agent, task.id) if lead is not None else ""
    except Exception as error:  # recorded: what may be done next is less than what has been done
        tasks.contain(f"advice after task {task.id}", error)
    await tell(tasks, agent, task.id, f"{text}\n{advice}" if advice else text, path, wake=True)


def spill_of(agent: Agent, task: str) -> Spill:
    return spiller(agent.root / "spill", agent.id, task)


def waiting_in(tasks: Tasks, session: str) -> int:
    """How many messages wait in a conversation that nobody works on now."""
    try:
        return len(waiting(tasks.sessions.read(session))) if session else 0
    except (HamesError, KeyError, ValueError):  # it is damaged or gone: whoever goes on with it is told
        return 0
