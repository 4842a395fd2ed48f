"""metrics.csv: fixed columns, every row on the disk, exact truncation on resume."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from qpd.runs.metrics_log import MetricsLog, MetricsLogError, last_number

COLUMNS = ["loss", "samples_per_s"]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def epochs(path: Path) -> list[tuple[str, int]]:
    return [(row["phase"], int(row["epoch"])) for row in rows(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.csv"


def test_the_last_number_of_a_column_is_one() -> None:
    rows = [{"loss": "1.5", "skipped": "3"}, {"loss": "2.5", "skipped": ""}]
    assert (last_number(rows, "loss"), last_number(rows, "skipped")) == (2.5, 3.0)
    assert last_number(rows, "other") is None
    for damaged in ("abc", "nan", "inf"):
        with pytest.raises(MetricsLogError, match=f"loss is '{damaged}'; expected a number"):
            last_number([*rows, {"loss": damaged}], "loss")


def test_rows_are_on_the_disk_at_once_and_exact(path: Path) -> None:
    with MetricsLog(path, COLUMNS, phase="distill") as log:
        log.write(1, {"loss": 0.1 + 0.2, "samples_per_s": 3})
        assert rows(path) == [
            {"phase": "distill", "epoch": "1", "loss": "0.30000000000000004", "samples_per_s": "3"}
        ]
        log.write(2, {"loss": np.float32(0.5)})
        log.write(3, {"loss": torch.tensor(0.25), "samples_per_s": None})
    assert [row["loss"] for row in rows(path)[1:]] == ["0.5", "0.25"]
    assert rows(path)[1]["samples_per_s"] == ""


def test_unknown_column_is_refused_and_nothing_written(path: Path) -> None:
    with MetricsLog(path, COLUMNS, phase="distill") as log:
        with pytest.raises(MetricsLogError, match="no column 'los'; did you mean loss?"):
            log.write(1, {"los": 1.0})
        with pytest.raises(MetricsLogError, match="no column 'epoch'"):
            log.write(1, {"epoch": 1.0})
    assert rows(path) == []


def test_resume_drops_later_rows_of_this_phase_only(path: Path) -> None:
    with MetricsLog(path, COLUMNS, phase="distill") as log:
        for epoch in range(1, 6):
            log.write(epoch, {"loss": epoch / 10})
    with MetricsLog(path, COLUMNS, phase="finetune") as log:
        for epoch in range(1, 5):
            log.write(epoch, {"loss": epoch})
    with MetricsLog(path, COLUMNS, phase="finetune", resume_epoch=2) as log:
        log.write(3, {"loss": 33})
    expected = [("distill", e) for e in range(1, 6)] + [("finetune", e) for e in (1, 2, 3)]
    assert epochs(path) == expected
    assert rows(path)[-1]["loss"] == "33"


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole.csv", tmp_path / "resumed.csv"
    for path, parts in ((whole, [(0, 5)]), (resumed, [(0, 4), (2, 5)])):
        for start, end in parts:
            with MetricsLog(path, COLUMNS, phase="distill", resume_epoch=start) as log:
                for epoch in range(start + 1, end + 1):
                    log.write(epoch, {"loss": 1 / epoch})
    assert whole.read_bytes() == resumed.read_bytes()


def test_torn_row_is_dropped(path: Path) -> None:
    with MetricsLog(path, COLUMNS, phase="distill") as log:
        log.write(1, {"loss": 1.5})
    with path.open("a", encoding="utf-8") as file:
        file.write("distill,2,0.123,45")  # all columns, the last one cut short
    with MetricsLog(path, COLUMNS, phase="distill", resume_epoch=9) as log:
        log.write(3, {"loss": 2.5})
    assert epochs(path) == [("distill", 1), ("distill", 3)]


def test_a_column_of_a_later_version_stays_empty_in_earlier_rows(path: Path) -> None:
    path.write_text("phase,epoch,loss,return\ndistill,1,0.5,3.0\ndistill,2,0.25,4.0\nfinetune,1,")
    with MetricsLog(path, ("loss", "divergence", "return"), phase="finetune") as log:
        log.write(1, {"loss": 0.125, "divergence": 0.01, "return": 5.0})
    assert path.read_text().splitlines() == [
        "phase,epoch,loss,divergence,return",
        "distill,1,0.5,,3.0",
        "distill,2,0.25,,4.0",
        "finetune,1,0.125,0.01,5.0",
    ]


def test_other_columns_are_refused_and_the_file_kept(path: Path) -> None:
    with MetricsLog(path, COLUMNS, phase="distill") as log:
        log.write(1, {"loss": 1.5})
    before = path.read_bytes()
    with pytest.raises(MetricsLogError, match="has the columns phase, epoch, loss, samples_per_s"):
        MetricsLog(path, ["return"], phase="distill", resume_epoch=1)
    assert path.read_bytes() == before
    with pytest.raises(MetricsLogError, match="must differ"):
        MetricsLog(path, ["epoch"], phase="distill")


def test_text_with_commas_survives(path: Path) -> None:
    for _ in range(2):
        with MetricsLog(path, ["note"], phase="distill", resume_epoch=1) as log:
            log.write(1, {"note": 'a, "b"'})
    assert [row["note"] for row in rows(path)] == ['a, "b"'] * 2
