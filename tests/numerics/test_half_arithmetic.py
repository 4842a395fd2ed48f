"""Float16 tensors against simulated arithmetic: values and gradients, to the bit."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.half_arithmetic import HalfArithmetic, arithmetic_of

FP16 = FloatFormat.parse("fp16")
OPERATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "linear": F.linear,
    "mse_loss": lambda x, y, _: F.mse_loss(x, y),
    "mean": lambda x, y, _: (x * y).mean(),
    "sum": lambda x, y, _: (x * y).sum(dim=1, keepdim=True),
    # 0.1 is no number of float16, and 0.1 + x rounds once.
    "added": lambda x, y, _: (0.1 + x) * (y - 0.1) + (0.1 - x),
    "added by keyword": lambda x, y, _: torch.add(input=x, other=0.1) * torch.rsub(y, 0.1),
    "subtracted": lambda x, y, _: torch.subtract(x, 0.1) * y.subtract(4097),
    "NumPy's": lambda x, y, _: (x + np.float32(0.1)) * (y + np.int64(4097)),
    "added by a function": lambda x, y, _: torch.add(x, 0.1) * torch.sub(y, other=0.1) + (x + 4097),
}


def given(dtype: torch.dtype) -> list[Tensor]:
    """Numbers of float16: inputs, weights and biases [64, 64] and [64]."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in ((64, 64), (64, 64), (64,))]
    return [FP16.round(each).to(dtype).requires_grad_() for each in drawn]


def found(name: str, dtype: torch.dtype) -> list[Tensor]:
    """A result in `dtype`, and the gradients of its weighted sum, as float32."""
    inputs = given(dtype)
    with arithmetic_of(FP16, dtype):
        result = OPERATIONS[name](*inputs)
        weights = torch.linspace(-1, 1, result.numel()).reshape(result.shape).half().to(dtype)
        result.backward(weights)
    gradients = [each.grad for each in inputs if each.grad is not None]
    assert gradients and {each.dtype for each in (result, *gradients)} == {dtype}
    return [each.detach().float() for each in (result, *gradients)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_and_gradients_are_those_of_the_simulation(name: str) -> None:
    for stored, simulated in zip(
        found(name, torch.float16), found(name, torch.float32), strict=True
    ):
        assert torch.equal(stored, simulated)


@pytest.mark.parametrize("batch", [4, 40])
def test_convolutions_are_those_of_the_simulation(batch: int) -> None:
    """To the bit, but of more images than are taken at once."""
    shapes = (batch, 8, 12, 12), (16, 8, 3, 3), (16,)
    generator, results = torch.Generator().manual_seed(0), []
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    for dtype in (torch.float16, torch.float32):
        inputs = [FP16.round(each).to(dtype).requires_grad_() for each in drawn]
        with arithmetic_of(FP16, dtype):
            result = F.conv2d(*inputs, stride=[2, 2], padding=1)
            weights = torch.linspace(-1, 1, result.numel()).reshape(result.shape).half().to(dtype)
            result.backward(weights)
        gradients = [each.grad for each in inputs if each.grad is not None]
        assert len(gradients) == 3 and {each.dtype for each in (result, *gradients)} == {dtype}
        results.append([each.detach().float() for each in (result, *gradients)])
    for name, stored, simulated in zip("rxwb", *results, strict=True):
        if batch == 4:
            assert torch.equal(stored, simulated), name
        away = (stored - simulated).abs()
        unit = 2.0 ** (torch.frexp(simulated.abs().max()).exponent - 11).float()
        assert away.max() <= unit and (away > 0).float().mean() < 0.01


def test_a_number_that_is_added_is_not_rounded_first() -> None:
    x = torch.ones(1, dtype=torch.float16)
    with HalfArithmetic():
        # Half of float16's step at 1 and a little more. Rounded to float16 first the little is
        # lost, and the sum a tie, to the even 1.
        assert (x + (2.0**-11 + 2.0**-23)).item() == 1 + 2.0**-10


def test_a_layer_keeps_float16_for_its_backward_pass() -> None:
    kept: list[Tensor] = []
    x, weight, bias = given(torch.float16)

    def keep(each: Tensor) -> Tensor:
        kept.append(each)
        return each

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each), HalfArithmetic():
        F.linear(x, weight, bias)
    assert [each.dtype for each in kept] == [torch.float16] * 2


def test_float32_tensors_are_left_alone() -> None:
    x, weight, bias = given(torch.float32)
    wanted = F.linear(x, weight, bias).sum() + 0.1
    with HalfArithmetic():
        assert torch.equal(F.linear(x, weight, bias).sum() + 0.1, wanted)
