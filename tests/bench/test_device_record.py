"""A device's JSON: what `qpd bench` writes, and what the C export's benchmark prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qpd.bench.c_json import size_of_constants
from qpd.bench.device_record import (
    BenchError,
    BenchRow,
    DeviceRecord,
    read_device_record,
    refuse_foreign_file,
    write_device_record,
)
from qpd.export.bundle import load_export_source
from qpd.export.c.sizes import weight_bytes

RUNS = Path(__file__).parents[2] / "runs-reference"


def record(**changes: Any) -> DeviceRecord:
    row = BenchRow(
        runtime="c",
        model="XXS",
        size="XXS",
        weight_bits=8,
        threads=1,
        status="measured",
        median_us=10.0,
        p99_us=20.0,
        forwards_per_second=1e5,
        peak_rss_bytes=2_000_000,
    )
    fields: dict[str, Any] = {
        "device": "a board",
        "cpu": "a core",
        "cores": 4,
        "os": "Linux",
        "versions": {"qpd": "0.1.0"},
        "date": "2026-01-01T00:00:00+00:00",
        "settings": {"rounds": 2},
        "rows": [row],
    }
    return DeviceRecord(**(fields | changes))


def c_line(**changes: Any) -> dict[str, Any]:
    """Return what qpd_bench printed for breakout-ppo-xxs, built with PORTABLE=1."""
    fields: dict[str, Any] = {
        "device": "Raspberry Pi 4",
        "student": "breakout-ppo-xxs",
        "runtime": "c",
        "kernels": "portable",
        "compiler": "12.2.0",
        "threads": 1,
        "forwards": 5000,
        "median_ns": 80000,
        "p99_ns": 95000,
        "forwards_per_second": 12500.0,
        "peak_rss_bytes": 1900544,
        "constant_bytes": 36448,
        "arena_bytes": 20544,
    }
    return fields | changes


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    write_device_record(path, record())
    assert read_device_record(path) == record()
    refuse_foreign_file(path)  # an earlier record may be replaced


def test_lines_of_the_c_benchmark_are_a_device(tmp_path: Path) -> None:
    path = tmp_path / "pi.json"
    lines = [c_line(), c_line(kernels="neon-dotprod", median_ns=20000)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_device_record(path)
    assert found.device == "Raspberry Pi 4"
    rows = [(r.runtime, r.size, r.weight_bits, r.forwards_per_second) for r in found.rows]
    assert rows == [("c", "XXS", 8, 12_500.0), ("c-simd", "XXS", 8, 50_000.0)]
    assert (found.rows[0].median_us, found.rows[0].p99_us) == (80.0, 95.0)


@pytest.mark.parametrize(
    "run, size, bits",
    [
        ("breakout-ppo-xxs", "XXS", 8),
        ("breakout-ppo-xxs-4bit", "XXS", 4),
        ("breakout-ppo-s", "S", 8),
        ("breakout-ppo-xxs-2bit", None, None),  # 8 bits in its first and last layer
        ("classic-ppo-cartpole", None, None),
    ],
)
def test_constants_tell_size_and_bits(run: str, size: str | None, bits: int | None) -> None:
    constants = weight_bytes(load_export_source(RUNS / run).student)
    assert size_of_constants(constants) == (size, bits)


def line_without_median() -> str:
    return json.dumps({k: v for k, v in c_line().items() if k != "p99_ns"})


@pytest.mark.parametrize(
    "text, said",
    [
        ("no json", "is not JSON"),
        ("[1]", "it holds no JSON object"),
        ('{"format": "qpd-export"}', "holds nothing that `qpd bench` or `make bench` printed"),
        (json.dumps(record().model_dump() | {"schema_version": 9}), "has schema 9, this QPD reads"),
        (json.dumps(record().model_dump() | {"rows": [{}]}), r"rows\.0\.runtime"),
        (line_without_median(), "lacks 'p99_ns'"),
        (json.dumps(c_line(median_ns=0)), "median_ns"),
    ],
)
def test_other_files_are_one_line_and_stay_as_they_are(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=said) as caught:
        read_device_record(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(BenchError, match="exists and is not"):
        refuse_foreign_file(path)
    assert path.read_text() == text


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="No such file"):
        read_device_record(tmp_path / "none.json")
    with pytest.raises(BenchError, match="does not exist"):
        refuse_foreign_file(tmp_path / "none" / "device.json")


@pytest.mark.parametrize(
    "change",
    [{"forwards_per_second": None}, {"forwards_per_second": -5.0}, {"forwards_per_second": 1e308},
     {"median_us": 0.0}, {"threads": 0}],
)  # fmt: skip
def test_a_measured_row_has_times(tmp_path: Path, change: dict[str, Any]) -> None:
    content = record().model_dump()
    content["rows"][0] |= change
    (tmp_path / "device.json").write_text(json.dumps(content))
    with pytest.raises(BenchError, match="device.json: .*must be (above 0|at least 1)"):
        read_device_record(tmp_path / "device.json")
    times = {"median_us": None, "forwards_per_second": None, "threads": 1}
    content["rows"][0] |= times | {"status": "failed", "reason": "no compiler"}
    (tmp_path / "device.json").write_text(json.dumps(content))
    assert read_device_record(tmp_path / "device.json").rows[0].status == "failed"
