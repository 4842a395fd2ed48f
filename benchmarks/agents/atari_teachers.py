"""Agent steps per second of training on Breakout: SB3's arithmetic, and that of `qpd train`.

    python -m benchmarks.agents.atari_teachers [--algos ppo,a2c,dqn] [--agents A2C_OR_PPO_AGENT...]
                                        [--rounds 5] [--threads 1]

All ways play QPD's vector environment, with the RL Zoo's settings; playing, storing and learning
are included. Autocast alone is how `qpd train` learned before frames were read as bytes; "not
shared" is how it did before batches of 64 and more multiplied what they have in common once. The
ways take turns in one process; medians of rounds. A new agent sees little but the background, so
that --agents measures sharing on what trained ones see: 256 frames forward and back, and how far
the log-probabilities of their actions are from those of frames that are not shared.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.torch_layers import NatureCNN

from benchmarks.timing import interleave, parse_arguments, print_rates
from qpd.teachers import Teacher, load_teacher
from qpd.teachers.sb3_policy import build_sb3_policy
from qpd.teachers.training.atari_manager import fuse_adam, use_bfloat16
from qpd.teachers.training.atari_vec_env import AtariVecEnv
from qpd.teachers.training.blocked_frames import blocked_features, use_blocked_frames

ENV_ID = "BreakoutNoFrameskip-v4"
BATCH = 256
WAYS = ("Stable-Baselines3", "autocast", "not shared", "qpd train")
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
    parser.add_argument("--algos", default=",".join(ALGORITHMS), help="empty: none")
    parser.add_argument("--agents", nargs="+", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parse_arguments(parser)
    table = []
    for algo in filter(None, arguments.algos.split(",")):
        cases = {way: partial(_learn, _model(algo, way), ALGORITHMS[algo][2]) for way in WAYS}
        rates = interleave(cases, arguments.rounds)
        base = rates[WAYS[0]]
        faster = [f"{rates[way]:,.0f} ({rates[way] / base:.2f}x)" for way in WAYS[1:]]
        table.append([algo, f"{base:,.0f}", *faster])
    print_rates("Agent steps per second", ["algorithm", *WAYS], table)
    if arguments.agents:
        rows = [_sharing(agent, arguments.rounds) for agent in arguments.agents]
        titles = ["game", "not shared", "shared", "log-probabilities differ by"]
        print_rates(f"Learning from {BATCH} frames at once, frames/s", titles, rows)


def _model(algo: str, way: str) -> Any:
    kind, games, _, settings = ALGORITHMS[algo]
    env = AtariVecEnv(ENV_ID, games, seed=0)
    model = kind("CnnPolicy", env, device="cpu", seed=0, **settings)
    if way != WAYS[0]:
        fuse_adam(model)
        for module in model.policy.modules():
            if isinstance(module, NatureCNN):
                use_bfloat16(module)
    if way in WAYS[2:]:
        use_blocked_frames(model, shares=way == WAYS[3])
    return model


def _sharing(agent: str, rounds: int) -> list[str]:
    """Return the game, frames/s without and with sharing, and the root mean square difference."""
    teacher = load_teacher(agent)
    policy: Any = build_sb3_policy(teacher).requires_grad_(True)
    frames = _played(teacher, policy)

    def learn(shares: bool) -> int:
        blocked_features(policy.features_extractor, frames, shares).square().mean().backward()
        return len(frames)

    rates = interleave({"plain": partial(learn, False), "shared": partial(learn, True)}, rounds)
    each, once = (
        policy.action_net(blocked_features(policy.features_extractor, frames, shares))
        .detach()
        .log_softmax(1)
        for shares in (False, True)
    )
    # Of actions as the policy draws them: of what it never does nothing is learned.
    difference = float((each.exp() * (once - each) ** 2).sum(1).mean().sqrt())
    plain, shared = rates["plain"], rates["shared"]
    return [
        str(teacher.env_id), f"{plain:,.0f}", f"{shared:,.0f} ({shared / plain:.2f}x)",
        f"{difference:.4f}",
    ]  # fmt: skip


def _played(teacher: Teacher, policy: Any) -> torch.Tensor:
    """Return `BATCH` observations of eight games, drawn from steps 150 to 400 of each."""
    env, seen = AtariVecEnv(str(teacher.env_id), 8, seed=0), []
    torch.manual_seed(0)
    observations: Any = env.reset()
    for step in range(400):
        if step >= 150:
            seen.append(observations)
        actions, _ = policy.predict(observations, deterministic=False)
        observations = env.step(actions)[0]
    env.close()
    return torch.from_numpy(np.random.default_rng(0).permutation(np.concatenate(seen))[:BATCH])


def _learn(model: Any, steps: int) -> int:
    before = model.num_timesteps
    model.learn(steps, reset_num_timesteps=False)
    return int(model.num_timesteps - before)


if __name__ == "__main__":
    main()
