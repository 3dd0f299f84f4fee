"""Reading, writing and editing files.

A file that exists has to be read before it is changed, and a change is refused where the file is not as it was read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import Field

from hames.kernel import Context, plugin
from hames.tools import TOOLS, Invocation, Needs, ToolError, tool

LINES = 2000  # shown by one read
LINE_LIMIT = 2000  # characters of a line that are shown
EDIT_LIMIT = 32 * 1024 * 1024  # bytes of a file that is edited


def version(status: os.stat_result) -> tuple[int, int, int]:
    """What tells whether a file has changed: inode, size, and time of the last change."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def seen(invocation: Invocation) -> dict[Path, tuple[int, int, int]]:
    """The files that this agent has read, as they were."""
    files: dict[Path, tuple[int, int, int]] = invocation.memory.setdefault("files", {})
    return files


@contextmanager
def opened(target: Path, name: str, call: Invocation) -> Generator[tuple[BinaryIO, os.stat_result]]:
    """A regular file and its status.

    :raises ToolError: if it is not there, may not be read, or is something else: a pipe or a device could hang or never end.
    """
    try:
        with os.fdopen(call.open(target), "rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError
            if not stat.S_ISREG(status.st_mode):
                raise ToolError(f"{name} is not a regular file", "NOT_REGULAR")
            yield file, status
    except FileNotFoundError:
        raise ToolError(f"there is no file {name}", "NOT_FOUND") from None
    except IsADirectoryError:
        raise ToolError(f"{name} is a directory; list it with glob", "IS_DIRECTORY") from None
    except OSError as error:
        code = "NOT_REGULAR" if error.errno == errno.ENXIO else "UNREADABLE"  # a socket
        raise ToolError(f"{name}: {os.strerror(error.errno or 0)}", code) from None


def writes(arguments: Mapping[str, Any], call: Invocation) -> Needs:
    """Writing needs its path."""
    return Needs(frozenset({"write"}), (call.real(arguments["path"], write=True),))


@tool("read", parallel=True)
def read(
    path: str,
    offset: Annotated[int, Field(ge=1)] = 1,
    limit: Annotated[int, Field(ge=1, le=LINES)] = LINES,
    *,
    call: Invocation,
) -> str:
    """Read a text file. Lines come numbered; long lines are cut.

    :param path: absolute, or relative to the working directory.
    :param offset: the first line to show, from 1.
    :param limit: how many lines to show.
    """
    target = call.real(path)
    lines: list[str] = []
    number = 0
    more = False
    with opened(target, path, call) as (file, status):
        if b"\0" in file.read(8192):
            raise ToolError(f"{path} is a binary file of {status.st_size} bytes", "BINARY")
        file.seek(0)
        while raw := file.readline(LINE_LIMIT * 4):
            number += 1
            cut = not raw.endswith(b"\n") and len(raw) == LINE_LIMIT * 4
            while cut and (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
                pass
            if number < offset:
                continue
            if len(lines) == limit:
                more = True
                break
            text = raw.decode("utf-8", "replace").rstrip("\r\n")
            lines.append(f"{number:6}\t{text[:LINE_LIMIT]}{' […]' if cut or len(text) > LINE_LIMIT else ''}")
    seen(call)[target] = version(status)
    if not lines:
        return f"{path} is empty" if number == 0 else f"{path} has only {number} lines"
    return "\n".join(lines) + (f"\n[more lines follow; read on with offset {offset + limit}]" if more else "")


def check_fresh(target: Path, status: os.stat_result, name: str, call: Invocation) -> None:
    """Refuse to change a file that the agent does not know as it is.

    :raises ToolError: NOT_READ or STALE.
    """
    known = seen(call).get(target)
    if known is None:
        raise ToolError(f"{name} exists and has not been read; read it first", "NOT_READ")
    if known != version(status):
        raise ToolError(f"{name} has changed since it was read; read it again", "STALE")


def replace_file(target: Path, name: str, data: bytes, call: Invocation) -> None:
    """Write a file whole or not at all, with the mode that it had.

    :raises ToolError: if it cannot be written.
    """
    try:
        call.replace(target, data)
    except OSError as error:
        code = "STORAGE_FULL" if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT) else "UNWRITABLE"
        raise ToolError(f"{name}: {os.strerror(error.errno or 0)}; it is as it was", code) from None
    seen(call)[target] = version(target.stat())


@tool("write", needs=writes)
def write(path: str, content: str, *, call: Invocation) -> str:
    """Write a file, whole. A file that exists must have been read before.

    :param path: absolute, or relative to the working directory; missing directories are made.
    :param content: the new text of the file.
    """
    target = call.real(path, write=True)
    existed = os.path.lexists(target)
    if existed:
        with opened(target, path, call) as (_, status):
            check_fresh(target, status, path, call)
    data = content.encode("utf-8", "surrogatepass")
    replace_file(target, path, data, call)
    return f"{'replaced' if existed else 'created'} {path} ({len(data)} bytes)"


@tool("write", needs=writes)
def edit(path: str, old: str, new: str, all: bool = False, *, call: Invocation) -> str:
    """Replace a piece of a file that has been read. The old text must occur exactly once, unless all occurrences are meant.

    :param path: absolute, or relative to the working directory.
    :param old: the text to replace, exactly as it stands in the file, without line numbers.
    :param new: what to put in its place.
    :param all: replace every occurrence.
    """
    target = call.real(path, write=True)
    with opened(target, path, call) as (file, status):
        check_fresh(target, status, path, call)
        if status.st_size > EDIT_LIMIT:
            raise ToolError(f"{path} has {status.st_size} bytes; edit takes at most {EDIT_LIMIT}", "TOO_LARGE")
        if not old or old == new:
            raise ToolError("old must not be empty, and new must differ from it", "NOTHING_TO_DO")
        try:
            text = file.read().decode()
        except UnicodeDecodeError:
            raise ToolError(f"{path} is not UTF-8 text", "BINARY") from None
    if old not in text and "\r\n" in text:
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    count = text.count(old)
    if count == 0:
        raise ToolError(f"the old text does not occur in {path}; it must match exactly, white space too", "NO_MATCH")
    if count > 1 and not all:
        raise ToolError(f"the old text occurs {count} times in {path}; give more of its surroundings, or set all", "AMBIGUOUS")
    replace_file(target, path, text.replace(old, new).encode(), call)
    return f"edited {path}: {count} {'occurrences' if count > 1 else 'occurrence'} replaced"


@plugin(needs=(TOOLS,), name="files")
def files(ctx: Context, config: Any) -> None:
    """The tools ``read``, ``write`` and ``edit``."""
    for each in (read, write, edit):
        ctx.use(TOOLS).register(ctx, each)
