"""Every shipped runner keeps the contract, and the contract notices one that does not."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.delegation import DELEGATION
from hames.delegation.outcome import Outcome
from hames.delegation.spec import TaskSpec
from hames.testing.contract import Contract, broken_promises, launch
from hames.testing.sample import SampleConfig, SampleRunner

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
QUICK = "- text: Done.\n"
ENDLESS = "- {text: I wait., calls: [{name: bash, arguments: {command: 'sleep 60.25'}}]}\n"
VALUE = "- calls: [{name: structured_output, arguments: {n: 5}}]\n"


@pytest.mark.parametrize("name", ["spawn", "fork"])
async def test_children_of_this_process_keep_the_contract(host, tmp_path, name):
    scripts = {"quick": QUICK, "endless": ENDLESS, "schema": VALUE}
    for kind, text in scripts.items():
        (tmp_path / f"{kind}.yaml").write_text(text)
    (tmp_path / "lead.yaml").write_text("- text: Hello.\n")
    lead = await host.get(AGENTS).create(AgentSpec(str(tmp_path), f"scripted:{tmp_path}/lead.yaml"))
    await lead.run("hello")
    (tmp_path / "work").mkdir()
    service = host.get(DELEGATION)
    runner = service.runners.choose(host.root_scope, name)
    # A fork counts the answers that it begins with: its scripts begin after that of the lead.
    before = "- text: Hello.\n" if name == "fork" else ""
    for kind, text in scripts.items():
        (tmp_path / f"{kind}.yaml").write_text(before + text)

    def made(kind: str):
        spec = TaskSpec("do it", model=f"scripted:{tmp_path}/{kind}.yaml", schema=SCHEMA if kind == "schema" else None)
        return lambda: launch(host, spec, service.tasks.origin(lead))

    assert await broken_promises(runner, {kind: made(kind) for kind in scripts}) == []
    await host.get(AGENTS).dispose(lead)


async def test_the_sample_runner_keeps_the_contract(host):
    launches = {"quick": TaskSpec("do it"), "endless": TaskSpec("do it for ever"), "schema": TaskSpec("do it", schema=SCHEMA)}
    made = {kind: partial(launch, host, spec) for kind, spec in launches.items()}
    assert await broken_promises(SampleRunner(SampleConfig(endless=["for ever"])), made) == []


class Deaf:
    """A runner that keeps nothing: it goes on until it is done, and forgets to give back."""

    name, version, digest, keeps_idle, hands_on = "deaf", "1", "", False, False

    def __init__(self) -> None:
        self.capabilities = {"steps": "enforced", "schema": "perhaps"}
        self.left = []

    def check(self, spec, origin):
        return spec

    async def start(self, launch):
        launch.signal.listen(lambda cause: None)
        return DeafWork(launch, self)


class DeafWork:
    native = ""

    def __init__(self, launch, runner) -> None:
        self.launch = launch
        runner.left.append(asyncio.ensure_future(asyncio.sleep(2)))

    async def result(self):
        await asyncio.shield(asyncio.sleep(0.3))
        return Outcome("completed", text=" ", value=5, schema_valid=True)

    def cancel(self, cause):
        pass

    async def dispose(self):
        pass


async def test_the_contract_notices_a_runner_that_keeps_nothing_of_it(host):
    made = {kind: partial(launch, host, TaskSpec("do it", schema=SCHEMA)) for kind in ("quick", "endless", "schema")}
    runner = Deaf()
    broken = [each.split(":")[0] for each in await broken_promises(runner, made, patience=0.2)]
    assert broken == [check.__name__.replace("_", " ") for check in Contract(runner, made, 1).checks()]
    await asyncio.gather(*runner.left)
