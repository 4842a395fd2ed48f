"""Quantize an agent's weights: scheme, bits, and which of them share a range."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor

from qpd.quantization.affine import affine_rows, literal_affine_rows
from qpd.quantization.dorefa import least_squares_scale, scaled_integers

Scheme = Literal["fp16", "affine", "affine-literal", "dorefa_scaled"]
Granularity = Literal["tensor", "channel", "column"]
INTEGER_SCHEMES: tuple[Scheme, ...] = ("affine", "affine-literal", "dorefa_scaled")
GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)
FEWEST_BITS, MOST_BITS = 2, 8


class HalfRangeError(ValueError):
    """A weight is beyond what float16 holds, 65,504."""


@dataclass(frozen=True)
class WeightQuantizer:
    """Say how weights are quantized.

    `per` says which weights share a range: all of a `tensor`, those of an output `channel` (axis
    0, convolutions too), or those of an input `column`, whose scale folds into the layer before or
    into the observation's. fp16 has no ranges, and 16 bits.
    """

    scheme: Scheme = "affine"
    bits: int = 8
    per: Granularity = "column"

    def __post_init__(self) -> None:
        if self.scheme != "fp16" and not FEWEST_BITS <= self.bits <= MOST_BITS:
            raise ValueError(f"{self.bits} bits: expected {FEWEST_BITS} to {MOST_BITS}, or fp16")

    def __str__(self) -> str:
        """Return `fp16`, or scheme, bits and granularity: `affine 8 per column`."""
        if self.scheme == "fp16":
            return "fp16"
        return f"{self.scheme} {self.bits} per {self.per}"

    def quantized(self, weight: Tensor, *, columns: int, one_scale: bool = False) -> Tensor:
        """Return the weights as they are after quantization, in the shape and dtype of `weight`.

        weight: float32 `[out, in, kh, kw]` or `[out, in]`. `columns` divides `in`: a linear layer
        behind convolutions has one for each channel, several inputs each. `one_scale`: output
        channels may not differ, as those of Q-values, which are compared. Raises HalfRangeError.
        """
        if self.scheme == "fp16":
            half = weight.half().float()
            if not torch.isfinite(half).all():
                raise HalfRangeError("a weight is beyond 65,504, the largest number of fp16")
            return half
        rows, shape = self._rows(weight, columns, one_scale)
        restored = _RESTORED[self.scheme](rows, self.bits).to(weight.dtype)
        if self._per(one_scale) == "column":
            return restored.view(shape).transpose(0, 1).reshape(weight.shape)
        return restored.view(weight.shape)

    def num_groups(self, weight: Tensor, *, columns: int, one_scale: bool = False) -> int:
        """Return how many ranges the weights have."""
        per = self._per(one_scale)
        return {"tensor": 1, "channel": len(weight), "column": columns}[per]

    def num_bytes(self, weight: Tensor, *, columns: int, one_scale: bool = False) -> int:
        """Return bytes of the weights, packed, with a float32 scale for each range.

        An affine range has also a level for 0, of a byte; fp16 has no ranges. The 2^n + 1 levels of
        the paper's own rounding take a bit more than n.
        """
        count = prod(weight.shape)
        if self.scheme == "fp16":
            return 2 * count
        groups = self.num_groups(weight, columns=columns, one_scale=one_scale)
        bits = self.bits + (self.scheme == "affine-literal")
        return (count * bits + 7) // 8 + groups * (4 if self.scheme == "dorefa_scaled" else 5)

    def _per(self, one_scale: bool) -> Granularity:
        return "tensor" if one_scale and self.per == "channel" else self.per

    def _rows(
        self, weight: Tensor, columns: int, one_scale: bool
    ) -> tuple[Tensor, tuple[int, ...]]:
        """Return `[groups, n]`, and for columns the shape `[columns, out, n / out]` of it."""
        per = self._per(one_scale)
        if per == "tensor":
            return weight.reshape(1, -1), ()
        if per == "channel":
            return weight.flatten(1), ()
        by_column = weight.reshape(len(weight), columns, -1).transpose(0, 1)
        return by_column.flatten(1), tuple(by_column.shape)


def _restored_dorefa(rows: Tensor, bits: int) -> Tensor:
    scale = least_squares_scale(rows, bits, per_channel=True)
    return scaled_integers(rows, scale, bits) * (scale / (2**bits - 1)).unsqueeze(1)


_RESTORED = {
    "affine": lambda rows, bits: affine_rows(rows, bits).restored(),
    "affine-literal": lambda rows, bits: literal_affine_rows(rows, bits).restored(),
    "dorefa_scaled": _restored_dorefa,
}
