"""What a picture is, from its first bytes alone: nothing is ever decoded, so a small file that unpacks to gigabytes is only a number.

Sources: PNG (ISO/IEC 15948, IHDR), JPEG (ITU T.81, SOF markers), GIF89a (logical screen descriptor), WebP container (RFC 9649).
"""

from __future__ import annotations

import struct

MAX_BYTES = 5 * 1024 * 1024
MAX_SIDE = 8000  # pixels

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp")


class NotAPicture(ValueError):
    """These bytes are no picture that models take; the message says why."""


def media_type(data: bytes) -> str:
    """The media type of a picture whose size models take.

    :raises NotAPicture: if it is none, or too large in bytes or pixels.
    """
    if len(data) > MAX_BYTES:
        raise NotAPicture(f"it has {len(data)} bytes; at most {MAX_BYTES} are shown")
    kind, width, height = measured(data)
    if not width or not height:
        raise NotAPicture("its size is not known")
    if width > MAX_SIDE or height > MAX_SIDE:
        raise NotAPicture(f"it is {width} x {height} pixels; at most {MAX_SIDE} x {MAX_SIDE} are shown")
    return kind


def measured(data: bytes) -> tuple[str, int, int]:
    """Media type, width and height in pixels.

    :raises NotAPicture: if it is none.
    """
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
            width, height = struct.unpack(">II", data[16:24])
            return "image/png", width, height
        if data[:6] in (b"GIF87a", b"GIF89a"):
            width, height = struct.unpack("<HH", data[6:10])
            return "image/gif", width, height
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return "image/webp", *webp(data)
        if data.startswith(b"\xff\xd8"):
            return "image/jpeg", *jpeg(data)
    except (struct.error, IndexError):
        raise NotAPicture("it is cut off") from None
    raise NotAPicture("it is no PNG, JPEG, GIF or WebP")


def webp(data: bytes) -> tuple[int, int]:
    chunk = data[12:16]
    if len(data) < 30:
        raise NotAPicture("it is cut off")
    if chunk == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if chunk == b"VP8L":
        (bits,) = struct.unpack("<I", data[21:25])
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    raise NotAPicture("it is no WebP that is known")


def jpeg(data: bytes) -> tuple[int, int]:
    place = 2
    while place + 9 <= len(data):
        if data[place] != 0xFF:
            raise NotAPicture("its JPEG markers are not sound")
        marker = data[place + 1]
        if marker == 0xFF or marker == 0x01 or 0xD0 <= marker <= 0xD8:  # padding, or a marker without a length
            place += 1 if marker == 0xFF else 2
            continue
        (length,) = struct.unpack(">H", data[place + 2 : place + 4])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[place + 5 : place + 9])
            return width, height
        if length < 2:
            raise NotAPicture("its JPEG markers are not sound")
        place += 2 + length
    raise NotAPicture("it is cut off")
