"""Running shell commands: each in a process group of its own, which ends with the call."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, BinaryIO

from pydantic import Field

from hames.agents import Agent
from hames.compose.config import RowConfig
from hames.content.messages import Text
from hames.kernel import Context, plugin
from hames.policy import Capability
from hames.policy.shell import classify
from hames.sandbox import scrubbed
from hames.sandbox.port import Command
from hames.supervise import Group
from hames.toolkit.jobs import JOBS
from hames.tools import TOOLS, Invocation, Needs, Output, ToolError, tool

HEAD, TAIL = 20_000, 20_000  # bytes of the output that the model is shown
SPILL_LIMIT = 256 * 1024 * 1024  # bytes of it that are kept in a file
DRAIN = 0.5  # seconds that output may still come after the shell has ended


class BashConfig(RowConfig):
    """How commands run."""

    timeout: float = Field(default=120.0, gt=0)
    """Seconds that a command has where the model names no other limit."""
    longest: float = Field(default=1800.0, gt=0)
    """Seconds that the model may name at most."""
    withhold: list[str] = []
    """Patterns of environment variables that commands do not see, beside those that look like secrets."""
    keep: list[str] = []
    """Patterns of those that they see although they look like secrets."""


class Capture:
    """Output as it comes: head and tail in memory, all of it in a file once it is long."""

    def __init__(self, call: Invocation) -> None:
        self._call = call
        self._head: bytearray = bytearray()
        self._tail: bytearray = bytearray()
        self._file: BinaryIO | None = None
        self._kept = ""  # where the whole output is, or why it is nowhere
        self.size = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if not self._kept and len(self._head) + len(self._tail) + len(data) > HEAD + TAIL:
            self._spill()
        if self._file is not None and self.size <= SPILL_LIMIT:
            try:
                self._file.write(data)
            except OSError as error:
                self._give_up(error)
        room = HEAD - len(self._head)
        self._head += data[:room] if room > 0 else b""
        self._tail += data[max(room, 0) :]
        if self._kept and len(self._tail) > TAIL:
            del self._tail[:-TAIL]

    def _spill(self) -> None:
        try:
            path = self._call.spill(bytes(self._head + self._tail), "log")
            self._file = path.open("ab")
            self._kept = f"the output is in {path}"
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """A full disk costs the file, not the command."""
        self._kept = f"the whole output could not be kept: {os.strerror(error.errno or 0)}"
        self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._kept = f"the whole output could not be kept: {os.strerror(error.errno or 0)}"

    @property
    def text(self) -> str:
        head, tail = self._head.decode("utf-8", "replace"), self._tail.decode("utf-8", "replace")
        if not self._kept:
            return head + tail
        left_out = self.size - len(self._head) - len(self._tail)
        return f"{head}\n[… {left_out} bytes left out; {self._kept} …]\n{tail}"


async def drain(stream: asyncio.StreamReader, capture: Capture) -> None:
    while data := await stream.read(1 << 16):
        capture.add(data)


async def run_command(
    command: str, seconds: float, environment: dict[str, str], call: Invocation, capture: Capture | None = None
) -> Output:
    """Run a command, confined as the call is, to its end, its time or its cancellation; nothing of its group is left then.

    :param capture: takes its output; None for one of its own.
    """
    if call.confinement.access != "full" and call.scratch is not None:
        environment = {**environment, "TMPDIR": str(call.scratch)}
    with call.sandbox.command(["bash", "-c", command], call.confinement, call.cwd) as confined:
        output = await run_confined(confined, seconds, environment, call, capture or Capture(call))
    if confined.trespasses:
        return replace(output, content=(*output.content, Text("\n".join(confined.trespasses))), is_error=True, code="PROTECTED")
    return output


async def run_confined(command: Command, seconds: float, environment: dict[str, str], call: Invocation, capture: Capture) -> Output:
    reading_end, writing_end = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading_end, "rb")
    )
    reading = asyncio.create_task(drain(stream, capture))
    late = False
    try:
        try:
            group = Group(
                command.argv,
                cwd=call.cwd,
                environment=environment,
                stdout=writing_end,
                stderr=writing_end,
                pass_fds=command.pass_fds,
                watchers=command.watchers,
                cgroup=True,
            )
        except (OSError, ValueError) as error:  # ValueError: a zero byte, or half a character
            raise ToolError(f"the shell could not be started: {error}", "NOT_STARTED") from None
        finally:
            os.close(writing_end)
        try:
            late = not await group.ends_within(seconds)
            if not late:
                await asyncio.wait((reading,), timeout=DRAIN)
        finally:
            await group.end()
        await asyncio.wait((reading,), timeout=DRAIN)  # what it said while it was ended, too
    finally:
        reading.cancel()
        await asyncio.wait((reading,))
        transport.close()
        capture.close()
    text = capture.text
    if late:
        return Output((Text(f"{text}\n[stopped after {seconds:g} s, with all its processes]"),), True, "TIMEOUT")
    status = group.returncode or 0
    if status:
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return Output((Text(f"{text}\n[{how}]{hint(text, call)}"),), True, "EXIT_STATUS")
    return Output((Text(text or "[no output]"),))


NETWORK_CLOSED = re.compile(r"could not resolve|name resolution|network is unreachable|getaddrinfo|EAI_AGAIN|ENETUNREACH", re.IGNORECASE)
PLACE_CLOSED = re.compile(r"read-only file system|permission denied|EROFS|EACCES|operation not permitted", re.IGNORECASE)


def hint(text: str, call: Invocation) -> str:
    """What the agent should know of the sandbox when a command fails as if it had met it."""
    confinement = call.confinement
    if confinement.access == "full":
        return ""
    if not confinement.network and NETWORK_CLOSED.search(text):
        return "\n[the network is closed to commands; ask for it with network: true]"
    if not PLACE_CLOSED.search(text):
        return ""
    if confinement.access == "read-only":
        return "\n[commands write nothing here but $TMPDIR]"
    means = call.sandbox.enforcement.means
    more = "; new names at the top of the workspace are made with the tool write" if means == "landlock" else ""
    return f"\n[commands write only the workspace, without what is protected in it, and $TMPDIR{more}]"


def needs(arguments: Mapping[str, Any], call: Invocation) -> Needs:
    """What a command needs, as far as one can tell."""
    capabilities = classify(arguments["command"])
    if arguments["network"]:
        capabilities = frozenset[Capability]((*capabilities, "network"))
    return Needs(capabilities, unconfined=arguments["unconfined"])


@plugin(config=BashConfig, needs=(TOOLS,), wants=(JOBS,), name="bash")
def bash(ctx: Context, config: BashConfig) -> None:
    """The tool ``bash``."""
    jobs = ctx.find(JOBS)

    @tool("read", "write", "execute", name="bash", timeout=None, needs=needs)
    async def run(
        command: str,
        timeout: Annotated[float | None, Field(gt=0)] = None,
        network: bool = False,
        unconfined: str = "",
        background: bool = False,
        *,
        call: Invocation,
    ) -> Output:
        """Run a command in bash, in the working directory. Output and errors come together, with the exit status if it is not 0.
        Nothing is typed into it, and what it leaves running ends with it. It runs in a sandbox: it writes the workspace and
        $TMPDIR, and the network is closed.

        :param command: what to run.
        :param timeout: seconds after which it is stopped.
        :param network: whether it needs the network; the user may be asked.
        :param unconfined: why it must run outside of the sandbox, if it must; the user is asked.
        :param background: return at once and let it run on; you are told when it ends. For servers and long work.
        """
        environment = scrubbed(os.environ, config.withhold, config.keep)
        if background:
            agent = call.scope.key
            if jobs is None or not isinstance(agent, Agent):
                raise ToolError("commands cannot run in the background here", "NO_JOBS")
            capture = Capture(call)
            seconds = min(timeout or jobs.config.max_seconds, jobs.config.max_seconds)
            job = jobs.start(agent, command, lambda: capture.text, lambda: run_command(command, seconds, environment, call, capture))
            return Output((Text(f"{job.id} runs in the background; see it with job_output"),))
        return await run_command(command, min(timeout or config.timeout, config.longest), environment, call)

    ctx.use(TOOLS).register(ctx, run)
