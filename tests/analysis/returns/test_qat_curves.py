"""Loss and return over samples, from the ablation's reference runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from qpd.analysis.figure_style import paper_style
from qpd.analysis.returns.qat_curves import draw_curves, qat_curves
from qpd.errors.user_error import UserError
from qpd.runs.target import TargetError

HEADER = "phase,epoch,loss,validation_return,validation_low,validation_high\n"
RUNS = Path(__file__).parents[3] / "runs-reference"
WITH = RUNS / "phase3/seed=0,base=ablation-three-phases-dorefa"
WITHOUT = RUNS / "phase3/seed=0,base=ablation-phase3-only-dorefa"


def test_samples_count_all_phases() -> None:
    # A memory of 100,000; 20 epochs of phase 1 and 5 of phase 3, or 25 of phase 3.
    curves = qat_curves([WITH, WITHOUT])
    epochs = curves.epochs.set_index(["run", "phase", "epoch"])["samples"]
    assert epochs[str(WITH), "distill", 1] == 100_000
    assert epochs[str(WITH), "distill", 20] == 2_000_000
    assert epochs[str(WITH), "finetune", 1] == 2_100_000
    assert epochs[str(WITH), "finetune", 5] == epochs[str(WITHOUT), "finetune", 25] == 2_500_000
    students = curves.evaluations.set_index(["run", "policy"])
    assert students.loc[(str(WITH), "ptq"), "samples"] == 2_000_000
    assert students.loc[(str(WITH), "qat"), "samples"] == 2_500_000
    assert students.loc[(str(WITHOUT), "qat"), "mean"] == 297.89
    assert curves.left_out == {}


def test_values_are_those_of_the_file() -> None:
    row = qat_curves([WITH]).epochs.iloc[-1]
    assert row["loss"] == 0.04279354587197304
    validation = row[["validation_return", "validation_low", "validation_high"]]
    assert validation.tolist() == [373.0625, 351.2175737403295, 392.92568594583315]


def test_figure() -> None:
    with paper_style():
        losses, returns = draw_curves(qat_curves([WITH, WITHOUT])).axes
    drawn = [line for line in losses.lines if len(line.get_xdata())]
    assert [line.get_linestyle() for line in drawn] == ["--", "-", "-"]
    assert [len(line.get_xdata()) for line in drawn] == [20, 5, 25]
    assert losses.get_yscale() == "log"
    values = np.concatenate([line.get_ydata() for line in returns.lines])
    assert {373.0625, 369.09, 60.46, 297.89} <= set(values)


def test_a_run_without_phase_3_is_left_out(tmp_path: Path) -> None:
    short = tmp_path / "short"
    shutil.copytree(WITH, short)
    lines = (short / "metrics.csv").read_text().splitlines(keepends=True)
    (short / "metrics.csv").write_text("".join(lines[:10]))
    why = "no training curve, as it has no epoch of phase 3"
    assert qat_curves([short, WITH]).left_out == {str(short): why}
    with pytest.raises(TargetError, match="no run has an epoch of phase 3"):
        qat_curves([short])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("phase,epoch\nfinetune,1\n", "lacks the columns loss, validation_return"),
        ("", "no run has an epoch of phase 3"),
        (f"{HEADER}finetune,1,low,1,1,1\n", "loss: must be numbers"),
        (f"{HEADER}finetune,1,\xff,1,1,1\n", "is no CSV file"),
    ],
)
def test_a_broken_file(tmp_path: Path, text: str, message: str) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(WITH, broken)
    (broken / "metrics.csv").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=message):
        qat_curves([broken])
