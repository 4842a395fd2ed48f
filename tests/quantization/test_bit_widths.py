"""Bits as people are told of them."""

from __future__ import annotations

from pathlib import Path

from qpd.analysis.runs.run_table import run_summary, summary_rows
from qpd.quantization.bit_widths import bit_widths, configured_widths
from qpd.students import StudentArchitecture
from tests.tiny_run import Follower, recipe_of, work

RUNS = Path(__file__).parents[2] / "runs-reference"


def test_one_hidden_layer_between_two_ends_has_no_bits_of_its_own() -> None:
    shapes = StudentArchitecture((4,), 2, (), (32,)).layer_shapes()
    widths = configured_widths(shapes, 2, 8, 8)
    assert (widths.layers, widths.fewest, widths.mean, str(widths)) == ((8, 8), 8, 8.0, "8")


def test_the_mean_is_over_weights_and_layers_are_listed() -> None:
    shapes = StudentArchitecture((4,), 2, (), (10, 20)).layer_shapes()
    # 4 x 10 and 20 x 2 weights at 8 bits, 10 x 20 at 2: (80 * 8 + 200 * 2) / 280 = 3.714.
    widths = bit_widths(shapes, (8, 2, 8))
    assert widths.mean == 1040 / 280 and str(widths) == "8/2/8, mean 3.7"
    assert widths.to_json() == {
        "weight_bits": 2, "layer_bits": [8, 2, 8], "mean_bits": 1040 / 280,
    }  # fmt: skip


def test_show_tells_the_bits_of_every_layer() -> None:
    summary = run_summary(RUNS / "breakout-ppo-xxs-2bit")
    assert summary["policies"]["qat"]["layer_bits"] == [8, 2, 2, 2, 8]
    header, rows = summary_rows(summary)
    assert rows[-1][header.index("bits")] == "8/2/2/2/8, mean 2.7"


def test_bits_that_no_layer_gets_are_told(teacher_zip: Path, tmp_path: Path) -> None:
    brief = {"distill": {"epochs": 1}, "finetune": {"epochs": 1}}
    ends = {"weight_bits": 2, "first_layer_bits": 8, "last_layer_bits": 8}
    notes = work(tmp_path / "a", recipe_of(teacher_zip, quantize=ends, **brief), Follower()).notes
    assert [note for note in notes if "weight_bits" in note] == [
        "warning: quantize.weight_bits=2: no layer has so many; first_layer_bits and "
        "last_layer_bits decide all 2 layers: 8/8"
    ]
    ends["last_layer_bits"] = None
    notes = work(tmp_path / "b", recipe_of(teacher_zip, quantize=ends, **brief), Follower()).notes
    assert not any("weight_bits" in note for note in notes)
