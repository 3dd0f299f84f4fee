"""What a conversation is made of: messages of blocks, with their durable form.

The durable form of a block is a JSON object whose ``type`` says which block it is. A type that this version does not know is
carried as :class:`Unknown` and written back unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A model's reasoning.

    :param text: what may be shown; empty where the provider keeps it secret.
    :param signature: the provider's proof, sent back verbatim with the text.
    :param opaque: encrypted reasoning, sent back verbatim.
    :param origin: the dialect and model family that may read signature and opaque again.
    """

    text: str
    signature: str = ""
    opaque: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """A picture, by the SHA-256 of its bytes in the blob store."""

    media_type: str
    blob: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to call a tool; ``arguments`` is the JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one call.

    :param code: why it is an error, a stable word (``UNKNOWN_TOOL``, ``OUTCOME_UNKNOWN`` …); empty on success.
    """

    call_id: str
    content: tuple[Text | Image, ...]
    is_error: bool = False
    code: str = ""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class Unknown:
    """A block of a type that a later version wrote."""

    data: dict[str, Any]


Block = Text | Reasoning | Image | ToolCall | ToolResult | Unknown


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    :param source: who produced it: ``user``, ``model``, ``tool``, or ``harness`` for facts that Hames states.
    """

    role: Role
    blocks: tuple[Block, ...]
    source: str = "user"

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(block for block in self.blocks if isinstance(block, ToolCall))


def user(text: str) -> Message:
    """A message that a user typed."""
    return Message("user", (Text(text),))


def clean(text: str) -> str:
    """Make text valid Unicode: what cannot be encoded as UTF-8 becomes U+FFFD, surrogate pairs become their character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def encode_block(block: Block) -> dict[str, Any]:
    """The durable form of a block."""
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case ToolCall(id, name, arguments):
            return {"type": "tool-call", "id": id, "name": name, "arguments": arguments}
        case ToolResult(call_id, content, is_error, code):
            data: dict[str, Any] = {"type": "tool-result", "call_id": call_id, "content": [encode_block(part) for part in content]}
            if is_error:
                data["is_error"] = True
            if code:
                data["code"] = code
            return data
        case Reasoning(text, signature, opaque, origin):
            members = {"text": text, "signature": signature, "opaque": opaque, "origin": origin}
            return {"type": "reasoning", **{key: value for key, value in members.items() if value}}
        case Image(media_type, blob):
            return {"type": "image", "media_type": media_type, "blob": blob}
        case Unknown(data):
            return data


def decode_block(data: dict[str, Any]) -> Block:
    """The inverse of :func:`encode_block`."""
    match data.get("type"):
        case "text":
            return Text(data["text"])
        case "tool-call":
            return ToolCall(data["id"], data["name"], data["arguments"])
        case "tool-result":
            parts = tuple(part for part in map(decode_block, data["content"]) if isinstance(part, Text | Image))
            return ToolResult(data["call_id"], parts, data.get("is_error", False), data.get("code", ""))
        case "reasoning":
            return Reasoning(data.get("text", ""), data.get("signature", ""), data.get("opaque", ""), data.get("origin", ""))
        case "image":
            return Image(data["media_type"], data["blob"])
        case _:
            return Unknown(data)


def encode_message(message: Message) -> dict[str, Any]:
    """The durable form of a message."""
    return {"role": message.role, "source": message.source, "blocks": [encode_block(block) for block in message.blocks]}


def decode_message(data: dict[str, Any]) -> Message:
    """The inverse of :func:`encode_message`."""
    return Message(data["role"], tuple(decode_block(block) for block in data["blocks"]), data.get("source", "user"))
