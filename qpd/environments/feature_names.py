"""Name each feature: by gymnasium's documentation of its environments, and by a Dict's keys."""

from __future__ import annotations

import re

_MOST_FEATURES = 100_000
_LONGEST_KEY = 60
_UNUSUAL = re.compile(r"[^A-Za-z0-9_. -]")
NAMES = {
    "Acrobot": (
        "cosine of the first joint's angle",
        "sine of the first joint's angle",
        "cosine of the second joint's angle",
        "sine of the second joint's angle",
        "angular velocity of the first joint, rad/s",
        "angular velocity of the second joint, rad/s",
    ),
    "CartPole": ("cart position", "cart velocity", "pole angle, rad", "pole angular velocity"),
    "LunarLander": (
        "x",
        "y",
        "velocity in x",
        "velocity in y",
        "angle",
        "angular velocity",
        "left leg touches the ground, 0 or 1",
        "right leg touches the ground, 0 or 1",
    ),
    "MountainCar": ("position", "velocity"),
}


def part_names(found: object) -> tuple[str, ...] | None:
    """Return a name for each feature of a Dict: `joint[0]`, `joint[1]`, or `speed` for one alone.

    `found` is what a file says, `[[key, size], ...]`; None where it says anything else.
    """
    names: list[str] = []
    for part in found if isinstance(found, list) else []:
        if not isinstance(part, list) or len(part) != 2:
            return None
        key, size = part
        if not isinstance(key, str) or type(size) is not int or not 0 < size <= _MOST_FEATURES:
            return None
        key = _UNUSUAL.sub("_", key)[:_LONGEST_KEY]  # for a table, and a comment in C
        names += [key] if size == 1 else [f"{key}[{i}]" for i in range(size)]
        if len(names) > _MOST_FEATURES:
            return None
    return tuple(names) or None


def feature_names(env_id: str) -> tuple[str, ...] | None:
    """Return a name for each feature of a vector observation; None where they are not known."""
    found = re.fullmatch(r"(\w+)-v\d+", env_id)
    return NAMES.get(found[1]) if found else None
