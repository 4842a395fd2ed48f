"""One training of a Stable-Baselines3 agent with the RL Zoo's hyperparameters and code."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qpd.environments.making import find_registered, is_playable_atari, make_one
from qpd.environments.named_modules import allow_named
from qpd.environments.registry import environment_spec
from qpd.environments.source import EnvironmentSource, wrappers_of
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.recipe.train_schema import TrainRecipe, TrainSettings
from qpd.teachers.archive.errors import TeacherError, one_line
from qpd.teachers.training.algorithms import algorithm_class, check_actions
from qpd.teachers.training.hyperparameters import checked_hyperparameters

CHECKPOINTS = "checkpoints"

logger = logging.getLogger(__name__)


class LearningFailedError(TeacherError):
    """Numbers are no longer finite, after `timesteps` agent steps."""

    code = ErrorCode.TEACHER_TRAINING

    def __init__(self, line: str, timesteps: int) -> None:
        """Remember when."""
        super().__init__(line)
        self.timesteps = timesteps


class AgentTraining:
    """A training that is set up, with nothing written: environments, and the agent to train.

    Raises TeacherError or EnvironmentConfigError, one line: a missing package, an unknown
    environment, actions that the algorithm does not learn, hyperparameters that SB3 refuses.
    """

    def __init__(self, recipe: TrainRecipe, folder: Path | None = None) -> None:
        """Set it up; from the newest checkpoint in `folder`, a run directory, if there is one."""
        self._recipe, train = recipe, recipe.train
        algorithm = algorithm_class(train.algo)
        hyperparameters = checked_hyperparameters(train.hyperparameters, algorithm)
        if train.algo == "ars" and hyperparameters.get("n_envs", 1) != 1:
            raise TeacherError(
                "train.hyperparameters.n_envs: ARS plays one environment here: must be 1",
                ErrorCode.TEACHER_TRAINING,
            )
        self._manager: Any = _manager(recipe, hyperparameters)
        self._manager.checkpoint = None if folder is None else self.newest_checkpoint(folder)
        with self._refusals():
            self._model: Any = self._set_up()

    @property
    def total_timesteps(self) -> int:
        """The agent steps of the whole training; what is played may be a rollout more."""
        return int(self._manager.n_timesteps)

    @property
    def may_compile(self) -> bool:
        """Tell whether updates are compiled where there is a compiler, which rounds otherwise."""
        return bool(self._manager.may_compile)

    @property
    def num_parameters(self) -> int:
        """The parameters of all networks, critics and targets included."""
        return sum(parameter.numel() for parameter in self._model.policy.parameters())

    def learn(self, folder: Path, listener: Any, checkpoint: Path | None) -> Path:
        """Train to the end, from `checkpoint` on if there is one, and return the agent's zip.

        `folder` gets the RL Zoo's files and `checkpoints/`; `listener` is a TrainingListener.
        Raises TeacherError where learning fails; OSError.
        """
        from qpd.teachers.training.segments import SegmentCallback

        train, total = self._recipe.train, self.total_timesteps
        self._manager.callbacks = [
            SegmentCallback(
                train,
                self._recipe.seed,
                total,
                folder / CHECKPOINTS,
                listener,
                checkpoint,
                self._manager.quantizers,
                self._manager.gradients,
            ),
            *self._manager.callbacks,  # the zoo's
            *self._manager.extra_callbacks(),
        ]
        with _silent():
            self._manager.write_settings(folder)
            try:
                self._manager.learn(self._model)
            except UserError:
                raise
            # What PyTorch and SB3 raise for numbers that are no longer finite.
            except (ValueError, ArithmeticError, AssertionError) as error:
                done, reason = self._model.num_timesteps, one_line(error)
                if reason.startswith("Expected parameter"):  # of a distribution
                    reason = "the policy's outputs are no longer finite"
                precision = self._recipe.precision
                is_plain = precision.low is not None and not (
                    precision.methods or precision.baseline
                )
                if train.algo == "sac" and is_plain and reason.endswith("no longer finite"):
                    reason += "; precision.methods are there to keep them finite"
                raise LearningFailedError(
                    f"{train.algo} on {train.env}: learning failed after {done:,} steps: {reason}",
                    done,
                ) from error
            self._manager.save_trained_model(self._model)
        agent: Path = self._manager.agent_file
        return agent

    def newest_checkpoint(self, folder: Path) -> Path | None:
        """Return the checkpoint to resume from in a run directory, or None."""
        from qpd.teachers.training.checkpoint import newest_checkpoint

        return newest_checkpoint(folder / CHECKPOINTS)

    def marks(self, checkpoint: Path) -> tuple[int, dict[str, Any]]:
        """Return a checkpoint's agent steps, and what its listener gave to keep.

        Raises TeacherError for a damaged one.
        """
        from qpd.teachers.training.checkpoint import read_state

        return int(checkpoint.name), read_state(checkpoint)["marks"]

    def close(self) -> None:
        """Close the environments."""
        if self._model.env is not None:
            self._model.env.close()

    def _set_up(self) -> Any:
        """Check the environment with all that the zoo does to it, and build the model."""
        from gymnasium import spaces
        from stable_baselines3.common.utils import set_random_seed

        train = self._recipe.train
        kwargs, wrappers, stack = self._manager.environment_settings()
        source = EnvironmentSource(train.env, kwargs, wrappers, stack)
        if is_playable_atari(self._manager.env_name.gym_id):
            source = _atari_source(self._recipe)
        allow_named(source)  # the user's names, or the installed zoo's
        spec = environment_spec(source)
        check_actions(train.algo, train.env, type(spec.actions).__name__)
        self._manager.fitting_policy = "CnnPolicy"
        if not spec.is_atari:
            env = make_one(source)
            env.close()
            _check_axis(env.action_space, train)
            self._manager.fitting_policy = _policy_for(env.observation_space)
            self._manager.normalizes = isinstance(env.observation_space, (spaces.Box, spaces.Dict))
        if self._recipe.quantization.bits is not None and train.algo == "ars":
            raise TeacherError(
                "quantization: ARS learns without gradients; all other algorithms can be quantized",
                ErrorCode.TEACHER_TRAINING,
            )
        is_controller = self._recipe.quantization.controller is not None
        if self._recipe.uses_fast_learner and self._recipe.precision.low is not None:
            if is_controller or train.products != "float32":
                whose = "integer controllers" if is_controller else f"products={train.products}"
                raise TeacherError(
                    f"train.learner=fast: {whose} and precision.format do not go together; "
                    "controllers learn in few bits of floating point with train.learner=null",
                    ErrorCode.TEACHER_TRAINING,
                )
        if self._recipe.precision.low is not None and (
            self._recipe.quantization.bits is not None or (is_controller and train.algo != "sac")
        ):
            raise TeacherError(
                "precision: of quantized agents SAC's integer controllers alone learn in few bits "
                "of floating point (qpd train sac ENV --bits core=3)",
                ErrorCode.TEACHER_TRAINING,
            )
        if self._recipe.precision.gradient_exponents is not None and train.algo in ("ars", "trpo"):
            raise TeacherError(
                f"precision.gradient_exponents: {train.algo.upper()} has no optimizer of its "
                "policy; the other algorithms' gradients can be counted",
                ErrorCode.TEACHER_TRAINING,
            )
        set_random_seed(self._recipe.seed)
        prepared = self._manager.setup_experiment()
        assert prepared is not None  # None only where the zoo searches hyperparameters
        model = prepared[0]
        _check_stacking(model, train.env)
        _check_frequency(model)
        self._manager.prepare(model)
        return model

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        train = self._recipe.train
        try:
            with _silent():
                yield
        except UserError:
            raise
        # SB3, the zoo and a wrapper raise whatever a wrong number leads them to.
        except Exception as error:
            logger.debug("set-up", exc_info=True)
            kind = type(error).__name__
            raise TeacherError(
                f"{train.algo} on {train.env}: cannot be set up: {kind}: {one_line(error)}",
                ErrorCode.TEACHER_TRAINING,
            ) from error


def _policy_for(observations: Any) -> str:
    """Name SB3's policy for a space of observations."""
    from gymnasium import spaces
    from stable_baselines3.common.preprocessing import is_image_space

    if isinstance(observations, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(observations) else "MlpPolicy"


def _check_axis(actions: Any, train: TrainSettings) -> None:
    """Refuse actions that are a number without an axis: the zoo counts along the first one."""
    from gymnasium import spaces

    if isinstance(actions, spaces.Box) and actions.shape == ():
        raise TeacherError(
            f"{train.algo} on {train.env}: its actions are single numbers, which the RL Zoo does "
            "not train: give the action space the shape (1,)",
            ErrorCode.TEACHER_TRAINING,
        )


def _check_frequency(model: Any) -> None:
    """Refuse to learn after every episode where several environments play."""
    frequency = getattr(model, "train_freq", None)
    unit = getattr(getattr(frequency, "unit", None), "value", None)
    if unit == "episode" and model.n_envs > 1:
        raise TeacherError(
            f"train.hyperparameters.train_freq: learns after episodes, and n_envs={model.n_envs} "
            "play side by side; set n_envs=1, or a number of steps",
            ErrorCode.TEACHER_TRAINING,
        )


def _check_stacking(model: Any, env_id: str) -> None:
    """Refuse observations that are normalized one by one, and then stacked.

    QPD plays no agent of them, and SB3's replay buffer cannot hold them even where rewards alone
    are normalized.
    """
    normalize = model.get_vec_normalize_env()
    if normalize is None:
        return
    concerns = normalize.norm_obs or getattr(model, "replay_buffer", None) is not None
    if concerns and normalize.observation_space.shape != model.observation_space.shape:
        raise TeacherError(
            f"{type(model).__name__} on {env_id}: stacked observations of VecNormalize are not "
            "supported: set normalize=false, or no frame stack",
            ErrorCode.TEACHER_TRAINING,
        )


def _manager(recipe: TrainRecipe, hyperparameters: dict[str, Any]) -> Any:
    """Make the zoo's manager, or for games that QPD plays itself the one that uses QPD's."""
    from qpd.teachers.training.atari_manager import VECTOR_SETTINGS, AtariManager
    from qpd.teachers.training.manager import TrainingManager

    train = recipe.train
    allow_named(EnvironmentSource(train.env))
    if not is_playable_atari(train.env):
        return TrainingManager(recipe, find_registered(train.env).id, hyperparameters)
    if hyperparameters.get("normalize"):
        raise TeacherError(
            f"train.hyperparameters.normalize={hyperparameters['normalize']}: {train.env}'s frames "
            "are divided by 255 and its rewards clipped to their sign: remove it",
            ErrorCode.TEACHER_TRAINING,
        )
    settings = VECTOR_SETTINGS.get(train.algo, {})
    if settings and "n_envs" in hyperparameters:  # the zoo's ratio of updates to steps
        settings = {**settings, "gradient_steps": hyperparameters["n_envs"]}
    return AtariManager(recipe, train.env, settings | hyperparameters)


def _atari_source(recipe: TrainRecipe) -> EnvironmentSource:
    """Return a game with what the recipe does to it; the zoo's own preprocessing is QPD's."""
    ours = recipe.environment
    return EnvironmentSource(
        recipe.train.env, ours.kwargs, wrappers_of(ours.wrappers), ours.frame_stack or 1
    )


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Swallow what the zoo prints: stdout belongs to this program's own table."""
    # To nowhere: an environment may print for millions of steps.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
