"""Agent steps per second of training on Breakout: SB3's arithmetic, and that of `qpd train`.

    python -m benchmarks.atari_teachers [--algos ppo,a2c,dqn] [--rounds 5] [--threads 1]

All ways play QPD's vector environment, with the RL Zoo's settings; playing, storing and learning
are included. Autocast alone is how `qpd train` learned before frames were read as bytes. The ways
take turns in one process; medians of rounds.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.torch_layers import NatureCNN

from benchmarks.timing import interleave, parse_arguments, print_rates
from qpd.teachers.training.atari_manager import fuse_adam, use_bfloat16
from qpd.teachers.training.atari_vec_env import AtariVecEnv
from qpd.teachers.training.blocked_frames import use_blocked_frames

ENV_ID, WAYS = "BreakoutNoFrameskip-v4", ("Stable-Baselines3", "autocast", "qpd train")
# The RL Zoo's for Atari; DQN as qpd train has it: eight games, and eight updates for 32 steps.
ALGORITHMS: dict[str, tuple[Any, int, int, dict[str, Any]]] = {  # class, games, agent steps a turn
    "ppo": (PPO, 8, 1024, {"n_steps": 128, "n_epochs": 4, "batch_size": 256}),
    "a2c": (A2C, 16, 800, {}),
    "dqn": (DQN, 8, 320, {"batch_size": 32, "buffer_size": 10_000, "learning_starts": 100,
                          "train_freq": 4, "gradient_steps": 8}),
}  # fmt: skip


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algos", default=",".join(ALGORITHMS))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parse_arguments(parser)
    table = []
    for algo in arguments.algos.split(","):
        cases = {way: partial(_learn, _model(algo, way), ALGORITHMS[algo][2]) for way in WAYS}
        rates = interleave(cases, arguments.rounds)
        base = rates[WAYS[0]]
        faster = [f"{rates[way]:,.0f} ({rates[way] / base:.2f}x)" for way in WAYS[1:]]
        table.append([algo, f"{base:,.0f}", *faster])
    print_rates("Agent steps per second", ["algorithm", *WAYS], table)


def _model(algo: str, way: str) -> Any:
    kind, games, _, settings = ALGORITHMS[algo]
    env = AtariVecEnv(ENV_ID, games, seed=0)
    model = kind("CnnPolicy", env, device="cpu", seed=0, **settings)
    if way != WAYS[0]:
        fuse_adam(model)
        for module in model.policy.modules():
            if isinstance(module, NatureCNN):
                use_bfloat16(module)
    if way == WAYS[2]:
        use_blocked_frames(model)
    return model


def _learn(model: Any, steps: int) -> int:
    before = model.num_timesteps
    model.learn(steps, reset_num_timesteps=False)
    return int(model.num_timesteps - before)


if __name__ == "__main__":
    main()
