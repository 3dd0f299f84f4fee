"""MCP: tools, resources and prompts of other people's servers, whose processes end with their owner.

What is needed before there is a server is all that is imported here.
"""

from hames.mcp.pool import MCP, Pool

__all__ = ["MCP", "Pool"]
