"""What live workspaces cost: ``python benchmarks/workspaces.py [--rounds N] [--rows N,N] [--workspaces N] [--seconds S] [--json]``.

An edit of one row until it is seen, beside starting every row anew; many workspaces that are watched and nothing happens; and how many
leases are taken and given back in a second. Each in a fresh process, with the standard profile and state in ``TMPDIR``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import rig

SIZES = (10, 100, 1000)
LEASES = 200
EDITS = 5
LOCAL = """
from pydantic import BaseModel, ConfigDict

from hames.kernel import plugin
from hames.tools import TOOLS, tool


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    says: str = ""


@plugin(config=Config, needs=(TOOLS,))
def row(ctx, config):
    async def run() -> str:
        return config.says

    run.__doc__ = config.says or "Nothing."
    ctx.use(TOOLS).register(ctx, tool("read", name=config.name)(run))
"""


# in the child


def write(directory: Path, rows: int, says: str = "") -> None:
    """The composition of a workspace; its first row says something."""
    lines = [
        f"- {{id: row{number}, use: './local.py:row', config: {{name: tool{number}, says: '{says if number == 0 else ''}'}}}}"
        for number in range(rows)
    ]
    (directory / ".hames" / "compose.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def made(directory: Path, rows: int) -> Path:
    (directory / ".hames").mkdir(parents=True)
    (directory / ".hames" / "local.py").write_text(LOCAL, encoding="utf-8")
    write(directory, rows)
    return directory


@asynccontextmanager
async def opened() -> AsyncGenerator[Any]:
    """A host that trusts every directory."""
    from hames.compose import running
    from hames.profiles import profile
    from hames.store import STATE

    trusting = Path.cwd() / "trusting.yaml"
    trusting.write_text("- {id: trust, set: {config: {default: always}}}\n", encoding="utf-8")
    async with running([profile("standard"), trusting], {STATE: Path(os.environ["HAMES_STATE"])}) as host:
        yield host


def debounce(host: Any) -> float:
    from hames.compose import BASE

    return host.get(BASE).mounts["workspaces"].config.debounce_ms / 1000


async def edit(rows: int) -> dict[str, Any]:
    """From the write of a file of so many rows, one of them another one, to the new view; and all of them anew."""
    from hames.tools import TOOLS
    from hames.workspaces import WORKSPACES, WorkspaceReloaded

    directory = made(Path.cwd() / "place", rows)
    async with opened() as host:
        workspaces = host.get(WORKSPACES)
        start, cpu = perf_counter(), process_time()
        lease = await workspaces.acquire(directory)
        first = (perf_counter() - start, process_time() - cpu)
        registry = host.get(TOOLS, lease.scope).registry
        told: asyncio.Queue[Any] = asyncio.Queue()
        host.ctx.on(WorkspaceReloaded, told.put_nowait)
        found: dict[str, list[tuple[float, float]]] = {"edit": [], "all": []}
        for turn in range(EDITS):
            await asyncio.sleep(0.05)
            gc.collect()
            start, cpu = perf_counter(), process_time()
            write(directory, rows, f"turn {turn}")
            notice = await asyncio.wait_for(told.get(), 60)
            spent = (perf_counter() - start, process_time() - cpu)
            if notice.reason or notice.started != ("row0",) or registry.get(lease.scope, "tool0").description != f"turn {turn}":
                raise rig.Failed(f"an edit of one row gave {notice}")
            found["edit"].append(spent)
            gc.collect()
            start, cpu = perf_counter(), process_time()
            await workspaces.reload(directory, all=True)
            spent = (perf_counter() - start, process_time() - cpu)
            notice = await asyncio.wait_for(told.get(), 60)
            if notice.reason or len(notice.started) != rows:
                raise rig.Failed(f"{len(notice.started)} rows were started anew, not {rows}: {notice.message}")
            found["all"].append(spent)
        await lease.release()
        return {"debounce": debounce(host), "first": first, **found}


def system() -> dict[str, float]:
    """What the process holds."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    watches = 0
    for entry in Path("/proc/self/fdinfo").iterdir():
        try:
            watches += entry.read_text(encoding="utf-8").count("inotify wd:")
        except OSError:  # the descriptor that lists them is closed by now
            continue
    return {
        "memory": int(status["VmRSS"].split()[0]) * 1024,
        "threads": int(status["Threads"]),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())) - 1,
        "watches": watches,
        "tasks": len(asyncio.all_tasks()),
    }


async def idle(count: int, seconds: float) -> dict[str, Any]:
    """So many workspaces of one row each that are watched, and nothing happens."""
    from hames.workspaces import WORKSPACES

    places = [made(Path.cwd() / f"place{number}", 1) for number in range(count + 1)]
    async with opened() as host:
        workspaces = host.get(WORKSPACES)
        leases = [await workspaces.acquire(places.pop())]  # what comes with the first is not counted
        gc.collect()
        before = system()
        start, cpu = perf_counter(), process_time()
        leases += [await workspaces.acquire(place) for place in places]
        opening = (perf_counter() - start, process_time() - cpu)
        gc.collect()
        held = system()
        await asyncio.sleep(2.5)
        start, cpu = perf_counter(), process_time()
        await asyncio.sleep(seconds)
        rate = (process_time() - cpu) / (perf_counter() - start) * 60
        start, cpu = perf_counter(), process_time()
        for lease in leases:
            await lease.release()
        closing = (perf_counter() - start, process_time() - cpu)
        gc.collect()
        return {"before": before, "held": held, "left": system(), "opening": opening, "closing": closing, "rate": rate}


async def lease(count: int) -> dict[str, Any]:
    """Leases taken and given back one after the other: of a directory without files, of one with a row, and of one that is open."""
    from hames.workspaces import WORKSPACES

    bare = Path.cwd() / "bare"
    bare.mkdir()
    one = made(Path.cwd() / "one", 1)
    async with opened() as host:
        workspaces = host.get(WORKSPACES)

        async def timed(directory: Path) -> tuple[float, float]:
            start, cpu = perf_counter(), process_time()
            for _ in range(count):
                await (await workspaces.acquire(directory)).release()
            return (perf_counter() - start) / count, (process_time() - cpu) / count

        await (await workspaces.acquire(one)).release()
        found = {"bare": await timed(bare), "one row": await timed(one)}
        held = await workspaces.acquire(one)
        found["open already"] = await timed(one)
        await held.release()
        return found


PARTS = {"edit": edit, "idle": idle, "lease": lease}


# in the parent


def drive(part: str, *values: float) -> dict[str, Any]:
    return json.loads(rig.spawn([str(rig.BIN / "python"), __file__, "--child", part, *map(str, values)], "").output)


def measured(chosen: argparse.Namespace) -> dict[str, Any]:
    sizes = [int(part) for part in chosen.rows.split(",")]
    samples: dict[str, Any] = {"edit": {size: [] for size in sizes}, "idle": [], "lease": []}
    drive("edit", min(sizes))  # so that code is cached
    for number in range(chosen.rounds):
        print(f"  round {number + 1} of {chosen.rounds}", file=sys.stderr, flush=True)
        for size in sizes:
            samples["edit"][size].append(drive("edit", size))
        samples["lease"].append(drive("lease", LEASES))
    if chosen.workspaces:
        samples["idle"].append(drive("idle", chosen.workspaces, chosen.seconds))
    return samples


def report(samples: dict[str, Any], workspaces: int, seconds: float) -> str:
    import agents

    machine = agents.conditions()
    lines = [f"{name}: {machine[name]}" for name in ("time", "processor", "python", "state in", "hames")]
    debounced = next(iter(samples["edit"].values()))[0]["debounce"]
    lines += [
        "",
        f"Medians, ms. An edit is from the write of the file to the notice that the new view is there, less the {debounced * 1e3:g} ms of",
        "quiet that are waited for; one row of them has changed. All: every row started anew, from the request on.",
        "",
        "| rows | first, wall | CPU | edit, wall | CPU | all, wall | CPU |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for size, found in samples["edit"].items():
        edits = [each for sample in found for each in sample["edit"]]
        alls = [each for sample in found for each in sample["all"]]
        values = [median(sample["first"][i] for sample in found) for i in (0, 1)]
        values += [median(each[0] for each in edits) - debounced, median(each[1] for each in edits)]
        values += [median(each[i] for each in alls) for i in (0, 1)]
        lines.append(f"| {size:,} | " + " | ".join(f"{value * 1e3:,.1f}" for value in values) + " |")
    lines += ["", "| lease and its return | a second | CPU µs each |", "|---|---:|---:|"]
    for kind in samples["lease"][0]:
        wall, cpu = (median(sample[kind][i] for sample in samples["lease"]) for i in (0, 1))
        lines.append(f"| {kind} | {1 / wall:,.0f} | {cpu * 1e6:,.0f} |")
    for found in samples["idle"]:
        before, held, left = found["before"], found["held"], found["left"]
        lines += [
            "",
            f"{workspaces:,} workspaces of one row, watched; CPU over {seconds:g} s in which nothing happens:",
            "",
            f"- CPU: {found['rate']:.2f} s a minute",
            f"- memory: {(held['memory'] - before['memory']) / workspaces / 1024:,.1f} KiB each",
            *(
                f"- {name}: {held[name] - before[name]:+,.0f} ({held[name]:,.0f} held, {left[name]:,.0f} left afterwards)"
                for name in ("watches", "descriptors", "threads", "tasks")
            ),
            f"- opened in {found['opening'][0]:.1f} s (CPU {found['opening'][1]:.1f} s),"
            f" closed in {found['closing'][0]:.1f} s (CPU {found['closing'][1]:.1f} s)",
        ]
    return "\n".join(lines)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what live workspaces cost.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", default=",".join(map(str, SIZES)), metavar="N,N")
    parser.add_argument("--workspaces", type=int, default=1000, help="how many are watched; 0 for none")
    parser.add_argument("--seconds", type=float, default=10.0, help="of watching while nothing happens")
    parser.add_argument("--json", action="store_true", help="print all samples as one JSON object")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    found = parser.parse_args()
    if not all(part.isdigit() and int(part) for part in found.rows.split(",")):
        parser.error(f"{found.rows!r} are no numbers of rows")
    if found.rounds < 1 or found.seconds < 5:
        parser.error("at least one round, and five seconds")
    return found


def main() -> None:
    chosen = options()
    if chosen.child:
        part, *values = chosen.child
        numbers = [int(value) if value.isdigit() else float(value) for value in values]
        print(json.dumps(asyncio.run(PARTS[part](*numbers))))
        return
    samples = measured(chosen)
    print(json.dumps(samples) if chosen.json else report(samples, chosen.workspaces, chosen.seconds))


if __name__ == "__main__":
    rig.end_in_order()
    try:
        main()
    except rig.Failed as error:
        sys.exit(f"{Path(__file__).name}: {error}")
