"""Arithmetic of float16 tensors on a CPU: products and sums by way of float32, rounded once."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.rounded_arithmetic import RoundedArithmetic

# Their sums have another order in float16. Convolutions are left to PyTorch: float32 copies of
# images would take the memory that float16 saves.
_SUMS = {F.mse_loss, Tensor.mean, Tensor.sum}
# A number that is added would be rounded to float16 first.
_ADDED = {
    Tensor.__add__, Tensor.__radd__, Tensor.__sub__, Tensor.__rsub__, Tensor.add, Tensor.sub,
}  # fmt: skip


class HalfArithmetic(TorchFunctionMode):
    """A context in which float16 tensors on a CPU give what `RoundedArithmetic` gives of float32.

    Few processors multiply float16 well: PyTorch's products take up to a hundred times float32's
    time. Other operations are PyTorch's, which round once. What is called inside has a backward
    pass to the same rule, wherever that runs. Elsewhere than on a CPU nothing changes.
    """

    def __torch_function__(  # noqa: D105 - PyTorch's hook
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.linear:
            return _linear(*args, **(kwargs or {}))
        if func in _SUMS or (func in _ADDED and isinstance(args[1], float)):
            return _by_float32(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def arithmetic_of(form: FloatFormat, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Return a context in which tensors of `dtype`, float16 or wider, have the format's numbers."""
    return HalfArithmetic() if dtype == torch.float16 else RoundedArithmetic(form)


def _is_half(x: Tensor) -> bool:
    return x.dtype == torch.float16 and x.device.type == "cpu"


def _by_float32(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the float32 results of float16 numbers, rounded to float16 once."""
    if not _is_half(args[0]):
        return func(*args, **kwargs)
    wide = tree_map_only(Tensor, Tensor.float, args)
    return func(*wide, **kwargs).half()


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if not _is_half(x) or x.dim() != 2:
        return F.linear(x, weight, bias)
    found: Tensor = _Linear.apply(x, weight, bias)
    return found


class _Linear(torch.autograd.Function):
    """A layer of inputs [batch, in] that keeps float16 tensors for its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        wide = None if bias is None else bias.float()
        return F.linear(x.float(), weight.float(), wide).half()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].float()
        by_x, by_weight, by_bias = ctx.needs_input_grad
        return (
            (gradient @ weight.float()).half() if by_x else None,
            (gradient.t() @ x.float()).half() if by_weight else None,
            gradient.sum(dim=0).half() if by_bias else None,
        )
