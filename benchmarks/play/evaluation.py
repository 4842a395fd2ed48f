"""Time to play 200 full games: in parallel environments, and one game after the other.

python -m benchmarks.play.evaluation STUDENT [--episodes 200] [--single-episodes 10] [--threads 2]

STUDENT is a run directory. The baseline is the usual loop: one SB3 environment, one observation at
a time, the float student. It plays a few games, and its time is scaled up.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.baseline import PlainStudent, sb3_environment
from benchmarks.breakout_play import ENV_ID
from benchmarks.timing import parse_arguments, print_rates
from qpd.actions import ActingRule
from qpd.environments.registry import make_vector_env
from qpd.evaluation.games import evaluate
from qpd.integer.integer_student import IntegerEngine
from qpd.student_files.distilled import load_student
from qpd.student_files.quantized import load_integer_student


def single_environment_loop(student: PlainStudent, episodes: int) -> tuple[float, int]:
    """Play `episodes` full games in one environment; return seconds and agent steps."""
    env, rng = sb3_environment(1, False), np.random.default_rng(0)
    observation, finished, steps, began = env.reset(), 0, 0, time.perf_counter()
    while finished < episodes:
        with torch.no_grad():
            logits, _ = student(torch.as_tensor(observation).float() / 255)
        # Sampled, as the integers play below: greedy games would be of other lengths.
        action = np.argmax(logits.numpy() + rng.gumbel(size=logits.shape), axis=1)
        observation, _, _, infos = env.step(action)
        # Monitor writes this key at the end of a full game only, not at each lost life.
        finished += "episode" in infos[0]
        steps += 1
    seconds = time.perf_counter() - began
    env.close()
    return seconds, steps


def plain_copy(run: Path) -> PlainStudent:
    """Return the run's distilled student as the baseline's network."""
    student = load_student(run / "distilled.safetensors")
    # Told by its layers' shapes, as an architecture has no name.
    size = next(
        name for name in ("XXS", "XS", "S", "M", "L", "XL", "XXL")
        if PlainStudent(name).trunk[7].weight.shape == student.layer("linear1").weight.shape
        and PlainStudent(name).trunk[0].weight.shape == student.layer("conv1").weight.shape
    )  # fmt: skip
    plain = PlainStudent(size)
    ours = [student.layer(shape.name) for shape in student.shapes] + [student.critic]
    theirs = [m for m in plain.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    for source, target in zip(ours, theirs, strict=True):
        # Real weights, as the length of games, and so the time, depends on how well they play.
        target.load_state_dict(source.state_dict())
    return plain


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("student", type=Path)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--single-episodes", type=int, default=10)
    parser.add_argument("--envs", type=int, default=64)
    arguments = parse_arguments(parser)
    seconds, steps = single_environment_loop(
        plain_copy(arguments.student), arguments.single_episodes
    )
    # Scaled by steps and not by games, as games differ a lot in length.
    loop = seconds / steps
    engine = IntegerEngine(load_integer_student(arguments.student / "quantized.safetensors"))
    env = make_vector_env(ENV_ID, arguments.envs)
    began = time.perf_counter()
    result = evaluate(engine, env, arguments.episodes, ActingRule("sample"), seed=0)
    ours = time.perf_counter() - began
    env.close()
    total = int(result.lengths.sum())
    low, high = result.interval()
    rows = [
        ["one SB3 environment, fp32 (scaled)", f"{loop * total:,.0f}", f"{1 / loop:,.0f}", "1.0x"],
        [
            f"QPD, {arguments.envs} environments, integers",
            f"{ours:,.0f}",
            f"{total / ours:,.0f}",
            f"{loop * total / ours:.1f}x",
        ],
    ]
    title = f"{arguments.episodes} full games ({result.mean:.1f} [{low:.1f}, {high:.1f}])"
    print_rates(title, ["evaluation", "seconds", "agent steps/s", "of the loop"], rows)


if __name__ == "__main__":
    main()
