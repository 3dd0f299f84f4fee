"""What the tools of a server are called: ``mcp__server__tool``."""

from __future__ import annotations

import re
from hashlib import sha256

LONGEST = 64  # characters of a name, which is what providers take
KEPT = 51  # of a longer one, before the digest
SERVER = re.compile(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")
PLAIN = re.compile(r"[A-Za-z0-9_-]+")
UNFIT = re.compile(r"[^A-Za-z0-9_-]")


def prefix(server: str) -> str:
    """What the names of all tools of a server begin with, and those of no other."""
    return f"mcp__{server}__"


def public_name(server: str, raw: str) -> str:
    """The name of a tool as models see it.

    One with other characters than letters, digits, ``_`` and ``-``, or with more than 64, is normalised, cut to 51 characters and followed
    by ``_`` and the first 12 hexadecimal digits of the SHA-256 of server, a zero byte, and the name as it was.
    """
    name = f"{prefix(server)}{raw}"
    if len(name) <= LONGEST and PLAIN.fullmatch(name):
        return name
    digest = sha256(f"{server}\0{raw}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{UNFIT.sub('_', name)[:KEPT]}_{digest[:12]}"


def server_problem(name: str) -> str:
    """What is wrong with the name of a server; empty where nothing is."""
    if not name or len(name) > 32 or not SERVER.fullmatch(name):
        return "the name of an MCP server has 1 to 32 letters, digits, - and _, where _ stands alone and not at an end"
    return ""


def normalised(name: str) -> str:
    """The nearest name that a server may have, for names from files of others."""
    return re.sub(r"_+", "_", UNFIT.sub("_", name)).strip("_")[:32].strip("_")
