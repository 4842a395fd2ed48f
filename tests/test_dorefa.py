"""Eq. 5 with hand-computed numbers; odd integers, their scale, and the gradient."""

from __future__ import annotations

import math

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qpd.quantization.dorefa import dorefa_integers, dorefa_quantize, least_squares_scale

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
    torch.testing.assert_close(dorefa_quantize(w, 2), expected)
    # k = 8, M = 255: round(255 f) = round(255, 0, 191.25, 102) -> 2 n - 255.
    assert dorefa_integers(w, 8).tolist() == [[255, -255, 127, -51]]


def test_the_maximum_is_taken_per_layer_or_per_channel() -> None:
    w = from_tanh([[0.5, 0.1], [0.1, -0.1]])
    # Per layer, f of 0.1 is 0.1 / 1 + 1/2 = 0.6: round(255 * 0.6) = 153 -> 51.
    assert dorefa_integers(w, 8).tolist() == [[255, 51], [51, -51]]
    # Per channel, the second row's maximum is 0.1 itself.
    assert dorefa_integers(w, 8, per_channel=True).tolist() == [[255, 51], [255, -255]]


@given(array=WEIGHTS, bits=st.integers(2, 8), per_channel=st.booleans())
def test_integers_are_odd_and_within_the_levels(
    array: np.ndarray, bits: int, per_channel: bool
) -> None:
    top = 2**bits - 1
    integers = dorefa_integers(torch.from_numpy(array), bits, per_channel)
    assert integers.shape == array.shape
    assert (integers.remainder(2) == 1).all()
    assert integers.abs().max() <= top


@given(array=WEIGHTS, bits=st.integers(2, 8), per_channel=st.booleans())
def test_error_is_at_most_half_a_level(array: np.ndarray, bits: int, per_channel: bool) -> None:
    # In NumPy, from the paper: M f(w) in [0, M], and n = (integer + M) / 2 its nearest integer.
    top = 2**bits - 1
    squashed = np.tanh(array)
    axes = tuple(range(1, array.ndim)) if per_channel else None
    peak = np.maximum(np.abs(squashed).max(axes, keepdims=True), 1e-12)
    exact = top * (squashed / (2 * peak) + 0.5)
    n = (dorefa_integers(torch.from_numpy(array), bits, per_channel).numpy() + top) / 2
    assert np.abs(n - exact).max() <= 0.5 + 1e-9


@BITS
def test_level_to_value_to_level_is_the_identity(bits: int) -> None:
    top = 2**bits - 1
    levels = torch.arange(top + 1, dtype=torch.float64)
    value = 2 * levels / top - 1
    assert torch.equal((top * (value / 2 + 0.5)).round(), levels)
    # Eq. 5's own values, undone by atanh (scaled inside its domain), give the same integers again.
    integers = dorefa_integers(torch.atanh(0.5 * value)[None], bits)
    assert torch.equal(integers[0], 2 * levels - top)


@BITS
@pytest.mark.parametrize("per_channel", [False, True])
def test_the_gradient_is_that_of_the_formula_without_rounding(bits: int, per_channel: bool) -> None:
    top = 2**bits - 1
    seed = weights(3, 4, 2)
    w = weights(3, 4, 2).requires_grad_()
    (dorefa_integers(w, bits, per_channel) * seed).sum().backward()
    smooth = weights(3, 4, 2).requires_grad_()
    squashed = torch.tanh(smooth)
    peak = squashed.abs().amax((1, 2), keepdim=True) if per_channel else squashed.abs().max()
    ((2 * top * (squashed / (2 * peak) + 0.5) - top) * seed).sum().backward()
    torch.testing.assert_close(w.grad, smooth.grad)


def test_the_gradient_by_hand() -> None:
    # d integer / d w = 2 M sech^2(w) / (2 max) = 3 * (1 - 0.25^2) / 0.5 = 5.625 at tanh w = 0.25
    # (k = 2, the maximum 0.5 elsewhere): the rounding passes it on.
    w = from_tanh([[0.5, 0.25]]).requires_grad_()
    dorefa_integers(w, 2)[0, 1].backward()
    assert w.grad[0, 1].item() == pytest.approx(5.625)


def test_the_scale_by_hand() -> None:
    # a = w.q / q.q: (3 * 3 + 1 * 1) / 10 = 1 and (6 + 1) / 10 = 0.7; together 17 / 20.
    w, q = torch.tensor([[3.0, 1.0], [2.0, 1.0]]), torch.tensor([[3.0, 1.0], [3.0, 1.0]])
    torch.testing.assert_close(least_squares_scale(w, q, True), torch.tensor([1.0, 0.7]))
    torch.testing.assert_close(least_squares_scale(w, q, False), torch.tensor([0.85, 0.85]))


@BITS
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("shape", [(5, 7), (5, 3, 2, 2)])
def test_scales_have_one_entry_per_channel(
    bits: int, per_channel: bool, shape: tuple[int, ...]
) -> None:
    w = weights(*shape).float()
    scale = least_squares_scale(w, dorefa_integers(w, bits, per_channel), per_channel)
    assert scale.shape == (5,) and scale.dtype == torch.float32
    assert (len(scale.unique()) > 1) == per_channel


@pytest.mark.parametrize("per_channel", [False, True])
def test_the_scaled_scheme_restores_the_weights_scale(per_channel: bool) -> None:
    # Small weights, where tanh is the identity: 8 bits lose at most half a level, max / 255.
    w = 0.03 * weights(6, 50).float().clamp(-2, 2)
    integers = dorefa_integers(w, 8, per_channel)
    scale = least_squares_scale(w, integers, per_channel)[:, None]
    assert (scale * integers - w).abs().max() < 1.2 * w.abs().max() / 255
    # Eq. 5 as written does not: its weights fill [-1, 1].
    assert dorefa_quantize(w, 8).abs().max() == 1


@given(st.integers(0, 2**31), st.integers(2, 8), st.booleans())
def test_no_other_scale_is_closer(seed: int, bits: int, per_channel: bool) -> None:
    w = torch.randn((3, 9), generator=torch.Generator().manual_seed(seed))
    q = dorefa_integers(w, bits, per_channel)
    scale = least_squares_scale(w, q, per_channel)[:, None]
    best = (w - scale * q).square().sum()
    assert all((w - f * scale * q).square().sum() > best for f in (0.98, 1.02))


@BITS
def test_weights_of_zero_do_not_give_nan(bits: int) -> None:
    w = torch.zeros((2, 3), requires_grad=True)
    integers = dorefa_integers(w, bits, per_channel=True)
    assert (integers.abs() == 1).all()  # there is no zero level
    integers.sum().backward()
    scale = least_squares_scale(w, integers, True)
    assert math.isfinite(w.grad.sum().item()) and (scale > 0).all() and (scale < 1e-6).all()
