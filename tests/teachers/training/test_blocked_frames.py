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

from qpd.students.shared_background import SharedFrames
from qpd.students.student import space_to_depth
from qpd.teachers.training.atari_vec_env import AtariVecEnv
from qpd.teachers.training.blocked_frames import blocked_features, use_blocked_frames

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


def played(env: AtariVecEnv, count: int) -> torch.Tensor:
    """Return what random play shows, uint8 `[count, 4, 84, 84]`, in an order that is shuffled."""
    draw, seen = np.random.default_rng(0), [env.reset()]
    while len(seen) * env.num_envs < count:
        seen.append(env.step(draw.integers(0, 4, env.num_envs))[0])
    return torch.from_numpy(draw.permutation(np.concatenate(seen))[:count])


def test_what_a_batch_has_in_common_is_multiplied_once_where_it_is_learned_from(
    env: AtariVecEnv,
) -> None:
    extractor: Any = PPO("CnnPolicy", env, device="cpu", seed=0).policy.features_extractor
    seen, parameters = played(env, 64), list(extractor.parameters())
    plan = SharedFrames.of(space_to_depth(seen)).plan
    assert plan is not None and plan.multiplied.conv2 < 0.5
    each, once = (blocked_features(extractor, seen, shares) for shares in (False, True))
    assert close(once, each) and not torch.equal(once, each)
    gradients = [torch.autograd.grad(x.square().sum(), parameters) for x in (each, once)]
    for one, other in zip(*gradients, strict=True):
        # Not the largest difference: processors without bfloat16 units round partial sums, too, and
        # a single weight is then up to 7% of the largest from float32's, by either way.
        assert (one - other).norm() <= 0.05 * other.norm()
    # Too few share too little, and acting, one step at a time, has fewer.
    few = [blocked_features(extractor, seen[:63], shares) for shares in (False, True)]
    assert torch.equal(*few)
    with torch.no_grad():
        assert torch.equal(blocked_features(extractor, seen), each)


def test_frames_with_nothing_in_common_are_computed_as_ever(env: AtariVecEnv) -> None:
    extractor: Any = PPO("CnnPolicy", env, device="cpu", seed=0).policy.features_extractor
    one, other = (blocked_features(extractor, frames(64), shares) for shares in (False, True))
    assert torch.equal(one, other)


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
