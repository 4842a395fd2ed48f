"""Milliseconds of an update of SAC by precision; the baseline is Stable-Baselines3's in float32.

Two hidden layers and a batch of the same width, 17 features, 6 actions; one thread. The arms take
turns, ten updates each; the median of `--rounds` turns. `fp16 tensors` stores float16, and its sums
go by way of float32; on a GPU they are its own float16 products.

python -m benchmarks.precision.update [--rounds 9] [--widths 128 256] [--device cpu]
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC

from qpd.recipe.train_schema import METHODS, TrainPrecision
from qpd.teachers.training.low_precision_sac import use_low_precision

UPDATES, FEATURES, ACTIONS = 10, 17, 6
ARMS = ("float32, Stable-Baselines3", "fp16", "bf16", "e5m7", "e5m5", "fp16 tensors")


class Noise(gymnasium.Env[Any, Any]):
    """Random observations and rewards: what is timed does not depend on them."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (FEATURES,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (ACTIONS,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return an observation."""
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return another one."""
        return self._observation(), float(self.np_random.normal()), False, False, {}

    def _observation(self) -> np.ndarray:
        return self.np_random.normal(size=FEATURES).astype(np.float32)


def main() -> None:
    """Print a table: a row an arm, a column a width."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    widths = arguments.widths
    torch.set_num_threads(1)
    found = {width: _times(width, arguments.rounds, arguments.device) for width in widths}
    print("| update | " + " | ".join(f"width {width}, ms | of float32" for width in widths) + " |")
    print("|---" * (1 + 2 * len(widths)) + "|")
    for arm in ARMS:
        shown = [
            f"{found[width][arm]:.1f} | {found[width][arm] / found[width][ARMS[0]]:.2f}"
            for width in widths
        ]
        print(f"| {arm} | " + " | ".join(shown) + " |")


def _times(width: int, rounds: int, device: str) -> dict[str, float]:
    models = {arm: _model(arm, width, device) for arm in ARMS}
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for turn in range(rounds + 1):  # the first warms up
        for arm, model in models.items():
            began = time.perf_counter()
            model.train(UPDATES, width)
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:
                times[arm].append(1000 * (time.perf_counter() - began) / UPDATES)
    return {arm: median(each) for arm, each in times.items()}


def _model(arm: str, width: int, device: str) -> SAC:
    model = SAC("MlpPolicy", Noise(), batch_size=width, policy_kwargs={"net_arch": [width] * 2},
                learning_starts=1000, buffer_size=1000, seed=0, device=device)  # fmt: skip
    model.learn(1000)
    if arm != ARMS[0]:
        form = arm.split()[0]
        use_low_precision(model, TrainPrecision(format=form, methods=list(METHODS)))
    if arm.endswith("tensors"):
        model.policy.half()
        assert model.log_ent_coef is not None
        model.log_ent_coef.data = model.log_ent_coef.data.half()
    return model


if __name__ == "__main__":
    main()
