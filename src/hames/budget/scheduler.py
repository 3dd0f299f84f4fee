"""The one scheduler of a host: how many requests of each provider run at a time, and whose turn it is.

A slot is held for a model stream or for a process of somebody else, and never while something waits for its children, for a person or
for a worktree: so children cannot keep each other from ending. Whoever waits is served lane by lane (a lane is a conversation of a user
with all that was delegated from it), and within a lane by priority, then depth first: what has begun ends before more begins.

How many run at a time follows what the provider can take: half as many after it said that it was asked too often, one more after each
round in which all went well, up to what is configured (additive increase, multiplicative decrease).
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, NamedTuple

from pydantic import Field, PositiveInt

from hames.compose.config import RowConfig
from hames.kernel import Context, Key, plugin

DEFAULT = 16


class Place(NamedTuple):
    """Where somebody stands among those who wait.

    :param lane: the conversation of a user that all of it belongs to.
    :param priority: the larger is served first, in its lane.
    :param rank: the place in the tree of what was delegated: first those that began first, and a child right after its parent.
    """

    lane: str = ""
    priority: int = 0
    rank: tuple[int, ...] = ()


class Concurrency(NamedTuple):
    """How many requests of one provider may run at a time, and why so many."""

    provider: str
    now: int
    most: int
    running: int
    waiting: int
    why: str


class _Provider:
    """The slots of one provider."""

    def __init__(self, name: str, most: int, why: str) -> None:
        self.name = name
        self.most = most
        self.why = why
        self.now = float(most)
        self.running = 0
        self.cut = 0  # requests that had begun when it was asked too often, and say nothing new
        self.begun = 0
        self.lanes: OrderedDict[str, list[tuple[int, tuple[int, ...], int, asyncio.Future[int]]]] = OrderedDict()
        self.count = 0

    @property
    def waiting(self) -> int:
        return sum(not each[3].done() for lane in self.lanes.values() for each in lane)

    def free(self) -> bool:
        return self.running < int(self.now)

    def wake(self) -> None:
        """Give free slots to those who wait, lane after lane."""
        while self.lanes and self.free():
            lane, heap = next(iter(self.lanes.items()))
            self.lanes.move_to_end(lane)
            while heap and heap[0][3].done():
                heapq.heappop(heap)
            if heap:
                self._take()
                heapq.heappop(heap)[3].set_result(self.begun)
            if not heap:
                del self.lanes[lane]

    def _take(self) -> None:
        self.running += 1
        self.begun += 1

    async def acquire(self, place: Place, waits: Callable[[], AbstractContextManager[Any]]) -> int:
        """Wait for a slot, and say the how-manieth request it is for."""
        if not self.lanes and self.free():
            self._take()
            return self.begun
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.count += 1
        heapq.heappush(self.lanes.setdefault(place.lane, []), (-place.priority, place.rank, self.count, future))
        try:
            with waits():
                return await future
        except BaseException:
            if future.done() and not future.cancelled():
                self.release()
            else:
                future.cancel()
            raise

    def release(self) -> None:
        self.running -= 1
        self.wake()

    def refused(self, number: int) -> None:
        """It was asked too often; those who began before the last time that this was heard say nothing new."""
        if number > self.cut:
            self.now = max(1.0, self.now / 2)
            self.cut = self.begun

    def served(self) -> None:
        if self.now < self.most:
            self.now = min(float(self.most), self.now + 1 / self.now)
            self.wake()


class Scheduler:
    """Slots of providers.

    :param providers: how many at a time, of providers that differ.
    """

    def __init__(self, default: int = DEFAULT, providers: Mapping[str, int] | None = None, why: str = "the default") -> None:
        self._default = default
        self._given = dict(providers or {})
        self._why = why
        self._providers: dict[str, _Provider] = {}

    def _of(self, name: str) -> _Provider:
        found = self._providers.get(name)
        if found is None:
            given = self._given.get(name)
            why = self._why if given is None else f"configured for {name} in the row scheduler"
            found = self._providers[name] = _Provider(name, self._default if given is None else given, why)
        return found

    @asynccontextmanager
    async def slot(
        self, provider: str, place: Place, waits: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> AsyncGenerator[Callable[[bool], None]]:
        """Hold a slot. What is yielded takes how it went: False where the provider said that it was asked too often.

        :param waits: makes a context that is held while there is none.
        """
        slots = self._of(provider)
        number = await slots.acquire(place, waits)

        def went(well: bool) -> None:
            if well:
                slots.served()
            else:
                slots.refused(number)

        try:
            yield went
        finally:
            slots.release()

    def of(self, provider: str) -> Concurrency:
        """How it is with a provider."""
        each = self._of(provider)
        why = each.why if each.now >= each.most else f"{each.name} said that it is asked too often; {each.most} is {each.why}"
        return Concurrency(each.name, int(each.now), each.most, each.running, each.waiting, why)

    def state(self) -> list[Concurrency]:
        """How it is with each provider that was asked."""
        return [self.of(name) for name in self._providers]


SCHEDULER: Key[Scheduler] = Key("scheduler")


class SchedulerConfig(RowConfig):
    """How many requests run at a time."""

    concurrency: int = Field(default=DEFAULT, gt=0)
    """Requests of one provider at a time, at most; fewer where it says that it is asked too often."""
    providers: dict[str, PositiveInt] = {}
    """The same for single providers, by their names."""


@plugin(config=SchedulerConfig, name="scheduler")
def scheduler(ctx: Context, config: SchedulerConfig) -> None:
    """Provide the scheduler of the host."""
    why = "configured in the row scheduler" if "concurrency" in config.model_fields_set else "the default of the row scheduler"
    ctx.provide(SCHEDULER, Scheduler(config.concurrency, config.providers, why))
