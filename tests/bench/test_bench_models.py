"""What is benchmarked: random students of any size, and those of runs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from qpd.bench.device_record import BenchError
from qpd.bench.models import distinctly_named, random_model, run_model, size_name
from qpd.bench.plain_network import PlainNetwork, exact_logits
from qpd.integer.integer_student import IntegerEngine
from qpd.students import SIZE_GRID, architecture_for

torch.set_num_threads(1)
RUNS = Path(__file__).parents[2] / "runs-reference"


def test_a_random_student_is_one_of_the_grid_and_its_logits_say_something() -> None:
    model = random_model("XXS")
    assert (model.name, model.size, model.weight_bits) == ("XXS", "XXS", 8)
    assert model.student.architecture == architecture_for("XXS", (4, 84, 84), 4)
    assert model.observations.dtype == np.uint8 and model.observations.shape == (8, 4, 84, 84)
    # Golden vectors that all give the same logits would let a broken runtime pass.
    assert len(np.unique(model.integer_outputs, axis=0)) == 8
    engine = IntegerEngine(model.source.student)
    assert (engine.integer_outputs(model.observations) == model.integer_outputs).all()


def test_every_size_has_its_name_whatever_the_actions() -> None:
    for size in SIZE_GRID:
        assert size_name(architecture_for(size, (4, 84, 84), 6)) == size
    assert size_name(architecture_for("mlp-64", (4,), 2)) is None


def test_an_unknown_size_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BenchError, match="XXXL: one of XXS, XS, S, M, L, XL, XXL, or all"):
        random_model("XXXL")


def test_the_student_of_a_run() -> None:
    model = run_model(RUNS / "breakout-ppo-xxs-2bit")
    assert (model.name, model.size, model.weight_bits) == ("breakout-ppo-xxs-2bit", "XXS", 2)
    classic = run_model(RUNS / "classic-ppo-cartpole" / "quantized.safetensors")
    assert (classic.name, classic.size) == ("classic-ppo-cartpole", None)
    assert classic.observations.dtype == np.float32


def test_a_neighbour_of_another_shape_is_not_its_float_student(tmp_path: Path) -> None:
    for source, name in (("ppo-cartpole", "quantized"), ("ppo-lunarlander", "distilled")):
        file = RUNS / f"classic-{source}" / f"{name}.safetensors"
        shutil.copyfile(file, tmp_path / file.name)
    model = run_model(tmp_path / "quantized.safetensors")
    assert model.student.architecture == model.source.student.architecture


def test_runs_whose_folders_have_one_name_are_told_apart(tmp_path: Path) -> None:
    run = run_model(RUNS / "breakout-ppo-xxs-2bit")
    folders = [tmp_path / each for each in ("a/x/run", "a/y/run", "b/y/run", "other")]
    found = distinctly_named([replace(run, name=each.name, path=each) for each in folders])
    assert [each.name for each in found] == ["x/run", "a/y/run", "b/y/run", "other"]
    size = replace(run, name="XXS", path=tmp_path / "c" / "XXS")
    assert [each.name for each in distinctly_named([size], ["XXS", "S"])] == ["c/XXS"]
    with pytest.raises(BenchError, match="run: is given twice"):
        distinctly_named([replace(run, path=each) for each in (folders[0], folders[0])])


@pytest.mark.parametrize(
    ("size", "shape", "image"),
    [("XXS", (4, 84, 84), None), ("mlp-16", (3,), None), ("XXS", (4805,), (3, 40, 40))],
)
def test_the_plain_network_is_the_student(
    size: str, shape: tuple[int, ...], image: tuple[int, ...] | None
) -> None:
    from qpd.students import Student

    student = Student(architecture_for(size, shape, 4, image_shape=image), seed=1)
    if image is not None:
        student.set_feature_top(2.5)
    rng = np.random.default_rng(0)
    observations = rng.random((5, *shape), np.float32)
    if len(shape) == 3:
        observations = (observations * 255).astype(np.uint8)
    if image is not None:
        observations[:, :-5] = np.round(255 * observations[:, :-5])
    inputs = torch.from_numpy(observations)
    with torch.no_grad():
        wanted, plain = student(inputs), PlainNetwork(student)(inputs)
    # float32 sums in another order
    torch.testing.assert_close(plain[0], wanted.actor, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(plain[1][:, 0], wanted.values, rtol=1e-4, atol=1e-5)
    exact = exact_logits(PlainNetwork(student), inputs)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.float(), wanted.actor, rtol=1e-4, atol=1e-6)
