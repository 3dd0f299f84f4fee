"""``hames mcp``: the MCP servers that agents here have; trying them by hand, and logging in to them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
import webbrowser
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from hames.compose import Composition, Interpolation, compose
from hames.compose.plugins import validate
from hames.content.errors import ConfigError, HamesError, NotFoundError
from hames.content.jsontext import dumps
from hames.content.messages import Text
from hames.content.visible import visible
from hames.faces.cli.common import chosen_layers, decisions, existing_directory, json_option, layer_options, state_directory, state_option
from hames.faces.cli.permissions import parsed
from hames.kernel import Host, Plugin
from hames.mcp import MCP, Pool
from hames.mcp.config import ServerConfig
from hames.mcp.connection import Active, Connection
from hames.mcp.listing import Listing
from hames.mcp.names import public_name, server_problem
from hames.mcp.oauth import Callback, provider
from hames.mcp.plugin import McpConfig
from hames.mcp.plugin import mcp as mcp_row
from hames.mcp.project import project_servers
from hames.mcp.results import output, resource
from hames.mcp.server import server as server_row
from hames.sandbox import scrubbed
from hames.store import STATE
from hames.toolkit.project import trusted
from hames.tools import Invocation, ToolError

T = TypeVar("T")
ROW, OWNER = "hames.mcp.server", "hames.mcp"
TOKEN = 4  # characters, roughly
UNTRUSTED = "the servers of .mcp.json count for nothing until this directory is trusted; see 'hames trust show'"


@dataclass(frozen=True, slots=True)
class Known:
    """A server that is configured.

    :param origin: the row, or the file, that names it.
    """

    name: str
    config: ServerConfig
    origin: str


@dataclass(frozen=True, slots=True)
class Here:
    """What is configured for a directory.

    :param untrusted: names in its ``.mcp.json``, where that is not trusted.
    :param row: the configuration of the row that owns connections.
    """

    state: Path
    servers: dict[str, Known]
    untrusted: bool
    row: McpConfig

    def named(self, name: str) -> Known:
        found = self.servers.get(name)
        if found is None:
            remedy = f"there are {', '.join(self.servers) or 'none'}; see 'hames mcp list'"
            if self.untrusted:
                remedy = f"those of .mcp.json count only when this directory is trusted; {remedy}"
            raise NotFoundError(f"there is no MCP server {name!r}", remedy=remedy)
        return found


def filled(composition: Composition, plugin: Plugin, use: str) -> list[tuple[str, Any]]:
    """The rows of one plugin with their configuration.

    :raises ConfigError: naming every mistake in them.
    """
    problems: list[str] = []
    found: list[tuple[str, Any]] = []
    interpolation = Interpolation(os.environ)
    for path, row in composition.walk():
        if row.use is None or row.is_disabled or row.use.value.partition(":")[0] != use:
            continue
        values: Any = interpolation.fill(row.config, problems.append) if row.config is not None else {}
        config, violations = validate(row, plugin, values or {})
        problems += violations
        found.append((path, config))
    if problems:
        raise ConfigError("\n".join(problems), remedy="mend these rows")
    return found


def here(cwd: str, state_dir: str | None, profile_name: str, patches: Sequence[str]) -> Here:
    state = state_directory(state_dir)
    directory = existing_directory(cwd, "--cwd").resolve()
    composition = compose(chosen_layers(profile_name, patches))
    composition.check()
    servers: dict[str, Known] = {}
    for path, config in filled(composition, server_row, ROW):
        name = config.server or path.rpartition("/")[2]
        if problem := server_problem(name):
            raise ConfigError(f"row {path}: {name!r}: {problem}", remedy="give it another name with config.server")
        if name in servers:
            raise ConfigError(f"rows {servers[name].origin} and {path} both name the server {name}", remedy="rename one of them")
        servers[name] = Known(name, config, f"row {path}")
    there = (directory / ".mcp.json").exists()
    untrusted = there and not trusted(decisions(state), directory)
    if there and not untrusted:
        servers |= {name: Known(name, config, ".mcp.json") for name, config in project_servers(directory, os.environ).items()}
    rows = filled(composition, mcp_row, OWNER)
    return Here(state, servers, untrusted, rows[0][1] if rows else McpConfig())


@asynccontextmanager
async def pool(place: Here) -> AsyncGenerator[Pool]:
    host = Host()
    try:
        host.ctx.provide(STATE, place.state)
        await host.mount(mcp_row, place.row).ready()
        found = host.get(MCP)
        assert found is not None
        yield found
    finally:
        await host.close()


async def connected(place: Here, known: Known, use: Callable[[Connection], Awaitable[T]]) -> T:
    """What comes of using a server.

    :raises HamesError: if there is no connection, or no answer.
    """
    async with pool(place) as found:
        connection, lease = await found.acquire(known.config.launch, known.name)
        try:
            if await connection.settled() != "ready":
                raise HamesError(
                    f"the MCP server {known.name} is not available: {connection.reason}",
                    remedy=f"run it by hand to see more; it is configured by {known.origin}",
                    code="MCP_UNAVAILABLE",
                )
            return await use(connection)
        except ToolError as error:
            raise HamesError(str(error), code=error.code, remedy=f"see 'hames mcp check {known.name}'") from None
        finally:
            await found.release(known.config.launch, lease)


def here_options(command: Any) -> Any:
    command = click.option("--cwd", metavar="DIR", default=".", help="The directory whose .mcp.json counts, if it is trusted.")(command)
    return layer_options(state_option(json_option(command)))


@click.group("mcp")
def command() -> None:
    """List, check and call MCP servers, and log in to them."""


@command.command("list")
@here_options
def list_servers(cwd: str, as_json: bool, state_dir: str | None, profile_name: str, patches: tuple[str, ...]) -> None:
    """List the servers that are configured. Nothing is started."""
    place = here(cwd, state_dir, profile_name, patches)
    items = [
        {"name": known.name, "reached": reached(known.config), "origin": known.origin, "required": known.config.required}
        for known in place.servers.values()
    ]
    if as_json:
        click.echo(json.dumps({"servers": items, "untrusted": place.untrusted}, ensure_ascii=False))
        return
    for item in items:
        click.echo(f"{item['name']:<20} {item['reached']}  ({item['origin']})")
    if not items:
        click.echo("no MCP server is configured; add a row with use: hames.mcp.server", err=True)
    if place.untrusted:
        click.echo(UNTRUSTED, err=True)


SECRET = re.compile(r"token|key|secret|passw|auth|credential|cookie", re.IGNORECASE)


def reached(config: ServerConfig) -> str:
    """How a server is reached, without what may be a secret."""
    if config.url:
        parts = urlsplit(config.url)
        return visible(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")
    kept = scrubbed(os.environ)
    secrets = {value for name, value in os.environ.items() if name not in kept and len(value) >= 6}
    shown = [config.command]
    hide = False
    for argument in config.args:
        name, equals, _ = argument.partition("=")
        if hide or any(value in argument for value in secrets):
            shown.append("[…]")
        elif equals and SECRET.search(name):
            shown.append(f"{name}=[…]")
        elif "://" in argument and "@" in argument:
            shown.append(re.sub(r"//[^/@]*@", "//[…]@", argument))
        else:
            shown.append(argument)
        hide = not hide and not equals and argument.startswith("-") and SECRET.search(argument) is not None
    return visible(" ".join(shown))


async def checked(found: Pool, known: Known) -> dict[str, Any]:
    """One server as it is: opened, listed, closed."""
    began = time.monotonic()
    connection, lease = await found.acquire(known.config.launch, known.name)
    try:
        status = await connection.settled()
        listing = connection.listing if status == "ready" and connection.listing is not None else Listing()
        sizes = [len(each.raw) + len(each.description) + len(dumps(each.schema)) for each in listing.tools]
        return {
            "name": known.name,
            "status": status if status == "ready" else "failed",
            "reason": connection.reason,
            "seconds": round(time.monotonic() - began, 2),
            "server": listing.about,
            "tools": [{"name": public_name(known.name, each.raw), "description": each.description} for each in listing.tools],
            "tokens": sum(sizes) // TOKEN,
            "left_out": [{"name": name, "reason": reason} for name, reason in listing.left_out],
            "prompts": [each.raw for each in listing.prompts],
            "resources": listing.resources,
        }
    finally:
        await found.release(known.config.launch, lease)


@command.command("check")
@click.argument("names", metavar="[SERVER]...", nargs=-1)
@here_options
def check(names: tuple[str, ...], cwd: str, as_json: bool, state_dir: str | None, profile_name: str, patches: tuple[str, ...]) -> None:
    """Start the servers side by side, list what they offer, and end them."""
    place = here(cwd, state_dir, profile_name, patches)
    chosen = [place.named(name) for name in names] or list(place.servers.values())

    async def all() -> list[dict[str, Any]]:
        async with pool(place) as found:
            return await asyncio.gather(*(checked(found, known) for known in chosen))

    results = asyncio.run(all())
    if as_json:
        click.echo(json.dumps({"servers": results}, ensure_ascii=False))
    for item in results if not as_json else ():
        if item["status"] != "ready":
            click.echo(f"fail  {item['name']}: {visible(item['reason'])}")
            continue
        more = f", {len(item['prompts'])} prompts" if item["prompts"] else ""
        more += ", resources" if item["resources"] else ""
        tools = f"{len(item['tools'])} tools, about {item['tokens']} tokens"
        click.echo(f"ok    {item['name']}: {visible(item['server'])}, {tools}{more}, in {item['seconds']} s")
        for tool in item["tools"]:
            click.echo(f"      {tool['name']}  {visible(tool['description'].strip().partition(chr(10))[0][:90])}")
        for left in item["left_out"]:
            click.echo(f"warn  {item['name']}: {visible(left['name'])} is left out: {visible(left['reason'])}")
    if not results and not as_json:
        click.echo("no MCP server is configured; add a row with use: hames.mcp.server", err=True)
    if place.untrusted and not as_json:
        click.echo(UNTRUSTED, err=True)
    sys.exit(1 if any(item["status"] != "ready" for item in results) else 0)


@command.command("call")
@click.argument("name", metavar="SERVER")
@click.argument("tool")
@click.argument("arguments", nargs=-1)
@here_options
def call(
    name: str,
    tool: str,
    arguments: tuple[str, ...],
    cwd: str,
    as_json: bool,
    state_dir: str | None,
    profile_name: str,
    patches: tuple[str, ...],
) -> None:
    """Call TOOL of SERVER, by the name that the server gives it. ARGUMENTS are one JSON object, or NAME=VALUE each."""
    place = here(cwd, state_dir, profile_name, patches)
    known = place.named(name)
    given = json.loads(parsed(arguments))

    async def use(connection: Connection) -> tuple[str, bool]:
        offered = [each.raw for each in connection.listing.tools] if connection.listing is not None else []
        if tool not in offered:
            raise NotFoundError(f"{name} has no tool {tool!r}", remedy=f"it has {', '.join(offered)[:300] or 'none'}")

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            active.alive()
            click.echo(f"… {progress:g}{f' of {total:g}' if total else ''}{f': {visible(message)}' if message else ''}", err=True)

        active = Active("", known.config.call_timeout, None)
        result = await connection.request(lambda client: client.call_tool(tool, given, progress_callback=heard), active)
        shown = output(result, by_hand(place))
        return "\n".join(each.text for each in shown.content if isinstance(each, Text)), shown.is_error

    text, failed = asyncio.run(connected(place, known, use))
    click.echo(json.dumps({"is_error": failed, "text": text}, ensure_ascii=False) if as_json else lines(text))
    sys.exit(1 if failed else 0)


def lines(text: str) -> str:
    """A text of a server, without what would move about on a terminal."""
    return "\n".join(visible(line) for line in text.split("\n"))


def by_hand(place: Here) -> Invocation:
    """The surroundings of a call that no agent makes: files of its result go to the state directory."""

    def spill(data: bytes, suffix: str) -> Path:
        directory = place.state / "spill" / "mcp"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = directory / f"{time.time_ns()}.{suffix}"
        path.write_bytes(data)
        return path

    return Invocation("", Host().root_scope, Path.cwd(), {}, spill)


@command.command("read")
@click.argument("name", metavar="SERVER")
@click.argument("uri")
@here_options
def read(name: str, uri: str, cwd: str, as_json: bool, state_dir: str | None, profile_name: str, patches: tuple[str, ...]) -> None:
    """Print the resource URI of SERVER."""
    place = here(cwd, state_dir, profile_name, patches)

    async def use(connection: Connection) -> str:
        found: Any = await connection.request(lambda client: client.read_resource(uri))
        return "\n".join(getattr(resource(each, by_hand(place)), "text", "") for each in found.contents)

    text = asyncio.run(connected(place, place.named(name), use))
    click.echo(json.dumps({"uri": uri, "text": text}, ensure_ascii=False) if as_json else lines(text))


@command.command("login")
@click.argument("name", metavar="SERVER")
@click.option("--no-browser", is_flag=True, help="Print the address instead of opening a browser.")
@here_options
def login(name: str, no_browser: bool, cwd: str, as_json: bool, state_dir: str | None, profile_name: str, patches: tuple[str, ...]) -> None:
    """Log in to SERVER with a browser. Tokens are kept in the system's keyring where there is one, else in a private file."""
    place = here(cwd, state_dir, profile_name, patches)
    known = place.named(name)
    if not known.config.oauth:
        raise ConfigError(f"the server {name} is not logged in to by OAuth", remedy=f"set config.oauth: true in {known.origin}")

    async def show(address: str) -> None:
        click.echo(f"log in at: {address}", err=True)
        if not no_browser:
            await asyncio.to_thread(webbrowser.open, address)

    async def flow() -> None:
        async with Callback() as callback, pool(place) as found:
            tokens = found.tokens(known.config.url, redirect=callback.url)
            launch = known.config.launch
            connection = Connection(launch, name, {}, lambda: provider(tokens, show, callback), patience=600.0)
            try:
                if await connection.settled() != "ready":
                    raise HamesError(f"the login failed: {connection.reason}", remedy="run the command again", code="LOGIN_FAILED")
            finally:
                await connection.close()

    asyncio.run(flow())
    click.echo(json.dumps({"name": name, "status": "logged in"}) if as_json else f"{name}: logged in")


@command.command("logout")
@click.argument("name", metavar="SERVER")
@here_options
def logout(name: str, cwd: str, as_json: bool, state_dir: str | None, profile_name: str, patches: tuple[str, ...]) -> None:
    """Forget the tokens for SERVER."""
    place = here(cwd, state_dir, profile_name, patches)
    known = place.named(name)

    async def forget() -> bool:
        async with pool(place) as found:
            return found.tokens(known.config.url).forget()

    if not asyncio.run(forget()):
        raise NotFoundError(f"nobody is logged in to {name}", remedy="see 'hames mcp list'")
    click.echo(json.dumps({"name": name, "status": "logged out"}) if as_json else f"{name}: logged out")
