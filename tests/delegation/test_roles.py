"""Roles: files, which of them counts, what tools one gets, and who a child is then."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest

from hames.agents import AGENTS, AgentSpec
from hames.budget import Limits
from hames.delegation import DELEGATION
from hames.delegation.failures import Refused
from hames.delegation.role import SETS, read_role, split_words
from hames.delegation.roles import found, resolved
from hames.delegation.spec import TaskSpec
from hames.tools import TOOLS
from hames.trust import TRUST

REVIEWER = """---
name: reviewer
description: Reads a change.
tools: [read, grep, "mcp:github/*?"]
permission: read-only
---
You review changes in {{cwd}}.
"""


BOMB = "".join(f"{n}: &{n} [*{p}, *{p}]\n" for p, n in pairwise("abcdefghijkl"))


def role(text: str, origin: str = "workspace", stem: str = "file"):
    return read_role(text, Path(f"{stem}.md"), origin)


def headed(lines: str, body: str = "You are somebody.") -> str:
    return f"---\n{lines}\n---\n{body}\n"


@pytest.fixture
async def project(host, wired, tmp_path):
    """A trusted repository with room for roles."""
    for place in (".hames/roles", ".claude/agents"):
        (tmp_path / "work" / place).mkdir(parents=True)
    work = tmp_path / "work"
    host.get(TRUST).decide(host.get(TRUST).status(work), True)
    return work


async def lead(host, cwd: Path, model: str = "openai:steps=0"):
    return await host.get(AGENTS).create(AgentSpec(str(cwd), model))


# files


def test_a_file_says_who_somebody_is():
    read = role(REVIEWER)
    assert (read.name, read.description, read.persona, read.permission) == (
        "reviewer",
        "Reads a change.",
        "You review changes in {{cwd}}.",
        "read-only",
    )
    assert [(each.pattern, each.required) for each in read.tools] == [("read", True), ("grep", True), ("mcp__github__*", False)]
    assert read.problem == "" and read.notes == () and len(read.digest) == 64


def test_what_a_file_leaves_out_is_that_of_the_deployment():
    read = role(headed("description: x"), stem="helper")
    assert (read.name, read.tools, read.model, read.permission, read.runner, read.assurance) == ("helper", None, "", "", "", "enforced")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("You are somebody.", "no front matter"),
        (headed("tools: [read"), "no YAML"),
        (headed("- a\n- b"), "no mapping"),
        (headed("tools: []"), "tools is empty"),
        (headed("tool: read"), "there is no key tool"),
        (headed("name: Bad Name"), "is no name"),
        (headed("permission: everything"), "permission is 'everything'"),
        (headed("tools: ['@all']"), "there is no set @all"),
        (headed("budget: {money: 3}"), "budget.money is no limit"),
        (headed("description: [a, b]"), "description is no text"),
        (headed("assurance: perhaps"), "assurance is 'perhaps'"),
        (headed("tools: [[read]]"), "what is no text"),
        (headed("tools: " + "[" * 5000), "no YAML"),
        (headed(f"a: &a [x, x]\n{BOMB}tools: [*l]"), "no text"),
    ],
)
def test_a_file_that_is_wrong_says_why(text, said):
    assert said in role(text).problem


def test_all_that_is_wrong_with_a_file_is_said_at_once():
    problem = role(headed("name: A B\ntools: ['@x']\npermission: all\nmore: 1")).problem
    assert all(each in problem for each in ("no name", "no set @x", "permission is", "no key more"))


def test_a_set_stands_for_tools_of_which_each_may_be_missing():
    read = role(headed("tools: ['@read', bash]"))
    assert [each.pattern for each in read.tools] == [*SETS["@read"], "bash"]
    assert [each.required for each in read.tools] == [False] * len(SETS["@read"]) + [True]


# files of others


def test_names_of_others_are_translated():
    text = headed(
        "name: Code-Reviewer\ndescription: d\ntools: Read, Grep, Bash, mcp__docs__search, Task\nmodel: haiku\ncolor: red", "Use {{tool}}."
    )
    read = role(text, "claude")
    assert [each.pattern for each in read.tools] == ["read", "grep", "bash", "mcp__docs__search", "delegate"]
    assert (read.name, read.model, read.problem) == ("code-reviewer", "anthropic:claude-haiku-4-5", "")
    assert read.notes == ("not followed: color",)


@pytest.mark.parametrize(
    ("model", "ref"),
    [("inherit", ""), ("sonnet", "anthropic:claude-sonnet-4-5"), ("claude-x-1", "anthropic:claude-x-1"), ("openai:gpt-5", "openai:gpt-5")],
)
def test_models_of_others_are_translated(model, ref):
    assert role(headed(f"name: a\nmodel: {model}"), "claude").model == ref


def test_what_others_want_and_is_not_here_is_left_out_and_said():
    read = role(headed('name: a\ntools: Read, NotebookEdit, "Bash(git diff:*, git log:*)"'), "claude")
    assert [(each.word, each.pattern) for each in read.tools][:2] == [("Read", "read"), ("NotebookEdit", "")]
    assert read.tools[2].pattern == "" and "limit on arguments" in read.tools[2].why
    assert not [each for each in read.tools if each.required]


def test_a_description_with_colons_is_taken_as_it_stands():
    text = headed('name: a\ndescription: Use this: always. Examples: <example>user: "hi"</example>\ntools: Read')
    read = role(text, "claude")
    assert read.problem == "" and read.description.startswith("Use this: always.") and [each.pattern for each in read.tools] == ["read"]


def test_without_tools_others_get_all_and_so_does_a_star():
    assert role(headed("name: a"), "claude").tools is None and role(headed("name: a\ntools: '*'"), "claude").tools is None


# which counts


def test_the_nearest_role_of_a_name_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("HAMES_HOME", str(tmp_path / "home"))
    shipped = tmp_path / "shipped"
    places = {
        "workspace": tmp_path / "work/.hames/roles",
        "claude": tmp_path / "work/.claude/agents",
        "user": tmp_path / "home/roles",
        "shipped": shipped,
    }
    for path in places.values():
        path.mkdir(parents=True)
        (path / "one.md").write_text(headed("name: one"))
    assert [each.origin for each in found(tmp_path / "work", project=True, shipped=[shipped])["one"]] == list(places)
    assert [each.origin for each in found(tmp_path / "work", project=False, shipped=[shipped])["one"]] == ["user", "shipped"]


def test_a_link_out_of_the_repository_is_no_role(tmp_path, monkeypatch):
    monkeypatch.setenv("HAMES_HOME", str(tmp_path / "home"))
    place = tmp_path / "work/.hames/roles"
    place.mkdir(parents=True)
    (tmp_path / "secret").write_text(headed("name: secret"))
    (place / "secret.md").symlink_to(tmp_path / "secret")
    assert found(tmp_path / "work", project=True)["secret"][0].problem == "it leads out of the repository"


# tools at a moment


async def test_what_is_there_is_kept_and_what_is_not_is_said(host):
    tools = host.get(TOOLS)
    read = role(headed("tools: [read, 'bash', 'nothing?', 'web_*']"))
    gets = resolved(read.tools, tools, host.root_scope)
    assert gets.kept == ("read", "bash", "web_*")
    assert dict(gets.dropped) == {"nothing": "it is not there"} and gets.missing == ()
    assert resolved(role(headed("tools: [read, gone]")).tools, tools, host.root_scope).missing == ("gone",)


async def test_a_role_of_a_repository_that_nobody_trusts_is_not_there(host, wired, tmp_path):
    (tmp_path / ".hames/roles").mkdir(parents=True)
    (tmp_path / ".hames/roles/reviewer.md").write_text(REVIEWER)
    agent, tasks = await lead(host, tmp_path), host.get(DELEGATION).tasks
    with pytest.raises(Refused) as caught:
        await tasks.start(TaskSpec("look", role="reviewer"), tasks.origin(agent))
    assert caught.value.code == "ROLE_UNKNOWN"


@pytest.mark.parametrize(
    ("text", "spec", "code"),
    [
        (headed("tools: [read, gone]"), TaskSpec("x", role="one"), "ROLE_TOOLS_MISSING"),
        (headed("tools: ['gone?']"), TaskSpec("x", role="one"), "ROLE_TOOLS_MISSING"),
        (headed("tools: ["), TaskSpec("x", role="one"), "ROLE_INVALID"),
        (headed("tools: [read]"), TaskSpec("x", role="one", tools=("bash",)), "GRANT_EXCEEDED"),
        (headed("runner: nobody"), TaskSpec("x", role="one"), "RUNNER_UNKNOWN"),
        (headed("model: nobody:x"), TaskSpec("x", role="one"), "MODEL_UNKNOWN"),
        (headed("tools: [read]"), TaskSpec("x", role="two"), "ROLE_UNKNOWN"),
    ],
)
async def test_a_role_that_cannot_be_had_is_refused_before_anything_happens(host, project, text, spec, code):
    (project / ".hames/roles/one.md").write_text(text)
    agent, tasks = await lead(host, project), host.get(DELEGATION).tasks
    with pytest.raises(Refused) as caught:
        await tasks.start(spec, tasks.origin(agent))
    assert caught.value.code == code and tasks.ledger.list() == [] and list(host.get(AGENTS).live) == [agent.id]


# the child


def tools_sent(received) -> set[str]:
    return {each["function"]["name"] for each in json.loads(received.body).get("tools", ())}


async def test_a_child_is_who_its_role_says_and_has_its_tools_and_no_others(host, wired, project):
    (project / ".hames/roles/reviewer.md").write_text(REVIEWER)
    agent, tasks = await lead(host, project), host.get(DELEGATION).tasks
    task = await tasks.start(TaskSpec("look", role="reviewer"), tasks.origin(agent))
    assert (await task.outcome()).ok
    sent = wired.received[-1]
    system = json.loads(sent.body)["messages"][0]["content"]
    assert f"You review changes in {project}." in system and "You do what the user asks" not in system
    assert tools_sent(sent) == {"read", "grep"}
    assert task.permission == "read-only" and task.spec.role == "reviewer"
    record = tasks.ledger.get(task.id)
    assert record.attempts[0].digest == f"role:{task.role.digest}" and record.outcome.assurance["role"] == "enforced"


async def test_a_role_that_only_reads_writes_nothing_whatever_it_calls(host, project):
    (project / ".hames/roles/reviewer.md").write_text(headed("tools: [read, write, bash]\npermission: read-only"))
    calls = [("write", {"path": "new.txt", "content": "x"}), ("bash", {"command": "echo x > other.txt"})]
    script = project.parent / "child.json"
    script.write_text(json.dumps([{"calls": [{"name": n, "arguments": a} for n, a in calls]}, {"text": "Done."}]))
    agent, tasks = await lead(host, project), host.get(DELEGATION).tasks
    outcome = await tasks.run(TaskSpec("try", role="reviewer", model=f"scripted:{script}"), tasks.origin(agent))
    assert outcome.ok and not (project / "new.txt").exists() and not (project / "other.txt").exists()


async def test_braces_in_files_of_others_are_text(host, wired, project):
    (project / ".claude/agents/helper.md").write_text(headed("name: helper\ntools: Read", "Fill in {{name}} and {{ cwd }}."))
    agent, tasks = await lead(host, project), host.get(DELEGATION).tasks
    assert (await tasks.run(TaskSpec("look", role="helper"), tasks.origin(agent))).ok
    assert "Fill in {{name}} and {{ cwd }}." in json.loads(wired.received[-1].body)["messages"][0]["content"]


async def test_a_call_takes_tools_of_a_role_away_and_its_mode_narrower(host, wired, project):
    (project / ".hames/roles/worker.md").write_text(
        headed("tools: ['@read', '@run']\npermission: workspace-write\nbudget: {steps: 7, tokens: 900}")
    )
    agent, tasks = await lead(host, project), host.get(DELEGATION).tasks
    task = await tasks.start(TaskSpec("look", role="worker", tools=("read",), permission="read-only"), tasks.origin(agent))
    assert (await task.outcome()).ok and tools_sent(wired.received[-1]) == {"read"}
    assert (task.permission, task.spec.budget.steps, task.spec.budget.tokens) == ("read-only", 7, 900)


async def test_a_role_never_has_more_than_whoever_starts_it_may_hand_down(host, project):
    (project / ".hames/roles/worker.md").write_text(headed("permission: full\ntools: [read, bash]"))
    agent, tasks = await lead(host, project), host.get(DELEGATION).tasks
    agent.narrow("test", "read-only")
    with pytest.raises(Refused) as caught:
        await tasks.start(TaskSpec("look", role="worker"), tasks.origin(agent))
    assert caught.value.code == "GRANT_EXCEEDED"


async def test_a_lead_is_told_the_roles_that_it_can_use(host, wired, project):
    (project / ".hames/roles/reviewer.md").write_text(REVIEWER)
    (project / ".hames/roles/broken.md").write_text("nothing")
    agent = await lead(host, project)
    await agent.run("hello")
    texts = "\n".join(str(each["content"]) for each in json.loads(wired.received[-1].body)["messages"])
    assert "- reviewer: Reads a change." in texts and "broken" not in texts


async def test_a_role_is_given_by_the_tool(host, wired, project):
    (project / ".hames/roles/reviewer.md").write_text(REVIEWER)
    script = project.parent / "lead.json"
    call = {
        "name": "delegate",
        "arguments": {"description": "review", "prompt": "look", "role": "reviewer", "model": "openai:steps=0;text=Fine."},
    }
    script.write_text(json.dumps([{"calls": [call]}, {"text": "Done."}]))
    agent = await lead(host, project, f"scripted:{script}")
    assert (await agent.run("go")).text == "Done."
    assert tools_sent(wired.received[-1]) == {"read", "grep"}


async def test_a_call_raises_no_limit_of_a_role(host, project):
    (project / ".hames/roles/worker.md").write_text(headed("tools: [read]\nbudget: {steps: 7, tokens: 900}"))
    agent, tasks = await lead(host, project), host.get(DELEGATION).tasks
    task = await tasks.start(TaskSpec("look", role="worker", budget=Limits(steps=1000, tokens=50)), tasks.origin(agent))
    assert (task.spec.budget.steps, task.spec.budget.tokens) == (7, 50)
    await task.outcome()


@pytest.mark.parametrize("asked", ["*", "r*", "[!b]*"])
async def test_a_pattern_of_a_call_adds_no_tool_to_a_role(host, wired, project, asked):
    (project / ".hames/roles/worker.md").write_text(headed("tools: ['[!w]ea?', 'r?ad']"))
    agent, tasks = await lead(host, project), host.get(DELEGATION).tasks
    assert (await tasks.run(TaskSpec("look", role="worker", tools=(asked,)), tasks.origin(agent))).ok
    assert tools_sent(wired.received[-1]) <= {"read"}


@pytest.mark.parametrize(
    "line", ["name: !!bool maybe", "name: !!int ''", "name: !!timestamp x", "description: 0x" + "f" * 5000, "budget: lots"]
)
async def test_an_odd_file_hides_no_other_role(host, project, line):
    (project / ".hames/roles/odd.md").write_text(headed(line))
    (project / ".hames/roles/reviewer.md").write_text(REVIEWER)
    agent, tasks = await lead(host, project), host.get(DELEGATION).tasks
    assert (await tasks.run(TaskSpec("look", role="reviewer"), tasks.origin(agent))).ok


def test_a_quarter_of_a_million_commas_are_read_at_once():
    began = time.monotonic()
    assert role(headed("tools: " + "a," * 120_000), "claude").problem
    assert split_words("a," * 120_000) == ["a"] * 120_000 and time.monotonic() - began < 5


async def test_the_model_of_a_repository_s_role_is_one_that_the_row_allows(opened, wired, tmp_path):
    layer = tmp_path / "rows.yaml"
    layer.write_text("- {id: delegate, set: {config: {models: ['openai:steps=0*']}}}\n")
    work = tmp_path / "work"
    (work / ".hames/roles").mkdir(parents=True)
    (work / ".hames/roles/dear.md").write_text(headed("tools: [read]\nmodel: anthropic:claude-opus-4-1"))
    script = tmp_path / "lead.json"
    call = {"name": "delegate", "arguments": {"description": "x", "prompt": "x", "role": "dear"}}
    script.write_text(json.dumps([{"calls": [call]}, {"text": "Done."}]))
    async with opened(layer) as host:
        host.get(TRUST).decide(host.get(TRUST).status(work), True)
        agent = await lead(host, work, f"scripted:{script}")
        await agent.run("go")
        results = [block for _, message in agent.session.messages for block in message.blocks if hasattr(block, "call_id")]
        assert [each.code for each in results] == ["MODEL_NOT_ALLOWED"] and not wired.received


async def test_a_fork_works_where_its_conversation_does(host, project):
    (project / "sub").mkdir()
    agent, tasks = await lead(host, project), host.get(DELEGATION).tasks
    with pytest.raises(Refused) as caught:
        await tasks.start(TaskSpec("look", runner="fork", directory=str(project / "sub")), tasks.origin(agent))
    assert caught.value.code == "SPEC_INVALID"


@pytest.mark.parametrize("key", ["tools", "disallowedTools"])
def test_a_list_of_tools_that_cannot_be_read_makes_nobody_wider(key):
    broken = role(headed(f"name: x\ndescription: a: b: c\n{key}:\n  - Read\n  - [Grep"), "claude")
    assert f"its {key} are no list" in broken.problem
