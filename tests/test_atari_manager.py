"""Trainings of Atari agents that go on from a checkpoint."""

from __future__ import annotations

import numpy as np
import torch
from stable_baselines3 import DQN

from teachers.atari_manager import _refill_by_playing

torch.set_num_threads(1)


def test_a_resumed_dqn_fills_its_buffer_by_its_own_play() -> None:
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=500, learning_starts=200, device="cpu",
                exploration_initial_eps=0.0, exploration_final_eps=0.0, seed=0)  # fmt: skip
    with torch.no_grad():  # it always presses the second button
        model.q_net.q_net[-1].bias.copy_(torch.tensor([0.0, 1e6]))
    before = [weights.clone() for weights in model.q_net.parameters()]
    model.num_timesteps = 1000
    _refill_by_playing(model)
    model.learn(150, reset_num_timesteps=False)
    assert model.learning_starts == 1200
    np.testing.assert_array_equal(model.replay_buffer.actions[:150], 1)
    for old, weights in zip(before, model.q_net.parameters(), strict=True):
        assert torch.equal(old, weights)  # it has not begun to learn
    model.learn(100, reset_num_timesteps=False)
    assert any(
        not torch.equal(old, weights)
        for old, weights in zip(before, model.q_net.parameters(), strict=True)
    )
