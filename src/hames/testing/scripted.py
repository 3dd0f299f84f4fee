"""A model that says what a file tells it to: ``scripted:FILE``.

The file is a YAML or JSON list; each item is one answer, chosen by how many answers the conversation already holds, so a resumed
session goes on where it stopped::

    - text: I look at the test first.
      calls:
        - {name: read, arguments: {path: test_calc.py}}
    - text: Done.

An item may also hold ``reasoning``, ``finish`` (a finish reason), ``failure`` (a kind of failure), ``usage`` (token counts) and
``raw_arguments`` in a call (text that stands for itself, sound or not).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from hames.content.errors import ModelReferenceError
from hames.content.finish import Chunk, Failure, FailureKind, Finish, FinishReason, ReasoningDelta, TextDelta, Usage
from hames.content.jsontext import dumps, parse_object
from hames.content.messages import Block, Reasoning, Text, ToolCall
from hames.content.paths import expanded
from hames.content.request import EncodedRequest
from hames.kernel import Context, plugin
from hames.models import MODELS, Encoder
from hames.models.openai import OpenAIChat
from hames.models.port import WINDOW, Pictures


class ScriptedCall(BaseModel):
    """A tool call of an answer."""

    model_config = ConfigDict(extra="forbid")

    name: str
    arguments: dict[str, Any] = {}
    raw_arguments: str | None = None
    id: str | None = None


class ScriptedAnswer(BaseModel):
    """One answer."""

    model_config = ConfigDict(extra="forbid")

    text: str = ""
    reasoning: str = ""
    calls: list[ScriptedCall] = []
    finish: FinishReason | None = None
    failure: FailureKind | None = None
    usage: dict[Literal["input", "output", "cache_read", "cache_write", "reasoning"], int] = {}


class ScriptedModel:
    """The model of one script."""

    def __init__(self, ref: str, answers: list[ScriptedAnswer]) -> None:
        self.ref = ref
        self.window = WINDOW
        self._answers = answers

    def encoder(self, pictures: Pictures) -> Encoder:
        return Encoder(OpenAIChat(), self.ref, pictures=pictures)

    def cost(self, usage: Usage) -> float | None:
        return 0.0

    def stream(self, request: EncodedRequest) -> ScriptedStream:
        messages: list[dict[str, Any]] = parse_object(request.body())["messages"]
        place = sum(message["role"] == "assistant" for message in messages)
        answer = self._answers[place] if place < len(self._answers) else None
        return ScriptedStream(place, answer)


class ScriptedStream:
    """One answer, streamed word by word."""

    def __init__(self, place: int, answer: ScriptedAnswer | None) -> None:
        self._place = place
        self._answer = answer
        self._said = ""

    def partial(self) -> tuple[Block, ...]:
        return (Text(self._said),) if self._said else ()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        answer = self._answer
        if answer is None:
            yield Finish("error", (), None, Failure("invalid-request", f"the script ends before answer {self._place + 1}"))
            return
        if answer.failure is not None:
            yield Finish("error", (), None, Failure(answer.failure, "as the script says"))
            return
        blocks: list[Block] = []
        if answer.reasoning:
            blocks.append(Reasoning(answer.reasoning))
            yield ReasoningDelta(answer.reasoning)
        if answer.text:
            blocks.append(Text(answer.text))
            for word in answer.text.split(" "):
                delta = word if not self._said else " " + word
                self._said += delta
                yield TextDelta(delta)
        for index, call in enumerate(answer.calls):
            arguments = call.raw_arguments if call.raw_arguments is not None else dumps(call.arguments)
            blocks.append(ToolCall(call.id or f"call_{self._place}_{index}", call.name, arguments))
        reason = answer.finish or ("tool-calls" if answer.calls else "stop")
        yield Finish(reason, tuple(blocks), Usage(**answer.usage) if answer.usage else None)


class ScriptedProvider:
    """Reads scripts."""

    def model(self, name: str, profile: str, ref: str) -> ScriptedModel:
        path = expanded(ref.partition(":")[2])  # a path may hold an @
        try:
            items = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            if not isinstance(items, list):
                raise ModelReferenceError(f"{path} is no list of answers", remedy="each item is an answer with text or calls")
            answers = [ScriptedAnswer.model_validate(item) for item in items]  # pyright: ignore[reportUnknownVariableType]
        except OSError as error:
            raise ModelReferenceError(f"{path}: {error.strerror}", remedy="name an existing script as scripted:FILE") from None
        except (yaml.YAMLError, ValidationError, UnicodeDecodeError) as error:
            raise ModelReferenceError(f"{path}: {error}", remedy="see hames.testing.scripted for the form") from None
        return ScriptedModel(ref, answers)


@plugin(needs=(MODELS,), name="scripted")
def scripted(ctx: Context, config: None) -> None:
    """Serve ``scripted:FILE``."""
    ctx.use(MODELS).register(ctx, "scripted", ScriptedProvider())
