"""The dtype of training and labelling: bfloat16 where the device has units for it, else float32."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch


def compute_precision(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of `fp32`, `bf16` or `auto`: bf16 if the device has units for it."""
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
