"""Running shell commands: each in a process group of its own, which ends with the call."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Annotated, BinaryIO

from pydantic import BaseModel, ConfigDict, Field

from hames.content.messages import Text
from hames.kernel import Context, plugin
from hames.tools import TOOLS, Invocation, Output, ToolError, tool

HEAD, TAIL = 20_000, 20_000  # bytes of the output that the model is shown
SPILL_LIMIT = 256 * 1024 * 1024  # bytes of it that are kept in a file
POLITE = 2.0  # seconds between SIGTERM and SIGKILL
DRAIN = 0.5  # seconds that output may still come after the shell has ended


class BashConfig(BaseModel):
    """How commands run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout: float = Field(default=120.0, gt=0)
    """Seconds that a command has where the model names no other limit."""
    longest: float = Field(default=1800.0, gt=0)
    """Seconds that the model may name at most."""
    withhold: list[str] = ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "DEEPSEEK_API_KEY"]
    """Environment variables that commands do not see."""


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


def kill_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def end_group(process: asyncio.subprocess.Process) -> None:
    """End the whole group, politely at first; also what a command left in the background. Cancelling this skips the politeness."""
    try:
        if process.returncode is None:
            kill_group(process, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), POLITE)
    finally:
        kill_group(process, signal.SIGKILL)
    await process.wait()
    for _ in range(200):  # a killed process is gone a little later
        try:
            os.killpg(process.pid, 0)
        except OSError:
            return
        await asyncio.sleep(0.005)


async def run_command(command: str, seconds: float, environment: dict[str, str], call: Invocation) -> Output:
    """Run a command to its end, its time or its cancellation; nothing of its group is left then."""
    capture = Capture(call)
    # A pipe of our own: asyncio's would make wait() wait for everybody who holds its other end.
    reading_end, writing_end = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading_end, "rb")
    )
    try:
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            command,
            cwd=call.cwd,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writing_end,
            stderr=writing_end,
            start_new_session=True,
        )
    except OSError as error:
        transport.close()
        raise ToolError(f"the shell could not be started: {error}", "NOT_STARTED") from None
    finally:
        os.close(writing_end)
    reading = asyncio.create_task(drain(stream, capture))
    late = False
    try:
        try:
            await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            late = True
        if not late:
            await asyncio.wait((reading,), timeout=DRAIN)
    finally:
        ending = asyncio.ensure_future(end_group(process))
        try:
            await asyncio.shield(ending)
        finally:
            await ending
            reading.cancel()
            await asyncio.wait((reading,))
            transport.close()
            capture.close()
    text = capture.text
    if late:
        return Output((Text(f"{text}\n[stopped after {seconds:g} s, with all its processes]"),), True, "TIMEOUT")
    status = process.returncode or 0
    if status:
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return Output((Text(f"{text}\n[{how}]"),), True, "EXIT_STATUS")
    return Output((Text(text or "[no output]"),))


@plugin(config=BashConfig, needs=(TOOLS,), name="bash")
def bash(ctx: Context, config: BashConfig) -> None:
    """The tool ``bash``."""

    @tool("read", "write", "execute", name="bash", timeout=None)
    async def run(command: str, timeout: Annotated[float | None, Field(gt=0)] = None, *, call: Invocation) -> Output:
        """Run a command in bash, in the working directory. Output and errors come together, with the exit status if it is not 0.
        Nothing is typed into it, and what it leaves in the background ends with it.

        :param command: what to run.
        :param timeout: seconds after which it is stopped.
        """
        environment = {name: value for name, value in os.environ.items() if name not in config.withhold}
        return await run_command(command, min(timeout or config.timeout, config.longest), environment, call)

    ctx.use(TOOLS).register(ctx, run)
