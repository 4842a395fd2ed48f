"""The base of every recipe section."""

import yaml
from pydantic import BaseModel, ConfigDict


class RecipeSection(BaseModel):
    """The base of every recipe section: strict, closed, immutable, finite numbers."""

    # strict: `"64"` in quotes is text, not a number, and 1.0 is no whole number.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def to_yaml(self) -> str:
        """Return it as YAML, which reads back unchanged where it is a whole recipe."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
