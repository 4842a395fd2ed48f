"""Settings of a recipe that do nothing for its agent, or beside its other settings."""

from __future__ import annotations

from typing import Any

from qpd.actions import Box, Discrete
from qpd.recipe.schema import Recipe
from qpd.students.activations import ACTIVATIONS
from qpd.teachers import Teacher


def unused_settings(recipe: Recipe, teacher: Teacher, *, is_atari: bool) -> tuple[str, ...]:
    """Return a line for each setting that differs from its default and has no effect."""
    reasons = {
        **_of_play(recipe, teacher, is_atari),
        **_of_labels(recipe, teacher),
        **_of_quantization(recipe, teacher),
    }
    lines = []
    for key, why in reasons.items():
        section, name = key.split(".")
        settings = getattr(recipe, section)
        value, default = getattr(settings, name), type(settings).model_fields[name].default
        if value != default:
            lines.append(f"{key}={_shown(value)} does nothing: {why}")
    fraction, refresh = recipe.collection.student_fraction, recipe.replay.refresh_fraction
    if fraction and recipe.replay.refresh_count == 0:
        lines.append(
            f"collection.student_fraction={fraction:g} does nothing: students play what refreshes "
            f"the memory, and replay.refresh_fraction={refresh:g} refreshes none"
        )
    return tuple(lines)


def _of_play(recipe: Recipe, teacher: Teacher, is_atari: bool) -> dict[str, str]:
    """Return what how one acts makes useless: the rate of random actions, a sharpness."""
    actions, asked = teacher.actions, recipe.collection.acting
    rules = {
        "collection": actions.exploring if asked == "auto" else asked,
        "evaluation": recipe.evaluation.acting,
    }
    reasons = {}
    for section, kind in rules.items():
        rule = actions.rule(kind, on_atari=is_atari, epsilon=0.0, sharpness=1.0)
        said = f"this agent's actions are {rule}, see {section}.acting"
        if rule.kind != "epsilon":
            reasons[f"{section}.epsilon"] = said
        if rule.kind != "sample" and section == "collection":
            reasons["collection.sharpness"] = said
    return reasons


def _of_labels(recipe: Recipe, teacher: Teacher) -> dict[str, str]:
    """Return what the agent's labels make useless: the rule that finds a temperature."""
    reasons, actions = {}, teacher.actions
    if not (isinstance(actions, Discrete) and actions.has_values):
        reasons["distill.label_entropy"] = "it is for Q-values"
    elif recipe.distill.temperature is not None:
        reasons["distill.label_entropy"] = "distill.temperature is given"
    return reasons


def _of_quantization(recipe: Recipe, teacher: Teacher) -> dict[str, str]:
    """Return what the scheme, the actions or the student's activations make useless."""
    reasons, settings, activation = {}, recipe.quantize, recipe.student.activation
    if not isinstance(teacher.actions, Box):
        reasons["quantize.action_bits"] = "it is for continuous actions"
    if settings.scheme == "dorefa":
        no_scales = "quantize.scheme=dorefa drops each layer's scale"
        reasons |= {"quantize.per_channel": no_scales, "quantize.equalization": no_scales}
    elif activation != "relu":
        reasons["quantize.equalization"] = f"hidden layers are {activation}, not relu"
    if activation != "relu":
        reasons["finetune.recycle_dormant"] = f"phase 3 recycles units of relu, not of {activation}"
    if ACTIVATIONS[activation].high is not None:
        reasons["quantize.calibration_percentile"] = f"the range of {activation} is known"
    return reasons


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
