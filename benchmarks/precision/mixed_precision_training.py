"""Train PPO on Pong in float32 and in mixed precision, from one agent: do both learn alike?

python -m benchmarks.precision.mixed_precision_training AGENT [--seeds 2] [--timesteps 300000]
    [--episodes 50] [--runs FOLDER] [--results FILE]

AGENT: one of `qpd train ppo PongNoFrameskip-v4 --timesteps N` that still loses. Mixed precision is
what `qpd train` does on Atari where the processor has units for bfloat16: autocast, float32 weights
and optimizer; the baseline is the same command with `--precision fp32`. Each seed trains both, from
the same parameters and with the same hyperparameters; both play games with the same starts. QuaRL's
own three networks (`benchmarks.precision.mixed_precision`) make 250,000 updates of DQN each:
in float32 on two cores hours for A, a week for C.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import qpd
from qpd.evaluation.games import bootstrap_interval
from qpd.files.atomic import write_json
from qpd.numerics.precision import has_bfloat16_units

KINDS, GAMES_SEED = ("fp32", "bf16"), 1_000_000
_UNTIL = 10.0  # a mean return of Pong's last 30 episodes, of 21 at most


def main() -> None:
    """Train what is missing, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--timesteps", type=int, default=300_000)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--runs", type=Path, default=Path("runs/mixed-precision"))
    parser.add_argument(
        "--results", type=Path, default=Path("runs-reference/quarl/mixed_precision.json")
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not has_bfloat16_units("cpu"):
        parser.error("this processor has no units for bfloat16: both would be float32")
    file = arguments.results
    content: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for seed in range(arguments.seeds):
        known = content.setdefault("trainings", {}).setdefault(str(seed), {})
        for kind in KINDS:
            if kind not in known:
                folder = arguments.runs / f"{kind}-{seed}"
                known |= _trained(arguments.agent, kind, seed, arguments.timesteps, folder)
                played = qpd.evaluate(folder, episodes=arguments.episodes, seed=GAMES_SEED)
                known[kind] = [float(each) for each in played.returns]
                write_json(file, content)
    print(f"| seed | fp32 | bf16 | difference | steps to {_UNTIL:g} | seconds |")
    print("|---|---|---|---|---|---|")
    for seed, games in content["trainings"].items():
        change = np.subtract(games["bf16"], games["fp32"])
        low, high = bootstrap_interval(change)
        steps, seconds = ([games[f"{kind}_{what}"] for kind in KINDS] for what in _KEPT)
        print(f"| {seed} | {np.mean(games['fp32']):.1f} | {np.mean(games['bf16']):.1f} | "
              f"{change.mean():+.1f} [{low:.1f}, {high:.1f}] | {steps[0]:,} and {steps[1]:,} | "
              f"{seconds[0]:,.0f} and {seconds[1]:,.0f} |")  # fmt: skip


_KEPT = ("steps_to_10", "seconds")


def _trained(agent: str, kind: str, seed: int, timesteps: int, folder: Path) -> dict[str, float]:
    overrides: dict[str, Any] = {"train.timesteps": timesteps, "train.start_from": agent,
                                 "save.tensorboard": False}  # fmt: skip
    if kind == "fp32":
        overrides["precision.format"] = "fp32"
    run = qpd.train("ppo", "PongNoFrameskip-v4", overrides=overrides, seed=seed, device="cpu",
                    output=folder)  # fmt: skip
    rows = np.loadtxt(
        run.path / "0.monitor.csv", delimiter=",", skiprows=2, usecols=(0, 1), ndmin=2
    )
    sums, steps = (np.cumsum(np.concatenate([[0], rows[:, k]])) for k in (0, 1))
    reached = steps[30:][(sums[30:] - sums[:-30]) / 30 >= _UNTIL]
    first = int(reached[0]) if len(reached) else timesteps
    return {f"{kind}_steps_to_10": first, f"{kind}_seconds": float(run.phase.seconds)}


if __name__ == "__main__":
    main()
