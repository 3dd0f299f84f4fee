"""What tokens cost, in US dollars."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from hames.compose.config import RowConfig
from hames.content.finish import Usage

MILLION = 1_000_000


class Rates(RowConfig):
    """Prices in US dollars for a million tokens."""

    model_config = ConfigDict(allow_inf_nan=False)

    input: float = Field(ge=0)
    """Of input that is neither read from nor written to a cache."""
    output: float = Field(ge=0)
    """Of output, reasoning included."""
    cache_read: float | None = Field(default=None, ge=0)
    """Of input read from a cache; that of input where it is not given."""
    cache_write: float | None = Field(default=None, ge=0)
    """Of input written to a cache; that of input where it is not given."""

    def cost(self, usage: Usage) -> float:
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        parts = usage.input * self.input + usage.output * self.output + usage.cache_read * read + usage.cache_write * write
        return parts / MILLION


def looked_up(provider: str, model: str, usage: Usage) -> float | None:
    """The cost by the price list of genai-prices; None where it does not know the model."""
    import genai_prices  # takes long to import, and most runs never ask

    tokens = genai_prices.Usage(
        input_tokens=usage.input + usage.cache_read + usage.cache_write,
        output_tokens=usage.output,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
    )
    try:
        return float(genai_prices.calc_price(tokens, model, provider_id=provider).total_price)
    except (LookupError, ValueError):
        return None
