"""Bytes that a SAC update needs in float32 and in float16 tensors, by parameter and at its peak.

Vectors of 24 features, or with `--images` three frames of 84x84 pixels in colour; 6 actions,
`--width` units and batches of it. Kept is what lies in memory between two updates: parameters,
targets, gradients, optimizers; the peak is what an update allocates beside it, on a GPU as its
allocator counts. Baseline: Stable-Baselines3 in float32.
`python -m benchmarks.precision.memory [--width 256] [--images] [--device cpu]`
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import SAC
from torch.profiler import ProfilerActivity, profile

from qpd.recipe.train_schema import METHODS, TrainPrecision
from qpd.teachers.training.low_precision_sac import use_low_precision

FEATURES, IMAGES, ACTIONS, TRANSITIONS = 24, (9, 84, 84), 6, 500


class _Noise(gymnasium.Env[Any, Any]):
    """An environment whose observations are noise."""

    action_space = spaces.Box(-1, 1, (ACTIONS,), np.float32)

    def __init__(self, shows_images: bool) -> None:
        vectors = spaces.Box(-1, 1, (FEATURES,), np.float32)
        self.observation_space = spaces.Box(0, 255, IMAGES, np.uint8) if shows_images else vectors

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    width: int = arguments.width
    print("| tensors | critic, bytes a parameter | actor | kept, MB | peak of an update, MB |")
    print("|---|---|---|---|---|")
    for name in ("float32, Stable-Baselines3", "float16, six methods"):
        in_half = name.startswith("float16")
        model = _learner(width, arguments.images, arguments.device, in_half=in_half)
        peak = (_peak_on_gpu if arguments.device == "cuda" else _peak)(model, width)
        critic, actor = _kept(model, "critic"), _kept(model, "actor")
        rows = [
            _bytes(part) / _count(model, one)
            for part, one in ((critic, "critic"), (actor, "actor"))
        ]
        kept = (_bytes(critic) + _bytes(actor)) / 1e6
        print(f"| {name} | {rows[0]:.1f} | {rows[1]:.1f} | {kept:.2f} | {peak / 1e6:.2f} |")


def _learner(width: int, shows_images: bool, device: str, *, in_half: bool) -> Any:
    model: Any = SAC(
        "CnnPolicy" if shows_images else "MlpPolicy",
        _Noise(shows_images),
        batch_size=width,
        learning_starts=TRANSITIONS,
        policy_kwargs={"net_arch": [width, width]},
        buffer_size=TRANSITIONS,
        seed=0,
        device=device,
    )
    if in_half:
        use_low_precision(model, TrainPrecision(format="fp16", methods=list(METHODS)))
    model.learn(TRANSITIONS)
    if in_half:
        model.policy.half()
        model.log_ent_coef.data = model.log_ent_coef.data.half()
    model.train(1, width)
    return model


def _kept(model: Any, name: str) -> list[torch.Tensor]:
    network = getattr(model, name)
    found = [each for one in network.parameters() for each in (one.detach(), one.grad)]
    if name == "critic":
        found += list(model.critic_target.parameters())
    for state in network.optimizer.state.values():
        found += [each for each in state.values() if each.dim()]
    return found


def _count(model: Any, name: str) -> int:
    return sum(each.numel() for each in getattr(model, name).parameters())


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _peak_on_gpu(model: Any, width: int) -> int:
    """Return the most bytes that an update allocates at once on a GPU."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model.train(1, width)
    return torch.cuda.max_memory_allocated() - before


def _peak(model: Any, width: int) -> int:
    """Return the most bytes that an update allocates at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model.train(1, width)
    now = most = 0
    events: Any = profiler.profiler
    for event in events.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


if __name__ == "__main__":
    main()
