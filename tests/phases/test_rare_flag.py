"""A flag that decides, and is nearly always 1: the student reacts to it as its agent does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO

import qpd

RARE, STEPS = 1 / 3000, 1000


class Emergency(gymnasium.Env[np.ndarray, int]):
    """In 1 of 3,000 steps the first feature is 0, and the button is to be pressed then alone."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}
    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def _see(self) -> np.ndarray:
        self._well = float(self.np_random.random() > RARE)
        return np.array([self._well, self.np_random.random()], np.float32)

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(**options)
        self._step = 0
        return self._see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        is_right = int(action) == int(self._well == 0)
        reward = 1.0 if is_right else -float(STEPS) * (self._well == 0)
        self._step += 1
        return self._see(), reward, False, self._step >= STEPS, {}


@pytest.mark.slow
def test_a_student_reacts_to_a_flag_of_one_step_in_3000(tmp_path: Path) -> None:
    gymnasium.register("Emergency-v0", Emergency)
    agent = PPO("MlpPolicy", "Emergency-v0", policy_kwargs={"net_arch": []}, seed=0, device="cpu")
    with torch.no_grad():
        head = agent.policy.action_net
        head.weight.zero_()
        head.bias.zero_()
        head.weight[0, 0], head.bias[0] = 12.0, -6.0
    agent.save(tmp_path / "agent.zip")
    run = qpd.run(
        "agent/vector",
        teacher=str(tmp_path / "agent.zip"),
        env="Emergency-v0",
        overrides=[
            *("student.size=mlp-32", "replay.capacity=20000", "environment.num_envs=8"),
            # Beside the critic's loss it is not learned in ten times the samples.
            *("distill.actor_weight=1", "finetune.actor_weight=1"),
            *("distill.epochs=40", "finetune.epochs=2", "evaluation.episodes=20"),
            *("evaluation.validation_episodes=5", "evaluation.validate_every=40"),
        ],
        output=tmp_path / "run",
    )
    means = {name: found["mean"] for name, found in run.manifest.evaluations.items()}
    assert means["teacher"] == means["distilled"] == 1000.0
    assert means["qat"] > 900.0  # blind to the flag it had 449
