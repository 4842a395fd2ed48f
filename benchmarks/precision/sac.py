"""A task by SAC in float32 and in half precision, with and without the six methods.

python -m benchmarks.precision.sac [--seeds 5] [--format fp16] [--arms fp32,plain,six,...]
    [--env Pendulum-v1] [--timesteps 7000] [--width 128] [--rate 1e-3] [--core BITS]
    [--eps 1e-4] [--amp] [--draw] [--pixels] [--runs FOLDER]

The trial of Bjorck et al. (ICML 2021) in small: layers and batches of `--width`, one update a
step, 500 random steps first, 1,000 on dm_control. An arm is `fp32`, `plain`, `six`,
`without-METHOD`, names of methods joined by +, or one of the paper's baselines: `coercion`,
`loss_scaling`, `mixed_precision`, `placed_mixed_precision`; `six+kahan_actor` also compensates the
actor's sums. `--eps` is Adam's of arms without compound_scale, `--amp` gives baselines that scale
the loss PyTorch's constants, `--draw` draws a rate, a discount, a target's rate, a width and a
batch for each seed, the same for all arms, and `--pixels` shows Pendulum's picture for 14,000 steps
of two frames (`benchmarks/low_precision_pixels.py`).

Each agent plays 20 greedy games after its training, the same for all, which its training records,
so that `qpd analyze precision RUNS` and `qpd analyze paper --paper low-precision-sac RUNS` read
them; one whose training ends in NaN has no return. With `--core`, agents are integer controllers,
and play in their integers; in fp32 they have QPD's own learner, as Stable-Baselines3's has none for
them. Interrupted work goes on. The interval is over trainings (Student's t), and so is that of the
differences from fp32 with the same seed.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

import qpd
from benchmarks.low_precision_pixels import PIXELS
from qpd.evaluation.studentized import t_interval
from qpd.recipe.train_schema import BASELINES, METHODS, Method
from qpd.runs.manifest import EvaluatedPolicy
from qpd.runs.training_run import TrainingRun
from qpd.teachers.training.agent_training import LearningFailedError

EPISODES, GAMES_SEED = 20, 1_000
RATES, TAUS = (5e-4, 3e-3), (2e-3, 2e-2)  # of --draw
CONTROL = "dm_control/"


def main() -> None:
    """Train, play and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--timesteps", type=int)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--core", type=int)
    parser.add_argument("--format", default="fp16")
    parser.add_argument("--eps", type=float)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--pixels", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--arms", default="fp32,plain,six")
    parser.add_argument("--runs", type=Path, default=Path("runs/low-precision-sac"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known: dict[str, list[float | None]] = {}
    print("| training | return of each | mean | minus fp32 | updates skipped | end |")
    print("|---|---|---|---|---|---|")
    arms = arguments.arms.split(",")
    try:
        for arm in arms:
            _precision(arm, arguments)
    except ValueError as error:
        parser.error(f"--arms: {error}")
    for arm in arms:
        settings = _settings(arguments) | _precision(arm, arguments)
        name = arm if arm == "fp32" else f"{arguments.format}-{arm}{_suffix(arguments)}"
        name += "-draw" if arguments.draw else ""
        found = [
            _trained(arguments.env, arguments.runs / f"{name}-{seed}",
                     settings | (_drawn(seed) if arguments.draw else {}), seed)
            for seed in range(arguments.seeds)
        ]  # fmt: skip
        known[arm] = [score for score, _, _ in found]
        print(_row(name, found, known.get("fp32"), known[arm]), flush=True)


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.pixels:
        return PIXELS | {"train.timesteps": arguments.timesteps or 14_000}
    is_control = arguments.env.startswith(CONTROL)
    settings: dict[str, Any] = {
        "learning_rate": arguments.rate,
        "batch_size": arguments.width,
        "learning_starts": 1000 if is_control else 500,
        "train_freq": 1,
        "gradient_steps": 1,
        "net_arch": [arguments.width] * 2,
        "save.tensorboard": False,
        "train.timesteps": arguments.timesteps or 7000,
    }
    if arguments.core is not None:
        settings["quantization.core_bits"] = arguments.core
    if is_control:  # positions and velocities are one vector
        settings["environment.wrappers"] = ["gymnasium.wrappers.FlattenObservation"]
    return settings


def _suffix(arguments: argparse.Namespace) -> str:
    eps = "" if arguments.eps is None else f"-eps{arguments.eps:g}"
    return eps + ("-amp" if arguments.amp else "")


def _drawn(seed: int) -> dict[str, Any]:
    """Draw hyperparameters around the usual ones: rates are log-uniform."""
    draw = np.random.default_rng(seed)
    rate, tau = (float(np.exp(draw.uniform(*np.log(each)))) for each in (RATES, TAUS))
    width, batch = (int(draw.choice([64, 128, 256])) for _ in range(2))
    return {
        "learning_rate": rate,
        "tau": tau,
        "gamma": float(draw.choice([0.95, 0.98, 0.99])),
        "net_arch": [width] * 2,
        "batch_size": batch,
    }


def _precision(arm: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of an arm. Raises ValueError where it names no method."""
    if arm == "fp32":
        return {}
    found: dict[str, Any] = {"precision.format": arguments.format}
    if arguments.eps is not None:
        found["precision.eps"] = arguments.eps
    if arguments.amp:
        found["precision.loss_scale"] = "dynamic"
    if arm in BASELINES:
        return {**found, "precision.methods": [], "precision.baseline": arm}
    methods: list[str]
    if arm.startswith("without-"):
        methods = [each for each in METHODS if each != arm.removeprefix("without-")]
    else:
        parts = [] if arm == "plain" else arm.split("+")
        methods = [each for part in parts for each in (METHODS if part == "six" else [part])]
    if not set(methods) <= {*get_args(Method)} or (
        arm.startswith("without-") and len(methods) == 6
    ):
        known = ("fp32", "plain", "six", "without-METHOD", "METHOD+METHOD", *BASELINES)
        raise ValueError(
            f"{arm} is none of {', '.join(known)}; methods: {', '.join(get_args(Method))}"
        )
    return {**found, "precision.methods": methods}


def _trained(
    env: str, folder: Path, settings: dict[str, Any], seed: int
) -> tuple[float | None, int, str]:
    """Return the mean return of the games after a training, its skipped updates, and its end."""
    try:
        run = qpd.train("sac", env, overrides=settings, seed=seed, output=folder, device="cpu")
    except LearningFailedError as error:
        return None, 0, f"NaN after {error.timesteps:,} steps"
    rows = list(csv.DictReader(run.metrics_file.read_text().splitlines()))
    skipped = int(float(rows[-1].get("train/skipped_updates") or 0))
    policy: EvaluatedPolicy = "qat" if "quantization.core_bits" in settings else "teacher"
    return _mean_return(run, policy), skipped, "finite"


def _mean_return(run: TrainingRun, policy: EvaluatedPolicy) -> float:
    """Return the mean of the games that the training has recorded; they are played once."""
    known = run.manifest.evaluations.get(policy)
    if known is None or (known["episodes"], known["seed"]) != (EPISODES, GAMES_SEED):
        environment = run.recipe.environment
        games = qpd.evaluate(
            run, policy=policy, episodes=EPISODES, seed=GAMES_SEED, device="cpu",
            env_kwargs=environment.kwargs or None, wrappers=environment.wrappers,
        )  # fmt: skip
        with TrainingRun.create(run.path, run.recipe) as opened:
            opened.record_evaluation(policy, games.to_json())
        return float(games.returns.mean())
    return float(known["mean"])


def _row(
    name: str,
    found: list[tuple[float | None, int, str]],
    plain: list[float | None] | None,
    ours: list[float | None],
) -> str:
    each = ", ".join("-" if score is None else f"{score:,.0f}" for score in ours)
    whole = [score for score in ours if score is not None]
    pairs = [
        one - other
        for one, other in zip(ours, plain or [], strict=False)
        if one is not None and other is not None
    ]
    ends = ", ".join(sorted({end for _, _, end in found}))
    skipped = ", ".join(str(count) for _, count, _ in found)
    difference = "" if name == "fp32" else _interval(pairs)
    return f"| {name} | {each} | {_interval(whole)} | {difference} | {skipped} | {ends} |"


def _interval(values: list[float]) -> str:
    """Return a mean with its 95% interval over trainings."""
    if len(values) < 2:
        return f"{values[0]:,.0f}" if values else "-"
    mean, low, high = t_interval(values)
    return f"{mean:,.0f} [{low:,.0f}, {high:,.0f}]"


if __name__ == "__main__":
    main()
