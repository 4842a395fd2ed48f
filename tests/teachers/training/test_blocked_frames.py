"""SB3's NatureCNN computed from bytes, beside SB3's own arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sb3_contrib import QRDQN
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn

from qpd.teachers.training.atari_vec_env import AtariVecEnv
from qpd.teachers.training.blocked_frames import use_blocked_frames

torch.set_num_threads(1)
# Two roundings to bfloat16 (8 significand bits) in each of four layers: a few hundredths.
TOLERANCE = 0.03


@pytest.fixture
def env() -> Any:
    env = AtariVecEnv("BreakoutNoFrameskip-v4", 2, seed=0)
    yield env
    env.close()


def frames(count: int) -> torch.Tensor:
    drawn = np.random.default_rng(0).integers(0, 256, (count, 4, 84, 84), np.uint8)
    return torch.from_numpy(drawn)


def extracting(model: Any) -> list[Any]:
    """Return the parts of a model that extract features themselves."""
    return [
        module for module in model.policy.modules()
        if isinstance(module, BaseModel) and isinstance(module.features_extractor, NatureCNN)
    ]  # fmt: skip


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= TOLERANCE * theirs.abs().max())


@pytest.mark.parametrize("algorithm", [PPO, DQN, QRDQN])
def test_features_and_gradients_are_sb3s_up_to_bfloat16(algorithm: Any, env: AtariVecEnv) -> None:
    room = {} if algorithm is PPO else {"buffer_size": 10}
    model = algorithm("CnnPolicy", env, device="cpu", seed=0, **room)
    modules = extracting(model)
    assert len(modules) == (1 if algorithm is PPO else 2)  # Q-networks have a target
    plain = []
    for module in modules:
        features = module.extract_features(frames(8), module.features_extractor)
        gradients = torch.autograd.grad(
            features.square().sum(), list(module.features_extractor.parameters())
        )
        plain.append((features, gradients))
    use_blocked_frames(model)
    for module, (features, gradients) in zip(modules, plain, strict=True):
        ours = module.extract_features(frames(8), module.features_extractor)
        assert close(ours, features) and not torch.equal(ours, features)
        found = torch.autograd.grad(
            ours.square().sum(), list(module.features_extractor.parameters())
        )
        for one, other in zip(found, gradients, strict=True):
            assert close(one, other)


def test_layers_that_learn_in_few_bits_are_asked_themselves(env: AtariVecEnv) -> None:
    class Doubling(nn.Conv2d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    model = PPO("CnnPolicy", env, device="cpu", seed=0)
    policy: Any = model.policy
    extractor = policy.features_extractor
    use_blocked_frames(model)
    before = policy.extract_features(frames(2))
    extractor.cnn[4].__class__ = Doubling  # as qpd.teachers.training.quantization_aware does
    doubled = policy.extract_features(frames(2))
    assert torch.equal(doubled, extractor(frames(2).float() / 255.0))
    assert not close(doubled, before)


def test_the_agent_is_saved_as_sb3_saves_it(env: AtariVecEnv, tmp_path: Path) -> None:
    model = PPO("CnnPolicy", env, n_steps=8, batch_size=16, device="cpu", seed=0)
    use_blocked_frames(model)
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.learn(16)
    model.save(tmp_path / "agent.zip")
    loaded = PPO.load(tmp_path / "agent.zip", device="cpu")
    for name, value in loaded.policy.state_dict().items():
        assert torch.equal(value, model.policy.state_dict()[name])
    learned = loaded.policy.state_dict()["features_extractor.cnn.0.weight"]
    assert not torch.equal(learned, before["features_extractor.cnn.0.weight"])
    seen = frames(4)
    values = loaded.policy.predict_values(seen)
    assert close(model.policy.predict_values(seen), values)
