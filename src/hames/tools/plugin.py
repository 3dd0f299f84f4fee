"""The service that holds tools and runs calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from hames.content.messages import ToolCall, ToolResult
from hames.content.request import ToolSpec
from hames.kernel import Context, Effect, Key, Registry, Scope, plugin
from hames.policy import Mode
from hames.sandbox import SANDBOX, Confinement
from hames.tools.approvals import Approvals
from hames.tools.pipeline import Guard, Prepared, allowed, execute, failed, prepare
from hames.tools.tool import Invocation, Tool

PARALLEL = 10  # calls of one step that run beside each other


@dataclass(slots=True)
class _Pending:
    """One call on its way."""

    call: ToolCall
    invocation: Invocation
    prepared: Prepared | None = None
    result: ToolResult | None = None
    concludes: bool = False


class Tools:
    """The tools that a scope sees, and the way of their calls."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.registry: Registry[Tool] = Registry("tool")
        self.guards: Registry[Guard] = Registry("guard", denies=True)
        self.approvals = Approvals(ctx)
        self._specs: dict[int, tuple[dict[str, Tool], tuple[ToolSpec, ...]]] = {}

    def register(self, ctx: Context, tool: Tool, *, granted: bool = False) -> Effect:
        """Offer a tool in the scope of ``ctx`` for its lifetime.

        :param granted: seen in spite of the seal of the scope; for what the runner of an agent itself gives it.
        :returns: takes it back earlier.
        """
        return self.registry.add(ctx, tool.name, tool, granted=granted)

    def guard(self, ctx: Context, name: str, guard: Guard) -> None:
        """Add a guard, which can only deny. One that raises denies."""
        self.guards.add(ctx, name, guard)

    def specs(self, scope: Scope) -> tuple[ToolSpec, ...]:
        """What a model is shown in ``scope``, in order; the same object for as long as it does not change."""
        view = self.registry.view(scope)
        key = hash(tuple(map(id, view.values())))
        found = self._specs.get(key)
        if found is None or found[0] != view:
            specs = tuple(ToolSpec(tool.name, tool.description, tool.parameters) for tool in view.values())
            if len(self._specs) > 256:
                self._specs.clear()
            found = self._specs[key] = (view, specs)
        return found[1]

    async def run(
        self,
        calls: Sequence[ToolCall],
        scope: Scope,
        surroundings: Callable[[ToolCall], Invocation],
        begin: Callable[[Sequence[ToolCall]], Awaitable[None]],
        refuse: Callable[[ToolCall], ToolResult | None] = lambda call: None,
        ceiling: Callable[[], Mode] = lambda: "full",
    ) -> tuple[list[ToolResult], bool]:
        """Run the calls of one answer and return their results in order, and whether one concludes the turn.

        Tools that may run in parallel do so until one comes that may not. When cancelled, what runs is cancelled and awaited, and
        every call still gets a result.

        :param begin: awaited before bodies run: records the intent.
        :param refuse: gives the result of a call that shall not run, or None.
        :param ceiling: gives the widest mode that a call may have, asked when it is about to be judged.
        """
        pending = [_Pending(call, surroundings(call)) for call in calls]
        batch: list[_Pending] = []
        cancelled: asyncio.CancelledError | None = None
        for item in pending:
            if cancelled is not None:
                break
            try:
                if batch and not (self._parallel(item.call, scope) and len(batch) < PARALLEL):
                    await self._run_batch(batch, begin)
                    batch = []
                await self._admit(item, scope, refuse, ceiling)
                if item.prepared is not None:
                    batch.append(item)
                    if not item.prepared.tool.parallel:
                        await self._run_batch(batch, begin)
                        batch = []
            except asyncio.CancelledError as error:
                cancelled = error
        if batch and cancelled is None:
            try:
                await self._run_batch(batch, begin)
            except asyncio.CancelledError as error:
                cancelled = error
        results = [item.result or failed(item.call, "NOT_STARTED", "cancelled before it started") for item in pending]
        if cancelled is not None:
            raise Cancelled(results) from cancelled
        return results, any(item.concludes for item in pending)

    def _parallel(self, call: ToolCall, scope: Scope) -> bool:
        tool = self.registry.get(scope, call.name)
        return tool is not None and tool.parallel

    async def _admit(
        self, item: _Pending, scope: Scope, refuse: Callable[[ToolCall], ToolResult | None], ceiling: Callable[[], Mode]
    ) -> None:
        item.result = refuse(item.call)
        if item.result is not None:
            return
        sandbox = self._ctx.host.get(SANDBOX, scope)
        if sandbox is not None:
            item.invocation.sandbox = sandbox
        item.invocation.ceiling = ceiling()
        item.invocation.confinement = Confinement("workspace-write", item.invocation.cwd, item.invocation.scratch, False)
        prepared = prepare(self.registry.get(scope, item.call.name), item.call, item.invocation)
        if isinstance(prepared, ToolResult):
            item.result = prepared
            return
        item.invocation.confinement = Confinement()  # until a policy says otherwise: without one nothing is confined
        item.result = await allowed(self._ctx, prepared, item.call, item.invocation, self.guards.view(scope), self.approvals)
        if item.result is None:
            item.prepared = prepared

    async def _run_batch(self, batch: list[_Pending], begin: Callable[[Sequence[ToolCall]], Awaitable[None]]) -> None:
        await begin([item.call for item in batch])
        if len(batch) == 1:
            await self._run_one(batch[0])
            return
        tasks = [asyncio.create_task(self._run_one(item)) for item in batch]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise

    async def _run_one(self, item: _Pending) -> None:
        assert item.prepared is not None
        try:
            item.result, item.concludes = await execute(self._ctx, item.prepared, item.call, item.invocation)
        except asyncio.CancelledError:
            item.result = failed(item.call, "ABORTED", "cancelled while it ran; look at what it changed before you repeat it")
            raise


class Cancelled(asyncio.CancelledError):
    """The calls were cancelled; every one has a result all the same."""

    def __init__(self, results: list[ToolResult]) -> None:
        super().__init__()
        self.results = results


TOOLS: Key[Tools] = Key("tools")


@plugin(name="tools")
def tools(ctx: Context, config: None) -> None:
    """Provide the registry of tools."""
    ctx.provide(TOOLS, Tools(ctx))
