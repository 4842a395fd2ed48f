"""Eq. 4 with hand-computed numbers, and its properties."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from qpd.actions import Discrete
from qpd.integer.integer_student import integer_student
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, architecture_for
from qpd.students.affine import affine_levels

torch.set_num_threads(1)

TENSORS = arrays.arrays(
    np.float64, st.integers(2, 40), elements=st.floats(-1e3, 1e3, allow_subnormal=False)
)


def over_own_range(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Eq. 4 as the paper writes it: the minimum and maximum are the tensor's own."""
    return affine_levels(x, x.amin(), x.amax(), 2**bits - 1)


def test_eq4_by_hand() -> None:
    # min -1, max 1, k = 2: (w + 1) * 3 / 2 = (0, 1.5, 2.25, 1.2, 3); 1.5 is rounded to even.
    levels = over_own_range(torch.tensor([-1.0, 0.0, 0.5, -0.2, 1.0]), 2)
    assert levels.tolist() == [0, 2, 2, 1, 3]
    # k = 8: (w + 1) * 255 / 2 = 127.5 * (w + 1): 191.25 at 0.5, 102 at -0.2.
    levels = over_own_range(torch.tensor([-1.0, 0.5, -0.2, 1.0]), 8)
    assert levels.tolist() == [0, 191, 102, 255]


def test_each_feature_has_its_range_and_beyond_it_is_clipped() -> None:
    # k = 2: 1 of [0, 2] is 1.5, rounded to even; 5 is beyond 3, and -9 beyond -1.
    low, high = torch.tensor([0.0, -1.0]), torch.tensor([2.0, 3.0])
    values = torch.tensor([[1.0, 5.0], [2.5, -9.0]])
    assert affine_levels(values, low, high, 3).tolist() == [[2, 3], [3, 0]]
    assert affine_levels(values, low, high, 3, rounded=False).tolist() == [[1.5, 3], [3, 0]]


def test_uint8_frames_are_exact_in_8_bits() -> None:
    frame = torch.arange(256.0).reshape(16, 16)
    assert torch.equal(over_own_range(frame, 8), frame)


@given(array=TENSORS, bits=st.integers(2, 8))
def test_levels_are_integers_that_fill_the_range(array: np.ndarray, bits: int) -> None:
    assume(np.ptp(array) > 1e-6)
    levels = over_own_range(torch.from_numpy(array), bits)
    assert torch.equal(levels, levels.round())
    assert levels.min() == 0 and levels.max() == 2**bits - 1
    order = np.argsort(array, kind="stable")
    assert (np.diff(levels.numpy()[order]) >= 0).all()


@given(array=TENSORS, bits=st.integers(2, 8))
def test_error_is_at_most_half_a_step_and_quantizing_twice_changes_nothing(
    array: np.ndarray, bits: int
) -> None:
    assume(np.ptp(array) > 1e-3)  # below, float64 itself errs by more than the tolerance
    x = torch.from_numpy(array)
    levels = over_own_range(x, bits)
    step = np.ptp(array) / (2**bits - 1)
    values = x.amin() + levels * step
    assert (values - x).abs().max() <= step / 2 * (1 + 1e-6)
    assert torch.equal(over_own_range(values, bits), levels)


def test_the_simulation_and_the_engine_read_the_same_levels() -> None:
    student = Student(architecture_for("mlp-4", (3,), 2))
    student.set_input_range(torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([1.0, 0.3, 9.0]))
    simulation = QuantizedStudent(student, QuantizationConfig())
    rng = np.random.default_rng(0)
    observations = rng.uniform(-2.0, 10.0, (4096, 3)).astype(np.float32)
    played = integer_student(simulation, Discrete(4)).encode(observations)
    trained = simulation.input_levels(torch.from_numpy(observations)).numpy()
    assert played.dtype == np.uint8
    np.testing.assert_array_equal(played, trained)
