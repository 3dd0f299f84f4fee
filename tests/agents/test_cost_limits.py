"""Limits of cost, and how each limit ends a run of the command."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.budget import Limits, Meter, Rates, looked_up
from hames.content.errors import ModelReferenceError
from hames.content.finish import Usage
from hames.models import MODELS

# The fixture that runs the command stands with the tests of the command line.
_spec = importlib.util.spec_from_file_location("faces_conftest", Path(__file__).parents[1] / "faces" / "conftest.py")
assert _spec is not None and _spec.loader is not None
faces = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(faces)

#: One answer of the model server: 36 tokens of input, 64 read from a cache, 10 of output.
USAGE = Usage(36, 10, 64)
RATES = {"input": 1000.0, "output": 2000.0, "cache_read": 100.0}
ANSWER = (36 * 1000 + 10 * 2000 + 64 * 100) / 1_000_000  # 0.0624

MODEL = 'steps=9;tool=glob;args={"pattern":"#"}'


def priced(tmp_path: Path, url: str, **models: dict[str, float]) -> Path:
    """A patch with two providers, one for each protocol, that know the prices of these models."""
    path = tmp_path / "prices.json"
    common = {"key_env": "", "prices": {MODEL: RATES, **models}}
    providers = {
        "paid": {"dialect": "openai-chat", "base_url": f"{url}/v1", **common},
        "messages": {"dialect": "anthropic-messages", "base_url": url, **common},
    }
    path.write_text(json.dumps([{"id": "models", "set": {"config": {"providers": providers}}}]))
    return path


@pytest.fixture
async def paid(opened, stub, tmp_path):
    """A service whose agents have models with prices."""
    async with opened(priced(tmp_path, stub.url)) as host:
        yield host.get(AGENTS)


def said(agent):
    return [message.text for _, message in agent.session.messages if message.source == "harness"]


# in an agent


@pytest.mark.parametrize("provider", ["paid", "messages"])
async def test_a_turn_ends_when_its_money_is_spent(paid, stub, tmp_path, provider):
    agent = await paid.create(AgentSpec(str(tmp_path), f"{provider}:{MODEL}", limits=Limits(cost=ANSWER * 2.5)))
    end = await agent.run("go")
    assert (end.reason, end.code, end.steps) == ("budget", "BUDGET", 3)
    assert end.detail == f"the limit of ${ANSWER * 2.5:g} is reached (${ANSWER * 3:.4g} spent)"
    assert end.remedy
    assert end.usage == USAGE + USAGE + USAGE
    assert len(stub.received) == 3


async def test_what_was_said_before_the_end_is_kept(opened, stub, tmp_path, monkeypatch):
    async with opened(priced(tmp_path, stub.url)) as host:
        models = host.get(MODELS)
        agents = host.get(AGENTS)
        script = tmp_path / "script.json"
        calls = [{"name": "glob", "arguments": {"pattern": f"{n}"}} for n in range(9)]
        script.write_text(json.dumps([{"text": f"part {n}", "calls": [call], "usage": {"input": 10}} for n, call in enumerate(calls)]))
        model = models.resolve(f"scripted:{script}", host.root_scope)
        monkeypatch.setattr(type(model), "cost", lambda self, usage: usage.input * 0.01)
        agent = await agents.create(AgentSpec(str(tmp_path), f"scripted:{script}", limits=Limits(cost=0.25)))
        end = await agent.run("go")
        assert (end.reason, end.text, end.steps) == ("budget", "part 2", 3)
        again = await agent.run("go on")  # the limit is that of a turn
        assert (again.reason, again.text, again.steps) == ("budget", "part 5", 3)


async def test_near_its_money_an_agent_is_told_once(paid, tmp_path):
    agent = await paid.create(AgentSpec(str(tmp_path), f"paid:{MODEL}", limits=Limits(cost=ANSWER * 10)))
    end = await agent.run("go")
    assert (end.reason, end.steps) == ("completed", 10)
    (text,) = said(agent)
    assert text.startswith("Your budget allows $0.12 more. ")


async def test_a_turn_that_costs_less_completes_in_silence(paid, tmp_path):
    agent = await paid.create(AgentSpec(str(tmp_path), f"paid:{MODEL}", limits=Limits(cost=1.0)))
    assert (await agent.run("go")).reason == "completed"
    assert said(agent) == []


async def test_one_answer_beyond_the_limit_is_the_last(paid, stub, tmp_path):
    agent = await paid.create(AgentSpec(str(tmp_path), f"paid:{MODEL}", limits=Limits(cost=1e-9)))
    end = await agent.run("go")
    assert (end.reason, end.steps, len(stub.received)) == ("budget", 1, 1)


async def test_a_model_without_a_price_is_refused_before_anything_is_made(paid, tmp_path, stub):
    with pytest.raises(ModelReferenceError) as raised:
        await paid.create(AgentSpec(str(tmp_path), "paid:text=unknown", limits=Limits(cost=1.0)))
    assert raised.value.code == "PRICE_UNKNOWN" and raised.value.remedy
    assert (paid.live, list(stub.received)) == ({}, [])
    agent = await paid.create(AgentSpec(str(tmp_path), "paid:text=unknown"))
    assert (await agent.run("go")).reason == "completed"
    await paid.dispose(agent)
    with pytest.raises(ModelReferenceError):
        await paid.create(AgentSpec("", "", agent.id, limits=Limits(cost=1.0)))
    again = await paid.create(AgentSpec("", "", agent.id))  # it was given back
    assert again.id == agent.id


async def test_a_model_that_costs_nothing_has_a_price(opened, stub, tmp_path):
    free = {"steps=2;tool=glob;args={}": {"input": 0.0, "output": 0.0}}
    async with opened(priced(tmp_path, stub.url, **free)) as host:
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), f"paid:{next(iter(free))}", limits=Limits(cost=0.01)))
        assert (await agent.run("go")).reason == "completed"


def unreported(monkeypatch):
    """Lets the server report no usage in the chat protocol."""
    from hames.testing import stub

    whole = stub.openai_events
    monkeypatch.setattr(stub, "openai_events", lambda *rest: [event for event in whole(*rest) if b'"usage"' not in event])


async def test_a_provider_that_reports_no_usage_does_not_spend_without_limit(paid, stub, tmp_path, monkeypatch):
    unreported(monkeypatch)
    agent = await paid.create(AgentSpec(str(tmp_path), f"paid:{MODEL}", limits=Limits(cost=0.01)))
    end = await agent.run("go")
    assert (end.reason, end.code) == ("budget", "BUDGET")
    assert "nobody knows" in end.detail


def test_what_is_not_known_is_not_nothing():
    meter = Meter(Limits(cost=1.0))
    meter.spend(None, lambda usage: 0.1)
    assert meter.cost is None and "nobody knows" in meter.exhausted()
    meter = Meter(Limits(cost=1.0))
    meter.spend(USAGE, lambda usage: None)
    meter.spend(USAGE, lambda usage: 0.1)
    assert meter.cost is None and "nobody knows" in meter.exhausted() and not meter.warning()


async def soon(seconds: float) -> None:
    return None


@pytest.mark.parametrize("fault", ["error-object", "malformed", "no-finish"])
async def test_attempts_that_failed_cost_too(opened, stub, tmp_path, monkeypatch, fault):
    """The messages protocol says first what the input cost."""
    model = f"fault={fault};times=2"
    async with opened(priced(tmp_path, stub.url, **{model: RATES})) as host:
        agent = await host.get(AGENTS).create(AgentSpec(str(tmp_path), f"messages:{model}", limits=Limits(cost=100.0)))
        monkeypatch.setattr(agent.clock, "sleep", soon)
        end = await agent.run("go")
    assert (end.reason, len(stub.received)) == ("completed", 3)
    assert (end.usage.input, end.usage.cache_read) == (36 * 3, 64 * 3)


async def test_tools_of_one_answer_that_end_one_after_the_other_are_not_idle(agents, script, calling, tmp_path):
    calls = [("bash", {"command": f"sleep 0.3; echo {n}"}) for n in range(5)]
    agent = await agents.create(AgentSpec(str(tmp_path), script(calling(*calls), {"text": "done"}), limits=Limits(idle=1.0)))
    assert (await agent.run("go")).detail == ""


# prices


@pytest.mark.parametrize(("provider", "model"), [("openai", "gpt-5"), ("anthropic", "claude-sonnet-4-5"), ("deepseek", "deepseek-chat")])
def test_the_price_list_knows_common_models(provider, model):
    fresh, cached = looked_up(provider, model, Usage(input=10_000, output=100)), looked_up(provider, model, Usage(0, 100, 10_000))
    written = looked_up(provider, model, Usage(cache_write=10_000, output=100))
    assert fresh is not None and cached is not None and written is not None
    assert 0 < cached < fresh < 1 and written > 0
    assert looked_up(provider, model, Usage()) == 0
    assert looked_up(provider, model, Usage(input=20_000, output=200)) == pytest.approx(2 * fresh)


@pytest.mark.parametrize(
    ("provider", "model"), [("openai", "no-such"), ("nobody", "gpt-5"), ("", ""), ("openai", ""), ("openai", "x" * 10_000)]
)
def test_the_price_of_an_unknown_model_is_unknown(provider, model):
    assert looked_up(provider, model, Usage(1)) is None


def test_rates_of_a_cache_are_those_of_input_where_they_are_not_given():
    assert Rates(input=1, output=2).cost(Usage(1_000_000, 1_000_000, 1_000_000, 1_000_000)) == 5
    assert Rates(input=1, output=2, cache_read=0, cache_write=4).cost(Usage(1_000_000, 0, 1_000_000, 1_000_000)) == 5
    assert Rates(input=1, output=2).cost(Usage(reasoning=1_000_000)) == 0


@pytest.mark.parametrize(
    ("limit", "spent", "left"), [(1000.0, 800.0, "$200 more"), (500.0, 450.0, "$50 more"), (0.01, 0.009, "$0.001 more")]
)
def test_money_is_said_as_people_write_it(limit, spent, left):
    meter = Meter(Limits(cost=limit))
    meter.spend(USAGE, lambda usage: spent)
    assert left in meter.warning()


@pytest.mark.parametrize(("limit", "spent"), [(20_000.0, 23_456.0), (1_000_000.0, 1_234_567.0)])
def test_large_sums_are_said_without_an_exponent(limit, spent):
    meter = Meter(Limits(cost=limit))
    meter.spend(USAGE, lambda usage: spent)
    assert "e+" not in meter.exhausted()


# in the command


@pytest.fixture
def hames(tmp_path):
    (tmp_path / "cli").mkdir()
    cli = faces.Cli(tmp_path / "cli")
    yield cli
    assert cli.end() == []


@pytest.fixture
def server():
    """The model server as a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", "hames.testing.stub"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.stdout.close()


def parts(hames, count: int = 12, command: str = "echo {}", **more) -> str:
    """A model that works in parts of which each says something."""
    return hames.script(
        *({"text": f"part {n}", "calls": [{"name": "bash", "arguments": {"command": command.format(n)}}], **more} for n in range(count))
    )


#: the options, what the model is, what is said, and the text that there is
ENDS = {
    "steps": (["--max-steps", "3"], {}, "the limit of 3 steps is reached", "part 2", "BUDGET"),
    "tokens": (["--max-tokens", "250"], {"usage": {"input": 90, "output": 10}}, "the limit of 250 tokens is reached", "part 2", "BUDGET"),
    "time": (["--max-time", "1"], {"command": "sleep 65.5 # {}"}, "the limit of 1 s is reached", "part 0", "DEADLINE"),
    "idle": (["--max-idle", "0.7"], {"command": "sleep 66.5 # {}"}, "nothing happened for 0.7 s", "part 0", "IDLE"),
    "repeats": ([], {"command": "echo same"}, "the same call with the same result, 8 times", "part 7", "REPEATED"),
}


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
@pytest.mark.parametrize("name", ENDS)
def test_a_limit_ends_the_command(hames, name, as_json):
    options, more, detail, text, code = ENDS[name]
    begin = time.monotonic()
    ended(hames, ["run", "go", "--model", parts(hames, **more), *options], as_json, detail, text, code)
    assert time.monotonic() - begin < 20
    assert hames.events(hames.session()["id"])[-1]["data"] == {"reason": "budget"}


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
def test_a_limit_of_money_ends_the_command(hames, server, tmp_path, as_json):
    patch = priced(tmp_path, server)
    arguments = ["run", "go", "--model", f"paid:{MODEL}", "--max-cost", "0.1", "--patch", str(patch)]
    ended(hames, arguments, as_json, "the limit of $0.1 is reached ($0.1248 spent)", "", "BUDGET")


def ended(hames, arguments: list[str], as_json: bool, detail: str, text: str, code: str) -> None:
    if as_json:
        end = hames.json(*arguments, status=5)
        assert (end["status"], end["code"], end.get("text", "")) == ("budget", code, text)
        assert end["detail"].startswith(detail) and end["remedy"] and end["steps"] >= 1
    else:
        done = hames.run(*arguments)
        assert (done.returncode, done.stdout.strip()) == (5, text)
        lines = done.stderr.splitlines()
        (place,) = [n for n, line in enumerate(lines) if line.startswith(f"hames: budget: {detail}")]
        assert lines[place + 1].strip() and "--resume" in lines[-1]


def test_a_price_that_nobody_knows_is_invalid_input(hames, tmp_path):
    patch = priced(tmp_path, "http://127.0.0.1:1")
    found = hames.json("run", "go", "--model", "paid:unknown", "--max-cost", "1", "--patch", str(patch), status=2)
    assert found["error"]["code"] == "PRICE_UNKNOWN" and found["error"]["remedy"]


@pytest.mark.parametrize("option", ["--max-cost", "--max-time", "--max-idle"])
@pytest.mark.parametrize("value", ["nan", "0", "-1", "x", "-inf", ""])
def test_a_limit_that_is_none_is_refused(hames, monkeypatch, capsys, option, value):
    inline = faces.Inline(hames, monkeypatch, capsys)
    model = hames.script({"text": "hello"})
    assert inline.run("run", "go", "--model", model, f"{option}={value}").returncode == 2


@pytest.mark.parametrize("price", [-1, "x", None])
def test_a_price_that_is_none_is_refused(hames, tmp_path, monkeypatch, capsys, price):
    inline = faces.Inline(hames, monkeypatch, capsys)
    patch = priced(tmp_path, "http://127.0.0.1:1", bad={"input": price, "output": 1})
    assert inline.run("run", "go", "--model", "paid:bad", "--patch", str(patch)).returncode == 2


@pytest.mark.parametrize("price", [".nan", ".inf"])
def test_a_price_that_is_no_number_is_refused(hames, tmp_path, monkeypatch, capsys, price):
    inline = faces.Inline(hames, monkeypatch, capsys)
    patch = tmp_path / "patch.yaml"
    patch.write_text(
        f"- {{id: models, set: {{config: {{providers: {{p: {{dialect: openai-chat, base_url: 'http://127.0.0.1:1', prices: "
        f"{{bad: {{input: {price}, output: 1}}}}}}}}}}}}}}\n"
    )
    done = inline.run("run", "go", "--model", "p:bad", "--max-cost", "1", "--max-time", "0.2", "--patch", str(patch))
    assert done.returncode == 2, done.stderr
