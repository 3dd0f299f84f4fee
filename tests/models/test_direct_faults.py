"""The other providers under the faults that our own adapters are tried with; the cells that differ are listed."""

from __future__ import annotations

import pytest

from hames.content.finish import Finish
from hames.content.messages import ToolCall, user
from hames.content.request import ToolSpec
from hames.models.direct import DirectConfig, DirectProvider
from hames.models.port import Settings
from hames.testing.stub import StubServer

pytest.importorskip("pydantic_ai")

LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})
KEY = "canary-key-0123456789"

#: What each fault is, as with our own adapters.
EXPECTED = {
    "no-finish": ("error", "cut"),
    "length-in-arguments": ("max-tokens", ""),
    "refusal": ("refusal", ""),
    "malformed": ("error", "malformed"),
    "odd-shape": ("error", "malformed"),
    "error-object": ("error", "overloaded"),
    "hang": ("error", "timeout"),
    "cut-socket": ("error", "cut"),
    "interleaved": ("tool-calls", ""),
    "reasoning": ("stop", ""),
    "unknown-finish": ("error", "unknown-finish"),
    "empty": ("error", "empty"),
    "overflow": ("error", "context-overflow"),
    "auth": ("error", "auth"),
    "server": ("error", "server"),
    "html": ("error", "not-found"),
}
#: The cells that differ, with what is the case instead.
DIFFERENT = {
    ("openai-chat", "no-finish"): ("stop", ""),  # pydantic-ai takes the end of such a stream for its finish
    ("openai-chat", "cut-socket"): ("error", "transport"),
    ("anthropic", "cut-socket"): ("error", "transport"),
    ("anthropic", "odd-shape"): ("error", "cut"),  # what does not fit is skipped
    ("openai-chat", "unknown-finish"): ("error", "cut"),  # the word is not kept
    ("anthropic", "unknown-finish"): ("error", "cut"),
    ("openai-chat", "html"): ("error", "malformed"),
    ("anthropic", "html"): ("error", "malformed"),
}


@pytest.fixture
def ask(stub: StubServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_BASE_URL", f"{stub.url}/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", stub.url)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY)

    async def run(provider: str, name: str) -> Finish:
        model = DirectProvider(DirectConfig(idle_seconds=1.5 if "hang" in name else 20)).model(
            f"{provider}:{name}", "", f"pydantic:{provider}:{name}"
        )
        request = model.encoder(lambda blob: b"").encode("Be brief.", (LOOK,), [(0, user("Go."))], Settings())
        chunks = [chunk async for chunk in model.stream(request)]
        assert isinstance(chunks[-1], Finish) and not any(isinstance(chunk, Finish) for chunk in chunks[:-1])
        return chunks[-1]

    return run


@pytest.mark.parametrize("fault", EXPECTED)
@pytest.mark.parametrize("provider", ["openai-chat", "anthropic"])
async def test_a_fault_is_this_outcome(ask, provider: str, fault: str) -> None:
    finish = await ask(provider, f"fault={fault}")
    kind = finish.failure.kind if finish.failure is not None else ""
    assert (finish.reason, kind) == DIFFERENT.get((provider, fault), EXPECTED[fault])
    if finish.failure is not None:
        assert KEY not in finish.failure.message


@pytest.mark.parametrize("provider", ["openai-chat", "anthropic"])
async def test_an_answer_and_a_call_come_whole(ask, provider: str) -> None:
    finish = await ask(provider, "text=Hello there")
    assert (finish.reason, finish.blocks[0].text, finish.usage.cache_read) == ("stop", "Hello there", 64)
    finish = await ask(provider, "steps=1;tool=look;args={}")
    assert finish.reason == "tool-calls"
    assert [(block.name, block.arguments) for block in finish.blocks if isinstance(block, ToolCall)] == [("look", "{}")]
