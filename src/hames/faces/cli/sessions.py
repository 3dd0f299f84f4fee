"""``hames sessions``: looking at what happened."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from hames.content.clock import Clock
from hames.content.errors import NotFoundError, UsageError
from hames.content.messages import Reasoning, Text, ToolCall, ToolResult, decode_message
from hames.content.visible import visible
from hames.delegation.ledger import Ledger
from hames.faces.cli.common import json_option, state_directory, state_option
from hames.faces.cli.exported import exported, pictures
from hames.sessions import Event, Sessions
from hames.store import Store

T = TypeVar("T")


def with_sessions(state_dir: str | None, body: Callable[[Sessions], Awaitable[T]], *, create: bool = False) -> T:
    """Run a body with the sessions of a state directory, and nothing else mounted.

    :param create: make the directory where there is none.
    :raises NotFoundError: if there is no directory of the name that was given.
    """
    if state_dir and not create and not state_directory(state_dir).exists():
        raise NotFoundError(
            f"there is no state directory {state_directory(state_dir)}", remedy="name one with --state-dir", code="STATE_UNKNOWN"
        )

    async def run(root: Path) -> T:
        store = Store(root)
        try:
            return await body(Sessions(store, Clock()))
        finally:
            await store.close()

    return asyncio.run(run(state_directory(state_dir)))


def when(time: float) -> str:
    try:
        return datetime.fromtimestamp(time).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):  # a damaged record's
        return "????-??-?? ??:??:??"


@click.group("sessions")
def command() -> None:
    """List, show, search, fork, export, import and purge sessions."""


@command.command("list")
@click.option("--all", "every", is_flag=True, help="Also those in which tasks were worked on; see 'hames task list'.")
@json_option
@state_option
def list_sessions(every: bool, as_json: bool, state_dir: str | None) -> None:
    """List the sessions, the newest first."""

    async def body(sessions: Sessions) -> None:
        found = sessions.list()
        if not every and (sessions.store.root / "control.db").exists():
            working = Ledger(sessions.store, Clock()).natives()
            shown = [item for item in found if item.id not in working]
            if len(shown) < len(found) and not as_json:
                click.echo(f"{len(found) - len(shown)} more are those of tasks: --all shows them", err=True)
            found = shown
        if as_json:
            items = [
                {"id": s.id, "created": s.created, "state": s.state, "events": s.events, "cwd": s.cwd, "title": s.title} for s in found
            ]
            click.echo(json.dumps({"sessions": items}, ensure_ascii=False))
            return
        for item in found:
            click.echo(f"{item.id}  {when(item.created)}  {item.state:<11}  {item.events:>5} events  {visible(item.title)}")
        if not found:
            click.echo("there are no sessions", err=True)

    with_sessions(state_dir, body)


@command.command("show")
@click.argument("session")
@json_option
@state_option
def show(session: str, as_json: bool, state_dir: str | None) -> None:
    """Show what happened in SESSION, event by event."""

    async def body(sessions: Sessions) -> None:
        events = sessions.read(session)
        if as_json:
            click.echo(json.dumps({"session": session, "events": [as_object(event) for event in events]}, ensure_ascii=False))
            return
        for event in events:
            for line in describe(event):
                click.echo(line)

    with_sessions(state_dir, body)


def as_object(event: Event) -> dict[str, Any]:
    damaged = {"damaged": True} if event.damaged else {}
    return {"seq": event.seq, "time": event.time, "type": event.type, "data": event.data, **damaged}


def describe(event: Event) -> list[str]:
    """An event in lines for a person."""
    lead = f"{event.seq:>5} {when(event.time)[11:]} "
    if event.damaged:
        return [f"{lead}DAMAGED: this record does not match its checksum"]
    if event.type != "message":
        members = " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in event.data.items())
        return [visible(f"{lead}{event.type} {members}".rstrip(), keep="\t")]
    message = decode_message(event.data)
    lines: list[str] = []
    for block in message.blocks:
        match block:
            case Text(text):
                lines.append(f"{message.source}: {text}")
            case Reasoning(text):
                lines.append(f"{message.source} (reasoning): {text or '[kept secret by the provider]'}")
            case ToolCall(id, name, arguments):
                lines.append(f"{message.source} calls {name} {arguments} [{id}]")
            case ToolResult(call_id, _, is_error, code):
                what = code.lower().replace("_", " ") if is_error else "ok"
                lines.append(f"result of [{call_id}]: {what}\n{block.text}")
            case _:
                lines.append(f"{message.source}: {block!r}")
    finish = event.data.get("finish", "")
    if finish not in ("", "stop", "tool-calls"):
        lines.append(f"finish: {finish}")
    indent = "\n" + " " * len(lead)
    return [visible(lead + indent.join(line.replace("\n", indent) for line in lines), keep="\n\t")]


@command.command("export")
@click.argument("session")
@click.option("--requests", is_flag=True, help="Also every request as it was sent, rebuilt from the log.")
@click.option(
    "--output", "-o", metavar="FILE", type=click.Path(dir_okay=False, writable=True), help="Write to a file instead of standard output."
)
@state_option
def export(session: str, requests: bool, output: str | None, state_dir: str | None) -> None:
    """Write SESSION as JSON lines: a header, its events in order, and the pictures that they show."""

    async def body(sessions: Sessions) -> None:
        events = sessions.read(session)
        cwd = sessions.cwd(session)
        lines = [json.dumps({"hames_session": session, "format": 1, "cwd": cwd, "events": len(events)})]
        lines += [json.dumps(as_object(event), ensure_ascii=False) for event in events]
        for blob in sorted(pictures([event for event in events if not event.damaged])):
            lines.append(json.dumps({"blob": blob, "data": b64encode(sessions.store.blobs.get(blob)).decode()}))
        if requests:
            for record, request in sessions.rebuild(session):
                item = {
                    "request": record.n,
                    "before": record.seq,
                    "adapter": record.adapter,
                    "sha256": request.sha256,
                    "body": request.body().decode(),
                }
                lines.append(json.dumps(item, ensure_ascii=False))
        text = "\n".join(lines) + "\n"
        if output is None:
            click.echo(text, nl=False)
        else:
            Path(output).write_text(text)
            click.echo(f"wrote {len(lines)} lines to {output}", err=True)

    with_sessions(state_dir, body)


@command.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@click.option("--cwd", metavar="DIR", default="", help="The directory that its agent works in (default: as in the file).")
@json_option
@state_option
def import_session(file: TextIO, cwd: str, as_json: bool, state_dir: str | None) -> None:
    """Make a session of what was exported to FILE ('-' for standard input). It gets a new name."""
    header, events, blobs = exported(file)

    async def body(sessions: Sessions) -> None:
        for digest, data in blobs:
            if sessions.store.blobs.put(data) != digest:
                raise UsageError(f"a picture in the file is not {digest}", remedy="export the session again")
        name = await sessions.take_in(events, str(Path(cwd).absolute()) if cwd else str(header.get("cwd") or Path.cwd()))
        click.echo(json.dumps({"session": name, "events": len(events)}) if as_json else f"{name}  {len(events)} events")

    with_sessions(state_dir, body, create=True)


@command.command("fork")
@click.argument("session")
@click.option("--turn", metavar="N", type=click.IntRange(min=0), help="Keep the first N turns (default: all that have ended).")
@json_option
@state_option
def fork(session: str, turn: int | None, as_json: bool, state_dir: str | None) -> None:
    """Make a new session that begins like SESSION, which stays as it is. Go on with 'hames run --resume'."""

    async def body(sessions: Sessions) -> None:
        made = await sessions.fork(session, turn)
        await made.release()
        click.echo(json.dumps({"session": made.id, "parent": session}) if as_json else made.id)

    with_sessions(state_dir, body)


@command.command("search")
@click.argument("text")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=50, help="Show at most N places.")
@json_option
@state_option
def search(text: str, limit: int, as_json: bool, state_dir: str | None) -> None:
    """Find TEXT in the messages of all sessions, the newest first."""

    async def body(sessions: Sessions) -> None:
        found = sessions.search(text, limit)
        if as_json:
            items = [{"session": session, "seq": seq, "text": words} for session, seq, words in found]
            click.echo(json.dumps({"found": items}, ensure_ascii=False))
            return
        for session, seq, words in found:
            click.echo(f"{session} {seq:>5}  {visible(words)}")
        if not found:
            click.echo("nothing was found", err=True)

    with_sessions(state_dir, body)


@command.command("purge")
@click.argument("sessions", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@state_option
def purge(sessions: tuple[str, ...], yes: bool, state_dir: str | None) -> None:
    """Remove SESSIONS for good: their events, requests, pictures and kept outputs. Nothing else ever removes a session."""
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody is here to ask", remedy="say --yes if they are to be removed for good")
        click.confirm(f"Remove {', '.join(sessions)} for good?", abort=True, err=True)

    async def body(service: Sessions) -> None:
        for name in sessions:
            await service.purge(name)
            for place in ("spill", "scratch"):
                shutil.rmtree(service.store.root / place / name, ignore_errors=True)
            click.echo(f"removed {name}", err=True)

    with_sessions(state_dir, body)
