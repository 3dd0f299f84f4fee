"""Looking at what a conversation no longer shows: the log holds it all."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field

from hames.content.messages import Message, Text, ToolCall, ToolResult, decode_message
from hames.kernel import Context, plugin
from hames.sessions import SESSIONS
from hames.tools import TOOLS, Invocation, ToolError, tool

AROUND = 200  # characters shown on each side of what was found
WHOLE = 20_000  # characters of one message that are shown


def text(message: Message) -> str:
    """A message as text, with its calls and results."""
    parts: list[str] = []
    for block in message.blocks:
        match block:
            case Text(said):
                parts.append(said)
            case ToolCall(_, name, arguments):
                parts.append(f"[calls {name} {arguments}]")
            case ToolResult():
                parts.append(f"[result] {block.text}")
            case _:
                pass
    return "\n".join(parts)


@plugin(needs=(TOOLS, SESSIONS), name="recall")
def recall(ctx: Context, config: Any) -> None:
    """The tool ``recall``."""
    sessions = ctx.use(SESSIONS)

    @tool("read", name="recall")
    def look(
        pattern: str = "",
        message: Annotated[int, Field(ge=-1)] = -1,
        offset: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, Field(ge=1, le=100)] = 20,
        *,
        call: Invocation,
    ) -> str:
        """Look at the whole conversation as it was, also what has been shortened or replaced by notes. Search it, or show one message.

        :param pattern: words to search for, as they stand there; case does not matter.
        :param message: the number of a message to show, as a search gives it.
        :param offset: the first character of the message to show.
        :param limit: how many places to show at most.
        """
        events = [event for event in sessions.read(call.session) if event.type == "message" and not event.damaged]
        if message >= 0:
            found = next((event for event in events if event.seq == message), None)
            if found is None:
                raise ToolError(f"there is no message {message}", "NOT_FOUND")
            whole = text(decode_message(found.data))
            rest = len(whole) - offset - WHOLE
            return whole[offset : offset + WHOLE] + (f"\n[{rest} more characters; go on with offset {offset + WHOLE}]" if rest > 0 else "")
        if not pattern:
            raise ToolError("give a pattern, or the number of a message", "INVALID_PATTERN")
        expression = re.compile(re.escape(pattern), re.IGNORECASE)
        lines: list[str] = []
        for event in events:
            said = decode_message(event.data)
            whole = text(said)
            if said.calls and any(each.id == call.call_id for each in said.calls):
                continue  # this very search
            if (match := expression.search(whole)) is not None:
                start, end = max(0, match.start() - AROUND), match.end() + AROUND
                lead, trail = "…" if start else "", "…" if end < len(whole) else ""
                lines.append(f"message {event.seq} ({said.source}): {lead}{whole[start:end]}{trail}")
                if len(lines) == limit:
                    lines.append("[there may be more]")
                    break
        return "\n\n".join(lines) or "nothing matches"

    ctx.use(TOOLS).register(ctx, look)
