"""Training's simulation, the integer engine and plain NumPy integers are the same student."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qpd.actions import Discrete
from qpd.integer.integer_student import (
    IntegerEngine,
    IntegerLayer,
    IntegerStudent,
    WideLayerError,
    bias_room,
    fixed_point,
    integer_student,
    reference_outputs,
)
from qpd.quantization.calibration import calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, StudentArchitecture, architecture_for

torch.set_num_threads(1)

SCHEMES = {
    "per channel": {"scheme": "dorefa_scaled"},
    "per layer": {"scheme": "dorefa_scaled", "per_channel": False},
    "literal": {"scheme": "dorefa"},
    "narrow": {"scheme": "narrow"},
}
EVERY_STUDENT = pytest.mark.parametrize(
    ("size", "bits", "scheme"), list(itertools.product(["XXS", "mlp-32-16"], [2, 3, 4, 8], SCHEMES))
)


def frames(batch: int, seed: int = 3) -> np.ndarray:
    """Frames that are mostly black, as Atari's are."""
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, 256, (batch, 4, 84, 84), dtype=np.uint8)
    return levels * (rng.random(levels.shape) < 0.2)


def vectors(batch: int, seed: int = 3, spread: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (spread * rng.uniform(-1.0, 1.0, (batch, 6))).astype(np.float32)


def observations(size: str, batch: int, seed: int = 3) -> np.ndarray:
    return vectors(batch, seed) if size.startswith("mlp") else frames(batch, seed)


def simulated(size: str, bits: int, scheme: str, seed: int = 0) -> QuantizedStudent:
    """A calibrated student of generic weights and biases, `bits` wide throughout."""
    shape = (6,) if size.startswith("mlp") else (4, 84, 84)
    student = Student(architecture_for(size, shape, 4), seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        student.actor.weight.copy_(torch.randn(student.actor.weight.shape, generator=generator))
    if size.startswith("mlp"):
        student.set_input_range(-torch.ones(6), torch.ones(6))
    config = QuantizationConfig(weight_bits=bits, activation_bits=bits, **SCHEMES[scheme])
    simulation = QuantizedStudent(student, config)
    calibrate(simulation, torch.from_numpy(observations(size, 8, seed=4)))
    return simulation


@EVERY_STUDENT
def test_engine_equals_numpy_integers_bit_for_bit(size: str, bits: int, scheme: str) -> None:
    student = integer_student(simulated(size, bits, scheme), Discrete(4))
    inputs = observations(size, 3)
    logits = IntegerEngine(student).integer_outputs(inputs)
    assert logits.dtype == np.int32 and logits.shape == (3, 4)
    np.testing.assert_array_equal(logits, reference_outputs(student, inputs))
    assert len(np.unique(logits)) > 4
    for layer in student.layers:
        top = 2**bits - 1
        assert layer.levels == top and (np.abs(layer.weight) <= top).all()
        assert (layer.weight % 2 == (scheme != "narrow")).all()


def round_biases(simulation: QuantizedStudent) -> None:
    """Make every bias a whole number of accumulator units, as the integer student's are."""
    step: torch.Tensor | float = 1 / 255
    with torch.no_grad():
        for position, shape in enumerate(simulation.student.shapes):
            unit = simulation.integer_weight(position)[1] * step
            bias = simulation.student.layer(shape.name).bias
            bias.copy_((bias / unit).round() * unit)
            if shape.name != "actor":
                top = simulation.config.activation_levels
                step = simulation.activation_ranges[position] / top


def assert_engine_equals_simulation(simulation: QuantizedStudent, inputs: np.ndarray) -> None:
    """The same logits, within a thousandth of their spread, and the same actions, in 9 of 10 rows.

    What is left between them is the rounding of float32 (2^-24) and of the multiplier (2^-31):
    some 1e-7 of the spread. Where a sum lies that close to a tie, a level falls the other way,
    which at 2 bits is a third of the range: 1 in 10^6 of an image's 6,400 activations.
    """
    with torch.no_grad():
        expected = simulation(torch.from_numpy(inputs)).actor.numpy()
    logits = IntegerEngine(integer_student(simulation, Discrete(4)))(inputs)
    assert expected.std() > 0
    same = np.abs(logits - expected).max(1) < 1e-3 * expected.std()
    assert same.mean() >= 0.9
    assert (logits.argmax(1) == expected.argmax(1)).mean() >= 0.9


@EVERY_STUDENT
def test_engine_equals_the_training_simulation(size: str, bits: int, scheme: str) -> None:
    simulation = simulated(size, bits, scheme)
    round_biases(simulation)
    assert_engine_equals_simulation(simulation, observations(size, 32))


@pytest.mark.parametrize(("size", "bits"), [("XXS", 2), ("XXS", 4), ("XXS", 8), ("mlp-32-16", 2)])
def test_engine_equals_the_simulation_whatever_the_biases(size: str, bits: int) -> None:
    assert_engine_equals_simulation(simulated(size, bits, "per channel"), observations(size, 32))


@pytest.mark.parametrize("size", ["XXS", "mlp-32-16"])
@pytest.mark.parametrize("bits", [2, 8])
def test_inputs_beyond_the_calibrated_ranges(size: str, bits: int) -> None:
    simulation = simulated(size, bits, "per channel")
    with torch.no_grad():  # as if every activation had doubled twice
        simulation.activation_ranges.mul_(0.25)
        bound, _ = simulation.hidden_levels(torch.from_numpy(observations(size, 32)))
    assert (bound == 2**bits - 1).float().mean() > 0.05  # the ranges do overflow
    round_biases(simulation)
    assert_engine_equals_simulation(simulation, observations(size, 32))
    student = integer_student(simulation, Discrete(4))
    np.testing.assert_array_equal(
        IntegerEngine(student).integer_outputs(observations(size, 3)),
        reference_outputs(student, observations(size, 3)),
    )


def test_doubled_vector_observations_are_clipped_alike() -> None:
    simulation = simulated("mlp-32-16", 8, "per channel")
    round_biases(simulation)
    doubled = vectors(64, spread=2.0)
    student = integer_student(simulation, Discrete(4))
    levels = student.encode(doubled)
    assert levels.dtype == np.uint8 and (levels == 0).any() and (levels == 255).any()
    with torch.no_grad():
        np.testing.assert_array_equal(simulation.input_levels(torch.from_numpy(doubled)), levels)
    assert_engine_equals_simulation(simulation, doubled)
    np.testing.assert_array_equal(
        IntegerEngine(student).integer_outputs(doubled), reference_outputs(student, doubled)
    )


def test_five_convolutions() -> None:
    architecture = StudentArchitecture((4, 84, 84), 4, (8, 8, 12, 16, 24), (16,))
    student = Student(architecture, 2)
    with torch.no_grad():
        student.actor.weight.mul_(100.0)  # a fresh actor is nearly 0
    simulation = QuantizedStudent(student, QuantizationConfig(weight_bits=4, activation_bits=4))
    calibrate(simulation, torch.from_numpy(frames(8, seed=4)))
    round_biases(simulation)
    assert_engine_equals_simulation(simulation, frames(32))


def test_blocked_frames_and_bit_widths_per_layer() -> None:
    student = Student(architecture_for("XXS", (4, 84, 84), 4), 1)
    config = QuantizationConfig(weight_bits=4, first_layer_bits=8, last_layer_bits=6)
    simulation = QuantizedStudent(student, config)
    calibrate(simulation, torch.from_numpy(frames(4)))
    integers = integer_student(simulation, Discrete(4))
    assert [layer.bits for layer in integers.layers] == [8, 4, 4, 4, 6]
    np.testing.assert_array_equal(
        IntegerEngine(integers).integer_outputs(frames(2)), reference_outputs(integers, frames(2))
    )


def test_folding_a_temperature_into_the_head_keeps_its_sharpness() -> None:
    student = simulated("XXS", 8, "per channel").student
    logits = []
    for factor in (1.0, 3.0):
        student.scale_outputs(factor)
        simulation = QuantizedStudent(student, QuantizationConfig())
        calibrate(simulation, torch.from_numpy(frames(8)))
        logits.append(IntegerEngine(integer_student(simulation, Discrete(4)))(frames(8)))
    np.testing.assert_allclose(logits[1], 3.0 * logits[0], rtol=1e-4, atol=1e-4)


def tiny(
    weight: list[list[int]], bias: list[int], head: list[list[int]], gain: list[float], levels: int
) -> IntegerStudent:
    """One hidden layer over inputs in [0, 255], where a level is the input itself."""
    first, second = np.array(weight, np.int16), np.array(head, np.int16)
    width, features = first.shape
    architecture = StudentArchitecture((features,), len(second), (), (width,))
    shapes = architecture.layer_shapes()
    multiplier, shift = fixed_point(np.array(gain))
    low, high = np.zeros(features, np.float32), np.full(features, 255, np.float32)
    hidden = IntegerLayer(shapes[0], 8, first, np.array(bias, np.int32), multiplier, shift, levels)
    zero = np.zeros(len(second), np.int32)
    actor = IntegerLayer(shapes[1], 8, second, zero, None, None, levels)
    return IntegerStudent(architecture, (hidden, actor), 0.5, low, high)


def test_a_network_by_hand() -> None:
    # acc = (3 x + 1, -x, x): times (1/2, 1, 1/4), half up, clipped to 0..15.
    # x = 1: (4 / 2, -1, 1/4) -> (2, 0, 0); x = 2: (3.5, -2, 0.5) -> (4, 0, 1);
    # x = 4: (6.5, -4, 1) -> (7, 0, 1), where rounding to even would give 6; x = 40: (15, 0, 10).
    # Logits (a + 3 c, -5 a + b).
    student = tiny([[3], [-1], [1]], [1, 0, 0], [[1, 3, 3], [-5, 1, 1]], [0.5, 1.0, 0.25], 15)
    inputs = np.array([[1], [2], [4], [40]], np.float32)
    expected = [[2, -10], [7, -19], [10, -34], [45, -65]]
    assert IntegerEngine(student).integer_outputs(inputs).tolist() == expected
    assert reference_outputs(student, inputs).tolist() == expected
    assert IntegerEngine(student)(inputs).tolist() == [[a / 2, b / 2] for a, b in expected]


def test_accumulators_beyond_float32() -> None:
    # 601 saturated levels of 255 times odd weights near 255: an odd sum near 39 million, which
    # float32 (24 bits) cannot hold. The hidden layer's own sums are small.
    width = 601
    head = [[255] * width, [253] * (width - 1) + [255]]
    student = tiny([[255]] * width, [0] * width, head, [1.0] * width, 255)
    inputs = np.array([[255.0]], np.float32)
    exact = [255 * sum(row) for row in head]
    assert all(value > 2**24 and int(np.float32(value)) != value for value in exact)
    assert student.layers[1].largest_accumulator == max(exact)
    assert IntegerEngine(student).integer_outputs(inputs).tolist() == [exact]
    assert reference_outputs(student, inputs).tolist() == [exact]


def test_biases_beyond_int32_are_clipped_to_what_it_holds() -> None:
    """A unit that is at an end of its range whatever its inputs; of the head it is an error."""
    simulation = simulated("mlp-32-16", 8, "per channel")
    with torch.no_grad():
        simulation.student.layer("linear1").bias[:2] = torch.tensor([1e9, -1e9])
    student = integer_student(simulation, Discrete(4))
    assert all(part.largest_accumulator <= 2**31 - 1 for part in student.layers)
    changed = student.layers[0]
    assert changed.bias[0] > 2**30 and changed.bias[1] < -(2**30)
    logits = IntegerEngine(student).integer_outputs(vectors(32))
    np.testing.assert_array_equal(logits, reference_outputs(student, vectors(32)))


def test_a_layer_that_overflows_int32_without_any_bias_is_refused() -> None:
    """Of 40,000 inputs of 255 times weights of 255; a bias clipped to no room would be garbage."""
    with pytest.raises(WideLayerError, match="layer linear1: its 40,000 inputs may overflow"):
        bias_room("linear1", np.full((2, 40_000), 255, np.int16))
    assert bias_room("linear1", np.full((1, 4), -255, np.int16)) == [2**31 - 1 - 4 * 255**2]


def test_a_channel_without_weights_still_has_its_bias() -> None:
    # Weight decay may empty a channel; the simulation plays on with its bias.
    simulation = simulated("mlp-32-16", 8, "per channel")
    student = simulation.student
    with torch.no_grad():
        student.layer("linear1").weight[3] = 0.0
        student.layer("linear1").bias[3] = 0.2
        simulation = QuantizedStudent(student, simulation.config)
        calibrate(simulation, torch.from_numpy(vectors(8, seed=4)))
        expected = simulation(torch.from_numpy(vectors(32))).actor.numpy()
    logits = IntegerEngine(integer_student(simulation, Discrete(4)))(vectors(32))
    assert np.abs(logits - expected).max() < 0.01 * expected.std()


@given(st.lists(st.floats(2.0**-31, 2.0**29), min_size=1, max_size=8))
def test_fixed_point_is_close_to_the_gain(gains: list[float]) -> None:
    multiplier, shift = fixed_point(np.array(gains))
    assert multiplier.dtype == shift.dtype == np.int32
    assert (multiplier >= 2**30).all() and (1 <= shift).all() and (shift <= 62).all()
    restored = multiplier.astype(np.float64) * 2.0 ** -shift.astype(np.float64)
    assert np.abs(restored / np.array(gains) - 1).max() <= 2.0**-31


@given(acc=st.integers(-(2**31) + 1, 2**31 - 1), gain=st.floats(1e-6, 8.0))
def test_requantization_is_the_exact_product_rounded(acc: int, gain: float) -> None:
    # In Python's unbounded integers: acc * multiplier must not overflow 64 bits either.
    (multiplier,), (shift,) = fixed_point(np.array([gain]))
    m, s = int(multiplier), int(shift)
    product = acc * m + (1 << (s - 1))
    assert -(2**63) <= product < 2**63
    assert abs((product >> s) - acc * gain) <= 0.5 + abs(acc * gain) * 2.0**-30


def test_fixed_point_of_powers_and_of_a_carry() -> None:
    multiplier, shift = fixed_point(np.array([1.0, 0.5, 0.75, 1 - 2.0**-40]))
    assert multiplier.tolist() == [2**30, 2**30, 3 * 2**29, 2**30]
    assert shift.tolist() == [30, 31, 31, 30]


def test_gains_that_vanish_send_everything_to_zero() -> None:
    multiplier, shift = fixed_point(np.array([1e-300, 2.0**-40]))
    assert multiplier.tolist() == [0, 0] and shift.tolist() == [62, 62]


@pytest.mark.parametrize("gain", [0.0, -1.0, np.inf, np.nan, 2.0**31])
def test_gains_that_fixed_point_refuses(gain: float) -> None:
    with pytest.raises(ValueError, match="gain"):
        fixed_point(np.array([1.0, gain]))


@pytest.mark.parametrize("shape", [(3, 64, 48), (1, 84, 84), (12, 40, 40)])
def test_images_of_any_size_are_exact(shape: tuple[int, ...]) -> None:
    """Not Atari's frames, which have a layout of their own: RGB, one frame, more of them."""
    student = Student(StudentArchitecture(shape, 3, (8, 5, 8), (16,)), 1)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, *shape), dtype=torch.uint8, generator=generator)
    simulation = QuantizedStudent(student, QuantizationConfig(weight_bits=4))
    calibrate(simulation, images)
    integers = integer_student(simulation, Discrete(3))
    outputs = IntegerEngine(integers).integer_outputs(images.numpy())
    np.testing.assert_array_equal(outputs, reference_outputs(integers, images.numpy()))
    with torch.no_grad():
        expected = simulation(images).actor.numpy()
    assert len(np.unique(outputs)) > 6
    # A gain in float32 may round a level to its neighbour.
    atol = 0.02 * float(np.abs(expected).max())
    np.testing.assert_allclose(IntegerEngine(integers)(images.numpy()), expected, atol=atol)


@pytest.mark.parametrize("name", ["linear1", "actor"])
def test_biases_of_weights_that_are_all_zero_are_not_clipped(name: str) -> None:
    student = Student(architecture_for("mlp-16", (4,), 2), 0)
    with torch.no_grad():
        student.layer(name).weight.zero_()
        student.bias(name).copy_(torch.linspace(-0.4, 0.3, len(student.bias(name))))
        simulation = QuantizedStudent(student, QuantizationConfig())
        calibrate(simulation, torch.from_numpy(vectors(8, seed=4)[:, :4]))
        seen = vectors(32)[:, :4]
        expected = simulation(torch.from_numpy(seen)).actor.numpy()
    logits = IntegerEngine(integer_student(simulation, Discrete(2)))(seen)
    assert np.abs(logits - expected).max() < 0.01 * np.abs(expected).max()


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of the flags' other setting
def test_engine_is_exact_without_onednn() -> None:
    """Without it PyTorch has NNPACK multiply, of 16 images or more."""
    student = integer_student(simulated("XXS", 8, "per channel"), Discrete(4))
    seen = frames(16)
    with torch.backends.mkldnn.flags(enabled=False):
        got = IntegerEngine(student).integer_outputs(seen)
    assert (got == reference_outputs(student, seen)).all()
