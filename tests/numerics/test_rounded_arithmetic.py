"""Simulated arithmetic against PyTorch's own float16, and by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.rounded_arithmetic import RoundedArithmetic

FP16 = FloatFormat.parse("fp16")


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "div", "exp", "log", "sqrt", "tanh", "square"]
)
def test_operations_are_those_of_float16(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**15), 2**15, (2, 200_000), generator=generator).to(torch.int16)
    x, y = bits.view(torch.float16)
    operation = getattr(torch, name)
    pair = name in ("add", "sub", "mul", "div")
    wanted = operation(x, y) if pair else operation(x)
    with RoundedArithmetic(FP16):
        found = operation(x.float(), y.float()) if pair else operation(x.float())
    torch.testing.assert_close(found, wanted.float(), rtol=0, atol=0, equal_nan=True)
    if pair or name == "sqrt":  # float64 rounded once is the nearest number
        exact = operation(x.double(), y.double()) if pair else operation(x.double())
        nearest = FP16.round(exact).float()
        torch.testing.assert_close(found, nearest, rtol=0, atol=0, equal_nan=True)


def test_the_backward_pass_rounds_too() -> None:
    # As the test of log_slope: e^12 is infinite in fp16, and its gradient inf / inf.
    x = torch.tensor([12.0], requires_grad=True)
    with RoundedArithmetic(FP16):
        value = torch.log1p(torch.exp(x))
        value.backward()
    assert x.grad is not None
    assert value.item() == math.inf
    assert x.grad.isnan().item()


def test_operations_in_place_round_in_place() -> None:
    # e5m2 has four numbers in [1, 2), two steps of 1/2 in [2, 3].
    x = torch.tensor([1.25, 1.0])
    with RoundedArithmetic(FloatFormat(5, 2)):
        same = x.add_(torch.tensor([1.0, 0.25]))
    assert x.tolist() == [2.0, 1.25]  # 2.25 is a tie: to the even 2
    assert same is x


def test_an_optimizer_that_loses_its_updates() -> None:
    # w = 1, d = 2^-12: below half of fp16's step at 1. In float32 four of them show.
    moved = []
    for form in (FP16, FloatFormat.parse("fp32")):
        weight = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=2.0**-12)
        with RoundedArithmetic(form):
            for _ in range(4):
                optimizer.zero_grad()
                (-weight).sum().backward()
                optimizer.step()
        moved.append(weight.item())
    assert moved == [1.0, 1 + 2.0**-10]


@pytest.mark.parametrize("how", ["fused", "foreach"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_optimizers_of_whole_lists_leave_numbers_of_the_format(kind: Any, how: str) -> None:
    weights = [nn.Parameter(FP16.round(torch.linspace(0.1, 2.0, 50))) for _ in range(2)]
    before = [each.detach().clone() for each in weights]
    optimizer = kind(weights, lr=0.01, **{how: True})
    with RoundedArithmetic(FP16):
        for _ in range(2):
            optimizer.zero_grad()
            sum((each**3).sum() for each in weights).backward()
            optimizer.step()
    states = [x for its in optimizer.state.values() for x in its.values() if x is not None]
    for each in (*weights, *states):
        assert torch.equal(FP16.round(each.detach()), each)
    assert not torch.equal(before[0], weights[0])
