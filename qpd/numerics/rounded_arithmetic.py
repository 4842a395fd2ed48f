"""Arithmetic in any floating format: every operation of PyTorch rounds what it returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from qpd.numerics.float_format import FloatFormat

_aten = torch.ops.aten
# They hand numbers on as they are; views are known by their schemas.
_EXACT = {_aten.clone.default, _aten.detach.default, _aten.relu.default}


class RoundedArithmetic(TorchDispatchMode):
    """A context in which operations on float32 and float64 tensors round to `form`.

    An operation reads numbers of the format, computes in its tensors' own dtype and rounds once,
    as kernels with wide accumulators do; forward pass, backward pass and optimizer alike. Inputs
    made outside must be on the format's grid already (`FloatFormat.round`). In float32 sums,
    differences, products and quotients of up to 10 mantissa bits are those that the format would
    give, bit for bit; use float64 for more. Views, copies and comparisons are exact. Optimizers
    that are `fused` round once for a whole step.
    """

    def __init__(self, form: FloatFormat) -> None:
        super().__init__()
        self._form = form

    def __torch_dispatch__(  # noqa: D105 - PyTorch's hook
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _EXACT or func.is_view:
            return found
        if func._schema.is_mutable:  # what was written to stays the same tensor
            return tree_map_only(Tensor, self._round_in_place, found)
        return tree_map_only(Tensor, self._round, found)

    def _round(self, x: Tensor) -> Tensor:
        return self._form.round(x) if x.dtype in (torch.float32, torch.float64) else x

    def _round_in_place(self, x: Tensor) -> Tensor:
        return x.copy_(self._round(x)) if x.is_floating_point() else x
