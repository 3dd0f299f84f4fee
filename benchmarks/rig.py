"""What the benchmarks share: the stub server, clean environments, and child processes with what they cost."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = HERE / ".peers" / "venv"
BIN = Path(sys.executable).parent
SERVER_CORE, DRIVER_CORE = 1, 0
LIMIT = 900.0  # seconds after which a child is killed


class Failed(Exception):
    """A child did not do what it was to do."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a child cost, in seconds, with its children's CPU, and what it printed."""

    cpu: float
    wall: float
    output: str


def end_in_order() -> None:
    """Make a request to end an exception, so that children and directories do not stay behind."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


@contextmanager
def on_core(core: int) -> Generator[None]:
    """Children that are started inside run on this core, where there is such a thing."""
    if not hasattr(os, "sched_setaffinity") or core >= (os.cpu_count() or 1):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def workplace(url: str) -> Generator[tuple[Path, dict[str, str]]]:
    """An empty home in ``TMPDIR`` with a directory to work in, and an environment that knows nothing else."""
    home = Path(tempfile.mkdtemp(prefix="hames-benchmark-"))
    work = home / "work"
    work.mkdir()
    environment = {
        "PATH": os.defpath,
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "HAMES_STATE": str(home / "state"),
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "benchmark",
    }
    try:
        yield work, environment
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def server() -> Generator[str]:
    """The stub server in a process of its own; gives its URL."""
    with on_core(SERVER_CORE):
        process = subprocess.Popen(
            [sys.executable, "-m", "hames.testing.stub"],
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        )
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], 30)
        url = process.stdout.readline().strip() if ready else ""
        if not url.startswith("http://127.0.0.1:"):
            raise Failed(f"the stub server did not start: {url!r}")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def spawn(command: Sequence[str], url: str) -> Cost:
    """Run a child from its spawn to its end, in a fresh workplace.

    :raises Failed: if it fails, or does not end in its time.
    """
    with workplace(url) as (work, environment), tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = perf_counter()
        with on_core(DRIVER_CORE):
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=work, env=environment)
        timer = threading.Timer(LIMIT, child.kill)
        timer.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
            wall = perf_counter() - start
            child.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            child.kill()
            child.wait()
            raise
        finally:
            timer.cancel()
        out.seek(0)
        err.seek(0)
        output = out.read().decode("utf-8", "replace")
        if child.returncode != 0:
            said = output + err.read().decode("utf-8", "replace")
            raise Failed(f"{' '.join(command)} ended with {child.returncode}:\n{said}")
        return Cost(usage.ru_utime + usage.ru_stime, wall, output)


DRIVERS = {
    "bare": (BIN / "python", HERE / "drivers" / "bare.py"),
    "hames": (BIN / "python", HERE / "drivers" / "hames_driver.py"),
    "pydantic_ai": (PEERS / "bin" / "python", HERE / "drivers" / "pydantic_ai_driver.py"),
}


def drive(driver: str, mode: str, url: str, answers: int, agents: int = 0, profile: str = "") -> tuple[Cost, dict[str, Any]]:
    """Run a driver in a mode (see ``drivers/measure.py``); what it cost as a process, and what it measured."""
    python, script = DRIVERS[driver]
    cost = spawn([str(python), str(script), mode, url, str(answers), str(agents), profile], url)
    return cost, json.loads(cost.output)


def processor() -> str:
    """The name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def disk() -> str:
    """Where state lies, and on what: a file system in memory makes every barrier cheaper than it is."""
    place = Path(tempfile.gettempdir()).resolve()
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return str(place)
    _, kind = max((point, kind) for point, kind in mounts if place.is_relative_to(point))
    return f"{place} ({kind})"
