"""The runners ``spawn`` and ``fork``: a child is an agent of this process, with a session of its own.

``spawn`` begins with nothing, ``fork`` with the conversation of whoever starts it, up to the end of its last turn.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path

from hames import __version__
from hames.agents import Agent, Agents, AgentSpec, ToolStarted, TurnEnd, TurnEnded
from hames.budget import Limits
from hames.content.errors import HamesError, NotFoundError
from hames.content.finish import Usage
from hames.content.messages import Message, Text
from hames.delegation.failures import Fault
from hames.delegation.outcome import Level, Outcome, Status, UsageItem, bounded, failed
from hames.delegation.relay import relay
from hames.delegation.runner import Launch, Origin
from hames.delegation.spec import TaskSpec
from hames.delegation.structured import NUDGE, Capture
from hames.kernel import Context, Mask
from hames.models import MODELS
from hames.prompts import PROMPTS
from hames.prompts.service import VARIABLE
from hames.store import Blobs

CONTEXT = """You work on a task that somebody gave you, and nobody speaks with you while you do. Your last message is your result: it is
all that is seen of your work, so let it stand for itself. Say what you did, what you found, and what is left."""

CAPABILITIES: dict[str, Level] = {
    **dict.fromkeys(("role", "schema", "tools", "permission", "model", "inputs", "steps", "tokens", "cost", "idle"), "enforced"),
    "effort": "requested",
}

INFRASTRUCTURE = frozenset({"cut", "malformed", "empty", "rate-limit", "overloaded", "server", "timeout", "transport", "auth", "not-found"})
"""Failures of a request that are not the child's."""


class InProcess:
    """Runs children as agents of this process.

    :param nudges: how often a child that ends without its result is reminded of it.
    """

    keeps_idle = True
    version = __version__
    digest = ""
    capabilities: Mapping[str, Level] = CAPABILITIES

    def __init__(self, ctx: Context, agents: Agents, blobs: Blobs, *, fork: bool, nudges: int) -> None:
        self._ctx = ctx
        self._agents = agents
        self._blobs = blobs
        self._nudges = nudges
        self.hands_on = fork
        self.name = "fork" if fork else "spawn"

    def check(self, spec: TaskSpec, origin: Origin) -> TaskSpec:
        models = self._ctx.host.get(MODELS, origin.home or origin.scope)
        if self.hands_on and not origin.session:
            raise NotFoundError("there is no conversation that could be handed on", remedy="use the runner spawn", code="SPEC_INVALID")
        if self.hands_on and spec.directory and Path(spec.directory) != Path(origin.cwd):
            raise NotFoundError("a conversation goes on in its own directory", remedy="use the runner spawn", code="SPEC_INVALID")
        ref = spec.model or origin.model or (models.default if models is not None else "")
        if models is not None:
            model = models.resolve(ref, origin.home or origin.scope)
            limited = spec.budget.cost is not None or (origin.meter is not None and origin.meter.counts_cost)
            if limited and model.cost(Usage()) is None:
                raise NotFoundError(f"nobody knows what {ref} costs", remedy="limit tokens instead", code="PRICE_UNKNOWN")
        return replace(spec, model=ref)

    async def start(self, launch: Launch) -> Child:
        spec, origin = launch.spec, launch.origin
        settings = replace(origin.settings, effort=spec.effort or origin.settings.effort)
        if self.hands_on and origin.agent is not None:
            await origin.agent.session.barrier()  # what it begins with is on disk
        made = AgentSpec(
            spec.directory,
            spec.model,
            settings=settings,
            limits=Limits(idle=spec.budget.idle),
            ceiling=launch.permission,
            parent=origin.home,
            origin=origin.session,
            fork=self.hands_on,
            grant=launch.grant,
            place=launch.place,
            whole=launch.meter,
        )
        agent = await self._agents.create(made)
        try:
            return self._prepare(launch, agent)
        except BaseException:
            await self._agents.dispose(agent)
            raise

    def _prepare(self, launch: Launch, agent: Agent) -> Child:
        spec, origin, at = launch.spec, launch.origin, self._ctx.at(agent.scope)
        agent.session.remember(
            "delegation",
            {
                "task": launch.task,
                "root": origin.root or launch.task,
                "depth": launch.depth,
                "permission": launch.permission,
                "grant": encoded_grant(launch.grant),
            },
        )
        prompts = self._ctx.host.get(PROMPTS, agent.scope)
        if prompts is not None:
            prompts.section(at, "delegation", CONTEXT, order=90)
            if launch.role is not None and launch.role.persona:
                # What is no variable of ours is text; files of others know nothing of ours.
                known = prompts.variables.view(agent.scope) if launch.role.origin != "claude" else {}
                prompts.variable(at, "open_braces", lambda facts: "{{")
                prompts.section(at, "persona", with_braces(launch.role.persona, known), order=0)
        relay(self._ctx, agent, origin, spec.title)
        capture = Capture(self._ctx, agent, spec.schema) if spec.schema is not None else None

        def started(notice: ToolStarted) -> None:
            launch.say(f"{notice.call.name} {notice.call.arguments[:200]}")

        at.on(ToolStarted, started)
        agent.heard_waits = lambda: launch.waits(agent.waits[-1] if agent.waits else "")
        return Child(self._agents, agent, launch, capture, self._nudges, prompt(spec, self._blobs))


class Child:
    """One child at work."""

    def __init__(self, agents: Agents, agent: Agent, launch: Launch, capture: Capture | None, nudges: int, prompt: str) -> None:
        self._agents = agents
        self.agent = agent
        self._launch = launch
        self._capture = capture
        self._nudges = nudges
        self._prompt = prompt
        self._first = agent.session.next_seq
        self._cancelled = ""
        self._reminded = ""
        self._steps = 0
        self._spent: dict[str, Usage] = {}
        self._cost: float | None = 0.0
        self._ends: list[TurnEnd] = []
        agent.ctx.at(agent.scope).on(TurnEnded, self._turn_ended)
        self._withdraw = launch.signal.listen(self.cancel)

    def _turn_ended(self, notice: TurnEnded) -> None:
        self._ends.append(notice.end)

    @property
    def native(self) -> str:
        return self.agent.id

    def cancel(self, cause: str) -> None:
        if not self._cancelled:
            self._cancelled = cause
            self.agent.finish()
            self.agent.cancel(cause)

    async def result(self) -> Outcome:
        try:
            end = await self._turn(self._prompt)
            nudges = self._nudges if self._capture is not None else 0
            while nudges and self._missed(end):
                nudges -= 1
                self._reminded = ", and was reminded of it"
                end = await self._turn(Message("user", (Text(NUDGE),), "harness"))
        except asyncio.CancelledError:
            self.cancel("parent")
            await self.agent.idle()
            raise
        return self._outcome(end)

    async def _turn(self, message: Message | str) -> TurnEnd:
        """One turn, unless it was cancelled before; what it spent is counted."""
        agent = self.agent
        if self._cancelled:
            return TurnEnd("aborted", detail=self._cancelled)
        self._ends.clear()
        agent.send(message)
        await agent.idle()
        end = agent.last or TurnEnd("aborted", detail=self._cancelled)
        ends = self._ends or [end]  # what wakes it meanwhile makes turns of their own
        self._steps += sum(each.steps for each in ends)
        models = agent.ctx.host.get(MODELS, agent.scope)
        for ref, usage in (spent for each in ends for spent in each.models):
            self._spent[ref] = self._spent.get(ref, Usage()) + usage
            try:
                cost = None if models is None else models.resolve(ref, agent.scope).cost(usage)
            except HamesError:  # the model has gone meanwhile
                cost = None
            self._cost = None if cost is None or self._cost is None else self._cost + cost
        return end

    def _missed(self, end: TurnEnd) -> bool:
        capture = self._capture
        return capture is not None and end.reason == "completed" and not capture.done and not capture.gave_up and not self._cancelled

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


def prompt(spec: TaskSpec, blobs: Blobs) -> str:
    """What the child is told: the prompt, and where the files are that are given along."""
    if not spec.inputs:
        return spec.prompt
    files = "\n".join(f"- {name}: {blobs.path(digest)}" for name, digest in spec.inputs.items())
    return f"{spec.prompt}\n\nFiles that are given along:\n{files}"


def with_braces(text: str, known: Container[str]) -> str:
    """A text whose braces stand for themselves, save around these names."""

    def kept(match: re.Match[str]) -> str:
        return match.group(0) if match.group(1).strip() in known else "{{open_braces}}" + match.group(0)[2:]

    parts = VARIABLE.split(text)  # what is between variables may hold braces of its own
    return VARIABLE.sub(kept, text) if len(parts) > 1 else text.replace("{{", "{{open_braces}}")


def encoded_grant(grant: tuple[Mask, ...]) -> list[dict[str, list[str]]]:
    """Masks as a session keeps them."""
    allowed = [{"allow": sorted(mask.allow)} if mask.allow is not None else {} for mask in grant]
    return [{**allow, "deny": sorted(mask.deny)} for allow, mask in zip(allowed, grant, strict=True)]


def decoded_grant(kept: list[dict[str, list[str]]]) -> tuple[Mask, ...]:
    """The inverse of :func:`encoded_grant`."""
    return tuple(Mask(frozenset(each["allow"]) if "allow" in each else None, frozenset(each.get("deny", ()))) for each in kept)
