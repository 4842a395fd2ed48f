"""Names of actions in figures and reports: of each choice, of each part's choices, of numbers."""

from __future__ import annotations

from dataclasses import dataclass

from qpd.actions import ActionSpace, Box, MultiBinary, MultiDiscrete
from qpd.environments.registry import action_names


@dataclass(frozen=True)
class ActionPart:
    """Hold what belongs together: one choice's actions, all switches, or all numbers of an action.

    `title` is empty where there is only one part.
    """

    title: str
    names: tuple[str, ...]


def action_parts(actions: ActionSpace, env_id: str) -> tuple[ActionPart, ...]:
    """Return the parts of `actions`, whose names together are as many as its outputs."""
    if isinstance(actions, MultiDiscrete):
        return tuple(
            ActionPart(f"choice {place}", tuple(f"action {i}" for i in range(count)))
            for place, count in enumerate(actions.nvec)
        )
    numbers = range(actions.num_outputs)
    if isinstance(actions, MultiBinary):
        return (ActionPart("", tuple(f"switch {i}" for i in numbers)),)
    known = None if isinstance(actions, Box) else action_names(env_id)
    return (ActionPart("", tuple(known or (f"action {i}" for i in numbers))),)


def action_labels(actions: ActionSpace, env_id: str) -> list[str]:
    """Return a name for each output; those of several choices begin with the choice's."""
    parts = action_parts(actions, env_id)
    return [f"{part.title}, {name}".lstrip(", ") for part in parts for name in part.names]
