"""What a composition costs: ``python benchmarks/composition.py [--rounds N] [--rows N,N] [--groups N] [--json]``.

Files of rows are read (load), imported and validated (plan), mounted, and stopped (dispose); each size in a fresh process at each
round (see ``drivers/composition_driver.py``).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import rig

import agents

SIZES = (10, 100, 2000)
GROUPS = 20
PHASES = ("load", "plan", "mount", "dispose")
Samples = dict[int, list[dict[str, Any]]]


def run(rows: int, groups: int) -> dict[str, Any]:
    driver = rig.HERE / "drivers" / "composition_driver.py"
    return json.loads(rig.spawn([str(rig.BIN / "python"), str(driver), str(rows), str(min(rows, groups))], "").output)


def table(samples: Samples) -> list[str]:
    lines = ["| rows | " + " | ".join(f"{phase} ms | µs a row" for phase in (*PHASES, "all")) + " |"]
    lines.append("|---:" * (2 * len(PHASES) + 3) + "|")
    for rows, found in samples.items():
        values = [median(each[phase] for each in found) for phase in PHASES]
        values.append(median(sum(each[phase] for phase in PHASES) for each in found))
        lines.append(f"| {rows:,} | " + " | ".join(f"{value * 1e3:,.1f} | {value / rows * 1e6:,.1f}" for value in values) + " |")
    return lines


def spread(samples: Samples) -> list[str]:
    """How far the samples lie apart, in ms."""
    lines: list[str] = []
    for rows, found in samples.items():
        parts = [
            f"{phase} {min(each[phase] for each in found) * 1e3:,.1f}–{max(each[phase] for each in found) * 1e3:,.1f}" for phase in PHASES
        ]
        lines.append(f"- {rows:,} rows: " + ", ".join(parts))
    return lines


def conditions(samples: Samples) -> dict[str, str]:
    """The machine and what was measured on it."""
    machine = agents.conditions()
    first = next(iter(samples.values()))[0]
    return {name: machine[name] for name in ("time", "processor", "python", "hames")} | {
        name: first[name] for name in ("pydantic", "pyyaml")
    }


def report(samples: Samples, groups: int) -> str:
    return "\n".join(
        [
            *(f"{name}: {value}" for name, value in conditions(samples).items()),
            "",
            f"Medians of CPU time. The rows use a local file with three plugins and stand in {groups} groups, or in as many as there are",
            "rows; each validates a small pydantic model, and registers one listener and one clean-up. PyYAML is imported before, and",
            "pydantic in use.",
            "",
            *table(samples),
            "",
            "Least and greatest, ms:",
            *spread(samples),
        ]
    )


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what a composition costs.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default=",".join(map(str, SIZES)), metavar="N,N")
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--json", action="store_true", help="print all samples as one JSON object")
    found = parser.parse_args()
    if not all(part.isdigit() and int(part) for part in found.rows.split(",")):
        parser.error(f"{found.rows!r} are no numbers of rows")
    if found.rounds < 1 or found.groups < 1:
        parser.error("at least one round and one group")
    return found


def main() -> None:
    chosen = options()
    sizes = [int(part) for part in chosen.rows.split(",")]
    run(min(sizes), chosen.groups)  # so that code is cached
    samples: Samples = {size: [] for size in sizes}
    for number in range(chosen.rounds):
        print(f"  round {number + 1} of {chosen.rounds}", file=sys.stderr, flush=True)
        for size in sizes:
            samples[size].append(run(size, chosen.groups))
    if chosen.json:
        print(json.dumps({"conditions": conditions(samples), "samples": samples}, ensure_ascii=False))
    else:
        print(report(samples, chosen.groups))


if __name__ == "__main__":
    rig.end_in_order()
    try:
        main()
    except rig.Failed as error:
        sys.exit(f"{Path(__file__).name}: {error}")
