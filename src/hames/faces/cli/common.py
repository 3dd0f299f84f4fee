"""What several commands share."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from hames.agents import Agent, SlotAwaited
from hames.compose import Layer, check_state, compose, layers, running
from hames.compose import state_directory as state_place
from hames.content.errors import ConfigError, NotFoundError
from hames.content.paths import expanded
from hames.content.visible import visible
from hames.delegation.events import TaskBegan, TaskEnded, TaskSaid
from hames.kernel import Host
from hames.mcp import MCP
from hames.mcp.events import ServerChanged
from hames.policy.plugin import MODE
from hames.profiles import profile, profile_names
from hames.store import STATE
from hames.trust import Trust
from hames.workspaces.events import WorkspaceReloaded

F = TypeVar("F", bound=Callable[..., Any])


def state_directory(option: str | None) -> Path:
    """Where state lives: the option, ``HAMES_STATE``, or the XDG state directory."""
    return state_place(os.environ, option or "")


def chosen_layers(profile_name: str, patches: Sequence[str]) -> list[Layer]:
    """The files of the composition that the options name.

    :raises ConfigError: if one of them does not exist.
    """
    file = profile(profile_name)
    if not file.exists():
        raise ConfigError(f"there is no profile {profile_name!r}", remedy=f"profiles are {', '.join(profile_names())}")
    return layers(Layer(file, f"profile {profile_name}"), [Path(patch) for patch in patches], os.environ)


def decisions(state: Path) -> Trust:
    """Which directories are trusted, as every command sees it."""
    return Trust(state / "trust", below=compose(chosen_layers("standard", ())))


def layer_options(command: F) -> F:
    command = click.option("--patch", "patches", metavar="FILE", multiple=True, help="A further composition file; may be repeated.")(
        command
    )
    return click.option("--profile", "profile_name", metavar="NAME", default="standard", help="The shipped profile to begin with.")(command)


def existing_directory(name: str, option: str = "") -> Path:
    """The absolute path of a directory.

    :param option: the option that names it; empty for an argument.
    :raises NotFoundError: if there is none.
    """
    try:
        path = expanded(name).absolute()
        if path.is_dir():
            return path
    except (OSError, ValueError):
        pass
    remedy = f"name an existing one with {option}" if option else "name an existing one"
    raise NotFoundError(f"there is no directory {visible(name[:200])}", remedy=remedy, code="DIRECTORY_UNKNOWN")


def mode_option(command: F) -> F:
    return click.option(
        "--mode",
        type=click.Choice(("", "read-only", "workspace-write", "full")),
        default="",
        metavar="MODE",
        help="The permission mode instead of the configured one: read-only, workspace-write or full.",
    )(command)


def preset_option(command: F) -> F:
    said = "The preset of the agent, or 'none' (default: what 'hames preset use' has chosen here)."
    return click.option("--preset", metavar="NAME", default="", help=said)(command)


def state_option(command: F) -> F:
    return click.option("--state-dir", metavar="DIR", help="Where sessions are kept (HAMES_STATE; default: the XDG state directory).")(
        command
    )


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def hear_reloads(host: Host, agent: Agent, heard: Callable[[WorkspaceReloaded], None]) -> None:
    """Hear of the workspace that an agent stands in, for as long as it is open."""

    def listen(notice: WorkspaceReloaded) -> None:
        if agent.status != "closed":
            heard(notice)

    host.ctx.at(agent.scope.parent or host.root_scope).on(WorkspaceReloaded, listen)


def hear_servers(host: Host, agent: Agent, say: Callable[[str], None]) -> None:
    """Say which MCP servers that an agent sees are not there, now and later, for as long as it is open."""
    down: set[str] = set()

    def tell(server: str, status: str, reason: str) -> None:
        if status == "ready" and not reason:
            if server in down:
                down.discard(server)
                say(f"the MCP server {server} is there")
        elif status in ("waiting", "failed", "ready") and server not in down:
            down.add(server)
            say(f"the MCP server {server} is not there: {visible(reason)}")

    def listen(notice: ServerChanged) -> None:
        if agent.status != "closed":
            tell(notice.server, notice.status, notice.reason)

    pool = host.get(MCP, agent.scope)
    for name, seat in pool.seats.view(agent.scope).items() if pool is not None else ():
        tell(name, seat.connection.status, seat.connection.reason or seat.problem)
    host.ctx.on(ServerChanged, listen)


def hear_tasks(host: Host, agent: Agent, say: Callable[[str], None]) -> None:
    """Say how the tasks come along that an agent has started, and why requests wait, for as long as it is open."""
    titles: dict[str, str] = {}
    full: set[tuple[str, str]] = set()
    on = host.ctx.at(agent.scope).on

    def began(notice: TaskBegan) -> None:
        titles[notice.task] = visible(notice.title)
        say(f"task {notice.task} began: {titles[notice.task]} ({notice.runner})")

    def told(notice: TaskSaid) -> None:
        say(f"  [{titles.get(notice.task, notice.task)}] {visible(' '.join(notice.text.split()))[:120]}")

    def ended(notice: TaskEnded) -> None:
        say(f"task {notice.task} ended: {notice.status}{f' ({notice.code})' if notice.code else ''}: {titles.pop(notice.task, '')}")

    def waits(notice: SlotAwaited) -> None:
        if (notice.provider, notice.why) not in full:
            full.add((notice.provider, notice.why))
            say(f"{notice.now} requests of {notice.provider} run at a time ({notice.why}); others wait")

    on(TaskBegan, began)
    on(TaskSaid, told)
    on(TaskEnded, ended)
    host.ctx.on(SlotAwaited, waits)


def reloaded(notice: WorkspaceReloaded) -> str:
    """A reading of the workspace, in a line."""
    if notice.reason:
        return f"the workspace was not reloaded ({notice.reason}): {' | '.join(notice.message.splitlines())}"
    changes = [f"+{path}" for path in notice.started] + [f"-{path}" for path in notice.stopped if path not in notice.started]
    return f"the workspace was reloaded: {' '.join(changes) or 'nothing has changed'}"


@asynccontextmanager
async def opened(state: Path, cwd: Path, chosen: Sequence[Layer], *, mode: str = "") -> AsyncGenerator[Host]:
    """A host with a composition for work in a directory.

    :param mode: the permission mode, where somebody has named one.

    :raises ConfigError: if state and checkout lie in each other, or the composition has a mistake.
    """
    check_state(state, cwd)
    async with running(chosen, {STATE: state, **({MODE: mode} if mode else {})}) as host:
        if os.environ.get("PYDANTIC_DISABLE_PLUGINS") == "__all__":
            del os.environ["PYDANTIC_DISABLE_PLUGINS"]  # it was for our own start, and no command of a tool shall have it
        yield host
