"""Stores on a state directory of the test, each as another process would open it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from hames.sessions import Sessions
from hames.store import Store
from hames.testing.clock import FakeClock

Opener = Callable[[], Awaitable[Sessions]]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def reopen(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Opener]:
    """Closes the store that is open, with the lock of its owner, and opens it anew: what a crash and a start leave."""
    stores: list[Store] = []

    async def close() -> None:
        while stores:
            await stores.pop().close()

    async def open() -> Sessions:
        await close()
        stores.append(Store(tmp_path / "state"))
        return Sessions(stores[0], clock)

    yield open
    await close()
    assert list((tmp_path / "state" / "owners").iterdir()) == []
    left = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            left.append(str(entry.readlink()))
        except FileNotFoundError:  # the listing itself
            continue
    assert not [target for target in left if target.startswith(str(tmp_path))]


@pytest.fixture
async def sessions(reopen: Opener) -> Sessions:
    return await reopen()
