"""`qpd train --from AGENT`: what of a trained agent is taken over, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sb3_contrib import ARS
from stable_baselines3 import PPO, SAC
from torch import nn

import qpd
from qpd.errors.user_error import UserError
from qpd.teachers.archive.vec_normalize import read_observation_count, read_return_statistics
from tests.phases import own_environments
from tests.phases.small_trainings import (
    SMALL,
    Interrupts,
    agent_tensors,
    assert_same_training,
    metric_rows,
    small_training,
)

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn

FOUR_BITS = {"quantization.bits": 4}


def test_from_a_trained_agent_nothing_is_lost_before_the_first_step(tmp_path: Path) -> None:
    first = small_training("a2c", tmp_path / "first", {})  # with VecNormalize
    assert first.agent_file is not None
    more = FOUR_BITS | {"train.start_from": str(first.path), "quantization.delay": 9.0}
    # A learning rate of 0 leaves what it started from.
    second = small_training("a2c", tmp_path / "second", more | {"learning_rate": 0.0})
    assert second.agent_file is not None
    ours = agent_tensors(first.agent_file)
    theirs = agent_tensors(second.agent_file)
    parameters = [key for key in ours if key.startswith(".policy.") and "optimizer" not in key]
    assert parameters
    for key in parameters:
        np.testing.assert_array_equal(ours[key], theirs[key])


def test_a_trained_agent_goes_on_in_its_own_units(tmp_path: Path) -> None:
    """With its entropy coefficient, and rewards divided by what its critic knows."""
    settings: dict[str, Any] = {"learning_starts": 50, "train_freq": 1, "gradient_steps": 1,
                                "train.timesteps": 400, "normalize": True,
                                "save.tensorboard": False}  # fmt: skip
    first = qpd.train("sac", "Pendulum-v1", overrides=settings, output=tmp_path / "one", **SMALL)
    # A learning rate of 0 leaves what it started from; statistics go on.
    more = settings | {"train.start_from": str(first.path), "learning_rate": 0.0,
                       "train.timesteps": 60}  # fmt: skip
    second = qpd.train("sac", "Pendulum-v1", overrides=more, output=tmp_path / "two", **SMALL)
    assert first.agent_file is not None and second.agent_file is not None
    learned, taken = (SAC.load(each.agent_file).log_ent_coef for each in (first, second))
    assert learned is not None and taken is not None
    assert float(taken.detach()) == float(learned.detach()) != 0.0
    counts = []
    for run in (first, second):
        file = run.path / "Pendulum-v1" / "vecnormalize.pkl"
        statistics = read_return_statistics(file)
        assert statistics is not None
        counts.append(statistics[2])
    assert counts[1] == pytest.approx(counts[0] + 60, abs=1)


PENDULUM: dict[str, Any] = {"learning_starts": 50, "train_freq": 1, "gradient_steps": 1,
                            "net_arch": [8], "train.timesteps": 100,
                            "save.tensorboard": False}  # fmt: skip
CORE_3 = {"quantization.core_bits": 3}


def pendulum(output: Path, **more: Any) -> Any:
    return qpd.train("sac", "Pendulum-v1", overrides=PENDULUM | more, output=output, **SMALL)


def test_a_critic_does_not_go_on_in_another_unit(tmp_path: Path) -> None:
    """Integer controllers see normalized observations, and rewards as they are."""
    first = pendulum(tmp_path / "first", normalize=True)
    its = {"train.start_from": str(first.path)}
    said = r'its critic knows normalized rewards; set normalize={"norm_obs": true, "norm_reward": t'
    with pytest.raises(UserError, match=said):
        pendulum(tmp_path / "second", **CORE_3, **its)
    assert not (tmp_path / "second").exists()
    as_told = {"normalize": {"norm_obs": True, "norm_reward": True}}
    pendulum(tmp_path / "third", **CORE_3, **its, **as_told)


def test_a_controller_starts_from_its_float_twin_and_counts_what_that_saw(tmp_path: Path) -> None:
    twin = pendulum(tmp_path / "twin", **CORE_3, **{"quantization.delay": 1.0})
    few = pendulum(tmp_path / "few", **CORE_3, **{"train.start_from": str(twin.path)})
    assert few.quantized_file.is_file()
    again = {"train.start_from": str(twin.path), "quantization.delay": 1.0}
    other = pendulum(tmp_path / "other", **CORE_3, **again)
    last = pendulum(tmp_path / "last", **CORE_3, **again | {"train.start_from": str(other.path)})
    counts = [
        read_observation_count(run.path / "Pendulum-v1" / "vecnormalize.pkl")
        for run in (twin, other, last)
    ]
    assert counts == pytest.approx([101, 202, 303], abs=1)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_an_agent_goes_on_with_its_own_activations(
    activation: type[nn.Module], tmp_path: Path
) -> None:
    """The zoo's for HalfCheetah are ReLU, those of SB3's PPO tanh: both fit the parameters."""
    env, kwargs = "HalfCheetah-v4", {"activation_fn": activation, "net_arch": [8]}
    first = PPO(
        "MlpPolicy", env, n_steps=8, batch_size=8, policy_kwargs=kwargs, device="cpu", seed=0
    )
    first.save(tmp_path / "ppo-HalfCheetah-v4.zip")
    settings: dict[str, Any] = {"train.start_from": str(tmp_path / "ppo-HalfCheetah-v4.zip"),
                                "train.timesteps": 64, "n_steps": 64, "learning_rate": 0.0,
                                "net_arch": [8], "normalize": False}  # fmt: skip
    run = qpd.train("ppo", env, overrides=settings, output=tmp_path / "run", **SMALL)
    assert run.agent_file is not None
    second = PPO.load(run.agent_file, device="cpu")
    seen = np.random.default_rng(0).normal(size=(20, 17))
    taken = [agent.predict(seen, deterministic=True)[0] for agent in (first, second)]
    np.testing.assert_array_equal(*taken)


def test_a_trained_dqn_explores_as_its_training_ended(tmp_path: Path) -> None:
    slow = {"exploration_fraction": 0.9}
    first = small_training("dqn", tmp_path / "first", slow)
    second = small_training(
        "dqn", tmp_path / "second", slow | {"train.start_from": str(first.path)}
    )
    rates = [
        [float(row["rollout/exploration_rate"]) for row in metric_rows(run)
         if row["rollout/exploration_rate"]]
        for run in (first, second)
    ]  # fmt: skip
    assert max(rates[0]) > 0.2 and max(rates[1]) <= 0.05


def test_an_interrupted_training_from_an_agent_ends_in_the_same_numbers(tmp_path: Path) -> None:
    """Killed before it learns: it goes on filling its memory by the agent's play, not at random."""
    first = small_training("dqn", tmp_path / "first", {})
    more = {"train.start_from": str(first.path), "learning_starts": 250}
    whole = small_training("dqn", tmp_path / "whole", more)
    with pytest.raises(KeyboardInterrupt):
        small_training("dqn", tmp_path / "parts", more, progress=Interrupts(150))
    parts = small_training("dqn", tmp_path / "parts", more)
    assert parts.phase.resumed_at == (100,)
    assert_same_training(whole, parts)


def test_a_training_resumes_without_the_agent_that_it_started_from(tmp_path: Path) -> None:
    first = small_training("a2c", tmp_path / "first", {})
    more = {"train.start_from": str(first.path)}
    whole = small_training("a2c", tmp_path / "whole", more)
    with pytest.raises(KeyboardInterrupt):
        small_training("a2c", tmp_path / "parts", more, progress=Interrupts(150))
    first.path.rename(tmp_path / "elsewhere")
    parts = small_training("a2c", tmp_path / "parts", more)
    assert parts.phase.resumed_at
    assert_same_training(whole, parts)


@pytest.mark.parametrize(
    ("env", "policy", "kwargs"),
    [("Pendulum-v1", "MlpPolicy", {"net_arch": [16]}), ("CartPole-v1", "LinearPolicy", {})],
)  # the zoo's
def test_ars_goes_on_from_an_agent(
    env: str, policy: str, kwargs: dict[str, Any], tmp_path: Path
) -> None:
    first = ARS(policy, env, device="cpu", seed=3, policy_kwargs=kwargs, zero_policy=False)
    first.save(tmp_path / f"ars-{env}.zip")
    settings: dict[str, Any] = {"train.start_from": str(tmp_path / f"ars-{env}.zip"),
                                "train.timesteps": 800, "n_envs": 1, "n_delta": 2, "n_top": 1,
                                "normalize": False, "learning_rate": 0.0, "delta_std": 1e-9,
                                "save.tensorboard": False}  # fmt: skip
    run = qpd.train("ars", env, overrides=settings, output=tmp_path / "run", **SMALL)
    assert run.agent_file is not None
    theirs = ARS.load(run.agent_file, device="cpu").policy.state_dict()
    for name, value in first.policy.state_dict().items():
        torch.testing.assert_close(theirs[name], value, rtol=0, atol=1e-6)


def test_an_agent_is_started_from_where_observations_are_clipped_as_it_knows(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"train.timesteps": 32, "n_steps": 16, "save.tensorboard": False}
    near = settings | {"normalize": {"clip_obs": 0.5}}
    first = qpd.train("a2c", "Pendulum-v1", overrides=near, output=tmp_path / "first", **SMALL)
    its = {"train.start_from": str(first.path)}
    with pytest.raises(UserError, match=r"clip_obs=0.5, this training has 10; set clip_obs: 0.5"):
        more = settings | its | {"normalize": True}
        qpd.train("a2c", "Pendulum-v1", overrides=more, output=tmp_path / "second", **SMALL)
    assert not (tmp_path / "second").exists()
    qpd.train("a2c", "Pendulum-v1", overrides=near | its, output=tmp_path / "third", **SMALL)


def test_statistics_of_a_dict_are_not_taken_over(tmp_path: Path) -> None:
    env_id = f"{own_environments.__name__}:Keys-v0"
    settings: dict[str, Any] = {
        "train.timesteps": 32,
        "n_steps": 16,
        "normalize": {"norm_obs_keys": ["a"]},
        "save.tensorboard": False,
    }
    first = qpd.train("a2c", env_id, overrides=settings, output=tmp_path / "first", **SMALL)
    more = settings | {"train.start_from": str(first.path)}
    with pytest.raises(UserError, match="VecNormalize of a Dict's keys is not taken over"):
        qpd.train("a2c", env_id, overrides=more, output=tmp_path / "second", **SMALL)
    assert not (tmp_path / "second").exists()


def test_an_agent_of_another_shape_cannot_be_started_from(
    tmp_path: Path,
) -> None:
    first = small_training("dqn", tmp_path / "first", {})
    with pytest.raises(UserError, match="do not fit ppo on CartPole-v1: it is an agent of dqn"):
        small_training("ppo", tmp_path / "second", {"train.start_from": str(first.path)})
    assert not (tmp_path / "second").exists()
    quantized = str(small_training("dqn", tmp_path / "third", FOUR_BITS).path)
    with pytest.raises(UserError, match="start from a float agent"):
        small_training("dqn", tmp_path / "fourth", {"train.start_from": quantized})


def test_an_agent_is_started_from_with_the_layer_norm_that_it_has(tmp_path: Path) -> None:
    first = small_training("ppo", tmp_path / "first", {"layer_norm": True})
    with pytest.raises(UserError, match="layer_norm=true: set it"):
        small_training("ppo", tmp_path / "second", {}, start_from=str(first.path))
