"""Asking the model: attempts until one is good, then another model, until the kind of failure or their number forbids more."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from hames.agents.agent import Agent
from hames.agents.events import Answered, Chunked, ModelChanged, Retrying, SlotAwaited
from hames.agents.watch import Watch
from hames.budget import SCHEDULER, Meter
from hames.content.errors import ModelReferenceError
from hames.content.finish import RETRYABLE, Failure, Finish, encode_failure
from hames.content.messages import Message, ToolCall
from hames.content.request import ToolSpec
from hames.kernel import Context
from hames.models import ModelStream
from hames.prompts import PROMPTS, Facts
from hames.sessions import Session
from hames.tools import TOOLS

FIRST_WAIT, LONGEST_WAIT = 0.5, 10.0  # seconds between attempts, doubling
LONGEST_ASKED = 120.0  # seconds that a provider may ask to wait
JITTER = 0.1
ELSEWHERE = RETRYABLE | {"auth", "not-found"}  # failures that another model may not have


@dataclass(frozen=True, slots=True)
class Retries:
    """How often to ask.

    :param count: attempts after the first one, of each model.
    :param fallback: models to go on with, for the rest of a turn, where one fails for good.
    """

    count: int = 5
    fallback: tuple[str, ...] = ()


class Asking:
    """Asks the models of agents."""

    def __init__(self, ctx: Context, retries: Retries) -> None:
        self._ctx = ctx
        self._retries = retries

    async def answer(self, agent: Agent, watch: Watch, meter: Meter) -> Finish:
        """One answer, logged; what failed attempts have cost is counted."""
        finish = await self._answer(agent, watch, meter)
        finish = with_distinct_ids(finish, agent.session)
        log_answer(agent, finish)
        agent.context.answered(agent.session, finish.usage)
        self._ctx.emit(Answered(agent.id, finish), at=agent.scope)
        return finish

    async def _answer(self, agent: Agent, watch: Watch, meter: Meter) -> Finish:
        remaining = [ref for ref in self._retries.fallback if ref != agent.model_ref]
        while True:
            finish = await self._attempts(agent, watch, meter)
            if finish.failure is None or finish.reason != "error" or finish.failure.kind not in ELSEWHERE:
                return finish
            price, ref = agent.model()[0].cost, agent.model_ref
            if not remaining or not self._change(agent, remaining, finish.failure):
                return finish
            if finish.usage is not None:
                meter.count(finish.usage, price, ref)

    def _change(self, agent: Agent, remaining: list[str], failure: Failure) -> bool:
        """Go on with the next model that can be used; whether there was one."""
        while remaining:
            before, agent.turn_model = agent.model_ref, remaining.pop(0)
            try:
                agent.model()
            except ModelReferenceError as error:
                self._ctx.host.contain(f"the fallback {agent.turn_model}", error)
                agent.turn_model = before
                continue
            agent.session.append("fallback", {"from": before, "to": agent.model_ref, "failure": encode_failure(failure)})
            self._ctx.emit(ModelChanged(agent.id, before, agent.model_ref, failure), at=agent.scope)
            return True
        return False

    async def _attempts(self, agent: Agent, watch: Watch, meter: Meter) -> Finish:
        attempt = 0
        while True:
            finish = await self.attempt(agent, watch, agent.session.messages)
            failure = finish.failure
            if finish.reason != "error" or failure is None or failure.kind not in RETRYABLE or attempt >= self._retries.count:
                return finish
            wait = waiting(agent, failure, attempt)
            if wait is None:
                return finish
            attempt += 1
            if finish.usage is not None:
                meter.count(finish.usage, agent.model()[0].cost, agent.model_ref)
            agent.session.append("retry", {"failure": encode_failure(failure), "wait": wait})
            self._ctx.emit(Retrying(agent.id, failure, wait), at=agent.scope)
            await agent.clock.sleep(wait)

    async def surroundings(self, agent: Agent) -> tuple[str, tuple[ToolSpec, ...]]:
        """The system prompt and the tools of the next request."""
        ctx, scope = self._ctx, agent.scope
        tools = ctx.host.get(TOOLS, scope)
        prompts = ctx.host.get(PROMPTS, scope)
        system = await prompts.assemble(ctx, Facts(scope, agent.model_ref, agent.session.cwd)) if prompts is not None else ""
        return system, tools.specs(scope) if tools is not None else ()

    async def attempt(self, agent: Agent, watch: Watch, messages: Sequence[tuple[int, Message]], *, aside: bool = False) -> Finish:
        """One request with these messages.

        :param aside: its answer is no part of the conversation: nobody hears it come, and what came of it when cancelled is dropped.
        """
        scheduler = self._ctx.host.get(SCHEDULER, agent.scope)
        if scheduler is None:
            return await self._request(agent, watch, messages, aside)
        provider = agent.model_ref.partition(":")[0]
        async with scheduler.slot(provider, agent.place, lambda: self._waiting(agent, provider)) as went:
            finish = await self._request(agent, watch, messages, aside)
            if finish.reason != "error" or (finish.failure is not None and finish.failure.kind == "rate-limit"):
                went(finish.reason != "error")
            return finish

    @contextmanager
    def _waiting(self, agent: Agent, provider: str) -> Generator[None]:
        slots = self._ctx.host.get(SCHEDULER, agent.scope)
        state = slots.of(provider) if slots is not None else None
        if state is not None:
            self._ctx.emit(SlotAwaited(agent.id, provider, state.now, state.why), at=agent.scope)
        with agent.waiting("slot"):
            yield

    async def _request(self, agent: Agent, watch: Watch, messages: Sequence[tuple[int, Message]], aside: bool) -> Finish:
        model, encoder = agent.model()
        system, specs = await self.surroundings(agent)
        request = encoder.encode(system, specs, messages, agent.settings)
        agent.session.record(request)
        await agent.session.barrier()
        stream = model.stream(request)
        try:
            return await self._consume(agent, stream, watch, aside)
        except asyncio.CancelledError:
            partial = stream.partial()
            if partial and not aside:
                agent.session.add(Message("assistant", partial, "model"), model=agent.model_ref, finish="aborted")
            raise

    async def _consume(self, agent: Agent, stream: ModelStream, watch: Watch, aside: bool) -> Finish:
        ctx, scope = self._ctx, agent.scope
        heard = bool(scope.handlers(Chunked)) and not aside
        async for chunk in stream:
            watch.touch()
            if heard:
                ctx.emit(Chunked(agent.id, chunk), at=scope)
            if isinstance(chunk, Finish):
                return chunk
        return Finish("error", stream.partial(), None, Failure("cut", "the stream ended without a finish"))


def waiting(agent: Agent, failure: Failure, attempt: int) -> float | None:
    """Seconds until the next attempt; None where the provider asks for more than anybody wants to wait."""
    if failure.retry_after is not None:
        return failure.retry_after if failure.retry_after <= LONGEST_ASKED else None
    wait = min(LONGEST_WAIT, FIRST_WAIT * 2**attempt)
    return wait * (1 + JITTER * (2 * agent.clock.random() - 1))


def log_answer(agent: Agent, finish: Finish) -> None:
    """Log what was answered. Calls that will not run are kept beside the message, so that the conversation stays legal."""
    more: dict[str, object] = {"model": agent.model_ref, "finish": finish.reason}
    if finish.usage is not None:
        more["usage"] = finish.usage.as_json()
    if finish.failure is not None:
        more["failure"] = encode_failure(finish.failure)
    blocks = finish.blocks
    if finish.reason != "tool-calls":
        dropped = [block for block in blocks if isinstance(block, ToolCall)]
        if dropped:
            more["dropped"] = [{"name": call.name, "arguments": call.arguments} for call in dropped]
            blocks = tuple(block for block in blocks if not isinstance(block, ToolCall))
    if blocks:
        agent.session.add(Message("assistant", blocks, "model"), **more)
    else:
        agent.session.append("failed", more)


def with_distinct_ids(finish: Finish, session: Session) -> Finish:
    """The answer with calls whose ids nobody else in the conversation has: some servers send none, or count from 0 each time."""
    ids = [block.id for block in finish.blocks if isinstance(block, ToolCall)]
    if all(ids) and len(set(ids)) == len(ids) and session.call_ids.isdisjoint(ids):
        return finish
    seq = session.next_seq
    blocks = (replace(block, id=f"call_{seq}_{n}") if isinstance(block, ToolCall) else block for n, block in enumerate(finish.blocks))
    return replace(finish, blocks=tuple(blocks))
