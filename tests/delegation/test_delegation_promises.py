"""What delegation promises beside its single parts."""

from __future__ import annotations

import json

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.compose import running
from hames.content.errors import HamesError
from hames.delegation import DELEGATION
from hames.delegation.spec import TaskSpec
from hames.kernel import plugin
from hames.profiles import profile
from hames.prompts import PROMPTS
from hames.store import STATE
from hames.tools import TOOLS


def tools_of(host) -> set[str]:
    return set(host.get(TOOLS).registry.view(host.root_scope))


async def test_the_tool_of_a_runner_comes_and_goes_with_it(opened, tmp_path):
    layer = tmp_path / "rows.yaml"
    layer.write_text("- {id: dry, use: hames.delegation.tool, config: {name: dry_run, runner: sample}}\n")
    async with opened(layer) as host:
        assert "delegate" in tools_of(host) and "dry_run" not in tools_of(host)
        from hames.testing.sample import SampleConfig, sample_runner

        for _ in range(2):
            mount = host.ctx.mount(sample_runner, SampleConfig())
            await mount.ready()
            assert "dry_run" in tools_of(host)
            await mount.stop()
            assert "dry_run" not in tools_of(host) and "delegate" in tools_of(host)


async def test_a_failing_observer_keeps_no_tool_whose_runner_has_gone(opened, tmp_path):
    layer = tmp_path / "rows.yaml"
    layer.write_text("- {id: dry, use: hames.delegation.tool, config: {name: dry_run, runner: sample}}\n")
    async with opened(layer) as host:
        from hames.testing.sample import SampleConfig, sample_runner

        registry = host.get(DELEGATION).runners.registry

        @plugin()
        def observer(ctx, config):
            def fails(name):
                raise RuntimeError("it cannot hear that")

            registry.watch(ctx, lambda name, made: None, fails)

        await host.ctx.mount(observer).ready()
        mount = host.ctx.mount(sample_runner, SampleConfig())
        await mount.ready()
        await mount.stop()
        assert "dry_run" not in tools_of(host)


async def test_a_runner_says_whether_a_child_begins_with_the_conversation(host):
    runners = host.get(DELEGATION).runners
    assert {name: runners.choose(host.root_scope, name).hands_on for name in ("spawn", "fork")} == {"spawn": False, "fork": True}
    said = host.get(TOOLS).registry.get(host.root_scope, "delegate").description
    assert "sees nothing of this" in said and "before this turn" not in said


async def test_the_tool_of_a_fork_says_what_the_child_sees(opened, tmp_path):
    layer = tmp_path / "rows.yaml"
    layer.write_text("- {id: delegate, set: {config: {runner: fork}}}\n")
    async with opened(layer) as host:
        assert "before this turn" in host.get(TOOLS).registry.get(host.root_scope, "delegate").description


async def test_a_child_is_shown_the_persona_of_the_deployment(opened, wired, tmp_path):
    layer = tmp_path / "rows.yaml"
    layer.write_text("- {id: prompts, set: {config: {persona: 'You tend the garden at {{cwd}}.'}}}\n")
    async with opened(layer) as host:
        tasks, agents = host.get(DELEGATION).tasks, host.get(AGENTS)
        lead = await agents.create(AgentSpec(str(tmp_path), "openai:steps=0"))
        await lead.run("hello")
        await tasks.run(TaskSpec("look"), tasks.origin(lead))
        first, second = (json.loads(each.body)["messages"][0] for each in wired.received)
        persona = f"You tend the garden at {tmp_path}."
        assert first["role"] == second["role"] == "system" and persona in first["content"] and persona in second["content"]
        await agents.dispose(lead)


async def test_identity_and_persona_have_their_places_before_everything_else(host):
    entries = host.get(PROMPTS).sections.entries(host.root_scope)
    assert (entries["identity"].order, entries["persona"].order) == (-100, 0)


@pytest.mark.parametrize("row", ["prompts", "loop", "agents", "delegate", "delegation", "spawn"])
async def test_the_persona_is_a_checked_setting_of_the_prompts_alone(tmp_path, row):
    layer = tmp_path / "rows.yaml"
    layer.write_text(f"- {{id: {row}, set: {{config: {{persona: 5}}}}}}\n")
    with pytest.raises(HamesError) as caught:
        async with running([profile("standard"), layer], {STATE: tmp_path / "state"}):
            pass
    assert "persona" in caught.value.message or "takes no config" in caught.value.message


def test_nobody_makes_an_agent_or_a_task_with_a_prompt_of_its_own():
    for spec in (AgentSpec, TaskSpec):
        assert not [name for name in spec.__slots__ if "system" in name or "persona" in name]


def test_the_personas_that_are_shipped_speak_of_no_face():
    for path in profile("standard").parent.glob("*.yaml"):
        persona = path.read_text().partition("persona: |")[2].partition("\n- {")[0].lower()
        assert not [word for word in ("terminal", "command line", "browser", "acp", "editor") if word in persona]
