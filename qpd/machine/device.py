"""The device that networks run on."""

from __future__ import annotations

import re

import torch

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError


class DeviceError(UserError, ValueError):
    """The device asked for does not exist here; one line says what does."""

    code = ErrorCode.DEVICE_MISSING


def choose_device(name: str) -> torch.device:
    """Return the device called `name`: auto, cpu, cuda or cuda:N; `auto` prefers CUDA.

    Raises DeviceError for a device that this machine does not have.
    """
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", name):
        raise DeviceError(
            f"device {name}: must be auto, cpu, cuda or cuda:N", ErrorCode.COMMAND_LINE
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise DeviceError(f"device {name}: this machine has no usable CUDA device; use cpu or auto")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device {name}: this machine has {torch.cuda.device_count()} CUDA devices, counted "
            "from 0; use one of them, cpu or auto"
        )
    if device.type == "cuda":
        # cuDNN's convolutions have 10 bits of mantissa otherwise, where float32 is asked for.
        torch.backends.cudnn.allow_tf32 = False
    return device
