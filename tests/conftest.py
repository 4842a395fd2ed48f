"""What several test files need."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from stable_baselines3 import PPO


@pytest.fixture(scope="session")
def teacher_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained PPO agent for CartPole, its head enlarged so that it has opinions."""
    path = tmp_path_factory.mktemp("teacher") / "ppo-CartPole-v1.zip"
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, seed=0, device="cpu")
    with torch.no_grad():
        model.policy.action_net.weight.mul_(400)
    model.save(path)
    return path
