"""Validation while training: the games by which a phase chooses its best epoch."""

from __future__ import annotations

import numpy as np
import torch

from qpd.actions import ActingRule, ActionSpace
from qpd.environments.interface import VectorEnvironment
from qpd.environments.policy import Policy, network_policy
from qpd.environments.registry import environment_spec, make_vector_env
from qpd.evaluation.games import evaluate
from qpd.numerics.random_seeds import seed_for
from qpd.phases.preparation import Prepared
from qpd.recipe.schema import MAX_PARALLEL_GAMES, Recipe
from qpd.runs.progress import Progress
from qpd.training.selection import Validated

HELD_OUT_STATES = 4096  # of one validation; 116 MB of Atari's frames
_STATES_A_STEP = 4  # at most: parallel games in the same step are alike


class Validation:
    """Plays the validation episodes: other games than those that are reported."""

    def __init__(self, recipe: Recipe, prepared: Prepared, progress: Progress) -> None:
        self._recipe, self._prepared, self._progress = recipe, prepared, progress
        self._env: VectorEnvironment | None = None

    def __call__(self, policy: Policy, temperature: float) -> Validated:
        """Play them with `policy`; the same starts every time, so that epochs can be compared.

        `temperature` is phase 1's, that of the divergence.
        """
        count = self._recipe.evaluation.validation_episodes
        if self._env is None:  # emulators take a while to make, and many runs never validate
            self._env = make_env(self._recipe, self._prepared, min(count, MAX_PARALLEL_GAMES))
        states = _SampledStates(policy)
        games = evaluate(
            states,
            self._env,
            count,
            acting_rule(self._recipe, self._prepared),
            seed_for(self._recipe.seed, "validation"),
            lambda done: self._progress.episodes("validation", done, count),
        )
        return Validated(games, self._divergence(states, temperature))

    def _divergence(self, states: _SampledStates, temperature: float) -> float:
        """Return Eq. 1 over the states that the student met, of the student that acts, in nats.

        At Eq. 1's temperature: the divergence of the sharpened policies themselves is mostly that
        of a few states, and tells two epochs apart a third as well.
        """
        teacher = self._prepared.teacher
        # What acts has temperature and sharpness folded into its logits.
        folded = teacher.actions.fold(temperature, self._recipe.student.sharpness)
        labels = network_policy(teacher, teacher.actions)
        # In parts: the teacher's activations of all states would take a gigabyte.
        parts = np.array_split(states.observations, -(-len(states.observations) // 256))
        wanted = torch.from_numpy(np.concatenate([labels(part) for part in parts]))
        acted = torch.from_numpy(teacher.actions.outputs_of(states.actions, states.outputs))
        return float(teacher.actions.divergence(wanted, acted, temperature, folded).mean())

    def close(self) -> None:
        """Release the environments."""
        if self._env is not None:
            self._env.close()


class _SampledStates:
    """A policy, with a uniform sample of the states it was asked about and its outputs there."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # Apart from the games' own stream: sampling changes no game.
        self._rng = np.random.default_rng(0x57A7)
        self._states: list[np.ndarray] = []
        self._outputs: list[np.ndarray] = []
        self._num_seen = 0

    @property
    def actions(self) -> ActionSpace:
        """The policy's actions."""
        return self._policy.actions

    def __call__(self, observations: np.ndarray, /) -> np.ndarray:
        outputs = self._policy(observations)
        count = min(len(observations), _STATES_A_STEP)
        for row in self._rng.choice(len(observations), count, replace=False):
            self._keep(observations[row], outputs[row])
        return outputs

    def _keep(self, observation: np.ndarray, outputs: np.ndarray) -> None:
        """Keep it, or not: reservoir sampling (Vitter 1985, algorithm R)."""
        self._num_seen += 1
        if len(self._states) < HELD_OUT_STATES:
            self._states.append(observation.copy())
            self._outputs.append(np.array(outputs, np.float32))
            return
        place = int(self._rng.integers(self._num_seen))
        if place < HELD_OUT_STATES:
            self._states[place] = observation.copy()
            self._outputs[place] = np.array(outputs, np.float32)

    @property
    def observations(self) -> np.ndarray:
        """The states, `[n, ...]`."""
        return np.stack(self._states)

    @property
    def outputs(self) -> np.ndarray:
        """The policy's outputs there, float32 `[n, num_outputs]`."""
        return np.stack(self._outputs)


def acting_rule(recipe: Recipe, prepared: Prepared, sharpness: float = 1.0) -> ActingRule:
    """Return how evaluations of this recipe act; `sharpness` is a factor on the logits."""
    settings = recipe.evaluation
    return prepared.teacher.actions.rule(
        settings.acting,
        on_atari=environment_spec(prepared.environment).is_atari,
        epsilon=settings.epsilon,
        sharpness=sharpness,
    )


def make_env(recipe: Recipe, prepared: Prepared, num_envs: int) -> VectorEnvironment:
    """Make the vector environment that the recipe describes."""
    settings = recipe.environment
    return make_vector_env(
        prepared.environment,
        num_envs,
        num_threads=settings.num_threads,
        max_frames=settings.max_frames,
    )
