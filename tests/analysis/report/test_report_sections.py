"""The numbers in a report's sections, from reference runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpd.analysis.report.blocks import Cards, Pictures, Table
from qpd.analysis.report.headline import headline_section
from qpd.analysis.report.latency import latency_section, rows_of_student
from qpd.analysis.report.provenance import provenance_section
from qpd.analysis.report.sizes import HEADER, part_bytes, tensor_bytes
from qpd.analysis.report.training import read_curves
from qpd.analysis.report.usage import usage_section
from qpd.bench.device_record import read_device_record
from qpd.student_files.distilled import StudentFileError
from tests.analysis.report.report_inputs import inputs_of

RUNS = Path(__file__).parents[3] / "runs-reference"
QUICKSTART = RUNS / "quickstart"
DEVICE = RUNS / "devices" / "epyc-zen4-2-cores.json"


def cards_of(path: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    block = headline_section(inputs_of(path)).blocks[0]
    assert isinstance(block, Cards)
    return {card.label: (card.value, card.notes) for card in block.cards}


def test_headline_numbers() -> None:
    cards = cards_of(QUICKSTART)
    value, notes = cards["Student's return"]
    assert value == "370.7" and notes[0] == "95% interval 349.0 to 388.1, 30 full games"
    assert cards["Teacher's return"][0] == "330.4"
    assert (
        "383.6 [364.3, 397.5] sampled from softmax(3 * logits)" in cards["Teacher's return"][1][1]
    )
    # 1,686,693 / 35,796 and 4 * 1,686,693 / 37,680
    assert (cards["Fewer parameters"][0], cards["Fewer bytes"][0]) == ("47.1x", "179x")
    assert cards["Bits"] == ("8", ("a weight; activations 8",))


def test_what_was_not_measured_is_not_invented() -> None:
    cards = cards_of(RUNS / "breakout-ppo-xxs")
    assert cards["Teacher's return"] == ("not evaluated", ())
    bits, notes = cards_of(RUNS / "breakout-ppo-xxs-2bit")["Bits"]
    assert bits == "2.7" and "by layer 8/2/2/2/8" in notes


@pytest.mark.parametrize("name", ["distilled", "quantized"])
def test_bytes_add_up_to_the_file(name: str) -> None:
    path = QUICKSTART / f"{name}.safetensors"
    assert sum(tensor_bytes(path).values()) == path.stat().st_size
    parts = part_bytes(path)
    assert sum(parts.values()) == path.stat().st_size
    order = ["conv1", "conv2", "conv3", "linear1", "actor"]
    assert list(parts)[:5] == order and list(parts)[-1] == HEADER


def test_bytes_by_layer_by_hand() -> None:
    fp32 = part_bytes(QUICKSTART / "distilled.safetensors")
    integer = part_bytes(QUICKSTART / "quantized.safetensors")
    # conv1: 16 x 4 x 8 x 8 weights and 16 biases; linear1: 32 x 784 weights and 32 biases.
    assert (fp32["conv1"], fp32["linear1"]) == (4 * (4096 + 16), 4 * (25088 + 32))
    assert (integer["conv1"], integer["linear1"], integer["shifts"]) == (4096, 25088, 80)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0[]", b'\x08\0\0\0\0\0\0\0{"a":{}}']
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "quantized.safetensors"
    path.write_bytes(content)
    with pytest.raises(StudentFileError, match=r"quantized\.safetensors: is damaged"):
        tensor_bytes(path)


def test_curves_count_phase_3_on_and_skip_torn_rows(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(
        "phase,epoch,loss,validation_return,validation_low,validation_high\n"
        "distill,1,0.5,,,\ndistill,2,0.25,7.0,6.0,8.5\n"
        "finetune,1,0.3,9,8,10\nother,1,1,1,1,1\nfinetune,x,1,1,1,1\nfinetune,2,0.2"
    )
    first, second = read_curves(path)
    assert first.points("loss") == [(1, 0.5), (2, 0.25)]
    assert first.points("validation_return", "validation_high") == [(2, 7.0, 8.5)]
    assert second.points("loss") == [(3, 0.3), (4, 0.2)]
    assert second.points("validation_return") == [(3, 9.0)]
    assert read_curves(tmp_path / "absent.csv") == []


def test_latency_prefers_the_run_itself_to_its_size() -> None:
    record = read_device_record(DEVICE)
    rows = rows_of_student(record, ("mine",), "XXS")
    assert [row.model for row in rows] == ["teacher"] + ["XXS"] * 7
    renamed = [r.model_copy(update={"model": "mine"}) if r.model == "S" else r for r in record.rows]
    own = record.model_copy(update={"rows": renamed})
    assert {row.model for row in rows_of_student(own, ("mine",), "XXS")} == {"teacher", "mine"}
    assert rows_of_student(record, ("mine",), None) == []


def test_latency_shows_the_teacher_that_the_student_was_compared_with() -> None:
    record = read_device_record(DEVICE)
    first = next(row for row in record.rows if row.model == "teacher" and row.runtime == "torch")
    mine, other = "teacher ppo CartPole-v1", "teacher ppo BreakoutNoFrameskip-v4"
    rows = [
        first.model_copy(update={"model": mine}),
        first.model_copy(update={"model": mine, "runtime": "sb3-predict"}),
        first.model_copy(update={"model": other}),
        first.model_copy(update={"model": "mine", "teacher": mine}),
    ]
    shown = rows_of_student(record.model_copy(update={"rows": rows}), ("mine",), None)
    assert [(row.runtime, row.model) for row in shown] == [
        ("torch", mine),
        ("sb3-predict", mine),
        ("torch", "mine"),
    ]


def test_latency_shows_the_devices_numbers_or_says_why_not() -> None:
    blocks = latency_section(inputs_of(QUICKSTART, DEVICE)).blocks
    assert isinstance(blocks[1], Pictures) and isinstance(blocks[2], Table)
    assert ["c-simd (vnni)", "XXS", "8", "1", "7.5", "9.3", "134,030", "75.1"] in blocks[2].rows
    assert "A random student of size XXS" in blocks[2].caption
    other = latency_section(inputs_of(RUNS / "classic-ppo-cartpole", DEVICE)).blocks
    assert "no measurement" in str(other[1])
    assert "qpd bench" in str(latency_section(inputs_of(QUICKSTART)).left_out)


def test_provenance_and_commands() -> None:
    inputs = inputs_of(QUICKSTART)
    shown = str(provenance_section(inputs).blocks)
    sha256 = "3fcb32747a379781f9a858f8b5293cc1f4b13dfee6a41c571ca1af2c132ba9bc"
    for text in (sha256, "e702abece926f761e91584936a0f08ec10593c00", "800623024", "torch 2.13.0"):
        assert text in shown
    commands = str(usage_section(inputs).blocks)
    for form in ("sb3", "onnx", "c"):
        assert f"qpd export {QUICKSTART} --format {form}" in commands
