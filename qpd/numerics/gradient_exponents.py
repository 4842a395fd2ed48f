"""Count gradients by their exponents, and find the loss scale that would fit.

As figures 2b and 3 of Micikevicius et al., Mixed Precision Training (ICLR 2018, arXiv 1710.03740)
draw them, and figure 6 of Bjorck et al., Low-Precision RL (ICML 2021, arXiv 2102.13565).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qpd.numerics.float_format import FloatFormat

LOWEST, HIGHEST = -149, 127  # of float32: its smallest subnormal, its largest binade


@dataclass(frozen=True)
class GradientExponents:
    """Counts of float32 numbers by exponent; `counts[k]` is of floor(log2|g|) = k + LOWEST.

    `zeros` are exactly 0, `not_finite` infinite or NaN.
    """

    counts: tuple[int, ...]
    zeros: int
    not_finite: int

    @classmethod
    def of(cls, gradients: Iterable[Tensor]) -> GradientExponents:
        """Count the numbers of tensors of any shapes, as float32."""
        bins = torch.zeros(HIGHEST - LOWEST + 1, dtype=torch.int64)
        zeros = not_finite = 0
        for gradient in gradients:
            size = gradient.detach().float().abs().flatten()
            is_finite = size.isfinite()
            positive = size[is_finite & (size > 0)]
            # frexp gives [0.5, 1) times a power of two: an exponent more than floor(log2).
            exponents = torch.frexp(positive.double()).exponent.long() - 1 - LOWEST
            bins += torch.bincount(exponents, minlength=len(bins)).cpu()
            not_finite += int((~is_finite).sum())
            zeros += size.numel() - int((~is_finite).sum()) - positive.numel()
        return cls(tuple(bins.tolist()), zeros, not_finite)

    def to_json(self) -> dict[str, Any]:
        """Return plain data: counts by exponent, those that are not 0."""
        filled = {str(k): n for k, n in enumerate(self.counts, start=LOWEST) if n}
        return {"exponents": filled, "zeros": self.zeros, "not_finite": self.not_finite}

    @classmethod
    def from_json(cls, found: Any) -> GradientExponents:
        """Return what `to_json` was called on. Raises ValueError, TypeError or KeyError."""
        counts = [0] * (HIGHEST - LOWEST + 1)
        for exponent, count in found["exponents"].items():
            place = int(exponent) - LOWEST
            if not 0 <= place < len(counts):
                raise ValueError(f"{exponent} is no exponent of float32")
            counts[place] = _count(count)
        return cls(tuple(counts), _count(found["zeros"]), _count(found["not_finite"]))

    def __add__(self, other: GradientExponents) -> GradientExponents:
        """Return the counts of both."""
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return GradientExponents(
            counts, self.zeros + other.zeros, self.not_finite + other.not_finite
        )

    @property
    def total(self) -> int:
        """Return how many numbers were counted."""
        return sum(self.counts) + self.zeros + self.not_finite

    def shares(self, form: FloatFormat, scale: float = 1.0) -> dict[str, float]:
        """Return which share of all numbers, times a power of two, falls where in `form`.

        `zero` before and after; `lost`, below the smallest subnormal; `subnormal`; `normal`;
        `overflow`, which counts what is not finite. By binades, so that numbers between half the
        smallest subnormal and it, which round up to it, count as lost, as in the paper. Raises
        ValueError for another scale.
        """
        mantissa, shift = math.frexp(scale)
        if mantissa != 0.5:
            raise ValueError(f"a loss scale of {scale:g} is no power of two")
        found = {"zero": self.zeros, "lost": 0, "subnormal": 0, "normal": 0, "overflow": 0}
        found["overflow"] += self.not_finite
        smallest = form.min_exponent - form.mantissa
        for exponent, count in enumerate(self.counts, start=LOWEST + shift - 1):
            if exponent > form.max_exponent:
                where = "overflow"
            elif exponent >= form.min_exponent:
                where = "normal"
            else:
                where = "subnormal" if exponent >= smallest else "lost"
            found[where] += count
        return {name: count / max(self.total, 1) for name, count in found.items()}

    def fitting_scale(self, form: FloatFormat, headroom: int = 1) -> float:
        """Return the largest power of two that keeps every finite number below overflow.

        `headroom` binades at the top stay free, for gradients larger than those counted. 1 where
        all are zero.
        """
        filled = [k + LOWEST for k, count in enumerate(self.counts) if count]
        if not filled:
            return 1.0
        return math.ldexp(1.0, form.max_exponent - headroom - filled[-1])


NONE_COUNTED = GradientExponents((0,) * (HIGHEST - LOWEST + 1), 0, 0)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.40} is no count")
    return value
