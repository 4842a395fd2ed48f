"""Arithmetic of a network's layers in mixed precision: their format, and the loss scale.

Micikevicius et al., Mixed Precision Training (ICLR 2018, arXiv 1710.03740), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.loss_scale import LossScale, unscale


class LayerArithmetic:
    """The format in which an agent's layers compute, and its loss scale.

    One scale for all networks, as the actor's loss goes back through the critic. It is kept in the
    options of an `optimizer`, so that Stable-Baselines3's own zip resumes it. With `masters`
    float32 weights learn; without, they are rounded after each update.
    """

    def __init__(
        self,
        form: FloatFormat,
        optimizer: torch.optim.Optimizer,
        first: LossScale,
        *,
        masters: bool = True,
    ) -> None:
        self.form, self.masters = form, masters
        self._optimizer, self._is_dynamic = optimizer, first.is_dynamic
        self.keep(first)

    @property
    def scale(self) -> LossScale:
        """The loss scale, with its counts."""
        group = self._optimizer.param_groups[0]  # another one after a state is loaded
        found = (group[key] for key in ("loss_scale", "good_updates", "skipped_updates"))
        scale, good, skipped = found
        return LossScale(float(scale), self._is_dynamic, int(good), int(skipped))

    def keep(self, scale: LossScale) -> None:
        """Remember it."""
        self._optimizer.param_groups[0].update(
            loss_scale=scale.scale, good_updates=scale.good, skipped_updates=scale.skipped
        )

    def unscaled(self, gradients: Sequence[Tensor]) -> bool:
        """Round parameters' gradients of the scaled loss and take the scale off, in place.

        False: one is not finite, and the update is to be skipped. Float32, any shapes.
        """
        for each in gradients:
            self.form.round_(each)
        is_finite = unscale(gradients, self.scale.scale)
        self.keep(self.scale.after(is_finite))
        return is_finite
