"""Write what cards say about actions: their bounds, their names, and how a student chooses them."""

from __future__ import annotations

from qpd.actions import ActionSpace, Box, MultiBinary, MultiDiscrete
from qpd.environments.registry import action_names
from qpd.export.bundle import ExportSource
from qpd.student_files.origin import acting_hint

_MOST_BOUNDS = 32  # numbers of an action whose bounds a card lists


def actions_in_words(actions: ActionSpace, env_id: str) -> str:
    """Return each action's name or number, the bounds of continuous ones, and the actions' type."""
    if isinstance(actions, Box):
        numbers = f"{len(actions.low)} continuous number{'s' * (len(actions.low) > 1)}, float32"
        return f"{numbers}, {_bounds(actions)}"
    if isinstance(actions, MultiDiscrete):
        return f"{actions}, each counted from 0"
    if isinstance(actions, MultiBinary):
        return f"{actions}, 0 for off and 1 for on"
    names = action_names(env_id)
    if names is None:
        return f"0 to {actions.num_outputs - 1}"
    return ", ".join(f"{i} {name}" for i, name in enumerate(names))


def _bounds(actions: Box) -> str:
    pairs = list(zip(actions.low, actions.high, strict=True))
    said = [f"from {low:g} to {high:g}" for low, high in pairs]
    if len(set(said)) == 1:
        return said[0] if len(said) == 1 else f"each {said[0]}"
    more = ", and so on" if len(said) > _MOST_BOUNDS else ""
    return ", ".join(f"{i} {one}" for i, one in enumerate(said[:_MOST_BOUNDS])) + more


def acting_in_words(export: ExportSource, is_atari: bool) -> str:
    """Return how the student's integers become actions."""
    student = export.student
    hint = acting_hint(export.about, student.actions, is_atari)
    if not isinstance(student.actions, Box):
        return f"{hint}. One integer step of a logit is worth {student.output_scale:.6g}"
    top = 2**student.action_bits - 1
    return (
        f"{hint}; nothing is drawn at random. Inside, each is a code of {student.action_bits} "
        f"bits: 0 stands for the lower bound, {top} for the upper one, in equal steps"
    )
