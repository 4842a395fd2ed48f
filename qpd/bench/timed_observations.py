"""The frames that forward passes are timed on.

The C export's vector kernels skip patches that are black or unmoving, so their time depends on the
picture: real play is what counts, noise is the worst case.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import numpy as np

from qpd.actions import ActingRule
from qpd.environments.policy import network_policy
from qpd.environments.registry import make_vector_env
from qpd.evaluation.played_observations import played_observations
from qpd.teachers import load_teacher

COUNT = 16  # 28 KB each: together they fit a second-level cache, as an agent's newest frames do
STEPS_APART = 20


def breakout_frames() -> np.ndarray:
    """Return frames of a game of the embedded teacher, always the same: uint8 `[16, 4, 84, 84]`."""
    teacher = load_teacher("embedded")
    policy = network_policy(teacher, teacher.actions)
    with closing(make_vector_env("BreakoutNoFrameskip-v4", 1)) as env:
        return played_observations(policy, env, COUNT, ActingRule("sample"), 0, STEPS_APART)


def noise_frames() -> np.ndarray:
    """Return uniform noise over all 256 levels: uint8 `[16, 4, 84, 84]`."""
    return np.random.default_rng(0).integers(0, 256, (COUNT, 4, 84, 84), dtype=np.uint8)


OBSERVATIONS: dict[str, Callable[[], np.ndarray]] = {
    "breakout": breakout_frames,
    "noise": noise_frames,
}
