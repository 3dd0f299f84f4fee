"""The chat-completions protocol of OpenAI and of the many servers that speak it.

Behaviour follows the API reference "Create chat completion" (streaming) of platform.openai.com, and for ``reasoning_content`` the
thinking-mode guide of api-docs.deepseek.com.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from hames.content.finish import Chunk, Failure, FailureKind, Finish, FinishReason, ReasoningDelta, TextDelta, ToolCallDelta, Usage
from hames.content.jsontext import as_count, as_object, as_text, dumps, parse_object
from hames.content.messages import Block, Image, Message, Reasoning, Text, ToolCall, ToolResult, clean
from hames.content.request import Fragment, ToolSpec
from hames.models.port import Pictures, Settings

WORDS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "max-tokens",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "content_filter": "refusal",
}


#: What a word of an error in the stream contains, and the kind that it is then.
ERRORS: dict[str, FailureKind] = {
    "overload": "overloaded",
    "rate_limit": "rate-limit",
    "context_length": "context-overflow",
    "invalid_request": "invalid-request",
    "authentication": "auth",
    "invalid_api_key": "auth",
    "not_found": "not-found",
    "timeout": "timeout",
}


class OpenAIChat:
    """The dialect.

    :param max_tokens_field: the name under which the server takes the limit of the answer.
    """

    name = "openai-chat/1"
    path = "/chat/completions"
    marker = b""
    tail = b"]}"

    def __init__(self, *, max_tokens_field: str = "max_completion_tokens") -> None:
        self._max_tokens_field = max_tokens_field

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    def head(self, model: str, system: str, tools: Sequence[ToolSpec], settings: Settings) -> bytes:
        body: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        if settings.max_tokens is not None:
            body[self._max_tokens_field] = settings.max_tokens
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.effort is not None:
            body["reasoning_effort"] = settings.effort
        if settings.schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": settings.schema, "strict": True}}
        if tools:
            body["tools"] = [
                {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}}
                for tool in tools
            ]
        lead = dumps({"role": "system", "content": system}) + "," if system else ""
        return clean(f'{dumps(body)[:-1]},"messages":[{lead}').encode()

    def joins(self, previous: Message, message: Message) -> bool:
        return answers(previous) and answers(message)

    def group(self, messages: Sequence[Message], *, reasoning: bool, pictures: Pictures) -> Fragment | None:
        if answers(messages[0]):
            parts = self._results(messages, pictures)
        elif messages[0].role == "user":
            parts = [dumps({"role": "user", "content": content(messages[0].blocks, pictures)})]
        else:
            parts = self._assistant(messages[0], reasoning)
        return Fragment(",".join(parts).encode()) if parts else None

    @staticmethod
    def _results(messages: Sequence[Message], pictures: Pictures) -> list[str]:
        """All results of one answer, then what they show and what was said with them: nothing may stand between results."""
        results = [block for message in messages for block in message.blocks if isinstance(block, ToolResult)]
        parts = [dumps({"role": "tool", "tool_call_id": result.call_id, "content": result.text}) for result in results]
        more: list[Block] = [block for message in messages for block in message.blocks if isinstance(block, Text | Image)]
        more += [part for result in results for part in result.content if isinstance(part, Image)]
        return [*parts, dumps({"role": "user", "content": content(more, pictures)})] if more else parts

    def _assistant(self, message: Message, reasoning: bool) -> list[str]:
        body: dict[str, Any] = {"role": "assistant", "content": message.text or None}
        if reasoning:
            thought = "".join(block.text for block in message.blocks if isinstance(block, Reasoning))
            if thought:
                body["reasoning_content"] = thought
        if message.calls:
            body["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in message.calls
            ]
        elif not message.text:
            body["content"] = ""
        return [dumps(body)]

    def parser(self) -> OpenAIParser:
        return OpenAIParser()


def answers(message: Message) -> bool:
    return any(isinstance(block, ToolResult) for block in message.blocks)


def content(blocks: Sequence[Block], pictures: Pictures) -> Any:
    """The content of a user's message: its text, or parts in order where it has pictures."""
    if not any(isinstance(block, Image) for block in blocks):
        return "".join(block.text for block in blocks if isinstance(block, Text))
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Text) and block.text:
            parts.append({"type": "text", "text": block.text})
        elif isinstance(block, Image):
            data = b64encode(pictures(block.blob)).decode()
            parts.append({"type": "image_url", "image_url": {"url": f"data:{block.media_type};base64,{data}"}})
    return parts


class OpenAIParser:
    """Assembles one streamed completion."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, list[Any]] = {}  # index: id, name, pieces of the arguments
        self._word = ""
        self.usage: Usage | None = None

    def feed(self, event: str, data: str) -> Sequence[Chunk]:
        if data == "[DONE]":
            finish = self.end()
            return () if finish is None else (finish,)
        body = parse_object(data)
        if body.get("error"):
            return (self._error(body["error"]),)
        if body.get("usage"):
            self.usage = usage(as_object(body["usage"]))
        choices = body.get("choices")
        return self._choice(choices[0]) if choices else ()

    def _choice(self, choice: dict[str, Any]) -> Sequence[Chunk]:
        chunks: list[Chunk] = []
        delta: dict[str, Any] = choice.get("delta") or {}
        if text := as_text(delta.get("content")):
            self._text.append(text)
            chunks.append(TextDelta(text))
        if thought := as_text(delta.get("reasoning_content") or delta.get("reasoning")):
            self._reasoning.append(thought)
            chunks.append(ReasoningDelta(thought))
        if refusal := as_text(delta.get("refusal")):
            self._refusal.append(refusal)
        for call in delta.get("tool_calls") or ():
            chunks.append(self._call(call))
        if word := choice.get("finish_reason"):
            self._word = str(word)
        return chunks

    def _call(self, call: dict[str, Any]) -> ToolCallDelta:
        index = int(call.get("index", len(self._calls)))
        entry = self._calls.setdefault(index, ["", "", []])
        function: dict[str, Any] = call.get("function") or {}
        entry[0] = entry[0] or as_text(call.get("id"))
        entry[1] = entry[1] or as_text(function.get("name"))
        arguments = as_text(function.get("arguments"))
        entry[2].append(arguments)
        return ToolCallDelta(index, arguments, entry[0], entry[1])

    def _error(self, error: Any) -> Finish:
        members = as_object(error)
        message = str(members.get("message") or error)
        word = str(members.get("code") or members.get("type") or "")
        kinds: list[FailureKind] = [kind for sign, kind in ERRORS.items() if sign in word]
        return Finish("error", self.partial(), self.usage, Failure(kinds[0] if kinds else "server", message, word=word))

    def partial(self) -> tuple[Block, ...]:
        blocks: list[Block] = []
        if self._reasoning:
            blocks.append(Reasoning("".join(self._reasoning)))
        if text := "".join(self._text):
            blocks.append(Text(text))
        return tuple(blocks)

    def end(self) -> Finish | None:
        if not self._word:
            return None
        blocks = list(self.partial())
        if self._refusal:
            blocks.append(Text("".join(self._refusal)))
        calls = [
            ToolCall(id or f"call_{index}", name, "".join(pieces) or "{}") for index, (id, name, pieces) in sorted(self._calls.items())
        ]
        blocks.extend(calls)
        reason = WORDS.get(self._word)
        if reason is None:
            failure = Failure("unknown-finish", f"the provider finished with {self._word!r}", word=self._word)
            return Finish("error", tuple(blocks), self.usage, failure)
        if self._refusal:
            reason = "refusal"
        elif reason == "stop" and calls:  # some servers call it stop; what they sent is whole all the same
            reason = "tool-calls"
        elif reason == "tool-calls" and not calls:
            reason = "stop"
        if reason == "stop" and not any(isinstance(block, Text) for block in blocks):
            return Finish("error", tuple(blocks), self.usage, Failure("empty", "the provider finished without an answer"))
        return Finish(reason, tuple(blocks), self.usage)


def usage(data: dict[str, Any]) -> Usage:
    """Tokens as Hames counts them: what came from a cache is not input too."""
    prompt = as_object(data.get("prompt_tokens_details"))
    answer = as_object(data.get("completion_tokens_details"))
    cached = as_count(prompt.get("cached_tokens")) or as_count(data.get("prompt_cache_hit_tokens"))
    fresh = max(0, as_count(data.get("prompt_tokens")) - cached)
    return Usage(fresh, as_count(data.get("completion_tokens")), cached, 0, as_count(answer.get("reasoning_tokens")))
