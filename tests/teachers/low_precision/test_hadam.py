"""hAdam and compound loss scaling beside Adam: by hand in fp16, equal in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qpd.teachers.low_precision.compound_scale import AMP_FIRST, AMP_GROWS_AFTER, CompoundScale
from qpd.teachers.low_precision.hadam import (
    adam_moments,
    adam_step,
    hadam_moments,
    hadam_step,
    hypot,
)


def half(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float16)


def first_step(kind: str, g: Tensor, eps: float) -> list[float]:
    """The first step from empty moments, in learning rates."""
    moments, step = {"adam": (adam_moments, adam_step), "hadam": (hadam_moments, hadam_step)}[kind]
    zero = torch.zeros_like(g)
    return step(*moments(zero, zero, g), 1.0, eps, 1).tolist()


def test_hypot_takes_no_squares() -> None:
    # 3-4-5 where squares vanish (2^-14) and where they overflow (2^12).
    for size in (2.0**-14, 2.0**12):
        assert hypot(half(3 * size), half(-4 * size)).item() == 5 * size
    assert half(3 * 2.0**12).square().item() == math.inf
    assert hypot(half(0.0), half(0.0)).item() == 0.0
    x = torch.randn(1000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(hypot(x[:, 0], x[:, 1]), x.norm(dim=1), rtol=1e-14, atol=0)


def test_small_gradients_leave_a_trace_in_the_root_only() -> None:
    # 1e-3 g^2 is below 2^-25 for g < 5.46e-3; sqrt(1e-3) g only for g < 9.43e-7.
    zero = half(0.0, 0.0)
    assert adam_moments(zero, zero, half(5e-3, 6e-3))[1].gt(0).tolist() == [False, True]
    # g = 2^-20 = 9.54e-7 and 14 steps of 2^-24, 8.34e-7.
    near = half(2.0**-20, 14 * 2.0**-24)
    assert hadam_moments(zero, zero, near)[1].gt(0).tolist() == [True, False]
    # The other end: 300^2 = 90,000 overflows.
    assert adam_moments(half(0.0), half(0.0), half(300.0))[1].item() == math.inf
    assert hadam_moments(half(0.0), half(0.0), half(300.0))[1].item() == pytest.approx(9.487, 2e-3)


def test_the_first_step_of_each_in_fp16() -> None:
    g = half(1e-3, 0.0, 1.0)
    # eps = 1e-8 is 0 in fp16: 1e-3 / 0 and 0 / 0.
    adam = first_step("adam", g, 1e-8)
    assert adam[0] == -math.inf
    assert math.isnan(adam[1])
    assert adam[2] == pytest.approx(-1, abs=2e-3)
    # eps = 1e-4 makes it finite, and 10 times as long as it should be: 1e-3 / 1e-4.
    assert first_step("adam", g, 1e-4) == pytest.approx([-10, 0, -1], rel=5e-3)
    # hAdam is right, but for 0 / 0: eps must not vanish.
    root = first_step("hadam", g, 1e-8)
    assert root[0] == pytest.approx(-1, abs=5e-3)
    assert math.isnan(root[1])
    # Exactly 1e-3 / (1e-3 + 1e-4) = 10 / 11.
    assert first_step("hadam", g, 1e-4) == pytest.approx([-10 / 11, 0, -1], rel=5e-3)


def test_compound_scaling_saves_gradients_that_vanish() -> None:
    # 0.1 * 6e-8 is 0 in fp16: no step. Times 1e4, with eps 1e-4, the step is that of exact Adam,
    # 6e-8 / (6e-8 + 1e-8) = 6 / 7.
    scale = CompoundScale()
    assert scale.eps == pytest.approx(1e-4)
    assert math.isnan(first_step("hadam", half(6e-8), 1e-8)[0])
    assert first_step("hadam", half(6e-8 * scale.gamma), scale.eps) == pytest.approx([-6 / 7], 5e-3)


def test_the_scale_moves_with_the_buffers() -> None:
    buffers = [half(1.0, -100.0)]
    scale = CompoundScale().after(False, buffers)
    assert scale == CompoundScale(5e3, 0, 1, 0.5)
    assert scale.after(True, buffers) == CompoundScale(5e3, 1, 1, 1.0)
    ripe = CompoundScale(1e4, 10_000, 3, 1.0)
    assert ripe.after(True, buffers) == CompoundScale(2e4, 0, 3, 2.0)
    # 2.2 * 30,000 = 66,000 is beyond 65,504, on either side.
    for number in (30_000.0, -30_000.0):
        assert ripe.after(True, [half(number)]) == CompoundScale(1e4, 0, 3, 1.0)
    assert CompoundScale(1.0).eps == 1e-7
    # Moments are divided by its square in the end: it never becomes 0.
    least = CompoundScale(2.0**-60)
    assert least.after(False, []) == CompoundScale(2.0**-60, 0, 1, 1.0)
    # torch.amp.GradScaler's: 2,000 good updates, then twice as much.
    amp = CompoundScale(AMP_FIRST, 1_998, grows_after=AMP_GROWS_AFTER)
    assert amp.after(True, []).gamma == 65_536.0
    assert amp.after(True, []).after(True, []).gamma == 131_072.0
    assert amp.after(False, []).grows_after == AMP_GROWS_AFTER


def test_in_float64_both_together_are_adam() -> None:
    # Statement 1 of the paper; eps taken as gamma eps.
    rng = torch.Generator().manual_seed(0)
    scale = CompoundScale()
    ours, adams = torch.ones(50, dtype=torch.float64), torch.ones(50, dtype=torch.float64)
    m = w = n = v = torch.zeros(50, dtype=torch.float64)
    for updates in range(1, 101):
        g = torch.randn(50, dtype=torch.float64, generator=rng) * 10.0 ** -(updates % 7)
        n, v = adam_moments(n, v, g)
        adams = adams + adam_step(n, v, 1e-3, 1e-8, updates)
        m, w = hadam_moments(m, w, scale.gamma * g)
        ours = ours + hadam_step(m, w, 1e-3, scale.eps, updates)
    torch.testing.assert_close(ours, adams, rtol=0, atol=1e-12)
    reference = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([reference], lr=1e-3)
    reference.grad = torch.tensor([0.3], dtype=torch.float64)
    optimizer.step()
    zero = torch.zeros(1, dtype=torch.float64)
    step = adam_step(*adam_moments(zero, zero, reference.grad), 1e-3, 1e-8, 1)
    torch.testing.assert_close(reference.detach(), 1 + step, rtol=0, atol=1e-15)
