"""Compound loss scaling: the loss times gamma, and nothing is divided by it again.

Bjorck et al., Low-Precision RL: Running SAC in Half Precision (ICML 2021, arXiv 2102.13565): Adam's
step is a quotient, so that gamma in both moments and in eps cancels. The constants are those of the
authors' code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import Tensor

FIRST, EPS, LEAST_EPS, GROWS_AFTER, MARGIN = 1e4, 1e-8, 1e-7, 10_000, 1.1


@dataclass(frozen=True)
class CompoundScale:
    """The factor on the loss, the `good` updates in a row, and the updates `skipped`.

    `buffer_factor` is what the optimizer's buffers are to be multiplied by after the last move.
    """

    gamma: float = FIRST
    good: int = 0
    skipped: int = 0
    buffer_factor: float = 1.0

    @property
    def eps(self) -> float:
        """The eps beside gamma-fold moments: 1e-8 gamma, never below 1e-7."""
        return max(EPS * self.gamma, LEAST_EPS)

    def after(self, is_finite: bool, buffers: Iterable[Tensor]) -> CompoundScale:
        """Return the scale after an update with finite gradients, or after one that is skipped.

        It halves on a skip. After more than 10,000 good updates in a row it doubles if the
        `buffers`, any shapes, stay finite 2.2 times as large; else only the count begins anew.
        """
        if not is_finite:
            return CompoundScale(self.gamma / 2, 0, self.skipped + 1, 0.5)
        if self.good + 1 <= GROWS_AFTER:
            return replace(self, good=self.good + 1, buffer_factor=1.0)
        if all(bool((2 * MARGIN * each).isfinite().all()) for each in buffers):
            return CompoundScale(2 * self.gamma, 0, self.skipped, 2.0)
        return replace(self, good=0, buffer_factor=1.0)
