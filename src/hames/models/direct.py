"""Every other provider, through pydantic-ai's direct layer: ``pydantic:google:gemini-2.5-pro``.

Needs the extra ``providers``, and what the provider itself needs (``pydantic-ai-slim[google]`` …). It is imported when a model is
named. A request is encoded as a document of our own and recorded like every other; how it looks on the wire is pydantic-ai's.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from hames.budget import looked_up
from hames.compose.config import RowConfig
from hames.content.errors import ModelReferenceError
from hames.content.finish import Chunk, Failure, FailureKind, Finish, FinishReason, ReasoningDelta, TextDelta, ToolCallDelta, Usage
from hames.content.jsontext import as_count, as_object, dumps, parse_object
from hames.content.messages import Block, Image, Message, Reasoning, Text, ToolCall, ToolResult, clean, decode_message, encode_message
from hames.content.request import EncodedRequest, Fragment, ToolSpec
from hames.kernel import Context, plugin
from hames.models.encoder import Encoder
from hames.models.plugin import MODELS
from hames.models.port import WINDOW, Pictures, Settings
from hames.models.wire import OVERFLOW

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
MESSAGE_LIMIT = 500  # characters of an error that are kept
REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "max-tokens", "content_filter": "refusal", "tool_call": "tool-calls"}

#: The errors of pydantic-ai by name, the narrowest first, and the kind that each is here.
KINDS: dict[str, FailureKind] = {
    "ModelContextWindowExceededError": "context-overflow",
    "ModelAuthenticationError": "auth",
    "ModelNotFoundError": "not-found",
    "ModelQuotaExceededError": "rate-limit",
    "ModelRateLimitError": "rate-limit",
    "ModelOverloadedError": "overloaded",
    "ModelUnavailableError": "overloaded",
    "ModelServerError": "server",
    "ModelTimeoutError": "timeout",
    "ModelRequestTimeout": "timeout",
    "ModelConnectionError": "transport",
    "ModelRequestRejectedError": "invalid-request",
    "ContentFilterError": "invalid-request",
    "UserError": "invalid-request",
}


class Document:
    """Our own form of messages, tools and settings, with the bytes of pictures in it."""

    name = "pydantic-ai/1"
    marker = b""
    tail = b"]}"

    def head(self, model: str, system: str, tools: Sequence[ToolSpec], settings: Settings) -> bytes:
        specs = [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools]
        chosen = {"max_tokens": settings.max_tokens, "temperature": settings.temperature, "effort": settings.effort}
        body = {"model": model, "system": system, "tools": specs, "settings": {k: v for k, v in chosen.items() if v is not None}}
        return clean(f'{dumps(body)[:-1]},"messages":[').encode()

    def joins(self, previous: Message, message: Message) -> bool:
        return False

    def group(self, messages: Sequence[Message], *, reasoning: bool, pictures: Pictures) -> Fragment | None:
        (message,) = messages
        data = encode_message(message)
        for block in pictures_in(data):
            block["data"] = b64encode(pictures(block["blob"])).decode()
        return Fragment(dumps(data).encode())


def to_messages(body: dict[str, Any]) -> list[ModelMessage]:
    """A request as pydantic-ai has it."""
    from pydantic_ai import messages as ai

    names: dict[str, str] = {}
    found: list[ModelMessage] = []
    parts: list[Any] = [ai.SystemPromptPart(body["system"])] if body["system"] else []
    for data in body["messages"]:
        message = decode_message(data)
        images = {block["blob"]: block for block in pictures_in(data)}
        if message.role == "user":
            parts += user_parts(message, names, images)
            continue
        if parts:
            found.append(ai.ModelRequest(parts))
            parts = []
        found.append(ai.ModelResponse(answer_parts(message, names)))
    if parts:
        found.append(ai.ModelRequest(parts))
    return found


def pictures_in(data: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = [*data["blocks"], *(part for block in data["blocks"] for part in block.get("content", ()))]
    return [block for block in blocks if block.get("type") == "image"]


def user_parts(message: Message, names: dict[str, str], images: dict[str, dict[str, Any]]) -> list[Any]:
    from pydantic_ai import messages as ai

    def shown(image: Image) -> ai.BinaryContent:
        return ai.BinaryContent(b64decode(images[image.blob]["data"]), media_type=image.media_type)

    parts: list[Any] = []
    said: list[Any] = []
    for block in message.blocks:
        match block:
            case ToolResult(call_id, content):
                parts.append(ai.ToolReturnPart(names.get(call_id, "unknown"), block.text, call_id))
                said += [shown(part) for part in content if isinstance(part, Image)]
            case Text(text) if text:
                said.append(text)
            case Image():
                said.append(shown(block))
            case _:
                pass
    return [*parts, ai.UserPromptPart(said)] if said else parts


def answer_parts(message: Message, names: dict[str, str]) -> list[Any]:
    from pydantic_ai import messages as ai

    parts: list[Any] = []
    for block in message.blocks:
        match block:
            case Text(text):
                parts.append(ai.TextPart(text))
            case ToolCall(id, name, arguments):
                names[id] = name
                parts.append(ai.ToolCallPart(name, arguments, id))
            case Reasoning(text, signature, _, origin) if origin.startswith("pydantic:"):
                parts.append(ai.ThinkingPart(text, signature=signature or None, provider_name=origin.removeprefix("pydantic:")))
            case _:
                pass
    return parts


def from_parts(parts: Sequence[Any]) -> tuple[Block, ...]:
    """An answer of pydantic-ai as ours."""
    from pydantic_ai import messages as ai

    blocks: list[Block] = []
    for part in parts:
        if isinstance(part, ai.TextPart):
            blocks.append(Text(clean(part.content)))
        elif isinstance(part, ai.ThinkingPart):
            blocks.append(Reasoning(clean(part.content), part.signature or "", "", f"pydantic:{part.provider_name or ''}"))
        elif isinstance(part, ai.ToolCallPart):
            blocks.append(ToolCall(part.tool_call_id, part.tool_name, clean(part.args_as_json_str())))
    return tuple(block for block in blocks if not isinstance(block, Text) or block.text)


class DirectModel:
    """A model of pydantic-ai."""

    def __init__(self, ref: str, name: str, window: int, idle: float) -> None:
        self.ref = ref
        self.window = window
        self.idle = idle
        self._name = name

    def encoder(self, pictures: Pictures) -> Encoder:
        return Encoder(Document(), self._name, pictures=pictures)

    def cost(self, usage: Usage) -> float | None:
        provider, _, model = self._name.partition(":")
        return looked_up(provider, model, usage)

    def stream(self, request: EncodedRequest) -> DirectStream:
        return DirectStream(self, request)


class DirectStream:
    """One request under way."""

    def __init__(self, model: DirectModel, request: EncodedRequest) -> None:
        self._model = model
        self._request = request
        self._response: Any = None

    def partial(self) -> tuple[Block, ...]:
        if self._response is None:
            return ()
        return tuple(block for block in from_parts(self._response.get().parts) if not isinstance(block, ToolCall))

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        from pydantic_ai import exceptions
        from pydantic_ai.direct import model_request_stream
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import ToolDefinition

        body = parse_object(self._request.body())
        tools = [
            ToolDefinition(name=tool["name"], parameters_json_schema=tool["parameters"], description=tool["description"])
            for tool in body["tools"]
        ]
        settings: Any = {name: value for name, value in as_object(body["settings"]).items() if name != "effort"}
        parameters = ModelRequestParameters(function_tools=tools)
        try:
            async with asyncio.timeout(self._model.idle) as idle:
                opened = model_request_stream(
                    body["model"], to_messages(body), model_settings=settings or None, model_request_parameters=parameters
                )
                async with opened as response:
                    self._response = response
                    async for event in response:
                        idle.reschedule(asyncio.get_running_loop().time() + self._model.idle)
                        if (chunk := heard(event)) is not None:
                            yield chunk
            yield self._finish()
        except TimeoutError:
            yield self._failed("timeout", f"nothing came for {self._model.idle:g} s")
        except exceptions.AgentRunError as error:
            yield self._failed(kind_of(error), str(error), int(getattr(error, "status_code", 0) or 0))
        except exceptions.UserError as error:
            yield self._failed("invalid-request", str(error))
        except Exception as error:  # of a provider's own package: whatever it is, it is an outcome
            yield self._failed("malformed", f"{type(error).__name__}: {error}")

    def _failed(self, kind: FailureKind, message: str, status: int = 0) -> Finish:
        message = scrubbed(clean(message))
        if kind == "invalid-request" and any(sign in message.lower() for sign in OVERFLOW):
            kind = "context-overflow"
        return Finish("error", self.partial(), None, Failure(kind, message[:MESSAGE_LIMIT], status))

    def _finish(self) -> Finish:
        answer = self._response.get()
        blocks = from_parts(answer.parts)
        used: Any = answer.usage
        read, write = as_count(used.cache_read_tokens), as_count(used.cache_write_tokens)
        usage = Usage(max(0, as_count(used.input_tokens) - read - write), as_count(used.output_tokens), read, write)
        if answer.finish_reason is None or answer.state != "complete":
            return Finish("error", blocks, usage, Failure("cut", "the stream ended without a finish"))
        reason = REASONS.get(answer.finish_reason)
        if reason is None:
            failure = Failure("unknown-finish", f"the provider finished with {answer.finish_reason!r}", word=answer.finish_reason)
            return Finish("error", blocks, usage, failure)
        calls = any(isinstance(block, ToolCall) for block in blocks)
        if reason == "stop" and calls:
            reason = "tool-calls"
        elif reason == "tool-calls" and not calls:
            reason = "stop"
        if reason == "stop" and not any(isinstance(block, Text) for block in blocks):
            return Finish("error", blocks, usage, Failure("empty", "the provider finished without an answer"))
        return Finish(reason, blocks, usage)


def scrubbed(text: str) -> str:
    """Text without the secrets of the environment: the packages of providers quote what a server has said, and servers quote keys."""
    for name, value in os.environ.items():
        if len(value) >= 8 and SECRET.search(name) and value in text:
            text = text.replace(value, "***")
    return text


def kind_of(error: BaseException) -> FailureKind:
    """The kind of a failure: that of the first of its classes that is known."""
    names = [each.__name__ for each in type(error).__mro__]
    kinds: list[FailureKind] = [kind for name, kind in KINDS.items() if name in names]
    return kinds[0] if kinds else "malformed"


def heard(event: Any) -> Chunk | None:
    """What a person hears of an event."""
    from pydantic_ai import messages as ai

    if isinstance(event, ai.PartStartEvent):
        part = event.part
        if isinstance(part, ai.TextPart) and part.content:
            return TextDelta(clean(part.content))
        if isinstance(part, ai.ThinkingPart) and part.content:
            return ReasoningDelta(clean(part.content))
        if isinstance(part, ai.ToolCallPart):
            return ToolCallDelta(event.index, part.args if isinstance(part.args, str) else "", part.tool_call_id, part.tool_name)
    elif isinstance(event, ai.PartDeltaEvent):
        delta = event.delta
        if isinstance(delta, ai.TextPartDelta):
            return TextDelta(clean(delta.content_delta))
        if isinstance(delta, ai.ThinkingPartDelta) and delta.content_delta:
            return ReasoningDelta(clean(delta.content_delta))
        if isinstance(delta, ai.ToolCallPartDelta) and isinstance(delta.args_delta, str):
            return ToolCallDelta(event.index, delta.args_delta)
    return None


class DirectConfig(RowConfig):
    """Models of other providers."""

    windows: dict[str, int] = {}
    """Tokens of a model's window by its name, as in ``google:gemini-2.5-pro``; others have 128,000."""
    idle_seconds: float = Field(default=300.0, gt=0)
    """Seconds in which nothing comes, after which a request has failed."""


class DirectProvider:
    """Serves ``pydantic:PROVIDER:MODEL``."""

    def __init__(self, config: DirectConfig) -> None:
        self._config = config

    def model(self, name: str, profile: str, ref: str) -> DirectModel:
        name = f"{name}@{profile}" if profile else name
        if importlib.util.find_spec("pydantic_ai") is None:
            remedy = "pip install 'hames[providers]'"
            raise ModelReferenceError(f"{ref} needs the package pydantic-ai-slim", remedy=remedy, code="MODEL_EXTRA_MISSING")
        from pydantic_ai.models import infer_model

        try:
            infer_model(name)
        except Exception as error:
            said = " ".join(str(error).split())[:MESSAGE_LIMIT]
            remedy = "name it as pydantic:PROVIDER:MODEL, and give its key"
            raise ModelReferenceError(f"{ref} cannot be used: {said}", remedy=remedy) from None
        return DirectModel(ref, name, self._config.windows.get(name, WINDOW), self._config.idle_seconds)


@plugin(config=DirectConfig, needs=(MODELS,), name="direct")
def direct(ctx: Context, config: DirectConfig) -> None:
    """Serve ``pydantic:PROVIDER:MODEL``."""
    ctx.use(MODELS).register(ctx, "pydantic", DirectProvider(config))
