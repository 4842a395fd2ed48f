"""Arithmetic of float16 tensors on a CPU: products and sums by way of float32, rounded once."""

from __future__ import annotations

from contextlib import AbstractContextManager
from numbers import Number
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.rounded_arithmetic import RoundedArithmetic

# Their sums have another order in float16.
_SUMS = {F.mse_loss, Tensor.mean, Tensor.sum}
# A number that is added would be rounded to float16 first.
_ADDED = {
    Tensor.__add__, Tensor.__radd__, Tensor.__sub__, Tensor.__rsub__, Tensor.add, Tensor.sub,
    Tensor.subtract, torch.add, torch.sub, torch.subtract, torch.rsub,
}  # fmt: skip
# Float32 copies of all images at once would take the memory that float16 saves.
_IMAGES_AT_ONCE = 16


class HalfArithmetic(TorchFunctionMode):
    """A context in which float16 tensors on a CPU give what `RoundedArithmetic` gives of float32.

    To the bit in what SAC's updates need: `F.linear` of vectors, `F.conv2d`, `F.mse_loss`, means,
    sums, numbers that are added or subtracted, and operations by element that PyTorch rounds once.
    Of convolutions of more than 16 images some numbers differ in the last unit of the largest.
    `@`, softmax and sums in place with a number are PyTorch's, which differ in some. Few processors
    multiply float16 well: PyTorch's products take up to a hundred times float32's time, and its
    convolutions' gradients are sums in float16. What is called inside has a backward pass to the
    same rule, wherever that runs. Elsewhere than on a CPU nothing changes.
    """

    def __torch_function__(  # noqa: D105 - PyTorch's hook
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.linear:
            return _linear(*args, **(kwargs or {}))
        if func is F.conv2d:
            return _conv2d(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        if func in _SUMS or (func in _ADDED and _adds_a_number(*args, **kwargs)):
            return _by_float32(func, args, kwargs)
        return func(*args, **kwargs)


def arithmetic_of(form: FloatFormat, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Return a context in which tensors of `dtype`, float16 or wider, have the format's numbers."""
    return HalfArithmetic() if dtype == torch.float16 else RoundedArithmetic(form)


def _adds_a_number(input: object = None, other: object = None, **_: object) -> bool:
    return isinstance(other, Number) or isinstance(input, Number)


def _is_half(x: Tensor) -> bool:
    return x.dtype == torch.float16 and x.device.type == "cpu"


def _by_float32(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the float32 results of float16 numbers, rounded to float16 once."""
    if not all(map(_is_half, (x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)))):
        return func(*args, **kwargs)
    args, kwargs = tree_map_only(Tensor, Tensor.float, (args, kwargs))
    return func(*args, **kwargs).half()


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if not _is_half(input) or input.dim() != 2:
        return F.linear(input, weight, bias)
    found: Tensor = _Linear.apply(input, weight, bias)
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


def _conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    if not _is_half(input) or input.dim() != 4 or isinstance(padding, str):
        return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    sizes = [
        (each, each) if isinstance(each, int) else tuple(each)
        for each in (stride, padding, dilation)
    ]
    found: Tensor = _Conv2d.apply(input, weight, bias, *sizes, groups)
    return found


class _Conv2d(torch.autograd.Function):
    """A convolution of images [batch, channels, height, width], a few of them at once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *sizes: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sizes = sizes
        wide, added = weight.float(), None if bias is None else bias.float()
        parts = [
            F.conv2d(each.float(), wide, added, *sizes).half() for each in x.split(_IMAGES_AT_ONCE)
        ]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.sizes
        wide, needs = weight.float(), list(ctx.needs_input_grad[:3])
        by_x, sums = [], [torch.zeros_like(wide), torch.zeros(len(wide))]
        parts = zip(gradients[0].split(_IMAGES_AT_ONCE), x.split(_IMAGES_AT_ONCE), strict=True)
        for gradient, images in parts:
            found = torch.ops.aten.convolution_backward(
                gradient.float(), images.float(), wide, [len(wide)], stride, padding, dilation,
                False, [0, 0], groups, needs,
            )  # fmt: skip
            if needs[0]:
                by_x.append(found[0].half())
            for total, each in zip(sums, found[1:], strict=True):
                if each is not None:
                    total.add_(each)
        by_weight, by_bias = (
            total.half() if needed else None for total, needed in zip(sums, needs[1:], strict=True)
        )
        return torch.cat(by_x) if by_x else None, by_weight, by_bias, None, None, None, None
