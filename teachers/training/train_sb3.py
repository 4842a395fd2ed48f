"""Train a teacher with the RL Zoo's own hyperparameters and training code."""

import argparse
import contextlib
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean
from qpd.teachers.archive.errors import TeacherError, one_line
from qpd.teachers.sources.zoo_yaml import read_zoo_yaml
from qpd.teachers.training.hyperparameters import is_hyperparameter, read_hyperparameters
from qpd.version import pip_install

TRAINABLE_ALGORITHMS = ("ppo", "a2c", "dqn", "qrdqn")
SAVE_FREQUENCY = 250_000  # agent steps between checkpoints


def train_teacher(
    algo: str,
    env_id: str,
    output_dir: str | Path,
    num_timesteps: int | None = None,
    seed: int = 0,
    device: str = "auto",
    resume: bool = False,
    assignments: Sequence[str] = (),
) -> Path:
    """Train an agent into `output_dir/<algo>/<env_id>_<run>/` and return that folder.

    Hyperparameters are the RL Zoo's for (algo, env_id), or its defaults where it has
    tuned none; `num_timesteps` (agent steps) overrides its training length, `assignments`
    such as `n_steps=3` any hyperparameter of Stable-Baselines3's class. The folder
    has the zoo's layout, and load_teacher reads it. The zoo's reports go to stderr.
    Atari games run in QPD's vector environment, with a checkpoint every 250,000 steps;
    `resume` goes on from the newest one of the newest unfinished folder, with the numbers in
    its config.yml (but other games, and for DQN an empty replay buffer: not the same agent).
    Raises TeacherError if rl_zoo3 is missing, for an unknown algorithm or environment, or
    if there is nothing to resume.
    """
    _check_request(algo, num_timesteps)
    algorithms = _zoo_algorithms()
    _check_environment(env_id)
    hyperparameters = read_hyperparameters(assignments, algorithms[algo])
    checkpoint = _checkpoint(Path(output_dir) / algo, env_id) if resume else None
    if checkpoint is not None:
        config = checkpoint.parent / env_id / "config.yml"
        hyperparameters = _hyperparameters_of(config) | hyperparameters
    arguments = _zoo_arguments(algo, env_id, output_dir, num_timesteps, seed, device)
    # The zoo prints its progress; stdout belongs to this program's own table.
    with contextlib.redirect_stdout(sys.stderr):
        manager = _manager(arguments, checkpoint, hyperparameters)
        model = _set_up(manager, f"{algo} on {env_id}", seed)
        manager.learn(model)
        manager.save_trained_model(model)
    return Path(manager.save_path)


def _check_request(algo: str, num_timesteps: int | None) -> None:
    if algo not in TRAINABLE_ALGORITHMS:
        raise TeacherError(
            f"algorithm '{algo}' cannot be trained; expected {', '.join(TRAINABLE_ALGORITHMS)}"
            f"{did_you_mean(algo, TRAINABLE_ALGORITHMS)}",
            ErrorCode.TEACHER_TRAINING,
        )
    if num_timesteps is not None and num_timesteps < 1:
        raise TeacherError(
            f"num_timesteps is {num_timesteps}; expected at least 1", ErrorCode.TEACHER_TRAINING
        )


def _zoo_algorithms() -> dict[str, Any]:
    """Return SB3's classes by the zoo's names; registers the zoo's environments."""
    try:
        import rl_zoo3.import_envs  # noqa: F401 (registers environments)
        from rl_zoo3.utils import ALGOS
    except ImportError as error:
        raise TeacherError(
            f"training needs the RL Zoo ({one_line(error)}); {pip_install('train')}",
            ErrorCode.PACKAGE_MISSING,
        ) from error
    return dict(ALGOS)


def _set_up(manager: Any, what: str, seed: int) -> Any:
    """Create environments, callbacks and files, and return the model to train."""
    from stable_baselines3.common.utils import set_random_seed

    set_random_seed(seed)
    try:
        prepared = manager.setup_experiment()
    # The zoo has no hyperparameters for this pair, or SB3 refuses one.
    except (ValueError, TypeError, AssertionError) as error:
        raise TeacherError(f"{what}: {one_line(error)}", ErrorCode.TEACHER_TRAINING) from error
    if prepared is None:
        raise TeacherError(f"{what}: the RL Zoo prepared no model", ErrorCode.TEACHER_TRAINING)
    return prepared[0]


def _hyperparameters_of(config: Path) -> dict[str, Any]:
    """Read numbers and schedules from a config.yml; other text there the zoo might execute."""
    settings = read_zoo_yaml(config) if config.is_file() else {}
    return {key: value for key, value in settings.items() if is_hyperparameter(value)}


def _manager(
    arguments: dict[str, Any], checkpoint: Path | None, hyperparameters: dict[str, Any]
) -> Any:
    """Make the zoo's manager, or for games that QPD plays itself the one that uses QPD's."""
    from rl_zoo3.exp_manager import ExperimentManager

    from qpd.environments.registry import atari_rom
    from qpd.teachers.training.atari_manager import VECTOR_SETTINGS, AtariManager

    renamed = {"env": "env_id", "eval_episodes": "n_eval_episodes"}
    options = {renamed.get(name, name): value for name, value in arguments.items()}
    options |= {"log_interval": -1, "truncate_last_trajectory": True}
    options |= {"hyperparams": hyperparameters}
    # The zoo wants its parsed command line, and most of the same values a second time as arguments.
    namespace = argparse.Namespace(**arguments)
    env_id = arguments["env"]
    if atari_rom(env_id) is None or not env_id.endswith("NoFrameskip-v4"):
        if checkpoint is not None:
            raise TeacherError(
                f"{env_id}: only Atari games (XNoFrameskip-v4) can be resumed",
                ErrorCode.TEACHER_TRAINING,
            )
        return ExperimentManager(namespace, **options)
    # No evaluations on the way: five games of one environment would cost as much as the training.
    options |= {"eval_freq": -1, "save_freq": SAVE_FREQUENCY}
    options |= {"hyperparams": VECTOR_SETTINGS.get(arguments["algo"], {}) | hyperparameters}
    return AtariManager(namespace, resume_from=checkpoint, **options)


def _checkpoint(folder: Path, env_id: str) -> Path:
    """Return the newest checkpoint in the newest of the zoo's folders without a finished agent.

    Raises TeacherError if there is none.
    """
    from qpd.teachers.training.atari_manager import newest_checkpoint

    # By time, not by number: the zoo's _10 sorts before its _2.
    runs = sorted(folder.glob(f"{env_id}_*"), key=lambda run: run.stat().st_mtime, reverse=True)
    for run in runs:
        checkpoint = newest_checkpoint(run)
        if checkpoint is not None and not (run / f"{env_id}.zip").exists():
            return checkpoint
    raise TeacherError(
        f"{folder}: no unfinished training of {env_id} with a checkpoint is there",
        ErrorCode.TEACHER_TRAINING,
    )


def _check_environment(env_id: str) -> None:
    import gymnasium

    if env_id not in gymnasium.registry:
        near = difflib.get_close_matches(env_id, gymnasium.registry, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise TeacherError(
            f"environment '{env_id}' is unknown to gymnasium{hint}", ErrorCode.ENVIRONMENT_UNKNOWN
        )
    try:
        environment = gymnasium.make(env_id)
    except (gymnasium.error.Error, ImportError) as error:
        raise TeacherError(
            f"environment '{env_id}' cannot be made: {one_line(error)}",
            ErrorCode.ENVIRONMENT_UNSUPPORTED,
        ) from error
    space = environment.action_space
    observations = environment.observation_space
    environment.close()
    if not isinstance(observations, gymnasium.spaces.Box):
        raise TeacherError(
            f"{env_id} has observations of type {type(observations).__name__}; expected a Box",
            ErrorCode.ENVIRONMENT_UNSUPPORTED,
        )
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise TeacherError(
            f"{env_id} has the action space {one_line(space)}; only discrete actions are"
            " supported, continuous actions are not supported yet",
            ErrorCode.ENVIRONMENT_UNSUPPORTED,
        )


def _zoo_arguments(
    algo: str,
    env_id: str,
    output_dir: str | Path,
    num_timesteps: int | None,
    seed: int,
    device: str,
) -> dict[str, Any]:
    """Return what the zoo's command line would parse, as it writes it to args.yml."""
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
