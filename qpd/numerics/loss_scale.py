"""Loss scaling: the loss times S, so that small gradients stay above what a format can hold.

Micikevicius et al., Mixed Precision Training (ICLR 2018, arXiv 1710.03740), section 3.2: gradients
are divided by S before anything reads them, and an update whose gradients are not finite is
skipped. How S moves is not the paper's: the constants are those of `torch.amp.GradScaler`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

FIRST, GROWTH, BACKOFF, GROWS_AFTER = 2.0**16, 2.0, 0.5, 2000
# Apex's cap; and a floor of our own, so that S never becomes 0.
LARGEST, SMALLEST = 2.0**24, 2.0**-24


@dataclass(frozen=True)
class LossScale:
    """The factor S on the loss, and how many updates have been `skipped`.

    A dynamic scale doubles after 2,000 good updates in a row, of which there are `good` so far, and
    halves when gradients are not finite; a constant one stays.
    """

    scale: float = 1.0
    is_dynamic: bool = False
    good: int = 0
    skipped: int = 0

    @classmethod
    def parse(cls, text: str) -> LossScale:
        """Read `none` (S = 1), `dynamic` (from 65,536), or a number from 2^-24 to 2^24.

        Raises ValueError.
        """
        if text == "none":
            return cls()
        if text == "dynamic":
            return cls(FIRST, is_dynamic=True)
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", text):
            scale = float(text)
            if SMALLEST <= scale <= LARGEST:
                return cls(scale)
        raise ValueError(
            f"{text!r} is no loss scale: write none, dynamic, or a number from 2^-24 to 2^24"
        )

    def after(self, is_finite: bool) -> LossScale:
        """Return the scale after an update: taken if its gradients were finite, else skipped."""
        if not is_finite:
            lower = max(self.scale * BACKOFF, SMALLEST) if self.is_dynamic else self.scale
            return replace(self, scale=lower, good=0, skipped=self.skipped + 1)
        if not self.is_dynamic:
            return self
        if self.good + 1 < GROWS_AFTER:
            return replace(self, good=self.good + 1)
        return replace(self, scale=min(self.scale * GROWTH, LARGEST), good=0)


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all numbers of tensors, any shapes, are finite; true of none."""
    held = [each for each in tensors if each.numel()]
    if not held:
        return True
    # A norm is infinite or NaN if any number is: one number of each tensor to read. The root of the
    # squares takes a tenth of the time of the largest one, but may overflow by itself.
    wide = torch.promote_types(held[0].dtype, torch.float32)
    if bool(torch.stack(torch._foreach_norm(held, 2, dtype=wide)).isfinite().all()):
        return True
    return bool(torch.stack(torch._foreach_norm(held, math.inf)).isfinite().all())


def unscale(gradients: Iterable[Tensor], scale: float) -> bool:
    """Divide float32 gradients by `scale`, in place; return whether they are all finite.

    If they are not, the update is to be skipped, and what the gradients hold means nothing. Any
    shapes; raises ValueError for 16-bit gradients, in which the quotients would vanish again.
    """
    held = [gradient for gradient in gradients if gradient.numel()]
    narrow = next((g.dtype for g in held if g.dtype in (torch.float16, torch.bfloat16)), None)
    if narrow is not None:
        raise ValueError(f"gradients of {narrow} must be widened before they are unscaled")
    if not held:
        return True
    if not are_finite(held):
        return False
    if scale != 1.0:
        torch._foreach_div_(held, scale)
    return True
