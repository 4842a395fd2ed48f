"""Recipes as flat settings, and the keys in which two of them differ."""

import json
from collections.abc import Mapping
from typing import Any

from qpd.recipe.section import RecipeSection


def recipe_differences(before: RecipeSection, now: RecipeSection) -> list[str]:
    """Return a line for each key in which two recipes differ, with both values."""
    old, new = (
        flat_settings(before.model_dump(mode="json")),
        flat_settings(now.model_dump(mode="json")),
    )
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return [
        f"{key}: was {json.dumps(old.get(key))}, now {json.dumps(new.get(key))}" for key in keys
    ]


def flat_settings(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a tree of settings into one level, keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        nested = isinstance(value, dict)
        flat.update(flat_settings(value, f"{prefix}{key}.") if nested else {prefix + key: value})
    return flat
