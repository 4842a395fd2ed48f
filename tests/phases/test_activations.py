"""A whole experiment with hidden tanh, and recipes that ask for what there is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from qpd.analysis.runs.distilled_student import student_label
from qpd.analysis.runs.run_table import run_summary
from qpd.cli import main
from qpd.integer.integer_student import IntegerEngine
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.distilled import load_student
from qpd.student_files.quantized import load_integer_student
from tests.tiny_run import Follower, recipe_of, work


def test_three_phases_with_tanh(teacher_zip: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    work(path, recipe_of(teacher_zip, student={"activation": "tanh"}), Follower())
    run = RunDirectory.open(path, read_only=True)
    floats, integers = load_student(run.distilled_file), load_integer_student(run.quantized_file)
    assert floats.architecture == integers.architecture
    assert floats.architecture.activation == "tanh" and len(integers.tables) == 1
    assert run.manifest.phases["quantize"].state == run.manifest.phases["finetune"].state == "done"
    x = np.random.default_rng(0).uniform(-0.2, 0.2, (200, 4)).astype(np.float32)
    with torch.no_grad():
        exact = floats(torch.from_numpy(x)).actor.numpy()
    assert (IntegerEngine(integers)(x).argmax(1) == exact.argmax(1)).mean() > 0.7
    # 4 * 16 / 2 + 16 * 2 / 2 bytes of weights, 16 * 9 + 2 * 4, and the table
    assert run_summary(path)["policies"]["qat"]["constant_bytes"] == 48 + 152 + 1024
    assert student_label(run) == "mlp-16 tanh, seed 3"


@pytest.mark.parametrize(
    ("activation", "recycled"), [("relu", True), ("relu6", True), ("tanh", False)]
)
def test_units_that_are_flat_below_zero_are_recycled(
    teacher_zip: Path, tmp_path: Path, activation: str, recycled: bool
) -> None:
    """So large a learning rate pushes units below zero for every state; tanh has a slope there."""
    heard = Follower()
    wanted = {"lr": 0.1, "epochs": 4, "recycle_dormant": True}
    recipe = recipe_of(
        teacher_zip,
        student={"activation": activation},
        distill=wanted,
        finetune={"recycle_dormant": True},
    )
    work(tmp_path / "run", recipe, heard)
    noted = [note for note in heard.notes if "dormant units start anew" in note]
    assert bool(noted) == recycled


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("student.activation=tanh", "students of images have ReLU; remove activation=tanh"),
        ("student.activation=cosine", "student.activation: 'cosine' must be relu, tanh,"),
    ],
)
def test_recipes_that_do_not_fit(
    setting: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "ci.yaml"
    with pytest.raises(SystemExit) as stopped:
        main(["run", str(recipe), "--set", setting, "-o", str(tmp_path / "run")])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and line in error, error
    assert not (tmp_path / "run").exists()
