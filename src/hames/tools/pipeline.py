"""The way of a call: policy, guards, execution, post-processing, result.

Nothing that a tool does is raised to the agent: whatever happens is a result with a code. A hidden tool is as one that does not exist.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hames.content.errors import StorageError
from hames.content.jsontext import parse_object
from hames.content.messages import Text, ToolCall, ToolResult, clean
from hames.kernel import Around, Context, Host, Scope
from hames.policy import POLICY, Decision, Policy, ToolRequest
from hames.sandbox import Confinement, Refused
from hames.tools.approvals import Approvals
from hames.tools.tool import Invocation, Needs, Output, Tool, ToolError

log = logging.getLogger("hames.tools")

INLINE_LIMIT = 50_000  # characters of a result that the model is shown
HEAD, TAIL = 30_000, 10_000  # characters of a longer one that it is shown
GRACE = 5.0  # seconds that a cancelled tool has to end


@dataclass(frozen=True, slots=True)
class RunTool(Around[Output]):
    """A call that has been allowed is about to run; listeners may change what comes back."""

    tool: Tool
    arguments: Mapping[str, Any]
    invocation: Invocation


Guard = Callable[[ToolRequest], str | None]
"""Says why a call must not run, or None. A guard can only deny."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call whose arguments are sound."""

    tool: Tool
    arguments: dict[str, Any]
    request: ToolRequest
    writes: tuple[Path, ...] = ()


def failed(call: ToolCall, code: str, text: str) -> ToolResult:
    return ToolResult(call.id, (Text(f"Error: {text}"),), True, code)


def prepare(tool: Tool | None, call: ToolCall, invocation: Invocation) -> Prepared | ToolResult:
    """Check name and arguments, and find out what the call needs."""
    if tool is None:
        return failed(call, "UNKNOWN_TOOL", f"there is no tool named {call.name!r}")
    try:
        arguments = parse_object(call.arguments or "{}")
    except ValueError as error:
        return failed(call, "INVALID_ARGS", f"the arguments of {call.name} are no JSON object: {error}")
    if tool.model is not None:
        from pydantic import ValidationError

        try:
            model = tool.model.model_validate(arguments)
        except ValidationError as error:
            lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_url=False, include_input=False)]
            return failed(call, "INVALID_ARGS", f"the arguments of {call.name} are not valid:\n" + "\n".join(lines))
        arguments = {name: getattr(model, name) for name in tool.model.model_fields}
    try:
        needs = tool.needs(arguments, invocation) if tool.needs is not None else Needs(tool.capabilities)
    except ToolError as error:
        return failed(call, error.code, str(error))
    except Exception as error:
        log.warning("what a call of tool %s needs is not known", tool.name, exc_info=error)
        return failed(call, "RAISED", bounded(f"{tool.name} raised {type(error).__name__}: {error}", invocation))
    sandbox = invocation.sandbox
    writing = Confinement("workspace-write", invocation.cwd, invocation.scratch, False)
    request = ToolRequest(
        tool.name,
        needs.capabilities,
        arguments,
        str(invocation.cwd),
        id=call.id,
        session=invocation.session,
        outside=tuple(str(path) for path in needs.writes if sandbox.outside(path, writing)),
        unconfined=needs.unconfined,
        whole=needs.whole,
        ceiling=invocation.ceiling,
        enforced="execute" not in needs.capabilities or (needs.confined and sandbox.enforcement.level != "none"),
    )
    return Prepared(tool, arguments, request, needs.writes)


async def allowed(
    ctx: Context, prepared: Prepared, call: ToolCall, invocation: Invocation, guards: Mapping[str, Guard], approvals: Approvals
) -> ToolResult | None:
    """Policy and guards; None where the call may run. What it may reach stands in the invocation then."""
    request = prepared.request
    policy = ctx.host.get(POLICY, invocation.scope)
    if unjudged(ctx.host, invocation.scope):
        return failed(call, "DENIED", "the policy of this workspace is not there, so nothing runs; see 'hames workspace status'")
    if policy is not None:
        decision = judged(ctx, policy, request)
        if decision.verdict != "deny":
            also = tuple(Path(path) for path in request.outside)
            invocation.confinement = Confinement(decision.access, invocation.cwd, invocation.scratch, decision.network, also)
            try:
                for path in prepared.writes:
                    invocation.sandbox.check_write(path, invocation.confinement)
            except Refused as error:
                return failed(call, "DENIED", str(error))
        if decision.verdict == "ask":
            answer = await approvals.ask(request, decision, invocation, lambda: judged(ctx, policy, request).verdict == "allow")
            if answer is None or answer == "nobody":
                return failed(call, "DENIED", f"{decision.reason}; nobody is there to allow it")
            if answer not in ("once", "session", "always"):
                return failed(call, "DENIED", f"{decision.reason}; the user refused it")
            try:
                policy.remember(request, answer)
            except Exception as error:
                ctx.host.contain("a grant", error)  # this call was allowed all the same
        elif decision.verdict == "deny":
            return failed(call, "DENIED", decision.reason)
    for name, guard in guards.items():
        try:
            reason = guard(request)
        except Exception as error:
            ctx.host.contain(f"guard {name}", error)
            reason = f"guard {name} failed"
        if reason is not None:
            return failed(call, "DENIED", reason)
    return None


def unjudged(host: Host, scope: Scope) -> bool:
    """Whether a scope hides the policy of the host and has none of its own: while that is being replaced, or has failed. Nothing runs
    then, since what it forbade must not be free."""
    return host.get(POLICY, scope) is None and host.get(POLICY) is not None


def judged(ctx: Context, policy: Policy, request: ToolRequest) -> Decision:
    """What the policy says; one that fails denies."""
    try:
        return policy.decide(request)
    except Exception as error:
        ctx.host.contain("a policy", error)
        return Decision("deny", "the policy failed")


async def execute(ctx: Context, prepared: Prepared, call: ToolCall, invocation: Invocation) -> tuple[ToolResult, bool]:
    """Run a call that may run; the second value says whether it concludes the turn."""
    tool = prepared.tool
    try:
        event = RunTool(tool, prepared.arguments, invocation)
        output = await within(tool.timeout, ctx.around(event, call_body, at=invocation.scope))
    except ToolError as error:
        return failed(call, error.code, bounded(str(error), invocation)), False
    except Refused as error:
        return failed(call, "DENIED", bounded(str(error), invocation)), False
    except TimeoutError:
        return failed(call, "TIMEOUT", f"{tool.name} did not end within {tool.timeout:g} s"), False
    except StorageError as error:
        return failed(call, error.code, str(error)), False
    except Exception as error:
        log.warning("tool %s raised", tool.name, exc_info=error)
        return failed(call, "RAISED", bounded(f"{tool.name} raised {type(error).__name__}: {error}", invocation)), False
    content = tuple(Text(bounded(part.text, invocation)) if isinstance(part, Text) else part for part in output.content)
    return ToolResult(call.id, content, output.is_error, output.code), output.concludes


async def call_body(event: RunTool) -> Output:
    """Run the body of a tool: coroutines in the loop, plain functions in a thread."""
    arguments = dict(event.arguments)
    if event.tool.invocation:
        arguments[event.tool.invocation] = event.invocation
    if inspect.iscoroutinefunction(event.tool.body):
        value: Any = await event.tool.body(**arguments)
    else:
        value = await asyncio.to_thread(event.tool.body, **arguments)
    if isinstance(value, Output):
        return value
    if not isinstance(value, str):
        raise TypeError(f"it returned {type(value).__name__} instead of text")
    return Output((Text(value),))


async def within(seconds: float | None, body: Awaitable[Output]) -> Output:
    """Run a body, cancel it past its time, and go on without it if it does not heed that.

    :raises TimeoutError: past its time.
    """
    if seconds is None:
        return await body
    task = asyncio.ensure_future(body)
    try:
        done, _ = await asyncio.wait((task,), timeout=seconds)
    except asyncio.CancelledError:
        await end(task)
        raise
    if done:
        return task.result()
    await end(task)
    raise TimeoutError


async def end(task: asyncio.Future[Output]) -> None:
    """Cancel a task and wait for it, but not for ever: a body that swallows its cancellation is left behind, and logged."""
    task.cancel()
    done, _ = await asyncio.wait((task,), timeout=GRACE)
    if not done:
        log.warning("a tool does not heed its cancellation; it is left behind")
    elif not task.cancelled():
        task.exception()


def bounded(text: str, invocation: Invocation) -> str:
    """The text as the model is shown it: a long one is kept in a file, its head and tail are shown."""
    text = clean(text)
    if len(text) <= INLINE_LIMIT:
        return text
    try:
        kept = f"the whole text is in {invocation.spill(text.encode(), 'txt')}"
    except OSError as error:
        kept = f"the whole text could not be kept: {os.strerror(error.errno or 0)}"
    left_out = len(text) - HEAD - TAIL
    return f"{text[:HEAD]}\n\n[… {left_out} characters left out; {kept} …]\n\n{text[-TAIL:]}"
