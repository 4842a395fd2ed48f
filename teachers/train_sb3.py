"""Trains a teacher with the RL Zoo's own hyperparameters and training code."""

import argparse
import contextlib
import difflib
import sys
from pathlib import Path
from typing import Any

from teachers.errors import TeacherError, one_line

TRAINABLE_ALGORITHMS = ("ppo", "a2c", "dqn", "qrdqn")


def train_teacher(
    algo: str,
    env_id: str,
    output_dir: str | Path,
    num_timesteps: int | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Path:
    """Trains an agent into `output_dir/<algo>/<env_id>_<run>/` and returns that folder.

    Hyperparameters are the RL Zoo's for (algo, env_id), or its defaults where it has
    tuned none; `num_timesteps` (agent steps) overrides its training length. The folder
    has the zoo's layout, and load_teacher reads it. The zoo's reports go to stderr.
    Raises TeacherError if rl_zoo3 is missing, or for an unknown algorithm or environment.
    """
    if algo not in TRAINABLE_ALGORITHMS:
        raise TeacherError(
            f"algorithm '{algo}' cannot be trained; expected {', '.join(TRAINABLE_ALGORITHMS)}"
        )
    if num_timesteps is not None and num_timesteps < 1:
        raise TeacherError(f"num_timesteps is {num_timesteps}; expected at least 1")
    try:
        import rl_zoo3.import_envs  # noqa: F401 (registers environments)
        from rl_zoo3.exp_manager import ExperimentManager
        from stable_baselines3.common.utils import set_random_seed
    except ImportError as error:
        raise TeacherError(
            f'training needs the RL Zoo ({one_line(error)}); pip install "qpd[train]"'
        ) from error
    _check_environment(env_id)
    arguments = _zoo_arguments(algo, env_id, output_dir, num_timesteps, seed, device)
    with contextlib.redirect_stdout(sys.stderr):
        set_random_seed(seed)
        manager = ExperimentManager(argparse.Namespace(**arguments), **_manager_options(arguments))
        try:
            prepared = manager.setup_experiment()
        except ValueError as error:  # the zoo has no hyperparameters for this pair
            raise TeacherError(f"{algo} on {env_id}: {one_line(error)}") from error
        if prepared is None:
            raise TeacherError(f"{algo} on {env_id}: the RL Zoo prepared no model")
        model, _ = prepared
        manager.learn(model)
        manager.save_trained_model(model)
    return Path(manager.save_path)


def _check_environment(env_id: str) -> None:
    import gymnasium

    if env_id not in gymnasium.registry:
        near = difflib.get_close_matches(env_id, gymnasium.registry, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise TeacherError(f"environment '{env_id}' is unknown to gymnasium{hint}")
    try:
        environment = gymnasium.make(env_id)
    except (gymnasium.error.Error, ImportError) as error:
        raise TeacherError(f"environment '{env_id}' cannot be made: {one_line(error)}") from error
    space = environment.action_space
    observations = environment.observation_space
    environment.close()
    if not isinstance(observations, gymnasium.spaces.Box):
        raise TeacherError(
            f"{env_id} has observations of type {type(observations).__name__}; expected a Box"
        )
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise TeacherError(
            f"{env_id} has the action space {one_line(space)}; only discrete actions are"
            " supported, continuous actions are not supported yet"
        )


def _zoo_arguments(
    algo: str,
    env_id: str,
    output_dir: str | Path,
    num_timesteps: int | None,
    seed: int,
    device: str,
) -> dict[str, Any]:
    """What the zoo's command line would parse, as it writes it to args.yml."""
    return {
        "algo": algo,
        "env": env_id,
        "log_folder": str(output_dir),
        "n_timesteps": -1 if num_timesteps is None else num_timesteps,
        "seed": seed,
        "device": device,
        "eval_freq": 25000,
        "eval_episodes": 5,
        "n_eval_envs": 1,
        "verbose": 1,
    }


def _manager_options(arguments: dict[str, Any]) -> dict[str, Any]:
    renamed = {"env": "env_id", "eval_episodes": "n_eval_episodes"}
    options = {renamed.get(name, name): value for name, value in arguments.items()}
    return options | {"log_interval": -1, "truncate_last_trajectory": True}
