"""What a recipe inherits: one file on top of another, section by section."""

from collections.abc import Mapping
from typing import Any

from qpd.recipe.mistakes import section_model
from qpd.recipe.schema import Recipe

_SECTIONS = {name for name, item in Recipe.model_fields.items() if section_model(item)}
_CUSTOM_STUDENT = ("conv_channels", "hidden")


def merge_sections(base: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `layer` on top, section by section; an empty section changes nothing."""
    merged = dict(base)
    for key, value in layer.items():
        below = merged.get(key)
        if key in _SECTIONS and value is None:
            merged.setdefault(key, {})
        elif key in _SECTIONS and isinstance(value, dict) and isinstance(below, dict):
            kept = _without_other_form(below, value) if key == "student" else below
            merged[key] = {**kept, **value}
        else:
            merged[key] = value
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
