"""A person hears of an MCP server that is not there."""

from __future__ import annotations

import json
from typing import Any


def test_the_person_at_run_is_told_which_server_is_not_there_and_why(hames: Any) -> None:
    code = "echo 'no such thing' >&2; exit 3"
    config = {"command": "sh", "args": ["-c", code], "reconnect": {"attempts": 0}}
    patch = hames.root / "servers.yaml"
    patch.write_text(json.dumps([{"id": "away", "use": "hames.mcp.server", "config": config}]))
    done = hames.run("run", "Begin.", "--model", hames.script({"text": "Done."}), "--patch", patch)
    assert done.returncode == 0 and "Done." in done.stdout
    assert "hames: the MCP server away is not there: it ended with status 3; it said: no such thing" in done.stderr
    assert done.stderr.count("is not there") == 1
