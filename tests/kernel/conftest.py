"""A host that has to leave nothing behind."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from hames.kernel import Host


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host(grace=0.05)
    yield host
    await host.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not host.moving
    assert not host.interested
    assert not host.root.children
    assert not host.root.effects
    assert not host.root_scope.mounts
    assert not host.root_scope.provisions
    assert not host.root_scope.children
    assert not host.root_scope.listener_count
