"""States for figures: drawn from the teacher's whole play, with its own answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO

from qpd.analysis.networks.played_states import play_states
from qpd.teachers import Teacher, load_teacher

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    path = tmp_path_factory.mktemp("teacher") / "ppo-CartPole-v1.zip"
    PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, seed=0, device="cpu").save(path)
    return load_teacher(path)


def test_states_come_with_the_teachers_answers(teacher: Teacher) -> None:
    states = play_states(teacher, "CartPole-v1", 100, seed=1)
    assert states.observations.shape == (100, 4)
    assert states.labels.shape == (100, 2)
    assert len(np.unique(states.observations, axis=0)) == 100
    outputs = teacher(torch.from_numpy(states.observations))
    np.testing.assert_allclose(states.labels, outputs.labels.numpy(), atol=1e-6)
    np.testing.assert_allclose(states.values, outputs.values.numpy(), atol=1e-6)


def test_the_seed_matters_and_suffices(teacher: Teacher) -> None:
    first, again, other = (play_states(teacher, "CartPole-v1", 40, seed=n) for n in (1, 1, 2))
    np.testing.assert_array_equal(first.observations, again.observations)
    assert not np.array_equal(first.observations, other.observations)


def test_thinning_reaches_later_states(teacher: Teacher) -> None:
    # 16 games: 32 states are 2 steps of each, in which the cart cannot get far.
    near = play_states(teacher, "CartPole-v1", 32, thinning=1)
    far = play_states(teacher, "CartPole-v1", 32, thinning=16)
    assert np.abs(near.observations).max() < 0.5 < np.abs(far.observations).max()
