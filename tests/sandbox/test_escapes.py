"""A table of escapes: each is tried under every means and mode, and where nothing confines, where it must succeed.

Whether it succeeded is looked at from outside: at files, processes, listeners and terminals, never at an exit status alone. Everything lies
in ``/var/tmp``: the temporary directory of a confined command is another one, and what is not there cannot be reached anyway.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import ctypes
import fcntl
import os
import pty
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hames.agents.spill import spiller
from hames.sandbox import Confinement, Refused, Sandbox, scrubbed
from hames.sandbox import hold as holding
from hames.sandbox.protect import NAMES, Rules
from hames.sandbox.service import candidates
from hames.toolkit.files import edit, read, write
from hames.toolkit.search import glob, grep
from hames.tools import Invocation, ToolError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="bubblewrap and Landlock are of Linux")

CANARY = "CANARY-0b5f"
SCOPE: Any = None  # none of these tools looks at it
MODES = ("read-only", "workspace-write")
MEANS = ("bubblewrap", "landlock")
libc = ctypes.CDLL(None, use_errno=True)
QUIET = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_TERMINAL_PROMPT": "0"}

PREPARE = r"""
set -e; mkdir -p work outside/dir hidden work/src work/plugins/__pycache__ work/ext/deep outside/proj
echo untouched > outside/victim.txt; echo untouched > outside/proj/file; echo 'KEY' > hidden/key
cd work; git init -q -b main; git config user.email a@b; git config user.name a; git config commit.gpgsign false
echo 'VALUE = 1' > plugins/p.py; echo 'VALUE = 1' > ext/deep/p.py; echo a > src/a.txt; echo a > a.txt
mkdir hooks-to-be; echo x > hooks-to-be/x
git add -A; git commit -qm first
git checkout -qb evil; mkdir -p .claude .agents .hames; echo e > .claude/settings.json; echo e > .agents/x; echo e > .hames/x
echo e > .mcp.json; git add -A; git commit -qm evil; git checkout -q main; rm -rf .git/hooks/*
mkdir -p .git/modules/x/refs .git/modules/x/objects; echo 'ref: refs/heads/main' > .git/modules/x/HEAD
printf '[core]\n\trepositoryformatversion = 0\n' > .git/modules/x/config
cp -a .git ../outside/proj/.git; rm -rf ../outside/proj/.git/modules
"""

PROTECTED = (
    *(".git/config", ".git/config.worktree", ".git/commondir", ".git/hooks", ".git/modules/x/config", ".git/modules/x/commondir"),
    *("githooks", "plugins/p.py", "ext/deep/p.py", ".hames", ".mcp.json", ".claude", ".agents", "shared.gitconfig", "dotfiles"),
)


@pytest.fixture(scope="session")
def prepared():
    """What every try begins with, made once."""
    base = Path(tempfile.mkdtemp(prefix="hm-", dir="/var/tmp"))
    subprocess.run(["bash", "-c", PREPARE.replace("KEY", CANARY)], cwd=base, env={**os.environ, **QUIET}, check=True)
    yield base
    shutil.rmtree(base)


def content(path: Path) -> Any:
    """What is at a path: its type, and bytes, target or entries."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return None
    if stat.S_ISLNK(mode):
        return "link", os.readlink(path)
    if stat.S_ISDIR(mode):
        return "directory", {name: content(path / name) for name in sorted(os.listdir(path))}
    return "file", path.read_bytes() if stat.S_ISREG(mode) else stat.S_IFMT(mode)


def flags(path: Path) -> int:
    """Flags of an inode."""
    buffer = array.array("L", [0])
    with path.open("rb") as file, contextlib.suppress(OSError):
        fcntl.ioctl(file, 0x80086601, buffer, True)
    return buffer[0]


def state(path: Path) -> dict[str, Any]:
    """All that can be changed of files below a path."""
    found: dict[str, Any] = {}
    for directory, names, files in os.walk(path):
        for name in (".", *names, *files):
            each = Path(directory, name)
            status = each.lstat()
            attributes = {key: os.getxattr(each, key) for key in os.listxattr(each, follow_symlinks=False)}
            plain = stat.S_ISREG(status.st_mode)
            found[str(each)] = (
                *(status.st_mode, status.st_uid, status.st_gid, status.st_nlink, status.st_mtime_ns, attributes),
                *(each.read_bytes() if plain else b"", flags(each) if plain else 0),
            )
    return found


@dataclass
class World:
    """The surroundings of one try."""

    base: Path
    sandbox: Sandbox
    access: str
    stack: contextlib.ExitStack
    hidden: list[Path] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    said: str = ""
    before: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        return self.base / "work"

    @property
    def outside(self) -> Path:
        return self.base / "outside"

    @property
    def scratch(self) -> Path:
        return self.base / "scratch"

    @property
    def mark(self) -> Path:
        """Made by code that runs outside."""
        return self.base / "mark"

    @property
    def confinement(self) -> Confinement:
        if self.access == "full":
            return Confinement("full", self.work, self.scratch)
        return Confinement(self.access, self.work, self.scratch, False)  # type: ignore[arg-type]

    def variables(self) -> dict[str, str]:
        names = {"W": self.work, "OUT": self.outside, "HID": self.base / "hidden", "BASE": self.base, "TMPDIR": self.scratch}
        names |= {"MARK": self.mark, "PY": sys.executable, "ME": os.getpid()}
        return {**os.environ, **QUIET, **{name: str(value) for name, value in names.items()}, **self.environment}

    def remember(self) -> None:
        self.before = state(self.outside)
        self.kept = self.protected()

    def protected(self) -> dict[str, Any]:
        return {name: content(self.work / name) for name in PROTECTED} | {".git": stat.S_IFMT(self.mode(".git"))}

    def mode(self, name: str) -> int:
        try:
            return (self.work / name).lstat().st_mode
        except OSError:
            return 0

    def run(self, *argv: str) -> None:
        """Run a command as the sandbox would have it."""
        with self.sandbox.command(argv, self.confinement, self.work) as command:
            done = subprocess.run(
                command.argv,
                pass_fds=command.pass_fds,
                cwd=self.work,
                env=self.variables(),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=30,
                check=False,
            )
        self.said += done.stdout + done.stderr

    def shell(self, command: str) -> None:
        self.run("bash", "-c", command)

    def python(self, code: str) -> None:
        self.run(sys.executable, "-I", "-S", "-c", PRELUDE + code)

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Run a command that ends when the try ends, and wait until it has made ``$TMPDIR/ready``."""
        confined = self.stack.enter_context(self.sandbox.command(["bash", "-c", command], self.confinement, self.work))
        process = subprocess.Popen(
            confined.argv,
            pass_fds=confined.pass_fds,
            cwd=self.work,
            env=self.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.PIPE,
        )

        def end() -> None:
            process.kill()
            process.communicate()

        self.stack.callback(end)
        poll(lambda: (self.scratch / "ready").exists() or process.poll() is not None)
        return process

    def user(self, command: str) -> None:
        """What the user does afterwards, unconfined."""
        subprocess.run(["bash", "-c", command], cwd=self.work, env=self.variables(), capture_output=True, timeout=30, check=False)

    def tool(self, tool: Any, **arguments: Any) -> None:
        """Call a tool; what it says is part of what the try has found out."""
        with contextlib.suppress(ToolError, Refused):
            self.said += asyncio.run(self.call(tool, **arguments))

    def invocation(self) -> Invocation:
        spill = spiller(self.base / "spill", "session", "call")
        return Invocation("call", SCOPE, self.work, {}, spill, scratch=self.scratch, confinement=self.confinement, sandbox=self.sandbox)

    async def call(self, tool: Any, **arguments: Any) -> str:
        call = self.facts.setdefault("invocation", self.invocation())
        model = tool.model.model_validate(arguments)
        values = {name: getattr(model, name) for name in tool.model.model_fields}
        if asyncio.iscoroutinefunction(tool.body):
            return await tool.body(**values, call=call)
        return tool.body(**values, call=call)

    def victim(self) -> subprocess.Popen[bytes]:
        """A process outside, with a secret in its environment."""
        process = subprocess.Popen(["sleep", "300"], env={"SECRET": CANARY * 4, "PATH": "/usr/bin:/bin"})
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        poll(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
        self.environment["VICTIM"] = str(process.pid)
        fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        self.environment["ADDRESS"] = fields[47]
        self.facts["victim"] = process
        return process

    def listen(self, kind: int, family: int, address: Any) -> socket.socket:
        listener = self.stack.enter_context(socket.socket(family, kind))
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        listener.setblocking(False)
        self.facts["listener"] = listener
        return listener


def poll(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait for something that another process does."""
    event = threading.Event()
    for _ in range(int(seconds / 0.005)):
        if condition():
            return True
        event.wait(0.005)
    return condition()


PRELUDE = """
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
E = os.environ
def check(n):
    if n < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return n
def exchange(a, b): check(libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), 2))
"""


# What tells that one succeeded.


def harmed(world: World) -> bool:
    """Whether anything outside is not as it was."""
    return state(world.outside) != world.before


def changed(world: World) -> bool:
    """Whether anything protected is not as it was."""
    return world.protected() != world.kept


def leaked(world: World) -> bool:
    """Whether the secret has come out."""
    return CANARY in world.said


def reached(world: World) -> bool:
    """Whether a listener got something."""
    listener: socket.socket = world.facts["listener"]
    try:
        if listener.type == socket.SOCK_STREAM:
            listener.accept()[0].close()
        else:
            listener.recv(100)
    except BlockingIOError:
        return False
    return True


def dead(world: World) -> bool:
    """Whether a process outside has ended, or is about to."""
    try:
        world.facts["victim"].wait(0.1)
    except subprocess.TimeoutExpired:
        return False
    return True


def executed(world: World, command: str = "git status") -> bool:
    """Whether what the user does runs code of the command."""
    assert not world.mark.exists()
    world.user(command)
    return world.mark.exists()


# How some are set up and tried.

EVIL = r"""evil() { printf '[core]\n\tfsmonitor = "touch %s; false"\n' "$MARK"; }; """


def git(world: World, *arguments: str, cwd: Path | None = None) -> None:
    subprocess.run(["git", *arguments], cwd=cwd or world.work, env={**os.environ, **QUIET}, check=True, capture_output=True)


def worktree(world: World) -> None:
    """The workspace is a linked worktree, beside another one."""
    world.work.rename(world.base / "main")
    for name in ("work", "other"):
        git(world, "worktree", "add", "-q", str(world.base / name), "-b", name, cwd=world.base / "main")
    world.facts["private"] = world.base / "main/.git/worktrees/work"
    world.facts["before"] = content(world.base / "main/.git/worktrees/other"), worktree_orders(world)


def worktree_orders(world: World) -> Any:
    main = world.base / "main/.git"
    private = main / "worktrees/work"
    files = (main / "config", main / "hooks", private / "gitdir", private / "commondir", private / "config.worktree", world.work / ".git")
    return [content(each) for each in files]


def redirected(world: World) -> bool:
    return (content(world.base / "main/.git/worktrees/other"), worktree_orders(world)) != world.facts["before"]


def descriptor(world: World) -> None:
    """A descriptor of a file outside that this process can write, and lets others inherit."""
    number = os.open(world.outside / "victim.txt", os.O_RDWR)
    os.set_inheritable(number, True)
    world.stack.callback(os.close, number)
    world.environment["FD"] = str(number)


def address(name: str) -> Callable[[World], None]:
    def listen(world: World) -> None:
        path = world.base / name
        world.listen(socket.SOCK_STREAM, socket.AF_UNIX, str(path))
        world.environment["SOCKET"] = str(path)

    return listen


def listen_datagrams(world: World) -> None:
    world.listen(socket.SOCK_DGRAM, socket.AF_UNIX, str(world.base / "datagrams"))
    world.environment["SOCKET"] = str(world.base / "datagrams")


def listen_relative(world: World) -> None:
    here = os.getcwd()
    os.chdir(world.base)
    try:
        world.listen(socket.SOCK_STREAM, socket.AF_UNIX, "relative")
    finally:
        os.chdir(here)
    world.environment["SOCKET"] = str(world.base / "relative")


def listen_through_link(world: World) -> None:
    (world.base / "link").symlink_to("outside")
    address("link/socket")(world)


def listen_renamed(world: World) -> None:
    address("socket.new")(world)
    (world.base / "socket.new").rename(world.base / "socket")
    world.environment["SOCKET"] = str(world.base / "socket")


def listen_abstract(world: World) -> None:
    name = f"hames-{os.getpid()}-{world.base.name}"
    world.listen(socket.SOCK_STREAM, socket.AF_UNIX, f"\0{name}")
    world.environment["NAME"] = name


def listen_port(family: int, kind: int, host: str) -> Callable[[World], None]:
    def listen(world: World) -> None:
        world.environment["PORT"] = str(world.listen(kind, family, (host, 0)).getsockname()[1])

    return listen


CONNECT = "s = socket.socket(socket.AF_UNIX); s.connect(E['SOCKET'])"


def connect_late(world: World) -> None:
    """The listener comes when the command runs already."""
    world.environment["SOCKET"] = str(world.base / "late")
    process = world.start("exec $PY -I -S $W/connect.py")
    world.listen(socket.SOCK_STREAM, socket.AF_UNIX, str(world.base / "late"))
    world.said += process.communicate(b"\n", timeout=20)[0].decode()


def write_connector(world: World) -> None:
    (world.work / "connect.py").write_text(f"{PRELUDE}\nopen(E['TMPDIR'] + '/ready', 'w')\nsys.stdin.readline()\n{CONNECT}\n")


def shared_memory(world: World) -> None:
    number = libc.shmget(0, 4096, 0o1600)
    assert number >= 0
    libc.shmat.restype = ctypes.c_void_p
    where = libc.shmat(number, None, 0)
    world.stack.callback(libc.shmctl, number, 0, None)
    world.stack.callback(libc.shmdt, ctypes.c_void_p(where))
    world.environment["SHM"] = str(number)
    world.facts["memory"] = where


def message_queue(world: World) -> None:
    name = f"/hames-{os.getpid()}"
    number = libc.mq_open(name.encode(), os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600, None)
    if number < 0:
        pytest.skip("this kernel has no message queues")
    world.stack.callback(libc.mq_unlink, name.encode())
    world.stack.callback(os.close, number)
    world.environment["QUEUE"] = name
    world.facts["queue"] = number


def queued(world: World) -> bool:
    attributes = (ctypes.c_long * 8)()
    assert libc.mq_getattr(world.facts["queue"], attributes) == 0
    return attributes[3] > 0


def keyring(world: World) -> None:
    name = f"hames-{os.getpid()}"
    key = libc.syscall(248, b"user", name.encode(), CANARY.encode(), ctypes.c_size_t(len(CANARY)), -4)
    if key < 0 or os.uname().machine != "x86_64":
        pytest.skip("this kernel has no keyrings")
    world.stack.callback(libc.syscall, 250, 9, key, -4)
    world.environment["KEYNAME"] = name


def terminal(world: World) -> None:
    """A terminal of somebody else."""
    controller, line = pty.openpty()
    world.stack.callback(os.close, controller)
    world.stack.callback(os.close, line)
    os.set_blocking(controller, False)
    world.environment["LINE"] = os.ttyname(line)
    world.facts["terminal"] = controller
    os.write(controller, f"{CANARY}\n".encode())
    with contextlib.suppress(BlockingIOError):
        os.read(controller, 1000)


def printed(world: World) -> bool:
    try:
        return b"pwned" in os.read(world.facts["terminal"], 1000)
    except BlockingIOError:
        return False


def disk(world: World) -> None:
    """Where on a block device the secret lies."""
    path = world.base / "hidden/key"
    number = path.stat().st_dev
    device = next((each for each in Path("/dev").iterdir() if each.is_block_device() and each.stat().st_rdev == number), None)
    try:
        os.close(os.open(device or "/nonexistent", os.O_RDONLY))
    except OSError:
        pytest.skip("the disk cannot be read here")
    with path.open("rb") as file:
        os.fsync(file.fileno())
        size, block = array.array("i", [0]), array.array("i", [0])
        try:
            fcntl.ioctl(file, 2, size, True)
            fcntl.ioctl(file, 1, block, True)
        except OSError:
            pytest.skip("where a file lies on the disk is not told here")
    world.environment |= {"DISK": str(device), "SIZE": str(size[0]), "BLOCK": str(block[0])}


def parameter(world: World) -> None:
    path = Path("/proc/sys/kernel/printk_ratelimit_burst")
    value = path.read_text()
    if not os.access(path, os.W_OK):
        pytest.skip("only the superuser could")
    world.stack.callback(path.write_text, value)
    world.facts["parameter"] = value


def limits(world: World) -> bool:
    return resource.prlimit(world.facts["victim"].pid, resource.RLIMIT_CORE) != world.facts["limits"]


def niceness(world: World) -> bool:
    return os.getpriority(os.PRIO_PROCESS, world.facts["victim"].pid) != 0


def limited(world: World) -> None:
    world.facts["limits"] = resource.prlimit(world.victim().pid, resource.RLIMIT_CORE)
    world.environment["HARD"] = str(world.facts["limits"][1])


def swapping(world: World, one: Path, other: Path) -> Callable[[], None]:
    """Exchange two names again and again, until the result is called."""
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2)

    thread = threading.Thread(target=swap)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    return end


def race_write(world: World) -> None:
    (world.work / "src/d").mkdir()
    (world.work / "src/l").symlink_to("../../outside/dir")
    end = swapping(world, world.work / "src/d", world.work / "src/l")
    try:
        for number in range(250):
            with contextlib.suppress(OSError):
                world.tool(write, path=f"src/d/{number}", content="pwned")
    finally:
        end()


def race_make(world: World) -> None:
    """The same where directories have to be made."""
    (world.work / "src/d").mkdir()
    (world.work / "src/l").symlink_to("../../outside/dir")
    end = swapping(world, world.work / "src/d", world.work / "src/l")
    try:
        for number in range(200):
            with contextlib.suppress(OSError):
                world.tool(write, path=f"src/d/deep-{number}/x", content="pwned")
    finally:
        end()


def race_read(world: World) -> None:
    (world.work / "src/d").mkdir()
    (world.work / "src/d/key").write_text("nothing")
    (world.work / "src/l").symlink_to("../../hidden")
    end = swapping(world, world.work / "src/d", world.work / "src/l")
    try:
        for number in range(1000):
            with contextlib.suppress(OSError):
                world.tool(read, path="src/d/key", limit=1 + number % 100)
            if leaked(world):
                break
    finally:
        end()


def edit_outside(world: World) -> None:
    world.tool(read, path=str(world.outside / "victim.txt"))
    world.tool(edit, path=str(world.outside / "victim.txt"), old="untouched", new="pwned")


def write_known(world: World, path: str) -> None:
    """Write a file that may be there."""
    world.tool(read, path=path)
    world.tool(write, path=path, content="pwned\n")


def glob_and_read(world: World) -> None:
    world.tool(glob, pattern="**/key", path=str(world.base))
    world.tool(read, path=str(world.base / "hidden/key"))


def redirect_and_use(world: World, use: Callable[[], None], where: str = "$OUT") -> None:
    """One command makes Git believe that its directory is another one; while it runs, another call is made."""
    world.start(f'echo "{where}" > .git/commondir; touch $TMPDIR/ready; read -r')
    use()


DYING = """
import json, os, signal, subprocess, sys
from pathlib import Path
from hames.sandbox import Confinement, Sandbox
from hames.sandbox.protect import Rules
means, access, base, command, root = sys.argv[1:]
work = Path(base, "work")
sandbox = Sandbox(means, Path(root), Rules)
confinement = Confinement(access, work, Path(base, "scratch"), False) if access != "full" else Confinement()
with sandbox.command(["bash", "-c", command], confinement, work) as confined:
    subprocess.run(confined.argv, pass_fds=confined.pass_fds, cwd=work, check=False)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def dying(world: World, means: str, command: str) -> None:
    """Run a command; the process that ran it is killed before it can clean up."""
    done = subprocess.run(
        [sys.executable, "-c", DYING, means, world.access, str(world.base), command, str(world.base / "state/sandbox")],
        env=world.variables(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def redirect_and_die(world: World) -> None:
    dying(world, world.sandbox.means.enforcement.means, 'echo "$OUT" > .git/commondir')
    world.shell("true")
    world.shell("echo pwned > $OUT/victim.txt; echo pwned > $OUT/new")


def fake_worktree(world: World) -> None:
    """A workspace that came with a ``.git`` file and with the directory that it names, which names a directory outside."""
    shutil.rmtree(world.work / ".git")
    meta = world.work / "meta"
    meta.mkdir()
    (world.work / ".git").write_text("gitdir: meta\n")
    (meta / "gitdir").write_text("../.git\n")
    (meta / "HEAD").write_text("ref: refs/heads/main\n")
    (meta / "commondir").write_text("../../outside\n")


def fake_submodule(world: World) -> None:
    """A workspace that came with a ``.git`` file which names somebody's repository."""
    shutil.rmtree(world.work / ".git")
    (world.outside / "modules").mkdir()
    (world.outside / "proj").rename(world.outside / "modules/proj")
    (world.work / ".git").write_text("gitdir: ../outside/modules/proj/.git\n")


def no_modules(world: World) -> None:
    shutil.rmtree(world.work / ".git/modules")


def modules_elsewhere(world: World) -> None:
    world.shell("ln -s ../../outside .git/modules")
    world.shell("echo pwned > $OUT/proj/file")


def bytecode(world: World) -> None:
    world.python(
        "import importlib.util, marshal\n"
        "code = compile(f'import pathlib; pathlib.Path({E[\"MARK\"]!r}).touch()', 'p.py', 'exec')\n"
        "name = importlib.util.cache_from_source(E['W'] + '/plugins/p.py')\n"
        "open(name, 'wb').write(importlib.util.MAGIC_NUMBER + struct.pack('<I', 1) + bytes(8) + marshal.dumps(code))\n"
    )


LOAD = "$PY -c \"import pathlib; from hames.compose.local import load_local; load_local(pathlib.Path('plugins/p.py'), str())\""


def shared_configuration(world: World) -> None:
    (world.work / "shared.gitconfig").write_text("[alias]\n\tx = status\n")
    git(world, "config", "include.path", "../shared.gitconfig")


def linked_names(world: World) -> None:
    """Protected names that are links to directories of the workspace."""
    (world.work / "dotfiles").mkdir()
    (world.work / "dotfiles/settings.json").write_text("{}")
    (world.work / ".claude").symlink_to("dotfiles")


def linked_hooks(world: World) -> None:
    (world.work / "githooks").mkdir()
    (world.work / ".git/hooks").rmdir()
    (world.work / ".git/hooks").symlink_to("../githooks")


def hooks_in(name: str, *, made: bool) -> Callable[[World], None]:
    def setup(world: World) -> None:
        git(world, "config", "core.hooksPath", name)
        if made:
            (world.work / name).mkdir()

    return setup


def no_repository(world: World) -> None:
    shutil.rmtree(world.work / ".git")


def vault(world: World) -> None:
    """A secret in the workspace."""
    (world.work / "vault/deep").mkdir(parents=True)
    (world.work / "vault/deep/key").write_text(CANARY)
    world.hidden.append(world.work / "vault/deep")


def nothing(world: World) -> None:
    pass


@dataclass(frozen=True)
class Escape:
    """One way out.

    :param attempt: a command line, or what is done instead.
    :param succeeded: looks from outside.
    :param open: runs for which the sandbox says itself that it does not hold this.
    """

    name: str
    attempt: str | Callable[[World], None]
    succeeded: Callable[[World], bool]
    setup: Callable[[World], None] = nothing
    python: bool = False
    open: tuple[tuple[str, str], ...] = ()


def py(name: str, code: str, succeeded: Callable[[World], bool], setup: Callable[[World], None] = nothing, **more: Any) -> Escape:
    return Escape(name, code, succeeded, setup, python=True, **more)


def call(
    name: str, attempt: Callable[[World], None], succeeded: Callable[[World], bool], setup: Callable[[World], None] = nothing
) -> Escape:
    return Escape(name, attempt, succeeded, setup)


def victim(world: World) -> None:
    world.victim()


MODES_AND_TIMES = (("landlock", "workspace-write"),)
HOOK = "printf '#!/bin/sh\\ntouch %s\\n' \"$MARK\" > HOOK; chmod +x HOOK"
commits = partial(executed, command="git commit -q --allow-empty -m x")
hooks_run = commits

ESCAPES = [
    # files outside
    Escape("write-absolute-path", "echo pwned > $OUT/victim.txt", harmed),
    Escape("write-dotdot-path", "cd src; echo pwned > ../../outside/victim.txt", harmed),
    Escape("create-outside", "touch $OUT/new; mkdir $OUT/newdir", harmed),
    Escape("delete-outside", "rm -f $OUT/victim.txt", harmed),
    Escape("rename-outside", "mv $OUT/victim.txt $OUT/other", harmed),
    Escape("move-out", "mv src/a.txt $OUT/; echo x > $TMPDIR/x; mv $TMPDIR/x $OUT/", harmed),
    Escape("symlink-to-file", "for d in src $TMPDIR; do ln -sf $OUT/victim.txt $d/link; echo pwned > $d/link; done", harmed),
    Escape("symlink-to-directory", "for d in src $TMPDIR; do ln -sfn $OUT/dir $d/link; echo pwned > $d/link/new; done", harmed),
    Escape("hard-link", "for d in src $TMPDIR; do ln $OUT/victim.txt $d/hard && echo pwned > $d/hard; done", harmed),
    py(
        "hard-link-of-descriptor",
        "f = os.open(E['OUT'] + '/victim.txt', 0)\nfor d in (E['W'] + '/src', E['TMPDIR']):\n"
        "  print(libc.linkat(-100, f'/proc/self/fd/{f}'.encode(), -100, (d + '/hard').encode(), 0x400))",
        harmed,
    ),
    py(
        "exchange-with-outside",
        "for d in ('src', E['TMPDIR']):\n  open(d + '/mine', 'a')\n"
        "  try: exchange(d + '/mine', E['OUT'] + '/victim.txt')\n  except OSError as e: print(e)",
        harmed,
    ),
    py("truncate", "os.truncate(E['OUT'] + '/victim.txt', 1)", harmed),
    Escape("chmod", "chmod 777 $OUT/victim.txt", harmed, open=MODES_AND_TIMES),
    py("chmod-of-descriptor", "os.fchmod(os.open(E['OUT'] + '/victim.txt', 0), 0o777)", harmed, open=MODES_AND_TIMES),
    Escape("utime", "touch -d 2001-01-01 $OUT/victim.txt", harmed, open=MODES_AND_TIMES),
    Escape("chown", "chown 12345:12345 $OUT/victim.txt", harmed),
    py("setxattr", "os.setxattr(E['OUT'] + '/victim.txt', 'user.pwned', b'1')", harmed),
    py(
        "inode-flags",
        "import fcntl, array\nf = open(E['OUT'] + '/victim.txt')\nb = array.array('L', [0])\nfcntl.ioctl(f, 0x80086601, b, True)\n"
        "b[0] |= 0x40\nfcntl.ioctl(f, 0x40086602, b)",
        harmed,
    ),
    py(
        "file-setattr-call",
        "b = struct.pack('=QIIIIQ', 0x80, 0, 0, 0, 0, 0)[:24]\n"
        "check(libc.syscall(469, -100, os.fsencode(E['OUT'] + '/victim.txt'), b, ctypes.c_size_t(24), 0))",
        harmed,
    ),
    Escape("dev-fd", "exec 3< $OUT/victim.txt; echo pwned > /dev/fd/3", harmed),
    Escape("proc-self-fd", "exec 3< $OUT/victim.txt; echo pwned > /proc/self/fd/3", harmed),
    Escape("inherited-descriptor", "echo pwned >&$FD || echo pwned > /proc/$ME/fd/$FD", harmed, descriptor),
    py(
        "taken-descriptor",
        "p = os.pidfd_open(int(E['ME']))\nf = check(libc.syscall(438, p, int(E['FD']), 0))\nos.write(f, b'pwned')",
        harmed,
        descriptor,
    ),
    Escape("proc-root-of-victim", "echo pwned > /proc/$VICTIM/root$OUT/victim.txt", harmed, victim),
    Escape(
        "proc-cwd-of-outside",
        "cd /proc/$VICTIM/cwd/ && echo pwned > ./$(realpath --relative-to=$(readlink /proc/$VICTIM/cwd) $OUT)/victim.txt",
        harmed,
        victim,
    ),
    Escape("bind-mount", "unshare -m sh -c 'mount --bind \"$OUT\" src && echo pwned > src/victim.txt'", harmed),
    Escape("bind-mount-as-other-user", "unshare -rm sh -c 'mount --bind \"$OUT\" src && echo pwned > src/victim.txt'", harmed),
    Escape("remount", "unshare -m sh -c 'mount -o remount,bind,rw /; mount -o remount,bind,rw $OUT; echo pwned > $OUT/victim.txt'", harmed),
    Escape("remount-as-other-user", "unshare -rm sh -c 'mount -o remount,bind,rw /; umount -l $OUT; echo pwned > $OUT/victim.txt'", harmed),
    Escape("chroot", 'chroot /proc/1/root sh -c "echo pwned > $OUT/victim.txt"; chroot / sh -c "echo pwned > $OUT/victim.txt"', harmed),
    py(
        "enter-namespaces",
        "p = os.pidfd_open(int(E['ME']))\nlibc.syscall(308, p, 0x00020000)\nopen(E['OUT'] + '/victim.txt', 'w').write('pwned')",
        harmed,
    ),
    call("write-tool-absolute", lambda w: w.tool(write, path=str(w.outside / "new"), content="pwned"), harmed),
    call("write-tool-dotdot", lambda w: w.tool(write, path="src/../../outside/new", content="pwned"), harmed),
    call(
        "write-tool-symlink-to-file",
        partial(write_known, path="src/link"),
        harmed,
        lambda w: (w.work / "src/link").symlink_to(w.outside / "victim.txt"),
    ),
    call(
        "write-tool-dangling-symlink",
        partial(write_known, path="src/link"),
        harmed,
        lambda w: (w.work / "src/link").symlink_to(w.outside / "new"),
    ),
    call(
        "write-tool-symlink-to-directory",
        partial(write_known, path="src/link/victim.txt"),
        harmed,
        lambda w: (w.work / "src/link").symlink_to("../../outside"),
    ),
    call("write-tool-makes-directories", lambda w: w.tool(write, path=str(w.outside / "a/b/c"), content="pwned"), harmed),
    call("edit-tool", edit_outside, harmed),
    call("write-tool-race", race_write, harmed),
    call("write-tool-race-of-directories", race_make, harmed),
    call(
        "late-write-tool-through-redirected-git",
        lambda w: redirect_and_use(w, lambda: w.tool(write, path=str(w.outside / "new"), content="x")),
        harmed,
    ),
    call(
        "write-tool-through-git-redirected-to-the-root",
        lambda w: redirect_and_use(w, lambda: w.tool(write, path=str(w.outside / "new"), content="x"), "/"),
        harmed,
    ),
    call("second-command-through-redirected-git", lambda w: redirect_and_use(w, lambda: w.shell("echo pwned > $OUT/victim.txt")), harmed),
    call("redirected-git-left-by-a-crash", redirect_and_die, harmed),
    Escape("workspace-with-foreign-common-directory", "echo pwned > $OUT/victim.txt", harmed, fake_worktree),
    Escape("workspace-that-names-a-foreign-repository", "echo pwned > $OUT/modules/proj/.git/HEAD", harmed, fake_submodule),
    call("modules-directory-elsewhere", modules_elsewhere, harmed, no_modules),
    # what programs take orders from
    Escape("rename-git", "mv .git .git2", changed),
    Escape("rename-plugins", "mv plugins plugins2; mkdir plugins; echo pwned > plugins/p.py", changed),
    Escape("rename-above-loaded", "mv ext ext2; mkdir -p ext/deep; echo pwned > ext/deep/p.py", changed),
    Escape("rename-workspace", "mv $W $W-2; mkdir $W", changed),
    py("exchange-hooks", "exchange('.git/hooks', 'hooks-to-be')", changed),
    py("exchange-plugins", "os.mkdir('src/mine')\nopen('src/mine/p.py', 'w')\nexchange('plugins', 'src/mine')", changed),
    Escape("write-loaded", "echo pwned >> plugins/p.py", changed),
    Escape("delete-loaded", "rm -f plugins/p.py; rm -rf ext", changed),
    *(
        Escape(f"make-{name}-directory", f"mkdir {name}; echo x > {name}/x", changed)
        for name in (".hames", ".claude", ".agents", ".mcp.json")
    ),
    Escape("move-to-protected-name", "mv hooks-to-be .claude", changed),
    Escape("copy-to-protected-name", "cp a.txt .mcp.json; cp -r src .agents", changed),
    Escape("symlink-at-protected-name", "ln -sn src .claude; ln -s a.txt .mcp.json", changed),
    Escape("hard-link-at-protected-name", "ln a.txt .mcp.json", changed),
    Escape("checkout-of-protected-names", "git checkout -q evil", changed),
    Escape(
        "untar-protected-names",
        "tar -C $TMPDIR -cf $TMPDIR/x.tar -T /dev/null; mkdir $TMPDIR/t; mkdir $TMPDIR/t/.claude; echo x > $TMPDIR/t/.claude/x; "
        "tar -C $TMPDIR/t -cf $TMPDIR/x.tar .claude; tar -xf $TMPDIR/x.tar",
        changed,
    ),
    Escape("replace-empty-placeholder", "rmdir .claude; rm -rf .agents .hames; mkdir .claude .agents; touch .claude/x", changed),
    Escape("protected-link-to-directory", "echo pwned > dotfiles/settings.json", changed, linked_names),
    Escape("replace-protected-link", "ln -sfn src .claude", changed, linked_names),
    Escape("git-hook", HOOK.replace("HOOK", ".git/hooks/post-commit"), commits),
    Escape("git-hook-through-linked-directory", HOOK.replace("HOOK", "githooks/post-commit"), commits, linked_hooks),
    Escape("git-hooks-path", HOOK.replace("HOOK", "githooks/post-commit"), commits, hooks_in("githooks", made=True)),
    Escape(
        "git-hooks-path-absent",
        "mkdir -p githooks;" + HOOK.replace("HOOK", "githooks/post-commit"),
        commits,
        hooks_in("githooks", made=False),
    ),
    Escape(
        "git-hooks-path-absent-deep",
        "mkdir -p .husky/_;" + HOOK.replace("HOOK", ".husky/_/post-commit"),
        commits,
        hooks_in(".husky/_", made=False),
    ),
    Escape("git-config-file", EVIL + "evil >> .git/config", executed),
    Escape("git-config-command", 'git config core.fsmonitor "touch $MARK; false"', executed),
    Escape("git-config-lock", EVIL + "(cat .git/config; evil) > .git/config.lock; mv .git/config.lock .git/config", executed),
    Escape(
        "git-config-worktree",
        EVIL + "evil > .git/config.worktree",
        executed,
        lambda w: git(w, "config", "extensions.worktreeConfig", "true"),
    ),
    Escape("git-config-included", EVIL + "evil >> shared.gitconfig", executed, shared_configuration),
    Escape(
        "git-commondir",
        EVIL + "mkdir src/g; cp -r .git/objects .git/refs src/g; (cat .git/config; evil) > src/g/config; echo ../src/g > .git/commondir",
        executed,
    ),
    Escape(
        "git-directory-replaced",
        EVIL + "cp -r .git src/g; evil >> src/g/config; rm -rf .git; mv src/g .git || echo 'gitdir: src/g' > .git",
        executed,
    ),
    Escape("git-submodule-config", EVIL + "evil >> .git/modules/x/config", changed),
    Escape("git-submodule-commondir", "echo ../../../src > .git/modules/x/commondir", changed),
    Escape(
        "git-submodule-hooks",
        "mkdir -p .git/modules/x/hooks; touch .git/modules/x/hooks/post-checkout",
        lambda w: (w.work / ".git/modules/x/hooks/post-checkout").exists(),
    ),
    Escape("git-modules-renamed", "mv .git/modules .git/m; cp -r .git/m .git/modules; echo '[a]' >> .git/modules/x/config", changed),
    Escape("worktree-file-replaced", "rm -f .git; cp -r $BASE/main/.git .git; echo 'gitdir: src' > .git", redirected, worktree),
    Escape("worktree-private-commondir", "echo $W/src > $BASE/main/.git/worktrees/work/commondir", redirected, worktree),
    Escape("worktree-private-gitdir", "echo $W/src/.git > $BASE/main/.git/worktrees/work/gitdir", redirected, worktree),
    Escape(
        "worktree-private-renamed", "cd $BASE/main/.git/worktrees; mv work work2; mkdir work; echo x > work/commondir", redirected, worktree
    ),
    Escape(
        "worktree-of-another",
        "echo x > $BASE/main/.git/worktrees/other/HEAD; rm -f $BASE/main/.git/worktrees/other/index",
        redirected,
        worktree,
    ),
    Escape("worktree-common-hook", "echo x > $BASE/main/.git/hooks/post-commit", redirected, worktree),
    Escape("worktree-common-config", "git config alias.x '!true'", redirected, worktree),
    Escape(
        "worktree-own-config",
        EVIL + "evil > $BASE/main/.git/worktrees/work/config.worktree",
        executed,
        lambda w: (worktree(w), git(w, "config", "extensions.worktreeConfig", "true"))[0],
    ),
    Escape("main-of-worktree", "echo pwned > $BASE/main/a.txt", lambda w: (w.base / "main/a.txt").read_text() != "a\n", worktree),
    Escape("git-where-there-was-none", EVIL + "git init -q .; mkdir -p .git; evil >> .git/config", executed, no_repository),
    *(
        call(f"write-tool-{path}", partial(write_known, path=path), lambda w, path=path: "pwned" in str(content(w.work / path)))
        for path in (
            ".claude/settings.json",
            ".mcp.json",
            ".git/hooks/post-commit",
            "src/.git/config",
            "plugins/p.py",
            "src/.Claude/x",
            ".git/commondir",
        )
    ),
    call("write-tool-protected-link", partial(write_known, path="dotfiles/settings.json"), changed, linked_names),
    call("write-tool-linked-hooks", partial(write_known, path="githooks/post-commit"), changed, linked_hooks),
    call(
        "write-tool-link-to-protected",
        partial(write_known, path="src/link/post-commit"),
        lambda w: bool(os.listdir(w.work / ".git/hooks")),
        lambda w: (w.work / "src/link").symlink_to("../.git/hooks"),
    ),
    # secrets
    Escape("secret-by-path", "cat $HID/key", leaked),
    Escape("secret-by-symlink", "for d in src $TMPDIR; do ln -sfn $HID $d/link; cat $d/link/key; done", leaked),
    Escape("secret-by-hard-link", "for d in src $TMPDIR; do ln $HID/key $d/key; cat $d/key; done", leaked),
    Escape("secret-by-grep", "grep -r CANARY $BASE/hidden $HID/key", leaked),
    Escape("secret-by-diff", "git diff --no-index /dev/null $HID/key", leaked),
    Escape("secret-by-copy", "cp -a $HID src/copy; cp -al $HID $TMPDIR/copy; cat src/copy/key $TMPDIR/copy/key", leaked),
    Escape("secret-by-move", "for d in src $TMPDIR; do mv $HID $d/moved; cat $d/moved/key; done", leaked),
    Escape("secret-by-renamed-parent", "mv $BASE/hidden $BASE/shown; cat $BASE/shown/key", leaked),
    Escape("secret-in-workspace-by-renamed-parent", "mv vault shown; cat shown/deep/key vault/deep/key", leaked, vault),
    py(
        "secret-in-workspace-by-exchange",
        "try: exchange('vault', 'src')\nexcept OSError as e: print(e)\nfor n in ('src', 'vault'):\n"
        "  try: print(open(n + '/deep/key').read())\n  except OSError as e: print(e)",
        leaked,
        vault,
    ),
    Escape("secret-by-unmounting", "unshare -rm sh -c 'umount -l $HID; umount -l $BASE; cat $HID/key'", leaked),
    Escape(
        "secret-by-bind-mount",
        "unshare -rm sh -c 'mount --bind $BASE src || mount --rbind $BASE src; umount -l src/hidden; cat src/hidden/key'",
        leaked,
    ),
    Escape(
        "secret-by-overlay",
        "mkdir src/o; unshare -rm sh -c 'mount -t overlay -o lowerdir=$BASE:$OUT overlay src/o; cat src/o/hidden/key $HID/key'",
        leaked,
    ),
    Escape(
        "secret-by-descriptors-of-others",
        "for p in /proc/[0-9]*; do for f in $p/fd/* $p/cwd; do timeout 1 cat $f$HID/key $f/hidden/key; done; done; cat $HID/key",
        leaked,
    ),
    Escape("secret-by-disk", "dd if=$DISK bs=$SIZE skip=$BLOCK count=1", leaked, disk),
    py(
        "secret-by-handle",
        "b = ctypes.create_string_buffer(struct.pack('=Ii', 128, 0), 200)\nm = ctypes.c_int()\n"
        "check(libc.name_to_handle_at(-100, os.fsencode(E['HID'] + '/key'), b, ctypes.byref(m), 0))\n"
        "f = check(libc.open_by_handle_at(os.open('/', 0), b, 0))\nprint(os.read(f, 100))",
        leaked,
    ),
    Escape("secret-through-hooks-path", "cat $HID/key", leaked, lambda w: git(w, "config", "core.hooksPath", str(w.base / "hidden"))),
    Escape("environment-of-outside", "cat /proc/$VICTIM/environ", leaked, victim),
    Escape("memory-of-outside", "dd if=/proc/$VICTIM/mem bs=1 skip=$ADDRESS count=100", leaked, victim),
    py(
        "process-vm-readv",
        "b = ctypes.create_string_buffer(100)\nl = struct.pack('QQ', ctypes.addressof(b), 100)\n"
        "r = struct.pack('QQ', int(E['ADDRESS']), 100)\n"
        "check(libc.process_vm_readv(int(E['VICTIM']), l, 1, r, 1, 0))\nprint(b.raw)",
        leaked,
        victim,
    ),
    py(
        "ptrace",
        "v = int(E['VICTIM'])\nlibc.ptrace.restype = ctypes.c_long\ncheck(libc.ptrace(16, v, None, None))\n"
        "libc.waitpid(v, None, 0x40000000)\n"
        "a = int(E['ADDRESS'])\n"
        "print(b''.join(struct.pack('q', libc.ptrace(1, v, ctypes.c_void_p(a + n), None)) for n in range(0, 96, 8)))\n"
        "libc.ptrace(17, v, None, None)",
        leaked,
        victim,
    ),
    py(
        "kernel-keyring",
        "k = check(libc.syscall(250, 10, -4, b'user', E['KEYNAME'].encode(), 0))\nb = ctypes.create_string_buffer(100)\n"
        "check(libc.syscall(250, 11, k, b, ctypes.c_size_t(100)))\nprint(b.raw)",
        leaked,
        keyring,
    ),
    Escape("terminal-input", "timeout 1 head -1 $LINE", leaked, terminal),
    call("read-tool", lambda w: w.tool(read, path=str(w.base / "hidden/key")), leaked),
    call("read-tool-dotdot", lambda w: w.tool(read, path="src/../../hidden/key"), leaked),
    call(
        "read-tool-symlink", lambda w: w.tool(read, path="src/link/key"), leaked, lambda w: (w.work / "src/link").symlink_to("../../hidden")
    ),
    call("read-tool-race", race_read, leaked),
    call("read-tool-proc-maps", lambda w: w.tool(read, path="/proc/self/maps"), lambda w: "r-xp" in w.said),
    call("read-tool-proc-root", lambda w: w.tool(read, path=f"/proc/self/root{w.base}/hidden/key"), leaked),
    call(
        "read-tool-process-of-outside",
        lambda w: w.tool(read, path=f"/proc/{w.facts['victim'].pid}/status"),
        lambda w: "TracerPid" in w.said,
        victim,
    ),
    call("read-tool-temporary-dotdot", lambda w: w.tool(read, path=f"/tmp/..{w.base}/hidden/key"), leaked),
    call("grep-tool", lambda w: w.tool(grep, pattern="CANARY", path=str(w.base / "hidden")), leaked),
    call("grep-tool-from-above", lambda w: w.tool(grep, pattern="CANARY", path=str(w.base)), leaked),
    call("glob-and-read-tools", glob_and_read, leaked),
    call("glob-tool-shows-names", lambda w: w.tool(glob, pattern="**/key", path=str(w.base)), lambda w: "hidden/key" in w.said),
    # others
    py("socket-outside", CONNECT, reached, address("socket")),
    py("socket-in-workspace", CONNECT, reached, address("work/src/socket")),
    py("socket-bound-relatively", CONNECT, reached, listen_relative),
    py("socket-bound-through-link", "E['SOCKET'] = E['OUT'] + '/socket'\n" + CONNECT, reached, listen_through_link),
    py("socket-renamed", CONNECT, reached, listen_renamed),
    call("socket-that-comes-later", connect_late, reached, write_connector),
    py(
        "socket-by-hard-link",
        "try: os.link(E['SOCKET'], E['W'] + '/src/s')\nexcept OSError as e: print(e)\nE['SOCKET'] = E['W'] + '/src/s'\n" + CONNECT,
        reached,
        address("work/src/socket"),
    ),
    Escape(
        "socket-by-unmounting",
        "unshare -rm sh -c 'umount -l $SOCKET; $PY -I -S -c "
        '"import socket, os; socket.socket(socket.AF_UNIX).connect(os.environ[\\"SOCKET\\"])"\'',
        reached,
        address("socket"),
    ),
    py("socket-datagram", "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', E['SOCKET'])", reached, listen_datagrams),
    py("socket-abstract", "socket.socket(socket.AF_UNIX).connect('\\0' + E['NAME'])", reached, listen_abstract),
    py(
        "tcp",
        "socket.create_connection(('127.0.0.1', int(E['PORT'])), 2)",
        reached,
        listen_port(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1"),
    ),
    py(
        "udp",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', int(E['PORT'])))",
        reached,
        listen_port(socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
    ),
    Escape(
        "tcp-in-other-namespace",
        "nsenter --net=/proc/1/ns/net bash -c 'echo x > /dev/tcp/127.0.0.1/$PORT'; unshare -r bash -c 'echo x > /dev/tcp/127.0.0.1/$PORT'",
        reached,
        listen_port(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1"),
    ),
    Escape("signal", "kill -TERM $VICTIM", dead, victim),
    py("signal-by-pidfd", "import signal\nsignal.pidfd_send_signal(os.pidfd_open(int(E['VICTIM'])), 9)", dead, victim),
    py("signal-queued", "check(libc.sigqueue(int(E['VICTIM']), 9, 0))", dead, victim),
    Escape("signal-as-other-user", "unshare -r kill -KILL $VICTIM", dead, victim),
    py("limits-of-outside", "check(libc.prlimit(int(E['VICTIM']), 4, struct.pack('QQ', 0, 0), None))", limits, limited),
    Escape("niceness-of-outside", "renice -n 15 -p $VICTIM", niceness, victim),
    py(
        "affinity-of-outside",
        "os.sched_setscheduler(int(E['VICTIM']), os.SCHED_IDLE, os.sched_param(0))",
        lambda w: os.sched_getscheduler(w.facts["victim"].pid) != os.SCHED_OTHER,
        victim,
    ),
    py(
        "oom-score-of-outside",
        "open(f\"/proc/{E['VICTIM']}/oom_score_adj\", 'w').write('500')",
        lambda w: Path(f"/proc/{w.facts['victim'].pid}/oom_score_adj").read_text().strip() == "500",
        victim,
    ),
    py(
        "shared-memory",
        "libc.shmat.restype = ctypes.c_void_p\na = libc.shmat(int(E['SHM']), None, 0)\nctypes.memmove(a, b'pwned', 5)",
        lambda w: ctypes.string_at(w.facts["memory"], 5) == b"pwned",
        shared_memory,
    ),
    py(
        "message-queue",
        "q = check(libc.mq_open(E['QUEUE'].encode(), 1))\ncheck(libc.mq_send(q, b'x', ctypes.c_size_t(1), 0))",
        queued,
        message_queue,
    ),
    Escape(
        "dev-shm",
        "echo pwned > /dev/shm/$(basename $BASE)",
        lambda w: Path("/dev/shm", w.base.name).exists(),
        lambda w: w.stack.callback(Path("/dev/shm", w.base.name).unlink, missing_ok=True) and None,
    ),
    Escape("terminal-output", "echo pwned > $LINE", printed, terminal),
    Escape(
        "kernel-parameter",
        "echo 11 > /proc/sys/kernel/printk_ratelimit_burst",
        lambda w: Path("/proc/sys/kernel/printk_ratelimit_burst").read_text() != w.facts["parameter"],
        parameter,
    ),
    Escape(
        "kernel-parameter-after-mounting-proc",
        "unshare -rmpf --mount-proc sh -c 'echo 11 > /proc/sys/kernel/printk_ratelimit_burst'; mkdir -p src/p; mount -t proc p src/p; "
        "unshare -m sh -c 'mount -t proc p src/p && echo 11 > src/p/sys/kernel/printk_ratelimit_burst'",
        lambda w: Path("/proc/sys/kernel/printk_ratelimit_burst").read_text() != w.facts["parameter"],
        lambda w: (parameter(w), w.stack.callback(subprocess.run, ["umount", "-q", str(w.work / "src/p")], check=False))[0],
    ),
    Escape(
        "device-node",
        "mknod $TMPDIR/null c 1 3; mknod src/null c 1 3; mknod $TMPDIR/disk b 7 0",
        lambda w: any(
            stat.S_IFMT(each.lstat().st_mode) in (stat.S_IFCHR, stat.S_IFBLK)
            for each in (*(w.work / "src").iterdir(), *w.scratch.iterdir())
        ),
    ),
]

RUNS = [("none", "full"), *((means, mode) for means in MEANS for mode in MODES)]


def name_of(escape: Escape, run: tuple[str, str]) -> str:
    if run[1] == "full":
        return f"{escape.name}-unconfined"
    return f"{escape.name}-{run[0]}-{run[1]}" + ("-not-enforced" if run in escape.open else "")


TABLE = [pytest.param(escape, *run, id=name_of(escape, run)) for escape in ESCAPES for run in RUNS]


def works(means: str) -> bool:
    return any(each.works() for each in candidates(means))


WORKING = {means: works(means) for means in MEANS} | {"none": True}


@pytest.fixture
def world_of(prepared):
    """Makes the surroundings of a try; nothing of them is left."""
    with contextlib.ExitStack() as stack:

        def make(means: str, access: str) -> World:
            if not WORKING[means]:
                pytest.skip(f"{means} cannot be used here")
            base = Path(tempfile.mkdtemp(prefix="hm-", dir="/var/tmp"))
            stack.callback(shutil.rmtree, base, ignore_errors=True)
            subprocess.run(["cp", "-a", f"{prepared}/.", str(base)], check=True)
            inner = stack.enter_context(contextlib.ExitStack())
            hidden = [base / "hidden"]
            loaded = (base / "work/plugins/p.py", base / "work/ext/deep/p.py")
            sandbox = Sandbox(means, base / "state/sandbox", lambda: Rules(hidden=tuple(hidden), loaded=loaded))
            world = World(base, sandbox, access, inner, hidden)
            world.scratch.mkdir()
            return world

        yield make


@pytest.fixture(params=MEANS)
def means(request):
    return request.param


@pytest.mark.parametrize(("escape", "means", "mode"), TABLE)
def test_an_escape_succeeds_only_where_nothing_confines(world_of, escape, means, mode):
    world = world_of(means, mode)
    escape.setup(world)
    world.remember()
    if callable(escape.attempt):
        escape.attempt(world)
    elif escape.python:
        world.python(escape.attempt)
    else:
        world.shell(escape.attempt)
    succeeded = escape.succeeded(world)
    if mode == "full":
        assert succeeded, f"the row proves nothing: {world.said}"
    elif (means, mode) in escape.open:
        assert any("modes and times" in gap for gap in world.sandbox.enforcement.gaps)
    else:
        assert not succeeded, world.said


def test_the_table_is_long_enough_and_says_what_it_leaves_out():
    names = [escape.name for escape in ESCAPES]
    assert len(names) == len(set(names)) >= 45
    assert [escape.name for escape in ESCAPES if escape.open] == ["chmod", "chmod-of-descriptor", "utime"]


# What still works.


def test_a_command_works_in_a_workspace(world_of, means):
    world = world_of(means, "workspace-write")
    world.shell(
        "echo new > src/new.txt && echo more >> a.txt && rm src/a.txt && mkdir src/d && mv src/new.txt src/d/ && echo t > $TMPDIR/t"
    )
    assert (world.work / "src/d/new.txt").read_text() == "new\n" and (world.work / "a.txt").read_text() == "a\nmore\n"
    assert not (world.work / "src/a.txt").exists() and (world.scratch / "t").read_text() == "t\n"
    world.shell("cat $OUT/victim.txt; cat plugins/p.py; cat .git/config > /dev/null; git status --short")
    assert "untouched" in world.said and "VALUE" in world.said and " D src/a.txt" in world.said


@pytest.mark.parametrize("kind", ["repository", "worktree", "subdirectory"])
def test_a_command_makes_commits_under_bubblewrap(world_of, kind):
    world = world_of("bubblewrap", "workspace-write")
    if kind == "worktree":
        worktree(world)
    base = world.confinement if kind != "subdirectory" else Confinement("workspace-write", world.work / "src", world.scratch, False)
    with world.sandbox.command(
        ["bash", "-c", "echo b > b.txt && git add b.txt && git commit -qm second && git branch later"], base, base.workspace
    ) as command:
        done = subprocess.run(
            command.argv, pass_fds=command.pass_fds, cwd=base.workspace, env=world.variables(), capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert not command.trespasses
    log = subprocess.run(["git", "log", "--format=%s"], cwd=world.work, env=world.variables(), capture_output=True, text=True, check=True)
    assert log.stdout.split() == ["second", "first"]
    assert not any((base.workspace / name).exists() for name in NAMES if name != ".git")
    assert (
        subprocess.run(["git", "status", "--short"], cwd=world.work, env=world.variables(), capture_output=True, check=True).stdout == b""
    )


def test_a_command_reads_everything_and_writes_its_temporary_directory(world_of, means):
    world = world_of(means, "read-only")
    before = content(world.work)
    world.shell(
        "cat a.txt $OUT/victim.txt /etc/passwd; git log --oneline; echo t > $TMPDIR/t; cat $TMPDIR/t; echo x > a.txt; echo x > src/new"
    )
    assert "untouched" in world.said and "root:" in world.said and "first" in world.said
    assert (world.scratch / "t").read_text() == "t\n"
    assert content(world.work) == before


def test_secrets_are_taken_out_of_the_environment():
    environment = {
        "OPENAI_API_KEY": "a",
        "GITHUB_TOKEN": "b",
        "db_password": "c",
        "PATH": "/bin",
        "MY_SECRET_1": "d",
        "HOME": "/root",
        "X": "y",
    }
    assert scrubbed(environment, ["X"], ["GITHUB_*"]) == {"GITHUB_TOKEN": "b", "PATH": "/bin", "HOME": "/root"}


# Placeholders.


def names(world: World) -> list[str]:
    return [name for name in NAMES if os.path.lexists(world.work / name)]


def test_placeholders_are_gone_after_a_command(world_of):
    world = world_of("bubblewrap", "workspace-write")
    world.shell("ls -A; git status --short")
    assert ".claude" in world.said and "??" not in world.said
    assert names(world) == [".git"]
    assert not (world.work / ".git/hooks/x").exists() and [each.name for each in (world.base / "state/sandbox").iterdir()] == ["lock"]


@pytest.mark.parametrize("mode", MODES)
def test_placeholders_that_a_crash_left_are_gone_after_the_next_command(world_of, mode):
    world = world_of("bubblewrap", "workspace-write")
    dying(world, "bubblewrap", "true")
    assert names(world) == [".hames", ".mcp.json", ".claude", ".agents", ".git"]
    world.access = mode
    world.shell("true")
    assert names(world) == [".git"]


@pytest.mark.parametrize("first_ends", ["first", "last"])
def test_placeholders_stay_until_the_last_of_two_commands_has_ended(world_of, first_ends):
    world = world_of("bubblewrap", "workspace-write")
    with contextlib.ExitStack() as one, contextlib.ExitStack() as other:
        commands = []
        for stack in (one, other):
            command = stack.enter_context(
                world.sandbox.command(["bash", "-c", "mkdir .claude; touch .claude/x"], world.confinement, world.work)
            )
            commands.append(command)
        ending, staying = ((one, commands[1]), (other, commands[0]))[first_ends == "last"]
        ending.close()
        assert len(names(world)) == 5
        subprocess.run(staying.argv, pass_fds=staying.pass_fds, cwd=world.work, capture_output=True, check=False)
        assert os.listdir(world.work / ".claude") == []
    assert names(world) == [".git"]


def test_a_command_that_begins_as_another_ends_still_holds_absent_names(world_of, monkeypatch):
    """The placeholders of the first are removed after the second has looked what is there."""
    world = world_of("bubblewrap", "workspace-write")
    first = contextlib.ExitStack()
    first.enter_context(world.sandbox.command(["true"], world.confinement, world.work))
    looked = holding.missing

    def look(view: Any) -> Any:
        found = looked(view)
        first.close()
        return found

    monkeypatch.setattr(holding, "missing", look)
    world.shell("mkdir .claude; touch .claude/x; echo x > .mcp.json")
    assert names(world) == [".git"]


def test_an_empty_directory_of_the_user_is_never_removed(world_of, means):
    world = world_of(means, "workspace-write")
    (world.work / ".claude").mkdir()
    world.shell("true")
    if means == "bubblewrap":
        dying(world, "bubblewrap", "true")
    world.shell("rmdir .claude")
    assert (world.work / ".claude").is_dir()


def test_an_empty_directory_that_the_user_made_after_a_crash_is_not_removed(world_of):
    world = world_of("bubblewrap", "workspace-write")
    dying(world, "bubblewrap", "true")
    (world.work / ".claude").rmdir()
    (world.work / ".other").mkdir()
    (world.work / ".other").rename(world.work / ".claude")
    world.shell("true")
    assert names(world) == [".claude", ".git"]


def test_what_took_the_place_of_a_redirect_is_put_aside_in_a_directory_made_unwritable(world_of):
    """Of a user who is not the superuser: a command can take the right to write from a directory of theirs."""
    if os.geteuid() != 0:
        pytest.skip("only the superuser can become somebody else")
    world = world_of("landlock", "workspace-write")
    subprocess.run(["chown", "-R", "65534:65534", str(world.base)], check=True)
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            target = world.work / ".git/commondir"
            view = replace(world.sandbox.view(world.confinement), absent=(target,))
            with holding.held(view, world.base / "state/sandbox", mounts=False) as trespasses:
                target.write_text("src")
                target.parent.chmod(0o555)
            os._exit(0 if trespasses and not target.exists() else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Without any means.


def test_without_means_read_only_refuses_commands(world_of):
    world = world_of("none", "read-only")
    with pytest.raises(Refused):
        world.shell("true")
    assert world.sandbox.enforcement.level == "none" and not world.said


def test_without_means_workspace_write_runs_commands_and_holds_file_tools(world_of):
    world = world_of("none", "workspace-write")
    world.shell("echo ran > src/ran")
    assert (world.work / "src/ran").read_text() == "ran\n"
    world.remember()
    for path in (str(world.outside / "new"), ".claude/x", ".git/hooks/x", "plugins/p.py"):
        write_known(world, path)
    assert not harmed(world) and not changed(world)
    world.tool(read, path=str(world.base / "hidden/key"))
    world.tool(grep, pattern="CANARY", path=str(world.base))
    assert not leaked(world)
