"""An agent as a student: the same outputs, whatever its algorithm; and its chain of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import ARS, QRDQN, TQC
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from torch import nn

from qpd.actions import Box
from qpd.agents.agent_student import (
    agent_student,
    student_actions_of,
    why_no_student,
    within_clip,
)
from qpd.agents.errors import AgentQuantizationError
from qpd.teachers import Teacher
from qpd.teachers.archive.vec_normalize import ObservationNormalization
from qpd.teachers.networks.actor import actor_of
from tests.teachers.agents_of_any_space import NUM_INPUTS, Anything, box, saved

ODD = box((-0.4, 3.0), (-2.0, -1.0), (0.0, 100.0))
STEPS = {"n_steps": 8, "batch_size": 8}
RELU = {"policy_kwargs": {"activation_fn": nn.ReLU}}
MEMORY = {"buffer_size": 10}
AGENTS: list[tuple[Any, spaces.Space[Any], dict[str, Any]]] = [
    (DQN, spaces.Discrete(3), MEMORY),
    (QRDQN, spaces.Discrete(3), MEMORY | {"policy_kwargs": {"n_quantiles": 7}}),
    (DDPG, ODD, MEMORY),
    (TD3, ODD, MEMORY),
    (SAC, ODD, MEMORY),
    (SAC, ODD, MEMORY | {"use_sde": True, "policy_kwargs": {"clip_mean": 0.3}}),
    (TQC, ODD, MEMORY),
    (ARS, ODD, {"policy_kwargs": {"net_arch": [8]}}),
    (ARS, spaces.Discrete(3), {"policy": "LinearPolicy"}),
    (PPO, ODD, STEPS | RELU),
    (PPO, ODD, STEPS),  # tanh
    (A2C, ODD, {"n_steps": 8, "policy_kwargs": {"activation_fn": torch.nn.ELU}}),
    (PPO, spaces.MultiDiscrete([3, 2]), STEPS | RELU),
]
NAMES = [f"{kind.__name__}-{type(space).__name__}" for kind, space, _ in AGENTS]


def made(kind: Any, space: spaces.Space[Any], options: dict[str, Any], path: Path) -> Teacher:
    options = {**options, "policy_kwargs": dict(options.get("policy_kwargs", {}))}
    policy = options.pop("policy", "MlpPolicy")
    return saved(kind(policy, Anything(space), seed=0, device="cpu", **options), path)


def seen_by(teacher: Teacher, count: int = 1000) -> torch.Tensor:
    return 3 * torch.randn(count, NUM_INPUTS, generator=torch.Generator().manual_seed(0))


def outputs_of(teacher: Teacher, observations: torch.Tensor) -> torch.Tensor:
    return teacher(observations).labels[:, : teacher.actions.num_outputs]


@pytest.mark.parametrize(("kind", "space", "options"), AGENTS, ids=NAMES)
def test_the_student_is_the_agent(
    kind: Any, space: spaces.Space[Any], options: dict[str, Any], tmp_path: Path
) -> None:
    teacher = made(kind, space, options, tmp_path / "agent.zip")
    seen = seen_by(teacher)
    student = agent_student(teacher, seen.amin(0), seen.amax(0))
    wanted, found = outputs_of(teacher, seen).numpy(), student(seen).actor.numpy()
    actions, size = student_actions_of(teacher), max(1.0, float(np.abs(found).max()))
    if isinstance(actions, Box) and actions.mean_bound is not None:
        assert (np.abs(found) > actions.mean_bound).any()  # the clip is at work
        wanted, found = teacher.actions.squashed(wanted), actions.squashed(found)  # type: ignore[attr-defined]
    # float32's own rounding of sums that cancel, beside the largest output.
    assert np.abs(found - wanted).max() <= 1e-6 * size


def test_normalization_and_its_clip_are_in_the_first_layer(tmp_path: Path) -> None:
    teacher = made(SAC, ODD, MEMORY, tmp_path / "agent.zip")
    generator = np.random.default_rng(0)
    mean, var = generator.normal(size=NUM_INPUTS), generator.uniform(0.1, 4.0, NUM_INPUTS)
    del teacher._mean, teacher._deviation, teacher._clip  # an agent's own, which it has none of
    teacher.normalization = ObservationNormalization(mean, var, 1e-8, 1.5)
    teacher._register_normalization(teacher.normalization)
    seen = seen_by(teacher)
    inputs = teacher.preprocess(seen)
    assert (inputs.abs() == 1.5).any()
    student = agent_student(teacher, seen.amin(0), seen.amax(0))
    wanted = outputs_of(teacher, seen)
    torch.testing.assert_close(student(seen).actor, wanted, rtol=0, atol=2e-6)


def test_a_feature_beyond_its_clip_is_the_clip(tmp_path: Path) -> None:
    # Constant in training, so that its deviation is 1e-4, and far away in play: -5 and 5.
    teacher = made(SAC, ODD, MEMORY, tmp_path / "agent.zip")
    mean, var = np.zeros(NUM_INPUTS), np.ones(NUM_INPUTS)
    var[:2] = 0.0
    del teacher._mean, teacher._deviation, teacher._clip
    teacher.normalization = ObservationNormalization(mean, var, 1e-8, 10.0)
    teacher._register_normalization(teacher.normalization)
    seen = seen_by(teacher)
    seen[:, 0], seen[:, 1] = 5.0 + 0.01 * seen[:, 0], -5.0 + 0.01 * seen[:, 1]
    low, high = seen.amin(0), seen.amax(0)
    student, wanted = agent_student(teacher, low, high), outputs_of(teacher, seen)
    torch.testing.assert_close(student(seen).actor, wanted, rtol=0, atol=1e-5)
    # Also after the range is widened, as that of a float student is, and where a part is clipped.
    student.move_input_range(*within_clip(teacher.normalization, low - 1, high + 1))
    torch.testing.assert_close(student(seen).actor, wanted, rtol=0, atol=1e-5)
    seen[:500, 0] = seen[:500, 0] * 1e-4
    student = agent_student(teacher, seen.amin(0), seen.amax(0))
    wanted = outputs_of(teacher, seen)
    torch.testing.assert_close(student(seen).actor, wanted, rtol=0, atol=1e-5)


def test_a_cnn_is_a_student_of_frames(tmp_path: Path) -> None:
    env = Anything(spaces.Discrete(3), (4, 84, 84))
    kwargs = {"net_arch": [16]}
    agent = DQN("CnnPolicy", env, buffer_size=2, seed=0, device="cpu", policy_kwargs=kwargs)
    teacher = saved(agent, tmp_path / "agent.zip")
    frames = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (8, 4, 84, 84), dtype=np.uint8)
    )
    student = agent_student(teacher, torch.zeros(1), torch.ones(1))
    assert student.architecture.widths == "32-64-64+512-16"
    wanted = outputs_of(teacher, frames)
    atol = 2e-6 * float(wanted.abs().max())  # sums of 3,136 products, in another order
    torch.testing.assert_close(student(frames).actor, wanted, rtol=0, atol=atol)
    assert [layer.columns for layer in actor_of(teacher.network, "ReLU").layers] == [
        4, 32, 64, 64, 512, 16,
    ]  # fmt: skip


def test_quantiles_become_their_mean(tmp_path: Path) -> None:
    options = MEMORY | {"policy_kwargs": {"n_quantiles": 50}}
    teacher = made(QRDQN, spaces.Discrete(3), options, tmp_path / "agent.zip")
    actor = actor_of(teacher.network, teacher.activation)
    assert actor.layers[-1].weight.shape == (3, 64)
    seen = seen_by(teacher)
    torch.testing.assert_close(actor(seen), outputs_of(teacher, seen), rtol=0, atol=1e-5)


def test_other_activations_are_refused_in_one_line(tmp_path: Path) -> None:
    options = STEPS | {"policy_kwargs": {"activation_fn": torch.nn.Softsign}}
    teacher = made(PPO, ODD, options, tmp_path / "agent.zip")
    assert str(why_no_student(teacher)).startswith("its hidden layers have Softsign; integers know")
    with pytest.raises(AgentQuantizationError, match="agent.zip: its hidden layers have Softsign"):
        agent_student(teacher, torch.zeros(NUM_INPUTS), torch.ones(NUM_INPUTS))
