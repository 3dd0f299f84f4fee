"""What a row says of an MCP server."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from pydantic import Field, model_validator

from hames.compose.config import RowConfig
from hames.content.jsontext import dumps
from hames.mcp.names import server_problem
from hames.policy import Capability


class Reconnect(RowConfig):
    """How a connection that was lost is made again."""

    initial: float = Field(default=0.5, gt=0, le=3600)
    """Seconds before the first attempt; each further one waits twice as long."""
    longest: float = Field(default=30.0, gt=0, le=3600)
    """Seconds between attempts at most. A connection that lasted so long has all its attempts again."""
    attempts: int = Field(default=10, ge=0)
    """Attempts in a row before the server is given up; 0 for none."""

    @model_validator(mode="after")
    def check_order(self) -> Reconnect:
        if self.initial > self.longest:
            raise ValueError("reconnect.initial is longer than reconnect.longest")
        return self


class ServerConfig(RowConfig):
    """A server: a program that is started (``command``), or an address (``url``)."""

    server: str = ""
    """What it is called in the names of its tools, ``mcp__server__tool``; the id of the row where it is empty."""
    command: str = ""
    """The program; looked for on the path."""
    args: list[str] = []
    """Its arguments."""
    env: dict[str, str] = {}
    """More of the environment of the program. It has that of Hames otherwise, without what looks like a secret."""
    cwd: str = ""
    """The directory that the program runs in; that of Hames where it is empty."""
    url: str = ""
    """The address of a server that speaks streamable HTTP."""
    headers: dict[str, str] = {}
    """Headers of every request to it, for example ``Authorization: Bearer ${env:TOKEN}``."""
    oauth: bool = False
    """Whether it is logged in to by OAuth, with ``hames mcp login``."""
    protocol: Literal["auto", "legacy"] = "auto"
    """``legacy`` begins with the old handshake at once, for servers that stumble over another first message."""
    capabilities: list[Capability] = ["read", "write", "network"]
    """What calls of its tools may do, as permissions see it; Hames does not confine a server."""
    read: list[str] = []
    """Patterns of names of tools, as the server has them, of which you know that they only read: they are free in every mode."""
    tools: list[str] = ["*"]
    """Patterns of names of tools, as the server has them, that agents may have."""
    without: list[str] = []
    """Patterns of those of them that agents do not have."""
    required: bool = False
    """Whether nothing starts without this server. Otherwise its tools are there when it is."""
    connect_timeout: float = Field(default=15.0, gt=0, le=120)
    """Seconds that it has to start, to answer and to list its tools."""
    call_timeout: float = Field(default=60.0, gt=0)
    """Seconds of a call without a sign of life; progress is one."""
    longest_call: float = Field(default=1800.0, gt=0)
    """Seconds of a call at most."""
    reconnect: Reconnect = Reconnect()
    max_message_bytes: int = Field(default=16 * 1024 * 1024, gt=0)
    """Bytes of one message of the server that are taken."""
    max_instruction_bytes: int = Field(default=32 * 1024, ge=0)
    """Bytes of its instructions that agents are told."""

    @model_validator(mode="after")
    def check_kind(self) -> ServerConfig:
        if bool(self.command) == bool(self.url):
            raise ValueError("a server has exactly one of command and url")
        if self.url and (self.args or self.env or self.cwd):
            raise ValueError("args, env and cwd are for servers with a command")
        if self.command and (self.headers or self.oauth):
            raise ValueError("headers and oauth are for servers with a url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("url begins with http:// or https://")
        if not self.capabilities:
            raise ValueError("capabilities is empty; name what calls may do")
        if self.server and (problem := server_problem(self.server)):
            raise ValueError(problem)
        return self

    @property
    def launch(self) -> Launch:
        """What makes its connection another one than that of another row."""
        return Launch(
            (self.command, *self.args) if self.command else (),
            tuple(sorted(self.env.items())),
            self.cwd,
            self.url,
            tuple(sorted(self.headers.items())),
            self.oauth,
            self.protocol,
            self.connect_timeout,
            self.reconnect,
            self.max_message_bytes,
        )


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server is reached. Rows that agree in all of it share one connection.

    :param argv: the program and its arguments; empty for an address.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str
    url: str
    headers: tuple[tuple[str, str], ...]
    oauth: bool
    protocol: Literal["auto", "legacy"]
    connect_timeout: float
    reconnect: Reconnect
    max_message_bytes: int

    @property
    def digest(self) -> str:
        """A name of it that shows nothing of what is in it."""
        return sha256(dumps([self.argv, self.env, self.cwd, self.url, self.headers]).encode("utf-8", "surrogatepass")).hexdigest()[:12]

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that are not to be shown."""
        values = [value for _, value in (*self.env, *self.headers)]
        words = [word for value in values for word in (value, *value.split())]
        return tuple(sorted({word for word in words if len(word) >= 6}, key=len, reverse=True))

    def redacted(self, text: str) -> str:
        """A text of the server or of an error without those values."""
        for value in self.secrets:
            text = text.replace(value, "[…]")
        return text
