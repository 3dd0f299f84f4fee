"""The runner ``sample``: costs nothing, needs no model, and always does the same. For dry runs, benchmarks and tests of your own.

A task without a schema is answered with a digest of its prompt, one with a schema with the smallest value that follows it. How long it
takes and whether it fails is drawn from a seed and the prompt, so the same task always goes the same way.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from pydantic import Field, model_validator

from hames.compose.config import RowConfig
from hames.content.finish import Usage
from hames.content.jsontext import as_object
from hames.content.schema import DEEPEST, as_list, defined, types_of, violations
from hames.delegation import DELEGATION
from hames.delegation.failures import FAILURES
from hames.delegation.outcome import Level, Outcome, UsageItem, failed
from hames.delegation.runner import Launch, Origin
from hames.delegation.spec import TaskSpec
from hames.kernel import Context, plugin

SMALL = 10_000
"""Items, or characters, of a sample at most."""
CAPABILITIES: dict[str, Level] = dict.fromkeys(
    ("role", "schema", "tools", "permission", "model", "effort", "inputs", "steps", "tokens", "cost", "idle"), "enforced"
)


class SampleConfig(RowConfig):
    """How tasks go."""

    name: str = "sample"
    """What the runner is called; another name stands in for the runner of that name."""
    seed: int = 0
    delay: tuple[float, float] = (0.0, 0.0)
    """Seconds that a task takes, from and to."""
    endless: list[str] = []
    """A task whose prompt holds one of these words runs until it is cancelled."""
    failures: dict[str, float] = {}
    """For codes of the table of failures the part of all tasks that fail so."""
    tokens: int = Field(default=0, ge=0)
    """Tokens that each task says it has spent."""

    @model_validator(mode="after")
    def check(self) -> SampleConfig:
        unknown = [code for code in self.failures if code not in FAILURES or FAILURES[code].axis == "admission"]
        wrong = [f"no task can fail as {', '.join(unknown)}"] if unknown else []
        if not (all(part >= 0 for part in self.failures.values()) and sum(self.failures.values()) <= 1):
            wrong.append("the parts of failures are between 0 and 1, and no more than 1 together")
        if not 0 <= self.delay[0] <= self.delay[1] < math.inf:
            wrong.append("delay is two numbers of seconds, the smaller one first")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


class SampleRunner:
    """Answers by itself."""

    version = "1"
    digest = ""
    keeps_idle = False
    hands_on = False
    capabilities: Mapping[str, Level] = CAPABILITIES

    def __init__(self, config: SampleConfig) -> None:
        self.name = config.name
        self._config = config

    def check(self, spec: TaskSpec, origin: Origin) -> TaskSpec:
        return spec

    async def start(self, launch: Launch) -> SampleWork:
        return SampleWork(launch, self._config)


class SampleWork:
    """One answer on its way."""

    native = ""

    def __init__(self, launch: Launch, config: SampleConfig) -> None:
        self._launch = launch
        self._config = config
        self._cancelled: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._withdraw = launch.signal.listen(self.cancel)

    def cancel(self, cause: str) -> None:
        if not self._cancelled.done():
            self._cancelled.set_result(cause)

    async def result(self) -> Outcome:
        launch, config = self._launch, self._config
        chance = random.Random(f"{config.seed} {launch.attempt} {launch.spec.prompt}".encode("utf-8", "replace"))
        delay, drawn = chance.uniform(*config.delay), chance.random()
        if said := launch.meter.exhausted():
            return failed("BUDGET", said)
        endless = any(word in launch.spec.prompt for word in config.endless)
        if delay or endless:
            await asyncio.wait((self._cancelled,), timeout=None if endless else delay)
        if self._cancelled.done():
            return failed("CANCELLED", f"cancelled ({self._cancelled.result()})")
        usage = Usage(output=config.tokens)
        launch.meter.spend(usage, lambda usage: 0.0)
        spent = (UsageItem("sample", usage),) if config.tokens else ()
        for code, part in config.failures.items():
            drawn -= part
            if drawn < 0:
                return failed(code, "drawn by chance", usage=spent, cost=0.0, steps=1)
        if launch.spec.schema is None:
            return Outcome("completed", text=digest(launch.spec.prompt), usage=spent, cost=0.0, steps=1)
        value = sample(launch.spec.schema)
        return Outcome("completed", value=value, schema_valid=True, tries=1, usage=spent, cost=0.0, steps=1)

    async def dispose(self) -> None:
        self._withdraw()
        self.cancel("disposed")


def digest(prompt: str) -> str:
    """The answer to a prompt."""
    return f"sample {sha256(prompt.encode('utf-8', 'replace')).hexdigest()[:16]}"


def sample(schema: Mapping[str, Any]) -> Any:
    """A small value that follows a schema.

    :raises ValueError: if none is found; a pattern, for example, is only met by chance.
    """
    try:
        value = _sample(dict(schema), dict(schema), DEEPEST)
    except OverflowError as error:
        raise ValueError(f"no small value follows the schema: {error}") from None
    if wrong := violations(value, dict(schema)):
        raise ValueError(f"no small value follows the schema: {wrong[0]}")
    return value


def _sample(schema: Any, root: dict[str, Any], deep: int) -> Any:
    members = as_object(schema)
    if deep <= 0:
        return None
    if "$ref" in members:
        return _sample(defined(root, members["$ref"]), root, deep - 1)
    if "const" in members:
        return members["const"]
    for key in ("examples", "enum"):
        if found := as_list(members.get(key)):
            return found[0]
    if "default" in members:
        return members["default"]
    for key in ("anyOf", "oneOf"):
        for part in as_list(members.get(key)):
            made = _sample(part, root, deep - 1)
            if not violations(made, {**as_object(part), "$defs": root.get("$defs", {})}):
                return made
    types = types_of(members)
    kind = types[0] if types else "object" if "properties" in members else "string"
    match kind:
        case "object":
            properties = as_object(members.get("properties"))
            return {name: _sample(properties.get(name), root, deep - 1) for name in as_list(members.get("required"))}
        case "array":
            return [_sample(members.get("items"), root, deep - 1) for _ in range(small(members.get("minItems", 0)))]
        case "string":
            return "x" * small(max(1, members.get("minLength", 0))) if members.get("maxLength", 1) else ""
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return _number(members, whole=kind == "integer")


def small(size: int) -> int:
    """
    :raises OverflowError: if a size is not small.
    """
    if size > SMALL:
        raise OverflowError(f"{size} is more than {SMALL}")
    return size


def _number(members: dict[str, Any], *, whole: bool) -> float:
    low, high = members.get("minimum"), members.get("maximum")
    above, below = members.get("exclusiveMinimum"), members.get("exclusiveMaximum")
    gap = 1 if whole else 1e-6
    least = max((each for each in (low, None if above is None else above + gap) if each is not None), default=None)
    most = min((each for each in (high, None if below is None else below - gap) if each is not None), default=None)
    value = 0 if least is None or least <= 0 else least
    value = value if most is None or most >= value else most
    return (math.floor(value) if value == most else math.ceil(value)) if whole else value


@plugin(config=SampleConfig, needs=(DELEGATION,), name="sample")
def sample_runner(ctx: Context, config: SampleConfig) -> None:
    """Offer the runner ``sample``."""
    ctx.use(DELEGATION).runners.register(ctx, SampleRunner(config))
