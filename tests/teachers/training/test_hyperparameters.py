"""Hyperparameters of `qpd train`: what is taken, and what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from sb3_contrib import ARS, TQC
from stable_baselines3 import DQN, PPO, SAC, TD3

from qpd.recipe.train_schema import load_train_recipe
from qpd.teachers import TeacherError
from qpd.teachers.training.hyperparameters import checked_hyperparameters


def read(algorithm: type, *assignments: str) -> dict[str, Any]:
    """Hyperparameters as `qpd train ... --set` reads them."""
    recipe = load_train_recipe(None, assignments, algo="dqn", env="CartPole-v1")
    return checked_hyperparameters(recipe.train.hyperparameters, algorithm)


def test_values_have_the_types_that_they_look_like() -> None:
    found = read(
        DQN, "n_steps=3", "learning_rate=2.5e-4", "buffer_size=1e5", "optimize_memory_usage=true",
        "n_envs=8", "normalize=False", "train_freq=[1, episode]",
    )  # fmt: skip
    assert found == {
        "n_steps": 3, "learning_rate": 2.5e-4, "buffer_size": 100_000,
        "optimize_memory_usage": True, "n_envs": 8, "normalize": False,
        "train_freq": [1, "episode"],
    }  # fmt: skip
    assert type(found["buffer_size"]) is int
    assert read(PPO, "target_kl=none", "use_sde=true") == {"target_kl": None, "use_sde": True}
    assert read(DQN, "net_arch=[64, 32]") == {"net_arch": [64, 32]}
    both = {"pi": [16, 16], "qf": [256]}
    assert read(TD3, "net_arch={pi: [16, 16], qf: [256]}") == {"net_arch": both}
    some = {"norm_obs_keys": ["arm"], "norm_reward": False, "clip_obs": 5}
    assert read(PPO, "normalize={norm_obs_keys: [arm], norm_reward: false, clip_obs: 5}") == {
        "normalize": some
    }
    assert read(PPO, "learning_rate=lin_2.5e-4") == {"learning_rate": "lin_2.5e-4"}
    assert read(TD3, "noise_type=normal", "noise_std=0.2") == {
        "noise_type": "normal", "noise_std": 0.2
    }  # fmt: skip


def test_a_recipe_and_an_override_set_hyperparameters_side_by_side(tmp_path: Any) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "train:\n  algo: ppo\n  env: CartPole-v1\n  hyperparameters: {n_steps: 16, gamma: 0.9}\n"
    )
    recipe = load_train_recipe(file, ["gamma=0.5", "train.timesteps=100", "name=other"])
    assert recipe.train.hyperparameters == {"n_steps": 16, "gamma": 0.5}
    assert (recipe.name, recipe.train.timesteps) == ("other", 100)
    (tmp_path / "again.yaml").write_text(recipe.to_yaml())
    assert load_train_recipe(tmp_path / "again.yaml") == recipe


@pytest.mark.parametrize(
    ("text", "expected"),
    [("n_step=3", "DQN has no such hyperparameter; did you mean n_steps"),
     ("policy_kwargs=abc", "DQN has no such hyperparameter"),
     ("env=abc", "DQN has no such hyperparameter"),
     ("action_noise=1", "DQN has no such hyperparameter"),
     ("net_arch=64", "must be the widths of the hidden layers"),
     ("net_arch=[64, -1]", "must be the widths of the hidden layers"),
     ("net_arch={pi: [64]}", "must be the widths of .*, or those of actor and critic"),
     ("net_arch={pi: [64], qf: 3}", "must be the widths of the hidden layers"),
     ("gamma=abc", "must be a number"),
     ("gamma=none", "must be a number"),
     ("gamma=true", "must be a number"),
     ("max_grad_norm=none", "must be a number"),
     ("learning_rate=true", "must be a number or a schedule such as lin_2.5e-4"),
     ("batch_size=none", "must be a whole number"),
     ("gamma=lin_0.9", "must be a number"),
     ("batch_size=lin_3", "must be a whole number"),
     ("batch_size=abc", "must be a whole number"),
     ("batch_size=1.5", "must be a whole number"),
     ("batch_size=0", "must be at least 1"),
     ("target_update_interval=0", "must be at least 1"),
     ("train_freq=0", "must be at least 1"),
     ("n_envs=many", "must be a whole number"),
     ("normalize=3", "must be true or false"),
     ("normalize={norm_reward: 3}", "norm_reward: must be one of norm_obs, norm_reward, clip_obs"),
     ("normalize={venv: 3}", "venv: must be one of norm_obs"),
     ("normalize={norm_obs_keys: [3]}", "norm_obs_keys: must be one of"),
     ("noise_type=loud", "must be normal, ornstein-uhlenbeck or none"),
     ("train_freq=[1, 2]", "must be a whole number, or such as"),
     ("train_freq=[0, step]", "must be a whole number, or such as"),
     ("gradient_steps=0", "must be at least 1, or -1 for as many as steps"),
     ("gamma=2", "must be from 0 to 1"),
     ("tau=-0.1", "must be from 0 to 1"),
     ("exploration_final_eps=1.5", "must be from 0 to 1"),
     ("max_grad_norm=-1", "must be above 0"),
     ("net_arch={pi: [64], vf: [64]}", "DQN has one network: must be its widths, such as"),
     ("learning_rate=-1e-3", "must be at least 0")],
)  # fmt: skip
def test_what_is_refused(text: str, expected: str) -> None:
    name = text.partition("=")[0]
    with pytest.raises(TeacherError, match=rf"train.hyperparameters.{name}=.*: {expected}"):
        read(DQN, text)


@pytest.mark.parametrize(
    ("algorithm", "text", "expected"),
    [(PPO, "clip_range=0", "must be above 0"),
     (PPO, "clip_range_vf=-0.1", "must be above 0"),
     (PPO, "vf_coef=-5", "must be at least 0"),
     (PPO, "net_arch={pi: [16], qf: [64, 64]}", "PPO has pi and vf"),
     (TD3, "net_arch={pi: [16], vf: [64, 64]}", "TD3 has pi and qf"),
     (TD3, "target_noise_clip=-1", "must be at least 0"),
     (TQC, "top_quantiles_to_drop_per_net=25", "must be from 0 to 24"),
     (ARS, "n_top=0", "must be at least 1")],
)  # fmt: skip
def test_what_other_algorithms_would_misread(algorithm: type, text: str, expected: str) -> None:
    with pytest.raises(TeacherError, match=f"=.*: {expected}"):
        read(algorithm, text)


@pytest.mark.parametrize(
    ("algorithm", "text"), [(PPO, "n_epochs=0"), (ARS, "n_delta=0"), (TD3, "policy_delay=0")]
)
def test_what_would_never_learn_or_never_end_is_refused(algorithm: type, text: str) -> None:
    with pytest.raises(TeacherError, match=f"{text}: must be at least 1"):
        read(algorithm, text)


def test_limits_themselves_are_taken() -> None:
    for text in ("gamma=1", "tau=1", "gradient_steps=-1", "learning_rate=0", "train_freq=[1, step]",
                 "exploration_fraction=0"):  # fmt: skip
        assert read(DQN, text)


def test_what_the_algorithm_finds_out_itself() -> None:
    for value in ("auto", "auto_0.1", "auto_1e-2"):
        assert checked_hyperparameters({"ent_coef": value}, SAC) == {"ent_coef": value}
        with pytest.raises(TeacherError, match="ent_coef"):
            checked_hyperparameters({"ent_coef": value}, PPO)
    assert checked_hyperparameters({"target_entropy": "auto"}, SAC) == {"target_entropy": "auto"}
    for name, value in (("ent_coef", "auto_x"), ("target_entropy", "auto_1"), ("tau", "auto")):
        with pytest.raises(TeacherError, match=name):
            checked_hyperparameters({name: value}, SAC)
