"""A finished run of a student with continuous actions, in seconds: SAC that never learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stable_baselines3 import SAC

from qpd.phases.preparation import prepare
from tests.tiny_run import Follower, recipe_of, work


def continuous_teacher(folder: Path) -> Path:
    """A zip of an untrained agent for Pendulum."""
    teacher = folder / "sac-Pendulum-v1.zip"
    model = SAC(
        "MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [16]}, seed=0, device="cpu",
        buffer_size=10,
    )  # fmt: skip
    model.save(teacher)
    return teacher


def continuous_run(folder: Path, **more: Any) -> Path:
    """The run of all phases; its teacher's zip lies beside it."""
    recipe = recipe_of(
        continuous_teacher(folder),
        teacher={"algo": None, "env": "Pendulum-v1"},
        distill={"epochs": 2},
        finetune={"epochs": 1},
        evaluation={"acting": "auto"},
        **more,
    )
    assert prepare(recipe, "cpu").teacher.actions.kind == "box"
    work(folder / "run", recipe, Follower())
    return folder / "run"
