"""The frames that forward passes are timed on.

The C export's vector kernels skip patches that are black or unmoving, so their time depends on the
picture: real play is what counts, noise is the worst case.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qpd.environments.policy import network_policy
from qpd.environments.registry import make_vector_env
from qpd.teachers import load_teacher

COUNT = 16  # 28 KB each: together they fit a second-level cache, as an agent's newest frames do
STEPS_APART = 20


def breakout_frames() -> np.ndarray:
    """Return frames of a game of the embedded teacher, always the same: uint8 `[16, 4, 84, 84]`."""
    teacher = load_teacher("embedded")
    policy = network_policy(teacher, teacher.actions)
    env, rng = make_vector_env("BreakoutNoFrameskip-v4", 1), np.random.default_rng(0)
    env.reset(0)
    seen: list[np.ndarray] = []
    while len(seen) < STEPS_APART * COUNT:
        # Forced steps show stacks of frames that no agent acts on.
        if env.acting[0]:
            seen.append(env.observations[0].copy())
        logits = policy(env.observations)
        # The Gumbel trick: the largest of logit plus Gumbel noise is a sample from the softmax.
        env.step((logits + rng.gumbel(size=logits.shape)).argmax(1))
    env.close()
    return np.stack(seen[::STEPS_APART])


def noise_frames() -> np.ndarray:
    """Return uniform noise over all 256 levels: uint8 `[16, 4, 84, 84]`."""
    return np.random.default_rng(0).integers(0, 256, (COUNT, 4, 84, 84), dtype=np.uint8)


OBSERVATIONS: dict[str, Callable[[], np.ndarray]] = {
    "breakout": breakout_frames,
    "noise": noise_frames,
}
