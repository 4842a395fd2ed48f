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
    """Float32 masters, and the `working` parameters that hold them rounded to `form`.

    The working parameters are float32 on the grid of `form`, or of a 16-bit dtype that is `form`;
    one for each master, of its shape. The optimizer steps the masters; what remains to do around it
    is `take_gradients` before and `write_back` after.
    """

    def __init__(
        self,
        masters: Iterable[nn.Parameter],
        working: Iterable[nn.Parameter],
        form: FloatFormat,
    ) -> None:
        self._masters, self._working, self._form = list(masters), list(working), form
        self.write_back()

    @torch.no_grad()
    def take_gradients(self) -> list[Tensor]:
        """Widen the working parameters' gradients into the masters', and free them.

        Returns those there are, float32, to be unscaled in place.
        """
        for master, working in zip(self._masters, self._working, strict=True):
            # Cloned even where nothing is to widen: unscaling in place is the masters' affair.
            master.grad = None if working.grad is None else working.grad.float().clone()
            working.grad = None
        return [each.grad for each in self._masters if each.grad is not None]

    @torch.no_grad()
    def write_back(self) -> None:
        """Round the masters into the working parameters, once, to nearest even."""
        for master, working in zip(self._masters, self._working, strict=True):
            working.copy_(self._form.round(master))
