"""Whole runs in few bits: resumed to the bit, counted, and refused where nothing can be learned."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from qpd.numerics.float_format import FloatFormat
from qpd.runs.counted_gradients import GradientCountsError, PhaseGradients
from qpd.runs.run_directory import RunDirectory
from qpd.training.epochs import TrainingError
from tests.tiny_run import Follower, Interrupt, recipe_of, work

torch.set_num_threads(1)
# It ends at 248: the scale has to fall from 65,536.
LOW = {"precision": "e4m5", "loss_scale": "dynamic", "gradient_exponents": 8}
FILES = ("gradient_exponents.distill.json", "gradient_exponents.finetune.json")


def rows_of(path: Path) -> list[dict[str, str]]:
    with (path / "metrics.csv").open() as file:
        return [{**row, "samples_per_second": ""} for row in csv.DictReader(file)]


def outcome(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"metrics": rows_of(path)}
    for name in ("distilled.safetensors", "quantized.safetensors"):
        data = (path / name).read_bytes()
        found[name] = data[8 + int.from_bytes(data[:8], "little") :]
    return found | {name: (path / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def whole(teacher_zip: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("low") / "whole"
    work(path, recipe_of(teacher_zip, distill=LOW, finetune=LOW), Follower())
    return path


@pytest.mark.parametrize("phase", ["distill", "finetune"])
def test_a_killed_run_resumes_to_the_bit(phase: str, whole: Path, teacher_zip: Path) -> None:
    """Killed in epoch 3."""
    recipe = recipe_of(teacher_zip, distill=LOW, finetune=LOW)
    path = whole.parent / phase
    with pytest.raises(Interrupt):
        work(path, recipe, Follower(lambda e, p, n: (e, p, n) == ("batch", phase, 2)))
    assert [row for row in rows_of(path) if row["phase"] == phase][-1]["epoch"] == "2"
    work(path, recipe, Follower())
    assert outcome(path) == outcome(whole)
    skipped = [int(row["skipped_updates"]) for row in rows_of(path) if row["phase"] == phase]
    assert 0 < skipped[1] <= skipped[-1]
    scales = [float(row["loss_scale"]) for row in rows_of(path) if row["phase"] == phase]
    assert scales == [2.0**16 / 2**count for count in skipped]


def test_stored_counts_give_the_shares(whole: Path) -> None:
    """32 updates an epoch, every 8th counted: 4 times the 133 weights of the student."""
    with RunDirectory.open(whole, read_only=True) as run:
        counted = PhaseGradients.read(run.exponents_file("distill"))
        record = run.phase("distill").metrics
    assert counted is not None and [each.epoch for each in counted.epochs] == [1, 2, 3, 4, 5, 6]
    numbers = 4 * 16 + 16 + 16 * 2 + 2 + 16 + 1
    assert [each.weights.total for each in counted.epochs] == [4 * numbers] * 6
    stored = json.loads((whole / FILES[0]).read_text())["epochs"]
    form = FloatFormat.parse("e4m5")
    for each, plain in zip(counted.epochs, stored, strict=True):
        held = plain["weights"]
        lost = sum(n for k, n in held["exponents"].items() if int(k) < -11)
        subnormal = sum(n for k, n in held["exponents"].items() if -11 <= int(k) < -6)
        shares = each.weights.shares(form)
        assert shares["lost"] == lost / (4 * numbers)
        assert shares["subnormal"] == subnormal / (4 * numbers)
        assert shares["zero"] == held["zeros"] / (4 * numbers)
        row = rows_of(whole)[each.epoch - 1]
        assert float(row["gradients_lost"]) == lost / (4 * numbers)
        assert float(row["gradients_subnormal"]) == subnormal / (4 * numbers)
        highest = max(int(k) for k in held["exponents"])  # e4 ends below 2^8; a binade stays free
        assert float(row["fitting_scale"]) == 2.0 ** (6 - highest)
    assert record["skipped_updates"] == int(rows_of(whole)[5]["skipped_updates"])


def test_a_scale_that_always_overflows_is_refused(teacher_zip: Path, tmp_path: Path) -> None:
    recipe = recipe_of(
        teacher_zip, distill={"precision": "e4m5", "loss_scale": 2.0**24, "rollbacks": 0}
    )
    with pytest.raises(TrainingError, match="all 32 updates were skipped") as caught:
        work(tmp_path / "run", recipe, Follower())
    assert "set it to dynamic" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", ["{}", '{"precision": "fp16", "epochs": 3}', '{"precision": "x", "epochs": []}',
                '{"precision": "fp16", "epochs": [{"epoch": 1, "loss_scale": 1, "weights": '
                '{"exponents": {"900": 1}, "zeros": 0, "not_finite": 0}}]}'],
)  # fmt: skip
def test_damaged_counts_are_one_line(content: str, tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    file.write_text(content)
    with pytest.raises(GradientCountsError, match="holds no counted gradients"):
        PhaseGradients.read(file)
