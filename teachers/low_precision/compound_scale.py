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
SMALLEST = 2.0**-60  # a floor of our own: in the end moments are divided by its square
# torch.amp.GradScaler's, which doubles after exactly so many.
AMP_FIRST, AMP_GROWS_AFTER = 2.0**16, 1_999


@dataclass(frozen=True)
class CompoundScale:
    """The factor on the loss, the `good` updates in a row, and the updates `skipped`.

    `buffer_factor` is what the optimizer's buffers are to be multiplied by after the last move. The
    scale doubles after more than `grows_after` good updates.
    """

    gamma: float = FIRST
    good: int = 0
    skipped: int = 0
    buffer_factor: float = 1.0
    grows_after: int = GROWS_AFTER

    @property
    def eps(self) -> float:
        """The eps beside gamma-fold moments: 1e-8 gamma, never below 1e-7."""
        return max(EPS * self.gamma, LEAST_EPS)

    def after(self, is_finite: bool, buffers: Iterable[Tensor]) -> CompoundScale:
        """Return the scale after an update with finite gradients, or after one that is skipped.

        It halves on a skip. After more than `grows_after` good updates in a row it doubles if the
        `buffers`, any shapes, stay finite 2.2 times as large; else only the count begins anew.
        """
        if not is_finite:
            lower = max(self.gamma / 2, SMALLEST)
            factor, skipped = lower / self.gamma, self.skipped + 1
            return replace(self, gamma=lower, good=0, skipped=skipped, buffer_factor=factor)
        if self.good + 1 <= self.grows_after:
            return replace(self, good=self.good + 1, buffer_factor=1.0)
        if all(bool((2 * MARGIN * each).isfinite().all()) for each in buffers):
            return replace(self, gamma=2 * self.gamma, good=0, buffer_factor=2.0)
        return replace(self, good=0, buffer_factor=1.0)
