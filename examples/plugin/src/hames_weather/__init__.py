"""A tool for Hames that says what the weather is."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from hames.kernel import Context, plugin
from hames.tools import TOOLS, tool


class Settings(BaseModel):
    """How the weather is told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: Literal["celsius", "kelvin"] = "celsius"
    """The unit of temperatures."""


@plugin(config=Settings, needs=(TOOLS,))
def weather(ctx: Context, config: Settings) -> None:
    """The tool ``weather``."""

    @tool("read", parallel=True, name="weather")
    def report(city: str) -> str:
        """Say what the weather is.

        :param city: where.
        """
        degrees = 12 if config.unit == "celsius" else 285
        return f"It rains in {city}, at {degrees} degrees {config.unit}."

    ctx.use(TOOLS).register(ctx, report)
