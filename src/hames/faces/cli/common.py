"""What several commands share."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from hames.compose import running
from hames.kernel import Host
from hames.profiles import profile
from hames.store import STATE

F = TypeVar("F", bound=Callable[..., Any])


def state_directory(option: str | None) -> Path:
    """Where state lives: the option, ``HAMES_STATE``, or the XDG state directory."""
    if option:
        return Path(option).expanduser().absolute()
    if named := os.environ.get("HAMES_STATE"):
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "hames"


def state_option(command: F) -> F:
    return click.option("--state-dir", metavar="DIR", help="Where sessions are kept (HAMES_STATE; default: the XDG state directory).")(
        command
    )


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


@asynccontextmanager
async def opened(state: Path, name: str = "standard") -> AsyncGenerator[Host]:
    """A host with a shipped profile."""
    async with running(profile(name), {STATE: state}) as host:
        yield host
