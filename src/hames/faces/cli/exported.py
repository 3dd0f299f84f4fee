"""Reading what ``hames sessions export`` has written: somebody else's file."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Any, TextIO

from hames.content.errors import UsageError
from hames.content.jsontext import as_object, parse_object
from hames.content.messages import decode_message
from hames.sessions import Event


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
                event = Event(len(events), float(item["time"]), str(item["type"]), as_object(item["data"]))
                if event.type == "message":
                    decode_message(event.data)
                events.append(event)
            elif "blob" in item:
                blobs.append((str(item["blob"]), b64decode(item["data"], validate=True)))
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise UsageError(f"this is no exported session: {error}", remedy=remedy) from None
    if not events or events[0].type != "start":
        raise UsageError("this is no exported session: it has no events", remedy=remedy)
    return header, events, blobs
