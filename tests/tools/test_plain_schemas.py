"""The schemas that are made without pydantic are those that pydantic makes."""

from __future__ import annotations

import json

from hames.kernel import Host
from hames.tools import TOOLS
from hames.tools.tool import trimmed


async def test_every_schema_is_that_of_its_model(host: Host) -> None:
    tools = host.get(TOOLS)
    assert tools is not None
    view = tools.registry.view(host.root_scope)
    assert len(view) > 15
    made = [tool for tool in view.values() if tool.model is not None]
    assert [tool.name for tool in view.values() if tool.model is None] == ["delegate"]  # its parameters are given as a schema
    for tool in made:
        assert tool.model is not None
        assert json.dumps(tool.parameters) == json.dumps(trimmed(tool.model.model_json_schema())), tool.name
