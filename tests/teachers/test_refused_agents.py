"""Agents that QPD cannot imitate are named for what they are."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from sb3_contrib import CrossQ, MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3 import A2C, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from torch import nn

import qpd
from qpd.phases.preparation import PreparationError
from qpd.runs.target import TargetError
from qpd.teachers import TeacherError, load_teacher
from qpd.teachers.archive.sb3_archive import MAX_TENSOR_ELEMENTS
from tests.tiny_run import write_teacher


class _Maskable(InvalidActionEnvDiscrete):
    """As sb3_contrib's, whose observations are one number, but in a vector."""

    def __init__(self) -> None:
        super().__init__(dim=4, n_invalid_actions=1)
        self.observation_space = Box(0.0, 1.0, (3,))


@pytest.fixture
def stacked(tmp_path: Path) -> Path:
    env = VecFrameStack(make_vec_env("CartPole-v1"), 3)
    PPO("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu").save(
        tmp_path / "ppo-CartPole-v1.zip"
    )
    return tmp_path / "ppo-CartPole-v1.zip"


def test_a_recurrent_agent(tmp_path: Path) -> None:
    RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=8, device="cpu").save(tmp_path / "a.zip")
    with pytest.raises(TeacherError, match=r"a\.zip: is a recurrent agent .* stacked frames"):
        load_teacher(tmp_path / "a.zip")


def test_a_maskable_agent_does_not_lose_its_masks_unnoticed(tmp_path: Path) -> None:
    MaskablePPO("MlpPolicy", _Maskable(), n_steps=8, device="cpu").save(tmp_path / "a.zip")
    with pytest.raises(TeacherError, match=r"is a MaskablePPO agent: .*masks would be dropped"):
        load_teacher(tmp_path / "a.zip", algo="ppo")


def test_an_agent_of_another_algorithm_is_named_as_its_args_name_it(tmp_path: Path) -> None:
    write_teacher(tmp_path / "CartPole-v1.zip")
    with zipfile.ZipFile(tmp_path / "CartPole-v1.zip") as agent:
        tensors = agent.read("policy.pth")
    with zipfile.ZipFile(tmp_path / "CartPole-v1.zip", "w") as agent:
        agent.writestr("data", "{}")
        agent.writestr("policy.pth", tensors)
    (tmp_path / "args.yml").write_text(
        "!!python/object/apply:collections.OrderedDict\n- - - algo\n    - impala\n"
    )
    with pytest.raises(TeacherError, match="is an agent of IMPALA by its args.yml or name; expect"):
        load_teacher(tmp_path)


def test_crossq_is_named(tmp_path: Path) -> None:
    CrossQ("MlpPolicy", "Pendulum-v1", device="cpu", buffer_size=10).save(tmp_path / "a.zip")
    with pytest.raises(TeacherError, match=r"a\.zip: is a CrossQ agent"):
        load_teacher(tmp_path / "a.zip")


class _Seen(gymnasium.Env):
    """Shows what its space holds."""

    action_space = Discrete(2)

    def __init__(self, space: gymnasium.Space) -> None:
        self.observation_space = space


def test_a_dict_with_images_of_two_sizes_is_named_and_so_is_what_works(tmp_path: Path) -> None:
    sides = {"cam": (40, 40, 3), "rear": (48, 60, 1)}
    images = {key: Box(0, 255, shape, np.uint8) for key, shape in sides.items()}
    space = Dict({"arm": Box(-1, 1, (3,)), **images})
    A2C("MultiInputPolicy", _Seen(space), device="cpu").save(tmp_path / "a.zip")
    said = r"a\.zip: observations are a Dict with images of unlike sizes \(cam 40x40, rear 48x60\)"
    with pytest.raises(TeacherError, match=said):
        load_teacher(tmp_path / "a.zip")


def test_statistics_of_bytes_are_refused(tmp_path: Path) -> None:
    """SB3 shows images that VecNormalize saw as numbers, so that these are of another agent."""
    space = Box(0, 255, (1, 40, 40), np.uint8)
    A2C("CnnPolicy", _Seen(space), device="cpu").save(tmp_path / "a.zip")
    statistics = VecNormalize(DummyVecEnv([lambda: _Seen(space)]))
    statistics.save(str(tmp_path / "vecnormalize.pkl"))
    with pytest.raises(TeacherError, match="statistics of VecNormalize for images of bytes"):
        load_teacher(tmp_path / "a.zip", vec_normalize=tmp_path / "vecnormalize.pkl")


def test_images_in_floating_point_are_named_and_so_is_what_works(tmp_path: Path) -> None:
    kwargs = {"normalize_images": False}
    space = Box(0, 1, (3, 40, 40))
    agent = A2C("CnnPolicy", _Seen(space), policy_kwargs=kwargs, device="cpu")
    agent.save(tmp_path / "a.zip")
    with pytest.raises(TeacherError, match="type float32 .* show whole numbers from 0 to 255"):
        load_teacher(tmp_path / "a.zip")


def test_a_large_shared_extractor_is_no_damage(tmp_path: Path) -> None:
    """SB3 saves it three times, 23 million numbers each, more than are read of one file."""
    agent = A2C("CnnPolicy", _Seen(Box(0, 255, (3, 216, 280), np.uint8)), device="cpu")
    agent.save(tmp_path / "a.zip")
    teacher = load_teacher(tmp_path / "a.zip")
    assert teacher.num_parameters > MAX_TENSOR_ELEMENTS / 3
    assert teacher.num_parameters == sum(each.numel() for each in agent.policy.parameters())


def test_a_features_extractor_of_ones_own(tmp_path: Path) -> None:
    class Twice(FlattenExtractor):
        pass

    kwargs = {"features_extractor_class": Twice}
    agent = SAC("MlpPolicy", "Pendulum-v1", policy_kwargs=kwargs, device="cpu", buffer_size=10)
    agent.save(tmp_path / "a.zip")
    said = "features extractor .*Twice'> is not supported; expected SB3's NatureCNN, Flatten"
    with pytest.raises(TeacherError, match=said):
        load_teacher(tmp_path / "a.zip")


class ReLU(nn.ReLU):
    """An activation of the user's own, by the name of PyTorch's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square()


class Narrow(ActorCriticPolicy):
    """A policy of the user's own, whose settings are not saved as `policy_kwargs`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "net_arch": [16], "activation_fn": nn.ReLU})


@pytest.mark.parametrize(
    ("policy", "activation", "said"),
    [
        (Narrow, nn.Tanh, r"its policy is a class of tests\.teachers\.test_refused_agents, which"),
        ("MlpPolicy", ReLU, r"activation <class '.*\.ReLU'> is not supported; expected PyTorch's"),
        ("MlpPolicy", partial(nn.LeakyReLU, 0.5), r"activation functools\.partial\(<class 'torch"),
    ],
)
def test_policies_and_activations_of_ones_own(
    policy: Any, activation: Any, said: str, tmp_path: Path
) -> None:
    kwargs = {"activation_fn": activation}
    PPO(policy, "CartPole-v1", n_steps=8, batch_size=8, policy_kwargs=kwargs, device="cpu").save(
        tmp_path / "a.zip"
    )
    with pytest.raises(TeacherError, match=said):
        load_teacher(tmp_path / "a.zip", algo="ppo")


def test_stacked_vectors_are_recognised(stacked: Path, tmp_path: Path) -> None:
    said = r"\(12,\), CartPole-v1 gives \(4,\): 3 of them stacked \(VecFrameStack\)\?"
    with pytest.raises(TargetError, match=said):
        qpd.evaluate(stacked)
    with pytest.raises(PreparationError, match=said):
        qpd.distill("agent/vector", teacher=stacked, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
