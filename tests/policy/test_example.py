"""The example of careful rows does what it says."""

from __future__ import annotations

from pathlib import Path

from hames.policy import POLICY, ToolRequest

ROWS = Path(__file__).parents[2] / "examples" / "careful" / "rows.yaml"


async def test_the_careful_rows_judge_as_they_say(opened, tmp_path) -> None:
    def request(name: str, capabilities: set[str], **arguments: str) -> ToolRequest:
        return ToolRequest(name, frozenset(capabilities), arguments, str(tmp_path))  # type: ignore[arg-type]

    async with opened(ROWS) as host:
        decide = host.get(POLICY).decide
        shell = {"read", "write", "execute"}
        assert decide(request("web_fetch", {"network"}, url="https://docs.python.org/3/")).verdict == "allow"
        assert decide(request("web_fetch", {"network"}, url="https://example.org/")).verdict == "ask"
        installing = decide(request("bash", {*shell, "network"}, command="npm ci"))
        assert (installing.verdict, installing.network) == ("allow", True)
        assert decide(request("read", {"read"}, path="deep/server.pem")).verdict == "deny"
        assert decide(request("bash", {*shell, "network"}, command="git push origin main")).verdict == "ask"
