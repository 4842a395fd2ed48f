"""What the fast learner takes from the model around it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import SAC, TD3
from torch.nn.utils import parameters_to_vector

from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.training.fast_learner import _transitions, use_fast_learner


@pytest.mark.parametrize("discounts", [None, torch.tensor([[0.81], [0.81]])])
def test_batches_are_normalized_and_terminal_states_have_no_value(discounts) -> None:
    asked = []

    def sample(size, env):
        asked.append((size, env))
        rows = torch.arange(6.0).view(2, 3)
        dones, rewards = torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [3.0]])
        return SimpleNamespace(
            observations=rows, actions=rows, next_observations=rows + 1, dones=dones,
            rewards=rewards, discounts=discounts,
        )  # fmt: skip

    buffer = SimpleNamespace(sample=sample)
    model = SimpleNamespace(
        replay_buffer=buffer,
        _vec_normalize_env="VecNormalize",
        gamma=0.9,
        observation_space=gym.spaces.Box(0, 9, (3,)),
    )
    batch = _transitions(model, 2)
    assert asked == [(2, "VecNormalize")]
    assert batch.discounts.tolist() == pytest.approx([0.9 if discounts is None else 0.81, 0.0])
    assert batch.rewards.tolist() == [2.0, 3.0]


def test_targets_follow_at_their_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SAC(
        "MlpPolicy", "Pendulum-v1", buffer_size=64, learning_starts=64, device="cpu", seed=0,
        target_update_interval=3, tau=0.25, policy_kwargs={"net_arch": [4]},
    )  # fmt: skip
    model.learn(64)
    use_fast_learner(model)
    followed: list[float] = []
    monkeypatch.setattr(model.fast_critics, "follow", followed.append)
    model.train(5, batch_size=8)  # after the updates 0 and 3
    assert followed == [0.25, 0.25]


class OneOfFive(gym.Env[Any, np.ndarray]):
    """Observations are whole numbers, actions are continuous."""

    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, space: gym.Space[Any]) -> None:
        self.observation_space = space

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=options.get("seed"))
        return self.observation_space.sample(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), float(action[0]), False, False, {}


@pytest.mark.parametrize(
    "space", [gym.spaces.Discrete(5), gym.spaces.MultiDiscrete([3, 4]), gym.spaces.MultiBinary(3)]
)
def test_whole_numbers_are_learned_from_as_stable_baselines3_does(space: gym.Space[Any]) -> None:
    agents = []
    for is_fast in (False, True):
        model = SAC("MlpPolicy", OneOfFive(space), learning_starts=20, buffer_size=100, seed=0,
                    device="cpu", policy_kwargs={"net_arch": [8]})  # fmt: skip
        model.action_space.seed(0)
        space.seed(0)
        if is_fast:
            use_fast_learner(model)
        model.learn(40)
        agents.append(parameters_to_vector(model.policy.parameters()))
    torch.testing.assert_close(*agents, rtol=1e-4, atol=1e-5)


def test_a_saved_agent_counts_steps_as_adam_does(tmp_path: Path) -> None:
    model = SAC("MlpPolicy", "Pendulum-v1", learning_starts=20, buffer_size=500, device="cpu")
    use_fast_learner(model)
    model.learn(30)
    model.save(tmp_path / "agent.zip")
    loaded = SAC.load(tmp_path / "agent.zip", device="cpu", env=gym.make("Pendulum-v1"))
    for optimizer in (loaded.actor.optimizer, loaded.critic.optimizer):
        assert {float(each["step"]) for each in optimizer.state.values()} == {10.0}
    loaded.learn(30, reset_num_timesteps=False)  # updates begin after 20 steps of its own
    for optimizer in (loaded.actor.optimizer, loaded.critic.optimizer):
        assert len({float(each["step"]) for each in optimizer.state.values()}) == 1
        assert float(next(iter(optimizer.state.values()))["step"]) < 50


@pytest.mark.parametrize("algorithm", [SAC, TD3])
def test_training_acts_as_stable_baselines3_does_from_the_same_draws(
    algorithm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = algorithm("MlpPolicy", "Pendulum-v1", learning_starts=9, device="cpu", seed=0)
    model.learn(10)
    torch.manual_seed(3)
    wanted, _ = model.predict(model._last_obs)
    use_fast_learner(model)
    torch.manual_seed(3)
    with monkeypatch.context() as without:
        without.setattr(model.policy, "predict", None)
        found, _ = model.predict(model._last_obs)
    assert abs(wanted).max() > 0.01  # of torques, +-2
    assert found.shape == wanted.shape == (1, 1)
    assert found == pytest.approx(wanted, abs=1e-5)
    again, _ = model.predict(model._last_obs[0])  # a user's own question
    assert again.shape == (1,)


def test_images_without_convolutions_are_refused() -> None:
    images = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    model = SAC("MlpPolicy", OneOfFive(images), buffer_size=9, device="cpu")
    with pytest.raises(TeacherError, match="only agents that see vectors learn by it"):
        use_fast_learner(model)
