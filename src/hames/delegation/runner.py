"""Who executes tasks: the port that every runner stands behind, and the registry of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hames.budget import Meter, Place
from hames.delegation.failures import Refused
from hames.delegation.outcome import Level, Outcome
from hames.delegation.records import Waiting
from hames.delegation.role import Role
from hames.delegation.spec import NEEDS_ENFORCED, TaskSpec
from hames.kernel import Mask, Scope
from hames.models import Settings
from hames.policy import Mode as Permission

if TYPE_CHECKING:
    from hames.agents import Agent


class Signal:
    """One of the two ways in which a runner hears that its work is to end: it listens here.

    :ivar cause: why; empty while nobody wants it.
    """

    __slots__ = ("_heard", "cause")

    def __init__(self) -> None:
        self.cause = ""
        self._heard: list[Callable[[str], None]] = []

    def listen(self, heard: Callable[[str], None]) -> Callable[[], None]:
        """Be told the cause, at once where there is one already; the returned function takes the listener away."""
        if self.cause:
            heard(self.cause)
            return lambda: None
        self._heard.append(heard)

        def withdraw() -> None:
            if heard in self._heard:
                self._heard.remove(heard)

        return withdraw

    def fire(self, cause: str) -> list[Exception]:
        """Say that it is to end; the first cause is kept. What goes wrong with one who listens keeps it from nobody else."""
        failed: list[Exception] = []
        if not self.cause:
            self.cause = cause
            heard, self._heard = self._heard, []
            for each in heard:
                try:
                    each(cause)
                except Exception as error:
                    failed.append(error)
        return failed

    @property
    def listeners(self) -> int:
        return len(self._heard)


@dataclass(frozen=True, slots=True)
class Origin:
    """Whoever starts a task, as it was at that moment: what changes later changes nothing for the task.

    :param agent: None where no agent started it.
    :param scope: what is asked and told goes there.
    :param home: the scope that a child's own is opened in; None for that of its directory.
    :param session: that of the agent; empty for none.
    :param task: the task that the agent itself works for; empty for a user's own.
    :param depth: of that task; 0 for a user's own.
    :param permission: the widest mode that may be handed down.
    :param grant: the masks that bind all that is handed down.
    :param meter: what is spent counts there; None where nothing above limits it.
    """

    scope: Scope
    cwd: str
    agent: Agent | None = None
    home: Scope | None = None
    session: str = ""
    call: str = ""
    task: str = ""
    root: str = ""
    depth: int = 0
    model: str = ""
    settings: Settings = Settings()
    permission: Permission = "full"
    grant: tuple[Mask, ...] = ()
    place: Place = Place()
    meter: Meter | None = None


def nothing(*args: Any) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class Launch:
    """All that a runner gets for one attempt.

    :param spec: resolved: runner, model, directory and permission are named.
    :param depth: how deep the task stands, from 1.
    :param grant: the masks that the task sees through.
    :param signal: says when it is to end.
    :param touch: to be called whenever something happens: a task without that is idle.
    :param waits: to be called when it begins to wait for something that is not its own work; with ``""`` when it does not any more.
    :param say: tells people how far it is.
    :param role: who does it; its tools, permission and model stand in the task already.
    :param resume: the conversation that it goes on with, as the runner named it; empty for a new one.
    :param accept: to be called once what it was given is kept, whatever comes.
    :param owed: what a conversation has started and not been told the end of: each is done when it has been.
    """

    task: str
    attempt: int
    spec: TaskSpec
    origin: Origin
    depth: int
    permission: Permission
    grant: tuple[Mask, ...]
    meter: Meter
    place: Place
    signal: Signal
    touch: Callable[[], None] = nothing
    waits: Callable[[Waiting], None] = nothing
    say: Callable[[str], None] = nothing
    role: Role | None = None
    resume: str = ""
    accept: Callable[[], None] = nothing
    owed: Callable[[str], set[asyncio.Task[Any]]] = lambda session: set()


class Work(Protocol):
    """One attempt under way.

    :ivar native: the name of its conversation; empty where there is none.
    """

    @property
    def native(self) -> str: ...

    async def result(self) -> Outcome:
        """How it ended; awaited once. Raises only where the runner itself broke: what the child does wrong is an outcome."""
        ...

    def cancel(self, cause: str) -> None:
        """Ask it to end; the other way beside the signal. Returns at once; calling it again changes nothing."""
        ...

    async def dispose(self) -> None:
        """End all that is left of it and give everything back. When this returns, nothing of it runs."""
        ...


@runtime_checkable
class Conversation(Work, Protocol):
    """Work that may be spoken to while it runs; what a runner gives whose tasks are continuable."""

    async def say(self, text: str) -> bool:
        """Let a message wait for its turn, in the order in which they come. False if it is over already; else the message is kept.

        :raises StorageError: if it cannot be kept.
        """
        ...

    def interrupt(self) -> bool:
        """End what it does now; what waits stays until it is spoken to again. False where it does nothing of its own."""
        ...


class Runner(Protocol):
    """Executes tasks of one kind.

    :ivar version: pinned with each attempt.
    :ivar digest: of what it executes: an executable, or a composition.
    :ivar capabilities: for each option whether it is ``enforced``, only ``requested``, or ``unsupported``, as one that is not named.
    :ivar keeps_idle: whether it ends a task that is idle by itself.
    :ivar hands_on: whether a task begins with the conversation of whoever starts it.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def digest(self) -> str: ...

    @property
    def capabilities(self) -> Mapping[str, Level]: ...

    @property
    def keeps_idle(self) -> bool: ...

    @property
    def hands_on(self) -> bool: ...

    def check(self, spec: TaskSpec, origin: Origin) -> TaskSpec:
        """The task with what this runner resolves, before anything starts.

        :raises HamesError: if it cannot be done as it is described.
        """
        ...

    async def start(self, launch: Launch) -> Work:
        """Begin. What it did before it raises is undone when it raises; after it has returned, the work is the caller's to end."""
        ...


def obtained(spec: TaskSpec, runner: Runner, inherited: Set[str] = frozenset()) -> dict[str, Level]:
    """What a runner gives of each option that is asked for.

    :param inherited: options that are not asked for and bind all the same.
    :raises Refused: ``OPTION_UNSUPPORTED``, with all that is not given.
    """
    asked = sorted(spec.asked() | inherited)
    levels: dict[str, Level] = {option: runner.capabilities.get(option, "unsupported") for option in asked}
    bad = [f"{option} is not supported" for option, level in levels.items() if level == "unsupported"]
    bad += [
        f"{option} is asked for and not enforced"
        for option, level in levels.items()
        if level == "requested" and option in NEEDS_ENFORCED and spec.assurance == "enforced"
    ]
    if bad:
        remedy = "leave it out, or name another runner"
        if any("not enforced" in each for each in bad):
            remedy += "; a role with 'assurance: requested' accepts what is not enforced"
        raise Refused("OPTION_UNSUPPORTED", f"runner {runner.name}: {'; '.join(bad)}", remedy=remedy)
    return levels
