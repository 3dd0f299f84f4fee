"""The kernel beside its peers: ``python benchmarks/kernel.py [--rounds N] [--only NAMES] [--json]``.

1,000 plugins, each with one listener and one clean-up (see ``drivers/kernel_measure.py``); each kernel in a fresh process of its own
at each round, interleaved. All run in one interpreter, 3.12 or later, because cordis-python asks for it; ``KERNELS_PYTHON`` names it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import rig

import agents

LEAST = (3, 12)
KERNELS = rig.HERE / ".peers" / "kernels"
ROWS = {
    "hames": ("kernel_hames.py", "plain"),
    "hames async": ("kernel_hames.py", "async"),
    "pluggy": ("kernel_pluggy.py",),
    "cordis-python": ("kernel_cordis.py", "async"),
    "cordis-python sync": ("kernel_cordis.py", "sync"),
    "anvilcore": ("kernel_anvil.py",),
    "task and generator": ("kernel_bare.py",),
}
COLUMNS = {
    "import ms": ("import", 1e3),
    "mount µs": ("mount", 1e6),
    "dispose µs": ("dispose", 1e6),
    "first to last µs": ("dispose forwards", 1e6),
    "to 1, ns": ("emit 1", 1e9),
    "to 10, ns": ("emit 10", 1e9),
    "left behind": ("left", 1),
    "still known": ("known", 1),
}
Samples = dict[str, list[dict[str, Any]]]


def interpreters() -> Iterator[str]:
    """Pythons of this machine: what is named, this one, those on the path, and those installed beside this one."""
    if named := os.environ.get("KERNELS_PYTHON"):
        yield named
        return
    yield sys.executable
    for minor in range(LEAST[1], LEAST[1] + 4):
        if found := shutil.which(f"python3.{minor}"):
            yield found
    yield from sorted(map(str, Path(sys.base_prefix).parent.glob("*3.1[2-9]*/bin/python3")))


def interpreter() -> str:
    """The first that runs and is late enough.

    :raises rig.Failed: if there is none.
    """
    code = f"import sys; sys.exit(sys.version_info < {LEAST})"
    for path in interpreters():
        if subprocess.run([path, "-c", code], capture_output=True, check=False).returncode == 0:
            return path
    raise rig.Failed(f"there is no Python {LEAST[0]}.{LEAST[1]} or later; name one with KERNELS_PYTHON")


def run(row: str) -> dict[str, Any]:
    script, *variant = ROWS[row]
    return json.loads(rig.spawn([str(KERNELS / "bin" / "python"), str(rig.HERE / "drivers" / script), *variant], "").output)


def table(samples: Samples) -> list[str]:
    lines = ["| | " + " | ".join(COLUMNS) + " |", "|---" + "|---:" * len(COLUMNS) + "|"]
    for row, found in samples.items():
        cells: list[str] = []
        for name, (key, factor) in COLUMNS.items():
            value = median(each[key] for each in found) * factor
            cells.append(f"{value:,.0f}" if factor == 1 or name.endswith("ns") else f"{value:,.1f}")
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return lines


def spread(samples: Samples) -> list[str]:
    """How far the samples lie apart."""
    lines: list[str] = []
    for name, (key, factor) in COLUMNS.items():
        if factor != 1:
            parts = [
                f"{row} {min(e[key] for e in found) * factor:,.1f}–{max(e[key] for e in found) * factor:,.1f}"
                for row, found in samples.items()
            ]
            lines.append(f"- {name}: " + ", ".join(parts))
    return lines


def conditions(samples: Samples) -> dict[str, str]:
    """The machine and what was measured on it."""
    machine = agents.conditions()
    found = {name: machine[name] for name in ("time", "processor")}
    found["python"] = f"CPython {next(iter(samples.values()))[0]['python']}"
    found["hames"] = machine["hames"]
    for line in (rig.HERE / "kernels.txt").read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("==")
        if name in ROWS:
            found[name] = version
    return found


def report(samples: Samples) -> str:
    lines = [f"{name}: {value}" for name, value in conditions(samples).items()]
    lines += [
        "",
        "Medians of CPU time, for each of 1,000 plugins that listen to one event. They are disposed of last to first, and again first to",
        "last. 'to 1' is one event to one listener. 'left behind' are listeners still heard and clean-ups that did not run; 'still known'",
        "are the records that the kernel keeps. asyncio is imported before.",
        "",
        *table(samples),
    ]
    if events := [each["event"] * 1e9 for found in samples.values() for each in found if "event" in each]:
        lines += [
            "",
            f"Of each of Hames's dispatches {median(events):,.0f} ns make the event, a frozen dataclass; the peers pass an argument.",
        ]
    return "\n".join([*lines, "", "Least and greatest:", *spread(samples)])


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the kernel beside its peers.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", metavar="NAMES", help=f"some of {','.join(ROWS)}")
    parser.add_argument("--json", action="store_true", help="print all samples as one JSON object")
    found = parser.parse_args()
    found.only = [name for name in found.only.split(",") if name]
    unknown = [name for name in found.only if name not in ROWS]
    if unknown or found.rounds < 1:
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else "at least one round")
    return found


def main() -> None:
    chosen = options()
    rows = [name for name in ROWS if name in chosen.only] or list(ROWS)
    subprocess.run(["sh", str(rig.HERE / "peers.sh"), "kernels"], check=True, env={**os.environ, "PYTHON": interpreter()})
    for row in rows:  # so that code is cached
        run(row)
    samples: Samples = {row: [] for row in rows}
    for number in range(chosen.rounds):
        print(f"  round {number + 1} of {chosen.rounds}", file=sys.stderr, flush=True)
        for row in rows:
            samples[row].append(run(row))
    if chosen.json:
        print(json.dumps({"conditions": conditions(samples), "samples": samples}, ensure_ascii=False))
    else:
        print(report(samples))


if __name__ == "__main__":
    rig.end_in_order()
    try:
        main()
    except rig.Failed as error:
        sys.exit(f"{Path(__file__).name}: {error}")
