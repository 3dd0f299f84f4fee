"""``@path`` in what a user types: the file, the listing or the picture is put beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from hames.content.messages import Block, Image, Message, Text
from hames.content.pictures import MAX_BYTES, SUFFIXES, NotAPicture, media_type
from hames.toolkit.project import directories, read_text

MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|([^\s"]+))')
COUNT = 20
FILE_LIMIT = 64 * 1024  # bytes of a file that are shown
ENTRIES = 200  # of a listing


def with_mentions(text: str, cwd: Path, keep_picture: Callable[[str, bytes], Image]) -> Message:
    """A user's message with what it mentions. A word that names nothing in the repository stays a word.

    :param keep_picture: keeps the bytes of a picture.
    """
    blocks: list[Block] = [Text(text)]
    inside = directories(cwd)[0].resolve()
    for match in list(MENTION.finditer(text))[:COUNT]:
        name = match[1] or match[2].rstrip(".,;:!?)")
        if not name.strip("./"):
            continue
        try:
            path = (cwd / name).resolve()
            if path.is_relative_to(inside) and path.exists():
                blocks.append(shown(name, path, inside, keep_picture))
        except (OSError, RuntimeError, ValueError):
            continue
    return Message("user", tuple(blocks))


def shown(name: str, path: Path, inside: Path, keep_picture: Callable[[str, bytes], Image]) -> Block:
    if path.is_dir():
        entries = sorted(f"{each.name}/" if each.is_dir() else each.name for each in path.iterdir())
        more = f"\n[{len(entries) - ENTRIES} more]" if len(entries) > ENTRIES else ""
        return Text(f"\n\n[{name} is a directory:]\n" + "\n".join(entries[:ENTRIES]) + more)
    if path.suffix.lower() in SUFFIXES and path.is_file() and path.stat().st_size <= MAX_BYTES:
        data = path.read_bytes()
        try:
            return keep_picture(media_type(data), data)
        except NotAPicture as error:
            return Text(f"\n\n[{name} was not shown: {error}]")
    found = read_text(path, inside, FILE_LIMIT)
    if found is None or found.refused:
        return Text(f"\n\n[{name} was not read: {found.refused if found else 'it is gone'}]")
    more = f"\n[{found.more} more bytes; read shows them]" if found.more else ""
    return Text(f"\n\n[{name}:]\n{found.text}{more}")
