"""Validation while training: the games by which a phase chooses its best epoch."""

from __future__ import annotations

import numpy as np
import torch

from qpd.actions import ActingRule, ActionSpace
from qpd.environments.interface import VectorEnvironment
from qpd.environments.policy import Policy, network_policy
from qpd.environments.registry import environment_spec, make_vector_env
from qpd.evaluation.games import evaluate
from qpd.evaluation.states_of_games import StatesOfGames
from qpd.numerics.random_seeds import seed_for
from qpd.phases.preparation import Prepared
from qpd.recipe.schema import MAX_PARALLEL_GAMES, Recipe
from qpd.runs.progress import Progress
from qpd.training.selection import Validated


class Validation:
    """Plays the validation episodes: other games than those that are reported."""

    def __init__(self, recipe: Recipe, prepared: Prepared, progress: Progress) -> None:
        self._recipe, self._prepared, self._progress = recipe, prepared, progress
        self._env: VectorEnvironment | None = None

    def __call__(self, policy: Policy, temperature: float) -> Validated:
        """Play them with `policy`; the same starts every time, so that epochs can be compared.

        `policy` must stay as it is; `temperature` is phase 1's, that of the divergence.
        """
        count = self._recipe.evaluation.validation_episodes
        if self._env is None:  # emulators take a while to make, and many runs never validate
            self._env = make_env(self._recipe, self._prepared, min(count, MAX_PARALLEL_GAMES))
        states = StatesOfGames(count)
        games = evaluate(
            policy,
            self._env,
            count,
            acting_rule(self._recipe, self._prepared),
            seed_for(self._recipe.seed, "validation"),
            lambda done: self._progress.episodes("validation", done, count),
            states,
        )
        teacher = self._prepared.teacher
        # What acts has temperature and sharpness folded into its logits.
        folded = teacher.actions.fold(temperature, self._recipe.student.sharpness)
        wanted = torch.from_numpy(
            _in_parts(network_policy(teacher, teacher.actions), states.observations)
        )

        def divergence(actions: ActionSpace, outputs: np.ndarray) -> float:
            """Return Eq. 1 over the states that the student met, of a student that acts, in nats.

            Each game counts alike. At Eq. 1's temperature: the divergence of the sharpened policies
            themselves is mostly that of a few states, and tells two epochs apart a third as well.
            """
            acted = torch.from_numpy(teacher.actions.outputs_of(actions, outputs))
            found = teacher.actions.divergence(wanted, acted, temperature, folded)
            return states.mean(found.double().numpy())

        def divergence_of(other: Policy) -> float:
            return divergence(other.actions, _in_parts(other, states.observations))

        own = divergence(policy.actions, states.outputs)
        return Validated(games, own, policy, divergence_of)

    def close(self) -> None:
        """Release the environments."""
        if self._env is not None:
            self._env.close()


def _in_parts(policy: Policy, observations: np.ndarray) -> np.ndarray:
    """Return the outputs for many observations: all activations at once would take a gigabyte."""
    parts = np.array_split(observations, -(-len(observations) // 256))
    return np.concatenate([policy(part) for part in parts])


def acting_rule(recipe: Recipe, prepared: Prepared, sharpness: float = 1.0) -> ActingRule:
    """Return how evaluations of this recipe act; `sharpness` is a factor on the logits."""
    settings = recipe.evaluation
    return prepared.teacher.actions.rule(
        settings.acting,
        on_atari=environment_spec(prepared.environment).is_atari,
        epsilon=settings.epsilon,
        sharpness=sharpness,
    )


def plays_sharpened(recipe: Recipe, prepared: Prepared) -> bool:
    """Tell whether the teacher is evaluated at the student's sharpness, too."""
    return recipe.student.sharpness != 1.0 and acting_rule(recipe, prepared).kind == "sample"


def make_env(recipe: Recipe, prepared: Prepared, num_envs: int) -> VectorEnvironment:
    """Make the vector environment that the recipe describes."""
    settings = recipe.environment
    return make_vector_env(
        prepared.environment,
        num_envs,
        num_threads=settings.num_threads,
        max_frames=settings.max_frames,
    )
