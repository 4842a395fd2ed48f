"""Floating formats eXmY: one sign bit, X exponent bits, Y mantissa bits, as IEEE 754 has them."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from qpd.numerics.kernels import Bits, kernels, takes

_NAMES = {"fp32": (8, 23), "bf16": (8, 7), "fp16": (5, 10)}
_CASTS = {(5, 10): torch.float16, (8, 7): torch.bfloat16}
# Of each carrier: mantissa bits, the integer of its width, and the bits of the exponent in it.
_CARRIERS = {
    torch.float32: (23, torch.int32, 0xFF << 23),
    torch.float64: (52, torch.int64, 0x7FF << 52),
}


@dataclass(frozen=True)
class FloatFormat:
    """A binary format with subnormals, infinities and NaN; `exponent` and `mantissa` in bits.

    The largest exponent field stands for infinity and NaN: e4m3 ends at 240, where
    `torch.float8_e4m3fn`, which has no infinity, ends at 448. What lies beyond `largest` once
    rounded becomes infinite; with `saturate` it becomes `largest`, as does infinity. NaN stays
    NaN. Raises ValueError unless 2 <= exponent <= 8 and 1 <= mantissa <= 23.
    """

    exponent: int
    mantissa: int
    saturate: bool = False

    def __post_init__(self) -> None:
        if not (2 <= self.exponent <= 8 and 1 <= self.mantissa <= 23):
            raise ValueError(
                f"e{self.exponent}m{self.mantissa}: a format has 2 to 8 exponent bits and 1 to 23 "
                "mantissa bits"
            )

    @classmethod
    def parse(cls, text: str, *, saturate: bool = False) -> FloatFormat:
        """Read `fp32`, `bf16`, `fp16` or `eXmY`, such as `e5m7`. Raises ValueError."""
        if text in _NAMES:
            return cls(*_NAMES[text], saturate)
        found = re.fullmatch(r"e([0-9]{1,2})m([0-9]{1,2})", text)
        if found is None:
            raise ValueError(f"{text!r} is no format: write fp32, bf16, fp16 or eXmY, such as e5m7")
        return cls(int(found[1]), int(found[2]), saturate)

    def __str__(self) -> str:
        """Return the name that `parse` reads: the common one, else eXmY."""
        bits = (self.exponent, self.mantissa)
        return next((name for name, its in _NAMES.items() if its == bits), "e{}m{}".format(*bits))

    @property
    def max_exponent(self) -> int:
        """The exponent of `largest`: 15 for fp16."""
        return 2 ** (self.exponent - 1) - 1

    @property
    def min_exponent(self) -> int:
        """The exponent of `smallest_normal`: -14 for fp16."""
        return 1 - self.max_exponent

    @property
    def largest(self) -> float:
        """The largest finite number: 65,504 for fp16."""
        return math.ldexp(2.0 - math.ldexp(1.0, -self.mantissa), self.max_exponent)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with all mantissa bits: 2^-14 for fp16."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def smallest(self) -> float:
        """The smallest positive number, a subnormal: 2^-24 for fp16."""
        return math.ldexp(1.0, self.min_exponent - self.mantissa)

    @functools.cached_property
    def bits(self) -> Bits:
        """The format as the compiled kernels read it."""
        beyond = self.largest if self.saturate else math.inf
        return Bits(self.mantissa, self.min_exponent, self.largest, beyond)

    def round(self, x: Tensor) -> Tensor:
        """Round float32 or float64 to the format's nearest number, ties to even; any shape.

        Returns the dtype it is given. Signs of zeros are kept. Raises ValueError for other dtypes.
        """
        if x.dtype not in _CARRIERS:
            raise ValueError(f"cannot round {x.dtype}: only float32 and float64 hold every format")
        if takes(x) and (native := kernels()) is not None:
            return native.round(x, self.bits)
        return self._rounded(x)

    def round_(self, x: Tensor) -> Tensor:
        """Round float32 or float64 in place, as `round` does; any shape."""
        if takes(x) and (native := kernels()) is not None:
            return native.round_(x, self.bits)
        return x.copy_(self._rounded(x))

    def _rounded(self, x: Tensor) -> Tensor:
        """Round by PyTorch's operations, on any device, in several passes over memory."""
        cast = _CASTS.get((self.exponent, self.mantissa))
        # PyTorch casts float64 to 16 bits by way of float32, which rounds twice.
        if cast is not None and x.dtype == torch.float32 and not self.saturate:
            return x.to(cast).to(x.dtype)
        if x.dtype == torch.float32 and self.exponent == 8:
            return self._round_bits(x)
        # Float32 has no room for the addend beside 22 bits.
        if x.dtype == torch.float32 and self.mantissa > 21:
            return self._round(x.double()).float()
        return self._round(x)

    def _round_bits(self, x: Tensor) -> Tensor:
        """Round float32 to a format of its exponents, by adding half a unit to the bits.

        Subnormals and the step to infinity need no care: a carry is the next number there, too.
        """
        dropped = 23 - self.mantissa
        if dropped == 0:
            found = x.clone()
        else:
            bits = x.view(torch.int32)
            # Just under half a unit, and the last bit that stays: ties go to even.
            moved = (bits >> dropped).bitwise_and_(1).add_(bits).add_((1 << dropped - 1) - 1)
            found = moved.bitwise_and_(-(1 << dropped)).view(torch.float32)
            # A NaN of all ones would carry into the sign. The sum tells whether there may be one.
            if not bool(x.sum().isfinite()):
                found = torch.where(x.isnan(), x, found)
        return found.clamp_(-self.largest, self.largest) if self.saturate else found

    def _round(self, x: Tensor) -> Tensor:
        """Round by the carrier's own addition.

        1.5 * 2^s times the power of two below |x|, s = the mantissa bits to drop, is added and
        taken off: the sum's last bit is then the last that the format keeps, whatever x's sign, and
        the addition rounds to nearest even. Below the smallest normal the power stays, so
        subnormals have fixed steps.
        """
        bits, integer, exponent = _CARRIERS[x.dtype]
        power = x.view(integer).bitwise_and(exponent).view(x.dtype)
        power.clamp_(self.smallest_normal, math.ldexp(1.0, self.max_exponent + 1))
        factor = math.ldexp(1.5, bits - self.mantissa)
        found = torch.add(x, power, alpha=factor).sub_(power, alpha=factor)
        if self.saturate:
            found.clamp_(-self.largest, self.largest)
        else:
            # What is beyond `largest` is at least twice its power of two: moved up to where the
            # carrier ends, it overflows by itself. A mask would cost more than all the rest.
            room = torch.finfo(x.dtype).max
            up = math.ldexp(1.0, math.frexp(room)[1] - 1 - self.max_exponent)
            found.mul_(up).mul_(1.0 / up)
        return found.copysign_(x)  # a sum that vanishes has lost its sign
