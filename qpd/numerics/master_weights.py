"""Master weights: float32 parameters that learn, beside the copy in few bits that computes.

Micikevicius et al., Mixed Precision Training (ICLR 2018, arXiv 1710.03740), section 3.1. Without
them small updates are lost: in fp16 w + d is w as soon as |w| is 2,048 times |d|, in bf16 256.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from qpd.numerics.float_format import FloatFormat


class MasterWeights:
    """The float32 masters of `working` parameters, which always hold them rounded to `form`.

    The working parameters are float32 on the grid of `form`, or of a 16-bit dtype that is `form`.
    The optimizer steps `parameters`; what remains to do around it is `take_gradients` before and
    `write_back` after.
    """

    def __init__(self, working: Iterable[nn.Parameter], form: FloatFormat) -> None:
        self._working = list(working)
        self._form = form
        self.parameters = [nn.Parameter(each.detach().float().clone()) for each in self._working]
        self.write_back()

    @torch.no_grad()
    def take_gradients(self) -> list[Tensor]:
        """Widen the working parameters' gradients into the masters', and free them.

        Returns those there are, float32, to be unscaled in place.
        """
        for master, working in zip(self.parameters, self._working, strict=True):
            # Cloned even where nothing is to widen: unscaling in place is the masters' affair.
            master.grad = None if working.grad is None else working.grad.float().clone()
            working.grad = None
        return [each.grad for each in self.parameters if each.grad is not None]

    @torch.no_grad()
    def write_back(self) -> None:
        """Round the masters into the working parameters, once, to nearest even."""
        for master, working in zip(self.parameters, self._working, strict=True):
            working.copy_(self._form.round(master))
