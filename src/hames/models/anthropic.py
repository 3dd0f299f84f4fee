"""The messages protocol of Anthropic.

Behaviour follows the API reference "Messages", "Streaming messages", "Extended thinking" and "Prompt caching" of docs.anthropic.com.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from hames.content.finish import Chunk, Failure, FailureKind, Finish, FinishReason, ReasoningDelta, TextDelta, ToolCallDelta, Usage
from hames.content.jsontext import as_count, as_object, as_text, dumps, parse_object
from hames.content.messages import Block, Image, Message, Reasoning, Text, ToolCall, ToolResult, clean
from hames.content.request import Fragment, ToolSpec
from hames.models.port import Pictures, Settings

ORIGIN = "anthropic"
DEFAULT_MAX_TOKENS = 8192
EFFORT_TOKENS = {"low": 2048, "medium": 8192, "high": 24576, "max": 49152}
CACHE: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
WORDS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool-calls",
    "max_tokens": "max-tokens",
    "model_context_window_exceeded": "max-tokens",
    "refusal": "refusal",
}
ERRORS: dict[str, FailureKind] = {
    "overloaded_error": "overloaded",
    "rate_limit_error": "rate-limit",
    "authentication_error": "auth",
    "permission_error": "auth",
    "not_found_error": "not-found",
    "invalid_request_error": "invalid-request",
    "timeout_error": "timeout",
}


class AnthropicMessages:
    """The dialect. Consecutive messages of one role are one group: parallel tool results and what a user adds share a message."""

    name = "anthropic-messages/1"
    path = "/v1/messages"
    marker = b',"cache_control":{"type":"ephemeral"}'
    tail = b"]}"

    def headers(self, key: str) -> dict[str, str]:
        headers = {"anthropic-version": "2023-06-01"}
        if key:
            headers["x-api-key"] = key
        return headers

    def head(self, model: str, system: str, tools: Sequence[ToolSpec], settings: Settings) -> bytes:
        body: dict[str, Any] = {"model": model, "stream": True, "max_tokens": settings.max_tokens or DEFAULT_MAX_TOKENS}
        if settings.temperature is not None and settings.effort is None:  # thinking takes none
            body["temperature"] = settings.temperature
        if settings.effort is not None:
            budget = EFFORT_TOKENS.get(settings.effort, EFFORT_TOKENS["medium"])
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
            body["max_tokens"] = budget + (settings.max_tokens or DEFAULT_MAX_TOKENS)
        if tools:
            body["tools"] = [{"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in tools]
        if system:
            body["system"] = [{"type": "text", "text": system, **CACHE}]
        return clean(f'{dumps(body)[:-1]},"messages":[').encode()

    def joins(self, previous: Message, message: Message) -> bool:
        return previous.role == message.role

    def group(self, messages: Sequence[Message], *, reasoning: bool, pictures: Pictures) -> Fragment | None:
        parts: list[str] = []
        markable = False
        for message in messages:
            for block in message.blocks:
                part = self._block(block, reasoning, pictures)
                if part:
                    parts.append(part)
                    markable = not isinstance(block, Reasoning)
        if not parts:
            return None
        data = f'{{"role":{dumps(messages[0].role)},"content":[{",".join(parts)}]}}'.encode()
        return Fragment(data, len(data) - 3 if markable else -1)

    def _block(self, block: Block, reasoning: bool, pictures: Pictures) -> str:
        match block:
            case Text(text):
                return dumps({"type": "text", "text": text}) if text.strip() else ""
            case Reasoning(text, signature, opaque, origin):
                if not reasoning or origin != ORIGIN:
                    return ""  # what another family signed is not legal here
                if opaque:
                    return dumps({"type": "redacted_thinking", "data": opaque})
                # Without its signature it was cut off, and is not legal either.
                return dumps({"type": "thinking", "thinking": text, "signature": signature}) if signature else ""
            case ToolCall(id, name, arguments):
                return f'{{"type":"tool_use","id":{dumps(legal_id(id))},"name":{dumps(name)},"input":{raw_object(arguments)}}}'
            case ToolResult(call_id, content, is_error):
                body: dict[str, Any] = {"type": "tool_result", "tool_use_id": legal_id(call_id), "content": shown(content, pictures)}
                if is_error:
                    body["is_error"] = True
                return dumps(body)
            case Image():
                return dumps(picture(block, pictures))
            case _:
                return ""

    def parser(self) -> AnthropicParser:
        return AnthropicParser()


def shown(content: Sequence[Text | Image], pictures: Pictures) -> Any:
    """The content of a result: its text, or blocks where it has pictures."""
    if not any(isinstance(part, Image) for part in content):
        return "".join(part.text for part in content if isinstance(part, Text))
    parts = ({"type": "text", "text": part.text} if isinstance(part, Text) else picture(part, pictures) for part in content)
    return [part for part in parts if part.get("text") != ""]


def picture(image: Image, pictures: Pictures) -> dict[str, Any]:
    data = b64encode(pictures(image.blob)).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": data}}


def legal_id(id: str) -> str:
    """An id as this protocol allows it; the same for the call and its result."""
    return id if re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", id) else "t_" + sha256(id.encode()).hexdigest()[:24]


def raw_object(arguments: str) -> str:
    """The model's own JSON text of an object, verbatim; ``{}`` where it is none."""
    try:
        parse_object(arguments)
    except ValueError:
        return "{}"
    return arguments.strip()


class AnthropicParser:
    """Assembles one streamed message."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Any]] = {}
        self._word = ""
        self._usage: dict[str, int] = {}

    def feed(self, event: str, data: str) -> Sequence[Chunk]:
        body = parse_object(data)
        match body.get("type"):
            case "content_block_delta":
                return self._delta(int(body["index"]), body["delta"])
            case "content_block_start":
                return self._start(int(body["index"]), body["content_block"])
            case "message_start":
                self._count(as_object(body["message"].get("usage")))
            case "message_delta":
                self._count(as_object(body.get("usage")))
                self._word = str(body["delta"].get("stop_reason") or self._word)
            case "message_stop":
                finish = self.end()
                return () if finish is None else (finish,)
            case "error":
                error = as_object(body.get("error"))
                word = str(error.get("type", ""))
                failure = Failure(ERRORS.get(word, "server"), str(error.get("message", "")), word=word)
                return (Finish("error", self.partial(), self.usage, failure),)
            case _:
                pass  # ping, content_block_stop, and what later versions add
        return ()

    def _start(self, index: int, block: dict[str, Any]) -> Sequence[Chunk]:
        kind = as_text(block["type"])
        started = self._blocks[index] = {"type": kind, "pieces": [as_text(block.get("text")) or as_text(block.get("thinking"))]}
        started["signature"], started["data"] = as_text(block.get("signature")), as_text(block.get("data"))
        if kind == "tool_use":
            started["id"], started["name"], started["pieces"] = as_text(block["id"]), as_text(block["name"]), []
            return (ToolCallDelta(index, "", started["id"], started["name"]),)
        return ()

    def _delta(self, index: int, delta: dict[str, Any]) -> Sequence[Chunk]:
        block = self._blocks.get(index)
        if block is None:
            raise ValueError(f"a delta for block {index}, which was not started")
        match delta.get("type"):
            case "text_delta":
                text = as_text(delta["text"])
                block["pieces"].append(text)
                return (TextDelta(text),)
            case "thinking_delta":
                text = as_text(delta["thinking"])
                block["pieces"].append(text)
                return (ReasoningDelta(text),)
            case "signature_delta":
                block["signature"] += as_text(delta["signature"])
            case "input_json_delta":
                text = as_text(delta["partial_json"])
                id, name = block["id"], block["name"]
                block["pieces"].append(text)
                return (ToolCallDelta(index, text, id, name),)
            case _:
                pass
        return ()

    def _count(self, usage: dict[str, Any]) -> None:
        self._usage.update({key: as_count(value) for key, value in usage.items()})

    @property
    def usage(self) -> Usage | None:
        if not self._usage:
            return None
        get = self._usage.get
        return Usage(
            get("input_tokens", 0), get("output_tokens", 0), get("cache_read_input_tokens", 0), get("cache_creation_input_tokens", 0)
        )

    def _assemble(self, *, calls: bool) -> tuple[Block, ...]:
        blocks: list[Block] = []
        for _, block in sorted(self._blocks.items()):
            joined = "".join(block["pieces"])
            match block.get("type"):
                case "text":
                    if joined:
                        blocks.append(Text(joined))
                case "thinking":
                    blocks.append(Reasoning(joined, block["signature"], "", ORIGIN))
                case "redacted_thinking":
                    blocks.append(Reasoning("", "", block["data"], ORIGIN))
                case "tool_use":
                    if calls:
                        blocks.append(ToolCall(block["id"], block["name"], joined or "{}"))
                case _:
                    pass
        return tuple(blocks)

    def partial(self) -> tuple[Block, ...]:
        return self._assemble(calls=False)

    def end(self) -> Finish | None:
        if not self._word:
            return None
        blocks = self._assemble(calls=True)
        reason = WORDS.get(self._word)
        if reason is None:
            failure = Failure("unknown-finish", f"the provider finished with {self._word!r}", word=self._word)
            return Finish("error", blocks, self.usage, failure)
        if reason == "tool-calls" and not any(isinstance(block, ToolCall) for block in blocks):
            reason = "stop"
        if reason == "stop" and not any(isinstance(block, Text) for block in blocks):
            return Finish("error", blocks, self.usage, Failure("empty", "the provider finished without an answer"))
        return Finish(reason, blocks, self.usage)
