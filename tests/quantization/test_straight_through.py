"""Rounding and requantization with straight-through gradients, against plain autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qpd.quantization.straight_through import quantize_activations, round_straight_through

torch.set_num_threads(1)

SHAPES = pytest.mark.parametrize("shape", [(64, 5), (6, 5, 4, 3)])


def test_rounding_to_even_and_a_gradient_of_one() -> None:
    x = torch.tensor([-1.5, -0.5, 0.4, 0.5, 1.5, 2.5, 7.9], requires_grad=True)
    y = round_straight_through(x)
    assert y.tolist() == [-2, 0, 0, 0, 2, 2, 8]
    (y * torch.arange(7.0)).sum().backward()
    assert x.grad.tolist() == [0, 1, 2, 3, 4, 5, 6]


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30))
def test_rounding_twice_is_rounding_once_and_errs_by_half_at_most(values: list[float]) -> None:
    x = torch.tensor(values)
    once = round_straight_through(x)
    assert torch.equal(round_straight_through(once), once)
    assert (once - x).abs().max() <= 0.5


def reference(acc: Tensor, gain: Tensor, offset: Tensor, levels: int) -> Tensor:
    """Compute `quantize_activations` by hand: scale, clamp, round with the gradient passed on."""
    view = (1, -1) + (1,) * (acc.dim() - 2)
    clamped = (acc * gain.view(view) + offset.view(view)).clamp(0, levels)
    return clamped + ((clamped + 0.5).floor() - clamped).detach()


def inputs(shape: tuple[int, ...], factor: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Accumulators (channels last), gains and offsets: about half the results inside [0, 255]."""
    generator = torch.Generator().manual_seed(0)
    acc = factor * torch.randn(shape, generator=generator).mul(2e4).round()
    if acc.dim() == 4:
        acc = acc.contiguous(memory_format=torch.channels_last)
    gain = torch.rand(shape[1], generator=generator) * 0.01 + 0.005
    offset = torch.randn(shape[1], generator=generator) * 30
    return acc.requires_grad_(), gain.requires_grad_(), offset.requires_grad_()


@SHAPES
@pytest.mark.parametrize("levels", [3, 15, 255])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])  # 2.0: doubled inputs overflow the range
def test_values_and_gradients_equal_plain_autograd(
    shape: tuple[int, ...], levels: int, factor: float
) -> None:
    results = []
    for function in (quantize_activations, reference):
        tensors = inputs(shape, factor)
        out = function(*tensors, levels)
        weights = torch.linspace(-1, 1, out.numel()).view(shape)
        (out * weights).sum().backward()
        results.append((out.detach(), *(tensor.grad for tensor in tensors)))
    (out, *gradients), (expected, *expected_gradients) = results
    share_above = (expected == levels).float().mean()
    assert (expected == 0).any() and share_above > (0.1 if factor == 2.0 else 0.005)
    # A tie may round either way where addcmul rounds once and the reference twice.
    different = out != expected
    assert different.float().mean() < 0.01 and (out - expected).abs().max() <= 1
    assert torch.equal(out, out.round()) and out.min() >= 0 and out.max() <= levels
    for name, gradient, wanted in zip(
        ("acc", "gain", "offset"), gradients, expected_gradients, strict=True
    ):
        assert gradient is not None and wanted.abs().max() > 0, name
        scale = wanted.abs().max().item()
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5 * scale, msg=name)


def test_values_and_gradients_by_hand() -> None:
    # acc * 0.5 + 1 = (-1, 2.5, 3, 6) with levels 0..4: below, inside (half up), inside, above.
    acc = torch.tensor([[-4.0], [3.0], [4.0], [10.0]], requires_grad=True)
    gain, offset = torch.tensor([0.5], requires_grad=True), torch.tensor([1.0], requires_grad=True)
    out = quantize_activations(acc, gain, offset, 4)
    assert out.flatten().tolist() == [0, 3, 3, 4]
    (out.flatten() * torch.tensor([1.0, 10.0, 100.0, 1000.0])).sum().backward()
    assert acc.grad.flatten().tolist() == [0, 5, 50, 0]
    assert gain.grad.tolist() == [10 * 3 + 100 * 4]
    assert offset.grad.tolist() == [110]


def test_the_ends_of_the_range_are_inside() -> None:
    acc = torch.tensor([[0.0], [255.0]], requires_grad=True)
    quantize_activations(acc, torch.ones(1), torch.zeros(1), 255).sum().backward()
    assert acc.grad.flatten().tolist() == [1, 1]


def test_gradients_reach_only_what_asks_for_them() -> None:
    acc, gain, offset = inputs((8, 3))
    quantize_activations(acc, gain.detach(), offset.detach(), 15).sum().backward()
    expected_acc, *_ = inputs((8, 3))
    reference(expected_acc, gain.detach(), offset.detach(), 15).sum().backward()
    torch.testing.assert_close(acc.grad, expected_acc.grad)
    assert gain.grad is None and offset.grad is None


@SHAPES
def test_bfloat16_levels_are_exact_integers(shape: tuple[int, ...]) -> None:
    acc, gain, offset = inputs(shape)
    out = quantize_activations(acc.detach().bfloat16(), gain, offset, 255)
    assert out.dtype == torch.bfloat16
    exact = reference(acc, gain, offset, 255)
    # acc, gain, offset and their sum keep 8 bits: 4 errors of 2^-9 of at most |acc gain| < 1500.
    assert (out.float() - exact).abs().max() <= 1 + 4 * 1500 / 512
    out.sum().backward()
    assert gain.grad.dtype == offset.grad.dtype == torch.float32
