"""States from a teacher's play, for the figures that run networks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qpd.actions import ActingRule
from qpd.environments.registry import make_vector_env
from qpd.environments.source import EnvironmentSource, as_source
from qpd.teachers import Teacher
from qpd.teachers.rollout_collector import collect_transitions


@dataclass(frozen=True)
class PlayedStates:
    """States in the order in which they were met, with the teacher's outputs for each.

    observations: uint8 `[count, 4, 84, 84]` or float32 `[count, features]`.
    labels: float32 `[count, num_labels]`, the teacher's (`qpd.actions`). values: float32 `[count]`.
    """

    env_id: str
    observations: np.ndarray
    labels: np.ndarray
    values: np.ndarray


def play_states(
    teacher: Teacher,
    env: str | EnvironmentSource,
    count: int,
    *,
    seed: int = 0,
    games: int = 16,
    thinning: int = 16,
    max_frames: int | None = None,
) -> PlayedStates:
    """Draw `count` states at random from `count * thinning` states of the teacher's play.

    Consecutive states of a game are nearly identical, hence the thinning; `games` are played at a
    time. Actions are sampled for policies and epsilon-greedy (0.01) for Q-values, as
    in the memory that students learn from. Raises EnvironmentConfigError.
    """
    rule = ActingRule(teacher.actions.exploring, epsilon=0.01)
    # A stream of its own: seed 0 here must not replay the draws of seed 0 elsewhere.
    rng = np.random.default_rng([seed, 0xF16])
    # Chosen before the play, so that only these are kept: all states would take `thinning` times
    # the memory.
    chosen = np.sort(rng.choice(count * thinning, count, replace=False))
    source = as_source(env)
    envs = make_vector_env(source, min(games, count), max_frames=max_frames)
    envs.reset(seed)
    kept, begin = [], 0
    for batch in collect_transitions(teacher, envs, rule, rng, count * thinning):
        # `chosen` counts over the whole play; the batch holds [begin, begin + len(batch)) of it.
        first, last = np.searchsorted(chosen, [begin, begin + len(batch)])
        rows = chosen[first:last] - begin
        kept.append((batch.observations[rows], batch.labels.numpy()[rows], batch.values[rows]))
        begin += len(batch)
    envs.close()
    observations, labels, values = (np.concatenate(part) for part in zip(*kept, strict=True))
    return PlayedStates(source.env_id, observations, labels, values)
