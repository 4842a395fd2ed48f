"""Students of an image with features beside it: one function in floats, simulation and integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from qpd.actions import Discrete
from qpd.analysis.selection.measured_cells import cell_of
from qpd.integer.integer_student import IntegerEngine, integer_student, reference_outputs
from qpd.quantization.bias_correction import correct_biases
from qpd.quantization.calibration import calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.equalization import balance, equalize
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, StudentArchitecture
from qpd.training.dormant_units import recycle_dormant_units

IMAGE, FEATURES = (3, 40, 44), 5
ARCHITECTURE = StudentArchitecture(
    (3 * 40 * 44 + FEATURES,), 4, (8, 8, 8), (16,), image_shape=IMAGE
)


def observations(count: int = 64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3 * 40 * 44), generator=generator).float()
    return torch.cat([pixels, torch.randn(count, FEATURES, generator=generator)], 1)


def student(seen: Tensor) -> Student:
    made = Student(ARCHITECTURE, seed=1)
    features = seen[:, -FEATURES:]
    made.set_input_range(features.amin(0), features.amax(0))
    with torch.no_grad():
        made.actor.weight.mul_(100.0)
    return made


def test_the_first_linear_layer_reads_the_image_and_then_the_features() -> None:
    assert ARCHITECTURE.num_features == FEATURES and not ARCHITECTURE.is_image
    shapes = {shape.name: shape.weight_shape for shape in ARCHITECTURE.layer_shapes()}
    # 40x44 -> 9x10 -> 3x4 -> 1x2, 8 channels.
    assert shapes["conv1"] == (8, 3, 8, 8) and shapes["linear1"] == (16, 16 + FEATURES)
    seen = observations(3)
    made = student(seen)
    hidden = seen[:, :-FEATURES].view(3, *IMAGE) / 255
    for name in ("conv1", "conv2", "conv3"):
        hidden = torch.relu(made.layer(name)(hidden))
    low, high = made.input_low, made.input_high
    shares = (seen[:, -FEATURES:] - low) / (high - low)
    hidden = torch.relu(made.layer("linear1")(torch.cat([hidden.flatten(1), shares], 1)))
    torch.testing.assert_close(made(seen).actor, made.actor(hidden), rtol=1e-4, atol=1e-4)


def test_ranges_scales_and_recycling_leave_the_function_as_it_is() -> None:
    seen = observations()
    made = student(seen)
    before = made(seen).actor.detach()
    features = seen[:, -FEATURES:]
    made.move_input_range(features.amin(0) - 0.3, features.amax(0) + 0.5)
    made.set_feature_top(2.5)
    made.move_input_range(features.amin(0) - 0.1, features.amax(0))
    equalize(made, seen, 0.7)
    balance(made, seen)
    torch.testing.assert_close(made(seen).actor, before, rtol=1e-4, atol=1e-4)
    with torch.no_grad():  # a unit that no state activates
        made.bias("conv3")[2] = -1e3
    dead = made(seen).actor.detach()
    kept = made.layer("linear1").weight[:, -FEATURES:].clone()
    optimizer = torch.optim.Adam(made.parameters())
    found = recycle_dormant_units(made, optimizer, made.hidden_activations(seen), 0)
    assert found["conv3"].nonzero().flatten().tolist().count(2) == 1
    torch.testing.assert_close(made(seen).actor, dead)
    others = ~found.get("linear1", torch.zeros(16, dtype=torch.bool))
    weight = made.layer("linear1").weight[:, -FEATURES:]
    torch.testing.assert_close(weight[others], kept[others])


@pytest.mark.parametrize(("bits", "activation_bits"), [(8, 8), (4, 8), (8, 4), (3, 3)])
def test_integers_are_what_the_simulation_simulates(bits: int, activation_bits: int) -> None:
    seen = observations()
    made = student(seen)
    before = made(seen).actor.detach()
    simulation = QuantizedStudent(
        made, QuantizationConfig(weight_bits=bits, activation_bits=activation_bits)
    )
    correct_biases(simulation, seen)
    calibrate(simulation, seen)
    simulation.keep_ranges_positive()
    outputs = simulation(seen).actor.detach()
    integers = integer_student(simulation, Discrete(4))
    unusual = seen[:5].clone()
    unusual[:, -FEATURES:] = torch.tensor([np.nan, np.inf, -np.inf, 3e38, -3e38])
    for vectors in (seen.numpy(), unusual.numpy()):
        engine = IntegerEngine(integers).integer_outputs(vectors)
        np.testing.assert_array_equal(engine, reference_outputs(integers, vectors))
    np.testing.assert_allclose(IntegerEngine(integers)(seen.numpy()), outputs, atol=1e-4)
    if bits == activation_bits == 8:
        assert (outputs - before).square().mean() < 0.01 * before.var()
    # Features alone change the outputs: they have not been rounded away.
    moved = seen.clone()
    moved[:, -FEATURES:] = seen.flip(0)[:, -FEATURES:]
    engine = IntegerEngine(integers)
    assert (engine(moved.numpy()) != engine(seen.numpy())).any(1).mean() > 0.5


def test_the_step_of_features_follows_the_range_that_is_trained() -> None:
    seen = observations()
    simulation = QuantizedStudent(student(seen), QuantizationConfig())
    calibrate(simulation, seen)
    with torch.no_grad():
        simulation.activation_ranges[2] *= 1.2
    simulation.keep_ranges_positive()
    assert simulation.student.feature_top == simulation.activation_ranges[2]
    exact, quantized = simulation.student(seen).actor, simulation(seen).actor
    assert (exact - quantized).square().mean() < 0.01 * exact.var()


def test_it_is_no_cell_of_integer_controllers() -> None:
    simulation = QuantizedStudent(student(observations()), QuantizationConfig())
    calibrate(simulation, observations())
    assert "sees images" in cell_of(integer_student(simulation, Discrete(4)))


@pytest.mark.parametrize("shape", [(3, 40), (3, 40, 60), (0, 40, 44)])
def test_images_that_do_not_fit_the_vector_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="an image of shape"):
        StudentArchitecture((5285,), 4, (8, 8, 8), (16,), image_shape=shape)
