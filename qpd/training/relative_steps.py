"""Steps of ranges and scales in shares of their own size, whatever the optimizer.

Adam's steps are as long as the learning rate. Ranges of activations are 5 to 40, the scale of a
head 0.05: at one rate a range hardly moves in a phase, and such a scale jumps. So the optimizer
moves their logarithms, as Jain et al. train thresholds (arXiv 1903.08066, appendix B): their
gradients come from the chain rule, d/d log x = x d/dx.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RelativeSteps:
    """An optimizer whose groups with `is_relative` hold positive parameters.

    These become views of one tensor: an operation for each of them would take a tenth of the update
    of a small student.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = [
            parameter
            for group in optimizer.param_groups
            if group.get("is_relative", False)
            for parameter in group["params"]
        ]
        if self._parameters:
            self._join()

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters; changes the gradients of the relative ones."""
        if not self._parameters:
            self._optimizer.step()
            return
        if self._parameters[0].data_ptr() != self._values.data_ptr():
            self._join()  # they have moved, or another optimizer has joined them
        self._before.copy_(self._values)
        pairs = zip(self._parameters, self._factors, strict=True)
        # Those that no loss reaches have no gradient, and their steps are 0.
        moved = [(each.grad, factor) for each, factor in pairs if each.grad is not None]
        if moved:
            torch._foreach_mul_(*map(list, zip(*moved, strict=True)))
        # A step of d from log x is a factor of exp(d). From 0 it is d to the last digit.
        self._values.zero_()
        self._optimizer.step()
        self._values.exp_().mul_(self._before)

    def _join(self) -> None:
        self._values = torch.cat([each.detach().flatten() for each in self._parameters])
        self._before = torch.empty_like(self._values)
        for parameter, view in zip(self._parameters, self._views(self._values), strict=True):
            parameter.data = view
        self._factors = self._views(self._before)

    def _views(self, values: Tensor) -> list[Tensor]:
        parts = values.split([each.numel() for each in self._parameters])
        return [part.view_as(each) for part, each in zip(parts, self._parameters, strict=True)]
