"""Worker processes: real ones, with the runtime that starts fastest."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from qpd.bench.contestant import ContestantError, MissingError
from qpd.bench.models import BenchModel, run_model
from qpd.bench.runtimes import start_student
from qpd.bench.timed_observations import noise_frames
from qpd.bench.worker_process import WorkerProcess

pytest.importorskip("onnxruntime", reason='pip install "qpd-rl[onnx]"')
pytest.importorskip("onnx", reason='pip install "qpd-rl[onnx]"')
RUN = Path(__file__).parents[2] / "runs-reference" / "classic-ppo-cartpole"


@pytest.fixture(scope="module")
def cartpole() -> BenchModel:
    return run_model(RUN)


@pytest.fixture(scope="module")
def worker(cartpole: BenchModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    folder = tmp_path_factory.mktemp("onnx")
    contestant = start_student("onnx-int8", cartpole, 1, folder, noise_frames())
    assert contestant.error is None
    yield contestant.runner
    contestant.close()


def test_a_worker_answers_takes_turns_and_holds_its_own_runtime_only(
    worker: WorkerProcess, cartpole: BenchModel
) -> None:
    scale = cartpole.source.student.output_scale
    assert (np.round(worker.logits / scale) == cartpole.integer_outputs).all()
    for _ in range(2):
        turn = worker.turn(0.01)
        assert turn.calls >= 10 and 0 < turn.median_us <= turn.p99_us
    # PyTorch alone would be 200 MB and more; this process, which imports it, far more still.
    assert 20e6 < turn.peak_rss_bytes < 120e6


def test_a_runtime_that_computes_something_else_is_not_timed(
    cartpole: BenchModel, tmp_path: Path
) -> None:
    from dataclasses import replace

    other = replace(cartpole, integer_outputs=cartpole.integer_outputs[::-1])
    contestant = start_student("onnx-fp32", other, 1, tmp_path, noise_frames())
    assert contestant.runner is None and contestant.check is not None
    assert "computes something else" in str(contestant.error)


def test_a_damaged_model_is_one_line(tmp_path: Path) -> None:
    np.save(tmp_path / "observations.npy", np.zeros((1, 4), np.float32))
    (tmp_path / "broken.onnx").write_bytes(b"no model\n")
    spec = {
        "kind": "onnx",
        "file": str(tmp_path / "broken.onnx"),
        "threads": 1,
        "golden": str(tmp_path / "observations.npy"),
        "timed": str(tmp_path / "observations.npy"),
    }
    with pytest.raises(ContestantError) as caught:
        WorkerProcess(spec)
    assert not isinstance(caught.value, MissingError)
    assert "broken.onnx" in str(caught.value) and "\n" not in str(caught.value)


def test_a_worker_that_is_killed_harms_nobody(cartpole: BenchModel, tmp_path: Path) -> None:
    contestant = start_student("onnx-fp32", cartpole, 1, tmp_path, noise_frames())
    assert isinstance(contestant.runner, WorkerProcess)
    os.kill(contestant.runner.pid, signal.SIGKILL)
    with pytest.raises(ContestantError, match="killed by signal 9"):
        contestant.runner.turn(0.01)
    contestant.close()


def test_a_missing_package_is_skipped_with_the_extra_that_brings_it(
    cartpole: BenchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for name in ("onnxruntime", "onnx", "ai_edge_litert", "flatbuffers"):
        monkeypatch.setitem(sys.modules, name, None)  # what `import` then finds is: not installed
    for runtime, extra in (("onnx-int8", "qpd-rl[onnx]"), ("litert-int8", "qpd-rl[litert]")):
        contestant = start_student(runtime, cartpole, 1, tmp_path / runtime, noise_frames())
        assert isinstance(contestant.error, MissingError)
        assert extra in str(contestant.error)


def test_torch_compile_without_a_cxx_compiler_is_skipped(
    cartpole: BenchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    contestant = start_student("torch-compile", cartpole, 1, tmp_path, noise_frames())
    assert isinstance(contestant.error, MissingError)
    assert str(contestant.error) == "torch.compile needs a C++ compiler: g++, clang++ or c++"
