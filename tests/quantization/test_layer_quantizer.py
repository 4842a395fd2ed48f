"""Layers seen through quantizers: levels, frozen ranges, gradients; numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from qpd.quantization.layer_quantizer import (
    AffineGrid,
    LayerQuantizer,
    LayerScheme,
    Range,
    attach,
    attach_frozen,
)
from qpd.quantization.weight_quantizer import GRANULARITIES, Granularity, WeightQuantizer

torch.set_num_threads(1)


def one(low: float, high: float) -> Range:
    return Range(torch.tensor([low]), torch.tensor([high]))


def test_levels_by_hand() -> None:
    # 2 bits from -1 to 2: steps of 1, 0 at level 1; beyond the range the last level.
    grid = AffineGrid.of(one(-1.0, 2.0), 2)
    values = torch.tensor([-5.0, -1.0, -0.4, 0.0, 0.6, 1.4, 9.0])
    found = grid.quantized(values)
    assert found.tolist() == [-1.0, -1.0, 0.0, 0.0, 1.0, 1.0, 2.0]


def test_a_range_is_stretched_to_hold_zero() -> None:
    # 3 to 7 becomes 0 to 7: 3 bits are whole numbers.
    grid = AffineGrid.of(one(3.0, 7.0), 3)
    assert (float(grid.step[0]), int(grid.zero[0])) == (1.0, 0)
    assert grid.quantized(torch.tensor([0.0, 3.3])).tolist() == [0.0, 3.0]


def test_gradients_pass_within_the_range_or_everywhere() -> None:
    grid = AffineGrid.of(one(-1.0, 2.0), 2)
    for gradient, expected in (("clipped", [0.0, 1.0, 0.0]), ("identity", [1.0, 1.0, 1.0])):
        values = torch.tensor([-5.0, 0.3, 9.0], requires_grad=True)
        grid.quantized(values, gradient).sum().backward()  # type: ignore[arg-type]
        assert values.grad is not None and values.grad.tolist() == expected


@given(
    st.integers(2, 8),
    st.sampled_from(GRANULARITIES),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(0, 2**31),
)
def test_weights_have_few_levels_and_are_near(
    bits: int, per: Granularity, outputs: int, inputs: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator)
    quantizer = LayerQuantizer("linear1", bits, per=per, columns=inputs, input_kind="bytes")
    quantizer.fix(weight)
    found = quantizer.quantized_weight(weight)
    axis = {"tensor": None, "channel": 1, "column": 0}[per]
    width = weight.amax(axis or 0, True) if axis is not None else weight.max()
    least = weight.amin(axis, True) if axis is not None else weight.min()
    step = (width.clamp(min=0) - least.clamp(max=0)) / (2**bits - 1)
    assert bool(((found - weight).abs() <= 0.5 * step * (1 + 1e-5) + 1e-7).all())
    groups = {"tensor": [found], "channel": list(found), "column": list(found.T)}[per]
    assert all(len(np.unique(group.numpy())) <= 2**bits for group in groups)
    assert float(quantizer.quantized_weight(torch.zeros_like(weight)).abs().max()) == 0.0
    # The same numbers as of an agent that is quantized after its training.
    after = WeightQuantizer("affine", bits, per).quantized(weight, columns=inputs)
    assert found.numpy() == pytest.approx(after.numpy(), abs=1e-5)


def test_a_linear_layer_behind_convolutions_has_a_range_for_each_channel() -> None:
    weight = torch.tensor([[1.0, -1.0, 10.0, 30.0], [0.5, 0.2, -20.0, 0.0]])
    quantizer = LayerQuantizer("linear1", 4, columns=2)
    quantizer.inputs = one(0.0, 1.0)
    quantizer.fix(weight)
    assert quantizer.weights is not None
    assert quantizer.weights.low.tolist() == [-1.0, -20.0]
    assert quantizer.weights.high.tolist() == [1.0, 30.0]
    found = quantizer.quantized_weight(weight)
    assert float((found[:, :2] - weight[:, :2]).abs().max()) <= 1 / 15 + 1e-6
    assert float((found[:, 2:] - weight[:, 2:]).abs().max()) <= 25 / 15 + 1e-6


def test_ranges_are_watched_while_learning_then_fixed() -> None:
    layer = nn.Linear(2, 3)
    plain = nn.Linear(2, 3)
    plain.load_state_dict(layer.state_dict())
    quantizer = LayerQuantizer("linear1", 8, columns=2)
    attach([layer], [quantizer])
    seen = torch.tensor([[0.5, -2.0], [3.0, 1.0]])
    with torch.no_grad():
        layer(100.0 * seen)  # acting is not watched
    assert not quantizer.has_watched
    assert torch.equal(layer(seen), plain(seen))
    assert quantizer.inputs is not None
    assert (quantizer.inputs.low.tolist(), quantizer.inputs.high.tolist()) == ([-2.0], [3.0])
    quantizer.fix(layer.weight)
    assert not torch.equal(layer(seen), plain(seen))
    layer(100.0 * seen)  # nothing widens any more
    assert quantizer.inputs.high.tolist() == [3.0]
    assert layer.state_dict().keys() == plain.state_dict().keys()


def test_a_frozen_layer_plays_as_the_one_that_learned() -> None:
    torch.manual_seed(0)
    for layer, inputs in (
        (nn.Linear(5, 4), torch.randn(7, 5)),
        (nn.Conv2d(3, 4, 3, 2), torch.rand(2, 3, 9, 9)),
    ):
        quantizer = LayerQuantizer("layer", 3, columns=layer.weight.shape[1])
        attach([layer], [quantizer])
        layer(inputs)
        quantizer.fix(layer.weight)
        learned = layer(inputs).detach()
        attach_frozen([layer], [quantizer])
        assert torch.equal(layer(inputs), learned)
        assert len(np.unique(layer.weight[:, 0].numpy())) <= 8


def test_features_have_a_byte_each_whatever_their_size() -> None:
    quantizer = LayerQuantizer("linear1", 2, columns=3, input_kind="features")
    # The third never moves.
    quantizer.watch(torch.tensor([[-1e-3, 100.0, 7.0], [1e-3, 101.0, 7.0]]))
    quantizer.fix(torch.ones(1, 3))
    seen = torch.tensor([[0.5e-3, 100.3, 7.0]])
    found = quantizer.quantized_inputs(seen)
    # A byte over the range and a margin of a twentieth on either side: half a step at most.
    allowed = torch.tensor([[1.1 * 2e-3 / 510, 1.1 / 510, 1e-4]])
    assert bool(((found - seen).abs() <= 1.01 * allowed).all())


def test_columns_share_a_channels_scale_on_the_grid_of_integers() -> None:
    # As `test_the_scale_by_hand` of DoReFa: rows (3, 1) and (0.3, -0.1) are restored exactly.
    quantizer = LayerQuantizer(
        "linear2", 2, per="column", columns=2, input_kind="bytes", scheme="dorefa_scaled"
    )
    weight = torch.tensor([[3.0, 1.0], [0.3, -0.1]])
    quantizer.fix(weight)
    assert quantizer.per == "channel" and quantizer.weights is not None
    torch.testing.assert_close(quantizer.weights.high, torch.tensor([3.0, 0.3]))
    torch.testing.assert_close(quantizer.quantized_weight(weight), weight)


@pytest.mark.parametrize("scheme", ["affine", "dorefa_scaled"])
def test_a_category_that_comes_later_is_seen(scheme: LayerScheme) -> None:
    """One-hot: the last one was not met while ranges were watched."""
    quantizer = LayerQuantizer("linear1", 8, columns=4, scheme=scheme, input_kind="features")
    quantizer.watch(torch.eye(4)[[0, 1, 2, 0]])
    quantizer.fix(torch.ones(2, 4))
    seen = quantizer.quantized_inputs(torch.eye(4))
    assert (seen - torch.eye(4)).abs().max() < 0.01
