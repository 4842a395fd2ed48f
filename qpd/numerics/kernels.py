"""Rounding, Adam and soft updates in a floating format, in C: one pass over memory for each.

The same numbers as PyTorch's operations of which each rounds (`RoundedArithmetic`), bit for bit.
"""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from qpd.machine.compiled import compiled

_SOURCE = Path(__file__).with_name("kernels.c")


class _Format(ctypes.Structure):
    _fields_ = [
        ("dropped", ctypes.c_int32),
        ("half", ctypes.c_uint32),
        ("kept", ctypes.c_uint32),
        ("smallest_normal", ctypes.c_float),
        ("addend", ctypes.c_float),
        ("largest", ctypes.c_float),
        ("beyond", ctypes.c_float),
    ]


_NUMBERS = (
    "beta1", "rest1", "beta2", "rest2", "correction1", "correction2", "rate", "eps", "scale",
)  # fmt: skip


class _Step(ctypes.Structure):
    _fields_ = [(name, ctypes.c_float) for name in _NUMBERS]


@dataclass(frozen=True)
class AdamStep:
    """The numbers of one step of Adam; of a root `beta2` and `rest2` are roots, too.

    `rest` is 1 - beta, `correction` what a moment is divided by, `rate` negative, and `scale` what
    gradients are divided by.
    """

    beta1: float
    rest1: float
    beta2: float
    rest2: float
    correction1: float
    correction2: float
    rate: float
    eps: float
    scale: float
    is_root: bool


class Kernels:
    """The compiled functions; tensors are contiguous, on the CPU, and float32.

    Adam and soft updates also take float16 alone; the format is then float16.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float
        choice = ctypes.c_int
        self._round, self._adam = library.qpd_round, library.qpd_adam
        self._soft_update = library.qpd_soft_update
        self._round.argtypes = [pointer, pointer, size, pointer]
        self._adam.argtypes = [*[pointer] * 5, size, pointer, pointer, choice, choice]
        self._soft_update.argtypes = [*[pointer] * 4, size, number, number, pointer, choice]
        for each in (self._round, self._adam, self._soft_update):
            each.restype = None

    def round_(self, x: Tensor, form: Bits) -> Tensor:
        """Round in place."""
        place = x.data_ptr()
        self._round(place, place, x.numel(), form.address)
        return x

    def round(self, x: Tensor, form: Bits) -> Tensor:
        """Return rounded numbers."""
        found = torch.empty_like(x)
        self._round(found.data_ptr(), x.data_ptr(), x.numel(), form.address)
        return found

    def adam_(
        self,
        value: Tensor,
        m: Tensor,
        v: Tensor,
        lost: Tensor | None,
        gradient: Tensor,
        step: AdamStep,
        form: Bits,
    ) -> None:
        """Move `value` and the moments in place; with `lost` the sum is compensated."""
        increment_version([each for each in (value, m, v, lost) if each is not None])
        numbers = _Step(*(getattr(step, name) for name in _NUMBERS))
        self._adam(
            value.data_ptr(), m.data_ptr(), v.data_ptr(), None if lost is None else lost.data_ptr(),
            gradient.data_ptr(), value.numel(), ctypes.addressof(numbers), form.address,
            step.is_root, value.dtype == torch.float16,
        )  # fmt: skip

    def soft_update_(
        self,
        target: Tensor,
        scaled: Tensor,
        lost: Tensor,
        online: Tensor,
        tau: float,
        scale: float,
        form: Bits,
    ) -> None:
        """Move the `scaled` target in place, and write `target`, which is that without `scale`."""
        increment_version([target, scaled, lost])
        self._soft_update(
            target.data_ptr(), scaled.data_ptr(), lost.data_ptr(), online.data_ptr(),
            target.numel(), tau, scale, form.address, target.dtype == torch.float16,
        )  # fmt: skip


class Bits:
    """A format as the kernels read it; numbers beyond `largest` become `beyond`."""

    def __init__(self, mantissa: int, min_exponent: int, largest: float, beyond: float) -> None:
        dropped = 23 - mantissa
        self._format = _Format(
            dropped,
            (1 << dropped - 1) - 1 if dropped else 0,
            (0xFFFFFFFF << dropped) & 0xFFFFFFFF,
            math.ldexp(1.0, min_exponent),
            math.ldexp(1.0, dropped + min_exponent),
            largest,
            beyond,
        )

    @property
    def address(self) -> int:
        """Return its address: not to be kept, as a copy lies elsewhere."""
        return ctypes.addressof(self._format)


@functools.cache
def kernels() -> Kernels | None:
    """Compile the kernels at the first call; None without a C compiler, where PyTorch does it."""
    library = compiled(_SOURCE)
    return None if library is None else Kernels(library)


def takes(*tensors: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Return whether kernels work on these: `dtype`, contiguous, on the CPU, without a graph."""
    return all(
        type(x) in (Tensor, torch.nn.Parameter)
        and x.dtype == dtype
        and x.device.type == "cpu"
        and x.is_contiguous()
        and not (x.requires_grad and torch.is_grad_enabled())
        for x in tensors
    )
