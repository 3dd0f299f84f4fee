"""Who owns what of the system prompt."""

from __future__ import annotations

import json

import pytest

from hames.agents import AgentSpec
from hames.content.errors import ConfigError
from hames.kernel import plugin
from hames.prompts import PROMPTS, Assemble, Facts


def system_of(received):
    body = json.loads(received.body)
    if "system" in body:
        return body["system"][0]["text"]
    return next((message["content"] for message in body["messages"] if message["role"] == "system"), None)


async def test_replacing_the_loop_keeps_identity_and_persona_and_takes_its_variables_away(host, tmp_path):
    prompts = host.get(PROMPTS)

    @plugin()
    def nothing(ctx, config):
        pass

    await host.root.children["loop"].replace(nothing)
    assert host.get(PROMPTS) is prompts
    assert list(prompts.sections.view(host.root_scope)) == ["identity", "persona"]
    assert not prompts.variables.view(host.root_scope)
    with pytest.raises(ConfigError, match=r"\{\{cwd\}\} is not defined"):
        await prompts.assemble(host.ctx, Facts(host.root_scope, "m", "/x"))


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_plugin_that_states_the_model_late_has_it_right(host, agents, wired, tmp_path, provider):
    async def late(call, proceed):
        assembly = await proceed()
        assembly.variables["model"] = "another-model"
        return assembly

    host.get(PROMPTS).section(host.ctx, "say", "You are {{model}}.", order=50)
    host.ctx.on(Assemble, late)
    agent = await agents.create(AgentSpec(str(tmp_path), f"{provider}:text=hello"))
    assert (await agent.run("hi")).reason == "completed"
    assert system_of(wired.received[-1]).endswith("You are another-model.")


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_an_emptied_assembly_sends_no_system_field(host, agents, wired, tmp_path, provider):
    async def empty(call, proceed):
        assembly = await proceed()
        assembly.sections.clear()
        return assembly

    host.ctx.on(Assemble, empty)
    agent = await agents.create(AgentSpec(str(tmp_path), f"{provider}:text=hello"))
    assert (await agent.run("hi")).reason == "completed"
    body = json.loads(wired.received[-1].body)
    assert "system" not in body and all(message["role"] != "system" for message in body["messages"])


async def test_the_prompt_says_where_the_agent_works(host, agents, wired, tmp_path):
    agent = await agents.create(AgentSpec(str(tmp_path), "openai:text=hello"))
    await agent.run("hi")
    assert f"in the repository at {tmp_path}" in system_of(wired.received[-1])
