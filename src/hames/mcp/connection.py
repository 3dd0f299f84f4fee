"""One connection and the task that owns it: it opens, serves, opens again after a loss, and closes. No other task does.

What others see of it is a status, the last good listing, and calls. Whoever waits for a call hears of a loss at once.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from hames.mcp.config import Launch
from hames.mcp.events import Status
from hames.mcp.http import UNREACHED, HttpTransport
from hames.mcp.listing import Listing, listed
from hames.mcp.lost import Lost, said, why
from hames.mcp.process import ProcessTransport
from hames.tools import ToolError

if TYPE_CHECKING:
    from mcp import Client

log = logging.getLogger("hames.mcp")
for name in ("mcp", "client"):  # what the client library says of its own, secrets and all, is for nobody
    logging.getLogger(name).propagate = False
    logging.getLogger(name).addHandler(logging.NullHandler())
T = TypeVar("T")

SETTLE = 0.1  # seconds after a change of the list before it is asked for
CALM, HURRIED = 10.0, 30.0  # seconds without a change after which it may come quickly again; and between two looks at most
NOTICING = 0.3  # seconds after which the owner has seen what ended a connection to an address
CLOSING = 5.0  # seconds that closing has before all is killed
LOST_SESSION = "Session terminated"
CLOSED = ("Connection closed", "SSE stream ended", "server answered a request")  # how the client's own errors of a loss begin

Progress = Callable[[float, float | None, str], None]
Elicit = Callable[[Any], Awaitable[Any]]


class Active:
    """A call that is under way.

    :param whose: the session of the agent that makes it.
    :param elicit: asks the person before that agent; None where there is none.
    """

    def __init__(self, whose: str, idle: float, elicit: Elicit | None) -> None:
        self.whose = whose
        self.idle = idle
        self.elicit = elicit
        self.asking: set[asyncio.Future[Any]] = set()
        self.limit: asyncio.Timeout | None = None

    def alive(self, waits: bool = False) -> None:
        """There is a sign of life.

        :param waits: somebody is asked, and that takes as long as it takes.
        """
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(None if waits else asyncio.get_running_loop().time() + self.idle)

    async def over(self) -> None:
        """It has ended: nobody is asked for it any more."""
        self.limit = None
        for asking in tuple(self.asking):
            asking.cancel()
        if self.asking:
            await asyncio.wait(tuple(self.asking))


current: ContextVar[Active | None] = ContextVar("hames_mcp_call", default=None)


class Connection:
    """A connection to a server, shared by all who lease it.

    :param name: what messages call the server.
    :param environment: what its program sees.
    :param auth: makes what logs in; None where nobody has to.
    :param patience: seconds that it has to connect, where somebody logs in meanwhile; 0 for those of the launch.
    :param gate: passed one at a time by those who start, so that many at once do not take each other's time.
    :ivar listing: what the server offers, as last seen whole; None before.
    :ivar reason: why it is not ready.
    :ivar starts: how often it was opened.
    """

    def __init__(
        self,
        launch: Launch,
        name: str,
        environment: Mapping[str, str],
        auth: Callable[[], Any],
        *,
        patience: float = 0.0,
        gate: asyncio.Semaphore | None = None,
    ) -> None:
        self.launch = launch
        self.name = name
        self.status: Status = "connecting"
        self.reason = ""
        self.listing: Listing | None = None
        self.starts = 0
        self._environment = environment
        self._auth = auth
        self._gate = gate or asyncio.Semaphore()
        self._patience = patience or launch.connect_timeout
        self._client: Client | None = None
        self._transport: ProcessTransport | HttpTransport | None = None
        self._pulse = asyncio.Event()
        self._news = asyncio.Event()
        self._again = asyncio.Event()
        self._stale = False
        self._over: Lost | None = None
        self._ended: tuple[Client | None, Lost] = (None, Lost(""))
        self._active: dict[Active, None] = {}
        self._watchers: dict[object, Callable[[], None]] = {}
        self._closing = False
        self._since: float | None = None
        self._hurry = 0.0
        self._hurried = False
        self._last_change = 0.0
        self._task = asyncio.create_task(self._run(), name=f"mcp {name}")

    # for those who lease it

    def watch(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Hear of every change of status or listing, until the returned function is called. A watcher that fails harms nobody else."""
        key = object()
        self._watchers[key] = heard
        return lambda: self._watchers.pop(key, None) and None

    async def settled(self) -> Status:
        """Wait until the first attempt to open it has succeeded or failed."""
        while self.status == "connecting" and self.listing is None:
            await self._changed()
        return self.status

    def reconnect(self) -> None:
        """Try at once what would be tried later, or not any more."""
        self._again.set()

    async def request(self, ask: Callable[[Client], Awaitable[T]], call: Active | None = None, idle: float | None = None) -> T:
        """Ask the server something; waits for a connection that is being made.

        :param idle: seconds without a sign of life; None for those that it had to connect.
        :raises ToolError: whatever keeps it from being answered.
        """
        from mcp.shared.exceptions import MCPError

        call = call or Active("", idle or self.launch.connect_timeout, None)
        for attempt in (1, 2):
            client = await self._ready()
            token = current.set(call)
            self._active[call] = None
            try:
                async with asyncio.timeout(call.idle) as call.limit:
                    return await ask(client)
            except TimeoutError:
                raise ToolError(f"{self.name} gave no sign of life for {call.idle:g} s", "TIMEOUT") from None
            except MCPError as error:
                lost = await self._verdict(client, error)
                if lost is None:
                    raise ToolError(self.launch.redacted(error.message)[:2000] or "it failed without a reason", "MCP_ERROR") from None
                if lost.unsent and attempt == 1:
                    continue
                what = "it was not sent" if lost.unsent else "whether it did anything is not known"
                raise ToolError(f"the connection to {self.name} was lost ({lost.reason}); {what}", "MCP_LOST") from None
            except (ValueError, RuntimeError) as error:  # an answer that is none, by the protocol
                what = self.launch.redacted(f"{type(error).__name__}: {error}")[:500]
                raise ToolError(f"the answer of {self.name} is not valid: {what}", "MCP_ERROR") from None
            finally:
                self._active.pop(call, None)
                current.reset(token)
                await call.over()
        raise AssertionError("unreachable")

    async def _ready(self) -> Client:
        """The client, when there is one.

        :raises ToolError: if there is none in the time that a server has to connect.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self.launch.connect_timeout):
                while self._client is None and self.status not in ("failed", "closed"):
                    await self._changed()
        if self._client is None:
            raise ToolError(f"the MCP server {self.name} is not available: {self.reason or self.status}", "MCP_UNAVAILABLE")
        return self._client

    async def _verdict(self, client: Client, error: Any) -> Lost | None:
        """Whether an error came of a loss. Of programs the owner knows why; of addresses it is found out.

        What is known not to have arrived may be asked again; that another request did not says nothing of this one.
        """
        from mcp_types import CONNECTION_CLOSED

        alone = len(self._active) == 1
        transport = self._transport
        ours = error.code == CONNECTION_CLOSED and error.message.startswith(CLOSED)
        if not isinstance(transport, HttpTransport):
            if not ours:
                return None
            await self._gone(client, CLOSING)
            return self._loss(client, error.message, alone)
        said, transport.oversized = transport.oversized or error.message, ""
        if error.message.startswith(UNREACHED):
            self._finish(Lost(error.message))
            await self._gone(client, CLOSING)
            return Lost(error.message, unsent=True)
        # A request that was refused did nothing; one whose stream has ended may have.
        refused = not ours and (transport.forgotten or error.message == LOST_SESSION)
        if not (ours or refused):
            return None
        await self._gone(client, NOTICING)
        if self._client is not client:
            return self._loss(client, said, alone)
        if await self._answers(client):  # it was this request alone
            return Lost(said) if ours else None
        reason = "the server has forgotten the session" if refused else said
        self._finish(Lost(reason))
        await self._gone(client, CLOSING)
        return Lost(reason, unsent=refused)

    def _loss(self, client: Client, otherwise: str, alone: bool) -> Lost:
        """How a client was lost, for a request that was under way."""
        ended, lost = self._ended
        return Lost(lost.reason, unsent=lost.unsent and alone) if ended is client else Lost(otherwise)

    async def _gone(self, client: Client, seconds: float) -> None:
        """Wait until the owner has let go of a client, or for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._client is client:
                    await self._changed()

    async def _answers(self, client: Client) -> bool:
        """Whether a server at an address is there and still knows us, whatever it thinks of the question."""
        from mcp.shared.exceptions import MCPError

        try:
            async with asyncio.timeout(CLOSING):
                if client.session.initialize_result is None:
                    await client.list_tools(cache_mode="bypass")
                else:
                    await client.session.send_ping()
        except MCPError as error:
            forgotten = isinstance(self._transport, HttpTransport) and self._transport.forgotten
            return not forgotten and not error.message.startswith((UNREACHED, LOST_SESSION, "Connection closed"))
        except (TimeoutError, ValueError, RuntimeError):
            return False
        return True

    async def close(self) -> None:
        """End it, with everything that it started; whoever waits for a call hears of it."""
        self._closing = True
        self._task.cancel()
        seconds = CLOSING if isinstance(self._transport, ProcessTransport) else CLOSING / 2
        done, _ = await asyncio.wait((self._task,), timeout=seconds)
        if not done:
            self.kill()
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=CLOSING)
        if self.status != "closed":  # the task had not begun
            self._become("closed", "it was closed")

    def kill(self) -> None:
        """End its program at once."""
        if isinstance(self._transport, ProcessTransport) and self._transport.group is not None:
            self._transport.group.kill()

    # the owner

    async def _run(self) -> None:
        policy = self.launch.reconnect
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            await asyncio.to_thread(importlib.import_module, "mcp")
            while True:
                self._again.clear()
                self._since = None
                lost = await self._serve()
                if self._closing:
                    return
                if lost.again:
                    continue
                lasted = self._since is not None and loop.time() - self._since >= policy.longest
                failures = 1 if lasted else failures + 1
                final = lost.lasting or failures > policy.attempts
                self._become("failed" if final else "waiting", self.launch.redacted(lost.reason))
                log.info("MCP server %s: %s%s", self.name, self.reason, "; it is given up" if final else "")
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if final else min(policy.longest, policy.initial * 2 ** (failures - 1))):
                        await self._again.wait()
                    failures = 0
                self._become("connecting", self.reason)
        finally:
            self._over = self._over or Lost("it was closed")
            self._become("closed", "it was closed")

    async def _serve(self) -> Lost:
        """Open it and see to it until it is lost; why it was."""
        from mcp_types import Implementation

        from hames import __version__
        from mcp import Client

        self._over, self._stale = None, False
        self._news.clear()
        self.starts += 1
        transport: ProcessTransport | HttpTransport
        if self.launch.argv:
            transport = ProcessTransport(self.launch, self.name, self._environment, self._finish)
        else:
            transport = HttpTransport(self.launch, self._auth())
        self._transport = transport
        client = Client(
            transport,
            mode=self.launch.protocol,
            cache=None,
            client_info=Implementation(name="hames", version=__version__),
            message_handler=self._message,
            elicitation_callback=self._elicit,
        )
        await self._gate.acquire()
        release: Callable[[], None] | None = self._gate.release
        lost = Lost("it was closed")
        try:
            async with asyncio.timeout(self._patience) as limit, client:
                # The server's own schema of results is its affair, and its patterns could take for ever.
                client.session.validate_tool_result = _valid  # pyright: ignore[reportAttributeAccessIssue]
                listing = await listed(client)
                limit.reschedule(None)
                self._client = client
                self.listing = listing
                release = release()
                self._since = asyncio.get_running_loop().time()
                self._become("ready", "")
                await self._attend(client)
        except TimeoutError:
            lost = self._over or Lost(f"it did not answer within {self._patience:g} s{said(transport)}")
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            lost = self._over or Lost("the connection was given up")
        except Exception as error:  # recorded: the reason of the loss
            lost = self._over or why(error, transport)
        else:
            lost = self._over or Lost("the connection ended")
        finally:
            self._client = None
            self._ended = (client, lost)
            if release is not None:
                release()
            self._pulse_now()
        return lost

    async def _attend(self, client: Client) -> None:
        """Look at the list again when it has changed, less and less often where it changes all the time."""
        loop = asyncio.get_running_loop()
        listening = asyncio.create_task(self._listen(client), name=f"mcp {self.name} changes")
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                if self._over is not None:
                    raise self._over
                if not self._stale:
                    continue
                now = loop.time()
                self._hurry = SETTLE if now - self._last_change > CALM + self._hurry else min(HURRIED, max(SETTLE, self._hurry) * 2)
                if self._hurry == HURRIED and not self._hurried:
                    self._hurried = True
                    log.warning("MCP server %s changes its list all the time; it is looked at every %g s", self.name, HURRIED)
                self._last_change = now
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._hurry):
                        while self._over is None:
                            await self._news.wait()
                            self._news.clear()
                if self._over is not None:
                    raise self._over
                self._stale = False
                await self._look_again(client)
        finally:
            listening.cancel()
            await asyncio.wait((listening,))

    async def _look_again(self, client: Client) -> None:
        """Take a new listing whole, or keep the one that there is."""
        from mcp.shared.exceptions import MCPError

        try:
            async with asyncio.timeout(self.launch.connect_timeout):
                listing = await listed(client)
        except (TimeoutError, MCPError, Lost, ValueError, RuntimeError) as error:
            if self._over is None:
                what = self.launch.redacted(f"{type(error).__name__}: {error}")[:300]
                log.warning("MCP server %s: its new list cannot be used, and the old one is kept: %s", self.name, what)
            return
        if listing != self.listing:
            self.listing = listing
            self._become("ready", "")

    async def _listen(self, client: Client) -> None:
        """Hear of changes where the protocol wants that to be asked for."""
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
        from mcp.shared.exceptions import MCPError

        has = client.server_capabilities
        tools = bool(has.tools and has.tools.list_changed)
        prompts = bool(has.prompts and has.prompts.list_changed)
        if not (tools or prompts):
            return
        with suppress(ListenNotSupportedError, SubscriptionLost, MCPError, TimeoutError):
            async with client.listen(tools_list_changed=tools, prompts_list_changed=prompts) as changes:
                async for _ in changes:
                    self._changed_list()

    async def _message(self, message: Any) -> None:
        from mcp_types import PromptListChangedNotification, ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification | PromptListChangedNotification):
            self._changed_list()

    def _changed_list(self) -> None:
        self._stale = True
        self._news.set()

    async def _elicit(self, context: Any, params: Any) -> Any:
        """Let the person answer before whose agent the call is made; a call of nobody, or of several, is declined."""
        from mcp_types import ElicitResult

        call = current.get()
        if call is None:
            sessions = {each.whose for each in self._active}
            call = next(iter(self._active), None) if len(sessions) == 1 else None
        if call is None or call.elicit is None:
            return ElicitResult(action="decline")
        call.alive(waits=True)
        asking = asyncio.ensure_future(call.elicit(params))
        call.asking.add(asking)
        try:
            await asyncio.wait((asking,))
        finally:
            asking.cancel()
            call.asking.discard(asking)
            call.alive()
        return ElicitResult(action="cancel") if asking.cancelled() else asking.result()

    def _finish(self, lost: Lost) -> None:
        """There is nothing more to come."""
        if self._over is None:
            self._over = lost
            self._news.set()

    def _become(self, status: Status, reason: str) -> None:
        self.status, self.reason = status, reason
        self._pulse_now()
        for heard in tuple(self._watchers.values()):
            try:
                heard()
            except Exception:  # recorded: one who shares the connection harms no other
                log.exception("MCP server %s: somebody who shares it failed", self.name)

    def _pulse_now(self) -> None:
        pulse, self._pulse = self._pulse, asyncio.Event()
        pulse.set()

    async def _changed(self) -> None:
        await self._pulse.wait()


async def _valid(name: str, result: Any) -> None:
    """Nothing of a result is looked at: it is handed on as it came."""
