"""One child at work: an agent of this process that works for a task."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from hames.agents import Agent, Agents, TurnBegan, TurnEnd, TurnEnded
from hames.content.errors import HamesError, KernelError, StorageError
from hames.content.finish import Usage
from hames.content.jsontext import dumps
from hames.content.messages import Message, Text
from hames.delegation.failures import Fault
from hames.delegation.outcome import Outcome, Status, UsageItem, bounded, failed
from hames.delegation.owing import rested
from hames.delegation.runner import Launch
from hames.delegation.structured import NUDGE, Capture
from hames.models import MODELS

INFRASTRUCTURE = frozenset({"cut", "malformed", "empty", "rate-limit", "overloaded", "server", "timeout", "transport", "auth", "not-found"})
"""Failures of a request that are not the child's."""


class Child:
    """One child at work.

    It is over when it rests, nothing waits for it, and it has been told the end of all that it has started itself.
    """

    def __init__(self, agents: Agents, agent: Agent, launch: Launch, capture: Capture | None, nudges: int, prompt: str) -> None:
        self._agents = agents
        self.agent = agent
        self._launch = launch
        self._capture = capture
        self._most = self._nudges = nudges if capture is not None else 0
        self._prompt = prompt
        self._first = agent.session.next_seq
        self._cancelled = ""
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = False
        self._reminded = ""
        self._given: list[Any] = []  # what was given for messages before the last one
        self._steps = 0
        self._spent: dict[str, Usage] = {}
        self._cost: float | None = 0.0
        on = agent.ctx.at(agent.scope).on
        on(TurnBegan, self._turn_began)
        on(TurnEnded, self._turn_ended)
        self._withdraw = launch.signal.listen(self.cancel)

    @property
    def native(self) -> str:
        return self.agent.id

    def _turn_began(self, notice: TurnBegan) -> None:
        self._launch.waits("")

    def _turn_ended(self, notice: TurnEnded) -> None:
        """What a turn spent is counted; what woke the child makes no difference."""
        end, agent = notice.end, self.agent
        self._steps += end.steps
        models = agent.ctx.host.get(MODELS, agent.scope)
        for ref, usage in end.models:
            self._spent[ref] = self._spent.get(ref, Usage()) + usage
            try:
                cost = None if models is None else models.resolve(ref, agent.scope).cost(usage)
            except HamesError:  # the model has gone meanwhile
                cost = None
            self._cost = None if cost is None or self._cost is None else self._cost + cost
        if self._launch.owed(agent.id):
            self._launch.waits("child")

    def cancel(self, cause: str) -> None:
        if not self._cancelled:
            self._cancelled = cause
            self.agent.finish()
            self.agent.cancel(cause, keep_inbox=self._launch.spec.mode == "continuable")
            if not self._stop.done():
                self._stop.set_result(None)

    async def say(self, text: str) -> bool:
        """Let a message wait for its turn; one that waits there already, word for word, is not given twice. False if it is over already."""
        agent = self.agent
        if self._over or agent.finishing:
            return False
        if not self._has(text):
            try:
                agent.send(text)
                agent.inbox.keep()
            except KernelError:
                return False
        try:
            await agent.session.barrier()
        except StorageError:
            agent.inbox.forget(text)  # nobody was told that it has this
            raise
        return True

    def _has(self, text: str) -> bool:
        """Whether a message waits there already, word for word."""
        return any(item.message.text == text for item in self.agent.inbox.next_turn)

    def interrupt(self) -> bool:
        running = self.agent.status == "running"
        self.agent.interrupt()
        return running

    async def result(self) -> Outcome:
        agent = self.agent
        try:
            if not self._cancelled:
                if self._has(self._prompt):  # it was given before a crash, and whoever gave it does not know
                    agent.wake()
                else:
                    agent.send(self._prompt)
                    agent.inbox.keep()
                await agent.session.barrier()
                self._launch.accept()
            await self._rest()
            while self._missed() or self._more():
                await self._rest()
            if self._launch.spec.mode == "continuable":
                await self._without_children()
        except asyncio.CancelledError:
            self.cancel("parent")
            await agent.idle()
            raise
        finally:
            self._over = True
        return self._outcome(agent.last or TurnEnd("aborted", detail=self._cancelled))

    async def _rest(self) -> None:
        """Wait until it rests, and nothing that it has started can wake it any more."""
        await rested(self.agent, lambda: self._launch.owed(self.agent.id), self._stop)

    def _missed(self) -> bool:
        """Remind it where it has ended without the result that it was asked for; whether it has been."""
        capture, end = self._capture, self.agent.last
        if capture is None or end is None or not self._nudges or self._cancelled:
            return False
        if end.reason != "completed" or capture.done or capture.gave_up:
            return False
        self._nudges -= 1
        self._reminded = ", and was reminded of it"
        self.agent.send(Message("user", (Text(NUDGE),), "harness"))
        return True

    def _more(self) -> bool:
        """Go on with a message that has come while a result was given; whether there is one."""
        agent, capture = self.agent, self._capture
        if (
            capture is None
            or self._launch.spec.mode != "continuable"
            or self._cancelled
            or agent.held
            or not (capture.done or capture.gave_up)
            or not agent.inbox.next_turn
        ):
            return False
        if capture.done:
            self._given.append(capture.value)
        self._nudges, self._reminded = self._most, ""
        capture.again()
        agent.wake()
        return True

    async def _without_children(self) -> None:
        """Wait for what it has started and keeps: the end of that is told when its conversation goes on."""
        while (owed := self._launch.owed(self.agent.id)) and not self._cancelled:
            await asyncio.wait((*owed, self._stop), return_when=asyncio.FIRST_COMPLETED)

    def _outcome(self, end: TurnEnd) -> Outcome:
        status, fault, code = classified(end)
        text = self._text()
        outcome = Outcome(
            status,
            fault,
            code,
            text,
            partial=bool(text) and status != "completed",
            diagnostic=bounded(end.detail) if status != "completed" else "",
            usage=tuple(UsageItem(ref, usage) for ref, usage in self._spent.items()),
            cost=self._cost,
            steps=self._steps,
            native=self.agent.id,
            proceed=f"hames run --resume {self.agent.id} PROMPT",
        )
        return outcome if self._capture is None else self._with_value(outcome, self._capture)

    def _with_value(self, outcome: Outcome, capture: Capture) -> Outcome:
        if capture.done:
            return replace(outcome, value=capture.value, schema_valid=True, tries=capture.tries)
        outcome = replace(outcome, schema_valid=False, tries=capture.tries, raw=capture.raw or outcome.text)
        if not outcome.ok:
            return outcome
        if self._given and not outcome.text:
            outcome = replace(outcome, text=dumps(self._given[-1]))
        missed = failed("SCHEMA_MISSED", capture.gave_up or capture.wrong or f"it ended without giving a result{self._reminded}")
        return replace(outcome, status="invalid", fault=missed.fault, code=missed.code, diagnostic=missed.diagnostic)

    def _text(self) -> str:
        """The last thing that it said of itself: what it was handed on is not its own."""
        for seq, message in reversed(self.agent.session.messages):
            if seq < self._first:
                break
            if message.role == "assistant" and message.text.strip():
                return message.text
        return ""

    async def dispose(self) -> None:
        self._over = True
        self._withdraw()
        self.agent.heard_waits = None
        await self._agents.dispose(self.agent)


def classified(end: TurnEnd) -> tuple[Status, Fault, str]:
    """Status, fault and code of how a turn ended."""
    if end.reason == "completed":
        return "completed", "none", ""
    if end.reason == "max-tokens":
        return "max-tokens", "child", "MAX_TOKENS"
    if end.reason == "refusal":
        return "refusal", "child", "REFUSAL"
    if end.reason == "aborted":
        return "aborted", "none", "CANCELLED"
    if end.reason == "budget":
        code = end.code if end.code in ("REPEATED", "IDLE", "DEADLINE") else "BUDGET"
        return "budget", "child" if code == "REPEATED" else "none", code
    if end.failure is not None:
        theirs = end.failure.kind in INFRASTRUCTURE
        return "error", "infrastructure" if theirs else "child", "MODEL_FAILED" if theirs else "MODEL_REJECTED"
    return "error", "infrastructure", "INTERNAL"
