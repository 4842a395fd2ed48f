"""Means of returns and ratios of them, with bootstrap-t intervals and p-values.

Runs count alike, however many games each played: a mean is that of the runs' means. The bootstrap
is hierarchical: runs with replacement, then games within each drawn run. For one run
the interval is that of `qpd.evaluation.games.bootstrap_interval`, but for the draws: both are
`qpd.evaluation.studentized`. Two to five runs are too few to be resampled: theirs is Student's t of
the runs' means, with no less variance than games alone give. Policies of the same seeds are
compared seed by seed, whatever their number: what seeds have in common cancels.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from qpd.evaluation.studentized import FEW, StudentizedEstimate, studentized_draws

# A tail of 0.00005, which 14 claims of 35 comparisons each need at an error rate of 5%.
RESAMPLES = 19_999
FEW_RUNS = 5  # up to which the bootstrap covers 89 to 94% in place of 95
_VALUES_AT_ONCE = 1_000_000  # of resampled games: 8 MB
ScorePair = tuple[np.ndarray, np.ndarray]
Seeds = tuple[int, ...]  # of a score matrix's runs, in order; empty where they have none
# From the means of matrices to a value and its slope by each mean.
_Smooth = Callable[[list[np.ndarray]], tuple[np.ndarray, list[np.ndarray]]]


@dataclass(frozen=True)
class _Moments:
    """Means of runs' means, and the variance that the hierarchical bootstrap gives them.

    `between` is the part of the variance from the draw of runs, `within` that of games; float
    `[...]`.
    """

    means: np.ndarray
    between: np.ndarray
    within: np.ndarray

    @property
    def variances(self) -> np.ndarray:
        return np.asarray(self.between + self.within)


@dataclass(frozen=True)
class _Bootstrap:
    """The moments of a score matrix, those of its resamples, and its counts."""

    found: _Moments
    drawn: _Moments
    runs: int
    games: int

    def freedom(self) -> float:
        """Return Satterthwaite's degrees of freedom of the variance; games less one for a run.

        Of few runs the runs less one: their spread has the games' in it, so that these lend none.
        """
        if _are_few(self.runs):
            return self.runs - 1.0
        parts = [
            (float(self.found.between), self.runs - 1),
            (float(self.found.within), self.games - self.runs),
        ]
        below = sum(variance**2 / free for variance, free in parts if free > 0)
        return float(self.found.variances) ** 2 / below if below > 0 else np.inf


def mean_estimate(scores: np.ndarray) -> StudentizedEstimate:
    """Estimate the mean of a score matrix `[num_runs, num_episodes]`.

    That of one run's many games is among them; that over seeds may be beyond all games of those
    trained.
    """
    found = _estimate([scores], lambda means: (means[0], [np.ones_like(means[0])]))
    if len(scores) > 1 or np.count_nonzero(~np.isnan(scores)) < FEW:
        return found
    return replace(found, lowest=float(np.nanmin(scores)), highest=float(np.nanmax(scores)))


def mean_of_ratios_estimate(
    pairs: Sequence[ScorePair], seeds: Sequence[tuple[Seeds, Seeds]] = ()
) -> StudentizedEstimate | None:
    """Estimate the mean over `pairs` of mean(first) / mean(second); None if a base may be 0.

    A matrix that stands in several pairs, or an equal one, is resampled once for all of them: equal
    games are the same games, such as those of a student that phase 3 left as it was. `seeds` are
    those of each pair's matrices: matrices of the same ones are compared seed by seed.
    """
    matrices = {_key(matrix): matrix for pair in pairs for matrix in pair}
    trained = {
        _key(matrix): own
        for pair, both in zip(pairs, seeds or [((), ())] * len(pairs), strict=True)
        for matrix, own in zip(pair, both, strict=True)
    }
    place = {key: number for number, key in enumerate(matrices)}
    places = [(place[_key(first)], place[_key(second)]) for first, second in pairs]
    if any((_bootstrap(*_key(base)).drawn.means <= 0).any() for _, base in pairs):
        return None

    def ratio(means: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        slopes = [np.zeros_like(means[0]) for _ in means]
        total = np.zeros_like(means[0])
        for one, two in places:
            total = total + means[one] / means[two] / len(places)
            slopes[one] = slopes[one] + 1.0 / means[two] / len(places)
            slopes[two] = slopes[two] - means[one] / means[two] ** 2 / len(places)
        return total, slopes

    found = _estimate(list(matrices.values()), ratio, [trained[key] for key in matrices])
    never_negative = all(np.nanmin(first) >= 0.0 for first, _ in pairs)
    return replace(found, lowest=0.0) if never_negative else found


def _estimate(
    matrices: Sequence[np.ndarray], function: _Smooth, seeds: Sequence[Seeds] = ()
) -> StudentizedEstimate:
    """Estimate `function(means) -> (value, slopes)` of the matrices' means; error by the slopes."""
    boots = [_bootstrap(*_key(matrix)) for matrix in matrices]
    value, slopes = function([boot.found.means for boot in boots])
    weights = [float(slope) for slope in slopes]
    together = _places_by_seeds(seeds)
    parts, freedoms = [], []
    for place, boot in enumerate(boots):
        if not any(place in places for places in together):
            parts.append(weights[place] ** 2 * float(boot.found.variances))
            freedoms.append(boot.freedom())
    for places in together:
        own = [weights[place] for place in places]
        games = [float(boots[place].found.within) for place in places]
        parts.append(_variance_by_seed([matrices[place] for place in places], own, games))
        freedoms.append(len(matrices[places[0]]) - 1.0)
    drawn, drawn_slopes = function([boot.drawn.means for boot in boots])
    squares = sum(s**2 * b.drawn.variances for s, b in zip(drawn_slopes, boots, strict=True))
    draws = studentized_draws(float(value), drawn, np.sqrt(squares))
    if together or any(_are_few(boot.runs) for boot in boots):
        draws = draws[:0]
    below = sum(part**2 / free for part, free in zip(parts, freedoms, strict=True))
    freedom = sum(parts) ** 2 / below if below > 0 else np.inf
    return StudentizedEstimate(float(value), float(np.sqrt(sum(parts))), draws, freedom)


def _places_by_seeds(seeds: Sequence[Seeds]) -> list[list[int]]:
    """Return the places of matrices whose runs have the same seeds, two or more of both."""
    places: dict[Seeds, list[int]] = {}
    for place, own in enumerate(seeds):
        if len(own) > 1:
            places.setdefault(own, []).append(place)
    return [found for found in places.values() if len(found) > 1]


def _variance_by_seed(
    matrices: Sequence[np.ndarray], slopes: Sequence[float], games: Sequence[float]
) -> float:
    """Return the variance of sum(slope * mean) from its value at each seed.

    Not less than what the games alone give, whose variances of the means are `games`.
    """
    rows = [slope * np.nanmean(each, axis=1) for slope, each in zip(slopes, matrices, strict=True)]
    by_seed = np.sum(rows, axis=0)
    floor = sum(slope**2 * own for slope, own in zip(slopes, games, strict=True))
    return max(floor, float(by_seed.var(ddof=1)) / len(by_seed))


def _are_few(runs: int) -> bool:
    """Tell whether runs are too few to be resampled: Student's t of their means alone counts."""
    return 2 <= runs <= FEW_RUNS


def _key(scores: np.ndarray) -> tuple[bytes, tuple[int, ...]]:
    return np.ascontiguousarray(scores, dtype=float).tobytes(), scores.shape


@lru_cache(maxsize=64)  # 1 MB each; a matrix stands in many claims, tables and figures
def _bootstrap(data: bytes, shape: tuple[int, ...]) -> _Bootstrap:
    scores = np.frombuffer(data).reshape(shape)
    runs = [row[~np.isnan(row)] for row in scores]
    counts = np.array([len(games) for games in runs])
    if not counts.all():
        raise ValueError("a score matrix needs an episode of every run")
    means = np.array([games.mean() for games in runs])
    spreads = np.array([games.var(ddof=1) if len(games) > 1 else 0.0 for games in runs])
    # Seeded by the games: the same ones get the same interval in every table, others their own
    # draws.
    drawn = _draw(runs, counts, np.random.default_rng(zlib.crc32(data)))
    found = _moments(counts, means, spreads)
    if _are_few(len(runs)):
        # A sample's variance of the runs' means, in which the games' is; but not less than that.
        apart = means.var(ddof=1) / len(runs)
        found = replace(found, between=np.maximum(0.0, apart - found.within))
    return _Bootstrap(found, drawn, len(runs), int(counts.sum()))


def _draw(runs: Sequence[np.ndarray], counts: np.ndarray, rng: np.random.Generator) -> _Moments:
    """Return the moments `[RESAMPLES]` of resamples."""
    which = rng.integers(len(runs), size=(RESAMPLES, len(runs)))
    means, spreads = np.empty(which.shape), np.empty(which.shape)
    for run, games in enumerate(runs):
        size = len(games)
        rows = np.flatnonzero(which == run)
        at_once = max(1, _VALUES_AT_ONCE // size)
        for start in range(0, len(rows), at_once):
            some = rows[start : start + at_once]
            drawn = games[rng.integers(size, size=(len(some), size))]
            means.flat[some] = middle = drawn.mean(axis=1)
            drawn -= middle[:, None]
            spreads.flat[some] = np.einsum("ij,ij->i", drawn, drawn) / max(size - 1, 1)
    return _moments(counts[which], means, spreads)


def _moments(counts: np.ndarray, means: np.ndarray, spreads: np.ndarray) -> _Moments:
    """Return the moments of runs by their numbers of games, means and variances `[..., runs]`."""
    runs = means.shape[-1]
    within = (spreads / counts).mean(axis=-1) / runs
    return _Moments(means.mean(axis=-1), means.var(axis=-1) / runs, within)
