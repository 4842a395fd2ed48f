"""Trainings of a few hundred steps, and what two of them must have in common."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.save_util import load_from_zip_file

import qpd
from qpd.runs.progress import SilentProgress
from qpd.runs.training_run import TrainingRun

SMALL = {"seed": 3, "device": "cpu"}
# A few hundred steps in three segments; each algorithm learns in all of them. The zoo's own
# settings put VecNormalize around ARS and A2C, and noise on the actions of TD3 and DDPG.
TRAININGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("ppo", "CartPole-v1", {"n_steps": 16, "n_envs": 2, "batch_size": 16}),
    "ppo with gSDE": ("ppo", "Pendulum-v1", {"n_steps": 32, "n_envs": 2}),
    "a2c": ("a2c", "Pendulum-v1", {"n_envs": 2}),
    "trpo": ("trpo", "Pendulum-v1", {"n_steps": 32, "n_envs": 2, "batch_size": 32}),
    "dqn": ("dqn", "CartPole-v1", {"learning_starts": 50, "train_freq": 4, "gradient_steps": 2}),
    "qrdqn": ("qrdqn", "CartPole-v1", {"learning_starts": 9, "train_freq": 8, "gradient_steps": 1}),
    "sac": ("sac", "Pendulum-v1", {"learning_starts": 50, "train_freq": 8}),
    "tqc": ("tqc", "Pendulum-v1", {"learning_starts": 50, "train_freq": 8}),
    "td3": ("td3", "Pendulum-v1", {"learning_starts": 50, "train_freq": 4, "gradient_steps": 1}),
    "ddpg": ("ddpg", "MountainCarContinuous-v0", {"learning_starts": 50, "train_freq": 8}),
    "ars": ("ars", "Pendulum-v1", {"n_delta": 1, "train.timesteps": 1200}),
}  # fmt: skip

# Of the fast learner, on Pendulum-v1.
FAST_SETTINGS: dict[str, Any] = {
    "train.timesteps": 300,
    "train.checkpoint_every": 100,
    "learning_starts": 50,
    "train_freq": 1,
    "gradient_steps": 2,  # 500 updates: scales are learned from the 300th on
    "batch_size": 16,
    "net_arch": [16, 16],
    "save.tensorboard": False,
}


class Interrupts(SilentProgress):
    """A progress display at which somebody presses Ctrl-C, after so many steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def training(self, name: str, total_steps: int, first_step: int) -> None:
        """Ignore it."""

    def steps(self, done: int, total: int, episode_return: float | None, is_line: bool) -> None:
        """Press it."""
        if done >= self._steps:
            raise KeyboardInterrupt


def training_overrides(hyperparameters: dict[str, Any], **train: Any) -> dict[str, Any]:
    """Return overrides of 300 steps in segments of 100, with `train.*` keys by their own names."""
    return {
        "train.timesteps": 300,
        "train.checkpoint_every": 100,
        **hyperparameters,
        "save.tensorboard": False,
        **{f"train.{key}": value for key, value in train.items()},
    }


def small_training(
    name: str, output: Path, more: dict[str, Any], progress: Any = None, **train: Any
) -> TrainingRun:
    """Train the agent `name` of TRAININGS in `output`; `more` are overrides."""
    algo, env, hyperparameters = TRAININGS[name]
    overrides = training_overrides(hyperparameters, **train) | more
    return qpd.train(algo, env, overrides=overrides, output=output, progress=progress, **SMALL)


def low_precision_training(
    output: Path, form: str = "fp16", progress: Any = None, **more: Any
) -> TrainingRun:
    """Train SAC in the format `form`; `more` are overrides, and the seed."""
    _, env, hyperparameters = TRAININGS["sac"]
    own = SMALL | {name: more.pop(name) for name in ("seed",) if name in more}
    overrides = training_overrides(hyperparameters) | {"precision.format": form} | more
    return qpd.train("sac", env, overrides=overrides, output=output, progress=progress, **own)


def agent_tensors(agent: Path) -> dict[str, np.ndarray]:
    """Return all tensors of an SB3 zip by name, optimizers' included."""
    _, parameters, variables = load_from_zip_file(agent, load_data=False, device="cpu")
    assert variables is not None
    flat: dict[str, np.ndarray] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            flat[prefix] = value.detach().numpy()
        elif isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{prefix}.{key}", inner)

    walk("", {**parameters, **variables})
    return flat


def metric_rows(run: TrainingRun) -> list[dict[str, str]]:
    """Return the rows of metrics.csv without what depends on the clock."""
    rows = list(csv.DictReader(run.metrics_file.read_text().splitlines()))
    return [
        {key: text for key, text in row.items() if key not in ("seconds", "steps_per_second")}
        for row in rows
    ]


def monitored_games(run: TrainingRun) -> list[list[str]]:
    """Return return and length of each game, as text."""
    lines = run.monitor_file.read_text().splitlines()[2:]
    return [line.split(",")[:2] for line in lines]


def assert_same_training(run: TrainingRun, other: TrainingRun) -> None:
    """Assert that two trainings have the same agent, metrics, games and statistics."""
    assert run.agent_file is not None and other.agent_file is not None
    ours, theirs = agent_tensors(run.agent_file), agent_tensors(other.agent_file)
    assert ours.keys() == theirs.keys() and ours
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)
    assert metric_rows(run) == metric_rows(other)
    assert monitored_games(run) == monitored_games(other)
    assert run.phase.episodes == other.phase.episodes == len(monitored_games(run))
    name = run.agent_file.stem
    statistics = [path / name / "vecnormalize.pkl" for path in (run.path, other.path)]
    assert statistics[0].exists() == statistics[1].exists()
    if statistics[0].exists():  # what it held of the last step was not in the checkpoint
        averages = [statistics_of(path) for path in statistics]
        np.testing.assert_array_equal(averages[0], averages[1])


def statistics_of(path: Path) -> np.ndarray:
    """Return the numbers of VecNormalize's file."""
    import pickle

    found = pickle.loads(path.read_bytes())
    return np.concatenate([found.obs_rms.mean, found.obs_rms.var, [found.ret_rms.var]])
