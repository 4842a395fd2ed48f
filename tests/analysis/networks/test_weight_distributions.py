"""Quantized weights in the distilled student's units, against what phase 2 really did."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from qpd.actions import Discrete
from qpd.analysis.figure_style import paper_style
from qpd.analysis.networks.weight_distributions import (
    LayerWeights,
    draw_distributions,
    draw_errors,
    layer_weights,
    weight_tables,
)
from qpd.integer.integer_student import IntegerStudent, integer_student
from qpd.quantization.calibration import calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.equalization import equalize
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.runs.target import TargetError
from qpd.students import Student, StudentArchitecture

torch.set_num_threads(1)

RUNS = Path(__file__).parents[3] / "runs-reference"
VECTORS = StudentArchitecture((6,), 3, (), (24, 20))
FRAMES = StudentArchitecture((4, 84, 84), 3, (4, 5, 6), (16,))
JOINED = StudentArchitecture((4805,), 3, (4, 5, 6), (16,), image_shape=(3, 40, 40))


def fresh_student(architecture: StudentArchitecture) -> Student:
    """Random weights, channels of very different size, biases that are not 0."""
    student, generator = Student(architecture, seed=1), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for shape in student.shapes:
            weight = student.layer(shape.name).weight
            spread = torch.exp(torch.randn(len(weight), generator=generator))
            weight.mul_(spread.view(-1, *(1,) * (weight.dim() - 1)))
            student.bias(shape.name).copy_(0.1 * torch.randn(len(weight), generator=generator))
    return student


def observations_of(architecture: StudentArchitecture) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    if architecture.is_image:
        shape = (16, *architecture.observation_shape)
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    found = torch.rand(256, *architecture.observation_shape, generator=generator)
    if architecture.joins_features:
        found[:, : -architecture.num_features].mul_(255).round_()
    return found


def quantize(
    student: Student, scheme: str, bits: int
) -> tuple[IntegerStudent, dict[str, np.ndarray]]:
    """As phase 2; also the quantized weights in the distilled student's units, by layer."""
    observations = observations_of(student.architecture)
    evened = Student(student.architecture)
    evened.load_state_dict(student.state_dict())
    if scheme == "dorefa_scaled":
        equalize(evened, observations, 0.75)
    config = QuantizationConfig(weight_bits=bits, scheme=scheme)  # type: ignore[arg-type]
    simulation = QuantizedStudent(evened, config)
    calibrate(simulation, observations)
    truth = {}
    for position, shape in enumerate(student.shapes):
        integers, scale = simulation.integer_weight(position)
        values = integers * scale.view(-1, *(1,) * (integers.dim() - 1))
        # Equalization multiplied each weight by a factor, which is taken back.
        factor = evened.layer(shape.name).weight / student.layer(shape.name).weight
        truth[shape.name] = (values / factor).detach().numpy()
    return integer_student(simulation, Discrete(4)), truth


def test_errors_by_hand() -> None:
    # Signal 1 + 1, noise 0.01 + 0.01: 100 times less, 20 dB. An error of 0.1 is half a step.
    weight, quantized = np.array([[1.0, -1.0]]), np.array([[0.9, -1.1]])
    layer = LayerWeights("actor", 4, weight, quantized, np.array([[0.2]]))
    assert layer.sqnr_db == pytest.approx(20.0)
    assert layer.max_error_steps == pytest.approx(0.5)
    assert LayerWeights("actor", 4, weight, weight, np.ones((1, 1))).sqnr_db == float("inf")


@pytest.mark.parametrize(
    ("architecture", "bits", "decibel", "share"),
    [
        (FRAMES, 8, 0.1, 0.015),
        (FRAMES, 4, 0.6, 0.09),
        (VECTORS, 8, 0.3, 0.015),
        (JOINED, 8, 0.4, 0.03),
    ],
    ids=["frames-8", "frames-4", "vectors-8", "joined-8"],
)
def test_scales_are_recovered_from_the_integers(
    architecture: StudentArchitecture, bits: int, decibel: float, share: float
) -> None:
    student = fresh_student(architecture)
    integers, truth = quantize(student, "dorefa_scaled", bits)
    for layer in layer_weights(student, integers, "dorefa_scaled"):
        exact = LayerWeights(layer.name, bits, layer.weight, truth[layer.name], layer.step)
        assert layer.sqnr_db == pytest.approx(exact.sqnr_db, abs=decibel)
        off = np.abs(layer.quantized - truth[layer.name]).max() / np.abs(layer.weight).max()
        assert off < share
        levels = np.unique((layer.quantized / layer.step)[:1])
        np.testing.assert_allclose(np.diff(levels), np.round(np.diff(levels)), atol=1e-3)
        assert np.abs(layer.quantized / layer.step).max() <= (2**bits - 1) / 2 + 1e-3


def test_a_range_that_phase_2_moves_moves_layer_1() -> None:
    student = fresh_student(VECTORS)
    moved = Student(VECTORS)
    moved.load_state_dict(student.state_dict())
    moved.move_input_range(torch.linspace(-2.0, 0.0, 6), torch.linspace(1.0, 6.0, 6))
    integers, truth = quantize(moved, "dorefa_scaled", 8)
    for layer in layer_weights(student, integers, "dorefa_scaled"):
        # What was quantized is layer 1 of the moved range, not of phase 1's.
        np.testing.assert_allclose(layer.weight, moved.layer(layer.name).weight.detach().numpy())
        exact = LayerWeights(layer.name, 8, layer.weight, truth[layer.name], layer.step)
        assert layer.sqnr_db == pytest.approx(exact.sqnr_db, abs=0.5)
        off = np.abs(layer.quantized - truth[layer.name]).max() / np.abs(layer.weight).max()
        assert off < 0.03


@pytest.mark.parametrize("activation", ["tanh", "leaky_relu"])
def test_students_with_tables_are_fitted_channel_by_channel(activation: str) -> None:
    student = fresh_student(StudentArchitecture((6,), 3, (), (24, 20), activation))
    integers, truth = quantize(student, "dorefa_scaled", 8)
    for layer in layer_weights(student, integers, "dorefa_scaled"):
        exact = LayerWeights(layer.name, 8, layer.weight, truth[layer.name], layer.step)
        assert layer.sqnr_db == pytest.approx(exact.sqnr_db, abs=0.3) and layer.sqnr_db > 39
        assert layer.max_error_steps < 1.5


def test_under_eq_5_the_scale_is_lost() -> None:
    student = fresh_student(VECTORS)
    with torch.no_grad():
        student.layer("linear1").weight.mul_(0.01)
    integers, truth = quantize(student, "dorefa", 8)
    layers = {layer.name: layer for layer in layer_weights(student, integers, "dorefa")}
    for name, layer in layers.items():
        np.testing.assert_allclose(layer.quantized, truth[name], atol=1e-6)
        assert np.abs(layer.quantized).max() == pytest.approx(1.0)
    assert layers["linear1"].sqnr_db < 0.0  # weights of 0.01 became weights of 1


def test_a_fork_is_compared_with_the_student_it_was_made_from(tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    ignored = shutil.ignore_patterns("distilled.safetensors")
    shutil.copytree(RUNS / "quickstart", fork, ignore=ignored)
    with pytest.raises(TargetError, match="no run has both distilled.safetensors and"):
        weight_tables([fork])
    tables = weight_tables([RUNS / "quickstart", fork, RUNS / "breakout-ppo-xxs"])
    left_out = {Path(run).name: why for run, why in tables.left_out.items()}
    assert left_out == {
        "breakout-ppo-xxs": "no weights compared, as it has no distilled.safetensors"
    }
    errors = tables.errors.set_index(["run", "layer"])["sqnr_db"].unstack()
    assert len(errors) == 2 and (errors.nunique() == 1).all()
    assert (errors.iloc[0] > 25).all()  # 8 bits
    assert set(tables.errors["student"]) == {"ptq"}  # phase 3 kept it


def test_histograms_count_every_weight() -> None:
    tables = weight_tables([RUNS / "quickstart"])
    sums = tables.histograms.groupby("layer")[["distilled", "quantized"]].sum()
    np.testing.assert_allclose(sums.to_numpy(), 1.0)
    with paper_style():
        panels = draw_distributions(tables, [str(RUNS / "quickstart")]).axes
        errors = draw_errors(tables.errors)
    names = ["conv1", "conv2", "conv3", "linear1", "actor"]
    assert [ax.get_title().split(",")[0] for ax in panels] == names
    (line,) = errors.axes[0].lines
    assert line.get_ydata().tolist() == tables.errors["sqnr_db"].tolist()


def test_no_two_runs_look_alike_in_the_legend() -> None:
    errors = weight_tables([RUNS / "quickstart"]).errors
    other = errors.assign(run="other", scheme="narrow")
    with paper_style():
        figure = draw_errors(pd.concat([errors, other]))
    lines = [line for ax in figure.axes[:2] for line in ax.lines]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == len(lines) == 2
