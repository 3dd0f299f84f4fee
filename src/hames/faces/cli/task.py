"""``hames task``: looking at delegated work, from any process, and ending it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import click

from hames.content.clock import Clock
from hames.content.errors import HamesError, NotFoundError, UsageError
from hames.content.visible import visible
from hames.delegation.failures import PENDING, REJECTED, TABLE, Refused
from hames.delegation.kept import Kept
from hames.delegation.ledger import Ledger
from hames.delegation.records import TaskRecord
from hames.delegation.view import Seen, branches, reasons, seen
from hames.faces.cli.common import json_option, state_directory, state_option
from hames.faces.cli.sessions import as_object, describe, when
from hames.sessions import Event, Sessions
from hames.store import Store

T = TypeVar("T")
LOOK = 0.25  # seconds between looks
CLEAR = "\x1b[H\x1b[2J"


class Room:
    """What the commands look at: the ledger of a state directory, which need not be there."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ledger = Ledger(store, Clock())
        self.sessions = Sessions(store, Clock())

    def seen(self, record: TaskRecord) -> Seen:
        return seen(record, self.store.owner.alive)

    def find(self, name: str) -> TaskRecord:
        """The task of a name, or of the beginning of one.

        :raises Refused: ``TASK_UNKNOWN``.
        """
        found = self.ledger.get(name)
        if found is None and len(name) >= 6:
            near = [each.id for each in self.ledger.list(limit=10_000) if each.id.startswith(name)]
            if len(near) > 1:
                raise Refused("TASK_UNKNOWN", f"{len(near)} tasks begin with {visible(name[:64])}", remedy=f"one of them is {near[0]}")
            found = self.ledger.get(near[0]) if near else None
        if found is None:
            raise Refused("TASK_UNKNOWN", f"there is no task {visible(name[:64])}", remedy="'hames task list' shows those that exist")
        return found


def with_tasks(state_dir: str | None, body: Callable[[Room], Awaitable[T]]) -> T:
    """Run a body with the tasks of a state directory.

    :raises NotFoundError: if there is no directory of the name that was given.
    """
    root = state_directory(state_dir)
    if state_dir and not root.exists():
        raise NotFoundError(f"there is no state directory {root}", remedy="name one with --state-dir", code="STATE_UNKNOWN")

    async def run() -> T:
        store = Store(root)
        try:
            return await body(Room(store))
        finally:
            await store.close()

    return asyncio.run(run())


def line(room: Room, record: TaskRecord, indent: str = "") -> str:
    """A task in a line."""
    look = room.seen(record)
    outcome = record.outcome
    why = f" {outcome.code}" if outcome is not None and outcome.code else ""
    spent = f"  ${outcome.cost:.4f}" if outcome is not None and outcome.cost else ""
    ended = record.settled or (time.time() if look.live else record.updated)
    damaged = f"  DAMAGED: {', '.join(record.damaged)}" if record.damaged else ""
    head = f"{record.id}  {when(record.created)}  {look.status + why:<22}  {ended - record.created:>7.1f} s"
    return f"{head}  {record.spec.runner:<7}  {indent}{visible(record.spec.title)}{spent}{damaged}"


async def watched(room: Room, lines: Callable[[], Sequence[str]], live: Callable[[], bool], *, watch: bool) -> None:
    """Print lines, and again and again while something changes and somebody watches."""
    shown: Sequence[str] = ()
    while True:
        going = live()  # before what is shown, so that the last look shows how it ended
        now = lines()
        if now != shown:
            click.echo((CLEAR if watch and sys.stdout.isatty() else "") + "\n".join(now))
            shown = now
        if not watch or not going:
            return
        await asyncio.sleep(LOOK)


@click.group("task")
def command() -> None:
    """List, show and cancel tasks: work that agents have given to others."""


def one_of(watch: bool, as_json: bool) -> None:
    """
    :raises UsageError: where both are asked for.
    """
    if watch and as_json:
        raise UsageError("--watch shows what changes to people, and --json prints one object", remedy="leave one of them out")


watch_option = click.option("--watch", is_flag=True, help="Go on showing what changes, until nothing runs any more.")


@command.command("list")
@click.option("--live", is_flag=True, help="Only what has not ended.")
@click.option("--limit", metavar="N", type=click.IntRange(1, 1000), default=50, help="At most N tasks (default: 50).")
@click.option("--after", metavar="TASK", default="", help="Only tasks older than this one: the last one of the page before.")
@click.option("--label", metavar="WORD", default="", help="Only tasks with this label.")
@watch_option
@json_option
@state_option
def list_tasks(live: bool, limit: int, after: str, label: str, watch: bool, as_json: bool, state_dir: str | None) -> None:
    """List the tasks, the newest first."""
    one_of(watch, as_json)

    async def body(room: Room) -> None:
        def page() -> tuple[list[TaskRecord], str]:
            """The tasks that are chosen, and where the next page begins; empty for nowhere."""
            chosen: list[TaskRecord] = []
            last = after
            while records := room.ledger.list(limit=limit, before=last, live=live):
                for each in records:
                    last = each.id
                    if (not live or room.seen(each).live) and (not label or label in each.spec.labels):
                        chosen.append(each)
                    if len(chosen) == limit:
                        return chosen, last
            return chosen, ""

        def found() -> list[TaskRecord]:
            return page()[0]

        if as_json:
            records, cursor = page()
            tasks = [room.seen(record).as_json() for record in records]
            click.echo(json.dumps({"tasks": tasks, "after": cursor}, ensure_ascii=False))
            return
        if not found() and not watch:
            click.echo("there are no tasks", err=True)
            return
        await watched(room, lambda: [line(room, each) for each in found()], lambda: any(room.seen(x).live for x in found()), watch=watch)

    with_tasks(state_dir, body)


@command.command("show")
@click.argument("task")
@json_option
@state_option
def show(task: str, as_json: bool, state_dir: str | None) -> None:
    """Show what is known of TASK."""

    async def body(room: Room) -> None:
        record = room.find(task)
        look = room.seen(record)
        stop = room.ledger.stop_of(record.id)
        if as_json:
            asked = {"stop": {"cause": stop[0], "requested": stop[1], "acknowledged": stop[2]}} if stop is not None else {}
            click.echo(json.dumps({**look.as_json(), **asked}, ensure_ascii=False))
            return
        for text in described(record, look):
            click.echo(text)
        if stop is not None:
            heard = f", heard {when(stop[2])}" if stop[2] else ", not heard yet"
            click.echo(f"stop       asked for {when(stop[1])} ({visible(stop[0])}){heard}")

    with_tasks(state_dir, body)


def described(record: TaskRecord, look: Seen) -> list[str]:
    """A task in lines for a person."""
    spec, outcome = record.spec, record.outcome
    members: list[tuple[str, str]] = [
        ("task", f"{record.id}  {visible(spec.title)}"),
        ("status", f"{look.status}  (admission {record.admission}, liveness {look.liveness}, publication {look.publication})"),
        ("created", when(record.created) + (f", ended {when(record.settled)}" if record.settled else f", seen {when(record.updated)}")),
        ("asked by", (f"session {record.session}" if record.session else "") + (f", task {record.parent}" if record.parent else "")),
        ("cause", record.cause),
        ("damaged", ", ".join(record.damaged)),
    ]
    spoken = {key: value for key, value in spec.as_json().items() if key not in ("prompt", "label")}
    members += [(key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) for key, value in spoken.items()]
    for each in record.attempts:
        ended = f", ended {when(each.ended)}: {each.exit}" if each.ended else ""
        native = f", session {each.native}" if each.native else ""
        members.append((f"attempt {each.n}", f"{each.runner}, began {when(each.began)}{ended}{native}"))
    for receipt in record.receipts:
        more = ", ".join(f"{key} {value}" for key, value in receipt.data.items() if value and key in ("code", "why"))
        members.append(("receipt", f"{receipt.kind} {when(receipt.time)}{f': {more}' if more else ''}"))
    lines = [f"{name:<11}{visible(text)}" for name, text in members if text]
    lines += ["prompt", *("    " + visible(text) for text in spec.prompt.splitlines()[:40])]
    if outcome is not None:
        plain = {key: value for key, value in outcome.as_json().items() if key not in ("text", "raw", "status", "native")}
        lines += ["outcome", *(visible(f"    {key} {json.dumps(value, ensure_ascii=False)}") for key, value in plain.items())]
        lines += ["    " + visible(text) for text in (outcome.text or outcome.raw).splitlines()[:100]]
    return lines


@command.command("tree")
@click.argument("task", default="")
@click.option("--limit", metavar="N", type=click.IntRange(1, 1000), default=20, help="Without TASK: the trees of so many conversations.")
@watch_option
@json_option
@state_option
def tree(task: str, limit: int, watch: bool, as_json: bool, state_dir: str | None) -> None:
    """Show TASK with all below it, or the latest trees, and why each is there; TASK may also be the session that asked for them."""
    one_of(watch, as_json)

    async def body(room: Room) -> None:
        def found() -> list[tuple[int, TaskRecord]]:
            roots = room.ledger.list(limit=limit, roots=True) if not task else room.ledger.below(task) or [room.find(task)]
            whole = [(level, room.ledger.get(record.id) or record) for root in roots for level, record in branches(room.ledger, root)]
            return whole

        def shown() -> list[str]:
            return [
                text
                for level, record in found()
                for text in (line(room, record, "  " * level), *(f"    {'  ' * level}{visible(why)}" for why in reasons(record)))
            ]

        if as_json:
            tasks = [{"level": level, **room.seen(record).as_json(), "why": reasons(record)} for level, record in found()]
            click.echo(json.dumps({"tasks": tasks}, ensure_ascii=False))
            return
        if not found() and not watch:
            click.echo("there are no tasks", err=True)
            return
        await watched(
            room,
            shown,
            lambda: any(room.seen(record).live for _, record in found()),
            watch=watch,
        )

    with_tasks(state_dir, body)


@command.command("logs")
@click.argument("task")
@click.option("--follow", is_flag=True, help="Go on until it has ended.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: one object for each event.")
@state_option
def logs(task: str, follow: bool, as_json: bool, state_dir: str | None) -> None:
    """Show what happened in TASK, event by event."""

    async def body(room: Room) -> None:
        shown, before = 0, ""
        while True:
            record = room.find(task)
            live = room.seen(record).live
            native = record.attempts[-1].native if record.attempts else ""
            shown, before = (shown if native == before else 0), native
            events: list[Event] = []
            try:
                events = room.sessions.read(native) if native else []
            except HamesError:
                if not live:
                    raise
            for event in events[shown:]:
                click.echo(json.dumps(as_object(event), ensure_ascii=False) if as_json else "\n".join(describe(event)))
            shown = max(shown, len(events))
            if not follow or not live:
                break
            await asyncio.sleep(LOOK)
        if not shown:
            click.echo("nothing is written of it" + (" yet" if live else f"; its runner is {record.spec.runner}"), err=True)

    with_tasks(state_dir, body)


@command.command("cancel")
@click.argument("tasks", nargs=-1, required=True)
@click.option("--wait", metavar="SECONDS", type=click.FloatRange(min=0), default=15.0, help="How long to wait for the end (default: 15).")
@click.option("--cause", metavar="WORDS", default="user", help="Why, for those who look at it later.")
@json_option
@state_option
def cancel(tasks: tuple[str, ...], wait: float, cause: str, as_json: bool, state_dir: str | None) -> int:
    """Ask TASKS, and all below them, to end. Their siblings are not touched. Exit status 3 says that some had not ended in time."""

    async def body(room: Room) -> int:
        asked: dict[str, TaskRecord] = {record.id: record for record in map(room.find, tasks)}
        living = {id for id, record in asked.items() if room.seen(record).live}
        for record in asked.values():
            if record.id in living:
                await room.ledger.ask_to_stop(record.id, cause)
        end = time.monotonic() + wait
        while True:
            left = min(LOOK / 2, end - time.monotonic())
            if left <= 0 or not any(room.seen(room.find(id)).live for id in asked):
                break
            await asyncio.sleep(left)
        results: list[dict[str, Any]] = []
        for id in asked:
            look, stop = room.seen(room.find(id)), room.ledger.stop_of(id)
            facts = {"requested": stop is not None, "acknowledged": stop is not None and bool(stop[2]), "terminated": not look.live}
            results.append({"task": id, "status": look.status, **facts, **({} if id in living else {"already": True})})
        if as_json:
            click.echo(json.dumps({"tasks": results}, ensure_ascii=False))
        else:
            for each in results:
                said = (
                    "had ended already"
                    if each.get("already")
                    else "has ended"
                    if each["terminated"]
                    else "is asked to end, and has not yet"
                )
                click.echo(f"{each['task']} {said} ({each['status']})")
        return 0 if all(each["terminated"] for each in results) else PENDING

    return with_tasks(state_dir, body)


@command.command("purge")
@click.argument("tasks", nargs=-1)
@click.option("--older-than", metavar="DAYS", type=click.FloatRange(min=0), help="All that came to rest so many days ago, or earlier.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@state_option
def purge(tasks: tuple[str, ...], older_than: float | None, dry_run: bool, yes: bool, as_json: bool, state_dir: str | None) -> int:
    """Remove the conversations of TASKS for good: their sessions and kept outputs. What is known of the tasks stays."""
    if bool(tasks) == (older_than is not None):
        raise UsageError("name tasks, or say --older-than", remedy="hames task list shows those that there are")
    if not (yes or dry_run):
        if not sys.stdin.isatty():
            raise UsageError("nobody is here to ask", remedy="say --yes if they are to be removed for good")
        click.confirm("Remove these conversations for good?", abort=True, err=True)

    async def body(room: Room) -> int:
        kept = Kept(room.ledger, room.sessions)
        chosen = [room.find(name).thread for name in tasks] or kept.older(time.time() - (older_than or 0) * 86400)
        results: list[dict[str, Any]] = []
        for thread in dict.fromkeys(chosen):
            try:
                results.append({"task": thread, "bytes": kept.size(thread) if dry_run else await kept.remove(thread)})
            except HamesError as error:
                results.append({"task": thread, "code": error.code, "message": error.message})
        if as_json:
            click.echo(json.dumps({"tasks": results, "removed": not dry_run}, ensure_ascii=False))
        for each in () if as_json else results:
            said = f"{'would remove' if dry_run else 'removed'} {each['bytes']} bytes" if "bytes" in each else f"stays: {each['message']}"
            click.echo(visible(f"{each['task']}  {said}"))
        return REJECTED if any("code" in each for each in results) else 0

    return with_tasks(state_dir, body)


@command.command("codes")
@json_option
def codes(as_json: bool) -> None:
    """Show every way in which a task can fail, and what to do then."""
    if as_json:
        click.echo(json.dumps({"codes": [each._asdict() for each in TABLE]}, ensure_ascii=False))
        return
    for each in TABLE:
        click.echo(f"{each.code:<20} {each.axis:<12} {each.next_action:<16} retry: {each.retry:<17} exit {each.exit:<4} {each.meaning}")
