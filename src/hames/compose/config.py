"""What the configuration of a row is a model of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RowConfig(BaseModel):
    """The base of configurations: unknown keys are mistakes, and a value does not change.

    Its defaults are sound as they are: a row without a configuration gets them without a validator having been built, which takes longer
    than all else that a start does with a row.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
