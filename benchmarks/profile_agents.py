"""Where Hames spends its time: ``python benchmarks/profile_agents.py [--driver NAME] [--top N]``.

cProfile over what ``agents.py`` times: a conversation of 500 answers, and 200 agents of 5 answers at once. It sees the thread of
the event loop; what the other threads need (the writer of the store, plain functions of tools) is said as a sum, from a run without it.
"""

from __future__ import annotations

import argparse
import pstats
import sys
import tempfile
from pathlib import Path

import rig

RUNS = {"500 answers": ("history", 500, 0), "200 agents × 5": ("many", 5, 200)}


def rows(path: Path, count: int) -> list[str]:
    """The functions with the largest own times, as lines of a table."""
    found: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = vars(pstats.Stats(str(path)))["stats"]
    stats = {key: entry for key, entry in found.items() if "poll" not in key[2]}  # waiting for the server costs nothing
    total = sum(entry[2] for entry in stats.values())
    lines = ["| own ms | % | with callees ms | calls | where |", "|---:|---:|---:|---:|---|"]
    for (file, line, name), (_, calls, own, whole, _) in sorted(stats.items(), key=lambda item: -item[1][2])[:count]:
        where = name if line == 0 else f"{shortened(file)}:{line} {name}"
        lines.append(f"| {own * 1e3:.1f} | {own / total * 100:.1f} | {whole * 1e3:.1f} | {calls} | `{where}` |")
    return lines


def shortened(file: str) -> str:
    """A path from the package on."""
    for lead in ("/site-packages/", "/src/", f"/python3.{sys.version_info.minor}/"):
        if lead in file:
            return file.rpartition(lead)[2]
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description="Profile a driver of the benchmarks.")
    parser.add_argument("--driver", default="hames", choices=list(rig.DRIVERS))
    parser.add_argument("--top", type=int, default=25)
    chosen = parser.parse_args()
    with rig.server() as url, tempfile.TemporaryDirectory() as directory:
        rig.drive(chosen.driver, "history", url, 3)
        for name, (mode, answers, agents) in RUNS.items():
            _, plain = rig.drive(chosen.driver, mode, url, answers, agents)
            path = Path(directory) / mode
            rig.drive(chosen.driver, mode, url, answers, agents, str(path))
            cpu, main_cpu = plain["cpu"] * 1e3, plain["main_cpu"] * 1e3
            print(f"{chosen.driver}, {name}: {cpu:.0f} ms of CPU, {cpu - main_cpu:.0f} of them in other threads; under cProfile:\n")
            print("\n".join(rows(path, chosen.top)), end="\n\n")


if __name__ == "__main__":
    rig.end_in_order()
    try:
        main()
    except rig.Failed as error:
        sys.exit(f"{Path(__file__).name}: {error}")
