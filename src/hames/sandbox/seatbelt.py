"""Confining a process with Seatbelt, the sandbox of macOS: a profile in which the last rule that matches decides."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hames.content.jsontext import dumps
from hames.sandbox.port import Command, Enforcement, View

PROGRAM = "/usr/bin/sandbox-exec"
DEVICES = ("/dev/null", "/dev/zero", "/dev/tty", "/dev/stdout", "/dev/stderr", "/dev/dtracehelper")


def profile(view: View, scratch: Path | None) -> str:
    """The rules of a view."""
    rules = ["(version 1)", "(allow default)", '(deny file-write* (subpath "/"))']
    rules += [f"(allow file-write* (literal {dumps(name)}))" for name in DEVICES]
    rules.append('(allow file-write* (regex #"^/dev/ttys[0-9]+$"))')
    for path, place in view.ordered[1:]:
        where = f"(subpath {dumps(str(path))})"
        rules.append(f"({'deny' if place == 'hidden' else 'allow'} file-read* {where})")
        rules.append(f"({'allow' if place == 'write' else 'deny'} file-write* {where})")
        if place == "read":  # nor may a directory above be renamed away, with it in it
            rules += [f"(deny file-write-unlink (literal {dumps(str(each))}))" for each in path.parents if view.place(each) == "write"]
    if not view.network:
        rules.append("(deny network*)")
    rules.append("(deny signal (target others))")
    return "\n".join(rules)


class Seatbelt:
    """Builds the command line of sandbox-exec."""

    mounts = False

    def __init__(self) -> None:
        self.enforcement = Enforcement("seatbelt", "enforced")

    def works(self) -> bool:
        return os.access(PROGRAM, os.X_OK)

    @contextmanager
    def wrapped(self, argv: Sequence[str], view: View, cwd: Path, scratch: Path | None) -> Generator[Command]:
        """The command that runs ``argv`` confined."""
        yield Command([PROGRAM, "-p", profile(view, scratch), *argv])
