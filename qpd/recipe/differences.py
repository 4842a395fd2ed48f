"""Recipes as flat settings, and the keys in which two of them differ."""

import json
from collections.abc import Mapping
from typing import Any

from qpd.recipe.section import RecipeSection


def recipe_differences(before: RecipeSection, now: RecipeSection) -> list[str]:
    """Return a line for each key in which two recipes differ, with both values."""
    # Compared as text: of values, null is not "not set", and 1 is not true.
    old, new = (
        {key: json.dumps(value) for key, value in flat_settings(tree, keeps_empty=True).items()}
        for tree in (before.model_dump(mode="json"), now.model_dump(mode="json"))
    )
    unset = "not set"
    keys = [key for key in {**old, **new} if old.get(key, unset) != new.get(key, unset)]
    return [f"{key}: was {old.get(key, unset)}, now {new.get(key, unset)}" for key in keys]


def flat_settings(
    tree: Mapping[str, Any], prefix: str = "", *, keeps_empty: bool = False
) -> dict[str, Any]:
    """Flatten a tree of settings into one level, keys joined by dots.

    An empty tree within it is nothing, or one value if it `keeps_empty` ones.
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and (value or not keeps_empty):
            flat.update(flat_settings(value, f"{prefix}{key}.", keeps_empty=keeps_empty))
        else:
            flat[prefix + key] = value
    return flat
