"""Time a step of SB3's policy through quantizers, over the float one.

python -m benchmarks.agents.quantized_step

Baseline: the same Stable-Baselines3 policy without quantizers. Forward and backward pass of a batch
and Adam's step, one thread, in turns; median of the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN, PPO

from qpd.recipe.train_schema import TrainQuantization
from qpd.teachers.training.quantization_aware import AgentQuantizers

TURNS, SECONDS = 15, 0.4


class Frames(gymnasium.Env[np.ndarray, np.int64]):
    """The spaces of an Atari game, and nothing to play."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)


def main() -> None:
    """Print one row for each network and number of bits."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    print("| network | batch | bits | float, ms | over float |")
    print("|---|---|---|---|---|")
    for name, batch, make in (
        ("MLP 256-256 (DQN)", 64, _mlp),
        ("MLP 256-256 (DQN)", 256, _mlp),
        ("NatureCNN (PPO)", 64, _cnn),
        ("NatureCNN (PPO)", 256, _cnn),
    ):
        for bits in (8, 4):
            plain, quantized = (_step(make(), batch, each) for each in (None, bits))
            ratios, times = [], []
            for _ in range(TURNS):
                first, second = _per_call(plain), _per_call(quantized)
                ratios.append(second / first)
                times.append(first)
            print(f"| {name} | {batch} | {bits} | {1e3 * statistics.median(times):.2f} | "
                  f"{statistics.median(ratios):.2f}x |")  # fmt: skip


def _mlp() -> Any:
    return DQN("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [256, 256]}, buffer_size=1)


def _cnn() -> Any:
    return PPO("CnnPolicy", Frames(), device="cpu")


def _step(model: Any, batch: int, bits: int | None) -> Callable[[], None]:
    """Return a function that learns from one batch of noise."""
    if bits is not None:
        quantizers = AgentQuantizers(model, TrainQuantization(bits=bits))
    shape = model.observation_space.shape
    seen = torch.randint(0, 256, (batch, *shape), dtype=torch.uint8)
    if len(shape) == 1:
        seen = torch.randn(batch, *shape)
    policy = model.policy
    actions = torch.zeros(batch, dtype=torch.long)

    def step() -> None:
        if isinstance(model, DQN):
            loss = policy.q_net(seen).square().mean()
        else:
            values, log_prob, entropy = policy.evaluate_actions(seen, actions)
            loss = values.square().mean() - log_prob.mean() - 0.01 * entropy.mean()
        policy.optimizer.zero_grad()
        loss.backward()
        policy.optimizer.step()

    step()
    if bits is not None:
        quantizers.begin(0)
    return step


def _per_call(step: Callable[[], None]) -> float:
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < SECONDS:
        step()
        calls += 1
    return elapsed / calls


if __name__ == "__main__":
    main()
