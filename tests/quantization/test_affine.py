"""Affine quantization: the formulas of QuaRL by hand, and what must hold of any weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from qpd.quantization.affine import affine_rows, affine_values, literal_affine_rows
from qpd.quantization.weight_quantizer import (
    GRANULARITIES,
    INTEGER_SCHEMES,
    HalfRangeError,
    WeightQuantizer,
)

matrices = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=12),
    elements=st.floats(-100, 100, width=32),
).map(torch.from_numpy)
few_bits = st.integers(2, 8)


def test_the_literal_form_by_hand() -> None:
    """d = (1 + 3) / 4 = 1, z = floor(1 / 1) = 1; floor(W / d) + z of each weight, and back."""
    found = literal_affine_rows(torch.tensor([[-1.0, -0.5, 0.0, 0.7, 2.5, 3.0]]), 2)
    # 3 is a whole number of steps, and so is -1: the one case with a level 2^n.
    assert found.levels.tolist() == [[0, 0, 1, 1, 3, 4]]
    assert found.restored().tolist() == [[-1, -1, 0, 0, 2, 3]]


def test_the_literal_form_has_a_level_below_zero() -> None:
    """d = (0.75 + 1.25) / 4 = 0.5, z = floor(1.5) = 1, and floor(-0.75 / 0.5) + 1 = -1."""
    found = literal_affine_rows(torch.tensor([[-0.75, 1.25]]), 2)
    assert found.levels.tolist() == [[-1, 3]]
    assert found.restored().tolist() == [[-1.0, 1.0]]


def test_the_corrected_form_by_hand() -> None:
    """d = (1 + 2) / 3 = 1, z = 1: the nearest of -1, 0, 1, 2."""
    found = affine_rows(torch.tensor([[-1.0, -0.6, -0.4, 0.7, 1.4, 2.0]]), 2)
    assert found.restored().tolist() == [[-1, -1, 0, 1, 1, 2]]


@given(matrices, few_bits)
@settings(max_examples=60)
def test_errors_are_at_most_half_a_step(weight: torch.Tensor, bits: int) -> None:
    found = affine_rows(weight, bits)
    error = (found.restored() - weight.double()).abs()
    # Rounding of float64 beside numbers up to 100.
    assert bool((error <= found.step / 2 + 1e-12).all())
    assert found.levels.min() >= 0 and found.levels.max() <= 2**bits - 1


@given(matrices, few_bits)
@settings(max_examples=60)
def test_the_literal_form_errs_by_less_than_a_step_and_downwards(
    weight: torch.Tensor, bits: int
) -> None:
    found = literal_affine_rows(weight, bits)
    error = weight.double() - found.restored()
    assert bool((error >= -1e-12).all()) and bool((error <= found.step + 1e-12).all())


@given(matrices, few_bits, st.sampled_from(INTEGER_SCHEMES), st.sampled_from(GRANULARITIES))
@settings(max_examples=100)
def test_levels_are_few_and_zero_is_exact(
    weight: torch.Tensor, bits: int, scheme: str, per: str
) -> None:
    weight[0, 0] = 0.0
    quantizer = WeightQuantizer(scheme, bits, per)  # type: ignore[arg-type]
    found = quantizer.quantized(weight, columns=weight.shape[1])
    groups = {"tensor": [found], "channel": list(found), "column": list(found.T)}[per]
    most = 2**bits + (scheme == "affine-literal")
    assert max(len(group.unique()) for group in groups) <= most
    if scheme != "dorefa_scaled":  # whose odd integers have no 0
        assert found[0, 0] == 0.0


@given(matrices)
def test_fp16_is_numpys_cast(weight: torch.Tensor) -> None:
    found = WeightQuantizer("fp16").quantized(weight, columns=weight.shape[1])
    assert np.array_equal(found.numpy(), weight.numpy().astype(np.float16).astype(np.float32))


def test_fp16_refuses_what_it_does_not_hold() -> None:
    with pytest.raises(HalfRangeError, match="65,504"):
        WeightQuantizer("fp16").quantized(torch.tensor([[70_000.0]]), columns=1)


def test_a_convolution_has_its_channels_on_axis_0() -> None:
    """A channel of tiny weights keeps them where it has a range of its own, and only there."""
    weight = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    weight[1] *= 1e-4
    own = WeightQuantizer("affine", 8, "channel").quantized(weight, columns=3)
    assert torch.allclose(own[1], weight[1], rtol=0, atol=1e-4 / 255 / 2)
    assert WeightQuantizer("affine", 8, "tensor").quantized(weight, columns=3)[1].eq(0).all()


def test_columns_behind_convolutions_are_channels() -> None:
    """Two channels of three positions each: six inputs, two ranges."""
    weight = torch.tensor([[1.0, 2.0, 3.0, 0.01, 0.02, 0.03]])
    quantizer = WeightQuantizer("affine", 2, "column")
    assert torch.allclose(quantizer.quantized(weight, columns=2), weight)
    assert quantizer.num_groups(weight, columns=2) == 2
    assert quantizer.num_bytes(weight, columns=2) == 2 + 2 * 5


def test_q_values_keep_one_scale() -> None:
    """Rows that are compared with each other share a range, whatever the granularity."""
    weight = torch.tensor([[1.0, 0.5], [100.0, 50.0]])
    heads = WeightQuantizer("affine", 4, "channel"), WeightQuantizer("affine", 4, "tensor")
    first, second = (h.quantized(weight, columns=2, one_scale=True) for h in heads)
    assert torch.equal(first, second)
    assert not torch.equal(first, heads[0].quantized(weight, columns=2))


def test_bits_out_of_range() -> None:
    with pytest.raises(ValueError, match="9 bits: expected 2 to 8, or fp16"):
        WeightQuantizer("affine", 9)


def test_values_of_a_fixed_range_by_hand() -> None:
    # 2 bits from -1 to 2: steps of 1, level 0 at -1; what is beyond is clipped.
    values = torch.tensor([-9.0, -1.0, -0.4, 0.0, 0.6, 1.4, 9.0])
    assert affine_values(values.clone(), -1.0, 2.0, 2).tolist() == [-1, -1, 0, 0, 1, 1, 2]
    # The range 3 to 7 is stretched to hold 0: 3 bits are whole numbers up to 7.
    assert affine_values(torch.tensor([-2.0, 3.3, 8.0]), 3.0, 7.0, 3).tolist() == [0, 3, 7]
