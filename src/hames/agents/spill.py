"""Files for results that are too long for a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path


def spiller(root: Path, session: str, call_id: str) -> Callable[[bytes, str], Path]:
    """A function that keeps bytes in a file of one call's own and returns its path."""
    count = 0

    def spill(data: bytes, suffix: str) -> Path:
        nonlocal count
        count += 1
        directory = root / session
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = re.sub(r"[^A-Za-z0-9_-]", "_", call_id)[:60] or "call"
        name = name if name == call_id else f"{name}-{sha256(call_id.encode('utf-8', 'replace')).hexdigest()[:8]}"
        path = directory / f"{name}-{count}.{suffix}"
        path.write_bytes(data)
        return path

    return spill
