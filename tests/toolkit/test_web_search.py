"""Searching the web: what each service is asked, what is made of its answer, and that no key is ever shown."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from hames.agents import AGENTS, AgentSpec
from hames.content.errors import ConfigError
from hames.toolkit import web_search
from hames.toolkit.web_search import Hit, SearchConfig, Service, hits, lines
from hames.tools import TOOLS, Approval, ToolError

KEY = "canary-5d1f0c"
PROVIDERS = ("brave", "tavily", "searxng")
KEYS = {"brave": "BRAVE_API_KEY", "tavily": "TAVILY_API_KEY", "searxng": ""}
FOUND = [
    {"title": f"Title {n}", "url": f"https://example.com/{n}", "description": f"words {n}", "content": f"words {n}"} for n in range(30)
]


def answer(provider: str, found: object = FOUND) -> str:
    return json.dumps({"web": {"results": found}} if provider == "brave" else {"results": found})


def left() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks() - {asyncio.current_task()})


@pytest.fixture
async def nothing_left():
    before = left()
    yield
    async with asyncio.timeout(2):
        while left() != before:
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name in ("BRAVE_API_KEY", "TAVILY_API_KEY"):
        monkeypatch.setenv(name, KEY)


@pytest.fixture
async def serve(nothing_left):
    """Starts a search service on loopback; gives its URL and what it was asked: path, query, headers and body."""
    async with AsyncExitStack() as stack:

        async def start(respond) -> tuple[str, list[tuple[web.Request, str]]]:
            had: list[tuple[web.Request, str]] = []

            async def handle(request: web.Request) -> web.StreamResponse:
                had.append((request, await request.text()))
                made = respond(request)
                return await made if asyncio.iscoroutine(made) else made

            runner = web.ServerRunner(web.Server(handle, access_log=None), shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            return f"http://127.0.0.1:{runner.addresses[0][1]}", had

        yield start


def says(text: str | bytes, status: int = 200, **headers: str):
    body = text.encode() if isinstance(text, str) else text
    return lambda request: web.Response(body=body, status=status, headers={"Content-Type": "application/json", **headers})


def service(provider: str, url: str, **more: str) -> Service:
    return Service(SearchConfig.model_validate({"provider": provider, "base_url": url, **more}))


async def refusal(search: Service, query: str = "what", count: int = 5) -> ToolError:
    with pytest.raises(ToolError) as raised:
        await search.search(query, count)
    shown = f"{raised.value!r} {raised.value} {raised.value.__cause__!r}"
    assert KEY not in shown
    return raised.value


# what is asked


async def test_brave_is_asked_with_its_header(serve):
    url, had = await serve(says(answer("brave")))
    found = await service("brave", f"{url}/res/v1/").search("a b&c=d#e+f \u00e4", 7)
    ((request, body),) = had
    assert (request.method, request.path, body) == ("GET", "/res/v1/web/search", "")
    assert dict(request.query) == {"q": "a b&c=d#e+f \u00e4", "count": "7"}
    assert request.headers["X-Subscription-Token"] == KEY and "Authorization" not in request.headers
    assert found[0] == Hit("Title 0", "https://example.com/0", "words 0")


async def test_tavily_is_asked_with_its_header(serve):
    url, had = await serve(says(answer("tavily")))
    found = await service("tavily", url).search('quoted "text" \u00e4', 7)
    ((request, body),) = had
    assert (request.method, request.path, dict(request.query)) == ("POST", "/search", {})
    assert json.loads(body) == {"query": 'quoted "text" \u00e4', "max_results": 7}
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert found[1] == Hit("Title 1", "https://example.com/1", "words 1")


async def test_searxng_is_asked_without_a_key(serve):
    url, had = await serve(says(answer("searxng")))
    found = await service("searxng", url).search("a", 7)
    ((request, _),) = had
    assert (request.method, request.path, dict(request.query)) == ("GET", "/search", {"q": "a", "format": "json"})
    assert len(found) == 7
    assert KEY not in str(request.headers)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_the_key_stands_in_no_address_and_no_body(serve, provider):
    url, had = await serve(says(answer(provider)))
    await service(provider, url).search("a", 3)
    ((request, body),) = had
    assert KEY not in str(request.url) and KEY not in body
    assert [name for name, value in request.headers.items() if KEY in value] == (
        [] if provider == "searxng" else ["X-Subscription-Token" if provider == "brave" else "Authorization"]
    )
    assert "Cookie" not in request.headers


async def test_a_key_may_come_from_another_variable(serve, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "other")
    url, had = await serve(says(answer("brave")))
    await service("brave", url, key_env="OTHER_KEY").search("a", 3)
    assert had[0][0].headers["X-Subscription-Token"] == "other"


async def test_the_environment_names_no_proxy_and_no_password(serve, monkeypatch, tmp_path):
    proxy, asked = await serve(says("{}"))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)
    (tmp_path / "netrc").write_text("default login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    url, had = await serve(says(answer("searxng")))
    assert await service("searxng", url).search("a", 3)
    assert asked == [] and "Authorization" not in had[0][0].headers


# what goes wrong


@pytest.mark.parametrize("provider", ["brave", "tavily"])
@pytest.mark.parametrize("value", [None, ""])
async def test_without_a_key_nobody_is_asked(serve, monkeypatch, provider, value):
    monkeypatch.delenv(KEYS[provider])
    if value is not None:
        monkeypatch.setenv(KEYS[provider], value)
    url, had = await serve(says(answer(provider)))
    error = await refusal(service(provider, url))
    assert (error.code, KEYS[provider] in str(error), had) == ("KEY_MISSING", True, [])


async def test_a_service_without_a_place_is_said(nothing_left):
    assert (await refusal(service("searxng", ""))).code == "NOT_CONFIGURED"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("status", [201, 204, 301, 302, 307, 400, 401, 403, 404, 422, 429, 500, 503])
async def test_other_statuses_are_said(serve, provider, status):
    other, asked = await serve(says(answer(provider)))
    body = "" if status == 204 else f"your key {KEY} is bad"
    url, had = await serve(says(body, status, Location=other, **{"Retry-After": "1"}))
    error = await refusal(service(provider, url))
    assert (error.code, str(status) in str(error)) == ("REFUSED", True)
    assert (len(had), asked) == (1, [])


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"{",
        b"<html>x</html>",
        b"\xff\xfe",
        b"{}{}",
        b"[" * 100_000,
        b'{"results": NaN}',
        b"\xef\xbb\xbf",
    ],
)
async def test_what_is_no_object_is_said(serve, provider, body):
    url, _ = await serve(says(body))
    assert (await refusal(service(provider, url))).code == "MALFORMED"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "body", ["{}", '{"web": null, "results": null}', '{"web": [], "results": {}}', '{"web": {"results": 7}, "results": "x"}']
)
async def test_an_object_of_another_shape_has_no_hits(serve, provider, body):
    url, _ = await serve(says(body))
    assert list(await service(provider, url).search("a", 3)) == []


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_members_of_another_shape_are_left_out(serve, provider):
    odd = [None, 1, "x", [], {}, {"title": "no url"}, {"url": None, "title": "null url"}, {"url": 5}, {"url": ""}, *FOUND[:1]]
    url, _ = await serve(says(answer(provider, odd)))
    found = await service(provider, url).search("a", 20)
    assert [hit.url for hit in found if hit.url not in ("", "5")] == ["https://example.com/0"]


def test_what_a_page_does_not_have_is_empty():
    assert hits([{"url": "https://a/", "title": None, "content": None}], "content") == [Hit("", "https://a/", "")]


@pytest.mark.parametrize("base", ["http://", "nonsense", "ftp://127.0.0.1/", "http://[::1", "http://127.0.0.1:99999", "http://a..b/"])
async def test_a_place_that_is_none_is_not_taken_for_an_answer(nothing_left, base):
    error = await refusal(service("brave", base))
    assert error.code in ("UNREACHABLE", "NOT_CONFIGURED", "INVALID_URL"), error


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY}\r\nX: y", f"{KEY}\u00e4", f"{KEY}\U0001f600", f" {KEY} ", f"{KEY}\udcff"])
@pytest.mark.parametrize("provider", ["brave", "tavily"])
async def test_a_key_that_no_header_takes_is_said_without_it(serve, monkeypatch, provider, key):
    monkeypatch.setenv(KEYS[provider], key)
    url, had = await serve(says(answer(provider)))
    try:
        await service(provider, url).search("a", 3)
    except ToolError as error:
        assert KEY not in f"{error!r} {error.__cause__!r}"
        assert error.code != "MALFORMED", error  # nobody has answered
        assert had == []
    else:
        assert "X" not in had[0][0].headers


async def test_a_closed_port_and_a_broken_connection_are_said(serve):
    def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    url, _ = await serve(cut)
    for provider in PROVIDERS:
        assert (await refusal(service(provider, url))).code == "UNREACHABLE"
        assert (await refusal(service(provider, "http://127.0.0.1:1"))).code == "UNREACHABLE"
        assert (await refusal(service(provider, url.replace("http:", "https:")))).code == "UNREACHABLE"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_that_does_not_end_is_given_up(serve, monkeypatch, provider, status):
    monkeypatch.setattr(web_search, "TIMEOUT", 0.2)
    ended = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        await response.write(b'{"results": [')
        await ended.wait()
        return response

    url, _ = await serve(hang)
    try:
        code = (await refusal(service(provider, url))).code
    finally:
        ended.set()
    assert code == ("TIMEOUT" if status == 200 else "REFUSED")


async def test_an_answer_without_measure_is_bounded(serve, monkeypatch):
    monkeypatch.setattr(web_search, "LIMIT", 100_000)
    url, _ = await serve(says('{"results": ["' + "x" * 5_000_000 + '"]}'))
    assert (await refusal(service("searxng", url))).code == "MALFORMED"


async def test_cancelling_leaves_nothing(serve):
    came, ended = asyncio.Event(), asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        came.set()
        await ended.wait()
        return web.Response()

    url, _ = await serve(hang)
    task = asyncio.create_task(service("searxng", url).search("a", 3))
    await came.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ended.set()


# how hits are shown


def test_a_hit_is_three_lines_and_cannot_pose_as_more():
    hit = Hit("Title\n2. Other\r\n   https://evil.example/", "https://a.example/\n3. x", "words\n\n4. more   words")
    assert len(lines(hit).splitlines()) == 3


def test_no_part_of_a_hit_is_without_measure():
    assert len(lines(Hit("t" * 100_000, "https://a.example/" + "u" * 100_000, "w" * 100_000))) < 10_000


def test_what_a_terminal_would_obey_is_not_shown():
    assert "\ud800" not in lines(Hit("\ud800", "https://a/", "\ud800"))


# in a composition

PATCH = """
- insert:
    - id: web-search
      group:
        - {{id: service, use: "hames.toolkit.web_search:service", config: {{provider: {provider}, base_url: "{url}"}}}}
        - {{id: tool, use: "hames.toolkit.web_search:search"}}
"""


@pytest.fixture
def composed(opened, tmp_path):
    def open(provider: str, url: str):
        patch = tmp_path / "search.yaml"
        patch.write_text(PATCH.format(provider=provider, url=url))
        return opened(patch)

    return open


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_rows_add_the_tool(serve, composed, script, calling, tmp_path, provider):
    url, had = await serve(says(answer(provider)))
    questions = []

    async def decide(question: Approval):
        questions.append(question)
        return "once"

    async with composed(provider, url) as host:
        agents = host.get(AGENTS)
        calls = (("web_search", {"query": "a"}), ("web_search", {"query": "b", "count": 2}), ("web_search", {"query": "c", "count": 21}))
        agent = await agents.create(AgentSpec(str(tmp_path), script(calling(*calls), {"text": "done"})))
        host.ctx.at(agent.scope).on(Approval, decide)
        assert "web_search" in [spec.name for spec in host.get(TOOLS).specs(agent.scope)]
        assert (await agent.run("go")).reason == "completed"
        results = [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]
        await agents.dispose(agent)
    assert [result.code for result in results] == ["", "", "INVALID_ARGS"]
    assert results[0].text.startswith("1. Title 0\n   https://example.com/0\n   words 0\n2. Title 1")
    assert results[0].text.count("https://") == 8 and results[1].text.count("https://") == 2
    assert (len(had), len(questions)) == (2, 2)
    assert KEY not in "".join(result.text for result in results)


@pytest.mark.parametrize("respond", [says(f"bad key {KEY}", 401), says(f"{{{KEY}"), says(KEY), says(answer("brave", []))])
async def test_the_key_is_in_no_result_no_log_and_no_record(serve, composed, script, calling, tmp_path, caplog, respond):
    caplog.set_level(logging.DEBUG)
    url, _ = await serve(respond)

    async def decide(question: Approval):
        return "once"

    async with composed("brave", url) as host:
        agents = host.get(AGENTS)
        agent = await agents.create(AgentSpec(str(tmp_path), script(calling(("web_search", {"query": "a"})), {"text": "done"})))
        host.ctx.at(agent.scope).on(Approval, decide)
        await agent.run("go")
        shown = "".join(block.text for _, message in agent.session.messages if message.source == "tool" for block in message.blocks)
        await agents.dispose(agent)
    assert shown and KEY not in shown and KEY not in caplog.text
    for directory, _, names in os.walk(tmp_path / "state"):
        for name in names:
            with open(os.path.join(directory, name), "rb") as file:
                assert KEY.encode() not in file.read(), name


async def test_the_tool_without_a_service_is_a_mistake_of_the_composition(opened, tmp_path):
    patch = tmp_path / "search.yaml"
    patch.write_text('- insert: [{id: tool, use: "hames.toolkit.web_search:search"}]\n')
    with pytest.raises(ConfigError, match="web search"):
        async with opened(patch):
            pass


@pytest.mark.parametrize("config", ["{provider: google}", "{}", "{provider: brave, key: abc}", "{provider: 7}"])
async def test_a_configuration_that_is_none_is_refused(opened, tmp_path, config):
    patch = tmp_path / "search.yaml"
    patch.write_text(f'- insert: [{{id: s, use: "hames.toolkit.web_search:service", config: {config}}}]\n')
    with pytest.raises(ConfigError, match=r"provider|key"):
        async with opened(patch):
            pass
