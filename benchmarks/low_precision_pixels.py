"""Pendulum as a picture, for `python -m benchmarks.precision.sac --pixels`.

40x40 in grey, every second frame, two of them stacked; Stable-Baselines3's image networks with 16,
32 and 32 filters. The middle of the picture is shown, and its white background is made black:
of the whole picture as it is nothing was learned in as many steps. Recipes of kept runs name this
module, so that it stays where it is.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

MIDDLE = slice(125, 375)  # of 500 pixels: as far as the pole reaches


class Negative(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows the middle of an image [500, 500, 3] of uint8 with black and white exchanged."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        side = MIDDLE.stop - MIDDLE.start
        self.observation_space = Box(0, 255, (side, side, 3), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return the negative, [250, 250, 3] of uint8."""
        return 255 - observation[MIDDLE, MIDDLE]


PIXELS: dict[str, Any] = {
    "normalize": {"norm_obs": False, "norm_reward": True},
    "learning_rate": 1e-3,
    "batch_size": 64,
    "learning_starts": 500,
    "train_freq": 1,
    "gradient_steps": 1,
    "gamma": 0.97,
    "tau": 0.01,
    "buffer_size": 30_000,
    "cnn_arch": [16, 32, 32, 64],
    "net_arch": [64, 64],
    "save.tensorboard": False,
    "environment.kwargs": {"render_mode": "rgb_array"},
    "environment.wrappers": [
        # Of two states, which nobody sees; rewards are added.
        {"gymnasium.wrappers.MaxAndSkipObservation": {"skip": 2}},
        "gymnasium.wrappers.AddRenderObservation",
        "benchmarks.low_precision_pixels.Negative",
        {"gymnasium.wrappers.ResizeObservation": {"shape": [40, 40]}},
        {"gymnasium.wrappers.GrayscaleObservation": {"keep_dim": False}},
        {"gymnasium.wrappers.FrameStackObservation": {"stack_size": 2}},
    ],
}
