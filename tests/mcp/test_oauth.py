"""Logging in to a server that wants it, and what comes after."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from hames.agents import AGENTS, AgentSpec
from hames.mcp import MCP
from hames.mcp.config import ServerConfig
from hames.policy.plugin import MODE
from hames.tools import TOOLS

HAMES = Path(sys.executable).with_name("hames")
DEADLINE = 12.0
ACCESS, REFRESH = "access-canary-", "refresh-canary-"

SERVER = """
import json, secrets, sys, time
from pathlib import Path

from mcp.server.auth.provider import AccessToken, AuthorizationCode, AuthorizeError, RefreshToken, construct_redirect_uri
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthToken

place, port = Path(sys.argv[1]), int(sys.argv[2])
url = f"http://127.0.0.1:{port}"


def log(what, **more):
    with (place / "log").open("a") as file:
        file.write(json.dumps({"what": what, **more}) + "\\n")


def told(name, default=""):
    return (place / name).read_text() if (place / name).exists() else default


class Provider:
    def __init__(self):
        self.clients, self.codes, self.access, self.refresh = {}, {}, {}, {}

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def register_client(self, client):
        self.clients[client.client_id] = client
        log("register", uris=[str(each) for each in client.redirect_uris])

    async def authorize(self, client, params):
        log("authorize", challenge=params.code_challenge, resource=params.resource, redirect=str(params.redirect_uri))
        if told("refuses"):
            raise AuthorizeError("access_denied", "not today")
        code = secrets.token_hex(16)
        self.codes[code] = AuthorizationCode(
            code=code, scopes=[], expires_at=time.time() + 60, client_id=client.client_id, code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri, redirect_uri_provided_explicitly=True, resource=params.resource, subject="ann")
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client, code):
        return self.codes.get(code)

    def give(self, client, scopes):
        access, refresh = "access-canary-" + secrets.token_hex(8), "refresh-canary-" + secrets.token_hex(8)
        lives = float(told("lives", "3600"))
        self.access[access] = AccessToken(token=access, client_id=client.client_id, scopes=[], expires_at=int(time.time() + lives))
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client.client_id, scopes=[])
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=int(lives))

    async def exchange_authorization_code(self, client, code):
        del self.codes[code.code]
        log("exchange")
        return self.give(client, [])

    async def load_refresh_token(self, client, token):
        return self.refresh.get(token)

    async def exchange_refresh_token(self, client, token, scopes):
        del self.refresh[token.token]
        log("refresh")
        return self.give(client, scopes)

    async def load_access_token(self, token):
        found = self.access.get(token)
        return None if found is None or token in told("expired") else found

    async def revoke_token(self, token):
        pass


settings = AuthSettings(issuer_url=url, resource_server_url=f"{url}/mcp", validate_token_resource=False,
                        client_registration_options=ClientRegistrationOptions(enabled=True))
server = MCPServer("far", auth_server_provider=Provider(), auth=settings, log_level="ERROR")


@server.tool()
def whisper(text: str) -> str:
    log("called")
    return f"psst {text}"


server.run("streamable-http", port=port)
"""


class Far:
    """A server that is logged in to, in a process of its own."""

    def __init__(self, root: Path) -> None:
        self.path = root
        (root / "server.py").write_text(SERVER)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [sys.executable, str(self.path / "server.py"), str(self.path), str(self.port)]
        with (self.path / "said").open("ab") as said:
            self.process = subprocess.Popen(argv, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.02)
        pytest.fail((self.path / "said").read_text()[-2000:])

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def happened(self, what: str) -> list[dict]:
        path = self.path / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [found for line in lines if (found := json.loads(line))["what"] == what]

    def put(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)


@pytest.fixture(scope="module")
def running_far(tmp_path_factory):
    far = Far(tmp_path_factory.mktemp("far"))
    far.start()
    yield far
    far.stop()


@pytest.fixture
def far(running_far):
    for name in ("log", "refuses", "lives", "expired"):
        (running_far.path / name).unlink(missing_ok=True)
    return running_far


class Command:
    """``hames mcp`` in processes of its own, over the state directory of the test."""

    def __init__(self, root: Path, layer: Path) -> None:
        self.state = root / "state"
        self.layer = layer
        self.printed = ""
        home = root / "home"
        home.mkdir()
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "XDG_CONFIG_HOME": str(home / "config")}
        self.environment["BROWSER"] = "false"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [HAMES, "mcp", *words, "--patch", str(self.layer), "--state-dir", str(self.state), "--cwd", str(self.state.parent / "home")]
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment
        )
        self.started.append(child)
        return child

    def end(self, child: subprocess.Popen[str], before: str = "") -> tuple[int, str, str]:
        output, errors = child.communicate(timeout=DEADLINE)
        self.printed += before + output + errors
        return child.returncode, output, before + errors

    def run(self, *words: str) -> tuple[int, str, str]:
        return self.end(self.start(*words))

    def login(self, *words: str, follow=None) -> tuple[int, str, str]:
        """Log in as somebody who opens the printed address."""
        child = self.start("login", "far", "--no-browser", *words)
        before = ""
        assert child.stderr is not None
        while line := child.stderr.readline():
            before += line
            if line.startswith("log in at: "):
                (follow or agree)(line.removeprefix("log in at: ").strip())
                break
        return self.end(child, before)

    @property
    def files(self) -> list[Path]:
        return [path for path in (self.state / "mcp").glob("*") if path.is_file()]


def agree(address: str) -> None:
    """Log in at an address as a person would."""
    page = visit(address)
    assert "close this page" in page, page[:500]


def visit(address: str) -> str:
    """What a browser sees there in the end."""
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


@pytest.fixture
def layer(tmp_path, far):
    path = tmp_path / "layer.yaml"
    config = {"url": far.url, "oauth": True, "reconnect": {"initial": 0.05, "longest": 0.2, "attempts": 100}}
    path.write_text(json.dumps([{"id": "far", "use": "hames.mcp.server", "config": config}]))
    return path


@pytest.fixture
def command(tmp_path, layer):
    command = Command(tmp_path, layer)
    yield command
    for child in command.started:
        if child.poll() is None:
            child.kill()
        child.communicate()
    assert ACCESS not in command.printed and REFRESH not in command.printed, "a token was printed"


async def call(host, tmp_path, script, calling) -> str:
    """What an agent is told that calls the tool of the server."""
    model = script(calling(("mcp__far__whisper", {"text": "hello"})), {"text": "done"})
    agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), model))
    await agent.run("go")
    (result,) = [block.text for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]
    return result


def seat(host):
    return host.get(MCP).seats.view(host.root_scope)["far"]


def tools(host):
    return [name for name in host.get(TOOLS).registry.view(host.root_scope) if name.startswith("mcp__far")]


async def test_a_row_without_a_login_says_that_it_wants_one_and_how(opened, layer, far):
    async with opened(layer) as host:
        connection = seat(host).connection
        assert connection.status == "failed" and tools(host) == []
        assert "wants a login" in connection.reason and "hames mcp login" in connection.reason
        assert connection.starts == 1, "nobody comes by trying again"


def test_the_command_says_so_too(command):
    status, output, _ = command.run("check", "far")
    assert status == 1 and "wants a login" in output and "hames mcp login" in output


async def test_logging_in_with_a_browser(command, far, opened, layer, tmp_path, script, calling):
    seen = []
    status, output, errors = command.login(follow=lambda address: seen.append((address, visit(address))))
    assert (status, output) == (0, "far: logged in\n"), errors
    ((address, page),) = seen
    query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    assert query["code_challenge_method"] == "S256" and query["code_challenge"] and query["state"] and query["response_type"] == "code"
    assert query["resource"] == far.url and urlsplit(query["redirect_uri"]).hostname == "127.0.0.1"
    assert "close this page" in page
    assert [len(far.happened(what)) for what in ("register", "authorize", "exchange")] == [1, 1, 1]
    # tokens are where only their owner sees them
    (file,) = command.files
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert ACCESS in file.read_text() and str(far.port) not in file.name
    everywhere = [path for path in command.state.rglob("*") if path.is_file() and path != file]
    assert not [path for path in everywhere if ACCESS.encode() in path.read_bytes()]
    # and an agent can use the server, without anybody
    async with opened(layer, provided={MODE: "full"}) as host:
        assert tools(host) == ["mcp__far__whisper"]
        assert await call(host, tmp_path, script, calling) == "psst hello"
    assert len(far.happened("authorize")) == 1


def test_by_machine(command):
    status, output, errors = command.login("--json")
    assert status == 0 and json.loads(output) == {"name": "far", "status": "logged in"} and errors.startswith("log in at: http")
    status, output, _ = command.run("check", "far", "--json")
    assert status == 0 and json.loads(output)["servers"][0]["tools"][0]["name"] == "mcp__far__whisper"
    status, output, _ = command.run("call", "far", "whisper", "text=x", "--json")
    assert status == 0 and json.loads(output) == {"is_error": False, "text": "psst x"}
    assert command.run("list", "--json")[0] == 0
    status, output, _ = command.run("logout", "far", "--json")
    assert status == 0 and json.loads(output) == {"name": "far", "status": "logged out"}


def test_logging_in_is_possible_after_something_was_tried_without(command, far):
    assert command.run("check", "far")[0] == 1
    status, output, errors = command.login()
    assert (status, output) == (0, "far: logged in\n"), errors


def test_logging_in_again_is_possible_when_tokens_are_of_no_use_any_more(command, far):
    assert command.login()[0] == 0
    (file,) = command.files
    record = json.loads(file.read_text())
    far.put("expired", record["tokens"]["access_token"])
    record["tokens"]["refresh_token"] = "refresh-canary-gone"
    file.write_text(json.dumps(record))
    status, output, errors = command.login()
    assert (status, output) == (0, "far: logged in\n"), errors
    assert command.run("check", "far")[0] == 0


@pytest.mark.parametrize("later", ["at once", "after it was to expire"])
async def test_an_expired_token_is_refreshed_without_anybody(command, far, opened, layer, tmp_path, script, calling, later):
    far.put("lives", "1" if later == "after it was to expire" else "3600")
    assert command.login()[0] == 0
    (file,) = command.files
    first = json.loads(file.read_text())["tokens"]["access_token"]
    far.put("expired", first)
    far.put("lives", "3600")
    async with opened(layer, provided={MODE: "full"}) as host:
        assert tools(host) == ["mcp__far__whisper"], seat(host).connection.reason
        assert await call(host, tmp_path, script, calling) == "psst hello"
    assert len(far.happened("refresh")) == 1 and len(far.happened("authorize")) == 1
    kept = json.loads(file.read_text())["tokens"]["access_token"]
    assert kept != first and stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_token_that_expires_under_way_is_refreshed(command, far, opened, layer, tmp_path, script, calling):
    assert command.login()[0] == 0
    (file,) = command.files
    async with opened(layer, provided={MODE: "full"}) as host:
        assert await call(host, tmp_path, script, calling) == "psst hello"
        far.put("expired", json.loads(file.read_text())["tokens"]["access_token"])
        assert await call(host, tmp_path, script, calling) == "psst hello"
    assert len(far.happened("authorize")) == 1


async def test_a_server_that_goes_is_tried_again_after_a_login(far):
    """What it answered once, before it was logged in to, is no reason to give it up later."""
    from hames.mcp.http import HttpTransport
    from hames.mcp.lost import why

    config = ServerConfig.model_validate({"url": far.url, "oauth": True})
    transport = HttpTransport(config.launch, None)
    for status in (401, 200):
        await transport._look(httpx2.Response(status))
    assert not why(httpx2.ReadError("gone"), transport).lasting


def test_logging_out_forgets_the_tokens(command, far):
    assert command.login()[0] == 0
    assert command.run("logout", "far") == (0, "far: logged out\n", "")
    assert command.files == []
    status, output, _ = command.run("check", "far")
    assert status == 1 and "hames mcp login" in output
    status, output, errors = command.run("logout", "far")
    assert (status, output) == (2, "") and "nobody is logged in to far" in errors


def test_a_refused_login_fails_and_keeps_no_token(command, far):
    far.put("refuses", "yes")
    pages = []
    status, output, errors = command.login(follow=lambda address: pages.append(visit(address)))
    assert (status, output) == (1, "") and "access_denied" in errors and "Not logged in" in pages[0]
    assert not [file for file in command.files if ACCESS in file.read_text()]
    assert command.run("check", "far")[0] == 1


@pytest.mark.parametrize("query", ["code=stolen&state=wrong", "code=stolen", "error=%3Cscript%3E"])
def test_a_forged_way_back_logs_nobody_in(command, far, query):
    def follow(address: str) -> None:
        back = parse_qs(urlsplit(address).query)["redirect_uri"][0]
        assert "<script>" not in visit(f"{back}?{query}")

    status, output, errors = command.login(follow=follow)
    assert (status, output) == (1, "") and "hames: the login failed" in errors
    assert far.happened("exchange") == [] and not [file for file in command.files if ACCESS in file.read_text()]


def test_what_else_comes_to_the_way_back_disturbs_nothing(command, far):
    def follow(address: str) -> None:
        back = parse_qs(urlsplit(address).query)["redirect_uri"][0]
        place = urlsplit(back)
        for path in ("/favicon.ico", "/callback", "/", "/callback?x=1"):
            visit(f"http://{place.netloc}{path}")
        with socket.create_connection(("127.0.0.1", place.port), 5) as raw:
            raw.sendall(b"\x00\xff\r\n\r\n")
        with socket.create_connection(("127.0.0.1", place.port), 5) as idle:
            visit(address)
            idle.close()

    status, output, errors = command.login(follow=follow)
    assert (status, output) == (0, "far: logged in\n"), errors


def test_giving_up_a_login_ends_it(command):
    child = command.start("login", "far", "--no-browser")
    assert child.stderr.readline().startswith("log in at: ")
    child.send_signal(signal.SIGINT)
    status, output, errors = command.end(child)
    assert (status, output) == (130, "") and "Traceback" not in errors


@pytest.mark.parametrize("what", ["nobody is logged in", "refused", "forged"])
def test_a_login_that_fails_is_a_line_and_no_traceback(command, far, what):
    def forged(address: str) -> None:
        visit(parse_qs(urlsplit(address).query)["redirect_uri"][0] + "?code=stolen&state=wrong")

    if what == "nobody is logged in":
        _, _, errors = command.run("check", "far")
        assert errors == ""
        return
    far.put("refuses", "yes")
    _, _, errors = command.login(follow=visit if what == "refused" else forged)
    lines = errors.splitlines()
    assert "Traceback" not in errors and len(lines) == 3, errors
    assert lines[0].startswith("log in at: ") and lines[1].startswith("hames: ") and "401" not in lines[1]


def test_a_server_that_is_not_there_says_so(command, far, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command.layer.write_text(command.layer.read_text().replace(str(far.port), str(port)))
    child = command.start("login", "far", "--no-browser")
    status, output, errors = command.end(child)
    assert (status, output) == (1, "") and "cannot be reached" in errors


async def test_tokens_that_were_spoilt_count_as_none(command, far, opened, layer):
    assert command.login()[0] == 0
    (file,) = command.files
    for text in ("", "{", "[]", '{"tokens": 5}', '{"tokens": {"access_token": 5}}', '{"tokens": {}, "client": "x"}', "\x00"):
        file.write_text(text)
        async with opened(layer) as host:
            assert seat(host).connection.status in ("failed", "waiting") and tools(host) == []
            assert "hames mcp login" in seat(host).connection.reason, text
