"""Confining a process with Landlock and a system call filter, where bubblewrap cannot be used.

This module is also the program that does it: it confines itself and becomes the command. It uses the standard library alone.

Landlock allows directories and cannot take one back inside them. Where something in a directory is protected, only what stands in it
when the command starts is writable: new names at the top of such a directory cannot be made by commands.

Sources: landlock(7), seccomp(2), linux/landlock.h, linux/filter.h.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import stat
import struct
import sys

CREATE, ADD, RESTRICT = 444, 445, 446  # the same on every architecture
SECCOMP = {"x86_64": 317, "aarch64": 277}
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 38, 24, 36

WRITE_FILE, READ_FILE, REMOVE_DIR, REMOVE_FILE = (1 << n for n in (1, 2, 4, 5))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << n for n in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = (1 << n for n in range(13, 16))
WRITES = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_CHAR | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_BLOCK | MAKE_SYM
ON_FILES = WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
SCOPES = 3  # abstract sockets and signals, from the sixth version on

DEVICES = ("null", "zero", "full", "random", "urandom")

libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """The version of Landlock that the kernel has, 0 for none."""
    if not sys.platform.startswith("linux") or platform.machine() not in SECCOMP:
        return 0
    return max(0, libc.syscall(CREATE, None, ctypes.c_size_t(0), 1))


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def restrict(places: list[tuple[str, str]], abi: int) -> None:
    """Give this thread, and all that comes of it, only these places; of devices those that are nobody's."""
    places = [*places, ("/dev", "hidden")]
    writes = WRITES | (REFER if abi >= 2 else 0) | (TRUNCATE if abi >= 3 else 0) | (IOCTL_DEV if abi >= 5 else 0)
    handled = writes | READ_FILE
    attributes = struct.pack("=QQQ", handled, 0, SCOPES if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = check(libc.syscall(CREATE, attributes, ctypes.c_size_t(size), 0), "landlock_create_ruleset")

    def grant(path: str, place: str) -> None:
        rights = (writes if place == "write" else 0) | (READ_FILE if place != "hidden" else 0)
        rights &= handled
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return  # it has gone
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISDIR(mode):
                rights &= ON_FILES
            if rights and not stat.S_ISLNK(mode):
                rule = struct.pack("=Qi", rights, descriptor)
                check(libc.syscall(ADD, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
        finally:
            os.close(descriptor)

    def walk(path: str, place: str) -> None:
        prefix = path.rstrip("/") + "/"
        below = [(each, kind) for each, kind in places if each.startswith(prefix) and each != path]
        if not below:
            grant(path, place)
            return
        known = dict(below)
        try:
            names = os.listdir(path)  # noqa: PTH208 - names are what is wanted
        except OSError:
            return
        for name in names:
            walk(prefix + name, known.get(prefix + name, place))

    walk("/", dict(places)["/"])
    for name in DEVICES:
        grant(f"/dev/{name}", "write")
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    check(libc.syscall(RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def install(code: bytes) -> None:
    """Install a filter of system calls."""
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    check(libc.syscall(SECCOMP[platform.machine()], 1, 0, program), "seccomp")


def drop_capabilities() -> None:
    """Of the superuser's powers only those over files stay: the rest could undo the confinement."""
    if os.geteuid() != 0:
        return
    kept = 0b1011  # CAP_CHOWN, CAP_DAC_OVERRIDE and CAP_FOWNER
    for number in range(64):
        if not kept >> number & 1:
            libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    header = struct.pack("=Ii", 0x20080522, 0)
    data = struct.pack("=6I", kept, kept, kept, 0, 0, 0)
    check(libc.syscall(126 if platform.machine() == "x86_64" else 91, header, data), "capset")


def confine(places: list[tuple[str, str]], code: bytes) -> None:
    """Confine this process for good.

    :param code: the filter of system calls.
    :raises OSError: if the kernel refuses; nothing may be run then.
    """
    restrict(places, version())
    drop_capabilities()
    install(code)


def watch(child: int) -> int:
    """Wait for a command, end all that it has left behind, and return its status: what is orphaned comes to this process."""
    status = 0
    while True:
        try:
            pid, ended = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if pid == child:
            status = ended
            child = 0
        if child == 0:
            for pid in children():
                try:
                    os.kill(pid, 9)
                except OSError:
                    pass


def children() -> list[int]:
    """The processes below this one."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are what is wanted
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:  # noqa: PTH123 - starts faster without pathlib
                    parents[int(name)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    below = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in below and pid not in below}:
        below |= found
    return sorted(below - {os.getpid()})


def main() -> None:
    """``landlock.py {"places": [[path, place], …], "filter": hexadecimal} command …``"""
    settings = json.loads(sys.argv[1])
    try:
        places = [(path, place) for path, place in settings["places"]]
        check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
        confine(places, bytes.fromhex(settings["filter"]))
        child = os.fork()
        if child == 0:
            os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        print(f"hames: the sandbox could not be set up: {error}", file=sys.stderr)
        os._exit(126)
    for number in (1, 2, 15):
        signal.signal(number, signal.SIG_IGN)
    status = watch(child)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


if __name__ == "__main__":
    main()
