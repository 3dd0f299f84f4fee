"""What a call goes through."""

from __future__ import annotations

import pytest

from hames.agents import AgentSpec
from hames.content.errors import ConfigError
from hames.kernel import Mask, plugin
from hames.policy import POLICY, Decision
from hames.tools import TOOLS, Approval, RunTool, tool


@tool("read")
def echo(text: str, times: int = 1) -> str:
    """Say it again.

    :param text: what to say.
    :param times: how often,
        at least once.
    """
    return text * times


@tool("network")
def fetch(url: str) -> str:
    """Fetch."""
    return url


@plugin(needs=(TOOLS,))
def both(ctx, config):
    for each in (echo, fetch):
        ctx.use(TOOLS).register(ctx, each)


@pytest.fixture
def call(host, agents, script, calling, tmp_path):
    """Runs one call through an agent and returns its result."""
    host.mount(both)

    async def run(name, arguments, *, tools=None, raw=None):
        answer = calling((name, arguments))
        if raw is not None:
            answer["calls"][0]["raw_arguments"] = raw
        agent = await agents.create(AgentSpec(str(tmp_path), script(answer, {"text": "done"}), tools=tools))
        assert (await agent.run("go")).reason == "completed"
        return next(block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks)

    return run


def test_a_tool_is_its_signature_and_its_docstring():
    assert echo.description == "Say it again."
    assert echo.parameters == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "text": {"type": "string", "description": "what to say."},
            "times": {"type": "integer", "default": 1, "description": "how often, at least once."},
        },
        "required": ["text"],
    }


async def test_a_sound_call_runs(call):
    result = await call("echo", {"text": "ab", "times": 2})
    assert (result.text, result.is_error) == ("abab", False)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ('{"text": 5, "extra": 1}', "text: Input should be a valid string\nextra: Extra inputs are not permitted"),
        ("{oops", "no JSON object"),
        ("[1]", "not a JSON object"),
    ],
)
async def test_unsound_arguments_are_answered_with_every_violation(call, raw, said):
    result = await call("echo", {}, raw=raw)
    assert result.code == "INVALID_ARGS" and said in result.text


async def test_a_hidden_tool_is_as_one_that_does_not_exist(call):
    hidden = await call("echo", {"text": "a"}, tools=Mask(allow=frozenset({"read"})))
    missing = await call("no_such_tool", {"text": "a"})
    assert hidden.code == missing.code == "UNKNOWN_TOOL"
    assert hidden.text.replace("echo", "X") == missing.text.replace("no_such_tool", "X")


async def test_a_mask_that_names_nothing_known_is_refused(host, agents, tmp_path, script):
    with pytest.raises(ConfigError, match="unknown tool in a mask: raed"):
        await agents.create(AgentSpec(str(tmp_path), script({"text": "x"}), tools=Mask(allow=frozenset({"raed"}))))
    assert not host.root_scope.children


async def test_what_nobody_allows_is_denied_and_says_so(call):
    result = await call("fetch", {"url": "u"})
    assert result.code == "DENIED" and "nobody is there to allow it" in result.text


async def test_a_person_is_asked_once_and_shown_the_call(host, call):
    asked = []

    async def answer(question):
        asked.append((question.request.name, dict(question.request.arguments)))
        return "once"

    host.ctx.on(Approval, answer)
    assert (await call("fetch", {"url": "u"})).text == "u"
    assert asked == [("fetch", {"url": "u"})]


async def test_an_answerer_that_fails_has_not_allowed_anything(host, call):
    async def answer(question):
        raise RuntimeError("face")

    host.ctx.on(Approval, answer)
    assert (await call("fetch", {"url": "u"})).code == "DENIED"


async def test_a_policy_that_fails_denies(host, call):
    class Broken:
        def decide(self, request):
            raise RuntimeError("policy")

    @plugin()
    def broken(ctx, config):
        ctx.provide(POLICY, Broken())

    await host.root.children["policy"].replace(broken)
    assert (await call("echo", {"text": "a"})).code == "DENIED"


async def test_guards_only_deny_and_one_that_fails_denies(host, call):
    class Generous:
        def decide(self, request):
            return Decision("allow")

    @plugin()
    def generous(ctx, config):
        ctx.provide(POLICY, Generous())

    await host.root.children["policy"].replace(generous)
    tools = host.get(TOOLS)
    seen = []
    tools.guard(host.ctx, "watch", lambda request: seen.append(request.name))
    assert (await call("echo", {"text": "a"})).text == "a" and seen == ["echo"]
    tools.guard(host.ctx, "strict", lambda request: "not today" if request.name == "fetch" else None)
    assert "not today" in (await call("fetch", {"url": "u"})).text
    tools.guard(host.ctx, "broken", lambda request: 1 / 0)
    assert (await call("echo", {"text": "a"})).text == "Error: guard broken failed"


async def test_a_listener_may_change_what_comes_back(host, call):
    async def shout(event, proceed):
        output = await proceed()
        return type(output)(tuple(type(part)(part.text.upper()) for part in output.content))

    host.ctx.on(RunTool, shout)
    assert (await call("echo", {"text": "a"})).text == "A"


def test_a_tool_without_a_docstring_or_a_type_is_refused():
    with pytest.raises(TypeError, match="no docstring"):

        @tool("read")
        def silent(text: str) -> str:
            return text

    with pytest.raises(TypeError, match="has no type"):

        @tool("read")
        def loose(text) -> str:
            """Say."""
            return text
