"""Hames beside a bare loop and a peer: ``python benchmarks/agents.py [--rounds N] [--only NAMES] [--json]``.

All drivers use one stub server, each measurement in a fresh process with an empty home, interleaved round by round. CPU time of
the driver's process counts; time on the wall stands beside it. One short run of each driver goes before, so that caches are warm.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median

import rig
import sizes

LENGTHS = (10, 100, 500)
AGENTS, ANSWERS = 200, 5
IDLE = 1000
COLD = 3  # short measurements that are made so many times in each round
STARTS = 20
ROWS = ("cold", "history", "many", "idle", "help", "size")
EXTRA = ("hames run", "hames --help")
Samples = dict[str, dict[str, list[float]]]


class Bench:
    """The measurements of a run.

    :ivar samples: for each row what each driver needed.
    """

    def __init__(self, url: str, drivers: Sequence[str], rows: Sequence[str]) -> None:
        self.url = url
        self.drivers = drivers
        self.rows = rows
        self.samples: Samples = {}

    def add(self, row: str, driver: str, value: float) -> None:
        self.samples.setdefault(row, {}).setdefault(driver, []).append(value)

    def round(self) -> None:
        """Every row for every driver."""
        for name, body in {"cold": self.cold, "history": self.history, "many": self.many, "idle": self.idle}.items():
            if name in self.rows:
                self.say(name)
                body()

    def warm(self) -> None:
        """One short run of each driver, so that code and packages are cached."""
        for driver in self.drivers:
            rig.drive(driver, "history", self.url, 3)

    @staticmethod
    def say(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    def cold(self) -> None:
        for _ in range(COLD):
            for driver in self.drivers:
                cost, _ = rig.drive(driver, "once", self.url, 1)
                self._cold(driver, cost)
            if "hames" in self.drivers:
                self._cold("hames run", self._command())

    def _cold(self, driver: str, cost: rig.Cost) -> None:
        self.add("cold start, CPU ms", driver, cost.cpu * 1e3)
        self.add("cold start, wall ms", driver, cost.wall * 1e3)

    def _command(self) -> rig.Cost:
        model = 'openai:steps=1;tool=todo_write;args={"items":[{"content":"#"}]}'
        cost = rig.spawn([str(rig.BIN / "hames"), "run", "--model", model, "Do it."], self.url)
        if cost.output.strip() != "All is done.":
            raise rig.Failed(f"hames run printed {cost.output!r}")
        return cost

    def history(self) -> None:
        for length in LENGTHS:
            for _ in range(COLD if length <= 10 else 1):
                for driver in self.drivers:
                    _, found = rig.drive(driver, "history", self.url, length)
                    self.add(f"{length} answers, CPU ms a call", driver, found["cpu"] * 1e3 / found["calls"])
                    self.add(f"{length} answers, wall ms a call", driver, found["wall"] * 1e3 / found["calls"])

    def many(self) -> None:
        for driver in self.drivers:
            _, found = rig.drive(driver, "many", self.url, ANSWERS, AGENTS)
            self.add(f"{AGENTS} agents × {ANSWERS}, CPU s", driver, found["cpu"])
            self.add(f"{AGENTS} agents × {ANSWERS}, wall s", driver, found["wall"])
            self.add("kept after the run, KiB an agent", driver, found["memory"] / 1024)

    def idle(self) -> None:
        for driver in self.drivers:
            _, found = rig.drive(driver, "idle", self.url, ANSWERS, IDLE)
            self.add(f"idle (of {IDLE}), KiB an agent", driver, found["memory"] / 1024)

    def help(self) -> None:
        """``hames --help`` beside an interpreter that does nothing; the best of many starts counts."""
        commands = {"python -c pass": [str(rig.BIN / "python"), "-c", "pass"], "hames --help": [str(rig.BIN / "hames"), "--help"]}
        for _ in range(STARTS):
            for name, command in commands.items():
                cost = rig.spawn(command, self.url)
                self.add("start, CPU ms", name, cost.cpu * 1e3)
                self.add("start, wall ms", name, cost.wall * 1e3)

    def size(self) -> None:
        for driver in self.drivers:
            site = rig.PEERS if driver == "pydantic_ai" else rig.BIN.parent
            self.add("installed, MiB", driver, sizes.installed(*sizes.BASES[driver], site) / 1024**2)


def table(samples: Samples, columns: Sequence[str], best: Callable[[list[float]], float]) -> list[str]:
    """The rows that have these columns, each value with its ratio to the first column."""
    first, *others = columns
    lines = ["| | " + first + "".join(f" | {name} | ratio" for name in others) + " |", "|---" + "|---:" * (2 * len(columns) - 1) + "|"]
    for row, found in samples.items():
        if first not in found:
            continue
        base = best(found[first])
        cells = [f"{base:,.2f}"]
        for name in others:
            value = best(found[name]) if name in found else None
            cells += ["–", "–"] if value is None else [f"{value:,.2f}", f"{value / base:.2f}" if base else "–"]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return lines


def spread(samples: Samples) -> list[str]:
    """How far the samples of CPU time lie apart, so that a reader knows what a median is worth."""
    lines: list[str] = []
    for row, found in samples.items():
        if "CPU" in row:
            parts = [f"{name} {min(values):.2f}–{max(values):.2f} ({len(values)})" for name, values in found.items()]
            lines.append(f"- {row}: " + ", ".join(parts))
    return lines


def conditions() -> dict[str, str]:
    """The machine and what was measured on it."""
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=rig.HERE, capture_output=True, text=True, check=False)
    found = {
        "time": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": f"{rig.processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "state in": rig.disk(),
        "hames": f"{metadata.version('hames')} ({git.stdout.strip() or 'no revision'})",
        "aiohttp": metadata.version("aiohttp"),
    }
    for line in (rig.HERE / "peers.txt").read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("==")
        if name in ("pydantic-ai-slim", "openai", "httpx2"):
            found[name] = version
    return found


def report(bench: Bench) -> str:
    columns = [name for name in ("bare", "hames", "hames run", "pydantic_ai") if name in bench.drivers or name == "hames run"]
    if "hames" not in bench.drivers or "cold" not in bench.rows:
        columns.remove("hames run")
    lines = [f"{name}: {value}" for name, value in conditions().items()]
    lines += [
        "",
        "Medians; CPU is that of the driver's process with all its threads. N answers are N with a tool call and one with a text.",
        "One machine's figures: trust the ratios (to the first column), not the absolute values.",
        "",
        *table(bench.samples, columns, median),
    ]
    if "start, CPU ms" in bench.samples:
        lines += ["", f"Best of {STARTS}:", "", *table(bench.samples, ("python -c pass", "hames --help"), min)]
    return "\n".join([*lines, "", "Least and greatest (samples):", *spread(bench.samples)])


def options() -> argparse.Namespace:
    names = (*rig.DRIVERS, *ROWS)
    parser = argparse.ArgumentParser(description="Measure Hames beside a bare loop and a peer.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", metavar="NAMES", help=f"some of {','.join(names)}")
    parser.add_argument("--json", action="store_true", help="print all samples as one JSON object")
    found = parser.parse_args()
    found.only = [name for name in found.only.split(",") if name]
    unknown = [name for name in found.only if name not in names]
    if unknown or found.rounds < 1:
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else "at least one round")
    return found


def main() -> None:
    chosen = options()
    drivers = [name for name in rig.DRIVERS if name in chosen.only] or list(rig.DRIVERS)
    rows = [name for name in ROWS if name in chosen.only] or list(ROWS)
    if "pydantic_ai" in drivers:
        subprocess.run(["sh", str(rig.HERE / "peers.sh")], check=True, env={**os.environ, "PYTHON": sys.executable})
    with rig.server() as url:
        bench = Bench(url, drivers, rows)
        bench.warm()
        for number in range(chosen.rounds):
            bench.say(f"round {number + 1} of {chosen.rounds}")
            bench.round()
        if "help" in rows:
            bench.help()
        if "size" in rows:
            bench.size()
    if chosen.json:
        print(json.dumps({"conditions": conditions(), "samples": bench.samples}, ensure_ascii=False))
    else:
        print(report(bench))


if __name__ == "__main__":
    rig.end_in_order()
    try:
        main()
    except rig.Failed as error:
        sys.exit(f"{Path(__file__).name}: {error}")
