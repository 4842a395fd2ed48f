"""SAC in half precision on a whole task: the six methods solve it, and without them it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import qpd
from qpd.teachers.training.agent_training import LearningFailedError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

# docs/paper-low-precision-sac.md: about -178 is solved, an untrained agent has about -1,200.
PENDULUM = {
    "learning_rate": 1e-3, "batch_size": 128, "learning_starts": 500, "train_freq": 1,
    "gradient_steps": 1, "net_arch": [128, 128], "train.timesteps": 7000,
    "save.tensorboard": False, "precision.format": "fp16",
}  # fmt: skip


def trained(folder: Path, **more: Any) -> Any:
    torch.set_num_threads(1)
    overrides = PENDULUM | more
    return qpd.train("sac", "Pendulum-v1", overrides=overrides, seed=0, output=folder, device="cpu")


def test_six_methods_solve_pendulum(tmp_path: Path) -> None:
    run = trained(tmp_path / "six")
    games = qpd.evaluate(run, episodes=20, seed=1000, device="cpu")
    assert games.returns.mean() > -250.0


def test_without_them_nothing_is_learned(tmp_path: Path) -> None:
    with pytest.raises(LearningFailedError) as failed:
        trained(tmp_path / "plain", **{"precision.methods": []})
    assert failed.value.timesteps == 501  # its first update
