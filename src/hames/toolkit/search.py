"""Finding files by name and lines by content."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from hames.kernel import Context, plugin
from hames.sandbox import Refused
from hames.sandbox.port import Command
from hames.tools import TOOLS, Invocation, ToolError, tool

SKIPPED = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv"})
FILE_LIMIT = 16 * 1024 * 1024  # bytes of a file that is searched without ripgrep
LINE_LIMIT = 400  # characters of a matching line


def pattern_of(glob: str) -> re.Pattern[str]:
    """The regular expression of a glob over paths with ``/``: ``**`` crosses directories, ``{a,b}`` is a choice."""
    out: list[str] = []
    index = 0
    depth = 0
    while index < len(glob):
        letter = glob[index]
        if glob.startswith("**/", index):
            out.append("(?:[^/]+/)*")
            index += 3
            continue
        if glob.startswith("**", index):
            out.append(".*")
            index += 2
            continue
        if letter == "[" and (close := glob.find("]", index + 2)) > 0:
            inner = glob[index + 1 : close]
            out.append("[" + ("^" + inner[1:] if inner[0] == "!" else inner).replace("\\", "\\\\") + "]")
            index = close + 1
            continue
        if letter == "{":
            depth += 1
            out.append("(?:")
        elif letter == "}" and depth:
            depth -= 1
            out.append(")")
        elif letter == "," and depth:
            out.append("|")
        else:
            out.append({"*": "[^/]*", "?": "[^/]"}.get(letter, re.escape(letter)))
        index += 1
    try:
        return re.compile("".join(out) + ")" * depth)
    except re.error as error:
        raise ToolError(f"{glob!r} is no glob: {error}", "INVALID_PATTERN") from None


def walk(root: Path, call: Invocation) -> Iterator[tuple[str, Path]]:
    """Files below a directory in order of their path, as (relative path, path). Links to directories are not followed, and what is hidden
    is not entered."""
    hidden = {path for path, place in call.sandbox.view(call.confinement).places.items() if place == "hidden"}
    for directory, names, files in os.walk(root.resolve()):
        names[:] = sorted(name for name in names if name not in SKIPPED and Path(directory, name) not in hidden)
        for name in sorted(files):
            path = Path(directory, name)
            yield os.path.relpath(path, root.resolve()), path


def existing(call: Invocation, path: str) -> Path:
    root = call.real(path)
    call.sandbox.check_read(root, call.confinement)
    if not root.exists():
        raise ToolError(f"there is no {path}", "NOT_FOUND")
    if not root.is_dir() and not root.is_file():
        raise ToolError(f"{path} is neither a directory nor a regular file", "NOT_REGULAR")
    return root


@tool("read", parallel=True)
def glob(pattern: str, path: str = ".", limit: Annotated[int, Field(ge=1, le=5000)] = 500, *, call: Invocation) -> str:
    """Find files by name. Version control and dependency folders are left out.

    :param pattern: as in ``src/**/*.py`` or ``*.{c,h}``; without a slash it matches the file name in any folder.
    :param path: where to look.
    :param limit: how many to show at most.
    """
    root = existing(call, path)
    expression = pattern_of(pattern if "/" in pattern else "**/" + pattern)
    found: list[str] = []
    for name, _ in walk(root, call):
        if expression.fullmatch(name):
            if len(found) == limit:
                found.append(f"[more than {limit} files match]")
                break
            found.append(name)
    return "\n".join(found) or "no file matches"


@tool("read", parallel=True)
async def grep(
    pattern: str,
    path: str = ".",
    glob: str = "",
    ignore_case: bool = False,
    limit: Annotated[int, Field(ge=1, le=2000)] = 200,
    *,
    call: Invocation,
) -> str:
    """Search the lines of files with a regular expression. Shows path, line number and line.

    :param pattern: a regular expression.
    :param path: a file or folder to search.
    :param glob: only files whose name matches, as in ``*.py``.
    :param ignore_case: whether A matches a.
    :param limit: how many lines to show at most.
    """
    root = existing(call, path)
    program = shutil.which("rg")
    if program is not None and (call.confinement.access == "full" or call.sandbox.enforcement.level != "none"):
        return await ripgrep(program, pattern, root, glob, ignore_case, limit, call)
    return await asyncio.to_thread(search, pattern, root, glob, ignore_case, limit, call)


async def ripgrep(program: str, pattern: str, root: Path, glob: str, ignore_case: bool, limit: int, call: Invocation) -> str:
    """Search with ripgrep, which is confined like a command that writes nothing."""
    cwd = call.cwd
    command = [program, "--line-number", "--no-heading", "--with-filename", "--color=never", "--no-config", "--sort=path"]
    command += [f"--max-columns={LINE_LIMIT}", "--max-columns-preview", "--hidden", "--glob=!.git"]
    command += ["--ignore-case"] if ignore_case else []
    command += [f"--glob={glob}"] if glob else []
    name = os.path.relpath(root, cwd) if root.is_relative_to(cwd) else str(root)
    command += ["-e", pattern, "--", name]
    confinement = call.confinement
    if confinement.access != "full":
        confinement = replace(confinement, access="read-only", network=False)
    with call.sandbox.command(command, confinement, cwd) as confined:
        return shown(await lines_of(confined, cwd, limit), limit)


async def lines_of(command: Command, cwd: Path, limit: int) -> list[str]:
    """What ripgrep prints, until there is more than a limit of lines.

    :raises ToolError: if it does not take the pattern.
    """
    if any("\0" in word for word in command.argv):
        raise ToolError("a pattern holds no zero byte", "INVALID_PATTERN")
    process = await asyncio.create_subprocess_exec(
        *command.argv,
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        pass_fds=command.pass_fds,
    )
    assert process.stdout is not None and process.stderr is not None
    lines: list[str] = []
    complaints = asyncio.create_task(head(process.stderr))
    try:
        while len(lines) <= limit and (raw := await process.stdout.readline()):
            lines.append(raw.decode("utf-8", "replace").rstrip("\n").removeprefix("./"))
        if len(lines) <= limit:
            error = (await complaints).decode("utf-8", "replace").strip()
            if await process.wait() not in (0, 1) and not lines:
                raise ToolError(error.splitlines()[-1] if error else "ripgrep failed", "INVALID_PATTERN")
    finally:
        if process.returncode is None:
            process.kill()
        complaints.cancel()
        await asyncio.wait((complaints,))
        await process.wait()
    return lines


async def head(stream: asyncio.StreamReader, limit: int = 64 * 1024) -> bytes:
    """The beginning of all that a stream gives; the rest is read and dropped."""
    kept = b""
    while data := await stream.read(1 << 16):
        kept += data[: max(0, limit - len(kept))]
    return kept


def search(pattern: str, root: Path, glob: str, ignore_case: bool, limit: int, call: Invocation) -> str:
    """Search without ripgrep."""
    try:
        expression = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise ToolError(f"{pattern!r} is no regular expression: {error}", "INVALID_PATTERN") from None
    names = pattern_of(glob if "/" in glob else "**/" + glob) if glob else None
    lines: list[str] = []
    for name, path in walk(root, call) if root.is_dir() else [(root.name, root)]:
        if names is not None and not names.fullmatch(name):
            continue
        for number, text in text_lines(path, call):
            if expression.search(text):
                lines.append(f"{name}:{number}:{text[:LINE_LIMIT]}")
                if len(lines) > limit:
                    return shown(lines, limit)
    return shown(lines, limit)


def text_lines(path: Path, call: Invocation) -> Iterator[tuple[int, str]]:
    """The numbered lines of a text file; nothing of a hidden, binary, unreadable, special or huge one."""
    try:
        with os.fdopen(call.open(path), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_LIMIT:
                return
            data = file.read()
    except (OSError, Refused):
        return
    if b"\0" not in data[:8192]:
        yield from enumerate(data.decode("utf-8", "replace").splitlines(), 1)


def shown(lines: list[str], limit: int) -> str:
    if not lines:
        return "no line matches"
    if len(lines) > limit:
        return "\n".join(lines[:limit]) + f"\n[more than {limit} lines match]"
    return "\n".join(lines)


@plugin(needs=(TOOLS,), name="search")
def search_tools(ctx: Context, config: Any) -> None:
    """The tools ``glob`` and ``grep``."""
    for each in (glob, grep):
        ctx.use(TOOLS).register(ctx, each)
