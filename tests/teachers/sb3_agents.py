"""Small agents of Stable-Baselines3 that never train, and what their own policies give."""

from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import QRDQN
from stable_baselines3 import DQN

from qpd.teachers import Teacher, load_teacher


class TinyImages(gymnasium.Env):
    """Random images of the Atari shape, 3 actions, for saving agents that never train."""

    def __init__(self, size: int = 84, low: int = 0, high: int = 255) -> None:
        self.observation_space = spaces.Box(low, high, (4, size, size), np.uint8)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, True, False, {}


SMALL = {"n_steps": 8, "device": "cpu"}
OFF_POLICY = {"buffer_size": 10, "device": "cpu"}


def perturbed(model):
    """Makes weights generic: a fresh actor-critic has almost zero action logits and biases."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def sb3_outputs(model, observations: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities (or Q-values) and values of SB3's own policy."""
    model.policy.set_training_mode(False)
    # Several axes that are no image are one to QPD.
    observations = observations.reshape(len(observations), *model.observation_space.shape)
    batch, _ = model.policy.obs_to_tensor(observations)
    with torch.no_grad():
        if isinstance(model, QRDQN):
            q_values = model.quantile_net(batch).mean(dim=1)
            return q_values, q_values.amax(1)
        if isinstance(model, DQN):
            q_values = model.q_net(batch)
            return q_values, q_values.amax(1)
        log_probabilities = model.policy.get_distribution(batch).distribution.logits
        return log_probabilities, model.policy.predict_values(batch).squeeze(-1)


def observations_for(teacher: Teacher, batch: int = 7) -> np.ndarray:
    generator = np.random.default_rng(0)
    if teacher.is_image:
        return generator.integers(0, 256, (batch, *teacher.observation_shape), dtype=np.uint8)
    return generator.normal(size=(batch, *teacher.observation_shape)).astype(np.float32)


def assert_equals_sb3(teacher: Teacher, model) -> None:
    observations = observations_for(teacher)
    expected_logits, expected_values = sb3_outputs(model, observations)
    with torch.inference_mode():
        logits, values = teacher(torch.from_numpy(observations))
    assert logits.dtype == values.dtype == torch.float32
    assert logits.shape == (7, teacher.actions.num_labels) and values.shape == (7,)
    if teacher.has_critic:  # SB3 subtracts the log-sum-exp
        # float32 rounding of the log-sum-exp; images that are not divided make large logits
        torch.testing.assert_close(logits.log_softmax(1), expected_logits, rtol=1e-6, atol=1e-5)
    else:
        assert torch.equal(logits, expected_logits)
    assert torch.equal(values, expected_values)
    assert logits.std() > 1e-3  # not trivially equal


def save_and_load(model, path: Path, **options) -> Teacher:
    perturbed(model).save(path)
    return load_teacher(path, **options)
