"""A server that is a program: messages are lines of its input and output, and it ends with its connection.

The transport of the specification (``basic/transports``, stdio), made anew because the client's own leaves children of a polite server
alive, takes lines of any length and cuts them in quadratic time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hames.mcp.config import Launch
from hames.mcp.lines import EDGE, Lines, TooLong, answered
from hames.mcp.lost import Lost
from hames.mcp.pace import Pace, mended, sane
from hames.supervise import Group

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

log = logging.getLogger("hames.mcp")

LEAVING = 1.0  # seconds that a server has to end by itself when its input has ended
LAST_WORDS = 0.5  # seconds that its output may still come when it has ended
SAID = 4096  # bytes of its error output that are kept
NOISE = 200  # lines of a connection that are no messages
WAITING = 100  # messages to it that wait to be written
CHUNK = 1 << 16


class ProcessTransport:
    """Starts the program on entering, ends it and all that came of it on leaving.

    :param environment: what the program sees; the launch's own is added.
    :param over: called when there is nothing more to come, once, with the reason.
    """

    def __init__(self, launch: Launch, name: str, environment: Mapping[str, str], over: Any) -> None:
        self._launch = launch
        self._name = name
        self._environment = {**environment, **dict(launch.env)}
        self._over = over
        self._said = b""
        self._noise: deque[str] = deque(maxlen=1)
        self._tasks: list[asyncio.Task[None]] = []
        self._transports: list[asyncio.BaseTransport] = []
        self._status: int | None = None
        self._asked = False  # whether it is we who ended it
        self._leaving = False
        self._eof = False
        self._pace = Pace(lambda: self._once("it sends more than it may, and is slowed down"))
        self.refused = ""
        self.group: Group | None = None

    async def __aenter__(self) -> tuple[MemoryObjectReceiveStream[Any], MemoryObjectSendStream[SessionMessage]]:
        import anyio

        await self._start()
        to_session, from_server = anyio.create_memory_object_stream[Any](0)
        # A server that does not read is no reason to wait where a call is given up.
        to_server, from_session = anyio.create_memory_object_stream[Any](WAITING)
        self._streams = (to_session, from_server, to_server, from_session)
        self._tasks += [
            asyncio.create_task(self._read(to_session), name=f"mcp {self._name} output"),
            asyncio.create_task(self._write(from_session), name=f"mcp {self._name} input"),
            asyncio.create_task(self._listen(), name=f"mcp {self._name} errors"),
            asyncio.create_task(self._attend(to_session), name=f"mcp {self._name} end"),
        ]
        return from_server, to_server

    async def _start(self) -> None:
        program = self._launch.argv[0]
        path = shutil.which(program, path=self._environment.get("PATH"))
        if path is None:
            raise Lost(f"there is no program {program!r}", lasting=True)
        cwd = Path(self._launch.cwd).expanduser() if self._launch.cwd else Path.cwd()
        argv = [path, *self._launch.argv[1:]]
        if ends := shutil.which("setpriv"):  # it is killed with us, even where we cannot do that ourselves any more
            argv = [ends, "--pdeathsig", "KILL", "--", *argv]
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for reads in (False, True, True):
                reading, writing = os.pipe()
                ours.append(reading if reads else writing)
                theirs.append(writing if reads else reading)
            self.group = Group(
                argv, cwd=cwd, environment=self._environment, stdin=theirs[0], stdout=theirs[1], stderr=theirs[2], cgroup=True
            )
        except (OSError, ValueError) as error:
            for each in ours:
                os.close(each)
            said = os.strerror(error.errno or errno.EINVAL) if isinstance(error, OSError) else str(error)
            place = f"{cwd}: " if isinstance(error, OSError) and not cwd.is_dir() else ""
            raise Lost(f"{program} could not be started: {place}{said}", lasting=True) from None
        finally:
            for each in theirs:
                os.close(each)
        try:
            await self._connect(ours)
        except BaseException:
            for transport in self._transports:
                transport.close()
            for each in ours:
                os.close(each)
            self._note_end()
            await self.group.end()
            raise

    async def _connect(self, ours: list[int]) -> None:
        """Make streams of our ends of the pipes, each of which is the transport's when it has one."""
        loop = asyncio.get_running_loop()
        self._output, self._errors = asyncio.StreamReader(), asyncio.StreamReader()
        for stream in (self._output, self._errors):
            file = os.fdopen(ours.pop(1), "rb")
            try:
                transport, _ = await loop.connect_read_pipe(lambda s=stream: asyncio.StreamReaderProtocol(s), file)
            except BaseException:
                file.close()
                raise
            self._transports.append(transport)
        file = os.fdopen(ours.pop(0), "wb")
        try:
            writer, protocol = await loop.connect_write_pipe(lambda: asyncio.streams.FlowControlMixin(loop), file)
        except BaseException:
            file.close()
            raise
        self._transports.append(writer)
        self._input = asyncio.StreamWriter(writer, protocol, None, loop)

    async def _read(self, session: MemoryObjectSendStream[Any]) -> None:
        import anyio

        lines = Lines(self._launch.max_message_bytes)
        noise = 0
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while data := await self._output.read(CHUNK):
                for line in lines.feed(data):
                    await self._pace.wait_turn()
                    message = self._message(line)
                    if message is not None:
                        await self._pace.admit(message)
                        await session.send(message)
                    elif isinstance(line, bytes) and line.strip():
                        noise += 1
                        if noise > NOISE:
                            self._finish(f"what it writes is no MCP message: {self._launch.redacted(self._noise[0])!r}")
                            return
            self._eof = True

    def _message(self, line: bytes | TooLong) -> SessionMessage | None:
        """What a line says; None for one that says nothing."""
        from mcp.shared.message import SessionMessage
        from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

        if isinstance(line, TooLong):
            text = f"its answer has {line.size} bytes, and max_message_bytes is {self._launch.max_message_bytes}"
            answers = line.answers
        else:
            for read in (line, mended(line)):
                try:
                    message = jsonrpc_message_adapter.validate_json(read, by_name=False)
                except ValueError:
                    continue
                return SessionMessage(message) if sane(message) else None
            text = "its answer is no valid message"
            answers = answered(line[:EDGE], line[-EDGE:])
            self._noise.append(line[:200].decode("utf-8", "replace"))
        if answers is not None:
            return SessionMessage(JSONRPCError(jsonrpc="2.0", id=answers, error=ErrorData(code=INTERNAL_ERROR, message=text)))
        if isinstance(line, TooLong):
            self._once(f"a message was left out: {text.replace('its answer', 'it')}")
        return None

    async def _write(self, session: MemoryObjectReceiveStream[Any]) -> None:
        with suppress(OSError):
            async for each in session:
                self._pace.answered(each)
                self._input.write(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await self._input.drain()

    async def _listen(self) -> None:
        while data := await self._errors.read(CHUNK):
            self._said = (self._said + data)[-SAID:]

    async def _attend(self, session: MemoryObjectSendStream[Any]) -> None:
        """See to the end: that of the program, or of its output."""
        assert self.group is not None
        ended = asyncio.ensure_future(self.group.wait())
        reading = self._tasks[0]
        try:
            await asyncio.wait((ended, reading), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((ended, reading), timeout=LAST_WORDS)
            await asyncio.wait((self._tasks[2],), timeout=LAST_WORDS if ended.done() else 0)
        finally:
            ended.cancel()
        self._finish(self.last_words() or ("it ended its output" if self._eof else "the connection was given up"))
        session.close()

    def _finish(self, reason: str) -> None:
        if not self._leaving:
            self._over(Lost(reason))

    def _once(self, text: str) -> None:
        if text not in self._noise:
            log.warning("MCP server %s: %s", self._name, text)
            self._noise.append(text)

    def last_words(self) -> str:
        """How it ended by itself, and the end of what it said; without secrets."""
        status = self._status if self._status is not None else self.group.returncode if self.group is not None else None
        how = ""
        if status is not None and not self._asked:
            how = f"it was killed by signal {-status}" if status < 0 else f"it ended with status {status}"
        errors = self._launch.redacted(self._said.decode("utf-8", "replace")).strip()
        noise = self._launch.redacted(self._noise[0]).strip() if self._noise else ""
        tail = " | ".join(line.strip() for line in (errors or noise).splitlines()[-3:] if line.strip())[-400:]
        return "; ".join(filter(None, (how, f"it said: {tail}" if tail else "")))

    def _note_end(self) -> None:
        """It is about to be ended: how it ended then is not its own doing, unless it had ended before."""
        if self.group is not None:
            self._status, self._asked = self.group.returncode, self.group.returncode is None

    async def __aexit__(self, *args: object) -> None:
        assert self.group is not None
        self._leaving = True
        self._note_end()
        try:
            for stream in self._streams:
                stream.close()
            self._input.close()  # the end of its input asks it to end
            draining = asyncio.create_task(self._drain())
            try:
                await self.group.ends_within(LEAVING)
                await self.group.end()
            finally:
                draining.cancel()
                await asyncio.wait((draining,))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            for transport in self._transports:
                if not transport.is_closing():
                    transport.close()

    async def _drain(self) -> None:
        """Take what it still writes, so that it can come to its end."""
        await asyncio.wait((self._tasks[0],))
        while await self._output.read(CHUNK):
            pass
