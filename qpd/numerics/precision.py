"""Read a `precision`: the dtype of tensors, and the format that is simulated in them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from qpd.numerics.float_format import FloatFormat


def simulated_format(precision: str) -> FloatFormat | None:
    """Return the format that float32 tensors are rounded to: of `fp16` or `eXmY`, else None."""
    return None if precision in ("auto", "fp32", "bf16") else FloatFormat.parse(precision)


def compute_precision(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a precision; that of `auto` is bf16 if the device has units for it.

    Formats are simulated in float32 (`simulated_format`).
    """
    if precision == "auto":
        precision = "bf16" if has_bfloat16_units(device.type) else "fp32"
    return torch.bfloat16 if precision == "bf16" else torch.float32


@cache
def has_bfloat16_units(device_type: str) -> bool:
    """Return whether the device multiplies bfloat16 natively (not merely emulates it)."""
    if device_type == "cuda":
        # Without the argument PyTorch says yes for older GPUs too, which only emulate it.
        return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        # PyTorch runs bfloat16 on any CPU, emulated or not: only the flags tell.
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
