"""Steps of ranges and scales in shares of their own size, whatever the optimizer.

Adam's steps are as long as the learning rate. Ranges of activations are 5 to 40, the scale of a
head 0.05: at one rate a range hardly moves in a phase, and such a scale jumps. So the optimizer
moves their logarithms, as Jain et al. train thresholds (arXiv 1903.08066, section 4): their
gradients come from the chain rule, d/d log x = x d/dx.
"""

from __future__ import annotations

import torch


class RelativeSteps:
    """An optimizer whose groups with `is_relative` hold positive parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = [
            parameter
            for group in optimizer.param_groups
            if group.get("is_relative", False)
            for parameter in group["params"]
        ]

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters; changes the gradients of the relative ones."""
        moved = [each for each in self._parameters if each.grad is not None]
        if not moved:
            self._optimizer.step()
            return
        before = [each.detach().clone() for each in moved]
        torch._foreach_mul_([each.grad for each in moved], before)
        # A step of d from log x is a factor of exp(d). From 0 it is d to the last digit.
        torch._foreach_zero_(moved)
        self._optimizer.step()
        torch._foreach_exp_(moved)
        torch._foreach_mul_(moved, before)
