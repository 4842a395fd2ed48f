"""Arithmetic in any floating format: every operation of PyTorch rounds what it returns."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from qpd.numerics.float_format import FloatFormat

_aten = torch.ops.aten
# They hand on numbers that they are given, 0 and 1; views are known by their schemas.
_EXACT = {
    _aten._unsafe_view.default,
    _aten.abs.default,
    _aten.cat.default,
    _aten.clone.default,
    _aten.detach.default,
    _aten.lift_fresh.default,
    _aten.maximum.default,
    _aten.min.dim,
    _aten.minimum.default,
    _aten.neg.default,
    _aten.ones_like.default,
    _aten.relu.default,
    _aten.threshold_backward.default,
    _aten.where.self,
    _aten.zeros_like.default,
}


class RoundedArithmetic(TorchDispatchMode):
    """A context in which operations on float32 and float64 tensors round to `form`.

    An operation reads numbers of the format, computes in its tensors' own dtype and rounds once,
    as kernels with wide accumulators do; forward pass, backward pass and optimizer alike. Inputs
    made outside must be on the format's grid already (`FloatFormat.round`). In float32 sums,
    differences, products and quotients of up to 10 mantissa bits are those that the format would
    give, bit for bit; use float64 for more, and for subnormal numbers of 8 exponent bits, which
    float32 has rounded already. Views, copies and comparisons are exact. What writes into lists of
    tensors rounds once, at its end: optimizers that are `fused`, for a whole step. Counts
    of PyTorch's Adam are tensors and so such numbers, too: in fp16 they stand still at 2,048. For
    float16 tensors see `HalfArithmetic`.
    """

    _is_paused = False

    def __init__(self, form: FloatFormat) -> None:
        super().__init__()
        self._form = form

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # What it guards against, compilation, does not happen here, and costs as much as the rest.
        return False

    def __torch_dispatch__(  # noqa: D105 - PyTorch's hook
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        is_exact = RoundedArithmetic._is_paused or _is_exact(func)
        if func is _aten.sqrt.default and not is_exact:
            # PyTorch's in float32 is not always the nearest number.
            found = func(args[0].double()).to(args[0].dtype)
        else:
            found = func(*args, **(kwargs or {}))
        if is_exact:
            return found
        if found is None:
            self._round_written(func, args)
            return found
        if isinstance(found, Tensor):  # nearly always; a walk through a tree takes its time
            return self._round(found)
        return tree_map_only(Tensor, self._round, found)

    def _round_written(self, func: Any, args: tuple[Any, ...]) -> None:
        """Round what an operation without results, such as a fused one, has written."""
        for described, given in zip(func._schema.arguments, args, strict=False):
            if described.alias_info is not None and described.alias_info.is_write:
                tree_map_only(Tensor, self._round, given)

    def _round(self, x: Tensor) -> Tensor:
        """Round a result where it lies: nobody else has it, or it was to be written there."""
        return self._form.round_(x) if x.dtype in (torch.float32, torch.float64) else x


@contextmanager
def unrounded() -> Iterator[None]:
    """Return a context in which `RoundedArithmetic` waits: what one kernel keeps to itself.

    A kernel of several operations rounds what it writes, not what is between them.
    """
    before = RoundedArithmetic._is_paused
    RoundedArithmetic._is_paused = True
    try:
        yield
    finally:
        RoundedArithmetic._is_paused = before


@functools.cache
def _is_exact(func: Any) -> bool:
    """Tell whether an operation hands numbers on as they are."""
    return func in _EXACT or func.is_view
