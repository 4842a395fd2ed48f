"""Trainings of Atari agents that go on from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN

from qpd.numerics.precision import has_bfloat16_units
from qpd.recipe.train_schema import TrainSettings, load_train_recipe
from qpd.teachers.training.agent_training import AgentTraining
from qpd.teachers.training.atari_manager import fuse_adam
from qpd.teachers.training.atari_vec_env import AtariVecEnv
from qpd.teachers.training.quantization_aware import QuantizationCallback
from qpd.teachers.training.segments import play_before_learning, steps_between

torch.set_num_threads(1)


@pytest.mark.parametrize("precision", [None, "fp32"])
def test_frames_are_learned_in_float32_where_a_recipe_says_so(precision: str | None) -> None:
    lines = ["n_envs=1", "n_steps=2", *([f"precision.format={precision}"] if precision else [])]
    recipe = load_train_recipe(None, lines, algo="a2c", env="PongNoFrameskip-v4")
    training = AgentTraining(recipe.model_copy(update={"device": "cpu"}))
    extractor = training._model.policy.features_extractor
    is_narrow = "forward" in vars(extractor)
    training.close()
    assert is_narrow == (precision is None and has_bfloat16_units("cpu"))


def test_gradients_of_frames_are_counted_by_activations_too() -> None:
    lines = ["n_envs=1", "n_steps=2", "precision.gradient_exponents=1"]
    recipe = load_train_recipe(None, lines, algo="a2c", env="PongNoFrameskip-v4")
    training = AgentTraining(recipe.model_copy(update={"device": "cpu"}))
    training._model.learn(2)
    counted = training._manager.gradients.take()
    training.close()
    # Two observations: three convolutions of 32 20x20, 64 9x9 and 64 7x7, and 512 units.
    assert counted is not None and counted[2].total == 2 * (12_800 + 5_184 + 3_136 + 512)


@pytest.mark.parametrize(("share", "first"), [(0.07, 7_000), (0.55, 55_000), (0.5, 50_000)])
def test_few_bits_begin_at_their_share_of_the_steps(share: float, first: int) -> None:
    assert QuantizationCallback(None, share, 100_000)._from == first  # type: ignore[arg-type]


def test_a_resumed_dqn_fills_its_buffer_by_its_own_play() -> None:
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=500, learning_starts=200, device="cpu",
                exploration_initial_eps=0.0, exploration_final_eps=0.0, seed=0)  # fmt: skip
    with torch.no_grad():  # it always presses the second button
        model.q_net.q_net[-1].bias.copy_(torch.tensor([0.0, 1e6]))
    before = [weights.clone() for weights in model.q_net.parameters()]
    model.num_timesteps = 1000
    play_before_learning(model, model.learning_starts + model.num_timesteps)
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


def test_a_resumed_dqn_can_be_saved_with_its_emulators_running(tmp_path: Path) -> None:
    env = AtariVecEnv("BreakoutNoFrameskip-v4", 2, seed=0)
    model = DQN("CnnPolicy", env, buffer_size=10, device="cpu", seed=0)
    model.num_timesteps = 100
    plain = tmp_path / "plain.zip"
    model.save(plain)
    play_before_learning(model, 1100)
    model.save(tmp_path / "agent.zip")
    env.close()
    size = (tmp_path / "agent.zip").stat().st_size
    assert abs(size - plain.stat().st_size) < 1000  # nothing more went into it
    loaded = DQN.load(tmp_path / "agent.zip", device="cpu")
    assert (loaded.num_timesteps, loaded.learning_starts) == (100, 100)  # SB3's own, counted from 0


def test_adams_step_in_one_kernel_is_the_same_step() -> None:
    trained = []
    for is_fused in (False, True):
        agent = DQN("MlpPolicy", "CartPole-v1", device="cpu", seed=0, learning_starts=8)
        if is_fused:
            fuse_adam(agent)
            assert agent.policy.optimizer.param_groups[0]["fused"]
        trained.append(list(agent.learn(40).q_net.parameters()))
    for plain, fused in zip(*trained, strict=True):
        torch.testing.assert_close(plain, fused)


def test_games_end_between_two_checkpoints_of_a_short_training() -> None:
    pong = TrainSettings(algo="ppo", env="PongNoFrameskip-v4")
    assert steps_between(pong, 200_000, 8) == 50_000
    assert steps_between(pong, 10_000_000, 8) == 500_000
    cheetah = TrainSettings(algo="ppo", env="HalfCheetah-v4")
    assert steps_between(cheetah, 200_000, 1) == 10_000
    assert steps_between(cheetah, 200_000, 16) == 160_000  # 10 episodes of each
