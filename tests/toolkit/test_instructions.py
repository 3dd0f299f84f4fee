"""AGENTS.md and CLAUDE.md: which are read, in what order, how much of them, and when they are told."""

from __future__ import annotations

import json
import os

import pytest

from hames.agents import AgentSpec
from hames.agents.compaction import summary
from hames.sessions import SESSIONS
from hames.toolkit.instructions import InstructionsConfig, gathered
from hames.trust import TRUST

DEFAULT = InstructionsConfig()


@pytest.fixture(autouse=True)
def user(tmp_path, monkeypatch):
    """The user's own directory."""
    path = tmp_path / "user"
    path.mkdir()
    monkeypatch.setenv("HAMES_HOME", str(path))
    return path


@pytest.fixture
def repo(tmp_path):
    path = tmp_path / "repo"
    (path / ".git").mkdir(parents=True)
    (path / ".git" / "HEAD").touch()
    (path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return path


@pytest.fixture
def grant(host):
    def decide(directory, granted=True):
        trust = host.get(TRUST)
        trust.decide(trust.status(directory), granted)

    return decide


def harness(agent):
    return [message.text for _, message in agent.session.messages if message.source == "harness"]


def headings(text):
    return [line.removeprefix("Instructions from ").rstrip(":") for line in text.splitlines() if line.startswith("Instructions from ")]


# which, and in what order


def test_the_users_come_first_then_from_the_top_of_the_checkout_down_to_the_working_directory(user, repo):
    below = repo / "a" / "b"
    below.mkdir(parents=True)
    places = [user, repo, repo / "a", below]
    for place in places:
        for name in ("CLAUDE.md", "AGENTS.md"):
            (place / name).write_text(f"{name} of {place}")
    told = gathered(below, DEFAULT, project=True)
    assert headings(told) == [str(place / name) for place in places for name in ("AGENTS.md", "CLAUDE.md")]


def test_nothing_above_the_checkout_beside_or_below_the_working_directory_is_read(repo):
    here = repo / "a"
    for place in (repo.parent, repo / "beside", here, here / "below"):
        place.mkdir(exist_ok=True)
        (place / "AGENTS.md").write_text(f"of {place.name}")
    assert headings(gathered(here, DEFAULT, project=True)) == [str(here / "AGENTS.md")]


def test_outside_of_a_checkout_the_working_directory_alone_speaks(tmp_path):
    below = tmp_path / "plain" / "below"
    below.mkdir(parents=True)
    (below.parent / "AGENTS.md").write_text("above")
    (below / "AGENTS.md").write_text("here")
    assert headings(gathered(below, DEFAULT, project=True)) == [str(below / "AGENTS.md")]


def test_a_checkout_in_a_checkout_has_its_own_top(repo):
    inner = repo / "vendor"
    (inner / ".git").mkdir(parents=True)
    (inner / ".git" / "HEAD").touch()
    (repo / "AGENTS.md").write_text("outer")
    (inner / "AGENTS.md").write_text("inner")
    assert headings(gathered(inner, DEFAULT, project=True)) == [str(inner / "AGENTS.md")]


def test_a_worktree_whose_git_is_a_file_is_a_checkout(tmp_path):
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / ".git").write_text("gitdir: elsewhere\n")
    (tree / "AGENTS.md").write_text("top")
    assert headings(gathered(tree / "a", DEFAULT, project=True)) == [str(tree / "AGENTS.md")]


def test_other_names_are_read_where_they_are_configured(repo):
    (repo / "AGENTS.md").write_text("no")
    (repo / "HOUSE.md").write_text("yes")
    assert headings(gathered(repo, InstructionsConfig(names=["HOUSE.md"]), project=True)) == [str(repo / "HOUSE.md")]


def test_the_project_is_silent_where_it_is_not_asked(user, repo):
    (user / "AGENTS.md").write_text("mine")
    (repo / "AGENTS.md").write_text("theirs")
    assert "theirs" not in gathered(repo, DEFAULT, project=False)
    assert "mine" in gathered(repo, DEFAULT, project=False)


# the same twice


def test_files_that_say_the_same_are_told_once(user, repo):
    for path in (user / "AGENTS.md", repo / "AGENTS.md"):
        path.write_text("be kind\n")
    (repo / "CLAUDE.md").symlink_to("AGENTS.md")
    told = gathered(repo, DEFAULT, project=True)
    assert told.count("be kind") == 1 and headings(told) == [str(user / "AGENTS.md")]


@pytest.mark.parametrize("part", [0.4, 0.6, 0.9], ids="{:.0%} of what is told".format)
def test_a_long_file_under_a_second_name_is_told_once_too(repo, part):
    text = ("be kind\n" * DEFAULT.max_bytes)[: int(DEFAULT.max_bytes * part)]
    (repo / "AGENTS.md").write_text(text)
    (repo / "CLAUDE.md").symlink_to("AGENTS.md")
    assert headings(gathered(repo, DEFAULT, project=True)) == [str(repo / "AGENTS.md")]


def test_empty_files_are_not_mentioned(repo):
    (repo / "AGENTS.md").write_text("")
    (repo / "CLAUDE.md").write_text("  \n\n")
    assert gathered(repo, DEFAULT, project=True) == ""


# how much


def test_a_long_file_is_cut_and_that_is_said(repo):
    (repo / "AGENTS.md").write_text("x" * 200)
    told = gathered(repo, InstructionsConfig(max_bytes=100), project=True)
    assert told.count("x" * 100) == 1 and "x" * 101 not in told
    assert f"[the rest of {repo / 'AGENTS.md'} was not read: the instructions are longer than 100 bytes]" in told


@pytest.mark.parametrize("size", [99, 100, 101])
def test_the_limit_is_exact(repo, size):
    (repo / "AGENTS.md").write_text("x" * size)
    told = gathered(repo, InstructionsConfig(max_bytes=100), project=True)
    assert ("longer than 100 bytes" in told) == (size > 100)
    assert ("x" * min(size, 100)) in told


def test_the_limit_cuts_no_letter_in_half(repo):
    (repo / "AGENTS.md").write_text("é" * 60)
    told = gathered(repo, InstructionsConfig(max_bytes=101), project=True)
    assert told.count("é") == 50 and "\ufffd" not in told


@pytest.mark.parametrize("begin", ["", "\n", " ", "é", "\ufeff", "日", "x"], ids=ascii)
def test_a_file_for_which_nothing_is_left_is_named(repo, begin):
    below = repo / "a"
    below.mkdir()
    (repo / "AGENTS.md").write_text("x" * 100)
    (below / "AGENTS.md").write_text(f"{begin}never delete the database")
    told = gathered(below, InstructionsConfig(max_bytes=100), project=True)
    assert f"[{below / 'AGENTS.md'} was not read: the instructions are longer than 100 bytes]" in told


@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_file_for_which_hardly_anything_is_left_is_named(repo, left):
    below = repo / "a"
    below.mkdir()
    (repo / "AGENTS.md").write_text("x" * (100 - left))
    (below / "AGENTS.md").write_text("\n\n\n\nnever delete the database")
    assert str(below / "AGENTS.md") in gathered(below, InstructionsConfig(max_bytes=100), project=True)


def test_all_files_together_stay_below_the_limit(user, repo):
    place = repo
    (user / "AGENTS.md").write_text("u" * 3000)
    for depth in range(12):
        (place / "AGENTS.md").write_text(f"{depth} " + "x" * 3000)
        place = place / "d"
        place.mkdir()
    told = gathered(place, InstructionsConfig(max_bytes=10_000), project=True)
    assert told.count("x") + told.count("u") < 10_000 + 2000
    assert told.count("was not read") == 10  # one cut, nine not begun


def test_every_file_for_which_nothing_is_left_is_named_also_when_they_begin_alike(repo):
    below = repo / "a"
    below.mkdir()
    (repo / "AGENTS.md").write_text("x" * 100)
    (below / "AGENTS.md").write_text("# one\n")
    (below / "CLAUDE.md").write_text("# two\n")
    told = gathered(below, InstructionsConfig(max_bytes=100), project=True)
    assert f"[{below / 'AGENTS.md'} was not read" in told and f"[{below / 'CLAUDE.md'} was not read" in told


# what is no text


def test_text_that_is_no_utf8_is_read_with_its_faults_marked(repo):
    (repo / "AGENTS.md").write_bytes(b"caf\xe9 first")
    assert "caf\ufffd first" in gathered(repo, DEFAULT, project=True)


def test_bytes_that_are_no_text_are_named(repo):
    (repo / "AGENTS.md").write_bytes(b"\x7fELF\0\0")
    assert gathered(repo, DEFAULT, project=True) == f"[{repo / 'AGENTS.md'} was not read: it is no text]"


def test_a_directory_of_that_name_is_named(repo):
    (repo / "AGENTS.md").mkdir()
    assert gathered(repo, DEFAULT, project=True) == f"[{repo / 'AGENTS.md'} was not read: it is no regular file]"


def test_a_name_that_leads_nowhere_says_nothing(repo):
    (repo / "AGENTS.md").symlink_to("gone.md")
    assert gathered(repo, DEFAULT, project=True) == ""


def test_the_users_own_file_may_be_a_link(user, repo, tmp_path):
    (tmp_path / "dotfiles.md").write_text("from my dotfiles")
    (user / "AGENTS.md").symlink_to(tmp_path / "dotfiles.md")
    assert "from my dotfiles" in gathered(repo, DEFAULT, project=True)


def test_a_link_within_the_checkout_is_read_from_a_subdirectory(repo):
    below = repo / "a"
    below.mkdir()
    (repo / "shared.md").write_text("shared")
    (below / "AGENTS.md").symlink_to("../shared.md")
    assert "shared" in gathered(below, DEFAULT, project=True)


# trust


async def test_without_trust_the_project_tells_nothing_and_the_user_everything(agents, script, user, repo):
    (user / "AGENTS.md").write_text("mine")
    (repo / "AGENTS.md").write_text("theirs")
    agent = await agents.create(AgentSpec(str(repo), script({"text": "ok"})))
    await agent.run("go")
    assert len(harness(agent)) == 1 and "mine" in harness(agent)[0]
    assert "theirs" not in str(agent.session.messages)


async def test_with_trust_all_of_it_is_told_in_one_message(agents, script, grant, user, repo):
    (user / "AGENTS.md").write_text("mine")
    (repo / "AGENTS.md").write_text("theirs")
    (repo / "CLAUDE.md").write_text("of the other kind")
    grant(repo)
    agent = await agents.create(AgentSpec(str(repo), script({"text": "ok"})))
    await agent.run("go")
    (told,) = harness(agent)
    assert told.index("mine") < told.index("theirs") < told.index("of the other kind")


async def test_trust_that_is_refused_is_none(agents, script, grant, repo):
    (repo / "AGENTS.md").write_text("theirs")
    grant(repo, False)
    agent = await agents.create(AgentSpec(str(repo), script({"text": "ok"})))
    await agent.run("go")
    assert harness(agent) == []


async def test_trust_ends_when_what_it_executes_has_changed(agents, script, grant, repo):
    (repo / "AGENTS.md").write_text("theirs")
    grant(repo)
    (repo / ".mcp.json").write_text('{"mcpServers": {"x": {"command": "evil"}}}')
    agent = await agents.create(AgentSpec(str(repo), script({"text": "ok"})))
    await agent.run("go")
    assert harness(agent) == []


async def test_trust_that_comes_later_is_heard_at_the_next_turn(agents, script, grant, repo):
    (repo / "AGENTS.md").write_text("theirs")
    agent = await agents.create(AgentSpec(str(repo), script({"text": "1"}, {"text": "2"})))
    await agent.run("go")
    grant(repo)
    await agent.run("go on")
    assert len(harness(agent)) == 1 and "theirs" in harness(agent)[0]


@pytest.mark.parametrize("what", [".mcp.json", ".hames", ".hames/compose.yaml"])
@pytest.mark.parametrize("how", ["loop", "fifo", "deep", "null byte", "directory"])
async def test_where_trust_cannot_be_told_the_users_own_are_told_all_the_same(agents, script, user, repo, what, how, host):
    (user / "AGENTS.md").write_text("mine")
    (repo / "AGENTS.md").write_text("theirs")
    path = repo / what
    path.parent.mkdir(exist_ok=True)
    match how:
        case "loop":
            path.symlink_to(path.name)
        case "fifo":
            os.mkfifo(path)
        case "deep":
            path.write_text("[" * 100_000)
        case "null byte":
            path.write_text('[{include: "a\\0b"}]')
        case _:
            path.mkdir()
    agent = await agents.create(AgentSpec(str(repo), script({"text": "ok"})))
    end = await agent.run("go")
    assert end.reason == "completed"
    assert len(harness(agent)) == 1 and "mine" in harness(agent)[0] and "theirs" not in harness(agent)[0]


# when


async def test_they_are_told_once_and_again_at_the_turn_after_they_have_changed(agents, script, calling, grant, repo):
    (repo / "AGENTS.md").write_text("first")
    grant(repo)
    model = script(
        {"text": "1"}, {"text": "2"}, calling(("bash", {"command": "echo second > AGENTS.md"})), {"text": "3"}, {"text": "4"}, {"text": "5"}
    )
    agent = await agents.create(AgentSpec(str(repo), model))
    await agent.run("one")
    await agent.run("two")
    assert len(harness(agent)) == 1
    await agent.run("three")  # changes it, and is not told in the same turn
    assert len(harness(agent)) == 1
    await agent.run("four")
    assert len(harness(agent)) == 2 and "second" in harness(agent)[1] and "first" not in harness(agent)[1]
    await agent.run("five")
    assert len(harness(agent)) == 2


async def test_a_new_time_without_a_new_text_is_no_change(agents, script, grant, repo):
    (repo / "AGENTS.md").write_text("first")
    grant(repo)
    agent = await agents.create(AgentSpec(str(repo), script({"text": "1"}, {"text": "2"})))
    await agent.run("one")
    os.utime(repo / "AGENTS.md", (1, 1))
    await agent.run("two")
    assert len(harness(agent)) == 1


async def test_a_session_that_is_resumed_is_not_told_again_what_has_not_changed(agents, script, grant, repo):
    (repo / "AGENTS.md").write_text("first")
    grant(repo)
    model = script({"text": "1"}, {"text": "2"}, {"text": "3"})
    agent = await agents.create(AgentSpec(str(repo), model))
    await agent.run("one")
    await agents.dispose(agent)
    again = await agents.create(AgentSpec(str(repo), model, resume=agent.id))
    await again.run("two")
    assert len(harness(again)) == 1
    (repo / "AGENTS.md").write_text("second")
    await again.run("three")
    assert len(harness(again)) == 2


async def test_after_a_compaction_they_are_told_again(agents, script, grant, repo):
    (repo / "AGENTS.md").write_text("always be kind")
    grant(repo)
    agent = await agents.create(AgentSpec(str(repo), script({"text": "1"}, {"text": "2"}, {"text": "3"})))
    await agent.run("one")
    agent.session.compact(agent.session.next_seq, summary("what was said"))
    assert "always be kind" not in str(agent.session.messages)
    end = await agent.run("two")
    assert end.reason == "completed"
    assert len([text for text in harness(agent) if "always be kind" in text]) == 1


async def test_the_system_prompt_stays_the_same_whatever_they_say(host, agents, script, grant, repo):
    (repo / "AGENTS.md").write_text("first")
    grant(repo)
    agent = await agents.create(AgentSpec(str(repo), script({"text": "1"}, {"text": "2"})))
    await agent.run("one")
    (repo / "AGENTS.md").write_text("second")
    await agent.run("two")
    first, second = (request.body() for _, request in host.get(SESSIONS).rebuild(agent.id))
    one, two = json.loads(first)["messages"], json.loads(second)["messages"]
    assert two[: len(one)] == one
