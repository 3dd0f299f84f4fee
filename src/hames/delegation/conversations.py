"""Conversations that outlast a task: they take messages while they run, and go on with them when they do not.

A conversation is a thread of tasks. While one of them runs, a message waits in its inbox; when none does, a message is the next task, which
takes up the session where it was left. Whoever started the first task, and a person, may speak to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from hames.agents import AGENTS, Agent
from hames.content.errors import BusyError, HamesError, NotFoundError, StorageError
from hames.delegation.admission import LONGEST
from hames.delegation.failures import FAILURES, Refused
from hames.delegation.kept import Kept, kept_in, purged
from hames.delegation.notices import received
from hames.delegation.outcome import Outcome
from hames.delegation.records import NOT_TAKEN, TaskRecord
from hames.delegation.runner import Conversation, Origin
from hames.delegation.service import Onward, Tasks
from hames.delegation.task import Task
from hames.delegation.turns import Turns
from hames.kernel import Context
from hames.policy.port import WIDTH, narrowest
from hames.sessions.history import waiting
from hames.sessions.plugin import check_whole
from hames.tools import TOOLS

Judge = Callable[[Sequence[TaskRecord]], Awaitable[dict[str, Any]]]
ENDED = ("kept", "interrupted", "gone", "damaged")
Scope = Literal["children", "descendants"]


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that has been taken.

    :param task: the task that has it.
    :param waits: whether it waits for its turn in one that runs; else it began this one.
    """

    thread: str
    task: str
    waits: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """A conversation, or a task that runs, as it is now.

    :param status: ``running``, ``waiting``, ``stopping``; ``kept`` where it rests and can go on; ``interrupted`` where its process died;
        ``gone`` where its conversation was removed; ``damaged``.
    :param last: how its last task ended.
    :param depth: 1 for a child, 2 for a child of a child.
    :param turns: how often it was spoken to.
    :param tokens: of its context.
    :param cost: US dollars; None where nobody knows.
    :param disk: bytes that it takes.
    :param waiting: messages that wait in it.
    """

    id: str
    title: str
    role: str
    mode: str
    status: str
    last: str
    parent: str
    depth: int
    turns: int = 0
    tokens: int = 0
    cost: float | None = 0.0
    disk: int = 0
    waiting: int = 0
    session: str = ""
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in ("", None)}

    @property
    def line(self) -> str:
        """For a model, or a person."""
        last = f", last {self.last}" if self.last else ""
        role = f" [{self.role}]" if self.role else ""
        spent = "cost unknown" if self.cost is None else f"${self.cost:.4f}"
        waits = f", {self.waiting} messages wait" if self.waiting else ""
        problem = f": {self.problem}" if self.problem else ""
        size = f"{self.turns} turns, about {self.tokens} tokens of context, {spent}, {self.disk // 1024} KiB on disk"
        return f"{'  ' * (self.depth - 1)}{self.id}{role} {self.title}: {self.status}{last}{waits} ({size}){problem}"


class Conversations:
    """The conversations that tasks keep."""

    def __init__(self, ctx: Context, tasks: Tasks) -> None:
        self._ctx = ctx
        self._tasks = tasks
        self._kept = Kept(tasks.ledger, tasks.sessions)
        self._turns = Turns()

    async def send(self, name: str, text: str, origin: Origin, judge: Judge | None = None) -> Sent:
        """Give a message to a conversation. It is kept when this returns, and is not given twice where this raises.

        :param name: that of the conversation, or of one of its tasks.
        :param judge: says what else the task says that the message begins, or refuses it; asked once nothing runs any more.
        :raises Refused: if it was not taken: ``TASK_UNKNOWN UNAUTHORIZED NOT_CONTINUABLE CONVERSATION_GONE CONVERSATION_BUSY
            PERSISTENCE_UNAVAILABLE``, or what a task can be refused for.
        """
        thread = self.thread(name)
        first = thread[0]
        if origin.agent is not None and first.session != origin.session:
            raise Refused("UNAUTHORIZED", f"{first.id} was not started from this conversation", remedy="list_agents shows those that were")
        if first.spec.mode != "continuable":
            raise Refused("NOT_CONTINUABLE", f"task {first.id} kept no conversation", remedy="give the work anew, with what is known")
        if not text.strip():
            raise Refused("SPEC_INVALID", "the message is empty", remedy="say what is to be done")
        if len(text) > LONGEST:
            raise Refused("SPEC_INVALID", f"the message has {len(text)} characters", remedy=f"at most {LONGEST}; give the rest as files")
        try:
            async with self._turns.of(first.thread):
                return await self._waits(first.thread, text, origin) or await self._begins(first.thread, text, origin, judge)
        except StorageError as error:
            raise unkept(error) from None

    async def _waits(self, thread: str, text: str, origin: Origin) -> Sent | None:
        """Give it to the task that runs; None where none does."""
        while (live := self._live(thread)) is not None:
            await asyncio.shield(live.accepted)
            if origin.agent is not None and WIDTH[live.permission] > WIDTH[origin.permission]:
                said = f"{thread} works with {live.permission}, and you have {origin.permission} now"
                raise Refused("GRANT_EXCEEDED", said, remedy="wait until it rests, or interrupt it")
            work = live.work
            if isinstance(work, Conversation) and not live.cause and await work.say(text):
                return Sent(thread, live.id, waits=True)
            await live.outcome()
        return None

    async def _begins(self, thread: str, text: str, origin: Origin, judge: Judge | None) -> Sent:
        """Take the conversation up again, with the message as its next task."""
        tasks, records = self._tasks, self.thread(thread)
        if any(record.outcome is None for record in records):
            await tasks.recover()
            records = self.thread(thread)
        last = records[-1]
        if last.outcome is None:
            raise Refused("CONVERSATION_BUSY", f"another process works on task {last.id}", remedy=f"see 'hames task show {last.id}'")
        session, pinned = kept_in(records)
        if not session or purged(records) or not self._is_there(session):
            raise Refused("CONVERSATION_GONE", f"the conversation of {thread} is not there any more", remedy="give the work anew")
        more = {} if judge is None else await judge(records)
        first = records[0]  # what a later one was held to held for that one
        permission = narrowest(first.spec.permission or origin.permission, origin.permission)
        spec = replace(last.spec, prompt=text, tools=self._still(first, origin), permission=permission, after="", because="", missing=())
        try:
            task = await tasks.start(replace(spec, **more), origin, onward=Onward(thread, session, pinned))
        except BusyError as error:
            raise Refused("CONVERSATION_BUSY", error.message, remedy=error.remedy) from None
        await asyncio.shield(task.accepted)
        if not task.was_accepted:
            outcome = await task.outcome()
            with suppress(HamesError):
                await tasks.ledger.receive(task.id, NOT_TAKEN, {})
            if origin.agent is not None:
                await received(tasks, origin.agent, task.id)
            raise not_taken(task, outcome)
        return Sent(thread, task.id, waits=False)

    def interrupt(self, name: str, by: Agent | None) -> str:
        """End what a conversation does now; what waits in it stays until it is spoken to again, and what it has started goes on.

        :param by: whoever wants it; None for a person.
        :returns: what has been done, in words.
        :raises Refused: ``TASK_UNKNOWN``, or ``UNAUTHORIZED`` where it stands nowhere below.
        """
        first = self.thread(name)[0]
        live = self._live(first.thread)
        if by is not None and by.id not in self._above(first):
            raise Refused("UNAUTHORIZED", f"{first.id} does not stand below this conversation", remedy="list_agents shows those that do")
        if live is None:
            return f"{first.thread} was at rest"
        if isinstance(live.work, Conversation) and live.spec.mode == "continuable":
            if not live.work.interrupt():
                return f"{first.thread} rests and waits for what it has started; nothing of its own runs"
            return f"{first.thread} is interrupted; what waits in it stays until you send it a message"
        live.cancel("interrupted", "whoever started it interrupted it")
        return f"{first.thread} is being ended"

    def list(self, session: str, scope: Scope = "children") -> list[Entry]:
        """The conversations that a session has started, and the tasks that run for it, in the order of their beginning, each before what
        it has started itself."""
        found: list[Entry] = []
        known: set[str] = set()

        def add(session: str, parent: str, depth: int) -> None:
            for thread, records in self._of(session).items():
                if thread in known:  # damage can make one its own parent
                    continue
                known.add(thread)
                entry = self._entry(thread, records, parent, depth)
                if entry.mode == "continuable" or entry.status == "damaged" or entry.status not in ENDED:
                    found.append(entry)
                if scope == "descendants" and entry.session:
                    add(entry.session, thread, depth + 1)

        add(session, "", 1)
        return found

    async def purge(self, name: str) -> int:
        """Remove the conversation of a task for good; what is known of its tasks stays. How many bytes that were.

        :raises Refused: ``CONVERSATION_BUSY`` while it runs, ``CONVERSATION_GONE`` where there is none.
        """
        async with self._turns.of(self.thread(name)[0].thread):
            if any(record.outcome is None for record in self.thread(name)):
                await self._tasks.recover()
            return await self._kept.remove(name)

    # looking

    def thread(self, name: str) -> Sequence[TaskRecord]:
        """The tasks of a conversation, the oldest first.

        :param name: that of the conversation, or of one of its tasks.
        :raises Refused: ``TASK_UNKNOWN``.
        """
        return self._kept.thread(name)

    def _live(self, thread: str) -> Task | None:
        return next((task for task in self._tasks.live.values() if task.thread == thread), None)

    def _above(self, record: TaskRecord) -> set[str]:
        """The sessions that a conversation stands below."""
        ledger, found, known = self._tasks.ledger, {record.session}, set[str]()
        while record.parent and record.parent not in known and (above := ledger.get(record.parent)) is not None:
            known.add(record.parent)
            record = above
            found.add(record.session)
        return found

    def _of(self, session: str) -> dict[str, list[TaskRecord]]:
        ledger = self._tasks.ledger
        return {thread: ledger.thread(thread) for thread in dict.fromkeys(record.thread for record in ledger.below(session))}

    def _entry(self, thread: str, records: Sequence[TaskRecord], parent: str, depth: int) -> Entry:
        tasks, live = self._tasks, self._live(thread)
        first, last = records[0], records[-1]
        session, _ = kept_in(records)
        outcome = last.outcome
        costs = [record.outcome.cost for record in records if record.outcome is not None]
        entry = Entry(
            thread,
            first.spec.title,
            first.spec.role,
            first.spec.mode,
            "kept",
            outcome.status if outcome is not None else "",
            parent,
            depth,
            cost=None if None in costs else sum(each for each in costs if each is not None),
            session=session,
        )
        damaged = sorted({name for record in records for name in record.damaged})
        if damaged:
            return replace(entry, status="damaged", problem=f"the record of its {', '.join(damaged)} is damaged")
        if live is not None:
            entry = replace(entry, status="waiting" if live.state == "waiting" else "stopping" if live.state == "stopping" else "running")
        elif outcome is None or outcome.code == "HOST_DIED":
            entry = replace(entry, status="interrupted" if not tasks.ledger.store.owner.alive(last.owner) or outcome else "running")
        if purged(records):
            return replace(entry, status="gone")
        return self._weighed(entry) if session else entry

    def _weighed(self, entry: Entry) -> Entry:
        """With what its session says; one that cannot be read hides no other."""
        try:
            turns, tokens, _ = self._tasks.sessions.weight(entry.session)
            agent = self._ctx.use(AGENTS).live.get(entry.session)
            if agent is not None:
                waits = len(agent.inbox)
            else:
                events = self._tasks.sessions.read(entry.session)
                check_whole(entry.session, events)
                waits = len(waiting(events))
            return replace(entry, turns=turns, tokens=tokens, disk=self._kept.bytes_of(entry.session), waiting=waits)
        except NotFoundError:
            return replace(entry, status="gone" if entry.status in ENDED else entry.status)
        except HamesError as error:
            return replace(entry, status="damaged", problem=error.message)

    def _is_there(self, session: str) -> bool:
        try:
            self._tasks.sessions.cwd(session)
        except NotFoundError:
            return False
        return True

    def _still(self, record: TaskRecord, origin: Origin) -> tuple[str, ...] | None:
        """The tools of a task that are still there."""
        names, tools = record.spec.tools, self._ctx.host.get(TOOLS, origin.scope)
        if names is None or tools is None or names == ("none",):
            return names
        home = origin.home or origin.scope
        return tuple(name for name in names if tools.registry.known(home, name)) or names


def unkept(error: HamesError) -> Refused:
    """A message that could not be kept."""
    return Refused("PERSISTENCE_UNAVAILABLE", f"the message was not kept: {error.message}", remedy="see 'hames doctor'")


def not_taken(task: Task, outcome: Outcome) -> Refused:
    """Why a task that was to go on with a conversation has not begun."""
    match task.error:
        case StorageError():
            return unkept(task.error)
        case BusyError():
            return Refused("CONVERSATION_BUSY", task.error.message, remedy=task.error.remedy)
        case NotFoundError():
            return Refused("CONVERSATION_GONE", task.error.message, remedy="give the work anew")
        case _:
            code = outcome.code if outcome.code in FAILURES else "LAUNCH_FAILED"
            return Refused(code, f"the message was not taken: {outcome.diagnostic}", remedy=f"see 'hames task show {task.id}'")
