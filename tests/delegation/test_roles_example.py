"""The example of an implementation agent that is kept does what its page says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from hames.agents import AGENTS, AgentSpec
from hames.compose import running
from hames.delegation import DELEGATION
from hames.profiles import profile
from hames.store import STATE
from hames.tools import TOOLS
from hames.trust import TRUST

EXAMPLE = Path(__file__).parents[2] / "examples" / "roles"


async def test_the_page_is_followed_from_the_first_round_to_the_purge(tmp_path, monkeypatch, script, calling, wired):
    monkeypatch.setenv("HAMES_HOME", str(tmp_path / "home"))
    work = tmp_path / "work"
    for name, place in (("implement_cont.md", "roles"), ("team.yaml", "presets")):
        (work / ".hames" / place).mkdir(parents=True)
        shutil.copy(EXAMPLE / name, work / ".hames" / place)
    report = 'steps=9;tool=structured_output;args={"outcome":"done","result":"the parser is there"}'
    preset = work / ".hames" / "presets" / "team.yaml"
    preset.write_text(preset.read_text().replace("{background_mode", f"{{model: 'openai:{report}', background_mode"))
    lead_model = script(
        calling(("implement_cont", {"description": "first round", "prompt": "write the parser"})),
        {"text": "it works on it"},
        {"text": "it has come to rest"},
        {"text": "and again"},
    )
    async with running([profile("standard")], {STATE: tmp_path / "state"}) as host:
        trust = host.get(TRUST)
        trust.decide(trust.status(work), True)
        agent = await host.get(AGENTS).create(AgentSpec(str(work), lead_model, preset="team"))
        assert "implement_cont" in host.get(TOOLS).registry.view(agent.scope)
        service = host.get(DELEGATION)
        await agent.run("build it")
        await service.rest(agent)
        (record,) = service.tasks.ledger.below(agent.id)
        assert record.spec.mode == "continuable" and record.spec.role == "implement_cont"
        sent = await service.conversations.send(record.thread, "polish it", service.tasks.origin(agent))
        assert sent.thread == record.thread
        await service.rest(agent)
        assert [entry.turns for entry in service.conversations.list(agent.id)] == [2]
        assert await service.conversations.purge(record.thread) > 0
        await host.get(AGENTS).dispose(agent)


def test_the_role_has_the_tools_that_the_page_says():
    (line,) = re.findall(r"^tools: \[(.*)\]$", (EXAMPLE / "implement_cont.md").read_text(), re.MULTILINE)
    assert len(line.split(",")) == 17
