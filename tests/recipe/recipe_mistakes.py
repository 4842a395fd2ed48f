"""A recipe of a test's own, and the mistakes that are told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpd.recipe.loading import load_recipe
from qpd.recipe.schema import RecipeError


def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(path: str | Path, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    assert caught.value.lines
    assert str(caught.value) == "\n".join(caught.value.lines)
    assert all("\n" not in line for line in caught.value.lines)
    return caught.value.lines
