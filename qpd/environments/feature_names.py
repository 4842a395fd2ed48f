"""What each feature of gymnasium's own environments is: their documentation's tables in short."""

from __future__ import annotations

import re

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


def feature_names(env_id: str) -> tuple[str, ...] | None:
    """Return a name for each feature of a vector observation; None where they are not known."""
    found = re.fullmatch(r"(\w+)-v\d+", env_id)
    return NAMES.get(found[1]) if found else None
