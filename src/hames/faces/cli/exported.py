"""Reading what ``hames sessions export`` has written: somebody else's file."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Any, TextIO

from hames.content.errors import UsageError
from hames.content.jsontext import as_object, parse_object
from hames.content.messages import Image, Text, ToolResult, decode_message
from hames.sessions import Event
from hames.sessions.history import chosen_model, shown, waiting


def exported(file: TextIO) -> tuple[dict[str, Any], list[Event], list[tuple[str, bytes]]]:
    """The header, the events and the pictures of an exported session.

    :raises UsageError: if it is none, or not whole.
    """
    remedy = "give a file that 'hames sessions export' has written"
    header: dict[str, Any] = {}
    events: list[Event] = []
    blobs: list[tuple[str, bytes]] = []
    try:
        for number, line in enumerate(file, 1):
            item = parse_object(line)
            if number == 1:
                header = item
                if item.get("format") != 1 or "hames_session" not in item:
                    raise UsageError("this is no exported session of a format that is known", remedy=remedy)
            elif "seq" in item:
                if item["seq"] != len(events) or item.get("damaged"):
                    raise UsageError(f"line {number}: event {len(events)} is damaged or missing", remedy=remedy)
                if not isinstance(item["data"], dict) or not isinstance(item["type"], str):
                    raise ValueError(f"line {number} holds no event")
                events.append(Event(len(events), float(item["time"]), item["type"], as_object(item["data"])))
            elif "blob" in item:
                blobs.append((str(item["blob"]), b64decode(item["data"], validate=True)))
        check(events)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, binascii.Error) as error:
        raise UsageError(f"this is no exported session: {error}", remedy=remedy) from None
    if header.get("events", len(events)) != len(events):
        raise UsageError(f"the file ends after {len(events)} of {header['events']} events", remedy="export the session again")
    if missing := pictures(events) - {blob for blob, _ in blobs}:
        raise UsageError(f"{len(missing)} pictures of the session are not in the file", remedy="export the session again")
    if not events or events[0].type != "start":
        raise UsageError("this is no exported session: it has no events", remedy=remedy)
    return header, events, blobs


def check(events: list[Event]) -> None:
    """Derive from events all that a session derives from them.

    :raises ValueError: or another error of a lookup, if one of them is not what its type says.
    """
    for event in events:
        if event.type in ("message", "queued", "compacted"):
            message = decode_message(event.data)
            texts = [block.text for block in message.blocks if isinstance(block, Text)]
            if message.role not in ("user", "assistant") or not all(isinstance(text, str) for text in texts):
                raise ValueError(f"event {event.seq} is no message")
        elif event.type == "call":
            _ = event.data["id"], event.data["name"]
        elif event.type == "state":
            _ = event.data["name"], event.data["value"]
    shown(events)
    waiting(events)
    chosen_model(events)


def pictures(events: list[Event]) -> set[str]:
    """The digests of all pictures that messages show."""
    found: set[str] = set()
    for event in events:
        if event.type in ("message", "queued"):
            for block in decode_message(event.data).blocks:
                parts = block.content if isinstance(block, ToolResult) else (block,)
                found.update(part.blob for part in parts if isinstance(part, Image))
    return found
