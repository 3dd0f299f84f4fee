"""Sections and variables."""

from __future__ import annotations

import pytest

from hames.content.errors import ConfigError
from hames.kernel import Host
from hames.prompts import Facts, Prompts


@pytest.fixture
async def host():
    async with Host() as host:
        yield host


def facts(host):
    return Facts(host.root_scope, "m", "/x")


async def test_sections_are_ordered_and_empty_ones_left_out(host):
    prompts = Prompts()
    prompts.section(host.ctx, "late", "late", order=100)
    prompts.section(host.ctx, "nothing", "  ", order=5)
    prompts.section(host.ctx, "absent", lambda facts: None, order=6)
    prompts.section(host.ctx, "early", "early", order=-100)
    assert await prompts.assemble(host.ctx, facts(host)) == "early\n\nlate"


async def test_a_value_is_not_looked_at_again(host):
    prompts = Prompts()
    prompts.section(host.ctx, "a", "{{ one }}", order=0)
    prompts.variable(host.ctx, "one", lambda facts: "{{two}}")
    assert await prompts.assemble(host.ctx, facts(host)) == "{{two}}"


@pytest.mark.parametrize(
    ("text", "why"),
    [("{{nobody}}", "is not defined"), ("{{empty}}", "has no value"), ("{{Not A Name}}", "is malformed"), ("{{}}", "is malformed")],
)
async def test_a_variable_that_says_nothing_is_an_error(host, text, why):
    prompts = Prompts()
    prompts.section(host.ctx, "a", text, order=0)
    prompts.variable(host.ctx, "empty", lambda facts: None)
    with pytest.raises(ConfigError, match=why):
        await prompts.assemble(host.ctx, facts(host))


async def test_a_variable_needs_a_plain_name(host):
    with pytest.raises(ConfigError, match="no name of a prompt variable"):
        Prompts().variable(host.ctx, "Model", lambda facts: "x")
