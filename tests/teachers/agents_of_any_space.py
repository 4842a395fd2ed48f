"""Agents of SB3 that never learned, of any action space, and what SB3 says of their outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from qpd.actions import ActingRule, Box
from qpd.teachers import Teacher, load_teacher

NUM_INPUTS = 5


class Anything(gymnasium.Env[Any, Any]):
    """Random observations, for any actions; episodes of one step."""

    def __init__(self, action_space: spaces.Space[Any], shape: tuple[int, ...] = (NUM_INPUTS,)):
        is_image = len(shape) == 3
        self.observation_space = (
            spaces.Box(0, 255, shape, np.uint8) if is_image else spaces.Box(-9.0, 9.0, shape)
        )
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 0.0, True, False, {}


def box(*bounds: tuple[float, float]) -> spaces.Box:
    low, high = (np.array(bound, np.float32) for bound in zip(*bounds, strict=True))
    return spaces.Box(low, high)


def perturbed(agent: Any) -> Any:
    """Generic weights: those of a fresh actor-critic's heads are almost 0, and deviations equal."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    agent.policy.set_training_mode(False)
    return agent


def saved(agent: Any, path: Path, **options: Any) -> Teacher:
    perturbed(agent).save(path)
    return load_teacher(path, **options)


def observations_for(teacher: Teacher, count: int = 300) -> np.ndarray:
    rng = np.random.default_rng(0)
    if teacher.is_image:
        return rng.integers(0, 256, (4, *teacher.observation_shape), dtype=np.uint8)
    return (3.0 * rng.normal(size=(count, *teacher.observation_shape))).astype(np.float32)


def assert_acts_as(teacher: Teacher, agent: Any) -> None:
    """The same deterministic actions as the agent that was saved, in the space, and varied."""
    observations = observations_for(teacher)
    with torch.inference_mode():
        labels = teacher(torch.from_numpy(observations)).labels
    assert labels.shape == (len(observations), teacher.actions.num_labels)
    chosen = teacher.actions.act(labels.numpy(), ActingRule("greedy"), np.random.default_rng(0))
    expected, _ = agent.predict(observations, deterministic=True)
    assert chosen.shape == expected.shape
    if isinstance(teacher.actions, Box):
        span = np.subtract(teacher.actions.high, teacher.actions.low).reshape(expected.shape[1:])
        # float32 rounds in other units; where the tanh saturates both are the bound.
        np.testing.assert_allclose(chosen / span, expected / span, rtol=0, atol=1e-6)
    else:
        np.testing.assert_array_equal(chosen, expected)
    assert np.std(chosen) > 0
    assert all(agent.action_space.contains(action) for action in chosen.astype(expected.dtype))


def assert_deviates_as(teacher: Teacher, agent: Any) -> None:
    """The deviations of SB3's distribution before the squash, in units of half the range."""
    actions = teacher.actions
    assert isinstance(actions, Box) and actions.labels == "gaussian"
    observations = torch.from_numpy(observations_for(teacher))
    with torch.inference_mode():
        found = teacher(observations).labels[:, actions.num_outputs :].exp()
        if hasattr(agent, "critic"):
            actor = agent.actor
            means, log_std, more = actor.get_action_dist_params(observations)
            distribution = actor.action_dist.proba_distribution(means, log_std, **more)
        else:
            distribution = agent.policy.get_distribution(observations)
        expected = distribution.distribution.stddev
    half = torch.tensor(np.subtract(actions.high, actions.low) / 2.0, dtype=torch.float32)
    if actions.squash == "clip":
        found = found * half
    torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-5, atol=1e-7)
    assert found.std() > 1e-3


def assert_values_as(teacher: Teacher, agent: Any) -> None:
    """V of an actor-critic; else the least of the critics at the deterministic action."""
    observations = torch.from_numpy(observations_for(teacher))
    with torch.inference_mode():
        found = teacher(observations).values
        if hasattr(agent, "critic"):
            scaled = (
                agent.actor(observations, deterministic=True)
                if hasattr(agent.actor, "log_std")
                else agent.actor(observations)
            )
            each = agent.critic(observations, scaled)
            # TQC: [batch, critics, quantiles]; others: one [batch, 1] for each critic.
            each = each.mean(2) if isinstance(each, torch.Tensor) else torch.cat(each, 1)
            expected = each.min(1).values
        else:
            expected = agent.policy.predict_values(observations).squeeze(1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert found.std() > 1e-3
