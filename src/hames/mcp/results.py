"""What a server answers, as models and people are shown it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from hames.content.jsontext import dumps
from hames.content.messages import Image, Text
from hames.content.pictures import NotAPicture, media_type
from hames.tools import Invocation, Output

BLOCKS = 500  # of one result that are looked at


def output(result: Any, call: Invocation) -> Output:
    """The result of a call: texts and pictures as they are, everything else named, its bytes in a file."""
    parts = [block(each, call) for each in result.content[:BLOCKS]]
    if len(result.content) > BLOCKS:
        parts.append(Text(f"[{len(result.content) - BLOCKS} more blocks were left out]"))
    if not parts and result.structured_content is not None:
        parts.append(Text(dumps(result.structured_content)))
    return Output(joined(parts) or (Text("[no content]"),), result.is_error, "FAILED" if result.is_error else "")


def joined(parts: Iterable[Text | Image]) -> tuple[Text | Image, ...]:
    """Texts that stand beside each other as one, on lines of their own."""
    found: list[Text | Image] = []
    for each in parts:
        last = found[-1] if found else None
        if isinstance(each, Text) and isinstance(last, Text):
            found[-1] = Text(f"{last.text}\n{each.text}")
        else:
            found.append(each)
    return tuple(found)


def block(content: Any, call: Invocation) -> Text | Image:
    """One block of a result or of a message."""
    match content.type:
        case "text":
            return Text(content.text)
        case "image":
            return picture(content.data, call)
        case "audio":
            return Text(f"[audio, {content.mime_type}: {kept(content.data, 'bin', call)}]")
        case "resource_link":
            kind = f" ({content.mime_type})" if content.mime_type else ""
            return Text(f"[resource {content.uri}{kind}: {content.description or content.name}]")
        case "resource":
            return resource(content.resource, call)
        case other:
            return Text(f"[a block of type {other!r}]")


def resource(content: Any, call: Invocation) -> Text | Image:
    """The content of a resource."""
    if (text := getattr(content, "text", None)) is not None:
        return Text(text)
    if (content.mime_type or "").startswith("image/"):
        return picture(content.blob, call)
    return Text(f"[{content.uri}, {content.mime_type or 'of an unknown type'}: {kept(content.blob, 'bin', call)}]")


def picture(data: str, call: Invocation) -> Text | Image:
    try:
        found = base64.b64decode(data, validate=True)
        kind = media_type(found)
    except (NotAPicture, binascii.Error, ValueError) as error:
        return Text(f"[a picture that is not shown: {error}]")
    return call.keep_picture(kind, found) if call.keep_picture is not None else Text(f"[a picture, {kind}, {len(found)} bytes]")


def kept(data: str, suffix: str, call: Invocation) -> str:
    """Bytes in a file of the call, and where they are."""
    try:
        found = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        return f"not to be read: {error}"
    try:
        return f"{len(found)} bytes, in {call.spill(found, suffix)}"
    except OSError as error:
        return f"{len(found)} bytes that could not be kept: {error.strerror}"
