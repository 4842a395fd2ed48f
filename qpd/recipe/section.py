"""The base of every recipe section."""

from pydantic import BaseModel, ConfigDict


class RecipeSection(BaseModel):
    """The base of every recipe section: strict, closed, immutable, finite numbers."""

    # strict: `"64"` in quotes is text, not a number, and 1.0 is no whole number.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
