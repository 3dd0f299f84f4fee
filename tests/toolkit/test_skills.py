"""Skills: where they are found, what the agent is told of them, and what hostile ones do."""

from __future__ import annotations

import os
import time

import pytest

from hames.agents import AgentSpec
from hames.toolkit.skills import COUNT, DESCRIPTION, FILE_LIMIT, PLACES, SkillsConfig, catalogue, found
from hames.trust import TRUST

DEFAULT = SkillsConfig()


@pytest.fixture(autouse=True)
def user(tmp_path, monkeypatch):
    path = tmp_path / "user"
    (path / "skills").mkdir(parents=True)
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
    def decide(directory):
        trust = host.get(TRUST)
        trust.decide(trust.status(directory), True)

    return decide


def put(root, folder, description="does it", body="Do it.", name=None, head=None):
    path = root / folder
    path.mkdir(parents=True, exist_ok=True)
    if head is None:
        head = f"name: {name or folder}\ndescription: {description}"
    (path / "SKILL.md").write_text(f"---\n{head}\n---\n{body}\n")
    return path / "SKILL.md"


def one(repo, text):
    """The only skill of a repository whose file has this text."""
    path = put(repo / PLACES[0], "it")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (skill,) = found(repo, DEFAULT, project=True).values()
    return skill


# places


def test_skills_of_every_place_are_found(user, repo, tmp_path):
    for index, place in enumerate(PLACES):
        put(repo / place, f"project-{index}")
    put(user / "skills", "mine")
    put(tmp_path / "more", "further")
    config = SkillsConfig(paths=[str(tmp_path / "more")])
    assert list(found(repo, config, project=True)) == ["further", "mine", "project-0", "project-1", "project-2"]
    assert list(found(repo, config, project=False)) == ["further", "mine"]


def test_the_nearest_of_a_name_counts(user, repo, tmp_path):
    below = repo / "a"
    config = SkillsConfig(paths=[str(tmp_path / "more")])
    places = [tmp_path / "more", user / "skills", *(place / name for place in (repo, below) for name in reversed(PLACES))]
    for place in places:
        path = put(place, "x", description=str(place))
        skill = found(below, config, project=True)["x"]
        assert (skill.path, skill.description) == (path, str(place))


def test_a_folder_without_a_skill_and_a_file_are_none(repo):
    root = repo / PLACES[0]
    (root / "empty").mkdir(parents=True)
    (root / "README.md").write_text("---\nname: no\n---\n")
    assert found(repo, DEFAULT, project=True) == {}


def test_the_name_stands_in_the_front_matter_and_else_it_is_that_of_the_folder(repo):
    root = repo / PLACES[0]
    put(root, "folder-a", head="name: given\ndescription: d")
    put(root, "folder-b", head="description: d")
    put(root, "folder-c", head="name: 12\ndescription: d")
    put(root, "folder-d", head="name: [a]\ndescription: d")
    put(root, "folder-e", head="name: '  '\ndescription: d")
    assert list(found(repo, DEFAULT, project=True)) == ["12", "folder-b", "folder-d", "folder-e", "given"]


# the catalogue


def test_the_catalogue_is_the_same_text_for_the_same_skills_in_whatever_order_they_were_made(repo, tmp_path):
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)
    (other / ".git" / "HEAD").touch()
    for top, names in ((repo, "bca"), (other, "acb")):
        for name in names:
            put(top / PLACES[0], name, description=f"does {name}")
    told = [catalogue(found(top, DEFAULT, project=True), 100) for top in (repo, other)]
    assert told[0] == told[1] and told[0].splitlines()[1:] == ["- a: does a", "- b: does b", "- c: does c"]


def test_long_descriptions_are_cut_and_their_lines_joined(repo):
    put(repo / PLACES[0], "x", head="description: |\n  one\n  two\n\n  " + "y" * 10_000)
    line = catalogue(found(repo, DEFAULT, project=True), 100).splitlines()[1]
    assert line.startswith("- x: one two yyy") and len(line) <= DESCRIPTION + 10


def test_a_long_name_does_not_make_the_catalogue_long(repo):
    for index in range(5):
        put(repo / PLACES[0], f"s{index}", head=f"name: n{index}{'x' * 200_000}\ndescription: d")
    assert len(catalogue(found(repo, DEFAULT, project=True), 100)) < 10_000


def test_a_name_is_one_word_in_one_line(repo):
    put(repo / PLACES[0], "a", head='name: "one\\n- two: evil"\ndescription: d')
    put(repo / PLACES[0], "b\n- three: evil", head="description: d")
    put(repo / PLACES[0], "c", head='name: "\\e[2Jclear"\ndescription: "\\e]0;title\\a"')
    lines = catalogue(found(repo, DEFAULT, project=True), 100).splitlines()[1:]
    assert len(lines) == 3, lines


def test_more_than_is_told_is_said(repo):
    for index in range(7):
        put(repo / PLACES[0], f"s{index}")
    told = catalogue(found(repo, DEFAULT, project=True), 5)
    assert told.count("\n- ") == 5 and told.endswith("[2 more are not listed]")
    assert catalogue({}, 5) == ""


def test_a_place_with_very_many_folders_is_looked_at_in_part_and_quickly(repo):
    root = repo / PLACES[0]
    for index in range(COUNT + 50):
        put(root, f"s{index:04}")
    began = time.perf_counter()
    skills = found(repo, DEFAULT, project=True)
    assert len(skills) == COUNT and time.perf_counter() - began < 2


# hostile front matter

HOSTILE = {
    "no yaml": "a: [",
    "tabs": "\tname: x",
    "a list": "- a\n- b",
    "a number": "12",
    "a text": "just words",
    "nothing": "",
    "a comment": "# nothing",
    "a python object": "!!python/object/apply:os.system ['touch pwned']",
    "an unknown tag": "name: !mine x",
    "a false bool": "description: !!bool maybe",
    "a false timestamp": "description: !!timestamp soon",
    "an empty int": 'description: !!int ""',
    "an empty float": 'description: !!float ""',
    "a false date": "description: 2001-99-99",
    "a false binary": "description: !!binary é",
    "a huge number": f"description: {'9' * 10_000}",
    "a list as key": "? [a]\n: b",
    "an alias to nothing": "description: *gone",
    "an alias to itself": "description: &a [*a]",
    "a key twice": "name: a\nname: b",
    "two documents": "name: a\n...\nname: b",
    "deep nesting": "description: " + "[" * 50_000,
    "deep but allowed nesting": "description: " + "[" * 900 + "]" * 900,
    "control characters": "description: \x01",
    "a bomb of aliases": "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
    "a bomb of merges": "m0: &m0 {a: b}\n" + "".join(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}\n" for n in range(1, 12)),
}


@pytest.mark.parametrize("head", HOSTILE.values(), ids=HOSTILE)
def test_hostile_front_matter_harms_nothing_beside_it(repo, head, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(repo / PLACES[0], "good", description="fine")
    put(repo / PLACES[0], "hostile", head=head)
    began = time.perf_counter()
    skills = found(repo, DEFAULT, project=True)
    told = catalogue(skills, 100)
    assert time.perf_counter() - began < 1
    assert skills["good"].description == "fine" and "- good: fine" in told and len(told) < 5000
    assert len(skills) == 2 and not (tmp_path / "pwned").exists()


def test_a_number_in_base_sixty_takes_no_time(repo):
    put(repo / PLACES[0], "x", head="description: 1" + ":1" * 100_000)
    began = time.process_time()
    found(repo, DEFAULT, project=True)
    assert time.process_time() - began < 1


def test_front_matter_without_an_end_hides_nothing_of_what_it_says(repo):
    skill = one(repo, "---\nname: x\ndescription: d\n\n# How\n\nWithout: an end\n")
    assert skill.problem or "Without: an end" in skill.body


def test_a_text_without_front_matter_is_the_skill(repo):
    skill = one(repo, "# Title\n\nDo it.\n")
    assert (skill.name, skill.description, skill.body, skill.problem) == ("it", "", "# Title\n\nDo it.", "")


def test_line_ends_and_a_byte_order_mark_of_other_systems_do_no_harm(repo):
    skill = one(repo, "---\r\nname: x\r\ndescription: d\r\n---\r\nDo it.\r\n")
    assert (skill.name, skill.description, skill.body) == ("x", "d", "Do it.")
    skill = one(repo, b"\xef\xbb\xbf---\nname: x\ndescription: d\n---\nDo it.\n")
    assert (skill.name, skill.description, skill.body) == ("x", "d", "Do it.")


def test_dashes_in_the_body_belong_to_it(repo):
    skill = one(repo, "---\nname: x\ndescription: d\n---\none\n---\ntwo\n")
    assert skill.body == "one\n---\ntwo"


def test_a_skill_that_is_too_long_or_no_text_says_so(repo):
    assert one(repo, "x" * (FILE_LIMIT + 1)).problem == f"it is longer than {FILE_LIMIT} bytes"
    assert one(repo, b"\0\1\2").problem == "it is no text"
    assert one(repo, "x" * FILE_LIMIT).problem == ""


@pytest.mark.parametrize("what", ["fifo", "directory", "loop", "device", "out"])
def test_a_skill_that_is_no_file_harms_nothing_beside_it(repo, what, tmp_path):
    put(repo / PLACES[0], "good", description="fine")
    folder = repo / PLACES[0] / "hostile"
    folder.mkdir()
    path = folder / "SKILL.md"
    (tmp_path / "secret").write_text("token")
    match what:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "loop":
            path.symlink_to("SKILL.md")
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            path.symlink_to(tmp_path / "secret")
    before = set(os.listdir("/proc/self/fd"))
    skills = found(repo, DEFAULT, project=True)
    assert skills["good"].description == "fine"
    assert skills["hostile"].problem and skills["hostile"].body == ""
    assert catalogue(skills, 100).count("\n- ") <= 1
    assert set(os.listdir("/proc/self/fd")) == before


def test_places_that_are_no_directories_are_none(repo):
    (repo / ".hames").mkdir()
    os.mkfifo(repo / ".hames" / "skills")
    (repo / ".agents").symlink_to(".agents")
    (repo / ".claude").write_text("a file")
    assert found(repo, DEFAULT, project=True) == {}


# what the agent sees


def harness(agent):
    return [message.text for _, message in agent.session.messages if message.source == "harness"]


def results(agent):
    return [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]


async def test_without_trust_only_the_users_skills_are_there(agents, script, calling, user, repo):
    put(user / "skills", "mine", body="My way.")
    put(repo / PLACES[0], "theirs", body="Their way.")
    answers = [calling(("skill", {"name": name})) for name in ("mine", "theirs")]
    agent = await agents.create(AgentSpec(str(repo), script(*answers, {"text": "ok"})))
    await agent.run("go")
    mine, theirs = results(agent)
    assert "My way." in mine.text and str(user / "skills" / "mine") in mine.text
    assert (theirs.code, theirs.text) == ("NOT_FOUND", "Error: there is no skill 'theirs'; there are mine")
    assert "theirs" not in "".join(harness(agent))


async def test_with_trust_a_skill_is_listed_and_read(agents, script, calling, grant, repo):
    path = put(repo / PLACES[1], "deploy", description="puts it out", body="Run make.")
    grant(repo)
    agent = await agents.create(AgentSpec(str(repo), script(calling(("skill", {"name": "deploy"})), {"text": "ok"})))
    await agent.run("go")
    (told,) = harness(agent)
    assert told.endswith("- deploy: puts it out")
    assert results(agent)[0].text == f"Run make.\n\n[the files of this skill are in {path.parent}]"


async def test_a_skill_that_cannot_be_read_says_why(agents, script, calling, user, tmp_path):
    path = put(user / "skills", "bad", head="a: [")
    agent = await agents.create(AgentSpec(str(tmp_path), script(calling(("skill", {"name": "bad"})), {"text": "ok"})))
    await agent.run("go")
    assert (results(agent)[0].code, results(agent)[0].text) == (
        "UNREADABLE",
        f"Error: {path}: what stands between its --- lines is no YAML",
    )


async def test_where_there_are_none_nothing_is_told(agents, script, calling, tmp_path):
    agent = await agents.create(AgentSpec(str(tmp_path), script(calling(("skill", {"name": "x"})), {"text": "ok"})))
    await agent.run("go")
    assert harness(agent) == [] and results(agent)[0].text == "Error: there is no skill 'x'; there are none"


async def test_a_changed_description_is_told_at_the_next_turn_and_a_changed_body_is_read_without_a_word(
    agents, script, calling, grant, repo
):
    path = put(repo / PLACES[0], "x", description="one", body="First.")
    grant(repo)
    read = calling(("skill", {"name": "x"}))
    agent = await agents.create(AgentSpec(str(repo), script(read, {"text": "1"}, read, {"text": "2"}, {"text": "3"}, {"text": "4"})))
    await agent.run("one")
    put(repo / PLACES[0], "x", description="one", body="Second.")
    await agent.run("two")
    assert len(harness(agent)) == 1
    assert "First." in results(agent)[0].text and "Second." in results(agent)[1].text
    put(repo / PLACES[0], "x", description="two", body="Second.")
    await agent.run("three")
    await agent.run("four")
    assert len(harness(agent)) == 2 and "- x: two" in harness(agent)[1]
    assert path.exists()


async def test_one_hostile_skill_does_not_take_the_others_from_the_agent(agents, script, calling, grant, repo):
    put(repo / PLACES[0], "good", body="Do it.")
    put(repo / PLACES[0], "hostile", head="description: !!bool maybe")
    grant(repo)
    agent = await agents.create(AgentSpec(str(repo), script(calling(("skill", {"name": "good"})), {"text": "ok"})))
    await agent.run("go")
    assert "Do it." in results(agent)[0].text and "- good" in "".join(harness(agent))
