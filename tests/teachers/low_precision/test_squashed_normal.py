"""Softplus-fix and normal-fix: where fp16 breaks the naive form, by hand, the fixed one holds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.rounded_arithmetic import RoundedArithmetic
from qpd.teachers.low_precision.squashed_normal import (
    log_normal,
    log_slope,
    naive_log_normal,
    naive_log_slope,
    softplus_threshold,
)


def half(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float16)


def test_a_variance_that_underflows() -> None:
    # sigma = 2^-13: sigma^2 = 2^-26 is 0 in fp16, and ((u - mu) / sigma)^2 with eps = 1/2 is 0 / 0.
    u, mean, deviation = half(2.0**-14), half(0.0), half(2.0**-13)
    assert naive_log_normal(u, mean, deviation).isnan().item()
    # -1/8 + 13 ln 2 - ln(2 pi) / 2 = 7.966974; fp16's step there is 2^-8.
    assert log_normal(u, mean, deviation).item() == pytest.approx(7.966974, abs=2.0**-8)


def test_a_variance_of_few_bits() -> None:
    # sigma = 2^-12 times 1.25: the square, 1.5625 * 2^-24, rounds to 2^-23, 28% too much.
    # eps = 4, so that the exponent, 8, shows it: 16 / 2 / 1.28 = 6.25.
    deviation = half(1.25 * 2.0**-12)
    u = 4 * deviation
    exact = -8 - math.log(1.25 * 2.0**-12) - 0.5 * math.log(2 * math.pi)  # -0.824316
    assert exact == pytest.approx(-0.824316, abs=1e-6)
    assert log_normal(u, half(0.0), deviation).item() == pytest.approx(exact, abs=2.0**-7)
    assert abs(naive_log_normal(u, half(0.0), deviation).item() - exact) > 1


@pytest.mark.parametrize(("sigma", "is_nan"), [(1e-3, False), (1e-4, True)])
def test_the_gradient_of_a_small_deviation(sigma: float, is_nan: bool) -> None:
    # u - mu = 0.1 sigma: the gradient by mu is 0.1 / sigma, 100 and 1,000.
    gradients, values = [], []
    for form in (naive_log_normal, log_normal):
        mean, deviation = half(0.0).requires_grad_(), half(sigma)
        value = form((0.1 * deviation).half(), mean, deviation)
        value.sum().backward()
        assert mean.grad is not None
        gradients.append(mean.grad.item())
        values.append(value.item())
    assert gradients[0] == math.inf and math.isnan(values[0]) == is_nan
    assert gradients[1] == pytest.approx(0.1 / sigma, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "threshold"),  # ln 65,504 = 11.1, ln 255.9 = 5.5, ln 15.99 = 2.8
    [("fp16", -5.0), ("e8m10", -5.0), ("e4m10", -2.5), ("e3m10", -1.0)],
)
def test_the_threshold_of_softplus_is_one_that_the_format_bears(
    name: str, threshold: float
) -> None:
    form = FloatFormat.parse(name)
    assert softplus_threshold(form) == threshold
    u = form.round(torch.linspace(-7, 2, 101)).requires_grad_()
    with RoundedArithmetic(form):
        slope = log_slope(u, softplus_threshold(form))
        slope.sum().backward()
    assert u.grad is not None and u.grad.isfinite().all()
    exact = 2.0 * (math.log(2.0) - u - torch.nn.functional.softplus(-2.0 * u))
    # Just below e3m10's threshold twice log(1 + e^-2) = 0.127 is left out.
    torch.testing.assert_close(slope, exact, rtol=0.0, atol=0.27)


def test_softplus_overflows_beyond_11() -> None:
    # -2u = 12: e^12 = 162,755 is infinite in fp16, and the gradient inf / inf.
    gradients, values = [], []
    for form in (naive_log_slope, log_slope):
        u = half(-6.0).requires_grad_()
        value = form(u)
        value.sum().backward()
        assert u.grad is not None
        gradients.append(u.grad.item())
        values.append(value.item())
    assert values[0] == -math.inf
    assert math.isnan(gradients[0])
    # 2 (ln 2 + 6 - 12) = -10.613706, steps of 2^-7; the slope is -2 tanh(-6) = 2 - 2.5e-5.
    assert values[1] == pytest.approx(-10.613706, abs=2.0**-6)
    assert gradients[1] == 2.0


def test_both_forms_are_one_in_exact_arithmetic() -> None:
    u = torch.linspace(-4.9, 15, 401, dtype=torch.float64)
    mean, deviation = u.flip(0) / 7, u.abs() + 0.1
    torch.testing.assert_close(log_slope(u), naive_log_slope(u), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        log_normal(u, mean, deviation), naive_log_normal(u, mean, deviation), rtol=1e-12, atol=1e-12
    )
    normal = torch.distributions.Normal(mean, deviation).log_prob(u)
    torch.testing.assert_close(log_normal(u, mean, deviation), normal, rtol=1e-12, atol=1e-12)
    assert log_slope(torch.zeros(1)).item() == pytest.approx(0.0, abs=1e-6)


def test_the_linear_branch_joins_below_half_precision() -> None:
    # At -2u = 10 it leaves out log(1 + e^-10) = 4.5e-5; twice that is far below the step, 2^-7.
    u = torch.tensor([-5.0 - 1e-9], dtype=torch.float64)
    assert (log_slope(u) - naive_log_slope(u)).item() == pytest.approx(2 * 4.54e-5, rel=1e-3)
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    every = every[every.isfinite() & (every.abs() < 1e4)].requires_grad_()
    log_slope(every).sum().backward()
    assert every.grad is not None
    assert every.grad.isfinite().all()
