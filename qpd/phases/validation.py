"""Validation while training: the games by which a phase chooses its best epoch."""

from __future__ import annotations

from qpd.environments.acting import ActingRule, resolve_acting
from qpd.environments.interface import VectorEnvironment
from qpd.environments.policy import Policy
from qpd.environments.registry import environment_spec, make_vector_env
from qpd.evaluation.games import EvaluationResult, evaluate
from qpd.numerics.random_seeds import seed_for
from qpd.phases.preparation import Prepared
from qpd.recipe.schema import Recipe
from qpd.runs.progress import Progress

MAX_PARALLEL_GAMES = 64


class Validation:
    """Plays the validation episodes: other games than those that are reported."""

    def __init__(self, recipe: Recipe, prepared: Prepared, progress: Progress) -> None:
        self._recipe, self._prepared, self._progress = recipe, prepared, progress
        self._env: VectorEnvironment | None = None

    def __call__(self, policy: Policy) -> EvaluationResult:
        """Play them with `policy`; the same starts every time, so that epochs can be compared."""
        count = self._recipe.evaluation.validation_episodes
        if self._env is None:  # emulators take a while to make, and many runs never validate
            self._env = make_env(self._recipe, self._prepared, min(count, MAX_PARALLEL_GAMES))
        return evaluate(
            policy,
            self._env,
            count,
            acting_rule(self._recipe, self._prepared),
            seed_for(self._recipe.seed, "validation"),
            lambda done: self._progress.episodes("validation", done, count),
        )

    def close(self) -> None:
        """Release the environments."""
        if self._env is not None:
            self._env.close()


def acting_rule(recipe: Recipe, prepared: Prepared, sharpness: float = 1.0) -> ActingRule:
    """Return how evaluations of this recipe act; `sharpness` is a factor on the logits."""
    settings = recipe.evaluation
    return resolve_acting(
        settings.acting,
        is_actor_critic=prepared.teacher.has_actor_critic,
        is_atari=environment_spec(prepared.env_id).is_atari,
        epsilon=settings.epsilon,
        sharpness=sharpness,
    )


def make_env(recipe: Recipe, prepared: Prepared, num_envs: int) -> VectorEnvironment:
    """Make the vector environment that the recipe describes."""
    settings = recipe.environment
    return make_vector_env(
        prepared.env_id,
        num_envs,
        num_threads=settings.num_threads,
        max_frames=settings.max_frames,
    )
