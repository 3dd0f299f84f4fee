"""The turn loop: claim, ask, run tools, until the model has nothing more to call.

A turn::

    log the turn, claim what waits
    repeat: assemble the prompt → record the request → barrier → stream → log the answer
            tool calls? record the intent → barrier → run them → log the results; claim what was steered
    until there are none; log the end

The loop owns the prompt's ``{{model}}`` and ``{{cwd}}``; identity and persona are the prompt service's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from hames.agents.agent import Agent
from hames.agents.events import Answered, Chunked, Retrying, ToolEnded, ToolStarted, TurnBegan
from hames.agents.spill import spiller
from hames.agents.turn import Reason, TurnEnd
from hames.agents.watch import Watch
from hames.budget import BLOCK, REMIND, STOP, Meter, Repeats
from hames.content.errors import HamesError
from hames.content.finish import RETRYABLE, Failure, Finish, encode_failure
from hames.content.messages import Message, Text, ToolCall, ToolResult
from hames.kernel import Context, Key, plugin
from hames.models import ModelStream
from hames.prompts import PROMPTS, Facts
from hames.sessions import Session
from hames.tools import TOOLS, Invocation, Tools
from hames.tools.plugin import Cancelled

RETRIES = 5
FIRST_WAIT, LONGEST_WAIT = 0.5, 10.0  # seconds between attempts, doubling
LONGEST_ASKED = 120.0  # seconds that a provider may ask to wait
JITTER = 0.1


class Loop:
    """Drives turns. Services are looked up for each step, so a change of composition is seen at the next one."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def turn(self, agent: Agent, messages: Sequence[Message]) -> TurnEnd:
        """One turn of an agent, from the messages that it is for to its end, which is logged whatever happens."""
        session = agent.session
        meter = Meter(agent.limits)
        end = TurnEnd("error", detail="the turn did not run")
        try:
            session.append("turn", {})
            self._ctx.emit(TurnBegan(agent.id), at=agent.scope)
            for message in messages:
                session.add(message)
            watch = Watch(agent.limits)
            async with watch:
                end = await self._steps(agent, meter, watch)
            if watch.expired:
                remedy = "give it more time, or go on with the session"
                end = TurnEnd("budget", self._text(agent), watch.expired, None, meter.usage, meter.steps, "BUDGET", remedy)
        except asyncio.CancelledError:
            end = TurnEnd("aborted", self._text(agent), agent.cause or "the event loop ended", None, meter.usage, meter.steps)
            if not agent.cause:
                raise
        except HamesError as error:
            self._ctx.host.contain(f"a turn of {agent.id}", error)
            end = TurnEnd("error", self._text(agent), f"{error.code}: {error}", None, meter.usage, meter.steps, error.code, error.remedy)
        finally:
            await self._log_end(agent, end)
        return end

    async def _log_end(self, agent: Agent, end: TurnEnd) -> None:
        try:
            agent.session.append("end", {"reason": end.reason})
            await asyncio.shield(agent.session.barrier())
        except HamesError as error:
            self._ctx.host.contain(f"the end of a turn of {agent.id}", error)

    async def _steps(self, agent: Agent, meter: Meter, watch: Watch) -> TurnEnd:
        repeats = Repeats()
        while True:
            stopped = meter.exhausted()
            if stopped:
                remedy = "give it a wider limit, or go on with the session"
                return TurnEnd("budget", self._text(agent), stopped, None, meter.usage, meter.steps, "BUDGET", remedy)
            if warning := meter.warning():
                agent.session.add(Message("user", (Text(warning),), "harness"))
            finish = await self._ask(agent, watch)
            meter.spend(finish.usage, agent.model()[0].cost)
            if finish.reason != "tool-calls":
                if finish.reason == "stop" and agent.inbox.next_step:
                    self._take_steered(agent)
                    continue
                return self._ended(agent, finish, meter)
            calls = [block for block in finish.blocks if isinstance(block, ToolCall)]
            concluded, repeated = await self._run_tools(agent, calls, repeats, watch)
            if repeated >= STOP:
                detail = f"the same call with the same result, {repeated} times"
                remedy = "say to the agent what it overlooks, and go on with the session"
                return TurnEnd("budget", self._text(agent), detail, None, meter.usage, meter.steps, "REPEATED", remedy)
            self._take_steered(agent)
            if concluded:
                return TurnEnd("completed", self._text(agent), "", None, meter.usage, meter.steps)

    @staticmethod
    def _take_steered(agent: Agent) -> None:
        for message in agent.inbox.claim_step():
            agent.session.add(message)

    def _ended(self, agent: Agent, finish: Finish, meter: Meter) -> TurnEnd:
        reasons: dict[str, Reason] = {"stop": "completed", "max-tokens": "max-tokens", "refusal": "refusal", "aborted": "aborted"}
        failure = finish.failure
        detail = f"{failure.kind}: {failure.message}" if failure is not None else ""
        if finish.reason == "max-tokens":
            detail = "the answer reached its limit of tokens"
        text = "".join(block.text for block in finish.blocks if isinstance(block, Text))
        return TurnEnd(reasons.get(finish.reason, "error"), text, detail, failure, meter.usage, meter.steps)

    @staticmethod
    def _text(agent: Agent) -> str:
        """The last thing that the model said."""
        for _, message in reversed(agent.session.messages):
            if message.role == "assistant" and message.text:
                return message.text
        return ""

    # asking the model

    async def _ask(self, agent: Agent, watch: Watch) -> Finish:
        """One answer: attempts until one is good, or until the kind of failure or their number forbids another."""
        attempt = 0
        while True:
            finish = await self._attempt(agent, watch)
            failure = finish.failure
            if finish.reason != "error" or failure is None or failure.kind not in RETRYABLE or attempt >= RETRIES:
                break
            wait = self._wait(agent, failure, attempt)
            if wait is None:
                break
            attempt += 1
            agent.session.append("retry", {"failure": encode_failure(failure), "wait": wait})
            self._ctx.emit(Retrying(agent.id, failure, wait), at=agent.scope)
            await agent.clock.sleep(wait)
        finish = with_distinct_ids(finish, agent.session)
        self._log_answer(agent, finish)
        self._ctx.emit(Answered(agent.id, finish), at=agent.scope)
        return finish

    @staticmethod
    def _wait(agent: Agent, failure: Failure, attempt: int) -> float | None:
        """Seconds until the next attempt; None where the provider asks for more than anybody wants to wait."""
        if failure.retry_after is not None:
            return failure.retry_after if failure.retry_after <= LONGEST_ASKED else None
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2**attempt)
        return wait * (1 + JITTER * (2 * agent.clock.random() - 1))

    async def _attempt(self, agent: Agent, watch: Watch) -> Finish:
        ctx, session, scope = self._ctx, agent.session, agent.scope
        model, encoder = agent.model()
        tools = ctx.host.get(TOOLS, scope)
        prompts = ctx.host.get(PROMPTS, scope)
        system = await prompts.assemble(ctx, Facts(scope, agent.model_ref, session.cwd)) if prompts is not None else ""
        specs = tools.specs(scope) if tools is not None else ()
        request = encoder.encode(system, specs, session.messages, agent.settings)
        session.record(request)
        await session.barrier()
        stream = model.stream(request)
        try:
            return await self._consume(agent, stream, watch)
        except asyncio.CancelledError:
            partial = stream.partial()
            if partial:
                session.add(Message("assistant", partial, "model"), model=agent.model_ref, finish="aborted")
            raise

    async def _consume(self, agent: Agent, stream: ModelStream, watch: Watch) -> Finish:
        ctx, scope = self._ctx, agent.scope
        heard = bool(scope.handlers(Chunked))
        async for chunk in stream:
            watch.touch()
            if heard:
                ctx.emit(Chunked(agent.id, chunk), at=scope)
            if isinstance(chunk, Finish):
                return chunk
        return Finish("error", stream.partial(), None, Failure("cut", "the stream ended without a finish"))

    def _log_answer(self, agent: Agent, finish: Finish) -> None:
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

    # running tools

    async def _run_tools(self, agent: Agent, calls: Sequence[ToolCall], repeats: Repeats, watch: Watch) -> tuple[bool, int]:
        """Run the calls of an answer; whether one concludes the turn, and how often the last one has been repeated."""
        ctx, session, scope = self._ctx, agent.session, agent.scope
        tools = ctx.host.get(TOOLS, scope) or Tools(ctx)

        def surroundings(call: ToolCall) -> Invocation:
            return Invocation(
                call.id,
                scope,
                agent.cwd,
                agent.memory,
                spiller(agent.root / "spill", agent.id, call.id),
                session=agent.id,
                scratch=agent.scratch,
                ceiling=agent.ceiling,
                note=note,
            )

        def note(type: str, data: dict[str, object]) -> None:
            session.append(type, data)
            watch.hold(type == "asked")

        async def begin(started: Sequence[ToolCall]) -> None:
            for call in started:
                session.append("call", {"id": call.id, "name": call.name})
            await session.barrier()
            for call in started:
                ctx.emit(ToolStarted(agent.id, call), at=scope)

        def refuse(call: ToolCall) -> ToolResult | None:
            if not repeats.blocks(call.name, call.arguments):
                return None
            text = "it had the same result each time before, and was not run again; do something else, or say what is in the way"
            return ToolResult(call.id, (Text(text),), True, "REPEATED")

        concluded = False
        cancelled: Cancelled | None = None
        try:
            results, concluded = await tools.run(calls, scope, surroundings, begin, refuse)
        except Cancelled as error:
            results, cancelled = error.results, error
        watch.touch()
        repeated = 0
        for call, result in zip(calls, results, strict=True):
            self._log_result(agent, call, result)
            repeated = repeats.count(call.name, call.arguments, result.text)
        if cancelled is not None:
            raise asyncio.CancelledError from cancelled
        if repeated == REMIND:
            text = f"You have made the same call {REMIND} times with the same result. From the {BLOCK}th time on it is not run any more."
            session.add(Message("user", (Text(text),), "harness"))
        return concluded, repeated

    def _log_result(self, agent: Agent, call: ToolCall, result: ToolResult) -> None:
        agent.session.add(Message("user", (result,), "tool"))
        self._ctx.emit(ToolEnded(agent.id, call, result), at=agent.scope)


def with_distinct_ids(finish: Finish, session: Session) -> Finish:
    """The answer with calls whose ids nobody else in the conversation has: some servers send none, or count from 0 each time."""
    ids = [block.id for block in finish.blocks if isinstance(block, ToolCall)]
    if all(ids) and len(set(ids)) == len(ids) and session.call_ids.isdisjoint(ids):
        return finish
    seq = session.next_seq
    blocks = (replace(block, id=f"call_{seq}_{n}") if isinstance(block, ToolCall) else block for n, block in enumerate(finish.blocks))
    return replace(finish, blocks=tuple(blocks))


LOOP: Key[Loop] = Key("loop")


@plugin(needs=(PROMPTS,), name="loop")
def loop(ctx: Context, config: None) -> None:
    """Provide the turn loop, and the facts that it knows to the prompts."""
    prompts = ctx.use(PROMPTS)
    prompts.variable(ctx, "model", lambda facts: facts.model)
    prompts.variable(ctx, "cwd", lambda facts: facts.cwd)
    ctx.provide(LOOP, Loop(ctx))
