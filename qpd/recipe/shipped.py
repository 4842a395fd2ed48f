"""The recipes and grids that come with QPD."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean
from qpd.recipe.schema import RecipeError

GRID_SUFFIX = "-grid.yaml"
_BASE = re.compile(r"^base: *([\w./-]+\.yaml)\b", re.MULTILINE)


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe that comes with QPD: `name` as in `paper/ppo-xxs`, and its first comment line."""

    name: str
    path: Path
    description: str


def recipes_folder() -> Path:
    """Return the folder of the shipped recipes, in a checkout and in an installed wheel alike."""
    return Path(__file__).parents[1] / "recipes"


def list_recipes() -> list[ShippedRecipe]:
    """Return the shipped recipes, sorted by name, those for one's own agent first.

    Files named base.yaml are only inherited from; NAME-grid.yaml are grids (`qpd.sweep.grid`).
    """
    found = []
    for path in sorted(recipes_folder().rglob("*.yaml")):
        if path.name == "base.yaml" or path.name.endswith(GRID_SUFFIX):
            continue
        first = path.read_text(encoding="utf-8").split("\n", 1)[0]
        found.append(ShippedRecipe(name_of(path), path, first.lstrip("# ").strip()))
    return sorted(found, key=lambda recipe: not recipe.name.startswith("agent/"))


def list_grids() -> list[str]:
    """Return the names of the shipped grids, sorted."""
    return sorted(name_of(path) for path in recipes_folder().rglob(f"*{GRID_SUFFIX}"))


def name_of(path: Path) -> str:
    """Return the name by which a shipped file is called."""
    return path.relative_to(recipes_folder()).with_suffix("").as_posix()


def shipped_text(name: str) -> str:
    """Return the text of a shipped recipe or grid, which works wherever it is put.

    Its `base` is named as from anywhere: `breakout/base`, not `base.yaml`. Raises RecipeError.
    """
    files = {name_of(path): path for path in recipes_folder().rglob("*.yaml")}
    short = name.removeprefix("recipes/").removesuffix(".yaml")
    if short not in files:
        hint = did_you_mean(short, files) or "; `qpd recipes` lists what is shipped"
        line = f"{name}: is no shipped recipe{hint}"
        raise RecipeError([line], ErrorCode.RECIPE_NOT_FOUND)
    folder = files[short].parent

    def from_anywhere(found: re.Match[str]) -> str:
        # Not resolved: in a checkout the folder is a link.
        return f"base: {name_of(Path(os.path.normpath(folder / found[1])))}"

    return _BASE.sub(from_anywhere, files[short].read_text(encoding="utf-8"))
