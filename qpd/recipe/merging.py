"""One mapping of a recipe's keys on top of another: bases, files, and what the user sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qpd.recipe.mistakes import section_model
from qpd.recipe.schema import Recipe
from qpd.recipe.section import RecipeSection

_CUSTOM_STUDENT = ("conv_channels", "hidden")


def merge_sections(
    base: Mapping[str, Any], layer: Mapping[str, Any], model: type[RecipeSection] = Recipe
) -> dict[str, Any]:
    """Return `base` with `layer` on top, key by key.

    An empty section changes nothing, an empty mapping in one leaves nothing of the base's.
    """
    merged = dict(base)
    sections = {name for name, item in model.model_fields.items() if section_model(item)}
    for key, value in layer.items():
        below = merged.get(key)
        # `distill:` with nothing under it is null in YAML; it asks for the defaults, not for their
        # loss.
        if key in sections and value is None:
            merged.setdefault(key, {})
        elif key in sections and isinstance(value, dict) and isinstance(below, dict):
            kept = _without_other_form(below, value) if key == "student" else below
            merged[key] = merge_mappings(kept, value)
        else:
            merged[key] = value
    return merged


def merge_mappings(base: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return both; what both have as mappings is merged as well, however deep."""
    merged = {**base, **layer}
    for key, value in layer.items():
        if isinstance(value, dict) and value and isinstance(base.get(key), dict):
            merged[key] = merge_mappings(base[key], value)
    return merged


def _without_other_form(below: Mapping[str, Any], student: Mapping[str, Any]) -> dict[str, Any]:
    """Drop an inherited size where custom widths are given, and the reverse."""
    kept = dict(below)
    if any(student.get(key) is not None for key in _CUSTOM_STUDENT):
        kept.pop("size", None)
    if student.get("size") is not None:
        for key in _CUSTOM_STUDENT:
            kept.pop(key, None)
    return kept
