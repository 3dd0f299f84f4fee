"""What a repository says to agents, read with care: it is somebody else's text until its directory is trusted."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hames.compose.layers import checkout, home
from hames.content.errors import HamesError
from hames.content.messages import clean
from hames.trust import Trust


@dataclass(frozen=True, slots=True)
class Read:
    """A text file, or why it was not read.

    :param more: how many bytes were left out at its end.
    """

    text: str = ""
    more: int = 0
    refused: str = ""


def read_text(path: Path, inside: Path | None, limit: int) -> Read | None:
    """The beginning of a text file; None where there is none.

    :param inside: the directory that it may not lead out of; None for a file of the user's own.
    :param limit: bytes that are read at most.
    """
    try:
        real = path.resolve()
        if inside is not None and not real.is_relative_to(inside.resolve()):
            return Read(refused="it leads out of the repository") if os.path.lexists(path) else None
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError) as error:
        return Read(refused=os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error))
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        return Read(refused="it is no regular file")
    with os.fdopen(descriptor, "rb") as file:
        try:
            data = file.read(limit)
        except OSError as error:
            return Read(refused=os.strerror(error.errno or 0))
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in data:
        return Read(refused="it is no text")
    return Read(clean(data.decode("utf-8", "ignore" if status.st_size > limit else "replace")), max(0, status.st_size - limit))


def directories(cwd: Path) -> list[Path]:
    """The directories that speak for a working directory: the top of its checkout first, itself last; itself alone outside of one."""
    top = checkout(cwd)
    if top is None:
        return [cwd]
    return [each for each in (*reversed(cwd.parents), cwd) if each.is_relative_to(top)]


def trusted(trust: Trust | None, cwd: Path) -> bool:
    """Whether a directory is trusted; without a row that decides about trust none is."""
    if trust is None:
        return False
    try:
        return trust.status(cwd).standing == "granted"
    except HamesError:
        return False


def user_directory() -> Path:
    """Where the user's own instructions and skills are."""
    return home(os.environ)
