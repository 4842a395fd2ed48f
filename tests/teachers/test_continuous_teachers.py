"""Teachers with continuous and several actions equal the SB3 agents that were saved."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import ARS, TQC, TRPO
from stable_baselines3 import A2C, DDPG, PPO, SAC, TD3
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from qpd.actions import Box, Discrete, MultiBinary, MultiDiscrete
from qpd.environments.policy import network_policy
from qpd.teachers import Teacher, TeacherError, load_teacher
from qpd.teachers.sb3_policy import build_sb3_policy, sb3_logits
from tests.teachers.agents_of_any_space import (
    Anything,
    assert_acts_as,
    assert_deviates_as,
    assert_values_as,
    box,
    observations_for,
    perturbed,
    saved,
)

torch.set_num_threads(1)
ODD = box((-0.4, 3.0), (-2.0, -1.0), (0.0, 100.0))
MEMORY = {"buffer_size": 10, "device": "cpu"}
STEPS: dict[Any, dict[str, Any]] = {
    PPO: {"n_steps": 8, "batch_size": 8, "device": "cpu"},
    A2C: {"device": "cpu"},
    TRPO: {"n_steps": 8, "batch_size": 8, "device": "cpu"},
    ARS: {"device": "cpu"},
}


def made(kind: Any, space: spaces.Space[Any] = ODD, **options: Any) -> Any:
    given = STEPS.get(kind, MEMORY) | options
    policy = given.pop("policy", "MlpPolicy")
    given["policy_kwargs"] = dict(given.get("policy_kwargs", {}))  # SB3 writes into it
    return kind(policy, Anything(space), seed=0, **given)


def assert_equals_sb3s_policy(teacher: Teacher) -> None:
    """Return what `qpd bench` compares with: the policy built from the tensors alone."""
    policy = build_sb3_policy(teacher)
    observations = torch.from_numpy(observations_for(teacher))
    with torch.inference_mode():
        expected = sb3_logits(policy)(observations)
        found = teacher.network(teacher.preprocess(observations))[0]
        found = found[:, : teacher.actions.num_outputs]
        # TD3, DDPG and ARS: SB3's module ends in the tanh.
        if isinstance(teacher.actions, Box) and teacher.actions.labels == "deterministic":
            found = found.tanh() if teacher.actions.squash == "tanh" else found
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [PPO, A2C, TRPO])
@pytest.mark.parametrize(
    "space", [spaces.MultiDiscrete([3, 2, 4]), spaces.MultiBinary(4), ODD, spaces.Discrete(3)]
)
def test_actor_critics_of_every_space(kind: Any, space: spaces.Space[Any], tmp_path: Path) -> None:
    agent = made(kind, space)
    teacher = saved(agent, tmp_path / "agent.zip")
    expected: dict[type, Any] = {
        spaces.MultiDiscrete: MultiDiscrete((3, 2, 4)),
        spaces.MultiBinary: MultiBinary(4),
        spaces.Discrete: Discrete(3),
    }
    if isinstance(space, spaces.Box):
        low, high = (tuple(map(float, bound)) for bound in (space.low, space.high))
        assert teacher.actions == Box(low, high, "clip", "gaussian")
        assert_deviates_as(teacher, agent)
    else:
        assert teacher.actions == expected[type(space)]
    assert teacher.algo == kind.__name__.lower() and teacher.has_critic
    assert_acts_as(teacher, agent)
    assert_values_as(teacher, agent)
    assert_equals_sb3s_policy(teacher)


GSDE: list[dict[str, Any]] = [
    {},
    {"squash_output": True},
    {"use_expln": True, "log_std_init": 0.0},
    {"full_std": False, "squash_output": True},
    {"activation_fn": nn.ELU, "net_arch": {"pi": [], "vf": [8]}},
]


@pytest.mark.parametrize("policy_kwargs", GSDE)
def test_actor_critics_under_gsde(policy_kwargs: dict[str, Any], tmp_path: Path) -> None:
    agent = made(PPO, use_sde=True, policy_kwargs=policy_kwargs)
    teacher = saved(agent, tmp_path / "agent.zip")
    squash = "tanh" if policy_kwargs.get("squash_output") else "clip"
    assert isinstance(teacher.actions, Box) and teacher.actions.squash == squash
    assert_acts_as(teacher, agent)
    assert_values_as(teacher, agent)
    assert_deviates_as(teacher, agent)
    assert_equals_sb3s_policy(teacher)
    assert teacher.num_parameters == sum(p.numel() for p in agent.policy.parameters())


@pytest.mark.parametrize("kind", [SAC, TQC, TD3, DDPG])
@pytest.mark.parametrize(
    "policy_kwargs",
    [
        {},
        {"net_arch": {"pi": [16], "qf": [8, 8, 8]}, "activation_fn": nn.SiLU},
        {"net_arch": [], "n_critics": 3},
    ],
)
def test_off_policy_agents(kind: Any, policy_kwargs: dict[str, Any], tmp_path: Path) -> None:
    agent = made(kind, policy_kwargs=policy_kwargs)
    teacher = saved(agent, tmp_path / "agent.zip")
    assert (teacher.algo, teacher.has_critic) == (kind.__name__.lower(), True)
    labels = "gaussian" if kind in (SAC, TQC) else "deterministic"
    assert isinstance(teacher.actions, Box)
    assert (teacher.actions.squash, teacher.actions.labels) == ("tanh", labels)
    assert teacher.activation == policy_kwargs.get("activation_fn", nn.ReLU).__name__
    assert_acts_as(teacher, agent)
    assert_values_as(teacher, agent)
    assert_equals_sb3s_policy(teacher)
    if labels == "gaussian":
        assert_deviates_as(teacher, agent)
    trained = [p for name, p in agent.policy.named_parameters() if "target" not in name]
    assert teacher.num_parameters == sum(p.numel() for p in trained)


@pytest.mark.parametrize("kind", [SAC, TQC])
@pytest.mark.parametrize(
    "policy_kwargs", [{}, {"clip_mean": 0.7}, {"clip_mean": 0.0}, {"use_expln": True}]
)
def test_clipped_means_under_gsde(kind: Any, policy_kwargs: dict[str, Any], tmp_path: Path) -> None:
    agent = made(kind, use_sde=True, policy_kwargs=policy_kwargs)
    with torch.no_grad():
        mean = agent.actor.mu if isinstance(agent.actor.mu, nn.Linear) else agent.actor.mu[0]
        mean.weight.mul_(20.0)  # beyond every bound
    teacher = saved(agent, tmp_path / "agent.zip")
    assert_acts_as(teacher, agent)
    assert_values_as(teacher, agent)
    assert_deviates_as(teacher, agent)
    labels = teacher(torch.from_numpy(observations_for(teacher))).labels
    largest = float(labels[:, : teacher.actions.num_outputs].abs().max())
    bound = policy_kwargs.get("clip_mean", 2.0)
    assert largest == pytest.approx(bound) if bound else largest > 3.0


def test_rounded_tanh_is_within_odd_bounds(tmp_path: Path) -> None:
    """float32's -0.4 + 0.5 * 2 * 3.4 is 3.0000002: SB3 leaves the bounds, we do not."""
    agent = made(TD3)
    with torch.no_grad():
        agent.actor.mu[-2].bias.fill_(50.0)
    teacher = saved(agent, tmp_path / "agent.zip")
    assert_acts_as(teacher, agent)


@pytest.mark.parametrize(
    ("policy", "policy_kwargs", "squash", "widths"),
    [
        ("MlpPolicy", {}, "tanh", (64, 64)),
        ("MlpPolicy", {"net_arch": [16], "with_bias": False}, "tanh", (16,)),
        ("MlpPolicy", {"squash_output": False, "activation_fn": nn.Tanh}, "clip", (64, 64)),
        ("MlpPolicy", {"net_arch": []}, "tanh", ()),
        ("LinearPolicy", {}, "clip", ()),
        ("LinearPolicy", {"with_bias": True, "squash_output": True}, "tanh", ()),
    ],
)
def test_random_search(
    policy: str, policy_kwargs: dict[str, Any], squash: str, widths: tuple[int, ...], tmp_path: Path
) -> None:
    agent = made(ARS, policy=policy, policy_kwargs=policy_kwargs)
    teacher = saved(agent, tmp_path / "agent.zip")
    assert (teacher.algo, teacher.has_critic, teacher.hidden_widths) == ("ars", False, widths)
    assert isinstance(teacher.actions, Box)
    assert (teacher.actions.squash, teacher.actions.labels) == (squash, "deterministic")
    assert_acts_as(teacher, agent)
    assert_equals_sb3s_policy(teacher)
    assert not teacher(torch.from_numpy(observations_for(teacher))).values.any()
    assert teacher.num_parameters == sum(p.numel() for p in agent.policy.parameters())


def test_random_search_among_discrete_actions(tmp_path: Path) -> None:
    agent = made(ARS, spaces.Discrete(3), policy="LinearPolicy")
    teacher = saved(agent, tmp_path / "agent.zip")
    assert teacher.actions == Discrete(3, "q_values") and not teacher.has_critic
    assert_acts_as(teacher, agent)


@pytest.mark.parametrize("shared", [True, False])
def test_images_and_continuous_actions(shared: bool, tmp_path: Path) -> None:
    """Actor and critic with an extractor of their own, or with one."""
    kwargs = {"share_features_extractor": shared, "net_arch": [8]}
    kwargs |= {"features_extractor_kwargs": {"features_dim": 16}}
    env = Anything(ODD, (4, 36, 36))
    for agent in (
        PPO("CnnPolicy", env, policy_kwargs=dict(kwargs), seed=0, **STEPS[PPO]),
        SAC("CnnPolicy", env, policy_kwargs=dict(kwargs), seed=0, **MEMORY),
        TD3("CnnPolicy", env, policy_kwargs=dict(kwargs), seed=0, **MEMORY),
    ):
        teacher = saved(agent, tmp_path / "agent.zip")
        assert teacher.is_image and teacher.observation_shape == (4, 36, 36)
        assert_acts_as(teacher, agent)
        assert_values_as(teacher, agent)
        bfloat16 = teacher.in_precision(torch.bfloat16)
        observations = torch.from_numpy(observations_for(teacher))
        labels, fast = teacher(observations).labels, bfloat16(observations).labels
        torch.testing.assert_close(fast, labels, rtol=0.1, atol=0.1)


def test_actions_of_several_axes(tmp_path: Path) -> None:
    space = spaces.Box(-np.arange(1, 7, dtype=np.float32).reshape(2, 3), np.float32(7))
    for kind in (PPO, SAC):
        agent = made(kind, space)
        teacher = saved(agent, tmp_path / "agent.zip")
        assert teacher.actions.shape == (2, 3)
        assert_acts_as(teacher, agent)


def test_observations_of_several_axes_that_are_no_image_are_vectors(tmp_path: Path) -> None:
    """As the environment shows them, with VecNormalize's statistics of their own shape."""
    space = spaces.Box(-9.0, 9.0, (3, 4))
    env = VecNormalize(DummyVecEnv([lambda: Anything(spaces.Discrete(3), (3, 4))]))
    assert env.observation_space.shape == space.shape
    env.obs_rms.update(np.random.default_rng(0).normal(2.0, 3.0, (50, 3, 4)))
    agent = perturbed(PPO("MlpPolicy", env, seed=0, **STEPS[PPO]))
    agent.save(tmp_path / "agent.zip")
    env.save(str(tmp_path / "vecnormalize.pkl"))
    statistics = tmp_path / "vecnormalize.pkl"
    teacher = load_teacher(tmp_path / "agent.zip", vec_normalize=statistics)
    assert teacher.observation_shape == (12,)
    raw = np.random.default_rng(1).normal(size=(40, 3, 4)).astype(np.float32)
    shown = torch.from_numpy(env.normalize_obs(raw))
    wanted = agent.policy.get_distribution(shown).distribution.logits
    found = torch.log_softmax(teacher(torch.from_numpy(raw).flatten(1)).labels, 1)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


def changed(agent: Any, path: Path, change: Change) -> Path:
    """Save the agent with other plain data and tensors."""
    agent.save(path)
    with zipfile.ZipFile(path) as archive:
        data = json.loads(archive.read("data"))
        tensors = torch.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)
    change(data, tensors)
    content = io.BytesIO()
    torch.save(tensors, content)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps(data))
        archive.writestr("policy.pth", content.getvalue())
    return path


def without_bounds(data: dict[str, Any], _tensors: dict[str, torch.Tensor]) -> None:
    data["action_space"] = {":type:": "<class 'gym.spaces.box.Box'>"}


def test_bounds_that_only_the_environment_tells(tmp_path: Path) -> None:
    agent = PPO("MlpPolicy", "Pendulum-v1", **STEPS[PPO])
    path = changed(agent, tmp_path / "agent.zip", without_bounds)
    assert load_teacher(path, env_id="Pendulum-v1").actions == Box((-2.0,), (2.0,))
    for env_id, said in (
        (None, "the bounds of its actions are not stored; give --env"),
        ("Nowhere-v0", r"not stored and Nowhere-v0 cannot be made \(gymnasium knows no"),
        ("antigravity:X-v0", "gymnasium knows no environment antigravity:X-v0"),
        ("CartPole-v1", "has continuous actions, CartPole-v1 has 2 actions"),
        ("BipedalWalker-v3", "network has 1 outputs, its action space 4 continuous actions .* 4"),
    ):
        with pytest.raises(TeacherError, match=f"agent.zip: .*{said}") as caught:
            load_teacher(path, env_id=env_id)
        assert "\n" not in str(caught.value)


def put(name: str, value: torch.Tensor) -> Change:
    def change(_data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = value

    return change


def drop(prefix: str) -> Change:
    def change(_data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith(prefix)]:
            del tensors[name]

    return change


def space(**fields: Any) -> Change:
    def change(data: dict[str, Any], _tensors: dict[str, torch.Tensor]) -> None:
        data["action_space"] |= fields

    return change


def option(name: str, value: Any) -> Change:
    def change(data: dict[str, Any], _tensors: dict[str, torch.Tensor]) -> None:
        data["policy_kwargs"] = {name: value}

    return change


NAN = torch.tensor([1.0, float("nan"), 1.0])
DAMAGE: list[tuple[Any, Change, str]] = [
    (PPO, drop("log_std"), "tensor 'log_std' is missing; a policy of continuous actions has it"),
    (PPO, put("log_std", NAN), "tensor 'log_std' contains NaN or infinity"),
    (PPO, put("log_std", torch.zeros(2)), r"'log_std' has shape \(2,\); expected \(3,\) or"),
    (PPO, put("log_std", torch.zeros(64, 4)), r"'log_std' has shape \(64, 4\); expected"),
    (PPO, put("log_std", torch.tensor(0.0)), r"'log_std' has shape \(\)"),
    (PPO, put("log_std", torch.full((64, 3), 3e4)), "its outputs are not finite, or beyond"),
    (PPO, drop("value_net"), "tensor 'value_net.weight' is missing"),
    (PPO, space(low="[-inf -2. 0.]"), "an action from -inf to 3: bounds must be finite"),
    (PPO, space(low="[-0.4 -2.]"), r"bounds of 2 and 3 numbers for actions of shape \(3,\)"),
    (PPO, space(low="[9. -2. 0.]"), "an action from 9 to 3: bounds must be finite, and the lower"),
    (PPO, space(_shape=[4]), r"bounds of 3 and 3 numbers for actions of shape \(4,\)"),
    (PPO, space(low="[-1. -1.]", high="[1. 1.]", _shape=[2]), "has 3 outputs, its action space 2"),
    (PPO, space(**{":type:": "gym.spaces.Discrete'", "n": 3}), "tensors are those of ppo with box"),
    (PPO, space(**{":type:": "gym.spaces.dict.Dict'"}), "actions are Dict; expected Discrete, Mul"),
    (SAC, drop("actor.log_std"), "tensor 'log_std' is missing"),
    (SAC, put("actor.log_std.weight", torch.zeros(2, 256)), "'log_std' has weight"),
    (SAC, put("actor.mu.weight", torch.zeros(3, 255)), "'log_std.weight' has shape"),
    (SAC, put("actor.mu.bias", NAN), "tensor 'mu.bias' contains NaN"),
    (SAC, drop("critic.qf"), "tensor 'critic.qf0.0.weight' is missing"),
    (SAC, put("critic.qf0.0.weight", torch.zeros(256, 7)), "layers do not fit each other"),
    (SAC, put("actor.sde_net.0.weight", torch.zeros(2, 2)), "unknown network part 'sde_net"),
    (SAC, put("gru.weight", torch.zeros(2, 2)), "unknown network part 'gru.weight'"),
    (TD3, drop("actor."), "belong to no supported agent; expected action_net"),
    (TD3, drop("actor.mu.4"), "outputs, its action space 3 continuous actions .* needs 3"),
    (TD3, put("critic.qf1.4.weight", torch.zeros(2, 300)), "'4' has weight"),
    (ARS, put("action_net.0.weight", torch.zeros(0, 5)), r"'0' has weight \(0, 5\)"),
    (ARS, drop("action_net.4.weight"), "has 64 outputs, its action space 3 continuous"),
    (SAC, option("clip_mean", "__import__('os')"), "clip_mean of its policy_kwargs is"),
    (SAC, option("activation_fn", "<class 'torch.nn.PReLU'>"), "activation 'PReLU' is not suppo"),
]


@pytest.mark.parametrize(("kind", "change", "said"), DAMAGE)
def test_damaged_agents_are_one_line(kind: Any, change: Change, said: str, tmp_path: Path) -> None:
    path = changed(made(kind), tmp_path / "agent.zip", change)
    with pytest.raises(TeacherError, match=f"agent.zip: .*{said}") as caught:
        load_teacher(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize("kind", [PPO, TQC, TD3])
def test_a_teacher_that_plays_asks_no_critic(kind: Any, tmp_path: Path) -> None:
    teacher = saved(made(kind), tmp_path / f"{kind.__name__}-X-v0.zip")
    observations = observations_for(teacher)
    with torch.inference_mode():
        labels = teacher(torch.from_numpy(observations))[0].numpy()
    network: Any = teacher.network

    def judge(*args: Any) -> Any:
        raise AssertionError("a critic was asked")

    for part in (network.value_net, network.value_head) if kind is PPO else [network.critics]:
        part.forward = judge
    with pytest.raises(AssertionError, match="a critic was asked"):
        teacher(torch.from_numpy(observations))
    np.testing.assert_array_equal(network_policy(teacher, teacher.actions)(observations), labels)
