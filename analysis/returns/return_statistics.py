"""Means, interquartile means and improvement of returns, with bootstrap intervals.

The definitions are those of Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice"
(the library rliable). They are written out here because rliable 1.2 ignores its `random_state`.

A score matrix is float `[num_runs, num_episodes]`: each row is a run (one training seed) with at
least one episode, padded with NaN if other runs played more. The statistics also take stacks of
such matrices, `[..., num_runs, num_episodes]`, and return `[...]`. Every episode counts alike, so
runs should have played equally many: a mean, in which runs count alike, and a ratio of means are in
`qpd.analysis.returns.mean_bootstrap`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

NUM_RESAMPLES = 2000
_VALUES_AT_ONCE = 1_000_000  # of a stack of resampled matrices: 8 MB

Statistic = Callable[..., np.ndarray]


def score_matrix(returns: Sequence[np.ndarray]) -> np.ndarray:
    """Stack one array `[num_episodes]` per run into a score matrix, padded with NaN.

    Raises ValueError without runs, or for a run without episodes.
    """
    if not returns or not all(len(run) for run in returns):
        raise ValueError("a score matrix needs a run, and an episode of every run")
    scores = np.full((len(returns), max(len(run) for run in returns)), np.nan)
    for row, run in zip(scores, returns, strict=True):
        row[: len(run)] = run
    return scores


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of all episodes of all runs (rliable's `aggregate_iqm`).

    Of n episodes the lowest and the highest floor(n / 4) are left out.
    `[..., num_runs, num_episodes]` -> `[...]`.
    """
    ordered = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)  # NaN comes last
    count = (~np.isnan(ordered)).sum(axis=-1, keepdims=True)
    place = np.arange(ordered.shape[-1])
    kept = (place >= count // 4) & (place < count - count // 4)
    return np.asarray(np.where(kept, ordered, 0.0).sum(axis=-1) / kept.sum(axis=-1))


def probability_of_improvement(scores: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Return the probability that a game of `scores` ends above one of `base`, ties counting half.

    P(X > Y) + P(X = Y) / 2 over all pairs of episodes, the Mann-Whitney U statistic divided by
    their number (rliable's `probability_of_improvement` for one task). To compare runs rather than
    games, pass `scores.mean(axis=-1, keepdims=True)`. Stacks of both have the same leading axes.
    """
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)  # sorted queries are faster
    base = np.sort(base.reshape(*base.shape[:-2], -1), axis=-1)
    result = np.empty(flat.shape[:-1])
    for place in np.ndindex(result.shape):
        games, others = flat[place], base[place]
        games, others = games[~np.isnan(games)], others[~np.isnan(others)]
        # Games strictly below from the left, ties included from the right: their sum counts a tie
        # once, a win twice, hence the 2 below.
        below = np.searchsorted(others, games, "left") + np.searchsorted(others, games, "right")
        result[place] = below.mean() / (2 * len(others))
    return result


def bootstrap_interval(
    statistic: Statistic,
    *scores: np.ndarray,
    rng: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = NUM_RESAMPLES,
) -> tuple[float, float]:
    """Return the percentile bootstrap interval (low, high) of `statistic(*scores)`.

    For statistics without a simple standard error; a mean or a ratio of means has a better interval
    in `qpd.analysis.returns.mean_bootstrap`.
    Each score matrix is resampled on its own: runs with replacement, then within each drawn run its
    episodes with replacement. With a single run the interval tells nothing about other seeds. Both
    ends are NaN if the statistic of any resample is.
    Raises ValueError for a matrix with an empty row.
    """
    at_once = max(1, _VALUES_AT_ONCE // max(matrix.size for matrix in scores))
    found = []
    for start in range(0, resamples, at_once):
        count = min(at_once, resamples - start)
        found.append(statistic(*(_resample(matrix, count, rng) for matrix in scores)))
    tail = (1.0 - confidence) / 2.0
    # np.quantile and not nanquantile: dropping the resamples without a ratio would bias the
    # interval.
    low, high = np.quantile(np.concatenate(found), [tail, 1.0 - tail])
    return float(low), float(high)


def _resample(scores: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw resamples `[count, num_runs, num_episodes]`; a drawn run keeps its own length."""
    num_runs, num_episodes = scores.shape
    played = (~np.isnan(scores)).sum(axis=1)
    if not played.all():
        raise ValueError("a score matrix needs an episode of every run")
    runs = rng.integers(num_runs, size=(count, num_runs, 1))
    # Drawn runs differ in length: a scaled uniform is a place within each.
    episodes = (rng.random((count, num_runs, num_episodes)) * played[runs]).astype(np.int64)
    drawn = scores[runs, episodes]
    return np.where(np.arange(num_episodes) < played[runs], drawn, np.nan)
