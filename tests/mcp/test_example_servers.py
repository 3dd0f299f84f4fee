"""The example of rows for MCP servers is one that can be used."""

from __future__ import annotations

from pathlib import Path

from hames.compose import Interpolation, Layer, compose, plan
from hames.mcp.config import ServerConfig
from hames.profiles import profile

ROWS = Path(__file__).parents[2] / "examples" / "servers" / "rows.yaml"


def test_the_example_of_servers_is_sound_and_starts_nothing_that_is_disabled():
    planned = plan(compose([Layer(profile("standard")), Layer(ROWS)]), Interpolation({}))
    servers = {each.path: each.config for each in planned if isinstance(each.config, ServerConfig)}
    assert set(servers) == {"time", "disk"}
    assert servers["disk"].read == ["*"] and servers["time"].capabilities == ["read"]
