"""A whole experiment in a second: an untrained CartPole teacher, and a student of 16 units."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import DQN, PPO

from qpd.phases.distill import distill
from qpd.phases.finetune import finetune
from qpd.phases.preparation import prepare
from qpd.phases.quantize import quantize
from qpd.phases.student_run import open_student
from qpd.recipe.schema import Recipe
from qpd.runs.epoch_report import EpochReport
from qpd.runs.run_directory import RunDirectory

PHASES = (distill, quantize, finetune)


def write_teacher(path: Path) -> None:
    """An untrained PPO agent for CartPole, its head enlarged so that it has opinions."""
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, seed=0, device="cpu")
    with torch.no_grad():
        model.policy.action_net.weight.mul_(400)
    model.save(path)


def write_dqn(path: Path) -> None:
    """An untrained DQN agent for CartPole; without biases it changes its mind."""
    agent = DQN("MlpPolicy", "CartPole-v1", buffer_size=10, seed=3, device="cpu")
    with torch.no_grad():
        agent.policy.q_net.q_net[-1].bias.zero_()
    agent.save(path)


def recipe_of(teacher_zip: Path, **sections: dict[str, Any]) -> Recipe:
    """A tiny experiment: 6 epochs and 4, of 32 updates each; `sections` change it."""
    data: dict[str, Any] = {
        "name": "tiny",
        "seed": 3,
        "teacher": {"source": str(teacher_zip), "algo": "ppo", "env": "CartPole-v1"},
        "student": {"size": "mlp-16"},
        "environment": {"num_envs": 4, "max_frames": 60},
        "collection": {"student_fraction": 0.0},
        "replay": {"capacity": 512, "refresh_fraction": 0.25},
        "distill": {"epochs": 6, "batch_size": 16, "lr": 0.003, "precision": "fp32"},
        "finetune": {"epochs": 4, "batch_size": 16, "precision": "fp32"},
        "quantize": {"weight_bits": 4, "calibration_samples": 128},
        "evaluation": {"episodes": 4, "validation_episodes": 3, "acting": "sample"},
        "save": {"tensorboard": False},
    }
    for name, section in sections.items():
        data[name] = {**data.get(name, {}), **section}
    return Recipe.model_validate(data)


class Interrupt(BaseException):
    """As KeyboardInterrupt: nothing in the code expects it."""


class Follower:
    """A progress display that keeps notes, and interrupts where it is told."""

    def __init__(self, interrupt: Callable[[str, str, int], bool] | None = None) -> None:
        self.notes: list[str] = []
        self.reports: list[EpochReport] = []
        self.name, self.epoch_number = "", 0
        self.interrupt = interrupt

    def hear(self, event: str) -> None:
        if self.interrupt is not None and self.interrupt(event, self.name, self.epoch_number):
            raise Interrupt

    def phase(self, name: str, total_epochs: int, first_epoch: int) -> None:
        self.name, self.epoch_number = name, first_epoch

    def filling(self, done: int, total: int) -> None:
        if done > total // 2:
            self.hear("filling")

    def batch(self, done: int, total: int, loss: float, samples_per_second: float) -> None:
        self.hear("batch")

    def epoch(self, report: EpochReport, label: str = "") -> None:
        self.epoch_number = report.epoch
        self.reports.append(report)
        self.hear("epoch")

    def episodes(self, what: str, done: int, total: int) -> None:
        self.hear("episodes")

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warning(self, text: str) -> None:
        self.notes.append(f"warning: {text}")


def work(path: Path, recipe: Recipe, follower: Follower) -> Follower:
    """All three phases in this process, as `qpd run` does them."""
    with RunDirectory.create(path, recipe) as run:
        with open_student(run, prepare(recipe, "cpu"), follower) as (student, play):
            for phase in PHASES:
                phase(student, play, follower)
    return follower


STUDENTS = ("distilled.safetensors", "ptq.safetensors", "quantized.safetensors")


def outcome(path: Path) -> dict[str, Any]:
    """Return what interruptions must not change: students, bit for bit; metrics but for the speed.

    A student's header is compared as JSON: safetensors writes its metadata in random order.
    """
    with (path / "metrics.csv").open() as file:
        rows = [{**row, "samples_per_second": ""} for row in csv.DictReader(file)]
    result: dict[str, Any] = {"metrics": rows}
    for name in STUDENTS:
        data = (path / name).read_bytes()
        size = 8 + int.from_bytes(data[:8], "little")
        result[name] = (json.loads(data[8:size]), data[size:])
    return result
