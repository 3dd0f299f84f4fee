"""Filters of system calls, for what namespaces and Landlock do not hold.

A filter is written here as BPF, since it has to be installed by a program of the standard library alone. The numbers are those of
linux/unistd.h, the layout that of linux/seccomp.h and linux/filter.h.
"""

from __future__ import annotations

import platform
import struct
from dataclasses import dataclass, field

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, EPERM = 0x7FFF0000, 0x00050001
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
AF_UNIX = 1

#: System calls by name: their numbers on x86_64 and aarch64; where one is missing there, that of one that does the same.
CALLS: dict[str, tuple[int, int]] = {
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "chown": (92, 55),
    "fchown": (93, 55),
    "lchown": (94, 55),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "chmod": (90, 52),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "utime": (132, 88),
    "utimes": (235, 88),
    "futimesat": (261, 88),
    "utimensat": (280, 88),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, 142),
    "ioperm": (173, 142),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "clock_settime": (227, 112),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "open_by_handle_at": (304, 265),
    "finit_module": (313, 273),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "ioctl": (16, 29),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}

RINGS = ("io_uring_setup", "io_uring_enter", "io_uring_register")  # they can do the work of all others
OWNERS = ("chown", "fchown", "lchown", "fchownat", "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr")
ATTRIBUTES = (*OWNERS, "setxattrat", "removexattrat", "file_setattr")
MODES = ("chmod", "fchmod", "fchmodat", "fchmodat2", "utime", "utimes", "futimesat", "utimensat")
KEYS = ("add_key", "request_key", "keyctl")
MACHINE = (
    *("pivot_root", "chroot", "acct", "settimeofday", "mount", "umount2", "swapon", "swapoff", "reboot", "sethostname", "setdomainname"),
    *("iopl", "ioperm", "init_module", "delete_module", "clock_settime", "kexec_load", "perf_event_open", "open_by_handle_at"),
    *("finit_module", "kexec_file_load", "bpf"),
)
SHARED = ("shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd", "msgrcv", "msgctl", "mq_open")
#: Calls that name a process, and which argument does; only with 0, oneself.
ONLY_SELF = {
    "prlimit64": 0,
    "setpriority": 1,
    "ioprio_set": 1,
    "sched_setparam": 0,
    "sched_setscheduler": 0,
    "sched_setaffinity": 0,
    "sched_setattr": 0,
    "migrate_pages": 0,
    "move_pages": 0,
}
#: Requests of ioctl: flags of inodes, and typing into a terminal.
IOCTLS = (0x40086602, 0x40046602, 0x401C5820, 0x5412, 0x541C)


@dataclass(frozen=True, slots=True)
class Filter:
    """What fails with EPERM.

    :param denied: calls, by name.
    :param families: address families of sockets.
    :param only_self: calls that may name nobody but the caller.
    :param ioctls: requests.
    """

    denied: tuple[str, ...] = ()
    families: tuple[int, ...] = ()
    only_self: tuple[str, ...] = ()
    ioctls: tuple[int, ...] = field(default=())


def bubblewrap(*, unix_sockets: bool) -> Filter:
    """What namespaces leave open: sockets of others by their path, and the keys of the user."""
    return Filter((*RINGS, *KEYS), () if unix_sockets else (AF_UNIX,), (), IOCTLS)


def landlock(*, network: bool, modes: bool) -> Filter:
    """What Landlock does not see.

    :param network: whether sockets may be made.
    :param modes: whether modes and times of files may be changed; it is not seen where.
    """
    denied = (*RINGS, *KEYS, *ATTRIBUTES, *MACHINE, *SHARED)
    denied += () if network else ("socket",)
    denied += () if modes else MODES
    return Filter(denied, (AF_UNIX,) if network else (), tuple(ONLY_SELF), IOCTLS)


def number(name: str) -> int:
    return CALLS[name][0 if platform.machine() == "x86_64" else 1]


def program(chosen: Filter) -> bytes:
    """The filter as BPF; calls of another architecture all fail."""
    machine = platform.machine()
    refuse, permit = (RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)
    code: list[tuple[int, int, int, int]] = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, AUDIT_ARCH[machine]), refuse, (LOAD, 0, 0, 0)]
    if machine == "x86_64":
        code += [(AT_LEAST, 0, 1, 0x40000000), refuse]  # the x32 calls
    for call in sorted({number(name) for name in chosen.denied}):
        code += [(EQUAL, 0, 1, call), refuse]
    for call, argument, values in arguments(chosen):
        # Is it this call? Then its argument decides, and the number is loaded again for what follows.
        checks = [step for value in values for step in ((EQUAL, 0, 1, value), refuse)]
        code += [(EQUAL, 0, len(checks) + 2, call), (LOAD, 0, 0, 16 + 8 * argument), *checks, permit]
    for name in chosen.only_self:
        code += [(EQUAL, 0, 4, number(name)), (LOAD, 0, 0, 16 + 8 * ONLY_SELF[name]), (EQUAL, 1, 0, 0), refuse, permit]
    return b"".join(struct.pack("=HBBI", *step) for step in [*code, permit])


def arguments(chosen: Filter) -> list[tuple[int, int, tuple[int, ...]]]:
    """Calls of which the value of one argument decides: number, argument, values that are refused."""
    found: list[tuple[int, int, tuple[int, ...]]] = []
    if chosen.families and "socket" not in chosen.denied:
        found.append((number("socket"), 0, chosen.families))
    if chosen.ioctls:
        found.append((number("ioctl"), 1, chosen.ioctls))
    return found
