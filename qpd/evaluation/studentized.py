"""Intervals and p-values of a mean: the bootstrap-t, kept near Student's t.

A plain percentile interval of 30 Breakout returns, which are skewed, covers the true mean in 91% of
cases. The bootstrap-t (Efron 1979; Hall 1988) divides each resample's deviation by that resample's
own standard error and follows the skew. Where a resample misses the rare low games, its error is
too small and the end runs away. So each end is at least as far from the mean as Student's t puts
it, at most twice as far, and of `FEW` games or more not beyond the lowest and the highest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

FARTHEST = 2.0  # times Student's t
FEW = 10  # numbers: a mean of fewer may well be beyond all of them
_NORMAL = 10_000.0  # degrees of freedom from which Student's t is the normal distribution
_ROUNDING = 1e-9
_ANGLES = np.linspace(0.0, np.pi / 2, 20_001)


@dataclass(frozen=True)
class StudentizedEstimate:
    """An estimate with its standard error and the resamples' deviations in units of theirs.

    `draws` float `[resamples]` are (resample - value) / error of the resample; `freedom` are the
    degrees of freedom of Student's t, which alone counts without draws. No end of the interval lies
    beyond `lowest` and `highest`.
    """

    value: float
    error: float
    draws: np.ndarray
    freedom: float
    lowest: float = -np.inf
    highest: float = np.inf

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return both ends, each missed with probability (1 - `confidence`) / 2."""
        if self.error == 0.0:
            return self.value, self.value
        tail = (1.0 - confidence) / 2.0
        far = student_t_quantile(1.0 - tail, self.freedom)
        least, most = (
            (far, far)
            if not len(self.draws)
            else np.quantile(self.draws, [tail, 1.0 - tail]) * [-1.0, 1.0]
        )
        # A resample above the truth tells of truths below the estimate: the ends change sides.
        below, above = np.clip([most, least], far, FARTHEST * far) * self.error
        low, high = self.value - below, self.value + above
        return float(max(low, self.lowest)), float(min(high, self.highest))

    def p_above(self, bound: float) -> float:
        """Return the one-sided p-value of "the true value is not above `bound`".

        It is the tail at which the lower end of the interval reaches the bound, counted as
        (k + 1) / (resamples + 1); beyond the last draw it falls as Student's t does, so that
        corrections for many tests do not stop at the number of resamples.
        """
        return self._p(self.value - bound, self.draws)

    def p_below(self, bound: float) -> float:
        """Return the one-sided p-value of "the true value is not below `bound`"."""
        return self._p(bound - self.value, -self.draws)

    def _p(self, distance: float, draws: np.ndarray) -> float:
        if self.error == 0.0:
            return 0.0 if distance > 0.0 else 1.0
        seen = distance / self.error
        if not len(draws):
            return student_t_survival(seen, self.freedom)
        near = student_t_survival(seen, self.freedom)
        counted = (np.count_nonzero(draws >= seen) + 1.0) / (len(draws) + 1.0)
        if 0.0 < (last := float(draws.max())) < seen:
            counted *= near / max(student_t_survival(last, self.freedom), np.finfo(float).tiny)
        far = student_t_survival(seen / FARTHEST, self.freedom)
        # Below a distance of 0 the roles of near and far change; such a p-value decides nothing.
        return float(np.clip(counted, min(near, far), max(near, far)))


def studentized_draws(value: float, drawn: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return (drawn - value) / errors, both `[resamples]`, of the resamples that have an error.

    A resample of copies of one game has none and tells nothing.
    """
    # Rounding may leave such a resample an error that is not quite 0.
    known = errors > _ROUNDING * errors.max(initial=0.0)
    return np.asarray((drawn[known] - value) / errors[known])


def t_estimate(values: np.ndarray) -> StudentizedEstimate:
    """Return the mean of at least two numbers, `[n]`, such as trainings, by Student's t."""
    error = float(values.std(ddof=1)) / len(values) ** 0.5
    return StudentizedEstimate(float(values.mean()), error, np.empty(0), len(values) - 1.0)


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of those that are finite, and the ends of its 95% interval.

    Student's t over independent values, such as trainings. Ends are NaN with fewer than two, and
    the mean is with none.
    """
    known = np.array([value for value in values if np.isfinite(value)])
    mean = float(known.mean()) if len(known) else np.nan
    if len(known) < 2:
        return mean, np.nan, np.nan
    return mean, *t_estimate(known).interval()


def two_sided_p(estimate: StudentizedEstimate, num_pairs: int) -> float:
    """Return the p-value of "the mean difference of paired games is 0".

    Where all differences are equal it is the sign test's: two equal ones prove little.
    """
    if estimate.error == 0.0:
        return 1.0 if estimate.value == 0.0 else 2.0 ** (1 - num_pairs)
    return min(1.0, 2.0 * min(estimate.p_above(0.0), estimate.p_below(0.0)))


def student_t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t, for probabilities above 1/2."""
    if freedom >= _NORMAL:
        return NormalDist().inv_cdf(probability)
    angle = np.interp(probability, 1.0 - _survival(freedom), _ANGLES)
    return float(np.sqrt(freedom) * np.tan(angle))


def student_t_survival(value: float, freedom: float) -> float:
    """Return the probability that Student's t exceeds `value`."""
    if freedom >= _NORMAL:
        return NormalDist().cdf(-value)
    angle = np.arctan(abs(value) / np.sqrt(freedom))
    beyond = float(np.interp(angle, _ANGLES, _survival(freedom)))
    return beyond if value >= 0.0 else 1.0 - beyond


def _survival(freedom: float) -> np.ndarray:
    """Return P(T > sqrt(freedom) tan(angle)) at `_ANGLES`: the density there is cos^(freedom-1).

    Substituting the angle makes the tail finite, so that the trapezoid rule is enough. Summed from
    its end a small tail keeps its digits.
    """
    density = np.cos(_ANGLES) ** (freedom - 1.0)
    sums = np.cumsum(((density[1:] + density[:-1]) / 2.0)[::-1])[::-1]
    return np.asarray(np.append(0.5 * sums / sums[0], 0.0))
