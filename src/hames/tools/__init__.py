"""Tools: typed functions that a model may call, and the pipeline that every call goes through."""

from hames.tools.approvals import Approval
from hames.tools.pipeline import RunTool
from hames.tools.plugin import TOOLS, Tools
from hames.tools.questions import Choice, Question
from hames.tools.tool import Invocation, Needs, Output, Tool, ToolError, tool

__all__ = ["TOOLS", "Approval", "Choice", "Invocation", "Needs", "Output", "Question", "RunTool", "Tool", "ToolError", "Tools", "tool"]
