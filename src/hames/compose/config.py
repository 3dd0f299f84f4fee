"""What the configuration of a row is a model of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RowConfig(BaseModel):
    """The base of configurations: unknown keys are mistakes, and a value does not change.

    Its defaults are sound as they are, unless something is required or a validator looks at the whole: a row without a configuration gets
    them without the validators having been built, which takes longer than all else that a start does with a row.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def is_sound(cls) -> bool:
        """Whether the defaults need no look."""
        needed = any(field.is_required() for field in cls.model_fields.values())
        return not needed and not cls.__pydantic_decorators__.model_validators
