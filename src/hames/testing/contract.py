"""What every runner has to keep, as checks that a test of yours can run.

::

    async def test_my_runner_keeps_the_contract(host):
        launches = {
            "quick": lambda: launch(host, TaskSpec("say hello")),     # a task that completes
            "endless": lambda: launch(host, TaskSpec("wait")),        # one that runs until it is cancelled
            "schema": lambda: launch(host, TaskSpec("count", schema=SCHEMA)),  # left out where schemas are not supported
        }
        assert await broken_promises(MyRunner(), launches) == []

Each way of cancelling is tried by itself: Hames uses both, and a runner may be used by something that uses one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from hames.budget import Limits, Meter, Place
from hames.content.errors import HamesError
from hames.content.schema import violations
from hames.delegation.failures import FAILURES
from hames.delegation.outcome import DIAGNOSTIC, Level, Outcome, Status
from hames.delegation.runner import Launch, Origin, Runner, Signal, Work
from hames.delegation.spec import TaskSpec
from hames.kernel import Host

T = TypeVar("T")
Make = Callable[[], Launch]
Check = Callable[[], Coroutine[Any, Any, None]]
PATIENCE = 10.0
"""Seconds that a runner has to begin, to heed a cancellation, and to give back what it holds."""
MOMENT = 0.1
"""Seconds that the endless task is looked at."""


def launch(host: Host, spec: TaskSpec, origin: Origin | None = None) -> Launch:
    """A launch as Hames would make it, for the directory of this process where nobody starts it."""
    origin = origin or Origin(host.root_scope, str(Path.cwd()))
    spec = replace(spec, directory=spec.directory or origin.cwd, permission=spec.permission or origin.permission)
    meter = Meter(spec.budget, origin.meter)
    return Launch("t0", 1, spec, origin, origin.depth + 1, origin.permission, origin.grant, meter, Place("contract"), Signal())


class Broken(AssertionError):
    """A promise is not kept."""


class FilesLeft(Broken):
    """Files are open that were not before."""


async def broken_promises(runner: Runner, launches: Mapping[str, Make], *, patience: float = PATIENCE) -> list[str]:
    """The promises that a runner does not keep, in words; none where it keeps all.

    :param launches: make a launch each time they are called: ``quick`` and ``endless``, and ``schema`` where schemas are supported.
    """
    contract = Contract(runner, launches, patience)
    found: list[str] = []
    with suppress(Broken):
        await contract.a_task_completes_with_words()  # what is opened once, and stays, is open now
    for check in contract.checks():
        name = getattr(check, "__name__", "a promise").replace("_", " ")
        for again in (True, False):
            try:
                async with contract.nothing_left():
                    await check()
            except FilesLeft as error:
                if again:  # perhaps something of the host was opened meanwhile, once, and stays
                    continue
                found.append(f"{name}: {error}")
            except Broken as error:
                found.append(f"{name}: {error}")
            break
    return found


@dataclass(frozen=True, slots=True)
class Begun:
    """A task under way, with what waits for its result, once."""

    launch: Launch
    work: Work
    result: asyncio.Future[Outcome]


class Contract:
    """The checks. Each one's name is the promise."""

    def __init__(self, runner: Runner, launches: Mapping[str, Make], patience: float) -> None:
        self._runner = runner
        self._launches = launches
        self._patience = patience

    def checks(self) -> list[Check]:
        """What is looked at; the name of each is its promise."""
        every: list[Check] = [
            self.it_says_what_it_is_in_known_words,
            self.a_task_completes_with_words,
            self.the_signal_alone_ends_a_task,
            self.cancel_alone_ends_a_task,
            self.a_task_that_is_to_end_before_it_begins_does_not_run,
            self.giving_it_back_ends_what_runs,
            self.what_has_ended_takes_no_harm,
            self.whoever_stops_waiting_can_give_it_back,
            self.a_budget_that_is_spent_is_not_exceeded,
        ]
        return [*every, self.a_value_follows_its_schema] if "schema" in self._launches else every

    @asynccontextmanager
    async def nothing_left(self) -> AsyncGenerator[None]:
        tasks, children, files = asyncio.all_tasks(), children_of_this(), open_files()
        yield
        left, more = list[str](), set[int]()
        for _ in range(100):
            left = [task.get_name() for task in asyncio.all_tasks() - tasks if not task.done()]
            more = children_of_this() - children
            if not left and not more and open_files() <= files:
                return
            await asyncio.sleep(self._patience / 1000)
        if left or more:
            raise Broken(f"it leaves tasks {left}, processes {sorted(more)}")
        raise FilesLeft(f"it leaves {open_files() - files} open files")

    @asynccontextmanager
    async def _begun(self, kind: str, prepare: Callable[[Launch], Launch] = lambda made: made) -> AsyncGenerator[Begun]:
        """A task that has begun; given back at the end, whatever comes."""
        made = prepare(self._launches[kind]())
        work = await self._within(self._runner.start(made), "begin")
        begun = Begun(made, work, asyncio.ensure_future(work.result()))
        try:
            yield begun
        finally:
            await self._within(work.dispose(), "give back what it holds")
            begun.result.cancel()
            await asyncio.wait((begun.result,), timeout=self._patience)
            if not begun.result.cancelled():
                begun.result.exception()
        if made.signal.listeners:
            raise Broken("it still listens to the signal after it was given back")

    async def _within(self, coroutine: Coroutine[Any, Any, T], what: str) -> T:
        try:
            return await asyncio.wait_for(coroutine, self._patience)
        except TimeoutError:
            raise Broken(f"it does not {what} within {self._patience:g} s") from None

    async def _ended(self, begun: Begun) -> Outcome:
        done, _ = await asyncio.wait((begun.result,), timeout=self._patience)
        if not done:
            raise Broken(f"it does not end within {self._patience:g} s")
        outcome = begun.result.result()
        if outcome.status not in get_args(Status):
            raise Broken(f"it ends as {outcome.status!r}, which nobody knows")
        if outcome.code and outcome.code not in FAILURES:
            raise Broken(f"it ends with the code {outcome.code!r}, which nobody knows")
        if len(outcome.diagnostic.encode()) > DIAGNOSTIC:
            raise Broken(f"its diagnostic is longer than {DIAGNOSTIC} bytes")
        return outcome

    async def it_says_what_it_is_in_known_words(self) -> None:
        runner = self._runner
        if not runner.name or not runner.version:
            raise Broken("it has no name or no version")
        bad = {option: level for option, level in runner.capabilities.items() if level not in get_args(Level)}
        if bad:
            raise Broken(f"levels that nobody knows: {bad}")

    async def a_task_completes_with_words(self) -> None:
        async with self._begun("quick") as begun:
            outcome = await self._ended(begun)
            if not outcome.ok or not outcome.text.strip():
                raise Broken(f"it ends as {outcome.status} with {outcome.text!r} ({outcome.diagnostic})")

    async def the_signal_alone_ends_a_task(self) -> None:
        async with self._begun("endless") as begun:
            await self._runs(begun)
            begun.launch.signal.fire("user")
            self._not_completed(await self._ended(begun))

    async def cancel_alone_ends_a_task(self) -> None:
        async with self._begun("endless") as begun:
            await self._runs(begun)
            begun.work.cancel("user")
            begun.work.cancel("parent")
            self._not_completed(await self._ended(begun))

    async def a_task_that_is_to_end_before_it_begins_does_not_run(self) -> None:
        def ended(made: Launch) -> Launch:
            made.signal.fire("user")
            return made

        try:
            async with self._begun("endless", ended) as begun:
                self._not_completed(await self._ended(begun))
        except HamesError:  # it did not begin, which is as good
            return

    async def giving_it_back_ends_what_runs(self) -> None:
        async with self._begun("endless") as begun:
            await self._runs(begun)

    async def what_has_ended_takes_no_harm(self) -> None:
        async with self._begun("quick") as begun:
            outcome = await self._ended(begun)
            begun.work.cancel("user")
            begun.launch.signal.fire("user")
            await self._within(begun.work.dispose(), "give back what it holds")
            if begun.result.result() != outcome:
                raise Broken("its outcome has changed")

    async def whoever_stops_waiting_can_give_it_back(self) -> None:
        async with self._begun("endless") as begun:
            await self._runs(begun)
            begun.result.cancel()
            if not (await asyncio.wait((begun.result,), timeout=self._patience))[0]:
                raise Broken("it does not heed that nobody waits for it any more")

    async def a_budget_that_is_spent_is_not_exceeded(self) -> None:
        if self._runner.capabilities.get("steps") != "enforced":
            return
        meter = Meter(Limits(steps=1))
        meter.spend(None, lambda usage: 0.0)
        async with self._begun("quick", lambda made: replace(made, meter=meter)) as begun:
            outcome = await self._ended(begun)
            if outcome.status != "budget" or meter.steps > 1:
                raise Broken(f"it ends as {outcome.status} although nothing was left to spend")

    async def a_value_follows_its_schema(self) -> None:
        async with self._begun("schema") as begun:
            outcome = await self._ended(begun)
            if not outcome.ok or not outcome.schema_valid:
                raise Broken(f"it ends as {outcome.status} ({outcome.diagnostic})")
            if wrong := violations(outcome.value, begun.launch.spec.schema):
                raise Broken(f"its value does not follow the schema: {wrong[0]}")

    async def _runs(self, begun: Begun) -> None:
        """Give it a moment; it must not end by itself."""
        done, _ = await asyncio.wait((begun.result,), timeout=MOMENT)
        if done:
            raise Broken(f"the endless task ended by itself: {begun.result.result()}")

    def _not_completed(self, outcome: Outcome) -> None:
        if outcome.ok:
            raise Broken("it claims to have completed")


def children_of_this() -> set[int]:
    """The processes that this one has started and that live, by the word of the system."""
    found: set[int] = set()
    threads = Path("/proc/self/task")
    for thread in threads.iterdir() if threads.is_dir() else ():  # elsewhere nobody tells
        with suppress(OSError):  # a thread that has just ended
            found |= set(map(int, (thread / "children").read_text().split()))
    return found


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))
