"""Eq. 5 with hand-computed numbers; odd integers, the scaled form, and their gradients."""

from __future__ import annotations

import math

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qpd.quantization.dorefa import (
    dorefa_integers,
    least_squares_scale,
    scaled_integers,
)

torch.set_num_threads(1)

BITS = pytest.mark.parametrize("bits", [2, 3, 4, 8])
WEIGHTS = arrays.arrays(
    np.float64, arrays.array_shapes(min_dims=2, max_dims=4), elements=st.floats(-3, 3)
)


def from_tanh(values: list[list[float]]) -> Tensor:
    """Weights whose tanh is `values`."""
    return torch.atanh(torch.tensor(values, dtype=torch.float64))


def weights(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_eq5_by_hand() -> None:
    # tanh w = (0.5, -0.5, 0.25, -0.1), max 0.5: f = tanh w + 1/2 = (1, 0, 0.75, 0.4).
    # k = 2, M = 3: round(3 f) = round(3, 0, 2.25, 1.2) = (3, 0, 2, 1)
    # w_q = 2 n / 3 - 1 = (1, -1, 1/3, -1/3).
    w = from_tanh([[0.5, -0.5, 0.25, -0.1]])
    assert dorefa_integers(w, 2).tolist() == [[3, -3, 1, -1]]
    expected = torch.tensor([[1, -1, 1 / 3, -1 / 3]], dtype=torch.float64)
    torch.testing.assert_close(dorefa_integers(w, 2) / 3, expected)
    # k = 8, M = 255: round(255 f) = round(255, 0, 191.25, 102) -> 2 n - 255.
    assert dorefa_integers(w, 8).tolist() == [[255, -255, 127, -51]]


def test_eq5_takes_the_maximum_over_the_layer() -> None:
    # f of 0.1 is 0.1 / (2 * 0.5) + 1/2 = 0.6 in either row: round(255 * 0.6) = 153 -> 51.
    w = from_tanh([[0.5, 0.1], [0.1, -0.1]])
    assert dorefa_integers(w, 8).tolist() == [[255, 51], [51, -51]]


def test_scaled_integers_by_hand() -> None:
    # k = 2, M = 3, scales 2 and 0.5. Row 1: w / scale = (1, 0.5, -0.2, 1.5 clipped to 1):
    # unit (1, 0.75, 0.4, 1), round(3 unit) = (3, 2, 1, 3). Row 2: (-1 clipped from -4, 0.4).
    w = torch.tensor([[2.0, 1.0, -0.4, 3.0], [-2.0, 0.2, -0.5, 0.5]])
    integers = scaled_integers(w, torch.tensor([2.0, 0.5]), 2)
    assert integers.tolist() == [[3, 1, -1, 3], [-3, 1, -3, 3]]


def test_narrow_integers_by_hand() -> None:
    # k = 2, M = 2, scales 2 and 0.5: n = round(1 + w / scale), and 2 n - 2. Row 1: w / scale = (1,
    # 0.4, -0.2, 1 clipped from 1.5), n = (2, 1, 1, 2). Row 2: (-1 clipped from -4, 0.4, -0.6, 1).
    w = torch.tensor([[2.0, 0.8, -0.4, 3.0], [-2.0, 0.2, -0.3, 0.5]], requires_grad=True)
    scale = torch.tensor([2.0, 0.5], requires_grad=True)
    integers = scaled_integers(w, scale, 2, has_zero=True)
    assert integers.tolist() == [[2, 0, 0, 2], [-2, 0, -2, 2]]
    # k = 3, M = 6: n = round(3 + 3 w / scale) = (6, 4, 2, 6) and (0, 4, 1, 6).
    three = scaled_integers(w, scale, 3, has_zero=True)
    assert three.tolist() == [[6, 2, -2, 6], [-6, 2, -4, 6]]
    # M / scale where nothing is clipped; the scale's is -w / scale times that, summed.
    integers.sum().backward()
    assert w.grad is not None and scale.grad is not None
    assert w.grad.tolist() == [[1, 1, 1, 0], [0, 4, 4, 4]]
    torch.testing.assert_close(scale.grad, torch.tensor([-1.2, -3.2]))


@given(array=WEIGHTS, bits=st.integers(2, 8), scale=st.floats(0.01, 3))
def test_narrow_integers_are_even_and_symmetric(array: np.ndarray, bits: int, scale: float) -> None:
    w = torch.from_numpy(array)
    scales = torch.full((len(w),), scale, dtype=w.dtype)
    integers = scaled_integers(w, scales, bits, has_zero=True)
    assert (integers.remainder(2) == 0).all()
    assert integers.abs().max() <= 2**bits - 2
    assert torch.equal(scaled_integers(-w, scales, bits, has_zero=True), -integers)
    assert (integers[w == 0] == 0).all()


@given(array=WEIGHTS, bits=st.integers(2, 8), scale=st.floats(0.01, 3))
def test_integers_are_odd_and_within_the_levels(array: np.ndarray, bits: int, scale: float) -> None:
    w = torch.from_numpy(array)
    for integers in (
        dorefa_integers(w, bits),
        scaled_integers(w, torch.full((len(w),), scale, dtype=w.dtype), bits),
    ):
        assert integers.shape == array.shape
        assert (integers.remainder(2) == 1).all()
        assert integers.abs().max() <= 2**bits - 1


@given(array=WEIGHTS, bits=st.integers(2, 8))
def test_eq5_errs_by_half_a_level_at_most(array: np.ndarray, bits: int) -> None:
    # In NumPy, from the paper: M f(w) in [0, M], and n = (integer + M) / 2 its nearest integer.
    top = 2**bits - 1
    squashed = np.tanh(array)
    exact = top * (squashed / (2 * max(np.abs(squashed).max(), 1e-12)) + 0.5)
    n = (dorefa_integers(torch.from_numpy(array), bits).numpy() + top) / 2
    assert np.abs(n - exact).max() <= 0.5 + 1e-9


@given(array=WEIGHTS, bits=st.integers(2, 8), scale=st.floats(0.01, 3))
def test_the_scaled_form_errs_by_half_a_step_within_its_range(
    array: np.ndarray, bits: int, scale: float
) -> None:
    # Neighbouring odd integers are 2 apart: a step is 2 scale / M.
    w, top = torch.from_numpy(array), 2**bits - 1
    scales = torch.full((len(w),), scale, dtype=w.dtype)
    restored = scaled_integers(w, scales, bits) * scale / top
    inside = w.abs() <= scale
    assert ((restored - w).abs()[inside] <= scale / top * (1 + 1e-9)).all()
    assert (restored[~inside].abs() > scale * (1 - 1e-9)).all()
    again = scaled_integers(restored, scales, bits) * scale / top
    torch.testing.assert_close(again, restored, rtol=1e-12, atol=0)


@BITS
def test_level_to_value_to_level_is_the_identity(bits: int) -> None:
    top = 2**bits - 1
    integers = torch.arange(-top, top + 1, 2, dtype=torch.float64)
    assert len(integers) == 2**bits
    value = integers / top
    # atanh undoes Eq. 5's tanh (scaled by 1/2 into its domain; the layer's maximum drops it).
    assert torch.equal(dorefa_integers(torch.atanh(0.5 * value)[None], bits)[0], integers)
    scale = torch.tensor([0.37], dtype=torch.float64)
    assert torch.equal(scaled_integers(value[None] * scale, scale, bits)[0], integers)


@BITS
def test_eq5s_gradient_is_that_of_the_formula_without_rounding(bits: int) -> None:
    top, seed = 2**bits - 1, weights(3, 4, 2).flip(0)
    w, smooth = weights(3, 4, 2).requires_grad_(), weights(3, 4, 2).requires_grad_()
    (dorefa_integers(w, bits) * seed).sum().backward()
    squashed = torch.tanh(smooth)
    f = squashed / (2 * squashed.abs().max()) + 0.5
    ((2 * top * f - top) * seed).sum().backward()
    torch.testing.assert_close(w.grad, smooth.grad)


def test_eq5s_gradient_by_hand() -> None:
    # d integer / d w = 2 M sech^2(w) / (2 max) = 3 * (1 - 0.25^2) / 0.5 = 5.625 at tanh w = 0.25
    # (k = 2, the maximum 0.5 elsewhere): the rounding passes it on.
    w = from_tanh([[0.5, 0.25]]).requires_grad_()
    dorefa_integers(w, 2)[0, 1].backward()
    assert w.grad[0, 1].item() == pytest.approx(5.625)


def test_the_scaled_gradient_by_hand() -> None:
    # Restored weight r = scale * integer / M, k = 2, scale 2. Within the range dr/dw = 1, and
    # dr/dscale = integer / M - w / scale; beyond it dr/dw = 0 and dr/dscale = +-1 (as in LSQ).
    # w = 1: integer 1, 1/3 - 1/2 = -1/6. w = -0.4: integer -1, -1/3 + 0.2 = -2/15. w = -5: -1.
    w = torch.tensor([[1.0, -0.4, -5.0]], dtype=torch.float64, requires_grad=True)
    for column, expected in enumerate([-1 / 6, -2 / 15, -1.0]):
        scale = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
        w.grad = None
        (scale * scaled_integers(w, scale, 2) / 3)[0, column].backward()
        assert scale.grad.item() == pytest.approx(expected)
        assert w.grad[0, column].item() == pytest.approx(0.0 if column == 2 else 1.0)


def test_the_scale_by_hand() -> None:
    # Odd integers times the maximum restore these rows exactly: the scale is the maximum, per
    # channel. One scale for both cannot: with 3 the second row (0.3, -0.1) becomes (1, -1).
    w = torch.tensor([[3.0, 1.0], [0.3, -0.1]])
    torch.testing.assert_close(least_squares_scale(w, 2, True), torch.tensor([3.0, 0.3]))
    single = least_squares_scale(w, 2, False)
    assert single[0] == single[1] > 2.0


@BITS
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("shape", [(5, 7), (5, 3, 2, 2)])
def test_scales_have_one_entry_per_channel(
    bits: int, per_channel: bool, shape: tuple[int, ...]
) -> None:
    scale = least_squares_scale(weights(*shape).float(), bits, per_channel)
    assert scale.shape == (5,) and scale.dtype == torch.float32
    assert (len(scale.unique()) > 1) == per_channel


@pytest.mark.parametrize("per_channel", [False, True])
def test_the_scaled_scheme_restores_the_weights_scale(per_channel: bool) -> None:
    w = 0.03 * weights(6, 50).float().clamp(-2, 2)
    scale = least_squares_scale(w, 8, per_channel)
    restored = scaled_integers(w, scale, 8) * scale[:, None] / 255
    # Half a step each; what the scale clips off costs no more than it saves.
    assert (restored - w).square().mean().sqrt() < w.abs().max() / 255
    # Eq. 5 as written does not: its integers fill [-255, 255], weights [-1, 1].
    assert dorefa_integers(w, 8).abs().max() == 255


@given(st.integers(0, 2**31), st.integers(2, 8), st.booleans())
def test_the_scale_is_the_best_of_its_candidates(seed: int, bits: int, per_channel: bool) -> None:
    w = torch.randn((3, 9), generator=torch.Generator().manual_seed(seed))

    def error(scale: Tensor) -> Tensor:
        restored = scaled_integers(w, scale, bits) * scale[:, None] / (2**bits - 1)
        rows = (restored - w).square().sum(1)
        return rows if per_channel else rows.sum()

    chosen = error(least_squares_scale(w, bits, per_channel))
    peak = w.abs().amax(1) if per_channel else w.abs().max().expand(3)
    for share in (0.2, 0.4, 0.6, 0.8, 1.0):  # five of the 33
        assert (chosen <= error(peak * share) * (1 + 1e-4)).all()


@BITS
def test_weights_of_zero_do_not_give_nan(bits: int) -> None:
    for per_channel in (False, True):
        w = torch.zeros((2, 3), requires_grad=True)
        scale = least_squares_scale(w, bits, per_channel)
        assert (scale > 0).all() and (scale < 1e-6).all()
        for integers in (dorefa_integers(w, bits), scaled_integers(w, scale, bits)):
            assert (integers.abs() == 1).all()  # there is no zero level
            w.grad = None
            integers.sum().backward()
            assert math.isfinite(w.grad.sum().item())


def test_weights_of_the_scales_own_size_learn() -> None:
    """A scale that clips nothing is the largest weight's size: that weight is not beyond it."""
    w = torch.tensor([[2.0, -2.0, 1.0]], requires_grad=True)
    (2 * scaled_integers(w, torch.tensor([2.0]), 2) / 3).sum().backward()
    assert w.grad.tolist() == [[1.0, 1.0, 1.0]]
