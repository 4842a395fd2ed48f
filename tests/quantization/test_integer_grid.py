"""Integers times a scale: hand-computed values and gradients, and properties."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.rounded_arithmetic import RoundedArithmetic
from qpd.quantization.controller_layer import (
    WARM_UP,
    ControllerBits,
    ControllerQuantizers,
    LearnedScale,
    attach_frozen_controller,
)
from qpd.quantization.integer_grid import (
    LEAST_SCALE,
    quantize,
    quantize_weights,
    signed_grid,
    unsigned_grid,
    weight_grid,
)

# Weights whose largest magnitude is 1, so that levels are round(w * q).
_W = [-1.0, -0.6, -0.4, -0.1, 0.2, 0.3, 0.7, 1.0]


@pytest.mark.parametrize(
    ("kind", "bits", "levels", "reach"),
    [
        ("narrow", 2, [-1, -1, 0, 0, 0, 0, 1, 1], 1),
        # q = 2: w * 2 = -2, -1.2, -0.8, -0.2, 0.4, 0.6, 1.4, 2; the largest level is 1.
        ("full", 2, [-2, -1, -1, 0, 0, 1, 1, 1], 2),
        # q = 3, odd integers: w * 3 = -3, -1.8, -1.2, -0.3, 0.6, 0.9, 2.1, 3.
        ("odd", 2, [-3, -1, -1, -1, 1, 1, 3, 3], 3),
        # q = 3: -3, -1.8, -1.2, -0.3, 0.6, 0.9, 2.1, 3.
        ("narrow", 3, [-3, -2, -1, 0, 1, 1, 2, 3], 3),
        # q = 4: -4, -2.4, -1.6, -0.4, 0.8, 1.2, 2.8, 4.
        ("full", 3, [-4, -2, -2, 0, 1, 1, 3, 3], 4),
        # q = 7: -7, -4.2, -2.8, -0.7, 1.4, 2.1, 4.9, 7.
        ("odd", 3, [-7, -5, -3, -1, 1, 3, 5, 7], 7),
        # q = 127: -127, -76.2, -50.8, -12.7, 25.4, 38.1, 88.9, 127.
        ("narrow", 8, [-127, -76, -51, -13, 25, 38, 89, 127], 127),
        # q = 128: -128, -76.8, -51.2, -12.8, 25.6, 38.4, 89.6, 128.
        ("full", 8, [-128, -77, -51, -13, 26, 38, 90, 127], 128),
        # q = 255: -255, -153, -102, -25.5, 51, 76.5, 178.5, 255; 102 lies between 101 and 103, and
        # (-102 - 1) / 2 = -51.5 goes to the even -52: -103.
        ("odd", 8, [-255, -153, -103, -25, 51, 77, 179, 255], 255),
    ],
)
def test_weights_by_hand(kind, bits, levels, reach):
    found = quantize_weights(torch.tensor(_W, dtype=torch.float64), weight_grid(kind, bits))
    assert (found * reach).tolist() == pytest.approx(levels)


def test_inputs_and_activations_by_hand():
    x = torch.tensor([-9.0, -1.0, 0.4, 1.3, 9.0])
    # 3 bits, signed, scale 2: q = 4, step 0.5, levels -4 to 3.
    assert quantize(x, torch.tensor(2.0), signed_grid(3)).tolist() == [-2.0, -1.0, 0.5, 1.5, 1.5]
    # 2 bits, unsigned, scale 3: q = 3, step 1, levels 0 to 3.
    assert quantize(x, torch.tensor(3.0), unsigned_grid(2)).tolist() == [0.0, 0.0, 0.0, 1.0, 3.0]


def test_in_half_precision_a_value_is_rounded_once():
    # 8 bits, scale 3: q = 128. 2.49 q / s = 106.24, in fp16 106.25; 106 * 3 / 128 = 2.484375, which
    # fp16 has. 2.6 q / s = 110.93: 111 * 3 / 128 = 2.6015625. At scale 0.1 a step is 7.8125e-4, and
    # 113 of them 0.08828125, in fp16 0.08825684; 0.1 * (1 / 128) rounded before would give 0.08829.
    with RoundedArithmetic(FloatFormat.parse("fp16")):
        wide = quantize(torch.tensor([2.49, 2.6]), torch.tensor(3.0), signed_grid(8))
        narrow = quantize(torch.tensor([0.0883]), torch.tensor(0.1), signed_grid(8))
    assert wide.tolist() == [2.484375, 2.6015625]
    assert narrow.tolist() == [torch.tensor(113 * 0.1 / 128).half().item()]


def test_gradients_by_hand():
    # 2 bits, unsigned, scale 3: x q / s = x. d/ds is (round(x) - x) / 3 inside, 3 / 3 above, 0 / 3
    # below.
    x = torch.tensor([-1.0, 0.4, 1.3, 9.0], requires_grad=True)
    scale = torch.tensor(3.0, requires_grad=True)
    quantize(x, scale, unsigned_grid(2)).backward(torch.tensor([1.0, 10.0, 100.0, 1000.0]))
    assert x.grad.tolist() == [0.0, 10.0, 100.0, 0.0]
    assert float(scale.grad) == pytest.approx((10 * -0.4 + 100 * -0.3 + 1000 * 3) / 3, rel=1e-6)


def test_the_largest_weight_gets_the_gradient_of_the_scale():
    # 2 bits, narrow, scale |-2| = 2, q = 1: x q / s = 0.25, 0.6, -1; levels 0, 1, -1. The scale's
    # gradient is 1 * (0 - 0.25) + 1 * (1 - 0.6) + 1 * 0 = 0.15, and falls with the weight -2.
    weights = torch.tensor([0.5, 1.2, -2.0], requires_grad=True)
    quantize_weights(weights, weight_grid("narrow", 2)).sum().backward()
    assert weights.grad.tolist() == pytest.approx([1.0, 1.0, 1.0 - 0.15])


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20),
    st.floats(0.125, 50, width=32),
    st.integers(2, 8),
    st.sampled_from(["narrow", "full", "odd"]),
)
def test_values_are_levels_and_levels_stay(numbers, scale, bits, kind):
    x, grid, s = (
        torch.tensor(numbers, dtype=torch.float64),
        weight_grid(kind, bits),
        torch.tensor(scale),
    )
    s = s.double()
    once = quantize(x, s, grid)
    levels = once * grid.reach / s
    assert torch.allclose(levels, levels.round(), atol=1e-9)
    assert levels.round().min() >= grid.least and levels.round().max() <= grid.most
    torch.testing.assert_close(quantize(once, s, grid), once)
    step = s / grid.reach * (2 if grid.is_odd else 1)
    inside = (x >= grid.least * s / grid.reach) & (x <= grid.most * s / grid.reach)
    assert ((once - x).abs()[inside] <= step / 2 + 1e-9).all()


def test_scales_are_averaged_then_learned():
    scale = LearnedScale(unsigned_grid(2), torch.tensor(1.0, requires_grad=True))
    with torch.no_grad():  # acting is not watched, and passes while nothing is known
        assert float(scale.quantized(torch.tensor([0.3]))) == pytest.approx(0.3)
    scale.quantized(torch.tensor([0.0, 4.0]))
    assert (scale.calls, float(scale.value.detach())) == (1, 4.0)
    scale.quantized(torch.tensor([0.0, 14.0]))  # 0.9 * 4 + 0.1 * 14
    assert float(scale.value.detach()) == pytest.approx(5.0)
    for _ in range(WARM_UP - 2):
        scale.quantized(torch.tensor([5.0]))
    scale.quantized(torch.tensor([1000.0])).sum().backward()  # learned now, averaged no longer
    assert float(scale.value.detach()) == pytest.approx(5.0)
    assert float(scale.value.grad) == pytest.approx(1.0)  # clipped: 3 / 3


def test_averages_are_float32_in_whatever_format_one_learns() -> None:
    """e5m2 has 3, 3.5 and 4: a tenth of the way from 4 to 3 would be lost."""
    scale = LearnedScale(unsigned_grid(2), torch.tensor(1.0, requires_grad=True))
    with RoundedArithmetic(FloatFormat.parse("e5m2")):
        for most in (4.0, 3.0):
            scale.quantized(torch.tensor([0.0, most]))
    assert float(scale.value.detach()) == pytest.approx(3.9)


def test_a_controller_that_plays_learns_nothing_of_what_it_sees() -> None:
    layers = [torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]
    quantizers = ControllerQuantizers(ControllerBits(8, 8, 8), "narrow", [1.0] * 3, 250)
    attach_frozen_controller(layers, quantizers)
    layers[0](torch.tensor([[7.0]])).sum().backward()
    assert quantizers.calls == 250 and quantizers.scales.tolist() == [1.0, 1.0, 1.0]


def test_within_half_a_step_of_an_end_nothing_is_clipped() -> None:
    # 2 bits, unsigned, scale 3: a step of 1, levels 0 to 3, so that -0.4 and 3.4 are only rounded.
    x = torch.tensor([-0.6, -0.4, 3.4, 3.6], requires_grad=True)
    scale = torch.tensor(3.0, requires_grad=True)
    quantize(x, scale, unsigned_grid(2)).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 0.0]
    # (0 - -0.4) / 3 and (3 - 3.4) / 3 cancel; 0 / 3 of -0.6 and 3 / 3 of 3.6.
    assert abs(float(scale.grad) - 1.0) < 1e-6


def test_a_scale_leaves_out_one_number_in_a_hundred_thousand() -> None:
    # floor(0.99999 * 200,000 + 1/2) = 199,998 of 200,000.
    scale = LearnedScale(unsigned_grid(2), torch.tensor(1.0, requires_grad=True))
    scale.quantized(-torch.arange(1.0, 200_001.0))
    assert float(scale.value.detach()) == 199_998.0


def test_biases_are_32_bit_integers_by_hand() -> None:
    # Inputs of scale 1 in 2 bits, signed: q = 2; weights in {-1, 0, 1} of scale 1: a step of 1/2.
    quantizers = ControllerQuantizers(ControllerBits(2, 2, 2), "narrow", [1.0, 1.0, 1.0], 300)
    bias = torch.tensor([0.6, -0.8, 1e12, -1e12], dtype=torch.float64, requires_grad=True)
    found = quantizers.bias(bias, 0, torch.tensor(1.0))
    end = (2**31 - 1) / 2
    assert found.tolist() == [0.5, -1.0, end, -end]
    found.sum().backward()
    assert bias.grad.tolist() == [1.0] * 4


def test_weights_that_a_full_grid_clips_learn() -> None:
    # 2 bits, full: q = 2, levels -2 to 1. The weight 1, of the scale 1, asks for 2 and becomes 1/2.
    weights = torch.tensor([1.0, 0.5, -0.5], requires_grad=True)
    found = quantize_weights(weights, weight_grid("full", 2))
    assert found.tolist() == [0.5, 0.5, -0.5]
    found[0].backward()
    # 1 of its own, and (1 - 2) / 2 as the scale.
    assert weights.grad.tolist() == pytest.approx([0.5, 0.0, 0.0])


@pytest.mark.parametrize("kind", ["narrow", "full", "odd"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_weights_that_are_all_zero_stay_finite(kind, bits):
    found = quantize_weights(torch.zeros(2, 2), weight_grid(kind, bits))
    assert torch.isfinite(found).all() and found.abs().max() <= LEAST_SCALE
