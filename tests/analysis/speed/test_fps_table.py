"""The paper's Tables 1 and 2, from devices' files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from qpd.analysis.speed.fps_table import COLUMNS, PAPER_FPS, FpsTable, fps_tables, write_tables
from qpd.bench.device_record import BenchRow, DeviceRecord


def row(runtime: str, model: str, bits: int, fps: float | None, **changes: Any) -> BenchRow:
    size = model if model in COLUMNS else None
    fields: dict[str, Any] = {
        "runtime": runtime,
        "model": model,
        "size": size,
        "weight_bits": bits,
        "threads": 1,
        "status": "measured" if fps else "skipped",
        "reason": None if fps else "nothing there",
        "forwards_per_second": fps,
    }
    return BenchRow(**(fields | changes))


def device(name: str, *rows: BenchRow) -> DeviceRecord:
    return DeviceRecord(
        device=name,
        cpu="c",
        cores=1,
        os="o",
        versions={},
        date=None,
        settings={},
        rows=list(rows),
    )


def shown(table: FpsTable, *names: str) -> list[list[str]]:
    """The cells of those columns, of the rows that are not the paper's."""
    places = [table.header.index(name) for name in names]
    cells = [table.cells(row) for row in table.rows if "(paper)" not in row.device]
    return [[line[place] for place in places] for line in cells]


DESK = device(
    "desk",
    row("torch", "teacher", 32, 2000),
    row("torch", "XXS", 32, 5000.4),
    row("torch", "XL", 32, 2100),
    row("c-simd", "XXS", 8, 100_000),
    row("c-simd", "run-4bit", 4, 90_000, size="XXS"),
    row("litert-int8", "XXS", 8, None),
)


def test_fp32_in_table_1_and_8_bit_in_table_2() -> None:
    table_1, table_2 = fps_tables([DESK])
    assert shown(table_1, "device", "runtime", "XXS", "S", "XL", "PPO/A2C", "DQN") == [
        ["desk", "torch", "5,000", "-", "2,100", "2,000", "-"]
    ]
    assert shown(table_2, "device", "runtime", "XXS", "XL", "PPO/A2C") == [
        ["desk", "c-simd", "100,000", "-", "2,000"]
    ]
    assert "desk, c-simd, run-4bit: not shown: 4 bits" in table_2.notes
    assert "desk, litert-int8, XXS: skipped: nothing there" in table_2.notes
    assert not any("litert" in note for note in table_1.notes)


def test_teachers_by_name_have_the_papers_columns() -> None:
    atari = [
        row(runtime, f"teacher {algo} PongNoFrameskip-v4", 32, fps, size="NatureCNN")
        for algo, runtime, fps in (
            ("ppo", "torch", 2000),
            ("ppo", "sb3-predict", 900),
            ("dqn", "torch", 2100),
        )
    ]
    vectors = row("torch", "teacher ppo CartPole-v1", 32, 14_000)
    table_1, table_2 = fps_tables([device("desk", vectors, *atari, row("c", "XXS", 8, 20_000))])
    assert shown(table_1, "runtime", "PPO/A2C", "DQN") == [
        ["torch", "2,000", "2,100"],
        ["sb3-predict", "900", "-"],
    ]
    assert shown(table_2, "runtime", "XXS", "PPO/A2C") == [["c", "20,000", "2,000"]]
    assert shown(table_1, "runtime", "teacher ppo CartPole-v1")[0] == ["torch", "14,000"]


def test_the_papers_devices_are_marked_and_complete() -> None:
    table_1, table_2 = fps_tables([])
    assert [row.device for row in table_1.rows] == [f"{name} (paper)" for name in PAPER_FPS]
    by_name = {row.device: row for row in table_1.rows}
    # Read off the paper's Table 1.
    assert by_name["Raspberry Pi 3B (paper)"].fps["XXL"] == 25
    assert by_name["Tesla V100 (paper)"].fps["PPO/A2C"] == 2212
    assert by_name["Ryzen 9 3900X (paper)"].fps["DQN"] == 1934
    assert {row.runtime for row in table_2.rows} == {"torch fp32"}


def test_files_of_one_device_are_joined_and_threads_kept_apart() -> None:
    more = device(
        "desk",
        row("torch", "S", 32, 4000),
        row("torch", "S", 32, 6000, threads=8),
        row("torch", "my-run", 32, 4100, size="S"),
    )
    table_1, _ = fps_tables([DESK, device("pi", row("torch", "S", 32, 90)), more])
    assert shown(table_1, "device", "threads", "XXS", "S") == [
        ["desk", "1", "5,000", "4,000"],
        ["desk", "8", "-", "6,000"],
        ["pi", "1", "-", "90"],
    ]
    assert "desk, torch, my-run: not shown: S is the same size" in table_1.notes


def test_a_student_that_is_no_size_of_the_grid_has_a_column_of_its_own() -> None:
    table_1, table_2 = fps_tables([device("pi", row("c", "cartpole", 8, 1e6))])
    assert shown(table_2, "device", "XXS", "cartpole") == [["pi", "-", "1,000,000"]]
    assert table_2.notes == () and "cartpole" not in table_1.columns


def test_csv_and_markdown(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "tables"
    written = write_tables(fps_tables([device("a|b", row("torch", "XXS", 32, 1234.56))]), folder)
    assert sorted(path.name for path in written) == sorted(path.name for path in folder.iterdir())
    with (folder / "fps_table_1.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert (lines[0]["device"], lines[0]["XXS"], lines[0]["XL"]) == ("a|b", "1234.6", "")
    assert len(lines) == 1 + len(PAPER_FPS)
    text = (folder / "fps_table_1.md").read_text()
    assert "| a\\|b | torch | 1 | 1,235 | - |" in text
    assert "| Raspberry Pi 3B (paper) | torch | - | 135 | 128 |" in text
