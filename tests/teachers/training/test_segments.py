"""What is abandoned at a checkpoint stays apart, and what is saved is Stable-Baselines3's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN, HerReplayBuffer

from qpd.recipe.train_schema import TrainSettings
from qpd.teachers.training.segments import SegmentCallback, begin_episodes, play_before_learning


class Steps(gym.Env[np.ndarray, int]):
    """Observations are (episode, step); episode 1 pays 10 a step, episode 2 pays 100."""

    observation_space = gym.spaces.Box(0, 100, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._episode = self._step = 0

    def reset(self, **options: object) -> tuple[np.ndarray, dict[str, object]]:
        super().reset()
        self._episode, self._step = self._episode + 1, 0
        return self._shown(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        self._step += 1
        return self._shown(), 10.0**self._episode, False, False, {}

    def _shown(self) -> np.ndarray:
        return np.array([self._episode, self._step], np.float32)


def test_returns_of_several_steps_end_with_an_abandoned_episode() -> None:
    model = DQN("MlpPolicy", Steps(), n_steps=3, gamma=1.0, learning_starts=100, device="cpu")
    model.learn(4)
    begin_episodes(model)
    model.learn(4, reset_num_timesteps=False)
    buffer = model.replay_buffer
    assert buffer is not None
    found = buffer._get_samples(np.arange(4))
    # The last one has a single step, the one before two; both bootstrap from what came last.
    assert found.rewards.flatten().tolist() == [30.0, 30.0, 20.0, 10.0]
    assert found.next_observations.tolist() == [[1.0, 3.0]] + [[1.0, 4.0]] * 3
    assert not found.dones.any()


def test_a_time_limit_on_a_checkpoint_is_no_death() -> None:
    env = gym.wrappers.TimeLimit(Steps(), 4)
    model = DQN("MlpPolicy", env, n_steps=3, gamma=1.0, learning_starts=100, device="cpu")
    model.learn(4)
    begin_episodes(model)
    assert model.replay_buffer is not None
    assert not model.replay_buffer._get_samples(np.arange(4)).dones.any()


class Bits(Steps):
    """A goal that is never reached, of episodes without an end."""

    _space = gym.spaces.Box(0, 100, (2,))
    observation_space = gym.spaces.Dict(
        {"observation": _space, "achieved_goal": _space, "desired_goal": _space}
    )  # type: ignore[assignment]

    def _shown(self) -> Any:
        shown = super()._shown()
        return {"observation": shown, "achieved_goal": shown, "desired_goal": shown + 1}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, _: object) -> np.ndarray:
        return -(achieved != desired).any(-1).astype(np.float32)


def test_goals_in_hindsight_are_of_the_abandoned_episode() -> None:
    model = DQN(
        "MultiInputPolicy", Bits(), learning_starts=100, buffer_size=50, device="cpu",
        replay_buffer_class=HerReplayBuffer,
    )  # fmt: skip
    model.learn(8)
    begin_episodes(model)
    model.learn(4, reset_num_timesteps=False)
    begin_episodes(model)
    buffer = model.replay_buffer
    assert isinstance(buffer, HerReplayBuffer)
    assert buffer.ep_start[:12, 0].tolist() == [0] * 8 + [8] * 4
    assert buffer.ep_length[:12, 0].tolist() == [8] * 8 + [4] * 4
    found = buffer.sample(200)
    episodes = found.observations["observation"][:, 0]
    hindsight = found.observations["desired_goal"][:, 0]
    own = found.observations["desired_goal"] - found.observations["observation"] == 1
    assert (own.all(1) | (hindsight == episodes)).all()
    assert not found.dones.any()  # an abandoned episode is cut off, not ended


def test_an_agent_that_plays_before_learning_is_saved_as_it_was_asked_for(tmp_path: Path) -> None:
    model = DQN("MlpPolicy", "CartPole-v1", learning_starts=100, buffer_size=500, device="cpu")
    play_before_learning(model, 612)
    assert model.learning_starts == 612
    model.save(tmp_path / "agent.zip")
    assert DQN.load(tmp_path / "agent.zip", device="cpu").learning_starts == 100
    assert model.learning_starts == 612


def seed_of(seed: int, steps: int) -> int:
    seen: list[int] = []
    sown = SimpleNamespace(seed=seen.append)
    train, listener = TrainSettings(algo="sac", env="Pendulum-v1"), SimpleNamespace()
    callback: Any = SegmentCallback(train, seed, 1000, Path(), listener, None)
    callback.model = SimpleNamespace(
        num_timesteps=steps, device=torch.device("cpu"), action_space=sown, env=sown
    )
    callback._seed_all()
    actions, environments = seen
    assert actions == environments
    return actions


def test_segments_of_a_training_and_trainings_differ() -> None:
    assert seed_of(1, 100) == seed_of(1, 100)
    assert len({seed_of(1, 100), seed_of(2, 100), seed_of(1, 200)}) == 3
