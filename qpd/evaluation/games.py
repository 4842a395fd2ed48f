"""Returns over full games: a fixed number of episodes started, every one played to its end."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from qpd.actions import ActingRule
from qpd.environments.policy import Policy
from qpd.environments.registry import VectorEnvironment
from qpd.evaluation.return_words import interval_text
from qpd.evaluation.studentized import FEW, StudentizedEstimate, studentized_draws

logger = logging.getLogger(__name__)

_DRAWS_AT_ONCE = 1 << 22
# Steps without the end of a game: an Atari game is cut off after 27,000, MuJoCo's after 1,000.
_ENDLESS = 30_000


@dataclass(frozen=True)
class EvaluationResult:
    """Unclipped returns float64 `[episodes]` and lengths int64 `[episodes]` in agent steps, in the
    order in which the episodes were started.

    `distinct_starts` counts the different observations that games began with, no-ops over; None if
    it is not known.
    """

    returns: np.ndarray
    lengths: np.ndarray
    seed: int
    acting: ActingRule
    distinct_starts: int | None = None

    def __str__(self) -> str:
        """Tell mean, interval, number of games, how the policy acted, and the seed."""
        how = f"{self.acting}, seed {self.seed}"
        if len(self.returns) < 2:
            return f"return {self.mean:.1f} (1 game, {how})"
        interval, games = self.shown_interval(), len(self.returns)
        return f"return {self.mean:.1f} {interval} (95% interval, {games} games, {how})"

    @property
    def mean(self) -> float:
        """Return the mean return."""
        return float(self.returns.mean())

    def interval(self) -> tuple[float, float]:
        """Return the 95% bootstrap interval of the mean (`bootstrap_interval`)."""
        return self._interval

    @cached_property
    def _interval(self) -> tuple[float, float]:
        # Metrics, sinks, progress and selection each ask, and it takes 10,000 resamples.
        return bootstrap_interval(self.returns)

    def shown_interval(self) -> str:
        """Return the interval as text, see `interval_text`."""
        return interval_text(self.interval(), len(self.returns))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        low, high = self.interval()
        starts = {} if self.distinct_starts is None else {"distinct_starts": self.distinct_starts}
        return {
            "mean": self.mean,
            "interval": [low, high],
            "std": float(self.returns.std(ddof=1)) if len(self.returns) > 1 else 0.0,
            "episodes": len(self.returns),
            # Breakout has 4 distinct starts: a greedy policy plays at most 4 different games,
            # however many episodes are counted, and an interval over copies means nothing. Games
            # of equal return and length may still be different ones: all that last to the limit.
            **starts,
            "distinct_games": len(set(zip(self.returns, self.lengths, strict=True))),
            "seed": self.seed,
            "acting": str(self.acting),
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
        }


def bootstrap_interval(
    returns: np.ndarray, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Return the bootstrap-t interval of the mean return, `[episodes]`, kept near Student's t.

    See `qpd.evaluation.studentized`. A single game has no width.
    """
    if len(returns) < 2:
        return float(returns.mean()), float(returns.mean())
    found = bootstrap_estimate(returns, resamples, seed)
    if len(returns) >= FEW:
        found = replace(found, lowest=float(returns.min()), highest=float(returns.max()))
    return found.interval(confidence)


def bootstrap_estimate(
    returns: np.ndarray, resamples: int = 10_000, seed: int = 0
) -> StudentizedEstimate:
    """Return the mean of at least two numbers, `[episodes]`, with its resamples.

    Differences of paired games are such numbers, too.
    """
    count = len(returns)
    mean = float(returns.mean())
    rng = np.random.default_rng(seed)
    means, errors = np.empty(resamples), np.empty(resamples)
    # A block of rows at a time, which draws the same numbers: at once they may fill the memory.
    rows = max(1, _DRAWS_AT_ONCE // count)
    for first in range(0, resamples, rows):
        block = slice(first, min(first + rows, resamples))
        drawn = returns[rng.integers(count, size=(block.stop - first, count))]
        means[block] = drawn.mean(axis=1)
        errors[block] = drawn.std(axis=1, ddof=1) / np.sqrt(count)
    error = float(returns.std(ddof=1) / np.sqrt(count))
    draws = studentized_draws(mean, means, errors)
    return StudentizedEstimate(mean, error, draws, count - 1.0)


def evaluation_rng(seed: int) -> np.random.Generator:
    """Return the stream of an evaluation's draws, apart from its environments'."""
    return np.random.default_rng([seed, 0xE7A1])


def evaluate(
    policy: Policy,
    env: VectorEnvironment,
    num_episodes: int,
    rule: ActingRule,
    seed: int,
    on_episode: Callable[[int], None] | None = None,
    on_outputs: Callable[[np.ndarray, np.ndarray, np.ndarray], None] | None = None,
) -> EvaluationResult:
    """Play `num_episodes` full games in `env`; a game once started is always finished.

    Episodes are numbered as they start: one in every environment, then the next one wherever a
    game ends, until all are started; so long and short games count alike. `on_episode` is called
    with the number finished, `on_outputs` with the episodes that ask the policy, int64 `[n]`,
    their observations and its outputs. A policy that never ends its games, where nothing cuts them
    off, is told. Raises ValueError for fewer than one episode.
    """
    if num_episodes < 1:
        raise ValueError(f"evaluation needs at least 1 episode, got {num_episodes}")
    rng = evaluation_rng(seed)
    env.reset(seed)
    returns, lengths = np.zeros(num_episodes), np.zeros(num_episodes, np.int64)
    episode = np.arange(env.num_envs)
    active = episode < num_episodes
    started = min(env.num_envs, num_episodes)
    finished = waited = 0
    starts: dict[int, bytes] = {}
    while finished < num_episodes:
        rows = np.flatnonzero(active & env.acting)
        actions = env.spec.actions.empty(env.num_envs)
        for row in rows:
            if episode[row] not in starts:
                seen = env.observations[row]
                starts[episode[row]] = hashlib.sha256(seen.tobytes()).digest()
        if len(rows):
            observations = env.observations[rows]
            outputs = policy(observations)
            actions[rows] = policy.actions.act(outputs, rule, rng)
            if on_outputs is not None:
                on_outputs(episode[rows], observations, outputs)
        step = env.step(actions, active)
        waited = 0 if (step.game_over & active).any() else waited + 1
        if waited == _ENDLESS:
            logger.warning(
                "%s: no game has ended in %s steps; cut games off after fewer: --env-kwargs "
                "max_episode_steps:1000, `qpd evaluate` --max-frames, a recipe's "
                "environment.max_frames",
                env.spec.env_id,
                f"{_ENDLESS:,}",
            )
        for row in np.flatnonzero(step.game_over & active):
            returns[episode[row]] = step.game_returns[row]
            lengths[episode[row]] = step.game_lengths[row]
            finished += 1
            active[row] = started < num_episodes
            episode[row] = started
            started += int(active[row])
            if on_episode is not None:
                on_episode(finished)
    return EvaluationResult(returns, lengths, seed, rule, len(set(starts.values())))
