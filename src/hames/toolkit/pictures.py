"""Showing pictures to models that see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hames.content.messages import Text
from hames.content.pictures import MAX_BYTES, NotAPicture, media_type
from hames.kernel import Context, plugin
from hames.toolkit.files import opened
from hames.tools import TOOLS, Invocation, Output, ToolError, tool


@tool("read")
def read_image(path: str, *, call: Invocation) -> Output:
    """Look at a picture: PNG, JPEG, GIF or WebP. Only for models that see.

    :param path: absolute, or relative to the working directory.
    """
    with opened(call.real(path), path, call) as (file, status):
        if status.st_size > MAX_BYTES:
            raise ToolError(f"{path}: it has {status.st_size} bytes; at most {MAX_BYTES} are shown", "NOT_A_PICTURE")
        data = file.read(MAX_BYTES + 1)
    try:
        kind = media_type(data)
    except NotAPicture as error:
        raise ToolError(f"{path}: {error}", "NOT_A_PICTURE") from None
    if call.keep_picture is None:
        raise ToolError("there is no conversation to show it in", "NO_AGENT")
    return Output((Text(f"{Path(path).name} ({kind}, {len(data)} bytes)"), call.keep_picture(kind, data)))


@plugin(needs=(TOOLS,), name="pictures")
def pictures(ctx: Context, config: Any) -> None:
    """The tool ``read_image``."""
    ctx.use(TOOLS).register(ctx, read_image)
