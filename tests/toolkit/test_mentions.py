"""@path in what a user types."""

from __future__ import annotations

import os
import time

import pytest

from hames.agents import AgentSpec
from hames.content.messages import Image, Text
from hames.content.pictures import MAX_BYTES
from hames.toolkit.mentions import COUNT, ENTRIES, FILE_LIMIT, with_mentions

GIF = b"GIF89a\3\0\2\0\0\0\0;"


@pytest.fixture
def repo(tmp_path):
    path = tmp_path / "repo"
    (path / ".git").mkdir(parents=True)
    (path / ".git" / "HEAD").touch()
    (path / "src").mkdir()
    (path / "src" / "a.py").write_text("print(1)\n")
    return path


@pytest.fixture
def said(repo):
    """The blocks after what the user typed."""

    def say(text, cwd=repo):
        before = set(os.listdir("/proc/self/fd"))
        message = with_mentions(text, cwd, lambda kind, data: Image(kind, str(len(data))))
        assert message.source == "user" and message.blocks[0] == Text(text)
        assert set(os.listdir("/proc/self/fd")) == before
        return list(message.blocks[1:])

    return say


def text(blocks):
    (block,) = blocks
    return block.text


def test_a_file_is_put_beside_what_was_typed(said):
    assert text(said("look at @src/a.py please")) == "\n\n[src/a.py:]\nprint(1)\n"


@pytest.mark.parametrize("mark", [".", ",", ";", ":", "!", "?", ")", "...", "?!"])
def test_what_ends_a_sentence_is_no_part_of_the_name(said, mark):
    assert "[src/a.py:]" in text(said(f"look at @src/a.py{mark}"))


def test_a_name_with_spaces_stands_in_quotes(said, repo):
    (repo / "my notes.txt").write_text("n")
    assert "[my notes.txt:]\nn" in text(said('see @"my notes.txt".'))


LONG = "@" + "x" * 5000
DEEP = "@" + "a/" * 3000


@pytest.mark.parametrize(
    "typed",
    ["mail me@src/a.py", "@nothing", "@", "@ src/a.py", '@"src/a.py', "@src/b.py", "@~", "@\0", LONG, DEEP, "@...", "@?"],
    ids=["mail", "nothing", "alone", "apart", "open quote", "missing", "home", "nul", "long", "deep", "dots", "mark"],
)
def test_a_word_that_names_nothing_stays_a_word(said, typed):
    assert said(typed) == []


def test_nothing_outside_of_the_checkout_is_shown_however_it_is_named(said, repo, tmp_path):
    (tmp_path / "secret").write_text("token")
    (repo / "out").symlink_to(tmp_path / "secret")
    (repo / "outdir").symlink_to(tmp_path)
    for name in ("../secret", "src/../../secret", str(tmp_path / "secret"), "out", "outdir/secret", "outdir", "/etc/passwd", ".."):
        assert said(f"@{name}") == []


def test_from_a_subdirectory_the_whole_checkout_can_be_named(said, repo):
    (repo / "top.txt").write_text("t")
    assert "[../top.txt:]\nt" in text(said("@../top.txt", repo / "src"))
    assert text(said("@a.py", repo / "src")) == "\n\n[a.py:]\nprint(1)\n"


def test_outside_of_a_checkout_only_the_working_directory_can_be_named(said, tmp_path):
    plain = tmp_path / "plain"
    plain.mkdir()
    (tmp_path / "beside").write_text("b")
    (plain / "here").write_text("h")
    assert len(said("@here", plain)) == 1 and said("@../beside", plain) == []


def test_a_directory_is_listed_and_a_long_listing_is_cut(said, repo):
    assert text(said("@src")) == "\n\n[src is a directory:]\na.py"
    many = repo / "many"
    (many / "sub").mkdir(parents=True)
    for index in range(ENTRIES + 5):
        (many / f"f{index:04}").touch()
    shown = text(said("@many/"))
    assert shown.count("\n") == 2 + ENTRIES + 1 and shown.endswith("[6 more]")


def test_a_long_file_is_cut_and_that_is_said(said, repo):
    (repo / "big.txt").write_text("x" * (FILE_LIMIT + 7))
    shown = text(said("@big.txt"))
    assert shown.count("x") == FILE_LIMIT + 1 and shown.endswith("\n[7 more bytes; read shows them]")  # one x stands in the name


def test_a_picture_is_shown_and_one_that_is_none_is_not(said, repo):
    (repo / "a.gif").write_bytes(GIF)
    (repo / "b.png").write_text("text")
    (repo / "c.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (100_000).to_bytes(4, "big") * 2)
    image, wrong, bomb = said("@a.gif @b.png @c.png")
    assert image == Image("image/gif", str(len(GIF)))
    assert wrong.text == "\n\n[b.png was not shown: it is no PNG, JPEG, GIF or WebP]"
    assert "100000 x 100000 pixels" in bomb.text


def test_a_picture_that_is_too_large_is_not_shown_and_that_is_said(said, repo):
    (repo / "a.gif").write_bytes(GIF + b"\0" * MAX_BYTES)
    shown = text(said("@a.gif"))
    assert shown.startswith("\n\n[a.gif was not ") and len(shown) < 200


def test_a_picture_without_the_name_of_one_is_no_text(said, repo):
    (repo / "a.dat").write_bytes(GIF)
    assert text(said("@a.dat")) == "\n\n[a.dat was not read: it is no text]"


@pytest.mark.parametrize("suffix", ["", ".png"])
def test_what_is_no_file_is_named_and_not_waited_for(said, repo, suffix):
    os.mkfifo(repo / f"pipe{suffix}")
    (repo / f"loop{suffix}").symlink_to(f"loop{suffix}")
    began = time.perf_counter()
    assert text(said(f"@pipe{suffix}")) == f"\n\n[pipe{suffix} was not read: it is no regular file]"
    assert said(f"@loop{suffix}") == []
    assert time.perf_counter() - began < 1


def test_many_mentions_are_bounded(said):
    assert len(said("@src/a.py " * (COUNT + 10))) <= COUNT


def test_text_that_is_no_utf8_and_names_that_are_none_go_into_the_message(said, repo):
    (repo / "latin").write_bytes(b"caf\xe9")
    assert text(said("@latin")) == "\n\n[latin:]\ncaf\ufffd"
    os.mkdir(os.path.join(os.fsencode(repo), b"odd"))
    with open(os.path.join(os.fsencode(repo), b"odd", b"f\xff\n\x1b[2J"), "wb"):
        pass
    assert text(said("@odd")).startswith("\n\n[odd is a directory:]\n")


async def test_a_message_with_names_that_are_no_unicode_is_sent_and_kept(agents, script, repo):
    os.mkdir(os.path.join(os.fsencode(repo), b"odd"))
    with open(os.path.join(os.fsencode(repo), b"odd", b"f\xff"), "wb"):
        pass
    model = script({"text": "ok"}, {"text": "again"})
    agent = await agents.create(AgentSpec(str(repo), model))
    end = await agent.run(with_mentions("see @odd", repo, agent.session.keep_picture))
    assert end.reason == "completed"
    shown = agent.session.messages[0][1].text
    assert "[odd is a directory:]\nf\ufffd" in shown
    await agents.dispose(agent)
    again = await agents.create(AgentSpec(str(repo), model, resume=agent.id))
    assert again.session.messages[0][1].text == shown


async def test_a_picture_that_was_mentioned_is_sent_to_the_model(agents, script, repo):
    (repo / "a.gif").write_bytes(GIF)
    agent = await agents.create(AgentSpec(str(repo), script({"text": "ok"})))
    end = await agent.run(with_mentions("see @a.gif", repo, agent.session.keep_picture))
    assert end.reason == "completed"
    image = agent.session.messages[0][1].blocks[1]
    assert image.media_type == "image/gif" and agent.session.picture(image.blob) == GIF
