"""The base of every recipe section."""

import yaml
from pydantic import BaseModel, ConfigDict

from qpd.recipe.yaml_text import parse_scalar


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.2, as QPD reads it, would take for a number; PyYAML writes 1.1."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None if isinstance(parse_scalar(text), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


class RecipeSection(BaseModel):
    """The base of every recipe section: strict, closed, immutable, finite numbers."""

    # strict: `"64"` in quotes is text, not a number, and 1.0 is no whole number.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def to_yaml(self) -> str:
        """Return it as YAML, which reads back unchanged where it is a whole recipe."""
        plain = self.model_dump(mode="json")
        text: str = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
        return text
