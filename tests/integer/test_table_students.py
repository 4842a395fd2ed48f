"""Students with tables: training's simulation, the engine and NumPy integers, exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qpd.actions import Discrete
from qpd.integer.integer_student import (
    IntegerEngine,
    IntegerLayer,
    IntegerStudent,
    fixed_point,
    integer_student,
    reference_outputs,
)
from qpd.quantization.calibration import calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, StudentArchitecture
from qpd.students.activations import ACTIVATIONS

torch.set_num_threads(1)
TABLED = [name for name in ACTIVATIONS if name != "relu"]


def simulated(
    activation: str, bits: int, activation_bits: int, seed: int, **options: object
) -> tuple[QuantizedStudent, torch.Tensor]:
    student = Student(StudentArchitecture((5,), 3, (), (24, 16), activation), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
        student.actor.weight.copy_(torch.randn(student.actor.weight.shape, generator=generator))
    student.set_input_range(-3 * torch.ones(5), 3 * torch.ones(5))
    config = QuantizationConfig(bits, activation_bits, **options)  # type: ignore[arg-type]
    simulation = QuantizedStudent(student, config)
    observations = 4 * torch.randn(200, 5, generator=generator)  # a quarter beyond the range
    calibrate(simulation, observations)
    return simulation, observations


def assert_all_agree(simulation: QuantizedStudent, observations: torch.Tensor) -> None:
    """The same accumulators in the simulation, the engine and NumPy.

    The simulation computes an index in float64, the engine with a multiplier of 31 bits: they could
    differ only within 1e-6 of the edge between two indices.
    """
    student = integer_student(simulation, Discrete(3))
    engine = IntegerEngine(student).integer_outputs(observations.numpy())
    np.testing.assert_array_equal(engine, reference_outputs(student, observations.numpy()))
    with torch.no_grad():
        outputs = simulation(observations).actor.double().numpy()
    same = np.round(outputs / student.output_scale) == engine
    assert same.all(1).mean() >= 0.99
    assert len(np.unique(engine, axis=0)) > 8


@settings(max_examples=25)
@given(
    activation=st.sampled_from(["tanh", "elu", "silu"]),
    bits=st.integers(2, 8),
    activation_bits=st.integers(2, 8),
    seed=st.integers(0, 99),
)
def test_simulation_engine_and_numpy_are_one(
    activation: str, bits: int, activation_bits: int, seed: int
) -> None:
    assert_all_agree(*simulated(activation, bits, activation_bits, seed))


@pytest.mark.parametrize("activation", TABLED)
def test_every_function(activation: str) -> None:
    simulation, observations = simulated(activation, 8, 8, 0)
    assert_all_agree(simulation, observations)
    student = integer_student(simulation, Discrete(3))
    with torch.no_grad():
        exact = simulation.student(observations).actor
    error = torch.from_numpy(IntegerEngine(student)(observations.numpy())) - exact
    # It is the float student's function: 8 bits leave 1% of its variance at most.
    assert float(error.square().mean() / exact.var()) < 0.01
    assert all(0 <= table.min() and table.max() <= 255 for table in student.tables)


@pytest.mark.parametrize(
    "options", [{"per_channel": False}, {"scheme": "dorefa"}, {"scheme": "narrow"}]
)
def test_other_quantizers(options: dict[str, object]) -> None:
    assert_all_agree(*simulated("tanh", 4, 8, 1, **options))


def test_a_network_by_hand() -> None:
    # acc = (x - 2, -x): half of it, half up, is the index; the table is 10 at 0 and rises by 3 up
    # to 40 at index 10, and stays there. Accumulators below 0 have index 0, those far above 1023.
    # x = 0: (-1, 0) -> (0, 0) -> 10, 10; x = 7: (2.5 -> 3, 0) -> 19, 10;
    # x = 255: (126.5 -> 127) -> 40, 10. Outputs: a - b + 5.
    table = np.minimum(10 + 3 * np.arange(1024), 40).astype(np.uint8)
    architecture = StudentArchitecture((1,), 1, (), (2,), "tanh")
    shapes = architecture.layer_shapes()
    multiplier, shift = fixed_point(np.array([0.5, 0.5]))
    weight = np.array([[1], [-1]], np.int16)
    bias = np.array([-2, 0], np.int32)
    hidden = IntegerLayer(shapes[0], 8, weight, bias, multiplier, shift, 255, table)
    head = IntegerLayer(
        shapes[1], 8, np.array([[1, -1]], np.int16), np.array([5], np.int32), None, None, 255
    )
    ranges = np.zeros(1, np.float32), np.full(1, 255, np.float32)
    student = IntegerStudent(architecture, (hidden, head), 1.0, Discrete(1), *ranges)
    inputs = np.array([[0], [7], [255]], np.float32)
    assert reference_outputs(student, inputs).tolist() == [[5], [14], [35]]
    assert IntegerEngine(student).integer_outputs(inputs).tolist() == [[5], [14], [35]]
    assert len(student.tables) == 1 and hidden.largest_number == 1023


def test_the_offsets_are_in_the_biases() -> None:
    """Accumulators of layer 2 and the head stand for W y + b, whatever levels stand for."""
    simulation, observations = simulated("tanh", 8, 8, 4)
    student = integer_student(simulation, Discrete(3))
    grid = simulation.level_grid(0)
    assert grid is not None
    levels = np.random.default_rng(0).integers(0, 256, (50, 24))
    values = float(grid.step.detach()) * (levels - 127.5)
    layer = student.layers[1]
    acc = levels @ layer.weight.T.astype(np.int64) + layer.bias
    assert layer.multiplier is not None and layer.shift is not None
    x = float(grid.first) + acc * (layer.multiplier / 2.0**layer.shift) * float(grid.spacing)
    weight, unit = simulation.integer_weight(1)
    exact = values @ (weight * unit[:, None]).detach().double().numpy().T
    exact += simulation.student.bias("linear2").detach().double().numpy()
    scale = (unit.detach().double().numpy()) * float(grid.step.detach())
    assert (np.abs(x - exact) <= 0.51 * scale + 1e-6).all()  # a bias is rounded to half a unit
