"""What a benchmark's worker does, in this process: every runtime answers and takes turns."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qpd.bench.models import BenchModel, random_model, run_model
from qpd.bench.worker import serve
from qpd.export.bundle import GoldenVectors
from qpd.student_files.distilled import save_student

torch.set_num_threads(1)
RUN = Path(__file__).parents[2] / "runs-reference" / "classic-ppo-cartpole"


def served(model: BenchModel, folder: Path, **spec: object) -> np.ndarray:
    """Ask a worker's loop for the answers to the golden observations, and for one turn."""
    np.save(folder / "observations.npy", model.observations)
    place = str(folder / "observations.npy")
    request: dict[str, Any] = {"threads": 1, "golden": place, "timed": place, **spec}
    answers = io.StringIO()
    serve(io.StringIO(json.dumps(request) + '\n{"seconds": 0.01}\n'), answers)
    first, turn = (json.loads(line) for line in answers.getvalue().splitlines())
    assert turn["calls"] >= 10 and 0 < turn["median_us"] <= turn["p99_us"]
    return np.array(first["logits"])


def golden(model: BenchModel) -> GoldenVectors:
    return GoldenVectors(model.observations, model.integer_outputs)


def test_onnx_runtime_answers_with_the_integers(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason='pip install "qpd-rl[onnx]"')
    from qpd.export.onnx_graph import export_onnx

    model, file = run_model(RUN), tmp_path / "student_int8.onnx"
    file.write_bytes(export_onnx(model.source, golden(model))["student_int8.onnx"])
    logits = served(model, tmp_path, kind="onnx", file=str(file))
    assert (np.round(logits / model.source.student.output_scale) == model.integer_outputs).all()


@pytest.mark.parametrize("sees", ["vectors", "frames"])
def test_litert_answers_with_the_integers(tmp_path: Path, sees: str) -> None:
    pytest.importorskip("ai_edge_litert", reason='pip install "qpd-rl[litert]"')
    from qpd.export.litert_flatbuffer import export_litert

    model = run_model(RUN) if sees == "vectors" else random_model("XXS", 8)
    file = tmp_path / "student.tflite"
    file.write_bytes(export_litert(model.source, golden(model))["student.tflite"])
    logits = served(model, tmp_path, kind="litert", file=str(file))
    wrong = np.abs(logits / model.source.student.output_scale - model.integer_outputs)
    assert wrong.max() < 1.5  # LiteRT may round a tie the other way


def test_pytorch_answers_as_the_float_student(tmp_path: Path) -> None:
    model, file = run_model(RUN), tmp_path / "float.safetensors"
    save_student(file, model.student, model.source.student.actions, {})
    logits = served(model, tmp_path, kind="torch", file=str(file), compiled=False)
    with torch.no_grad():
        exact = model.student(torch.from_numpy(model.observations))[0].numpy()
    assert logits == pytest.approx(exact, abs=1e-4)


def test_the_teachers_three_forms_agree(tmp_path: Path) -> None:
    from tests.tiny_run import write_teacher

    write_teacher(tmp_path / "agent.zip")
    teacher = {"source": str(tmp_path / "agent.zip"), "algo": "ppo", "env": "CartPole-v1"}
    model = run_model(RUN)
    mine = served(model, tmp_path, kind="torch", file=None, compiled=False, teacher=teacher)
    theirs = served(model, tmp_path, kind="sb3", teacher=teacher)
    actions = served(model, tmp_path, kind="sb3-predict", teacher=teacher)
    assert mine == pytest.approx(theirs, abs=1e-5)
    assert (actions == theirs.argmax(1)).all()
