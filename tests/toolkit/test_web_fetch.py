"""Fetching pages: what is refused, what is connected to, and what becomes of what comes back."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import time
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise

import pytest
from aiohttp import web

from hames.agents import AGENTS, AgentSpec
from hames.policy import Answer
from hames.toolkit import web as fetching
from hames.toolkit.web import REDIRECTS, WebConfig, addresses, checked, fetch, public
from hames.tools import Approval, ToolError

HERE = "127.0.0.1"
LOCAL = WebConfig(private=[HERE, "localhost"], timeout=10)


def descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # the one that listed them
            continue
    return sorted(found)


@pytest.fixture
async def nothing_left():
    """Whatever a test fetches, no descriptor and no task of it is left."""
    before = descriptors()
    yield
    deadline = time.monotonic() + 1
    while left() != before and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    assert left() == before


def left() -> list[str]:
    """Descriptors and tasks that are there."""
    return descriptors() + [str(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]


class Network:
    """A name service of our own, and a list of what was connected to; nothing but loopback ever is."""

    def __init__(self) -> None:
        self.names: dict[str, list[list[str]]] = {"localhost": [["::1", HERE]]}
        self.asked: list[str] = []
        self.connected: list[str] = []

    async def getaddrinfo(self, host, port, *, family=0, type=0, proto=0, flags=0):
        self.asked.append(host)
        answers = self.names.get(host.rstrip(".").lower() if isinstance(host, str) else host)
        if answers:
            found = answers.pop(0) if len(answers) > 1 else answers[0]
            return [entry for each in found for entry in socket.getaddrinfo(each, port, type=type, flags=socket.AI_NUMERICHOST)]
        return socket.getaddrinfo(host, port, family=family, type=type, proto=proto, flags=flags | socket.AI_NUMERICHOST)


@pytest.fixture
async def network(nothing_left, monkeypatch) -> Network:
    loop = asyncio.get_running_loop()
    network = Network()

    async def sock_connect(sock, address):
        network.connected.append(address[0])
        raise ConnectionRefusedError(f"{address[0]} is not there in this test")

    monkeypatch.setattr(loop, "getaddrinfo", network.getaddrinfo)
    monkeypatch.setattr(loop, "sock_connect", sock_connect)
    return network


async def refusal(url: str, config: WebConfig | None = None) -> str:
    with pytest.raises(ToolError) as raised:
        await fetch(url, config or WebConfig())
    assert str(raised.value)
    return raised.value.code


# what is public

PRIVATE = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.254",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.1.1",
    "169.254.169.254",
    "169.254.170.2",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.170",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "233.252.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "100.100.100.200",
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:7f00:1",
    "::FFFF:224.0.0.1",
    "::ffff:0.0.0.0",
    "0:0:0:0:0:ffff:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::8.8.8.8",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2002:c0a8:101::1",
    "2001::1",
    "2001:0:7f00:1::",
    "2001:0:808:808::f5ff:fffe",
    "2001:db8::1",
    "fe80::1",
    "fe80::1%lo",
    "fe80::1%25eth0",
    "fc00::1",
    "fd00:ec2::254",
    "fd12:3456::1",
    "ff02::1",
    "ff0e::1",
    "100::1",
    "2001:10::1",
    "2001:2::1",
]

#: Not unicast addresses of the Internet either: the IPv4 address in them, or the machine that they name, may be one of this network.
NOT_ROUTED = {
    "site-local": "fec0::1",
    "site-local of another site": "feff::a00:1",
    "IPv4-translated loopback": "::ffff:0:127.0.0.1",
    "IPv4-translated metadata service": "::ffff:0:169.254.169.254",
    "unassigned below 2000::/3": "1::1",
    "unassigned above 2000::/3": "4000::1",
    "documentation": "3fff::1",
    "dummy prefix": "100:0:0:1::1",
    "segment routing": "5f00::1",
}

PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "93.184.216.34",
    "100.63.255.255",
    "100.128.0.1",
    "172.15.0.1",
    "172.32.0.1",
    "169.253.1.1",
    "11.0.0.1",
    "223.255.255.254",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2a00:1450:4001::1",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_of_this_network_are_not_public(address):
    assert not public(address)


@pytest.mark.parametrize("address", NOT_ROUTED.values(), ids=list(NOT_ROUTED))
def test_addresses_that_are_no_unicast_ones_of_the_internet_are_not_public(address):
    assert not public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_internet_are_public(address):
    assert public(address)


# spellings of an address

HOSTS = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "127",
    "2130706433",
    "017700000001",
    "0x7f000001",
    "0X7F000001",
    "0x7f.1",
    "0x7f.0x0.0x0.0x1",
    "0177.0.0.1",
    "0177.1",
    "127.0.0.0x1",
    "127.00.00.01",
    "0",
    "0.0.0.0",
    "00",
    "0x0",
    "10.1",
    "167772161",
    "012.0.0.1",
    "192.168.257",
    "3232235777",
    "0xc0a80101",
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "100.100.100.200",
    "255.255.255.255",
    "224.0.0.1",
    "100.64.1.1",
    "127.0.0.1.",
    "localhost",
    "LOCALHOST",
    "LocalHost",
    "localhost.",
    "127.0.0.1",
    "①②⑦.0.0.1",
    "127。0。0。1",
    "[::]",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[0000:0000::0001]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::FFFF:A9FE:A9FE]",
    "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[2002:a9fe:a9fe::]",
    "[2001:0:7f00:1::]",
    "[fe80::1]",
    "[fe80::1%lo]",
    "[fe80::1%25lo]",
    "[::1%lo]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
    "[fec0::1]",
    "[::ffff:0:127.0.0.1]",
    "[::ffff:0:a9fe:a9fe]",
    "metadata.google.internal",
    "METADATA.google.internal.",
    "metadata",
    "instance-data.ec2.internal",
    "kubernetes.default.svc",
    "host.docker.internal",
    "sub.localhost",
]

FORMS = ("http://{}/", "https://{}/", "http://{}:8080/latest/meta-data", "HTTP://{}", "http://{}:80?q#f")


@pytest.fixture
def inside(network: Network) -> Network:
    """A network whose internal names have internal addresses."""
    network.names |= {
        "metadata.google.internal": [["169.254.169.254"]],
        "metadata": [["169.254.169.254"]],
        "instance-data.ec2.internal": [["169.254.169.254"]],
        "kubernetes.default.svc": [["10.0.0.1"]],
        "host.docker.internal": [["172.17.0.1"]],
        "sub.localhost": [[HERE]],
    }
    return network


@pytest.mark.parametrize("host", HOSTS)
async def test_no_spelling_of_an_inner_address_is_connected_to(inside, host):
    for form in FORMS:
        assert await refusal(form.format(host)) in ("FORBIDDEN_ADDRESS", "INVALID_URL", "UNREACHABLE")
    assert inside.connected == []


ODD = {
    "user name": "http://user@127.0.0.1/",
    "user name and password": "http://a:b@127.0.0.1/",
    "public user name": "http://example.com@127.0.0.1/",
    "public host and port as user": "http://example.com:80@127.0.0.1/",
    "empty user name": "http://@127.0.0.1/",
    "colon alone": "http://:@127.0.0.1/",
    "two at signs": "http://a@example.com@127.0.0.1/",
    "inner host as user name": "http://127.0.0.1@example.com/",
    "backslash before at": "http://example.com\\@127.0.0.1/",
    "backslash after host": "http://127.0.0.1\\@example.com/",
    "backslash as slash": "http://127.0.0.1\\.example.com/",
    "backslashes for slashes": "http:\\\\127.0.0.1\\",
    "hash before at": "http://127.0.0.1#@example.com/",
    "question mark before at": "http://127.0.0.1?@example.com/",
    "semicolon": "http://127.0.0.1;example.com/",
    "leading space": " http://127.0.0.1/",
    "leading controls": "\x00\x01http://127.0.0.1/",
    "tab in scheme": "ht\ttp://127.0.0.1/",
    "newline in host": "http://127.0\n.0.1/",
    "return in host": "http://127.0.\r0.1/",
    "space in host": "http://127.0.0.1 .example.com/",
    "trailing space": "http://127.0.0.1 ",
    "no-break space": "http://127.0.0.1\u00a0/",
    "zero width space": "http://127.0.0\u200b.1/",
    "soft hyphen": "http://127.0.0\u00ad.1/",
    "percent-encoded digits": "http://%31%32%37.0.0.1/",
    "percent-encoded dot": "http://127%2e0.0.1/",
    "percent-encoded slash": "http://127.0.0.1%2f.example.com/",
    "percent-encoded at": "http://example.com%40127.0.0.1/",
    "null": "http://127.0.0.1\x00.example.com/",
    "fullwidth slash": "http://127.0.0.1\uff0f.example.com/",
    "fullwidth at": "http://example.com\uff20127.0.0.1/",
    "no slashes": "http:127.0.0.1",
    "one slash": "http:/127.0.0.1",
    "three slashes": "http:///127.0.0.1/",
    "no scheme": "127.0.0.1",
    "slashes alone": "//127.0.0.1/",
    "file": "file:///etc/passwd",
    "file with host": "file://localhost/etc/passwd",
    "ftp": "ftp://127.0.0.1/",
    "gopher": "gopher://127.0.0.1:70/_x",
    "dict": "dict://127.0.0.1:11211/stat",
    "data": "data:text/html,x",
    "javascript": "javascript:alert(1)",
    "unix": "unix:///var/run/docker.sock",
    "http+unix": "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "web socket": "ws://127.0.0.1/",
    "view-source": "view-source:http://127.0.0.1/",
    "about": "about:blank",
    "jar": "jar:http://127.0.0.1!/",
    "port with letters": "http://127.0.0.1:80a/",
    "port too high": "http://127.0.0.1:65536/",
    "negative port": "http://127.0.0.1:-1/",
    "port 0": "http://127.0.0.1:0/",
    "empty port": "http://127.0.0.1:/",
    "port in other digits": "http://127.0.0.1:\u0668\u0660/",
    "open bracket": "http://[::1/",
    "closed bracket": "http://::1]/",
    "no brackets": "http://::1/",
    "name in brackets": "http://[localhost]/",
    "future address": "http://[v1.127]/",
    "after brackets": "http://[::1]example.com/",
    "before brackets": "http://example.com[::1]/",
    "empty": "",
    "scheme alone": "http://",
    "surrogate": "http://\udc80/",
    "emoji": "http://\U0001f600.example.com/",
    "label too long": f"http://{'a' * 64}.example.com/",
    "name too long": f"http://{'a.' * 200}com/",
    "empty label": "http://a..example.com/",
    "dots alone": "http://.../",
    "comma": "http://example.com,127.0.0.1/",
}


@pytest.mark.parametrize("url", ODD.values(), ids=list(ODD))
async def test_no_odd_address_leads_to_an_inner_one(inside, url):
    inside.names["example.com"] = [["93.184.216.34"]]
    await refusal(url)
    assert set(inside.connected) <= {"93.184.216.34"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://Example.COM", ("example.com", 80)),
        ("https://example.com/", ("example.com", 443)),
        ("https://example.com:8443/a?b#c", ("example.com", 8443)),
        ("HTTPS://example.com", ("example.com", 443)),
        ("http://[2606:4700::1]:81/", ("2606:4700::1", 81)),
        ("http://example.com:/", ("example.com", 80)),
        (" http://example.com ", ("example.com", 80)),
    ],
)
def test_the_host_and_the_port_of_an_address(url, expected):
    host, port = checked(url)
    assert (host.strip(), port) == expected


@pytest.mark.parametrize("url", ["", "x", "ftp://a", "http://", "http://u@a", "http://a:99999", "http://[::1", "file:///a", "http://:80/"])
def test_what_is_no_address_is_said(url):
    with pytest.raises(ToolError) as raised:
        checked(url)
    assert raised.value.code == "INVALID_URL"


# names and what they mean


@pytest.mark.parametrize(
    "numbers",
    [
        [HERE, "93.184.216.34"],
        ["93.184.216.34", HERE],
        ["93.184.216.34", "::1"],
        ["2606:4700:4700::1111", "169.254.169.254"],
        ["93.184.216.34", "8.8.8.8", "1.1.1.1", "::ffff:10.0.0.1"],
        ["93.184.216.34", "fec0::1"],
    ],
)
async def test_a_name_with_public_and_inner_addresses_is_refused(network, numbers):
    network.names["both.example"] = [numbers]
    assert await refusal("http://both.example/") == "FORBIDDEN_ADDRESS"
    assert network.connected == []


async def test_a_name_with_public_addresses_is_connected_to_at_these(network):
    network.names["good.example"] = [["93.184.216.34", "2606:4700:4700::1111"]]
    assert await refusal("http://good.example/") == "UNREACHABLE"
    assert set(network.connected) == {"93.184.216.34", "2606:4700:4700::1111"}


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_what_was_judged_is_what_is_connected_to(network, scheme):
    network.names["rebinding.example"] = [["93.184.216.34"], [HERE], [HERE]]
    assert await refusal(f"{scheme}://rebinding.example/") == "UNREACHABLE"
    assert network.connected == ["93.184.216.34"]
    assert network.asked == ["rebinding.example"]


@pytest.mark.parametrize("name", ["Bad.Example", "bad.example.", "b\u00e4d.example", "BAD.EXAMPLE"])
async def test_the_spelling_of_a_name_is_no_way_around_its_judgement(network, name):
    for each in ("bad.example", "b\u00e4d.example", "xn--bd-via.example"):
        network.names[each] = [["93.184.216.34"], [HERE]]
    await refusal(f"http://{name}/")
    assert set(network.connected) <= {"93.184.216.34"}
    await refusal(f"http://{name}/")
    assert HERE not in network.connected


@pytest.mark.parametrize("name", ["stra\u00dfe.example", "\u03c2.example"])
async def test_the_name_that_is_looked_up_is_the_one_that_is_asked_for(network, name):
    """A browser, and the Host header that is sent, spell these names as IDNA 2008 has them; another spelling is another site."""
    import idna

    spelled = idna.encode(name).decode()
    network.names[name] = network.names[spelled] = [["93.184.216.34"]]
    await refusal(f"http://{name}/")
    (asked,) = network.asked
    assert asked.encode("idna").decode() == spelled  # as getaddrinfo does


async def test_an_empty_answer_of_the_name_service_is_an_error(network, monkeypatch):
    async def none(*_, **__):
        return []

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", none)
    assert await refusal("http://nothing.example/") == "UNREACHABLE"


async def test_an_unknown_name_is_said(network):
    with pytest.raises(ToolError, match=r"unknown\.example cannot be found") as raised:
        await addresses("unknown.example", 80)
    assert raised.value.code == "UNREACHABLE"


async def test_only_hosts_that_are_named_may_be_inner_ones(network):
    config = WebConfig(private=["wiki.corp", "10.1.2.3"])
    network.names |= {"wiki.corp": [["10.0.0.9"]], "other.corp": [["10.0.0.9"]], "wiki.corp.evil.example": [["10.0.0.9"]]}
    for url in ("http://other.corp/", "http://wiki.corp.evil.example/", "http://10.0.0.9/", "http://10.1.2.4/", "http://localhost/"):
        assert await refusal(url, config) == "FORBIDDEN_ADDRESS"
    assert network.connected == []
    for url in ("http://wiki.corp/", "http://WIKI.corp:9000/a", "http://10.1.2.3/"):
        assert await refusal(url, config) == "UNREACHABLE"
    assert set(network.connected) == {"10.0.0.9", "10.1.2.3"}


async def test_a_private_host_may_be_written_in_any_case(network):
    network.names["wiki.corp"] = [["10.0.0.9"]]
    assert await refusal("http://wiki.corp/", WebConfig(private=["Wiki.Corp"])) == "UNREACHABLE"
    assert network.connected == ["10.0.0.9"]


async def test_a_name_service_that_does_not_answer_is_given_up(nothing_left, monkeypatch):
    async def never(*_, **__):
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    try:
        async with asyncio.timeout(5):
            assert await refusal("http://slow.example/", WebConfig(timeout=0.2)) == "TIMEOUT"
    except TimeoutError:
        pytest.fail("the limit of a page does not hold for the look-up of its name")


# servers

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def serve(nothing_left):
    """Starts a server on loopback; gives its URL and the requests that it had."""
    async with AsyncExitStack() as stack:

        async def start(handler: Handler | web.Response | str, kind: str = "text/html") -> tuple[str, list[web.Request]]:
            had: list[web.Request] = []

            async def handle(request: web.Request) -> web.StreamResponse:
                had.append(request)
                if isinstance(handler, str):
                    return web.Response(text=handler, content_type=kind)
                if isinstance(handler, web.Response):  # one is good for one request
                    return web.Response(status=handler.status, headers=handler.headers, body=handler.body)
                return await handler(request)

            server = web.Server(handle, access_log=None)
            runner = web.ServerRunner(server, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, HERE, 0).start()
            return f"http://{HERE}:{runner.addresses[0][1]}", had

        yield start


@asynccontextmanager
async def raw(answer: bytes, *, wait: bool = False):
    """A server that says these bytes, and then closes or waits."""
    ended = asyncio.Event()
    served: list[asyncio.Task[None] | None] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if wait:
                await ended.wait()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, HERE, 0)
    try:
        yield f"http://{HERE}:{server.sockets[0].getsockname()[1]}/"
    finally:
        ended.set()
        server.close()
        await asyncio.gather(*(task for task in served if task), return_exceptions=True)


def http(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, "Connection: close"]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


async def page_of(body: bytes, *headers: str, config: WebConfig = LOCAL, status: str = "200 OK") -> str:
    async with raw(http(body, *headers, status=status)) as url:
        return await fetch(url, config)


# redirects


async def test_redirects_lead_nowhere_that_is_not_fetched_by_itself(serve):
    forbidden, had = await serve("secret")
    port = forbidden.rpartition(":")[2]
    places = [f"http://{host}:{port}/" for host in ("127.0.0.2", "127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]", "0")]
    places += [f"//127.0.0.2:{port}/", f"http://u:p@127.0.0.1:{port}/", f"http:\\\\127.0.0.2:{port}", "http://169.254.169.254/latest"]
    places += [
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "data:text/plain,x",
        "javascript:1",
        "gopher://127.0.0.1/",
        "http://[::1",
        "http://",
    ]
    for status in (301, 302, 303, 307, 308):
        for place in places:
            url, _ = await serve(web.Response(status=status, headers={"Location": place}))
            assert await refusal(url, LOCAL) in ("FORBIDDEN_ADDRESS", "INVALID_URL", "UNREACHABLE", "TOO_MANY_REDIRECTS"), place
    assert had == []


async def test_relative_redirects_are_followed_from_where_they_stand(serve):
    places = {"/a/b": "../c", "/c": "?q=1", "/c?q=1": "/d/e#fragment", "/d/e": "f"}

    async def handle(request: web.Request) -> web.Response:
        place = places.get(request.path_qs)
        return web.Response(text=f"at {request.path_qs}") if place is None else web.Response(status=302, headers={"Location": place})

    url, had = await serve(handle)
    assert await fetch(f"{url}/a/b", LOCAL) == "at /d/f"
    assert [request.path_qs for request in had] == ["/a/b", "/c", "/c?q=1", "/d/e", "/d/f"]


async def test_a_redirect_to_the_same_scheme_and_another_host_is_followed(serve):
    target, _ = await serve("there")
    port = target.rpartition(":")[2]
    url, _ = await serve(web.Response(status=301, headers={"Location": f"//localhost:{port}/x"}))
    assert await fetch(url, LOCAL) == "there"


async def test_redirects_in_a_circle_end(serve):
    url, had = await serve(web.Response(status=302, headers={"Location": "/again"}))
    assert await refusal(url, LOCAL) == "TOO_MANY_REDIRECTS"
    assert len(had) == REDIRECTS + 1


async def test_a_redirect_without_a_place_is_a_page(serve):
    assert (await page_of(b"moved", "Content-Type: text/plain", status="302 Found")).endswith(" (302 Found)\n\nmoved")
    url, had = await serve(web.Response(status=302, headers={"Location": ""}))
    assert await refusal(url, LOCAL) == "TOO_MANY_REDIRECTS" and len(had) == REDIRECTS + 1


@pytest.mark.parametrize("place", ["/caf\udce9", "/\udcff\udcfe", "http://\udcff/", "/%zz", "/a b\tc"])
async def test_a_redirect_to_bytes_that_are_no_text_is_an_outcome(place):
    async with raw(http(b"", f"Location: {place}", "Content-Length: 0", status="302 Found")) as url:
        assert await refusal(url, LOCAL) in ("UNREACHABLE", "TOO_MANY_REDIRECTS", "INVALID_URL")


async def test_the_time_of_a_page_includes_its_redirects(serve):
    async def handle(request: web.Request) -> web.Response:
        await asyncio.sleep(0.25)
        return web.Response(status=302, headers={"Location": f"/{len(had)}"})

    url, had = await serve(handle)
    begin = time.monotonic()
    code = await refusal(url, WebConfig(private=[HERE], timeout=0.4))
    assert (code, time.monotonic() - begin < 1) == ("TIMEOUT", True)


# what is sent


async def test_nothing_rides_along(serve, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text(f"machine {HERE} login someone password secret\ndefault login other password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text((tmp_path / "netrc").read_text())

    async def handle(request: web.Request) -> web.Response:
        answer = web.Response(text="done") if len(had) > 2 else web.Response(status=302, headers={"Location": f"/{len(had)}"})
        answer.set_cookie("session", "secret")
        answer.headers["WWW-Authenticate"] = 'Basic realm="x"'
        return answer

    url, had = await serve(handle)
    assert await fetch(f"{url}/?token=abc", LOCAL) == "done"
    assert len(had) == 3
    for request in had:
        assert {name.lower() for name in request.headers} == {"host", "user-agent", "accept", "accept-encoding", "connection"}
        assert request.method == "GET"
    assert await fetch(url, LOCAL) and "Cookie" not in had[-1].headers


async def test_no_proxy_of_the_environment_is_asked(serve, monkeypatch):
    proxy, asked = await serve("by the proxy")
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    url, _ = await serve("direct")
    assert await fetch(url, LOCAL) == "direct"
    assert await refusal("http://10.0.0.1/") == "FORBIDDEN_ADDRESS"
    assert asked == []


# what comes back


async def test_a_page_becomes_markdown_without_what_nobody_reads(serve):
    url, _ = await serve(
        "<html><head><title>T</title><style>.css{}</style><script>evil()</script></head><body><h1>Head</h1><p>One <b>bold</b>"
        "<a href='/x'>link</a></p><script>more()</script><noscript>no<img src=y></noscript><template>tpl</template><svg>pic</svg>"
        "<iframe>frame</iframe><ul><li>a<li>b</ul><pre>  code\n  here</pre>\n\n\n\n<!-- comment --><p>\u00e4\u20ac</p></body></html>"
    )
    text = await fetch(url, LOCAL)
    for gone in ("evil", "more()", ".css", "tpl", "pic", "frame", "comment", "<"):
        assert gone not in text
    for there in ("# Head", "**bold**", "[link](/x)", "  code\n  here", "\u00e4\u20ac"):
        assert there in text
    assert "\n\n\n" not in text


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "text/csv", "application/xml", "application/yaml", "text/markdown"])
async def test_text_stays_as_it_is(serve, kind):
    url, _ = await serve('{"a": "<script>x</script>", "b": [1, 2]}\n', kind)
    assert await fetch(url, LOCAL) == '{"a": "<script>x</script>", "b": [1, 2]}\n'


@pytest.mark.parametrize("kind", ["image/png", "application/octet-stream", "application/pdf", "application/zip", "video/mp4", "x", ""])
async def test_what_is_no_text_is_said(kind):
    async with raw(http(b"\x89PNG\0\0", f"Content-Type: {kind}", "Content-Length: 6")) as url:
        assert await refusal(url, LOCAL) == "NOT_TEXT"


async def test_a_page_without_a_kind_is_not_guessed():
    async with raw(http(b"abc", "Content-Length: 3")) as url:
        assert await refusal(url, LOCAL) == "NOT_TEXT"


@pytest.mark.parametrize("name", ["nonsense", "", '"', "utf-8; charset=x", "base64", "rot13", "hex", "zlib", "mbcs", "\udcff", "x" * 5000])
async def test_a_charset_that_there_is_not_counts_as_utf_8(name):
    assert await page_of("h\u00e9".encode(), f"Content-Type: text/plain; charset={name}") == "h\u00e9"


@pytest.mark.parametrize("name", ["undefined", "idna"])
async def test_a_codec_that_decodes_no_pages_counts_as_utf_8(name):
    assert await page_of("h\u00e9".encode(), f"Content-Type: text/plain; charset={name}") == "h\u00e9"


@pytest.mark.parametrize(("name", "body"), [("iso-8859-1", b"h\xe9"), ("UTF-16", "h\u00e9".encode("utf-16")), ("shift_jis", b"h\x81\xf2")])
async def test_a_charset_is_heeded(name, body):
    assert (await page_of(body, f"Content-Type: text/plain; charset={name}"))[0] == "h"
    assert "\ufffd" not in await page_of(body, f"Content-Type: text/plain; charset={name}")


async def test_a_charset_that_a_page_names_itself_is_heeded():
    body = b'<html><head><meta charset="iso-8859-1"></head><body>h\xe9llo</body></html>'
    assert await page_of(body, "Content-Type: text/html") == "h\u00e9llo"


async def test_wrong_bytes_are_shown_as_such():
    assert await page_of(b"a\xffb\0c\x1b[31m", "Content-Type: text/plain; charset=utf-8") is not None
    assert "\ud800" not in await page_of(b"\xed\xa0\x80", "Content-Type: text/plain")


async def test_a_codec_that_takes_for_ever_does_not_hold_the_loop():
    """The name of the codec is the server's word."""
    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.01)

    beating = asyncio.create_task(beat())
    try:
        body = b"a" * 100_000 + b"-" + b"a" * 100_000
        await page_of(body, "Content-Type: text/plain; charset=punycode")
    finally:
        beating.cancel()
        await asyncio.wait((beating,))
    assert max(after - before for before, after in pairwise(beats)) < 0.5


async def test_a_long_page_is_cut_and_that_is_said(serve):
    url, _ = await serve("x" * 10_000, "text/plain")
    text = await fetch(url, WebConfig(private=[HERE], max_bytes=1000))
    assert text == "x" * 1000 + "\n[the page is longer; the rest was not read]"
    assert await fetch(url, WebConfig(private=[HERE], max_bytes=10_000)) == "x" * 10_000


async def test_a_page_without_end_is_cut(serve):
    async def handle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await answer.prepare(request)
        try:
            while True:
                await answer.write(b"y" * 65536)
        except ConnectionError:
            return answer

    url, _ = await serve(handle)
    assert (await fetch(url, WebConfig(private=[HERE], max_bytes=100_000))).startswith("y" * 100_000 + "\n[")


async def test_empty_pages_are_said(serve):
    for body in ("", "<script>x</script>", "<html></html>"):
        url, _ = await serve(body)
        assert await fetch(url, LOCAL) == "[the page is empty]"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 429, 500, 503])
async def test_the_body_of_an_error_is_shown_with_its_status(serve, status):
    url, _ = await serve(web.Response(status=status, text="<p>what went wrong</p>", content_type="text/html"))
    text = await fetch(url, LOCAL)
    assert str(status) in text.splitlines()[0] and text.endswith("\n\nwhat went wrong")


def bomb(size: int, wrapper: str) -> bytes:
    """A body that inflates to so many million zeros: a compressed piece that stands for itself, many times."""
    packer = zlib.compressobj(9, zlib.DEFLATED, {"gzip": 31, "deflate": 15}[wrapper])
    head = packer.compress(b"0") + packer.flush(zlib.Z_FULL_FLUSH)
    piece = packer.compress(b"0" * 1_000_000) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + piece * size


@pytest.mark.parametrize("wrapper", ["gzip", "deflate"])
async def test_a_small_body_that_becomes_huge_is_bounded(wrapper):
    body = bomb(1000, wrapper)
    assert len(body) < 2_000_000
    headers = ("Content-Type: text/plain", f"Content-Encoding: {wrapper}", f"Content-Length: {len(body)}")
    async with raw(http(body, *headers)) as url:
        tracemalloc.start()
        try:
            begin = time.monotonic()
            text = await fetch(url, WebConfig(private=[HERE], timeout=20, max_bytes=1_000_000))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert text.startswith("0" * 1_000_000 + "\n[")
    assert (peak < 100_000_000, time.monotonic() - begin < 10) == (True, True), peak


async def test_compressed_pages_are_read(serve):
    body = gzip.compress(b"hello " * 1000)
    assert (await page_of(body, "Content-Type: text/plain", "Content-Encoding: gzip")).startswith("hello hello")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "nonsense"])
async def test_a_body_that_is_not_what_it_says_is_an_outcome(encoding):
    async with raw(http(b"this is not compressed at all", "Content-Type: text/plain", f"Content-Encoding: {encoding}")) as url:
        try:
            assert await fetch(url, LOCAL)
        except ToolError as error:
            assert error.code == "UNREACHABLE"


async def test_a_head_that_does_not_end_and_a_body_that_does_not_come_hit_the_limit():
    config = WebConfig(private=[HERE], timeout=0.3)
    for answer in (b"", b"HTTP/1.1 200 OK\r\nX: ", http(b"half", "Content-Type: text/html", "Content-Length: 100")):
        async with raw(answer, wait=True) as url:
            assert await refusal(url, config) == "TIMEOUT"


async def test_a_body_that_trickles_hits_the_limit(serve):
    async def handle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await answer.prepare(request)
        try:
            while True:
                await answer.write(b".")
                await asyncio.sleep(0.02)
        except ConnectionError:
            return answer

    url, _ = await serve(handle)
    begin = time.monotonic()
    assert await refusal(url, WebConfig(private=[HERE], timeout=0.4)) == "TIMEOUT"
    assert time.monotonic() - begin < 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0\1\2\3\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nbody",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 999999 X\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    ],
)
async def test_an_answer_that_is_cut_or_is_none_is_said(answer):
    async with raw(answer) as url:
        assert await refusal(url, LOCAL) in ("UNREACHABLE", "NOT_TEXT")


async def test_a_closed_port_is_said(nothing_left):
    with socket.socket() as held:
        held.bind((HERE, 0))
        assert await refusal(f"http://{HERE}:{held.getsockname()[1]}/", LOCAL) == "UNREACHABLE"


async def test_tls_that_is_none_is_said(serve):
    url, _ = await serve("plain")
    assert await refusal(url.replace("http:", "https:"), LOCAL) == "UNREACHABLE"


async def test_cancelling_leaves_nothing():
    for answer in (b"", http(b"half", "Content-Type: text/html", "Content-Length: 100")):
        async with raw(answer, wait=True) as url:
            task = asyncio.create_task(fetch(url, LOCAL))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


# pages that are hard to read


@pytest.mark.parametrize("opening", ["<li>", "<p>", "<font>", "<blockquote>", "<table><tr><td>"])
async def test_a_page_with_many_tags_that_are_not_closed_is_read(serve, opening):
    url, _ = await serve("<html><body>first" + f"{opening}item " * 1500 + "last</body></html>")
    text = await fetch(url, LOCAL)
    assert "first" in text and "last" in text


async def test_a_page_that_is_nested_without_measure_is_an_outcome(serve):
    url, _ = await serve("<div>" * 50_000 + "deep")
    try:
        assert "deep" in await fetch(url, LOCAL)
    except ToolError as error:
        assert error.code


@pytest.mark.parametrize("piece", ["<a ", "<x y='", "<!--"], ids=["tags", "quotes", "comments"])
async def test_a_page_that_keeps_a_parser_busy_is_read_roughly(piece, monkeypatch):
    monkeypatch.setattr(fetching, "CONVERSION", 1.0)
    begin = time.monotonic()
    assert isinstance(await fetching.readable((piece * 100_000).encode(), "text/html", ""), str)
    assert time.monotonic() - begin < 8


async def test_a_page_that_is_hard_to_read_hits_the_limit(serve):
    url, _ = await serve("<a " * 7000)
    begin = time.monotonic()
    try:
        await fetch(url, WebConfig(private=[HERE], timeout=0.5))
    except ToolError as error:
        assert error.code == "TIMEOUT"
    assert time.monotonic() - begin < 3


# the tool


@pytest.fixture
def composed(opened, tmp_path):
    """A host whose tool may fetch from loopback; every question is answered."""

    @asynccontextmanager
    async def open(answer: Answer | None = "once", timeout: float = 30):
        patch = tmp_path / "web.yaml"
        patch.write_text(f"- id: web\n  set: {{config: {{private: ['{HERE}'], timeout: {timeout}}}}}\n")
        questions: list[Approval] = []
        async with opened(patch) as host:
            service = host.get(AGENTS)
            assert service is not None

            async def run(*urls: str | dict, model: Callable[..., str], work: str) -> list:
                calls = [{"name": "web_fetch", "arguments": {"url": url} if isinstance(url, str) else url} for url in urls]
                agent = await service.create(AgentSpec(work, model({"calls": calls}, {"text": "done"})))

                async def decide(question: Approval) -> Answer:
                    questions.append(question)
                    assert answer is not None
                    return answer

                if answer is not None:
                    host.ctx.at(agent.scope).on(Approval, decide)
                assert (await agent.run("go")).reason == "completed"
                results = [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]
                await service.dispose(agent)
                return results

            yield run, questions

    return open


async def test_the_tool_asks_and_shows_the_page(serve, composed, script, tmp_path):
    url, had = await serve("<h1>Hello</h1>")
    async with composed() as (run, questions):
        (result,) = await run(url, model=script, work=str(tmp_path))
    assert (result.is_error, "# Hello" in result.text, len(questions), len(had)) == (False, True, 1, 1)


@pytest.mark.parametrize("answer", [None, "denied"])
async def test_without_a_yes_nothing_is_fetched(serve, composed, script, tmp_path, answer):
    url, had = await serve("<h1>Hello</h1>")
    async with composed(answer) as (run, _):
        (result,) = await run(url, model=script, work=str(tmp_path))
    assert (result.code, had) == ("DENIED", [])


async def test_a_long_page_is_read_on_from_where_it_was_cut(serve, composed, script, tmp_path):
    url, _ = await serve("".join(f"line {n:06d}\n" for n in range(10_000)), "text/plain")
    async with composed() as (run, _):
        first, second, past = await run(
            {"url": url}, {"url": url, "start": 12 * 9_990}, {"url": url, "start": 10_000_000}, model=script, work=str(tmp_path)
        )
    assert first.text.startswith("line 000000\n") and "left out" in first.text
    assert second.text.startswith("line 009990\n") and second.text.endswith("line 009999\n")
    assert past.text, "a result without a word"


async def test_pages_are_fetched_beside_each_other(serve, composed, script, tmp_path):
    waiting = asyncio.Event()

    async def handle(request: web.Request) -> web.Response:
        if len(had) == 4:
            waiting.set()
        await waiting.wait()
        return web.Response(text=request.path)

    url, had = await serve(handle)
    async with composed(timeout=10) as (run, _):
        results = await run(*(f"{url}/{n}" for n in range(4)), model=script, work=str(tmp_path))
    assert [result.text for result in results] == ["/0", "/1", "/2", "/3"]


async def test_errors_of_the_tool_have_their_code(serve, composed, script, tmp_path):
    url, _ = await serve(web.Response(body=b"\0", content_type="image/png"))
    deep, _ = await serve("<p>" * 2000 + "x")
    async with composed() as (run, _):
        results = await run(url, "http://10.0.0.1/", "ftp://a/", f"http://{HERE}:1/", deep, model=script, work=str(tmp_path))
    assert [result.code for result in results[:4]] == ["NOT_TEXT", "FORBIDDEN_ADDRESS", "INVALID_URL", "UNREACHABLE"]
    assert results[4].code != "RAISED"
