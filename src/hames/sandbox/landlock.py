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
import stat
import struct
import sys

CREATE, ADD, RESTRICT = 444, 445, 446  # the same on every architecture
SECCOMP = {"x86_64": 317, "aarch64": 277}
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 38, 24

WRITE_FILE, READ_FILE, REMOVE_DIR, REMOVE_FILE = (1 << n for n in (1, 2, 4, 5))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << n for n in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = (1 << n for n in range(13, 16))
WRITES = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_CHAR | MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_BLOCK | MAKE_SYM
ON_FILES = WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
SCOPES = 3  # abstract sockets and signals, from the sixth version on

DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
#: Numbers of system calls by architecture. Denied without the network; io_uring can do the work of all of them.
NETWORK_CALLS = {"x86_64": (41, 425, 426, 427), "aarch64": (198, 425, 426, 427)}
#: Changes of owners and extended attributes, which Landlock does not see: always denied.
OWNER_CALLS = {
    "x86_64": (92, 93, 94, 260, 188, 189, 190, 197, 198, 199, 463, 466),
    "aarch64": (54, 55, 5, 6, 7, 14, 15, 16, 463, 466),
}
#: Changes of modes and times: denied where nothing is writable.
MODE_CALLS = {"x86_64": (90, 91, 268, 452, 132, 235, 261, 280), "aarch64": (52, 53, 452, 88)}
#: What a confined program of the superuser could do to the machine.
MACHINE_CALLS = {
    "x86_64": (155, 161, 165, 166, 167, 168, 169, 170, 171, 172, 173, 175, 176, 227, 246, 248, 249, 250, 298, 304, 313, 320, 321),
    "aarch64": (41, 51, 40, 39, 224, 225, 142, 161, 162, 105, 106, 112, 104, 217, 218, 219, 241, 265, 273, 294, 280),
}

libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """The version of Landlock that the kernel has, 0 for none."""
    if not sys.platform.startswith("linux") or platform.machine() not in AUDIT_ARCH:
        return 0
    return max(0, libc.syscall(CREATE, None, ctypes.c_size_t(0), 1))


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def restrict(places: list[tuple[str, str]], abi: int, hides: bool) -> None:
    """Give this thread, and all that comes of it, only these places."""
    writes = WRITES | (REFER if abi >= 2 else 0) | (TRUNCATE if abi >= 3 else 0) | (IOCTL_DEV if abi >= 5 else 0)
    handled = writes | (READ_FILE if hides else 0)
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


def filter_calls(denied: list[int]) -> None:
    """Let these system calls fail with EPERM, and all of another architecture."""
    machine = platform.machine()
    instructions = [(0x20, 0, 0, 4), (0x15, 1, 0, AUDIT_ARCH[machine]), (0x06, 0, 0, 0x00050001), (0x20, 0, 0, 0)]
    if machine == "x86_64":
        instructions += [(0x35, 0, 1, 0x40000000), (0x06, 0, 0, 0x00050001)]  # the x32 calls
    for number in denied:
        instructions += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050001)]
    instructions.append((0x06, 0, 0, 0x7FFF0000))
    code = b"".join(struct.pack("=HBBI", *each) for each in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(instructions), ctypes.addressof(buffer))
    check(libc.syscall(SECCOMP[machine], 1, 0, program), "seccomp")


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


def confine(places: list[tuple[str, str]], *, network: bool, modes: bool) -> None:
    """Confine this process for good.

    :param modes: whether it may change modes and times of files; Landlock does not see where.
    :raises OSError: if the kernel refuses; nothing may be run then.
    """
    machine = platform.machine()
    denied = [*MACHINE_CALLS[machine], *OWNER_CALLS[machine]]
    denied += NETWORK_CALLS[machine][1:] if network else NETWORK_CALLS[machine]
    denied += [] if modes else MODE_CALLS[machine]
    restrict(places, version(), any(kind == "hidden" for _, kind in places))
    drop_capabilities()
    filter_calls(denied)


def main() -> None:
    """``landlock.py {"places": [[path, place], …], "network": …, "modes": …} command …``"""
    settings = json.loads(sys.argv[1])
    try:
        places = [(path, place) for path, place in settings["places"]]
        confine(places, network=settings["network"], modes=settings["modes"])
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        print(f"hames: the sandbox could not be set up: {error}", file=sys.stderr)
        sys.exit(126)


if __name__ == "__main__":
    main()
