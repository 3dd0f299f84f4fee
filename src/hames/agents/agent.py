"""The handle of one agent: how it is spoken to, cancelled, awaited and closed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hames.agents.context import ContextMeter
from hames.agents.events import TurnEnded
from hames.agents.inbox import Inbox
from hames.agents.turn import TurnEnd
from hames.budget import Limits, Meter, Place
from hames.content.clock import Clock
from hames.content.errors import HamesError, KernelError, StorageError
from hames.content.jsontext import dumps
from hames.content.messages import Message, user
from hames.content.request import ToolSpec
from hames.kernel import Context, Mask, Scope
from hames.models import Model, Models, Settings
from hames.models.port import RequestEncoder
from hames.policy import Mode, narrowest
from hames.sessions import Session
from hames.sessions.history import Target

if TYPE_CHECKING:
    from hames.agents.loop import Loop
    from hames.agents.watch import Watch

Status = Literal["idle", "running", "closed"]
Waits = Literal["slot", "user", "child"]


class Agent:
    """An agent.

    :ivar id: that of its session.
    :ivar memory: what tools remember between calls.
    :ivar last: how the last turn ended.
    :ivar root: the state directory.
    :ivar chosen_model: the reference of the model that was chosen for it.
    :ivar turn_model: that of another one, for the rest of a turn; empty for none.
    :ivar compact_next: shorten the past before the next request.
    :ivar grant: what it may hand down: a child sees what all of these masks let through, and nothing wider.
    :ivar place: where it stands among those who wait for a model.
    :ivar whole: what its turns spend is a part of this; None where nothing is above them.
    :ivar meter: that of the running turn.
    :ivar watch: that of the running turn.
    :ivar waits: what it waits for now.
    :ivar heard_waits: called when that has changed.
    """

    __slots__ = (
        "_ceiling",
        "_closed",
        "_closing",
        "_driver",
        "_encoder",
        "_finishing",
        "_held",
        "_idle",
        "_last",
        "_loop",
        "_models",
        "_narrowed",
        "_overhead",
        "_shutdown",
        "_undos",
        "cause",
        "chosen_model",
        "clock",
        "compact_next",
        "context",
        "ctx",
        "cwd",
        "grant",
        "heard_waits",
        "inbox",
        "last",
        "limits",
        "memory",
        "meter",
        "place",
        "root",
        "scope",
        "session",
        "settings",
        "turn_model",
        "waits",
        "watch",
        "whole",
    )

    def __init__(
        self,
        ctx: Context,
        scope: Scope,
        session: Session,
        models: Callable[[], Models],
        loop: Callable[[], Loop],
        *,
        model: str,
        settings: Settings,
        limits: Limits,
        clock: Clock,
        ceiling: Mode,
        root: Path,
        grant: tuple[Mask, ...] = (),
        place: Place | None = None,
        whole: Meter | None = None,
    ) -> None:
        self.ctx = ctx
        self.scope = scope
        self.session = session
        self.chosen_model = model
        self.turn_model = ""
        self.settings = settings
        self.limits = limits
        self.clock = clock
        self.cwd = Path(session.cwd)
        self._ceiling: Mode = ceiling
        self._narrowed: dict[str, Mode] = {}
        self.root = root
        self.grant = grant
        self.place = Place(session.id) if place is None else place
        self.whole = whole
        self.meter: Meter | None = None
        self.watch: Watch | None = None
        self.waits: list[Waits] = []
        self.heard_waits: Callable[[], None] | None = None
        self.inbox = Inbox(session)
        self.context = ContextMeter()
        self.compact_next = False
        self.memory: dict[str, Any] = {}
        self.cause = ""
        self.last: TurnEnd | None = None
        self._models = models
        self._loop = loop
        self._encoder: tuple[Model, RequestEncoder] | None = None
        self._driver: asyncio.Task[None] | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._undos: list[Callable[[], Awaitable[None]]] = []
        self._last: list[Callable[[], Awaitable[None]]] = []
        self._overhead: tuple[object, object, int] = (None, None, 0)
        self._closing = False
        self._closed = False
        self._finishing = False
        self._held = False
        self._shutdown: asyncio.Task[None] | None = None

    @property
    def model_ref(self) -> str:
        """The reference of the model that the next request goes to."""
        return self.turn_model or self.chosen_model

    @model_ref.setter
    def model_ref(self, ref: str) -> None:
        self.chosen_model = ref

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def scratch(self) -> Path:
        """Its directory for temporary files: made when a command needs it, removed when the agent is closed."""
        return self.root.resolve() / "scratch" / self.id

    @property
    def status(self) -> Status:
        return "closed" if self._closed else "idle" if self._driver is None else "running"

    def model(self) -> tuple[Model, RequestEncoder]:
        """The model of the next request, and this conversation's encoder for it.

        :raises ModelReferenceError: if there is none of that name now.
        """
        if self._encoder is None or self._encoder[0].ref != self.model_ref:
            model = self._models().resolve(self.model_ref, self.scope)
            self._encoder = (model, model.encoder(self.session.picture))
        return self._encoder

    def overhead(self, system: str, tools: Sequence[ToolSpec]) -> int:
        """Characters of system prompt and tools, counted anew only when they change."""
        if self._overhead[0] is not tools or self._overhead[1] != system:
            size = len(system) + sum(len(tool.name) + len(tool.description) + len(dumps(tool.parameters)) for tool in tools)
            self._overhead = (tools, system, size)
        return self._overhead[2]

    @property
    def ceiling(self) -> Mode:
        """The widest permission mode that it may have now."""
        return narrowest(self._ceiling, *self._narrowed.values())

    def narrow(self, name: str, mode: Mode | None) -> None:
        """Hold it to a mode, under a name of the caller's, until that name is given None. Nothing here can widen."""
        if mode is None:
            self._narrowed.pop(name, None)
        else:
            self._narrowed[name] = mode

    @contextmanager
    def waiting(self, what: Waits) -> Generator[None]:
        """It waits for something that is not its own work: that is not idleness."""
        self.begin_wait(what)
        try:
            yield
        finally:
            self.end_wait(what)

    def begin_wait(self, what: Waits) -> None:
        self.waits.append(what)
        self._heard(True)

    def end_wait(self, what: Waits) -> None:
        if what in self.waits:
            self.waits.remove(what)
            self._heard(False)

    def _heard(self, began: bool) -> None:
        if self.watch is not None:
            self.watch.hold(began)
        if self.heard_waits is not None:
            self.heard_waits()

    def finish(self) -> None:
        """End with the running turn: nothing that is sent or waits makes another request. It stays in the session."""
        self._finishing = True

    def unfinish(self) -> None:
        """It may go on after all."""
        self._finishing = False

    @property
    def finishing(self) -> bool:
        return self._finishing or self._closing

    @property
    def held(self) -> bool:
        """Whether what waits is not begun before it is spoken to again."""
        return self._held

    def defer(self, undo: Callable[[], Awaitable[None]], *, last: bool = False) -> None:
        """Await something when the agent is closed, in reverse order, before its session is given back.

        :param last: when all else has ended, its scope too.
        """
        (self._last if last else self._undos).append(undo)

    # speaking

    def send(self, message: Message | str) -> None:
        """Give it a message for a turn of its own, and wake it."""
        self._put("turn", message)
        self.wake()

    def steer(self, message: Message | str) -> None:
        """Give it a message for its next step, and wake it."""
        self._put("step", message)
        self.wake()

    def _put(self, target: Target, message: Message | str) -> None:
        self._check()
        self._held = False
        at_once = self._driver is None and not len(self.inbox)
        self.inbox.put(target, user(message) if isinstance(message, str) else message, at_once=at_once)

    def inject(self, message: Message | str) -> None:
        """Give it a message for its next step, whenever that is."""
        self._check()
        self.inbox.put("step", user(message) if isinstance(message, str) else message)

    async def run(self, message: Message | str) -> TurnEnd:
        """Send a message and wait until the agent has nothing more to do; the outcome of its last turn."""
        self.send(message)
        await self.idle()
        assert self.last is not None
        return self.last

    async def idle(self) -> None:
        """Wait until it is not running."""
        while self._driver is not None:
            future = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future

    def cancel(self, cause: str = "user", *, keep_inbox: bool = False) -> None:
        """Ask the running turn to end; the first cause is kept. What it runs is cancelled and awaited. No effect when idle.

        :param keep_inbox: leave waiting messages for the next turn instead of dropping them.
        """
        if self._driver is None or self.cause:
            return
        self.cause = cause
        if not keep_inbox:
            self._safely(self.inbox.clear)
        self._driver.cancel()

    def interrupt(self, cause: str = "interrupted") -> None:
        """Ask the running turn to end, and begin none of what waits before it is spoken to again. No effect when idle."""
        if self._driver is not None:
            self._held = True
            self.cancel(cause, keep_inbox=True)

    async def close(self) -> None:
        """Cancel it, wait for it, give its session back and close its scope. What waits for it stays in the session.

        Whoever calls this again waits for the same; whoever stops waiting does not keep it from being done.
        """
        if self._shutdown is None:
            self._closing = True
            self._shutdown = asyncio.create_task(self._shut_down(), name=f"closing agent {self.id}")
        await asyncio.shield(self._shutdown)

    async def _shut_down(self) -> None:
        self.cancel("disposed", keep_inbox=True)
        await self.idle()
        self._closed = True
        self._safely(self.inbox.keep)
        await self._undo(self._undos)
        try:
            ticket = self.session.release()
            await self.session.barrier()
            await ticket
        except HamesError as error:
            self.ctx.host.contain(f"agent {self.id}", error)
        await self.scope.close()
        await asyncio.to_thread(shutil.rmtree, self.scratch, ignore_errors=True)
        await self._undo(self._last)

    async def _undo(self, undos: list[Callable[[], Awaitable[None]]]) -> None:
        while undos:
            try:
                await undos.pop()()
            except Exception as error:
                self.ctx.host.contain(f"closing agent {self.id}", error)

    def _safely(self, act: Callable[[], object]) -> None:
        """Do something with the inbox; a log that cannot be written any more is reported, and stops nothing."""
        try:
            act()
        except StorageError as error:
            self.ctx.host.contain(f"agent {self.id}", error)

    def _check(self) -> None:
        if self._closing:
            raise KernelError(f"agent {self.id} is closed", code="AGENT_CLOSED")

    # driving

    def wake(self) -> None:
        """Start the driver, if there is anything to do and it is not running."""
        if self._driver is None and len(self.inbox) and not self._finishing and not self._held:
            self._driver = asyncio.create_task(self._drive(), name=f"agent {self.id}")
            self._driver.add_done_callback(self._never_began)

    def _never_began(self, task: asyncio.Task[None]) -> None:
        """A driver that was cancelled before its first step has not cleaned up."""
        if self._driver is task:
            self.last = TurnEnd("aborted", detail=self.cause or "the event loop ended")
            self.cause = ""
            self._at_rest()
            if not self._closing:
                self.wake()

    def _at_rest(self) -> None:
        self._driver = None
        self.cause = ""
        waiters, self._idle = self._idle, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    async def _drive(self) -> None:
        """Turn after turn until the inbox is empty. A turn that fails ends as such; it ends nothing else."""
        task = asyncio.current_task()
        assert task is not None
        outer: asyncio.CancelledError | None = None
        try:
            while len(self.inbox) and outer is None and not self.finishing and not self._held:
                taken = self.inbox.taken
                try:
                    self.last = await self._loop().turn(self)
                except asyncio.CancelledError as error:
                    outer = error  # not asked for here: the event loop itself is ending
                    self.last = TurnEnd("aborted", detail="the event loop ended")
                except Exception as error:
                    self.ctx.host.contain(f"agent {self.id}", error)
                    code, remedy = (error.code, error.remedy) if isinstance(error, HamesError) else ("INTERNAL", "")
                    self.last = TurnEnd("error", detail=f"{code}: {error}", code=code, remedy=remedy)
                if self.inbox.taken == taken and not self._held:
                    self._safely(self.inbox.postpone)
                while self.cause and task.cancelling():
                    task.uncancel()
                self.cause = ""
                self.ctx.emit(TurnEnded(self.id, self.last), at=self.scope)
        finally:
            self._at_rest()
        if outer is not None:
            raise outer
