"""Children of one parent, beside peers: ``python benchmarks/tasks.py [--rounds N] [--children N] [--only NAMES] [--json]``.

All drivers use one stub server, each measurement in a fresh process with an empty home, interleaved round by round. CPU time of the
driver's process counts; time on the wall stands beside it. Hames writes a record, a session and an outcome for each child; the peers
write nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import rig

AT_ONCE = 16
CHILDREN = 500
WAITING = 200
DRIVERS = {
    "hames": (rig.BIN / "python", "hames_children.py"),
    "pydantic-ai": (rig.PEERS / "bin" / "python", "pydantic_ai_children.py"),
    "openai-agents": (rig.HERE / ".peers" / "openai-agents" / "bin" / "python", "openai_agents_children.py"),
}


def drive(driver: str, mode: str, url: str, children: int) -> dict[str, Any]:
    python, script = DRIVERS[driver]
    cost = rig.spawn([str(python), str(rig.HERE / "drivers" / script), mode, url, str(children), str(AT_ONCE)], url)
    return json.loads(cost.output)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure children of one parent beside peers.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--children", type=int, default=CHILDREN)
    parser.add_argument("--only", default=",".join(DRIVERS), metavar="NAMES")
    parser.add_argument("--json", action="store_true", help="print all samples as one JSON object")
    chosen = parser.parse_args()
    drivers = [name for name in DRIVERS if name in chosen.only.split(",")]
    environment = {**os.environ, "PYTHON": sys.executable}
    for name in ("pydantic-ai", "openai-agents"):
        if name in drivers:
            arguments = [] if name == "pydantic-ai" else [name]
            subprocess.run(["sh", str(rig.HERE / "peers.sh"), *arguments], check=True, env=environment)
    samples: dict[str, dict[str, list[float]]] = {}
    with rig.server() as url:
        for number in range(chosen.rounds):
            print(f"  round {number + 1} of {chosen.rounds}", file=sys.stderr, flush=True)
            for driver in drivers:
                found = drive(driver, "run", url, chosen.children)
                for row, value in (
                    (f"{chosen.children} children, {AT_ONCE} at a time, CPU s", found["cpu"]),
                    (f"{chosen.children} children, {AT_ONCE} at a time, wall s", found["wall"]),
                    ("kept after the run, KiB a child", found["memory"] / 1024),
                ):
                    samples.setdefault(row, {}).setdefault(driver, []).append(value)
                waiting = drive(driver, "wait", url, WAITING)["memory"] / 1024
                row = f"waiting for its model (of {WAITING}), KiB a child"
                samples.setdefault(row, {}).setdefault(driver, []).append(waiting)
    if chosen.json:
        print(json.dumps(samples, ensure_ascii=False))
        return
    python = f"{platform.python_implementation()} {platform.python_version()}"
    print(f"{rig.processor()}, {os.cpu_count()} cores, {python}, state in {rig.disk()}\n")
    print("| | " + " | ".join(drivers) + " |\n|---" + "|---:" * len(drivers) + "|")
    for row, values in samples.items():
        print(f"| {row} | " + " | ".join(f"{median(values[driver]):,.2f}" for driver in drivers) + " |")


if __name__ == "__main__":
    rig.end_in_order()
    try:
        main()
    except rig.Failed as error:
        sys.exit(f"{Path(__file__).name}: {error}")
