"""The slash commands of the chat."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hames.content.errors import UsageError
from hames.content.finish import Usage
from hames.content.jsontext import as_count, as_object
from hames.faces.cli.chat_mcp import mcp, prompts, use_prompt
from hames.models import MODELS
from hames.sessions import SESSIONS
from hames.toolkit.plan import in_plan_mode, set_plan_mode
from hames.tools import TOOLS

if TYPE_CHECKING:
    from hames.faces.cli.chat import Chat


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command.

    :param idle: whether it waits for an agent that is at rest.
    """

    usage: str
    help: str
    run: Callable[[Chat, str], Awaitable[None]]
    idle: bool = False


async def show_help(chat: Chat, rest: str) -> None:
    for name, command in COMMANDS.items():
        chat.view.line(f"/{name} {command.usage}".ljust(24) + command.help)
    chat.view.line("What you type while the agent works reaches its next step. Ctrl-C stops it, Ctrl-D leaves. @path shows it a file.")


async def model(chat: Chat, rest: str) -> None:
    if not rest:
        chat.view.line(f"the model is {chat.agent.model_ref}; change it with /model PROVIDER:MODEL")
        return
    models = chat.host.get(MODELS, chat.agent.scope)
    if models is not None:
        models.resolve(rest, chat.agent.scope)
    chat.agent.model_ref = rest
    chat.view.line(f"the model is {rest} from the next request on")


async def compact(chat: Chat, rest: str) -> None:
    if len(chat.agent.session.messages) < 3:
        chat.view.line("there is nothing to shorten yet")
        return
    chat.agent.compact_next = True
    chat.view.line("the past is shortened before the next request")


async def plan(chat: Chat, rest: str) -> None:
    active = rest != "off" if rest else not in_plan_mode(chat.agent)
    set_plan_mode(chat.agent, active)
    chat.view.line("plan mode is on: the agent looks, and writes nothing" if active else "plan mode is off")
    if rest not in ("", "on", "off"):
        chat.say(rest)


async def cost(chat: Chat, rest: str) -> None:
    sessions = chat.host.get(SESSIONS)
    await chat.agent.session.barrier()  # what has just begun is on its way to the disk
    used: dict[str, Usage] = {}
    for event in sessions.read(chat.agent.id) if sessions is not None else ():
        if event.type in ("message", "failed") and "usage" in event.data:
            counts = {key: as_count(value) for key, value in as_object(event.data["usage"]).items()}
            ref = str(event.data.get("model", "?"))
            used[ref] = used.get(ref, Usage()) + Usage(**counts)
    for ref, usage in used.items():
        chat.view.line(f"{ref}: {usage.input} in, {usage.output} out, {usage.cache_read} from the cache{chat.price(ref, usage)}")
    if not used:
        chat.view.line("nothing has been reported yet")


async def resume(chat: Chat, rest: str) -> None:
    sessions = chat.host.get(SESSIONS)
    if not rest and sessions is not None:
        for item in sessions.list()[:15]:
            chat.view.line(f"{item.id}  {item.state:<11} {item.title}")
        chat.view.line("go on with one of them: /resume SESSION")
        return
    if rest == chat.agent.id:
        chat.view.line("that is this session")
        return
    await chat.open(resume=rest)


async def new(chat: Chat, rest: str) -> None:
    await chat.open()


async def fork(chat: Chat, rest: str) -> None:
    sessions = chat.host.get(SESSIONS)
    if sessions is not None:
        if rest and not (rest.isdecimal() and len(rest) < 10):
            raise UsageError(f"{rest[:40]!r} is no number of a turn", remedy="write /fork, or /fork and a number")
        await chat.agent.session.barrier()
        made = await sessions.fork(chat.agent.id, int(rest) if rest else None)
        await made.release()
        await chat.open(resume=made.id)


async def tools(chat: Chat, rest: str) -> None:
    found = chat.host.get(TOOLS)
    if found is not None:
        owners = found.registry.owners(chat.agent.scope)
        for name, tool in found.registry.view(chat.agent.scope).items():
            chat.view.line(f"{name:<20} {tool.description.splitlines()[0][:90]}  ({owners[name]})")


async def queue(chat: Chat, rest: str) -> None:
    if rest:
        chat.agent.send(chat.message(rest))
        chat.view.line("it has a turn of its own when this one has ended")


async def leave(chat: Chat, rest: str) -> None:
    chat.leaving = True


COMMANDS: dict[str, Command] = {
    "help": Command("", "show this", show_help),
    "model": Command("[REF]", "show or change the model", model),
    "compact": Command("", "shorten the past", compact),
    "plan": Command("[on|off|TASK]", "plan mode: look, write nothing", plan, idle=True),
    "cost": Command("", "tokens and money so far", cost),
    "resume": Command("[SESSION]", "list sessions, or go on with one", resume, idle=True),
    "new": Command("", "begin a new session", new, idle=True),
    "fork": Command("[TURN]", "go on in a copy of this session", fork, idle=True),
    "queue": Command("TEXT", "say it when this turn has ended", queue),
    "tools": Command("", "list the tools and their rows", tools),
    "mcp": Command("[reconnect SERVER]", "list MCP servers and their prompts", mcp),
    "quit": Command("", "leave", leave),
}


async def run(chat: Chat, line: str) -> None:
    """Run a slash command, or use the skill of that name."""
    name, _, rest = line[1:].partition(" ")
    command = COMMANDS.get(name)
    skills = chat.skills()
    if command is None and name in skills:
        chat.say(f"Use the skill {name}. {rest}".strip())
    elif command is None and name in prompts(chat):
        await use_prompt(chat, name, rest.strip())
    elif command is None:
        chat.view.line(f"there is no /{name}; /help shows what there is", fg="yellow")
    elif command.idle and chat.agent.status == "running":
        chat.view.line(f"/{name} waits until the agent is at rest; Ctrl-C stops it", fg="yellow")
    else:
        await command.run(chat, rest.strip())
