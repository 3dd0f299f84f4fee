"""Tools: typed functions that a model may call, and the pipeline that every call goes through."""

from hames.tools.pipeline import Approval, RunTool
from hames.tools.plugin import TOOLS, Tools
from hames.tools.tool import Invocation, Output, Tool, ToolError, tool

__all__ = ["TOOLS", "Approval", "Invocation", "Output", "RunTool", "Tool", "ToolError", "Tools", "tool"]
