"""The turn loop: claim, ask, run tools, until the model has nothing more to call.

A turn::

    log the turn, take what waits
    repeat: fit the conversation into the window, tell what is new
            assemble the prompt → record the request → barrier → stream → log the answer
            tool calls? record the intent → barrier → run them → log the results; take what was steered
    until there are none; log the end

The loop owns the prompt's ``{{model}}`` and ``{{cwd}}``; identity and persona are the prompt service's.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pydantic import Field

from hames.agents.agent import Agent
from hames.agents.ask import Asking, Retries
from hames.agents.compaction import Fitting
from hames.agents.events import TurnBegan
from hames.agents.fit import Fit
from hames.agents.run_tools import run_tools
from hames.agents.turn import Reason, TurnEnd
from hames.agents.watch import Watch
from hames.budget import STOP, Meter, Repeats
from hames.compose.config import RowConfig
from hames.content.errors import HamesError
from hames.content.finish import Finish
from hames.content.messages import Message, Text, ToolCall
from hames.kernel import Context, Key, plugin
from hames.prompts import PROMPTS, Facts


class LoopConfig(RowConfig):
    """How turns run."""

    retries: int = Field(default=5, ge=0)
    """Attempts after the first one, where the kind of failure allows more."""
    fallback: list[str] = []
    """Models to go on with, in order and for the rest of the turn, where one fails for good."""
    compact_at: float = Field(default=0.8, gt=0, le=1)
    """The part of the model's window from which on the past is shortened."""
    retain: float = Field(default=0.16, ge=0, lt=1)
    """The part of the window that stays as it is at the end of the conversation."""
    prune_over: int = Field(default=8192, gt=0)
    """Characters from which on an old result is shown by its ends."""


class Loop:
    """Drives turns. Services are looked up for each step, so a change of composition is seen at the next one."""

    def __init__(self, ctx: Context, config: LoopConfig) -> None:
        self._ctx = ctx
        self._asking = Asking(ctx, Retries(config.retries, tuple(config.fallback)))
        self._fit = Fit(ctx, self._asking, Fitting(config.compact_at, config.retain, config.prune_over))

    async def turn(self, agent: Agent) -> TurnEnd:
        """One turn of an agent, from what waits for it to its end, which is logged whatever happens."""
        session = agent.session
        meter = agent.meter = Meter(agent.limits, agent.whole)
        end = TurnEnd("error", detail="the turn did not run")
        agent.turn_model = ""
        try:
            session.append("turn", {})
            self._ctx.emit(TurnBegan(agent.id), at=agent.scope)
            agent.inbox.take_turn()
            watch = agent.watch = Watch(agent.limits)
            async with watch:
                end = await self._steps(agent, meter, watch)
            if watch.expired:
                end = self._over(agent, meter, watch.expired, watch.code, "give it more time, or go on with the session")
        except asyncio.CancelledError:
            end = TurnEnd("aborted", self._text(agent), agent.cause or "the event loop ended", None, meter.own_usage, meter.own_steps)
            if not agent.cause:
                raise
        except HamesError as error:
            self._ctx.host.contain(f"a turn of {agent.id}", error)
            end = TurnEnd(
                "error", self._text(agent), f"{error.code}: {error}", None, meter.own_usage, meter.own_steps, error.code, error.remedy
            )
        finally:
            end = replace(end, models=tuple(meter.models.items()))
            if meter.steps > meter.own_steps:
                end = replace(end, below=meter.usage - meter.own_usage, steps_below=meter.steps - meter.own_steps)
            agent.turn_model = ""
            agent.meter = agent.watch = None
            agent.waits.clear()
            await self._log_end(agent, end)
        return end

    async def _log_end(self, agent: Agent, end: TurnEnd) -> None:
        """Log the end, durably. Whoever cancels now is too late for this turn."""
        try:
            agent.session.append("end", {"reason": end.reason})
            logging = asyncio.ensure_future(agent.session.barrier())
            while not logging.done():
                try:
                    await asyncio.shield(logging)
                except asyncio.CancelledError:
                    if not agent.cause:
                        raise
        except HamesError as error:
            self._ctx.host.contain(f"the end of a turn of {agent.id}", error)

    async def _steps(self, agent: Agent, meter: Meter, watch: Watch) -> TurnEnd:
        repeats = Repeats()
        recovered = False
        while True:
            stopped = meter.exhausted()
            if stopped:
                return self._over(agent, meter, stopped, "BUDGET", "give it a wider limit, or go on with the session")
            if warning := meter.warning():
                agent.session.add(Message("user", (Text(warning),), "harness"))
            await self._fit.before(agent, meter, watch)
            self._tell(agent)
            finish = await self._asking.answer(agent, watch, meter)
            if finish.failure is not None and finish.failure.kind == "context-overflow" and not recovered:
                recovered = True
                if await self._fit.overflowed(agent, meter, watch):
                    continue
            meter.spend(finish.usage, agent.model()[0].cost, agent.model_ref)
            if finish.reason != "tool-calls":
                if finish.reason == "stop" and not agent.finishing and agent.inbox.take_step():
                    continue
                return self._ended(finish, meter)
            recovered = False
            calls = [block for block in finish.blocks if isinstance(block, ToolCall)]
            concluded, repeated = await run_tools(self._ctx, agent, calls, repeats, watch)
            if repeated >= STOP:
                detail = f"the same call with the same result, {repeated} times"
                return self._over(agent, meter, detail, "REPEATED", "say to the agent what it overlooks, and go on with the session")
            if agent.finishing:
                return TurnEnd("completed", self._text(agent), "", None, meter.own_usage, meter.own_steps)
            if not meter.exhausted() and agent.inbox.take_step():
                continue
            if concluded:
                return TurnEnd("completed", self._text(agent), "", None, meter.own_usage, meter.own_steps)

    def _tell(self, agent: Agent) -> None:
        """Say what the harness knows and the conversation does not."""
        prompts = self._ctx.host.get(PROMPTS, agent.scope)
        if prompts is None:
            return
        session = agent.session
        facts = Facts(agent.scope, agent.model_ref, session.cwd)
        texts, digests = prompts.news(facts, session.told, compacted=session.is_compacted)
        if texts:
            session.add(Message("user", (Text("\n\n".join(texts)),), "harness"), contexts=digests)
        elif digests:
            session.tell(digests)

    def _over(self, agent: Agent, meter: Meter, detail: str, code: str, remedy: str) -> TurnEnd:
        return TurnEnd("budget", self._text(agent), detail, None, meter.own_usage, meter.own_steps, code, remedy)

    def _ended(self, finish: Finish, meter: Meter) -> TurnEnd:
        reasons: dict[str, Reason] = {"stop": "completed", "max-tokens": "max-tokens", "refusal": "refusal", "aborted": "aborted"}
        failure = finish.failure
        detail = f"{failure.kind}: {failure.message}" if failure is not None else ""
        if finish.reason == "max-tokens":
            detail = "the answer reached its limit of tokens"
        text = "".join(block.text for block in finish.blocks if isinstance(block, Text))
        return TurnEnd(reasons.get(finish.reason, "error"), text, detail, failure, meter.own_usage, meter.own_steps)

    @staticmethod
    def _text(agent: Agent) -> str:
        """The last thing that the model said."""
        for _, message in reversed(agent.session.messages):
            if message.role == "assistant" and message.text:
                return message.text
        return ""


LOOP: Key[Loop] = Key("loop")


@plugin(config=LoopConfig, needs=(PROMPTS,), name="loop")
def loop(ctx: Context, config: LoopConfig) -> None:
    """Provide the turn loop, and the facts that it knows to the prompts."""
    prompts = ctx.use(PROMPTS)
    prompts.variable(ctx, "model", lambda facts: facts.model)
    prompts.variable(ctx, "cwd", lambda facts: facts.cwd)
    ctx.provide(LOOP, Loop(ctx, config))
