"""The loss scale's steps, by hand, and what unscaling finds."""

from __future__ import annotations

import math

import pytest
import torch

from qpd.numerics.loss_scale import LossScale, unscale


def moved(scale: LossScale, *updates: bool) -> LossScale:
    for is_finite in updates:
        scale = scale.after(is_finite)
    return scale


def test_a_dynamic_scale_doubles_after_2000_good_updates_in_a_row() -> None:
    scale = moved(LossScale.parse("dynamic"), *[True] * 1999)
    assert (scale.scale, scale.good) == (65536, 1999)
    assert moved(scale, True) == LossScale(131072, True, 0, 0)
    # One bad update halves the scale, and the row begins anew.
    broken = moved(scale, False, *[True] * 1999)
    assert (broken.scale, broken.good, broken.skipped) == (32768, 1999, 1)
    assert moved(broken, True).scale == 65536


def test_the_scale_stays_between_its_ends() -> None:
    # 2^16 doubles 8 times to 2^24 and no further; it halves 40 times to 2^-24.
    assert moved(LossScale.parse("dynamic"), *[True] * 2000 * 9).scale == 2**24
    bottom = moved(LossScale.parse("dynamic"), *[False] * 41)
    assert (bottom.scale, bottom.skipped) == (2**-24, 41)


def test_a_constant_scale_only_counts_what_it_skips() -> None:
    assert moved(LossScale.parse("128"), True, False, True) == LossScale(128, False, 0, 1)
    assert moved(LossScale.parse("none"), False) == LossScale(1, False, 0, 1)


@pytest.mark.parametrize("text", ["auto", "0", "-8", "nan", "inf", "1e30", "", "0x10", "8 "])
def test_what_is_no_scale_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="is no loss scale") as caught:
        LossScale.parse(text)
    assert "\n" not in str(caught.value)


def test_unscaling_divides_once_and_in_place() -> None:
    gradients = [torch.tensor([8.0, -24.0]), torch.empty(0), torch.tensor(4.0)]
    assert unscale(gradients, 8.0)
    assert gradients[0].tolist() == [1.0, -3.0]
    assert gradients[2].item() == 0.5
    assert unscale([], 8.0)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_one_bad_number_makes_an_update_a_skipped_one(bad: float) -> None:
    assert not unscale([torch.ones(3), torch.tensor([1.0, bad, 2.0])], 2.0)


def test_unscaling_in_16_bits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"torch\.float16 must be widened"):
        unscale([torch.ones(1, dtype=torch.float16)], 2.0)


def test_a_gradient_that_fp16_loses_survives_a_scaled_loss() -> None:
    # d/dx of 2^-26 x is 2^-26: less than half of fp16's smallest number, 2^-24, so it becomes 0.
    # Times 8 it is 2^-23, two of the smallest steps, and exactly 2^-26 once divided in float32.
    for scale, wanted in ((1.0, 0.0), (8.0, 2.0**-26)):
        x = torch.ones(1, requires_grad=True)
        (x.half().float() * 2.0**-26 * scale).sum().backward()
        assert x.grad is not None
        assert unscale([x.grad], scale)
        assert x.grad.item() == wanted
