"""The frames that forward passes are timed on.

The C export's vector kernels skip patches that are black or do not change, so that their time
depends on the picture: real play is what counts, noise is the worst case.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qpd.environments.policy import network_policy
from qpd.environments.registry import make_vector_env
from qpd.teachers import load_teacher

COUNT = 16  # 28 KB each: together no more than a second-level cache, as an agent's newest frames
STEPS_APART = 20


def breakout_frames() -> np.ndarray:
    """uint8 `[COUNT, 4, 84, 84]`: what the embedded teacher sees in a game, always the same."""
    policy = network_policy(load_teacher("embedded"))
    env, rng = make_vector_env("BreakoutNoFrameskip-v4", 1), np.random.default_rng(0)
    env.reset(0)
    seen: list[np.ndarray] = []
    while len(seen) < STEPS_APART * COUNT:
        if env.acting[0]:
            seen.append(env.observations[0].copy())
        logits = policy(env.observations)
        env.step((logits + rng.gumbel(size=logits.shape)).argmax(1))
    env.close()
    return np.stack(seen[::STEPS_APART])


def noise_frames() -> np.ndarray:
    """uint8 `[COUNT, 4, 84, 84]`: any of 256 levels in every pixel."""
    return np.random.default_rng(0).integers(0, 256, (COUNT, 4, 84, 84), dtype=np.uint8)


OBSERVATIONS: dict[str, Callable[[], np.ndarray]] = {
    "breakout": breakout_frames,
    "noise": noise_frames,
}
