"""A composition of so many rows, made in the current directory: ``composition_driver.py ROWS GROUPS``, one line of JSON.

The rows use three plugins of one ``./local.py``, each with a pydantic model, and stand in GROUPS groups. PyYAML is imported
and pydantic has made a model before, so that what is timed is the rows' own. Times are CPU time of the process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pydantic
import yaml

from hames.compose import Interpolation, Layer, compose, mount, plan
from hames.kernel import Host, State


class Warm(pydantic.BaseModel):
    """The first model makes pydantic import most of itself."""

    number: int


PLUGINS = ("first", "second", "third")
LOCAL = """
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from hames.kernel import Context, Notice, plugin

CLEANED = []


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    limit: int = Field(default=10, ge=1)
    labels: list[str] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Told(Notice):
    number: int


def register(ctx: Context, config: Config) -> None:
    ctx.on(Told, lambda told: None)
    ctx.defer(lambda: CLEANED.append(config.name))
"""
BODY = """

@plugin(config=Config)
def {name}(ctx: Context, config: Config) -> None:
    register(ctx, config)
"""


def write(rows: int, groups: int) -> Path:
    """The plugins' file and the composition that uses it."""
    Path("local.py").write_text(LOCAL + "".join(BODY.format(name=name) for name in PLUGINS), encoding="utf-8")
    lines: list[str] = []
    for group in range(groups):
        lines += [f"- id: group{group}", "  group:"]
        for number in range(group, rows, groups):
            lines += [
                f"    - id: row{number}",
                f"      use: ./local.py:{PLUGINS[number % len(PLUGINS)]}",
                f"      config: {{name: row {number}, limit: {number + 1}, labels: [a, b]}}",
            ]
    path = Path("compose.yaml")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def now() -> float:
    gc.collect()
    return time.process_time()


async def measure(rows: int, groups: int) -> dict[str, Any]:
    layer = Layer(write(rows, groups))
    host = Host()
    gc.collect()
    start = time.process_time()
    composition = compose([layer])
    loaded = time.process_time()
    before_plan = now()
    planned = plan(composition, Interpolation(os.environ))
    plan_end = time.process_time()
    before_mount = now()
    mounts = await mount(host, planned)
    mount_end = time.process_time()
    active = sum(each.state is State.ACTIVE for each in mounts.values())
    before_dispose = now()
    await host.close()
    dispose_end = time.process_time()
    cleaned = next(module.CLEANED for name, module in sys.modules.items() if name.endswith(".local") and hasattr(module, "CLEANED"))
    if active != rows + groups or len(cleaned) != rows or host.root.children:
        raise SystemExit(f"{active} mounts active, {len(cleaned)} rows cleaned up, {len(host.root.children)} mounts left")
    return {
        "load": loaded - start,
        "plan": plan_end - before_plan,
        "mount": mount_end - before_mount,
        "dispose": dispose_end - before_dispose,
        "pydantic": pydantic.VERSION,
        "pyyaml": yaml.__version__,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(int(sys.argv[1]), int(sys.argv[2])))))
