"""A model that cannot be used as named says so before anything is sent."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hames.agents import Agents, AgentSpec
from hames.content.errors import ModelReferenceError
from hames.kernel import Host
from hames.models import MODELS, Models
from hames.models.wire import WireModel
from hames.sessions import SESSIONS

pytestmark = pytest.mark.usefixtures("nothing_left")

KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "deepseek": "DEEPSEEK_API_KEY"}
BASES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL", "deepseek": "DEEPSEEK_BASE_URL"}

Refused = Callable[[str], ModelReferenceError]

providers = pytest.mark.parametrize("provider", KEYS)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS.values():
        monkeypatch.setenv(name, "a-key")
    for name in BASES.values():
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def models(host: Host) -> Models:
    service = host.get(MODELS)
    assert service is not None
    return service


@pytest.fixture
def refused(host: Host, models: Models) -> Refused:
    def why(ref: str) -> ModelReferenceError:
        with pytest.raises(ModelReferenceError) as caught:
            models.resolve(ref, host.root_scope)
        assert caught.value.exit_status == 2
        assert caught.value.remedy
        return caught.value

    return why


@pytest.mark.parametrize("ref", ["nobody:m", "openai", "openai:", ":m", "OPENAI:m", " openai:m"])
async def test_an_unknown_provider_names_those_that_are_there(ref: str, refused: Refused) -> None:
    error = refused(ref)
    assert error.code == "MODEL_UNKNOWN"
    assert repr(ref) in error.message
    for name in ("openai", "anthropic", "deepseek", "local", "scripted"):
        assert f"{name}:" in error.remedy


async def test_no_reference_at_all(refused: Refused) -> None:
    error = refused("")
    assert (error.code, error.message) == ("MODEL_UNKNOWN", "no model is named")


@providers
@pytest.mark.parametrize("value", [None, ""])
async def test_a_missing_key_is_named(provider: str, value: str | None, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is None:
        monkeypatch.delenv(KEYS[provider])
    else:
        monkeypatch.setenv(KEYS[provider], value)
    error = refused(f"{provider}:m")
    assert error.code == "MODEL_KEY_MISSING"
    assert KEYS[provider] in error.message
    assert KEYS[provider] in error.remedy


@providers
@pytest.mark.parametrize("base", ["nonsense", "ftp://host/v1", "http://", "https:///v1", "host:80/v1"])
async def test_a_bad_base_url_names_its_variable(provider: str, base: str, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BASES[provider], base)
    error = refused(f"{provider}:m")
    assert error.code == "MODEL_UNKNOWN"
    assert "is no base URL" in error.message
    assert BASES[provider] in error.remedy


@pytest.mark.parametrize("base", ["http://[::1", "http://host:port/v1", "http://host:99999/v1"])
async def test_a_base_url_that_cannot_even_be_parsed(base: str, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", base)
    assert "OPENAI_BASE_URL" in refused("openai:m").remedy


@pytest.mark.parametrize(
    ("ref", "base", "url"),
    [
        ("openai:m", "", "https://api.openai.com/v1/chat/completions"),
        ("openai:m", "http://127.0.0.1:1/v1/", "http://127.0.0.1:1/v1/chat/completions"),
        ("anthropic:m", "", "https://api.anthropic.com/v1/messages"),
        ("anthropic:m", "http://[::1]:8080", "http://[::1]:8080/v1/messages"),
        ("deepseek:m:tag", "", "https://api.deepseek.com/chat/completions"),
    ],
)
async def test_a_good_reference_is_a_place(
    ref: str, base: str, url: str, host: Host, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BASES[ref.partition(":")[0]], base)
    model = models.resolve(ref, host.root_scope)
    assert isinstance(model, WireModel)
    assert (model.ref, model.url) == (ref, url)


@pytest.mark.parametrize("ref", ["local:smollm2@fast"])
async def test_a_profile_that_nobody_has_is_refused(ref: str, refused: Refused) -> None:
    assert "no profile 'fast'" in refused(ref).message


async def test_an_unknown_local_model_names_those_that_are_known(refused: Refused) -> None:
    error = refused("local:nobody")
    assert error.code == "MODEL_UNKNOWN"
    assert "'nobody'" in error.message
    assert "smollm2" in error.remedy


async def test_a_local_model_without_weights_says_how_to_fetch_them(refused: Refused) -> None:
    pytest.importorskip("xllamacpp")
    error = refused("local:smollm2")
    assert error.code == "MODEL_WEIGHTS_MISSING"
    assert "hames models fetch smollm2" in error.remedy


# scripts


async def test_a_missing_script_is_named(refused: Refused, tmp_path: Path) -> None:
    error = refused(f"scripted:{tmp_path}/none.yaml")
    assert error.code == "MODEL_UNKNOWN"
    assert error.message == f"{tmp_path}/none.yaml: No such file or directory"


async def test_a_directory_is_no_script(refused: Refused, tmp_path: Path) -> None:
    assert "directory" in refused(f"scripted:{tmp_path}").message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "no list"),
        (b"text: Hello.", "no list"),
        (b"[{", "line"),
        (b"- text: [", "line"),
        (b"- Hello.", "valid dictionary"),
        (b"- {texts: Hello.}", "texts"),
        (b"- {finish: banana}", "finish"),
        (b"- {failure: banana}", "failure"),
        (b"- {calls: [{arguments: {}}]}", "calls.0.name"),
        (b"- {text: \xff}", "bad.yaml"),
        (b"- {text: \x00}", "bad.yaml"),
        (b"- {usage: {inputs: 1}}", "inputs"),
    ],
)
async def test_a_bad_script_says_what_is_bad(text: bytes, says: str, refused: Refused, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(text)
    error = refused(f"scripted:{file}")
    assert error.code == "MODEL_UNKNOWN"
    assert str(file) in error.message
    assert says in error.message


async def test_a_script_may_lie_anywhere(host: Host, models: Models, tmp_path: Path) -> None:
    directory = tmp_path / "me@home: a"
    directory.mkdir()
    (directory / "script.yaml").write_text("- text: Hello.")
    ref = f"scripted:{directory}/script.yaml"
    assert models.resolve(ref, host.root_scope).ref == ref


# through an agent


@pytest.mark.parametrize("ref", ["", "nobody:m", "openai:m", "local:nobody", "scripted:/nowhere"])
async def test_an_agent_of_no_model_leaves_no_session(
    ref: str, host: Host, agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ModelReferenceError):
        await agents.create(AgentSpec(cwd=str(tmp_path), model=ref))
    sessions = host.get(SESSIONS)
    assert sessions is not None
    assert sessions.list() == []
    assert agents.live == {}
    assert not host.root_scope.children
