"""Calls of single tools, without a model."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from hames.agents.spill import spiller
from hames.kernel import Host
from hames.tools import Invocation


@pytest.fixture
async def invocation(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    async with Host() as host:
        yield Invocation("call", host.root_scope, work, {}, spiller(tmp_path / "spill", "session", "call"))


@pytest.fixture
def use(invocation):
    """Calls a tool with validated arguments."""

    async def run(tool, **arguments):
        model = tool.model.model_validate(arguments)
        values = {name: getattr(model, name) for name in tool.model.model_fields}
        if inspect.iscoroutinefunction(tool.body):
            return await tool.body(**values, call=invocation)
        return await asyncio.to_thread(tool.body, **values, call=invocation)

    return run
