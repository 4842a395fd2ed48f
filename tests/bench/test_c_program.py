"""The C export, compiled and run here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qpd.bench.c_program import CProgram
from qpd.bench.contestant import ContestantError, MissingError, WrongAnswerError
from qpd.bench.models import run_model
from qpd.bench.runtimes import start_student
from qpd.bench.timed_observations import noise_frames
from qpd.machine.description import c_compiler

RUN = Path(__file__).parents[2] / "runs-reference" / "classic-ppo-cartpole"
pytestmark = pytest.mark.skipif(c_compiler() is None, reason="no C compiler")


def test_both_builds_pass_their_golden_test_and_are_timed(tmp_path: Path) -> None:
    model = run_model(RUN)
    portable = start_student("c", model, 1, tmp_path / "c", noise_frames())
    simd = start_student("c-simd", model, 1, tmp_path / "simd", noise_frames())
    assert portable.error is None and simd.error is None
    assert portable.kernels == "portable"
    assert isinstance(portable.runner, CProgram)
    turn = portable.runner.turn(0.01)
    assert turn.calls >= 10 and 0 < turn.median_us <= turn.p99_us
    assert turn.peak_rss_bytes < 10e6  # not that of this process, which started it
    # 4 x 32 and 32 x 2 weights, 4 bytes for each bias, 5 for each hidden output's gain
    assert portable.file_bytes == 4 * 32 + 32 * 2 + 9 * 32 + 4 * 2


def test_a_program_that_fails_its_golden_test_is_not_timed(tmp_path: Path) -> None:
    model = run_model(RUN)
    wrong = replace(model, integer_outputs=model.integer_outputs + 1)
    contestant = start_student("c", wrong, 1, tmp_path, noise_frames())
    assert contestant.runner is None and isinstance(contestant.error, WrongAnswerError)
    assert "golden test: FAILED: vector 1" in str(contestant.error)


def test_code_that_does_not_compile_is_one_line(tmp_path: Path) -> None:
    start_student("c", run_model(RUN), 1, tmp_path, noise_frames())
    (tmp_path / "qpd.h").write_text("#error out of order\n")
    with pytest.raises(ContestantError, match="does not compile: .*out of order") as caught:
        CProgram(tmp_path, False, tmp_path / "observations.bin")
    assert "\n" not in str(caught.value)


def test_without_a_compiler_the_runtime_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    contestant = start_student("c", run_model(RUN), 1, tmp_path / "c", noise_frames())
    assert isinstance(contestant.error, MissingError)
    assert "needs a C compiler" in str(contestant.error)
