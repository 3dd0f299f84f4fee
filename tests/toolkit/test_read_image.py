"""Pictures: what they are by their first bytes, and what of them is refused."""

from __future__ import annotations

import os
import random
import struct
import time
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hames.agents import AgentSpec
from hames.content.messages import Image
from hames.content.pictures import MAX_BYTES, MAX_SIDE, NotAPicture, measured, media_type
from hames.toolkit.pictures import read_image
from hames.tools import ToolError


def png(width=3, height=2):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress(b"".join(b"\0" + b"\xff\0\0" * min(width, 3) for _ in range(min(height, 2))))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def gif(width=3, height=2):
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0) + b"\x2c\0\0\0\0\1\0\1\0\0\2\2\x44\1\0;"


def jpeg(width=3, height=2, marker=0xC0, before=b"\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0"):
    frame = struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\1\x11\0"
    return b"\xff\xd8" + before + bytes([0xFF, marker]) + frame + b"\xff\xda\0\x08\1\1\0\0\x3f\0\x37\xff\xd9"


def riff(chunk, data):
    body = b"WEBP" + chunk + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_lossy(width=3, height=2):
    return riff(b"VP8 ", b"\x30\1\0\x9d\x01\x2a" + struct.pack("<HH", width, height) + b"\0" * 8)


def webp_lossless(width=3, height=2):
    return riff(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + b"\0" * 8)


def webp_extended(width=3, height=2):
    return riff(b"VP8X", b"\x10\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"))


KINDS = {
    "png": (png, "image/png"),
    "gif": (gif, "image/gif"),
    "jpeg": (jpeg, "image/jpeg"),
    "webp lossy": (webp_lossy, "image/webp"),
    "webp lossless": (webp_lossless, "image/webp"),
    "webp extended": (webp_extended, "image/webp"),
}
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_kind_and_size_are_known_from_the_first_bytes(kind):
    make, name = KINDS[kind]
    assert measured(make(321, 123)) == (name, 321, 123)
    assert media_type(make(321, 123)) == name


@kinds
@pytest.mark.parametrize("side", [MAX_SIDE, MAX_SIDE + 1])
def test_the_limit_of_pixels_is_exact_and_counts_for_both_sides(kind, side):
    make, name = KINDS[kind]
    for width, height in ((side, 1), (1, side)):
        if side <= MAX_SIDE:
            assert media_type(make(width, height)) == name
        else:
            with pytest.raises(NotAPicture, match=f"it is {width} x {height} pixels; at most 8000 x 8000 are shown"):
                media_type(make(width, height))


def test_a_small_file_that_claims_a_huge_picture_is_a_number_and_no_more():
    began = time.perf_counter()
    with pytest.raises(NotAPicture, match="it is 100000 x 100000 pixels"):
        media_type(png(100_000, 100_000))
    with pytest.raises(NotAPicture, match=r"it is 65535 x 65535 pixels"):
        media_type(jpeg(65535, 65535))
    with pytest.raises(NotAPicture, match=r"it is 16777216 x 16777216 pixels"):
        media_type(webp_extended(1 << 24, 1 << 24))
    assert time.perf_counter() - began < 0.5


@pytest.mark.parametrize("kind", ["png", "gif", "jpeg", "webp lossy"])
def test_a_picture_without_a_side_is_none(kind):
    for size in ((0, 5), (5, 0), (0, 0)):
        with pytest.raises(NotAPicture, match="its size is not known"):
            media_type(KINDS[kind][0](*size))


HEADERS = {"png": 24, "gif": 10, "jpeg": 29, "webp lossy": 30, "webp lossless": 25, "webp extended": 30}


@kinds
def test_a_header_that_is_cut_off_anywhere_is_refused(kind):
    whole = KINDS[kind][0](300, 200)
    accepted = []
    for length in range(HEADERS[kind]):
        try:
            accepted.append((length, media_type(whole[:length])))
        except NotAPicture as error:
            assert str(error).startswith(("it is cut off", "it is no ", "its size is not known")), error
    assert accepted == []


def test_jpegs_of_every_kind_and_with_much_before_the_frame_are_measured():
    for marker in (0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC9, 0xCF):
        assert measured(jpeg(640, 480, marker)) == ("image/jpeg", 640, 480)
    exif = b"\xff\xe1" + struct.pack(">H", 60_000) + b"E" * 59_998
    table = b"\xff\xc4" + struct.pack(">H", 20) + b"T" * 18
    assert measured(jpeg(640, 480, before=exif * 30 + table + b"\xff\xff\xff")) == ("image/jpeg", 640, 480)


def test_the_size_in_a_thumbnail_is_not_that_of_the_picture():
    inner = jpeg(16, 16)
    exif = b"\xff\xe1" + struct.pack(">H", len(inner) + 2) + inner
    assert measured(jpeg(4000, 3000, before=exif)) == ("image/jpeg", 4000, 3000)


@pytest.mark.parametrize("filler", [b"\xff", b"\xff\xd0", b"\xff\x01", b"\xff\xe0\0\2"], ids=["padding", "restart", "tem", "empty"])
def test_a_jpeg_of_nothing_but_markers_is_refused_quickly(filler):
    data = b"\xff\xd8" + filler * ((MAX_BYTES - 2) // len(filler))
    began = time.process_time()
    with pytest.raises(NotAPicture, match="it is cut off"):
        media_type(data)
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"BM" + b"\0" * 60, b"II*\0" + b"\0" * 60, b"%PDF-1.7", b"RIFF\0\0\0\0WAVE"],
    ids=["empty", "nul", "svg", "bmp", "tiff", "pdf", "wav"],
)
def test_what_models_do_not_take_is_refused_with_what_they_do(data):
    with pytest.raises(NotAPicture, match="it is no PNG, JPEG, GIF or WebP"):
        media_type(data)


def test_a_webp_of_an_unknown_kind_and_a_png_without_its_header_are_refused():
    with pytest.raises(NotAPicture, match="no WebP that is known"):
        media_type(riff(b"ANIM", b"\0" * 20))
    with pytest.raises(NotAPicture):
        media_type(png().replace(b"IHDR", b"IEND", 1))


def test_a_picture_that_is_something_else_too_is_what_its_beginning_says():
    page = b"<script>alert(1)</script>"
    assert media_type(gif() + page) == "image/gif"
    assert media_type(png() + b"PK\5\6" + b"\0" * 18) == "image/png"
    with pytest.raises(NotAPicture):
        media_type(page + gif())


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_measured_or_refused(data):
    try:
        kind, width, height = measured(data)
    except NotAPicture as error:
        assert str(error)
    else:
        assert kind.startswith("image/") and width >= 0 and height >= 0


@given(
    st.sampled_from([make() for make, _ in KINDS.values()]),
    st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=4)), max_size=6),
    st.integers(0, 80),
)
@settings(max_examples=600, deadline=None)
def test_mutated_headers_are_measured_or_refused(data, changes, length):
    for place, new in changes:
        data = data[:place] + new + data[place + len(new) :]
    for part in (data, data[:length]):
        try:
            kind, width, height = measured(part)
        except NotAPicture as error:
            assert str(error)
        else:
            assert kind.startswith("image/") and 0 <= width < 1 << 32 and 0 <= height < 1 << 32


# the tool


async def shown(agents, script, calling, work, *names):
    answers = [calling(("read_image", {"path": name})) for name in names]
    agent = await agents.create(AgentSpec(str(work), script(*answers, {"text": "done"})))
    end = await agent.run("look")
    assert end.reason == "completed", end
    return agent, [block for _, message in agent.session.messages if message.source == "tool" for block in message.blocks]


async def test_a_picture_is_shown_whatever_its_name_says(agents, script, calling, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    names = []
    for index, (make, _) in enumerate(KINDS.values()):
        names.append(f"p{index}.txt" if index % 2 else f"p{index}.png")
        (work / names[-1]).write_bytes(make())
    agent, results = await shown(agents, script, calling, work, *names)
    for name, result, (make, kind) in zip(names, results, KINDS.values(), strict=True):
        text, image = result.content
        assert text.text == f"{name} ({kind}, {len(make())} bytes)" and not result.is_error
        assert isinstance(image, Image) and image.media_type == kind and agent.session.picture(image.blob) == make()


async def test_what_is_no_picture_is_refused_with_the_reason(agents, script, calling, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.png").write_text("just text")
    (work / "bomb.png").write_bytes(png(100_000, 100_000))
    (work / "big.png").write_bytes(png() + b"\0" * (6 * 1024 * 1024))
    (work / "dir.png").mkdir()
    os.mkfifo(work / "pipe.png")
    (work / "zero.png").symlink_to("/dev/zero")
    with (work / "huge.png").open("wb") as file:
        file.write(png())
        file.truncate(2 << 30)
    names = ["a.png", "bomb.png", "big.png", "dir.png", "pipe.png", "zero.png", "huge.png", "none.png"]
    began = time.perf_counter()
    _, results = await shown(agents, script, calling, work, *names)
    assert time.perf_counter() - began < 5
    assert [(result.code, result.text) for result in results] == [
        ("NOT_A_PICTURE", "Error: a.png: it is no PNG, JPEG, GIF or WebP"),
        ("NOT_A_PICTURE", "Error: bomb.png: it is 100000 x 100000 pixels; at most 8000 x 8000 are shown"),
        ("NOT_A_PICTURE", f"Error: big.png: it has {6 * 1024 * 1024 + len(png())} bytes; at most {MAX_BYTES} are shown"),
        ("IS_DIRECTORY", "Error: dir.png is a directory; list it with glob"),
        ("NOT_REGULAR", "Error: pipe.png is not a regular file"),
        ("NOT_REGULAR", "Error: zero.png is not a regular file"),
        ("NOT_A_PICTURE", f"Error: huge.png: it has {2 << 30} bytes; at most {MAX_BYTES} are shown"),
        ("NOT_FOUND", "Error: there is no file none.png"),
    ]


async def test_a_hidden_file_is_not_shown_as_a_picture(agents, script, calling, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state" / "secret.png").write_bytes(png())
    (work / "link.png").symlink_to(tmp_path / "state" / "secret.png")
    _, (direct, linked) = await shown(agents, script, calling, work, str(tmp_path / "state" / "secret.png"), "link.png")
    assert direct.code == linked.code == "DENIED" and "is not shown to tools" in direct.text


async def test_outside_of_a_conversation_there_is_nowhere_to_show_it(use, invocation):
    (invocation.cwd / "a.png").write_bytes(png())
    with pytest.raises(ToolError, match="no conversation"):
        await use(read_image, path="a.png")
    assert replace(invocation).memory == invocation.memory


def test_the_same_numbers_give_the_same_verdicts():
    chance = random.Random(7)
    for _ in range(200):
        data = b"\xff\xd8" + chance.randbytes(40)
        verdicts = set()
        for _ in range(2):
            try:
                verdicts.add(measured(data))
            except NotAPicture as error:
                verdicts.add(str(error))
        assert len(verdicts) == 1
